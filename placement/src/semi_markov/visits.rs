//! Stays in a state, as a window of observation shows them.

use std::num::NonZeroU32;
use std::ops::Range;

use crate::history::{Run, Timeline};
use crate::state::ModelState;

/// One stay in a state within a window of observation. Lengths are in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit<S> {
    /// The state that the host was in.
    pub state: S,
    /// How long the host had been in the state when the window began; zero if it entered within the window.
    pub age_at_start: u32,
    /// How long the host was observed in the state; at least one.
    pub steps: u32,
    /// The state that followed; `None` if the window, or the observation, ended before that.
    pub next: Option<S>,
}

/// The stays in `window`, in order of time. An unknown run ends a stay without a next state.
pub fn visits<S: ModelState>(
    timeline: &Timeline<S>,
    window: Range<u64>,
    step_seconds: NonZeroU32,
) -> Vec<Visit<S>> {
    let steps = |seconds: u64| whole_steps(seconds, step_seconds);
    let mut found: Vec<Visit<S>> = Vec::new();
    let mut previous: Option<Run<S>> = None;
    for run in timeline.runs(window.clone()) {
        let follows = previous.as_ref().is_some_and(|p| p.state.is_some());
        if let (true, Some(state), Some(last)) = (follows, run.state, found.last_mut()) {
            last.next = Some(state);
        }
        if let Some(state) = run.state {
            let from = run.span.start.max(window.start);
            found.push(Visit {
                state,
                age_at_start: steps(from - run.span.start),
                steps: steps(run.span.end.min(window.end) - from).max(1),
                next: None,
            });
        }
        previous = Some(run);
    }
    found
}

/// `seconds` as a number of steps, rounded to the nearest; saturates.
#[must_use]
pub fn whole_steps(seconds: u64, step_seconds: NonZeroU32) -> u32 {
    let step = u64::from(step_seconds.get());
    u32::try_from(seconds.saturating_add(step / 2) / step).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::AvailabilityState::{Busy, CpuTaken, Idle};

    const STEP: NonZeroU32 = NonZeroU32::new(10).unwrap();

    #[test]
    fn a_window_cuts_the_first_and_the_last_stay() {
        let mut t = Timeline::new(0);
        t.push(0..100, Some(Idle));
        t.push(100..130, Some(Busy));
        t.push(130..200, Some(Idle));
        let found = visits(&t, 50..160, STEP);
        let expected = [
            Visit {
                state: Idle,
                age_at_start: 5,
                steps: 5,
                next: Some(Busy),
            },
            Visit {
                state: Busy,
                age_at_start: 0,
                steps: 3,
                next: Some(Idle),
            },
            Visit {
                state: Idle,
                age_at_start: 0,
                steps: 3,
                next: None,
            },
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn ignorance_ends_a_stay_without_a_next_state() {
        let mut t = Timeline::new(0);
        t.push(0..100, Some(Idle));
        t.push(150..180, Some(CpuTaken));
        let found = visits(&t, 0..200, STEP);
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|visit| visit.next.is_none()));
    }

    #[test]
    fn a_stay_shorter_than_half_a_step_takes_one() {
        let mut t = Timeline::new(0);
        t.push(0..3, Some(Idle));
        t.push(3..20, Some(Busy));
        assert_eq!(visits(&t, 0..20, STEP)[0].steps, 1);
    }
}
