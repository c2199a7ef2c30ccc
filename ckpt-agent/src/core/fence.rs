//! Decides which save follows a checkpoint, when several want to: the proposer of single-decree Paxos.
//!
//! The hosts that keep a checkpoint are its witnesses. A save asks them to promise its ballot. Their
//! promises state which successor each of them has accepted before. If one of these may have been chosen
//! already, the save proposes that successor, and its own otherwise. A successor that a quorum of witnesses
//! has accepted is chosen, for ever.

use std::collections::{BTreeMap, BTreeSet};

use codec::CheckpointId;
use codec::proposal::{Ballot, ROUNDS_AHEAD_MAX};

/// How far ahead of this save's own round a round may be to count when only one witness names it. Less than
/// [`ROUNDS_AHEAD_MAX`], so that the other witnesses take the next round at once.
const NEAR_ROUNDS: u64 = ROUNDS_AHEAD_MAX / 10;

/// Rounds from here on do not count: no save gets there, and none could exceed the very last one.
const ROUNDS_END: u64 = u64::MAX / 2;

/// Index of a witness in the list of its checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Witness(pub usize);

/// How many witnesses there are, and how many of them have to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    witnesses: usize,
    needed: usize,
}

impl Quorum {
    /// More than half of the witnesses; safe only if no witness lies.
    pub const fn majority(witnesses: usize) -> Self {
        Self {
            witnesses,
            needed: witnesses / 2 + 1,
        }
    }

    /// A quorum that stays safe when `parity` of the witnesses lie: half of witnesses and `parity` together,
    /// and one more. With `parity` of the witnesses lost it can still be reached if there are more than
    /// `2 * parity` data shards, and otherwise is not far off.
    pub const fn strong(witnesses: usize, parity: usize) -> Self {
        let half = usize::midpoint(witnesses, parity);
        // A checkpoint that was committed with fewer shards has fewer witnesses.
        let needed = if half < witnesses {
            half + 1
        } else {
            witnesses
        };
        Self { witnesses, needed }
    }

    /// How many witnesses there are.
    pub const fn witnesses(self) -> usize {
        self.witnesses
    }

    /// How many witnesses have to agree.
    pub const fn needed(self) -> usize {
        self.needed
    }

    /// How many witnesses may lie without harm: one less than any two quorums have in common.
    pub const fn may_lie(self) -> usize {
        (2 * self.needed).saturating_sub(self.witnesses + 1)
    }
}

/// What a witness answered in the present attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WitnessAnswer<V> {
    /// It promised the ballot; with the promise comes what it has accepted before.
    Promised(Option<(Ballot, V)>),
    /// It accepted what was proposed.
    Agreed,
    /// It has promised a higher ballot to another save.
    Outbid,
    /// It can't be asked, or does not answer.
    Failed,
}

/// State of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptState<V> {
    /// More answers are needed.
    Waiting,
    /// Enough witnesses have promised.
    Promised,
    /// Enough witnesses have accepted: this is the successor, for ever.
    Chosen(V),
    /// Too many witnesses have promised higher ballots; another attempt may succeed.
    Outbid,
    /// Nothing can be chosen now, because too few witnesses answer.
    TooFew {
        /// How many witnesses answer.
        answer: usize,
    },
}

/// What a proposer may propose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<V> {
    /// Any value: none was chosen with a lower ballot, and none can be.
    Free,
    /// Only this value: it may have been chosen.
    Bound(V),
}

/// One save that wants to be the successor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposer<V> {
    me: CheckpointId,
    quorum: Quorum,
    ballot: Ballot,
    /// The rounds that witnesses have promised, as far as they said so last.
    known: BTreeMap<Witness, u64>,
    heard: BTreeMap<Witness, WitnessAnswer<V>>,
    /// What this save has proposed with the present ballot.
    proposed: Option<V>,
    /// Values that need not be proposed again even if they were chosen.
    passed_over: BTreeSet<V>,
}

impl<V: Copy + Ord> Proposer<V> {
    /// The proposer of the save of checkpoint `me`; [`Self::begin`] begins its first attempt.
    pub const fn new(me: CheckpointId, quorum: Quorum) -> Self {
        Self {
            me,
            quorum,
            ballot: Ballot::NONE,
            known: BTreeMap::new(),
            heard: BTreeMap::new(),
            proposed: None,
            passed_over: BTreeSet::new(),
        }
    }

    /// Passes over a value of a void key: the checkpoint does not count even if it was chosen.
    pub fn pass_over(&mut self, value: V) {
        self.passed_over.insert(value);
    }

    /// Takes a value into account that was passed over.
    pub fn take_back(&mut self, value: V) {
        self.passed_over.remove(&value);
    }

    /// Begins an attempt: the caller asks all witnesses to promise the returned ballot. Answers to earlier
    /// attempts are ignored from here on.
    pub fn begin(&mut self) -> Ballot {
        self.ballot = Ballot {
            round: self.highest_round().saturating_add(1),
            proposer: self.me,
        };
        self.heard.clear();
        self.proposed = None;
        self.ballot
    }

    /// The highest round that counts, of this save and of other saves as the witnesses reported it. Lying
    /// witnesses could name the very last round, and a thief of a job key can raise some witnesses far above
    /// the others. So a round far ahead counts only if no quorum is at lower rounds.
    fn highest_round(&self) -> u64 {
        let own = self.ballot.round;
        let mut promised: Vec<u64> = self.known.values().copied().collect();
        let near = promised.iter().copied();
        let near = near.filter(|round| *round <= own.saturating_add(NEAR_ROUNDS));
        let near = near.max().unwrap_or(0);
        promised.sort_unstable();
        let enough = promised.get(self.quorum.needed.saturating_sub(1));
        let enough = enough.filter(|round| **round < ROUNDS_END);
        own.max(near).max(enough.copied().unwrap_or(0))
    }

    /// Whether as many witnesses as have to agree said what they have promised.
    pub fn knows_enough(&self) -> bool {
        self.known.len() >= self.quorum.needed
    }

    /// Whether a witness refused the present attempt because it is too far behind. It is led up to the
    /// ballot by bids in between.
    pub fn climbs(&self) -> bool {
        let mut heard = self.heard.iter();
        heard.any(|(witness, heard)| {
            let known = self.known.get(witness);
            *heard == WitnessAnswer::Outbid && known.is_some_and(|it| *it < self.ballot.round)
        })
    }

    /// The ballot of the present attempt.
    pub const fn ballot(&self) -> Ballot {
        self.ballot
    }

    /// What this save has proposed in the present attempt.
    pub const fn proposed(&self) -> Option<V> {
        self.proposed
    }

    /// What a witness answered in the present attempt.
    pub fn heard(&self, witness: Witness) -> Option<WitnessAnswer<V>> {
        self.heard.get(&witness).copied()
    }

    /// The round that a witness has promised, as far as it said so.
    pub fn bid(&self, witness: Witness) -> Option<u64> {
        self.known.get(&witness).copied()
    }

    /// A witness promised `ballot`, and stated what it has accepted before.
    pub fn promised(&mut self, witness: Witness, ballot: Ballot, accepted: Option<(Ballot, V)>) {
        // A promise that comes after the proposal does not count, since the proposal rests on the earlier
        // ones. A witness that promised this ballot can't have accepted anything with a higher one.
        let is_possible = accepted.is_none_or(|(at, _)| at <= ballot);
        if ballot == self.ballot && self.proposed.is_none() && self.is_witness(witness) {
            let heard = match is_possible {
                true => WitnessAnswer::Promised(accepted),
                false => WitnessAnswer::Failed,
            };
            self.heard.insert(witness, heard);
            self.known.insert(witness, ballot.round);
        }
    }

    /// A witness accepted the value that was proposed with `ballot`.
    pub fn agreed(&mut self, witness: Witness, ballot: Ballot) {
        if ballot == self.ballot && self.proposed.is_some() && self.is_witness(witness) {
            self.heard.insert(witness, WitnessAnswer::Agreed);
        }
    }

    /// A witness that was asked with `ballot` had promised a higher one, or one that is too far below.
    pub fn outbid(&mut self, witness: Witness, ballot: Ballot, higher: Ballot) {
        if ballot == self.ballot && self.is_witness(witness) {
            self.known.insert(witness, higher.round);
        }
        self.note(witness, ballot, WitnessAnswer::Outbid);
    }

    /// A witness that was asked with `ballot` does not answer.
    pub fn failed(&mut self, witness: Witness, ballot: Ballot) {
        if ballot == self.ballot {
            self.known.remove(&witness);
        }
        self.note(witness, ballot, WitnessAnswer::Failed);
    }

    fn note(&mut self, witness: Witness, ballot: Ballot, heard: WitnessAnswer<V>) {
        let has_agreed = self.heard.get(&witness) == Some(&WitnessAnswer::Agreed);
        if ballot == self.ballot && self.is_witness(witness) && !has_agreed {
            self.heard.insert(witness, heard);
        }
    }

    const fn is_witness(&self, witness: Witness) -> bool {
        witness.0 < self.quorum.witnesses
    }

    fn count(&self, is: impl Fn(&WitnessAnswer<V>) -> bool) -> usize {
        self.heard.values().filter(|heard| is(heard)).count()
    }

    /// Whether every witness has answered the last question of this attempt, or failed to.
    pub fn has_heard_all(&self) -> bool {
        let waits = self.proposed.is_some();
        let said =
            |heard: &WitnessAnswer<V>| !(waits && matches!(heard, WitnessAnswer::Promised(_)));
        self.count(said) == self.quorum.witnesses
    }

    /// The state of the attempt.
    pub fn state(&self) -> AttemptState<V> {
        let needed = self.quorum.needed;
        let failed = self.count(|heard| *heard == WitnessAnswer::Failed);
        let outbid = self.count(|heard| *heard == WitnessAnswer::Outbid);
        let done = match self.proposed {
            None => self.count(|heard| matches!(heard, WitnessAnswer::Promised(_))),
            Some(_) => self.count(|heard| *heard == WitnessAnswer::Agreed),
        };
        match self.proposed {
            None if done >= needed => AttemptState::Promised,
            Some(value) if done >= needed => AttemptState::Chosen(value),
            _ if self.quorum.witnesses - failed < needed => AttemptState::TooFew {
                answer: self.quorum.witnesses - failed,
            },
            _ if self.quorum.witnesses - failed - outbid < needed => AttemptState::Outbid,
            _ => AttemptState::Waiting,
        }
    }

    /// What may be proposed, once enough witnesses have promised; `None` before.
    ///
    /// If a value was chosen, a quorum accepted it. Of its members, some may be silent now, and some may lie.
    /// That leaves at least `needed - silent - may_lie`, which is `promises + 1 - needed`, promises that name
    /// the value. If several values have this many, only the one with the highest ballot can be the chosen
    /// one.
    ///
    /// A witness shows one value only. A save takes another one than the chosen one no more, but a thief of a
    /// job key may have had such a witness accept a value of its own later, which covers the chosen one. So a
    /// witness that shows a later value may have accepted every earlier one that others show.
    pub fn choice(&self) -> Option<Choice<V>> {
        if self.state() != AttemptState::Promised {
            return None;
        }
        let promises: Vec<Option<(Ballot, V)>> = self
            .heard
            .values()
            .filter_map(|heard| match heard {
                WitnessAnswer::Promised(accepted) => Some(*accepted),
                WitnessAnswer::Agreed | WitnessAnswer::Outbid | WitnessAnswer::Failed => None,
            })
            .collect();
        let least = promises.len() + 1 - self.quorum.needed;
        let accepted: Vec<(Ballot, V)> = promises.into_iter().flatten().collect();
        let mut first: BTreeMap<V, Ballot> = BTreeMap::new();
        for (at, value) in &accepted {
            let first = first.entry(*value).or_insert(*at);
            *first = (*first).min(*at);
        }
        let may_have = |value: &V, first: &Ballot| {
            let all = accepted.iter();
            all.filter(|(at, one)| one == value || at >= first).count() >= least
        };
        let may_be = first.iter().filter(|(value, first)| may_have(value, first));
        let may_be = may_be.map(|(value, _)| *value);
        let may_be: BTreeSet<V> = may_be.filter(|v| !self.passed_over.contains(v)).collect();
        let highest = accepted
            .iter()
            .filter(|(_, value)| may_be.contains(value))
            .max();
        Some(highest.map_or(Choice::Free, |(_, value)| Choice::Bound(*value)))
    }

    /// Proposes what was accepted before if it may have been chosen, and `mine` otherwise: the caller asks
    /// all witnesses to accept the returned value. `None` before enough have promised. Calls with the same
    /// ballot return the same value, whatever is answered in between.
    pub fn propose(&mut self, mine: V) -> Option<V> {
        if self.proposed.is_none() {
            self.proposed = Some(match self.choice()? {
                Choice::Free => mine,
                Choice::Bound(value) => value,
            });
        }
        self.proposed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(of: u8) -> CheckpointId {
        CheckpointId([of; 16])
    }

    fn ballot(round: u64, of: u8) -> Ballot {
        Ballot {
            round,
            proposer: id(of),
        }
    }

    fn proposer(of: u8) -> Proposer<u8> {
        let mut proposer = Proposer::new(id(of), Quorum::majority(5));
        proposer.begin();
        proposer
    }

    fn promise(proposer: &mut Proposer<u8>, from: &[(usize, Option<(Ballot, u8)>)]) {
        for (witness, accepted) in from {
            let ballot = proposer.ballot();
            proposer.promised(Witness(*witness), ballot, *accepted);
        }
    }

    #[test]
    fn quorums_are_those_of_the_guarantee() {
        let numbers = |quorum: Quorum| (quorum.needed(), quorum.may_lie());
        assert_eq!(numbers(Quorum::majority(5)), (3, 0));
        assert_eq!(numbers(Quorum::strong(5, 2)), (4, 2));
        assert_eq!(numbers(Quorum::majority(3)), (2, 0));
        assert_eq!(numbers(Quorum::strong(3, 1)), (3, 2));
        assert_eq!(numbers(Quorum::majority(1)), (1, 0));
        assert_eq!(numbers(Quorum::strong(1, 0)), (1, 0));
        assert_eq!(numbers(Quorum::majority(4)), (3, 1));
        for witnesses in 1..=64 {
            for parity in 0..=32 {
                let strong = Quorum::strong(witnesses, parity);
                let least = Quorum::majority(witnesses).needed();
                assert!((least..=witnesses).contains(&strong.needed()));
            }
        }
    }

    #[test]
    fn a_save_that_is_alone_is_chosen() {
        let mut alone = proposer(1);
        assert_eq!(alone.propose(7), None, "nobody has promised");
        promise(&mut alone, &[(0, None), (1, None)]);
        assert_eq!(alone.state(), AttemptState::Waiting);
        promise(&mut alone, &[(4, None)]);
        assert_eq!(alone.choice(), Some(Choice::Free));
        assert_eq!(alone.propose(7), Some(7));
        assert_eq!(alone.propose(8), Some(7), "one value with one ballot");
        let ballot = alone.ballot();
        for witness in [0, 1, 1, 9] {
            alone.agreed(Witness(witness), ballot);
            assert_eq!(alone.state(), AttemptState::Waiting);
        }
        alone.agreed(Witness(2), ballot);
        assert_eq!(alone.state(), AttemptState::Chosen(7));
    }

    #[test]
    fn a_value_is_proposed_only_if_it_may_have_been_chosen() {
        let other = Some((ballot(1, 0), 3));
        let bound = |promises: &[(usize, Option<(Ballot, u8)>)]| {
            let mut later = proposer(1);
            promise(&mut later, promises);
            later.choice().unwrap()
        };
        // One of three: the two silent ones may have accepted it, too.
        let one_of_three = [(0, other), (1, None), (2, None)];
        assert_eq!(bound(&one_of_three), Choice::Bound(3));
        // Two of five are no majority, and no witness is silent.
        let two_of_five = [(0, other), (1, other), (2, None), (3, None), (4, None)];
        assert_eq!(bound(&two_of_five), Choice::Free);
        let one_of_four = [(0, other), (1, None), (2, None), (3, None)];
        assert_eq!(bound(&one_of_four), Choice::Free);
        // If either of two values may have been chosen, the one with the higher ballot is proposed.
        let newer = Some((ballot(2, 8), 4));
        let mixed = [(0, other), (1, newer), (2, None)];
        let mut later = proposer(1);
        later.outbid(Witness(0), later.ballot(), ballot(5, 8));
        later.begin();
        promise(&mut later, &mixed);
        assert_eq!(later.choice(), Some(Choice::Bound(4)));
    }

    #[test]
    fn an_outbid_proposer_bids_more_and_one_with_too_few_answers_gives_up() {
        let mut late = proposer(1);
        let first = late.ballot();
        for witness in 0..2 {
            late.failed(Witness(witness), first);
        }
        late.outbid(Witness(2), first, ballot(7, 9));
        assert_eq!(late.state(), AttemptState::Outbid);
        let second = late.begin();
        assert!(second > ballot(7, 9));
        late.promised(Witness(3), first, None);
        assert_eq!(late.heard(Witness(3)), None, "an answer to the first");
        for witness in 0..3 {
            late.failed(Witness(witness), second);
        }
        assert_eq!(late.state(), AttemptState::TooFew { answer: 2 });
        assert!(!late.has_heard_all());
    }

    #[test]
    fn a_liar_neither_bids_without_end_nor_accepts_in_the_future() {
        let mut save = proposer(1);
        let first = save.ballot();
        save.outbid(Witness(0), first, ballot(u64::MAX, 9));
        save.promised(Witness(1), first, Some((ballot(9, 9), 4)));
        assert_eq!(save.heard(Witness(1)), Some(WitnessAnswer::Failed));
        let second = save.begin();
        assert_eq!(second.round, first.round + 1);
        // Rounds that are near count even if only one witness names them.
        save.outbid(Witness(0), second, ballot(second.round + NEAR_ROUNDS, 9));
        assert_eq!(save.begin().round, second.round + NEAR_ROUNDS + 1);
    }

    #[test]
    fn a_round_far_ahead_counts_only_if_no_quorum_is_below() {
        let mut save = proposer(1);
        let first = save.ballot();
        let far = ballot(1 << 20, 9);
        for witness in 0..2 {
            save.outbid(Witness(witness), first, far);
        }
        promise(&mut save, &[(2, None), (3, None)]);
        save.outbid(Witness(4), first, ballot(7, 9));
        let second = save.begin();
        assert_eq!(second.round, 8, "three of five are at 7 at most");
        for witness in 0..3 {
            save.outbid(Witness(witness), second, far);
        }
        promise(&mut save, &[(3, None), (4, None)]);
        let third = save.begin();
        assert_eq!(third.round, far.round + 1, "three of five are needed");
        // Two witnesses have to be led up to the others, and say where they are.
        for witness in 3..5 {
            save.outbid(Witness(witness), third, ballot(5_000, 1));
        }
        promise(&mut save, &[(0, None), (1, None)]);
        assert!(save.climbs());
        assert_eq!(save.begin().round, third.round + 1);
        assert!(!save.climbs());
        // No save could exceed the last round.
        let fourth = save.ballot();
        for witness in 0..5 {
            save.outbid(Witness(witness), fourth, ballot(u64::MAX, 9));
        }
        assert_eq!(save.begin().round, fourth.round + 1);
    }

    #[test]
    fn a_later_value_may_cover_an_earlier_one_that_was_chosen() {
        let mine = Some((ballot(2, 8), 3));
        let thiefs = Some((ballot(9, 9), 4));
        let late = || {
            let mut late = proposer(1);
            late.outbid(Witness(0), late.ballot(), ballot(90, 8));
            late.begin();
            late
        };
        // Three had accepted 3; then two of them accepted 4.
        let mut later = late();
        let covered = [(0, mine), (1, thiefs), (2, thiefs), (3, None), (4, None)];
        promise(&mut later, &covered);
        assert_eq!(later.choice(), Some(Choice::Bound(3)));
        // A value of a void key binds nobody.
        let mut later = late();
        promise(&mut later, &[(0, thiefs), (1, thiefs), (2, thiefs)]);
        assert_eq!(later.choice(), Some(Choice::Bound(4)));
        later.pass_over(4);
        assert_eq!(later.choice(), Some(Choice::Free));
        later.take_back(4);
        assert_eq!(later.choice(), Some(Choice::Bound(4)));
    }
}
