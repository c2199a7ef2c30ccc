//! Finds and removes what is kept for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use codec::grant::Rights;
use codec::notice::{Stamp, Words};
use codec::{CheckpointId, JobId, JobTag};
use protocol::wire::limits::UNCOMMITTED_LIFETIME;

use crate::agent::Agent;
use crate::agent::ask::gather::Gathered;
use crate::agent::keep::notices::LeaseChange;
use crate::core::gather::Wait;
use crate::core::retention::{Checkpoint, Contents, Plan, Reach, plan};
use crate::core::{Fault, HostIndex};
use crate::inventory::{KnownCheckpoint, OpenedCheckpoint};
use crate::report::{Failure, GarbageItem, GcReport};
use crate::unix_time::unix_millis;

/// A save that began longer ago than this is not being committed any more, seconds.
const SETTLED_S: u64 = 2 * 86_400;

/// What becomes of checkpoints that a command chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposal {
    /// They are listed and stay.
    Show,
    /// They are listed and removed.
    Remove,
}

impl Disposal {
    /// That of a command with or without `--dry-run`.
    pub const fn of(dry_run: bool) -> Self {
        if dry_run { Self::Show } else { Self::Remove }
    }
}

/// Which versions of each job are garbage although they can be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superseded {
    /// This many of the newest versions are none.
    pub keep: u32,
    /// Nor are those that were saved within this time.
    pub older_than: Duration,
}

/// What hosts show of all jobs, and what of it is unwanted.
struct Look {
    gathered: Gathered,
    opened: Vec<OpenedCheckpoint>,
    notices: BTreeMap<JobTag, Words>,
    /// When hosts were asked for the notices, Unix milliseconds.
    asked_at: u64,
    jobs: BTreeMap<JobTag, JobLook>,
}

/// What hosts show of one job, divided.
#[derive(Default)]
struct JobLook {
    /// `None` if nothing of the job can be opened.
    name: Option<JobId>,
    keeps: Vec<Checkpoint>,
    unwanted: Vec<Checkpoint>,
    /// Why the unwanted ones are.
    why: BTreeMap<CheckpointId, &'static str>,
}

impl Agent {
    /// Finds checkpoints that are kept for nothing, and removes them if that is wanted. `superseded` versions count
    /// as such.
    ///
    /// # Errors
    /// When no host answers.
    pub async fn gc(
        &self,
        superseded: Option<Superseded>,
        disposal: Disposal,
    ) -> Result<GcReport, Failure> {
        if disposal == Disposal::Remove {
            self.needs(Rights::REMOVE, "cannot look for garbage")?;
        }
        let first = self.look_for_garbage(superseded).await?;
        let plans = first.plans(None, superseded);
        if disposal == Disposal::Show || plans.values().all(|plan| plan.gone.is_empty()) {
            return Ok(self.gc_report(&first, &plans, disposal, &[]));
        }
        for (tag, plan) in plans.iter().filter(|(_, plan)| !plan.gone.is_empty()) {
            let Some(job) = first.job(*tag) else { continue };
            let named = self.named_job(job)?;
            let last = (first.notices.get(tag), first.asked_at);
            let hosts = first.gathered.hosts();
            self.announce_deletion(hosts, &named, last, plan, Wait::ForAll)
                .await;
        }
        // What was saved in between may need something that was unwanted before.
        let second = self.look_for_garbage(superseded).await?;
        let plans = second.plans(Some((&first, &plans)), superseded);
        let failed = self.announce_gone(&second, &plans).await?;
        if plans.values().any(|plan| !plan.gone.is_empty()) {
            self.require_heard(&second.gathered, &failed, "cannot remove garbage")?;
        }
        Ok(self.gc_report(&second, &plans, disposal, &failed))
    }

    async fn look_for_garbage(&self, superseded: Option<Superseded>) -> Result<Look, Failure> {
        let doing = "cannot look for garbage";
        let (gathered, opened) = self.show_all(doing, None).await?;
        let asked_at = unix_millis();
        let (clock, notices) = self.all_notices(&gathered, doing).await?;
        let everybody_answered = gathered.away() == 0;
        let mut jobs = self.left_by_void_keys(&gathered);
        let mut ages: BTreeMap<JobTag, usize> = BTreeMap::new();
        // Newest first within each job.
        for one in opened.iter().rev().filter(|one| !one.is_void) {
            let public = one.known.manifest.public();
            let age = ages.entry(public.job_tag).or_default();
            let notice = notices.get(&public.job_tag);
            let why = why_garbage(one, notice, clock, *age, superseded, everybody_answered);
            let job = jobs.entry(public.job_tag).or_default();
            let checkpoint = self.judged(&one.known);
            let Some(why) = why else {
                let inventory = &gathered.inventory;
                let is_version = !one.brief.is_remnant && inventory.is_restorable(&one.known);
                *age += usize::from(is_version);
                job.keeps.push(checkpoint);
                continue;
            };
            job.unwanted.push(checkpoint);
            job.why.insert(public.checkpoint, why);
        }
        let opened_ids: BTreeSet<CheckpointId> = opened
            .iter()
            .map(|one| one.known.manifest.public().checkpoint)
            .collect();
        for one in &opened {
            let job = jobs.get_mut(&one.known.manifest.public().job_tag);
            if let Some(job) = job.filter(|job| job.name.is_none()) {
                job.name = Some(one.brief.job.clone());
            }
        }
        for known in gathered.inventory.newest_and_remnants() {
            let public = known.manifest.public();
            let job = jobs.get_mut(&public.job_tag);
            if let Some(job) = job.filter(|_| !opened_ids.contains(&public.checkpoint)) {
                job.keeps.push(self.judged(known));
            }
        }
        Ok(Look {
            gathered,
            opened,
            notices,
            asked_at,
            jobs,
        })
    }

    /// What was signed with job keys that are void: garbage, unless the only version of its job is among it.
    fn left_by_void_keys(&self, gathered: &Gathered) -> BTreeMap<JobTag, JobLook> {
        let inventory = &gathered.inventory;
        let good = inventory.newest_first().into_iter();
        let good = good.filter(|known| inventory.is_restorable(known));
        let has_good: BTreeSet<JobTag> =
            good.map(|known| known.manifest.public().job_tag).collect();
        let mut jobs: BTreeMap<JobTag, JobLook> = BTreeMap::new();
        for known in inventory.void() {
            let public = known.manifest.public();
            if known.can_lose().is_some() && !has_good.contains(&public.job_tag) {
                continue;
            }
            let job = jobs.entry(public.job_tag).or_default();
            // What a thief of a job key signed need not open.
            job.unwanted.push(Checkpoint {
                contents: Some(Contents::default()),
                ..self.judged(known)
            });
            job.why.insert(public.checkpoint, VOID);
        }
        jobs
    }

    fn gc_report(
        &self,
        look: &Look,
        plans: &BTreeMap<JobTag, Plan>,
        disposal: Disposal,
        failed: &[(HostIndex, Fault)],
    ) -> GcReport {
        let gone = plans.values().flat_map(|plan| &plan.gone);
        let gone: BTreeSet<CheckpointId> = gone.map(|stamp| stamp.checkpoint).collect();
        let is_gone = |known: &KnownCheckpoint| gone.contains(&known.stamp().checkpoint);
        let opened = look.opened.iter().rev().map(|one| &*one.known);
        // What a thief of a job key signed need not open.
        let void = look.gathered.inventory.void();
        let unopened = void.filter(|known| known.manifest.brief().is_err());
        let about: Vec<&KnownCheckpoint> =
            opened.chain(unopened).filter(|one| is_gone(one)).collect();
        let unheard = match disposal {
            Disposal::Remove if !about.is_empty() => self.unheard(&look.gathered, failed, &about),
            Disposal::Remove | Disposal::Show => Vec::new(),
        };
        let stopped = plans.iter().filter_map(|(tag, plan)| {
            plan.stopped_by?;
            let job = look.job(*tag)?;
            Some(format!(
                "job {job}: nothing is removed, because one of its versions can't be opened: perhaps a newer \
                 program saved it"
            ))
        });
        let mut notes: Vec<String> = stopped.collect();
        let left_out = look.gathered.inventory.left_out();
        if left_out > 0 {
            notes.push(format!(
                "{left_out} versions that were saved with job keys were left out for want of memory: again, or with a \
                 larger --memory"
            ));
        }
        let mut silent = self.silent_notes(&look.gathered);
        silent.extend(self.notes(failed));
        GcReport {
            dry_run: disposal == Disposal::Show,
            garbage: look.items(&about),
            notes,
            silent,
            unheard,
        }
    }

    /// Announces to all hosts that answered which checkpoints of some jobs are deleted. Returns the hosts
    /// that did not hear at least one of the notices.
    async fn announce_gone(
        &self,
        look: &Look,
        plans: &BTreeMap<JobTag, Plan>,
    ) -> Result<Vec<(HostIndex, Fault)>, Failure> {
        let mut all = BTreeMap::new();
        for (tag, plan) in plans.iter().filter(|(_, plan)| !plan.gone.is_empty()) {
            let Some(job) = look.job(*tag) else { continue };
            let named = self.named_job(job)?;
            let last = look.notices.get(tag);
            let asked_at = look.asked_at;
            let lease = LeaseChange::Same { asked_at };
            let hosts = look.gathered.hosts();
            all.extend(self.announce(hosts, &named, last, lease, plan).await);
        }
        Ok(all.into_iter().collect())
    }
}

impl Look {
    /// What may be deleted of each job, by this look and one `before`, of which only what was announced is
    /// deleted.
    fn plans(
        &self,
        before: Option<(&Self, &BTreeMap<JobTag, Plan>)>,
        superseded: Option<Superseded>,
    ) -> BTreeMap<JobTag, Plan> {
        let reach = match superseded {
            Some(one) if one.older_than.is_zero() => self.gathered.reach(),
            // A checkpoint that turns up later may be younger.
            Some(_) | None => Reach::Named,
        };
        let plans = self.jobs.iter().map(|(tag, job)| {
            let mut keeps = job.keeps.clone();
            let mut unwanted = job.unwanted.clone();
            if let Some((first, announced)) = before {
                let first = first.jobs.get(tag);
                keeps.extend(first.iter().flat_map(|first| first.keeps.iter().cloned()));
                let announced = announced.get(tag).into_iter();
                let announced = announced.flat_map(|plan| &plan.gone);
                let announced: BTreeSet<&Stamp> = announced.collect();
                unwanted.retain(|one| announced.contains(&one.stamp));
            }
            (*tag, plan(&keeps, &unwanted, self.notices.get(tag), reach))
        });
        plans.collect()
    }

    /// The name of a job.
    fn job(&self, tag: JobTag) -> Option<&JobId> {
        self.jobs.get(&tag)?.name.as_ref()
    }

    /// The garbage of jobs whose names are known.
    fn items(&self, garbage: &[&KnownCheckpoint]) -> Vec<GarbageItem> {
        let item = |known: &&KnownCheckpoint| {
            let public = known.manifest.public();
            let job = self.jobs.get(&public.job_tag);
            let why = job.and_then(|job| job.why.get(&public.checkpoint));
            let shards = known.holders.len();
            Some(GarbageItem {
                job: self.job(public.job_tag)?.clone(),
                version: known.version(),
                checkpoint: public.checkpoint,
                why: why.copied().unwrap_or_default(),
                shards,
                bytes: public.block_bytes.saturating_mul(shards as u64),
            })
        };
        garbage.iter().filter_map(item).collect()
    }
}

/// Why a checkpoint is kept for nothing that a void key signed.
const VOID: &str = "the job key that saved it is revoked";

/// Why a checkpoint is kept for nothing, if it is. There are `age` newer ones of its job that are not.
fn why_garbage(
    one: &OpenedCheckpoint,
    words: Option<&Words>,
    clock: u64,
    age: usize,
    superseded: Option<Superseded>,
    everybody_answered: bool,
) -> Option<&'static str> {
    let id = one.known.manifest.public().checkpoint;
    if words.is_some_and(|words| words.gone.contains(&id)) {
        return Some("deleted, but a host was away");
    }
    if words.is_some_and(|words| words.intervals.has(one.known.stamp())) {
        return Some(
            "belongs to a deleted part of the job's history: saved or brought back afterwards",
        );
    }
    let lease = words.and_then(|words| words.lease);
    if lease.is_some_and(|lease| lease.until <= clock) {
        return Some("its lease has expired");
    }
    // A save that is being committed is not yet known to all its hosts.
    let is_settled = one
        .known
        .manifest
        .public()
        .created
        .saturating_add(SETTLED_S)
        <= clock;
    if everybody_answered && is_settled && one.known.can_lose().is_none() {
        return Some("too few shards are left to restore it");
    }
    if one.brief.is_remnant {
        // What a version uses stays, whatever is said of it here.
        let created = one.known.manifest.public().created;
        let is_settled = created.saturating_add(UNCOMMITTED_LIFETIME.as_secs()) <= clock;
        return is_settled.then_some("left of an interrupted save, and no version uses it");
    }
    let created = one.known.manifest.public().created;
    let is_superseded = superseded.is_some_and(|which| {
        // Saves within a second have stamps ahead of all clocks.
        let is_old = which.older_than.is_zero()
            || created.saturating_add(which.older_than.as_secs()) <= clock;
        age >= which.keep as usize && is_old
    });
    is_superseded.then_some("superseded")
}
