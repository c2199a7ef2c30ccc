//! Bytes and keys for tests.

use crate::seal::DataKey;

/// A data key.
pub(crate) fn key() -> DataKey {
    DataKey::new([5; 32])
}

/// Random bytes that depend only on the seed; a shorter sequence is the beginning of a longer one.
pub(crate) fn noise(seed: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[seed]).finalize_xof().fill(&mut bytes);
    bytes
}
