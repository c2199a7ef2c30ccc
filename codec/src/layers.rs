//! What a version stores of an image of which most bytes are stored already, as rows of older checkpoints.
//!
//! The older checkpoints are the **origins** of the version. A segment of the image is made of **layers**: pieces
//! of at most one row of each origin, and new pieces in a row of the version itself. The version names all its
//! origins, and states for each layer how the row is stored. So a restore reads the index of the version and rows
//! of its origins, and no other index.
//!
//! Versions that follow each other in this way are a **chain**. All hashes of pieces in it are made with one key, so
//! a version states the hashes of all its pieces, also of those that it did not store.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

use serde::{Deserialize, Serialize};

use crate::geometry::SEGMENT_BYTES;
use crate::hash::SegmentHash;
use crate::pieces::{self, BaseRef, PIECE_BYTES, PIECES_MAX};
use crate::seal::DataKey;
use crate::stored::StoredSegment;

/// Most origins of a version.
pub const ORIGINS_MAX: usize = 32;

/// Most layers of a segment, besides its own row.
pub const LAYERS_MAX: usize = 24;

/// An image of fewer bytes is stored whole, with hashes of its pieces for no other version: comparing it would save
/// no time.
pub const CHAIN_BYTES_MIN: u64 = 4 << 20;

/// What a version of a chain names besides its own rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// Key of all hashes of pieces: the data key of the first version of the chain.
    pub pieces_key: DataKey,
    /// Bytes of the image that were stored because they had changed, before compression. The others in its rows
    /// were stored again so that an origin is needed no more.
    pub changed_bytes: u64,
    /// The checkpoints that hold the other rows, the newest first.
    pub origins: Vec<Origin>,
}

/// A checkpoint of which a later one uses rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Which checkpoint it is, and its place in the history of the job.
    pub reference: BaseRef,
    /// Key of its rows.
    pub data_key: DataKey,
    /// Whether it was still kept as a version when the later one was saved, and not only for its rows.
    pub is_version: bool,
}

/// An origin as it is encoded.
#[derive(Serialize, Deserialize)]
struct OriginBody {
    reference: BaseRef,
    created: u64,
    data_key: DataKey,
    is_version: bool,
}

impl Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let body = OriginBody {
            reference: self.reference,
            created: self.reference.created.unwrap_or_default(),
            data_key: self.data_key.clone(),
            is_version: self.is_version,
        };
        body.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Origin {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let body = OriginBody::deserialize(deserializer)?;
        Ok(Self {
            reference: BaseRef {
                created: Some(body.created),
                ..body.reference
            },
            data_key: body.data_key,
            is_version: body.is_version,
        })
    }
}

impl Chain {
    /// Whether it names no checkpoint twice, and no more than [`ORIGINS_MAX`].
    pub fn is_possible(&self) -> bool {
        let ids = self.origins.iter().map(|one| one.reference.checkpoint);
        let ids: std::collections::BTreeSet<_> = ids.collect();
        ids.len() == self.origins.len() && ids.len() <= ORIGINS_MAX
    }
}

/// Pieces of a segment that a row of an origin holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Number of the origin in [`Chain::origins`].
    pub origin: u8,
    /// Row of that checkpoint.
    pub row: u64,
    /// How the row is stored.
    pub stored: StoredSegment,
    /// Which pieces of the segment it holds; bit 0 is the first.
    pub used: u64,
    /// Which pieces of the row these are, in the same order.
    pub taken: u64,
}

/// A segment that is made of layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layered {
    /// Image bytes of the segment.
    pub len: u32,
    /// What it uses of origins, in the order of their numbers.
    pub layers: Vec<Layer>,
    /// The next row of the version itself, with the pieces that no layer has, one after the other; `None` if there
    /// are none.
    pub row: Option<StoredSegment>,
    /// Keyed hash of the hashes of all pieces of the segment.
    pub hash: SegmentHash,
}

impl Layered {
    /// The pieces that no layer has: they are in the segment's own row.
    pub fn new_pieces(&self) -> u64 {
        let used = self.layers.iter().fold(0, |map, layer| map | layer.used);
        all_pieces(self.len as usize) & !used
    }

    /// Whether lengths, maps and rows fit together.
    pub fn is_possible(&self) -> bool {
        let len = self.len as usize;
        if len == 0 || len > SEGMENT_BYTES || self.layers.len() > LAYERS_MAX {
            return false;
        }
        let mut seen = 0_u64;
        let mut next = 0;
        for layer in &self.layers {
            let overlaps = seen & layer.used != 0;
            if u16::from(layer.origin) < next || overlaps || !layer.is_possible(len) {
                return false;
            }
            seen |= layer.used;
            next = u16::from(layer.origin) + 1;
        }
        let new = pieces::patch_bytes(self.new_pieces(), len);
        let stored = self.row.map_or(0, |row| row.raw_len as usize);
        new == stored && self.row.is_none_or(|row| row.is_possible())
    }

    /// Makes the segment in `raw`, which has its length and the pieces that are `at_hand`. `row` returns the image
    /// bytes of the row of a layer with other pieces; `new` has the new pieces, if one of these is not at hand. `None`
    /// when one of these is not there, or too short.
    pub fn compose<'a>(
        &self,
        raw: &mut [u8],
        at_hand: u64,
        mut row: impl FnMut(&Layer) -> Option<&'a [u8]>,
        new: &[u8],
    ) -> Option<()> {
        for layer in self.layers.iter().filter(|layer| layer.is_needed(at_hand)) {
            let bytes = row(layer)?;
            let places = pieces::ranges(layer.used, raw.len());
            for (place, piece) in places.zip(numbers(layer.taken)) {
                let from = piece * PIECE_BYTES;
                let piece = bytes.get(from..from + place.len())?;
                raw.get_mut(place)?.copy_from_slice(piece);
            }
        }
        let new_pieces = self.new_pieces();
        let is_made = new_pieces & !at_hand == 0 || pieces::apply_patch(raw, new_pieces, new);
        is_made.then_some(())
    }
}

impl Layer {
    /// Whether it has a piece that is not `at_hand`.
    pub const fn is_needed(&self, at_hand: u64) -> bool {
        self.used & !at_hand != 0
    }

    /// Whether its maps fit its row and a segment of `len` bytes.
    fn is_possible(&self, len: usize) -> bool {
        let is_even = self.used.count_ones() == self.taken.count_ones() && self.used != 0;
        if !is_even || !pieces::is_map_of(self.used, len) || !self.stored.is_possible() {
            return false;
        }
        let last = pieces::ranges(self.used, len).last();
        let place = numbers(self.taken).last();
        let (Some(last), Some(place)) = (last, place) else {
            return false;
        };
        place * PIECE_BYTES + last.len() <= self.stored.raw_len as usize && self.row < u64::MAX
    }
}

/// The map of all pieces of a segment of `len` bytes.
pub fn all_pieces(len: usize) -> u64 {
    let pieces = len.div_ceil(PIECE_BYTES);
    if pieces >= PIECES_MAX {
        return u64::MAX;
    }
    (1 << pieces) - 1
}

/// The numbers of the pieces in a map, ascending.
pub fn numbers(map: u64) -> impl Iterator<Item = usize> {
    (0..PIECES_MAX).filter(move |piece| map >> piece & 1 == 1)
}

/// Of the pieces in `taken`, those that belong to the ones in `kept`, if the pieces in `used` are the same ones in the
/// same order.
pub fn taken_for(used: u64, taken: u64, kept: u64) -> u64 {
    let pairs = numbers(used).zip(numbers(taken));
    let kept = pairs.filter(|(piece, _)| kept >> piece & 1 == 1);
    kept.fold(0, |map, (_, place)| map | 1 << place)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::compress::Method;
    use crate::samples::noise;

    fn stored(raw_len: usize) -> StoredSegment {
        StoredSegment {
            raw_len: u32::try_from(raw_len).unwrap(),
            stored_len: u32::try_from(raw_len).unwrap(),
            method: Method::Raw,
        }
    }

    /// A segment of 40,000 bytes, three pieces: the first from piece 2 of a row, the second new, the third from piece 0
    /// of another row.
    fn segment() -> Layered {
        let layer = |origin, used, taken, raw_len| Layer {
            origin,
            row: 7,
            stored: stored(raw_len),
            used,
            taken,
        };
        Layered {
            len: 40_000,
            layers: vec![
                layer(0, 0b001, 0b100, 3 * PIECE_BYTES),
                layer(3, 0b100, 0b001, 40_000 - 2 * PIECE_BYTES),
            ],
            row: Some(stored(PIECE_BYTES)),
            hash: SegmentHash([0; 32]),
        }
    }

    #[test]
    fn layers_that_do_not_fit_are_refused() {
        assert!(segment().is_possible());
        let wrong = |change: fn(&mut Layered)| {
            let mut segment = segment();
            change(&mut segment);
            assert!(!segment.is_possible(), "{segment:?}");
        };
        wrong(|it| it.len = 0);
        wrong(|it| it.len = 50_000);
        wrong(|it| it.row = None);
        wrong(|it| it.row = Some(stored(PIECE_BYTES - 1)));
        wrong(|it| it.layers[0].used = 0b101);
        wrong(|it| it.layers[0].used = 0);
        wrong(|it| it.layers[0].used = 0b1000);
        wrong(|it| it.layers[0].taken = 0b1000);
        wrong(|it| it.layers[0].taken = 0b110);
        wrong(|it| it.layers[1].stored = stored(40_000 - 2 * PIECE_BYTES - 1));
        wrong(|it| it.layers[1].origin = 0);
        wrong(|it| it.layers.reverse());
        wrong(|it| it.layers[1].used = 0b001);
        wrong(|it| it.layers[1].row = u64::MAX);
        wrong(|it| it.layers = vec![it.layers[0].clone(); LAYERS_MAX + 1]);
    }

    #[test]
    fn a_segment_is_made_of_its_layers() {
        let first = noise(1, 3 * PIECE_BYTES);
        let second = noise(2, 40_000 - 2 * PIECE_BYTES);
        let new = noise(3, PIECE_BYTES);
        let row = |layer: &Layer| {
            Some(if layer.origin == 0 {
                &first[..]
            } else {
                &second
            })
        };
        let mut raw = vec![1; 40_000];
        assert_eq!(segment().compose(&mut raw, 0, row, &new), Some(()));
        let whole = [&first[2 * PIECE_BYTES..], &new, &second].concat();
        assert_eq!(raw, whole);
        let compose = |row: &dyn Fn(&Layer) -> Option<&'static [u8]>, new: &[u8]| {
            segment().compose(&mut [0; 40_000], 0, row, new)
        };
        assert_eq!(compose(&|_| None, &new), None);
        assert_eq!(compose(&|_| Some(&[0; 100]), &new), None, "too short");
        let long = vec![0; 3 * PIECE_BYTES].leak();
        assert_eq!(compose(&|_| Some(long), &new), Some(()));
        assert_eq!(compose(&|_| Some(long), &new[1..]), None);

        // Pieces at hand stay as they are, and rows that have no others are not asked for.
        let only_first = |layer: &Layer| (layer.origin == 0).then_some(&first[..]);
        let mut raw = whole.clone();
        raw[..PIECE_BYTES].fill(0);
        assert_eq!(
            segment().compose(&mut raw, 0b110, only_first, &[]),
            Some(())
        );
        assert_eq!(raw, whole);
        assert_eq!(segment().compose(&mut raw, 0b010, only_first, &[]), None);
        assert_eq!(segment().compose(&mut raw, 0b100, only_first, &[]), None);
    }

    #[test]
    fn no_checkpoint_is_named_twice_and_none_too_many() {
        let origin = |number: u8| Origin {
            reference: BaseRef {
                checkpoint: crate::id::CheckpointId([number; 16]),
                manifest: crate::hash::ManifestHash([number; 32]),
                created: Some(5),
            },
            data_key: DataKey::new([number; 32]),
            is_version: number == 2,
        };
        let chain = |numbers: &[u8]| Chain {
            pieces_key: DataKey::new([1; 32]),
            changed_bytes: 7,
            origins: numbers.iter().map(|number| origin(*number)).collect(),
        };
        let most: Vec<u8> = (0..32).collect();
        assert!(chain(&most).is_possible() && chain(&[]).is_possible());
        assert!(!chain(&[1, 2, 1]).is_possible());
        assert!(!chain(&Vec::from_iter(0..33)).is_possible());
    }

    proptest! {
        #[test]
        fn what_is_taken_follows_what_is_used(used: u64, taken: u64, kept: u64) {
            let pairs: Vec<(usize, usize)> = numbers(used).zip(numbers(taken)).collect();
            let expected = pairs.iter().filter(|(piece, _)| kept >> piece & 1 == 1);
            let expected: Vec<usize> = expected.map(|(_, place)| *place).collect();
            prop_assert_eq!(Vec::from_iter(numbers(taken_for(used, taken, kept))), expected);
        }
    }
}
