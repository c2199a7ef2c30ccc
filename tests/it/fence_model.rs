//! A model of `save --after`. Proposers and acceptors are the real ones. The network loses, delays,
//! reorders and repeats messages; saves die and are started again; witnesses may lie. A thief of a job key
//! may ask for anything until the owner makes the key void, of which each witness hears at a time of its own.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{Hash, Hasher};

use anyhow::{Result, ensure};
use ckpt_agent::core::fence::{AttemptState, Choice, Proposer, Quorum, Witness, WitnessAnswer};
use ckpt_store::core::fence::{Acceptor, Bidder, Outbid};
use codec::CheckpointId;
use codec::proposal::Ballot;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The value that a save proposes as the successor: the save's own number.
type Value = u8;

/// A question that was sent to every witness, and by whom. It may arrive at each witness at any time, more
/// than once, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Question {
    Promise(Bidder, Ballot),
    Accept(Bidder, Ballot, Value),
}

/// The stolen job key.
const THIEF: Bidder = Bidder::JobKey(1);

/// When all grants with lower serials than this are void, the stolen one is, and no other.
const VOID_BELOW: u64 = 2;

/// Values of the thief are from here on. They are stored nowhere, so no honest save proposes them again.
const THIEFS: Value = 210;

/// What the thief may ask for: a round that nobody could exceed; its own value with a ballot above the first
/// ones of the savers; and another one with the ballot of the first saver.
fn thiefs_questions() -> [Question; 3] {
    let at = |round, proposer| Ballot {
        round,
        proposer: id(proposer),
    };
    [
        Question::Promise(THIEF, at(u64::MAX, 255)),
        Question::Accept(THIEF, at(1, 255), THIEFS),
        Question::Accept(THIEF, at(1, 1), THIEFS + 1),
    ]
}

/// An answer of a witness that is on its way to a saver. Each has the ballot of the question first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Answer {
    Promised(Ballot, Option<(Ballot, Value)>),
    Agreed(Ballot),
    Outbid(Ballot, Ballot),
}

impl Answer {
    const fn to(&self) -> Ballot {
        match self {
            Self::Promised(to, _) | Self::Agreed(to) | Self::Outbid(to, _) => *to,
        }
    }
}

/// One machine that runs the job and saves.
#[derive(Clone, Debug)]
struct Saver {
    proposer: Proposer<Value>,
    me: Value,
    key: Bidder,
    /// How many further attempts the saver may begin.
    attempts: u8,
    /// How often the saver may still die.
    deaths: u8,
    /// The value that the saver believes to be chosen.
    chosen: Option<Value>,
}

#[derive(Clone, Debug)]
struct World {
    savers: Vec<Saver>,
    witnesses: Vec<Acceptor<Value>>,
    /// For each witness, whether it has heard that the thief's key is void.
    informed: Vec<bool>,
    asked: BTreeSet<Question>,
    /// For each witness, its answers that are on their way.
    answers: Vec<BTreeSet<Answer>>,
    /// For each witness, all that it ever accepted from honest savers.
    accepted: Vec<BTreeSet<(Ballot, Value)>>,
}

const fn id(of: Value) -> CheckpointId {
    CheckpointId([of; 16])
}

/// The size of a model.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    quorum: Quorum,
    savers: u8,
    attempts: u8,
    deaths: u8,
    /// Number of witnesses that forget at once what they answered.
    forgetful: usize,
    /// How many of [`thiefs_questions`] a thief of a job key asks; 0 if no key was stolen.
    thief: usize,
    /// Whether witnesses keep one promise and one acceptance only, whoever asked for them.
    flat: bool,
}

impl World {
    fn new(bounds: Bounds) -> Self {
        let saver = |number: u8| Saver {
            // A saver that dies gets the next number, so the numbers of savers are 10 apart.
            proposer: Proposer::new(id(1 + 10 * number), bounds.quorum),
            me: 1 + 10 * number,
            // The first one has the owner's key, the others have job keys that nobody stole.
            key: match number {
                0 => Bidder::Owner,
                _ => Bidder::JobKey(10 + u64::from(number)),
            },
            attempts: bounds.attempts,
            deaths: bounds.deaths,
            chosen: None,
        };
        let witnesses = bounds.quorum.witnesses();
        Self {
            savers: (0..bounds.savers).map(saver).collect(),
            witnesses: vec![Acceptor::new(); witnesses],
            informed: vec![false; witnesses],
            asked: thiefs_questions().into_iter().take(bounds.thief).collect(),
            answers: vec![BTreeSet::new(); witnesses],
            accepted: vec![BTreeSet::new(); witnesses],
        }
    }

    /// Every world that can follow this one in one step.
    fn next(&self, bounds: Bounds) -> Vec<Self> {
        let mut next = Vec::new();
        for at in 0..self.savers.len() {
            self.saver_acts(bounds, at, &mut next);
        }
        for at in 0..self.witnesses.len() {
            if bounds.thief > 0 && !self.informed[at] {
                let mut world = self.clone();
                world.informed[at] = true;
                world.witnesses[at] = world.witnesses[at].standing(VOID_BELOW);
                next.push(world);
            }
            for question in &self.asked {
                next.extend(self.after_question(bounds, at, *question));
            }
            for answer in &self.answers[at] {
                let mut world = self.clone();
                world.answers[at].remove(answer);
                world.hears(at, *answer);
                next.push(world);
            }
        }
        next
    }

    fn saver_acts(&self, bounds: Bounds, at: usize, next: &mut Vec<Self>) {
        let saver = &self.savers[at];
        let state = saver.proposer.state();
        if saver.attempts > 0 && state != AttemptState::Promised {
            // An attempt may begin at any time: a saver does not wait for messages that may be lost.
            let mut world = self.clone();
            world.begins(at);
            next.push(world);
        }
        let is_thiefs = matches!(saver.proposer.choice(), Some(Choice::Bound(THIEFS..)));
        if state == AttemptState::Promised && !is_thiefs {
            let mut world = self.clone();
            world.proposes(at);
            next.push(world);
        }
        let has_begun = saver.proposer.ballot() != Ballot::NONE;
        if saver.deaths > 0 && has_begun {
            let mut world = self.clone();
            world.dies(bounds, at);
            next.push(world);
        }
    }

    fn begins(&mut self, at: usize) {
        let saver = &mut self.savers[at];
        saver.attempts -= 1;
        saver.chosen = None;
        let ballot = saver.proposer.begin();
        self.asked.insert(Question::Promise(saver.key, ballot));
        self.drop_late();
    }

    fn proposes(&mut self, at: usize) {
        let saver = &mut self.savers[at];
        if let Some(value) = saver.proposer.propose(saver.me) {
            let ballot = saver.proposer.ballot();
            self.asked
                .insert(Question::Accept(saver.key, ballot, value));
        }
        self.drop_late();
    }

    /// The saver dies, loses all that it knew, and is started again as another save.
    fn dies(&mut self, bounds: Bounds, at: usize) {
        let saver = &mut self.savers[at];
        saver.deaths -= 1;
        saver.chosen = None;
        saver.me += 1;
        saver.attempts = bounds.attempts;
        saver.proposer = Proposer::new(id(saver.me), bounds.quorum);
        self.drop_late();
    }

    /// Removes answers that change nothing any more: those to attempts that are over, and promises to an
    /// attempt that has proposed.
    fn drop_late(&mut self) {
        let open: Vec<(Ballot, bool)> = self
            .savers
            .iter()
            .map(|saver| (saver.proposer.ballot(), saver.proposer.proposed().is_some()))
            .collect();
        for answers in &mut self.answers {
            answers.retain(|answer| {
                let open = open.iter().find(|(ballot, _)| *ballot == answer.to());
                let is_promise = matches!(answer, Answer::Promised(..));
                open.is_some_and(|(_, proposed)| !(is_promise && *proposed))
            });
        }
    }

    /// A question arrives at a witness.
    fn arrives(&mut self, at: usize, question: Question) {
        let (after, answer) = ask_witness(&self.witnesses[at], question);
        self.witnesses[at] = after;
        self.answers[at].insert(answer);
        self.drop_late();
    }

    /// The world after a question arrived at a witness; `None` if that is this world.
    ///
    /// To have fewer worlds, steps that don't change what can happen are left out. A saver hears at once that
    /// a witness agreed, because it may act as if it had not heard. A saver without another attempt does not
    /// hear that it is outbid. No saver hears a second time what it knows.
    fn after_question(&self, bounds: Bounds, at: usize, question: Question) -> Option<Self> {
        let before = &self.witnesses[at];
        if question.is_thiefs() && self.informed[at] {
            return None;
        }
        let (mut after, answer) = ask_witness(before, question);
        if bounds.flat {
            after = flattened(&after);
        }
        let after = if at < bounds.forgetful {
            before.clone()
        } else {
            after
        };
        let accepted = match (answer, question) {
            (Answer::Agreed(ballot), Question::Accept(by, _, value)) if by != THIEF => {
                Some((ballot, value))
            }
            _ => None,
        };
        let accepted = accepted.filter(|one| !self.accepted[at].contains(one));
        let matters = !question.is_thiefs() && self.matters(at, &answer);
        if after == *before && accepted.is_none() && !matters {
            return None;
        }
        let mut world = self.clone();
        world.witnesses[at] = after;
        world.accepted[at].extend(accepted);
        match answer {
            Answer::Agreed(_) if matters => world.hears(at, answer),
            _ if matters => {
                world.answers[at].insert(answer);
            }
            _ => {}
        }
        Some(world)
    }

    /// Whether an answer changes what a saver knows.
    fn matters(&self, at: usize, answer: &Answer) -> bool {
        let mut savers = self.savers.iter();
        let Some(saver) = savers.find(|saver| saver.proposer.ballot() == answer.to()) else {
            return false;
        };
        let heard = saver.proposer.heard(Witness(at));
        let has_proposed = saver.proposer.proposed().is_some();
        let is_on_its_way = self.answers[at].contains(answer);
        match answer {
            Answer::Promised(_, accepted) => {
                !has_proposed && heard != Some(WitnessAnswer::Promised(*accepted)) && !is_on_its_way
            }
            Answer::Agreed(_) => has_proposed && heard != Some(WitnessAnswer::Agreed),
            Answer::Outbid(..) => {
                saver.attempts > 0 && heard != Some(WitnessAnswer::Outbid) && !is_on_its_way
            }
        }
    }

    /// All values that a quorum of witnesses has accepted or that a saver believes to be chosen.
    fn decided(&self, bounds: Bounds) -> BTreeSet<Value> {
        let all: BTreeSet<&(Ballot, Value)> = self.accepted.iter().flatten().collect();
        let by = |one: &(Ballot, Value)| self.accepted.iter().filter(|it| it.contains(one)).count();
        let enough = all
            .into_iter()
            .filter(|one| by(one) >= bounds.quorum.needed());
        enough
            .map(|(_, value)| *value)
            .chain(self.chosen())
            .collect()
    }

    /// An answer of witness `at` arrives at the saver to whose ballot it belongs.
    fn hears(&mut self, at: usize, answer: Answer) {
        let witness = Witness(at);
        for saver in &mut self.savers {
            if saver.proposer.ballot() != answer.to() || saver.chosen.is_some() {
                continue;
            }
            match answer {
                Answer::Promised(to, accepted) => saver.proposer.promised(witness, to, accepted),
                Answer::Agreed(to) => saver.proposer.agreed(witness, to),
                Answer::Outbid(to, higher) => saver.proposer.outbid(witness, to, higher),
            }
            if let AttemptState::Chosen(value) = saver.proposer.state() {
                saver.chosen = Some(value);
            }
        }
    }

    /// All values that a saver believes to be chosen.
    fn chosen(&self) -> BTreeSet<Value> {
        self.savers
            .iter()
            .filter_map(|saver| saver.chosen)
            .collect()
    }

    /// The value that is chosen if a new save begins now and all witnesses answer it.
    fn goes_on(&self, bounds: Bounds) -> Option<Value> {
        const LATER: Value = 200;
        let mut witnesses = self.witnesses.clone();
        if bounds.thief > 0 {
            // By then all have heard that the thief's key is void.
            witnesses = witnesses
                .iter()
                .map(|one| one.standing(VOID_BELOW))
                .collect();
        }
        let mut proposer = Proposer::new(id(LATER), bounds.quorum);
        for _ in 0..4 {
            let ballot = proposer.begin();
            for (at, witness) in witnesses.iter_mut().enumerate() {
                match witness.promise(Bidder::Owner, ballot) {
                    Ok(after) => {
                        proposer.promised(Witness(at), ballot, witness.accepted());
                        *witness = after;
                    }
                    Err(Outbid(higher)) => proposer.outbid(Witness(at), ballot, higher),
                }
            }
            let Some(value) = proposer.propose(LATER) else {
                continue;
            };
            for (at, witness) in witnesses.iter_mut().enumerate() {
                if let Ok(after) = witness.accept(Bidder::Owner, ballot, value) {
                    *witness = after;
                    proposer.agreed(Witness(at), ballot);
                }
            }
            if let AttemptState::Chosen(value) = proposer.state() {
                return Some(value);
            }
        }
        None
    }

    /// A hash that is equal for worlds that differ only in the order of witnesses. Other worlds have the same
    /// hash with probability 2^-64.
    fn fingerprint(&self, bounds: Bounds) -> u64 {
        let mut columns: Vec<u64> = (0..self.witnesses.len())
            .map(|at| {
                let heard = |saver: &Saver| -> Option<WitnessAnswer<Value>> {
                    saver.proposer.heard(Witness(at))
                };
                let bids = |saver: &Saver| saver.proposer.bid(Witness(at));
                let heard: Vec<_> = self.savers.iter().map(|s| (heard(s), bids(s))).collect();
                let is_forgetful = at < bounds.forgetful;
                let said = (&self.witnesses[at], &self.answers[at], &self.accepted[at]);
                hash(&(said, heard, is_forgetful, self.informed[at]))
            })
            .collect();
        columns.sort_unstable();
        let savers: Vec<_> = self
            .savers
            .iter()
            .map(|saver| {
                let proposer = &saver.proposer;
                let said = (proposer.ballot(), proposer.proposed());
                (said, saver.me, saver.attempts, saver.deaths, saver.chosen)
            })
            .collect();
        hash(&(columns, savers, &self.asked))
    }
}

impl Question {
    fn is_thiefs(self) -> bool {
        let (Self::Promise(by, _) | Self::Accept(by, _, _)) = self;
        by == THIEF
    }
}

/// The state of a witness after a question, and its answer.
fn ask_witness(before: &Acceptor<Value>, question: Question) -> (Acceptor<Value>, Answer) {
    let outbid = |asked, Outbid(promised)| (before.clone(), Answer::Outbid(asked, promised));
    match question {
        Question::Promise(by, ballot) => match before.promise(by, ballot) {
            Ok(after) => (after, Answer::Promised(ballot, before.accepted())),
            Err(cause) => outbid(ballot, cause),
        },
        Question::Accept(by, ballot, value) => match before.accept(by, ballot, value) {
            Ok(after) => (after, Answer::Agreed(ballot)),
            Err(cause) => outbid(ballot, cause),
        },
    }
}

/// What is left of an acceptor that keeps the highest promise and the highest acceptance only.
fn flattened(acceptor: &Acceptor<Value>) -> Acceptor<Value> {
    let promised = acceptor.promises().iter().take(1).copied().collect();
    let accepted = acceptor.acceptances().iter().take(1).copied().collect();
    Acceptor::restored(promised, accepted).unwrap_or_default()
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// What a search visited.
#[derive(Debug, Default)]
struct Visited {
    states: usize,
    /// Number of those states in which a value was chosen.
    chosen: usize,
}

/// Visits every world that can follow from the first one. Fails if two values are chosen in one of them,
/// or if a later save can't go on with the chosen one.
fn visit_all(bounds: Bounds) -> Result<Visited> {
    let first = World::new(bounds);
    let mut known: HashSet<u64> = HashSet::from([first.fingerprint(bounds)]);
    let mut open = VecDeque::from([first]);
    let mut seen = Visited::default();
    while let Some(world) = open.pop_back() {
        seen.states += 1;
        let chosen = world.decided(bounds);
        ensure!(chosen.len() <= 1, "two are chosen: {world:#?}");
        seen.chosen += chosen.len();
        if bounds.forgetful == 0 {
            let later = world.goes_on(bounds);
            ensure!(later.is_some(), "nobody can go on from here: {world:#?}");
            let agrees = chosen.iter().all(|chosen| later == Some(*chosen));
            ensure!(agrees, "a later save has {later:?} chosen: {world:#?}");
        }
        for next in world.next(bounds) {
            if known.insert(next.fingerprint(bounds)) {
                open.push_back(next);
            }
        }
    }
    Ok(seen)
}

fn visit(name: &str, bounds: Bounds) -> Result<()> {
    let began = std::time::Instant::now();
    let seen = visit_all(bounds)?;
    println!(
        "{name}: all {} states visited in {:.1} s, in {} of them a successor is chosen",
        seen.states,
        began.elapsed().as_secs_f64(),
        seen.chosen
    );
    ensure!(seen.chosen > 0, "nothing was ever chosen: {seen:?}");
    Ok(())
}

fn bounds(witnesses: usize, deaths: u8) -> Bounds {
    Bounds {
        quorum: Quorum::majority(witnesses),
        savers: 2,
        attempts: 1,
        deaths,
        forgetful: 0,
        thief: 0,
        flat: false,
    }
}

/// Each saver dies once at any step and is started again. The death of a witness needs no step of its own:
/// a witness has its answers on its disk, so its death only loses messages, which the network may lose.
#[test]
fn with_three_witnesses_two_savers_and_a_death_each_never_two_are_chosen() -> Result<()> {
    visit("3 witnesses, 1 death each", bounds(3, 1))
}

#[test]
fn with_five_witnesses_and_two_savers_never_two_are_chosen() -> Result<()> {
    visit("5 witnesses, no death", bounds(5, 0))
}

/// This takes minutes and gigabytes of memory.
#[test]
#[ignore = "takes minutes"]
fn with_five_witnesses_two_savers_and_a_death_each_never_two_are_chosen() -> Result<()> {
    visit("5 witnesses, 1 death each", bounds(5, 1))
}

/// Each saver has two attempts, so that it can bid more after it was outbid.
#[test]
#[ignore = "takes minutes"]
fn with_three_witnesses_and_savers_that_bid_again_never_two_are_chosen() -> Result<()> {
    let bounds = Bounds {
        attempts: 2,
        ..bounds(3, 0)
    };
    visit("3 witnesses, 2 attempts each", bounds)
}

#[test]
fn the_search_finds_two_where_a_witness_forgets_what_it_said() {
    let bounds = Bounds {
        forgetful: 1,
        ..bounds(3, 0)
    };
    let found = visit_all(bounds).map(|seen| seen.states);
    assert!(found.is_err(), "{found:?}");
}

/// The thief has witnesses promise and accept what it likes, until each of them has heard that its key is
/// void. Then the next save goes on with what honest savers have chosen, or with its own checkpoint.
#[test]
fn with_a_thief_of_a_job_key_never_two_of_others_are_chosen_and_saves_go_on_once_it_is_void()
-> Result<()> {
    let bounds = Bounds {
        thief: 2,
        ..bounds(3, 0)
    };
    visit("3 witnesses and a thief with one proposal", bounds)
}

#[test]
#[ignore = "takes minutes"]
fn with_a_thief_that_proposes_twice_never_two_of_others_are_chosen() -> Result<()> {
    let bounds = Bounds {
        thief: 3,
        ..bounds(3, 0)
    };
    visit("3 witnesses and a thief with two proposals", bounds)
}

#[test]
fn the_search_finds_two_where_a_thiefs_acceptance_replaces_an_honest_one() {
    let bounds = Bounds {
        thief: 2,
        flat: true,
        ..bounds(3, 0)
    };
    let found = visit_all(bounds).map(|seen| seen.states);
    let why = found.map_err(|cause| cause.to_string());
    let is_it = |why: &str| why.starts_with("two are chosen") || why.starts_with("a later save");
    assert!(why.as_ref().is_err_and(|why| is_it(why)), "{why:?}");
}

/// The answer of a witness that lies. It can show any proposal that was ever made, which others may have
/// repeated to it, but none that was not made: proposals are signed.
fn false_answer(random: &mut StdRng, question: Question, proposals: &[(Ballot, Value)]) -> Answer {
    match question {
        Question::Promise(_, ballot) => {
            let known: Vec<_> = proposals.iter().filter(|(at, _)| *at <= ballot).collect();
            let shown = match random.random_range(0..3) {
                0 => None,
                _ if known.is_empty() => None,
                _ => Some(*known[random.random_range(0..known.len())]),
            };
            Answer::Promised(ballot, shown)
        }
        Question::Accept(_, ballot, _) => Answer::Agreed(ballot),
    }
}

/// Plays one random schedule in which the first `liars` witnesses lie. Returns whether two values were
/// chosen.
fn chooses_two(random: &mut StdRng, quorum: Quorum, liars: usize) -> bool {
    let bounds = Bounds {
        quorum,
        savers: 2 + random.random_range(0..2),
        attempts: 3,
        deaths: 1,
        forgetful: 0,
        thief: 0,
        flat: false,
    };
    let mut world = World::new(bounds);
    for _ in 0..random.random_range(40..200) {
        let at = random.random_range(0..world.savers.len());
        match random.random_range(0..10) {
            0 => act(&mut world, random, bounds, at),
            1 if random.random_range(0..8) == 0 => {
                let saver = &world.savers[at];
                if saver.deaths > 0 && saver.chosen.is_none() {
                    world.dies(bounds, at);
                }
            }
            1..=5 => ask(&mut world, random, bounds, liars),
            _ => {
                let witness = random.random_range(0..quorum.witnesses());
                let answers = &mut world.answers[witness];
                let which = random.random_range(0..answers.len().max(1));
                let Some(answer) = answers.iter().nth(which).copied() else {
                    continue;
                };
                world.hears(witness, answer);
            }
        }
        if world.chosen().len() > 1 {
            return true;
        }
    }
    false
}

fn act(world: &mut World, random: &mut StdRng, bounds: Bounds, at: usize) {
    let saver = &world.savers[at];
    if saver.chosen.is_some() {
        return;
    }
    if saver.proposer.state() == AttemptState::Promised {
        world.proposes(at);
    } else if saver.attempts > 0
        && (saver.proposer.ballot() == Ballot::NONE || random.random_range(0..6) == 0)
    {
        world.begins(at);
    } else if saver.attempts == 0 && saver.deaths > 0 && random.random_range(0..6) == 0 {
        world.dies(bounds, at);
    }
}

/// One of all questions that were sent arrives at a random witness.
fn ask(world: &mut World, random: &mut StdRng, bounds: Bounds, liars: usize) {
    if world.asked.is_empty() {
        return;
    }
    let which = random.random_range(0..world.asked.len());
    let Some(question) = world.asked.iter().nth(which).copied() else {
        return;
    };
    let witness = random.random_range(0..bounds.quorum.witnesses());
    if witness >= liars {
        world.arrives(witness, question);
        return;
    }
    let proposals: Vec<(Ballot, Value)> = world
        .asked
        .iter()
        .filter_map(|asked| match asked {
            Question::Accept(_, ballot, value) => Some((*ballot, *value)),
            Question::Promise(..) => None,
        })
        .collect();
    let answer = false_answer(random, question, &proposals);
    world.answers[witness].insert(answer);
}

/// The number of the first of `schedules` random schedules in which two values were chosen.
fn first_that_chooses_two(seed: u64, schedules: u32, quorum: Quorum, liars: usize) -> Option<u32> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..schedules).find(|_| chooses_two(&mut random, quorum, liars))
}

#[test]
fn as_many_liars_as_the_guarantee_allows_never_have_two_chosen_and_one_more_can() {
    const SCHEDULES: u32 = 100_000;
    let quorums = [
        Quorum::strong(5, 2),
        Quorum::majority(5),
        Quorum::majority(4),
        Quorum::strong(3, 1),
    ];
    for (seed, quorum) in quorums.into_iter().enumerate() {
        let seed = seed as u64;
        let within = first_that_chooses_two(seed, SCHEDULES / 4, quorum, quorum.may_lie());
        assert_eq!(within, None, "{quorum:?}");
        let beyond = first_that_chooses_two(seed, SCHEDULES / 4, quorum, quorum.may_lie() + 1);
        println!(
            "{} of {} agree, {} lie: none of {} schedules has two chosen; {} lie: {beyond:?} does",
            quorum.needed(),
            quorum.witnesses(),
            quorum.may_lie(),
            SCHEDULES / 4,
            quorum.may_lie() + 1,
        );
        assert!(beyond.is_some(), "the test can't fail: {quorum:?}");
    }
}
