//! Saves of a supervised job. There is one at a time, in a task of its own.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use codec::labels::Labels;
use codec::{CheckpointId, JobId, Version};
use supervision::patience::Past;
use supervision::{SaveNumber, SaveOutcome};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::begin::PATHS;
use super::files::{Change, Fingerprint};
use super::host::HostKind;
use super::incarnation::{INCARNATION, mark};
use super::job_dir::{LEFT, RESULT};
use super::reach::Reach;
use super::record::RECORD;
use super::stage::{MeansAllowed, Stage, UsedMeans, copies_pay};
use ckpt_agent::agent::{After, AfterWhich, SaveInput, SaveOptions, SaveRequest, Strength};
use ckpt_agent::cancel::{Cancel, Canceller, canceller};
use ckpt_agent::report::{ExitStatus, Failure, Observer, ProgressEvent, SaveReport};

/// Length of the queue of news for the shell.
pub(super) const NEWS_MAX: usize = 64;

/// What all saves of an incarnation of a job have in common.
#[derive(Clone, Debug)]
pub struct SavePlan {
    /// Name of the job.
    pub job: JobId,
    /// How its checkpoints are saved.
    pub options: SaveOptions,
    /// Whether the image needs a machine like this one.
    pub is_bound_to_host: bool,
    /// Random mark of this incarnation of the job.
    pub(super) incarnation: String,
}

impl SavePlan {
    /// A plan for the saves of a new incarnation of a job.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(job: JobId, options: SaveOptions, is_bound_to_host: bool) -> Result<Self, Failure> {
        let incarnation =
            mark().map_err(|cause| Failure::new(ExitStatus::Failed, cause.to_string()))?;
        Ok(Self {
            job,
            options,
            is_bound_to_host,
            incarnation,
        })
    }

    /// Fewest data shards with which the job is saved, if the user gave their number.
    pub(super) fn least_data(&self) -> Option<u8> {
        let given = self.options.redundancy?;
        u8::try_from(given.data()).ok()
    }
}

/// A save of the job's files or image that is to be started.
#[derive(Debug)]
pub struct SaveJob {
    /// The supervisor's number for the save, by which its end is reported.
    pub number: SaveNumber,
    /// The paths that are saved.
    pub paths: Vec<PathBuf>,
    /// Longest time for this save.
    pub deadline: Option<Duration>,
    /// Whether it is the last chance to save this state.
    pub is_last: bool,
    /// Smallest number of parity shards with which it may be committed.
    pub allow_degraded: Option<u8>,
    /// The checkpoint that it follows.
    pub after: Option<After>,
    /// When the job may write again.
    pub release: Release,
    /// The record of the job up to now; `None` before its first start.
    pub record: Option<String>,
    /// The exit status of the job, if this save is its result.
    pub result: Option<u8>,
    /// Whether the files are not known to be whole: the version is marked.
    pub is_torn: bool,
}

/// When the job may write again.
#[derive(Clone, Debug)]
pub enum Release {
    /// At once: the job replaces the file as a whole, so the one that is read does not change.
    AtOnce,
    /// As soon as the files are set aside. If they can't be by these means, when the image has been read.
    WhenSetAside(MeansAllowed),
    /// When the image has been read. Nothing is set aside.
    AtTheEnd,
}

/// A message to the shell from one of its tasks.
#[derive(Debug)]
pub enum News {
    /// The image of this save was taken: the job may write again.
    Taken(SaveNumber),
    /// The files were set aside for this save, and by which means: the job may write again. Or why they could not.
    SetAside(SaveNumber, Result<UsedMeans, String>),
    /// A save is over.
    Saved(SaveNumber, Box<Result<SaveReport, Failure>>),
    /// The command that asks the job has ended: its process id, and its error.
    Asked(i32, Result<(), String>),
    /// A new forecast for the machine.
    Outlook(Box<ckpt_agent::agent::MachineOutlook>),
    /// How owners needed their machines.
    OwnersPast(Past),
}

/// A save that is under way.
#[derive(Debug)]
pub struct Saving {
    /// The supervisor's number for the save.
    pub number: SaveNumber,
    canceller: Canceller,
    task: JoinHandle<()>,
}

impl Saving {
    /// Cancels the save. Its [`News::Saved`] follows.
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// Waits for the end of its task.
    pub async fn wait(self) {
        // A task that panicked sends no news, and the caller ends anyway.
        let _ = self.task.await;
    }
}

impl SavePlan {
    /// Starts a save as a task of its own.
    pub fn start(
        &self,
        reach: Arc<dyn Reach>,
        save: SaveJob,
        observer: Arc<dyn Observer>,
        news: mpsc::Sender<News>,
    ) -> Saving {
        let (canceller, cancel) = canceller();
        let number = save.number;
        let plan = self.clone();
        let task = tokio::spawn(async move {
            let aside = save.set_aside(&plan, &news, &cancel).await;
            let paths = aside.as_ref().map_or(&save.paths, Stage::paths);
            let request = plan.request(&save, paths.clone());
            let observer = Arc::new(Reader {
                number,
                news: news.clone(),
                next: observer,
            });
            let ended = match (request, reach.agent().await) {
                (Ok(request), Ok(agent)) => agent.save(request, observer, cancel).await,
                (Err(failure), _) | (_, Err(failure)) => Err(failure),
            };
            drop(aside);
            // Fails if the shell has ended.
            let _ = news.send(News::Saved(number, Box::new(ended))).await;
        });
        Saving {
            number,
            canceller,
            task,
        }
    }

    /// Saves and waits for the end.
    ///
    /// # Errors
    /// When nothing was committed.
    pub async fn save(
        &self,
        reach: &dyn Reach,
        save: &SaveJob,
        observer: Arc<dyn Observer>,
        cancel: Cancel,
    ) -> Result<SaveReport, Failure> {
        let request = self.request(save, save.paths.clone())?;
        reach.agent().await?.save(request, observer, cancel).await
    }

    fn request(&self, save: &SaveJob, paths: Vec<PathBuf>) -> Result<SaveRequest, Failure> {
        let options = SaveOptions {
            allow_degraded: save.allow_degraded,
            deadline: save.deadline,
            is_last: save.is_last,
            after: save.after,
            labels: self.labels(save)?,
            is_torn: save.is_torn,
            ..self.options.clone()
        };
        Ok(SaveRequest {
            job: self.job.clone(),
            input: SaveInput::Paths(paths),
            options,
        })
    }

    fn labels(&self, save: &SaveJob) -> Result<Labels, Failure> {
        let paths = save.paths.len();
        let mut pairs: Vec<(String, String)> = self.options.labels.clone().into();
        if paths > 1 {
            pairs.push((PATHS.to_owned(), paths.to_string()));
        }
        if self.is_bound_to_host {
            pairs.extend(HostKind::of_this().labels());
        }
        // Before its first start the job ran nowhere.
        if (save.is_last && !save.is_torn) || save.record.is_none() {
            pairs.push((LEFT.to_owned(), "1".to_owned()));
        }
        if let Some(status) = save.result {
            pairs.push((RESULT.to_owned(), status.to_string()));
        }
        let mut with_record = pairs.clone();
        with_record.push((INCARNATION.to_owned(), self.incarnation.clone()));
        with_record.extend(
            save.record
                .iter()
                .map(|record| (RECORD.to_owned(), record.clone())),
        );
        // If these two do not fit beside the user's labels, the checkpoint is saved without them.
        Labels::new(with_record)
            .or_else(|_| Labels::new(pairs))
            .map_err(|cause| {
                Failure::new(ExitStatus::Usage, cause.to_string()).next("fewer or shorter --label")
            })
    }
}

impl SaveJob {
    /// The files set aside, if that is wanted and can be done. Releases the job as soon as it may write again.
    async fn set_aside(
        &self,
        plan: &SavePlan,
        news: &mpsc::Sender<News>,
        cancel: &Cancel,
    ) -> Option<Stage> {
        let allowed = match &self.release {
            Release::AtTheEnd => return None,
            Release::AtOnce => {
                let _ = news.send(News::Taken(self.number)).await;
                return None;
            }
            Release::WhenSetAside(allowed) => allowed.clone(),
        };
        let paths = self.paths.clone();
        let job = plan.job.clone();
        let exclude = plan.options.exclude.clone();
        let cancel = cancel.clone();
        let set_aside = tokio::task::spawn_blocking(move || {
            Stage::of(&paths, &job, &allowed, &exclude, &|| !cancel.is_cancelled())
        });
        let stage = set_aside.await.unwrap_or_else(|cause| Err(cause.into()));
        let done = stage.as_ref().map(Stage::means);
        let done = done.map_err(ToString::to_string);
        let _ = news.send(News::SetAside(self.number, done)).await;
        stage.ok()
    }
}

/// Reports when the image has been read, and passes all events on.
struct Reader {
    number: SaveNumber,
    news: mpsc::Sender<News>,
    next: Arc<dyn Observer>,
}

impl Observer for Reader {
    fn event(&self, event: ProgressEvent) {
        if event == ProgressEvent::ImageRead {
            // If the queue is full, the job is only released a little later, at the end of the save.
            let _ = self.news.try_send(News::Taken(self.number));
        }
        self.next.event(event);
    }
}

/// The checkpoint that the next save follows. Of all saves that follow one checkpoint only one is
/// committed. So when a job runs twice, the incarnation that saves second learns of the other.
#[derive(Debug, Default)]
pub(super) struct Follows {
    last: Option<AfterWhich>,
    /// Saves of this supervisor that were left half done and may still be committed.
    half_done: Vec<CheckpointId>,
}

impl Follows {
    /// The next save follows the version that the job was restored from; the first version of a job
    /// follows none.
    pub(super) fn restored(version: Option<Version>) -> Self {
        Self {
            last: version.map(AfterWhich::Version),
            half_done: Vec::new(),
        }
    }

    /// The checkpoint that the next save has to follow.
    pub(super) fn after(&self) -> Option<After> {
        let which = self.last?;
        Some(After {
            which,
            strength: Strength::Majority,
            is_unfenced: false,
        })
    }

    /// Translates the end of a save for the supervisor.
    pub(super) fn outcome(&mut self, ended: &Result<SaveReport, Failure>) -> SaveOutcome {
        let failure = match ended {
            Ok(report) => {
                self.last = Some(AfterWhich::Checkpoint(report.checkpoint));
                self.half_done.clear();
                return SaveOutcome::Committed {
                    version: report.version.number(),
                    stored_bytes: report.stored_bytes,
                    new_bytes: report.new_bytes,
                    image_bytes: report.image_bytes,
                };
            }
            Err(failure) => failure,
        };
        let Some(successor) = &failure.successor else {
            return SaveOutcome::Failed;
        };
        let own = self.half_done.contains(&successor.checkpoint);
        if failure.status != ExitStatus::AnotherSuccessor {
            self.half_done.push(successor.checkpoint);
        } else if successor.committed && own {
            // Another client has finished an earlier save of this supervisor.
            self.last = Some(AfterWhich::Checkpoint(successor.checkpoint));
        } else if successor.committed {
            return SaveOutcome::OtherSuccessor;
        }
        // Bids and proposals do not show that another incarnation has saved: the other save may have died, and
        // a thief of a job key makes them without saving anything. So the job goes on.
        SaveOutcome::Failed
    }
}

/// The save that is under way, and what the next one needs to know of the last one.
#[derive(Debug)]
pub(super) struct Saves {
    /// The files as they were when they were last saved.
    pub saved: Fingerprint,
    /// Files that the job replaces by renaming, as far as it was seen, and has not written in place.
    replaced: BTreeSet<PathBuf>,
    /// How long the last image took to read, seconds.
    reading_s: Option<f64>,
    /// Bytes that were copied in a second when files were set aside last by copies.
    pub copied_per_second: Option<f64>,
    /// The save that is under way, and the files as they were when it began.
    pub saving: Option<(Saving, Fingerprint)>,
    /// Whether the next save has to hold the job because the last one failed.
    pub holds_next: bool,
    /// The newest version that was committed or restored.
    pub version: Option<u64>,
    /// The checkpoint that the next save follows.
    pub follows: Follows,
}

impl Saves {
    /// Before the first save of a job that begins with this version, if it was restored.
    pub(super) fn none_yet(
        saved: Fingerprint,
        version: Option<Version>,
        follows: Option<Version>,
    ) -> Self {
        Self {
            saved,
            replaced: BTreeSet::new(),
            reading_s: None,
            copied_per_second: None,
            saving: None,
            holds_next: false,
            version: version.map(|version| version.number()),
            follows: Follows::restored(follows),
        }
    }

    /// When the job may write again, once a save of the files as they are now has begun. `seen` are the files that the
    /// job was seen to replace by renaming since it began; `rate` is that of the line, bytes per second.
    pub(super) fn release(
        &mut self,
        now: &Fingerprint,
        seen: &BTreeSet<PathBuf>,
        rate: Option<f64>,
    ) -> Release {
        // However this save goes: a file that was written to must not get a further name at the next one.
        self.replaced = self.replaced_until(now, seen);
        if self.holds_next {
            return Release::AtTheEnd;
        }
        if now.is_one_file() && now.was_replaced_since(&self.saved) {
            return Release::AtOnce;
        }
        let paths = &self.replaced;
        let sizes = paths.iter().filter_map(|path| now.size_of(path));
        let copied = now.bytes().saturating_sub(sizes.sum());
        let reading_s = self.reading_s.or(rate.map(|rate| copied as f64 / rate));
        Release::WhenSetAside(MeansAllowed {
            replaced: paths.iter().filter_map(|path| now.id_of(path)).collect(),
            copies: copies_pay(copied, reading_s, self.copied_per_second),
        })
    }

    /// The files that the job replaces by renaming, as far as it was seen until now.
    fn replaced_until(&self, now: &Fingerprint, seen: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
        let mut replaced = self.replaced.clone();
        for (path, change) in now.changes(&self.saved) {
            match change {
                Change::New if !seen.contains(path) => _ = replaced.remove(path),
                Change::Replaced | Change::New => _ = replaced.insert(path.to_owned()),
                Change::Written => _ = replaced.remove(path),
            }
        }
        replaced.retain(|path| now.id_of(path).is_some());
        replaced
    }

    /// Files were saved as they were at the beginning of the save.
    pub(super) fn were_saved(&mut self, files: Fingerprint, report: &SaveReport) {
        self.reading_s = Some(report.held_seconds);
        self.version = Some(report.version.number());
        self.holds_next = false;
        self.saved = files;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ckpt_agent::image::Exclude;
    use ckpt_agent::report::SuccessorNote;

    fn failed(status: ExitStatus, checkpoint: Option<(u8, bool)>) -> Result<SaveReport, Failure> {
        let mut failure = Failure::new(status, "no");
        let successor = checkpoint.map(|(byte, committed)| SuccessorNote {
            version: Version::new(8).unwrap(),
            checkpoint: CheckpointId([byte; 16]),
            committed,
        });
        failure.successor = successor.map(Box::new);
        Err(failure)
    }

    #[test]
    fn the_first_save_links_the_files_that_the_job_was_seen_to_replace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        for name in ["state", "log"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let files = Fingerprint::of(&[dir.path().to_owned()], &Exclude::default());
        let mut saves = Saves::none_yet(Fingerprint::default(), None, None);
        let mut links = |seen: &[PathBuf]| {
            let seen = seen.iter().cloned().collect();
            match saves.release(&files, &seen, None) {
                Release::WhenSetAside(allowed) => allowed.replaced,
                Release::AtOnce | Release::AtTheEnd => panic!("two files are set aside"),
            }
        };
        assert!(links(&[]).is_empty());
        assert_eq!(
            links(std::slice::from_ref(&path)),
            files.id_of(&path).into_iter().collect()
        );
    }

    #[test]
    fn a_file_that_was_written_to_before_a_save_that_held_the_job_is_not_linked_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let files = || Fingerprint::of(&[dir.path().to_owned()], &Exclude::default());
        std::fs::write(&path, "one").unwrap();
        let mut saves = Saves::none_yet(files(), None, None);
        saves.replaced.insert(path.clone());
        std::fs::write(&path, "written in place").unwrap();
        saves.holds_next = true;
        let held = saves.release(&files(), &BTreeSet::new(), None);
        assert!(matches!(held, Release::AtTheEnd));
        assert!(!saves.replaced.contains(&path));
    }

    #[test]
    fn the_save_of_another_ends_the_job_and_a_late_one_of_its_own_does_not() {
        let mut follows = Follows::restored(Some(Version::new(7).unwrap()));
        let which = |follows: &Follows| follows.after().map(|after| after.which);
        assert_eq!(
            which(&follows),
            Some(AfterWhich::Version(Version::new(7).unwrap()))
        );
        let half_done = failed(ExitStatus::TooFewHosts, Some((1, false)));
        assert_eq!(follows.outcome(&half_done), SaveOutcome::Failed);
        // The own save is found half done, and then finished.
        let first = which(&follows);
        let still = failed(ExitStatus::AnotherSuccessor, Some((1, false)));
        assert_eq!(follows.outcome(&still), SaveOutcome::Failed);
        assert_eq!(which(&follows), first);
        let own = failed(ExitStatus::AnotherSuccessor, Some((1, true)));
        assert_eq!(follows.outcome(&own), SaveOutcome::Failed);
        let id = CheckpointId([1; 16]);
        assert_eq!(which(&follows), Some(AfterWhich::Checkpoint(id)));
        // Bids and half-done saves of others end no job; a committed version does.
        let outbid = failed(ExitStatus::AnotherSuccessor, None);
        assert_eq!(follows.outcome(&outbid), SaveOutcome::Failed);
        let proposed = failed(ExitStatus::AnotherSuccessor, Some((2, false)));
        assert_eq!(follows.outcome(&proposed), SaveOutcome::Failed);
        assert_eq!(which(&follows), Some(AfterWhich::Checkpoint(id)));
        let others = failed(ExitStatus::AnotherSuccessor, Some((2, true)));
        assert_eq!(follows.outcome(&others), SaveOutcome::OtherSuccessor);
        assert!(Follows::restored(None).after().is_none());
    }
}
