//! Notices of an owner on a job: how long its checkpoints are kept, and which ones are deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use codec::notice::{GONE_MAX, Interval, Lease, Notice, Words, agreed_clock};
use codec::scope::Blinded;
use codec::{CheckpointId, JobId, JobTag};
use tokio::task::JoinSet;

use crate::agent::ask::gather::Gathered;
use crate::agent::{Agent, Tenure, Which};
use crate::core::gather::Wait;
use crate::core::gather::WaitUntil;
use crate::core::retention::Plan;
use crate::core::sought::Sought;
use crate::core::{Fault, HostIndex};
use crate::report::{ExitStatus, Failure, TouchReport};
use crate::unix_time::{unix_millis, unix_seconds};

/// One in this many bytes of the memory is for the notices of all jobs.
const MEMORY_SHARE: u64 = 8;

/// What a notice does with the lease of its job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaseChange {
    /// It states the last one again. It does not outrank a notice that was made after this time, Unix milliseconds,
    /// and has another one: hosts were then asked for the last one.
    Same { asked_at: u64 },
    /// It states this one. `None` is for ever.
    To(Option<Lease>),
}

impl LeaseChange {
    /// The lease, and the time that counts for the number of the notice, Unix milliseconds.
    fn after(self, last: Option<&Words>) -> (Option<Lease>, u64) {
        match self {
            Self::Same { asked_at } => {
                let lease = last.and_then(|last| last.lease);
                (lease, Words::restated_at(last, asked_at))
            }
            Self::To(lease) => (lease, unix_millis()),
        }
    }
}

/// The lease that begins now: as the user wishes or, without a wish, as long as the last one.
pub(crate) fn renewed(last: Option<&Words>, wish: Option<Tenure>) -> Option<Lease> {
    wish.map_or_else(
        || {
            let last = last.and_then(|last| last.lease)?;
            Some(Lease::from(unix_seconds(), last.ttl_s))
        },
        Tenure::lease,
    )
}

/// A job as it is named in notices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NamedJob {
    pub(crate) tag: JobTag,
    path: Vec<Blinded>,
}

impl Agent {
    /// The job, as notices name it.
    pub(crate) fn named_job(&self, job: &JobId) -> Result<NamedJob, Failure> {
        let tag = self.job_tag(job)?;
        let path = self.keys.tag_and_path(job).map(|(_, path)| path.blinded());
        Ok(NamedJob {
            tag,
            path: path.unwrap_or_default(),
        })
    }

    /// Announces to hosts the job's lease and its deleted checkpoints, and returns the hosts that did not
    /// hear. A notice names a bounded number of checkpoints, so there may be several, one after the other.
    /// Each of them has all intervals.
    pub(crate) async fn announce(
        &self,
        hosts: impl IntoIterator<Item = HostIndex>,
        named: &NamedJob,
        last: Option<&Words>,
        lease: LeaseChange,
        plan: &Plan,
    ) -> Vec<(HostIndex, Fault)> {
        let hosts = hosts.into_iter().collect();
        self.announce_to(hosts, named, last, lease, plan, Wait::ForAll)
            .await
    }

    /// Like [`Self::announce`], but `wait` decides which hosts are waited for.
    pub(crate) async fn announce_to(
        &self,
        hosts: BTreeSet<HostIndex>,
        named: &NamedJob,
        last: Option<&Words>,
        lease: LeaseChange,
        plan: &Plan,
        wait: Wait,
    ) -> Vec<(HostIndex, Fault)> {
        let mut failed = BTreeMap::new();
        let mut last = last.cloned();
        let job = (self.keys.owner(), named.tag);
        let ids: Vec<CheckpointId> = plan.gone.iter().map(|stamp| stamp.checkpoint).collect();
        let mut some = ids.chunks(GONE_MAX);
        let mut next = Some(some.next().unwrap_or_default());
        while let Some(ids) = next {
            let (lease, now) = lease.after(last.as_ref());
            let intervals = &plan.intervals;
            let words = Words::following(last.as_ref(), job, now, lease, ids, intervals);
            failed.extend(self.announce_one(&hosts, named, &words, ids, wait).await);
            last = Some(words);
            next = some.next();
        }
        failed.into_iter().collect()
    }

    /// Announces to hosts that something of the job is about to be deleted, by a notice on checkpoints that
    /// nobody has. A save that reads the notices after its commit then knows that whoever deletes may not have
    /// seen it. A job key can't sign a notice, and announces nothing.
    pub(crate) async fn announce_deletion(
        &self,
        hosts: impl IntoIterator<Item = HostIndex>,
        named: &NamedJob,
        (last, asked_at): (Option<&Words>, u64),
        plan: &Plan,
        wait: Wait,
    ) {
        let announced = plan.announcing();
        let Some(announced) = announced.filter(|_| self.keys.grant().is_none()) else {
            return;
        };
        let lease = LeaseChange::Same { asked_at };
        let hosts = hosts.into_iter().collect();
        // A host that does not hear of this will most likely not hear of the deletion either.
        let _ = self
            .announce_to(hosts, named, last, lease, &announced, wait)
            .await;
    }

    async fn announce_one(
        &self,
        hosts: &BTreeSet<HostIndex>,
        named: &NamedJob,
        words: &Words,
        gone: &[CheckpointId],
        wait: Wait,
    ) -> Vec<(HostIndex, Fault)> {
        if self.keys.grant().is_some() {
            return self.forget_each(hosts, gone, wait).await.failed;
        }
        let signed = Notice::sign(&self.keys, &named.path, words);
        let signed = signed.map_err(|cause| Fault::Lied(cause.to_string()));
        let mut asking = JoinSet::new();
        for host in hosts.iter().copied() {
            let hosts = self.hosts.clone();
            let signed = signed.clone();
            asking.spawn(async move {
                let heard = match signed {
                    Ok(notice) => hosts.notice(host, &notice).await,
                    Err(fault) => Err(fault),
                };
                (host, heard)
            });
        }
        wait.answers(hosts, asking).await
    }

    /// Renews or changes the lease of a job's checkpoints.
    ///
    /// # Errors
    /// When no host answers, or the job has no checkpoint.
    pub async fn touch(&self, job: &JobId, wish: Option<Tenure>) -> Result<TouchReport, Failure> {
        let doing = format!("cannot touch job {job}");
        let named = self.named_job(job)?;
        self.needs_owner(&doing)?;
        let mut gathered = self.gather(Some(named.tag), WaitUntil::ALL).await;
        self.require_answers(&gathered, &doing)?;
        if gathered.inventory.newest_first().is_empty() {
            let job_tag = Some(named.tag);
            let all = Sought::default();
            return Err(self.not_found(&doing, Which::Newest, &all, job_tag, &gathered));
        }
        let lease = renewed(gathered.said.as_ref(), wish);
        let hosts: Vec<HostIndex> = gathered.hosts().collect();
        let last = gathered.said.clone();
        let nothing = Plan::default();
        let failed = self
            .announce(
                hosts,
                &named,
                last.as_ref(),
                LeaseChange::To(lease),
                &nothing,
            )
            .await;
        self.require_heard(&gathered, &failed, &doing)?;
        let all = gathered.inventory.newest_first();
        let unheard = self.unheard(&gathered, &failed, &all);
        gathered.silent.extend(failed);
        Ok(TouchReport {
            job: job.clone(),
            kept_until: lease.map(|lease| lease.until),
            silent: self.silent_notes(&gathered),
            unheard,
        })
    }

    /// The notices on each job that hosts show, merged into one, and a clock that is not later than most
    /// hosts'.
    ///
    /// # Errors
    /// When the notices do not fit into memory.
    pub(crate) async fn all_notices(
        &self,
        gathered: &Gathered,
        doing: &str,
    ) -> Result<(u64, BTreeMap<JobTag, Words>), Failure> {
        let owner = self.keys.owner();
        let all = gathered.inventory.newest_first();
        let tags = all.iter().map(|known| known.manifest.public().job_tag);
        let mut tags: BTreeSet<JobTag> = tags.collect();
        tags.extend(self.own_sightings().into_keys());
        let jobs: Arc<Vec<_>> = Arc::new(tags.iter().map(|tag| (owner, *tag)).collect());
        let heard = Arc::new(Mutex::new(MergedNotices::new(
            self.resources.memory_bytes / MEMORY_SHARE,
        )));
        let mut asking = JoinSet::new();
        for host in gathered.hosts() {
            let mut hearing = self.hosts.fetch_notices(host, Arc::clone(&jobs));
            let heard = Arc::clone(&heard);
            asking.spawn(async move {
                while let Ok(Some(notice)) = hearing.next().await {
                    let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                    if !heard.enter(notice.words()) {
                        break;
                    }
                }
                hearing.clock()
            });
        }
        let clocks = asking.join_all().await.into_iter().flatten().collect();
        let heard = std::mem::take(&mut *heard.lock().unwrap_or_else(PoisonError::into_inner));
        if heard.is_too_much {
            let memory = self.resources.memory_bytes >> 20;
            let what = format!("{doing}: the notices of all jobs do not fit into {memory} MiB");
            let failure = Failure::new(ExitStatus::Failed, what);
            return Err(failure.next("a larger --memory; or fewer checkpoints: --job"));
        }
        let own = unix_seconds();
        Ok((agreed_clock(own, clocks).unwrap_or(own), heard.by_job))
    }
}

/// The words of the owner on each job, merged from the notices of all hosts.
#[derive(Debug, Default)]
struct MergedNotices {
    by_job: BTreeMap<JobTag, Words>,
    bytes: u64,
    bytes_max: u64,
    is_too_much: bool,
}

impl MergedNotices {
    fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            ..Self::default()
        }
    }

    /// Merges a notice in, and returns whether there is room for more.
    fn enter(&mut self, words: &Words) -> bool {
        let said = self.by_job.get(&words.job_tag);
        let before = said.map_or(0, memory_of);
        let said = said.map_or_else(|| words.clone(), |said| said.and(words));
        let bytes = self.bytes.saturating_sub(before) + memory_of(&said);
        self.is_too_much |= bytes > self.bytes_max;
        if !self.is_too_much {
            self.bytes = bytes;
            self.by_job.insert(words.job_tag, said);
        }
        !self.is_too_much
    }
}

/// Memory that a job's words take, bytes; an estimate.
fn memory_of(words: &Words) -> u64 {
    let lists = size_of_val(words.gone.as_slice()) + words.intervals.len() * size_of::<Interval>();
    (2 * size_of::<Words>() + lists) as u64
}

#[cfg(test)]
mod tests {
    use codec::OwnerId;
    use codec::notice::{Intervals, Stamp};

    use super::*;

    fn words(job: u8, number: u64, gone: u8) -> Words {
        let stamps = [gone, gone + 100].map(|at| Stamp {
            created: at.into(),
            checkpoint: CheckpointId([at; 16]),
        });
        Words {
            owner: OwnerId([1; 32]),
            job_tag: JobTag([job; 32]),
            number,
            lease: None,
            gone: vec![CheckpointId([gone; 16])],
            intervals: Intervals::default().with(&stamps[..1]),
        }
    }

    #[test]
    fn notices_from_many_hosts_are_kept_once_and_within_the_memory() {
        let each = memory_of(&words(1, 1, 1));
        let mut heard = MergedNotices::new(10 * each);
        for _ in 0..1000 {
            assert!(heard.enter(&words(1, 1, 1)));
        }
        assert_eq!(heard.bytes, each);
        assert!(heard.enter(&words(1, 2, 2)), "what another host heard");
        assert_eq!(heard.by_job[&JobTag([1; 32])].gone.len(), 2);
        let jobs = (2..100).take_while(|job| heard.enter(&words(*job, 1, 1)));
        let jobs = jobs.count();
        assert!((5..10).contains(&jobs), "{jobs}");
        assert!(heard.is_too_much && heard.bytes <= heard.bytes_max);
    }
}
