//! Which of the hosts that hold a checkpoint are asked for its rows, read after read.

use std::collections::{BTreeMap, BTreeSet};

use codec::ShardIndex;

use crate::core::{Fault, HostIndex, Millis};

/// How long a host that failed, or was slower than another one that was asked instead, is left alone
/// while the others are enough.
const ASIDE_MS: u64 = 30_000;

/// Who holds which shard of a checkpoint, and who of them did badly in earlier reads.
#[derive(Clone, Debug)]
pub struct Holders {
    all: Vec<(ShardIndex, HostIndex)>,
    aside: BTreeMap<HostIndex, Millis>,
}

impl Holders {
    /// These.
    pub const fn new(all: Vec<(ShardIndex, HostIndex)>) -> Self {
        Self {
            all,
            aside: BTreeMap::new(),
        }
    }

    /// All of them.
    pub fn all(&self) -> &[(ShardIndex, HostIndex)] {
        &self.all
    }

    /// Those that did well, if they hold `data` different shards, else all.
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

    /// Notes how a host failed: one that lied is not asked again while others are enough.
    pub fn failed(&mut self, host: HostIndex, fault: &Fault, now: Millis) {
        let until = match fault {
            Fault::Lied(_) => Millis(u64::MAX),
            _ => now.plus(ASIDE_MS),
        };
        let aside = self.aside.entry(host).or_insert(until);
        *aside = (*aside).max(until);
    }

    /// Notes that others were asked because a host sent nothing.
    pub fn was_slow(&mut self, host: HostIndex, now: Millis) {
        let until = now.plus(ASIDE_MS);
        let aside = self.aside.entry(host).or_insert(until);
        *aside = (*aside).max(until);
    }
}
