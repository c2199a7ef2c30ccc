//! What a supervisor is told.

use placement::SurvivalCurve;

use crate::clock::Millis;
use crate::patience::Past;
use crate::status::{JobStatus, Why};

/// Number of a save of one supervisor, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaveNumber(pub u32);

/// Something happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The machine and the job were looked at.
    Sample(Sample),
    /// New forecasts for the machine; before the first one nothing is known to threaten it.
    Outlook(Outlook),
    /// More was heard of how owners needed their machines; it counts where patience follows from that.
    OwnersPast(Past),
    /// What a save will have to do, as far as that can be seen before it.
    SaveAhead(SaveAhead),
    /// The machine will be taken in so many milliseconds, for good.
    Notice {
        /// Why.
        why: Why,
        /// Milliseconds from now on.
        grace_ms: u64,
    },
    /// A signal of this number came to the supervisor.
    Signal(u8),
    /// No process of the job is left.
    JobEnded {
        /// How its first process ended.
        status: JobStatus,
        /// What it left on disk.
        files: FilesAtEnd,
    },
    /// The job said something by itself.
    Said(Said),
    /// The job changes files of its checkpoint in place.
    FilesMoving,
    /// A checkpoint on disk is whole, at rest, and not the one before.
    FilesAtRest,
    /// All processes of the job stand still.
    Still {
        /// Whether, now that nobody can write, its files are whole: closed by all, or replaced as
        /// a whole.
        files_at_rest: bool,
    },
    /// The save of this number has read all that it needs; the job may write again.
    ImageTaken(SaveNumber),
    /// The save of this number is over.
    SaveEnded {
        /// Which.
        number: SaveNumber,
        /// How.
        outcome: SaveOutcome,
    },
    /// Nothing but time.
    Tick,
}

/// What was seen of the machine and the job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The machine's owner. Not looked at when owners are the batch system's affair.
    pub owner: OwnerSample,
    /// What the job has used.
    pub job: JobUse,
}

/// What the machine's owner does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnerSample {
    /// Load on the cores that the job takes ([`crate::load::contended`]), since the last sample.
    pub load: f64,
    /// Somebody sits at the machine: its consoles were used lately.
    pub user_active: bool,
    /// The memory does not suffice for the owner and the job (S4).
    pub memory_short: bool,
    /// The machine's daemon says that it is leaving, in so many milliseconds; zero when it doesn't say
    /// when.
    pub leaving: Option<u64>,
}

/// What the job has used since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobUse {
    /// Processor time of all its processes, those that have ended included, milliseconds.
    pub cpu_ms: u64,
    /// Bytes that it has read and written.
    pub io_bytes: u64,
}

/// Forecasts for the machine, from now on.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlook {
    /// That the machine is there at all.
    pub presence: SurvivalCurve,
    /// That a guest is not driven off it: S3, S4 and S5.
    pub guest: SurvivalCurve,
    /// When its owner's hours, or something else that is known, take it; none is known otherwise.
    pub taken_at: Option<Millis>,
}

/// What a save will have to do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SaveAhead {
    /// Bytes of the files as they are now; zero when there are none yet.
    pub image_bytes: u64,
    /// Bytes of the image that hosts are expected to take in a second; none when nothing is known of them.
    /// It counts until a save was measured.
    pub bytes_per_second: Option<f64>,
}

/// What the job left on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesAtEnd {
    /// What the last event about its files said, still holds.
    Unchanged,
    /// It finished another checkpoint before it ended.
    Whole,
    /// It was cut off while it wrote.
    Torn,
}

/// What the job says by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Said {
    /// A checkpoint on disk is whole.
    Saved,
    /// So much of its work is done, from 0 to 1.
    Progress(f64),
    /// It cannot be asked for a checkpoint now, or can again.
    Busy(bool),
    /// It is at this step.
    Step(u64),
}

/// How a save ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveOutcome {
    /// Committed.
    Committed {
        /// As this version.
        version: u64,
        /// Bytes that had to be stored: those that changed.
        stored_bytes: u64,
        /// Bytes of the whole image.
        image_bytes: u64,
    },
    /// Not committed; the job still has its state, so another save may succeed.
    Failed,
    /// Not committed, because another incarnation of the job has committed a successor of the same
    /// version.
    OtherSuccessor,
}
