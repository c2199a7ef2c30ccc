//! How often the host survived the same window on earlier days.

use std::ops::Range;

use placement::history::{Timeline, WindowOutcome, earlier_windows};
use placement::probability::Probability;
use placement::state::ModelState;

/// Share of the same clock windows on the `days` latest earlier days of the same kind that the host
/// survived, of those at whose beginning it was usable; with Jeffreys prior. Windows that are partly unknown
/// do not count.
#[must_use]
pub fn window_frequency<S: ModelState>(
    timeline: &Timeline<S>,
    window: Range<u64>,
    days: usize,
) -> Probability {
    let mut survived = 0;
    let mut seen = 0;
    let known = earlier_windows(window, days).take_while(|w| w.end > timeline.start());
    for earlier in known {
        let usable = timeline
            .state_at(earlier.start)
            .is_some_and(|state| !state.is_failure());
        match timeline.outcome(earlier) {
            WindowOutcome::Survived if usable => {
                survived += 1;
                seen += 1;
            }
            WindowOutcome::FailedAt(_) if usable => seen += 1,
            _ => {}
        }
    }
    Probability::jeffreys(survived, seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::history::DAY_SECONDS;
    use placement::state::AvailabilityState::{CpuTaken, Idle};

    #[test]
    fn windows_that_began_usable_and_are_known_count() {
        let mut t = Timeline::new(0);
        // From 8 to 10 h the host survives on day 0 and fails on day 1; on day 4 it is down at the beginning.
        t.push(0..DAY_SECONDS + 9 * 3600, Some(Idle));
        t.push(
            DAY_SECONDS + 9 * 3600..DAY_SECONDS + 10 * 3600,
            Some(CpuTaken),
        );
        t.push(
            DAY_SECONDS + 10 * 3600..4 * DAY_SECONDS + 8 * 3600,
            Some(Idle),
        );
        t.push(
            4 * DAY_SECONDS + 8 * 3600..4 * DAY_SECONDS + 9 * 3600,
            Some(CpuTaken),
        );
        t.push(4 * DAY_SECONDS + 9 * 3600..5 * DAY_SECONDS, Some(Idle));
        let window = 5 * DAY_SECONDS + 8 * 3600..5 * DAY_SECONDS + 10 * 3600;
        assert_eq!(
            window_frequency(&t, window, 10),
            Probability::jeffreys(1, 2)
        );
    }
}
