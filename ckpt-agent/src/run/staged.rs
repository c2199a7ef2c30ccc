//! A job whose working directory comes from the store and goes back there: the end of `ckpt run --on` that
//! is on the job's machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use supervision::{EndedBy, SaveNumber, SaveOutcome, Why};

use super::away::words::{EndSaid, RestSaid};
use super::files::remove;
use super::orders::{Orders, Reach};
use super::place::Place;
use super::saver::{Release, SaveJob};
use super::shell::Ended;
use super::signals::Signals;
use crate::cancel::canceller;
use crate::report::Silent;

/// The job's working directory, in its place.
pub(super) const WORK: &str = "work";

/// The same when its job has ended and it could not be saved.
const UNSAVED: &str = "unsaved";

/// File in the job's place that is written again and again while the supervisor lives.
pub(super) const BEAT: &str = "beat.json";

/// File there that says how it ended.
pub(super) const END: &str = "end.json";

/// Label of a version that is the result of a job which has ended: its exit status.
pub(super) const RESULT: &str = "ckpt.result";

/// How often the file is written. Reports are no more frequent than that.
const BEAT_PERIOD: Duration = Duration::from_millis(500);

/// Shortest and longest time from one try to save a result to the next.
const AGAIN_FIRST: Duration = Duration::from_secs(2);
const AGAIN_LONGEST: Duration = Duration::from_secs(60);

/// Number of the save of a result: no other one is under way then.
const LAST_SAVE: SaveNumber = SaveNumber(u32::MAX);

/// What is in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct BeatSaid {
    /// Counts.
    pub number: u64,
    /// Whether the job has been started.
    pub runs: bool,
    /// What is left of it.
    pub rest: Option<RestSaid>,
}

/// Writes the file, on a task of its own: what it says stands still when this process does.
#[derive(Debug)]
pub(super) struct Beat {
    said: Arc<Mutex<BeatSaid>>,
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Beat {
    /// Begins.
    pub(super) fn begin(place: &Place) -> Self {
        let said = Arc::new(Mutex::new(BeatSaid::default()));
        let path = place.path(BEAT);
        let (shared, file) = (Arc::clone(&said), path.clone());
        let task = tokio::spawn(async move {
            loop {
                write_beat(&shared, &file);
                tokio::time::sleep(BEAT_PERIOD).await;
            }
        });
        Self { said, path, task }
    }

    /// Whether the job runs and is not leaving, and what is left of it.
    pub(super) fn says(&self, runs: bool, rest: Option<RestSaid>) {
        let did_run = {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            said.rest = rest;
            std::mem::replace(&mut said.runs, runs)
        };
        if did_run != runs {
            write_beat(&self.said, &self.path);
        }
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn write_beat(said: &Mutex<BeatSaid>, path: &Path) {
    let now = {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.number += 1;
        *said
    };
    // On a full disk it is left out: then the host counts as silent, as it is of no use.
    let _ = write_json(path, &now);
}

/// Writes a file that others read at any time.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(value)?;
    let next = path.with_extension("next");
    fs::write(&next, text)?;
    fs::rename(next, path)
}

/// Before a start: what an earlier incarnation has left here is worth nothing, its versions count.
pub(super) fn clear(place: &Place) -> io::Result<()> {
    remove(&place.path(WORK))?;
    remove(&place.path(END))
}

/// After the end of a job that has ended by itself: its working directory becomes a version with its
/// status, however long that takes, unless a signal wants this process to end.
pub(super) async fn save_result(
    orders: &Orders,
    place: &Place,
    ended: &mut Ended,
    reach: &dyn Reach,
    signals: &mut Signals,
) {
    let EndedBy::Job(status) = ended.ending.ended_by else {
        return;
    };
    let mut pause = AGAIN_FIRST;
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
                let message = format!("the result is not saved: {failure}; again in {seconds} s");
                ended.log.warn(message);
            }
            (SaveOutcome::Failed, Ok(_)) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            signal = leaving(signals) => return left(place, ended, signal),
        }
        pause = (pause * 2).min(AGAIN_LONGEST);
    }
}

/// Waits for a signal that ends this process.
async fn leaving(signals: &mut Signals) -> u8 {
    const LEAVES: [u8; 2] = [10, 15];
    loop {
        let signal = signals.next().await;
        if LEAVES.contains(&signal) {
            return signal;
        }
    }
}

/// The result is nowhere but here, and stays.
fn left(place: &Place, ended: &mut Ended, signal: u8) {
    let unsaved = place.path(UNSAVED);
    let moved = remove(&unsaved).and_then(|()| fs::rename(place.path(WORK), &unsaved));
    let path = unsaved.display();
    ended.log.warn(match moved {
        Ok(()) => format!("the result was not saved: it lies here, in {path}"),
        Err(cause) => format!("the result was not saved, nor kept in {path}: {cause}"),
    });
    ended.ending.ended_by = EndedBy::LeftOlder {
        why: Why::Signal(signal),
        version: ended.version,
    };
}

/// Says how it ended, and removes the working directory: what counts of it is in the store.
pub(super) fn end(place: &Place, end: &EndSaid) -> io::Result<()> {
    let removed = remove(&place.path(WORK));
    write_json(&place.path(END), end)?;
    removed
}
