//! What a supervisor asks its shell to do.

use crate::ahead::Limit;
use crate::clock::Millis;
use crate::event::SaveNumber;
use crate::settings::Parity;
use crate::status::{Ending, Why};

/// One thing for the shell to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Ask the job to write a checkpoint, by the signal or the command that the user named.
    AskForCheckpoint {
        /// When the machine will be gone, if this is the last checkpoint on it.
        last: Option<Millis>,
    },
    /// Save the checkpoint on disk, or dump the job.
    StartSave(SaveOrder),
    /// End this save, however far it got; [`crate::Event::SaveEnded`] follows.
    CancelSave(SaveNumber),
    /// Stop all processes of the job; [`crate::Event::Still`] follows.
    Stop,
    /// Let the stopped processes of the job run again.
    GoOn,
    /// Give the job the lowest priority (`nice` and the like).
    Lower,
    /// Give the job the priority that it was started with.
    Normal,
    /// Send this signal to the job.
    SignalJob(u8),
    /// End all processes of the job at once; [`crate::Event::JobEnded`] follows.
    Kill,
    /// Write this to the journal and to the terminal.
    Report(Report),
    /// End: this is the last action.
    End(Ending),
}

/// A save to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveOrder {
    /// The number under which the shell reports its end.
    pub number: SaveNumber,
    /// What the save is for.
    pub kind: SaveKind,
    /// The files are saved as the job left them, and are not known to be whole: the version has to be marked.
    pub is_torn: bool,
}

/// What a save is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveKind {
    /// A checkpoint while the job runs, with the redundancy that the user asked for.
    Regular,
    /// The last checkpoint on this machine.
    Final {
        /// When it has to be committed.
        deadline: Millis,
        /// Which redundancy it has to have.
        parity: Parity,
    },
}

/// What the owner needs, so that a job is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The processors.
    Processors,
    /// Somebody sits at the machine.
    User,
    /// The owner lends the machine to nobody now.
    Withheld,
}

/// Something that the user may want to know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Report {
    /// The job was stopped for the owner.
    Suspended {
        /// What the owner needs.
        need: Need,
        /// Load of the owner at that time, 0 to 1.
        load: f64,
    },
    /// The job runs again.
    Resumed {
        /// How long it was stopped, milliseconds.
        after_ms: u64,
    },
    /// The job has to leave the machine.
    Leaving {
        /// Why the job has to leave.
        why: Why,
        /// When the job has to be gone.
        deadline: Millis,
        /// How long the final checkpoint is expected to take, milliseconds.
        expected_ms: u64,
        /// The chance that it is in time, 0 to 1.
        chance: f64,
    },
    /// The job that leaves has not written its last checkpoint, and the rest of the grace is needed to save what
    /// it has: it is not waited for any longer.
    CutShort {
        /// When the job has to be gone.
        deadline: Millis,
    },
    /// The job that leaves has to be gone earlier than was known before.
    Hurry {
        /// When the job has to be gone.
        deadline: Millis,
    },
    /// The user interrupted a job that leaves. The job was not sent the signal.
    Interrupted {
        /// How many more interrupts end the job at once, without its last checkpoint.
        left: u8,
    },
    /// A save was committed.
    Committed {
        /// The version of the job that it became.
        version: u64,
        /// How long it took, milliseconds.
        took_ms: u64,
    },
    /// What is lost at most if the machine is taken with notice.
    Promise {
        /// The most that is lost, milliseconds.
        loss_ms: u64,
        /// Work from one checkpoint to the next, milliseconds.
        interval_ms: u64,
        /// What keeps the loss from being less.
        limit: Limit,
    },
    /// A save failed.
    SaveFailed {
        /// When the next save may be tried.
        retry_at: Millis,
    },
    /// A checkpoint has been due for a whole interval, and the job has no whole state on disk.
    NothingToSave {
        /// Work that no version holds, milliseconds.
        unsaved_ms: u64,
    },
    /// The job did not answer when it was asked for a checkpoint.
    NoAnswer {
        /// When the job may be asked again.
        retry_at: Millis,
    },
    /// The job shows no sign of life: no progress, no processor time, no input or output.
    Quiet {
        /// For how long, milliseconds of time in which the job was allowed to run.
        quiet_ms: u64,
    },
    /// The job has run for more than three times as long as was predicted.
    Overdue {
        /// Time that it was allowed to run so far, milliseconds.
        elapsed_ms: u64,
    },
    /// Processes of the job are still there although they were killed and given time to end.
    NotGone,
}
