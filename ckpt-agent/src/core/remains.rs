//! How many rows of a save that was interrupted are used: as many as enough hosts have.

use std::collections::{BTreeMap, BTreeSet};

use codec::ShardIndex;

use crate::core::HostIndex;

/// What a host has of a shard whose transfer broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRows {
    /// The shard.
    pub shard: ShardIndex,
    /// The host.
    pub host: HostIndex,
    /// Its rows from the first one on.
    pub rows: u64,
    /// Whether the shard was ended: it has no other number of rows any more.
    pub ended: bool,
}

/// The rows that are used, and which hosts have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedRows {
    /// The number of rows, from the first one on.
    pub rows: u64,
    /// One host for each shard, each host once.
    pub holders: Vec<(ShardIndex, HostIndex)>,
}

/// The most rows that `needed` shards have, each on a host of its own, of the `noted` ones. If the number is `fixed`,
/// no other one is possible.
pub fn used_rows(
    held: &[HeldRows],
    noted: u64,
    needed: usize,
    fixed: Option<u64>,
) -> Option<UsedRows> {
    let possible: BTreeSet<u64> = match fixed {
        Some(rows) => [rows].into(),
        None => held.iter().map(|one| one.rows.min(noted)).collect(),
    };
    let possible = possible.into_iter().rev().filter(|rows| *rows > 0);
    let used = possible.map(|rows| UsedRows {
        rows,
        holders: holders(held, rows),
    });
    { used }.find(|used| used.rows <= noted && used.holders.len() >= needed)
}

/// A host for each shard that has so many rows, or can be ended after as many. Hosts are honest about one shard each,
/// as no host is sent two: one that states more of them stands behind the others, so that it takes no shard from one
/// that has it.
fn holders(held: &[HeldRows], rows: u64) -> Vec<(ShardIndex, HostIndex)> {
    let has = |one: &&HeldRows| match one.ended {
        true => one.rows == rows,
        false => one.rows >= rows,
    };
    let stated = |one: &&HeldRows| held.iter().filter(|all| all.host == one.host).count();
    let mut of_shard = BTreeMap::new();
    let mut hosts = BTreeSet::new();
    let mut held: Vec<&HeldRows> = held.iter().filter(has).collect();
    held.sort_by_key(stated);
    for one in held {
        if !of_shard.contains_key(&one.shard) && hosts.insert(one.host) {
            of_shard.insert(one.shard, one.host);
        }
    }
    of_shard.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use codec::Redundancy;
    use proptest::prelude::*;

    use super::*;

    fn held(shard: u8, host: usize, rows: u64, ended: bool) -> HeldRows {
        let code = Redundancy::new(3, 2).unwrap();
        HeldRows {
            shard: code.shard(shard).unwrap(),
            host: HostIndex(host),
            rows,
            ended,
        }
    }

    fn of(rows: &[u64]) -> Vec<HeldRows> {
        let all = (0..).zip(rows);
        all.map(|(shard, rows)| held(shard, shard.into(), *rows, false))
            .collect()
    }

    #[test]
    fn as_many_rows_are_used_as_enough_hosts_have() {
        let all = of(&[90, 80, 70, 60, 50]);
        let rows = |noted, needed| used_rows(&all, noted, needed, None).map(|used| used.rows);
        assert_eq!(rows(100, 5), Some(50));
        assert_eq!(rows(100, 4), Some(60));
        assert_eq!(rows(100, 3), Some(70));
        assert_eq!(rows(55, 3), Some(55), "no more than was noted");
        assert_eq!(rows(100, 6), None);
        assert_eq!(rows(0, 1), None);
        assert_eq!(used_rows(&[], 100, 1, None), None);
    }

    #[test]
    fn what_was_ended_has_no_other_rows() {
        let mut all = of(&[90, 80, 70, 60]);
        all.push(held(4, 4, 65, true));
        let used = |needed, fixed| used_rows(&all, 100, needed, fixed);
        assert_eq!(used(5, None), None);
        assert_eq!(used(4, None).map(|used| used.rows), Some(65));
        assert_eq!(used(4, Some(65)).map(|used| used.rows), Some(65));
        assert_eq!(used(4, Some(66)), None);
    }

    #[test]
    fn a_host_that_states_two_shards_counts_once() {
        let mut all = of(&[90, 80, 70]);
        all.push(held(3, 0, 90, false));
        assert_eq!(used_rows(&all, 100, 4, None), None);
        all.push(held(3, 7, 90, false));
        let used = used_rows(&all, 100, 4, None).unwrap();
        assert_eq!((used.rows, used.holders.len()), (70, 4));
    }

    #[test]
    fn a_host_that_states_all_shards_takes_none_from_one_that_has_it() {
        let mut all: Vec<HeldRows> = (0..5).map(|shard| held(shard, 0, 1000, false)).collect();
        all.extend((0..4).map(|shard| held(shard, usize::from(shard) + 1, 70, false)));
        let used = used_rows(&all, 100, 5, None).unwrap();
        let hosts: Vec<usize> = used.holders.iter().map(|(_, host)| host.0).collect();
        assert_eq!((used.rows, hosts), (70, vec![1, 2, 3, 4, 0]));
    }

    proptest! {
        #[test]
        fn whatever_hosts_state_each_chosen_one_has_the_rows(
            all in prop::collection::vec((0..5_u8, 0..6_usize, 0..40_u64, any::<bool>()), 0..16),
            noted in 0..40_u64,
            needed in 1..6_usize,
        ) {
            let all: Vec<HeldRows> = all
                .into_iter()
                .map(|(shard, host, rows, ended)| held(shard, host, rows, ended))
                .collect();
            if let Some(used) = used_rows(&all, noted, needed, None) {
                prop_assert!(used.rows > 0 && used.rows <= noted && used.holders.len() >= needed);
                let hosts: BTreeSet<HostIndex> = used.holders.iter().map(|(_, host)| *host).collect();
                prop_assert_eq!(hosts.len(), used.holders.len());
                for (shard, host) in used.holders {
                    let has = |one: &HeldRows| {
                        let is_enough = if one.ended { one.rows == used.rows } else { one.rows >= used.rows };
                        (one.shard, one.host) == (shard, host) && is_enough
                    };
                    prop_assert!(all.iter().any(has));
                }
            }
        }
    }
}
