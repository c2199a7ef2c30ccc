//! What a job begins with: the newest version that can be restored, the files that are there, or nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use codec::labels::Labels;
use codec::{JobId, Version};

use super::files::{Fingerprint, above, are_same, clear, remove, restored};
use super::host::HostKind;
use super::incarnation::INCARNATION;
use super::job_dir::LEFT;
use super::journal::JournalEvent;
use super::kept_state::{KeptState, NotTaken};
use super::record::RECORD;
use super::run_log::RunLog;
use super::stage::{PREFIX, clear_stages};
use ckpt_agent::agent::{Agent, RestoreRequest, RestoreTarget, Which};
use ckpt_agent::cancel::Cancel;
use ckpt_agent::core::marks::{Wholeness, take_out_marked};
use ckpt_agent::core::sought::Sought;
use ckpt_agent::image::Exclude;
use ckpt_agent::report::{
    ExitStatus, Failure, ListedCheckpoint, Observer, RestoreReport, SkippedVersion,
};

/// Label with the number of paths in a checkpoint, if there are several.
pub(super) const PATHS: &str = "ckpt.paths";

/// Time from one attempt to restore a version to the next, while the version is waited for.
const WAIT_POLL: Duration = Duration::from_secs(5);

/// Suffix of the name to which existing files are moved when restored ones take their place.
const BEFORE_SUFFIX: &str = ".before";

/// How a job is to begin.
#[derive(Clone, Debug)]
pub(super) struct Beginning {
    /// Name of the job.
    pub job: JobId,
    /// The paths of its state.
    pub paths: Vec<PathBuf>,
    /// Whether to begin from the files that are there.
    pub local: bool,
    /// What this machine knows of whole files of the job that may be newer than its newest version.
    pub(super) kept: Option<KeptState>,
    /// Which files are left out of the state.
    pub(super) exclude: Exclude,
    /// Whether to begin anew where no host that answers shows a version.
    pub is_new: bool,
    /// How long to wait for a version that exists and can't be restored now.
    pub wait: Duration,
    /// Smallest number of data shards with which the job is saved.
    pub least_data: Option<u8>,
    /// Whether the state is an image of processes, which needs a machine like the one that wrote it.
    pub is_bound_to_host: bool,
}

/// How a job has begun.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// The version that its state comes from; `None` if it begins anew.
    pub version: Option<Version>,
    /// The newest version, if it is another one: a marked one, or the one that was saved at this start. The next
    /// save follows it.
    pub newest: Option<Version>,
    /// The record of the job, from the label of that version.
    pub record: Option<String>,
    /// Whether an earlier incarnation left with that version as its last: none of them goes on.
    pub was_left: bool,
    /// Whether it begins from the files here, which are whole and newer than that version.
    pub is_newer_here: bool,
    /// Whether `newest` holds the files here, because they were saved at this start.
    pub is_saved_here: bool,
    /// The report of the restore, if there was one.
    pub report: Option<RestoreReport>,
    /// The paths to which existing files were moved.
    pub aside: Vec<PathBuf>,
    /// What the user should know.
    pub notes: Vec<String>,
}

impl Begun {
    /// The newest version that is known to be whole.
    pub(super) fn newest_whole(&self) -> Option<Version> {
        self.newest.filter(|_| self.is_saved_here).or(self.version)
    }

    /// The version whose state the files here are. Only files that were restored, or saved at this start, are known
    /// to be a version.
    pub(super) fn version_of_files(&self) -> Option<u64> {
        let saved = self.newest.filter(|_| self.is_saved_here);
        let restored = self.version.filter(|_| self.report.is_some());
        saved.or(restored).map(|version| version.number())
    }
}

impl Beginning {
    /// Brings the job's state to its place.
    ///
    /// # Errors
    /// When the job may have a state that can't be restored now. Existing files are then as they were.
    pub(super) async fn make(
        &self,
        agent: &Agent,
        observer: &Arc<dyn Observer>,
        log: &mut RunLog,
        mut cancel: Cancel,
    ) -> Result<Begun, Failure> {
        if let Err(cause) = clear_stages(&self.paths, &self.job) {
            log.warn(format!(
                "what a run that was killed had set aside is not removed: {cause}"
            ));
        }
        let lies_here = self
            .paths
            .iter()
            .all(|path| path.symlink_metadata().is_ok());
        if self.local && lies_here {
            let newest = usable(agent, &self.job).await?.into_iter().next();
            let note = "starts from the files here (--local)".to_owned();
            return Ok(Begun {
                version: newest.as_ref().map(|listed| listed.version),
                record: newest.and_then(|listed| listed.own_labels.get(RECORD).cloned()),
                notes: vec![note],
                ..Begun::default()
            });
        }
        match self.goes_on_here(agent).await {
            Some(Ok(begun)) => return Ok(begun),
            Some(Err(NotTaken::NothingNew)) | None => {}
            Some(Err(why)) => log.warn(format!("does not start from the files here: {why}")),
        }
        if self.is_bound_to_host {
            self.fits_here(agent).await?;
        }
        let began = Instant::now();
        let mut says_waiting = false;
        loop {
            let is_last = began.elapsed() + WAIT_POLL > self.wait;
            let stage = Staging::new(&self.paths, &self.job)?;
            let mut is_worth_waiting = false;
            if !is_last {
                // A look comes first: the restore would take an older version at once.
                let request = self.request(&stage, true);
                let looked = agent.restore(request, Arc::clone(observer), cancel.clone());
                is_worth_waiting = match &looked.await {
                    // Time does not make a marked version whole.
                    Ok(report) => report.skipped.iter().any(|skip| !skip.marked),
                    Err(failure) => failure.status == ExitStatus::TooFewHosts,
                };
            }
            if !is_worth_waiting {
                let request = self.request(&stage, false);
                let report = agent.restore(request, Arc::clone(observer), cancel).await?;
                return self.put_in_place(agent, report, &stage).await;
            }
            if !std::mem::replace(&mut says_waiting, true) {
                let seconds = self.wait.saturating_sub(began.elapsed()).as_secs_f64();
                log.enter(JournalEvent::WaitsForVersion { seconds });
            }
            tokio::select! {
                () = cancel.cancelled() => {
                    let message = format!("job {}: interrupted while waiting for hosts", self.job);
                    return Err(Failure::new(ExitStatus::Interrupted, message));
                }
                () = tokio::time::sleep(WAIT_POLL) => {}
            }
        }
    }

    /// The beginning from the files here, if they are whole and newer than the job's newest version.
    async fn goes_on_here(&self, agent: &Agent) -> Option<Result<Begun, NotTaken>> {
        let kept = self.kept.as_ref()?;
        let print = Fingerprint::of(&self.paths, &self.exclude);
        let mut usable = usable(agent, &self.job).await.ok()?;
        let newest = usable.first().map(|one| one.version);
        take_out_marked(&mut usable, wholeness);
        let found = usable.into_iter().next()?;
        let version = found.version;
        let saved_by = found.own_labels.get(INCARNATION).map(String::as_str);
        let judged = kept.is_newer_than(version.number(), saved_by, &print);
        Some(judged.map(|()| Begun {
            version: Some(version),
            newest: newest.filter(|newest| *newest != version),
            record: found.own_labels.get(RECORD).cloned(),
            is_newer_here: true,
            notes: vec![format!(
                "starts from the files here, which are whole and newer than version {version}: ckpt run was ended \
                 before it had saved them"
            )],
            ..Begun::default()
        }))
    }

    fn request(&self, stage: &Staging, dry_run: bool) -> RestoreRequest {
        RestoreRequest {
            at_hand: self.paths.clone(),
            if_exists: true,
            least_data: self.least_data,
            is_new: self.is_new,
            force: true,
            dry_run,
            ..RestoreRequest::new(
                self.job.clone(),
                Which::Newest,
                RestoreTarget::Path(stage.target()),
            )
        }
    }

    /// Fails if the newest version comes from a machine with features that this one lacks.
    async fn fits_here(&self, agent: &Agent) -> Result<(), Failure> {
        let Some(newest) = newest(agent, &self.job).await? else {
            return Ok(());
        };
        let labels = Labels::new(newest.own_labels.into_iter().collect()).unwrap_or_default();
        let Some(lacks) = HostKind::of_this().lacks(&labels) else {
            return Ok(());
        };
        let job = &self.job;
        let version = newest.version;
        let message = format!("job {job}: version {version} can't continue here: {lacks}");
        let mut failure = Failure::new(ExitStatus::TooFewHosts, message);
        failure.state = Some(format!("version {version} is unchanged"));
        Err(failure.next("start the job on another machine"))
    }

    async fn put_in_place(
        &self,
        agent: &Agent,
        report: RestoreReport,
        stage: &Staging,
    ) -> Result<Begun, Failure> {
        // The next save follows a marked version that was passed over, too: nothing else may follow what that
        // one follows.
        let marked = report.skipped.iter().filter(|skip| skip.marked);
        let mut begun = Begun {
            version: report.version,
            newest: marked.map(|skip| skip.version).max(),
            notes: report.warnings.clone(),
            ..Begun::default()
        };
        let skipped = report.skipped.iter();
        begun.notes.extend(skipped.map(SkippedVersion::note));
        let Some(version) = report.version else {
            return Ok(begun);
        };
        let listed = agent.list(Some(&self.job), &Sought::default(), None).await;
        let listed = listed.ok().and_then(|listed| {
            let mut all = listed.checkpoints.into_iter();
            all.find(|one| one.version == version)
        });
        let labels = listed.map(|one| one.own_labels).unwrap_or_default();
        begun.record = labels.get(RECORD).cloned();
        begun.was_left = labels.contains_key(LEFT);
        let saved_paths = labels.get(PATHS).and_then(|count| count.parse().ok());
        let paths = self.paths.clone();
        let job = self.job.clone();
        let stage = stage.dir.clone();
        let moving = tokio::task::spawn_blocking(move || {
            put_all(&stage, &paths, saved_paths.unwrap_or(1))
                .map_err(|cause| cause.into_failure(&job, version))
        });
        begun.aside = moving
            .await
            .map_err(|cause| Failure::new(ExitStatus::LocalIo, cause.to_string()))??;
        begun.report = Some(report);
        Ok(begun)
    }
}

/// A directory beside the job's files, on the same file system, that exists during a restore. Removes first what an
/// earlier run has left there, but for what a restore that was killed had written: this one goes on with it.
#[derive(Debug)]
struct Staging {
    dir: PathBuf,
}

impl Staging {
    fn new(paths: &[PathBuf], job: &JobId) -> Result<Self, Failure> {
        let first = paths.first().map(|path| above(path));
        let name = format!("{PREFIX}{}", job.file_name());
        let dir = first.unwrap_or_else(|| PathBuf::from(".")).join(name);
        let made = clear(&dir).and_then(|()| fs::create_dir_all(&dir));
        made.map_err(|cause| Failure::local(dir.display(), &cause))?;
        Ok(Self { dir })
    }

    /// The target of a restore into it. The trailing separator makes the restored tree keep its own name.
    fn target(&self) -> PathBuf {
        self.dir.join("")
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // If this fails, the next run removes it.
        let _ = remove(&self.dir);
    }
}

/// Why restored files could not be put in their places.
#[derive(Debug, thiserror::Error)]
enum PutError {
    #[error("it holds {found}, but --files names {wanted}")]
    Others { found: String, wanted: String },
    #[error("{path:?}: {cause}")]
    Io { path: PathBuf, cause: io::Error },
}

impl PutError {
    fn into_failure(self, job: &JobId, version: Version) -> Failure {
        let status = match &self {
            Self::Others { .. } => ExitStatus::Usage,
            Self::Io { .. } => ExitStatus::LocalIo,
        };
        Failure::new(status, format!("job {job}, version {version}: {self}"))
            .next(format!("ckpt show --job {job} --version {version}"))
    }
}

/// Moves what was restored into `stage` to `paths`. Returns the paths to which existing files were moved.
fn put_all(stage: &Path, paths: &[PathBuf], saved_paths: usize) -> Result<Vec<PathBuf>, PutError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |cause| PutError::Io { path, cause }
    };
    let mut found = restored(stage).map_err(io(stage))?;
    // Several paths were saved, so the image has a directory above them.
    if let ([only], true) = (found.as_slice(), saved_paths > 1) {
        found = restored(only).map_err(io(only))?;
    }
    found.sort();
    let mut pairs = Vec::new();
    for path in paths {
        let same_name = found.iter().find(|one| one.file_name() == path.file_name());
        let fitting = match (same_name, found.as_slice(), paths.len()) {
            (Some(one), ..) => Some(one),
            // If there is just one file or directory, it may have another name now.
            (None, [only], 1) => Some(only),
            _ => None,
        };
        pairs.extend(fitting.map(|one| (one.clone(), path.clone())));
    }
    if pairs.len() != found.len() || pairs.len() != paths.len() {
        let list = |all: &[PathBuf]| {
            let names = all.iter().map(|path| path.file_name().unwrap_or_default());
            let names = names.map(|name| name.to_string_lossy().into_owned());
            names.collect::<Vec<_>>().join(", ")
        };
        return Err(PutError::Others {
            found: list(&found),
            wanted: list(paths),
        });
    }
    let mut aside = Vec::new();
    for (from, to) in pairs {
        aside.extend(put(&from, &to).map_err(io(&to))?);
    }
    Ok(aside)
}

/// Moves one file or tree to its place. An existing one that differs is kept under another name.
fn put(from: &Path, to: &Path) -> io::Result<Option<PathBuf>> {
    let mut kept = None;
    if to.symlink_metadata().is_ok() {
        if are_same(from, to)? {
            return Ok(None);
        }
        let before = before(to);
        remove(&before)?;
        fs::rename(to, &before)?;
        kept = Some(before);
    }
    if let Err(cause) = fs::rename(from, to) {
        if let Some(before) = &kept {
            // Restores the old state of the directory.
            fs::rename(before, to)?;
        }
        return Err(cause);
    }
    // The machine may fail the moment after, and the new name has to survive that.
    fs::File::open(above(to))?.sync_all()?;
    Ok(kept)
}

/// The path to which the file at `path` is moved when a restored one takes its place.
pub(super) fn before(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(BEFORE_SUFFIX);
    path.with_file_name(name)
}

/// The version of a job that a restore takes from the hosts that answer.
pub(super) async fn newest(
    agent: &Agent,
    job: &JobId,
) -> Result<Option<ListedCheckpoint>, Failure> {
    let mut newest_first = usable(agent, job).await?;
    take_out_marked(&mut newest_first, wholeness);
    Ok(newest_first.into_iter().next())
}

/// The versions of a job that can be restored from the hosts that answer, newest first.
async fn usable(agent: &Agent, job: &JobId) -> Result<Vec<ListedCheckpoint>, Failure> {
    let listed = agent.list(Some(job), &Sought::default(), None).await;
    let listed = match listed {
        Ok(listed) => listed.checkpoints,
        Err(failure) if failure.status == ExitStatus::NotFound => Vec::new(),
        Err(failure) => return Err(failure),
    };
    let usable = listed
        .into_iter()
        .filter(|one| one.can_lose.is_some() && !one.void && one.kept_for.is_none());
    let mut newest_first: Vec<ListedCheckpoint> = usable.collect();
    newest_first.sort_by_key(|one| std::cmp::Reverse(one.version));
    Ok(newest_first)
}

fn wholeness(one: &ListedCheckpoint) -> Wholeness {
    Wholeness::of(one.marked.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_differing_file_at_the_target_is_set_aside_until_the_next_time() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let stage = dir.path().join("stage");
        let restore = |text: &str| {
            let _ = fs::remove_dir_all(&stage);
            fs::create_dir(&stage).unwrap();
            fs::write(stage.join("state"), text).unwrap();
            put_all(&stage, std::slice::from_ref(&state), 1).unwrap()
        };
        assert!(restore("one").is_empty());
        assert_eq!(fs::read(&state).unwrap(), b"one");
        // The same state again: nothing is moved.
        assert!(restore("one").is_empty());
        fs::write(&state, "local work").unwrap();
        let aside = restore("two");
        assert_eq!(aside, [dir.path().join("state.before")]);
        assert_eq!(fs::read(&state).unwrap(), b"two");
        assert_eq!(fs::read(&aside[0]).unwrap(), b"local work");
        assert_eq!(restore("three").len(), 1);
        assert_eq!(fs::read(&aside[0]).unwrap(), b"two");
    }

    #[test]
    fn several_paths_are_found_by_name_and_others_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let stage = dir.path().join("stage");
        let fill = || {
            let _ = fs::remove_dir_all(&stage);
            fs::create_dir_all(stage.join("42")).unwrap();
            fs::write(stage.join("42/a"), "a").unwrap();
            fs::write(stage.join("42/b"), "b").unwrap();
        };
        fill();
        let paths = |names: &[&str]| -> Vec<PathBuf> {
            names.iter().map(|name| dir.path().join(name)).collect()
        };
        assert!(put_all(&stage, &paths(&["b", "a"]), 2).unwrap().is_empty());
        assert_eq!(fs::read(dir.path().join("b")).unwrap(), b"b");
        fill();
        let refused = put_all(&stage, &paths(&["a"]), 2).unwrap_err().to_string();
        assert!(
            refused.contains("a, b") && refused.contains("--files"),
            "{refused}"
        );
        assert!(put_all(&stage, &paths(&["a", "c"]), 2).is_err());
        // A single file may have another name.
        fs::remove_dir_all(&stage).unwrap();
        fs::create_dir(&stage).unwrap();
        fs::write(stage.join("old-name"), "x").unwrap();
        put_all(&stage, &paths(&["c"]), 1).unwrap();
        assert_eq!(fs::read(dir.path().join("c")).unwrap(), b"x");
    }
}
