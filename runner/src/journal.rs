//! The journal of a job on this machine: one JSON object per line, in the order of events.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Size, in bytes, above which a journal is renamed, and replaces the one renamed before.
const JOURNAL_BYTES_MAX: u64 = 16 << 20;

/// Extension of the renamed journal.
const OLD_EXTENSION: &str = "jsonl.1";

/// A line of the journal.
#[derive(Clone, Debug, Serialize)]
pub(super) struct JournalLine {
    /// When it happened, Unix milliseconds.
    pub at_ms: u64,
    /// The event and its fields.
    #[serde(flatten)]
    pub entry: JournalEvent,
}

/// What happened, with its details.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum JournalEvent {
    /// The job was started.
    Started {
        /// Process id of the job.
        pid: i32,
        /// Version that it began from; `None` if it began anew.
        version: Option<u64>,
        /// Bytes of that version that files of this machine had already, and that were not fetched.
        at_hand_bytes: u64,
        /// Bytes that hosts sent for it.
        fetched_bytes: u64,
        /// Where the files that were there before were moved.
        aside: Vec<String>,
        /// Where the forecast for the machine comes from.
        outlook: String,
    },
    /// The supervisor treats the job differently now.
    State {
        /// `normal`, `lowest`, `suspended`, `leaving`, `stopping`.
        state: String,
    },
    /// The job was stopped for the owner.
    Suspended {
        /// What the owner needs: `processors`, `user` (somebody sits at the machine) or `withheld` (the owner lends
        /// the machine to nobody now).
        need: &'static str,
        /// Load of the owner, 0 to 1.
        load: f64,
    },
    /// The job goes on.
    Resumed {
        /// Seconds for which it was stopped.
        after_s: f64,
    },
    /// The job was asked for a checkpoint.
    Asked {
        /// Whether it is the last one.
        is_final: bool,
    },
    /// The job did not write the checkpoint that it was asked for.
    NoAnswer {
        /// Seconds until it is asked again.
        again_s: f64,
    },
    /// A new job starts, and nothing is at one of the paths of its state.
    NothingYet {
        /// The path.
        path: String,
    },
    /// A checkpoint has been due for a whole interval, and could not be taken.
    NoCheckpoint {
        /// Why, with the file that stands in the way, and what helps.
        why: String,
        /// Seconds of work that no version holds.
        unsaved_s: f64,
    },
    /// The job that leaves is not waited for any longer, because the rest of the grace is needed to save what it
    /// has on disk.
    CutShort {
        /// Seconds until it has to be gone.
        grace_s: f64,
    },
    /// A version that can't be restored now is waited for before the job is started.
    WaitsForVersion {
        /// Seconds for which it is waited at most.
        seconds: f64,
    },
    /// A save has begun.
    Saving {
        /// Whether it is the last one.
        is_final: bool,
        /// Whether the files are not known to be whole.
        is_torn: bool,
        /// Longest time for the save, seconds; `None` if it has none.
        deadline_s: Option<f64>,
    },
    /// The files were set aside for a save, so that the job goes on while they are saved.
    SetAside {
        /// By further `names` of replaced files, by `reflinks`, or by `copies`: the means that cost most.
        by: &'static str,
    },
    /// The files could not be set aside: the job stands still while they are read.
    NotSetAside {
        /// Why.
        why: String,
    },
    /// A save was committed.
    Saved {
        /// The version that it became.
        version: u64,
        /// Seconds from the beginning of the save to the commit.
        seconds: f64,
        /// Sum of the file sizes.
        image_bytes: u64,
        /// Bytes of the image after compression, before coding.
        stored_bytes: u64,
        /// How many shards can be lost.
        can_lose: usize,
    },
    /// What is lost at most if the machine is taken with notice has changed.
    Promise {
        /// The most that is lost, seconds.
        loss_s: f64,
        /// Work from one checkpoint to the next, seconds.
        interval_s: f64,
        /// What keeps the loss from being less: `line`, the share of it that may be spent, or `standstill`, the time
        /// for which the job stands still for a checkpoint.
        limit: Option<&'static str>,
    },
    /// A save failed; the version before is still the newest.
    SaveFailed {
        /// The error message of the save.
        message: String,
        /// The exit status that `ckpt save` would have for this failure.
        status: u8,
    },
    /// The job has to leave this machine.
    Leaving {
        /// Why the job has to leave.
        why: String,
        /// Seconds until it has to be gone.
        grace_s: f64,
        /// Seconds that the final checkpoint is expected to take.
        expected_s: f64,
        /// The chance that it is in time, 0 to 1.
        chance: f64,
    },
    /// The job that leaves has less time than was known before.
    Hurry {
        /// Seconds until it has to be gone.
        grace_s: f64,
    },
    /// The job shows no sign of life: no progress, no processor time, no input or output.
    Quiet {
        /// For how long, seconds.
        seconds: f64,
    },
    /// The job has run for three times as long as was predicted.
    Overdue {
        /// How long it has run, seconds.
        seconds: f64,
    },
    /// The forecast from earlier runs.
    Forecast {
        /// Processor time at reference speed, seconds.
        cpu_s: f64,
        /// Lower end of the interval, seconds.
        low_s: Option<f64>,
        /// Upper end of the interval, seconds.
        high_s: Option<f64>,
        /// Share of runs that lie in the interval.
        share: Option<f64>,
        /// How many earlier runs it rests on.
        runs: usize,
        /// Processor time that earlier incarnations have used already, seconds.
        used_s: f64,
        /// Speed of this machine, 1 for the reference.
        speed: f64,
    },
    /// An estimate of the job's end.
    Expected {
        /// Seconds until the end.
        remaining_s: f64,
        /// What the estimate is based on: `progress` that the job reports, or `cpu`, its processor time.
        by: &'static str,
    },
    /// The job is expected to end after its deadline, or the deadline has passed.
    Late {
        /// Seconds from now until its end; `None` if nothing is known of it.
        remaining_s: Option<f64>,
        /// Seconds from now until the deadline.
        left_s: f64,
        /// What the estimate is based on, as in [`JournalEvent::Expected`].
        by: &'static str,
    },
    /// Processes of the job are still there after they were killed.
    NotGone,
    /// A warning for the user.
    Warning {
        /// The warning, as a sentence.
        message: String,
    },
    /// The host on which the job is to go on has fetched a version ahead.
    StandsBy {
        /// The name of the host.
        host: String,
        /// The newest version that hosts show.
        version: Option<u64>,
        /// Bytes that it fetched for it.
        fetched_bytes: u64,
        /// Bytes that all that it has of the job takes on its disk.
        held_bytes: u64,
        /// Whether it has all that a restore of this version reads.
        is_complete: bool,
    },
    /// The working directory was saved, for hosts to start the job from.
    Staged {
        /// The version that it became.
        version: u64,
        /// Number of files in it.
        files: usize,
        /// Seconds from the beginning of the save to the commit.
        seconds: f64,
        /// Sum of the file sizes.
        image_bytes: u64,
    },
    /// The job runs on a host.
    RunsThere {
        /// The name of the host.
        host: String,
        /// Seconds since it ran last; `None` the first time.
        after_s: Option<f64>,
    },
    /// `ckpt run` has ended on a host.
    EndedThere {
        /// The name of the host.
        host: String,
        /// The exit status of `ckpt run`.
        exit_code: u8,
        /// Why it ended there.
        why: String,
        /// The newest version that was committed or restored.
        version: Option<u64>,
    },
    /// The job is not on the host, and the host is left alone for a while.
    LeftAlone {
        /// The name of the host.
        host: String,
        /// For how long the host is left alone, seconds.
        seconds: f64,
    },
    /// Too many reports of the host did not come: the job goes on elsewhere, and the host is left alone.
    Lost {
        /// The name of the host.
        host: String,
        /// For how long the host is left alone, seconds.
        seconds: f64,
    },
    /// The job is asked to leave its host for one on which it is expected to end much earlier.
    Better {
        /// The host on which it runs.
        host: String,
        /// The host on which it would end earlier.
        there: String,
    },
    /// No host is free.
    Waits {
        /// Seconds until the hosts are asked again.
        seconds: f64,
    },
    /// The result was restored here.
    BroughtBack {
        /// The version of the result.
        version: Option<u64>,
        /// Number of files that are new or different.
        files: usize,
        /// Seconds that it took.
        seconds: f64,
    },
    /// `ckpt run` has ended.
    Ended {
        /// Exit status of `ckpt run`.
        exit_code: u8,
        /// What ended the run: `job` or `supervisor`.
        ended_by: &'static str,
        /// Why the run ended.
        why: String,
        /// The newest version that was committed or restored.
        version: Option<u64>,
    },
}

/// A journal that is being written.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: Option<File>,
}

impl Journal {
    /// Opens the journal at `path` and appends to it. If that fails, the job runs without a journal, and
    /// the error is returned.
    pub(super) fn open(path: PathBuf) -> (Self, Option<io::Error>) {
        let opened =
            rotate(&path).and_then(|()| File::options().create(true).append(true).open(&path));
        match opened {
            Ok(file) => (
                Self {
                    path,
                    file: Some(file),
                },
                None,
            ),
            Err(cause) => (Self { path, file: None }, Some(cause)),
        }
    }

    /// The path of the journal.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a line. A line that can't be written, such as on a full disk, is left out.
    pub(super) fn write(&mut self, line: &JournalLine) {
        let (Some(file), Ok(mut text)) = (&mut self.file, serde_json::to_vec(line)) else {
            return;
        };
        text.push(b'\n');
        let _ = file.write_all(&text);
    }
}

fn rotate(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.len() > JOURNAL_BYTES_MAX => {
            fs::rename(path, path.with_extension(OLD_EXTENSION))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_one_object_a_line_and_goes_on_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        for number in 0..2 {
            let (mut journal, failed) = Journal::open(path.clone());
            assert!(failed.is_none());
            let entry = JournalEvent::Resumed {
                after_s: f64::from(number),
            };
            journal.write(&JournalLine { at_ms: 7, entry });
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1]["event"], "resumed");
        assert_eq!(
            (&lines[1]["at_ms"], &lines[1]["after_s"]),
            (&7.into(), &1.0.into())
        );
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(JOURNAL_BYTES_MAX + 1))
            .unwrap();
        drop(Journal::open(path.clone()));
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert!(dir.path().join("journal.jsonl.1").exists());
    }
}
