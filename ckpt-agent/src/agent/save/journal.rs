//! The journal of a running save, as a file of this machine ([`codec::journal`]), and those of saves that were
//! interrupted.
//!
//! A save locks its journal while it runs, and removes it before it signs its manifest. So a journal that is there and
//! not locked is that of a save that was interrupted, and whose manifest nobody has signed.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use codec::journal::{JOURNAL_BYTES_MAX, Journal, JournalHead, JournalWriter, NotedSegment};
use codec::keys::Keys;
use codec::manifest::{MANIFEST_BYTES_MAX, Manifest};
use codec::{JobId, hex};
use protocol::wire::limits::UNCOMMITTED_LIFETIME;
use rustix::fs::{FlockOperation, flock};

use crate::pipeline::encode::Notes;

/// Images of fewer bytes have no journal: saving them again takes little time.
pub(super) const JOURNAL_FROM: u64 = 64 << 20;

/// The directory of all journals, in that of the notebook.
const DIRECTORY: &str = "saves";

const JOURNAL: &str = "journal";

const REMNANT: &str = "remnant";

/// Segments that may wait to be written.
const QUEUE: usize = 1024;

/// So many segments with rows are written together, at the latest after [`WRITE_PERIOD`].
const WRITTEN_TOGETHER: usize = 8;

const WRITE_PERIOD: Duration = Duration::from_secs(1);

/// Most journals of interrupted saves of a job that are used: the last ones.
const JOURNALS_MAX: usize = 8;

/// Most files that are looked at for old ones.
const LOOKED_AT_MAX: usize = 4096;

/// The journal of a running save.
#[derive(Debug)]
pub(super) struct SaveJournal {
    path: PathBuf,
    notes: Option<Notes>,
    is_written: Arc<AtomicBool>,
    /// Locked while the save runs.
    _lock: File,
}

impl SaveJournal {
    /// Begins the journal of a save in this directory. The file is written once the image has shown
    /// [`JOURNAL_FROM`] bytes, or at once if it `is_large`. Nothing is noted if that is not possible.
    pub(super) fn begin(
        dir: &Path,
        keys: &Keys,
        job: &JobId,
        head: &JournalHead,
        is_large: bool,
    ) -> Option<Self> {
        let sealer = keys.journal_sealer(job, head.checkpoint)?;
        let begun = || {
            let dir = directory_of(dir, keys, job).ok_or(io::ErrorKind::InvalidInput)?;
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)?;
            let path = dir.join(hex::encode(&head.checkpoint.0));
            let path = path.with_extension(JOURNAL);
            let mut options = File::options();
            let file = options.write(true).create_new(true).mode(0o600);
            let file = file.open(&path)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            let lock = file.try_clone()?;
            Ok::<_, io::Error>((path, file, lock))
        };
        let (path, file, lock) = begun()
            .inspect_err(|cause| tracing::warn!(%cause, "can't keep a journal of the save"))
            .ok()?;
        let (notes, noted) = sync_channel(QUEUE);
        let (writer, first) = JournalWriter::begin(sealer, head);
        let is_written = Arc::new(AtomicBool::new(false));
        let writing = Writing {
            is_written: Arc::clone(&is_written),
            file,
            writer,
            unwritten: first,
            waiting: Vec::new(),
            image_bytes: 0,
            is_large,
            written: 0,
        };
        let started = thread::Builder::new().name("journal".into());
        let started = started.spawn(move || {
            if let Err(cause) = writing.run(&noted) {
                tracing::warn!(%cause, "the journal of the save ends");
            }
        });
        started.ok()?;
        Some(Self {
            path,
            notes: Some(notes),
            is_written,
            _lock: lock,
        })
    }

    /// Where the segments are noted.
    pub(super) const fn take_notes(&mut self) -> Option<Notes> {
        self.notes.take()
    }

    /// Whether something was written, so that it is of use.
    pub(super) fn is_written(&self) -> bool {
        self.is_written.load(Ordering::Relaxed)
    }

    /// Removes it for good, before the manifest is signed.
    ///
    /// # Errors
    /// When it may be there yet after a crash of this machine.
    pub(super) fn remove(self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
            _ => {}
        }
        File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// Writes a journal on a thread of its own.
struct Writing {
    is_written: Arc<AtomicBool>,
    file: File,
    writer: JournalWriter,
    unwritten: Vec<u8>,
    waiting: Vec<NotedSegment>,
    image_bytes: u64,
    is_large: bool,
    written: u64,
}

impl Writing {
    fn run(mut self, noted: &Receiver<NotedSegment>) -> io::Result<()> {
        let mut due = Instant::now() + WRITE_PERIOD;
        loop {
            let wait = due.saturating_duration_since(Instant::now());
            let ended = match noted.recv_timeout(wait) {
                Ok(segment) => {
                    self.image_bytes += segment.image_bytes();
                    self.waiting.push(segment);
                    false
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => true,
            };
            let is_due = self.waiting.len() >= WRITTEN_TOGETHER || Instant::now() >= due;
            if ended || is_due {
                self.write()?;
                due = Instant::now() + WRITE_PERIOD;
            }
            if ended {
                return Ok(());
            }
        }
    }

    fn write(&mut self) -> io::Result<()> {
        if !self.waiting.is_empty() {
            let frame = self.writer.segments(std::mem::take(&mut self.waiting));
            self.unwritten.extend(frame);
        }
        self.is_large |= self.image_bytes >= JOURNAL_FROM;
        if !self.is_large || self.unwritten.is_empty() {
            return Ok(());
        }
        self.written += self.unwritten.len() as u64;
        if self.written > JOURNAL_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_all(&self.unwritten)?;
        self.unwritten.clear();
        self.is_written.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// What a save that was interrupted has left on this machine.
#[derive(Debug)]
pub(super) struct LeftJournal {
    pub(super) journal: Journal,
    /// The manifest of the remnant that was made of it, if one was.
    pub(super) remnant: Option<Manifest>,
    path: PathBuf,
    /// Locked, so that no other save uses it at the same time.
    _lock: File,
}

impl LeftJournal {
    /// Those of the job, in no particular order. Removes what is of no use any more.
    pub(super) fn of_job(dir: &Path, keys: &Keys, job: &JobId) -> Vec<Self> {
        sweep(dir);
        let Some(dir) = directory_of(dir, keys, job) else {
            return Vec::new();
        };
        let mut paths: Vec<PathBuf> = files_in(&dir, JOURNAL).take(LOOKED_AT_MAX).collect();
        paths.sort_by_key(|path| fs::metadata(path).and_then(|data| data.modified()).ok());
        let mut last = Vec::new();
        for path in paths.into_iter().rev() {
            let Some(file) = locked(&path) else {
                continue;
            };
            let is_signed = path.with_extension(REMNANT).exists();
            match Self::read(path.clone(), file, keys, job) {
                Some(Ok(one)) if last.len() < JOURNALS_MAX => last.push(one),
                // What was signed may be needed by a version, and is known by its journal.
                Some(Ok(_)) if is_signed => {}
                Some(_) => remove(&path),
                None => {}
            }
        }
        last
    }

    /// Reads the journal in this file. An error if nobody can use it; `None` if this key can't.
    fn read(path: PathBuf, file: File, keys: &Keys, job: &JobId) -> Option<Result<Self, Unusable>> {
        let mut bytes = Vec::new();
        let mut reading = (&file).take(JOURNAL_BYTES_MAX);
        reading.read_to_end(&mut bytes).ok()?;
        // That of a save that was killed at once is empty.
        let Some(checkpoint) = Journal::named_in(&bytes) else {
            return Some(Err(Unusable));
        };
        let sealer = keys.journal_sealer(job, checkpoint)?;
        let Some(journal) = Journal::read(&bytes, &sealer) else {
            return Some(Err(Unusable));
        };
        let remnant = File::open(path.with_extension(REMNANT)).ok();
        let remnant = remnant.map(|file| {
            let mut bytes = Vec::new();
            file.take(MANIFEST_BYTES_MAX as u64 + 1)
                .read_to_end(&mut bytes)
                .ok()?;
            Manifest::parse(bytes).ok()
        });
        // A remnant that can't be read was signed, and must not be signed again.
        if matches!(remnant, Some(None)) {
            return Some(Err(Unusable));
        }
        Some(Ok(Self {
            journal,
            remnant: remnant.flatten(),
            path,
            _lock: file,
        }))
    }

    /// Keeps the manifest of its remnant, so that it is signed only once.
    ///
    /// # Errors
    /// When it is not certain that it is kept.
    pub(super) fn keep_remnant(&mut self, manifest: Manifest) -> io::Result<()> {
        let path = self.path.with_extension(REMNANT);
        let mut options = File::options();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        file.write_all(manifest.bytes())?;
        file.sync_all()?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        self.remnant = Some(manifest);
        Ok(())
    }

    /// Removes it: nothing uses it any more. The journal goes first: without it the manifest is of no use.
    pub(super) fn remove(self) {
        remove(&self.path);
    }
}

/// A journal of which nothing can be used.
#[derive(Debug)]
struct Unusable;

fn remove(journal: &Path) {
    let _gone_or_swept_later = fs::remove_file(journal);
    let _gone_or_swept_later = fs::remove_file(journal.with_extension(REMNANT));
}

/// The file, locked. `None` if a save that runs has locked it.
fn locked(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(file)
}

/// The directory of the journals of a job.
fn directory_of(dir: &Path, keys: &Keys, job: &JobId) -> Option<PathBuf> {
    let tag = keys.job_tag(job)?;
    Some(dir.join(DIRECTORY).join(hex::encode(&tag.0)))
}

fn files_in(dir: &Path, extension: &'static str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(move |path| path.extension().is_some_and(|one| one == extension))
}

/// Removes what interrupted saves of all jobs left so long ago that no host has their rows any more.
fn sweep(dir: &Path) {
    let jobs = fs::read_dir(dir.join(DIRECTORY)).into_iter().flatten();
    for job in jobs.flatten().take(LOOKED_AT_MAX) {
        for extension in [JOURNAL, REMNANT] {
            for path in files_in(&job.path(), extension).take(LOOKED_AT_MAX) {
                remove_old(&path);
            }
        }
        // Fails while there is a file in it.
        let _ = fs::remove_dir(job.path());
    }
}

fn remove_old(path: &Path) {
    let written = fs::metadata(path).and_then(|data| data.modified());
    let age = written.map(|written| SystemTime::now().duration_since(written));
    let is_old = matches!(age, Ok(Ok(age)) if age > 2 * UNCOMMITTED_LIFETIME);
    if is_old && locked(path).is_some() {
        let _stays_until_the_next_time = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use codec::seal::{Cipher, DataKey, OwnerSecret};
    use codec::{CheckpointId, Redundancy, Version};

    use super::*;

    fn keys() -> Keys {
        OwnerSecret::new([3; 32]).into()
    }

    fn job() -> JobId {
        "42".parse().unwrap()
    }

    fn head(id: u8) -> JournalHead {
        JournalHead {
            checkpoint: CheckpointId([id; 16]),
            version: Version::FIRST,
            redundancy: Redundancy::DEFAULT,
            cipher: Cipher::Aes256Gcm,
            data_key: DataKey::new([8; 32]),
            origins: Vec::new(),
        }
    }

    /// The file of a save that was killed, with what it had written.
    fn left(dir: &Path, id: u8, content: &[u8]) -> PathBuf {
        let dir = directory_of(dir, &keys(), &job()).unwrap();
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join(hex::encode(&[id; 16])).with_extension(JOURNAL);
        fs::write(&path, content).unwrap();
        // In the order of the ids.
        let time = SystemTime::now() - Duration::from_secs(u64::from(200 - id));
        File::open(&path).unwrap().set_modified(time).unwrap();
        path
    }

    fn whole(id: u8) -> Vec<u8> {
        let sealer = keys().journal_sealer(&job(), head(id).checkpoint).unwrap();
        JournalWriter::begin(sealer, &head(id)).1
    }

    fn ids(left: &[LeftJournal]) -> Vec<u8> {
        left.iter()
            .map(|one| one.journal.head.checkpoint.0[0])
            .collect()
    }

    #[test]
    fn what_very_early_kills_left_hides_no_journal_and_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let good = left(dir.path(), 1, &whole(1));
        let mut of_no_use: Vec<PathBuf> = (2..30).map(|id| left(dir.path(), id, b"")).collect();
        of_no_use.push(left(dir.path(), 30, &whole(30)[..30]));
        let mut changed = whole(31);
        changed[40] ^= 1;
        of_no_use.push(left(dir.path(), 31, &changed));
        let found = LeftJournal::of_job(dir.path(), &keys(), &job());
        assert_eq!(ids(&found), [1]);
        assert!(good.exists() && of_no_use.iter().all(|path| !path.exists()));
    }

    #[test]
    fn the_last_journals_are_used_and_older_ones_removed_unless_they_were_signed() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (1..13).map(|id| left(dir.path(), id, &whole(id))).collect();
        // Never parsed: enough to show that it was signed. It can't be read, so nothing can be used.
        fs::write(paths[11].with_extension(REMNANT), b"torn").unwrap();
        let found = LeftJournal::of_job(dir.path(), &keys(), &job());
        assert_eq!(ids(&found), [11, 10, 9, 8, 7, 6, 5, 4]);
        let stay = paths.iter().filter(|path| path.exists());
        assert_eq!(stay.count(), JOURNALS_MAX);
    }

    #[test]
    fn the_journal_of_a_save_that_runs_stays() {
        let dir = tempfile::tempdir().unwrap();
        let running = SaveJournal::begin(dir.path(), &keys(), &job(), &head(1), false).unwrap();
        assert!(LeftJournal::of_job(dir.path(), &keys(), &job()).is_empty());
        assert!(running.path.exists());
        running.remove().unwrap();
    }
}
