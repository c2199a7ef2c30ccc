//! What a supervisor is to keep to.

use placement::state::Thresholds;

use crate::clock::Millis;

/// All that does not change while a job runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Whose affair the owner of the machine is.
    pub owner: OwnerRule,
    /// How long the job stays stopped before it leaves.
    pub patience: Patience,
    /// Time between the need to leave and the end, where nobody says another, milliseconds.
    pub grace_ms: u64,
    /// Time that the job has to end after `SIGTERM`, and after `SIGKILL`, milliseconds.
    pub kill_ms: u64,
    /// How the job is brought to write a checkpoint.
    pub asking: Asking,
    /// Whether the job has to stand still while its image is read.
    pub standing: Standing,
    /// What the final checkpoint may leave out.
    pub final_parity: Parity,
    /// What is done when the job hangs.
    pub on_hang: OnHang,
    /// When the batch system ends the job.
    pub time_limit: Option<Millis>,
    /// What checkpoints are expected to cost before any was taken.
    pub costs: Costs,
    /// Time from leaving one machine to running on another, milliseconds: notice, queue, restore.
    pub moving_ms: u64,
    /// The version that the job was restored from.
    pub restored: Option<u64>,
    /// The longest time without progress, processor time, input or output in earlier runs,
    /// milliseconds.
    pub longest_quiet_ms: u64,
    /// How long the whole job was predicted to run, milliseconds.
    pub predicted_ms: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            owner: OwnerRule::Watched {
                thresholds: Thresholds::LINUX,
                run_if_user_active: true,
            },
            patience: Patience::MINUTE,
            grace_ms: 60_000,
            kill_ms: 5_000,
            asking: Asking::Never,
            standing: Standing::Runs,
            final_parity: Parity::Full,
            on_hang: OnHang::Report,
            time_limit: None,
            costs: Costs::default(),
            moving_ms: 300_000,
            restored: None,
            longest_quiet_ms: 0,
            predicted_ms: None,
        }
    }
}

/// Whose affair the owner of the machine is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OwnerRule {
    /// The supervisor's: the job steps back as the samples say.
    Watched {
        /// Above the first the job has the lowest priority, above the second it is stopped.
        thresholds: Thresholds,
        /// Whether the job runs while somebody sits at the machine.
        run_if_user_active: bool,
    },
    /// That of the batch system which started the supervisor: only signals and notices count.
    BatchSystem,
}

/// How long a job stays stopped before it leaves.
#[derive(Clone, Debug, PartialEq)]
pub enum Patience {
    /// As long as it is expected to pay, from how long owners needed their machines before
    /// ([`crate::patience`]): lengths of S3, which begins when the load has been high for a minute.
    /// So that minute is waited in any case.
    Auto(crate::patience::Past),
    /// So many milliseconds.
    After(u64),
    /// It never leaves for load.
    Never,
}

impl Patience {
    /// One minute, as in the papers.
    pub const MINUTE: Self = Self::After(60_000);
}

/// How the job is brought to write a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// Not at all: it writes one when it likes. When it has to leave it gets `SIGTERM`.
    Never,
    /// By a signal or a command; it then goes on.
    Possible,
    /// It needs to do nothing: the save dumps its processes, as CRIU does.
    Dump,
}

/// Whether the job stands still while its image is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It runs: its files are replaced as a whole, or read from a snapshot. Or dumped, in which case the
    /// dump itself holds it.
    Runs,
    /// It is stopped until the image was read.
    Stopped,
}

/// The redundancy with which a final checkpoint may be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parity {
    /// All that the user asked for, or none is committed.
    Full,
    /// As much as fits, and at least so many parity shards.
    AtLeast(u8),
}

/// What is done when the job hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHang {
    /// It is reported, once for each time.
    Report,
    /// It is ended.
    Leave,
}

/// What checkpoints cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Time for which the job stands still for one, seconds.
    pub standstill_seconds: f64,
    /// Time from asking to a checkpoint on disk, seconds.
    pub ask_seconds: f64,
    /// Size of the image.
    pub image_bytes: f64,
    /// After so many seconds of work, 63% of the image have changed.
    pub change_seconds: f64,
    /// Bytes of the image that are stored in a second.
    pub bytes_per_second: f64,
    /// Standard deviation of the logarithm of the time that a save takes, over its forecast.
    pub spread: f64,
}

impl Default for Costs {
    /// Those of an image of 256 MiB at 25 MB/s.
    fn default() -> Self {
        Self {
            standstill_seconds: 1.0,
            ask_seconds: 2.0,
            image_bytes: 268_435_456.0,
            change_seconds: 1800.0,
            bytes_per_second: 25e6,
            spread: 0.3,
        }
    }
}
