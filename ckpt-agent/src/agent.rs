//! The client's operations, one method each.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use codec::compress::Level;
use codec::seal::{Cipher, OwnerSecret};
use codec::{JobId, Redundancy, Version};

use crate::cancel::Cancel;
use crate::report::{
    ExitStatus, Failure, ForgetReport, HostsReport, ListReport, Observer, RestoreReport,
    SaveReport, ShowReport, VerifyReport,
};

/// What to save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveInput {
    /// Files and directories.
    Paths(Vec<PathBuf>),
    /// Standard input.
    Stdin,
    /// The output of a command; counts only when it exits with 0.
    Command(Vec<std::ffi::OsString>),
}

/// A save.
#[derive(Clone, Debug)]
pub struct SaveRequest {
    /// The job.
    pub job: JobId,
    /// What to save.
    pub input: SaveInput,
    /// How many shards.
    pub redundancy: Redundancy,
    /// Fewest parity shards with which to commit, when not all can be had. `None`: all.
    pub allow_degraded: Option<u8>,
    /// Versions to keep, this one included; at least 1.
    pub keep: u32,
    /// Finish within this time or leave the old version standing.
    pub deadline: Option<Duration>,
    /// Effort of compression.
    pub level: Level,
    /// Whether hosts may read the image.
    pub cipher: Cipher,
    /// Skip unreadable files with a warning instead of failing.
    pub skip_unreadable: bool,
    /// Accept files that change while they are read, with a warning, instead of failing.
    pub accept_changed: bool,
}

/// Which checkpoint of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The newest one that can be restored.
    Newest,
    /// This one and no other.
    Version(Version),
}

/// Where to restore to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreTarget {
    /// The name under which it was saved, in the current directory; a stream goes to standard
    /// output unless that is a terminal.
    Default,
    /// This path.
    Path(PathBuf),
    /// Standard output.
    Stdout,
}

/// A restore.
#[derive(Clone, Debug)]
pub struct RestoreRequest {
    /// The job.
    pub job: JobId,
    /// Which checkpoint.
    pub which: Which,
    /// Where to.
    pub target: RestoreTarget,
    /// Whether it is all right when the job has no checkpoint.
    pub if_exists: bool,
    /// Replace what is at the target.
    pub force: bool,
    /// Restore setuid and setgid bits.
    pub set_id_bits: bool,
}

/// What the client may use of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    /// Bytes of memory for everything that is in flight.
    pub memory_bytes: u64,
    /// Threads for compression and coding.
    pub cpus: usize,
}

/// Which checkpoints of a job to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetWhich {
    /// All of them.
    All,
    /// One version.
    Version(Version),
    /// All but the newest so many.
    Keep(u32),
}

/// A client of one grid with one identity.
#[derive(Clone, Debug)]
pub struct Agent {
    resources: Resources,
}

fn absent<T>() -> Result<T, Failure> {
    Err(Failure::new(ExitStatus::Failed, "not built yet"))
}

impl Agent {
    /// A client that talks to the hosts of `grid` as `owner`, whose certificate is `certificate`
    /// (PEM).
    ///
    /// # Errors
    /// When the certificate is not the grid's or not the owner's.
    pub fn new(
        _owner: OwnerSecret,
        _certificate: &str,
        resources: Resources,
    ) -> Result<Self, Failure> {
        Ok(Self { resources })
    }

    /// Saves an image as the next version of a job.
    ///
    /// # Errors
    /// When it was not committed; the older versions stand.
    pub async fn save(
        &self,
        _request: SaveRequest,
        _observer: Arc<dyn Observer>,
        _cancel: Cancel,
    ) -> Result<SaveReport, Failure> {
        absent()
    }

    /// Restores an image.
    ///
    /// # Errors
    /// When nothing was restored; the target is as it was.
    pub async fn restore(
        &self,
        _request: RestoreRequest,
        _observer: Arc<dyn Observer>,
        _cancel: Cancel,
    ) -> Result<RestoreReport, Failure> {
        absent()
    }

    /// Lists the owner's checkpoints, or those of one job.
    ///
    /// # Errors
    /// When no host answers.
    pub async fn list(&self, _job: Option<&JobId>) -> Result<ListReport, Failure> {
        absent()
    }

    /// Describes one checkpoint.
    ///
    /// # Errors
    /// When there is none, or its index can't be read.
    pub async fn show(&self, _job: &JobId, _which: Which) -> Result<ShowReport, Failure> {
        absent()
    }

    /// Checks that shards are where they should be and, with `read_data`, reads every block.
    ///
    /// # Errors
    /// When no host answers or there is no such checkpoint. Damage is in the report.
    pub async fn verify(
        &self,
        _job: Option<&JobId>,
        _version: Option<Version>,
        _read_data: bool,
        _observer: Arc<dyn Observer>,
        _cancel: Cancel,
    ) -> Result<VerifyReport, Failure> {
        absent()
    }

    /// Removes checkpoints.
    ///
    /// # Errors
    /// When there is none.
    pub async fn forget(&self, _job: &JobId, _which: ForgetWhich) -> Result<ForgetReport, Failure> {
        absent()
    }

    /// Asks all hosts how they are.
    ///
    /// # Errors
    /// Never for a host that does not answer: that is in the report.
    pub async fn hosts(&self) -> Result<HostsReport, Failure> {
        absent()
    }
}
