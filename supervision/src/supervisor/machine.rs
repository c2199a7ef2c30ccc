//! How the job follows the owner of its machine.

use placement::state::TRANSIENT_SECONDS;

use super::job::HoldFor;
use super::{Machine, Supervisor};
use crate::action::{Action, Need, Report};
use crate::clock::{Millis, millis, seconds};
use crate::event::OwnerSample;
use crate::settings::{LeaveAfter, OwnerRule};
use crate::status::Why;

/// The load has to stay below a threshold for this time before the job gets more of the machine,
/// milliseconds.
const CALM_MS: u64 = 5000;
/// Time that is kept free before the batch system's time limit, beside the final checkpoint,
/// milliseconds.
const LIMIT_RESERVE_MS: u64 = 5000;

/// A job that is stopped for the owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspended {
    pub(super) since: Millis,
    /// What the owner needed when it was stopped.
    pub(super) need: Need,
    /// Since when the load is low enough for the job to go on.
    calm_since: Option<Millis>,
}

/// What the owner needs of the machine now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnerNeeds {
    /// Little: the job may run as it was started.
    Little,
    /// To go before the job.
    Precedence,
    /// All of it: the job is stopped.
    Machine(Need),
}

impl Supervisor {
    /// Takes a reading of the owner.
    pub(super) fn owner(&mut self, now: Millis, owner: &OwnerSample) {
        let OwnerRule::Watched {
            thresholds,
            run_if_user_active,
        } = self.settings.owner
        else {
            return;
        };
        // NaN does not count as a low load.
        let is_high = owner.load.is_nan() || owner.load > thresholds.second();
        let is_low = owner.load < thresholds.first();
        let user = owner.user_active && !run_if_user_active;
        let need = match (owner.withheld, user, is_high) {
            (true, ..) => Some(Need::Withheld),
            (_, true, _) => Some(Need::User),
            (_, _, true) => Some(Need::Processors),
            _ => None,
        };
        self.owner_needs = need.is_some() || owner.memory_short;
        let needs = match (need, is_low) {
            (Some(need), _) => OwnerNeeds::Machine(need),
            (None, false) => OwnerNeeds::Precedence,
            (None, true) => OwnerNeeds::Little,
        };
        self.follow(now, owner.load, needs);
        if self.owner_needs && self.leaving_deadline().is_some() && !self.awaits_last() {
            self.hold(HoldFor::Owner);
        }
        if owner.memory_short {
            self.leave(now, Why::Memory, self.settings.grace_ms);
        }
        if let Some(ms) = owner.leaving {
            let grace_ms = if ms == 0 { self.settings.grace_ms } else { ms };
            self.leave(now, Why::MachineLeaves, grace_ms);
        }
    }

    fn follow(&mut self, now: Millis, load: f64, needs: OwnerNeeds) {
        let is_low = needs == OwnerNeeds::Little;
        match (&mut self.machine, needs) {
            (Machine::Normal | Machine::Lowest(_), OwnerNeeds::Machine(need)) => {
                self.suspend(now, need, load);
            }
            (Machine::Normal, OwnerNeeds::Precedence) => {
                self.machine = Machine::Lowest(None);
                self.act(Action::Lower);
            }
            (Machine::Lowest(calm_since), _) => {
                let calm = is_calm(calm_since, is_low, now);
                if calm {
                    self.machine = Machine::Normal;
                    self.act(Action::Normal);
                }
            }
            (Machine::Suspended(suspended), _) => {
                let after_ms = now.since(suspended.since);
                let is_free = !matches!(needs, OwnerNeeds::Machine(_));
                let calm = is_calm(&mut suspended.calm_since, is_free, now);
                if calm {
                    self.machine = Machine::Lowest(is_low.then_some(now));
                    self.release(HoldFor::Owner);
                    self.act(Action::Report(Report::Resumed { after_ms }));
                }
            }
            _ => {}
        }
    }

    fn suspend(&mut self, now: Millis, need: Need, load: f64) {
        if matches!(self.machine, Machine::Normal) {
            self.act(Action::Lower);
        }
        self.machine = Machine::Suspended(Suspended {
            since: now,
            need,
            calm_since: None,
        });
        self.accounts.suspensions += 1;
        self.hold(HoldFor::Owner);
        self.act(Action::Report(Report::Suspended { need, load }));
    }

    /// Begins to leave if the job has been stopped for longer than pays.
    pub(super) fn end_of_patience(&mut self, now: Millis) {
        let Machine::Suspended(suspended) = self.machine else {
            return;
        };
        if self.patience_end(&suspended).is_some_and(|end| end <= now) {
            self.leave(now, Why::Load, self.settings.grace_ms);
        }
    }

    /// When patience ends. `None` if it never ends, and while the load is low, since the job may soon go
    /// on.
    pub(super) fn patience_end(&self, suspended: &Suspended) -> Option<Millis> {
        if suspended.calm_since.is_some() {
            return None;
        }
        let ms = match &self.settings.leave_after {
            LeaveAfter::Never => return None,
            LeaveAfter::Milliseconds(ms) => *ms,
            LeaveAfter::Auto(past) => {
                let last = self.final_save();
                let moving =
                    last.seconds(self.unsaved_seconds()) + seconds(self.settings.moving_ms);
                // A need shorter than a minute is not an S3, and not among the needs of `past`.
                let age = seconds(self.now.since(suspended.since)) - TRANSIENT_SECONDS as f64;
                let worth = past.worth_of_a_wait(moving, self.remaining_seconds());
                let patience = past.patience(worth, age.max(0.0));
                millis(patience + TRANSIENT_SECONDS as f64)
            }
        };
        Some(suspended.since.plus(ms))
    }

    /// When to begin to leave because of the batch system's time limit.
    pub(super) fn time_limit_lead(&self) -> Option<Millis> {
        let limit = self.settings.time_limit?;
        let last = self.final_save();
        let takes = last.seconds_at_most(self.unsaved_seconds());
        let lead = millis(takes).max(self.settings.grace_ms);
        let kill = self.settings.kill_ms.saturating_add(LIMIT_RESERVE_MS);
        Some(limit.minus(lead.saturating_add(kill)))
    }

    /// Begins to leave if it is time to, because of the batch system's limit.
    pub(super) fn leave_before_the_limit(&mut self, now: Millis) {
        let is_there = matches!(
            self.machine,
            Machine::Normal | Machine::Lowest(_) | Machine::Suspended(_)
        );
        let Some(deadline) = self.limit_deadline().filter(|_| is_there) else {
            return;
        };
        if self.time_limit_lead().is_some_and(|lead| lead <= now) {
            self.leave(now, Why::TimeLimit, deadline.since(now));
        }
    }

    /// The latest moment to kill the job such that it is gone by the batch system's limit.
    pub(super) fn limit_deadline(&self) -> Option<Millis> {
        let limit = self.settings.time_limit?;
        Some(limit.minus(self.settings.kill_ms))
    }
}

/// Whether `holds` has been true for [`CALM_MS`]; `since` remembers since when.
fn is_calm(since: &mut Option<Millis>, holds: bool, now: Millis) -> bool {
    if !holds {
        *since = None;
        return false;
    }
    now.since(*since.get_or_insert(now)) >= CALM_MS
}
