//! Hosts, machines and their steps.

use std::collections::BTreeSet;
use std::sync::Arc;

use ckpt_agent::core::retention::{
    AfterCommit, Checkpoint, Contents, Plan, Reach, View, admits, after_commit, is_announced, plan,
};
use codec::notice::{Intervals, Lease, RESTATED_MS, Stamp, Words};
use codec::pieces::BaseRef;
use codec::{CheckpointId, JobTag, ManifestHash, OwnerId, PublicKey};

/// Hosts of the model.
pub(super) const HOSTS: usize = 2;

pub(super) const OWNER: OwnerId = OwnerId([1; 32]);
pub(super) const JOB: JobTag = JobTag([2; 32]);

/// The key that is revoked.
pub(super) const OTHER_KEY: PublicKey = PublicKey([3; 32]);

/// A notice with another lease is so far above all others: machines state a lease again fewer times than that in a
/// row.
pub(super) const LONG: u64 = 64;

/// A time long after all looks, without last digits.
const LONG_AFTER: u64 = 1_000 * RESTATED_MS;

/// A set of checkpoints, as bits.
pub(super) type Set = u16;

/// Most origins of a version.
const ORIGINS_MAX: usize = 2;

/// A checkpoint, by its number.
pub(super) type Number = usize;

/// One saved image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Saved {
    pub(super) version: u8,
    pub(super) created: u64,
    /// All that a restore of it reads.
    pub(super) needs: Set,
    /// Whether the references have the times of what it needs.
    pub(super) is_dated: bool,
    pub(super) signer: PublicKey,
    /// The save reported success.
    pub(super) is_reported: bool,
    /// Somebody decided to carry out a policy that selects it, or its lease ended, or its key is void.
    pub(super) is_released: bool,
}

impl Saved {
    /// Whether it has to be readable.
    pub(super) const fn is_promised(&self) -> bool {
        self.is_reported && !self.is_released
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    pub(super) is_away: bool,
    pub(super) has: Set,
    /// The last notice, and the intervals of earlier ones.
    pub(super) last: Option<Words>,
    pub(super) older: Intervals,
}

impl Host {
    pub(super) fn said(&self) -> Option<Words> {
        let last = self.last.clone()?;
        Some(Words {
            intervals: last.intervals.union(&self.older),
            ..last
        })
    }

    /// A notice arrives: what it names is deleted at once.
    pub(super) fn hear(&mut self, words: &Words) {
        self.older = self.older.union(&words.intervals);
        self.has &= !named(&words.gone);
        let last = self.last.as_ref();
        if last.is_none_or(|last| last.number < words.number) {
            self.last = Some(words.clone());
        }
    }
}

/// What one look at all hosts showed.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    /// What is shown, also void or inside of a stretch.
    pub(super) shown: Set,
    /// Without these.
    pub(super) good: Set,
    pub(super) said: Option<Words>,
    /// Which hosts answered, as bits.
    pub(super) answered: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Policy {
    /// The newest stays.
    Keep,
    /// All go.
    All,
    /// The first version goes, unless it is needed.
    First,
}

/// One thing that a machine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Act {
    /// It saves, with the owner's key.
    Save,
    /// It saves, with the key that may be revoked.
    SaveByKey,
    Forget(Policy),
}

/// What a machine does next, within one act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Begin,
    Commit(usize),
    Renew,
    LookAgain,
    AnnounceOwn(usize),
    ListOwn,
    RemoveOwn,
    Announce(usize),
    ListAgain,
    Delete(usize),
    End,
}

#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// What it does now, and then.
    pub(super) acts: &'static [Act],
    pub(super) step: Step,
    /// It saves again, whole.
    pub(super) is_second: bool,
    pub(super) new: Option<Number>,
    pub(super) before: Look,
    /// What it sends to hosts.
    pub(super) words: Option<Words>,
    /// What it kept at its first look.
    pub(super) kept: Set,
    /// What it deletes.
    pub(super) gone: Set,
    /// What of it it has announced.
    pub(super) announced: Set,
}

impl Machine {
    pub(super) const fn new(acts: &'static [Act]) -> Self {
        Self {
            acts,
            step: Step::Begin,
            is_second: false,
            new: None,
            before: Look {
                shown: 0,
                good: 0,
                said: None,
                answered: 0,
            },
            words: None,
            kept: 0,
            gone: 0,
            announced: 0,
        }
    }

    /// `None`: it saves.
    fn policy(&self) -> Option<Policy> {
        match self.acts.first() {
            Some(Act::Forget(policy)) => Some(*policy),
            Some(Act::Save | Act::SaveByKey) | None => None,
        }
    }

    fn signer(&self) -> PublicKey {
        match self.acts.first() {
            Some(Act::SaveByKey) => OTHER_KEY,
            Some(Act::Save | Act::Forget(_)) | None => OWNER.into(),
        }
    }

    /// Its act is over. What has ended has nothing in mind, so that states do not differ by it.
    pub(super) fn end_act(&mut self) {
        let rest = self.acts.get(1..).unwrap_or_default();
        let step = match rest {
            [] => Step::End,
            _ => Step::Begin,
        };
        *self = Self {
            step,
            ..Self::new(rest)
        };
    }
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) hosts: [Host; HOSTS],
    pub(super) saved: Vec<Saved>,
    pub(super) machines: Vec<Machine>,
    pub(super) is_revoked: bool,
    pub(super) lease_has_ended: bool,
    /// How often a host may go, the key may be revoked, the lease may end, and a machine may be killed.
    pub(super) goings: u8,
    pub(super) revocations: u8,
    pub(super) leases: u8,
    pub(super) kills: u8,
}

pub(super) const fn id(number: Number) -> CheckpointId {
    // Just before one there is nothing, as it is with random ids.
    CheckpointId([number as u8 + 1; 16])
}

/// The checkpoint with this id, if there is one.
fn number_of(wanted: CheckpointId) -> Option<Number> {
    (0..15).find(|number| id(*number) == wanted)
}

/// Those of these ids that checkpoints have.
fn named(ids: &[CheckpointId]) -> Set {
    let numbers = ids.iter().filter_map(|id| number_of(*id));
    numbers.fold(0, |all, number| all | 1 << number)
}

pub(super) const fn hash(number: Number) -> ManifestHash {
    ManifestHash([number as u8; 32])
}

/// What a plan deletes.
fn numbers(plan: &Plan) -> Set {
    let ids: Vec<CheckpointId> = plan.gone.iter().map(|stamp| stamp.checkpoint).collect();
    named(&ids)
}

pub(super) fn members(set: Set) -> impl Iterator<Item = Number> {
    (0..16).filter(move |number| set >> number & 1 == 1)
}

pub(super) fn ids(set: Set) -> BTreeSet<CheckpointId> {
    members(set).map(id).collect()
}

impl World {
    pub(super) fn stamp(&self, number: Number) -> Stamp {
        Stamp {
            created: self.saved[number].created,
            checkpoint: id(number),
        }
    }

    pub(super) fn reference(&self, number: Number, is_dated: bool) -> BaseRef {
        BaseRef {
            checkpoint: id(number),
            manifest: hash(number),
            created: is_dated.then(|| self.saved[number].created),
        }
    }

    pub(super) fn needs(&self, number: Number) -> Vec<BaseRef> {
        let saved = &self.saved[number];
        members(saved.needs)
            .map(|need| self.reference(need, saved.is_dated))
            .collect()
    }

    pub(super) fn judged(&self, set: Set) -> Vec<Checkpoint> {
        let judged = |number| Checkpoint {
            stamp: self.stamp(number),
            contents: Some(Contents {
                needs: self.needs(number).into_iter().map(Arc::new).collect(),
                line: None,
            }),
        };
        members(set).map(judged).collect()
    }

    pub(super) fn is_void(&self, number: Number) -> bool {
        self.is_revoked && self.saved[number].signer == OTHER_KEY
    }

    pub(super) fn look(&self) -> Look {
        let mut look = Look::default();
        for (number, host) in self
            .hosts
            .iter()
            .enumerate()
            .filter(|(_, one)| !one.is_away)
        {
            look.answered |= 1 << number;
            look.shown |= host.has;
            look.said = match (look.said.take(), host.said()) {
                (Some(one), Some(other)) => Some(one.and(&other)),
                (one, other) => one.or(other),
            };
        }
        if let Some(said) = &look.said {
            look.shown &= !named(&said.gone);
        }
        look.good = look.shown;
        for number in members(look.shown) {
            let stamp = self.stamp(number);
            let is_inside = look.said.as_ref().is_some_and(|said| said.is_gone(stamp));
            if is_inside || self.is_void(number) {
                look.good &= !(1 << number);
            }
        }
        look
    }

    /// Newest first.
    pub(super) fn newest_first(&self, set: Set) -> Vec<Number> {
        let mut all: Vec<Number> = members(set).collect();
        all.sort_by_key(|number| {
            let saved = &self.saved[*number];
            std::cmp::Reverse((saved.version, saved.created, *number))
        });
        all
    }

    /// What a policy keeps of what a look showed; the newest one that can be restored counts.
    pub(super) fn kept(&self, look: &Look, policy: Policy) -> Set {
        let can_be_read = |number: Number| self.saved[number].needs & !look.shown == 0;
        let mut kept = 0;
        match policy {
            Policy::All => {}
            Policy::First => kept = look.good & !1,
            Policy::Keep => {
                for number in self.newest_first(look.good) {
                    kept |= 1 << number;
                    if can_be_read(number) {
                        break;
                    }
                }
            }
        }
        kept
    }

    /// A notice of a machine. One that gives the job another lease has a number above all others: it is the time.
    pub(super) fn following(
        &self,
        at: usize,
        last: Option<&Words>,
        lease: Option<Lease>,
        plan: &Plan,
    ) -> Words {
        let before = last.and_then(|last| last.lease);
        let now = match lease == before {
            // As if the time of the look ended in the number of the machine.
            true => Words::restated_at(last, LONG_AFTER + at as u64),
            false => self.numbers().max().unwrap_or_default() / LONG * LONG + LONG,
        };
        let gone: Vec<CheckpointId> = plan.gone.iter().map(|stamp| stamp.checkpoint).collect();
        Words::following(last, (OWNER, JOB), now, lease, &gone, &plan.intervals)
    }

    /// The numbers of all notices that anybody has.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        let hosts = self.hosts.iter().flat_map(|host| &host.last);
        let machines = self.machines.iter();
        let machines = machines.flat_map(|one| one.words.iter().chain(&one.before.said));
        hosts.chain(machines).map(|words| words.number)
    }

    /// The first step of a machine.
    pub(super) fn begin(&mut self, at: usize) -> Step {
        let look = self.look();
        let machine = &self.machines[at];
        let next = match machine.policy() {
            None => self.begin_save(at, &look),
            Some(policy) => {
                let plan = self.plan_of(at, policy, &look);
                self.announce(at, policy, &look, &plan)
            }
        };
        self.machines[at].before = look;
        next
    }

    pub(super) fn begin_save(&mut self, at: usize, look: &Look) -> Step {
        let machine = &self.machines[at];
        // Hosts take nothing of a void key.
        let is_void = self.is_revoked && machine.signer() == OTHER_KEY;
        if look.answered == 0 || is_void {
            return Step::End;
        }
        let said = look.said.as_ref();
        let newest = self.newest_first(look.good).first().copied();
        let base = newest.filter(|base| {
            let saved = &self.saved[*base];
            let signer = machine.signer();
            let is_admitted = admits(self.stamp(*base), saved.signer, OWNER, signer, said);
            // What older programs saved has no hashes of all its pieces.
            let is_there = saved.needs & !look.shown == 0 && (saved.is_dated || saved.needs == 0);
            let good = members(look.good).map(|number| self.stamp(number));
            is_admitted && is_there && !machine.is_second && !is_announced(good, said)
        });
        let versions = self.saved.iter().map(|saved| saved.version);
        let latest = members(look.shown).map(|number| self.saved[number].created);
        let deleted = said
            .and_then(|said| said.intervals.end())
            .map(|end| end.created);
        let latest = latest.chain(deleted).max().unwrap_or_default();
        // Clocks agree: what began before is not later, also if nobody who is there knows of it.
        let now = self.saved.iter().map(|saved| saved.created).max();
        let new = self.saved.len();
        self.saved.push(Saved {
            version: versions.max().unwrap_or_default() + 1,
            created: now.unwrap_or_default().max(latest + 1),
            needs: base.map_or(0, |base| self.origins_after(base)),
            is_dated: true,
            signer: self.machines[at].signer(),
            is_reported: false,
            is_released: false,
        });
        self.machines[at].new = Some(new);
        Step::Commit(0)
    }

    /// What a version names that is compared with `base`: that one, and the newest of its origins. The others are stored
    /// again.
    fn origins_after(&self, base: Number) -> Set {
        let older = self.newest_first(self.saved[base].needs).into_iter();
        older
            .take(ORIGINS_MAX - 1)
            .fold(1 << base, |all, one| all | 1 << one)
    }

    /// What a policy deletes, by this look and what was kept before.
    pub(super) fn plan_of(&self, at: usize, policy: Policy, look: &Look) -> Plan {
        let kept = self.kept(look, policy);
        let machine = &self.machines[at];
        let again = match policy {
            Policy::All => machine.gone,
            Policy::Keep | Policy::First => 0,
        };
        let unwanted = (look.good | again) & !kept;
        let reach = match policy {
            Policy::Keep => Reach::Between,
            Policy::All => Reach::FromFirst,
            Policy::First => Reach::Named,
        };
        let keeps = self.judged(kept | machine.kept);
        plan(&keeps, &self.judged(unwanted), look.said.as_ref(), reach)
    }

    /// A deletion is decided: the versions that its policy selects are no longer promised.
    pub(super) fn release(&mut self, policy: Policy) {
        let everywhere = self.hosts.iter().fold(0, |all, host| all | host.has);
        let newest = self.newest_first(everywhere);
        let newest = newest.iter().find(|number| !self.is_void(**number));
        let newest = newest.map_or(0, |number| self.saved[*number].version);
        for (number, saved) in self.saved.iter_mut().enumerate() {
            let is_selected = match policy {
                Policy::All => true,
                Policy::Keep => saved.version < newest,
                Policy::First => number == 0,
            };
            // `--keep` selects by the number of the version, also one whose save ends later.
            let is_there = policy == Policy::Keep || everywhere >> number & 1 == 1;
            saved.is_released |= is_selected && is_there;
        }
    }

    /// One look, and the deletion that follows from it.
    pub(super) fn list_again(&mut self, at: usize) -> Step {
        let look = self.look();
        let Some(policy) = self.machines[at].policy() else {
            return Step::End;
        };
        let plan = self.plan_of(at, policy, &look);
        let announced = self.machines[at].announced;
        if numbers(&plan) & !announced != 0 {
            return self.announce(at, policy, &look, &plan);
        }
        if !plan.gone.is_empty() {
            self.release(policy);
        }
        self.delete(at, &look, &plan)
    }

    /// What a plan is about to delete is announced.
    fn announce(&mut self, at: usize, policy: Policy, look: &Look, plan: &Plan) -> Step {
        let Some(announcing) = plan.announcing() else {
            return Step::End;
        };
        let lease = look.said.as_ref().and_then(|said| said.lease);
        let words = self.following(at, look.said.as_ref(), lease, &announcing);
        let kept = self.kept(look, policy);
        let machine = &mut self.machines[at];
        machine.kept |= kept;
        machine.gone |= look.good & !kept;
        machine.announced |= numbers(plan);
        machine.words = Some(words);
        Step::Announce(0)
    }

    pub(super) fn delete(&mut self, at: usize, look: &Look, plan: &Plan) -> Step {
        if plan.gone.is_empty() {
            return Step::End;
        }
        let lease = look.said.as_ref().and_then(|said| said.lease);
        self.machines[at].words = Some(self.following(at, look.said.as_ref(), lease, plan));
        Step::Delete(0)
    }

    /// A lease that has ended or will is renewed before a save is judged.
    fn renews(&mut self, at: usize, look: &Look) -> bool {
        let lease = look.said.as_ref().and_then(|said| said.lease);
        let Some(lease) = lease.filter(|lease| lease.until == 1) else {
            return false;
        };
        let renewed = Lease { until: 2, ..lease };
        let words = self.following(at, look.said.as_ref(), Some(renewed), &Plan::default());
        self.machines[at].words = Some(words);
        true
    }

    /// After its commit, a save looks again.
    pub(super) fn look_again(&mut self, at: usize) -> Step {
        let look = self.look();
        let Some(new) = self.machines[at].new else {
            return Step::End;
        };
        if self.renews(at, &look) {
            return Step::Renew;
        }
        let machine = &self.machines[at];
        let before = ids(machine.before.shown);
        let now = ids(look.shown);
        let mut found = after_commit(
            self.stamp(new),
            &self.needs(new),
            View {
                shown: &before,
                said: machine.before.said.as_ref(),
            },
            View {
                shown: &now,
                said: look.said.as_ref(),
            },
        );
        // Hosts that do not answer now may have what they showed before.
        let may_have = |number: Number| {
            let hosts = self.hosts.iter().enumerate();
            let silent = hosts.filter(|(host, _)| look.answered >> host & 1 == 0);
            let shown = machine.before.answered;
            look.shown >> number & 1 == 1
                || silent
                    .clone()
                    .any(|(host, one)| shown >> host & 1 == 1 && one.has >> number & 1 == 1)
        };
        let lost = members(self.saved[new].needs).find(|need| !may_have(*need));
        if let Some(need) = lost {
            found = AfterCommit::NeedDeleted(id(need));
        }
        if !may_have(new) {
            found = AfterCommit::Deleted;
        }
        if found == AfterCommit::Kept {
            self.saved[new].is_reported = true;
            self.saved[new].is_released |= self.is_void(new);
            let mut kept = self.kept(&look, Policy::Keep) | 1 << new;
            let own = self.saved[new].version;
            let newer = members(look.good).filter(|number| self.saved[*number].version > own);
            kept |= newer.fold(0, |all, number| all | 1 << number);
            self.machines[at].kept = kept;
            let unwanted = look.good & !kept;
            let keeps = self.judged(kept);
            let plan = plan(
                &keeps,
                &self.judged(unwanted),
                look.said.as_ref(),
                Reach::Between,
            );
            if !plan.gone.is_empty() {
                self.release_older(own);
            }
            return self.delete(at, &look, &plan);
        }
        let plan = self.plan_of_own(at, &look);
        let lease = look.said.as_ref().and_then(|said| said.lease);
        let announcing = plan.announcing();
        let words = announcing.map(|plan| self.following(at, look.said.as_ref(), lease, &plan));
        let machine = &mut self.machines[at];
        machine.kept = look.good & !(1 << new);
        machine.words = words;
        Step::AnnounceOwn(0)
    }

    /// How only its own version is deleted.
    fn plan_of_own(&self, at: usize, look: &Look) -> Plan {
        let machine = &self.machines[at];
        let own = machine.new.map_or(0, |new| 1 << new);
        let keeps = self.judged((look.good | machine.kept) & !own);
        let own = self.judged(own & look.shown);
        plan(&keeps, &own, look.said.as_ref(), Reach::Named)
    }

    /// The last look before it removes its own version.
    fn list_own(&mut self, at: usize) -> Step {
        let look = self.look();
        let plan = self.plan_of_own(at, &look);
        let lease = look.said.as_ref().and_then(|said| said.lease);
        let words = self.following(at, look.said.as_ref(), lease, &plan);
        self.machines[at].words = Some(words).filter(|_| !plan.gone.is_empty());
        Step::RemoveOwn
    }

    pub(super) fn release_older(&mut self, than: u8) {
        for saved in &mut self.saved {
            saved.is_released |= saved.version < than;
        }
    }

    /// Sends a machine's words to one host, if it is there.
    pub(super) fn send(&mut self, at: usize, host: usize) {
        let words = self.machines[at].words.clone();
        let host = &mut self.hosts[host];
        if let Some(words) = words.filter(|_| !host.is_away) {
            host.hear(&words);
        }
    }

    pub(super) fn after_commits(&mut self, at: usize) -> Step {
        let new = self.machines[at].new.unwrap_or_default();
        if !self.hosts.iter().any(|host| host.has >> new & 1 == 1) {
            return Step::End;
        }
        Step::LookAgain
    }

    pub(super) fn step(&mut self, at: usize) {
        let step = self.machines[at].step;
        let next = |host: usize, next: fn(usize) -> Step, last: Step| match host + 1 {
            HOSTS => last,
            host => next(host),
        };
        let after = match step {
            Step::Begin => self.begin(at),
            Step::Commit(host) => {
                let new = self.machines[at].new.unwrap_or_default();
                let one = &mut self.hosts[host];
                if !one.is_away {
                    one.has |= 1 << new;
                }
                match next(host, Step::Commit, Step::LookAgain) {
                    Step::LookAgain => self.after_commits(at),
                    other => other,
                }
            }
            Step::Renew => {
                (0..HOSTS).for_each(|host| self.send(at, host));
                Step::LookAgain
            }
            Step::LookAgain => self.look_again(at),
            Step::AnnounceOwn(host) => {
                self.send(at, host);
                next(host, Step::AnnounceOwn, Step::ListOwn)
            }
            Step::ListOwn => self.list_own(at),
            Step::RemoveOwn => {
                (0..HOSTS).for_each(|host| self.send(at, host));
                let machine = &mut self.machines[at];
                match std::mem::replace(&mut machine.is_second, true) {
                    true => Step::End,
                    false => {
                        machine.kept = 0;
                        Step::Begin
                    }
                }
            }
            Step::Announce(host) => {
                self.send(at, host);
                next(host, Step::Announce, Step::ListAgain)
            }
            Step::ListAgain => self.list_again(at),
            Step::Delete(host) => {
                self.send(at, host);
                next(host, Step::Delete, Step::End)
            }
            Step::End => Step::End,
        };
        let machine = &mut self.machines[at];
        match after {
            Step::End => machine.end_act(),
            other => machine.step = other,
        }
    }
}
