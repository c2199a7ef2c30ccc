//! The common form of short signed records (grants, notices, proposals): eight bytes that name the kind of
//! record, the encoded body, and an Ed25519 signature of both.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::serial::{self, SerialError};

pub(crate) const SIGNATURE_BYTES: usize = 64;

const MAGIC_BYTES: usize = 8;

/// Why bytes are not a record of the expected kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FrameError {
    Serial(SerialError),
    /// The bytes begin otherwise, are too short, or encode the body in another way than [`write()`] does.
    Frame,
}

/// The parts of a record. Its signature is not checked yet.
pub(crate) struct Record<'a, T> {
    pub(crate) body: T,
    /// The bytes that the signature is of.
    pub(crate) signed: &'a [u8],
    pub(crate) signature: &'a [u8],
}

/// Makes a record of at most `limit` bytes; `sign` makes the signature.
pub(crate) fn write<T: Serialize>(
    magic: &[u8; MAGIC_BYTES],
    body: &T,
    limit: usize,
    sign: impl FnOnce(&[u8]) -> [u8; SIGNATURE_BYTES],
) -> Result<Vec<u8>, SerialError> {
    let mut bytes = magic.to_vec();
    bytes.extend(serial::encode(
        body,
        limit.saturating_sub(MAGIC_BYTES + SIGNATURE_BYTES),
    )?);
    let signature = sign(&bytes);
    bytes.extend_from_slice(&signature);
    Ok(bytes)
}

/// Takes a record of at most `limit` bytes apart. The body has to be encoded exactly as [`write()`] does it,
/// so that a record can't be written in two ways.
pub(crate) fn read<'a, T: Serialize + DeserializeOwned>(
    magic: &[u8; MAGIC_BYTES],
    bytes: &'a [u8],
    limit: usize,
) -> Result<Record<'a, T>, FrameError> {
    if bytes.len() > limit {
        let actual = bytes.len();
        return Err(FrameError::Serial(SerialError::TooLong { actual, limit }));
    }
    let (signed, signature) = bytes
        .split_last_chunk::<SIGNATURE_BYTES>()
        .ok_or(FrameError::Frame)?;
    let encoded = signed.strip_prefix(magic).ok_or(FrameError::Frame)?;
    let body: T = serial::decode(encoded, limit).map_err(FrameError::Serial)?;
    if serial::encode(&body, limit).map_err(FrameError::Serial)? != encoded {
        return Err(FrameError::Frame);
    }
    Ok(Record {
        body,
        signed,
        signature,
    })
}
