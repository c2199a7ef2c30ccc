//! When a checkpoint is worth its cost.

use placement::interval::{daly, young};

use crate::leaving::{FinalSave, Hazards};

/// The work that no checkpoint holds, and the cost that its loss has threatened so far.
///
/// This is the accumulator rule: a checkpoint is due at the first amount of unsaved work `u` for which
/// the integral of `h(s) s ds` from 0 to `u` reaches the cost of a checkpoint. Here `h(s)` is the hazard
/// of an eviction, and `s` the work that the eviction would cost.
/// For a constant `h` the integral is `h u^2 / 2`, so that a checkpoint of cost `C` is due at Young's
/// interval `sqrt(2 C / h)`.
///
/// If a job can save itself before an announced eviction (hazard `h_w`), that eviction costs only the
/// [`FinalSave::loss`] `L(s)`, and only evictions without warning (hazard `h_p`) cost all of `s`. The
/// integrand then is `(h_p + h_w L'(s)) s`. If the final checkpoint took no time and succeeded with the
/// same probability for all `s`, this would be the rule with the hazard [`Hazards::effective`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Due {
    work: f64,
    threatened: f64,
}

impl Due {
    /// Unsaved work, seconds.
    #[must_use]
    pub const fn work(&self) -> f64 {
        self.work
    }

    /// Adds `seconds` of work done under `hazards`. `last` is `None` if the job cannot save itself before
    /// an announced eviction.
    pub fn add(&mut self, seconds: f64, hazards: Hazards, last: Option<&FinalSave>) {
        // An infinite hazard (the survival curve ends here) counts as a failure within a second, so that
        // the sum stays finite.
        let sane = |hazard: f64| hazard.min(1.0);
        let from = self.work;
        let to = self.work + seconds;
        let middle = f64::midpoint(from, to);
        let grows = match last {
            Some(last) => last.loss(to) - last.loss(from),
            None => seconds,
        };
        self.threatened += sane(hazards.presence()) * middle * seconds
            + sane(hazards.withdrawal()) * middle * grows;
        self.work = to;
    }

    /// Whether a checkpoint that costs `checkpoint` seconds pays now. The integral gives Young's interval
    /// for a constant hazard; the ratio of Daly's interval to Young's corrects the rule for long
    /// checkpoints.
    #[must_use]
    pub fn pays(&self, checkpoint: f64) -> bool {
        if self.threatened <= 0.0 || self.work <= 0.0 {
            return false;
        }
        // The mean time between failures of the constant hazard that would have threatened the same cost.
        let mean = self.work * self.work / (2.0 * self.threatened);
        let bend = daly(checkpoint, mean) / young(checkpoint, mean);
        self.threatened >= checkpoint * bend * bend
    }
}

/// Longest time for which [`Due::left`] looks ahead, seconds.
const AHEAD_MAX: f64 = 30.0 * 86_400.0;
/// Steps by which [`Due::left`] comes closer: the error is the time that is left, divided by 2^20.
const HALVINGS: u32 = 20;

impl Due {
    /// Seconds of work until a checkpoint that costs `checkpoint` seconds pays, if the hazards stay as they are. `None`
    /// if it does not pay within a month.
    #[must_use]
    pub fn left(&self, checkpoint: f64, hazards: Hazards, last: Option<&FinalSave>) -> Option<f64> {
        let pays_after = |seconds: f64| {
            let mut then = *self;
            // In steps, since `add` takes the work of the middle of a step for all of it.
            for _ in 0..STEPS {
                then.add(seconds / f64::from(STEPS), hazards, last);
            }
            then.pays(checkpoint)
        };
        if self.pays(checkpoint) {
            return Some(0.0);
        }
        if !pays_after(AHEAD_MAX) {
            return None;
        }
        let mut late = 1.0;
        while !pays_after(late) {
            late *= 2.0;
        }
        let mut early = 0.0;
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(early, late);
            if pays_after(middle) {
                late = middle;
            } else {
                early = middle;
            }
        }
        Some(late)
    }
}

/// Steps in which [`Due::left`] adds work.
const STEPS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaving::best_interval;

    const HOUR: f64 = 3600.0;

    fn first(checkpoint: f64, hazards: impl Fn(f64) -> Hazards, last: Option<&FinalSave>) -> f64 {
        let mut due = Due::default();
        while !due.pays(checkpoint) {
            due.add(1.0, hazards(due.work()), last);
            assert!(due.work() < 1e6, "never");
        }
        due.work()
    }

    #[test]
    fn a_constant_hazard_gives_daly_s_interval() {
        for (checkpoint, hazard) in [
            (60.0, 0.2 / HOUR),
            (60.0, 0.029 / HOUR),
            (300.0, 4.0 / HOUR),
        ] {
            let found = first(checkpoint, |_| Hazards::new(hazard, hazard), None);
            let expected = daly(checkpoint, 1.0 / hazard);
            assert!((found - expected).abs() <= 1.0, "{found} {expected}");
        }
    }

    #[test]
    fn a_hazard_that_rises_brings_the_checkpoint_forward() {
        let calm = |_| Hazards::new(0.02 / HOUR, 0.02 / HOUR);
        let storm = |at: f64| {
            let hazard = if at < 2.0 * HOUR { 0.02 } else { 1.0 } / HOUR;
            Hazards::new(hazard, hazard)
        };
        let calm = first(300.0, calm, None);
        let storm = first(300.0, storm, None);
        assert!(storm < calm && storm > 1.9 * HOUR, "{storm} {calm}");
    }

    #[test]
    fn final_checkpoints_that_are_surely_in_time_leave_the_hazard_of_presence() {
        let last = FinalSave {
            ask_seconds: 0.0,
            fixed_seconds: 0.0,
            image_bytes: 1.0,
            change_seconds: 1800.0,
            bytes_per_second: 1e9,
            spread: 0.3,
            grace_seconds: 60.0,
        };
        let hazards = Hazards::new(0.01 / HOUR, 0.2 / HOUR);
        let found = first(60.0, |_| hazards, Some(&last));
        assert!((found - daly(60.0, 100.0 * HOUR)).abs() <= 1.0, "{found}");
    }

    #[test]
    fn a_chance_that_falls_brings_the_checkpoint_before_the_fall() {
        let last = FinalSave {
            ask_seconds: 2.0,
            fixed_seconds: 0.0,
            image_bytes: f64::from(1 << 30) * 4.0,
            change_seconds: 1800.0,
            bytes_per_second: 50e6,
            spread: 0.3,
            grace_seconds: 60.0,
        };
        let hazards = Hazards::new(0.01 / HOUR, 0.2 / HOUR);
        let found = first(20.0, |_| hazards, Some(&last));
        // `best_interval` counts the chance at the end of the interval for the whole interval, so its
        // interval is shorter than necessary.
        let least = best_interval(20.0, hazards, Some(&last));
        assert!(found > least && last.chance(found) > 0.7, "{found} {least}");
    }

    #[test]
    fn the_time_that_is_left_is_that_after_which_it_pays() {
        let hazards = Hazards::new(0.02 / HOUR, 0.4 / HOUR);
        let last = FinalSave {
            ask_seconds: 2.0,
            fixed_seconds: 0.0,
            image_bytes: f64::from(1 << 30),
            change_seconds: 1800.0,
            bytes_per_second: 20e6,
            spread: 0.3,
            grace_seconds: 30.0,
        };
        for last in [None, Some(&last)] {
            let at = first(20.0, |_| hazards, last);
            for begun in [0.0, at / 3.0] {
                let mut due = Due::default();
                due.add(begun, hazards, last);
                let left = due.left(20.0, hazards, last).unwrap();
                assert!(
                    ((begun + left) / at - 1.0).abs() < 0.02,
                    "{begun} {left} {at}"
                );
            }
        }
        let mut due = Due::default();
        due.add(1e9, hazards, None);
        assert_eq!(due.left(20.0, hazards, None), Some(0.0));
        assert_eq!(
            Due::default().left(20.0, Hazards::new(0.0, 0.0), None),
            None
        );
    }

    #[test]
    fn no_hazard_needs_no_checkpoint() {
        let mut due = Due::default();
        due.add(1e9, Hazards::new(0.0, 0.0), None);
        assert!(!due.pays(1.0));
    }
}
