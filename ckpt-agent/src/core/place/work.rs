//! How much work a job has done, by the versions that hosts show.

use std::ops::RangeInclusive;

/// Least and longest time between checkpoints that is calculated with, seconds.
pub const INTERVAL_SECONDS: RangeInclusive<f64> = 60.0..=86_400.0;

/// A version of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Its number.
    pub number: u64,
    /// When it was saved, Unix seconds.
    pub created: u64,
}

/// The time from `earlier` to `later`, Unix seconds, as a time between checkpoints.
pub fn interval(earlier: u64, later: u64) -> f64 {
    clamped(later.saturating_sub(earlier) as f64)
}

/// The work that a job has done `now` (Unix seconds), of whose versions hosts show these, seconds: as many times between
/// versions as it has saved, since versions of which nothing is left did not hold less. Its first version had the number
/// `first`: 1, or a time where it began while others might have had versions of it.
pub fn work_seconds(first: u64, shown: &[Saved], now: u64) -> f64 {
    let newest = shown.iter().max_by_key(|saved| saved.number);
    let oldest = shown.iter().min_by_key(|saved| saved.number);
    let (Some(newest), Some(oldest)) = (newest, oldest) else {
        return 0.0;
    };
    let since = interval(newest.created, now);
    let between = newest.number.saturating_sub(oldest.number);
    let each = match between {
        0 => since,
        _ => clamped(newest.created.saturating_sub(oldest.created) as f64 / between as f64),
    };
    since + each * (newest.number.saturating_sub(first) + 1) as f64
}

fn clamped(seconds: f64) -> f64 {
    seconds.clamp(*INTERVAL_SECONDS.start(), *INTERVAL_SECONDS.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;
    const NOW: u64 = 1_700_000_000;

    fn saved(number: u64, hours_ago: u64) -> Saved {
        Saved {
            number,
            created: NOW - hours_ago * HOUR,
        }
    }

    fn hours(first: u64, shown: &[Saved]) -> f64 {
        work_seconds(first, shown, NOW) / HOUR as f64
    }

    #[test]
    fn a_job_has_worked_for_as_long_as_its_versions_lie_apart() {
        assert_eq!(hours(1, &[]), 0.0);
        assert_eq!(hours(1, &[saved(1, 2)]), 4.0, "as long before as after");
        assert_eq!(hours(1, &[saved(9, 2)]), 20.0);
        assert_eq!(hours(1, &[saved(100, 1), saved(90, 11)]), 101.0);
        assert_eq!(hours(1, &[saved(90, 11), saved(100, 1)]), 101.0);
    }

    #[test]
    fn a_job_that_slept_for_a_day_has_not_worked_for_a_day_each_time() {
        assert_eq!(hours(1, &[saved(100, 24), saved(90, 34)]), 124.0);
    }

    #[test]
    fn a_number_that_is_a_time_does_not_count() {
        let began = NOW - 10 * HOUR;
        let shown = [saved(began, 10), saved(began + 5, 5)];
        assert_eq!(hours(began, &shown), 5.0 + 6.0);
    }

    #[test]
    fn wrong_clocks_make_no_work_that_no_job_could_have_done() {
        let future = Saved {
            number: 3,
            created: NOW + HOUR,
        };
        assert_eq!(work_seconds(1, &[future], NOW), 4.0 * 60.0);
        let old = Saved {
            number: 2,
            created: 0,
        };
        assert_eq!(hours(1, &[old, saved(3, 1)]), 1.0 + 3.0 * 24.0);
    }
}
