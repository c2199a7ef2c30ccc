//! What a supervisor wants done.

use crate::clock::Millis;
use crate::event::SaveNumber;
use crate::settings::Parity;
use crate::status::{Ending, Why};

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Ask the job to write a checkpoint, by the signal or the command that the user named. A
    /// deadline is given when it is the last one.
    AskForCheckpoint {
        /// When the machine will be gone.
        last: Option<Millis>,
    },
    /// Save what is on disk, or dump the job.
    StartSave(SaveOrder),
    /// End the save under way, whatever it has done; [`crate::Event::SaveEnded`] follows.
    CancelSave(SaveNumber),
    /// Stop all processes of the job; [`crate::Event::Still`] follows.
    Stop,
    /// Let them go on.
    GoOn,
    /// Give the job the lowest priority.
    Lower,
    /// Give it the priority that it started with.
    Normal,
    /// Send this signal to the job.
    SignalJob(u8),
    /// End all processes of the job at once; [`crate::Event::JobEnded`] follows.
    Kill,
    /// Write this to the journal, and to the terminal.
    Report(Report),
    /// It is over.
    End(Ending),
}

/// How a save is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveOrder {
    /// Its number.
    pub number: SaveNumber,
    /// What for.
    pub kind: SaveKind,
}

/// What a save is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveKind {
    /// One of many, with the redundancy that the user asked for.
    Regular,
    /// The last one on this machine.
    Final {
        /// When it has to be committed.
        deadline: Millis,
        /// What it may leave out to be in time.
        parity: Parity,
    },
}

/// Something worth knowing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Report {
    /// The job was stopped: the owner needs the machine.
    Suspended {
        /// Load that was seen.
        load: f64,
    },
    /// It goes on after so many milliseconds.
    Resumed {
        /// Time stopped.
        after_ms: u64,
    },
    /// It has to leave.
    Leaving {
        /// Why.
        why: Why,
        /// When it has to be gone.
        deadline: Millis,
        /// How long the final checkpoint is expected to take, milliseconds.
        expected_ms: u64,
        /// The chance that it is in time, 0 to 1.
        chance: f64,
    },
    /// The time given is shorter than it was.
    Hurry {
        /// When it has to be gone.
        deadline: Millis,
    },
    /// A save was committed.
    Committed {
        /// Its version.
        version: u64,
        /// How long it took, milliseconds.
        took_ms: u64,
    },
    /// A save failed; the next one is tried when the time given has come.
    SaveFailed {
        /// When.
        retry_at: Millis,
    },
    /// The job did not answer when it was asked for a checkpoint.
    NoAnswer {
        /// When it is asked again.
        retry_at: Millis,
    },
    /// The job shows neither progress nor processor time nor input and output.
    Quiet {
        /// For so long, milliseconds; time in which it was stopped does not count.
        quiet_ms: u64,
    },
    /// It runs for more than three times as long as was predicted.
    Overdue {
        /// Time that it ran, milliseconds.
        elapsed_ms: u64,
    },
    /// The processes of the job have outlived their end by the time allowed.
    NotGone,
}
