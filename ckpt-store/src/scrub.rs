//! Reads every shard now and then, in random order, while the machine's owner does not need the machine.
//! A shard that has rotted is removed before it is needed, and the other holders rebuild it.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, error, warn};

use crate::core::Key;
use crate::host::Host;
use crate::monitor::stance::Stance;
use crate::shards::{Scrubbed, Store};
use codec::ShardIndex;

/// Shortest and longest time between two shards.
const PAUSE_BOUNDS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(3600)];

/// The order of about this many shards is computed at a time.
const PART_SHARDS: usize = 1024;

/// Settings of scrubbing, from the daemon's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubSettings {
    /// Time in which every shard is read once.
    pub pass: Duration,
    /// Most bytes per second that are read.
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

/// Reads all shards, pass after pass; does not return.
pub async fn run(host: Arc<Host>, settings: ScrubSettings) {
    let store = &host.store;
    let mut pass: u64 = 0;
    loop {
        let count = store.held_count();
        let order = Order::of(pass, count);
        pass += 1;
        let shards = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        let pause = (settings.pass / shards).clamp(PAUSE_BOUNDS[0], PAUSE_BOUNDS[1]);
        if count == 0 {
            tokio::time::sleep(pause).await;
        }
        for part in 0..order.parts {
            for (key, shard) in order.part(store, part) {
                tokio::time::sleep(pause).await;
                while !matches!(host.monitor.stance(), Stance::Open) {
                    tokio::time::sleep(PAUSE_BOUNDS[1].min(pause * 10)).await;
                }
                let read = read(store, key, shard, settings.bytes_per_second).await;
                if let Some(result) = read {
                    host.metrics.scrubbed(result);
                }
            }
        }
    }
}

/// Reads one shard, logs the result, and returns its name in the metrics; `None` if the shard is gone.
async fn read(
    store: &Arc<Store>,
    key: Key,
    shard: ShardIndex,
    bytes_per_second: u64,
) -> Option<&'static str> {
    let store = Arc::clone(store);
    let reading = move || store.scrub(key, shard, bytes_per_second);
    let checkpoint = key.checkpoint;
    let shard = shard.number();
    match tokio::task::spawn_blocking(reading).await {
        Ok(Ok(Scrubbed::Good)) => {
            debug!(%checkpoint, shard, "shard is whole");
            Some("good")
        }
        Ok(Ok(Scrubbed::Gone)) => None,
        Ok(Ok(Scrubbed::Dropped(why))) => {
            warn!(%checkpoint, shard, why, "dropped a damaged shard");
            Some("damaged")
        }
        Ok(Err(cause)) => {
            error!(%checkpoint, shard, %cause, "can't check a shard");
            Some("failed")
        }
        Err(panicked) => {
            error!(cause = %panicked, "a thread ended");
            Some("failed")
        }
    }
}

/// The order of one pass. It differs in each pass and on each host, so that no pattern in time or place
/// repeats. A list of all shards would take megabytes for as long as a pass takes, so the order is made
/// in parts.
struct Order {
    pass: u64,
    salt: u32,
    parts: usize,
}

impl Order {
    fn of(pass: u64, shards: usize) -> Self {
        Self {
            pass,
            salt: std::process::id(),
            parts: shards.div_ceil(PART_SHARDS).max(1),
        }
    }

    fn place(&self, key: Key, shard: ShardIndex) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.pass.to_le_bytes());
        hasher.update(&self.salt.to_le_bytes());
        hasher.update(&key.checkpoint.0);
        hasher.update(&[shard.number()]);
        let mut place = [0; 8];
        hasher.finalize_xof().fill(&mut place);
        u64::from_le_bytes(place)
    }

    fn is_in(&self, part: usize, key: Key, shard: ShardIndex) -> bool {
        let parts = self.parts as u128;
        (u128::from(self.place(key, shard)) * parts) >> 64 == part as u128
    }

    /// The shards of one part, of those that are here now.
    fn part(&self, store: &Store, part: usize) -> Vec<(Key, ShardIndex)> {
        let mut shards = store.held_keys(|key, shard| self.is_in(part, key, shard));
        shards.sort_by_cached_key(|(key, shard)| self.place(*key, *shard));
        shards
    }
}

#[cfg(test)]
mod tests {
    use codec::{CheckpointId, OwnerId, Redundancy};

    use super::*;

    #[test]
    fn each_shard_is_in_one_part_and_another_one_in_the_next_pass() {
        let shard = Redundancy::DEFAULT.shard(0).unwrap();
        let keys = (0..5000_u128).map(|number| Key {
            owner: OwnerId([1; 32]),
            checkpoint: CheckpointId(number.to_le_bytes()),
        });
        let keys: Vec<Key> = keys.collect();
        let of = |pass, key| {
            let order = Order::of(pass, 5000);
            assert_eq!(order.parts, 5);
            let parts = (0..order.parts).filter(|part| order.is_in(*part, key, shard));
            let parts: Vec<usize> = parts.collect();
            assert_eq!(parts.len(), 1);
            parts[0]
        };
        let mut counts = [0; 5];
        for key in &keys {
            counts[of(0, *key)] += 1;
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
        let moved = keys
            .iter()
            .filter(|key| of(0, **key) != of(1, **key))
            .count();
        assert!(moved > 3000, "{moved}");
        assert_eq!(Order::of(0, 0).parts, 1);
    }
}
