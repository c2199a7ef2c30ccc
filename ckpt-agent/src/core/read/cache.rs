//! Segments that were read and may be read again.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a segment, which several can hold.
pub type Shared = Arc<[u8]>;

/// The segments that were used last, up to a number of bytes.
#[derive(Debug, Default)]
pub struct SegmentCache {
    kept: BTreeMap<usize, (u64, Shared)>,
    by_use: BTreeMap<u64, usize>,
    uses: u64,
    bytes: u64,
    bytes_max: u64,
}

impl SegmentCache {
    /// A cache of at most this many bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            ..Self::default()
        }
    }

    /// Bytes that are kept.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a segment is kept.
    pub fn has(&self, number: usize) -> bool {
        self.kept.contains_key(&number)
    }

    /// A segment, if it is kept.
    pub fn get(&mut self, number: usize) -> Option<Shared> {
        self.uses += 1;
        let (used, bytes) = self.kept.get_mut(&number)?;
        self.by_use.remove(used);
        *used = self.uses;
        self.by_use.insert(self.uses, number);
        Some(Arc::clone(bytes))
    }

    /// Keeps a segment, and drops those that were not used for longest when there is no room. One that
    /// is larger than the whole cache is not kept.
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
