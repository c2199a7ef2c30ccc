//! What `ckpt run --on` keeps of a job, so that it finds it again when it was killed.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::words::{Shown, Word};
use crate::run::files::remove;
use crate::run::staged::write_json;

/// Name of the file.
pub(super) const KEPT: &str = "away.json";

/// Name of the list of files beside it.
pub(super) const LISTING: &str = "staged.jsonl";

/// An incarnation on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OnHost {
    /// Name of the host.
    pub host: String,
    /// Number of the incarnation.
    pub number: u32,
}

/// What is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Random: tells this job from others of its name.
    pub run: String,
    /// The working directory.
    pub dir: Word,
    /// The command.
    pub command: Vec<Word>,
    /// The version that the working directory was saved as.
    pub staged: u64,
    /// Where the job is; none when it is nowhere.
    pub now: Option<OnHost>,
    /// Incarnations so far.
    pub number: u32,
    /// Those that were given up without a word of their end.
    pub abandoned: Vec<OnHost>,
    /// How much of the output of the newest incarnation was shown.
    pub shown: Shown,
}

impl Kept {
    /// Reads it; none where there is none.
    ///
    /// # Errors
    /// When there is one that can't be read.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        match fs::read(path) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    /// Writes it.
    ///
    /// # Errors
    /// When that fails.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        write_json(path, self)
    }

    /// Removes it.
    ///
    /// # Errors
    /// When it is there and stays.
    pub(super) fn remove(path: &Path) -> io::Result<()> {
        remove(path)
    }
}
