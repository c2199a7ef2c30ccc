//! A simulated grid, whose members go home at night: what silence allows, how versions are numbered and what
//! `--keep` removes, by the client's real cores. Left out: bases and leases, the transfer of bytes, and how long
//! hosts are waited for. Registries, cards and notices are sets that pass between members once an hour, and a
//! registry is reinstalled only while an honest member that knows the others is there.
//!
//! No acknowledged version is reported as absent or lost, or deleted, while as many of its shards as it has data
//! shards are on honest members that may return; unless newer versions that follow it are kept in its place.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ckpt_agent::core::gather::silence::{GoesOn, Remembered, Silence, Unshown};
use ckpt_agent::core::knowledge::{
    Contact, Knowledge, Missed, Named, Observation, Sighting, SightingDetails,
};
use ckpt_agent::core::retention::{Checkpoint, Contents, Reach, plan};
use codec::notice::{Intervals, Stamp, Words};
use codec::{CheckpointId, JobTag, ManifestHash, OwnerId, Version};
use protocol::address::Address;
use protocol::grid::GridHost;
use protocol::identity::HostId;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

const HOURS: u64 = 24 * 14;
const DATA: usize = 3;
const SHARDS: usize = 5;
const LIARS_MAX: usize = 2;
const KEEP: usize = 2;
/// When a schedule begins, Unix seconds.
const BEGIN: u64 = 1_800_000_000;

type Member = usize;

/// A version that was acknowledged.
#[derive(Clone, Debug)]
struct Saved {
    number: Version,
    stamp: Stamp,
    hash: ManifestHash,
    /// The first version of the work that it goes on with.
    begun_with: ManifestHash,
    /// The first version of its line, as the client labels it.
    line: Option<Version>,
}

/// When a member is there.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// By day on weekdays.
    Office,
    /// Mostly, with outages.
    Server,
    /// It comes and goes.
    Volunteer,
}

impl Habit {
    fn is_there(self, hour: u64, was: bool, random: &mut SmallRng) -> bool {
        match self {
            Self::Office => (8..18).contains(&(hour % 24)) && hour / 24 % 7 < 5,
            Self::Server => random.random_bool(if was { 0.98 } else { 0.2 }),
            Self::Volunteer => random.random_bool(if was { 0.8 } else { 0.15 }),
        }
    }
}

/// One registry: the members that it knows.
type Registry = BTreeSet<Member>;

/// The job's tag.
const JOB: JobTag = JobTag([4; 32]);

fn id(member: Member) -> HostId {
    HostId(OwnerId([member as u8; 32]))
}

fn member(id: HostId) -> Member {
    usize::from(id.0.0[0])
}

fn host(member: Member) -> GridHost {
    GridHost {
        name: format!("m{member}"),
        addr: Address::Ip(([10, 0, 0, member as u8], 7600).into()),
        id: id(member),
        site: None,
        owner: None,
    }
}

#[derive(Debug)]
struct World {
    random: SmallRng,
    hour: u64,
    habits: Vec<Habit>,
    there: BTreeSet<Member>,
    liars: BTreeSet<Member>,
    /// Members that were revoked; they do not return.
    removed: BTreeSet<Member>,
    registries: [Registry; 2],
    /// The members that each member knows of.
    cards: Vec<BTreeSet<Member>>,
    /// The versions of which each member has a shard.
    held: Vec<BTreeSet<ManifestHash>>,
    /// What each member knows as deleted.
    notices: Vec<Intervals>,
    /// The machine on which the job runs.
    runs_on: Option<usize>,
    /// What each of the user's machines knows.
    machines: Vec<Knowledge>,
    saved: Vec<Rc<Saved>>,
    /// The first version of the work that the running job goes on with; `None`: it has begun anew.
    goes_on_with: Option<ManifestHash>,
    /// How often each thing happened.
    seen: BTreeMap<&'static str, u64>,
}

/// What hosts show to a machine.
struct Look {
    silence: Silence,
    answered: BTreeSet<Member>,
    /// The versions that are shown, oldest first, with how many of their shards.
    shown: Vec<(Rc<Saved>, usize)>,
    deleted: Intervals,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let members = random.random_range(5..=10);
        let kinds = [Habit::Office, Habit::Server, Habit::Volunteer];
        let habits = (0..members).map(|_| *kinds.choose(&mut random).unwrap_or(&Habit::Server));
        let habits: Vec<Habit> = habits.collect();
        let liars = random.random_range(0..=LIARS_MAX);
        let liars = (0..liars)
            .map(|_| random.random_range(0..members))
            .collect();
        let all: BTreeSet<Member> = (0..members).collect();
        Self {
            random,
            hour: 0,
            habits,
            there: all.clone(),
            liars,
            removed: BTreeSet::new(),
            registries: [all.clone(), all.clone()],
            cards: vec![all; members],
            held: vec![BTreeSet::new(); members],
            notices: vec![Intervals::default(); members],
            runs_on: None,
            machines: vec![Knowledge::default(); 3],
            saved: Vec::new(),
            goes_on_with: None,
            seen: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// Members come and go, registries lose what they know, and what members know passes between them.
    fn pass_an_hour(&mut self) {
        self.hour += 1;
        for (member, habit) in self.habits.clone().into_iter().enumerate() {
            let was = self.there.contains(&member);
            let is_there =
                !self.removed.contains(&member) && habit.is_there(self.hour, was, &mut self.random);
            if is_there {
                self.there.insert(member);
            } else {
                self.there.remove(&member);
            }
        }
        let mut honest = self.there.difference(&self.liars);
        if self.random.random_bool(0.01) && honest.next().is_some() {
            let registry = self.random.random_range(0..2);
            self.registries[registry].clear();
            self.count("a registry was reinstalled");
        }
        if self.random.random_bool(0.001) && self.removed.len() < SHARDS - DATA {
            let member = self.random.random_range(0..self.habits.len());
            self.removed.insert(member);
            self.there.remove(&member);
            self.count("a member was revoked");
        }
        if self.random.random_bool(0.02) {
            let machine = self.random.random_range(0..self.machines.len());
            self.machines[machine] = Knowledge::default();
            // A job does not outlive the machine that it runs on.
            self.runs_on = self.runs_on.filter(|on| *on != machine);
            self.count("a machine was reinstalled");
        }
        self.exchange();
    }

    /// Versions of which nobody has anything any more say nothing.
    fn drop_gone(&mut self) {
        let held = &self.held;
        self.saved
            .retain(|saved| held.iter().any(|held| held.contains(&saved.hash)));
    }

    fn exchange(&mut self) {
        // One of the two registries can't be reached in some hours.
        let reached = if self.random.random_bool(0.2) { 1 } else { 2 };
        for registry in self.registries.iter_mut().take(reached) {
            registry.extend(&self.there);
            for member in self.there.difference(&self.liars) {
                registry.extend(&self.cards[*member]);
            }
            registry.retain(|member| !self.removed.contains(member));
            for member in &self.there {
                self.cards[*member].extend(registry.iter());
            }
        }
        let honest: Vec<Member> = self.there.difference(&self.liars).copied().collect();
        let all = honest.iter().fold(Intervals::default(), |all, member| {
            all.union(&self.notices[*member])
        });
        for member in honest {
            self.notices[member] = all.clone();
            let gone = self.saved.iter().filter(|saved| all.has(saved.stamp));
            for saved in gone {
                self.held[member].remove(&saved.hash);
            }
        }
    }

    /// What a machine is answered by the members that it knows.
    fn look(&mut self, machine: usize) -> Look {
        let reached = usize::from(self.random.random_bool(0.9));
        let now = self.now();
        let registry = &self.registries[1 - reached];
        let silent = registry.difference(&self.there).map(|member| Missed {
            host: host(*member),
            seen_at: now,
            certified_until: Some(now + 365 * 86_400),
        });
        let named = Named {
            there: registry
                .intersection(&self.there)
                .copied()
                .map(host)
                .collect(),
            listed: Vec::new(),
            silent: silent.collect(),
            revoked: self.removed.iter().copied().map(id).collect(),
        };
        let machine = &mut self.machines[machine];
        machine.observe(&Observation::Roster(named), now);
        let roster = machine.roster().iter();
        let members = roster.chain(machine.missed(now).map(|missed| &missed.host));
        let known: BTreeSet<Member> = members.map(|host| member(host.id)).collect();
        let answered: BTreeSet<Member> = known.intersection(&self.there).copied().collect();
        for member in &answered {
            machine.observe(&Observation::Contact(id(*member), Contact::Answered), now);
        }
        let silence = Silence {
            members: known.len(),
            silent: known.len() - answered.len(),
        };
        let honest = || answered.difference(&self.liars);
        let deleted = honest().fold(Intervals::default(), |all, member| {
            all.union(&self.notices[*member])
        });
        let shards = |saved: &Saved| {
            let holders = honest().filter(|member| self.held[**member].contains(&saved.hash));
            holders.count()
        };
        let mut shown: Vec<(Rc<Saved>, usize)> = self
            .saved
            .iter()
            .map(|saved| (saved.clone(), shards(saved)))
            .filter(|(saved, shards)| *shards > 0 && !deleted.has(saved.stamp))
            .collect();
        shown.sort_by_key(|(saved, _)| (saved.number, saved.stamp));
        Look {
            silence,
            answered,
            shown,
            deleted,
        }
    }

    fn remembered(&self, machine: usize, look: &Look) -> Remembered {
        let seen = self.machines[machine].newest(JOB).and_then(Sighting::place);
        let kept = seen.filter(|(_, stamp)| !look.deleted.has(*stamp));
        let is_shown = |number| look.shown.iter().any(|(saved, _)| saved.number >= number);
        match kept {
            Some((number, _)) if !is_shown(number) => Remembered::Version,
            _ => Remembered::Nothing,
        }
    }

    /// Acknowledged versions that honest members can still complete.
    fn may_return(&self) -> Vec<&Saved> {
        let holders = |saved: &Saved| {
            let all = self.held.iter().enumerate();
            let honest = all.filter(|(member, held)| {
                !self.liars.contains(member)
                    && !self.removed.contains(member)
                    && held.contains(&saved.hash)
            });
            honest.count()
        };
        let all = self.saved.iter();
        all.map(Rc::as_ref)
            .filter(|saved| holders(saved) >= DATA)
            .collect()
    }

    fn now(&self) -> u64 {
        BEGIN + self.hour * 3600
    }

    /// A machine sees a version.
    fn see(&mut self, machine: usize, saved: &Saved) {
        let Ok(job) = "42".parse() else {
            panic!("no name of a job");
        };
        let details = SightingDetails {
            owner: OwnerId([9; 32]),
            job,
            stamp: saved.stamp,
            until: None,
        };
        let seen = Sighting {
            version: saved.number,
            more: Some(details),
        };
        let now = self.now();
        self.machines[machine].observe(&Observation::Version(JOB, seen), now);
    }

    /// `restore --if-exists`; returns whether the job begins: with a version, or anew.
    fn restore(&mut self, machine: usize, is_new: bool) -> bool {
        let look = self.look(machine);
        if look.answered.is_empty() {
            return false;
        }
        let newest = look.shown.iter().rev().find(|(_, shards)| *shards >= DATA);
        if let Some((saved, _)) = newest {
            let saved = saved.clone();
            self.see(machine, &saved);
            let now = self.now();
            let with = Observation::GoesOn(JOB, GoesOn::With(saved.line));
            self.machines[machine].observe(&with, now);
            self.goes_on_with = Some(saved.begun_with);
            self.count("restored");
            return true;
        }
        if !look.shown.is_empty() {
            // Some shards are shown; too few of them.
            let is_away = look.silence.silent > 0;
            assert!(is_away || self.may_return().is_empty(), "reported as lost");
            self.count("too few shards");
            return false;
        }
        let remembered = self.remembered(machine, &look);
        let unshown = look.silence.of_unshown(remembered, None, is_new);
        match unshown {
            Unshown::None if is_new => {
                let now = self.now();
                self.machines[machine].observe(&Observation::GoesOn(JOB, GoesOn::Anew), now);
                self.count("begun anew although members are silent");
            }
            Unshown::None => {
                let there = self.may_return();
                assert!(there.is_empty(), "reported as absent: {there:?}");
                self.count("no checkpoint");
            }
            Unshown::MayBeAway => self.count("may be away"),
            Unshown::Lost => {
                let there = self.may_return();
                assert!(there.is_empty(), "reported as lost: {there:?}");
                self.count("lost");
            }
        }
        self.goes_on_with = None;
        unshown == Unshown::None
    }

    fn save(&mut self, machine: usize) {
        let look = self.look(machine);
        let mut holders: Vec<Member> = look.answered.iter().copied().collect();
        if holders.len() < SHARDS {
            return;
        }
        while holders.len() > SHARDS {
            let out = self.random.random_range(0..holders.len());
            holders.remove(out);
        }
        let now = self.now() + machine as u64;
        let newest = look.shown.last().map(|(saved, _)| saved.clone());
        let known = &self.machines[machine];
        let seen = known.newest(JOB).map(|seen| seen.version);
        let shown = newest.as_ref().map(|saved| saved.number);
        let goes_on = known.goes_on(JOB);
        let next = look.silence.next_number(shown, seen, goes_on, now);
        let number = next.number;
        let mut id = [0; 32];
        self.random.fill(&mut id);
        let hash = ManifestHash(id);
        let mut checkpoint = [0; 16];
        checkpoint.copy_from_slice(&id[..16]);
        let latest = look
            .shown
            .iter()
            .map(|(saved, _)| saved.stamp.created)
            .max();
        let created = now.max(latest.map_or(0, |latest| latest + 1));
        let saved = Saved {
            number,
            stamp: Stamp {
                created,
                checkpoint: CheckpointId(checkpoint),
            },
            hash,
            begun_with: self.goes_on_with.unwrap_or(hash),
            line: next.line(
                number,
                goes_on,
                newest.as_ref().and_then(|newest| newest.line),
            ),
        };
        if newest.is_none() {
            let there = self
                .may_return()
                .into_iter()
                .map(|saved| saved.number)
                .max();
            assert!(there < Some(number), "{number} does not follow {there:?}");
            self.count("a line begins");
        }
        for member in &holders {
            self.held[*member].insert(hash);
        }
        self.remove_old(&look, &saved);
        let with = Observation::GoesOn(JOB, GoesOn::With(saved.line));
        self.machines[machine].observe(&with, now);
        self.see(machine, &saved);
        self.goes_on_with = Some(saved.begun_with);
        self.saved.push(Rc::new(saved));
        self.count("saved");
    }

    /// What `--keep` removes, as the client divides it.
    fn remove_old(&mut self, look: &Look, new: &Saved) {
        let mut kept = 1;
        let mut gone = Vec::new();
        let mut stay = vec![(new.stamp, new.line)];
        for (saved, shards) in look.shown.iter().rev() {
            let is_of_line = saved.line == new.line;
            if is_of_line && kept >= KEEP {
                gone.push(saved.stamp);
                continue;
            }
            kept += usize::from(is_of_line && *shards >= DATA);
            stay.push((saved.stamp, saved.line));
        }
        let checkpoint = |stamp: &Stamp, line| Checkpoint {
            stamp: *stamp,
            contents: Some(Contents {
                needs: [].into(),
                line,
            }),
        };
        let stay: Vec<Checkpoint> = stay
            .iter()
            .map(|(one, line)| checkpoint(one, *line))
            .collect();
        let gone: Vec<Checkpoint> = gone.iter().map(|one| checkpoint(one, new.line)).collect();
        let notices = look.answered.difference(&self.liars);
        let heard = notices.map(|member| self.notices[*member].clone());
        let heard = heard.reduce(|all, one| all.union(&one));
        let last = Words {
            owner: OwnerId([1; 32]),
            job_tag: JOB,
            number: 1,
            lease: None,
            gone: Vec::new(),
            intervals: heard.unwrap_or_default(),
        };
        let reach = Reach::Between.in_silence(look.silence);
        let removal = plan(&stay, &gone, Some(&last), reach).intervals;
        // Whatever the intervals cover, they delete nothing that is not to be deleted.
        for saved in self.may_return() {
            let of_same_work = || {
                let others = self.saved.iter().map(Rc::as_ref).chain([new]);
                others.filter(|other| other.begun_with == saved.begun_with)
            };
            // Newer by their numbers are as many as are kept. The job may have gone on from an older version
            // while the newest was away, so only one of them has to follow this one.
            let newer = of_same_work()
                .filter(|other| (other.number, other.stamp) > (saved.number, saved.stamp));
            let follows = of_same_work().any(|other| other.stamp > saved.stamp);
            let is_superseded = newer.count() >= KEEP && follows;
            assert!(
                is_superseded || !removal.has(saved.stamp),
                "--keep removes {saved:?}"
            );
        }
        for member in look.answered.difference(&self.liars) {
            self.notices[*member] = self.notices[*member].union(&removal);
        }
    }

    fn run(mut self) -> BTreeMap<&'static str, u64> {
        while self.hour < HOURS {
            self.pass_an_hour();
            self.drop_gone();
            // The job's machine is taken away now and then, and the job begins on another.
            if self.runs_on.is_none() || self.random.random_bool(0.1) {
                let machine = self.random.random_range(0..self.machines.len());
                let is_new = self.random.random_bool(0.05);
                let begins = self.restore(machine, is_new);
                self.runs_on = begins.then_some(machine);
            }
            if let Some(machine) = self.runs_on {
                self.save(machine);
            }
        }
        self.seen
    }
}

fn schedules(seeds: std::ops::Range<u64>) {
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in seeds {
        let world = World::new(seed);
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        let seen = seen.unwrap_or_else(|_| panic!("seed {seed}"));
        for (what, count) in seen {
            *all.entry(what).or_default() += count;
        }
    }
    println!("{all:?}");
    for what in [
        "restored",
        "saved",
        "may be away",
        "a line begins",
        "no checkpoint",
    ] {
        assert!(all.contains_key(what), "never happened: {what}");
    }
}

#[test]
fn what_members_that_went_home_hold_is_never_absent_or_deleted() {
    schedules(0..100);
}

#[test]
#[ignore = "a hundred thousand schedules take long: docs/research/performance.md, Faults"]
fn what_members_that_went_home_hold_is_never_absent_or_deleted_in_a_hundred_thousand_schedules() {
    schedules(0..100_000);
}
