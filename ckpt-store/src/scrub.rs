//! Reads every shard now and then while the machine's owner does not need it, in random order: what
//! has rotted is dropped before somebody needs it, and the other holders rebuild it.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, error, warn};

use crate::core::Key;
use crate::monitor::Monitor;
use crate::monitor::stance::Stance;
use crate::shards::{Scrubbed, Store};
use codec::ShardIndex;

/// Shortest and longest time between two shards.
const PAUSE: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(3600)];

/// How shards are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubSettings {
    /// Time in which all are read once.
    pub pass: Duration,
    /// Bytes per second, at most.
    pub bytes_per_second: u64,
}

impl Default for ScrubSettings {
    fn default() -> Self {
        Self {
            pass: Duration::from_secs(14 * 86_400),
            bytes_per_second: 8 << 20,
        }
    }
}

/// Reads shards again and again; ends never.
pub async fn run(store: Arc<Store>, monitor: Arc<Monitor>, settings: ScrubSettings) {
    let mut pass: u64 = 0;
    loop {
        let shards = shuffled(store.held_keys(), pass);
        pass += 1;
        let parts = u32::try_from(shards.len().max(1)).unwrap_or(u32::MAX);
        let pause = (settings.pass / parts).clamp(PAUSE[0], PAUSE[1]);
        if shards.is_empty() {
            tokio::time::sleep(pause).await;
        }
        for (key, shard) in shards {
            tokio::time::sleep(pause).await;
            while !matches!(monitor.stance(), Stance::Open) {
                tokio::time::sleep(PAUSE[1].min(pause * 10)).await;
            }
            let store = Arc::clone(&store);
            let rate = settings.bytes_per_second;
            let read = tokio::task::spawn_blocking(move || store.scrub(key, shard, rate)).await;
            let (checkpoint, shard) = (key.checkpoint, shard.number());
            match read {
                Ok(Ok(Scrubbed::Good)) => debug!(%checkpoint, shard, "shard is whole"),
                Ok(Ok(Scrubbed::Gone)) => {}
                Ok(Ok(Scrubbed::Dropped(why))) => {
                    warn!(%checkpoint, shard, why, "shard damaged, dropped");
                }
                Ok(Err(cause)) => error!(%checkpoint, shard, %cause, "shard not checked"),
                Err(panicked) => error!(cause = %panicked, "a thread ended"),
            }
        }
    }
}

/// Another order in each pass, and on each host: a pattern in time or place is not to repeat.
fn shuffled(mut shards: Vec<(Key, ShardIndex)>, pass: u64) -> Vec<(Key, ShardIndex)> {
    let salt = std::process::id();
    // Unstable: it needs no memory of its own.
    shards.sort_unstable_by_key(|(key, shard)| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&pass.to_le_bytes());
        hasher.update(&salt.to_le_bytes());
        hasher.update(&key.checkpoint.0);
        hasher.update(&[shard.number()]);
        *hasher.finalize().as_bytes()
    });
    shards
}
