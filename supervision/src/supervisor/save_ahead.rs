//! Checkpoints that are taken so that the last one is short, whatever the hazards are.

use super::Supervisor;
use super::saving::Saving;
use crate::action::{Action, Report};
use crate::ahead::{Ahead, Limit, bearable};
use crate::clock::{Millis, millis, seconds};
use crate::event::SaveOutcome;
use crate::settings::{Asking, WhileRead};

/// Until a save has shown how fast the image changes, the next one is due after this much work, seconds.
const UNKNOWN_SECONDS: f64 = 20.0;
/// A promise is reported again when the loss differs by this factor.
const PROMISE_FACTOR: f64 = 1.5;

impl Supervisor {
    /// How the job is saved ahead; `None` if it is not.
    #[must_use]
    pub fn ahead(&self) -> Option<Ahead> {
        let last = self.final_save();
        let disturbed = match self.settings.asking {
            // A job that is asked writes its state instead of working.
            Asking::Possible => self.costs.held() + last.ask_seconds,
            Asking::Never | Asking::Dump => self.costs.held(),
        };
        let ahead = Ahead::plan(&last, self.settings.spend, disturbed)?;
        if self.costs.knows_change() {
            return Some(ahead);
        }
        // The first version stores all there is, however long it is waited for.
        let interval = bearable(self.settings.spend, disturbed).max(UNKNOWN_SECONDS);
        Some(Ahead {
            interval: if self.costs.has_version() {
                ahead.interval.min(interval)
            } else {
                interval
            },
            ..ahead
        })
    }

    /// Seconds of work until the next checkpoint ahead is due; `None` if none is.
    pub(super) fn ahead_in(&self, now: Millis) -> Option<f64> {
        let left = self.ahead()?.interval - self.unsaved_seconds();
        Some(left.max(seconds(self.line_free_at.since(now))).max(0.0))
    }

    /// A save has ended: what it took of the line counts against the share that may be spent, and the time for which
    /// the job was held shows what later ones take. What is stored once and for all does not count: the first version,
    /// and one of an image that has grown to twice its size or more. Nor does what has changed while that was stored
    /// count against the share: until it is stored, too, the last save is long. A failed save holds the job again.
    pub(super) fn note_use(&mut self, now: Millis, saving: &Saving, outcome: &SaveOutcome) {
        let took = seconds(now.since(saving.since));
        let is_once = match outcome {
            SaveOutcome::Committed { image_bytes, .. } => self.costs.is_mostly_new(*image_bytes),
            SaveOutcome::Failed | SaveOutcome::OtherSuccessor => !self.costs.has_version(),
        };
        let is_stored = matches!(outcome, SaveOutcome::Committed { .. });
        let catches_up = std::mem::replace(&mut self.catches_up, is_once && is_stored);
        if !is_once && !catches_up && self.settings.spend > 0.0 {
            self.line_free_at = saving.since.plus(millis(took / self.settings.spend));
        }
        // A dump is taken before anything is sent.
        let dumped = self.settings.asking == Asking::Dump;
        let stops = self.settings.while_read == WhileRead::Stopped;
        if let Some(held_ms) = saving.held_ms()
            && (dumped || stops && !(is_once && is_stored))
        {
            self.costs.stood_still(held_ms);
        }
    }

    /// Reports the loss that can be promised, if that differs from what was reported last.
    pub(super) fn report_promise(&mut self) {
        let Some(ahead) = self.ahead().filter(|_| self.costs.knows_change()) else {
            return;
        };
        let loss = ahead.promised_loss();
        let is_as_before = self.promised.is_some_and(|(before, limit)| {
            let factor: f64 = loss / before;
            limit == ahead.limit && (1.0 / PROMISE_FACTOR..PROMISE_FACTOR).contains(&factor)
        });
        if !is_as_before {
            self.promised = Some((loss, ahead.limit));
            self.act(Action::Report(Report::Promise {
                loss_ms: millis(loss),
                interval_ms: millis(ahead.interval),
                limit: ahead.limit,
            }));
        }
    }

    /// The loss that can be promised at an announced end, seconds, and what keeps it from being less. `None` before
    /// anything is known of the job's changes.
    #[must_use]
    pub fn promise(&self) -> Option<(f64, Limit)> {
        let ahead = self.ahead().filter(|_| self.costs.knows_change())?;
        Some((ahead.promised_loss(), ahead.limit))
    }

    /// Seconds that the last checkpoint is expected to take if the job had to leave now, with the rest of a save under
    /// way.
    #[must_use]
    pub fn last_save_seconds(&self) -> f64 {
        let last = self.final_save();
        // The job goes on while it is asked.
        let asking = last.ask_seconds;
        let alone = last.seconds(self.unsaved_seconds() + asking);
        match (self.save_under_way(), self.dues.since_saving) {
            (Some(saving), Some(since)) => {
                let rest = self.save_left_seconds(&saving, self.now);
                alone.min(rest + last.seconds(since.work() + rest + asking))
            }
            _ => alone,
        }
    }
}
