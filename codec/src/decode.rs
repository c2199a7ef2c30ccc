//! From blocks back to segments. Every segment is checked against the hash that was saved.

use crate::compress::{DecompressError, Decompressor};
use crate::geometry::{Redundancy, ShardIndex};
use crate::hash::{PieceHash, SegmentHash};
use crate::index::{Patch, StoredSegment};
use crate::pieces::{PIECE_BYTES, PieceHasher, apply_patch};
use crate::rs::{CodeError, Coder};
use crate::seal::{DataKey, OpenError, SegmentSealer};

/// Why blocks do not give the segment that was saved.
///
/// Each block was checked against the signed table before. So an error here means that the checkpoint was
/// wrong when it was saved, or that the key is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are too few blocks, or they have different lengths.
    #[error("row {row}: {cause}")]
    Code {
        /// Number of the row that could not be rebuilt.
        row: u64,
        /// Why its blocks do not give a segment.
        cause: CodeError,
    },
    /// The blocks have another length than the index asks for.
    #[error("row {row}: blocks of {actual} bytes, {expected} expected")]
    BlockLength {
        /// Number of the row whose blocks they are.
        row: u64,
        /// Length of the blocks.
        actual: usize,
        /// Length that follows from the index.
        expected: usize,
    },
    /// The segment does not open.
    #[error("row {row}: {cause}")]
    Open {
        /// Number of the segment's row.
        row: u64,
        /// Why the sealed bytes do not open.
        cause: OpenError,
    },
    /// The segment does not decompress.
    #[error("row {row}: {cause}")]
    Decompress {
        /// Number of the segment's row.
        row: u64,
        /// Why the opened bytes do not decompress.
        cause: DecompressError,
    },
    /// The patch does not fit the earlier segment.
    #[error("segment at row {0} of the base: the patch does not fit")]
    Patch(u64),
    /// The image bytes have another hash than when they were saved.
    #[error("row {0}: image bytes differ from what was saved")]
    Hash(u64),
}

/// Makes a segment out of an earlier segment and a patch.
#[derive(Debug)]
pub struct Composer {
    sealer: SegmentSealer,
    hasher: PieceHasher,
}

impl Composer {
    /// A composer for the checkpoint of `sealer`. `base_key` is the data key of its base, or its own if it
    /// has no base.
    pub fn new(sealer: SegmentSealer, base_key: &DataKey) -> Self {
        Self {
            sealer,
            hasher: PieceHasher::new(base_key),
        }
    }

    /// Changes `raw`, which has the earlier bytes, into the segment that `patch` describes.
    ///
    /// - `place`, for error messages: the row of the base, or the byte of the image, with the earlier bytes;
    /// - `pieces`: hashes of the pieces of `raw` if they are known, as they are for bytes that begin at a
    ///   piece of the base; empty otherwise. A last piece that is not whole is hashed again;
    /// - `changed`: the changed pieces, as they are stored in the patch's row.
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

    /// Hashes of all pieces of `raw`. Hashes in `pieces` are used for pieces that did not change.
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

/// Decodes rows. Each thread has one, since it keeps working memory.
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

    /// For a checkpoint that can be a base and has this data key: the hash of each of its segments is made
    /// of the hashes of its pieces.
    pub fn with_pieces(self, key: &DataKey) -> Self {
        let hasher = Some(PieceHasher::new(key));
        Self { hasher, ..self }
    }

    /// Replaces `raw` by the image bytes of `row`, from any `data` of its blocks. Returns the hashes of its
    /// pieces if `hash` was checked by them, and none otherwise.
    ///
    /// `hash` is `None` for the rows of the index and of piece hashes, of which the summary has only the
    /// lengths.
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
