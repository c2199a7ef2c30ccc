//! Commands that also see, and can remove, what retired keys saved.

use std::sync::Arc;

use codec::{JobId, Version};

use crate::commands::args::options::Global;
use crate::commands::args::{Forget, ForgetChoice, ListArgs, Restore, VerifyArgs};
use crate::commands::cat::standard_output;
use crate::commands::connect::{Connected, agent_for};
use crate::commands::key::identity;
use crate::commands::{Answer, done, heard, which};
use ckpt_agent::agent::{
    Agent, CatRequest, Depth, Disposal, ForgetWhich, HealthRequest, RestoreRequest, RestoreTarget,
    Superseded, Tenure,
};
use ckpt_agent::cancel::Cancel;
use ckpt_agent::core::sought::Sought;
use ckpt_agent::report::{
    ExitStatus, Failure, ForgetReport, HostNote, ListReport, Observer, RestoreReport,
    VerifiedCheckpoint, VerifyReport,
};
use health::JobHealth;

/// The present key, and the retired keys that still work, the newest first.
pub(crate) struct AnyKey<'a> {
    present: &'a Agent,
    retired: Vec<Agent>,
    observer: Arc<dyn Observer>,
    cancel: Cancel,
}

impl<'a> AnyKey<'a> {
    /// All keys of the connection's owner. A key that comes from a command has no retired keys beside it.
    pub(crate) async fn of(
        global: &Global,
        connected: &'a Connected,
        observer: Arc<dyn Observer>,
        cancel: Cancel,
    ) -> Self {
        let mut retired = Vec::new();
        if global.key_command.is_none() {
            for identity in identity::retired(&connected.files) {
                let mut grid = connected.grid.clone();
                match agent_for(global, &mut grid, &connected.lists, &identity).await {
                    Ok(agent) => retired.push(agent),
                    Err(cause) => {
                        tracing::warn!(%cause, "a retired key can't be used and is left out")
                    }
                }
            }
        }
        Self {
            present: &connected.agent,
            retired,
            observer,
            cancel,
        }
    }

    /// Closes the connections of the retired keys.
    pub(crate) async fn close(self) {
        for agent in self.retired {
            agent.close().await;
        }
    }

    /// The jobs that retired keys saved. What can't be read is left out, with a line in the log.
    pub(crate) async fn jobs_of_retired(&self, request: &HealthRequest) -> Vec<JobHealth> {
        let mut jobs = Vec::new();
        for agent in &self.retired {
            match agent.jobs_of_retired(request).await {
                Ok(found) => jobs.extend(found),
                Err(cause) => {
                    let cause = cause.message;
                    tracing::warn!(cause, "what a retired key saved is left out");
                }
            }
        }
        jobs
    }

    /// Restores what the present key saved or, if that is nothing, what a retired key saved. The status is
    /// `Degraded` if a newer version than the restored one is known.
    pub(crate) async fn restore(&self, job: JobId, args: Restore) -> Result<Answer, Failure> {
        let request = restore_request(job, args);
        let restore = |agent: &Agent| {
            let agent = agent.clone();
            let request = request.clone();
            let observer = Arc::clone(&self.observer);
            let cancel = self.cancel.clone();
            async move { agent.restore(request, observer, cancel).await }
        };
        let mut restored = restore(self.present).await;
        for agent in &self.retired {
            if !is_nothing(&restored) {
                break;
            }
            let more = restore(agent).await;
            if !is_nothing(&more) {
                restored = more;
            }
        }
        let report = restored?;
        let is_older = report.version.is_some() && !report.skipped.is_empty();
        let is_older = is_older || report.marked.is_some();
        Ok((Box::new(report), degraded_if(is_older)))
    }

    /// Writes what the present key saved or, if that is nothing, what a retired key saved. Nothing is
    /// written before a checkpoint is found.
    pub(crate) async fn cat(&self, request: &CatRequest) -> Result<Answer, Failure> {
        let cat = async |agent: &Agent| {
            let out = standard_output()?;
            let observer = Arc::clone(&self.observer);
            agent.cat(request, out, observer, self.cancel.clone()).await
        };
        let mut written = cat(self.present).await;
        for agent in &self.retired {
            if !is_missing(&written) {
                break;
            }
            let more = cat(agent).await;
            if !is_missing(&more) {
                written = more;
            }
        }
        let report = written?;
        let is_older = !report.skipped.is_empty();
        Ok((Box::new(report), degraded_if(is_older)))
    }

    /// Lists the checkpoints of all keys.
    pub(crate) async fn list(
        &self,
        job: Option<&JobId>,
        args: ListArgs,
    ) -> Result<Answer, Failure> {
        let sought = args.filter.sought();
        let host = args.host.as_deref();
        let mut list = self.listed(job, &sought, host).await?;
        if let Some(prefix) = args.prefix {
            list.checkpoints
                .retain(|one| one.job.as_str().starts_with(&prefix));
        }
        done(list)
    }

    /// The jobs of which checkpoints are listed; none if that fails.
    pub(crate) async fn jobs(&self) -> Vec<JobId> {
        let list = self.listed(None, &Sought::default(), None).await;
        let found = list.map(|list| list.checkpoints).unwrap_or_default();
        found.into_iter().map(|one| one.job).collect()
    }

    /// Renews or changes the lease of a job that the present key saved.
    pub(crate) async fn touch(&self, job: &JobId, ttl: Option<Tenure>) -> Result<Answer, Failure> {
        heard(self.present.touch(job, ttl).await?, |one| &one.unheard)
    }

    /// # Errors
    /// When a named job has no checkpoint, as in all other commands for a job.
    async fn listed(
        &self,
        job: Option<&JobId>,
        sought: &Sought,
        host: Option<&str>,
    ) -> Result<ListReport, Failure> {
        let mut all = self.present.list(job, sought, host).await?;
        for agent in &self.retired {
            let Ok(mut more) = agent.list(job, sought, host).await else {
                continue;
            };
            for one in &mut more.checkpoints {
                one.retired = true;
            }
            all.checkpoints.extend(more.checkpoints);
            merge(&mut all.silent, more.silent);
            all.may_be_away |= more.may_be_away;
        }
        let is_all = sought.is_all() && host.is_none();
        if let Some(job) = job.filter(|_| all.checkpoints.is_empty() && is_all) {
            let message = format!("cannot list job {job}: no checkpoint found");
            let failure = Failure::nothing_shown(message, all.may_be_away, all.silent);
            return Err(failure);
        }
        let checkpoints = &mut all.checkpoints;
        checkpoints
            .sort_by(|a, b| (&a.job, !a.retired, a.version).cmp(&(&b.job, !b.retired, b.version)));
        Ok(all)
    }

    /// Describes a checkpoint of any key.
    pub(crate) async fn show(
        &self,
        job: &JobId,
        version: Option<Version>,
    ) -> Result<Answer, Failure> {
        let which = which(version);
        let first = self.present.show(job, which).await;
        if !is_missing(&first) {
            return done(first?);
        }
        for agent in &self.retired {
            let shown = agent.show(job, which).await;
            if let Ok(mut report) = shown {
                report.checkpoint.retired = true;
                return done(report);
            }
            if !is_missing(&shown) {
                return done(shown?);
            }
        }
        done(first?)
    }

    /// Checks the shards of the checkpoints of all keys.
    pub(crate) async fn verify(
        &self,
        job: Option<&JobId>,
        args: VerifyArgs,
    ) -> Result<Answer, Failure> {
        let depth = match (args.read_data, args.sample) {
            (true, _) => Depth::All,
            (false, Some(blocks)) => Depth::Sample(blocks),
            (false, None) => Depth::Tables,
        };
        let verify = |agent: &Agent| {
            let agent = agent.clone();
            let job = job.cloned();
            let observer = Arc::clone(&self.observer);
            let cancel = self.cancel.clone();
            async move {
                let job = job.as_ref();
                agent
                    .verify(job, args.version, depth, observer, cancel)
                    .await
            }
        };
        let mut all = match verify(self.present).await {
            Err(failure) if !failure.nothing_known => return Err(failure),
            all => all,
        };
        for agent in &self.retired {
            let more = verify(agent).await;
            all = match (all, more) {
                (Ok(mut all), Ok(more)) => {
                    all.checkpoints.extend(more.checkpoints);
                    all.gaps.extend(more.gaps);
                    all.read_bytes += more.read_bytes;
                    merge(&mut all.silent, more.silent);
                    Ok(all)
                }
                (Err(_), Ok(more)) => Ok(more),
                // A retired key may have been revoked.
                (all, Err(_)) => all,
            };
        }
        let report = all?;
        let status = verify_status(&report);
        Ok((Box::new(report), status))
    }

    /// Removes checkpoints of a job, of all keys.
    pub(crate) async fn forget(&self, job: &JobId, args: Forget) -> Result<Answer, Failure> {
        let which = forget_which(&args.which);
        let sought = args.filter.sought();
        let disposal = Disposal::of(args.dry_run);
        let report = self.forgotten(job, which, &sought, disposal).await?;
        heard(report, |one| &one.unheard)
    }

    async fn forgotten(
        &self,
        job: &JobId,
        which: ForgetWhich,
        sought: &Sought,
        disposal: Disposal,
    ) -> Result<ForgetReport, Failure> {
        let mut all = self.present.forget(job, which, sought, disposal).await;
        if all.is_err() && !is_missing(&all) {
            return all;
        }
        if let (ForgetWhich::Version(_), Ok(_)) = (which, &all) {
            return all;
        }
        for agent in &self.retired {
            let mut which = which;
            if let ForgetWhich::Keep(keep) = which {
                // The checkpoints of the present key are newer, and count first.
                let left = self
                    .present
                    .list(Some(job), sought, None)
                    .await?
                    .checkpoints
                    .iter()
                    .filter(|one| one.kept_for.is_none())
                    .count();
                which =
                    ForgetWhich::Keep(keep.saturating_sub(u32::try_from(left).unwrap_or(u32::MAX)));
            }
            let more = agent.forget(job, which, sought, disposal).await;
            all = match (all, more) {
                (Ok(all), Ok(more)) => Ok(with_removed(all, more)),
                (Err(_), Ok(more)) => Ok(more),
                (Ok(mut all), Err(cause)) if !cause.nothing_known => {
                    let note =
                        format!("checkpoints that a retired key saved are not removed: {cause}");
                    all.notes.push(note);
                    Ok(all)
                }
                (all, Err(_)) => all,
            };
        }
        all
    }

    /// Removes what hosts keep without use, of all keys.
    pub(crate) async fn gc(
        &self,
        superseded: Option<Superseded>,
        dry_run: bool,
    ) -> Result<Answer, Failure> {
        let disposal = Disposal::of(dry_run);
        let mut all = self.present.gc(superseded, disposal).await?;
        for agent in &self.retired {
            let Ok(more) = agent.gc(superseded, disposal).await else {
                continue;
            };
            all.garbage.extend(more.garbage);
            all.notes.extend(more.notes);
            merge(&mut all.silent, more.silent);
            merge(&mut all.unheard, more.unheard);
        }
        heard(all, |one| &one.unheard)
    }
}

fn with_removed(mut all: ForgetReport, more: ForgetReport) -> ForgetReport {
    all.removed.extend(more.removed);
    for note in more.notes {
        if !all.notes.contains(&note) {
            all.notes.push(note);
        }
    }
    merge(&mut all.silent, more.silent);
    merge(&mut all.unheard, more.unheard);
    all
}

/// Adds the notes on hosts that have no note yet.
fn merge(notes: &mut Vec<HostNote>, more: Vec<HostNote>) {
    for note in more {
        if notes.iter().all(|one| one.host != note.host) {
            notes.push(note);
        }
    }
}

fn forget_which(choice: &ForgetChoice) -> ForgetWhich {
    match choice {
        ForgetChoice {
            version: Some(version),
            ..
        } => ForgetWhich::Version(*version),
        ForgetChoice {
            keep: Some(keep), ..
        } => ForgetWhich::Keep(*keep),
        ForgetChoice {
            keep_within: Some(time),
            ..
        } => ForgetWhich::KeepWithin(*time),
        ForgetChoice { .. } => ForgetWhich::All,
    }
}

const fn degraded_if(is_so: bool) -> ExitStatus {
    if is_so {
        ExitStatus::Degraded
    } else {
        ExitStatus::Done
    }
}

fn restore_request(job: JobId, restore: Restore) -> RestoreRequest {
    RestoreRequest {
        job,
        which: which(restore.version),
        sought: restore.filter.sought(),
        at_hand: Vec::new(),
        target: match restore.output {
            None => RestoreTarget::Default,
            Some(path) if path.as_os_str() == "-" => RestoreTarget::Stdout,
            Some(path) => RestoreTarget::Path(path),
        },
        if_exists: restore.if_exists,
        least_data: restore.data,
        is_new: restore.new,
        accept_marked: restore.accept_marked,
        force: restore.force,
        set_id_bits: restore.set_id_bits,
        globs: restore.path,
        dry_run: restore.dry_run,
    }
}

/// The worst result of a verification. A lost checkpoint is worse than one whose hosts are only away.
fn verify_status(report: &VerifyReport) -> ExitStatus {
    let any = |is: fn(&VerifiedCheckpoint) -> bool| report.checkpoints.iter().any(is);
    if any(|one| one.lost) {
        ExitStatus::Damaged
    } else if any(|one| one.can_lose.is_none()) {
        ExitStatus::TooFewHosts
    } else if any(|one| !one.bad.is_empty()) {
        ExitStatus::Degraded
    } else {
        ExitStatus::Done
    }
}

fn is_missing<T>(answer: &Result<T, Failure>) -> bool {
    matches!(answer, Err(failure) if failure.nothing_known)
}

/// Whether there was nothing to restore.
fn is_nothing(restored: &Result<RestoreReport, Failure>) -> bool {
    match restored {
        Ok(report) => report.version.is_none(),
        Err(_) => is_missing(restored),
    }
}
