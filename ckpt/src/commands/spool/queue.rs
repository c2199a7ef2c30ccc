//! The queue of images that were set aside to be saved, on disk.
//!
//! ```text
//! STATE/spool/JOB/
//!   queue.lock       held for moments, by whoever changes the queue
//!   saver.lock       held by the process that saves
//!   new-XXXXXX/      an image that is being set aside; its maker holds new-XXXXXX/maker.lock
//!   17/              an image that is queued: entry.json, and the content in image/, unless it lies beside its files
//!   17/begun         its save has begun
//!   gone-16/         an image that is being removed
//!   outcome.json     how the last save ended
//! ```
//!
//! The renaming of `new-XXXXXX` to its number is the commit.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ckpt_agent::file_lock;
use ckpt_agent::unix_time::unix_seconds;
use codec::JobId;
use runner::set_aside::at;
use rustix::fs::{FlockOperation, RenameFlags, flock, renameat_with};
use serde::{Deserialize, Serialize};

use super::report::How;

/// Directory of the queues in the state directory.
const SPOOL: &str = "spool";
/// Names in a queue's directory.
const QUEUE_LOCK: &str = "queue.lock";
const SAVER_LOCK: &str = "saver.lock";
const MAKER_LOCK: &str = "maker.lock";
const ENTRY: &str = "entry.json";
const BEGUN: &str = "begun";
const OUTCOME: &str = "outcome.json";
const NEW: &str = "new-";
const GONE: &str = "gone-";
/// Most queues that there may be.
const QUEUES_MAX: usize = 1000;
/// Longest wait for the lock of a queue.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest file of a queue that is read, bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// What is added to the name of a file that was taken by a command that was killed, and whose place is taken.
const UNSAVED_SUFFIX: &str = ".unsaved";

/// A path whose content was set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Aside {
    /// The path that the user named, absolute.
    pub from: PathBuf,
    /// Where its content is: below the entry's directory if relative.
    pub at: PathBuf,
    /// The name under which it is stored.
    pub name: PathBuf,
}

/// An image that was set aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The job.
    pub job: String,
    /// When it was set aside, Unix seconds.
    pub at: u64,
    /// The words of the command line, without the paths.
    pub args: Vec<String>,
    /// The working directory of the command.
    pub dir: PathBuf,
    /// The files that the environment named: the grid file, the key, the certificate.
    pub grid: Option<PathBuf>,
    /// The owner's key file.
    pub key_file: Option<PathBuf>,
    /// The owner's certificate.
    pub cert_file: Option<PathBuf>,
    /// What is saved.
    pub paths: Vec<Aside>,
    /// How it was set aside; the way that costs most.
    pub how: How,
    /// Bytes of its files.
    pub bytes: u64,
}

/// How the last save of a queue ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The number of the entry that was saved.
    pub number: u64,
    /// A number that differs from those of earlier attempts.
    pub attempt: u64,
    /// When it ended, Unix seconds.
    pub at: u64,
    /// The exit status of the save.
    pub status: u8,
    /// The report as text, or the message of the failure.
    pub text: String,
    /// The report as JSON, if it succeeded.
    pub json: Option<String>,
    /// Whether a failure was reported to the user.
    pub is_reported: bool,
}

/// The queue of a job.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    dir: PathBuf,
}

/// A place for an image that is being set aside.
#[derive(Debug)]
pub(crate) struct NewEntry {
    pub(crate) dir: PathBuf,
    _maker: File,
}

/// The queues below a state directory, by the names of their directories.
///
/// # Errors
/// When they can't be listed.
pub(crate) fn queues(state: &Path) -> io::Result<Vec<Queue>> {
    let dir = state.join(SPOOL);
    let listed = match fs::read_dir(&dir) {
        Ok(listed) => listed,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(at(&dir)(cause)),
    };
    let queues = listed.map(|entry| Ok(Queue { dir: entry?.path() }));
    let mut queues: Vec<Queue> = queues.collect::<io::Result<_>>().map_err(at(&dir))?;
    queues.sort_by(|a, b| a.dir.cmp(&b.dir));
    Ok(queues)
}

impl Queue {
    /// The queue of a job, which may not exist.
    pub(crate) fn of(state: &Path, job: &JobId) -> Self {
        Self {
            dir: state.join(SPOOL).join(job.file_name()),
        }
    }

    /// The directory, which may not exist.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Locks the queue until the returned file is closed. `None` if there is no queue.
    ///
    /// # Errors
    /// When another process holds the lock for too long.
    pub(crate) fn lock(&self) -> io::Result<Option<File>> {
        if !self.dir.is_dir() {
            return Ok(None);
        }
        let file = private(&self.dir.join(QUEUE_LOCK))?;
        file_lock::lock(&file, LOCK_TIMEOUT).map_err(at(&self.dir))?;
        Ok(Some(file))
    }

    /// Becomes the process that saves, until the returned file is closed. `None` if there is another.
    ///
    /// # Errors
    /// When that can't be found out.
    pub(crate) fn become_saver(&self) -> io::Result<Option<File>> {
        let file = private(&self.dir.join(SAVER_LOCK))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(cause) => Err(at(&self.dir)(cause.into())),
        }
    }

    /// Makes room for an image.
    ///
    /// # Errors
    /// When there are too many queues, or the directory can't be made.
    pub(crate) fn begin(&self, state: &Path) -> io::Result<NewEntry> {
        if !self.dir.is_dir() && queues(state)?.len() >= QUEUES_MAX {
            let message = format!("{QUEUES_MAX} jobs have images in the spool: ckpt list --queued");
            return Err(io::Error::other(message));
        }
        let mut builder = fs::DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .map_err(at(&self.dir))?;
        // Whoever tidies up has to find the lock of the maker.
        let _lock = self.lock()?;
        let made = tempfile::Builder::new().prefix(NEW).tempdir_in(&self.dir);
        let dir = made.map_err(at(&self.dir))?.keep();
        let maker = private(&dir.join(MAKER_LOCK))?;
        flock(&maker, FlockOperation::LockExclusive)?;
        Ok(NewEntry { dir, _maker: maker })
    }

    /// Puts an image that was set aside into the queue. It replaces those whose saves have not begun. Returns its
    /// number.
    ///
    /// # Errors
    /// When it was not queued.
    pub(crate) fn commit(&self, new: NewEntry) -> io::Result<u64> {
        let lock = self.lock()?;
        let waiting = self.numbers()?;
        let before = self.outcome().map_or(0, |outcome| outcome.number);
        let number = waiting.last().copied().unwrap_or(0).max(before) + 1;
        let to = self.entry_dir(number);
        fs::rename(&new.dir, &to).map_err(at(&to))?;
        // Not synced: after a power cut there is the entry, or what it was made of, and the way back.
        for old in waiting {
            if !self.entry_dir(old).join(BEGUN).exists() {
                self.remove(old);
            }
        }
        drop(lock);
        Ok(number)
    }

    /// The numbers of the queued images, in ascending order.
    pub(crate) fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(at(&self.dir))? {
            let name = entry.map_err(at(&self.dir))?.file_name();
            numbers.extend(name.to_str().and_then(|name| name.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn entry_dir(&self, number: u64) -> PathBuf {
        self.dir.join(number.to_string())
    }

    /// Reads an entry, and makes the paths of its content absolute.
    ///
    /// # Errors
    /// When it can't be read.
    pub(crate) fn entry(&self, number: u64) -> io::Result<Entry> {
        let dir = self.entry_dir(number);
        let mut entry = read_entry(&dir)?;
        for path in &mut entry.paths {
            path.at = dir.join(&path.at);
        }
        Ok(entry)
    }

    /// Takes the newest image to be saved now, and removes older ones. The caller holds the locks of the queue and of
    /// the saver.
    ///
    /// # Errors
    /// When the queue can't be read.
    pub(crate) fn next(&self) -> io::Result<Option<u64>> {
        self.tidy()?;
        let mut numbers = self.numbers()?;
        let Some(newest) = numbers.pop() else {
            return Ok(None);
        };
        for old in numbers {
            self.remove(old);
        }
        private(&self.entry_dir(newest).join(BEGUN))?;
        Ok(Some(newest))
    }

    /// Whether the save of an image has begun.
    pub(crate) fn has_begun(&self, number: u64) -> bool {
        self.entry_dir(number).join(BEGUN).exists()
    }

    /// Notes how a save ended. An image that is saved is removed; one whose save failed stays until it is tried again
    /// or replaced. The caller holds the lock of the queue.
    ///
    /// # Errors
    /// When that can't be noted.
    pub(crate) fn ended(&self, outcome: &Outcome) -> io::Result<()> {
        self.note(outcome)?;
        if outcome.json.is_some() {
            self.remove(outcome.number);
            return Ok(());
        }
        fs::remove_file(self.entry_dir(outcome.number).join(BEGUN))
    }

    /// Notes an outcome.
    ///
    /// # Errors
    /// When it can't be written.
    pub(crate) fn note(&self, outcome: &Outcome) -> io::Result<()> {
        let text = serde_json::to_string(outcome)?;
        file_lock::replace(&self.dir.join(OUTCOME), &text).map_err(at(&self.dir))
    }

    /// How the last save ended.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        serde_json::from_slice(&read(&self.dir.join(OUTCOME)).ok()?).ok()
    }

    /// Removes an image and its content.
    fn remove(&self, number: u64) {
        let dir = self.entry_dir(number);
        // Renamed first: half an entry is no entry.
        let gone = self.dir.join(format!("{GONE}{number}"));
        if fs::rename(&dir, &gone).is_ok() {
            clear(&gone);
        }
    }

    /// Undoes what commands that were killed have left half done: what they had taken goes back. The caller holds the
    /// lock of the queue.
    ///
    /// # Errors
    /// When something can't be moved back or removed.
    pub(crate) fn tidy(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir).map_err(at(&self.dir))? {
            let path = entry.map_err(at(&self.dir))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(NEW) {
                undo(&path)?;
            } else if name.starts_with(GONE) {
                clear(&path);
            }
        }
        Ok(())
    }
}

/// Gives back what a command that was killed had taken, and removes what it had copied.
fn undo(dir: &Path) -> io::Result<()> {
    let maker = private(&dir.join(MAKER_LOCK))?;
    if flock(&maker, FlockOperation::NonBlockingLockExclusive).is_err() {
        // It is still being made.
        return Ok(());
    }
    if let Ok(mut entry) = read_entry(dir) {
        for path in &mut entry.paths {
            path.at = dir.join(&path.at);
            if entry.how == How::Taken && path.at.symlink_metadata().is_ok() {
                give_back(path)?;
            }
        }
        remove_beside(&entry);
    }
    fs::remove_dir_all(dir).map_err(at(dir))
}

/// Removes an image that is saved, or that a newer one replaces.
fn clear(dir: &Path) {
    if let Ok(entry) = read_entry(dir) {
        remove_beside(&entry);
    }
    // What stays is removed by the next command.
    let _ = fs::remove_dir_all(dir);
}

/// Moves the content of a path back. Where there is something newer, it gets another name.
fn give_back(path: &Aside) -> io::Result<()> {
    use rustix::fs::CWD;
    let back = renameat_with(CWD, &path.at, CWD, &path.from, RenameFlags::NOREPLACE);
    if back.is_ok() {
        return Ok(());
    }
    let mut name = path.from.file_name().unwrap_or_default().to_owned();
    name.push(UNSAVED_SUFFIX);
    fs::rename(&path.at, path.from.with_file_name(name)).map_err(at(&path.at))
}

/// Removes content that lies beside its files, with the directory that was made for it.
fn remove_beside(entry: &Entry) {
    for path in &entry.paths {
        if let Some(dir) = path.at.parent()
            && dir.file_name().is_some_and(is_beside)
        {
            let _ = fs::remove_dir_all(dir);
        }
    }
}

/// Prefix of the directories for content beside its files.
pub(crate) const BESIDE: &str = ".ckpt-spool-";

fn is_beside(name: &std::ffi::OsStr) -> bool {
    name.to_string_lossy().starts_with(BESIDE)
}

impl NewEntry {
    /// Writes what is about to be set aside. It counts once it is committed.
    ///
    /// # Errors
    /// When it can't be written.
    pub(crate) fn write(&self, entry: &Entry) -> io::Result<()> {
        let path = self.dir.join(ENTRY);
        let text = serde_json::to_string(entry)?;
        file_lock::replace(&path, &text).map_err(at(&path))?;
        if entry.how == How::Taken {
            // The user's only copy: the way back has to be on the disk before it moves.
            File::open(&path)?.sync_all()?;
            File::open(&self.dir)?.sync_all()?;
        }
        Ok(())
    }

    /// Undoes what was set aside.
    pub(crate) fn abandon(self) -> io::Result<()> {
        drop(self._maker);
        undo(&self.dir)
    }
}

fn read_entry(dir: &Path) -> io::Result<Entry> {
    let path = dir.join(ENTRY);
    let text = read(&path).map_err(at(&path))?;
    serde_json::from_slice(&text).map_err(|cause| at(&path)(cause.into()))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut text = Vec::new();
    File::open(path)?
        .take(FILE_BYTES_MAX)
        .read_to_end(&mut text)?;
    Ok(text)
}

fn private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(0o600);
    options.open(path).map_err(at(path))
}

impl Outcome {
    /// An outcome of now.
    pub(crate) fn now(number: u64, before: Option<&Self>, status: u8, text: String) -> Self {
        Self {
            number,
            attempt: before.map_or(0, |before| before.attempt) + 1,
            at: unix_seconds(),
            status,
            text,
            json: None,
            is_reported: false,
        }
    }
}
