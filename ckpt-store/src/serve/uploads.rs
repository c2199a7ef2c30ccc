//! Shards that come in: who may send how many, and which have to give way.
//!
//! A client may be silent for as long as its producer is slow, but only while nobody else needs
//! what it holds: the shard that was silent for longest then ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::core::Millis;

/// All shards that come in.
#[derive(Debug)]
pub struct Uploads {
    silent_after: Duration,
    next: AtomicU64,
    live: Mutex<BTreeMap<u64, Arc<Pulse>>>,
    ended: Notify,
}

/// When a shard's last bytes came.
#[derive(Debug, Default)]
pub struct Pulse {
    last: AtomicU64,
    gives_way: Notify,
}

/// A shard that comes in; forgotten when dropped.
#[derive(Debug)]
pub struct Live<'a> {
    uploads: &'a Uploads,
    number: u64,
    pulse: Arc<Pulse>,
}

impl Uploads {
    /// None yet; they give way after so much silence.
    pub fn new(silent_after: Duration) -> Self {
        Self {
            silent_after,
            next: AtomicU64::new(0),
            live: Mutex::default(),
            ended: Notify::new(),
        }
    }

    /// One begins at `now`.
    pub fn begin(&self, now: Millis) -> Live<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let pulse = Arc::new(Pulse::default());
        pulse.beat(now);
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.insert(number, Arc::clone(&pulse));
        Live {
            uploads: self,
            number,
            pulse,
        }
    }

    /// Makes the one that was silent for longest give way and waits, within `limit`, until one has
    /// ended; false when none was silent for long enough.
    pub async fn cleared(&self, now: Millis, limit: Duration) -> bool {
        let mut ended = std::pin::pin!(self.ended.notified());
        // From here on no end is missed.
        ended.as_mut().enable();
        self.clear_one(now) && timeout(limit, ended).await.is_ok()
    }

    fn clear_one(&self, now: Millis) -> bool {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = live
            .iter()
            .map(|(number, pulse)| (pulse.last.load(Ordering::Relaxed), *number))
            .min();
        let silent = silent.filter(|(last, _)| {
            let since = now.0.saturating_sub(*last);
            u128::from(since) >= self.silent_after.as_millis()
        });
        let pulse = silent.and_then(|(_, number)| live.remove(&number));
        if let Some(pulse) = &pulse {
            pulse.gives_way.notify_one();
        }
        pulse.is_some()
    }
}

impl Pulse {
    /// Bytes came at `now`.
    pub fn beat(&self, now: Millis) {
        self.last.store(now.0, Ordering::Relaxed);
    }

    /// Ends when the shard has to give way.
    pub async fn gives_way(&self) {
        self.gives_way.notified().await;
    }
}

impl Live<'_> {
    /// Its pulse.
    pub const fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        let mut live = self
            .uploads
            .live
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        live.remove(&self.number);
        self.uploads.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_longest_silent_gives_way_and_only_if_silent_for_long() {
        let uploads = Uploads::new(Duration::from_secs(30));
        let first = uploads.begin(Millis(0));
        let second = uploads.begin(Millis(0));
        assert!(!uploads.clear_one(Millis(29_999)));
        first.pulse().beat(Millis(20_000));
        assert!(uploads.clear_one(Millis(30_000)));
        second.pulse().gives_way().await;
        // It is on its way out and does not count again.
        assert!(!uploads.clear_one(Millis(30_001)));
        assert!(uploads.clear_one(Millis(50_000)));
        first.pulse().gives_way().await;
        drop((first, second));
        assert!(uploads.live.lock().unwrap().is_empty());
    }
}
