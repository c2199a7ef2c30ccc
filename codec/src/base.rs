//! Follows an earlier version, the **base**, through the stream of a new version.
//!
//! The image of the base is not at hand. A [`Base`] has only what the base stored of it: where its
//! segments begin, a hash of each piece (16 KiB of a segment), and an anchor (a rolling hash of 64 bytes)
//! for each 64 KiB. A [`Follower`] knows which byte of the base's stream it expects next, and is asked three
//! things for each segment of the new stream, in this order:
//!
//! 1. [`Follower::cut_at`]: where should the segment end?
//! 2. [`Follower::find`]: which bytes of the base does it repeat, and which of its pieces changed?
//! 3. [`Follower::advance`]: the segment is done; expect what follows in the base.
//!
//! Known content is looked for in three ways, the cheapest first:
//!
//! - *in step*: at the expected byte. This costs one hash of each piece, and is all that an image needs
//!   whose bytes stay where they are;
//! - *moved*: at the next segment of the base whose first piece has the hash of the new segment's first
//!   piece. This finds files that were renamed or left out;
//! - *by anchors* ([`Anchors::find`]): at every byte of the new segment. Only this finds what follows
//!   bytes that were inserted or removed. The new segment ends where the known content begins, so that the
//!   next segment is in step again.
//!
//! A restore reads the rows of each checkpoint once, in ascending order. So a follower never goes back to an
//! earlier segment of the base, and does not trust a resemblance far ahead (`REACH_BYTES`).
//!
//! # Example
//!
//! The base has four segments of 1 MiB (1,048,576 bytes). The new stream has the same bytes, and 1,234 bytes
//! more at 768 KiB (786,432):
//!
//! ```text
//! base  |------------- 768 KiB -------------|- 256 KiB -|----- 1 MiB -----|...
//! new   |------------- 768 KiB -------------|++|- 256 KiB -|----- 1 MiB -----|...
//!                                       1,234 bytes
//! ```
//!
//! `cut_at` always gets the next 1 MiB of the new stream, pieces 0 to 63.
//!
//! 1. From byte 0: pieces 0 to 47 are the base's, 48 to 63 are not. The search from byte 786,432 on finds
//!    the anchor that the base has at its byte 786,432. `cut_at` returns 787,666, where that content begins.
//!    `find` returns row 0 from byte 0, with one changed piece: piece 48, the 1,234 new bytes. `advance` goes
//!    on at byte 786,432 of the base, not at 787,666.
//! 2. From byte 787,666: the base's segment ends 262,144 bytes on, and all 16 pieces before its end are the
//!    same. `cut_at` returns 262,144, `find` row 0 from byte 786,432, with no changed piece. `advance` goes
//!    on at byte 1,048,576 of the base, where its next segment begins: the two streams are in step again.
//! 3. From byte 1,049,810: all 64 pieces are the base's. `cut_at` returns `None`, `find` row 1 from byte 0,
//!    with no changed piece.
//!
//! The new version stores 1,234 bytes. The test `inserted_or_removed_bytes_end_a_segment` has this
//! example, and one of removed bytes.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::anchors::{ANCHOR_STEP, Anchor, Anchors, anchor_count};
use crate::hash::PieceHash;
use crate::index::{Index, SegmentEntry};
use crate::layers::{Layer, all_pieces, taken_for};
use crate::pieces::{
    BasePiece, Match, Origin, PIECE_BYTES, PieceHasher, changed_pieces, patch_bytes,
};
use crate::seal::DataKey;

/// A segment matches one of the base if it has at least this many pieces for each piece that changed: at
/// most half of them changed.
const PIECES_PER_CHANGE_MIN: usize = 2;

/// In a segment most of which changed, this many unchanged pieces at its beginning or at its end are cut
/// off as a segment of their own.
const UNCHANGED_RUN_PIECES_MIN: usize = 8;

/// If one of the last 4 pieces of a segment is unchanged and in its old place, nothing was inserted or
/// removed before it.
const UNMOVED_TAIL_PIECES: usize = 4;

/// After this many segments in a row of which nothing was found in the base, only the first
/// [`LOST_SEARCH_BYTES`] of each segment are searched for anchors.
const LOST_SEGMENTS_MAX: u32 = 8;

/// Two anchor steps: if known content began before a segment, the base has an anchor in any
/// [`ANCHOR_STEP`] bytes of it, so these bytes are enough to find it.
const LOST_SEARCH_BYTES: usize = 2 * ANCHOR_STEP;

/// An anchor counts only if its place in the base is at most this many bytes beyond the expected one;
/// each segment of which nothing was found adds this many bytes. Without the limit, bytes that happen to
/// resemble some near the end of the base would lead the follower there, and it can't go back.
const REACH_BYTES: u64 = 4 << 20;

/// A segment that the base stored, or made of layers. Segments of zeros, and those that repeat others of the same
/// image, are not among these.
#[derive(Clone, Debug)]
struct BaseSegment {
    /// Where the segment begins in the base's stream.
    offset: u64,
    len: u32,
    /// The rows with its pieces. Origin 0 is the base itself; the base's own origins follow.
    layers: Vec<Layer>,
    /// Index of its first piece in [`Base::hashes`].
    first: usize,
}

/// Hashes of pieces that are kept elsewhere, because memory would not hold them.
pub trait HashStore: std::fmt::Debug + Send + Sync {
    /// So many hashes, from the one of number `first` on; `None` if they can't be read. The pieces then count as
    /// changed.
    fn read(&self, first: usize, count: usize) -> Option<Vec<PieceHash>>;
}

/// The hashes of all pieces of a base, in the order of the stream.
#[derive(Debug)]
enum Hashes {
    Here(Vec<PieceHash>),
    Elsewhere(Box<dyn HashStore>),
}

impl Hashes {
    fn get(&self, first: usize, count: usize) -> Cow<'_, [PieceHash]> {
        match self {
            Self::Here(all) => Cow::Borrowed(
                all.get(first..first.saturating_add(count))
                    .unwrap_or_default(),
            ),
            Self::Elsewhere(store) => {
                let read = store.read(first, count);
                Cow::Owned(read.filter(|read| read.len() == count).unwrap_or_default())
            }
        }
    }

    const fn memory_bytes(&self) -> usize {
        match self {
            Self::Here(all) => all.len() * size_of::<PieceHash>(),
            Self::Elsewhere(_) => 0,
        }
    }
}

/// What an earlier version stored to be compared with: its segments, hashes of their pieces, and anchors.
#[derive(Debug)]
pub struct Base {
    hasher: PieceHasher,
    /// In the order of the stream; [`BasePiece::segment`] is an index of this list.
    segments: Vec<BaseSegment>,
    hashes: Hashes,
    /// Hash of the first piece of each segment, with the segment's number. Finds a segment that moved.
    moved: BTreeSet<(PieceHash, u32)>,
    /// Hash of a whole piece of zeros.
    zeros: PieceHash,
    anchors: Anchors,
}

/// Bytes of a checkpoint's rows that are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedBytes {
    /// Bytes of the image.
    pub raw: u64,
    /// Their share of what is stored, after compression.
    pub stored: u64,
}

/// The stored hashes are more or fewer than the index of the base asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{actual} bytes of piece hashes, {expected} expected")]
pub struct BaseError {
    /// Bytes of hashes and anchors that the index asks for.
    pub expected: usize,
    /// Bytes that were given.
    pub actual: usize,
}

impl Base {
    /// Bytes of memory for each piece: its hash, its share of the other lists (layers among them), and its share of an
    /// anchor.
    pub const PIECE_MEMORY: u64 = 48 + Self::ANCHOR_MEMORY;

    /// Bytes of memory for each piece if its hash is in a [`HashStore`]: its share of an anchor and of the other lists,
    /// as long as the segments are full and have [`LAYERS_USUAL`](crate::segment::LAYERS_USUAL) layers.
    pub const PIECE_MEMORY_ELSEWHERE: u64 = 11 + Self::ANCHOR_MEMORY;

    const ANCHOR_MEMORY: u64 = Anchors::MEMORY * PIECE_BYTES as u64 / ANCHOR_STEP as u64;

    /// The base that has this index. `hashes` has the bytes of the piece hashes of all its stored segments,
    /// in order, then those of their anchors; `key` is the key of these hashes.
    ///
    /// # Errors
    /// When `hashes` has more or fewer bytes than the index asks for.
    pub fn new(index: &Index, hashes: &[u8], key: &DataKey) -> Result<Self, BaseError> {
        Self::with_hashes_elsewhere(index, hashes, key, |_| None)
    }

    /// As [`Self::new`]. `put` is given the bytes of the hashes of pieces, 16 each, in order; they take no memory here if
    /// it returns where they are now.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn with_hashes_elsewhere(
        index: &Index,
        hashes: &[u8],
        key: &DataKey,
        put: impl FnOnce(&[u8]) -> Option<Box<dyn HashStore>>,
    ) -> Result<Self, BaseError> {
        let (segments, pieces) = comparable_segments(index);
        let count = |segment: &BaseSegment| anchor_count(segment.len as usize);
        let expected = pieces * 16 + segments.iter().map(count).sum::<usize>() * 8;
        let wrong = BaseError {
            expected,
            actual: hashes.len(),
        };
        if hashes.len() != expected || u32::try_from(segments.len()).is_err() {
            return Err(wrong);
        }
        let (pieces, anchors) = hashes.split_at_checked(pieces * 16).ok_or(wrong)?;
        let each = pieces.as_chunks().0;
        let hasher = PieceHasher::new(key);
        let zeros = hasher.piece(&[0; PIECE_BYTES]);
        let first = |(segment, number): (&BaseSegment, _)| {
            let hash = each.get(segment.first);
            hash.map(|hash| (PieceHash(*hash), number))
        };
        let moved = segments.iter().zip(0..).filter_map(first);
        let moved = moved.filter(|(hash, _)| *hash != zeros).collect();
        let places = segments.iter().zip(0..).flat_map(|(segment, number)| {
            let pieces = (0..).step_by(ANCHOR_STEP / PIECE_BYTES);
            pieces.take(count(segment)).map(move |piece| BasePiece {
                segment: number,
                piece,
            })
        });
        let anchors = anchors.as_chunks().0.iter();
        let anchors = anchors.map(|anchor| Anchor(u64::from_le_bytes(*anchor)));
        let anchors = Anchors::new(anchors.zip(places).collect());
        let here = || each.iter().map(|hash| PieceHash(*hash)).collect();
        let hashes = put(pieces).map_or_else(|| Hashes::Here(here()), Hashes::Elsewhere);
        Ok(Self {
            hasher,
            zeros,
            segments,
            hashes,
            moved,
            anchors,
        })
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> u64 {
        let layers = |segment: &BaseSegment| segment.layers.capacity() * size_of::<Layer>();
        // An entry of a tree has some room beside it.
        let each = size_of::<BaseSegment>() + 2 * size_of::<(PieceHash, u32)>();
        let lists: usize = self.segments.iter().map(|one| each + layers(one)).sum();
        (self.hashes.memory_bytes() + lists) as u64 + self.anchors.memory_bytes()
    }

    /// Hashes pieces of the new version so that they can be compared with the base's.
    pub const fn hasher(&self) -> &PieceHasher {
        &self.hasher
    }

    /// The place of the byte `offset` of the base's stream, if a piece begins there.
    fn place_of(&self, offset: u64) -> Option<BasePiece> {
        let after = self.segments.partition_point(|s| s.offset <= offset);
        let segment = after.checked_sub(1)?;
        let within = offset - self.segments.get(segment)?.offset;
        let is_piece = within.is_multiple_of(PIECE_BYTES as u64);
        let place = BasePiece {
            segment: u32::try_from(segment).ok()?,
            piece: u32::try_from(within / PIECE_BYTES as u64).ok()?,
        };
        (is_piece && self.rest(place) > 0).then_some(place)
    }

    /// Whether these bytes of the base's stream are zeros: none of them is in a stored segment, and one
    /// follows.
    fn is_zero(&self, offset: u64, len: usize) -> bool {
        let before = |segment: &BaseSegment| segment.offset + u64::from(segment.len) <= offset;
        let next = self.segments.get(self.segments.partition_point(before));
        next.is_some_and(|next| next.offset >= offset.saturating_add(len as u64))
    }

    fn segment(&self, place: BasePiece) -> Option<&BaseSegment> {
        self.segments.get(place.segment as usize)
    }

    /// Bytes from a place to the end of its segment.
    fn rest(&self, place: BasePiece) -> usize {
        let len = self.segment(place).map_or(0, |segment| segment.len);
        (len as usize).saturating_sub(offset_in_segment(place))
    }

    /// The byte of the base's stream at which a place begins.
    fn offset(&self, place: BasePiece) -> u64 {
        let offset = self.segment(place).map_or(0, |segment| segment.offset);
        offset + offset_in_segment(place) as u64
    }

    /// Hashes of the pieces from a place to the end of its segment.
    fn pieces(&self, place: BasePiece) -> Cow<'_, [PieceHash]> {
        let first = self.segment(place).map_or(0, |segment| segment.first) + place.piece as usize;
        let count = self.rest(place).div_ceil(PIECE_BYTES);
        self.hashes.get(first, count)
    }

    /// Whether a segment of the base begins at this byte of its stream and has these bytes, by its hashes.
    pub fn has_at(&self, offset: u64, raw: &[u8]) -> bool {
        let place = self.place_of(offset);
        place.is_some_and(|place| {
            self.rest(place) == raw.len() && *self.pieces(place) == *self.hasher.hash(raw)
        })
    }

    /// Which pieces of the segment that begins at byte `offset` of the stream `raw` has in the same places, by their
    /// hashes; 0 if no segment of this length begins there.
    pub fn same_pieces(&self, offset: u64, raw: &[u8]) -> u64 {
        let segment = self.place_of(offset).filter(|place| place.piece == 0);
        segment.map_or(0, |place| match self.rest(place) == raw.len() {
            true => all_pieces(raw.len()) & !self.changed(place, &self.hasher.hash(raw)),
            false => 0,
        })
    }

    /// Whether the base's piece at `place` is in `raw` from byte `at` on.
    fn is_there(&self, raw: &[u8], at: usize, place: BasePiece) -> bool {
        let len = self.rest(place).min(PIECE_BYTES);
        let new = raw.get(at..at + len).map(|piece| self.hasher.piece(piece));
        new.is_some() && new == self.pieces(place).first().copied()
    }

    /// Compares a new segment of `len` bytes with the base's bytes from `place` on. `None` when these are
    /// fewer than `len`, or when too many pieces changed.
    fn compare(&self, place: BasePiece, len: usize, hashes: &[PieceHash]) -> Option<Match> {
        if len > self.rest(place) {
            return None;
        }
        let old = self.pieces(place);
        let old = old.get(..hashes.len())?;
        Match::of(Origin::Base(place), hashes, old, PIECES_PER_CHANGE_MIN)
    }

    /// The rows with the pieces of a segment of `len` bytes that repeats the base's bytes from `place` on, but for the
    /// `changed` pieces. Origin 0 is the base itself; the base's own origins follow.
    pub fn layers(&self, place: BasePiece, len: usize, changed: u64) -> Vec<Layer> {
        let kept = all_pieces(len) & !changed;
        let layers = self.segment(place).map(|segment| segment.layers.iter());
        let part = |layer: &Layer| {
            let used = layer.used.checked_shr(place.piece)? & kept;
            let in_base = used.checked_shl(place.piece)?;
            let layer = Layer {
                used,
                taken: taken_for(layer.used, layer.taken, in_base),
                ..layer.clone()
            };
            (used != 0).then_some(layer)
        };
        layers.into_iter().flatten().filter_map(part).collect()
    }

    /// What the base uses of its own rows, and then of those of each of its origins.
    pub fn used_bytes(&self) -> Vec<UsedBytes> {
        let mut all = Vec::new();
        for segment in &self.segments {
            for layer in &segment.layers {
                let at = usize::from(layer.origin);
                if all.len() <= at {
                    all.resize(at + 1, UsedBytes::default());
                }
                let Some(used) = all.get_mut(at) else {
                    continue;
                };
                let raw = patch_bytes(layer.used, segment.len as usize) as u64;
                let stored = u64::from(layer.stored.stored_len) * raw;
                used.raw += raw;
                used.stored += stored.div_ceil(u64::from(layer.stored.raw_len).max(1));
            }
        }
        all
    }

    /// Whether `raw` most likely begins with the rest of a segment of the base, from `place` on, and goes on
    /// after its end. So it is when most of that rest is unchanged, or when the base's next segment follows.
    fn ends_within(&self, place: BasePiece, raw: &[u8], hashes: &[PieceHash]) -> bool {
        let rest = self.rest(place);
        let whole = rest / PIECE_BYTES;
        if rest >= raw.len() {
            return false;
        }
        let (head, tail) = hashes.split_at(whole.min(hashes.len()));
        let same = head.len() - self.changed(place, head).count_ones() as usize;
        let next = BasePiece {
            segment: place.segment + 1,
            piece: 0,
        };
        let is_next = self.offset(next) == self.offset(place) + rest as u64;
        let goes_on = || match rest.is_multiple_of(PIECE_BYTES) {
            true => (self.changed(next, tail).count_ones() as usize) < tail.len(),
            false => self.is_there(raw, rest, next),
        };
        same * PIECES_PER_CHANGE_MIN > whole
            || (whole == 0 && self.is_there(raw, 0, place))
            || (is_next && goes_on())
    }

    /// Which of these pieces differ from those at `place`; bit 0 is the first.
    fn changed(&self, place: BasePiece, hashes: &[PieceHash]) -> u64 {
        changed_pieces(hashes, &self.pieces(place))
    }
}

/// Bytes from the beginning of a segment to a place in it.
const fn offset_in_segment(place: BasePiece) -> usize {
    place.piece as usize * PIECE_BYTES
}

/// The base's segments whose pieces can be compared, and the number of all their pieces.
fn comparable_segments(index: &Index) -> (Vec<BaseSegment>, usize) {
    let mut segments = Vec::new();
    let mut offset = 0;
    let mut row = 0;
    let mut first = 0;
    for entry in &index.segments {
        if matches!(
            entry,
            SegmentEntry::Stored { .. } | SegmentEntry::Layered(_)
        ) {
            let len = u32::try_from(entry.bytes()).unwrap_or(u32::MAX);
            segments.push(BaseSegment {
                offset,
                len,
                layers: layers_of(entry, row, len as usize),
                first,
            });
            first += (len as usize).div_ceil(PIECE_BYTES);
        }
        row += u64::from(entry.row().is_some());
        offset += entry.bytes();
    }
    (segments, first)
}

/// The rows that a segment of `len` bytes is made of, if its own row is `row`. Origin 0 is the checkpoint itself.
pub(crate) fn layers_of(entry: &SegmentEntry, row: u64, len: usize) -> Vec<Layer> {
    let new = match entry {
        SegmentEntry::Layered(layered) => layered.new_pieces(),
        _ => all_pieces(len),
    };
    let own = entry.row().map(|(stored, _)| Layer {
        origin: 0,
        row,
        stored: *stored,
        used: new,
        taken: taken_for(new, u64::MAX, new),
    });
    let others = entry.layers().iter().map(|layer| Layer {
        origin: layer.origin.saturating_add(1),
        ..layer.clone()
    });
    own.into_iter().chain(others).collect()
}

/// Follows a base through the stream of a new version; see the head of this module.
#[derive(Debug)]
pub struct Follower {
    base: Arc<Base>,
    /// First segment of the base that may still be referred to: a restore reads the rows in order.
    floor: u32,
    /// The byte of the base's stream that is expected next.
    next: u64,
    /// The byte of the base's stream that is expected after the next segment, if an anchor gave the end of
    /// that segment.
    next_after_cut: Option<u64>,
    /// Segments in a row in which nothing of the base was found; segments of zeros don't count.
    lost: u32,
}

impl Follower {
    /// A follower that expects the first byte of the base.
    pub const fn new(base: Arc<Base>) -> Self {
        Self {
            base,
            floor: 0,
            next: 0,
            next_after_cut: None,
            lost: 0,
        }
    }

    /// The base that it follows.
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// Where a segment should end before the end of `raw`, because known content begins there or a segment
    /// of the base ends there: more than 0 and less than the length of `raw`. `hashes` are those of the
    /// pieces of `raw`. The next calls of [`Self::find`] and [`Self::advance`] have to be for the bytes
    /// before the cut.
    pub fn cut_at(&mut self, raw: &[u8], hashes: &[PieceHash]) -> Option<usize> {
        let ends = |place: &BasePiece| self.base.ends_within(*place, raw, hashes);
        let within = self.places(hashes).find(ends);
        if let Some(place) = within {
            let rest = self.base.rest(place);
            let head = hashes.get(..rest / PIECE_BYTES).unwrap_or_default();
            // Bytes may have been inserted before the end of the base's segment, too.
            let before = match rest.is_multiple_of(PIECE_BYTES) {
                true => self.cut_at(raw.get(..rest).unwrap_or_default(), head),
                false => None,
            };
            return Some(before.unwrap_or(rest));
        }
        let found = self.find(raw.len(), hashes);
        // The first pieces, which need no search: all before the changed ones at the end of a match, or
        // else the unchanged ones at the beginning.
        let known = match found {
            Some(found) => hashes.len() - trailing_run(found.changed, hashes.len()),
            None => self.unchanged_head(hashes),
        };
        if known == hashes.len() {
            return None;
        }
        if found.is_none() && known >= UNCHANGED_RUN_PIECES_MIN {
            return Some(known * PIECE_BYTES);
        }
        if found.is_none() && self.is_in_step(raw.len(), hashes) {
            let end = self.unchanged_tail(hashes);
            return (end >= UNCHANGED_RUN_PIECES_MIN).then_some((hashes.len() - end) * PIECE_BYTES);
        }
        let start = known * PIECE_BYTES;
        // A segment that matches the base as a whole shows that the follower is not lost.
        let is_lost = found.is_none() && self.lost >= LOST_SEGMENTS_MAX;
        let end = match is_lost {
            true => raw.len().min(start + LOST_SEARCH_BYTES),
            false => raw.len(),
        };
        let at = self.search(raw, start..end);
        if at.is_none() && found.is_none() {
            self.lost = self.lost.saturating_add(1);
        }
        at
    }

    /// Looks for known content by its anchors, at these positions in `raw`, and cuts where it begins. Content
    /// that is known from the first byte on is cut where its segment of the base ends.
    fn search(&mut self, raw: &[u8], positions: Range<usize>) -> Option<usize> {
        let reach = self
            .next
            .saturating_add(REACH_BYTES * (u64::from(self.lost) + 1));
        let there = |at, place| {
            self.base.offset(place) <= reach.saturating_add(at as u64)
                && self.base.is_there(raw, at, place)
        };
        let (at, place) = self.base.anchors.find(raw, positions, self.floor, there)?;
        let goes_on = self.base.offset(place);
        if at > 0 {
            self.next_after_cut = Some(goes_on);
            return Some(at);
        }
        self.next = goes_on;
        let rest = self.base.rest(place);
        (rest < raw.len()).then_some(rest)
    }

    /// The part of the base that a segment of `len` bytes repeats but for some pieces, whose hashes these
    /// are; `None` when no part is like it.
    pub fn find(&self, len: usize, hashes: &[PieceHash]) -> Option<Match> {
        let compare = |place| self.base.compare(place, len, hashes);
        self.places(hashes).find_map(compare)
    }

    /// Whether a segment, most of which changed, most likely ends where the base's segment ends, so that
    /// nothing was inserted or removed: one of its last pieces is unchanged and in its old place, or the base
    /// has zeros there and it still has a piece of zeros.
    fn is_in_step(&self, len: usize, hashes: &[PieceHash]) -> bool {
        let was_zero = || self.base.is_zero(self.next, len);
        let ends_alike = |place| {
            trailing_run(self.base.changed(place, hashes), hashes.len()) < UNMOVED_TAIL_PIECES
        };
        self.places(hashes).any(ends_alike) || (hashes.contains(&self.base.zeros) && was_zero())
    }

    /// How many pieces at the beginning of a segment are unchanged and in their old place.
    fn unchanged_head(&self, hashes: &[PieceHash]) -> usize {
        let same = |place| self.base.changed(place, hashes).trailing_zeros() as usize;
        let most = self.places(hashes).map(same).max();
        most.unwrap_or(0).min(hashes.len())
    }

    /// How many pieces at the end of a segment are unchanged and in their old place.
    fn unchanged_tail(&self, hashes: &[PieceHash]) -> usize {
        let same = |place| trailing_run(!self.base.changed(place, hashes), hashes.len());
        self.places(hashes).map(same).max().unwrap_or(0)
    }

    /// Where in the base the segment may be: first the expected place, then the next segment of the base
    /// that begins with the same piece. Later segments that begin with that piece are left alone, since the
    /// follower can't go back from there.
    fn places(&self, hashes: &[PieceHash]) -> impl Iterator<Item = BasePiece> {
        let here = self.base.place_of(self.next);
        let here = here.filter(|place| place.segment >= self.floor);
        let from = here.map_or(self.floor, |place| place.segment);
        let moved = hashes.first().and_then(|hash| {
            let mut same = self.base.moved.range((*hash, from)..=(*hash, u32::MAX));
            let segment = same.next()?.1;
            Some(BasePiece { segment, piece: 0 })
        });
        here.into_iter().chain(moved)
    }

    /// Goes on by `len` bytes of the stream, for which [`Self::find`] gave `found`.
    pub fn advance(&mut self, len: usize, found: Option<Match>) {
        if let Some(Origin::Base(place)) = found.map(|found| found.origin) {
            self.floor = place.segment;
            self.next = self.base.offset(place);
            self.lost = 0;
        }
        let after = self.next.saturating_add(len as u64);
        self.next = self.next_after_cut.take().unwrap_or(after);
    }
}

/// How many of the last pieces, of `pieces` in all, are in the map without a gap.
const fn trailing_run(map: u64, pieces: usize) -> usize {
    if pieces == 0 {
        return 0;
    }
    (map << (u64::BITS as usize - pieces)).leading_ones() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::anchors::anchors;
    use crate::compress::Method;
    use crate::geometry::SEGMENT_BYTES;
    use crate::hash::SegmentHash;
    use crate::index::StoredSegment;
    use crate::samples::{key, noise};

    /// A base of these segments, with 100 zeros before the second.
    fn base(segments: &[Vec<u8>]) -> Arc<Base> {
        let (index, hashes) = parts(segments);
        assert!(Base::new(&index, &hashes[1..], &key()).is_err());
        Arc::new(Base::new(&index, &hashes, &key()).unwrap())
    }

    /// Its index, and the bytes of its hashes and anchors.
    fn parts(segments: &[Vec<u8>]) -> (Index, Vec<u8>) {
        let mut index = Index::default();
        let hasher = PieceHasher::new(&key());
        let mut hashes = Vec::new();
        let mut last = Vec::new();
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
            last.extend(anchors(raw).flat_map(|anchor| anchor.0.to_le_bytes()));
        }
        hashes.extend(last);
        (index, hashes)
    }

    /// Hashes that can't be read from the third piece on.
    #[derive(Debug)]
    struct Torn(Vec<u8>);

    impl HashStore for Torn {
        fn read(&self, first: usize, count: usize) -> Option<Vec<PieceHash>> {
            let all = self.0.as_chunks().0.iter();
            let all = all.map(|hash| PieceHash(*hash));
            (first < 3).then(|| all.skip(first).take(count).collect())
        }
    }

    #[test]
    fn pieces_whose_hashes_cannot_be_read_count_as_changed() {
        let segments = [0, 1, 2].map(|seed| noise(seed, 4 * PIECE_BYTES)).to_vec();
        let (index, hashes) = parts(&segments);
        let put = |hashes: &[u8]| Some(Box::new(Torn(hashes.to_vec())) as Box<dyn HashStore>);
        let torn = Base::with_hashes_elsewhere(&index, &hashes, &key(), put).unwrap();
        let whole = base(&segments);
        let saved = whole.memory_bytes() - torn.memory_bytes();
        assert_eq!(saved, 12 * 16, "the hashes take no memory");
        let torn = Arc::new(torn);
        let second = (4 * PIECE_BYTES + 100) as u64;
        assert!(torn.has_at(0, &segments[0]) && !torn.has_at(second, &segments[1]));
        assert_eq!(torn.same_pieces(second, &segments[1]), 0);
        assert_eq!(whole.same_pieces(second, &segments[1]), 0b1111);
        assert_eq!(follow(&torn, &segments[0]), follow(&whole, &segments[0]));
        let stream = segments[1..].concat();
        assert!(follow(&torn, &stream).iter().all(|part| part.1.is_none()));
        assert!(follow(&whole, &stream).iter().any(|part| part.1.is_some()));
    }

    fn at(segment: u32, from: u32, changed: u64) -> Option<Match> {
        let piece = from / PIECE_BYTES as u32;
        let origin = Origin::Base(BasePiece { segment, piece });
        Some(Match { origin, changed })
    }

    /// Length of each segment of the stream, and what is found of it.
    fn follow(base: &Arc<Base>, stream: &[u8]) -> Vec<(usize, Option<Match>)> {
        let mut follower = Follower::new(Arc::clone(base));
        let mut found = Vec::new();
        let mut from = 0;
        while from < stream.len() {
            let raw = &stream[from..stream.len().min(from + SEGMENT_BYTES)];
            let hashes = base.hasher().hash(raw);
            let len = follower.cut_at(raw, &hashes).unwrap_or(raw.len());
            assert!(len > 0 && len <= raw.len());
            let what = follower.find(len, &base.hasher().hash(&raw[..len]));
            follower.advance(len, what);
            found.push((len, what));
            from += len;
        }
        found
    }

    #[test]
    fn changed_segments_are_found_in_their_place_and_where_they_moved() {
        let old = [
            noise(1, SEGMENT_BYTES),
            noise(2, 100_000),
            noise(3, SEGMENT_BYTES),
        ];
        let base = base(&old);
        let first = |raw: &[u8]| follow(&base, raw)[0];
        assert_eq!(first(&old[0]), (SEGMENT_BYTES, at(0, 0, 0)));
        assert_eq!(first(&old[1]), (100_000, at(1, 0, 0)), "it moved");
        let mut new = old[0].clone();
        new[3 * PIECE_BYTES] ^= 1;
        new[SEGMENT_BYTES - 1] ^= 1;
        let changed = 1 << 3 | 1 << 63;
        assert_eq!(first(&new), (SEGMENT_BYTES, at(0, 0, changed)));
        assert_eq!(first(&noise(9, SEGMENT_BYTES)), (SEGMENT_BYTES, None));
        let backwards = [old[2].clone(), old[0].clone()].concat();
        let found = follow(&base, &backwards);
        assert_eq!(found[0].1, at(2, 0, 0));
        assert_eq!(found[1], (SEGMENT_BYTES, None), "not backwards");
    }

    #[test]
    fn a_base_states_which_bytes_a_segment_has() {
        let old = [noise(1, SEGMENT_BYTES), noise(2, 100_000)];
        let base = base(&old);
        let second = SEGMENT_BYTES as u64 + 100;
        assert!(base.has_at(0, &old[0]) && base.has_at(second, &old[1]));
        let mut other = old[0].clone();
        other[SEGMENT_BYTES - 1] ^= 1;
        assert!(!base.has_at(0, &other));
        assert!(!base.has_at(0, &old[0][..SEGMENT_BYTES - 1]));
        assert!(!base.has_at(second, &old[0]) && !base.has_at(1, &old[0]));
    }

    #[test]
    fn layers_are_followed_into_the_rows_that_a_base_uses() {
        let old = [noise(1, SEGMENT_BYTES), noise(2, 5 * PIECE_BYTES)];
        let base = base(&old);
        let place = |segment, piece| BasePiece { segment, piece };
        let of = |place, len, changed| -> Vec<(u64, u64, u64)> {
            let layers = base.layers(place, len, changed).into_iter();
            layers.map(|it| (it.row, it.used, it.taken)).collect()
        };
        assert_eq!(of(place(0, 0), SEGMENT_BYTES, 0), [(0, u64::MAX, u64::MAX)]);
        assert_eq!(
            of(place(1, 2), 3 * PIECE_BYTES, 0b010),
            [(1, 0b101, 0b10100)]
        );
        assert_eq!(of(place(1, 4), PIECE_BYTES, 1), []);
        let used = base.used_bytes();
        assert_eq!(used[0].raw, (SEGMENT_BYTES + 5 * PIECE_BYTES) as u64);
    }

    #[test]
    fn inserted_or_removed_bytes_end_a_segment() {
        let old: Vec<Vec<u8>> = (0..4).map(|seed| noise(seed, SEGMENT_BYTES)).collect();
        let base = base(&old);
        let stream = old.concat();
        let inserted = 3 * SEGMENT_BYTES / 4;
        let mut new = stream.clone();
        new.splice(inserted..inserted, noise(9, 1234));
        let last = SEGMENT_BYTES / 4;
        let expected = [
            (inserted + 1234, at(0, 0, 1 << 48)),
            (last, at(0, inserted as u32, 0)),
            (SEGMENT_BYTES, at(1, 0, 0)),
            (SEGMENT_BYTES, at(2, 0, 0)),
            (SEGMENT_BYTES, at(3, 0, 0)),
        ];
        assert_eq!(follow(&base, &new), expected);

        let mut new = stream.clone();
        new.drain(100..300);
        let found = follow(&base, &new);
        // The base's first anchor after the removed bytes is at ANCHOR_STEP.
        assert_eq!(found[0], (ANCHOR_STEP - 200, None));
        let rest = SEGMENT_BYTES - ANCHOR_STEP;
        assert_eq!(found[1], (rest, at(0, ANCHOR_STEP as u32, 0)));
        assert_eq!(found[2], (SEGMENT_BYTES, at(1, 0, 0)));

        // More segments than LOST_SEGMENTS_MAX.
        let mut new = stream;
        new.splice(0..0, noise(9, 12 * SEGMENT_BYTES + 5));
        let found = follow(&base, &new);
        assert_eq!(found[12], (5, None));
        assert_eq!(found[13], (SEGMENT_BYTES, at(0, 0, 0)));
        assert_eq!(found.len(), 17);
    }

    #[test]
    fn a_file_that_grew_is_compared_to_its_old_end() {
        let old = [noise(1, SEGMENT_BYTES), noise(2, 300_000)];
        let base = base(&old);
        let mut index = old.concat();
        // The base has zeros before its second segment.
        index.splice(SEGMENT_BYTES..SEGMENT_BYTES, noise(4, 1));
        index.extend(noise(3, 400_000));
        let found = follow(&base, &index);
        assert_eq!(found[0].1, at(0, 0, 0));
        assert_eq!(found[1], (1, None));
        assert_eq!(found[2], (300_000, at(1, 0, 0)));
        assert_eq!(found[3], (400_000, None));
    }
}
