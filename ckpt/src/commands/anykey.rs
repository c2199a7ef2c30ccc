//! Commands that also see, and can remove, what retired keys saved.

use std::sync::Arc;

use codec::{JobId, Version};

use super::cat::standard_output;
use super::{Connected, Outcome, agent_for, done, heard, identity, verify_status, which};
use crate::commands::args::{Command, ForgetChoice};
use crate::commands::options::Global;
use ckpt_agent::agent::{
    Agent, CatRequest, Depth, Disposal, ForgetWhich, HealthRequest, RestoreRequest, Which,
    unless_hidden,
};
use ckpt_agent::cancel::Cancel;
use ckpt_agent::core::sought::Sought;
use ckpt_agent::report::{
    CatReport, ExitStatus, Failure, ForgetReport, GcReport, HostNote, ListReport, Observer,
    RestoreReport, VerifyReport,
};
use health::JobHealth;

/// Which checkpoints to verify, and how thoroughly.
struct Verify {
    job: Option<JobId>,
    version: Option<Version>,
    depth: Depth,
}

/// The present key, and the retired keys that still work, the newest first.
pub(super) struct AnyKey<'a> {
    present: &'a Agent,
    retired: Vec<Agent>,
}

impl<'a> AnyKey<'a> {
    /// All keys of the connection's owner. A key that comes from a command has no retired keys beside it.
    pub(super) async fn of(global: &Global, connected: &'a Connected) -> Self {
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
        }
    }

    /// Closes the connections of the retired keys.
    pub(super) async fn close(self) {
        for agent in self.retired {
            agent.close().await;
        }
    }

    /// The jobs that retired keys saved. What can't be read is left out, with a line in the log.
    pub(super) async fn jobs_of_retired(&self, request: &HealthRequest) -> Vec<JobHealth> {
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

    /// Runs a command that reads or removes checkpoints.
    pub(super) async fn run(
        &self,
        command: Command,
        observer: Arc<dyn Observer>,
        cancel: Cancel,
    ) -> Result<Outcome, Failure> {
        // The answer of silent hosts matters only if no key of the owner finds what was asked for.
        let done = self.carry_out(command, observer, cancel).await;
        done.map_err(unless_hidden)
    }

    async fn carry_out(
        &self,
        command: Command,
        observer: Arc<dyn Observer>,
        cancel: Cancel,
    ) -> Result<Outcome, Failure> {
        match command {
            Command::Restore(restore) => {
                let request = super::restore_request(restore);
                restored(self.restore(&request, &observer, &cancel).await?)
            }
            Command::Cat(cat) => {
                let request = super::cat::request(cat);
                let report = self.cat(&request, &observer, &cancel).await?;
                let status = match report.skipped.as_slice() {
                    [] => ExitStatus::Done,
                    _ => ExitStatus::Degraded,
                };
                Ok((Box::new(report), status))
            }
            Command::List {
                job,
                prefix,
                filter,
                host,
            } => {
                let sought = filter.sought();
                let list = self.list(job.as_ref(), &sought, host.as_deref());
                let mut list = list.await?;
                if let Some(prefix) = prefix {
                    list.checkpoints
                        .retain(|one| one.job.as_str().starts_with(&prefix));
                }
                done(list)
            }
            Command::Show { job, version } => self.show(&job, which(version)).await,
            Command::Verify {
                job,
                version,
                read_data,
                sample,
            } => {
                let depth = match (read_data, sample) {
                    (true, _) => Depth::All,
                    (false, Some(blocks)) => Depth::Sample(blocks),
                    (false, None) => Depth::Tables,
                };
                let verify = Verify {
                    job,
                    version,
                    depth,
                };
                let report = self.verify(&verify, &observer, &cancel).await?;
                let status = verify_status(&report);
                Ok((Box::new(report), status))
            }
            Command::Forget(forget) => {
                let which = forget_which(&forget.which);
                let sought = forget.filter.sought();
                let report = self.forget(&forget.job, which, &sought).await?;
                heard(report, |one| &one.unheard)
            }
            Command::Gc { dry_run, keep } => {
                heard(self.gc(keep, disposal(dry_run)).await?, |one| &one.unheard)
            }
            _ => Err(Failure::new(ExitStatus::Usage, "not a command for any key")),
        }
    }

    /// Restores what the present key saved or, if that is nothing, what a retired key saved.
    async fn restore(
        &self,
        request: &RestoreRequest,
        observer: &Arc<dyn Observer>,
        cancel: &Cancel,
    ) -> Result<RestoreReport, Failure> {
        let restore = |agent: &Agent| {
            let (agent, request) = (agent.clone(), request.clone());
            let (observer, cancel) = (Arc::clone(observer), cancel.clone());
            async move { agent.restore(request, observer, cancel).await }
        };
        let first = restore(self.present).await;
        if !is_nothing(&first) {
            return first;
        }
        for agent in &self.retired {
            let restored = restore(agent).await;
            if !is_nothing(&restored) {
                return restored;
            }
        }
        first
    }

    /// Writes what the present key saved or, if that is nothing, what a retired key saved. Nothing is
    /// written before a checkpoint is found.
    async fn cat(
        &self,
        request: &CatRequest,
        observer: &Arc<dyn Observer>,
        cancel: &Cancel,
    ) -> Result<CatReport, Failure> {
        let cat = async |agent: &Agent| {
            let out = standard_output()?;
            let (observer, cancel) = (Arc::clone(observer), cancel.clone());
            agent.cat(request, out, observer, cancel).await
        };
        let first = cat(self.present).await;
        if !is_missing(&first) {
            return first;
        }
        for agent in &self.retired {
            let more = cat(agent).await;
            if !is_missing(&more) {
                return more;
            }
        }
        first
    }

    /// # Errors
    /// When a named job has no checkpoint, as in all other commands for a job.
    async fn list(
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
        }
        let is_all = sought.is_all() && host.is_none();
        if let Some(job) = job.filter(|_| all.checkpoints.is_empty() && is_all) {
            let message = format!("cannot list job {job}: no checkpoint");
            let mut failure = Failure::new(ExitStatus::NotFound, message).next("ckpt list");
            failure.hosts = all.silent;
            return Err(failure);
        }
        let checkpoints = &mut all.checkpoints;
        checkpoints
            .sort_by(|a, b| (&a.job, !a.retired, a.version).cmp(&(&b.job, !b.retired, b.version)));
        Ok(all)
    }

    async fn show(&self, job: &JobId, which: Which) -> Result<Outcome, Failure> {
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

    async fn verify(
        &self,
        wanted: &Verify,
        observer: &Arc<dyn Observer>,
        cancel: &Cancel,
    ) -> Result<VerifyReport, Failure> {
        let verify = |agent: &Agent| {
            let (agent, cancel) = (agent.clone(), cancel.clone());
            let observer = Arc::clone(observer);
            let (job, version, depth) = (wanted.job.clone(), wanted.version, wanted.depth);
            async move {
                let job = job.as_ref();
                agent.verify(job, version, depth, observer, cancel).await
            }
        };
        let mut all = verify(self.present).await;
        if all.is_err() && !is_missing(&all) {
            return all;
        }
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
        all
    }

    async fn forget(
        &self,
        job: &JobId,
        which: ForgetWhich,
        sought: &Sought,
    ) -> Result<ForgetReport, Failure> {
        let mut all = self.present.forget(job, which, sought).await;
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
                    .len();
                which =
                    ForgetWhich::Keep(keep.saturating_sub(u32::try_from(left).unwrap_or(u32::MAX)));
            }
            let more = agent.forget(job, which, sought).await;
            all = match (all, more) {
                (Ok(all), Ok(more)) => Ok(with_removed(all, more)),
                (Err(_), Ok(more)) => Ok(more),
                (Ok(mut all), Err(cause)) if cause.status != ExitStatus::NotFound => {
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

    async fn gc(&self, keep: Option<u32>, disposal: Disposal) -> Result<GcReport, Failure> {
        let mut all = self.present.gc(keep, disposal).await?;
        for agent in &self.retired {
            let Ok(more) = agent.gc(keep, disposal).await else {
                continue;
            };
            all.garbage.extend(more.garbage);
            merge(&mut all.silent, more.silent);
            merge(&mut all.unheard, more.unheard);
        }
        Ok(all)
    }
}

const fn disposal(dry_run: bool) -> Disposal {
    if dry_run {
        Disposal::Show
    } else {
        Disposal::Remove
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

/// The status is `Degraded` if a newer version than the restored one is known.
fn restored(report: RestoreReport) -> Result<Outcome, Failure> {
    let status = if report.version.is_some() && !report.skipped.is_empty() {
        ExitStatus::Degraded
    } else {
        ExitStatus::Done
    };
    Ok((Box::new(report), status))
}

fn is_missing<T>(answer: &Result<T, Failure>) -> bool {
    matches!(answer, Err(failure) if failure.status == ExitStatus::NotFound)
}

/// Whether there was nothing to restore.
fn is_nothing(restored: &Result<RestoreReport, Failure>) -> bool {
    match restored {
        Ok(report) => report.version.is_none(),
        Err(_) => is_missing(restored),
    }
}
