//! The notebook: a file that keeps what this machine has observed of hosts ([`crate::core::knowledge`]).

mod file;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use crate::core::knowledge::{
    Contact, Knowledge, KnownHost, Missed, Named, Observation, SaveTimes, Sighting, SightingDetails,
};
pub use file::{KnowledgeError, default_dir};

/// Collects observations, and writes them to a file at the end. Without a path nothing is kept.
#[derive(Clone, Debug, Default)]
pub struct Notebook {
    path: Option<PathBuf>,
    pages: Arc<Mutex<Pages>>,
}

#[derive(Debug, Default)]
struct Pages {
    /// Observations that are not in the file yet.
    new: Vec<Observation>,
    /// What the last reader was given: a save reads some five times, and a program that saves a thousand files has a
    /// long file.
    read: Option<ReadPages>,
}

/// What is known by the file as it was, and by the first of the new observations.
#[derive(Debug)]
struct ReadPages {
    stamp: Option<Stamp>,
    known: Arc<Knowledge>,
    /// How many of the new observations are in it.
    observed: usize,
}

/// Changes when a file is replaced.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    modified: (i64, i64),
    bytes: u64,
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(Self {
            modified: (file.mtime(), file.mtime_nsec()),
            bytes: file.len(),
            inode: file.ino(),
        })
    }
}

impl Notebook {
    /// A notebook in the file at `path`.
    pub fn at(path: PathBuf) -> Self {
        Self {
            path: Some(path),
            pages: Arc::default(),
        }
    }

    /// The directory of the notebook's file.
    pub fn dir(&self) -> Option<PathBuf> {
        let dir = self.path.as_deref()?.parent()?;
        Some(dir.to_owned())
    }

    /// What is known, with the observations of this process. A file that can't be read counts as empty, with
    /// a line in the log: only the quality of choices depends on it.
    pub fn read(&self, now: u64) -> Arc<Knowledge> {
        let stamp = self.path.as_deref().and_then(Stamp::of);
        let mut pages = self.pages();
        let Pages { new, read } = &mut *pages;
        let before = read.take().filter(|read| read.stamp == stamp);
        let mut read_now = before.unwrap_or_else(|| ReadPages {
            stamp,
            known: Arc::new(self.load()),
            observed: 0,
        });
        let unread = new.get(read_now.observed..).unwrap_or_default();
        if !unread.is_empty() {
            let known = Arc::make_mut(&mut read_now.known);
            for observation in unread {
                known.observe(observation, now);
            }
            read_now.observed = new.len();
        }
        Arc::clone(&read.insert(read_now).known)
    }

    fn load(&self) -> Knowledge {
        let Some(path) = &self.path else {
            return Knowledge::default();
        };
        Knowledge::load(path).unwrap_or_else(|cause| {
            tracing::warn!(%cause, "starting without knowledge of the hosts");
            Knowledge::default()
        })
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an observation. [`Self::write`] puts it into the file.
    pub fn note(&self, observation: Observation) {
        self.pages().new.push(observation);
    }

    /// Writes the observations to the file. Several processes may do so at once; none waits long for another.
    pub fn write(&self, now: u64) {
        let new = std::mem::take(&mut *self.pages()).new;
        let Some(path) = self.path.as_ref().filter(|_| !new.is_empty()) else {
            return;
        };
        let updated = file::update(path, |known| {
            for observation in &new {
                known.observe(observation, now);
            }
        });
        if let Err(cause) = updated {
            tracing::warn!(%cause, "can't write what was learned of hosts");
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::identity::HostId;

    use super::*;

    const HOST: HostId = HostId(codec::OwnerId([7; 32]));

    #[test]
    fn a_notebook_without_a_file_still_remembers_the_day() {
        let notebook = Notebook::default();
        notebook.note(Observation::Rate(HOST, 1e6));
        let known = notebook.read(5);
        assert!(known.host(HOST).unwrap().forecast(5).is_some());
        notebook.write(5);
    }

    #[test]
    fn a_reader_knows_each_observation_once_and_what_other_processes_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hosts.json");
        let notebook = Notebook::at(file.clone());
        let other = Notebook::at(file.clone());
        notebook.note(Observation::Rate(HOST, 1e6));
        let first = notebook.read(5);
        // Nothing is new: the same knowledge, not made again.
        assert!(Arc::ptr_eq(&first, &notebook.read(5)));
        // The same observations, read one by one and all at once.
        notebook.note(Observation::Rate(HOST, 3e6));
        let one_by_one = notebook.read(5);
        let at_once = Notebook::default();
        at_once.note(Observation::Rate(HOST, 1e6));
        at_once.note(Observation::Rate(HOST, 3e6));
        assert_eq!(*one_by_one, *at_once.read(5));
        assert_ne!(*first, *one_by_one, "an earlier reader keeps what it read");
        // Another process writes, then this one.
        let second = HostId(codec::OwnerId([8; 32]));
        other.note(Observation::Rate(second, 2e6));
        other.write(5);
        assert!(notebook.read(5).host(second).is_some());
        assert!(notebook.read(5).host(HOST).is_some());
        notebook.write(5);
        let written = Notebook::at(file).read(5);
        assert_eq!(*notebook.read(5), *written);
        assert!(written.host(second).is_some() && written.host(HOST).is_some());
    }
}
