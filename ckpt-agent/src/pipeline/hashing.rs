//! Hashes the pieces of segments on all cores while the next segments are read.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Scope;

use codec::hash::PieceHash;
use codec::pieces::PieceHasher;
use codec::segment::is_zero;

use super::budget::Closed;

/// How many segments may wait for each worker.
pub(super) const WAITING_EACH: usize = 2;

/// A segment and the hashes of its pieces; no hashes for a segment of zeros.
pub(super) type HashedSegment = (Vec<u8>, Vec<PieceHash>);

type Jobs = Mutex<Receiver<(u64, Vec<u8>)>>;

/// Takes segments, and returns them in the same order with their hashes. Dropping it ends its threads.
pub(super) struct Hashing {
    jobs: SyncSender<(u64, Vec<u8>)>,
    done: Receiver<(u64, HashedSegment)>,
    waiting: BTreeMap<u64, HashedSegment>,
    taken: u64,
    returned: u64,
}

impl Hashing {
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        hasher: &PieceHasher,
        cpus: usize,
    ) -> Self {
        let (jobs, queue) = sync_channel(WAITING_EACH * cpus);
        let (hashed, done) = channel();
        let queue = std::sync::Arc::new(Mutex::new(queue));
        for _ in 0..cpus {
            let queue = queue.clone();
            let hashed = hashed.clone();
            let hasher = hasher.clone();
            scope.spawn(move || hash_all(&hasher, &queue, &hashed));
        }
        Self {
            jobs,
            done,
            waiting: BTreeMap::new(),
            taken: 0,
            returned: 0,
        }
    }

    /// Takes the next segment; blocks while the queue is full.
    pub(super) fn push(&mut self, raw: Vec<u8>) -> Result<(), Closed> {
        self.jobs.send((self.taken, raw)).map_err(|_| Closed)?;
        self.taken += 1;
        Ok(())
    }

    /// The next segment, if it has been hashed already.
    pub(super) fn try_next(&mut self) -> Option<HashedSegment> {
        self.waiting.extend(self.done.try_iter());
        let next = self.waiting.remove(&self.returned);
        self.returned += u64::from(next.is_some());
        next
    }

    /// The next segment, once it has been hashed; `None` when all were returned.
    pub(super) fn next(&mut self) -> Result<Option<HashedSegment>, Closed> {
        while self.returned < self.taken {
            if let Some(next) = self.try_next() {
                return Ok(Some(next));
            }
            // The threads end before this only if one of them panicked.
            let (number, segment) = self.done.recv().map_err(|_| Closed)?;
            self.waiting.insert(number, segment);
        }
        Ok(None)
    }
}

fn hash_all(hasher: &PieceHasher, queue: &Jobs, done: &Sender<(u64, HashedSegment)>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((number, raw)) = job else { return };
        let hashes = hash_segment(hasher, &raw);
        if done.send((number, (raw, hashes))).is_err() {
            return;
        }
    }
}

/// Hashes of the pieces of a segment; none for a segment of zeros.
pub(super) fn hash_segment(hasher: &PieceHasher, raw: &[u8]) -> Vec<PieceHash> {
    if is_zero(raw) {
        return Vec::new();
    }
    hasher.hash(raw)
}
