//! How a job stands: what the supervisor does with it, and what an end of the machine would cost now.

use super::job::HoldFor;
use super::saving::Checkpoints;
use super::{Machine, Supervisor};
use crate::action::Need;
use crate::clock::{Millis, millis};
use crate::status::Why;

/// What a supervisor does with its job, as people ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The job runs.
    Runs,
    /// A checkpoint of the job is being taken.
    Saves,
    /// The job is stopped for the machine's owner.
    Stopped(Need),
    /// The job has to leave the machine.
    Leaves(Why),
    /// The job has ended or is being ended.
    Ends,
}

/// How a job stands at the time of the last event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// What is done with it.
    pub activity: Activity,
    /// Since when the job is stopped or leaves; `None` in other states.
    pub since: Option<Millis>,
    /// Whether work is being added that no version holds.
    pub works: bool,
    /// Work of this incarnation, milliseconds.
    pub work_ms: u64,
    /// Work that no committed checkpoint holds, seconds: what is lost if the machine fails now.
    pub unsaved_seconds: f64,
}

impl Supervisor {
    /// How the job stands.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let saves = !matches!(self.checkpoints, Checkpoints::Idle);
        let (activity, since) = match &self.machine {
            Machine::Leaving(leaving) => (Activity::Leaves(leaving.why()), Some(leaving.since())),
            Machine::Stopping(_) | Machine::Ended => (Activity::Ends, None),
            Machine::Suspended(stopped) => (Activity::Stopped(stopped.need), Some(stopped.since)),
            Machine::Normal | Machine::Lowest(_) if saves => (Activity::Saves, None),
            Machine::Normal | Machine::Lowest(_) => (Activity::Runs, None),
        };
        Standing {
            activity,
            since,
            works: self.works(),
            work_ms: self.accounts.work_ms,
            unsaved_seconds: self.unsaved_seconds(),
        }
    }

    /// Whether time that passes now counts as work.
    pub(super) fn works(&self) -> bool {
        self.job.alive
            && !matches!(self.machine, Machine::Ended)
            && !self.job.is_held_for(HoldFor::Owner)
            && !self.job.is_held_for(HoldFor::Reading)
            && !self.is_dumping()
    }

    /// Time until the next checkpoint is due by the hazards of this moment, milliseconds; 0 if one is due and can't be
    /// taken now. `None` if none is foreseen, or one is being taken.
    #[must_use]
    pub fn next_save_ms(&self) -> Option<u64> {
        let runs = matches!(self.machine, Machine::Normal | Machine::Lowest(_));
        if !runs || !self.job.alive || !matches!(self.checkpoints, Checkpoints::Idle) {
            return None;
        }
        let last = self.final_save();
        let standstill = self.costs.standstill();
        let due = self.dues.unsaved;
        let pays = due.left(standstill, self.hazards(), Some(&last));
        let ahead = self.ahead_in(self.now);
        let left = pays.into_iter().chain(ahead).min_by(f64::total_cmp)?;
        Some(millis(left).max(self.retry.not_before.since(self.now)))
    }
}
