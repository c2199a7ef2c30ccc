//! Cutting the image stream into segments, and telling zero segments from others.

use std::sync::Arc;

use crate::base::{Base, Follower};
use crate::geometry::SEGMENT_BYTES;
use crate::pieces::{Match, PieceHash, PieceHasher, Seen, cut_patch, patch_bytes};

/// One piece of the image stream, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Cut {
    /// All-zero bytes that are recorded but not stored.
    Zero {
        /// How many.
        bytes: u64,
    },
    /// A segment to be stored.
    Stored {
        /// Its row, counted from 0.
        row: u64,
        /// Its image bytes, 1 to [`SEGMENT_BYTES`].
        raw: Vec<u8>,
        /// Hashes of its pieces, if it was compared.
        hashes: Vec<PieceHash>,
    },
    /// A segment that the base or this image has already, but for some pieces.
    Patched {
        /// Where it is, and which pieces changed.
        found: Match,
        /// Its image bytes.
        len: u32,
        /// Hashes of its pieces.
        hashes: Vec<PieceHash>,
        /// The pieces that changed, and the row for them.
        patch: Option<(u64, Vec<u8>)>,
    },
}

/// Cuts segments out of buffers that its caller fills.
///
/// The caller takes a buffer with room for [`SEGMENT_BYTES`], reads as much as there is, and passes
/// it on; a buffer that is not full ends its segment early (before a large file, at the end).
#[derive(Debug, Default)]
pub struct Segmenter {
    base: Option<Follower>,
    seen: Option<Seen>,
    rows: u64,
    stream_bytes: u64,
    zero_bytes: u64,
}

impl Segmenter {
    /// A segmenter that compares with a base.
    pub fn with_base(base: Option<Arc<Base>>) -> Self {
        Self {
            base: base.map(Follower::new),
            ..Self::default()
        }
    }

    /// Finds what the image has twice, too; `seen` hashes as the base does, if there is one.
    pub fn with_seen(self, seen: Option<Seen>) -> Self {
        Self { seen, ..self }
    }

    /// Hashes pieces as whatever segments are compared with; `None` when they are not.
    fn hasher(&self) -> Option<&PieceHasher> {
        let base = self.base.as_ref().map(Follower::hasher);
        base.or(self.seen.as_ref().map(Seen::hasher))
    }

    /// Where the next segment should end instead of at the end of `raw`, because what the base has
    /// begins or ends there. Then the bytes before it have to be passed next, and the others after
    /// them with what follows.
    pub fn cut_at(&mut self, raw: &[u8], hashes: &[PieceHash]) -> Option<usize> {
        let base = self.base.as_mut().filter(|_| !hashes.is_empty())?;
        // What is in step with a file before is best left so.
        let seen = self
            .seen
            .as_ref()
            .and_then(|seen| seen.find(raw.len(), hashes));
        if seen.is_some() {
            return None;
        }
        let at = base.cut_at(raw, hashes);
        at.filter(|at| (1..raw.len()).contains(at))
    }

    /// Passes the next `raw` bytes of the stream. All-zero segments give their buffer back.
    ///
    /// # Panics
    /// When `raw` is longer than a segment, which is a mistake of the caller.
    pub fn cut(&mut self, raw: Vec<u8>) -> (Option<Cut>, Option<Vec<u8>>) {
        let hashes = self.hasher().map(|hasher| hasher.hash(&raw));
        self.cut_hashed(raw, hashes.unwrap_or_default())
    }

    /// The same with hashes of the pieces that were made before, if segments are compared and the bytes
    /// are not all zero.
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
        if let Some(seen) = &mut self.seen {
            seen.enter(offset, raw.len(), &hashes);
        }
        if let Some(found) = found {
            let patched = self.patch(found, &raw, hashes);
            return (Some(patched), Some(raw));
        }
        let row = self.next_row();
        (Some(Cut::Stored { row, raw, hashes }), None)
    }

    /// Where most of the segment is already. What this image has need not be fetched to restore it.
    fn find(&self, len: usize, hashes: &[PieceHash]) -> Option<Match> {
        let seen = self.seen.as_ref().and_then(|seen| seen.find(len, hashes));
        let base = self.base.as_ref();
        let base = base.and_then(|base| base.find(len, hashes));
        let found = seen.into_iter().chain(base);
        found.min_by_key(|found| found.changed.count_ones())
    }

    fn follow(&mut self, len: usize, found: Option<Match>) {
        if let Some(base) = &mut self.base {
            base.advance(len, found);
        }
    }

    /// What of the segment is to be stored.
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

    /// Rows given out so far.
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// Stream bytes seen so far.
    pub const fn stream_bytes(&self) -> u64 {
        self.stream_bytes
    }

    /// Stream bytes in zero segments so far.
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
    fn what_came_before_is_not_stored_again() {
        let hasher = PieceHasher::new(&DataKey::new([1; 32]));
        let mut segmenter = Segmenter::default().with_seen(Some(Seen::new(hasher, 10)));
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
        let (origin, changed) = (Origin::Image(10), 1);
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
