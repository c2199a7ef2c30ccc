//! Chooses which shards a host gives back when its owner lends less, or its disk fills up.

use std::cmp::Reverse;

use codec::ShardIndex;

use super::Key;

/// A shard that this host could give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burden {
    /// The checkpoint to which the shard belongs.
    pub key: Key,
    /// Index of the shard in the checkpoint.
    pub shard: ShardIndex,
    /// The size of the shard's file on the disk.
    pub bytes: u64,
    /// Whether this host holds a later version of the job.
    pub is_superseded: bool,
    /// Whether another host that answers holds or claims the shard, too.
    pub is_elsewhere: bool,
    /// How many shards the checkpoint can still lose. `None` if it can't be rebuilt any more.
    pub spare: Option<usize>,
}

/// The shards to give back so that `over` bytes become free. Shards that other hosts hold come first,
/// because they need not be moved; then shards of superseded versions; then those whose checkpoints can
/// lose the most shards; and of these the largest. A shard whose checkpoint can't be rebuilt stays,
/// unless another host holds it.
pub fn choose(over: u64, mut burdens: Vec<Burden>) -> Vec<Burden> {
    burdens.retain(|one| one.is_elsewhere || one.spare.is_some());
    burdens.sort_by_key(|one| {
        (
            !one.is_elsewhere,
            !one.is_superseded,
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
    use codec::{CheckpointId, OwnerId, Redundancy};

    use super::*;

    fn burden(number: u8, bytes: u64, is_elsewhere: bool, spare: Option<usize>) -> Burden {
        Burden {
            key: Key {
                owner: OwnerId([1; 32]),
                checkpoint: CheckpointId([number; 16]),
            },
            shard: Redundancy::DEFAULT.shard(0).unwrap(),
            bytes,
            is_superseded: false,
            is_elsewhere,
            spare,
        }
    }

    fn numbers(over: u64, burdens: &[Burden]) -> Vec<u8> {
        let chosen = choose(over, burdens.to_vec());
        chosen.iter().map(|one| one.key.checkpoint.0[0]).collect()
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
        assert_eq!(numbers(1000, &all), [4, 3, 2, 1]);
        assert_eq!(numbers(30, &all), [4, 3]);
        assert_eq!(numbers(5, &all), [4]);
        assert!(numbers(0, &all).is_empty());
    }

    #[test]
    fn superseded_versions_go_before_the_newest() {
        let old = Burden {
            is_superseded: true,
            ..burden(1, 10, false, Some(0))
        };
        assert_eq!(numbers(10, &[burden(2, 10, false, Some(2)), old]), [1]);
    }
}
