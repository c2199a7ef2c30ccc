//! Reads the hashes of all pieces of a version: a save compares its image with them, and a restore the files that are at
//! hand.

use codec::base::Base;
use codec::manifest::Summary;
use codec::pieces::PIECE_BYTES;

use crate::agent::Agent;
use crate::agent::read::fetch::Unreadable;
use crate::inventory::KnownCheckpoint;
use transfer::get::BlockReader;

/// One in this many bytes of the memory is for the hashes.
pub(crate) const MEMORY_SHARE: u64 = 8;

/// Memory for the hashes of a version, bytes.
pub(crate) const fn hash_bytes(summary: &Summary) -> u64 {
    summary.stream_bytes / PIECE_BYTES as u64 * Base::PIECE_MEMORY
}

impl Agent {
    /// Whether a version states hashes of its pieces, and there is memory for them.
    pub(crate) const fn has_room_for_hashes(&self, summary: &Summary) -> bool {
        !summary.tail.pieces.is_empty()
            && hash_bytes(summary) <= self.resources.memory_bytes / MEMORY_SHARE
    }

    /// Reads the bytes of these hashes.
    pub(crate) async fn read_hashes(
        &self,
        known: &KnownCheckpoint,
        summary: &Summary,
        reader: &BlockReader,
    ) -> Result<Vec<u8>, Unreadable> {
        let first = known.manifest.public().rows - summary.other_rows();
        self.read_rows(known, summary, reader, first, &summary.tail.pieces)
            .await
    }
}
