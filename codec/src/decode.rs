//! From blocks back to segments. Every segment is checked against the hash that was saved.

use crate::compress::{DecompressError, Decompressor};
use crate::geometry::{Redundancy, ShardIndex};
use crate::hash::SegmentHash;
use crate::index::{Patch, StoredSegment};
use crate::layers::{Layer, Layered};
use crate::pieces::{PieceHasher, apply_patch};
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
    /// Something that the segment is made of does not fit, or is not there.
    #[error("segment at byte {0} of the image: its parts do not fit")]
    Patch(u64),
    /// A segment that is made of earlier bytes has another hash than when it was saved.
    #[error("segment at byte {0} of the image: its bytes differ from what was saved")]
    Composed(u64),
    /// The image bytes have another hash than when they were saved.
    #[error("row {0}: image bytes differ from what was saved")]
    Hash(u64),
}

/// Checks segments that are made of earlier bytes.
#[derive(Clone, Debug)]
pub struct Composer {
    sealer: SegmentSealer,
    hasher: PieceHasher,
}

impl Composer {
    /// A composer for the checkpoint of `sealer`, whose hashes of pieces are made with `pieces_key`.
    pub fn new(sealer: SegmentSealer, pieces_key: &DataKey) -> Self {
        Self {
            sealer,
            hasher: PieceHasher::new(pieces_key),
        }
    }

    /// Puts the `changed` pieces, as they are stored in the patch's row, into `raw`, which has the earlier bytes.
    /// `place`, for error messages, is the byte of the image with the earlier bytes.
    ///
    /// # Errors
    /// When the result is not exactly the segment that was saved.
    pub fn patch(
        &self,
        place: u64,
        raw: &mut [u8],
        patch: &Patch,
        changed: &[u8],
    ) -> Result<(), DecodeError> {
        if raw.len() != patch.len as usize || !apply_patch(raw, patch.changed, changed) {
            return Err(DecodeError::Patch(place));
        }
        self.check(place, raw, &patch.hash)
    }

    /// Makes a segment of its layers in `raw`, which has the pieces of the map `at_hand` already. `row` returns the
    /// image bytes of a layer's row, and `new` has the segment's new pieces, if they are needed. `place`, for error
    /// messages, is the byte of the image at which the segment begins.
    ///
    /// # Errors
    /// When the result is not exactly the segment that was saved.
    pub fn compose<'a>(
        &self,
        place: u64,
        raw: &mut Vec<u8>,
        layered: &Layered,
        at_hand: u64,
        row: impl FnMut(&Layer) -> Option<&'a [u8]>,
        new: &[u8],
    ) -> Result<(), DecodeError> {
        raw.resize(layered.len as usize, 0);
        let made = layered.compose(raw, at_hand, row, new);
        made.ok_or(DecodeError::Patch(place))?;
        self.check(place, raw, &layered.hash)
    }

    /// Checks a segment whose bytes were found elsewhere. `place`, for error messages, is the byte of the image at which
    /// it begins.
    ///
    /// # Errors
    /// When `raw` is not exactly the segment that was saved.
    pub fn check(&self, place: u64, raw: &[u8], hash: &SegmentHash) -> Result<(), DecodeError> {
        if self.sealer.hash_pieces(&self.hasher.hash(raw)) != *hash {
            return Err(DecodeError::Composed(place));
        }
        Ok(())
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

    /// For a checkpoint whose hashes of segments are made of hashes of pieces, with this key for these.
    pub fn with_pieces(self, key: &DataKey) -> Self {
        let hasher = Some(PieceHasher::new(key));
        Self { hasher, ..self }
    }

    /// Replaces `raw` by the image bytes of `row`, from any `data` of its blocks.
    ///
    /// `hash` is `None` for the rows of the index and of piece hashes, of which the summary has only the
    /// lengths, and for rows that are checked as parts of segments.
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
    ) -> Result<(), DecodeError> {
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
            return Ok(());
        };
        let pieces = self.hasher.as_ref().map(|hasher| hasher.hash(raw));
        if self.sealer.hash(raw, pieces.as_deref()) != *hash {
            return Err(DecodeError::Hash(row));
        }
        Ok(())
    }
}
