//! Numbered parts: fields that were added to a message after its form was fixed. They are its last field.
//!
//! A program passes over a part whose number it does not know. So a new part needs no new version of the
//! protocol.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_bytes::ByteBuf;

use super::limits::{PARTS_BYTES_MAX, PARTS_MAX};

/// Parts with ascending numbers: at most [`PARTS_MAX`], together at most [`PARTS_BYTES_MAX`] bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parts(Vec<(u16, ByteBuf)>);

/// Why parts are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartsError {
    /// There are more than [`PARTS_MAX`].
    #[error("more than {PARTS_MAX} parts")]
    TooMany,
    /// Together they have more than [`PARTS_BYTES_MAX`] bytes.
    #[error("parts have more than {PARTS_BYTES_MAX} bytes together")]
    TooLong,
    /// A number is not larger than the number before it.
    #[error("numbers of parts do not ascend")]
    Order,
}

impl Parts {
    /// Makes parts of numbers with the bytes of each.
    ///
    /// # Errors
    /// When the parts are too many or too long, or when their numbers do not ascend.
    pub fn new(parts: impl IntoIterator<Item = (u16, Vec<u8>)>) -> Result<Self, PartsError> {
        let parts = parts.into_iter();
        Self::check(
            parts
                .map(|(number, bytes)| (number, bytes.into()))
                .collect(),
        )
    }

    fn check(parts: Vec<(u16, ByteBuf)>) -> Result<Self, PartsError> {
        if parts.len() > PARTS_MAX {
            return Err(PartsError::TooMany);
        }
        if parts.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > PARTS_BYTES_MAX {
            return Err(PartsError::TooLong);
        }
        if !parts.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(PartsError::Order);
        }
        Ok(Self(parts))
    }

    /// Adds a part at the end. If its number is not larger than the others, or there is no room for it, the
    /// parts stay as they are.
    #[must_use]
    pub fn with(self, number: u16, bytes: Vec<u8>) -> Self {
        let mut more = self.0.clone();
        more.push((number, bytes.into()));
        Self::check(more).unwrap_or(self)
    }

    /// The bytes of the part with this number.
    pub fn get(&self, number: u16) -> Option<&[u8]> {
        let part = self.0.iter().find(|part| part.0 == number);
        part.map(|(_, bytes)| bytes.as_slice())
    }

    /// Whether there are no parts.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Parts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::check(Vec::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use codec::serial;

    use super::*;

    fn read(parts: &[(u16, Vec<u8>)]) -> Result<Parts, serial::SerialError> {
        let parts = parts.to_vec();
        let parts: Vec<_> = parts
            .into_iter()
            .map(|(n, b)| (n, ByteBuf::from(b)))
            .collect();
        serial::decode(&serial::encode(&parts, 1 << 20).unwrap(), 1 << 20)
    }

    #[test]
    fn parts_come_back_and_are_found_by_number() {
        let parts = [(1, vec![7]), (300, vec![8, 9])];
        let found = read(&parts).unwrap();
        assert_eq!(Parts::new(parts), Ok(found.clone()));
        assert_eq!(found.get(300), Some([8, 9].as_slice()));
        assert_eq!((found.get(2), found.is_empty()), (None, false));
        assert!(read(&[]).unwrap().is_empty());
    }

    #[test]
    fn parts_are_bounded_and_ascend() {
        let many = |count: u16| (0..count).map(|number| (number, Vec::new()));
        let full = PARTS_MAX as u16;
        assert!(read(&many(full).collect::<Vec<_>>()).is_ok());
        assert_eq!(Parts::new(many(full + 1)), Err(PartsError::TooMany));
        assert!(read(&many(full + 1).collect::<Vec<_>>()).is_err());
        let long = |bytes| [(1, vec![0; bytes]), (2, vec![1])];
        assert!(read(&long(PARTS_BYTES_MAX - 1)).is_ok());
        assert_eq!(Parts::new(long(PARTS_BYTES_MAX)), Err(PartsError::TooLong));
        assert!(read(&long(PARTS_BYTES_MAX)).is_err());
        for twice in [[(2, vec![]), (2, vec![])], [(2, vec![]), (1, vec![])]] {
            assert!(read(&twice).is_err());
            assert_eq!(Parts::new(twice), Err(PartsError::Order));
        }
    }
}
