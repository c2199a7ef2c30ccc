//! What `ckpt run --on` keeps of a job on disk, so that a start after a kill finds the job again.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::words::{Shown, Word};
use crate::files::remove;
use crate::json_file::write_json;

/// Name of the file in the job's directory.
pub(super) const KEPT: &str = "away.json";

/// Name of the list of the working directory's files, in the same directory.
pub(super) const LISTING: &str = "staged.jsonl";

/// An incarnation of the job on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OnHost {
    /// Name of the host.
    pub host: String,
    /// Number of the incarnation.
    pub number: u32,
}

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// A random text that distinguishes this job from others of the same name.
    pub run: String,
    /// The job's working directory on this machine.
    pub dir: Word,
    /// The job's command and its arguments.
    pub command: Vec<Word>,
    /// The version as which the working directory was saved.
    pub staged: u64,
    /// Where the job is; `None` if it is on no host.
    pub now: Option<OnHost>,
    /// How many incarnations were started so far.
    pub number: u32,
    /// Incarnations that were given up without a report of how they ended.
    pub abandoned: Vec<OnHost>,
    /// How much output of the newest incarnation was shown.
    pub shown: Shown,
}

impl Kept {
    /// Reads the file; `None` if it does not exist.
    ///
    /// # Errors
    /// When the file exists and can't be read.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        match fs::read(path) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// When writing fails.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        write_json(path, self)
    }

    /// Removes the file, if it exists.
    ///
    /// # Errors
    /// When it can't be removed.
    pub(super) fn remove(path: &Path) -> io::Result<()> {
        remove(path)
    }
}
