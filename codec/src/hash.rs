//! Hashes. Each kind of content has a hash type of its own, so that the compiler keeps them apart.

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
    /// Hash of a shard's outline. The manifest has it, and a host acknowledges a shard with it.
    ShardRoot, 32
}
byte_id! {
    /// Keyed hash of a segment's image bytes. Without the checkpoint's data key it can't be compared with
    /// anything.
    SegmentHash, 32
}
byte_id! {
    /// Hash of a whole signed manifest.
    ManifestHash, 32
}
byte_id! {
    /// First 16 bytes of the keyed BLAKE3 hash of a piece.
    PieceHash, 16
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
