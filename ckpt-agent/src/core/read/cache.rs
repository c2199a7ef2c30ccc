//! A cache of decoded segments, for programs that read the same parts of an image again.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a segment, shared between the cache and its readers.
pub type Shared = Arc<[u8]>;

/// The least recently used segments are dropped first, so that at most `bytes_max` bytes are kept.
#[derive(Debug, Default)]
pub struct SegmentCache {
    kept: BTreeMap<usize, (u64, Shared)>,
    by_use: BTreeMap<u64, usize>,
    uses: u64,
    bytes: u64,
    bytes_max: u64,
}

impl SegmentCache {
    /// An empty cache for at most `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            ..Self::default()
        }
    }

    /// Bytes of the segments in the cache.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a segment is in the cache; this does not count as a use.
    pub fn has(&self, number: usize) -> bool {
        self.kept.contains_key(&number)
    }

    /// A segment, if it is in the cache.
    pub fn get(&mut self, number: usize) -> Option<Shared> {
        self.uses += 1;
        let (used, bytes) = self.kept.get_mut(&number)?;
        self.by_use.remove(used);
        *used = self.uses;
        self.by_use.insert(self.uses, number);
        Some(Arc::clone(bytes))
    }

    /// Adds a segment, and drops the least recently used ones if there is no room. A segment that is larger
    /// than the whole cache is not kept.
    pub fn put(&mut self, number: usize, bytes: Shared) {
        self.drop_one(number);
        let len = bytes.len() as u64;
        if len > self.bytes_max {
            return;
        }
        while self.bytes + len > self.bytes_max {
            let Some((_, oldest)) = self.by_use.pop_first() else {
                break;
            };
            self.drop_one(oldest);
        }
        self.uses += 1;
        self.bytes += len;
        self.by_use.insert(self.uses, number);
        self.kept.insert(number, (self.uses, bytes));
    }

    fn drop_one(&mut self, number: usize) {
        if let Some((used, bytes)) = self.kept.remove(&number) {
            self.by_use.remove(&used);
            self.bytes -= bytes.len() as u64;
        }
    }
}
