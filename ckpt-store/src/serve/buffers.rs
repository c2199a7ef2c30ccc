//! Buffers that shards are read into. They are reused as long as their connection lives, because fresh
//! memory costs more time than reading.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Most unused buffers that a connection keeps.
const KEPT_MAX: usize = 8;

/// The unused buffers of a connection.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    unused: Mutex<Vec<Vec<u8>>>,
}

/// A buffer that returns to its connection when it is dropped.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) memory: Vec<u8>,
    home: Arc<Buffers>,
}

impl Buffers {
    /// An unused buffer, or a new one. Its content has no meaning.
    pub(super) fn take(self: &Arc<Self>) -> Buffer {
        let unused = self.lock().pop();
        Buffer {
            memory: unused.unwrap_or_default(),
            home: Arc::clone(self),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    /// The bytes in these ranges. The buffer returns to its connection when their last reference is
    /// dropped.
    pub(super) fn share(self, ranges: Vec<Range<usize>>) -> Vec<Bytes> {
        let all = Bytes::from_owner(self);
        let ranges = ranges.into_iter();
        ranges.map(|range| all.slice(range)).collect()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        let mut unused = self.home.lock();
        if unused.len() < KEPT_MAX {
            unused.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again() {
        let buffers = Arc::<Buffers>::default();
        let mut first = buffers.take();
        first.memory.extend([1, 2, 3]);
        let bytes = first.share(vec![1..3, 0..1]);
        assert_eq!(bytes, [&[2, 3][..], &[1]]);
        assert!(buffers.take().memory.is_empty());
        drop(bytes);
        assert_eq!(buffers.take().memory, [1, 2, 3]);
        let many: Vec<Buffer> = (0..2 * KEPT_MAX).map(|_| buffers.take()).collect();
        drop(many);
        assert_eq!(buffers.lock().len(), KEPT_MAX);
    }
}
