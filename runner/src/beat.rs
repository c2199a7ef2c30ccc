//! Signs of life of a supervisor to another machine: a file that is rewritten regularly.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::away::words::RemainingWork;
use super::job_dir::JobDir;
use super::json_file::write_json;

/// Name of the file in the job's directory that is rewritten regularly while the supervisor lives.
pub(super) const BEAT: &str = "beat.json";

/// Time from one write of the beat to the next. Reports to other machines can't be more frequent.
const BEAT_PERIOD: Duration = Duration::from_millis(500);

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
        let shared = Arc::clone(&contents);
        let file = path.clone();
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
