//! From which version a job could go on if hosts went away.

use std::collections::{BTreeMap, BTreeSet};

use codec::{CheckpointId, Version};
use protocol::fault::HostIndex;

/// One shard at one host. A shard can be at several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardAt {
    /// Number of the shard.
    pub shard: u8,
    /// The host.
    pub host: HostIndex,
}

/// What is known of one checkpoint.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// Its id.
    pub id: CheckpointId,
    /// Its version.
    pub version: Version,
    /// When its save began, Unix seconds.
    pub created: u64,
    /// Shards that a restore needs.
    pub data: usize,
    /// Whether it is known to be one whole state. A restore prefers older ones that are.
    pub is_whole: bool,
    /// Its shards.
    pub shards: Vec<ShardAt>,
    /// The checkpoints of which it uses rows.
    pub needs: Vec<CheckpointId>,
}

impl Mapped {
    /// How many of its own shards can be lost once the hosts `away` are; `None` if too many are lost then.
    fn own(&self, away: &BTreeSet<HostIndex>) -> Option<usize> {
        let there = self.shards.iter().filter(|at| !away.contains(&at.host));
        let shards: BTreeSet<u8> = there.map(|at| at.shard).collect();
        shards.len().checked_sub(self.data)
    }
}

/// How many shards a checkpoint can lose that can itself lose `own`: no more than any of those can that it builds on;
/// `None` if one of them can't be restored.
pub fn weakest(
    own: Option<usize>,
    mut needs: impl Iterator<Item = CheckpointId>,
    of_need: impl Fn(CheckpointId) -> Option<usize>,
) -> Option<usize> {
    needs.try_fold(own?, |least, need| Some(least.min(of_need(need)?)))
}

/// What a job could go on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoesOnFrom {
    /// The version.
    pub version: Version,
    /// When its save began, Unix seconds.
    pub created: u64,
    /// How many more shards it can lose.
    pub can_lose: usize,
}

/// The version that a restore would take if the hosts `away` were: the newest whole one that can be restored, or the
/// newest of all if none is whole. `history` has the versions of a job, the oldest first; `all` has all that they need.
pub fn after_loss(
    history: &[&Mapped],
    all: &BTreeMap<CheckpointId, &Mapped>,
    away: &BTreeSet<HostIndex>,
) -> Option<GoesOnFrom> {
    let of_need = |need| all.get(&need)?.own(away);
    let stands = |one: &Mapped| weakest(one.own(away), one.needs.iter().copied(), of_need);
    let there = history.iter().rev().filter_map(|one| {
        let goes_on = GoesOnFrom {
            version: one.version,
            created: one.created,
            can_lose: stands(one)?,
        };
        Some((one.is_whole, goes_on))
    });
    let there: Vec<(bool, GoesOnFrom)> = there.collect();
    let whole = there.iter().find(|(is_whole, _)| *is_whole);
    whole.or(there.first()).map(|(_, goes_on)| *goes_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A version whose shard number *i* is at host `hosts[i]`.
    fn version(number: u64, hosts: &[usize], needs: &[u8]) -> Mapped {
        let shards = hosts.iter().enumerate().map(|(shard, host)| ShardAt {
            shard: shard as u8,
            host: HostIndex(*host),
        });
        Mapped {
            id: CheckpointId([number as u8; 16]),
            version: Version::new(number).unwrap(),
            created: 1_000 + number * 60,
            data: 3,
            is_whole: true,
            shards: shards.collect(),
            needs: needs.iter().map(|id| CheckpointId([*id; 16])).collect(),
        }
    }

    fn found(all: &[Mapped], away: &[usize]) -> Option<(u64, usize)> {
        let index = all.iter().map(|one| (one.id, one)).collect();
        let history: Vec<&Mapped> = all.iter().collect();
        let found = after_loss(
            &history,
            &index,
            &away.iter().copied().map(HostIndex).collect(),
        )?;
        Some((found.version.number(), found.can_lose))
    }

    #[test]
    fn a_job_goes_on_from_the_newest_version_of_which_enough_is_left() {
        let all = [
            version(1, &[5, 6, 7, 8, 9], &[]),
            version(2, &[1, 2, 3, 4, 5], &[]),
        ];
        assert_eq!(found(&all, &[]), Some((2, 2)));
        assert_eq!(found(&all, &[1]), Some((2, 1)));
        assert_eq!(found(&all, &[1, 2]), Some((2, 0)));
        assert_eq!(found(&all, &[1, 2, 3]), Some((1, 2)));
        assert_eq!(found(&all, &[1, 2, 3, 5, 6]), Some((1, 0)));
        assert_eq!(found(&all, &[1, 2, 3, 5, 6, 7]), None);
    }

    #[test]
    fn a_version_stands_no_better_than_what_it_builds_on() {
        let all = [
            version(1, &[1, 2, 3, 4, 5], &[]),
            version(2, &[5, 6, 7, 8, 9], &[1]),
        ];
        assert_eq!(found(&all, &[1]), Some((2, 1)));
        assert_eq!(found(&all, &[1, 2, 3]), None);
        // What it builds on is nowhere.
        let orphan = [version(2, &[5, 6, 7, 8, 9], &[1])];
        assert_eq!(found(&orphan, &[]), None);
    }

    #[test]
    fn a_shard_that_two_hosts_hold_is_lost_with_both_and_counts_once() {
        let mut one = version(1, &[1, 2, 3], &[]);
        one.shards.push(ShardAt {
            shard: 0,
            host: HostIndex(4),
        });
        let all = [one];
        assert_eq!(found(&all, &[]), Some((1, 0)));
        assert_eq!(found(&all, &[1]), Some((1, 0)));
        assert_eq!(found(&all, &[1, 4]), None);
    }

    #[test]
    fn an_older_whole_version_goes_before_a_newer_one_that_is_marked() {
        let mut all = [
            version(1, &[1, 2, 3, 4, 5], &[]),
            version(2, &[1, 2, 3, 4, 5], &[]),
        ];
        all[1].is_whole = false;
        assert_eq!(found(&all, &[]), Some((1, 2)));
        all[0].is_whole = false;
        assert_eq!(found(&all, &[]), Some((2, 2)));
    }
}
