//! What an owner says of a job: for how long its checkpoints are kept, and which are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use codec::grant::Rights;
use codec::manifest::Format;
use codec::notice::{Intervals, Lease, Notice, Words, agreed_clock};
use codec::{CheckpointId, JobId, JobTag};
use protocol::wire::Code;
use tokio::task::JoinSet;

use super::gather::{Gathered, Patience};
use super::{Agent, unix_millis, unix_seconds};
use crate::core::{Fault, HostIndex};
use crate::inventory::OpenedCheckpoint;
use crate::report::{ExitStatus, Failure, GarbageItem, GcReport, TouchReport};

/// Seconds after its beginning from which on a save is not being committed any more.
const SETTLED_S: u64 = 2 * 86_400;

/// For how long the checkpoints of a job are to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenure {
    /// Until they are removed.
    Forever,
    /// This long from now, and from each later save.
    For(Duration),
}

impl Tenure {
    fn lease(self) -> Option<Lease> {
        match self {
            Self::Forever => None,
            Self::For(time) => Some(Lease::from(unix_seconds(), time.as_secs().max(1))),
        }
    }
}

/// The lease that begins now: as it is wished or, without a wish, as long as the last one.
pub(super) fn renewed(last: Option<&Notice>, wish: Option<Tenure>) -> Option<Lease> {
    wish.map_or_else(
        || {
            let last = last.and_then(|last| last.words().lease)?;
            Some(Lease::from(unix_seconds(), last.ttl_s))
        },
        Tenure::lease,
    )
}

impl Agent {
    /// Tells hosts the job's lease and what is gone of it, and returns who did not hear.
    pub(super) async fn tell(
        &self,
        hosts: impl IntoIterator<Item = HostIndex>,
        job_tag: JobTag,
        last: Option<&Notice>,
        lease: Option<Lease>,
        gone: &[CheckpointId],
    ) -> Vec<(HostIndex, Fault)> {
        if self.keys.grant().is_some() {
            return self.forget_each(hosts, gone).await;
        }
        let job = (self.keys.owner(), job_tag);
        let none = Intervals::default();
        let last = last.map(Notice::words);
        let words = Words::following(last, job, unix_millis(), lease, gone, &none);
        let signed = Notice::sign(&self.keys, Format::One, &[], &words);
        let hosts: BTreeSet<HostIndex> = hosts.into_iter().collect();
        let notice = match signed {
            Ok(notice) => notice,
            Err(cause) => {
                let failed = |host| (host, Fault::Lied(cause.to_string()));
                return hosts.into_iter().map(failed).collect();
            }
        };
        let mut asking = JoinSet::new();
        for host in hosts {
            let (hosts, notice, gone) = (self.hosts.clone(), notice.clone(), gone.to_vec());
            asking.spawn(async move {
                let mut heard = hosts.notice(host, &notice).await;
                let is_unknown = |fault: &Fault| fault.is_refused_as(Code::BadRequest);
                if heard.as_ref().is_err_and(is_unknown) {
                    // An earlier program, which knows no notices: what is gone goes one by one.
                    heard = Ok(());
                    for checkpoint in gone {
                        heard = heard.and(hosts.forget(host, checkpoint).await.map(|_| ()));
                    }
                }
                (host, heard)
            });
        }
        let answers = asking.join_all().await.into_iter();
        let mut silent: Vec<_> = answers
            .filter_map(|(host, heard)| Some((host, heard.err()?)))
            .collect();
        silent.sort_by_key(|(host, _)| *host);
        silent
    }

    /// Renews or changes for how long a job's checkpoints are kept.
    ///
    /// # Errors
    /// When no host answers, or the job has no checkpoint.
    pub async fn touch(&self, job: &JobId, wish: Option<Tenure>) -> Result<TouchReport, Failure> {
        let doing = format!("cannot touch job {job}");
        let job_tag = self.job_tag(job)?;
        self.needs_owner(&doing)?;
        let mut gathered = self.gather(Some(job_tag), Patience::All).await;
        self.somebody(&gathered, &doing)?;
        if gathered.inventory.newest_first().is_empty() {
            let failure = Failure::new(ExitStatus::NotFound, format!("{doing}: no checkpoint"));
            return Err(failure.next("ckpt list"));
        }
        let lease = renewed(gathered.notice.as_ref(), wish);
        let hosts: Vec<HostIndex> = gathered.hosts().collect();
        let last = gathered.notice.clone();
        let deaf = self.tell(hosts, job_tag, last.as_ref(), lease, &[]).await;
        self.somebody_heard(&gathered, &deaf, &doing)?;
        let all = gathered.inventory.newest_first();
        let unheard = self.unheard(&gathered, &deaf, &all);
        gathered.silent.extend(deaf);
        Ok(TouchReport {
            job: job.clone(),
            kept_until: lease.map(|lease| lease.until),
            silent: self.silent_notes(&gathered),
            unheard,
        })
    }

    /// Finds what is kept for nothing, and removes it unless it is only asked for.
    ///
    /// # Errors
    /// When no host answers.
    pub async fn gc(&self, keep: Option<u32>, dry_run: bool) -> Result<GcReport, Failure> {
        let doing = "cannot look for garbage";
        if !dry_run {
            self.needs(Rights::REMOVE, doing)?;
        }
        let (mut gathered, opened) = self.find_all(doing, None).await?;
        let tags: BTreeSet<JobTag> = gathered
            .inventory
            .newest_first()
            .iter()
            .map(|known| known.manifest.public().job_tag)
            .collect();
        let (clock, notices) = self.all_notices(&gathered, &tags).await;
        let everybody_answered = gathered.silent.is_empty();
        let mut garbage: BTreeMap<JobTag, Vec<CheckpointId>> = BTreeMap::new();
        let mut items = Vec::new();
        let mut ages: BTreeMap<JobTag, usize> = BTreeMap::new();
        // What later versions refer to.
        let mut needed = BTreeSet::new();
        // Newest first within each job.
        for one in opened.iter().rev().filter(|one| !one.is_void) {
            let public = one.known.manifest.public();
            let age = ages.entry(public.job_tag).or_default();
            let notice = notices.get(&public.job_tag);
            let is_needed = needed.contains(&public.checkpoint);
            let keep = keep.filter(|_| !is_needed);
            let Some(why) = why_garbage(one, notice, clock, *age, keep, everybody_answered) else {
                let inventory = &gathered.inventory;
                *age += usize::from(inventory.is_restorable(&self.keys, &one.known));
                needed.extend(one.summary.tail.base.map(|base| base.checkpoint));
                continue;
            };
            let ids = garbage.entry(public.job_tag).or_default();
            ids.push(public.checkpoint);
            items.push(GarbageItem {
                job: one.summary.job.clone(),
                version: one.known.version(),
                checkpoint: public.checkpoint,
                why,
                shards: one.known.holders.len(),
                bytes: public.block_bytes * one.known.holders.len() as u64,
            });
        }
        let mut unheard = Vec::new();
        if !dry_run && !garbage.is_empty() {
            let deaf = self.tell_gone(&gathered, &notices, &garbage).await;
            self.somebody_heard(&gathered, &deaf, "cannot remove garbage")?;
            let ids = garbage.values().flatten();
            let about: Vec<_> = ids.filter_map(|id| gathered.inventory.get(*id)).collect();
            unheard = self.unheard(&gathered, &deaf, &about);
            gathered.silent.extend(deaf);
        }
        Ok(GcReport {
            dry_run,
            garbage: items,
            silent: self.silent_notes(&gathered),
            unheard,
        })
    }

    /// Tells all hosts that answered what is gone of some jobs. Returns who did not hear of one of
    /// them at least.
    async fn tell_gone(
        &self,
        gathered: &Gathered,
        notices: &BTreeMap<JobTag, Notice>,
        garbage: &BTreeMap<JobTag, Vec<CheckpointId>>,
    ) -> Vec<(HostIndex, Fault)> {
        let mut all = BTreeMap::new();
        for (job_tag, ids) in garbage {
            let last = notices.get(job_tag);
            let lease = last.and_then(|last| last.words().lease);
            let hosts = gathered.hosts();
            all.extend(self.tell(hosts, *job_tag, last, lease, ids).await);
        }
        all.into_iter().collect()
    }

    /// The last notice of each job, and a clock that is not later than most hosts'.
    async fn all_notices(
        &self,
        gathered: &Gathered,
        tags: &BTreeSet<JobTag>,
    ) -> (u64, BTreeMap<JobTag, Notice>) {
        let owner = self.keys.owner();
        let jobs: Vec<_> = tags.iter().map(|tag| (owner, *tag)).collect();
        let mut asking = JoinSet::new();
        for host in gathered.hosts() {
            let (hosts, jobs) = (self.hosts.clone(), jobs.clone());
            asking.spawn(async move { hosts.notices(host, &jobs).await });
        }
        let (own, mut clocks) = (unix_seconds(), Vec::new());
        let mut notices = BTreeMap::new();
        for (clock, heard) in asking.join_all().await.into_iter().flatten() {
            clocks.push(clock);
            for notice in heard {
                enter_newer(&mut notices, notice);
            }
        }
        (agreed_clock(own, clocks).unwrap_or(own), notices)
    }
}

fn enter_newer(notices: &mut BTreeMap<JobTag, Notice>, notice: Notice) {
    let words = notice.words();
    let known = notices.get(&words.job_tag);
    if known.is_none_or(|known| known.words().number < words.number) {
        notices.insert(words.job_tag, notice);
    }
}

/// Why a checkpoint is kept for nothing, if it is; `age` newer ones of its job are not.
fn why_garbage(
    one: &OpenedCheckpoint,
    notice: Option<&Notice>,
    clock: u64,
    age: usize,
    keep: Option<u32>,
    everybody_answered: bool,
) -> Option<&'static str> {
    let words = notice.map(Notice::words);
    let id = one.known.manifest.public().checkpoint;
    if words.is_some_and(|words| words.gone.contains(&id)) {
        return Some("deleted, but a host was away");
    }
    let lease = words.and_then(|words| words.lease);
    if lease.is_some_and(|lease| lease.until <= clock) {
        return Some("its lease is over");
    }
    // A save that is just being committed is not known to all its hosts.
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
