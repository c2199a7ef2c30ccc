//! Cuts the image stream into segments, and sorts out those of zeros and those that repeat earlier bytes.

use std::sync::Arc;

use crate::anchors::{Anchor, anchors};
use crate::base::{Base, Follower};
use crate::geometry::SEGMENT_BYTES;
use crate::hash::PieceHash;
use crate::layers::{Layer, all_pieces};
use crate::pieces::{EarlierSegments, Match, Origin, PieceHasher, cut_patch, patch_bytes};

/// What becomes of the next bytes of the image stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Cut {
    /// A segment of zeros, which is recorded and not stored.
    Zero {
        /// Length of the segment.
        bytes: u64,
    },
    /// A segment to be stored.
    Stored {
        /// Row of the segment, from 0.
        row: u64,
        /// Image bytes of the segment, 1 to [`SEGMENT_BYTES`].
        raw: Vec<u8>,
        /// Hashes of its pieces, if segments are compared.
        hashes: Vec<PieceHash>,
    },
    /// A segment that repeats earlier bytes, of older checkpoints or of this image, but for some pieces.
    Made(MadeSegment),
}

/// A segment that repeats earlier bytes but for some pieces.
#[derive(Debug, PartialEq, Eq)]
pub struct MadeSegment {
    /// Where the earlier bytes are.
    pub source: RepeatedSource,
    /// Image bytes of the segment.
    pub len: u32,
    /// Hashes of its pieces.
    pub hashes: Vec<PieceHash>,
    /// Anchors of a segment that is made of layers.
    pub anchors: Vec<Anchor>,
    /// Row and bytes of the new pieces, if there are any.
    pub patch: Option<(u64, Vec<u8>)>,
}

/// Where the bytes are that a segment repeats.
#[derive(Debug, PartialEq, Eq)]
pub enum RepeatedSource {
    /// In this image, from this byte of the stream on, but for the changed pieces.
    Image {
        /// Where they begin in the stream.
        offset: u64,
        /// Which pieces changed.
        changed: u64,
    },
    /// In rows of older checkpoints. Origin 0 is the version that the new one is compared with; the origins of that
    /// version follow.
    Rows(Vec<Layer>),
}

/// What a version stores again although it is stored already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleaning {
    /// For each origin, in the numbers of [`RepeatedSource::Rows`]: whether and how it is stored again.
    pub origins: Vec<Again>,
    /// Most bytes of the image that are stored again by budget.
    pub budget: u64,
    /// Most layers of a segment, a row of its own included. Beyond them, the smallest are stored again.
    pub layers_max: usize,
}

/// Whether the pieces of an origin are stored again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Again {
    /// They are not.
    #[default]
    No,
    /// As far as the budget allows.
    ByBudget,
    /// All of them.
    All,
}

impl Default for Cleaning {
    fn default() -> Self {
        Self {
            origins: Vec::new(),
            budget: 0,
            layers_max: LAYERS_USUAL,
        }
    }
}

/// Most layers of a segment in a save that has time.
pub const LAYERS_USUAL: usize = 12;

impl Cleaning {
    /// Takes out of the layers of a segment of `len` bytes what is stored again. `has_row` says that the segment has
    /// new pieces besides.
    fn clean(&mut self, layers: &mut Vec<Layer>, len: usize, has_row: bool) {
        let before = layers.len();
        layers.retain(|layer| {
            let again = self.origins.get(usize::from(layer.origin)).copied();
            let bytes = patch_bytes(layer.used, len) as u64;
            match again.unwrap_or_default() {
                Again::No => true,
                Again::ByBudget if bytes <= self.budget => {
                    self.budget -= bytes;
                    false
                }
                Again::ByBudget => true,
                Again::All => false,
            }
        });
        let mut has_row = has_row || layers.len() < before;
        while layers.len() + usize::from(has_row) > self.layers_max {
            let all = layers.iter().enumerate();
            let smallest = all.min_by_key(|(_, layer)| layer.used.count_ones());
            let Some((smallest, _)) = smallest else {
                break;
            };
            layers.remove(smallest);
            has_row = true;
        }
    }
}

/// Makes a segment of each buffer that its caller fills.
///
/// The caller reads up to [`SEGMENT_BYTES`] of the stream into a buffer and passes it to [`Self::cut`]. A
/// buffer that is not full makes a short segment: before a large file, and at the end.
#[derive(Debug, Default)]
pub struct Segmenter {
    base: Option<Follower>,
    earlier: Option<EarlierSegments>,
    cleaning: Cleaning,
    rows: u64,
    stream_bytes: u64,
    zero_bytes: u64,
    changed_bytes: u64,
}

impl Segmenter {
    /// A segmenter that compares with a base, if there is one.
    pub fn with_base(base: Option<Arc<Base>>) -> Self {
        Self {
            base: base.map(Follower::new),
            ..Self::default()
        }
    }

    /// Stores some segments again that the base has.
    pub fn with_cleaning(self, cleaning: Cleaning) -> Self {
        Self { cleaning, ..self }
    }

    /// Compares with earlier segments of the image, too. If there is a base, `earlier` has to hash pieces with
    /// the base's key.
    pub fn with_earlier(self, earlier: Option<EarlierSegments>) -> Self {
        Self { earlier, ..self }
    }

    /// The hasher for pieces of segments that are compared; `None` if there is nothing to compare with.
    fn hasher(&self) -> Option<&PieceHasher> {
        let base = self.base.as_ref().map(|base| base.base().hasher());
        base.or(self.earlier.as_ref().map(EarlierSegments::hasher))
    }

    /// Where the next segment should end before the end of `raw`, because content of the base begins or
    /// ends there. The caller then passes the bytes before the cut as a segment, and begins the next one
    /// with the bytes after it.
    pub fn cut_at(&mut self, raw: &[u8], hashes: &[PieceHash]) -> Option<usize> {
        let base = self.base.as_mut().filter(|_| !hashes.is_empty())?;
        // A segment that repeats an earlier one of this image is in step with it, and stays so.
        let earlier = self
            .earlier
            .as_ref()
            .and_then(|earlier| earlier.find(raw.len(), hashes));
        if earlier.is_some() {
            return None;
        }
        let at = base.cut_at(raw, hashes);
        at.filter(|at| (1..raw.len()).contains(at))
    }

    /// Takes the next bytes of the stream as a segment. Gives the buffer back unless the segment is
    /// stored whole.
    ///
    /// # Panics
    /// When `raw` is longer than a segment, which is a mistake of the caller.
    pub fn cut(&mut self, raw: Vec<u8>) -> (Option<Cut>, Option<Vec<u8>>) {
        let hashes = self.hasher().map(|hasher| hasher.hash(&raw));
        self.cut_hashed(raw, hashes.unwrap_or_default())
    }

    /// As [`Self::cut`], with hashes of the pieces that the caller made. `hashes` may be empty if segments
    /// are not compared or the bytes are zeros.
    ///
    /// # Panics
    /// See [`Self::cut`].
    pub fn cut_hashed(
        &mut self,
        raw: Vec<u8>,
        hashes: Vec<PieceHash>,
    ) -> (Option<Cut>, Option<Vec<u8>>) {
        assert!(
            raw.len() <= SEGMENT_BYTES,
            "a segment has {SEGMENT_BYTES} bytes"
        );
        let offset = self.stream_bytes;
        self.stream_bytes += raw.len() as u64;
        if raw.is_empty() {
            return (None, Some(raw));
        }
        if is_zero(&raw) {
            let bytes = raw.len() as u64;
            self.follow(raw.len(), None);
            self.zero_bytes += bytes;
            return (Some(Cut::Zero { bytes }), Some(raw));
        }
        let found = self.find(raw.len(), &hashes);
        self.follow(raw.len(), found);
        if let Some(earlier) = &mut self.earlier {
            earlier.enter(offset, raw.len(), &hashes);
        }
        if let Some(source) = found.and_then(|found| self.source(found, raw.len())) {
            let made = self.made(source, &raw, hashes);
            return (Some(Cut::Made(made)), Some(raw));
        }
        if found.is_none() {
            self.changed_bytes += raw.len() as u64;
        }
        let row = self.next_row();
        (Some(Cut::Stored { row, raw, hashes }), None)
    }

    /// The earlier bytes that the segment repeats but for the fewest pieces. If the image and the base have
    /// equally good ones, those of the image: a restore has them at hand.
    fn find(&self, len: usize, hashes: &[PieceHash]) -> Option<Match> {
        let earlier = self
            .earlier
            .as_ref()
            .and_then(|earlier| earlier.find(len, hashes));
        let base = self.base.as_ref();
        let base = base.and_then(|base| base.find(len, hashes));
        let found = earlier.into_iter().chain(base);
        found.min_by_key(|found| found.changed.count_ones())
    }

    fn follow(&mut self, len: usize, found: Option<Match>) {
        if let Some(base) = &mut self.base {
            base.advance(len, found);
        }
    }

    /// Where a restore finds the bytes that a segment of `len` bytes repeats, after what is stored again was taken out.
    /// `None` if nothing is left.
    fn source(&mut self, found: Match, len: usize) -> Option<RepeatedSource> {
        let changed = found.changed;
        self.changed_bytes += patch_bytes(changed, len) as u64;
        match found.origin {
            Origin::Image(offset) => Some(RepeatedSource::Image { offset, changed }),
            Origin::Base(place) => {
                let base = self.base.as_ref()?.base();
                let mut layers = base.layers(place, len, changed);
                self.cleaning.clean(&mut layers, len, changed != 0);
                (!layers.is_empty()).then_some(RepeatedSource::Rows(layers))
            }
        }
    }

    /// Makes a patch of the pieces that `source` does not have.
    fn made(&mut self, source: RepeatedSource, raw: &[u8], hashes: Vec<PieceHash>) -> MadeSegment {
        let (new, anchors) = match &source {
            RepeatedSource::Image { changed, .. } => (*changed, Vec::new()),
            RepeatedSource::Rows(layers) => {
                let used = layers.iter().fold(0, |map, layer| map | layer.used);
                (all_pieces(raw.len()) & !used, anchors(raw).collect())
            }
        };
        let patch = (new != 0).then(|| {
            let mut patch = Vec::with_capacity(patch_bytes(new, raw.len()));
            cut_patch(raw, new, &mut patch);
            (self.next_row(), patch)
        });
        MadeSegment {
            source,
            len: raw.len() as u32,
            hashes,
            anchors,
            patch,
        }
    }

    const fn next_row(&mut self) -> u64 {
        let row = self.rows;
        self.rows += 1;
        row
    }

    /// How many rows were given out so far.
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of the stream so far.
    pub const fn stream_bytes(&self) -> u64 {
        self.stream_bytes
    }

    /// Bytes of the stream so far that were stored because they are new.
    pub const fn changed_bytes(&self) -> u64 {
        self.changed_bytes
    }

    /// Bytes of the stream in segments of zeros so far.
    pub const fn zero_bytes(&self) -> u64 {
        self.zero_bytes
    }
}

/// Whether all bytes are zero; stops at the first cache line that is not.
pub fn is_zero(bytes: &[u8]) -> bool {
    let (lines, rest) = bytes.as_chunks::<64>();
    lines
        .iter()
        .all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
        && rest.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pieces::PIECE_BYTES;
    use crate::seal::DataKey;

    #[test]
    fn only_zeros_are_zero() {
        assert!(is_zero(&[]));
        for len in [1, 63, 64, 65, 4096, SEGMENT_BYTES] {
            let mut bytes = vec![0; len];
            assert!(is_zero(&bytes));
            for at in [0, len / 2, len - 1] {
                bytes[at] = 1;
                assert!(!is_zero(&bytes), "{len} {at}");
                bytes[at] = 0;
            }
        }
    }

    #[test]
    fn an_earlier_segment_is_not_stored_again() {
        let hasher = PieceHasher::new(&DataKey::new([1; 32]));
        let mut segmenter =
            Segmenter::default().with_earlier(Some(EarlierSegments::new(hasher, 10)));
        // No two pieces are alike.
        let mut first = vec![0; SEGMENT_BYTES];
        blake3::Hasher::new().finalize_xof().fill(&mut first);
        segmenter.cut(vec![0; 10]);
        let (stored, _) = segmenter.cut(first.clone());
        assert!(matches!(stored, Some(Cut::Stored { row: 0, .. })));
        let mut second = first.clone();
        second[5] = 99;
        let (patched, back) = segmenter.cut(second.clone());
        assert_eq!(back.as_ref(), Some(&second));
        let Some(Cut::Made(made)) = patched else {
            panic!("{patched:?}");
        };
        let offset = 10;
        let changed = 1;
        assert_eq!(made.source, RepeatedSource::Image { offset, changed });
        assert_eq!(made.patch, Some((1, second[..PIECE_BYTES].to_vec())));
        let (same, _) = segmenter.cut(first);
        let Some(Cut::Made(same)) = same else {
            panic!("{same:?}");
        };
        assert_eq!(same.patch, None);
    }

    #[test]
    fn rows_are_counted_without_zero_segments() {
        let mut segmenter = Segmenter::default();
        assert!(matches!(
            segmenter.cut(vec![1; 10]),
            (Some(Cut::Stored { row: 0, .. }), None)
        ));
        assert!(matches!(
            segmenter.cut(vec![0; 10]),
            (Some(Cut::Zero { bytes: 10 }), Some(_))
        ));
        assert!(matches!(segmenter.cut(vec![]), (None, Some(_))));
        assert!(matches!(
            segmenter.cut(vec![2; 3]),
            (Some(Cut::Stored { row: 1, .. }), None)
        ));
        assert_eq!(
            (
                segmenter.rows(),
                segmenter.stream_bytes(),
                segmenter.zero_bytes()
            ),
            (2, 23, 10)
        );
    }
}
