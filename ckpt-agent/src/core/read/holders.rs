//! Which of the hosts that hold a checkpoint are asked for its rows, over many reads.

use std::collections::{BTreeMap, BTreeSet};

use codec::ShardIndex;

use crate::core::{Fault, HostIndex, Millis};

/// How long a host is left alone, while the others suffice, after it failed or was too slow, milliseconds.
const ASIDE_MS: u64 = 30_000;

/// The hosts of a checkpoint's shards, and until when those are avoided that failed in earlier reads.
#[derive(Clone, Debug)]
pub struct Holders {
    all: Vec<(ShardIndex, HostIndex)>,
    aside: BTreeMap<HostIndex, Millis>,
}

impl Holders {
    /// Hosts of which none has failed yet.
    pub const fn new(all: Vec<(ShardIndex, HostIndex)>) -> Self {
        Self {
            all,
            aside: BTreeMap::new(),
        }
    }

    /// All hosts with their shards.
    pub fn all(&self) -> &[(ShardIndex, HostIndex)] {
        &self.all
    }

    /// The hosts that are not avoided now, if they hold `data` different shards; otherwise all.
    pub fn to_ask(&self, now: Millis, data: usize) -> Vec<(ShardIndex, HostIndex)> {
        let is_well = |host: &HostIndex| self.aside.get(host).is_none_or(|until| *until <= now);
        let well = self.all.iter().filter(|(_, host)| is_well(host));
        let well: Vec<_> = well.copied().collect();
        let shards: BTreeSet<ShardIndex> = well.iter().map(|(shard, _)| *shard).collect();
        if shards.len() >= data {
            well
        } else {
            self.all.clone()
        }
    }

    /// Notes that a host failed. A host that lied is avoided for good, while the others suffice.
    pub fn failed(&mut self, host: HostIndex, fault: &Fault, now: Millis) {
        let until = match fault {
            Fault::Lied(_) => Millis(u64::MAX),
            _ => now.plus(ASIDE_MS),
        };
        let aside = self.aside.entry(host).or_insert(until);
        *aside = (*aside).max(until);
    }

    /// Notes that other hosts were asked because this one sent nothing.
    pub fn was_slow(&mut self, host: HostIndex, now: Millis) {
        let until = now.plus(ASIDE_MS);
        let aside = self.aside.entry(host).or_insert(until);
        *aside = (*aside).max(until);
    }
}
