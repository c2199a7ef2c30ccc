//! What a witness of a checkpoint promised and accepted: the acceptor of single-decree Paxos, and the
//! books of all of them.
//!
//! The shell writes the new state to the disk before it answers, and only then enters it here.

use std::collections::{BTreeMap, BTreeSet};

use codec::notice::{Stamp, Words};
use codec::proposal::{Ballot, Successor};
use codec::{CheckpointId, JobTag, OwnerId};

use super::catalog::Key;
use super::places::{Stock, Who};

/// Most checkpoints about whose successors a host keeps promises. Each takes some 250 bytes of memory,
/// and of the disk what a manifest takes. An owner adds no more than it leaves for others, and one grant
/// half of that.
pub const FENCES_MAX: usize = 1 << 14;

/// A higher ballot than the one asked with was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outbid(pub Ballot);

/// What a witness said of the successors of one checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acceptor<V> {
    promised: Ballot,
    accepted: Option<(Ballot, V)>,
}

impl<V: Copy> Acceptor<V> {
    /// Of a witness that was not asked yet.
    pub const fn new() -> Self {
        Self {
            promised: Ballot::NONE,
            accepted: None,
        }
    }

    /// As it was written to the disk.
    pub fn restored(promised: Ballot, accepted: Option<(Ballot, V)>) -> Self {
        let accepted_at = accepted.as_ref().map_or(Ballot::NONE, |(at, _)| *at);
        Self {
            promised: promised.max(accepted_at),
            accepted,
        }
    }

    /// The ballot below which it accepts nothing.
    pub const fn promised(&self) -> Ballot {
        self.promised
    }

    /// What it accepted last.
    pub const fn accepted(&self) -> Option<(Ballot, V)> {
        self.accepted
    }

    /// What it is when it has promised to accept nothing with a lower ballot. The same again changes
    /// nothing.
    ///
    /// # Errors
    /// When it has promised more.
    pub fn promise(&self, ballot: Ballot) -> Result<Self, Outbid> {
        if ballot < self.promised {
            return Err(Outbid(self.promised));
        }
        Ok(Self {
            promised: ballot,
            accepted: self.accepted,
        })
    }

    /// What it is when it has accepted a value.
    ///
    /// # Errors
    /// When it has promised not to.
    pub fn accept(&self, ballot: Ballot, value: V) -> Result<Self, Outbid> {
        if ballot < self.promised {
            return Err(Outbid(self.promised));
        }
        Ok(Self {
            promised: ballot,
            accepted: Some((ballot, value)),
        })
    }
}

impl<V: Copy> Default for Acceptor<V> {
    fn default() -> Self {
        Self::new()
    }
}

/// What is known of the successors of one checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The job.
    pub job_tag: JobTag,
    /// When the save of the checkpoint began, Unix seconds.
    pub created: u64,
    /// Key of the grant with which it was asked for first, if it was with one.
    pub grant: Option<OwnerId>,
    /// What was promised and accepted.
    pub acceptor: Acceptor<Successor>,
}

impl Fence {
    /// As whose it counts.
    const fn who(&self, owner: OwnerId) -> Who<OwnerId> {
        Who {
            member: owner,
            grant: self.grant,
        }
    }

    fn wants(&self, owner: OwnerId) -> Option<Key> {
        let (_, successor) = self.acceptor.accepted()?;
        let checkpoint = successor.checkpoint;
        Some(Key { owner, checkpoint })
    }
}

/// What a host promised and accepted, by the checkpoint that is followed.
#[derive(Debug)]
pub struct Fences {
    all: BTreeMap<Key, Fence>,
    /// Those whose file can't be read: whatever they promised holds, so nothing is promised any more.
    damaged: BTreeSet<Key>,
    /// Successors that were accepted: they wait for their commit without limit of time.
    wanted: BTreeMap<Key, u32>,
    stock: Stock<OwnerId>,
}

impl Default for Fences {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            damaged: BTreeSet::new(),
            wanted: BTreeMap::new(),
            stock: Stock::new(FENCES_MAX as u64),
        }
    }
}

impl Fences {
    /// What is known of the successors of a checkpoint.
    pub fn get(&self, key: Key) -> Option<&Fence> {
        self.all.get(&key)
    }

    /// Whether what was promised of a checkpoint can't be read.
    pub fn is_damaged(&self, key: Key) -> bool {
        self.damaged.contains(&key)
    }

    /// Notes that what was promised of a checkpoint can't be read.
    pub fn damaged(&mut self, key: Key) {
        self.damaged.insert(key);
    }

    /// Whether one more may be entered for `who`.
    pub fn has_room(&self, who: Who<OwnerId>) -> bool {
        self.stock.has_room(who, 1)
    }

    /// Enters what is on the disk; says whether it is the first of its checkpoint.
    pub fn enter(&mut self, key: Key, fence: Fence) -> bool {
        let old = self.all.insert(key, fence);
        self.wanted_by(key.owner, old.as_ref(), Some(&fence));
        if old.is_none() {
            self.stock.add(fence.who(key.owner), 1);
        } else if let Some(old) = old
            && old.grant != fence.grant
        {
            self.stock.take(old.who(key.owner), 1);
            self.stock.add(fence.who(key.owner), 1);
        }
        old.is_none()
    }

    /// Strikes what is not on the disk any more.
    pub fn remove(&mut self, key: Key) -> Option<Fence> {
        self.damaged.remove(&key);
        let old = self.all.remove(&key)?;
        self.wanted_by(key.owner, Some(&old), None);
        self.stock.take(old.who(key.owner), 1);
        Some(old)
    }

    /// Whether a checkpoint was accepted as a successor.
    pub fn wants(&self, key: Key) -> bool {
        self.wanted.contains_key(&key)
    }

    /// The checkpoints of a job that this says are gone.
    pub fn gone(&self, words: &Words) -> Vec<Key> {
        let first = Key {
            owner: words.owner,
            checkpoint: CheckpointId([0; 16]),
        };
        let of_owner = self.all.range(first..);
        let of_owner = of_owner.take_while(|(key, _)| key.owner == words.owner);
        let gone = of_owner.filter(|(key, fence)| {
            let stamp = Stamp {
                created: fence.created,
                checkpoint: key.checkpoint,
            };
            fence.job_tag == words.job_tag && words.is_gone(stamp)
        });
        gone.map(|(key, _)| *key).collect()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Fence)> {
        self.all.iter()
    }

    fn wanted_by(&mut self, owner: OwnerId, old: Option<&Fence>, new: Option<&Fence>) {
        let [old, new] = [old, new].map(|fence| fence.and_then(|fence| fence.wants(owner)));
        if let Some(new) = new {
            *self.wanted.entry(new).or_default() += 1;
        }
        if let Some(old) = old
            && let Some(count) = self.wanted.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.wanted.remove(&old);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use codec::{ManifestHash, Version};

    use super::*;

    const OWNER: OwnerId = OwnerId([1; 32]);

    fn ballot(round: u64) -> Ballot {
        Ballot {
            round,
            proposer: CheckpointId([1; 16]),
        }
    }

    fn successor(id: u8) -> Successor {
        Successor {
            checkpoint: CheckpointId([id; 16]),
            version: Version(2),
            manifest: ManifestHash([id; 32]),
        }
    }

    fn key(number: u64) -> Key {
        let mut checkpoint = [0; 16];
        checkpoint[..8].copy_from_slice(&number.to_le_bytes());
        Key {
            owner: OWNER,
            checkpoint: CheckpointId(checkpoint),
        }
    }

    fn fence(grant: Option<OwnerId>, accepted: Option<(Ballot, Successor)>) -> Fence {
        Fence {
            job_tag: JobTag([2; 32]),
            created: 10,
            grant,
            acceptor: Acceptor::restored(Ballot::NONE, accepted),
        }
    }

    #[test]
    fn what_was_promised_is_kept() {
        let new = Acceptor::<u8>::new();
        let promised = new.promise(ballot(5)).unwrap();
        assert_eq!(promised.promise(ballot(4)), Err(Outbid(ballot(5))));
        assert_eq!(promised.accept(ballot(4), 1), Err(Outbid(ballot(5))));
        assert_eq!(promised.promise(ballot(5)), Ok(promised));
        let accepted = promised.accept(ballot(5), 1).unwrap();
        assert_eq!(accepted.accepted(), Some((ballot(5), 1)));
        let later = accepted.promise(ballot(7)).unwrap();
        assert_eq!(later.accepted(), Some((ballot(5), 1)));
        assert_eq!(later.accept(ballot(5), 1), Err(Outbid(ballot(7))));
        // Who heard nothing of the promise accepts what has a higher ballot all the same.
        assert_eq!(new.accept(ballot(9), 3).unwrap().promised(), ballot(9));
        let restored = Acceptor::restored(ballot(3), Some((ballot(5), 1)));
        assert_eq!(restored, accepted);
    }

    #[test]
    fn an_accepted_successor_is_wanted_until_another_is_or_its_predecessor_is_gone() {
        let mut fences = Fences::default();
        let wanted = |id: u8| Key {
            owner: OWNER,
            checkpoint: CheckpointId([id; 16]),
        };
        assert!(fences.enter(key(1), fence(None, None)));
        assert!(!fences.enter(key(1), fence(None, Some((ballot(1), successor(7))))));
        fences.enter(key(2), fence(None, Some((ballot(1), successor(7)))));
        fences.enter(key(1), fence(None, Some((ballot(2), successor(8)))));
        assert!(fences.wants(wanted(7)) && fences.wants(wanted(8)));
        fences.remove(key(2));
        assert!(!fences.wants(wanted(7)) && fences.wants(wanted(8)));
        fences.remove(key(1));
        assert!(!fences.wants(wanted(8)));
        assert_eq!(fences.stock.all(), 0);
    }

    #[test]
    fn an_owner_leaves_room_for_others_and_a_grant_for_its_owner() {
        let mut fences = Fences::default();
        let fill = |fences: &mut Fences, from: u64, grant: Option<OwnerId>| {
            let who = Who {
                member: OWNER,
                grant,
            };
            let mut entered = 0;
            while fences.has_room(who) {
                fences.enter(key(from + entered), fence(grant, None));
                entered += 1;
            }
            entered
        };
        let of_grant = fill(&mut fences, 0, Some(OwnerId([9; 32])));
        let in_all = of_grant + fill(&mut fences, 1 << 32, None);
        assert_eq!(of_grant, FENCES_MAX as u64 / 4);
        assert_eq!(in_all, FENCES_MAX as u64 / 2);
        assert!(fences.has_room(Who::itself(OwnerId([3; 32]))));
    }
}
