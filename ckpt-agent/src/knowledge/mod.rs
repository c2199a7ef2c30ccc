//! The notebook: a file that keeps what this machine has observed of hosts ([`crate::core::knowledge`]).

mod file;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

pub use crate::core::knowledge::{
    Contact, Knowledge, KnownHost, Missed, Named, Observation, SaveTimes, Sighting, SightingDetails,
};
pub use file::{KnowledgeError, default_dir};

/// Collects observations, and writes them to a file at the end. Without a path nothing is kept.
#[derive(Clone, Debug, Default)]
pub struct Notebook {
    path: Option<PathBuf>,
    new: Arc<Mutex<Vec<Observation>>>,
}

impl Notebook {
    /// A notebook in the file at `path`.
    pub fn at(path: PathBuf) -> Self {
        Self {
            path: Some(path),
            new: Arc::default(),
        }
    }

    /// The directory of the notebook's file.
    pub fn dir(&self) -> Option<PathBuf> {
        let dir = self.path.as_deref()?.parent()?;
        Some(dir.to_owned())
    }

    /// What is known, with the observations of this process. A file that can't be read counts as empty, with
    /// a line in the log: only the quality of choices depends on it.
    pub fn read(&self, now: u64) -> Knowledge {
        let mut known = match &self.path {
            None => Knowledge::default(),
            Some(path) => Knowledge::load(path).unwrap_or_else(|cause| {
                tracing::warn!(%cause, "starting without knowledge of the hosts");
                Knowledge::default()
            }),
        };
        let new = self.new.lock().unwrap_or_else(PoisonError::into_inner);
        for observation in new.iter() {
            known.observe(observation, now);
        }
        known
    }

    /// Adds an observation. [`Self::write`] puts it into the file.
    pub fn note(&self, observation: Observation) {
        let mut new = self.new.lock().unwrap_or_else(PoisonError::into_inner);
        new.push(observation);
    }

    /// Writes the observations to the file. Several processes may do so at once; none waits long for another.
    pub fn write(&self, now: u64) {
        let new = std::mem::take(&mut *self.new.lock().unwrap_or_else(PoisonError::into_inner));
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
}
