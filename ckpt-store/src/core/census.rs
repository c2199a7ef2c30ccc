//! Counts the checkpoints of which this host holds shards by their state, for the grid's admin.

use codec::OwnerId;

use super::proofs::{assign, spare};
use super::repair::Situation;

/// How many checkpoints can still lose how many shards, by what their holders proved to each other.
///
/// Only one of the holders of a checkpoint counts it, so the counts of all hosts can be added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// At position *n*: checkpoints that can lose *n* shards.
    pub can_lose: Vec<u64>,
    /// Checkpoints with too few proved shards to be restored.
    pub too_few: u64,
    /// Checkpoints with fewer proved shards than they were saved with.
    pub below: u64,
    /// Those of `below` with claimed shards that have not been proved yet.
    pub unchecked: u64,
}

impl Census {
    /// Counts a checkpoint as `own` sees it, if `own` is the host that has to count it: of the hosts that
    /// count as holder of a shard, the one with the smallest key.
    pub fn enter(&mut self, own: OwnerId, situation: &Situation) {
        let assigned = assign(&situation.held);
        if assigned.values().min() != Some(&own) {
            return;
        }
        let redundancy = situation.redundancy;
        match spare(&situation.held, redundancy.data()) {
            None => self.too_few += 1,
            Some(spare) => {
                if self.can_lose.len() <= spare {
                    self.can_lose.resize(spare + 1, 0);
                }
                if let Some(count) = self.can_lose.get_mut(spare) {
                    *count += 1;
                }
            }
        }
        if assigned.len() < redundancy.total() {
            self.below += 1;
            self.unchecked += u64::from(!situation.claimed.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use codec::{CheckpointId, Redundancy};

    use super::*;
    use crate::core::Key;
    use crate::core::repair::Holders;

    fn id(number: u8) -> OwnerId {
        OwnerId([number; 32])
    }

    /// Shard 0 is held by the first of these hosts, shard 1 by the second, and so on.
    fn holders(hosts: &[u8]) -> Holders {
        let held = hosts.iter().enumerate().map(|(at, host)| {
            let shard = Redundancy::DEFAULT.shard(at as u8).unwrap();
            (shard, [id(*host)].into())
        });
        held.collect()
    }

    fn situation(held: &[u8], claimed: &[u8]) -> Situation {
        Situation {
            key: Key {
                owner: id(100),
                checkpoint: CheckpointId([1; 16]),
            },
            redundancy: Redundancy::DEFAULT,
            held: holders(held),
            claimed: holders(claimed),
            failed: Holders::new(),
        }
    }

    #[test]
    fn a_checkpoint_is_counted_by_one_of_its_holders() {
        let whole = situation(&[3, 1, 5, 2, 4], &[]);
        let counted: Vec<u64> = (1..=5)
            .map(|own| {
                let mut census = Census::default();
                census.enter(id(own), &whole);
                census.can_lose.iter().sum()
            })
            .collect();
        assert_eq!(counted, [1, 0, 0, 0, 0]);
    }

    #[test]
    fn checkpoints_are_counted_by_what_they_can_lose() {
        let mut census = Census::default();
        for (held, claimed) in [
            (&[1, 2, 3, 4, 5][..], &[][..]),
            (&[1, 2, 3, 4], &[]),
            (&[1, 2, 3, 4], &[9]),
            (&[1, 2, 3], &[]),
            (&[1, 2], &[9]),
            // Host 1 holds three shards and counts for one only.
            (&[1, 1, 1, 2, 3], &[]),
            // It holds all that a restore needs.
            (&[1, 1, 1], &[]),
        ] {
            census.enter(id(1), &situation(held, claimed));
        }
        let expected = Census {
            can_lose: vec![3, 2, 1],
            too_few: 1,
            below: 6,
            unchecked: 2,
        };
        assert_eq!(census, expected);
    }
}
