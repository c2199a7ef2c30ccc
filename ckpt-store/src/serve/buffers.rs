//! Memory that shards are read into, used again and again while a connection lives: fresh memory costs
//! more than reading.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Unused buffers that are kept.
const KEPT_MAX: usize = 8;

/// Buffers that nobody uses now.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    unused: Mutex<Vec<Vec<u8>>>,
}

/// A buffer that goes back to where it came from.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) memory: Vec<u8>,
    home: Arc<Buffers>,
}

impl Buffers {
    /// A buffer with anything in it.
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
        let bytes = first.share(1..3);
        assert_eq!(&*bytes, [2, 3]);
        assert!(buffers.take().memory.is_empty());
        drop(bytes);
        assert_eq!(buffers.take().memory, [1, 2, 3]);
        let many: Vec<Buffer> = (0..2 * KEPT_MAX).map(|_| buffers.take()).collect();
        drop(many);
        assert_eq!(buffers.lock().len(), KEPT_MAX);
    }
}
