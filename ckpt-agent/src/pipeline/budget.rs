//! The bound on the memory of rows in flight, and a store of buffers for reuse.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// A bound on the bytes in flight.
///
/// Only one thread, the reader, takes grants, so they are granted in the order of its requests. Any thread
/// may drop them.
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
    /// Buffers for reuse, the last returned one last. A newly allocated buffer costs a page fault for each 4
    /// KiB.
    buffers: Vec<Vec<u8>>,
}

/// Bytes taken from a budget; dropping the grant returns them.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

/// One in this many bytes of the budget may be held by unused buffers when no byte is free.
const KEPT_SHARE: u64 = 16;

/// A row's buffer is not halved below this many bytes.
const BUFFER_MIN: usize = 64 << 10;

/// The budget is closed, because the save or restore ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work was cancelled")]
pub struct Closed;

impl Budget {
    /// A budget of `bytes`, none of which is taken.
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes,
            state: Mutex::new(State {
                free: bytes,
                closed: false,
                buffers: Vec::new(),
            }),
            changed: Condvar::new(),
        })
    }

    /// Waits until `bytes` are free, and takes them.
    ///
    /// # Errors
    /// When the budget is closed.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<Reservation, Closed> {
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
        Ok(Reservation {
            budget: Arc::clone(self),
            bytes,
        })
    }

    /// Share of the bytes that is taken, 0 to 1.
    pub fn filled(&self) -> f64 {
        1.0 - self.lock().free as f64 / self.bytes.max(1) as f64
    }

    /// Closes the budget: calls of [`Self::take`], waiting or later ones, return an error.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// A buffer with a capacity of `capacity` to twice as many bytes, and with arbitrary content.
    pub fn buffer(&self, capacity: usize) -> Vec<u8> {
        let (fitting, surplus) = {
            let mut state = self.lock();
            (
                state.fitting(capacity),
                state.surplus(self.bytes / KEPT_SHARE),
            )
        };
        drop(surplus);
        fitting.unwrap_or_else(|| Vec::with_capacity(capacity))
    }

    /// Stores a buffer for reuse.
    fn give_back(&self, buffer: Vec<u8>) {
        self.lock().buffers.push(buffer);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn fitting(&mut self, capacity: usize) -> Option<Vec<u8>> {
        let fits = |buffer: &Vec<u8>| (capacity..2 * capacity).contains(&buffer.capacity());
        let at = self.buffers.iter().rposition(fits)?;
        Some(self.buffers.remove(at))
    }

    /// Removes the oldest buffers, those that do not fit into the free bytes and `more`.
    fn surplus(&mut self, more: u64) -> Vec<Vec<u8>> {
        let mut room = self.free + more;
        let newest = self.buffers.iter().rev().take_while(|buffer| {
            let rest = room.checked_sub(buffer.capacity() as u64);
            room = rest.unwrap_or(0);
            rest.is_some()
        });
        let surplus = self.buffers.len() - newest.count();
        self.buffers.drain(..surplus).collect()
    }
}

impl Reservation {
    /// If `buffer` is less than half full, moves its content to a smaller one, and returns the bytes that it
    /// does not need to the budget, so that more rows fit. Returns the bytes that the grant still holds.
    pub fn fit(&mut self, buffer: &mut Vec<u8>) -> u64 {
        if buffer.len() <= buffer.capacity() / 2 {
            let mut capacity = buffer.capacity() / 2;
            while buffer.len() <= capacity / 2 && capacity > BUFFER_MIN {
                capacity /= 2;
            }
            let mut fitting = self.budget.buffer(capacity);
            fitting.clear();
            fitting.extend_from_slice(buffer);
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

    /// Makes `buffer` shareable. When the last part of it is dropped, the buffer and the grant are returned.
    pub fn share(self, buffer: Vec<u8>) -> Bytes {
        Bytes::from_owner(Granted {
            grant: self,
            buffer,
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.lock().free += self.bytes;
        self.budget.changed.notify_all();
    }
}

struct Granted {
    grant: Reservation,
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
    fn a_small_segment_takes_little_memory() {
        const ROW: usize = 1 << 20;
        let budget = Budget::new(ROW as u64);
        let mut grant = budget.take(ROW as u64).unwrap();
        let mut buffer = budget.buffer(ROW);
        buffer.resize(ROW / 2 + 1, 7);
        assert_eq!(grant.fit(&mut buffer), ROW as u64);
        buffer.truncate(ROW / 4);
        assert_eq!(grant.fit(&mut buffer), ROW as u64 / 4);
        assert!(buffer == [7; ROW / 4]);
        assert_eq!(budget.lock().free, ROW as u64 * 3 / 4);
        drop(grant.share(buffer));
        assert_eq!(kept(&budget), [ROW, ROW / 4]);
        // Both buffers are used again, each for a request that it fits.
        assert_eq!(budget.buffer(ROW / 4).capacity(), ROW / 4);
        assert_eq!(kept(&budget), [ROW]);
    }

    fn kept(budget: &Budget) -> Vec<usize> {
        budget.lock().buffers.iter().map(Vec::capacity).collect()
    }

    #[test]
    fn buffers_that_are_kept_are_within_what_is_free() {
        let budget = Budget::new(160);
        for capacity in [10, 20, 30, 40] {
            budget.give_back(Vec::with_capacity(capacity));
        }
        let grant = budget.take(115).unwrap();
        // 45 are free, and 10 more may always be kept.
        assert_eq!(budget.buffer(35).capacity(), 40);
        assert_eq!(kept(&budget), [20, 30], "the oldest goes");
        drop(grant);
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
