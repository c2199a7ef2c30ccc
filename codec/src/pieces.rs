//! What a new version has in common with an earlier one: segments are compared piece by piece, by
//! hashes that the earlier version kept, so that the earlier image is not needed.
//!
//! A segment that has most of its pieces in common with one of the **base** is stored as a **patch**:
//! the pieces that changed. Restoring reads the base's row and the patch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::geometry::SEGMENT_BYTES;
use crate::hash::ManifestHash;
use crate::id::{CheckpointId, byte_id};
use crate::index::{Index, SegmentEntry};
use crate::seal::DataKey;

/// Bytes that are compared at once. Of a memory image in which a tenth of all 4 KiB pages changed, a
/// seventh of the pieces of this size did; with larger ones it would be more.
pub const PIECE_BYTES: usize = 16 << 10;

/// Pieces of a whole segment: as many as there are bits in a map.
pub const PIECES_MAX: usize = SEGMENT_BYTES / PIECE_BYTES;

const _: () = assert!(PIECES_MAX == u64::BITS as usize);

byte_id! {
    /// Keyed hash of a piece.
    PieceHash, 16
}

/// An earlier checkpoint that a later one refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseRef {
    /// Which.
    pub checkpoint: CheckpointId,
    /// Its manifest.
    pub manifest: ManifestHash,
}

/// Hashes pieces; two checkpoints are compared under the key of the earlier one.
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
    /// A hasher for a checkpoint with this key.
    pub fn new(key: &DataKey) -> Self {
        Self {
            key: Zeroizing::new(key.derive("ckpt v1 piece hash")),
        }
    }

    /// Hashes of the pieces of a segment.
    pub fn hash(&self, raw: &[u8]) -> Vec<PieceHash> {
        let piece = |piece: &[u8]| {
            let mut hash = PieceHash([0; 16]);
            let whole = blake3::keyed_hash(&self.key, piece);
            hash.0.copy_from_slice(&whole.as_bytes()[..16]);
            hash
        };
        raw.chunks(PIECE_BYTES).map(piece).collect()
    }
}

/// Where most of a segment is already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In this row of the base.
    Base(u64),
    /// In this image: a segment that begins so many bytes into the stream.
    Image(u64),
}

/// An earlier segment that has most of what a new one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Where it is.
    pub origin: Origin,
    /// Pieces that differ; bit 0 is the first.
    pub changed: u64,
}

impl Match {
    /// What two segments of the same length have in common; `None` when more than one piece in
    /// `one_in` differs.
    fn of(origin: Origin, new: &[PieceHash], old: &[PieceHash], one_in: usize) -> Option<Self> {
        let pairs = new.iter().zip(old).enumerate();
        let changed = pairs
            .filter(|(_, (new, old))| new != old)
            .fold(0_u64, |map, (piece, _)| map | 1 << piece);
        let is_most = changed.count_ones() as usize * one_in <= new.len();
        is_most.then_some(Self { origin, changed })
    }
}

/// Half of the pieces of a segment of the base may have changed.
const BASE_ONE_IN: usize = 2;

/// Less may differ from a segment of the same image: what is stored as a patch is no base for the next
/// version, which stores the patch again.
const SEEN_ONE_IN: usize = 8;

/// Most segments that may look like a new one and are compared with it.
const CANDIDATES_MAX: usize = 4;

/// Segments of an image that went by, to find what its files have in common: those of the processes
/// of one parallel job share much of their memory (Islam et al., “mcrEngine”, SC 2012).
#[derive(Debug)]
pub struct Seen {
    hasher: PieceHasher,
    segments: Vec<SeenSegment>,
    hashes: Vec<PieceHash>,
    /// The last segment that had this piece.
    pieces: BTreeMap<PieceHash, u32>,
    segments_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct SeenSegment {
    offset: u64,
    len: u32,
    /// Where its hashes begin.
    first: usize,
}

impl Seen {
    /// Memory that is taken for each segment: hashes, and twice as much for finding them.
    pub const SEGMENT_MEMORY: u64 = 64 + PIECES_MAX as u64 * 3 * 16;

    /// Nothing yet; at most so many segments are remembered, the first ones.
    pub fn new(hasher: PieceHasher, segments_max: usize) -> Self {
        Self {
            hasher,
            segments: Vec::new(),
            hashes: Vec::new(),
            pieces: BTreeMap::new(),
            segments_max: segments_max.min(u32::MAX as usize),
        }
    }

    /// Hashes as its own are.
    pub const fn hasher(&self) -> &PieceHasher {
        &self.hasher
    }

    /// A segment that has most of the pieces of one of `len` bytes with these hashes.
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
            is_long.then(|| Match::of(origin, hashes, old, SEEN_ONE_IN))?
        });
        compared.min_by_key(|found| found.changed.count_ones())
    }

    /// Remembers a segment that begins at `offset`.
    pub fn enter(&mut self, offset: u64, len: usize, hashes: &[PieceHash]) {
        if self.segments.len() >= self.segments_max {
            return;
        }
        let number = self.segments.len() as u32;
        self.segments.push(SeenSegment {
            offset,
            len: len as u32,
            first: self.hashes.len(),
        });
        self.hashes.extend_from_slice(hashes);
        self.pieces
            .extend(hashes.iter().map(|hash| (*hash, number)));
    }
}

#[derive(Clone, Copy, Debug)]
struct BaseSegment {
    offset: u64,
    row: u64,
    len: u32,
    /// Where its hashes begin.
    first: usize,
}

/// Hashes of an earlier version, to be compared with.
#[derive(Debug)]
pub struct Base {
    hasher: PieceHasher,
    /// In the order of the stream.
    segments: Vec<BaseSegment>,
    hashes: Vec<PieceHash>,
    /// Segments by the hash of their first piece: finds what moved.
    moved: BTreeMap<PieceHash, usize>,
}

/// Hashes that do not go with the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{actual} bytes of piece hashes, {expected} expected")]
pub struct BaseError {
    /// What the index asks for.
    pub expected: usize,
    /// What there is.
    pub actual: usize,
}

impl Base {
    /// A base with this index; `hashes` are those of all its stored segments, in order.
    ///
    /// # Errors
    /// When there are more or fewer.
    pub fn new(index: &Index, hashes: &[u8], key: &DataKey) -> Result<Self, BaseError> {
        let (all, rest) = hashes.as_chunks::<16>();
        let all: Vec<PieceHash> = all.iter().map(|hash| PieceHash(*hash)).collect();
        let (mut segments, mut moved) = (Vec::new(), BTreeMap::new());
        let (mut offset, mut row, mut first) = (0, 0, 0);
        for entry in &index.segments {
            if let SegmentEntry::Stored { stored, .. } = entry {
                if let Some(hash) = all.get(first) {
                    moved.insert(*hash, segments.len());
                }
                segments.push(BaseSegment {
                    offset,
                    row,
                    len: stored.raw_len,
                    first,
                });
                first += (stored.raw_len as usize).div_ceil(PIECE_BYTES);
            }
            row += u64::from(entry.row().is_some());
            offset += entry.bytes();
        }
        if first != all.len() || !rest.is_empty() {
            let (expected, actual) = (first * 16, hashes.len());
            return Err(BaseError { expected, actual });
        }
        Ok(Self {
            hasher: PieceHasher::new(key),
            segments,
            hashes: all,
            moved,
        })
    }

    /// Hashes as the base's are.
    pub const fn hasher(&self) -> &PieceHasher {
        &self.hasher
    }

    /// A segment of the base that the one at `offset`, of `len` bytes and with these hashes, differs
    /// from in at most half of its pieces; with a row of at least `from`, so that restoring reads the
    /// base's rows in order.
    pub fn find(&self, offset: u64, len: usize, hashes: &[PieceHash], from: u64) -> Option<Match> {
        let here = self
            .segments
            .binary_search_by_key(&offset, |segment| segment.offset)
            .ok();
        let moved = hashes
            .first()
            .and_then(|hash| self.moved.get(hash))
            .copied();
        let candidates = here.into_iter().chain(moved);
        let compared = candidates.filter_map(|at| self.compare(at, len, hashes, from));
        compared.min_by_key(|found| found.changed.count_ones())
    }

    fn compare(&self, at: usize, len: usize, hashes: &[PieceHash], from: u64) -> Option<Match> {
        let segment = self.segments.get(at)?;
        if segment.len as usize != len || segment.row < from {
            return None;
        }
        let old = self
            .hashes
            .get(segment.first..segment.first + hashes.len())?;
        Match::of(Origin::Base(segment.row), hashes, old, BASE_ONE_IN)
    }
}

/// Where the pieces of a map lie in a segment of `len` bytes.
pub fn ranges(changed: u64, len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let pieces = (0..PIECES_MAX).filter(move |piece| changed >> piece & 1 == 1);
    pieces.map(move |piece| {
        let start = (piece * PIECE_BYTES).min(len);
        start..(start + PIECE_BYTES).min(len)
    })
}

/// Bytes of the pieces of a map.
pub fn patch_bytes(changed: u64, len: usize) -> usize {
    ranges(changed, len).map(|range| range.len()).sum()
}

/// Whether a map names only pieces that a segment of `len` bytes has.
pub fn is_map_of(changed: u64, len: usize) -> bool {
    let pieces = len.div_ceil(PIECE_BYTES);
    pieces >= PIECES_MAX || changed >> pieces == 0
}

/// Appends the pieces that changed.
pub fn cut_patch(raw: &[u8], changed: u64, patch: &mut Vec<u8>) {
    for range in ranges(changed, raw.len()) {
        patch.extend_from_slice(&raw[range]);
    }
}

/// Puts the pieces that changed into the base's segment; `false` when they are not as many bytes.
pub fn apply_patch(raw: &mut [u8], changed: u64, mut patch: &[u8]) -> bool {
    for range in ranges(changed, raw.len()) {
        let Some((piece, rest)) = patch.split_at_checked(range.len()) else {
            return false;
        };
        raw[range].copy_from_slice(piece);
        patch = rest;
    }
    patch.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::compress::Method;
    use crate::hash::SegmentHash;
    use crate::index::StoredSegment;

    fn key() -> DataKey {
        DataKey::new([5; 32])
    }

    fn noise(seed: u8, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[seed]).finalize_xof().fill(&mut bytes);
        bytes
    }

    /// A base of these segments, a zero run before the second.
    fn base(segments: &[Vec<u8>]) -> Base {
        let mut index = Index::default();
        let hasher = PieceHasher::new(&key());
        let mut hashes = Vec::new();
        for (at, raw) in segments.iter().enumerate() {
            if at == 1 {
                index.push_segment(SegmentEntry::Zero { bytes: 100 });
            }
            index.push_segment(SegmentEntry::Stored {
                stored: StoredSegment {
                    raw_len: raw.len() as u32,
                    stored_len: raw.len() as u32,
                    method: Method::Raw,
                },
                hash: SegmentHash([0; 32]),
            });
            hashes.extend(hasher.hash(raw).iter().flat_map(|hash| hash.0));
        }
        assert!(Base::new(&index, &hashes[1..], &key()).is_err());
        Base::new(&index, &hashes, &key()).unwrap()
    }

    #[test]
    fn what_changed_is_found_where_it_was_and_where_it_moved() {
        let old = [
            noise(1, SEGMENT_BYTES),
            noise(2, 100_000),
            noise(3, SEGMENT_BYTES),
        ];
        let base = base(&old);
        let find = |offset, raw: &[u8], from| {
            let hashes = base.hasher().hash(raw);
            base.find(offset, raw.len(), &hashes, from)
        };
        let at = |row, changed| {
            let origin = Origin::Base(row);
            Some(Match { origin, changed })
        };
        let same = |row| at(row, 0);
        assert_eq!(find(0, &old[0], 0), same(0));
        let second = SEGMENT_BYTES as u64 + 100;
        assert_eq!(find(second, &old[1], 0), same(1));
        assert_eq!(find(7, &old[2], 0), same(2), "it moved");
        assert_eq!(find(7, &old[0], 1), None, "not backwards");
        let mut new = old[0].clone();
        new[3 * PIECE_BYTES] ^= 1;
        new[SEGMENT_BYTES - 1] ^= 1;
        let changed = 1 << 3 | 1 << 63;
        assert_eq!(find(0, &new, 0), at(0, changed));
        assert_eq!(find(0, &noise(9, SEGMENT_BYTES), 0), None);
        assert_eq!(find(0, &old[0][1..], 0), None, "another length");
    }

    #[test]
    fn what_went_by_is_found_by_any_of_its_pieces() {
        let mut seen = Seen::new(PieceHasher::new(&key()), 2);
        let all = [noise(1, SEGMENT_BYTES), noise(2, 100_000), noise(3, 99)];
        let mut offset = 0;
        for raw in &all {
            let hashes = seen.hasher().hash(raw);
            assert_eq!(seen.find(raw.len(), &hashes), None);
            seen.enter(offset, raw.len(), &hashes);
            offset += raw.len() as u64;
        }
        let find = |raw: &[u8]| seen.find(raw.len(), &seen.hasher().hash(raw));
        let mut new = all[0].clone();
        new[..PIECE_BYTES].fill(7);
        let origin = Origin::Image(0);
        let changed = 1;
        assert_eq!(find(&new), Some(Match { origin, changed }));
        new[..PIECES_MAX / SEEN_ONE_IN * PIECE_BYTES + 1].fill(7);
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
