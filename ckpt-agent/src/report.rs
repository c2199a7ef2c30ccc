//! What each command answers, and how it fails. Printed for people or as JSON by the command line;
//! the fields are documented in `docs/json.md` and only ever added to.

use std::collections::BTreeMap;
use std::fmt;

pub use crate::events::{Observer, Progress, ProgressEvent, Silent};
use codec::{CheckpointId, JobId, Redundancy, Version};
use serde::{Serialize, Serializer};

/// How a command ended; the numbers are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// Done as promised.
    Done = 0,
    /// Failed for a reason that has no number of its own; nothing changed.
    Failed = 1,
    /// Wrong usage or configuration.
    Usage = 2,
    /// Done, but with less than the promised redundancy or with warnings, as was asked for, from an older
    /// version than the newest that is known, or not heard by all hosts that hold shards; or something
    /// needs attention (`health`, `doctor`).
    Degraded = 3,
    /// No such job, version or checkpoint.
    NotFound = 4,
    /// Not enough hosts can be reached, now or until `--deadline`; nothing was stored. Try again later.
    TooFewHosts = 5,
    /// Identity, key or permission.
    Denied = 6,
    /// Damaged beyond repair: bytes were found, but too few of them are right.
    Damaged = 7,
    /// Reading or writing on this machine failed (file, disk full, command).
    LocalIo = 8,
    /// There were hosts enough, and not time enough until `--deadline`; the old version stands.
    Deadline = 9,
    /// Another checkpoint follows the one that `save --after` names, or may follow it; nothing changed.
    AnotherSuccessor = 10,
    /// Ended by SIGINT; nothing was committed.
    Interrupted = 130,
    /// Ended by SIGTERM; nothing was committed.
    Terminated = 143,
}

impl ExitStatus {
    /// All of them, for the table in the help text.
    pub const ALL: [(Self, &'static str); 13] = [
        (Self::Done, "done as promised"),
        (Self::Failed, "failed; nothing changed"),
        (Self::Usage, "wrong usage or configuration"),
        (
            Self::Degraded,
            "done, but not as promised: redundancy, version, who heard of it; or needs attention",
        ),
        (Self::NotFound, "no such job, version or checkpoint"),
        (
            Self::TooFewHosts,
            "not enough hosts, now or until --deadline; nothing stored; try later",
        ),
        (Self::Denied, "identity, key or permission"),
        (Self::Damaged, "damaged beyond repair"),
        (Self::LocalIo, "reading or writing on this machine failed"),
        (
            Self::Deadline,
            "hosts enough, but not finished within --deadline; the old version stands",
        ),
        (
            Self::AnotherSuccessor,
            "another version follows the one of --after, or may; nothing changed",
        ),
        (Self::Interrupted, "interrupted (SIGINT); nothing committed"),
        (Self::Terminated, "terminated (SIGTERM); nothing committed"),
    ];
}

/// Why a command failed: what, why for each host, and what to do next.
#[derive(Debug, Serialize)]
pub struct Failure {
    /// The exit status that goes with it.
    pub status: ExitStatus,
    /// What failed and why, in one sentence that names the thing.
    pub message: String,
    /// What each host had to do with it.
    pub hosts: Vec<HostNote>,
    /// What still holds (`version 17 is still the newest`).
    pub state: Option<String>,
    /// What to try next.
    pub next: Option<String>,
    /// Of a save with `--after`: with exit status 10 the version that follows, or may follow, the one that
    /// was named; else the save's own version, when it is half done and may be committed yet.
    pub successor: Option<Box<SuccessorNote>>,
    /// Whether a part of the image is on standard output, where nothing else must go then.
    #[serde(skip)]
    pub(crate) image_on_stdout: bool,
    /// Exit status in place of that of `status`, where a command has others (`ckpt run`).
    #[serde(skip)]
    pub(crate) exit_code: Option<u8>,
}

/// What follows the version that `save --after` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SuccessorNote {
    /// Its version.
    pub version: Version,
    /// Its id.
    #[serde(serialize_with = "hex_id")]
    pub checkpoint: CheckpointId,
    /// Whether it is committed; otherwise its save is half done.
    pub committed: bool,
}

/// How a save with `--after` was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FenceReport {
    /// The version that it follows.
    pub after: Version,
    /// The id of that one.
    #[serde(serialize_with = "hex_id")]
    pub after_checkpoint: CheckpointId,
    /// Whether its witnesses were asked; not with `--unfenced`.
    pub fenced: bool,
    /// How many witnesses it has.
    pub witnesses: usize,
    /// How many of them had to agree.
    pub needed: usize,
    /// How many are known to have agreed.
    pub agreed: usize,
}

/// One host's part in a failure or a replacement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostNote {
    /// The host's name.
    pub host: String,
    /// What happened there.
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
            image_on_stdout: false,
            exit_code: None,
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
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Checkpoint ids are printed whole in reports.
fn hex_id<S: Serializer>(id: &CheckpointId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&id.hex())
}

fn redundancy<S: Serializer>(value: &Redundancy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Answer of `ckpt save`.
#[derive(Clone, Debug, Serialize)]
pub struct SaveReport {
    /// The job.
    pub job: JobId,
    /// The version that was committed.
    pub version: Version,
    /// The checkpoint's id.
    #[serde(serialize_with = "hex_id")]
    pub checkpoint: CheckpointId,
    /// Its redundancy, such as `3+2`.
    #[serde(serialize_with = "redundancy")]
    pub redundancy: Redundancy,
    /// Shards that can be lost without losing the image.
    pub can_lose: usize,
    /// Sum of the file sizes.
    pub image_bytes: u64,
    /// Bytes that were read: holes are not.
    pub read_bytes: u64,
    /// Of these, in segments that are all zero.
    pub zero_bytes: u64,
    /// The earlier version of which only what changed since was stored.
    pub base: Option<Version>,
    /// Bytes after compression.
    pub stored_bytes: u64,
    /// Bytes on all hosts together.
    pub shard_bytes: u64,
    /// Number of files.
    pub files: u64,
    /// Seconds from start to commit.
    pub seconds: f64,
    /// Of these, the ones until the image had been read: what is saved may change from then on.
    pub held_seconds: f64,
    /// Which host holds which shard.
    pub holders: Vec<Holder>,
    /// Hosts that were replaced on the way, and why.
    pub replaced: Vec<HostNote>,
    /// Versions that `--keep` removed.
    pub removed: Vec<Version>,
    /// Until when the job's checkpoints are kept, Unix seconds; for ever when not given.
    pub kept_until: Option<u64>,
    /// With `--after`: what it follows, and who agreed.
    pub fence: Option<FenceReport>,
    /// What is as well as it can be here, and could be better elsewhere.
    pub notes: Vec<String>,
    /// The table behind the choice of hosts, when `--explain` asked for it.
    pub placement: Option<PlacementReport>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Why hosts were chosen: answer of `ckpt hosts --for-job`, part of that of `ckpt save --explain`.
#[derive(Clone, Debug, Serialize)]
pub struct PlacementReport {
    /// The job.
    pub job: JobId,
    /// Shards that carry data and shards that can be lost, such as `3+2`.
    pub redundancy: String,
    /// Probability that enough of the chosen hosts can be read when the job needs it.
    pub reliability: f64,
    /// Expected time to store, seconds.
    pub store_seconds: f64,
    /// Expected time to restore, seconds.
    pub restore_seconds: f64,
    /// Probability that the job's machine fails before the next checkpoint.
    pub compute_fails: f64,
    /// The objective that the choice minimises, seconds: cost less benefit.
    pub objective_seconds: f64,
    /// The hosts: those chosen, then the others in the order in which they would be tried.
    pub hosts: Vec<PlacedHost>,
    /// What is as well as it can be here, and could be better elsewhere.
    pub notes: Vec<String>,
    /// Hosts that did not answer.
    pub silent: Vec<HostNote>,
}

/// One host in the table behind a choice.
#[derive(Clone, Debug, Serialize)]
pub struct PlacedHost {
    /// Its name.
    pub name: String,
    /// Its site, when the grid file tells.
    pub site: Option<String>,
    /// Whether it was chosen.
    pub chosen: bool,
    /// Why it is only a reserve: `no room`, `takes none now`, `the job runs here`.
    pub reserve: Option<String>,
    /// State of the machine as it says: `idle`, `busy`, `cpu taken`, `no memory`, `gone`.
    pub machine: Option<String>,
    /// State of the disk as it says: `full rate`, `limited`, `contended`, `no space`, `offline`.
    pub disk: Option<String>,
    /// Expected rate.
    pub bytes_per_second: f64,
    /// Whether the rate was measured from here, or is assumed.
    pub measured: bool,
    /// Probability that it stays there until the next checkpoint, as it predicts.
    pub stays: Option<f64>,
    /// Probability that it can be read when the job needs it: prediction and experience.
    pub readable: f64,
    /// Largest correlation of its availability with that of a chosen host.
    pub correlation: f64,
    /// The objective of the best choice with it, seconds.
    pub objective_with: Option<f64>,
    /// The objective of the best choice without it, seconds.
    pub objective_without: Option<f64>,
}

/// A shard and the host that holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Number of the shard.
    pub shard: u8,
    /// Name of the host, when any has it.
    pub host: Option<String>,
}

/// Answer of `ckpt restore`.
#[derive(Clone, Debug, Serialize)]
pub struct RestoreReport {
    /// The job.
    pub job: JobId,
    /// The version that was restored; none when there was nothing and `--if-exists` was given.
    pub version: Option<Version>,
    /// Whether nothing was restored, but only looked at what would be.
    pub dry_run: bool,
    /// Where it was written; `-` is standard output.
    pub target: String,
    /// Sum of the file sizes.
    pub image_bytes: u64,
    /// Bytes that came from hosts; in a dry run, that would be fetched.
    pub fetched_bytes: u64,
    /// Number of files.
    pub files: u64,
    /// Seconds from start to end; in a dry run, those that fetching is expected to take.
    pub seconds: f64,
    /// Bytes that each host sent, or would be asked for.
    pub sources: Vec<SourceBytes>,
    /// Newer versions that could not be restored, and why.
    pub skipped: Vec<SkippedVersion>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// What one host contributed to a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceBytes {
    /// Its name.
    pub host: String,
    /// Bytes of good blocks.
    pub bytes: u64,
}

/// A version that was passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedVersion {
    /// The version.
    pub version: Version,
    /// Why.
    pub reason: String,
}

impl fmt::Display for SkippedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}: {}", self.version, self.reason)
    }
}

/// Answer of `ckpt cat`.
#[derive(Clone, Debug, Serialize)]
pub struct CatReport {
    /// The job.
    pub job: JobId,
    /// The version that was read.
    pub version: Version,
    /// Path of the file in the image; empty for a stream.
    pub path: String,
    /// Where in the file the first byte was.
    pub offset: u64,
    /// Bytes that were written.
    pub bytes: u64,
    /// Whether all that was asked for was taken: not when the reader of standard output closed it.
    pub complete: bool,
    /// Bytes of blocks that came from hosts.
    pub fetched_bytes: u64,
    /// Rows that these were blocks of.
    pub fetched_rows: u64,
    /// Seconds from start to end.
    pub seconds: f64,
    /// Newer versions that could not be read, and why.
    pub skipped: Vec<SkippedVersion>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Answer of `ckpt list`.
#[derive(Clone, Debug, Serialize)]
pub struct ListReport {
    /// Checkpoints, by job and then by version.
    pub checkpoints: Vec<ListedCheckpoint>,
    /// Hosts that did not answer: what only they hold is missing here.
    pub silent: Vec<HostNote>,
}

/// One checkpoint in a list.
#[derive(Clone, Debug, Serialize)]
pub struct ListedCheckpoint {
    /// The job.
    pub job: JobId,
    /// The version.
    pub version: Version,
    /// The checkpoint's id.
    #[serde(serialize_with = "hex_id")]
    pub checkpoint: CheckpointId,
    /// When the save began, Unix seconds.
    pub created: u64,
    /// Its redundancy.
    #[serde(serialize_with = "redundancy")]
    pub redundancy: Redundancy,
    /// Sum of the file sizes.
    pub image_bytes: u64,
    /// Bytes after compression.
    pub stored_bytes: u64,
    /// Different shards that answering hosts hold.
    pub shards_found: usize,
    /// How many of these can still be lost; none when it can't be restored now.
    pub can_lose: Option<usize>,
    /// Whether it was saved with a job key that is void now: it is restored by `--version` only.
    pub void: bool,
    /// Whether it was saved with a key that was replaced since; the versions of each key have numbers of
    /// their own.
    pub retired: bool,
    /// Until when the job's checkpoints are kept, Unix seconds; for ever when not given.
    pub kept_until: Option<u64>,
    /// What `save --note` said.
    pub note: Option<String>,
    /// What `save --label` said, by key.
    pub labels: BTreeMap<String, String>,
    /// What the program itself wrote on it, by key: not printed.
    #[serde(skip)]
    #[cfg_attr(
        not(feature = "cli"),
        expect(dead_code, reason = "only jobs under `ckpt run` have such labels")
    )]
    pub(crate) own_labels: BTreeMap<String, String>,
}

/// Answer of `ckpt show`.
#[derive(Clone, Debug, Serialize)]
pub struct ShowReport {
    /// What `list` says of it.
    #[serde(flatten)]
    pub checkpoint: ListedCheckpoint,
    /// `file`, `tree` or `stream`.
    pub kind: String,
    /// Whether segments are encrypted.
    pub encrypted: bool,
    /// Segments that are stored (rows without the index).
    pub segments: u64,
    /// Bytes in segments that are all zero.
    pub zero_bytes: u64,
    /// Bytes of one shard.
    pub shard_bytes: u64,
    /// Which host holds which shard.
    pub holders: Vec<Holder>,
    /// The files.
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
    /// Length, holes included.
    pub size: u64,
    /// Bytes that are not holes.
    pub data_bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Last change, Unix seconds.
    pub mtime: i64,
    /// Target of a link.
    pub target: Option<String>,
}

/// Answer of `ckpt verify`.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// What was found, by job and then by version.
    pub checkpoints: Vec<VerifiedCheckpoint>,
    /// Whether every block was read.
    pub read_data: bool,
    /// Blocks of each shard that were read, if they were chosen at random.
    pub sampled_blocks: Option<u32>,
    /// Bytes of blocks that were read and checked.
    pub read_bytes: u64,
    /// Versions that should be there and that no host shows.
    pub gaps: Vec<String>,
    /// Hosts that did not answer.
    pub silent: Vec<HostNote>,
}

/// What verification found of a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct VerifiedCheckpoint {
    /// The job.
    pub job: JobId,
    /// The version.
    pub version: Version,
    /// Shards that are whole as far as was checked.
    pub good: Vec<Holder>,
    /// Shards that are missing or damaged, and how.
    pub bad: Vec<BadShard>,
    /// How many more can be lost; none when it can't be restored now.
    pub can_lose: Option<usize>,
    /// Shards that could not be looked at, as hosts are away that may have them.
    pub away: usize,
    /// Whether it can't be restored even if these come back. The exit status is 7 when there is any.
    pub lost: bool,
}

/// A shard that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadShard {
    /// Number of the shard.
    pub shard: u8,
    /// The host that should have it, when one said so.
    pub host: Option<String>,
    /// What is wrong.
    pub what: String,
}

/// Answer of `ckpt forget`.
#[derive(Clone, Debug, Serialize)]
pub struct ForgetReport {
    /// The job.
    pub job: JobId,
    /// Versions that were removed.
    pub removed: Vec<Version>,
    /// What is as well as it can be here, and could be better elsewhere.
    pub notes: Vec<String>,
    /// Hosts that could not be told: they may still hold shards.
    pub silent: Vec<HostNote>,
    /// Of these, those that hold shards or can be the ones that hold what was not found: they show what
    /// was removed until another host tells them. The exit status is 3 when there are any.
    pub unheard: Vec<HostNote>,
}

/// Answer of `ckpt touch`.
#[derive(Clone, Debug, Serialize)]
pub struct TouchReport {
    /// The job.
    pub job: JobId,
    /// Until when its checkpoints are kept, Unix seconds; for ever when not given.
    pub kept_until: Option<u64>,
    /// Hosts that could not be told: others will tell them.
    pub silent: Vec<HostNote>,
    /// Of these, those that hold shards of the job or can be the ones that hold what was not found: they
    /// know only of the lease before. The exit status is 3 when there are any.
    pub unheard: Vec<HostNote>,
}

/// Answer of `ckpt gc`.
#[derive(Clone, Debug, Serialize)]
pub struct GcReport {
    /// Whether it was only looked for.
    pub dry_run: bool,
    /// What is (or was) kept for nothing.
    pub garbage: Vec<GarbageItem>,
    /// Hosts that did not answer, or could not be told.
    pub silent: Vec<HostNote>,
    /// Of these, those that hold shards of the garbage or can be the ones that hold what was not found.
    /// The exit status is 3 when there are any.
    pub unheard: Vec<HostNote>,
}

/// A checkpoint that is kept for nothing.
#[derive(Clone, Debug, Serialize)]
pub struct GarbageItem {
    /// Its job.
    pub job: JobId,
    /// Its version.
    pub version: Version,
    /// Its id.
    pub checkpoint: CheckpointId,
    /// Why.
    pub why: &'static str,
    /// Shards that were found.
    pub shards: usize,
    /// Bytes that they take together.
    pub bytes: u64,
}

/// Answer of `ckpt hosts`.
#[derive(Clone, Debug, Serialize)]
pub struct HostsReport {
    /// All hosts that there are: those of the list of the grid, and those that registries know.
    pub hosts: Vec<HostReport>,
    /// These together.
    pub summary: HostsSummary,
}

/// All hosts together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HostsSummary {
    /// How many there are.
    pub known: usize,
    /// How many answer.
    pub up: usize,
    /// How many of these take shards now and have room.
    pub take_shards: usize,
    /// Bytes that those can still store.
    pub free_bytes: u64,
}

/// How one host is.
#[derive(Clone, Debug, Serialize)]
pub struct HostReport {
    /// Its name.
    pub name: String,
    /// Its public key, 64 hexadecimal digits; the first 8 tell it from others, and `ckpt grid revoke`
    /// takes them.
    pub id: String,
    /// Its address.
    pub addr: String,
    /// When its certificate ends, Unix seconds, if it answered.
    pub certificate_until: Option<u64>,
    /// Its site, when the grid file tells.
    pub site: Option<String>,
    /// Whether it answered.
    pub up: bool,
    /// Why it did not.
    pub error: Option<String>,
    /// Time of one question and answer, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Version of its software.
    pub software: Option<String>,
    /// Version of the protocol that it speaks with this program: `ckpt/2`, or `ckpt/1` when its program
    /// is older.
    pub protocol: Option<String>,
    /// Bytes that it lends.
    pub capacity_bytes: Option<u64>,
    /// Bytes that are taken.
    pub used_bytes: Option<u64>,
    /// Bytes that can still be stored.
    pub free_bytes: Option<u64>,
    /// Whole shards.
    pub shards: Option<u64>,
    /// Committed checkpoints.
    pub checkpoints: Option<u64>,
    /// Seconds since it started.
    pub uptime_s: Option<u64>,
    /// State of the machine as it says: `idle`, `busy`, `cpu taken`, `no memory`, `gone`.
    pub machine: Option<String>,
    /// State of the disk as it says: `full rate`, `limited`, `contended`, `no space`, `offline`.
    pub disk: Option<String>,
    /// Seconds for which it takes no new shards, as it says; 0 when it does.
    pub refuses_for_s: Option<u32>,
    /// Why it takes none, as it says.
    pub why: Option<String>,
    /// Share of the last 28 days in which it was there, as far as it knows.
    pub availability: Option<f64>,
    /// Probability that it stays there for ten hours, as it predicts.
    pub stays_10h: Option<f64>,
}

/// Answer of `ckpt doctor`.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    /// What was found, in the order in which it was looked for.
    pub findings: Vec<Finding>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: Check,
    /// `good` or `bad`.
    pub verdict: Verdict,
    /// What was found.
    pub what: String,
    /// What helps, if it is bad.
    pub remedy: Option<String>,
}

/// What `ckpt doctor` looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// Where what is learnt of hosts is kept.
    StateDirectory,
    /// Free space.
    Disk,
    /// What the shell allows the program.
    Limits,
    /// The grid file.
    GridFile,
    /// Key, certificate, role.
    Identity,
    /// When certificates end.
    Certificate,
    /// The way to each host.
    Network,
    /// Clocks.
    Clock,
    /// Versions of the hosts' programs.
    Programs,
}

impl Check {
    /// Its name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StateDirectory => "state directory",
            Self::Disk => "disk",
            Self::Limits => "limits",
            Self::GridFile => "grid file",
            Self::Identity => "identity",
            Self::Certificate => "certificate",
            Self::Network => "network",
            Self::Clock => "clock",
            Self::Programs => "programs",
        }
    }
}

/// Whether something is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is.
    Good,
    /// It is not.
    Bad,
}

/// Answer of `ckpt advise`.
#[derive(Clone, Debug, Serialize)]
pub struct AdviseReport {
    /// Work to be done.
    pub job_seconds: f64,
    /// What one checkpoint costs: for how long it holds the job up.
    pub cost_seconds: f64,
    /// Where that is from.
    pub cost_source: String,
    /// Least time from one checkpoint to the next: the time that one takes until it is stored.
    pub least_seconds: f64,
    /// Where the failure rate comes from.
    pub hazard: String,
    /// Probability that the machine does not go away for as long as the job takes. Its owner's load ends
    /// no job, so that it does not count; `stays_10h` of `hosts` says the same of ten hours.
    pub survives_job: f64,
    /// Mean time between failures that gives the same; none when it is more than a year.
    pub mtbf_seconds: Option<f64>,
    /// Time until the next checkpoint by the accumulator rule; none when it is not worth its cost.
    pub first_seconds: Option<f64>,
    /// Young's interval for the mean time between failures; none when it is more than a year.
    pub young_seconds: Option<f64>,
    /// Daly's interval for the mean time between failures; none when it is more than a year.
    pub daly_seconds: Option<f64>,
    /// Expected time to the end of the job with checkpoints at Daly's interval; none when it is more
    /// than a year.
    pub makespan_seconds: Option<f64>,
    /// Expected time to the end of the job without checkpoints; none when it is more than a year.
    pub makespan_without_seconds: Option<f64>,
    /// When to take checkpoints, seconds from now, if nothing fails; at most 1000.
    pub checkpoints: Vec<f64>,
    /// What should be known of the machine.
    pub notes: Vec<String>,
}
