//! A job whose working directory comes from the hosts of the grid and goes back to them: the part of
//! `ckpt run --on` that runs on the job's machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use supervision::{EndedBy, LEAVE_SIGNALS, SaveNumber, SaveOutcome, Why};

use super::away::words::{EndReport, RemainingWork};
use super::files::remove;
use super::job_dir::JobDir;
use super::orders::{Orders, Reach};
use super::saver::{Release, SaveJob};
use super::shell::Ended;
use super::signals::Signals;
use ckpt_agent::cancel::canceller;
use ckpt_agent::report::Silent;

/// Name of the job's working directory, in the job's directory.
pub(super) const WORK: &str = "work";

/// Name to which the working directory is moved if the job has ended and its result could not be saved.
const UNSAVED: &str = "unsaved";

/// Name of the file in the job's directory that is rewritten regularly while the supervisor lives.
pub(super) const BEAT: &str = "beat.json";

/// Name of the file in the job's directory that records how the job ended.
pub(super) const END: &str = "end.json";

/// Label of a version that is the result of an ended job; its value is the job's exit status.
pub(super) const RESULT: &str = "ckpt.result";

/// Time from one write of the beat to the next. Reports to other machines can't be more frequent.
const BEAT_PERIOD: Duration = Duration::from_millis(500);

/// Shortest and longest pause before a result is saved again after a failure.
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_LONGEST: Duration = Duration::from_secs(60);

/// Number of the save of a result. No other save is under way at that time.
const LAST_SAVE: SaveNumber = SaveNumber(u32::MAX);

/// The contents of the beat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct BeatContents {
    /// Grows with each write, by which a reader sees that the supervisor lives.
    pub number: u64,
    /// Whether the job runs and is not leaving.
    pub runs: bool,
    /// What is left of the job, if that is known.
    pub rest: Option<RemainingWork>,
}

/// Writes the beat, in a task of its own. The number in the beat stops growing when this process stops.
#[derive(Debug)]
pub(super) struct Beat {
    contents: Arc<Mutex<BeatContents>>,
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Beat {
    /// Begins to write the beat into the job's directory.
    pub(super) fn begin(place: &JobDir) -> Self {
        let contents = Arc::new(Mutex::new(BeatContents::default()));
        let path = place.path(BEAT);
        let (shared, file) = (Arc::clone(&contents), path.clone());
        let task = tokio::spawn(async move {
            loop {
                write_beat(&shared, &file);
                tokio::time::sleep(BEAT_PERIOD).await;
            }
        });
        Self {
            contents,
            path,
            task,
        }
    }

    /// The job runs; `rest` is left of it.
    pub(super) fn job_runs(&self, rest: Option<RemainingWork>) {
        self.set(true, rest);
    }

    /// The job is leaving or has ended; `rest` is left of it.
    pub(super) fn job_leaves(&self, rest: Option<RemainingWork>) {
        self.set(false, rest);
    }

    fn set(&self, runs: bool, rest: Option<RemainingWork>) {
        let did_run = {
            let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
            contents.rest = rest;
            std::mem::replace(&mut contents.runs, runs)
        };
        if did_run != runs {
            write_beat(&self.contents, &self.path);
        }
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn write_beat(contents: &Mutex<BeatContents>, path: &Path) {
    let now = {
        let mut contents = contents.lock().unwrap_or_else(PoisonError::into_inner);
        contents.number += 1;
        *contents
    };
    // If the disk is full the write fails, and the host counts as silent: it could not go on anyway.
    let _ = write_json(path, &now);
}

/// Writes a file that others may read at any time.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(value)?;
    let next = path.with_extension("next");
    fs::write(&next, text)?;
    fs::rename(next, path)
}

/// Before a start: removes what an earlier incarnation has left here. Only its saved versions count.
pub(super) fn clear(place: &JobDir) -> io::Result<()> {
    remove(&place.path(WORK))?;
    remove(&place.path(END))
}

/// After a job has ended by itself: saves its working directory as a version with its exit status.
/// Retries for as long as it takes, unless a signal asks this process to leave.
pub(super) async fn save_result(
    orders: &Orders,
    place: &JobDir,
    ended: &mut Ended,
    reach: &dyn Reach,
    signals: &mut Signals,
) {
    let EndedBy::Job(status) = ended.ending.ended_by else {
        return;
    };
    let mut pause = RETRY_FIRST;
    loop {
        let save = SaveJob {
            number: LAST_SAVE,
            paths: orders.paths(place),
            deadline: orders.save.deadline,
            allow_degraded: orders.save.allow_degraded,
            after: ended.follows.after(),
            release: Release::AtTheEnd,
            record: Some(ended.recorder.label()),
            result: Some(status.code()),
        };
        let (canceller, cancel) = canceller();
        let saving = orders.save.save(reach, &save, Arc::new(Silent), cancel);
        let saved = tokio::select! {
            saved = saving => saved,
            signal = leaving(signals) => {
                canceller.cancel();
                return left(place, ended, signal);
            }
        };
        match (ended.follows.outcome(&saved), saved) {
            (SaveOutcome::Committed { version, .. }, _) => {
                ended.version = Some(version);
                return;
            }
            (SaveOutcome::OtherSuccessor, _) => {
                ended.ending.ended_by = EndedBy::OtherIncarnation;
                return;
            }
            (SaveOutcome::Failed, Err(failure)) => {
                let seconds = pause.as_secs();
                let message =
                    format!("the result is not saved: {failure}; trying again in {seconds} s");
                ended.log.warn(message);
            }
            (SaveOutcome::Failed, Ok(_)) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            signal = leaving(signals) => return left(place, ended, signal),
        }
        pause = (pause * 2).min(RETRY_LONGEST);
    }
}

/// Waits for a signal that asks this process to leave.
async fn leaving(signals: &mut Signals) -> u8 {
    loop {
        let signal = signals.next().await;
        if LEAVE_SIGNALS.contains(&signal) {
            return signal;
        }
    }
}

/// Keeps a result that was not saved, since no other copy of it exists.
fn left(place: &JobDir, ended: &mut Ended, signal: u8) {
    let unsaved = place.path(UNSAVED);
    let moved = remove(&unsaved).and_then(|()| fs::rename(place.path(WORK), &unsaved));
    let path = unsaved.display();
    ended.log.warn(match moved {
        Ok(()) => format!("the result was not saved: it is on this host, in {path}"),
        Err(cause) => format!("the result was not saved, and could not be kept in {path}: {cause}"),
    });
    ended.ending.ended_by = EndedBy::LeftOlder {
        why: Why::Signal(signal),
        version: ended.version,
    };
}

/// Records how the job ended, and removes its working directory: what counts of it is saved.
pub(super) fn end(place: &JobDir, end: &EndReport) -> io::Result<()> {
    let removed = remove(&place.path(WORK));
    write_json(&place.path(END), end)?;
    removed
}
