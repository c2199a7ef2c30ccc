//! Proves that bytes are part of a longer sequence, to a reader who knows the hash of the whole.
//!
//! BLAKE3 hashes chunks of 1,024 bytes and combines their hashes in a binary tree. A **slice** has the
//! chunks in which a range of bytes lies and, for each subtree beside them, its hash of 32 bytes. A reader
//! who knows the hash and the length of the whole computes the root of the tree from the slice.
//!
//! A slice is written from left to right: a subtree that does not meet the range as its hash, a chunk that
//! meets it as its bytes, any other subtree as its left half and its right half. For example, of 4 chunks
//! and a range in chunk 2:
//!
//! ```text
//!            root
//!          /      \
//!       [01]       o            the slice: hash of chunks 0 and 1, bytes of chunk 2, hash of chunk 3
//!       /  \      /  \
//!      0    1   (2)  [3]
//! ```

use std::ops::Range;

use blake3::hazmat::{
    ChainingValue, ContextKey, HasherExt as _, Mode, hash_derive_key_context, left_subtree_len,
    merge_subtrees_non_root, merge_subtrees_root,
};

/// Bytes of a chunk, the smallest part that has a hash in the tree.
pub const CHUNK_BYTES: usize = blake3::CHUNK_LEN;

/// Bytes of a subtree's hash.
const HASH_BYTES: usize = 32;

/// Why a slice is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SliceError {
    /// The slice has fewer or more bytes than a slice of this range has.
    #[error("a slice of another length")]
    Length,
    /// The range does not lie within the whole, or is empty.
    #[error("a range outside of what was hashed")]
    Range,
    /// The bytes are not those that were hashed.
    #[error("a slice with another hash")]
    Hash,
}

/// The mode of BLAKE3 in which the whole was hashed.
#[derive(Clone, Debug)]
pub struct Hashing(Option<ContextKey>);

impl Hashing {
    /// BLAKE3's plain hash mode.
    pub const fn plain() -> Self {
        Self(None)
    }

    /// BLAKE3's key derivation mode with this context.
    pub fn derived(context: &str) -> Self {
        Self(Some(hash_derive_key_context(context)))
    }

    fn mode(&self) -> Mode<'_> {
        self.0.as_ref().map_or(Mode::Hash, Mode::DeriveKeyMaterial)
    }

    fn hasher(&self) -> blake3::Hasher {
        self.0
            .as_ref()
            .map_or_else(blake3::Hasher::new, blake3::Hasher::new_from_context_key)
    }

    /// Hash of the subtree that begins at `offset`.
    fn subtree(&self, offset: usize, bytes: &[u8]) -> ChainingValue {
        let mut hasher = self.hasher();
        hasher.set_input_offset(offset as u64).update(bytes);
        hasher.finalize_non_root()
    }

    fn root(&self, bytes: &[u8]) -> [u8; HASH_BYTES] {
        *self.hasher().update(bytes).finalize().as_bytes()
    }
}

/// Length of the left half of a subtree of `len` bytes, which has more than one chunk.
fn left_len(len: usize) -> usize {
    usize::try_from(left_subtree_len(len as u64)).unwrap_or(len)
}

fn meets(node: &Range<usize>, range: &Range<usize>) -> bool {
    node.start < range.end && range.start < node.end
}

/// Makes the slice of `whole` for `range`; `None` if the range is empty or not within `whole`.
pub fn cut(hashing: &Hashing, whole: &[u8], range: Range<usize>) -> Option<Vec<u8>> {
    if range.is_empty() || range.end > whole.len() {
        return None;
    }
    let mut slice = Vec::new();
    cut_node(hashing, whole, 0..whole.len(), &range, &mut slice);
    Some(slice)
}

fn cut_node(
    hashing: &Hashing,
    whole: &[u8],
    node: Range<usize>,
    range: &Range<usize>,
    slice: &mut Vec<u8>,
) {
    let bytes = whole.get(node.clone()).unwrap_or_default();
    if !meets(&node, range) {
        return slice.extend_from_slice(&hashing.subtree(node.start, bytes));
    }
    if bytes.len() <= CHUNK_BYTES {
        return slice.extend_from_slice(bytes);
    }
    let middle = node.start + left_len(bytes.len());
    cut_node(hashing, whole, node.start..middle, range, slice);
    cut_node(hashing, whole, middle..node.end, range, slice);
}

/// Checks a slice of a whole of `len` bytes that has this hash, and returns the bytes of `range`.
///
/// # Errors
/// When the slice is not exactly that of this range and hash.
pub fn read(
    hashing: &Hashing,
    hash: &[u8; HASH_BYTES],
    len: usize,
    range: Range<usize>,
    slice: &[u8],
) -> Result<Vec<u8>, SliceError> {
    if range.is_empty() || range.end > len {
        return Err(SliceError::Range);
    }
    let mut reader = Reader {
        hashing,
        range: &range,
        rest: slice,
        found: Vec::new(),
    };
    let root = if len <= CHUNK_BYTES {
        let bytes = reader.take(len)?;
        reader.keep(0, bytes);
        hashing.root(bytes)
    } else {
        let middle = left_len(len);
        let left = reader.node(0..middle)?;
        let right = reader.node(middle..len)?;
        *merge_subtrees_root(&left, &right, hashing.mode()).as_bytes()
    };
    if !reader.rest.is_empty() {
        return Err(SliceError::Length);
    }
    if root != *hash {
        return Err(SliceError::Hash);
    }
    Ok(reader.found)
}

/// Reads a slice in the order in which [`cut_node`] writes it.
struct Reader<'a> {
    hashing: &'a Hashing,
    range: &'a Range<usize>,
    rest: &'a [u8],
    /// Bytes of the range that were found so far.
    found: Vec<u8>,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], SliceError> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(SliceError::Length)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Keeps those bytes of a chunk that lie in the range; the chunk begins at byte `start` of the whole.
    fn keep(&mut self, start: usize, chunk: &[u8]) {
        let from = self.range.start.saturating_sub(start).min(chunk.len());
        let to = self.range.end.saturating_sub(start).min(chunk.len());
        self.found
            .extend_from_slice(chunk.get(from..to).unwrap_or_default());
    }

    fn node(&mut self, node: Range<usize>) -> Result<ChainingValue, SliceError> {
        if !meets(&node, self.range) {
            let hash = self.take(HASH_BYTES)?;
            return hash.try_into().map_err(|_| SliceError::Length);
        }
        if node.len() <= CHUNK_BYTES {
            let bytes = self.take(node.len())?;
            self.keep(node.start, bytes);
            return Ok(self.hashing.subtree(node.start, bytes));
        }
        let middle = node.start + left_len(node.len());
        let left = self.node(node.start..middle)?;
        let right = self.node(middle..node.end)?;
        Ok(merge_subtrees_non_root(&left, &right, self.hashing.mode()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    fn both() -> [Hashing; 2] {
        [Hashing::plain(), Hashing::derived("a context of a test")]
    }

    #[test]
    fn the_hash_is_that_of_the_library() {
        let whole = bytes(10_000);
        assert_eq!(
            Hashing::plain().root(&whole),
            *blake3::hash(&whole).as_bytes()
        );
        let derived = blake3::derive_key("a context of a test", &whole);
        assert_eq!(
            Hashing::derived("a context of a test").root(&whole),
            derived
        );
    }

    #[test]
    fn a_chunk_of_a_block_takes_a_kilobyte_and_a_path() {
        let whole = bytes(349_531);
        let slice = cut(&Hashing::plain(), &whole, 7168..8192).unwrap();
        assert_eq!(slice.len(), CHUNK_BYTES + 9 * HASH_BYTES);
    }

    #[test]
    fn ranges_outside_have_no_slice() {
        let whole = bytes(2000);
        assert_eq!(cut(&Hashing::plain(), &whole, 5..5), None);
        assert_eq!(cut(&Hashing::plain(), &whole, 1999..2001), None);
        assert_eq!(cut(&Hashing::plain(), &[], 0..0), None);
        let hash = Hashing::plain().root(&whole);
        let read = |range| read(&Hashing::plain(), &hash, 2000, range, &whole);
        assert_eq!(read(0..0), Err(SliceError::Range));
        assert_eq!(read(0..2001), Err(SliceError::Range));
    }

    #[test]
    fn every_flipped_byte_is_refused() {
        let whole = bytes(5000);
        for hashing in both() {
            let hash = hashing.root(&whole);
            let slice = cut(&hashing, &whole, 2000..2100).unwrap();
            for at in 0..slice.len() {
                let mut changed = slice.clone();
                changed[at] ^= 1;
                let read = read(&hashing, &hash, whole.len(), 2000..2100, &changed);
                assert_eq!(read, Err(SliceError::Hash), "{at}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_slice_is_read_and_no_other_bytes_are(
            len in 1_usize..40_000,
            from in 0_usize..40_000,
            count in 1_usize..3000,
            other in 1_usize..40_000,
        ) {
            let from = from % len;
            let range = from..(from + count).min(len);
            let whole = bytes(len);
            for hashing in both() {
                let hash = hashing.root(&whole);
                let slice = cut(&hashing, &whole, range.clone()).unwrap();
                let found = read(&hashing, &hash, len, range.clone(), &slice);
                prop_assert_eq!(found.as_deref(), Ok(&whole[range.clone()]));
                // A reader with a wrong length finds the same bytes or none.
                if let Ok(found) = read(&hashing, &hash, other, range.clone(), &slice) {
                    prop_assert_eq!(&found, &whole[range.clone()]);
                }
                // A slice that is cut short, is longer, or has another hash is refused.
                let short = read(&hashing, &hash, len, range.clone(), &slice[1..]);
                prop_assert!(short.is_err());
                let long = [slice.as_slice(), &[0]].concat();
                prop_assert!(read(&hashing, &hash, len, range.clone(), &long).is_err());
                let mut hash = hash;
                hash[0] ^= 1;
                let wrong = read(&hashing, &hash, len, range.clone(), &slice);
                prop_assert_eq!(wrong, Err(SliceError::Hash));
            }
        }

        #[test]
        fn garbage_is_an_error(
            slice in prop::collection::vec(any::<u8>(), 0..4000),
            len in 0_usize..6000,
            from in 0_usize..6000,
            count in 0_usize..2000,
        ) {
            let range = from..from + count;
            prop_assert!(read(&Hashing::plain(), &[7; 32], len, range, &slice).is_err());
        }
    }
}
