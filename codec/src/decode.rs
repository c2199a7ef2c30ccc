//! From blocks back to segments. Whatever comes out was verified.

use crate::compress::{DecompressError, Decompressor};
use crate::geometry::{Redundancy, ShardIndex};
use crate::hash::SegmentHash;
use crate::index::{Patch, StoredSegment};
use crate::pieces::{PIECE_BYTES, PieceHash, PieceHasher, apply_patch};
use crate::rs::{CodeError, Coder};
use crate::seal::{DataKey, OpenError, SegmentSealer};

/// Blocks that do not give the segment.
///
/// Blocks were checked against the signed table before; so this means that the checkpoint was
/// wrong when it was saved, or that the wrong key is used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Too few blocks, or of different lengths.
    #[error("row {row}: {cause}")]
    Code {
        /// The row.
        row: u64,
        /// What is wrong.
        cause: CodeError,
    },
    /// Blocks of another length than the index says.
    #[error("row {row}: blocks of {actual} bytes, {expected} expected")]
    BlockLength {
        /// The row.
        row: u64,
        /// Length of the blocks.
        actual: usize,
        /// Length that follows from the index.
        expected: usize,
    },
    /// The segment does not open.
    #[error("row {row}: {cause}")]
    Open {
        /// The row.
        row: u64,
        /// What is wrong.
        cause: OpenError,
    },
    /// The segment does not decompress.
    #[error("row {row}: {cause}")]
    Decompress {
        /// The row.
        row: u64,
        /// What is wrong.
        cause: DecompressError,
    },
    /// A patch that does not fit the segment of the base.
    #[error("segment at row {0} of the base: the patch does not fit")]
    Patch(u64),
    /// The image bytes have another hash than when they were saved.
    #[error("row {0}: image bytes differ from what was saved")]
    Hash(u64),
}

/// Makes segments of earlier ones and patches.
#[derive(Debug)]
pub struct Composer {
    sealer: SegmentSealer,
    hasher: PieceHasher,
}

impl Composer {
    /// For a checkpoint with this sealer, whose base, or which itself when it has none, has this key.
    pub fn new(sealer: SegmentSealer, base_key: &DataKey) -> Self {
        Self {
            sealer,
            hasher: PieceHasher::new(base_key),
        }
    }

    /// Makes the earlier bytes `raw`, which are in row `place` of the base or at this byte of the
    /// image, the segment that `patch` belongs to; `changed` are the bytes that it has in its row.
    /// `pieces` are hashes of the pieces of `raw` where these are known already, as for bytes that
    /// begin at a piece of the base; the last of them counts only if it is whole.
    ///
    /// # Errors
    /// When the result is not exactly the segment that was saved.
    pub fn compose(
        &self,
        place: u64,
        raw: &mut [u8],
        pieces: Vec<PieceHash>,
        patch: &Patch,
        changed: &[u8],
    ) -> Result<(), DecodeError> {
        if raw.len() != patch.len as usize || !apply_patch(raw, patch.changed, changed) {
            return Err(DecodeError::Patch(place));
        }
        if self
            .sealer
            .hash_pieces(&self.hash(raw, pieces, patch.changed))
            != patch.hash
        {
            return Err(DecodeError::Hash(place));
        }
        Ok(())
    }

    /// Hashes of all pieces of `raw`, of which only these `changed`.
    fn hash(&self, raw: &[u8], mut pieces: Vec<PieceHash>, changed: u64) -> Vec<PieceHash> {
        if pieces.len() != raw.len().div_ceil(PIECE_BYTES) {
            return self.hasher.hash(raw);
        }
        let bytes = raw.chunks(PIECE_BYTES);
        for (number, (hash, piece)) in pieces.iter_mut().zip(bytes).enumerate() {
            if changed >> number & 1 == 1 || piece.len() < PIECE_BYTES {
                *hash = self.hasher.piece(piece);
            }
        }
        pieces
    }
}

/// Decodes rows; one for each thread.
#[derive(Debug)]
pub struct RowDecoder {
    redundancy: Redundancy,
    coder: Coder,
    sealer: SegmentSealer,
    hasher: Option<PieceHasher>,
    decompressor: Decompressor,
    sealed: Vec<u8>,
}

impl RowDecoder {
    /// A decoder for one checkpoint.
    pub fn new(redundancy: Redundancy, sealer: SegmentSealer) -> Self {
        Self {
            redundancy,
            coder: Coder::new(redundancy),
            sealer,
            hasher: None,
            decompressor: Decompressor::new(),
            sealed: Vec::new(),
        }
    }

    /// For a checkpoint that has hashes of pieces, and this key.
    pub fn with_pieces(self, key: &DataKey) -> Self {
        let hasher = Some(PieceHasher::new(key));
        Self { hasher, ..self }
    }

    /// Replaces `raw` by the image bytes of `row`, from any `data` of its blocks, and returns the hashes
    /// of its pieces where it has to make them.
    ///
    /// `hash` is known for image rows, not for index rows (which the summary vouches for).
    ///
    /// # Errors
    /// When the blocks do not give exactly the segment that was saved.
    pub fn decode(
        &mut self,
        row: u64,
        stored: &StoredSegment,
        hash: Option<&SegmentHash>,
        blocks: &[(ShardIndex, &[u8])],
        raw: &mut Vec<u8>,
    ) -> Result<Vec<PieceHash>, DecodeError> {
        let sealed_len = stored.stored_len as usize + self.sealer.overhead();
        let expected = self.redundancy.block_len(sealed_len);
        if let Some((_, block)) = blocks.iter().find(|(_, block)| block.len() != expected) {
            return Err(DecodeError::BlockLength {
                row,
                actual: block.len(),
                expected,
            });
        }
        self.coder
            .decode_data(blocks, &mut self.sealed)
            .map_err(|cause| DecodeError::Code { row, cause })?;
        self.sealed.truncate(sealed_len);
        let opened = self
            .sealer
            .open(row, &mut self.sealed)
            .map_err(|cause| DecodeError::Open { row, cause })?;
        self.decompressor
            .decompress(stored.method, opened, stored.raw_len as usize, raw)
            .map_err(|cause| DecodeError::Decompress { row, cause })?;
        let Some(hash) = hash else {
            return Ok(Vec::new());
        };
        let pieces = self.hasher.as_ref().map(|hasher| hasher.hash(raw));
        if self.sealer.hash(raw, pieces.as_deref()) != *hash {
            return Err(DecodeError::Hash(row));
        }
        Ok(pieces.unwrap_or_default())
    }
}
