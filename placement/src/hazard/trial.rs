//! Whether a model that was refitted is better than the one in use: both are held against a day that neither
//! has seen.

use std::ops::Range;

use super::forecaster::Forecaster;
use super::model::{HazardModel, outcomes};
use super::summary::{HOUR_SECONDS, HostSummary};
use super::{INTERVAL_ENDS, INTERVALS};
use crate::bitmap::{Availability, AvailabilityBitmap, SLOT_SECONDS, Slot};
use crate::history::FollowUp;
use crate::state::Presence;

/// Forecasts of a failure in an interval are cut to this distance from 0 and 1: a host that lies may not
/// decide alone.
const MARGIN: f64 = 1e-4;

/// Most trials that a decision rests on ([`Trial::of_all`]). A refit is held against one day, which is a small
/// sample; a week has each kind of day once.
pub const TRIALS_TOGETHER: usize = 7;

/// The log losses of two models on the same landmarks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Trial {
    /// Number of landmarks over which the losses are summed.
    pub landmarks: u64,
    /// Sum of the log losses of the shipped model, with the level of each host: what hosts announce.
    pub shipped: f64,
    /// Sum of the log losses of the refitted model.
    pub refitted: f64,
}

impl Trial {
    /// Adds a host, from what was known of it at `from` (`before`, a bitmap that was fetched then) and what is
    /// known of it now (`after`). The host's announcements can't change what was known before.
    pub fn add(
        &mut self,
        shipped: &HazardModel,
        refitted: &HazardModel,
        before: &AvailabilityBitmap,
        after: &AvailabilityBitmap,
    ) {
        let from = (before.newest().0 + 1) * SLOT_SECONDS;
        let until = (after.newest().0 + 1) * SLOT_SECONDS;
        if until <= from || until - from > DAYS_MAX * 86_400 {
            return;
        }
        let mut all = before.clone();
        for slot in before.newest().0 + 1..=after.newest().0 {
            all.record(Slot(slot), after.get(Slot(slot)));
        }
        let mut host = Forecaster::<Presence>::new(before.oldest().start_unix_seconds());
        for (span, state) in runs(&all) {
            let mut at = span.start;
            while at < span.end {
                let next = span.end.min((at / HOUR_SECONDS + 1) * HOUR_SECONDS);
                host.observe(shipped, at..next, state, None);
                let usable = state == Some(Presence::Here);
                if usable && next >= from && next < until && next.is_multiple_of(HOUR_SECONDS) {
                    self.add_landmark(shipped, refitted, &host, follow_up(&all, next));
                }
                at = next;
            }
        }
    }

    fn add_landmark(
        &mut self,
        shipped: &HazardModel,
        refitted: &HazardModel,
        host: &Forecaster<Presence>,
        follow_up: FollowUp,
    ) {
        if follow_up.seconds == 0 && !follow_up.failed {
            return;
        }
        let summary: &HostSummary<Presence> = host.summary();
        let covariates = summary.covariates(shipped.pool());
        let mut by_shipped = shipped.expected_failures(&covariates);
        for (hazard, end) in by_shipped.iter_mut().zip(INTERVAL_ENDS) {
            if end <= HOUR_SECONDS {
                *hazard *= host.level().factor();
            }
        }
        let by_refitted = refitted.expected_failures(&covariates);
        self.landmarks += 1;
        self.shipped += log_loss(&by_shipped, follow_up);
        self.refitted += log_loss(&by_refitted, follow_up);
    }

    /// Several trials as one: the sums of their landmarks and losses. Trials of different days are those of
    /// different refits, each of the day before; together they say whether refitting pays in this pool.
    #[must_use]
    pub fn of_all(trials: impl IntoIterator<Item = Self>) -> Self {
        trials.into_iter().fold(Self::default(), |all, one| Self {
            landmarks: all.landmarks + one.landmarks,
            shipped: all.shipped + one.shipped,
            refitted: all.refitted + one.refitted,
        })
    }

    /// Whether the refitted model was better.
    #[must_use]
    pub fn is_won(&self) -> bool {
        self.landmarks > 0 && self.refitted < self.shipped
    }
}

/// A trial looks at no more days than this. A client that learns every day needs one.
const DAYS_MAX: u64 = 8;

/// Minus the logarithm of the probability that was given to what happened.
fn log_loss(expected_failures: &[f64; INTERVALS], follow_up: FollowUp) -> f64 {
    outcomes(follow_up)
        .map(|(interval, failed)| {
            let fails = (-(-expected_failures[interval]).exp_m1()).clamp(MARGIN, 1.0 - MARGIN);
            -(if failed { fails } else { 1.0 - fails }).ln()
        })
        .sum()
}

/// Stretches of equal slots, with the state in them.
pub(crate) fn runs(bitmap: &AvailabilityBitmap) -> Vec<(Range<u64>, Option<Presence>)> {
    let mut runs: Vec<(Range<u64>, Option<Presence>)> = Vec::new();
    for slot in bitmap.oldest().0..=bitmap.newest().0 {
        let state = state(bitmap, Slot(slot));
        let start = slot * SLOT_SECONDS;
        let end = (slot + 1) * SLOT_SECONDS;
        match runs.last_mut() {
            Some((span, last)) if *last == state => span.end = end,
            _ => runs.push((start..end, state)),
        }
    }
    runs
}

fn state(bitmap: &AvailabilityBitmap, slot: Slot) -> Option<Presence> {
    match bitmap.get(slot) {
        Availability::Unknown => None,
        Availability::Usable => Some(Presence::Here),
        Availability::NotUsable => Some(Presence::Away),
    }
}

/// What became of the host after `time`.
fn follow_up(bitmap: &AvailabilityBitmap, time: u64) -> FollowUp {
    let first = time / SLOT_SECONDS;
    let last = (first + INTERVAL_ENDS[INTERVALS - 1] / SLOT_SECONDS).min(bitmap.newest().0 + 1);
    let mut slots = (first..last).map(|slot| (slot, bitmap.get(Slot(slot))));
    let end = slots.find(|(_, found)| *found != Availability::Usable);
    let (slot, failed) = end.map_or((last, false), |(slot, found)| {
        (slot, found == Availability::NotUsable)
    });
    FollowUp {
        seconds: (slot * SLOT_SECONDS).saturating_sub(time),
        failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_SLOTS: u64 = 288;

    /// A host that is away for an hour in every `period` hours, over `days` days.
    fn bitmap(days: u64, period: u64) -> AvailabilityBitmap {
        let mut bitmap = AvailabilityBitmap::unknown(Slot(0));
        for slot in 1..days * DAY_SLOTS {
            let away = (slot / 12).is_multiple_of(period);
            let seen = if away {
                Availability::NotUsable
            } else {
                Availability::Usable
            };
            bitmap.record(Slot(slot), seen);
        }
        bitmap
    }

    fn model(factor: f64) -> HazardModel {
        let mut parameters = HazardModel::pretrained().parameters();
        for intercept in &mut parameters[INTERVALS..2 * INTERVALS] {
            *intercept += f64::ln(factor);
        }
        HazardModel::from_parameters(&parameters).unwrap()
    }

    fn trial(factor: f64, period: u64) -> Trial {
        let mut trial = Trial::default();
        let before = bitmap(20, period);
        let after = bitmap(21, period);
        trial.add(&HazardModel::pretrained(), &model(factor), &before, &after);
        trial
    }

    #[test]
    fn the_model_that_expects_what_happens_wins() {
        // Hosts that never fail (in what the bitmap covers but once, at its beginning).
        let steady = trial(0.1, 100_000);
        assert!(steady.is_won(), "{steady:?}");
        assert_eq!(steady.landmarks, 24);
        assert!(!trial(10.0, 100_000).is_won());
        // Hosts that fail every three hours.
        assert!(!trial(0.05, 3).is_won());
    }

    #[test]
    fn trials_together_weigh_by_their_losses() {
        let lost = trial(0.05, 3);
        let won = trial(0.1, 100_000);
        let both = Trial::of_all([lost, won]);
        assert_eq!(both.landmarks, lost.landmarks + won.landmarks);
        assert!(won.is_won() && !lost.is_won() && !both.is_won(), "{both:?}");
        assert!(Trial::of_all([won, won, Trial::default()]).is_won());
        assert_eq!(Trial::of_all([]), Trial::default());
    }

    #[test]
    fn a_trial_without_new_days_decides_nothing() {
        let mut trial = Trial::default();
        let shipped = HazardModel::pretrained();
        let day = bitmap(20, 5);
        trial.add(&shipped, &model(0.1), &day, &day);
        trial.add(&shipped, &model(0.1), &day, &bitmap(19, 5));
        trial.add(&shipped, &model(0.1), &bitmap(2, 5), &day);
        assert_eq!(trial, Trial::default());
        assert!(!trial.is_won());
    }

    #[test]
    fn a_later_bitmap_of_a_judged_day_changes_nothing() {
        let before = bitmap(20, 7);
        let after = bitmap(21, 7);
        let mut other = after.clone();
        for slot in 0..before.newest().0 {
            other.record(Slot(slot), Availability::NotUsable);
        }
        let shipped = HazardModel::pretrained();
        let run = |after: &AvailabilityBitmap| {
            let mut trial = Trial::default();
            trial.add(&shipped, &model(0.1), &before, after);
            trial
        };
        assert_ne!(other, after);
        assert_eq!(run(&other), run(&after));
    }
}
