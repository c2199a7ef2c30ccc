//! A model of what deletes: savers, forgetters, `gc`, a lease that ends, a job key that is revoked, a host that is
//! away and comes back, and one kill, in every order of their single steps. What is decided is decided by the
//! client's real core; hosts are here a set of checkpoints and the notices that they keep.
//!
//! Each step is one request to one host, or one look at all hosts that are there; renewals, and the removal of a
//! version on which nobody relies, are one step at all hosts. A checkpoint has one data shard: one host is enough
//! to read it. The clocks of machines agree: a notice that gives the job another lease has a later number than all
//! that were made before, and a save is created no earlier than those that began before it.
//!
//! Checked in every state: a version whose save reported success can be read, and so can the versions that were
//! there before, until a policy that selects it is carried out. What it needs is named or covered by no notice.
//! At the end of every path, once all hosts have heard each other: `gc` leaves what is kept and what that needs,
//! and nothing else, and the notice has at most one interval more.

mod world;

use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};

use anyhow::{Context, Result, ensure};
use ckpt_agent::core::retention::{Reach, plan};
use codec::PublicKey;
use codec::notice::{Intervals, Lease, Words};

use world::{
    Act, HOSTS, Host, JOB, LONG, Machine, OTHER_KEY, OWNER, Policy, Saved, Set, Step, World,
    members,
};

/// What happened in a step, and to which machine or host.
type Label = (What, u8);

#[derive(Clone, Copy, Debug)]
enum What {
    Begin,
    Step,
    Kill,
    Back,
    Away,
    /// A week of a host.
    Week,
    Lease,
    /// The lease has ended for a host.
    EndsAt,
    Revocation,
}

/// What is in one model, and how often.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// What each machine does, one thing after the other.
    machines: &'static [&'static [Act]],
    goings: u8,
    revocations: u8,
    leases: u8,
    kills: u8,
}

impl World {
    /// A job with a whole version, and one of the owner that an older program saved as a patch on it. Where a key
    /// is revoked, it signed the first one.
    fn new(bounds: Bounds) -> Self {
        let first = Saved {
            version: 1,
            created: 1,
            needs: 0,
            is_dated: false,
            signer: match bounds.revocations {
                0 => OWNER.into(),
                _ => OTHER_KEY,
            },
            is_reported: true,
            is_released: false,
        };
        let second = Saved {
            version: 2,
            created: 2,
            needs: 1,
            signer: PublicKey::from(OWNER),
            ..first.clone()
        };
        let lease = Lease { ttl_s: 1, until: 1 };
        let words = Words {
            owner: OWNER,
            job_tag: JOB,
            number: 1,
            lease: Some(lease).filter(|_| bounds.leases > 0),
            gone: Vec::new(),
            intervals: Intervals::default(),
        };
        let host = |has| Host {
            has,
            last: Some(words.clone()),
            ..Host::default()
        };
        Self {
            // What the second version builds on is on one host alone.
            hosts: [host(0b11), host(0b10)],
            saved: vec![first, second],
            machines: bounds
                .machines
                .iter()
                .map(|acts| Machine::new(acts))
                .collect(),
            is_revoked: false,
            lease_has_ended: false,
            goings: bounds.goings,
            revocations: bounds.revocations,
            leases: bounds.leases,
            kills: bounds.kills,
        }
    }

    /// Every world that can follow this one in one step.
    fn next(&self) -> Vec<(Label, Self)> {
        let mut all = Vec::new();
        let mut add = |label: Label, change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            all.push((label, next));
        };
        for (at, machine) in self.machines.iter().enumerate() {
            if machine.step == Step::End {
                continue;
            }
            add((What::Step, at as u8), &|next| next.step(at));
            if self.kills > 0 && machine.step != Step::Begin {
                add((What::Kill, at as u8), &|next| {
                    next.kills -= 1;
                    next.machines[at].end_act();
                });
            }
        }
        for (number, host) in self.hosts.iter().enumerate() {
            if host.is_away {
                let back = (What::Back, number as u8);
                add(back, &|next| next.hosts[number].is_away = false);
                continue;
            }
            if self.goings > 0 {
                add((What::Away, number as u8), &|next| {
                    next.goings -= 1;
                    next.hosts[number].is_away = true;
                });
            }
            add((What::Week, number as u8), &|next| {
                next.hear_from_others(number);
                next.delete_inside(number);
            });
            if self.lease_has_ended && self.lease_is_over() {
                let ends = (What::EndsAt, number as u8);
                add(ends, &|next| next.hosts[number].has = 0);
            }
        }
        if self.revocations > 0 {
            add((What::Revocation, 0), &|next| {
                next.revocations -= 1;
                next.is_revoked = true;
                next.release_void();
            });
        }
        if self.leases > 0 {
            add((What::Lease, 0), &|next| {
                next.leases -= 1;
                next.lease_has_ended = true;
                if next.lease_is_over() {
                    next.saved
                        .iter_mut()
                        .for_each(|saved| saved.is_released = true);
                }
            });
        }
        all
    }

    /// The versions of a void key are no longer promised.
    fn release_void(&mut self) {
        for saved in &mut self.saved {
            saved.is_released |= saved.signer == OTHER_KEY;
        }
    }

    /// Whether no host that knows of a renewal is there to be asked.
    fn lease_is_over(&self) -> bool {
        let all = self
            .hosts
            .iter()
            .filter_map(|host| host.last.as_ref()?.lease);
        all.map(|lease| lease.until).max() == Some(1)
    }

    /// Hosts that are there ask each other for notices.
    fn hear_from_others(&mut self, number: usize) {
        let there = self.hosts.iter().filter(|host| !host.is_away);
        let others: Vec<Words> = there.filter_map(Host::said).collect();
        for words in others {
            self.hosts[number].hear(&words);
        }
    }

    /// A week is over: a host deletes what is inside of a stretch.
    fn delete_inside(&mut self, number: usize) {
        let intervals = self.hosts[number].older.clone();
        let inside = members(self.hosts[number].has).filter(|one| intervals.has(self.stamp(*one)));
        let inside = inside.fold(0, |all: Set, one| all | 1 << one);
        self.hosts[number].has &= !inside;
    }

    /// What has to hold in every state.
    fn check(&self) -> Result<()> {
        let everywhere = self.hosts.iter().fold(0, |all, host| all | host.has);
        for (number, saved) in self
            .saved
            .iter()
            .enumerate()
            .filter(|(_, one)| one.is_promised())
        {
            for one in members(saved.needs | 1 << number) {
                ensure!(
                    everywhere >> one & 1 == 1,
                    "{number} needs {one}, which is deleted"
                );
                let stamp = self.stamp(one);
                for host in &self.hosts {
                    let is_gone = host.said().is_some_and(|said| said.is_gone(stamp));
                    ensure!(!is_gone, "{number} needs {one}, which a notice deletes");
                }
            }
        }
        Ok(())
    }

    /// What has to hold once everything is done and all hosts have heard each other.
    fn check_end(&self) -> Result<()> {
        let mut end = self.clone();
        for host in &mut end.hosts {
            host.is_away = false;
        }
        for number in (0..HOSTS).chain(0..HOSTS) {
            end.hear_from_others(number);
            end.delete_inside(number);
        }
        end.check()?;
        let look = end.look();
        let kept = end.kept(&look, Policy::Keep);
        let keeps = end.judged(kept);
        let unwanted = look.good & !kept;
        let plan = plan(
            &keeps,
            &end.judged(unwanted),
            look.said.as_ref(),
            Reach::Between,
        );
        let lease = look.said.as_ref().and_then(|said| said.lease);
        let words = end.following(0, look.said.as_ref(), lease, &plan);
        end.hosts.iter_mut().for_each(|host| host.hear(&words));
        let needs = members(kept).map(|number| end.saved[number].needs);
        let needs = needs.fold(0, |all: Set, one| all | one);
        let left = end.look();
        ensure!(
            left.good & !(kept | needs) == 0,
            "something is kept for nothing"
        );
        ensure!(kept & !left.good == 0, "what is kept is gone");
        let most = usize::try_from((kept | needs).count_ones())? + 1;
        ensure!(
            plan.gone.is_empty() || plan.intervals.len() <= most,
            "{} intervals, {most} are enough",
            plan.intervals.len()
        );
        Ok(())
    }

    /// The numbers of notices, without what is between two of them that are far apart.
    fn ranks(&self) -> BTreeMap<u64, u64> {
        let numbers: BTreeSet<u64> = self.numbers().collect();
        let mut before = 0;
        let mut rank = 0;
        let ranks = numbers.into_iter().map(|number| {
            rank += (number - before).min(LONG);
            before = number;
            (number, rank)
        });
        ranks.collect()
    }

    /// A number that differs between states that behave differently.
    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let ranks = self.ranks();
        let words = |words: &Option<Words>, hasher: &mut DefaultHasher| {
            let Some(words) = words else {
                return hasher.write_u8(0);
            };
            ranks.get(&words.number).hash(hasher);
            words.lease.map(|lease| lease.until).hash(hasher);
            words.gone.hash(hasher);
            hash_intervals(&words.intervals, hasher);
        };
        for host in &self.hosts {
            host.is_away.hash(&mut hasher);
            host.has.hash(&mut hasher);
            words(&host.last, &mut hasher);
            hash_intervals(&host.older, &mut hasher);
        }
        self.saved.hash(&mut hasher);
        for machine in &self.machines {
            machine.acts.len().hash(&mut hasher);
            machine.step.hash(&mut hasher);
            machine.is_second.hash(&mut hasher);
            machine.new.hash(&mut hasher);
            let before = &machine.before;
            let sets = [
                before.shown,
                before.good,
                machine.kept,
                machine.gone,
                machine.announced,
            ];
            sets.hash(&mut hasher);
            before.answered.hash(&mut hasher);
            words(&before.said, &mut hasher);
            words(&machine.words, &mut hasher);
        }
        let events = [self.goings, self.revocations, self.leases, self.kills];
        events.hash(&mut hasher);
        self.is_revoked.hash(&mut hasher);
        self.lease_has_ended.hash(&mut hasher);
        hasher.finish()
    }
}

fn hash_intervals(intervals: &Intervals, hasher: &mut DefaultHasher) {
    for one in intervals.iter() {
        (
            one.from.created,
            one.from.checkpoint,
            one.to.created,
            one.to.checkpoint,
        )
            .hash(hasher);
    }
}

/// Goes through every state, and returns how many there are.
fn explore(bounds: Bounds) -> Result<usize> {
    let first = World::new(bounds);
    let mut came_from: HashMap<u64, (u64, Label)> = HashMap::new();
    came_from.insert(first.key(), (0, (What::Begin, 0)));
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        let key = world.key();
        let machines = &world.machines;
        let is_done = machines.iter().all(|machine| machine.step == Step::End);
        let checked = world.check().and_then(|()| match is_done {
            true => world.check_end(),
            false => Ok(()),
        });
        checked.with_context(|| format!("{bounds:?}: {}; {world:#?}", way_to(key, &came_from)))?;
        for (label, next) in world.next() {
            if let Entry::Vacant(new) = came_from.entry(next.key()) {
                new.insert((key, label));
                open.push(next);
            }
        }
    }
    Ok(came_from.len())
}

/// How a state was reached.
fn way_to(key: u64, came_from: &HashMap<u64, (u64, Label)>) -> String {
    let mut labels = Vec::new();
    let mut at = key;
    while let Some((before, (what, number))) = came_from.get(&at) {
        labels.push(format!("{what:?} {number}"));
        at = *before;
    }
    labels.reverse();
    labels.join(", ")
}

/// Explores models, and prints how many states there are.
fn explore_all(all: &[Bounds]) -> Result<()> {
    let mut states = 0;
    for bounds in all {
        let some = explore(*bounds)?;
        println!("{some} states: {bounds:?}");
        states += some;
    }
    println!("{states} states in all");
    Ok(())
}

const NONE: Bounds = Bounds {
    machines: &[],
    goings: 0,
    revocations: 0,
    leases: 0,
    kills: 0,
};

const SAVE: &[Act] = &[Act::Save];
const BY_KEY: &[Act] = &[Act::SaveByKey];
const KEEP: &[Act] = &[Act::Forget(Policy::Keep)];
const ALL: &[Act] = &[Act::Forget(Policy::All)];
const FIRST: &[Act] = &[Act::Forget(Policy::First)];

/// Each of them is a model of its own, with all orders of its steps.
const SHORT: [Bounds; 7] = [
    Bounds {
        machines: &[SAVE, KEEP, FIRST],
        ..NONE
    },
    Bounds {
        machines: &[SAVE, FIRST],
        goings: 1,
        ..NONE
    },
    Bounds {
        machines: &[SAVE, ALL],
        goings: 1,
        ..NONE
    },
    Bounds {
        machines: &[SAVE],
        goings: 1,
        revocations: 1,
        leases: 1,
        kills: 1,
    },
    Bounds {
        machines: &[SAVE, KEEP],
        goings: 1,
        revocations: 1,
        kills: 1,
        ..NONE
    },
    Bounds {
        machines: &[SAVE, BY_KEY],
        kills: 1,
        ..NONE
    },
    Bounds {
        machines: &[SAVE, KEEP],
        leases: 1,
        ..NONE
    },
];

#[test]
fn what_a_kept_version_needs_is_never_deleted_in_any_order_of_steps() -> Result<()> {
    explore_all(&SHORT)
}

#[test]
#[ignore = "millions of states take long: docs/research/performance.md, Faults"]
fn what_a_kept_version_needs_is_never_deleted_in_millions_of_states() -> Result<()> {
    explore_all(&[
        Bounds {
            machines: &[SAVE, BY_KEY],
            leases: 1,
            ..NONE
        },
        Bounds {
            machines: &[SAVE, FIRST, ALL],
            goings: 1,
            ..NONE
        },
        Bounds {
            machines: &[SAVE, BY_KEY],
            goings: 1,
            ..NONE
        },
        Bounds {
            machines: &[SAVE, BY_KEY],
            goings: 1,
            revocations: 1,
            kills: 1,
            ..NONE
        },
    ])
}

/// Three saves and two deletions on two machines, a lease that ends, a host that goes and comes back, a key that is
/// revoked and a kill, all of it in one model.
const TOGETHER: Bounds = Bounds {
    machines: &[
        &[Act::Save, Act::Forget(Policy::First), Act::SaveByKey],
        &[Act::Forget(Policy::Keep), Act::Save],
    ],
    goings: 1,
    revocations: 1,
    leases: 1,
    kills: 1,
};

#[test]
#[ignore = "many millions of states take long: docs/research/performance.md, Faults"]
fn what_a_kept_version_needs_is_never_deleted_with_everything_in_one_model() -> Result<()> {
    explore_all(&[TOGETHER])
}
