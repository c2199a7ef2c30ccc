//! Sums over jobs, ratios of sums and their confidence intervals.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sim::JobOutcome;

/// Fewest distinct incidents for a verdict: below, a ratio rests on a handful of accidents.
pub(super) const INCIDENTS_MIN: usize = 20;

/// Resamples of the bootstrap.
const RESAMPLES: usize = 2000;
const SEED: u64 = 3;
/// Share of the resamples left out at each end: 95% are within.
const TAIL: f64 = 0.025;
/// Failures this far apart are distinct incidents, seconds.
const INCIDENT_SECONDS: u64 = 3600;

/// Sums over the jobs of one grid.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    /// Day on which the grid began, days since 1970. Only [`over_days`] uses it.
    pub day: u64,
    /// Number of jobs.
    pub jobs: f64,
    /// Jobs that were done before the trace ended.
    pub finished: f64,
    /// See [`JobOutcome::work_seconds`]; the others likewise.
    pub work: f64,
    /// Makespans of the jobs, seconds.
    pub makespan: f64,
    /// Seconds for which checkpoints held jobs up, stored or not.
    pub storing: f64,
    /// Work that was lost, seconds.
    pub lost: f64,
    /// Seconds of waiting for storage hosts.
    pub waiting: f64,
    /// Seconds of reading back.
    pub restoring: f64,
    /// Number of evictions.
    pub evictions: f64,
    /// Checkpoints that were stored.
    pub stored: f64,
    /// Seconds that it took to store them.
    pub stored_seconds: f64,
    /// Checkpoints that were not stored.
    pub not_stored: f64,
    /// Bytes that were sent.
    pub sent: f64,
    /// Restores that were tried.
    pub restores: f64,
    /// Restores that failed.
    pub failed: f64,
    /// Restores among these that nobody could have made.
    pub unavoidable: f64,
    /// Restores that would have failed with one parity shard less.
    pub without_spare: f64,
    /// Restores that would have failed with two parity shards less.
    pub with_one_spare: f64,
    /// Restores that failed for the newest checkpoint, so that the job went back to an older one or to the beginning.
    pub lost_newest: f64,
    /// Moments at which it was asked whether a checkpoint can be read.
    pub looks: f64,
    /// Moments among these at which it could not be read.
    pub looks_failed: f64,
}

impl Sums {
    /// The sums over `jobs`.
    #[must_use]
    pub fn of(jobs: &[JobOutcome]) -> Self {
        let sum = |of: fn(&JobOutcome) -> f64| jobs.iter().map(of).sum();
        Self {
            day: 0,
            jobs: jobs.len() as f64,
            finished: sum(|job| f64::from(u8::from(job.finished))),
            work: sum(|job| job.work_seconds),
            makespan: sum(|job| job.makespan_seconds),
            storing: sum(|job| job.storing_seconds),
            lost: sum(|job| job.lost_seconds),
            waiting: sum(|job| job.waiting_seconds),
            restoring: sum(|job| job.restoring_seconds),
            evictions: sum(|job| job.evictions as f64),
            stored: sum(|job| job.stored as f64),
            stored_seconds: sum(|job| job.stored_seconds),
            not_stored: sum(|job| job.not_stored as f64),
            sent: sum(|job| job.sent_bytes),
            restores: sum(|job| job.restores as f64),
            failed: sum(|job| job.failed as f64),
            unavoidable: sum(|job| job.unavoidable as f64),
            without_spare: sum(|job| job.without_spare as f64),
            with_one_spare: sum(|job| job.with_one_spare as f64),
            lost_newest: sum(|job| job.lost_newest as f64),
            looks: sum(|job| job.looks as f64),
            looks_failed: sum(|job| job.looks_failed as f64),
        }
    }
}

/// A value with its 95% interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Sum of one quantity over grids divided by the sum of another.
#[must_use]
pub fn ratio(grids: &[Sums], over: fn(&Sums) -> f64, under: fn(&Sums) -> f64) -> f64 {
    let sum = |of: fn(&Sums) -> f64| grids.iter().map(of).sum::<f64>();
    let under = sum(under);
    if under > 0.0 { sum(over) / under } else { 0.0 }
}

/// `statistic` of two policies in the same grids, with the interval of a bootstrap over grids: what
/// happens in one grid hangs together, what happens in different ones does not. Resamples for which
/// it is not a number are left out.
#[must_use]
pub fn paired<T: Clone>(a: &[T], b: &[T], statistic: impl Fn(&[T], &[T]) -> f64) -> Estimate {
    let each = (0..a.len().min(b.len())).map(|grid| vec![grid]);
    let each: Vec<Vec<usize>> = each.collect();
    resampled([a, b], &each, |[a, b]| statistic(a, b))
}

/// `statistic` of `N` policies in the same grids, with the interval of a bootstrap over the days on which
/// grids began: grids that began on the same day meet the same failures. Without interval where all began on
/// one day.
#[must_use]
pub fn over_days<const N: usize>(
    policies: [&[Sums]; N],
    statistic: impl Fn([&[Sums]; N]) -> f64,
) -> Estimate {
    let mut days: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let first = policies.first().copied().unwrap_or_default();
    for (grid, sums) in first.iter().enumerate() {
        days.entry(sums.day).or_default().push(grid);
    }
    let days: Vec<Vec<usize>> = days.into_values().collect();
    let estimate = resampled(policies, &days, statistic);
    if days.len() > 1 {
        return estimate;
    }
    Estimate {
        low: f64::NAN,
        high: f64::NAN,
        ..estimate
    }
}

/// `statistic`, with the interval of a bootstrap over `groups` of grids.
fn resampled<T: Clone, const N: usize>(
    policies: [&[T]; N],
    groups: &[Vec<usize>],
    statistic: impl Fn([&[T]; N]) -> f64,
) -> Estimate {
    let mut rng = SmallRng::seed_from_u64(SEED);
    let mut values: Vec<f64> = Vec::with_capacity(RESAMPLES);
    let mut drawn: [Vec<T>; N] = std::array::from_fn(|_| Vec::new());
    for _ in 0..if groups.is_empty() { 0 } else { RESAMPLES } {
        drawn.iter_mut().for_each(Vec::clear);
        for _ in 0..groups.len() {
            let group = &groups[rng.random_range(0..groups.len())];
            for (drawn, all) in drawn.iter_mut().zip(policies) {
                drawn.extend(group.iter().map(|grid| all[*grid].clone()));
            }
        }
        values.push(statistic(drawn.each_ref().map(Vec::as_slice)));
    }
    values.retain(|value| !value.is_nan());
    values.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = (share * values.len().saturating_sub(1) as f64).round() as usize;
        values.get(place).copied().unwrap_or(f64::NAN)
    };
    Estimate {
        value: statistic(policies),
        low: at(TAIL),
        high: at(1.0 - TAIL),
    }
}

/// `statistic` of one policy, likewise over days.
#[must_use]
pub fn single(grids: &[Sums], statistic: impl Fn(&[Sums]) -> f64) -> Estimate {
    over_days([grids], |[grids]| statistic(grids))
}

/// The number of distinct incidents among failures at these times, Unix seconds in any order: failures with
/// less than an hour between one and the next are one incident, whatever the grid and the job.
#[must_use]
pub fn incidents(failed_at: impl IntoIterator<Item = u64>) -> usize {
    let mut times: Vec<u64> = failed_at.into_iter().collect();
    times.sort_unstable();
    let apart = times
        .windows(2)
        .filter(|pair| pair[1] - pair[0] >= INCIDENT_SECONDS);
    apart.count() + usize::from(!times.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_one_hour_are_one_incident() {
        assert_eq!(incidents([]), 0);
        assert_eq!(incidents([5, 5, 5]), 1);
        // A chain of failures is one incident, however long it goes on.
        assert_eq!(incidents([0, 3_000, 6_000, 20_000]), 2);
        assert_eq!(incidents([7_200, 0, 3_600]), 3);
    }

    #[test]
    fn grids_of_a_day_count_together() {
        let grid = |day, failed| Sums {
            day,
            failed,
            restores: 1.0,
            ..Sums::default()
        };
        let share = |grids: &[Sums]| ratio(grids, |s| s.failed, |s| s.restores);
        // Twenty grids of which those of one day failed: over grids the share is known well, over the two
        // days it is not.
        let days = [(1, 0.0), (2, 1.0)];
        let grids = days.map(|(day, failed)| [grid(day, failed); 10]).concat();
        let by_day = single(&grids, share);
        assert_eq!((by_day.value, by_day.low, by_day.high), (0.5, 0.0, 1.0));
        let by_grid = paired(&grids, &grids, |grids, _| share(grids));
        assert!(by_grid.low > 0.2 && by_grid.high < 0.8, "{by_grid:?}");
        assert!(single(&grids[..10], share).low.is_nan(), "one day");
    }
}
