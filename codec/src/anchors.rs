//! Where the content of an earlier version goes on, found at any byte.
//!
//! Segments have a fixed length, so that pages of memory stay where they are in them. Bytes that
//! are inserted into a stream or an archive move all that follows; then segments are cut where
//! known content begins. A base keeps a rolling hash of 64 bytes for each 64 KiB, and the new bytes
//! are searched for them (Tridgell and Mackerras, “The rsync algorithm”, 1996; the hash is that of
//! Xia et al., “FastCDC”, ATC 2016). The search costs something only where segments differ.

use std::ops::Range;

use crate::pieces::PIECE_BYTES;

/// Bytes from one anchor to the next.
pub const ANCHOR_STEP: usize = 64 << 10;

/// Bytes that an anchor is the hash of. Older ones have left the 64 bits.
const WINDOW: usize = 64;

const _: () = assert!(ANCHOR_STEP.is_multiple_of(PIECE_BYTES));

/// Windows that the base has more often lead nowhere, and are not looked for.
const PLACES_PER_ANCHOR_MAX: usize = 4;

/// Windows in one search for which pieces are hashed: bounds what bytes can cost that repeat.
const CHECKS_MAX: usize = 256;

/// Bits of the filter for each anchor, one of which is set.
const FILTER_BITS_PER_ANCHOR: usize = 64;

/// Rolling hash of 64 bytes, no secret: it is kept where nobody but the owner reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Anchor(pub u64);

/// A piece of a segment of a base, in the order of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The segment's number among those that are stored.
    pub segment: u32,
    /// The piece's number in it.
    pub piece: u32,
}

/// `SplitMix64` of each byte (Steele et al., OOPSLA 2014).
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

fn roll(hash: u64, byte: u8) -> u64 {
    (hash << 1).wrapping_add(GEAR[usize::from(byte)])
}

/// Whether it is the hash of equal bytes.
fn is_constant(anchor: Anchor) -> bool {
    let hash = |byte| (0..WINDOW).fold(0, |hash, _| roll(hash, byte));
    (0..=u8::MAX).any(|byte| hash(byte) == anchor.0)
}

/// The anchors of a segment: one for each [`ANCHOR_STEP`] that has 64 bytes.
pub fn anchors(raw: &[u8]) -> impl Iterator<Item = Anchor> {
    let windows = raw
        .chunks(ANCHOR_STEP)
        .filter_map(|part| part.get(..WINDOW));
    windows.map(|window| Anchor(window.iter().fold(0, |hash, byte| roll(hash, *byte))))
}

/// How many a segment of `len` bytes has.
pub const fn anchor_count(len: usize) -> usize {
    (len + ANCHOR_STEP - WINDOW) / ANCHOR_STEP
}

/// All anchors of a base.
#[derive(Debug)]
pub struct Anchors {
    /// By hash, then by place.
    sorted: Vec<(Anchor, Place)>,
    /// A bit for each value of the first bits of a hash.
    filter: Vec<u64>,
    /// Other bits of a hash.
    shift: u32,
}

impl Anchors {
    /// Memory for each anchor.
    pub const MEMORY: u64 = 16 + 2 * FILTER_BITS_PER_ANCHOR as u64 / 8;

    /// With these, but those that are everywhere.
    pub fn new(mut sorted: Vec<(Anchor, Place)>) -> Self {
        sorted.sort_unstable();
        let alike = sorted.chunk_by(|one, other| one.0 == other.0);
        let telling =
            alike.filter(|alike| alike.len() <= PLACES_PER_ANCHOR_MAX && !is_constant(alike[0].0));
        let sorted: Vec<_> = telling.flatten().copied().collect();
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

    const fn bit(&self, hash: u64) -> (usize, u64) {
        let at = hash >> self.shift;
        ((at / 64) as usize, 1 << (at % 64))
    }

    /// The first position of `raw` within `positions` at which a piece of the base from segment
    /// `floor` on begins, and that piece; `is_there` compares them.
    pub fn find(
        &self,
        raw: &[u8],
        positions: Range<usize>,
        floor: u32,
        is_there: impl Fn(usize, Place) -> bool,
    ) -> Option<(usize, Place)> {
        let end = (positions.end + WINDOW - 1).min(raw.len());
        let bytes = raw.get(positions.start..end)?;
        let (mut hash, mut checks) = (0, 0);
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

    fn places(&self, hash: Anchor, floor: u32) -> impl Iterator<Item = Place> {
        let first = Place {
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

    fn place(segment: u32, piece: u32) -> Place {
        Place { segment, piece }
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
    fn what_is_everywhere_is_not_looked_for() {
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
