//! Chooses which shards a host gives back when its owner lends less, or its disk fills up.
//!
//! A version may use rows of older checkpoints of its job, its origins. Manifests are sealed, so a host does not know
//! which these are. But each is older than the version. So of a job, the newest checkpoint goes first: nothing
//! builds on it, and it alone has a shard less if that fails. What all later versions may need stays longest.

use std::cmp::Reverse;

use codec::ShardIndex;

use super::Key;

/// What a host knows of the use of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// It is inside of a stretch of its job's history that the owner deleted.
    Deleted,
    /// It is kept.
    Kept {
        /// How many kept later versions of the job the host holds. Each of them may build on it.
        later: usize,
    },
}

/// How a host gets rid of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Another host gets it.
    HandOver,
    /// No other host has room, and the checkpoint may do with a shard less.
    Drop,
}

/// A shard that this host could give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burden {
    /// The checkpoint to which the shard belongs.
    pub key: Key,
    /// Index of the shard in the checkpoint.
    pub shard: ShardIndex,
    /// The size of the shard's file on the disk.
    pub bytes: u64,
    /// The use of its checkpoint.
    pub used: Use,
    /// Whether another host that answers holds or claims the shard, too.
    pub is_elsewhere: bool,
    /// How many shards the checkpoint can still lose. `None` if it can't be rebuilt any more.
    pub spare: Option<usize>,
}

impl Default for Use {
    /// That of a checkpoint on which nothing builds.
    fn default() -> Self {
        Self::Kept { later: 0 }
    }
}

impl Way {
    /// Whether a shard may go in this way. The newest version of a job keeps what no other host takes.
    fn suits(self, one: &Burden) -> bool {
        match self {
            Self::HandOver => one.is_elsewhere || one.spare.is_some(),
            Self::Drop => {
                one.spare.is_some_and(|spare| spare > 0) && one.used != Use::Kept { later: 0 }
            }
        }
    }
}

/// The shards to give back in this way so that `over` bytes become free. Shards that other hosts hold come first,
/// because they need not be moved; then those of deleted checkpoints; then those of checkpoints on which the fewest
/// versions may build; of these, those whose checkpoints can lose the most shards; and of these the largest. A shard
/// whose checkpoint can't be rebuilt stays, unless another host holds it.
pub fn choose(over: u64, way: Way, mut burdens: Vec<Burden>) -> Vec<Burden> {
    burdens.retain(|one| way.suits(one));
    burdens.sort_by_key(|one| {
        (
            !one.is_elsewhere,
            one.used,
            Reverse(one.spare),
            Reverse(one.bytes),
            one.key,
            one.shard,
        )
    });
    let mut freed = 0;
    burdens
        .into_iter()
        .take_while(|one| {
            let is_needed = freed < over;
            freed += one.bytes;
            is_needed
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use codec::{CheckpointId, OwnerId, Redundancy};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn burden(number: u8, bytes: u64, is_elsewhere: bool, spare: Option<usize>) -> Burden {
        Burden {
            key: Key {
                owner: OwnerId([1; 32]),
                checkpoint: CheckpointId([number; 16]),
            },
            shard: Redundancy::DEFAULT.shard(0).unwrap(),
            bytes,
            used: Use::default(),
            is_elsewhere,
            spare,
        }
    }

    fn used(used: Use, burden: Burden) -> Burden {
        Burden { used, ..burden }
    }

    fn number(one: &Burden) -> u8 {
        one.key.checkpoint.0[0]
    }

    fn numbers(over: u64, way: Way, burdens: &[Burden]) -> Vec<u8> {
        let chosen = choose(over, way, burdens.to_vec());
        chosen.iter().map(number).collect()
    }

    #[test]
    fn the_shard_that_is_cheapest_to_miss_goes_first() {
        let all = [
            burden(1, 10, false, Some(0)),
            burden(2, 10, false, Some(2)),
            burden(3, 30, false, Some(2)),
            burden(4, 5, true, Some(1)),
            burden(5, 100, false, None),
        ];
        assert_eq!(numbers(1000, Way::HandOver, &all), [4, 3, 2, 1]);
        assert_eq!(numbers(30, Way::HandOver, &all), [4, 3]);
        assert_eq!(numbers(5, Way::HandOver, &all), [4]);
        assert!(numbers(0, Way::HandOver, &all).is_empty());
    }

    #[test]
    fn what_later_versions_may_build_on_goes_last() {
        let kept = |later| Use::Kept { later };
        let all = [
            used(kept(3), burden(1, 100, false, Some(2))),
            used(kept(1), burden(2, 5, false, Some(1))),
            used(kept(0), burden(3, 5, false, Some(0))),
            used(Use::Deleted, burden(4, 1, false, Some(0))),
            used(kept(2), burden(5, 5, true, Some(2))),
        ];
        assert_eq!(numbers(1000, Way::HandOver, &all), [5, 4, 3, 2, 1]);
        assert_eq!(numbers(7, Way::HandOver, &all), [5, 4, 3]);
        // Neither the newest version nor what has no shard to spare is dropped.
        assert_eq!(numbers(1000, Way::Drop, &all), [5, 2, 1]);
        assert_eq!(numbers(6, Way::Drop, &all), [5, 2]);
    }

    /// Random jobs whose versions build on some of the older checkpoints, which the host does not know.
    #[test]
    fn an_origin_goes_only_with_all_that_build_on_it() {
        let mut rng = SmallRng::seed_from_u64(7);
        for _ in 0..2_000 {
            let mut all = Vec::new();
            let mut builds_on = BTreeSet::new();
            for job in 0..rng.random_range(1..4) {
                let versions = rng.random_range(1..8);
                for version in 0..versions {
                    let later = usize::from(versions - version - 1);
                    let one = burden(
                        job * 10 + version,
                        rng.random_range(1..100),
                        false,
                        Some(rng.random_range(0..3)),
                    );
                    all.push(used(Use::Kept { later }, one));
                    let older = (0..version).filter(|_| rng.random_bool(0.5));
                    builds_on.extend(older.map(|older| (job * 10 + version, job * 10 + older)));
                }
            }
            let over = rng.random_range(0..800);
            let chosen = choose(over, Way::HandOver, all.clone());
            let freed: u64 = chosen.iter().map(|one| one.bytes).sum();
            assert!(freed >= over || chosen.len() == all.len());
            let last = chosen.last().map_or(0, |last| last.bytes);
            assert!(freed - last < over.max(1), "none too many");
            let gone: BTreeSet<u8> = chosen.iter().map(number).collect();
            for (version, origin) in &builds_on {
                assert!(
                    !gone.contains(origin) || gone.contains(version),
                    "{origin} went before {version}"
                );
            }
        }
    }
}
