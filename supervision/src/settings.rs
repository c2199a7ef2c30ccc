//! What a supervisor has to observe.

use placement::state::Thresholds;

use crate::clock::Millis;

/// Everything that does not change while a job runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Who deals with the owner of the machine.
    pub owner: OwnerRule,
    /// How long the job stays stopped for the owner before it leaves.
    pub leave_after: LeaveAfter,
    /// Time from the need to leave to the end, unless the notice gives another, milliseconds.
    pub grace_ms: u64,
    /// Time that the job has to end after `SIGTERM`, and again after `SIGKILL`, milliseconds.
    pub kill_ms: u64,
    /// How the job is brought to write a checkpoint.
    pub asking: Asking,
    /// Whether the job has to stand still while its image is read.
    pub while_read: WhileRead,
    /// Which redundancy the final checkpoint has to have.
    pub final_parity: Parity,
    /// What is done when the job hangs.
    pub on_hang: OnHang,
    /// When the batch system ends the job.
    pub time_limit: Option<Millis>,
    /// What checkpoints are expected to cost before any was taken.
    pub costs: Costs,
    /// Share of the line that may be spent so that the last checkpoint is short, 0 to 1; 0 if checkpoints are taken only
    /// when they pay.
    pub spend: f64,
    /// Time from leaving one machine to running on another, milliseconds: notice, queue, restore.
    pub moving_ms: u64,
    /// The version that the job was restored from, if it was.
    pub restored: Option<u64>,
    /// Bytes of the image in that version, if they are known.
    pub restored_bytes: Option<u64>,
    /// The longest time without a sign of life in earlier runs of the job, milliseconds.
    pub longest_quiet_ms: u64,
    /// How long the whole job was predicted to run, milliseconds, if a prediction exists.
    pub predicted_ms: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            owner: OwnerRule::Watched {
                thresholds: Thresholds::LINUX,
                run_if_user_active: true,
            },
            leave_after: LeaveAfter::MINUTE,
            grace_ms: 60_000,
            kill_ms: 5_000,
            asking: Asking::Never,
            while_read: WhileRead::Runs,
            final_parity: Parity::Full,
            on_hang: OnHang::Report,
            time_limit: None,
            costs: Costs::default(),
            spend: 0.0,
            moving_ms: 300_000,
            restored: None,
            restored_bytes: None,
            longest_quiet_ms: 0,
            predicted_ms: None,
        }
    }
}

/// Who deals with the owner of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OwnerRule {
    /// The supervisor: the job steps back when the samples show that the owner needs the machine.
    Watched {
        /// Above the first load the job gets the lowest priority, above the second it is stopped.
        thresholds: Thresholds,
        /// Whether the job may run while somebody sits at the machine.
        run_if_user_active: bool,
    },
    /// The batch system that started the supervisor: only its signals and notices count.
    BatchSystem,
}

/// How long a job stays stopped for the owner before it leaves.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaveAfter {
    /// For as long as waiting is expected to pay, by how long owners needed their machines before
    /// ([`crate::patience`]). These needs are lengths of state S3, which begins after a minute of high
    /// load. So the job waits for that minute in any case.
    Auto(crate::patience::Past),
    /// This many milliseconds.
    Milliseconds(u64),
    /// For ever: load never makes the job leave.
    Never,
}

impl LeaveAfter {
    /// One minute, as in the papers on these availability states.
    pub const MINUTE: Self = Self::Milliseconds(60_000);
}

/// How the job is brought to write a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// Not at all: it writes checkpoints when it likes. When it has to leave it gets `SIGTERM`.
    Never,
    /// By a signal or a command, after which it goes on.
    Possible,
    /// By nothing: the save dumps its processes, as CRIU does.
    Dump,
}

/// Whether the job has to stand still while its image is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileRead {
    /// No: its files are replaced as a whole, or read from a snapshot, or the job is dumped, and the dump
    /// holds it itself.
    Runs,
    /// Yes: it is stopped until the image has been read.
    Stopped,
}

/// The redundancy with which a final checkpoint may be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parity {
    /// All parity shards that the user asked for; otherwise it is not committed.
    Full,
    /// As many parity shards as are stored in time, and at least this many.
    AtLeast(u8),
}

/// What is done when the job hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHang {
    /// It is reported, once for each quiet time.
    Report,
    /// The job is ended and the supervisor exits with [`crate::Ending::HUNG`].
    Leave,
}

/// What checkpoints of a job cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Time for which the job stands still for one checkpoint, seconds.
    pub standstill_seconds: f64,
    /// Time from asking the job to a checkpoint on disk, seconds.
    pub ask_seconds: f64,
    /// Time that a save takes even if it stores nothing, seconds.
    pub fixed_seconds: f64,
    /// Size of the image, bytes.
    pub image_bytes: f64,
    /// Work, in seconds, after which 63% (1 - 1/e) of the image have changed.
    pub change_seconds: f64,
    /// Bytes of the image that are stored per second.
    pub bytes_per_second: f64,
    /// Standard deviation of the logarithm of (time that a save took / its forecast).
    pub spread: f64,
}

impl Default for Costs {
    /// Costs of an image of 256 MiB that is stored at 25 MB/s.
    fn default() -> Self {
        Self {
            standstill_seconds: 1.0,
            ask_seconds: 2.0,
            fixed_seconds: 0.02,
            image_bytes: 268_435_456.0,
            change_seconds: 1800.0,
            bytes_per_second: 25e6,
            spread: 0.3,
        }
    }
}
