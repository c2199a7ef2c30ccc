//! `save --after` in a model: the real proposers and acceptors, a network that loses, delays, reorders and
//! repeats messages, saves that die and are begun again, and witnesses that lie.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{Hash, Hasher};

use anyhow::{Result, ensure};
use ckpt_agent::core::fence::{Heard, Proposer, Quorum, Standing, Witness};
use ckpt_store::core::fence::{Acceptor, Outbid};
use codec::CheckpointId;
use codec::proposal::Ballot;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What a save wants to be chosen: its own number.
type Value = u8;

/// A question, as it was sent to every witness. It may arrive at any of them at any time, more than once
/// or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Question {
    Promise(Ballot),
    Accept(Ballot, Value),
}

/// What a witness answered, until it arrives or is lost.
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

/// One machine that runs the job, and what it may still do.
#[derive(Clone, Debug)]
struct Saver {
    proposer: Proposer<Value>,
    me: Value,
    /// Attempts that it may still begin.
    attempts: u8,
    /// Times that it may still die.
    deaths: u8,
    /// What it takes for chosen.
    chosen: Option<Value>,
}

#[derive(Clone, Debug)]
struct World {
    savers: Vec<Saver>,
    witnesses: Vec<Acceptor<Value>>,
    asked: BTreeSet<Question>,
    /// On their way from each witness.
    answers: Vec<BTreeSet<Answer>>,
    /// What each witness ever accepted.
    accepted: Vec<BTreeSet<(Ballot, Value)>>,
}

const fn id(of: Value) -> CheckpointId {
    CheckpointId([of; 16])
}

/// What savers may do.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    quorum: Quorum,
    savers: u8,
    attempts: u8,
    deaths: u8,
    /// Witnesses that forget at once what they said.
    forgetful: usize,
}

impl World {
    fn new(bounds: Bounds) -> Self {
        let saver = |number: u8| Saver {
            // Numbers of lives differ between savers.
            proposer: Proposer::new(id(1 + 10 * number), bounds.quorum),
            me: 1 + 10 * number,
            attempts: bounds.attempts,
            deaths: bounds.deaths,
            chosen: None,
        };
        let witnesses = bounds.quorum.witnesses();
        Self {
            savers: (0..bounds.savers).map(saver).collect(),
            witnesses: vec![Acceptor::new(); witnesses],
            asked: BTreeSet::new(),
            answers: vec![BTreeSet::new(); witnesses],
            accepted: vec![BTreeSet::new(); witnesses],
        }
    }

    /// Every world that can follow this one at once.
    fn next(&self, bounds: Bounds) -> Vec<Self> {
        let mut next = Vec::new();
        for at in 0..self.savers.len() {
            self.saver_acts(bounds, at, &mut next);
        }
        for at in 0..self.witnesses.len() {
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
        let standing = saver.proposer.standing();
        if saver.attempts > 0 && standing != Standing::Promised {
            // At any time: it does not wait for what may be lost.
            let mut world = self.clone();
            world.begins(at);
            next.push(world);
        }
        if standing == Standing::Promised {
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
        self.asked.insert(Question::Promise(ballot));
        self.drop_late();
    }

    fn proposes(&mut self, at: usize) {
        let saver = &mut self.savers[at];
        if let Some(value) = saver.proposer.propose(saver.me) {
            let ballot = saver.proposer.ballot();
            self.asked.insert(Question::Accept(ballot, value));
        }
        self.drop_late();
    }

    /// It dies with all that it knew, and is begun again as another save.
    fn dies(&mut self, bounds: Bounds, at: usize) {
        let saver = &mut self.savers[at];
        saver.deaths -= 1;
        saver.chosen = None;
        saver.me += 1;
        saver.attempts = bounds.attempts;
        saver.proposer = Proposer::new(id(saver.me), bounds.quorum);
        self.drop_late();
    }

    /// Answers to attempts that are over change nothing any more, and neither do promises once it is
    /// proposed.
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

    /// A witness is asked.
    fn arrives(&mut self, at: usize, question: Question) {
        let (after, answer) = ask_witness(self.witnesses[at], question);
        self.witnesses[at] = after;
        self.answers[at].insert(answer);
        self.drop_late();
    }

    /// The world in which a witness was asked; `None` when it is this one. What does not change what can
    /// come about is left out, so that there are fewer: a saver hears at once that a witness agreed, as it
    /// goes on as if it had not; one that begins no other attempt does not hear that it is outbid; and
    /// nobody hears twice what he knows.
    fn after_question(&self, bounds: Bounds, at: usize, question: Question) -> Option<Self> {
        let before = self.witnesses[at];
        let (after, answer) = ask_witness(before, question);
        let after = if at < bounds.forgetful { before } else { after };
        let accepted = match (answer, question) {
            (Answer::Agreed(ballot), Question::Accept(_, value)) => Some((ballot, value)),
            _ => None,
        };
        let accepted = accepted.filter(|one| !self.accepted[at].contains(one));
        let matters = self.matters(at, &answer);
        if after == before && accepted.is_none() && !matters {
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
                !has_proposed && heard != Some(Heard::Promised(*accepted)) && !is_on_its_way
            }
            Answer::Agreed(_) => has_proposed && heard != Some(Heard::Agreed),
            Answer::Outbid(..) => {
                saver.attempts > 0 && heard != Some(Heard::Outbid) && !is_on_its_way
            }
        }
    }

    /// What a quorum of witnesses has accepted, whoever knows of it.
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

    /// A saver hears an answer.
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
            if let Standing::Chosen(value) = saver.proposer.standing() {
                saver.chosen = Some(value);
            }
        }
    }

    /// What any saver takes for chosen.
    fn chosen(&self) -> BTreeSet<Value> {
        self.savers
            .iter()
            .filter_map(|saver| saver.chosen)
            .collect()
    }

    /// A save that begins now, and whom all witnesses answer: what is chosen then.
    fn goes_on(&self, bounds: Bounds) -> Option<Value> {
        const LATER: Value = 200;
        let mut witnesses = self.witnesses.clone();
        let mut proposer = Proposer::new(id(LATER), bounds.quorum);
        for _ in 0..4 {
            let ballot = proposer.begin();
            for (at, witness) in witnesses.iter_mut().enumerate() {
                match witness.promise(ballot) {
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
                if let Ok(after) = witness.accept(ballot, value) {
                    *witness = after;
                    proposer.agreed(Witness(at), ballot);
                }
            }
            if let Standing::Chosen(value) = proposer.standing() {
                return Some(value);
            }
        }
        None
    }

    /// Equal for worlds that differ only in which witness is which; of others in one case of 2^64.
    fn fingerprint(&self, bounds: Bounds) -> u64 {
        let mut columns: Vec<u64> = (0..self.witnesses.len())
            .map(|at| {
                let heard =
                    |saver: &Saver| -> Option<Heard<Value>> { saver.proposer.heard(Witness(at)) };
                let bids = |saver: &Saver| saver.proposer.bid(Witness(at));
                let heard: Vec<_> = self.savers.iter().map(|s| (heard(s), bids(s))).collect();
                let is_forgetful = at < bounds.forgetful;
                let said = (self.witnesses[at], &self.answers[at], &self.accepted[at]);
                hash(&(said, heard, is_forgetful))
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

/// What a witness is after a question, and what it answers.
fn ask_witness(before: Acceptor<Value>, question: Question) -> (Acceptor<Value>, Answer) {
    let outbid = |asked, Outbid(higher)| (before, Answer::Outbid(asked, higher));
    match question {
        Question::Promise(ballot) => match before.promise(ballot) {
            Ok(after) => (after, Answer::Promised(ballot, before.accepted())),
            Err(cause) => outbid(ballot, cause),
        },
        Question::Accept(ballot, value) => match before.accept(ballot, value) {
            Ok(after) => (after, Answer::Agreed(ballot)),
            Err(cause) => outbid(ballot, cause),
        },
    }
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// What a search has seen.
#[derive(Debug, Default)]
struct Seen {
    states: usize,
    /// Of these, the ones in which somebody was chosen.
    chosen: usize,
}

/// Visits every world that can come about.
fn visit_all(bounds: Bounds) -> Result<Seen> {
    let first = World::new(bounds);
    let mut known: HashSet<u64> = HashSet::from([first.fingerprint(bounds)]);
    let mut open = VecDeque::from([first]);
    let mut seen = Seen::default();
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
    }
}

/// Each saver dies once at any step and is begun again; each witness may die at any step, which loses what
/// was on its way to and from it, as what it has answered is on its disk.
#[test]
fn with_three_witnesses_two_savers_and_a_death_each_never_two_are_chosen() -> Result<()> {
    visit("3 witnesses, 1 death each", bounds(3, 1))
}

#[test]
fn with_five_witnesses_and_two_savers_never_two_are_chosen() -> Result<()> {
    visit("5 witnesses, no death", bounds(5, 0))
}

/// Takes minutes and gigabytes.
#[test]
#[ignore = "takes minutes"]
fn with_five_witnesses_two_savers_and_a_death_each_never_two_are_chosen() -> Result<()> {
    visit("5 witnesses, 1 death each", bounds(5, 1))
}

/// Savers that bid more when others did: two attempts each.
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

/// What a witness does that lies. It knows all that was ever proposed to it, as others may have repeated
/// that to it, too; it can't sign.
fn lies(random: &mut StdRng, question: Question, proposals: &[(Ballot, Value)]) -> Answer {
    match question {
        Question::Promise(ballot) => {
            let known: Vec<_> = proposals.iter().filter(|(at, _)| *at <= ballot).collect();
            let shown = match random.random_range(0..3) {
                0 => None,
                _ if known.is_empty() => None,
                _ => Some(*known[random.random_range(0..known.len())]),
            };
            Answer::Promised(ballot, shown)
        }
        Question::Accept(ballot, _) => Answer::Agreed(ballot),
    }
}

/// One schedule drawn at random, with witnesses that lie; whether two were chosen.
fn plays_out(random: &mut StdRng, quorum: Quorum, liars: usize) -> bool {
    let bounds = Bounds {
        quorum,
        savers: 2 + random.random_range(0..2),
        attempts: 3,
        deaths: 1,
        forgetful: 0,
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
    if saver.proposer.standing() == Standing::Promised {
        world.proposes(at);
    } else if saver.attempts > 0
        && (saver.proposer.ballot() == Ballot::NONE || random.random_range(0..6) == 0)
    {
        world.begins(at);
    } else if saver.attempts == 0 && saver.deaths > 0 && random.random_range(0..6) == 0 {
        world.dies(bounds, at);
    }
}

/// A question that was ever sent arrives somewhere.
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
            Question::Accept(ballot, value) => Some((*ballot, *value)),
            Question::Promise(_) => None,
        })
        .collect();
    let answer = lies(random, question, &proposals);
    world.answers[witness].insert(answer);
}

/// The first of so many schedules in which two were chosen.
fn play(seed: u64, schedules: u32, quorum: Quorum, liars: usize) -> Option<u32> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..schedules).find(|_| plays_out(&mut random, quorum, liars))
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
        let within = play(seed, SCHEDULES / 4, quorum, quorum.may_lie());
        assert_eq!(within, None, "{quorum:?}");
        let beyond = play(seed, SCHEDULES / 4, quorum, quorum.may_lie() + 1);
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
