//! `ckpt jobs`: the jobs that `ckpt run` runs on this machine now, and what is at risk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::away::AWAY;
use super::away::THERE;
use super::job_dir::{JOBS, LOCK, is_held};
use super::standing::{JobState, STANDING, read};
use ckpt_agent::unix_time::unix_seconds;

/// Answer of `ckpt jobs`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct JobsReport {
    /// Time of the report, Unix seconds.
    pub at: u64,
    /// The jobs, by name.
    pub jobs: Vec<RunningJob>,
    /// Seconds of work that no version holds, over all jobs.
    pub at_risk_seconds: f64,
    /// Jobs that run on another machine that shares this state directory. They are not in `jobs`.
    pub elsewhere: usize,
    /// Directories of jobs that can't be read.
    pub unreadable: Vec<UnreadableJob>,
}

/// A job that `ckpt run` runs now: its supervisor holds the lock of its directory.
#[derive(Clone, Debug, Serialize)]
pub struct RunningJob {
    /// Name of the job.
    pub job: String,
    /// What is done with it.
    pub state: JobState,
    /// Since when it is stopped or leaves, Unix seconds.
    pub since: Option<u64>,
    /// Why it is stopped or leaves.
    pub why: Option<String>,
    /// The host on which it runs for `ckpt run --on`; `None` on this machine.
    pub host: Option<String>,
    /// The host that has fetched the newest version ahead (`ckpt run --on --standby`); `None` if none has.
    pub standby: Option<String>,
    /// The newest version that was committed or restored; `None` if there is none.
    pub version: Option<u64>,
    /// When that version was committed, Unix seconds; `None` if the job was restored from it.
    pub saved_at: Option<u64>,
    /// Seconds until the next save is due, 0 if one is overdue; `None` if none is foreseen.
    pub next_save_seconds: Option<f64>,
    /// Seconds of work that would be lost if the machine failed now.
    pub at_risk_seconds: f64,
    /// Seconds that are lost at most if the machine is taken with notice; `None` while that is not known.
    pub promised_seconds: Option<f64>,
    /// Why the last save did not happen; `None` if it did.
    pub not_saved: Option<String>,
    /// When its supervisor last reported this, Unix seconds.
    pub reported_at: u64,
}

/// The directory of a job that can't be read.
#[derive(Clone, Debug, Serialize)]
pub struct UnreadableJob {
    /// The file or directory.
    pub path: String,
    /// Why it can't be read.
    pub why: String,
}

/// Why the jobs can't be listed.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {cause}", path = path.display())]
pub struct JobsError {
    /// The directory.
    pub path: PathBuf,
    /// The error of the system.
    pub cause: io::Error,
}

/// Where a job's directory was found.
enum Found {
    /// A job of this machine, or of `--on` for the other end of a launcher.
    Here { for_host: Option<String> },
    /// A job of `--on`, which runs on another machine.
    Away,
}

/// Lists the jobs whose supervisors hold their locks, below this state directory.
///
/// # Errors
/// When a directory that lists jobs can't be read.
pub fn jobs(state: &Path) -> Result<JobsReport, JobsError> {
    let mut report = JobsReport {
        at: unix_seconds(),
        ..JobsReport::default()
    };
    let away = state.join(AWAY).join(JOBS);
    for dir in entries(&away)? {
        report.look(&dir, &Found::Away);
    }
    let here = state.join(JOBS);
    for dir in entries(&here)? {
        report.look(&dir, &Found::Here { for_host: None });
    }
    for host in entries(&state.join(THERE))? {
        let name = host.file_name();
        let for_host = name.map(|name| name.to_string_lossy().into_owned());
        for dir in entries(&host.join(JOBS))? {
            let for_host = for_host.clone();
            report.look(&dir, &Found::Here { for_host });
        }
    }
    report
        .jobs
        .sort_by(|a, b| (&a.job, &a.host).cmp(&(&b.job, &b.host)));
    // The sum of no numbers would be -0.
    let at_risk = report.jobs.iter().map(|job| job.at_risk_seconds);
    report.at_risk_seconds = at_risk.fold(0.0, |all, one| all + one);
    Ok(report)
}

/// The entries of a directory; none if it does not exist.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, JobsError> {
    let failed = |cause| JobsError {
        path: dir.to_owned(),
        cause,
    };
    let listed = match fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(failed(cause)),
    };
    let paths = listed.map(|entry| entry.map(|entry| entry.path()));
    paths.collect::<Result<_, _>>().map_err(failed)
}

impl JobsReport {
    fn look(&mut self, dir: &Path, found: &Found) {
        let failed = |path: PathBuf| {
            move |cause: io::Error| UnreadableJob {
                path: path.display().to_string(),
                why: cause.to_string(),
            }
        };
        let lock = dir.join(LOCK);
        let note = dir.join(STANDING);
        let looked = is_held(&lock).map_err(failed(lock)).and_then(|held| {
            let read = held.then(|| read(&note).map_err(failed(note)));
            read.transpose()
        });
        let read = match looked {
            // Nobody holds the lock: the job has ended, or its supervisor was killed.
            Ok(None) => return,
            Ok(Some(read)) => read,
            Err(unreadable) => return self.unreadable.push(unreadable),
        };
        // Without a note its supervisor has just begun, or is an older program.
        let (standing, at, is_of_here) = match read {
            Some(read) => (read.standing, read.at_ms / 1000, read.is_of_here),
            None => (Default::default(), self.at, true),
        };
        if !is_of_here {
            self.elsewhere += 1;
            return;
        }
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let job = match standing.job.is_empty() {
            true => name.into_owned(),
            false => standing.job,
        };
        if let Found::Here {
            for_host: Some(host),
        } = found
            && self.is_listed(&job, host)
        {
            // Both ends of a launcher are on this machine.
            return;
        }
        self.jobs.push(RunningJob {
            job,
            state: standing.state,
            since: standing.since_ms.map(|ms| ms / 1000),
            why: standing.why,
            host: standing.host.filter(|_| matches!(found, Found::Away)),
            standby: standing.standby,
            version: standing.version,
            saved_at: standing.saved_at_ms.map(|ms| ms / 1000),
            next_save_seconds: standing.next_save_s,
            at_risk_seconds: standing.unsaved_s,
            promised_seconds: standing.promised_s,
            not_saved: standing.not_saved,
            reported_at: at,
        });
    }

    fn is_listed(&self, job: &str, host: &str) -> bool {
        let is_it = |one: &RunningJob| one.job == job && one.host.as_deref() == Some(host);
        self.jobs.iter().any(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_dir::JobDir;
    use crate::standing::{JobStanding, StandingNote};

    fn note(place: &JobDir, job: &str, host: Option<&str>) {
        let (mut note, _) = StandingNote::begin(place, job);
        note.show(JobStanding {
            job: job.to_owned(),
            state: JobState::Running,
            host: host.map(str::to_owned),
            unsaved_s: 30.0,
            ..JobStanding::default()
        });
    }

    fn names(report: &JobsReport) -> Vec<(&str, Option<&str>)> {
        let jobs = report.jobs.iter();
        jobs.map(|job| (job.job.as_str(), job.host.as_deref()))
            .collect()
    }

    #[test]
    fn jobs_are_listed_while_their_locks_are_held() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path();
        let none = jobs(state).unwrap();
        assert!(none.jobs.is_empty());
        assert_eq!(format!("{:.0}", none.at_risk_seconds), "0");
        let take =
            |below: PathBuf, job: &str| JobDir::take(Some(below), &job.parse().unwrap()).unwrap();
        let one = take(state.to_owned(), "sweep/1");
        note(&one, "sweep/1", None);
        let two = take(state.to_owned(), "2");
        note(&two, "2", None);
        let away = take(state.join(AWAY), "3");
        note(&away, "3", Some("h1"));
        // The same job, seen from its host, which is this machine.
        let there = take(state.join(THERE).join("h1"), "3");
        note(&there, "3", None);
        let of_another = take(state.join(THERE).join("h1"), "4");
        note(&of_another, "4", None);
        let report = jobs(state).unwrap();
        let expected = [
            ("2", None),
            ("3", Some("h1")),
            ("4", None),
            ("sweep/1", None),
        ];
        assert_eq!(names(&report), expected);
        assert_eq!(report.at_risk_seconds, 120.0);
        // A killed supervisor leaves its note, and no lock.
        drop(two);
        assert_eq!(names(&jobs(state).unwrap()), expected[1..]);
        drop((one, away, there, of_another));
        assert!(jobs(state).unwrap().jobs.is_empty());
    }

    #[test]
    fn a_directory_that_can_t_be_read_is_an_error_and_not_an_empty_list() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(JOBS), "no directory").unwrap();
        let failed = jobs(dir.path()).unwrap_err().to_string();
        assert!(failed.contains("Not a directory"), "{failed}");
        fs::remove_file(dir.path().join(JOBS)).unwrap();
        let state = Some(dir.path().to_owned());
        let place = JobDir::take(state, &"1".parse().unwrap()).unwrap();
        fs::write(place.path(STANDING), "{").unwrap();
        let report = jobs(dir.path()).unwrap();
        assert_eq!((report.jobs.len(), report.unreadable.len()), (0, 1));
    }
}
