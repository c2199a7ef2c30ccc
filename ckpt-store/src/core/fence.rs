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

use codec::grant::Terms;
use codec::notice::{Stamp, Words};
use codec::proposal::{Ballot, Successor};
use codec::{CheckpointId, JobTag, OwnerId};

use super::key::Key;
use super::places::{Stock, Who};

/// Most checkpoints about whose successors a host keeps promises. Each takes some 250 bytes of memory,
/// and as much of the disk as a manifest. [`Stock`] keeps one owner from taking the room of the others;
/// one grant gets half of its owner's room.
pub const FENCES_MAX: usize = 1 << 14;

/// Most keys whose promises and acceptances are kept apart for one checkpoint. Those with the highest
/// ballots stay, so with at most two stolen keys one of them is an honest one's.
pub const BIDDERS_MAX: usize = 3;

/// The request was refused. Either the witness has promised this ballot, which is higher; or this is what it
/// has promised, and the round that was asked for is more than [`ROUNDS_AHEAD_MAX`] above.
///
/// [`ROUNDS_AHEAD_MAX`]: codec::proposal::ROUNDS_AHEAD_MAX
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outbid(pub Ballot);

/// The key that asked for a promise, or that signed a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bidder {
    /// The owner's own key, which never becomes void.
    Owner,
    /// A job key, by the serial of its grant. Keys with one serial become void together.
    JobKey(u64),
}

impl Bidder {
    /// The bidder with this grant, or the owner without one.
    pub fn of(grant: Option<&Terms>) -> Self {
        grant.map_or(Self::Owner, |terms| Self::JobKey(terms.serial))
    }

    /// Whether the key is void when all grants with lower serials than this are.
    pub const fn is_void(self, serials_below: u64) -> bool {
        match self {
            Self::Owner => false,
            Self::JobKey(serial) => serial < serials_below,
        }
    }
}

/// A promise to accept nothing below a ballot, and who asked for it.
pub type Promise = (Ballot, Bidder);

/// An accepted value, the ballot of its proposal, and who signed that.
pub type Acceptance<V> = (Ballot, Bidder, V);

/// What a witness promised and accepted about the successor of one checkpoint.
///
/// It keeps the last promise and the last acceptance of each key. As long as no key is void, only the highest
/// of all counts, as in an acceptor that keeps one of each. When a key becomes void, what that key
/// asked for is dropped ([`Self::standing`]), and what other keys had asked for before is in force again. So
/// afterwards the witness is in a state to which it would have come without that key, if some questions of the
/// others had been lost on their way; and Paxos allows for lost questions. What was chosen by proposals of
/// the void key alone is chosen no more. Its own versions are passed over anyway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acceptor<V> {
    /// One for each key, the highest first.
    promised: Vec<Promise>,
    /// One for each key, the highest first.
    accepted: Vec<Acceptance<V>>,
}

impl<V: Copy> Acceptor<V> {
    /// The acceptor of a witness that has not been asked yet.
    pub const fn new() -> Self {
        Self {
            promised: Vec::new(),
            accepted: Vec::new(),
        }
    }

    /// The acceptor as it was read from the disk; `None` if the lists are not such as an acceptor has.
    pub fn restored(promised: Vec<Promise>, accepted: Vec<Acceptance<V>>) -> Option<Self> {
        let of_promised: Vec<(Ballot, Bidder)> = promised.clone();
        let of_accepted: Vec<(Ballot, Bidder)> =
            accepted.iter().map(|(at, by, _)| (*at, *by)).collect();
        let is_right = is_ordered(&of_promised) && is_ordered(&of_accepted);
        is_right.then_some(Self { promised, accepted })
    }

    /// The ballot below which nothing is accepted.
    pub fn promised(&self) -> Ballot {
        let promised = self.promised.first().map(|(at, _)| *at);
        let accepted = self.accepted.first().map(|(at, _, _)| *at);
        promised.max(accepted).unwrap_or(Ballot::NONE)
    }

    /// The value that was accepted last, with its ballot.
    pub fn accepted(&self) -> Option<(Ballot, V)> {
        self.accepted.first().map(|(at, _, value)| (*at, *value))
    }

    /// The last promise of each key, the highest first.
    pub fn promises(&self) -> &[Promise] {
        &self.promised
    }

    /// The last acceptance of each key, the highest first.
    pub fn acceptances(&self) -> &[Acceptance<V>] {
        &self.accepted
    }

    /// The acceptor without what keys asked for that are void when all grants with lower serials than this
    /// are.
    #[must_use]
    pub fn standing(&self, serials_below: u64) -> Self {
        let promised = self.promised.iter();
        let promised = promised.filter(|(_, by)| !by.is_void(serials_below));
        let accepted = self.accepted.iter();
        let accepted = accepted.filter(|(_, by, _)| !by.is_void(serials_below));
        Self {
            promised: promised.copied().collect(),
            accepted: accepted.copied().collect(),
        }
    }

    /// The acceptor after a promise to accept nothing with a ballot below `ballot`. The same promise
    /// again changes nothing.
    ///
    /// # Errors
    /// When a higher ballot was promised before, or the round is too far above the promised one.
    pub fn promise(&self, by: Bidder, ballot: Ballot) -> Result<Self, Outbid> {
        self.check(ballot)?;
        Ok(Self {
            promised: with_first(&self.promised, (ballot, by), |(_, by)| *by),
            accepted: self.accepted.clone(),
        })
    }

    /// The acceptor after it has accepted `value`.
    ///
    /// # Errors
    /// When a higher ballot was promised before, or the round is too far above the promised one.
    pub fn accept(&self, by: Bidder, ballot: Ballot, value: V) -> Result<Self, Outbid> {
        self.check(ballot)?;
        Ok(Self {
            promised: with_first(&self.promised, (ballot, by), |(_, by)| *by),
            accepted: with_first(&self.accepted, (ballot, by, value), |(_, by, _)| *by),
        })
    }

    fn check(&self, ballot: Ballot) -> Result<(), Outbid> {
        let promised = self.promised();
        if ballot < promised || promised.is_too_low_for(ballot) {
            return Err(Outbid(promised));
        }
        Ok(())
    }
}

/// The entries with a new first one, which replaces the earlier one of its key. The owner's key never becomes
/// void, so nothing below an entry of the owner's can ever count again.
fn with_first<T: Copy>(entries: &[T], first: T, by: impl Fn(&T) -> Bidder) -> Vec<T> {
    let bidder = by(&first);
    let others = entries.iter().filter(|one| by(one) != bidder);
    let others = others.filter(|_| bidder != Bidder::Owner);
    let all = std::iter::once(&first).chain(others);
    all.take(BIDDERS_MAX).copied().collect()
}

/// Whether there is at most one entry for each key, the highest first, and none below the owner's.
fn is_ordered(entries: &[(Ballot, Bidder)]) -> bool {
    let keys: BTreeSet<Bidder> = entries.iter().map(|(_, by)| *by).collect();
    let owners = entries.iter().position(|(_, by)| *by == Bidder::Owner);
    entries.len() <= BIDDERS_MAX
        && keys.len() == entries.len()
        && entries.is_sorted_by(|a, b| a.0 >= b.0)
        && owners.is_none_or(|at| at + 1 == entries.len())
}

impl<V: Copy> Default for Acceptor<V> {
    fn default() -> Self {
        Self::new()
    }
}

/// What is known of the successors of one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// The accepted successors: one for each key.
    fn wants(&self, owner: OwnerId) -> impl Iterator<Item = Key> {
        let accepted = self.acceptor.acceptances().iter();
        accepted.map(move |(_, _, successor)| Key {
            owner,
            checkpoint: successor.checkpoint,
        })
    }

    /// The fence without what void keys asked for. See [`Acceptor::standing`].
    #[must_use]
    pub fn standing(&self, serials_below: u64) -> Self {
        Self {
            acceptor: self.acceptor.standing(serials_below),
            ..*self
        }
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
        let old = self.all.remove(&key);
        self.wanted_by(key.owner, old.as_ref(), Some(&fence));
        let is_first = old.is_none();
        if let Some(old) = old {
            self.stock.take(old.who(key.owner), 1);
        }
        self.stock.add(fence.who(key.owner), 1);
        self.all.insert(key, fence);
        is_first
    }

    /// Drops what job keys of an owner asked for that are void now.
    pub fn drop_void(&mut self, owner: OwnerId, serials_below: u64) {
        let of_owner: Vec<Key> = self.of_owner(owner).map(|(key, _)| *key).collect();
        for key in of_owner {
            let standing = self.all.get(&key).map(|one| one.standing(serials_below));
            if let Some(standing) = standing {
                self.enter(key, standing);
            }
        }
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
        let gone = self.of_owner(words.owner).filter(|(key, fence)| {
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

    fn of_owner(&self, owner: OwnerId) -> impl Iterator<Item = (&Key, &Fence)> {
        let first = Key {
            owner,
            checkpoint: CheckpointId([0; 16]),
        };
        let all = self.all.range(first..);
        all.take_while(move |(key, _)| key.owner == owner)
    }

    fn wanted_by(&mut self, owner: OwnerId, old: Option<&Fence>, new: Option<&Fence>) {
        for new in new.into_iter().flat_map(|fence| fence.wants(owner)) {
            *self.wanted.entry(new).or_default() += 1;
        }
        for old in old.into_iter().flat_map(|fence| fence.wants(owner)) {
            if let Some(count) = self.wanted.get_mut(&old) {
                *count -= 1;
                if *count == 0 {
                    self.wanted.remove(&old);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use codec::proposal::ROUNDS_AHEAD_MAX;
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
            acceptor: accepted.map_or_else(Acceptor::new, |(at, value)| {
                Acceptor::new().accept(Bidder::of(None), at, value).unwrap()
            }),
        }
    }

    const OWNERS: Bidder = Bidder::Owner;
    const THIEF: Bidder = Bidder::JobKey(3);
    const HONEST: Bidder = Bidder::JobKey(9);

    #[test]
    fn promises_are_kept() {
        for by in [OWNERS, HONEST] {
            let new = Acceptor::<u8>::new();
            let promised = new.promise(by, ballot(5)).unwrap();
            assert_eq!(promised.promise(by, ballot(4)), Err(Outbid(ballot(5))));
            assert_eq!(promised.accept(by, ballot(4), 1), Err(Outbid(ballot(5))));
            assert_eq!(promised.promise(by, ballot(5)), Ok(promised.clone()));
            let accepted = promised.accept(by, ballot(5), 1).unwrap();
            assert_eq!(accepted.accepted(), Some((ballot(5), 1)));
            let later = accepted.promise(by, ballot(7)).unwrap();
            assert_eq!(later.accepted(), Some((ballot(5), 1)));
            assert_eq!(later.accept(by, ballot(5), 1), Err(Outbid(ballot(7))));
            // A witness that did not hear of the promise accepts a value with a higher ballot all the same.
            let late = new.accept(by, ballot(9), 3).unwrap();
            assert_eq!(late.promised(), ballot(9));
            let lists = (later.promises().to_vec(), later.acceptances().to_vec());
            assert_eq!(Acceptor::restored(lists.0, lists.1), Some(later));
        }
    }

    #[test]
    fn a_round_far_above_the_promised_one_is_refused_and_the_promised_one_is_named() {
        let new = Acceptor::<u8>::new();
        let far = ballot(u64::MAX);
        assert_eq!(new.promise(THIEF, far), Err(Outbid(Ballot::NONE)));
        assert_eq!(new.accept(THIEF, far, 1), Err(Outbid(Ballot::NONE)));
        let near = new.promise(OWNERS, ballot(ROUNDS_AHEAD_MAX)).unwrap();
        assert_eq!(near.promised(), ballot(1_000));
        assert_eq!(near.accept(OWNERS, far, 1), Err(Outbid(ballot(1_000))));
        // Whoever has to go further learns the promised ballot, and climbs from there.
        let next = near.promised().step_to(far);
        assert_eq!(
            near.promise(OWNERS, next).unwrap().promised(),
            ballot(2_000)
        );
    }

    #[test]
    fn what_a_void_key_asked_for_is_dropped_and_what_others_did_before_is_in_force_again() {
        let first = Acceptor::new().accept(HONEST, ballot(2), 7).unwrap();
        let covered = first.accept(THIEF, ballot(900), 8).unwrap();
        assert_eq!(covered.accepted(), Some((ballot(900), 8)));
        assert_eq!(covered.standing(3), covered, "the key is not void yet");
        assert_eq!(covered.standing(4), first);
        assert_eq!(covered.standing(10), Acceptor::new());
        // Other promises of a void key are dropped, too.
        let outbid = first.promise(THIEF, ballot(900)).unwrap();
        assert_eq!(outbid.standing(4).promised(), ballot(2));
        // What the owner accepts is never dropped, and covers everything below.
        let owners = covered.accept(OWNERS, ballot(901), 7).unwrap();
        assert_eq!(owners.acceptances(), [(ballot(901), OWNERS, 7)]);
        assert_eq!(owners.standing(u64::MAX), owners);
        // Of many keys the last ones are kept.
        let many = (10..20).try_fold(first, |acceptor, round| {
            acceptor.accept(Bidder::JobKey(round), ballot(round), 1)
        });
        let many = many.unwrap();
        assert_eq!(many.acceptances().len(), BIDDERS_MAX);
        assert_eq!(many.standing(19).promised(), ballot(19));
    }

    #[test]
    fn lists_that_no_acceptor_has_are_not_restored() {
        let [low, high] = [(ballot(1), OWNERS), (ballot(2), THIEF)];
        let restored = |promised: &[Promise]| Acceptor::<u8>::restored(promised.to_vec(), vec![]);
        assert!(restored(&[high, low]).is_some());
        assert!(restored(&[low, high]).is_none());
        assert!(restored(&[(ballot(2), OWNERS), (ballot(1), THIEF)]).is_none());
        assert!(restored(&[high, (ballot(1), THIEF)]).is_none());
        let many = |number| (ballot(9), Bidder::JobKey(number));
        assert!(restored(&[many(1), many(2), many(3)]).is_some());
        assert!(restored(&[many(1), many(2), many(3), many(4)]).is_none());
    }

    #[test]
    fn what_only_a_void_key_accepted_is_not_wanted() {
        let mut fences = Fences::default();
        let acceptor = Acceptor::new().accept(HONEST, ballot(1), successor(7));
        let acceptor = acceptor.and_then(|it| it.accept(THIEF, ballot(2), successor(8)));
        let acceptor = acceptor.unwrap();
        let both = Fence {
            acceptor,
            ..fence(None, None)
        };
        fences.enter(key(1), both);
        let wants = |fences: &Fences| {
            [7, 8].map(|id| {
                let checkpoint = CheckpointId([id; 16]);
                fences.wants(Key {
                    owner: OWNER,
                    checkpoint,
                })
            })
        };
        assert_eq!(wants(&fences), [true, true]);
        fences.drop_void(OwnerId([3; 32]), 4);
        assert_eq!(wants(&fences), [true, true]);
        fences.drop_void(OWNER, 4);
        assert_eq!(wants(&fences), [true, false]);
        fences.remove(key(1));
        assert_eq!(wants(&fences), [false, false]);
        assert_eq!(fences.stock.all(), 0);
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
