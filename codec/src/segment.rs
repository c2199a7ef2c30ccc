//! Cuts the image stream into segments, and sorts out those of zeros and those that repeat earlier bytes.

use std::sync::Arc;

use crate::base::{Base, Follower};
use crate::geometry::SEGMENT_BYTES;
use crate::hash::PieceHash;
use crate::pieces::{EarlierSegments, Match, PieceHasher, cut_patch, patch_bytes};

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
    /// A segment that repeats earlier bytes, of the base or of this image, but for some pieces.
    Patched {
        /// Where the earlier bytes are, and which pieces changed.
        found: Match,
        /// Image bytes of the segment.
        len: u32,
        /// Hashes of its pieces.
        hashes: Vec<PieceHash>,
        /// Row and bytes of the pieces that changed, if any did.
        patch: Option<(u64, Vec<u8>)>,
    },
}

/// Makes a segment of each buffer that its caller fills.
///
/// The caller reads up to [`SEGMENT_BYTES`] of the stream into a buffer and passes it to [`Self::cut`]. A
/// buffer that is not full makes a short segment: before a large file, and at the end.
#[derive(Debug, Default)]
pub struct Segmenter {
    base: Option<Follower>,
    earlier: Option<EarlierSegments>,
    rows: u64,
    stream_bytes: u64,
    zero_bytes: u64,
}

impl Segmenter {
    /// A segmenter that compares with a base, if there is one.
    pub fn with_base(base: Option<Arc<Base>>) -> Self {
        Self {
            base: base.map(Follower::new),
            ..Self::default()
        }
    }

    /// Compares with earlier segments of the image, too. If there is a base, `earlier` has to hash pieces with
    /// the base's key.
    pub fn with_earlier(self, earlier: Option<EarlierSegments>) -> Self {
        Self { earlier, ..self }
    }

    /// The hasher for pieces of segments that are compared; `None` if there is nothing to compare with.
    fn hasher(&self) -> Option<&PieceHasher> {
        let base = self.base.as_ref().map(Follower::hasher);
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
        if let Some(found) = found {
            let patched = self.patch(found, &raw, hashes);
            return (Some(patched), Some(raw));
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

    /// Makes a patch of the pieces that changed.
    fn patch(&mut self, found: Match, raw: &[u8], hashes: Vec<PieceHash>) -> Cut {
        let patch = (found.changed != 0).then(|| {
            let mut patch = Vec::with_capacity(patch_bytes(found.changed, raw.len()));
            cut_patch(raw, found.changed, &mut patch);
            (self.next_row(), patch)
        });
        Cut::Patched {
            found,
            len: raw.len() as u32,
            hashes,
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
    use crate::pieces::{Origin, PIECE_BYTES};
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
        let Some(Cut::Patched { found, patch, .. }) = patched else {
            panic!("{patched:?}");
        };
        let origin = Origin::Image(10);
        let changed = 1;
        assert_eq!(found, Match { origin, changed });
        assert_eq!(patch, Some((1, second[..PIECE_BYTES].to_vec())));
        let (same, _) = segmenter.cut(first);
        assert!(matches!(same, Some(Cut::Patched { patch: None, .. })));
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
