//! The directory of a job on this machine, with its lock, its journal, and for `--via` the image.
//!
//! ```text
//! STATE/run/JOB/
//!   lock             held by the supervisor; its process id
//!   journal.jsonl    what happened
//!   running          how all processes of the job can be ended
//!   standing.json    how the job stands now; removed at its end
//!   image/           the image of the job's processes, with --via
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ckpt_agent::file_lock;
use codec::JobId;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Name of the job's working directory, in the job's directory.
pub(super) const WORK: &str = "work";

/// Name of the folder with blocks that were fetched ahead, in the job's directory.
pub(super) const AHEAD: &str = "ahead";

/// Name of the directory with the jobs' directories, in the state directory.
pub(super) const JOBS: &str = "run";

/// Label of a version that is the result of an ended job; its value is the job's exit status.
pub(super) const RESULT: &str = "ckpt.result";

/// Label of the last version of a job on a machine, which the job left or on which it ended. No incarnation of the
/// job there follows it.
pub(super) const LEFT: &str = "ckpt.left";

/// Name of the file in a job's directory that its supervisor has locked. It contains the supervisor's
/// process id.
pub(super) const LOCK: &str = "lock";

/// Longest wait for the lock. Whoever only looks whether it is held holds it for a moment, too.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);

/// The mode of a job's directory.
const DIR_MODE: u32 = 0o700;

/// A job's directory, locked.
#[derive(Debug)]
pub struct JobDir {
    dir: PathBuf,
    /// The lock is held for as long as this file is open.
    _lock: File,
}

/// Why a job's directory can't be had.
#[derive(Debug, thiserror::Error)]
pub enum JobDirError {
    /// The user has no state directory.
    #[error("no state directory: neither CKPT_STATE_DIR nor XDG_STATE_HOME nor HOME is set")]
    NoStateDirectory,
    /// The system refused an operation.
    #[error("{path:?}: {cause}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// Another supervisor runs this job.
    #[error("job {job} is run already on this machine, by process {holder} ({path:?} is locked)")]
    Taken {
        /// Name of the job.
        job: JobId,
        /// Process id of that supervisor, if it can be read.
        holder: String,
        /// The file with the lock.
        path: PathBuf,
    },
}

impl JobDir {
    /// Makes and locks the job's directory below `state`. The lock is held until this is dropped.
    ///
    /// # Errors
    /// When another process holds the lock, or when the directory can't be made.
    pub fn take(state: Option<PathBuf>, job: &JobId) -> Result<Self, JobDirError> {
        let dir = dir_of(state, job)?;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |cause| JobDirError::Io { path, cause }
        };
        // What a job is called, and when it did what, is for its user alone.
        let private = fs::Permissions::from_mode(DIR_MODE);
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(DIR_MODE)
            .create(&dir);
        made.and_then(|()| fs::set_permissions(&dir, private))
            .map_err(failed(&dir))?;
        let path = dir.join(LOCK);
        let mut lock = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(failed(&path))?;
        if file_lock::lock(&lock, LOCK_TIMEOUT).is_err() {
            let holder = fs::read_to_string(&path).unwrap_or_default();
            let holder = holder.trim();
            return Err(JobDirError::Taken {
                job: job.clone(),
                holder: if holder.is_empty() { "?" } else { holder }.to_owned(),
                path,
            });
        }
        lock.set_len(0).map_err(failed(&path))?;
        writeln!(lock, "{}", std::process::id()).map_err(failed(&path))?;
        Ok(Self { dir, _lock: lock })
    }

    /// The path of a file or directory in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Whether a supervisor has locked this file; `false` if there is no file.
///
/// # Errors
/// When that can't be found out.
pub(super) fn is_held(lock: &Path) -> io::Result<bool> {
    let file = match File::open(lock) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(cause) => return Err(cause),
    };
    // Shared, so that several may look at once.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(cause) => Err(cause.into()),
    }
}

/// The path that a job's directory has or would have.
///
/// # Errors
/// When there is no state directory.
pub(super) fn dir_of(state: Option<PathBuf>, job: &JobId) -> Result<PathBuf, JobDirError> {
    let state = state.ok_or(JobDirError::NoStateDirectory)?;
    Ok(state.join(JOBS).join(job.file_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_taken_once_and_is_free_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let state = Some(dir.path().to_owned());
        let job: JobId = "sweep/42".parse().unwrap();
        let taken = JobDir::take(state.clone(), &job).unwrap();
        let refused = JobDir::take(state.clone(), &job).unwrap_err().to_string();
        let pid = std::process::id().to_string();
        assert!(
            refused.contains("sweep/42") && refused.contains(&pid),
            "{refused}"
        );
        assert!(JobDir::take(state.clone(), &"sweep/43".parse().unwrap()).is_ok());
        assert!(is_held(&taken.path(LOCK)).unwrap());
        assert!(!is_held(&taken.path("no such file")).unwrap());
        let found = fs::metadata(taken.path("")).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, DIR_MODE);
        let lock = taken.path(LOCK);
        drop(taken);
        assert!(!is_held(&lock).unwrap());
        assert!(JobDir::take(state, &job).is_ok());
        assert!(JobDir::take(None, &job).is_err());
    }
}
