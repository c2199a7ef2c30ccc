//! A note of how a job stands now, for `ckpt jobs`: a file in the job's directory that its supervisor rewrites, and
//! removes at the end. It counts as long as the lock of the directory is held; if it is there at the next start, the
//! supervisor was killed.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::clock::awake_ms;
use super::files::remove;
use super::job_dir::JobDir;
use super::json_file::write_json;
use super::kept_state::boot_id;
use ckpt_agent::unix_time::unix_millis;

/// Name of the note in the job's directory.
pub(super) const STANDING: &str = "standing.json";

/// Time from one write of an unchanged note to the next.
const WRITE_PERIOD: Duration = Duration::from_secs(5);

/// A note counts as being of now for this long, seconds. A supervisor that is stopped writes none, and its job does
/// not work.
const FRESH_SECONDS: f64 = 15.0;

/// Longest note that is read, bytes.
const NOTE_BYTES_MAX: u64 = 64 << 10;

/// What is done with a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It is being restored, or a host for it is awaited.
    #[default]
    Starting,
    /// It runs.
    Running,
    /// It is stopped for the machine's owner.
    StoppedForOwner,
    /// It is being saved.
    Saving,
    /// It has to leave the machine.
    Leaving,
    /// It has ended or is being ended.
    Ending,
}

/// How a job stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobStanding {
    /// Name of the job.
    pub job: String,
    /// What is done with it.
    pub state: JobState,
    /// Since when it is stopped or leaves, Unix milliseconds.
    pub since_ms: Option<u64>,
    /// Why it is stopped or leaves.
    pub why: Option<String>,
    /// The host on which it runs, if that is not this machine.
    pub host: Option<String>,
    /// The host that has fetched the newest version ahead.
    #[serde(default)]
    pub standby: Option<String>,
    /// Whether work is being added that no version holds.
    pub works: bool,
    /// Work of this incarnation, seconds.
    pub work_s: f64,
    /// How much of this work no version holds, seconds.
    pub unsaved_s: f64,
    /// When the next save is due, in seconds; 0 if it is overdue. `None` if none is foreseen.
    pub next_save_s: Option<f64>,
    /// The newest version that was committed or restored.
    pub version: Option<u64>,
    /// When it was committed, Unix milliseconds; `None` if it was restored.
    pub saved_at_ms: Option<u64>,
    /// Why the last save did not happen.
    pub not_saved: Option<String>,
    /// What is lost at most if the machine is taken with notice, seconds; `None` while that is not known.
    #[serde(default)]
    pub promised_s: Option<f64>,
}

impl JobStanding {
    /// Whether it says the same of the job, but for what passes with time.
    fn is_alike(&self, other: &Self) -> bool {
        let timeless = |one: &Self| Self {
            work_s: 0.0,
            unsaved_s: 0.0,
            next_save_s: None,
            promised_s: None,
            ..one.clone()
        };
        timeless(self) == timeless(other)
    }

    /// Whether its figures are possible.
    fn is_sound(&self) -> bool {
        let times = [Some(self.work_s), Some(self.unsaved_s), self.next_save_s];
        let mut given = times.into_iter().flatten();
        given.all(|time| time.is_finite() && time >= 0.0)
    }

    /// The standing `seconds` later, if nothing happens but work.
    fn later(mut self, seconds: f64) -> Self {
        if self.works {
            self.work_s += seconds;
            self.unsaved_s += seconds;
        }
        self.next_save_s = self.next_save_s.map(|next| (next - seconds).max(0.0));
        self
    }
}

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Note {
    /// The start of the machine on which it was written.
    boot: String,
    /// When it was written, Unix milliseconds.
    at_ms: u64,
    /// The same by a clock that stands while the machine sleeps, milliseconds since its start.
    awake_ms: u64,
    standing: JobStanding,
}

/// A note that was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReadNote {
    /// How the job stands now, by the note.
    pub standing: JobStanding,
    /// When the note was written, Unix milliseconds.
    pub at_ms: u64,
    /// Whether this machine wrote it, since its last start.
    pub is_of_here: bool,
}

/// The note of a job that this process supervises.
#[derive(Debug)]
pub(super) struct StandingNote {
    path: PathBuf,
    written: Option<(Instant, JobStanding)>,
}

impl StandingNote {
    /// Begins the note of a job. Also returns the standing that a supervisor left which was killed here.
    pub(super) fn begin(place: &JobDir, job: &str) -> (Self, Option<JobStanding>) {
        let path = place.path(STANDING);
        let left = read_note(&path).ok().flatten().map(|note| note.standing);
        let mut note = Self {
            path,
            written: None,
        };
        note.show(JobStanding {
            job: job.to_owned(),
            ..JobStanding::default()
        });
        (note, left)
    }

    /// Whether how the job stands is to be written now.
    pub(super) fn is_due(&self, standing: &JobStanding) -> bool {
        self.written
            .as_ref()
            .is_none_or(|(at, before)| at.elapsed() >= WRITE_PERIOD || !before.is_alike(standing))
    }

    /// Writes how the job stands, if that is new, or the last time was a while ago.
    pub(super) fn show(&mut self, standing: JobStanding) {
        if !self.is_due(&standing) {
            return;
        }
        let note = Note {
            boot: boot_id().unwrap_or_default(),
            at_ms: unix_millis(),
            awake_ms: awake_ms(),
            standing,
        };
        // On a full disk the note gets old, and whoever reads it sees that.
        if let Err(cause) = write_json(&self.path, &note) {
            tracing::debug!(%cause, "how the job stands is not noted");
        }
        self.written = Some((Instant::now(), note.standing));
    }

    /// Ends the note of a job that was not started: what a killed supervisor left stays for the next start.
    pub(super) fn give_back(mut self, left: Option<JobStanding>) {
        match left {
            Some(left) => self.show(left),
            None => self.end(),
        }
    }

    /// Removes the note: the job has ended here, and what became of its work is known.
    pub(super) fn end(self) {
        if let Err(cause) = remove(&self.path) {
            tracing::debug!(%cause, "how the job stands stays noted");
        }
    }
}

/// Reads a note; `None` if there is none.
///
/// # Errors
/// When it can't be read, or is no note.
pub(super) fn read(path: &Path) -> io::Result<Option<ReadNote>> {
    let Some(note) = read_note(path)? else {
        return Ok(None);
    };
    let is_of_here = boot_id().is_ok_and(|boot| boot == note.boot);
    let passed = awake_ms().saturating_sub(note.awake_ms) as f64 / 1000.0;
    let passed = if is_of_here {
        passed.min(FRESH_SECONDS)
    } else {
        0.0
    };
    Ok(Some(ReadNote {
        standing: note.standing.later(passed),
        at_ms: note.at_ms,
        is_of_here,
    }))
}

fn read_note(path: &Path) -> io::Result<Option<Note>> {
    let mut text = Vec::new();
    match fs::File::open(path) {
        Ok(file) => file.take(NOTE_BYTES_MAX).read_to_end(&mut text)?,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(cause),
    };
    let note: Note = serde_json::from_slice(&text)?;
    if !note.standing.is_sound() {
        let cause = "impossible times";
        return Err(io::Error::new(io::ErrorKind::InvalidData, cause));
    }
    Ok(Some(note))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing() -> JobStanding {
        JobStanding {
            job: "42".into(),
            state: JobState::Running,
            works: true,
            work_s: 100.0,
            unsaved_s: 40.0,
            next_save_s: Some(20.0),
            version: Some(3),
            ..JobStanding::default()
        }
    }

    fn put(path: &Path, boot: String, awake_ms: u64, standing: JobStanding) {
        let at_ms = unix_millis();
        let note = Note {
            boot,
            at_ms,
            awake_ms,
            standing,
        };
        write_json(path, &note).unwrap();
    }

    #[test]
    fn what_is_at_risk_grows_while_the_job_works_and_only_while_the_machine_is_awake() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(STANDING);
        assert_eq!(read(&path).unwrap(), None);
        let here = boot_id().unwrap();
        let unsaved = |awake_ms, standing| {
            put(&path, here.clone(), awake_ms, standing);
            read(&path).unwrap().unwrap().standing.unsaved_s
        };
        let now = awake_ms();
        assert!((unsaved(now - 10_000, standing()) - 50.0).abs() < 1.0);
        // The supervisor has not written for an hour: it is stopped, and so is its job.
        assert_eq!(unsaved(now.saturating_sub(3_600_000), standing()), 55.0);
        let stopped = JobStanding {
            works: false,
            ..standing()
        };
        assert_eq!(unsaved(now - 10_000, stopped), 40.0);
        put(&path, "another".into(), 0, standing());
        let elsewhere = read(&path).unwrap().unwrap();
        assert!(!elsewhere.is_of_here && elsewhere.standing == standing());
    }

    #[test]
    fn a_damaged_note_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(STANDING);
        fs::write(&path, "{").unwrap();
        assert!(read(&path).is_err());
        let wrong = JobStanding {
            unsaved_s: -1.0,
            ..standing()
        };
        put(&path, String::new(), 0, wrong);
        assert!(read(&path).is_err());
    }

    #[test]
    fn a_killed_supervisor_leaves_its_note_and_one_that_ends_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let state = Some(dir.path().to_owned());
        let job = "42".parse().unwrap();
        let place = JobDir::take(state, &job).unwrap();
        let (mut note, left) = StandingNote::begin(&place, "42");
        assert_eq!(left, None);
        note.show(standing());
        let (note, left) = StandingNote::begin(&place, "42");
        assert_eq!(left.map(|left| left.version), Some(Some(3)));
        note.end();
        let (_, left) = StandingNote::begin(&place, "42");
        assert_eq!(left, None);
    }

    #[test]
    fn a_note_is_written_again_when_it_says_something_new() {
        let dir = tempfile::tempdir().unwrap();
        let state = Some(dir.path().to_owned());
        let place = JobDir::take(state, &"42".parse().unwrap()).unwrap();
        let (mut note, _) = StandingNote::begin(&place, "42");
        let path = place.path(STANDING);
        let version = || read(&path).unwrap().unwrap().standing.version;
        note.show(standing());
        fs::remove_file(&path).unwrap();
        note.show(JobStanding {
            work_s: 101.0,
            ..standing()
        });
        assert!(!path.exists(), "only time has passed");
        note.show(JobStanding {
            version: Some(4),
            ..standing()
        });
        assert_eq!(version(), Some(4));
    }
}
