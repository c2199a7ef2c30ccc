//! The answer of each command, and its failure. The command line prints them for people or as JSON. The
//! docstrings of the fields are written to `docs/use/json.md` as they are; fields are only added, never changed.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

pub use crate::events::{Observer, Progress, ProgressEvent, Silent};
pub use crate::verified::{BadShard, Checked, VerifiedCheckpoint, VerifyReport};
use codec::{CheckpointId, JobId, Redundancy, Version};
use health::HostState;
use protocol::errors::chain;
use serde::{Serialize, Serializer};

/// How a command ended; the number is its exit status, and is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// The command did what it promises.
    Done = 0,
    /// It failed for a reason that has no number of its own; nothing changed.
    Failed = 1,
    /// The command line or a configuration file is wrong.
    Usage = 2,
    /// Done, but not as promised: with less redundancy, as the caller allowed; with warnings; from an
    /// older version than the newest known one; or without the knowledge of all hosts that hold shards.
    /// Or something needs attention (`health`, `doctor`).
    Degraded = 3,
    /// No such job, version or checkpoint.
    NotFound = 4,
    /// Not enough hosts can be reached, now or until `--deadline`; nothing was stored. Try again later.
    TooFewHosts = 5,
    /// Identity, key or role do not allow it.
    Denied = 6,
    /// Damaged beyond repair: there are shards, but too few of their bytes are right.
    Damaged = 7,
    /// Reading or writing on this machine failed (file, disk full, command).
    LocalIo = 8,
    /// There were enough hosts, but not enough time until `--deadline`; the old version is still the
    /// newest.
    Deadline = 9,
    /// Another checkpoint follows the one that `save --after` names, or may follow it; nothing changed.
    AnotherSuccessor = 10,
    /// Ended by SIGINT; nothing was committed.
    Interrupted = 130,
    /// Ended by SIGTERM; nothing was committed.
    Terminated = 143,
}

impl ExitStatus {
    /// All exit statuses, for the table in the help text.
    pub const ALL: [(Self, &'static str); 13] = [
        (Self::Done, "done as promised"),
        (Self::Failed, "failed; nothing changed"),
        (Self::Usage, "wrong usage or configuration"),
        (
            Self::Degraded,
            "done with less redundancy, warnings, an older version, uninformed hosts; or needs attention",
        ),
        (Self::NotFound, "no such job, version or checkpoint"),
        (
            Self::TooFewHosts,
            "too few hosts answer, now or until --deadline; nothing stored; try again later",
        ),
        (Self::Denied, "the identity, key or role does not permit it"),
        (Self::Damaged, "damaged beyond repair"),
        (Self::LocalIo, "reading or writing on this machine failed"),
        (
            Self::Deadline,
            "enough hosts, but not finished within --deadline; the old version is still the newest",
        ),
        (
            Self::AnotherSuccessor,
            "another version follows the one that --after names, or may follow it; nothing changed",
        ),
        (Self::Interrupted, "interrupted (SIGINT); nothing committed"),
        (Self::Terminated, "terminated (SIGTERM); nothing committed"),
    ];
}

/// Why a command failed: what failed, the part of each host in it, and what to do next.
#[derive(Debug, Serialize)]
pub struct Failure {
    /// The exit status of the command.
    pub status: ExitStatus,
    /// What failed and why, as one sentence that names the thing.
    pub message: String,
    /// The part of each host in the failure: each host once, in the order of the grid.
    pub hosts: Vec<HostNote>,
    /// What holds nevertheless, such as `version 17 is still the newest`, or `did you mean job 42?`.
    pub state: Option<String>,
    /// What the user can try next.
    pub next: Option<String>,
    /// Only for a save with `--after`. With exit status 10: the version that follows the named one, or
    /// may follow it. Otherwise: the save's own version, if the save was left half done and may still be
    /// committed.
    pub successor: Option<Box<SuccessorNote>>,
    /// Whether neither a host that answers nor this machine knows of what was sought. Another key of its owner
    /// may have saved it.
    #[serde(skip)]
    pub nothing_known: bool,
    /// Whether a part of the image has gone to standard output, where nothing else may follow.
    #[serde(skip)]
    pub image_on_stdout: bool,
    /// The exit status, if the command has others than those of `status` (`ckpt run`).
    #[serde(skip)]
    pub exit_code: Option<u8>,
}

/// The checkpoint that follows the one that `save --after` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SuccessorNote {
    /// Version of that checkpoint.
    pub version: Version,
    /// Id of that checkpoint.
    #[serde(serialize_with = "hex_id")]
    pub checkpoint: CheckpointId,
    /// Whether it is committed. If not, its save was left half done.
    pub committed: bool,
}

/// How a save with `--after` was fenced against another successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FenceReport {
    /// The version that it follows.
    pub after: Version,
    /// The id of that version.
    #[serde(serialize_with = "hex_id")]
    pub after_checkpoint: CheckpointId,
    /// Whether the witnesses of that version were asked; `false` with `--unfenced`.
    pub fenced: bool,
    /// How many witnesses that version has.
    pub witnesses: usize,
    /// How many of them had to agree.
    pub needed: usize,
    /// How many are known to have agreed.
    pub agreed: usize,
}

/// One host's part in a failure or a replacement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostNote {
    /// Name of the host.
    pub host: String,
    /// What the host did, or what kept it from answering.
    pub what: String,
}

impl Failure {
    /// A failure without further notes.
    pub fn new(status: ExitStatus, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            hosts: Vec::new(),
            state: None,
            next: None,
            successor: None,
            nothing_known: false,
            image_on_stdout: false,
            exit_code: None,
        }
    }

    /// The failure when no host that answers shows what was sought. Silent members may hold it, or not.
    pub fn nothing_shown(
        message: impl Into<String>,
        may_be_away: bool,
        silent: Vec<HostNote>,
    ) -> Self {
        let (status, next) = if may_be_away {
            let next = "again when more hosts are up: ckpt hosts";
            (ExitStatus::TooFewHosts, next)
        } else {
            (ExitStatus::NotFound, "ckpt list")
        };
        Self {
            hosts: silent,
            nothing_known: true,
            ..Self::new(status, message).next(next)
        }
    }

    /// The exit status of the program.
    pub fn exit_code(&self) -> u8 {
        self.exit_code.unwrap_or(self.status as u8)
    }

    /// Adds what to try next.
    #[must_use]
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// The failure of reading or writing `what` on this machine.
    pub fn local(what: impl fmt::Display, cause: &(dyn std::error::Error + 'static)) -> Self {
        let message = format!("{what}: {}", chain(cause));
        Self::new(ExitStatus::LocalIo, message).next_for(cause)
    }

    /// Adds what to try next after this fault of reading or writing on this machine. Adds nothing if the system
    /// gave no reason that a user can do something about.
    #[must_use]
    pub fn next_for(mut self, cause: &(dyn std::error::Error + 'static)) -> Self {
        let causes = std::iter::successors(Some(cause), |cause| cause.source());
        let system = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
        self.next = system.map(io::Error::kind).find_map(step_after);
        self
    }
}

/// What to try after a fault of this kind.
fn step_after(kind: io::ErrorKind) -> Option<String> {
    let step = match kind {
        io::ErrorKind::NotFound => "another path: this file, or its directory, does not exist",
        io::ErrorKind::PermissionDenied => "a path that this user may use: ls -ld PATH",
        io::ErrorKind::AlreadyExists => "another path, or move that one away",
        io::ErrorKind::IsADirectory => "the path of a file",
        io::ErrorKind::NotADirectory => "the path of a directory",
        io::ErrorKind::ReadOnlyFilesystem => "a path on another disk: this one is read-only",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room on this disk: df -h"
        }
        _ => return None,
    };
    Some(step.to_owned())
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Reports show checkpoint ids in full length.
fn hex_id<S: Serializer>(id: &CheckpointId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&id.hex())
}

pub(crate) fn redundancy<S: Serializer>(
    value: &Redundancy,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Segments of an image that were compressed in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Compressed {
    /// `raw`; `zstd`; `shuffled`: zstd after bytes were sorted by their place in eight; `planes`: numbers in planes.
    pub method: &'static str,
    /// Number of the segments.
    pub segments: u64,
    /// Their bytes before compression.
    pub bytes: u64,
    /// Their bytes after compression.
    pub stored_bytes: u64,
}

/// Answer of `ckpt save`.
#[derive(Clone, Debug, Serialize)]
pub struct SaveReport {
    /// Name of the job.
    pub job: JobId,
    /// The version that was committed.
    pub version: Version,
    /// Id of the new checkpoint.
    #[serde(serialize_with = "hex_id")]
    pub checkpoint: CheckpointId,
    /// Its redundancy, such as `3+2`.
    #[serde(serialize_with = "redundancy")]
    pub redundancy: Redundancy,
    /// Shards of this version, or of what it builds on, that can be lost without losing the image.
    pub can_lose: usize,
    /// Sum of the file sizes.
    pub image_bytes: u64,
    /// Bytes that were read; holes are not read.
    pub read_bytes: u64,
    /// Bytes of `read_bytes` in segments that are all zero.
    pub zero_bytes: u64,
    /// The earlier version that this one was compared with; only the changes since then were stored. `None` if it was
    /// stored whole, or has nothing in common with an earlier one.
    pub base: Option<Version>,
    /// Bytes that were stored, after compression and before coding.
    pub stored_bytes: u64,
    /// How many of the `stored_bytes` were stored because they had changed since `base`. The others were stored
    /// again, so that an older checkpoint is needed no more. `None` when the image is stored whole.
    pub new_bytes: Option<u64>,
    /// Bytes of the image that an interrupted save had sent, and that were not sent again. `None` if there were none.
    pub resumed_bytes: Option<u64>,
    /// Bytes of all shards together.
    pub shard_bytes: u64,
    /// How the segments of the image were compressed, by method.
    pub compressed: Vec<Compressed>,
    /// How many times hosts store each of the `stored_bytes`: 1.67 with 3+2 shards, 3 with 1+2.
    pub stored_times: f64,
    /// Number of files in the image.
    pub files: u64,
    /// Seconds from start to commit.
    pub seconds: f64,
    /// Seconds from start until the image was read; the files may change from then on.
    pub held_seconds: f64,
    /// Which host holds which shard.
    pub holders: Vec<Holder>,
    /// Hosts that were replaced during the save, and why; hosts that hold a shard in the end are left out.
    pub replaced: Vec<HostNote>,
    /// Versions that `--keep` removed.
    pub removed: Vec<Version>,
    /// Why the image is not known to be one whole state, with `--accept-changed`; `None` if it is.
    pub marked: Option<String>,
    /// Until when the job's checkpoints are kept, Unix seconds; `None` for ever.
    pub kept_until: Option<u64>,
    /// With `--after`: which version this one follows, and who agreed.
    pub fence: Option<FenceReport>,
    /// Remarks that do not change the exit status, such as a code that was chosen by forecast, a limit of the
    /// grid, or a host that was not informed of a removal.
    pub notes: Vec<String>,
    /// The table behind the choice of hosts, with `--explain`.
    pub placement: Option<PlacementReport>,
    /// What the user should know, in whole sentences.
    pub warnings: Vec<String>,
}

/// Why hosts were chosen: the answer of `ckpt hosts --for-job`, and a part of that of `ckpt save
/// --explain`.
#[derive(Clone, Debug, Serialize)]
pub struct PlacementReport {
    /// Name of the job.
    pub job: JobId,
    /// Data shards and parity shards, such as `3+2`.
    pub redundancy: String,
    /// Probability that enough of the chosen hosts can be read when the job needs it.
    pub reliability: f64,
    /// Expected time to store, seconds.
    pub store_seconds: f64,
    /// Expected time to restore, seconds.
    pub restore_seconds: f64,
    /// Probability that the job's machine fails before the next checkpoint.
    pub compute_fails: f64,
    /// The objective that the choice minimises, seconds: expected cost minus expected benefit.
    pub objective_seconds: f64,
    /// The hosts: first the chosen ones, then the others in the order in which they would be tried.
    pub hosts: Vec<PlacedHost>,
    /// Remarks that do not change the exit status, such as a code that was chosen by forecast, a limit of the
    /// grid, or a host that was not informed of a removal.
    pub notes: Vec<String>,
    /// Hosts that did not answer.
    pub silent: Vec<HostNote>,
}

/// One host in the table behind a choice.
#[derive(Clone, Debug, Serialize)]
pub struct PlacedHost {
    /// Name of the host.
    pub name: String,
    /// Its site, if the grid file names one.
    pub site: Option<String>,
    /// Whether it was chosen.
    pub chosen: bool,
    /// Why it is only a reserve; `None` if it is none.
    pub reserve: Option<ReserveReason>,
    /// State of the machine, as the host announces it: `idle`, `busy`, `cpu taken`, `no memory`, `gone`.
    pub machine: Option<String>,
    /// State of the disk, as the host announces it: `full rate`, `limited`, `contended`, `no space`,
    /// `offline`.
    pub disk: Option<String>,
    /// Expected rate of transfers, bytes per second.
    pub bytes_per_second: f64,
    /// Whether the rate was measured from this machine; otherwise it is assumed.
    pub measured: bool,
    /// Probability that the host stays reachable until the next checkpoint, by its own forecast.
    pub stays: Option<f64>,
    /// Probability that the host can be read when the job needs it, from its forecast and from experience.
    pub readable: f64,
    /// Largest correlation of its availability with that of any chosen host.
    pub correlation: f64,
    /// The objective of the best choice that contains this host, seconds.
    pub objective_with: Option<f64>,
    /// The objective of the best choice without this host, seconds.
    pub objective_without: Option<f64>,
}

/// Why a host takes a shard only when there are too few others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReserveReason {
    /// The host has no room.
    NoRoom,
    /// The host announced that it takes no shards at present.
    Refuses,
    /// The job itself runs on it.
    ComputeHost,
}

/// A shard and the host that holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Number of the shard.
    pub shard: u8,
    /// Name of the host; `None` if no host has the shard.
    pub host: Option<String>,
}

/// Answer of `ckpt restore`.
#[derive(Clone, Debug, Serialize)]
pub struct RestoreReport {
    /// Name of the job.
    pub job: JobId,
    /// The version that was restored; `None` if there was none and `--if-exists` was given.
    pub version: Option<Version>,
    /// Whether this was a dry run, which restores nothing and shows what a restore would do.
    pub dry_run: bool,
    /// The path that was written; `-` is standard output.
    pub target: String,
    /// Sum of the file sizes.
    pub image_bytes: u64,
    /// Bytes that came from hosts; in a dry run, those that would be fetched.
    pub fetched_bytes: u64,
    /// Bytes of the image that files of this machine had already, and that were not fetched.
    pub at_hand_bytes: u64,
    /// Number of files in the image.
    pub files: u64,
    /// Seconds from start to end; in a dry run, the expected time to fetch the bytes.
    pub seconds: f64,
    /// Bytes that each host sent; in a dry run, those that it would be asked for.
    pub sources: Vec<SourceBytes>,
    /// Newer versions that could not be restored, and why. The exit status is 3 when there are any.
    pub skipped: Vec<SkippedVersion>,
    /// Why the restored image is not known to be one whole state; the exit status is 3 then. `None` if it is whole.
    pub marked: Option<String>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// What one host contributed to a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceBytes {
    /// Name of the host.
    pub host: String,
    /// Bytes of blocks from it that were good.
    pub bytes: u64,
}

/// A version that was passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedVersion {
    /// The version that was not taken.
    pub version: Version,
    /// Why it was passed over.
    pub reason: String,
    /// Whether it is passed over because it is marked, so that `--accept-marked` restores it.
    pub marked: bool,
}

impl SkippedVersion {
    /// The line on it while another version is restored.
    pub fn note(&self) -> String {
        format!("version {} passed over: {}", self.version, self.reason)
    }
}

impl fmt::Display for SkippedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}: {}", self.version, self.reason)
    }
}

/// Answer of `ckpt cat`.
#[derive(Clone, Debug, Serialize)]
pub struct CatReport {
    /// Name of the job.
    pub job: JobId,
    /// The version that was read.
    pub version: Version,
    /// Path of the file in the image; empty for a stream.
    pub path: String,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Bytes that were written.
    pub bytes: u64,
    /// Whether all bytes asked for were written; `false` if the reader of standard output closed it
    /// early.
    pub complete: bool,
    /// Bytes of blocks that came from hosts.
    pub fetched_bytes: u64,
    /// How many rows these blocks belong to.
    pub fetched_rows: u64,
    /// Seconds from start to end.
    pub seconds: f64,
    /// Newer versions that could not be read, and why. The exit status is 3 when there are any.
    pub skipped: Vec<SkippedVersion>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Answer of `ckpt list`.
#[derive(Clone, Debug, Serialize)]
pub struct ListReport {
    /// Checkpoints, by job and then by version.
    pub checkpoints: Vec<ListedCheckpoint>,
    /// Hosts that did not answer; checkpoints that only they hold are missing here.
    pub silent: Vec<HostNote>,
    /// Whether they may hold a job's versions of which no other host shows any.
    pub may_be_away: bool,
    /// How many checkpoints are missing here because there is no memory for them. All were saved with job keys.
    pub left_out: u64,
}

/// One checkpoint in a list.
#[derive(Clone, Debug, Serialize)]
pub struct ListedCheckpoint {
    /// Name of the job.
    pub job: JobId,
    /// Version of the checkpoint within the job.
    pub version: Version,
    /// Id of the checkpoint.
    #[serde(serialize_with = "hex_id")]
    pub checkpoint: CheckpointId,
    /// When the save began, Unix seconds.
    pub created: u64,
    /// How many shards carry data and parity.
    #[serde(serialize_with = "redundancy")]
    pub redundancy: Redundancy,
    /// Sum of the file sizes.
    pub image_bytes: u64,
    /// Bytes of the image after compression, before coding.
    pub stored_bytes: u64,
    /// The version that uses rows of this checkpoint, if `--keep` keeps it only for that; `None` for a version.
    pub kept_for: Option<Version>,
    /// Different shards that answering hosts hold.
    pub shards_found: usize,
    /// How many of these can still be lost; `None` if it can't be restored now.
    pub can_lose: Option<usize>,
    /// Why its image is not known to be one whole state; `None` if it is. A restore takes such a version only if
    /// there is no older whole one, or with `--accept-marked`.
    pub marked: Option<String>,
    /// Whether it was saved with a job key that is void now. Only `--version` restores such a checkpoint.
    pub void: bool,
    /// Whether it was saved with a key that has been replaced since. Versions are numbered separately for
    /// each key.
    pub retired: bool,
    /// Until when the job's checkpoints are kept, Unix seconds; `None` for ever.
    pub kept_until: Option<u64>,
    /// The note of `save --note`.
    pub note: Option<String>,
    /// The labels of `save --label`, by key.
    pub labels: BTreeMap<String, String>,
    /// Labels that the program itself added, by key. They are not printed.
    #[serde(skip)]
    pub own_labels: BTreeMap<String, String>,
}

/// Answer of `ckpt show`.
#[derive(Clone, Debug, Serialize)]
pub struct ShowReport {
    /// What `ckpt list` shows of it.
    #[serde(flatten)]
    pub checkpoint: ListedCheckpoint,
    /// `file`, `tree` or `stream`.
    pub kind: String,
    /// Whether segments are encrypted.
    pub encrypted: bool,
    /// Segments of which bytes are stored: the rows of the image, without those of piece hashes and of the index.
    pub segments: u64,
    /// Bytes in segments that are all zero.
    pub zero_bytes: u64,
    /// Bytes of one shard.
    pub shard_bytes: u64,
    /// Which host holds which shard.
    pub holders: Vec<Holder>,
    /// The files of the image.
    pub files: Vec<ShownFile>,
    /// Hosts that did not answer.
    pub silent: Vec<HostNote>,
}

/// One file of an image.
#[derive(Clone, Debug, Serialize)]
pub struct ShownFile {
    /// Path; bytes that are no UTF-8 are shown as `\xNN`, and a backslash as `\\`.
    pub path: String,
    /// `directory`, `file`, `symlink`, `hardlink` or `fifo`.
    pub kind: String,
    /// Length in bytes, holes included.
    pub size: u64,
    /// Bytes that are not holes.
    pub data_bytes: u64,
    /// Permission bits, such as 420 for `rw-r--r--`.
    pub mode: u32,
    /// Last change, Unix seconds.
    pub mtime: i64,
    /// Target of a link.
    pub target: Option<String>,
}

/// Answer of `ckpt forget`.
#[derive(Clone, Debug, Serialize)]
pub struct ForgetReport {
    /// Name of the job.
    pub job: JobId,
    /// Whether this was a dry run, which removes nothing.
    pub dry_run: bool,
    /// Versions that were removed; in a dry run, those that would be.
    pub removed: Vec<Version>,
    /// Remarks that do not change the exit status, such as a code that was chosen by forecast, a limit of the
    /// grid, or a host that was not informed of a removal.
    pub notes: Vec<String>,
    /// Hosts that the removal did not reach: they may still hold shards. In a dry run, hosts that did not answer.
    pub silent: Vec<HostNote>,
    /// Hosts of `silent` that hold shards, or that may hold shards that were not found: they show the removed
    /// versions until another host passes the removal on. The exit status is 3 when there are any.
    pub unheard: Vec<HostNote>,
}

/// Answer of `ckpt touch`.
#[derive(Clone, Debug, Serialize)]
pub struct TouchReport {
    /// Name of the job.
    pub job: JobId,
    /// Until when its checkpoints are kept, Unix seconds; `None` for ever.
    pub kept_until: Option<u64>,
    /// Hosts that the change did not reach: other hosts pass it on to them.
    pub silent: Vec<HostNote>,
    /// Hosts of `silent` that hold shards of the job, or that may hold shards that were not found: they know only the
    /// earlier lease. The exit status is 3 when there are any.
    pub unheard: Vec<HostNote>,
}

/// Answer of `ckpt gc`.
#[derive(Clone, Debug, Serialize)]
pub struct GcReport {
    /// Whether this was a dry run, which removes nothing.
    pub dry_run: bool,
    /// Checkpoints that are (or were) kept without use.
    pub garbage: Vec<GarbageItem>,
    /// Remarks that do not change the exit status: jobs of which nothing is removed, and why.
    pub notes: Vec<String>,
    /// Hosts that did not answer, or that the change did not reach.
    pub silent: Vec<HostNote>,
    /// Hosts of `silent` that hold shards of the garbage, or that may hold shards that were not found. The exit
    /// status is 3 when there are any.
    pub unheard: Vec<HostNote>,
}

/// A checkpoint that takes space for nothing.
#[derive(Clone, Debug, Serialize)]
pub struct GarbageItem {
    /// Name of the job.
    pub job: JobId,
    /// Version of the checkpoint within the job.
    pub version: Version,
    /// Id of the checkpoint.
    #[serde(serialize_with = "hex_id")]
    pub checkpoint: CheckpointId,
    /// Why it is garbage.
    pub why: &'static str,
    /// How many of its shards were found.
    pub shards: usize,
    /// Bytes that these shards take together.
    pub bytes: u64,
}

/// Answer of `ckpt hosts`.
#[derive(Clone, Debug, Serialize)]
pub struct HostsReport {
    /// All known hosts: those of the list of the grid, and those that registries know.
    pub hosts: Vec<HostReport>,
    /// Totals over these hosts.
    pub summary: HostsSummary,
}

/// Totals over all hosts.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HostsSummary {
    /// How many hosts are known.
    pub known: usize,
    /// How many hosts answer.
    pub up: usize,
    /// How many of the answering hosts take shards now and have room.
    pub take_shards: usize,
    /// Bytes that these hosts can still store.
    pub free_bytes: u64,
}

/// The state of one host.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HostReport {
    /// Name of the host.
    pub name: String,
    /// Its public key, 64 hexadecimal digits; the first 8 are enough to name it, and `ckpt grid revoke` takes them.
    pub id: String,
    /// The name that registries report of it, if its certificate has another one; `name` is then that in the
    /// certificate.
    pub misnamed: Option<String>,
    /// Its address; of a host that is listed by name: `NAME:PORT`, then in parentheses the address at which it
    /// answered.
    pub addr: String,
    /// When its certificate ends, Unix seconds, if it answered.
    pub certificate_until: Option<u64>,
    /// Its site, if the grid file names one.
    pub site: Option<String>,
    /// Whether the host answered.
    pub up: bool,
    /// Whether it can be used.
    pub status: HostState,
    /// When it was seen last, Unix seconds, if no registry hears it and somebody has seen it.
    pub silent_since: Option<u64>,
    /// Why it did not answer.
    pub error: Option<String>,
    /// Whether registries hear it and get no answer at the address that it announces: a firewall or a router stops
    /// what comes from outside.
    pub unreached: bool,
    /// Time of one request and its answer, milliseconds.
    pub rtt_ms: Option<f64>,
    /// Version of its software.
    pub software: Option<String>,
    /// Version of the protocol that it speaks with this program: `ckpt/2`.
    pub protocol: Option<String>,
    /// Bytes that it lends.
    pub capacity_bytes: Option<u64>,
    /// Bytes that are used.
    pub used_bytes: Option<u64>,
    /// Bytes that can still be stored.
    pub free_bytes: Option<u64>,
    /// How many whole shards it holds.
    pub shards: Option<u64>,
    /// How many committed checkpoints it knows.
    pub checkpoints: Option<u64>,
    /// Seconds since its daemon started.
    pub uptime_s: Option<u64>,
    /// State of the machine, as the host announces it: `idle`, `busy`, `cpu taken`, `no memory`, `gone`.
    pub machine: Option<String>,
    /// State of the disk, as the host announces it: `full rate`, `limited`, `contended`, `no space`,
    /// `offline`.
    pub disk: Option<String>,
    /// For how many more seconds it takes no new shards, as it announces; 0 if it takes them.
    pub refuses_for_s: Option<u32>,
    /// Why it takes no new shards, as it announces.
    pub why: Option<String>,
    /// Share of the last 28 days in which the host was reachable, as far as the host knows.
    pub availability: Option<f64>,
    /// Probability that the host stays reachable for ten hours, by its own forecast.
    pub stays_10h: Option<f64>,
}

/// Answer of `ckpt plan when`.
#[derive(Clone, Debug, Serialize)]
pub struct AdviseReport {
    /// Work that the job has to do, seconds.
    pub job_seconds: f64,
    /// Cost of one checkpoint: the time for which it holds the job up, seconds.
    pub cost_seconds: f64,
    /// Where this cost comes from.
    pub cost_source: String,
    /// Least time between two checkpoints, seconds: the time until one is stored.
    pub least_seconds: f64,
    /// Where the failure rate comes from.
    pub hazard: String,
    /// Probability that the machine stays reachable for as long as the job takes. The owner's load does not count,
    /// because it ends no job; `stays_10h` of `hosts` is the same probability for ten hours.
    pub survives_job: f64,
    /// The mean time between failures that gives the same probability, seconds; `None` if more than a
    /// year.
    pub mtbf_seconds: Option<f64>,
    /// Time until the next checkpoint by the accumulator rule, seconds; `None` if no checkpoint is worth
    /// its cost.
    pub first_seconds: Option<f64>,
    /// Young's interval for that mean time between failures, seconds; `None` if more than a year.
    pub young_seconds: Option<f64>,
    /// Daly's interval for that mean time between failures, seconds; `None` if more than a year.
    pub daly_seconds: Option<f64>,
    /// Expected time to the end of the job with checkpoints at Daly's interval, seconds; `None` if more
    /// than a year.
    pub makespan_seconds: Option<f64>,
    /// Expected time to the end of the job without checkpoints, seconds; `None` if more than a year.
    pub makespan_without_seconds: Option<f64>,
    /// When to take checkpoints if nothing fails, seconds from now; at most 1000 of them.
    pub checkpoints: Vec<f64>,
    /// What the user should know of the machine.
    pub notes: Vec<String>,
}
