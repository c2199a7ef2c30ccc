//! The end of a launcher on a host that stands by: it fetches each version of the job ahead, so that the job can go on
//! there at once. What it fetches it can't read: the key that it is sent lacks the secrets of the job.
//!
//! ```text
//! STATE/there/HOST/run/JOB/       the job's directory, as in `there`
//!   ahead/                        the blocks
//!   ahead.lock                    held while the host stands by
//!   ahead.toml, ahead.key         what it needs to use the grid
//! ```

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use ckpt_agent::agent::FetchedAhead;
use rustix::fs::{FlockOperation, flock};

use super::own::{program, write_private};
use super::words::{FromHost, LOOK_PERIOD, StandBy, ToHost};
use crate::files::remove;
use crate::job_dir::{AHEAD, JOBS, is_held};

const LOCK_FILE: &str = "ahead.lock";
const GRID_FILE: &str = "ahead.toml";
const MEMBERS_FILE: &str = "ahead.members";
const KEY_FILE: &str = "ahead.key";

/// Pause after a fetch that failed.
const RETRY: Duration = Duration::from_secs(10);

/// What a host that was killed while it stood by has left is removed after this time. A job that comes needs it for as
/// long as its restore takes.
const LEFT_FOR: Duration = Duration::from_secs(3600);

/// Longest report of a fetch, bytes.
const REPORT_BYTES_MAX: u64 = 64 << 10;

/// A host that stands by for a job.
pub(super) struct StandingBy {
    lines: Receiver<ToHost>,
    job: String,
    dir: PathBuf,
    state: Option<PathBuf>,
    fetch: Option<Child>,
    /// When the next fetch begins; `None` until there is a newer version.
    due: Option<Instant>,
    /// Whether the network belongs to the job's last save.
    is_paused: bool,
    /// Whether the job comes here, so that the blocks stay.
    comes: bool,
    /// Held for as long as this file is open.
    _lock: File,
}

impl StandingBy {
    /// Stands by for `job`, whose directory is `dir`.
    pub(super) fn begin(
        wish: &StandBy,
        job: String,
        dir: PathBuf,
        state: Option<PathBuf>,
        lines: Receiver<ToHost>,
    ) -> io::Result<Self> {
        fs::create_dir_all(dir.join(AHEAD))?;
        fs::set_permissions(&dir, Permissions::from_mode(0o700))?;
        let lock = File::create(dir.join(LOCK_FILE))?;
        // Two launchers for one job would remove each other's blocks.
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        remove(&dir.join(MEMBERS_FILE))?;
        for (name, text) in [(GRID_FILE, &wish.grid), (KEY_FILE, &wish.key)] {
            write_private(&dir.join(name), text)?;
        }
        Ok(Self {
            lines,
            job,
            dir,
            state,
            fetch: None,
            due: Some(Instant::now()),
            is_paused: false,
            comes: false,
            _lock: lock,
        })
    }

    /// Fetches what is new and reports it, until the other end is gone or needs it no more.
    pub(super) fn pass_on(&mut self, out: &mut impl Write) -> io::Result<()> {
        loop {
            match self.lines.recv_timeout(LOOK_PERIOD) {
                Ok(ToHost::Saved) => {
                    self.is_paused = false;
                    self.due = Some(Instant::now());
                }
                Ok(ToHost::Pause) => self.pause()?,
                Ok(ToHost::Comes) => {
                    self.comes = true;
                    return Ok(());
                }
                Ok(ToHost::Forget) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Ok(ToHost::Signal(_) | ToHost::Shown(_)) | Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(report) = self.report_of_fetch()? {
                match serde_json::from_slice::<FetchedAhead>(&report) {
                    Ok(fetched) => FromHost::StandsBy(fetched).send(out)?,
                    // It failed.
                    Err(_) => self.due = Some(Instant::now() + RETRY),
                }
            }
            if self.is_due() {
                self.due = None;
                self.fetch = Some(self.start()?);
            }
        }
    }

    /// Ends the fetch that runs: what it was at comes with the next one.
    fn pause(&mut self) -> io::Result<()> {
        self.is_paused = true;
        self.fetch.as_mut().map_or(Ok(()), Child::kill)
    }

    fn is_due(&self) -> bool {
        let is_time = self.due.is_some_and(|due| due <= Instant::now());
        is_time && !self.is_paused && self.fetch.is_none()
    }

    /// What the fetch has printed, if it has ended.
    fn report_of_fetch(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(child) = &mut self.fetch else {
            return Ok(None);
        };
        if child.try_wait()?.is_none() {
            return Ok(None);
        }
        let mut text = Vec::new();
        if let Some(output) = child.stdout.take() {
            output.take(REPORT_BYTES_MAX).read_to_end(&mut text)?;
        }
        self.fetch = None;
        Ok(Some(text))
    }

    fn start(&self) -> io::Result<Child> {
        let file = |name| self.dir.join(name);
        let state = self.state.as_deref();
        program(&self.dir, &file(GRID_FILE), &file(KEY_FILE), state)
            .args(["fetch-ahead", "--job", &self.job])
            .arg(file(AHEAD))
            .stdout(Stdio::piped())
            .spawn()
    }
}

impl Drop for StandingBy {
    /// Leaves nothing behind but the blocks of a job that comes. A file that stays is removed by [`sweep`].
    fn drop(&mut self) {
        if let Some(mut fetch) = self.fetch.take() {
            let _ = fetch.kill();
            let _ = fetch.wait();
        }
        for name in [KEY_FILE, GRID_FILE, MEMBERS_FILE] {
            let _ = remove(&self.dir.join(name));
        }
        if !self.comes {
            let _ = remove(&self.dir.join(AHEAD));
        }
        let _ = remove(&self.dir.join(LOCK_FILE));
    }
}

/// Removes what hosts that were killed while they stood by for any job have left in `state`.
pub(super) fn sweep(state: &Path) -> io::Result<()> {
    let now = SystemTime::now();
    for entry in fs::read_dir(state.join(JOBS))? {
        let dir = entry?.path();
        let Ok(found) = fs::symlink_metadata(dir.join(AHEAD)) else {
            continue;
        };
        let is_old = now
            .duration_since(found.modified()?)
            .is_ok_and(|age| age > LEFT_FOR);
        if is_old && !is_held(&dir.join(LOCK_FILE)).unwrap_or(true) {
            for name in [KEY_FILE, GRID_FILE, MEMBERS_FILE, AHEAD] {
                remove(&dir.join(name))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_pause_ends_the_fetch_and_none_begins_until_there_is_a_newer_version() {
        let dir = tempfile::tempdir().unwrap();
        let (sender, lines) = channel();
        let wish = StandBy {
            grid: String::new(),
            key: String::new(),
        };
        let place = dir.path().join("job");
        let mut next = StandingBy::begin(&wish, "job".to_owned(), place, None, lines).unwrap();
        next.due = None;
        next.fetch = Some(Command::new("sleep").arg("600").spawn().unwrap());
        for message in [ToHost::Pause, ToHost::Comes] {
            sender.send(message).unwrap();
        }
        next.pass_on(&mut Vec::new()).unwrap();
        let ended = next.fetch.take().map(|mut fetch| fetch.wait().unwrap());
        assert!(ended.is_none_or(|status| status.code().is_none()));
        next.due = Some(Instant::now());
        assert!(!next.is_due());
        next.is_paused = false;
        assert!(next.is_due());
    }

    #[test]
    fn what_a_killed_one_has_left_is_removed_after_an_hour_and_what_is_in_use_is_not() {
        let state = tempfile::tempdir().unwrap();
        let job = |name: &str| {
            let dir = state.path().join(JOBS).join(name);
            fs::create_dir_all(dir.join(AHEAD)).unwrap();
            fs::write(dir.join(KEY_FILE), "key").unwrap();
            dir
        };
        let (left, young, used) = (job("left"), job("young"), job("used"));
        let lock = File::create(used.join(LOCK_FILE)).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        for dir in [&left, &used] {
            let ahead = File::open(dir.join(AHEAD)).unwrap();
            ahead
                .set_modified(SystemTime::now() - 2 * LEFT_FOR)
                .unwrap();
        }
        sweep(state.path()).unwrap();
        let has = |dir: &PathBuf| dir.join(AHEAD).exists() && dir.join(KEY_FILE).exists();
        assert!(has(&young) && has(&used));
        assert!(!left.join(AHEAD).exists() && !left.join(KEY_FILE).exists());
    }
}
