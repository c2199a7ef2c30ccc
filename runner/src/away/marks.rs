//! Which hosts this user's other jobs have just been sent to. A host announces its guests only some time after they
//! were started there, so two jobs that choose at the same time would take the same host. A mark ends by itself.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use codec::JobId;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use supervision::away::Candidate;

use crate::json_file::write_json;

/// Directory of the marks, in the directory of the jobs that run on other machines.
const MARKS: &str = "marks";

/// Name of the file that is locked while a host is chosen.
const CHOOSING: &str = "choosing.lock";

/// For how long a host is marked, milliseconds: until it has announced its new guest.
const MARK_MS: u64 = 60_000;

/// How often the lock is tried, and the time between. It is held for as long as it takes to write a file, but a
/// process that holds it may have been stopped.
const CHOOSING_TRIES: u32 = 20;
const CHOOSING_PAUSE: Duration = Duration::from_millis(10);

/// A mark.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    /// The job that was sent to the host.
    job: String,
    /// When the mark ends, Unix milliseconds.
    until_ms: u64,
}

/// The marks of this user on this machine. Without a state directory there are none.
#[derive(Clone, Debug)]
pub(super) struct Marks {
    dir: Option<PathBuf>,
    job: String,
}

/// No other job chooses a host while this exists.
#[derive(Debug)]
pub(super) struct Choosing {
    _lock: Option<File>,
}

impl Marks {
    /// The marks in this directory of jobs, as this job sees them.
    pub(super) fn of(jobs: Option<&Path>, job: &JobId) -> Self {
        Self {
            dir: jobs.map(|jobs| jobs.join(MARKS)),
            job: job.to_string(),
        }
    }

    /// Waits a moment until no other job chooses a host. If that fails, two jobs may choose the same one.
    pub(super) fn choose(&self) -> Choosing {
        let lock = || -> io::Result<File> {
            let dir = self.dir.as_ref().ok_or(io::ErrorKind::NotFound)?;
            fs::create_dir_all(dir)?;
            let file = File::create(dir.join(CHOOSING))?;
            for _ in 1..CHOOSING_TRIES {
                if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                    return Ok(file);
                }
                thread::sleep(CHOOSING_PAUSE);
            }
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok(file)
        };
        Choosing { _lock: lock().ok() }
    }

    /// Puts the hosts to the end that other jobs were just sent to.
    pub(super) fn unmarked_first(&self, now_ms: u64, candidates: &mut [Candidate]) {
        candidates.sort_by_key(|one| self.is_marked(&one.host, now_ms));
    }

    fn is_marked(&self, host: &str, now_ms: u64) -> bool {
        let read = || -> Option<Mark> {
            let bytes = fs::read(self.path(host)?).ok()?;
            serde_json::from_slice(&bytes).ok()
        };
        read().is_some_and(|mark| {
            let lasts = (now_ms..=now_ms.saturating_add(MARK_MS)).contains(&mark.until_ms);
            lasts && mark.job != self.job
        })
    }

    /// Marks a host to which this job is sent.
    pub(super) fn mark(&self, host: &str, now_ms: u64) {
        let Some(path) = self.path(host) else {
            return;
        };
        let mark = Mark {
            job: self.job.clone(),
            until_ms: now_ms.saturating_add(MARK_MS),
        };
        // Without the mark another job may choose the host, too.
        let _ = write_json(&path, &mark);
    }

    fn path(&self, host: &str) -> Option<PathBuf> {
        // The name of a host can be that of a job, which makes it a name of a file.
        let name: JobId = host.parse().ok()?;
        Some(
            self.dir
                .as_ref()?
                .join(format!("{}.json", name.file_name())),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_another_job_was_sent_to_comes_last_until_its_mark_ends() {
        let dir = tempfile::tempdir().unwrap();
        let marks = |job: &str| Marks::of(Some(dir.path()), &job.parse().unwrap());
        let order = |of: &Marks, now_ms| -> Vec<String> {
            let one = |host: &str| Candidate::new(host.to_owned(), 1.0, 1.0, 0.0, 1.0);
            let mut candidates = ["a", "b"].map(one);
            of.unmarked_first(now_ms, &mut candidates);
            candidates.map(|one| one.host).to_vec()
        };
        let (first, second) = (marks("j/1"), marks("j/2"));
        drop(first.choose());
        first.mark("a", 1000);
        assert_eq!(order(&first, 2000), ["a", "b"]);
        assert_eq!(order(&second, 2000), ["b", "a"]);
        assert_eq!(order(&second, 1001 + MARK_MS), ["a", "b"]);
        // A clock that went back, and a mark that is no mark.
        assert_eq!(order(&second, 0), ["a", "b"]);
        fs::write(first.path("a").unwrap(), "x").unwrap();
        assert_eq!(order(&second, 2000), ["a", "b"]);
        assert_eq!(
            order(&Marks::of(None, &"j".parse().unwrap()), 2000),
            ["a", "b"]
        );
    }
}
