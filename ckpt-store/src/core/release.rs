//! What a host gives back when it lends less, or its disk fills.

use std::cmp::Reverse;

use codec::ShardIndex;

use super::Key;

/// A shard that could be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burden {
    /// Of which checkpoint.
    pub key: Key,
    /// Which shard.
    pub shard: ShardIndex,
    /// What its file takes.
    pub bytes: u64,
    /// Whether a later version of its job is here.
    pub is_superseded: bool,
    /// Whether another host that answers has it, too.
    pub is_elsewhere: bool,
    /// How many shards of the checkpoint can still be lost; `None` when there are too few already.
    pub spare: Option<usize>,
}

/// Which shards to give back so that `over` bytes become free: those that others have first, for they
/// need not be moved, then those of superseded versions, then those whose checkpoints are least
/// endangered, and of these the largest. Shards of checkpoints that can't be rebuilt stay.
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
    fn what_is_cheapest_to_miss_goes_first() {
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
