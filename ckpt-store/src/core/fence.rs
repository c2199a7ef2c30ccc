//! Fences: what one witness promised and accepted about the successor of one checkpoint. That is the
//! acceptor of single-decree Paxos. This module has the acceptor, and the books of all fences of a host.
//! The proposer, which counts the answers, is part of the client.
//!
//! Example: the hosts W1, W2 and W3 are witnesses of checkpoint A, and two saves B and C want to follow A.
//!
//! 1. B asks for a promise with ballot 1. All three promise to accept nothing below 1.
//! 2. C asks for a promise with ballot 2. W2 and W3 promise.
//! 3. B proposes itself with ballot 1. W1 accepts; W2 and W3 answer that they have promised 2.
//! 4. C proposes itself with ballot 2. W2 and W3 accept. These are a majority, so C follows A for ever.
//!
//! The daemon first writes the new state to the disk, then enters it here, and then answers.

use std::collections::{BTreeMap, BTreeSet};

use codec::notice::{Stamp, Words};
use codec::proposal::{Ballot, Successor};
use codec::{CheckpointId, JobTag, OwnerId};

use super::catalog::Key;
use super::places::{Stock, Who};

/// Most checkpoints about whose successors a host keeps promises. Each takes some 250 bytes of memory,
/// and as much of the disk as a manifest. [`Stock`] keeps one owner from taking the room of the others;
/// one grant gets half of its owner's room.
pub const FENCES_MAX: usize = 1 << 14;

/// The request was refused because the witness has promised this higher ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outbid(pub Ballot);

/// What a witness promised and accepted about the successor of one checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acceptor<V> {
    promised: Ballot,
    accepted: Option<(Ballot, V)>,
}

impl<V: Copy> Acceptor<V> {
    /// The acceptor of a witness that has not been asked yet.
    pub const fn new() -> Self {
        Self {
            promised: Ballot::NONE,
            accepted: None,
        }
    }

    /// The acceptor as it was read from the disk.
    pub fn restored(promised: Ballot, accepted: Option<(Ballot, V)>) -> Self {
        let accepted_at = accepted.as_ref().map_or(Ballot::NONE, |(at, _)| *at);
        Self {
            promised: promised.max(accepted_at),
            accepted,
        }
    }

    /// The ballot below which nothing is accepted.
    pub const fn promised(&self) -> Ballot {
        self.promised
    }

    /// The value that was accepted last, with its ballot.
    pub const fn accepted(&self) -> Option<(Ballot, V)> {
        self.accepted
    }

    /// The acceptor after a promise to accept nothing with a ballot below `ballot`. The same promise
    /// again changes nothing.
    ///
    /// # Errors
    /// When a higher ballot was promised before.
    pub fn promise(&self, ballot: Ballot) -> Result<Self, Outbid> {
        if ballot < self.promised {
            return Err(Outbid(self.promised));
        }
        Ok(Self {
            promised: ballot,
            accepted: self.accepted,
        })
    }

    /// The acceptor after it has accepted `value`.
    ///
    /// # Errors
    /// When a higher ballot was promised before.
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
    /// Tag of the checkpoint's job.
    pub job_tag: JobTag,
    /// When the save of the checkpoint began, Unix seconds.
    pub created: u64,
    /// Key of the grant with which the witness was asked for the first time; `None` if that was without a
    /// grant.
    pub grant: Option<OwnerId>,
    /// What was promised and accepted.
    pub acceptor: Acceptor<Successor>,
}

impl Fence {
    /// Which owner and grant the fence counts for.
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

/// The fences of a host, by the checkpoint whose successor they decide.
#[derive(Debug)]
pub struct Fences {
    all: BTreeMap<Key, Fence>,
    /// Checkpoints whose file can't be read. What that file promised still holds, so nothing can be
    /// promised about them any more.
    damaged: BTreeSet<Key>,
    /// Successors that were accepted, with the number of fences that did. They may wait for their commit
    /// without limit of time.
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

    /// Whether the file with the promises about a checkpoint can't be read.
    pub fn is_damaged(&self, key: Key) -> bool {
        self.damaged.contains(&key)
    }

    /// Notes that the file with the promises about a checkpoint can't be read.
    pub fn damaged(&mut self, key: Key) {
        self.damaged.insert(key);
    }

    /// Whether one more fence may be entered for `who`.
    pub fn has_room(&self, who: Who<OwnerId>) -> bool {
        self.stock.has_room(who, 1)
    }

    /// Enters a fence that is on the disk. Returns whether it is the first of its checkpoint.
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

    /// Removes a fence whose file is gone from the disk.
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

    /// The fences whose checkpoints this notice declares gone.
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

    /// All fences, by checkpoint.
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
            version: Version::new(2).unwrap(),
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
    fn promises_are_kept() {
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
        // A witness that did not hear of the promise accepts a value with a higher ballot all the same.
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
