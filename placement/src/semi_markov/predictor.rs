//! A host that is followed, and its temporal reliability by the papers' model.

use std::num::NonZeroU32;
use std::ops::Range;

use super::counting::{self, CutStays};
use crate::SurvivalCurve;
use crate::history::{DAY_SECONDS, Timeline, earlier_windows};
use crate::state::ModelState;

/// How long the past is kept: 20 weekdays and 8 weekend days.
const KEPT_SECONDS: u64 = 28 * DAY_SECONDS;

/// Most changes of state that are kept; 16 bytes each.
const CHANGES_MAX: usize = 20_000;

/// Step of the process. Shorter excursions stay in the present state anyway
/// ([`crate::state::TRANSIENT_SECONDS`]).
const STEP: NonZeroU32 = NonZeroU32::new(60).unwrap();

/// The past of a host, from which its temporal reliability is counted.
#[derive(Clone, Debug, PartialEq)]
pub struct SemiMarkov<S> {
    timeline: Timeline<S>,
}

impl<S: ModelState> SemiMarkov<S> {
    /// A host about which nothing is known before `start`, Unix seconds.
    #[must_use]
    pub const fn new(start: u64) -> Self {
        Self {
            timeline: Timeline::new(start),
        }
    }

    /// Adds a span in one state. Spans have to come in order of time; the state is unknown between two spans
    /// that leave a gap.
    pub fn observe(&mut self, span: Range<u64>, state: Option<S>) {
        let oldest = span.end.saturating_sub(KEPT_SECONDS);
        self.timeline.push(span, state);
        self.timeline.forget(oldest, CHANGES_MAX);
    }

    /// TR at every one of `steps` steps, by equation (3) of the paper, counted over the same clock window of
    /// the earlier days of the same kind. The state counts as just entered, as in the paper. `None` if no such
    /// window was seen yet, or the state is unknown.
    #[must_use]
    pub fn curve(&self, step_seconds: NonZeroU32, steps: usize) -> Option<SurvivalCurve> {
        let now = self.timeline.end();
        let state = self.timeline.state_at(now.checked_sub(1)?)?;
        let seconds = u64::from(step_seconds.get()) * steps as u64;
        let window = now..now + seconds;
        let is_seen =
            |earlier: Range<u64>| self.timeline.runs(earlier).any(|run| run.state.is_some());
        let from = self.timeline.start();
        let days = earlier_windows(window.clone(), usize::MAX);
        if !days.take_while(|earlier| earlier.end > from).any(is_seen) {
            return None;
        }
        let kernel = counting::kernel_for_window(
            &self.timeline,
            window,
            usize::MAX,
            CutStays::NeverLeft,
            STEP,
        );
        let values = kernel.survival(state, (seconds / u64::from(STEP.get())) as usize);
        Some(SurvivalCurve::from_computed(STEP, values).resampled(step_seconds, steps))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::state::AvailabilityState::{self, CpuTaken, Idle};

    const FIVE_MINUTES: NonZeroU32 = NonZeroU32::new(300).unwrap();
    const HOUR: u64 = 3600;

    /// A host whose owner takes the processor from 9 to 10 o'clock each day, seen until 8 o'clock.
    fn host(days: u64) -> SemiMarkov<AvailabilityState> {
        let mut host = SemiMarkov::new(0);
        for day in 0..days {
            let start = day * DAY_SECONDS;
            host.observe(start..start + 9 * HOUR, Some(Idle));
            host.observe(start + 9 * HOUR..start + 10 * HOUR, Some(CpuTaken));
            host.observe(start + 10 * HOUR..start + DAY_SECONDS, Some(Idle));
        }
        let today = days * DAY_SECONDS;
        host.observe(today..today + 8 * HOUR, Some(Idle));
        host
    }

    #[test]
    fn what_happened_at_this_hour_on_earlier_days_is_expected() {
        // Day 7 is a weekday, as days 0, 1, 4, 5 and 6 are.
        let curve = host(7).curve(FIVE_MINUTES, 120).unwrap();
        assert_eq!(curve.at(3000.0).value(), 1.0);
        // Of the two idle stays in each earlier window, one ended after an hour and one was cut off.
        assert_eq!(curve.at(7200.0).value(), 0.5);
    }

    #[test]
    fn without_an_earlier_day_of_the_same_kind_there_is_no_forecast() {
        assert_eq!(host(0).curve(FIVE_MINUTES, 120), None);
        // Day 2 is the first day of a weekend.
        assert_eq!(host(2).curve(FIVE_MINUTES, 120), None);
        assert!(host(3).curve(FIVE_MINUTES, 120).is_some());
    }

    #[test]
    fn a_failed_host_does_not_survive_and_an_unknown_one_has_no_curve() {
        let mut host = host(7);
        let now = 7 * DAY_SECONDS + 8 * HOUR;
        host.observe(now..now + 60, Some(CpuTaken));
        assert_eq!(host.curve(FIVE_MINUTES, 2).unwrap().at(300.0).value(), 0.0);
        host.observe(now + 60..now + 120, None);
        assert_eq!(host.curve(FIVE_MINUTES, 2), None);
    }

    proptest! {
        #[test]
        fn memory_is_bounded_and_curves_are_curves(
            spans in prop::collection::vec((0u64..20_000, 1u64..90_000, 0usize..5), 1..200),
        ) {
            let mut host = SemiMarkov::new(0);
            let mut at = 0;
            for (gap, length, state) in spans {
                host.observe(at + gap..at + gap + length, Some(AvailabilityState::ALL[state]));
                at += gap + length;
                prop_assert!(host.timeline.end() - host.timeline.start() <= KEPT_SECONDS);
            }
            if let Some(curve) = host.curve(FIVE_MINUTES, 120) {
                prop_assert_eq!(curve.steps(), 120);
                prop_assert!(curve.values().windows(2).all(|pair| pair[1] <= pair[0]));
            }
        }
    }
}
