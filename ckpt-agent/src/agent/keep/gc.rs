//! Finds and removes what is kept for nothing.

use std::collections::{BTreeMap, BTreeSet};

use codec::grant::Rights;
use codec::notice::Words;
use codec::{CheckpointId, JobId, JobTag};

use crate::agent::Agent;
use crate::agent::ask::gather::Gathered;
use crate::agent::keep::notices::LeaseChange;
use crate::core::gather::Wait;
use crate::core::retention::{Checkpoint, Plan, Reach, plan};
use crate::core::{Fault, HostIndex};
use crate::inventory::OpenedCheckpoint;
use crate::report::{Failure, GarbageItem, GcReport};
use crate::unix_time::unix_millis;

/// A save that began longer ago than this is not being committed any more, seconds.
const SETTLED_S: u64 = 2 * 86_400;

/// What becomes of checkpoints that are kept for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposal {
    /// They are listed and stay.
    Show,
    /// They are listed and removed.
    Remove,
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
    keeps: Vec<Checkpoint>,
    unwanted: Vec<Checkpoint>,
    /// Why the unwanted ones are.
    why: BTreeMap<CheckpointId, &'static str>,
}

impl Agent {
    /// Finds checkpoints that are kept for nothing, and removes them if that is wanted. With `keep`, all but
    /// that many of the newest versions of each job count as such.
    ///
    /// # Errors
    /// When no host answers.
    pub async fn gc(&self, keep: Option<u32>, disposal: Disposal) -> Result<GcReport, Failure> {
        if disposal == Disposal::Remove {
            self.needs(Rights::REMOVE, "cannot look for garbage")?;
        }
        let first = self.look_for_garbage(keep).await?;
        let plans = first.plans(None, keep);
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
        let second = self.look_for_garbage(keep).await?;
        let plans = second.plans(Some((&first, &plans)), keep);
        let failed = self.announce_gone(&second, &plans).await?;
        if plans.values().any(|plan| !plan.gone.is_empty()) {
            self.require_heard(&second.gathered, &failed, "cannot remove garbage")?;
        }
        Ok(self.gc_report(&second, &plans, disposal, &failed))
    }

    async fn look_for_garbage(&self, keep: Option<u32>) -> Result<Look, Failure> {
        let doing = "cannot look for garbage";
        let (gathered, opened) = self.show_all(doing, None).await?;
        let asked_at = unix_millis();
        let (clock, notices) = self.all_notices(&gathered, doing).await?;
        let everybody_answered = gathered.away() == 0;
        let mut jobs: BTreeMap<JobTag, JobLook> = BTreeMap::new();
        let mut ages: BTreeMap<JobTag, usize> = BTreeMap::new();
        // Newest first within each job.
        for one in opened.iter().rev().filter(|one| !one.is_void) {
            let public = one.known.manifest.public();
            let age = ages.entry(public.job_tag).or_default();
            let notice = notices.get(&public.job_tag);
            let why = why_garbage(one, notice, clock, *age, keep, everybody_answered);
            let job = jobs.entry(public.job_tag).or_default();
            let checkpoint = self.judged(&one.known);
            let Some(why) = why else {
                let inventory = &gathered.inventory;
                *age += usize::from(inventory.is_restorable(&self.keys, &one.known));
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
        for known in gathered.inventory.newest_first() {
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

    fn gc_report(
        &self,
        look: &Look,
        plans: &BTreeMap<JobTag, Plan>,
        disposal: Disposal,
        failed: &[(HostIndex, Fault)],
    ) -> GcReport {
        let gone = plans.values().flat_map(|plan| &plan.gone);
        let gone: BTreeSet<CheckpointId> = gone.map(|stamp| stamp.checkpoint).collect();
        let is_gone =
            |one: &&OpenedCheckpoint| gone.contains(&one.known.manifest.public().checkpoint);
        let garbage: Vec<&OpenedCheckpoint> = look.opened.iter().rev().filter(is_gone).collect();
        let about: Vec<_> = garbage.iter().map(|one| &*one.known).collect();
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
        let mut silent = self.silent_notes(&look.gathered);
        silent.extend(self.notes(failed));
        GcReport {
            dry_run: disposal == Disposal::Show,
            garbage: garbage.iter().map(|one| look.item(one)).collect(),
            notes: stopped.collect(),
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
        keep: Option<u32>,
    ) -> BTreeMap<JobTag, Plan> {
        let reach = match keep {
            Some(_) => self.gathered.reach(),
            None => Reach::Named,
        };
        let plans = self.jobs.iter().map(|(tag, job)| {
            let mut keeps = job.keeps.clone();
            let mut unwanted = job.unwanted.clone();
            if let Some((first, announced)) = before {
                let first = first.jobs.get(tag);
                keeps.extend(first.iter().flat_map(|first| first.keeps.iter().cloned()));
                let announced = announced.get(tag);
                unwanted.retain(|one| announced.is_some_and(|plan| plan.gone.contains(&one.stamp)));
            }
            (*tag, plan(&keeps, &unwanted, self.notices.get(tag), reach))
        });
        plans.collect()
    }

    /// The name of a job.
    fn job(&self, tag: JobTag) -> Option<&JobId> {
        let mut all = self.opened.iter();
        let one = all.find(|one| one.known.manifest.public().job_tag == tag)?;
        Some(&one.summary.job)
    }

    fn item(&self, one: &OpenedCheckpoint) -> GarbageItem {
        let public = one.known.manifest.public();
        let job = self.jobs.get(&public.job_tag);
        let why = job.and_then(|job| job.why.get(&public.checkpoint));
        GarbageItem {
            job: one.summary.job.clone(),
            version: one.known.version(),
            checkpoint: public.checkpoint,
            why: why.copied().unwrap_or_default(),
            shards: one.known.holders.len(),
            bytes: public.block_bytes * one.known.holders.len() as u64,
        }
    }
}

/// Why a checkpoint is kept for nothing, if it is. There are `age` newer ones of its job that are not.
fn why_garbage(
    one: &OpenedCheckpoint,
    words: Option<&Words>,
    clock: u64,
    age: usize,
    keep: Option<u32>,
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
    if keep.is_some_and(|keep| age >= keep as usize) {
        return Some("superseded");
    }
    None
}
