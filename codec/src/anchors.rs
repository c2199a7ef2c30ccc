//! Finds content of an earlier version, the base, at any byte of a new one.
//!
//! Segments have a fixed length, so that a page of memory keeps its place in its segment. Bytes that are
//! inserted into a stream or an archive move all bytes that follow, and then a segment has to end where
//! known content begins. For that, a base keeps an **anchor** for each 64 KiB of its segments: a rolling
//! hash of 64 bytes. The new bytes are searched for these hashes (Tridgell and Mackerras, “The rsync
//! algorithm”, 1996; the hash is that of Xia et al., “FastCDC”, ATC 2016). The search runs only where
//! segments differ from the base.
//!
//! At each byte of the new version, the hash of the last 64 bytes is looked up in three steps, each of
//! which lets few positions through to the next: a bit of `Anchors::filter`; the sorted list of anchors;
//! the hash of the piece that begins at these 64 bytes, which the caller compares.

use std::ops::Range;

use crate::pieces::{BasePiece, PIECE_BYTES};

/// Bytes from one anchor to the next in a segment.
pub const ANCHOR_STEP: usize = 64 << 10;

/// Bytes that an anchor is the hash of. Each byte shifts the hash left by one bit, so bytes before the
/// last 64 have no influence on it.
const WINDOW: usize = 64;

const _: () = assert!(ANCHOR_STEP.is_multiple_of(PIECE_BYTES));

/// Most places of the base with the same anchor. A window of bytes that the base has more often leads to no
/// particular place, and is not looked for.
const PLACES_PER_ANCHOR_MAX: usize = 4;

/// Most pieces that one search hashes to compare them. Bounds the cost of bytes that repeat.
const CHECKS_MAX: usize = 256;

/// Bits of the filter for each anchor, of which one is set: some 1 in 64 positions of unknown bytes passes.
const FILTER_BITS_PER_ANCHOR: usize = 64;

/// Rolling hash of 64 bytes. The hash has no key; it is sealed with the rows, and only the owner reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Anchor(pub u64);

/// A random-looking number for each byte: `SplitMix64` (Steele et al., OOPSLA 2014).
const GEAR: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut x = (byte as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[byte] = x ^ (x >> 31);
        byte += 1;
    }
    table
};

/// The hash of the window that ends with `byte`, from the hash of the window before it.
fn roll(hash: u64, byte: u8) -> u64 {
    (hash << 1).wrapping_add(GEAR[usize::from(byte)])
}

/// Whether an anchor is the hash of 64 equal bytes, such as zeros.
fn is_constant(anchor: Anchor) -> bool {
    let hash = |byte| (0..WINDOW).fold(0, |hash, _| roll(hash, byte));
    (0..=u8::MAX).any(|byte| hash(byte) == anchor.0)
}

/// The anchors of a segment: the hash of the first 64 bytes of each [`ANCHOR_STEP`] bytes; a last part
/// that is shorter than 64 bytes has none.
pub fn anchors(raw: &[u8]) -> impl Iterator<Item = Anchor> {
    let windows = raw
        .chunks(ANCHOR_STEP)
        .filter_map(|part| part.get(..WINDOW));
    windows.map(|window| Anchor(window.iter().fold(0, |hash, byte| roll(hash, *byte))))
}

/// How many anchors a segment of `len` bytes has.
pub const fn anchor_count(len: usize) -> usize {
    (len + ANCHOR_STEP - WINDOW) / ANCHOR_STEP
}

/// The anchors of a base, to be searched for.
#[derive(Debug)]
pub struct Anchors {
    /// By hash, then by place.
    sorted: Vec<(Anchor, BasePiece)>,
    /// One bit for each value of the high bits of a hash; set if some anchor has these bits.
    filter: Vec<u64>,
    /// How many low bits of a hash the filter leaves out.
    shift: u32,
}

impl Anchors {
    /// Bytes of memory for each anchor.
    pub const MEMORY: u64 = 16 + 2 * FILTER_BITS_PER_ANCHOR as u64 / 8;

    /// Bytes of memory that they take.
    pub const fn memory_bytes(&self) -> u64 {
        let sorted = self.sorted.len() * size_of::<(Anchor, BasePiece)>();
        (sorted + self.filter.len() * size_of::<u64>()) as u64
    }

    /// Takes these anchors of a base, without those that its content has in many places.
    pub fn new(mut sorted: Vec<(Anchor, BasePiece)>) -> Self {
        sorted.sort_unstable();
        let alike = sorted.chunk_by(|one, other| one.0 == other.0);
        let rare =
            alike.filter(|alike| alike.len() <= PLACES_PER_ANCHOR_MAX && !is_constant(alike[0].0));
        let sorted: Vec<_> = rare.flatten().copied().collect();
        let bits = (sorted.len() * FILTER_BITS_PER_ANCHOR)
            .next_power_of_two()
            .max(64);
        let mut anchors = Self {
            filter: vec![0; bits / 64],
            shift: u64::BITS - bits.trailing_zeros(),
            sorted,
        };
        for at in 0..anchors.sorted.len() {
            let (word, bit) = anchors.bit(anchors.sorted[at].0.0);
            anchors.filter[word] |= bit;
        }
        anchors
    }

    /// The bit of the filter for a hash: its word, and the word with only this bit set.
    const fn bit(&self, hash: u64) -> (usize, u64) {
        let at = hash >> self.shift;
        ((at / 64) as usize, 1 << (at % 64))
    }

    /// The first position of `raw`, among `positions`, at which a piece of the base begins, and the place of
    /// that piece. Segments of the base before `floor` are left out. `is_there` compares the bytes at a
    /// position with the piece at a place.
    pub fn find(
        &self,
        raw: &[u8],
        positions: Range<usize>,
        floor: u32,
        is_there: impl Fn(usize, BasePiece) -> bool,
    ) -> Option<(usize, BasePiece)> {
        let end = (positions.end + WINDOW - 1).min(raw.len());
        let bytes = raw.get(positions.start..end)?;
        let mut hash = 0;
        let mut checks = 0;
        for (at, byte) in bytes.iter().enumerate() {
            hash = roll(hash, *byte);
            let (word, bit) = self.bit(hash);
            if self.filter[word] & bit == 0 || at + 1 < WINDOW {
                continue;
            }
            let position = positions.start + at + 1 - WINDOW;
            for place in self.places(Anchor(hash), floor) {
                if is_there(position, place) {
                    return Some((position, place));
                }
                checks += 1;
            }
            if checks >= CHECKS_MAX {
                return None;
            }
        }
        None
    }

    /// The places of an anchor, without segments before `floor`.
    fn places(&self, hash: Anchor, floor: u32) -> impl Iterator<Item = BasePiece> {
        let first = BasePiece {
            segment: floor,
            piece: 0,
        };
        let from = self.sorted.partition_point(|entry| *entry < (hash, first));
        let rest = self.sorted.get(from..).unwrap_or_default().iter();
        rest.take_while(move |entry| entry.0 == hash)
            .map(|entry| entry.1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples::noise;

    fn place(segment: u32, piece: u32) -> BasePiece {
        BasePiece { segment, piece }
    }

    #[test]
    fn anchors_are_found_at_any_byte_and_not_backwards() {
        let all: Vec<Vec<u8>> = (0..3).map(|seed| noise(seed, 3 * ANCHOR_STEP)).collect();
        let listed = all.iter().zip(0..).flat_map(|(raw, segment)| {
            let pieces = (0..).step_by(ANCHOR_STEP / PIECE_BYTES);
            let places = pieces.map(move |piece| place(segment, piece));
            anchors(raw).zip(places).collect::<Vec<_>>()
        });
        let anchors = Anchors::new(listed.collect());
        assert_eq!(anchors.sorted.len(), 9);
        let raw = [noise(9, 777), all[1][ANCHOR_STEP..].to_vec()].concat();
        let find = |from, floor| anchors.find(&raw, from..raw.len(), floor, |_, _| true);
        assert_eq!(find(0, 0), Some((777, place(1, 4))));
        assert_eq!(find(777, 1), Some((777, place(1, 4))));
        assert_eq!(find(778, 0), Some((777 + ANCHOR_STEP, place(1, 8))));
        assert_eq!(find(0, 2), None);
        assert_eq!(find(raw.len() + 1, 0), None);
        assert_eq!(anchors.find(&raw, 0..777, 0, |_, _| true), None);
        assert_eq!(anchors.find(&raw, 0..778, 0, |_, _| true), find(0, 0));
        let second = anchors.find(&raw, 0..raw.len(), 0, |at, _| at > 777);
        assert_eq!(second, find(778, 0));
    }

    #[test]
    fn content_that_is_everywhere_is_not_searched_for() {
        let zeros = vec![0; ANCHOR_STEP];
        let text = b"sixteen letters ".repeat(ANCHOR_STEP / 16);
        let of = |raw: &[u8], count| {
            let one = anchors(raw).next().unwrap();
            Anchors::new(vec![(one, place(0, 0)); count]).sorted.len()
        };
        assert_eq!(
            (of(&zeros, 1), of(&text, PLACES_PER_ANCHOR_MAX)),
            (0, PLACES_PER_ANCHOR_MAX)
        );
        assert_eq!(of(&text, PLACES_PER_ANCHOR_MAX + 1), 0);
    }

    proptest! {
        #[test]
        fn they_can_be_counted(len in 0..=300_000_usize) {
            prop_assert_eq!(anchors(&vec![7; len]).count(), anchor_count(len));
        }
    }
}
