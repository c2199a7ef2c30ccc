//! When a running job is checkpointed, when it steps back before the owner of its machine, and how it
//! leaves: the decisions of `ckpt run`.
//!
//! Pure: no clock, no process, no file. A [`Supervisor`] gets [`Event`]s, each with the time at which it
//! happened, and answers with [`Action`]s. The shell that drives it does these three things and nothing
//! else:
//!
//! 1. It restores the job's files, starts the job, and makes a [`Supervisor`] with what it knows.
//! 2. It calls [`Supervisor::handle`] with each event, does what [`Supervisor::poll_action`] gives until
//!    that is `None`, and sends [`Event::Tick`] at [`Supervisor::next_deadline`] if nothing came before.
//! 3. At [`Action::End`] it ends with the status given. There is no action after it.
//!
//! A supervisor has two state machines. The machine: `Normal <-> Lowest <-> Suspended -> Leaving ->
//! Stopping -> Ended`. The checkpoint: `Idle -> Asked -> Halting -> Saving -> Idle`. A regular
//! checkpoint skips `Asked` if the job writes its checkpoints by itself or is dumped ([`Asking`]). Any
//! checkpoint skips `Halting` if the job may run while its image is read ([`WhileRead`]).
//!
//! What the shell owes the supervisor:
//!
//! - An [`Event::Sample`] every second while the job runs or is stopped.
//! - After each [`Action::Stop`] an [`Event::Still`] as soon as all processes of the job stand still,
//!   even if they stood still before. `Stop` and [`Action::GoOn`] set a state; they are not counted.
//! - After each [`Action::StartSave`] exactly one [`Event::SaveEnded`] with its number; soon after an
//!   [`Action::CancelSave`]. When the image has been read and the job may write again,
//!   [`Event::ImageTaken`].
//! - [`Event::FilesAtRest`] when the job has finished a checkpoint on disk that differs from the one
//!   before, and [`Event::FilesMoving`] when it begins to change files in place. Files that the job
//!   writes under another name and then renames never move.
//! - [`Event::JobEnded`] once, when no process of the job is left.
//!
//! ```
//! use supervision::{Action, Event, JobStatus, FilesAtEnd, Millis, Settings, Supervisor};
//!
//! let mut supervisor = Supervisor::new(Settings::default(), Millis(0));
//! let status = JobStatus::Exited(3);
//! supervisor.handle(Millis(5000), Event::JobEnded { status, files: FilesAtEnd::Unchanged });
//! let Some(Action::End(ending)) = supervisor.poll_action() else { panic!() };
//! assert_eq!(ending.status(None), 3);
//! ```

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

mod accounts;
mod action;
pub mod ahead;
pub mod away;
mod clock;
mod due;
mod event;
pub mod forecast;
pub mod hang;
pub mod leaving;
pub mod load;
pub mod moving;
pub mod patience;
mod settings;
pub mod signals;
mod status;
mod supervisor;

pub use accounts::{Accounts, FinalCheckpoint};
pub use action::{Action, Need, Report, SaveKind, SaveOrder};
pub use clock::Millis;
pub use due::Due;
pub use event::{
    Event, FilesAtEnd, JobNews, JobUse, Outlook, OwnerSample, Sample, SaveAhead, SaveNumber,
    SaveOutcome,
};
pub use settings::{Asking, Costs, LeaveAfter, OnHang, OwnerRule, Parity, Settings, WhileRead};
pub use status::{EndedBy, Ending, JobStatus, StartFailure, Why};
pub use supervisor::{Activity, Doing, Standing, Supervisor};
