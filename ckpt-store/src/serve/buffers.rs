//! Memory that shards are read into, used again and again: fresh memory costs more than reading.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;

/// Buffers that are kept while something is read; they go with the last one that is in use.
const KEPT_MAX: usize = 8;

/// Buffers that are lent out, and some that are not.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    current: Mutex<Weak<Pool>>,
}

#[derive(Debug, Default)]
struct Pool {
    unused: Mutex<Vec<Vec<u8>>>,
}

/// A buffer that goes back to its pool.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) memory: Vec<u8>,
    pool: Arc<Pool>,
}

impl Buffers {
    /// A buffer with anything in it.
    pub(super) fn take(&self) -> Buffer {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = current.upgrade().unwrap_or_else(|| {
            let pool = Arc::default();
            *current = Arc::downgrade(&pool);
            pool
        });
        drop(current);
        let unused = pool.lock().pop();
        Buffer {
            memory: unused.unwrap_or_default(),
            pool,
        }
    }
}

impl Pool {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    /// The bytes in this range; when the last part of them is dropped, the buffer returns.
    pub(super) fn share(self, range: Range<usize>) -> Bytes {
        Bytes::from_owner(self).slice(range)
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
        let mut unused = self.pool.lock();
        if unused.len() < KEPT_MAX {
            unused.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_until_nobody_reads() {
        let buffers = Buffers::default();
        let mut first = buffers.take();
        first.memory.extend([1, 2, 3]);
        let second = buffers.take();
        let bytes = first.share(1..3);
        assert_eq!(&*bytes, [2, 3]);
        drop(bytes);
        let again = buffers.take();
        assert_eq!(again.memory, [1, 2, 3]);
        drop((second, again));
        assert!(buffers.take().memory.is_empty());
    }
}
