//! Saves of a supervised job, one at a time, beside everything else.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use codec::labels::Labels;
use codec::seal::Cipher;
use codec::{CheckpointId, JobId, Redundancy, Version};
use supervision::patience::Past;
use supervision::{SaveNumber, SaveOutcome};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::begin::PATHS;
use super::host::HostKind;
use super::orders::Reach;
use super::record::RECORD;
use super::stage::Stage;
use super::staged::RESULT;
use crate::agent::{After, AfterWhich, PlacementWish, SaveInput, SaveRequest, Strength, Tenure};
use crate::cancel::{Cancel, Canceller, canceller};
use crate::core::effort::Effort;
use crate::image::Exclude;
use crate::report::{ExitStatus, Failure, Observer, ProgressEvent, SaveReport};

/// News of saves and of commands that wait to be heard.
pub(super) const NEWS_MAX: usize = 64;

/// What all saves of a job have in common.
#[derive(Clone, Debug)]
pub struct SavePlan {
    /// The job.
    pub job: JobId,
    /// How many shards.
    pub redundancy: Redundancy,
    /// Fewest parity shards of any save, where not all can be had.
    pub allow_degraded: Option<u8>,
    /// Versions to keep.
    pub keep: u32,
    /// For how long.
    pub tenure: Option<Tenure>,
    /// Effort of compression.
    pub effort: Effort,
    /// What is left out.
    pub exclude: Exclude,
    /// How hosts are chosen.
    pub placement: PlacementWish,
    /// What the user writes on it.
    pub labels: Vec<(String, String)>,
    /// How long a save may take that is not the last.
    pub deadline: Duration,
    /// Whether the image needs a machine like this one.
    pub is_bound_to_host: bool,
}

/// One save.
#[derive(Debug)]
pub struct SaveJob {
    /// Its number.
    pub number: SaveNumber,
    /// What is saved.
    pub paths: Vec<PathBuf>,
    /// How long it may take.
    pub deadline: Duration,
    /// Fewest parity shards with which it is committed.
    pub allow_degraded: Option<u8>,
    /// What it follows.
    pub after: Option<After>,
    /// When the job may write again.
    pub release: Release,
    /// The record of the job up to now; none before its first start.
    pub record: Option<String>,
    /// The exit status of the job, when this is what it has left.
    pub result: Option<u8>,
}

/// When the job may write again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// At once: the file is replaced as a whole, so that the one that is read stays as it is.
    AtOnce,
    /// When there are copies that share their blocks with the files or, where the file system makes none,
    /// when the image was read.
    WhenRead,
    /// When the image was read, without a try at copies.
    AtTheEnd,
}

/// Something that a task has to say.
#[derive(Debug)]
pub enum News {
    /// The job may write again.
    Taken(SaveNumber),
    /// A save is over.
    Saved(SaveNumber, Box<Result<SaveReport, Failure>>),
    /// The command that asks the job has ended: its process id, and why it failed.
    Asked(i32, Result<(), String>),
    /// What is to be expected of the machine.
    Outlook(Box<crate::agent::MachineOutlook>),
    /// How owners needed their machines.
    OwnersPast(Past),
}

/// A save that is under way.
#[derive(Debug)]
pub struct Saving {
    /// Its number.
    pub number: SaveNumber,
    canceller: Canceller,
    task: JoinHandle<()>,
}

impl Saving {
    /// Ends it; the news of its end follows.
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// Waits for its end.
    pub async fn wait(self) {
        // A task that panicked has reported nothing; nobody waits for it any more.
        let _ = self.task.await;
    }
}

impl SavePlan {
    /// Starts a save.
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
            let copies = save.copies(&news).await;
            let paths = copies.as_ref().map_or(&save.paths, Stage::paths);
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
            drop(copies);
            // Fails when nobody wants to know any more.
            let _ = news.send(News::Saved(number, Box::new(ended))).await;
        });
        Saving {
            number,
            canceller,
            task,
        }
    }

    /// Saves, and waits for it.
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
        Ok(SaveRequest {
            job: self.job.clone(),
            input: SaveInput::Paths(paths),
            redundancy: self.redundancy,
            allow_degraded: save.allow_degraded,
            keep: self.keep,
            full: false,
            tenure: self.tenure,
            deadline: Some(save.deadline),
            effort: self.effort,
            cipher: Cipher::Aes256Gcm,
            exclude: self.exclude.clone(),
            skip_unreadable: false,
            accept_changed: false,
            placement: self.placement.clone(),
            labels: self.labels(save)?,
            after: save.after,
        })
    }

    fn labels(&self, save: &SaveJob) -> Result<Labels, Failure> {
        let paths = save.paths.len();
        let mut pairs = self.labels.clone();
        if paths > 1 {
            pairs.push((PATHS.to_owned(), paths.to_string()));
        }
        if self.is_bound_to_host {
            pairs.extend(HostKind::of_this().labels());
        }
        if let Some(status) = save.result {
            pairs.push((RESULT.to_owned(), status.to_string()));
        }
        let mut with_record = pairs.clone();
        with_record.extend(
            save.record
                .iter()
                .map(|record| (RECORD.to_owned(), record.clone())),
        );
        // A record that has no room beside the user's labels is no reason to lose the checkpoint.
        Labels::new(with_record)
            .or_else(|_| Labels::new(pairs))
            .map_err(|cause| Failure::new(ExitStatus::Usage, cause.to_string()))
    }
}

impl SaveJob {
    /// Copies of what is saved, if there can be any; the job is released as soon as it may be.
    async fn copies(&self, news: &mpsc::Sender<News>) -> Option<Stage> {
        match self.release {
            Release::AtTheEnd => return None,
            Release::AtOnce => {
                let _ = news.send(News::Taken(self.number)).await;
                return None;
            }
            Release::WhenRead => {}
        }
        let paths = self.paths.clone();
        let made = tokio::task::spawn_blocking(move || Stage::of(&paths)).await;
        match made {
            Ok(Ok(stage)) => {
                let _ = news.send(News::Taken(self.number)).await;
                Some(stage)
            }
            // The files are read themselves.
            Ok(Err(_)) | Err(_) => None,
        }
    }
}

/// Reports when the image was read, and passes everything on.
struct Reader {
    number: SaveNumber,
    news: mpsc::Sender<News>,
    next: Arc<dyn Observer>,
}

impl Observer for Reader {
    fn event(&self, event: ProgressEvent) {
        if event == ProgressEvent::ImageRead {
            // The queue is read all the time; a job that is released a little later loses little.
            let _ = self.news.try_send(News::Taken(self.number));
        }
        self.next.event(event);
    }
}

/// What the next save follows: of all saves that follow one checkpoint, one is committed, so that a second
/// incarnation of the job learns that it is one.
#[derive(Debug, Default)]
pub(super) struct Follows {
    last: Option<AfterWhich>,
    /// Checkpoints of this supervisor that are half done, and may be committed yet.
    half_done: Vec<CheckpointId>,
}

impl Follows {
    /// The version that the job was restored from; the first version of a job follows none.
    pub(super) fn restored(version: Option<Version>) -> Self {
        Self {
            last: version.map(AfterWhich::Version),
            half_done: Vec::new(),
        }
    }

    /// For the next save.
    pub(super) fn after(&self) -> Option<After> {
        let which = self.last?;
        Some(After {
            which,
            strength: Strength::Majority,
            is_unfenced: false,
        })
    }

    /// What the supervisor has to know of how a save ended.
    pub(super) fn outcome(&mut self, ended: &Result<SaveReport, Failure>) -> SaveOutcome {
        let failure = match ended {
            Ok(report) => {
                self.last = Some(AfterWhich::Checkpoint(report.checkpoint));
                self.half_done.clear();
                return SaveOutcome::Committed {
                    version: report.version.0,
                    stored_bytes: report.stored_bytes,
                    image_bytes: report.image_bytes,
                };
            }
            Err(failure) => failure,
        };
        let Some(successor) = &failure.successor else {
            return match failure.status {
                ExitStatus::AnotherSuccessor => SaveOutcome::OtherSuccessor,
                _ => SaveOutcome::Failed,
            };
        };
        if failure.status != ExitStatus::AnotherSuccessor {
            self.half_done.push(successor.checkpoint);
        } else if self.half_done.contains(&successor.checkpoint) {
            // An earlier save of ours was finished, by whoever came across it.
            self.last = Some(AfterWhich::Checkpoint(successor.checkpoint));
        } else {
            return SaveOutcome::OtherSuccessor;
        }
        SaveOutcome::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::SuccessorNote;

    fn failed(status: ExitStatus, checkpoint: Option<u8>) -> Result<SaveReport, Failure> {
        let mut failure = Failure::new(status, "no");
        let successor = checkpoint.map(|byte| SuccessorNote {
            version: Version(8),
            checkpoint: CheckpointId([byte; 16]),
            committed: true,
        });
        failure.successor = successor.map(Box::new);
        Err(failure)
    }

    #[test]
    fn the_save_of_another_ends_the_job_and_a_late_one_of_its_own_does_not() {
        let mut follows = Follows::restored(Some(Version(7)));
        let which = |follows: &Follows| follows.after().map(|after| after.which);
        assert_eq!(which(&follows), Some(AfterWhich::Version(Version(7))));
        let half_done = failed(ExitStatus::TooFewHosts, Some(1));
        assert_eq!(follows.outcome(&half_done), SaveOutcome::Failed);
        let own = failed(ExitStatus::AnotherSuccessor, Some(1));
        assert_eq!(follows.outcome(&own), SaveOutcome::Failed);
        let id = CheckpointId([1; 16]);
        assert_eq!(which(&follows), Some(AfterWhich::Checkpoint(id)));
        let others = failed(ExitStatus::AnotherSuccessor, Some(2));
        assert_eq!(follows.outcome(&others), SaveOutcome::OtherSuccessor);
        let unknown = failed(ExitStatus::AnotherSuccessor, None);
        assert_eq!(follows.outcome(&unknown), SaveOutcome::OtherSuccessor);
        assert!(Follows::restored(None).after().is_none());
    }
}
