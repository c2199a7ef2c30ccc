//! Hashes, one type for each thing that is hashed, so that none passes for another.

use serde::{Deserialize, Serialize};

use crate::id::byte_id;

byte_id! {
    /// BLAKE3 of one block.
    BlockHash, 32
}
byte_id! {
    /// BLAKE3 of one page of a shard's table.
    PageHash, 32
}
byte_id! {
    /// Hash of a shard's outline: what the manifest promises and a host acknowledges.
    ShardRoot, 32
}
byte_id! {
    /// Keyed hash of a segment's image bytes; means nothing without the checkpoint's data key.
    SegmentHash, 32
}
byte_id! {
    /// Hash of a whole signed manifest.
    ManifestHash, 32
}

impl BlockHash {
    /// Hash of the block `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl PageHash {
    /// Hash of the encoded page `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}
