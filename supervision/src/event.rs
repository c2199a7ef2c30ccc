//! What happens to a supervisor.

use placement::SurvivalCurve;

use crate::clock::Millis;
use crate::patience::Past;
use crate::status::{JobStatus, Why};

/// The number of a save, counted from 1 within one supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaveNumber(pub u32);

/// One thing that happened, as the shell reports it.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The state of the machine and the job, read once a second.
    Sample(Sample),
    /// New forecasts for the machine. Before the first one the machine counts as safe.
    Outlook(Outlook),
    /// New knowledge of how owners needed their machines. Only [`crate::LeaveAfter::Auto`] uses it.
    OwnersPast(Past),
    /// What the next save will have to do, as far as this can be known before it.
    SaveAhead(SaveAhead),
    /// The machine will be taken for good.
    Notice {
        /// For which reason.
        why: Why,
        /// In how many milliseconds.
        grace_ms: u64,
    },
    /// The supervisor got the signal of this number.
    Signal(u8),
    /// No process of the job is left.
    JobEnded {
        /// How the job's first process ended.
        status: JobStatus,
        /// What the job left on disk.
        files: FilesAtEnd,
    },
    /// The job reported something by itself.
    Job(JobNews),
    /// The job has begun to change files of its checkpoint in place.
    FilesMoving,
    /// The job has finished a checkpoint on disk that differs from the one before.
    FilesAtRest,
    /// All processes of the job stand still, after an [`crate::Action::Stop`].
    Still {
        /// Whether the files of the checkpoint are whole now that no process can write: all processes
        /// have closed them, or the job replaces them as a whole.
        files_at_rest: bool,
    },
    /// The save of this number has read all that it needs; the job may write again.
    ImageTaken(SaveNumber),
    /// A save has ended.
    SaveEnded {
        /// Its number.
        number: SaveNumber,
        /// How it ended.
        outcome: SaveOutcome,
    },
    /// The machine has slept for this long since the last event, and the job with it.
    Slept {
        /// For how long, milliseconds.
        ms: u64,
    },
    /// Time has passed, and nothing else happened.
    Tick,
}

/// A reading of the machine and the job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// What the machine's owner does. Ignored under [`crate::OwnerRule::BatchSystem`].
    pub owner: OwnerSample,
    /// What the job has used so far.
    pub job: JobUse,
}

/// What the machine's owner does, by one reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnerSample {
    /// Load of the owner on the cores that the job takes ([`crate::load::contended`]) since the last
    /// reading, 0 to 1.
    pub load: f64,
    /// Whether somebody sits at the machine: its consoles were used lately.
    pub user_active: bool,
    /// The owner's word: the machine is lent to no guest now (paused, not at this hour, on battery, or for a
    /// program that has the machine for itself). No option of the job overrides it.
    pub withheld: bool,
    /// Whether the memory does not suffice for both the owner and the job (state S4).
    pub memory_short: bool,
    /// The machine's daemon announces that the machine leaves in this many milliseconds; 0 if it
    /// announces no time.
    pub leaving: Option<u64>,
}

/// What the job has used since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobUse {
    /// Processor time of all its processes, ended ones included, milliseconds.
    pub cpu_ms: u64,
    /// Bytes that its processes have read and written.
    pub io_bytes: u64,
}

/// Survival forecasts for the machine, from the moment of the event on.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlook {
    /// Probability that the machine is still there (not switched off, crashed or revoked).
    pub presence: SurvivalCurve,
    /// Probability that a guest has not been driven off the machine by state S3, S4 or S5.
    pub guest: SurvivalCurve,
    /// When the machine will be taken, if that is known ahead, such as from its owner's hours.
    pub taken_at: Option<Millis>,
}

/// What a save will have to do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SaveAhead {
    /// Bytes of the job's files as they are now; 0 if there are none yet.
    pub image_bytes: u64,
    /// Bytes of the image that the hosts are expected to take per second; `None` if nothing is known of
    /// the hosts. Used until a save was measured.
    pub bytes_per_second: Option<f64>,
}

/// What the job left on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesAtEnd {
    /// Nothing new: the last event about its files still holds.
    Unchanged,
    /// A finished checkpoint, which no event has reported yet.
    Whole,
    /// Files that the job was still writing when it ended.
    Torn,
    /// No file at all: the job never wrote its state.
    Missing,
}

/// What the job reports by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum JobNews {
    /// A checkpoint on disk is whole.
    Saved,
    /// This share of its work is done, 0 to 1.
    Progress(f64),
    /// It cannot be asked for a checkpoint now.
    Busy,
    /// It can be asked for a checkpoint again.
    Ready,
    /// It has reached this step of its work.
    Step(u64),
}

/// How a save ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveOutcome {
    /// The save committed a version.
    Committed {
        /// The version that it became.
        version: u64,
        /// Bytes that were stored: those that differ from the base, or all if it was stored whole.
        stored_bytes: u64,
        /// How many of these the version before had not stored. `None` if that is not known, as when the
        /// version was stored whole.
        new_bytes: Option<u64>,
        /// Bytes of the whole image.
        image_bytes: u64,
    },
    /// Not committed; the job still has its state, so another save may succeed.
    Failed,
    /// Not committed, because another incarnation of the job has committed a successor of the same
    /// version.
    OtherSuccessor,
}
