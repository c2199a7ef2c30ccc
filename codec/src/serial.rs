//! Plain data to bytes and back, with a size limit, by bincode. No other module uses bincode.
//!
//! bincode 2 is no longer developed. If it has to be replaced, only this module changes.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why bytes can't be decoded, or a value can't be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SerialError {
    /// There are more bytes than the limit for this kind of data.
    #[error("{actual} bytes, at most {limit} are allowed")]
    TooLong {
        /// Bytes of the encoding.
        actual: usize,
        /// Most bytes that are allowed.
        limit: usize,
    },
    /// The bytes are not the encoding of a value of this type.
    #[error("malformed: {0}")]
    Malformed(String),
    /// This many bytes follow the value.
    #[error("{0} unexpected bytes after the value")]
    Trailing(usize),
}

const CONFIG: bincode::config::Configuration = bincode::config::standard();

/// bincode counts every integer with its full width against its limit, before it reads the integer. An
/// integer of 8 bytes may be encoded in one byte, so an honest value counts up to 8 times its encoding.
const CLAIM_FACTOR: usize = 8;

/// Classes of input by length. bincode's limit is a constant, so each class has its own: a false length in
/// a short input is refused before much memory is allocated.
const SMALL: usize = 64 << 10;
const MEDIUM: usize = 1 << 20;
const LARGE: usize = 32 << 20;
const HUGE: usize = crate::geometry::INDEX_BYTES_MAX;

/// Encodes `value`, into at most `limit` bytes.
///
/// # Errors
/// When the encoding is longer than `limit`.
pub fn encode<T: Serialize>(value: &T, limit: usize) -> Result<Vec<u8>, SerialError> {
    let bytes = bincode::serde::encode_to_vec(value, CONFIG)
        .map_err(|cause| SerialError::Malformed(cause.to_string()))?;
    if bytes.len() > limit {
        return Err(SerialError::TooLong {
            actual: bytes.len(),
            limit,
        });
    }
    Ok(bytes)
}

/// Decodes a value whose encoding is all of `bytes`, at most `limit` of them.
///
/// # Errors
/// When there are more than `limit` bytes, or they are not exactly one value of this type.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, SerialError> {
    if bytes.len() > limit {
        return Err(SerialError::TooLong {
            actual: bytes.len(),
            limit,
        });
    }
    let decoded = match bytes.len() {
        len if len <= SMALL => decode_claiming::<T, { CLAIM_FACTOR * SMALL }>(bytes),
        len if len <= MEDIUM => decode_claiming::<T, { CLAIM_FACTOR * MEDIUM }>(bytes),
        len if len <= LARGE => decode_claiming::<T, { CLAIM_FACTOR * LARGE }>(bytes),
        _ => decode_claiming::<T, { CLAIM_FACTOR * HUGE }>(bytes),
    };
    let (value, used) = decoded.map_err(|cause| SerialError::Malformed(cause.to_string()))?;
    if used != bytes.len() {
        return Err(SerialError::Trailing(bytes.len() - used));
    }
    Ok(value)
}

fn decode_claiming<T: DeserializeOwned, const CLAIM: usize>(
    bytes: &[u8],
) -> Result<(T, usize), bincode::error::DecodeError> {
    bincode::serde::decode_from_slice(bytes, CONFIG.with_limit::<CLAIM>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back() {
        let value = (7_u64, "name".to_owned(), vec![1_u16, 2, 3]);
        let bytes = encode(&value, 100).unwrap();
        assert_eq!(decode(&bytes, 100), Ok(value));
    }

    #[test]
    fn limits_hold_on_both_ways() {
        let limit = SerialError::TooLong {
            actual: 11,
            limit: 10,
        };
        assert_eq!(encode(&"0123456789", 10), Err(limit.clone()));
        assert_eq!(decode::<String>(&[0; 11], 10), Err(limit));
    }

    #[test]
    fn trailing_bytes_are_refused() {
        assert_eq!(decode::<u8>(&[1, 2, 3], 10), Err(SerialError::Trailing(2)));
    }

    #[test]
    fn a_lying_length_claims_no_memory() {
        let bytes = [253, 255, 255, 255, 255, 255, 255, 255, 127, 1, 2];
        assert!(decode::<String>(&bytes, 100).is_err());
        assert!(decode::<Vec<u64>>(&bytes, 100).is_err());
        assert!(decode::<serde_bytes::ByteBuf>(&bytes, 100).is_err());
    }

    #[test]
    fn honest_values_of_every_size_claim_enough() {
        for len in [1, SMALL - 3, SMALL, MEDIUM - 5, MEDIUM, MEDIUM + (1 << 20)] {
            let value = vec![7_u64; len];
            let bytes = encode(&value, usize::MAX).unwrap();
            assert!(bytes.len() <= len + 5, "a byte for each number");
            assert_eq!(decode(&bytes, usize::MAX), Ok(value), "{len}");
        }
    }
}
