//! The journal of a job on this machine: one JSON object a line, in the order in which things happened.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Size from which on a journal is put aside, once: the one before it is removed.
const JOURNAL_BYTES_MAX: u64 = 16 << 20;

/// End of the name of the one that was put aside.
const OLD: &str = "jsonl.1";

/// One line.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line {
    /// When, Unix milliseconds.
    pub at_ms: u64,
    /// What happened.
    #[serde(flatten)]
    pub entry: Entry,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Entry {
    /// The job was started.
    Started {
        /// Process id of the job.
        pid: i32,
        /// Version that it began from; none when it began anew.
        version: Option<u64>,
        /// Where what lay there was put.
        aside: Vec<String>,
        /// Who says what is to be expected of the machine.
        outlook: String,
    },
    /// What the supervisor does with the job is different now.
    State {
        /// `normal`, `lowest`, `suspended`, `leaving`, `stopping`.
        state: String,
    },
    /// The owner needs the machine: the job was stopped.
    Suspended {
        /// Load that was seen, 0 to 1.
        load: f64,
    },
    /// The job goes on.
    Resumed {
        /// Seconds for which it stood.
        after_s: f64,
    },
    /// The job was asked for a checkpoint.
    Asked {
        /// Whether it is the last one.
        is_final: bool,
    },
    /// It did not answer.
    NoAnswer {
        /// Seconds until it is asked again.
        again_s: f64,
    },
    /// A save has begun.
    Saving {
        /// Whether it is the last one.
        is_final: bool,
        /// Seconds that it may take.
        deadline_s: f64,
    },
    /// A save was committed.
    Saved {
        /// As this version.
        version: u64,
        /// Seconds until then.
        seconds: f64,
        /// Sum of the file sizes.
        image_bytes: u64,
        /// Bytes after compression.
        stored_bytes: u64,
        /// Shards that can be lost.
        can_lose: usize,
    },
    /// A save failed; the version before stands.
    SaveFailed {
        /// Why.
        message: String,
        /// The exit status that `ckpt save` would have ended with.
        status: u8,
    },
    /// The job has to leave this machine.
    Leaving {
        /// Why.
        why: String,
        /// Seconds until it has to be gone.
        grace_s: f64,
        /// Seconds that the final checkpoint is expected to take.
        expected_s: f64,
        /// The chance that it is in time, 0 to 1.
        chance: f64,
    },
    /// There is less time than was said.
    Hurry {
        /// Seconds until it has to be gone.
        grace_s: f64,
    },
    /// The job shows neither progress nor processor time nor input and output.
    Quiet {
        /// Seconds for which it has shown none.
        seconds: f64,
    },
    /// The job takes three times as long as was predicted.
    Overdue {
        /// Seconds for which it has run.
        seconds: f64,
    },
    /// What earlier runs say of this one.
    Forecast {
        /// Processor time at reference speed, seconds.
        cpu_s: f64,
        /// Lower end of the interval.
        low_s: Option<f64>,
        /// Upper end.
        high_s: Option<f64>,
        /// Share of runs that lie in it.
        share: Option<f64>,
        /// Earlier runs.
        runs: usize,
        /// What earlier incarnations have used of it.
        used_s: f64,
        /// Speed of this machine, 1 being the reference.
        speed: f64,
    },
    /// When the job should end.
    Expected {
        /// Seconds from now on.
        remaining_s: f64,
        /// By `progress` that the job reports, or by its `cpu` time.
        by: &'static str,
    },
    /// The job is expected to end after its deadline.
    Late {
        /// Seconds from now until its end.
        remaining_s: f64,
        /// Seconds from now until the deadline.
        left_s: f64,
        /// As above.
        by: &'static str,
    },
    /// Processes of the job outlive their end.
    NotGone,
    /// Something that the user should know.
    Warning {
        /// What.
        message: String,
    },
    /// The working directory was saved, for hosts to begin from.
    Staged {
        /// As this version.
        version: u64,
        /// Files in it.
        files: usize,
        /// Seconds until then.
        seconds: f64,
        /// Sum of the file sizes.
        image_bytes: u64,
    },
    /// The job runs on a host.
    RunsThere {
        /// The host.
        host: String,
        /// Seconds since it ran last; none the first time.
        after_s: Option<f64>,
    },
    /// `ckpt run` has ended on a host.
    EndedThere {
        /// The host.
        host: String,
        /// Its exit status.
        exit_code: u8,
        /// Why.
        why: String,
        /// The newest version.
        version: Option<u64>,
    },
    /// The job is not on the host, which is left alone for a while.
    LeftAlone {
        /// The host.
        host: String,
        /// Seconds.
        seconds: f64,
    },
    /// Six reports of the host did not come: the job goes on elsewhere, and the host is left alone.
    Lost {
        /// The host.
        host: String,
        /// Seconds.
        seconds: f64,
    },
    /// The job is asked to leave its host for one on which it is expected to end much earlier.
    Better {
        /// Where it runs.
        host: String,
        /// Where it would end earlier.
        there: String,
    },
    /// No host is free.
    Waits {
        /// Seconds until they are asked again.
        seconds: f64,
    },
    /// The result was restored here.
    BroughtBack {
        /// Of this version.
        version: Option<u64>,
        /// Files that are new or different.
        files: usize,
        /// Seconds that it took.
        seconds: f64,
    },
    /// It is over.
    Ended {
        /// Exit status of `ckpt run`.
        exit_code: u8,
        /// `job` or `supervisor`.
        ended_by: &'static str,
        /// Why.
        why: String,
        /// The newest version that was committed or restored.
        version: Option<u64>,
    },
}

/// A journal that is written to.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: Option<File>,
}

impl Journal {
    /// Goes on with the journal at `path`. A journal that can't be written does not keep a job from
    /// running: then there is none.
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

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a line. On a full disk it is left out.
    pub(super) fn write(&mut self, line: &Line) {
        let (Some(file), Ok(mut text)) = (&mut self.file, serde_json::to_vec(line)) else {
            return;
        };
        text.push(b'\n');
        let _ = file.write_all(&text);
    }
}

fn rotate(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.len() > JOURNAL_BYTES_MAX => fs::rename(path, path.with_extension(OLD)),
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
            let entry = Entry::Resumed {
                after_s: f64::from(number),
            };
            journal.write(&Line { at_ms: 7, entry });
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
