//! Memory in flight: one bound for all of it, and buffers that are used again.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// A bound on the bytes that are in flight.
///
/// Grants are handed out in the order in which they are asked for by the one thread that asks
/// (the reader); they come back from anywhere.
#[derive(Debug)]
pub struct Budget {
    bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    free: u64,
    closed: bool,
    /// Buffers that came back: allocating megabytes anew costs a page fault for each 4 KiB.
    buffers: Vec<Vec<u8>>,
    /// Buffers with less room are not worth keeping.
    buffer_bytes: usize,
}

/// Bytes taken from a budget until this is dropped.
#[derive(Debug)]
pub struct Grant {
    budget: Arc<Budget>,
    bytes: u64,
}

/// The budget is closed: nothing is needed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work was given up")]
pub struct Closed;

impl Budget {
    /// A budget of `bytes`.
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes,
            state: Mutex::new(State {
                free: bytes,
                closed: false,
                buffers: Vec::new(),
                buffer_bytes: 0,
            }),
            changed: Condvar::new(),
        })
    }

    /// Waits until `bytes` are free and takes them.
    ///
    /// # Errors
    /// When the budget was closed.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<Grant, Closed> {
        let mut state = self.lock();
        while !state.closed && state.free < bytes {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return Err(Closed);
        }
        state.free -= bytes;
        Ok(Grant {
            budget: Arc::clone(self),
            bytes,
        })
    }

    /// Share of the bytes that is taken.
    pub fn filled(&self) -> f64 {
        1.0 - self.lock().free as f64 / self.bytes.max(1) as f64
    }

    /// Ends all waiting, now and later.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// A buffer with room for `capacity` bytes and anything in it.
    pub fn buffer(&self, capacity: usize) -> Vec<u8> {
        let returned = {
            let mut state = self.lock();
            state.buffer_bytes = capacity;
            state.buffers.pop()
        };
        let mut buffer = returned.unwrap_or_default();
        buffer.reserve_exact(capacity.saturating_sub(buffer.len()));
        buffer
    }

    /// Gives a buffer back, to be used again.
    pub fn give_back(&self, buffer: Vec<u8>) {
        /// More than are ever in use at once at full speed; the others return to the system.
        const BUFFERS_MAX: usize = 64;
        let mut state = self.lock();
        if state.buffers.len() < BUFFERS_MAX && buffer.capacity() >= state.buffer_bytes {
            state.buffers.push(buffer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Grant {
    /// Gives what fills less than half of its buffer a smaller one, so that more fits into the budget,
    /// and returns what that does not need. Returns the bytes that are left.
    pub fn fit(&mut self, buffer: &mut Vec<u8>) -> u64 {
        if buffer.len() < buffer.capacity() / 2 {
            let fitting = buffer.as_slice().to_vec();
            self.budget.give_back(std::mem::replace(buffer, fitting));
        }
        self.shrink(buffer.capacity() as u64);
        self.bytes
    }

    fn shrink(&mut self, bytes: u64) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        self.budget.lock().free += surplus;
        self.budget.changed.notify_all();
    }

    /// Makes `buffer` shareable; when the last part of it is dropped, buffer and grant return.
    pub fn share(self, buffer: Vec<u8>) -> Bytes {
        Bytes::from_owner(Granted {
            grant: self,
            buffer,
        })
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.lock().free += self.bytes;
        self.budget.changed.notify_all();
    }
}

struct Granted {
    grant: Grant,
    buffer: Vec<u8>,
}

impl AsRef<[u8]> for Granted {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        self.grant.budget.give_back(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_waits_until_enough_came_back() {
        let budget = Budget::new(100);
        let mut first = budget.take(80).unwrap();
        let waiting = {
            let budget = Arc::clone(&budget);
            std::thread::spawn(move || budget.take(60).map(drop))
        };
        first.shrink(50);
        assert!(!waiting.is_finished());
        drop(first);
        assert_eq!(waiting.join().unwrap(), Ok(()));
        assert!(budget.take(100).is_ok());
    }

    #[test]
    fn closing_ends_the_wait() {
        let budget = Budget::new(10);
        let waiting = {
            let budget = Arc::clone(&budget);
            std::thread::spawn(move || budget.take(11).map(drop))
        };
        budget.close();
        assert_eq!(waiting.join().unwrap(), Err(Closed));
        assert!(budget.take(1).is_err());
    }

    #[test]
    fn what_is_small_takes_little_memory() {
        let budget = Budget::new(1000);
        let mut grant = budget.take(1000).unwrap();
        let mut buffer = budget.buffer(1000);
        buffer.extend_from_slice(&[7; 600]);
        assert_eq!(grant.fit(&mut buffer), 1000);
        buffer.truncate(100);
        assert_eq!(grant.fit(&mut buffer), 100);
        assert_eq!(buffer, [7; 100]);
        assert_eq!(budget.lock().free, 900);
        drop(grant.share(buffer));
        // The large buffer came back, the small one is not worth keeping.
        let kept: Vec<usize> = budget.lock().buffers.iter().map(Vec::capacity).collect();
        assert_eq!(kept, [1000]);
    }

    #[test]
    fn shared_memory_returns_with_its_last_part() {
        let budget = Budget::new(10);
        let bytes = budget.take(10).unwrap().share(vec![1; 10]);
        let part = bytes.slice(2..4);
        drop(bytes);
        assert_eq!(budget.lock().free, 0);
        drop(part);
        assert_eq!(budget.lock().free, 10);
        assert_eq!(budget.lock().buffers.len(), 1);
    }
}
