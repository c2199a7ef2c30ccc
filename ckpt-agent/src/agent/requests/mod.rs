//! What is asked of a client: what to save, restore and remove, and with how much of this machine.

mod after;
mod options;
mod placement;

use std::path::PathBuf;
use std::time::Duration;

pub use after::{After, AfterError, AfterWhich, Strength};
pub use options::{SaveOptions, given_code};
pub use placement::{Choose, PlacementWish};

use codec::notice::Lease;
use codec::{JobId, Redundancy, Version};

use crate::core::glob::Glob;
use crate::core::sought::Sought;
use crate::image::keeper::Keeper;
use crate::image::{Existing, NamedPath, OnceReader};
use crate::unix_time::unix_seconds;

/// The probability of being able to restart that `--redundancy auto` aims at without `--target`.
pub const TARGET_USUAL: f64 = 0.999;

/// Memory for data in flight by default, bytes.
pub const MEMORY_USUAL: u64 = 256 << 20;

/// What helps when an empty image is refused.
pub const ALLOW_EMPTY: &str =
    "look why nothing came; to save it nevertheless: --allow-empty (in Python allow_empty=True)";

/// What to save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveInput {
    /// Files and directories, under their own names.
    Paths(Vec<PathBuf>),
    /// Files and directories, some under other names than their own.
    Named(Vec<NamedPath>),
    /// Standard input, read to its end.
    Stdin,
    /// All that this reader gives, to its end.
    Reader(OnceReader),
    /// The output of a command; the save fails unless the command exits with 0. If this process is killed,
    /// the keeper ends the command.
    Command(Vec<std::ffi::OsString>, Option<Keeper>),
}

/// What to save, and how.
#[derive(Clone, Debug)]
pub struct SaveRequest {
    /// Name of the job to which the checkpoint belongs.
    pub job: JobId,
    /// The image that is saved.
    pub input: SaveInput,
    /// How it is saved.
    pub options: SaveOptions,
}

/// Which checkpoint of a job to restore or read.
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
    /// The name under which it was saved, in the current directory. A stream goes to standard output, unless
    /// that is a terminal.
    Default,
    /// This path, for the file or the directory of the image.
    Path(PathBuf),
    /// Standard output; only for an image of one file or a stream.
    Stdout,
    /// Into a directory, each root under its own name.
    Content {
        /// The directory in which the roots are made; nothing is there yet, but its parent is.
        made: PathBuf,
        /// The directory that gets the roots afterwards. What it has already need not be fetched.
        directory: PathBuf,
        /// What becomes of names that exist there.
        existing: Existing,
    },
}

/// What to restore, and where to.
#[derive(Clone, Debug)]
pub struct RestoreRequest {
    /// Name of the job whose checkpoint is restored.
    pub job: JobId,
    /// The checkpoint that is restored.
    pub which: Which,
    /// Conditions that the checkpoint has to meet.
    pub sought: Sought,
    /// Where the files go.
    pub target: RestoreTarget,
    /// Other paths of files and directories that may have a part of the image, so that it need not be fetched: each
    /// is taken for the image's root, or if it has several, for the one of the same name.
    pub at_hand: Vec<PathBuf>,
    /// Succeed when the job has no checkpoint.
    pub if_exists: bool,
    /// Fewest data shards with which the job is saved, if the caller knows that.
    pub least_data: Option<u8>,
    /// Where no host that answers shows a checkpoint: the job has none, or is begun anew without it, although
    /// silent members may hold one.
    pub is_new: bool,
    /// Take a marked version although an older one is known to be whole.
    pub accept_marked: bool,
    /// Replace a file that is at the target.
    pub force: bool,
    /// Restore setuid and setgid bits.
    pub set_id_bits: bool,
    /// Which files to restore; all if there are no patterns.
    pub globs: Vec<Glob>,
    /// Only report what would be done.
    pub dry_run: bool,
}

impl RestoreRequest {
    /// Restores all files of the job's checkpoint, whatever its labels, and replaces nothing.
    pub fn new(job: JobId, which: Which, target: RestoreTarget) -> Self {
        Self {
            job,
            which,
            sought: Sought::default(),
            target,
            at_hand: Vec::new(),
            if_exists: false,
            least_data: None,
            is_new: false,
            accept_marked: false,
            force: false,
            set_id_bits: false,
            globs: Vec::new(),
            dry_run: false,
        }
    }
}

/// How much of this machine the client may use.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    /// Bytes of memory for all data in flight.
    pub memory_bytes: u64,
    /// Number of threads for compression and coding.
    pub cpus: usize,
    /// Most bytes per second to all hosts together, and from all hosts together.
    pub bytes_per_second: Option<u64>,
}

impl Resources {
    /// How much longer than usual a row may take because of the limit on the rate, milliseconds.
    pub(in crate::agent) fn patience_ms(&self, redundancy: Redundancy) -> u64 {
        let row = codec::encode::row_bytes_max(redundancy) as u64;
        self.bytes_per_second
            .map_or(0, |rate| ROWS_WAITED * row * 1000 / rate.max(1))
    }
}

/// Most rows in flight ahead of the row that is waited for.
const ROWS_WAITED: u64 = 8;

/// Which checkpoints of a job to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetWhich {
    /// All checkpoints of the job.
    All,
    /// The checkpoint with this version.
    Version(Version),
    /// All but this many of the newest.
    Keep(u32),
    /// All but the newest one that can be restored, and those saved within this time before that one.
    KeepWithin(Duration),
}

impl ForgetWhich {
    /// What to call missing when no checkpoint is selected.
    pub(in crate::agent) const fn wanted(self) -> Which {
        match self {
            Self::Version(version) => Which::Version(version),
            Self::All | Self::Keep(_) | Self::KeepWithin(_) => Which::Newest,
        }
    }
}

/// For how long the checkpoints of a job are to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenure {
    /// Until they are removed.
    Forever,
    /// This long from now, and again from each later save.
    For(Duration),
}

impl Tenure {
    /// The lease that begins now; `None` for ever.
    pub(in crate::agent) fn lease(self) -> Option<Lease> {
        match self {
            Self::Forever => None,
            Self::For(time) => Some(Lease::from(unix_seconds(), time.as_secs().max(1))),
        }
    }
}
