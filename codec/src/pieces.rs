//! What a new version has in common with an earlier one. Segments are compared piece by piece, by hashes
//! that the earlier version stored, so that the earlier image is not needed.
//!
//! A segment that has most of its pieces in common with one of the **base** is stored as the pieces that changed,
//! one after the other. A restore reads them, and the rows with the others ([`crate::layers`]). Which pieces
//! changed is a map of 64 bits, one for each piece of a segment of 1 MiB; bit 0 is the first piece.
//!
//! [`crate::base`] compares with an earlier version, [`EarlierSegments`] with earlier segments of the same image.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::geometry::SEGMENT_BYTES;
use crate::hash::{ManifestHash, PieceHash};
use crate::id::CheckpointId;
use crate::notice::Stamp;
use crate::seal::DataKey;

/// Bytes of a piece. Of a memory image in which a tenth of all 4 KiB pages changed, a seventh of the
/// pieces of this size changed; with larger pieces the part would be larger.
pub const PIECE_BYTES: usize = 16 << 10;

/// Pieces of a whole segment: as many as there are bits in a map.
pub const PIECES_MAX: usize = SEGMENT_BYTES / PIECE_BYTES;

const _: () = assert!(PIECES_MAX == u64::BITS as usize);

/// The base that a checkpoint refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BaseRef {
    /// The checkpoint that is the base.
    pub checkpoint: CheckpointId,
    /// Hash of the base's manifest.
    pub manifest: ManifestHash,
    /// When the base's save began, Unix seconds: with its id, the base's place in the history of the job. So
    /// it can be kept out of what is deleted while its hosts are away. `None` if an older program wrote the
    /// reference. It is encoded apart from the others, where older programs pass over it.
    #[serde(skip)]
    pub created: Option<u64>,
}

impl BaseRef {
    /// The base's place in the history of its job, if the reference has it.
    pub fn stamp(&self) -> Option<Stamp> {
        let checkpoint = self.checkpoint;
        let stamp = |created| Stamp {
            created,
            checkpoint,
        };
        self.created.map(stamp)
    }
}

/// Hashes pieces. Two checkpoints are compared by hashes under the data key of the earlier one.
#[derive(Clone)]
pub struct PieceHasher {
    key: Zeroizing<[u8; 32]>,
}

impl std::fmt::Debug for PieceHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PieceHasher").finish_non_exhaustive()
    }
}

impl PieceHasher {
    /// A hasher for comparisons with the checkpoint that has this data key.
    pub fn new(key: &DataKey) -> Self {
        Self {
            key: Zeroizing::new(key.derive("ckpt v1 piece hash")),
        }
    }

    /// Hashes of the pieces of a segment, in order; the last piece may be shorter than [`PIECE_BYTES`].
    pub fn hash(&self, raw: &[u8]) -> Vec<PieceHash> {
        raw.chunks(PIECE_BYTES)
            .map(|piece| self.piece(piece))
            .collect()
    }

    /// Hash of one piece.
    pub fn piece(&self, piece: &[u8]) -> PieceHash {
        let mut hash = PieceHash([0; 16]);
        let whole = blake3::keyed_hash(&self.key, piece);
        hash.0.copy_from_slice(&whole.as_bytes()[..16]);
        hash
    }
}

/// A piece of a segment of the base. Places are ordered as in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BasePiece {
    /// Number of the segment among those that an earlier version stored (not zeros, not shared ones).
    pub segment: u32,
    /// Number of the piece in that segment.
    pub piece: u32,
}

/// Where the bytes are that a segment repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the earlier version, from this piece on.
    Base(BasePiece),
    /// In this image: an earlier segment, by the byte of the stream at which it begins.
    Image(u64),
}

/// Bytes of an earlier segment that a new segment repeats but for some pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Where the earlier bytes are.
    pub origin: Origin,
    /// Pieces of the new segment that differ; bit 0 is the first.
    pub changed: u64,
}

impl Match {
    /// Compares two segments of the same length by the hashes of their pieces. `None` when the new one has
    /// fewer than `pieces_per_change_min` pieces for each piece that differs.
    pub(crate) fn of(
        origin: Origin,
        new: &[PieceHash],
        old: &[PieceHash],
        pieces_per_change_min: usize,
    ) -> Option<Self> {
        let changed = changed_pieces(new, old);
        let is_most = changed.count_ones() as usize * pieces_per_change_min <= new.len();
        is_most.then_some(Self { origin, changed })
    }
}

/// Which of the new pieces differ from the old pieces in the same place; bit 0 is the first. New pieces
/// beyond the end of the old ones differ.
pub(crate) fn changed_pieces(new: &[PieceHash], old: &[PieceHash]) -> u64 {
    let is_same = |(piece, hash)| old.get(piece) == Some(hash);
    let changed = new.iter().enumerate().filter(|piece| !is_same(*piece));
    changed.fold(0, |map, (piece, _)| map | 1 << piece)
}

/// A segment may repeat an earlier segment of the same image if at most one piece in this many differs.
/// That is fewer than for the base, because the next version stores what differs again: it can't name rows of
/// segments that repeat others of their own image, since a restore would have to go back to them.
const EARLIER_PIECES_PER_CHANGE_MIN: usize = 8;

/// Most earlier segments that a new one is compared with. Each has one of its pieces.
const CANDIDATES_MAX: usize = 4;

/// Earlier segments of an image, to find what its files have in common: the images of the processes of one
/// parallel job share much of their memory (Islam et al., “mcrEngine”, SC 2012).
#[derive(Debug)]
pub struct EarlierSegments {
    hasher: PieceHasher,
    segments: Vec<EarlierSegment>,
    hashes: Vec<PieceHash>,
    /// For each piece, the number of the last segment that had it.
    pieces: BTreeMap<PieceHash, u32>,
    segments_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct EarlierSegment {
    /// Where the segment begins in the stream of the image.
    offset: u64,
    len: u32,
    /// Index of its first piece in [`EarlierSegments::hashes`].
    first: usize,
}

impl EarlierSegments {
    /// Bytes of memory for each segment: its hashes, and twice as much to find them.
    pub const SEGMENT_MEMORY: u64 = 64 + PIECES_MAX as u64 * 3 * 16;

    /// No segment yet. The first `segments_max` of those that are entered are remembered.
    pub fn new(hasher: PieceHasher, segments_max: usize) -> Self {
        Self {
            hasher,
            segments: Vec::new(),
            hashes: Vec::new(),
            pieces: BTreeMap::new(),
            segments_max: segments_max.min(u32::MAX as usize),
        }
    }

    /// Hashes pieces so that they can be compared with those that were entered.
    pub const fn hasher(&self) -> &PieceHasher {
        &self.hasher
    }

    /// The earlier segment of the same length that a segment of `len` bytes with these piece hashes repeats
    /// but for the fewest pieces.
    pub fn find(&self, len: usize, hashes: &[PieceHash]) -> Option<Match> {
        let mut candidates = Vec::with_capacity(CANDIDATES_MAX);
        for at in hashes.iter().filter_map(|hash| self.pieces.get(hash)) {
            if !candidates.contains(at) {
                candidates.push(*at);
            }
            if candidates.len() == CANDIDATES_MAX {
                break;
            }
        }
        let compared = candidates.into_iter().filter_map(|at| {
            let segment = self.segments.get(at as usize)?;
            let old = self
                .hashes
                .get(segment.first..segment.first + hashes.len())?;
            let origin = Origin::Image(segment.offset);
            let is_long = segment.len as usize == len;
            is_long.then(|| Match::of(origin, hashes, old, EARLIER_PIECES_PER_CHANGE_MIN))?
        });
        compared.min_by_key(|found| found.changed.count_ones())
    }

    /// Remembers a segment that begins at byte `offset` of the stream.
    pub fn enter(&mut self, offset: u64, len: usize, hashes: &[PieceHash]) {
        if self.segments.len() >= self.segments_max {
            return;
        }
        let (Ok(number), Ok(len)) = (u32::try_from(self.segments.len()), u32::try_from(len)) else {
            return;
        };
        self.segments.push(EarlierSegment {
            offset,
            len,
            first: self.hashes.len(),
        });
        self.hashes.extend_from_slice(hashes);
        self.pieces
            .extend(hashes.iter().map(|hash| (*hash, number)));
    }
}

/// Whether a map has the piece of this number, which is less than [`PIECES_MAX`].
const fn has(map: u64, piece: usize) -> bool {
    map >> piece & 1 == 1
}

/// The bytes of a segment of `len` bytes in which the pieces of a map lie, one range for each piece.
pub fn ranges(changed: u64, len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let pieces = (0..PIECES_MAX).filter(move |piece| has(changed, *piece));
    pieces.map(move |piece| {
        let start = (piece * PIECE_BYTES).min(len);
        start..(start + PIECE_BYTES).min(len)
    })
}

/// Length of the patch that has the pieces of a map, for a segment of `len` bytes.
pub fn patch_bytes(changed: u64, len: usize) -> usize {
    ranges(changed, len).map(|range| range.len()).sum()
}

/// Whether a map has only pieces that a segment of `len` bytes has.
pub fn is_map_of(changed: u64, len: usize) -> bool {
    let pieces = len.div_ceil(PIECE_BYTES);
    pieces >= PIECES_MAX || changed >> pieces == 0
}

/// Appends to `patch` the pieces of `raw` that changed.
pub fn cut_patch(raw: &[u8], changed: u64, patch: &mut Vec<u8>) {
    let pieces = raw.chunks(PIECE_BYTES).take(PIECES_MAX).enumerate();
    for (_, piece) in pieces.filter(|(number, _)| has(changed, *number)) {
        patch.extend_from_slice(piece);
    }
}

/// Puts the pieces of `patch` into the earlier segment `raw`, in the places of those that changed; `false`
/// when the patch has another length than these places.
pub fn apply_patch(raw: &mut [u8], changed: u64, mut patch: &[u8]) -> bool {
    let pieces = raw.chunks_mut(PIECE_BYTES).take(PIECES_MAX).enumerate();
    for (_, earlier) in pieces.filter(|(number, _)| has(changed, *number)) {
        let Some((piece, rest)) = patch.split_at_checked(earlier.len()) else {
            return false;
        };
        earlier.copy_from_slice(piece);
        patch = rest;
    }
    patch.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples::{key, noise};

    #[test]
    fn an_earlier_segment_is_found_by_any_of_its_pieces() {
        let mut earlier = EarlierSegments::new(PieceHasher::new(&key()), 2);
        let all = [noise(1, SEGMENT_BYTES), noise(2, 100_000), noise(3, 99)];
        let mut offset = 0;
        for raw in &all {
            let hashes = earlier.hasher().hash(raw);
            assert_eq!(earlier.find(raw.len(), &hashes), None);
            earlier.enter(offset, raw.len(), &hashes);
            offset += raw.len() as u64;
        }
        let find = |raw: &[u8]| earlier.find(raw.len(), &earlier.hasher().hash(raw));
        let mut new = all[0].clone();
        new[..PIECE_BYTES].fill(7);
        let origin = Origin::Image(0);
        let changed = 1;
        assert_eq!(find(&new), Some(Match { origin, changed }));
        new[..PIECES_MAX / EARLIER_PIECES_PER_CHANGE_MIN * PIECE_BYTES + 1].fill(7);
        assert_eq!(find(&new), None, "too little");
        assert!(find(&all[1]).is_some());
        assert_eq!(find(&all[1][1..]), None, "another length");
        assert_eq!(find(&all[2]), None, "not more than are to be remembered");
    }

    proptest! {
        #[test]
        fn a_patch_makes_the_new_segment(len in 1..=SEGMENT_BYTES, changed: u64) {
            let pieces = len.div_ceil(PIECE_BYTES);
            let changed = if pieces < 64 { changed & ((1 << pieces) - 1) } else { changed };
            prop_assert!(is_map_of(changed, len));
            let old = noise(1, len);
            let mut new = old.clone();
            for range in ranges(changed, len) {
                new[range].fill(7);
            }
            let mut patch = Vec::new();
            cut_patch(&new, changed, &mut patch);
            prop_assert_eq!(patch.len(), patch_bytes(changed, len));
            let mut made = old.clone();
            prop_assert!(apply_patch(&mut made, changed, &patch));
            prop_assert_eq!(made, new);
            patch.push(0);
            prop_assert!(!apply_patch(&mut old.clone(), changed, &patch));
        }
    }
}
