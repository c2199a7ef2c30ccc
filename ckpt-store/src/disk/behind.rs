//! Closes files whose names have been removed on a thread of its own, so that no request waits while the
//! file system frees their space.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;

/// Most files that may wait to be closed. Above that, the caller closes the file itself and waits for it.
const WAITING_MAX: usize = 32;

/// The queue of a thread that closes files, one after the other. The thread starts with the first file.
#[derive(Debug)]
pub(super) struct Closer<F> {
    queue: OnceLock<Option<SyncSender<Closing<F>>>>,
    /// Space of the files that wait, bytes.
    bytes: Arc<AtomicU64>,
}

/// A file to close. Its space is counted until the file is closed.
#[derive(Debug)]
struct Closing<F> {
    /// This field is dropped first, so that the space is counted until the file is closed.
    _file: F,
    _space: Space,
}

/// Space that is being freed.
#[derive(Debug)]
struct Space {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Drop for Space {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl<F> Default for Closer<F> {
    fn default() -> Self {
        Self {
            queue: OnceLock::new(),
            bytes: Arc::default(),
        }
    }
}

impl<F: Send + 'static> Closer<F> {
    /// Closes a file that takes `bytes` of space. If too many files wait already, the file is closed
    /// before this returns.
    pub(super) fn close(&self, file: F, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let all = Arc::clone(&self.bytes);
        let closing = Closing {
            _file: file,
            _space: Space { bytes, all },
        };
        // If the queue is full or there is no thread, the file is dropped, and so closed, here.
        match self.queue.get_or_init(start) {
            Some(queue) => drop(queue.try_send(closing)),
            None => drop(closing),
        }
    }

    /// Bytes of space that are being freed.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Starts the thread; `None` if the system can't start one.
fn start<F: Send + 'static>() -> Option<SyncSender<Closing<F>>> {
    let (queue, waiting): (_, Receiver<Closing<F>>) = sync_channel(WAITING_MAX);
    let thread = thread::Builder::new().name("closer".into());
    let started = thread.spawn(move || waiting.into_iter().for_each(drop));
    started.is_ok().then_some(queue)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// A file that is closed only after its gate was opened, and that reports the thread on which it was
    /// closed.
    struct Slow {
        gate: Receiver<()>,
        closed: Sender<thread::ThreadId>,
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.gate.recv();
            let _ = self.closed.send(thread::current().id());
        }
    }

    #[test]
    fn removing_a_file_does_not_wait_until_it_is_closed() {
        let closer = Closer::default();
        let (open, gate) = channel();
        let (closed, closed_by) = channel();
        closer.close(Slow { gate, closed }, 100);
        assert_eq!(closer.bytes(), 100, "counts while it waits");
        open.send(()).unwrap();
        assert_ne!(closed_by.recv().unwrap(), thread::current().id());
        while closer.bytes() > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn when_too_many_files_wait_the_thread_that_removes_another_closes_it() {
        let closer = Closer::default();
        let (closed, closed_by) = channel();
        let mut gates = Vec::new();
        let mut file = |is_open: bool| {
            let (open, gate) = channel();
            if is_open {
                open.send(()).unwrap();
            }
            gates.push(open);
            let closed = closed.clone();
            Slow { gate, closed }
        };
        // One file is being closed, and the others wait behind it.
        closer.close(file(false), 1);
        let mut waiting = 0;
        let here = thread::current().id();
        while closed_by.try_recv() != Ok(here) {
            closer.close(file(true), 1);
            waiting += 1;
            assert!(waiting <= WAITING_MAX + 2, "no limit");
        }
        assert!(waiting >= WAITING_MAX);
        drop(gates);
        while closer.bytes() > 0 {
            thread::yield_now();
        }
    }
}
