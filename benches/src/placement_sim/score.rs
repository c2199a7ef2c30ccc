//! Sums over jobs, ratios of sums and their confidence intervals.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sim::JobOutcome;

/// Resamples of the bootstrap.
const RESAMPLES: usize = 2000;
const SEED: u64 = 3;
/// Share of the resamples left out at each end: 95% are within.
const TAIL: f64 = 0.025;

/// Sums over the jobs of one grid.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    /// Jobs.
    pub jobs: f64,
    /// Of these, those that were done before the trace ended.
    pub finished: f64,
    /// See [`JobOutcome::work_seconds`]; the others likewise.
    pub work: f64,
    /// Makespans.
    pub makespan: f64,
    /// Time held up by checkpoints, stored or not.
    pub storing: f64,
    /// Work lost.
    pub lost: f64,
    /// Time waiting for storage hosts.
    pub waiting: f64,
    /// Time reading back.
    pub restoring: f64,
    /// Evictions.
    pub evictions: f64,
    /// Checkpoints stored.
    pub stored: f64,
    /// Time to store these.
    pub stored_seconds: f64,
    /// Checkpoints not stored.
    pub not_stored: f64,
    /// Bytes sent.
    pub sent: f64,
    /// Restores tried.
    pub restores: f64,
    /// Of these, failed.
    pub failed: f64,
    /// Of all, those that would have failed with one parity shard less.
    pub without_spare: f64,
    /// And with two less.
    pub with_one_spare: f64,
    /// Of those that failed, back to an older checkpoint or the beginning.
    pub lost_newest: f64,
    /// Looks at checkpoints.
    pub looks: f64,
    /// Of these, those at which it could not be read.
    pub looks_failed: f64,
}

impl Sums {
    /// The sums over `jobs`.
    #[must_use]
    pub fn of(jobs: &[JobOutcome]) -> Self {
        let sum = |of: fn(&JobOutcome) -> f64| jobs.iter().map(of).sum();
        Self {
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
pub fn paired(a: &[Sums], b: &[Sums], statistic: impl Fn(&[Sums], &[Sums]) -> f64) -> Estimate {
    let mut rng = SmallRng::seed_from_u64(SEED);
    let count = a.len().min(b.len());
    let mut values: Vec<f64> = Vec::with_capacity(RESAMPLES);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..if count == 0 { 0 } else { RESAMPLES } {
        first.clear();
        second.clear();
        for _ in 0..count {
            let grid = rng.random_range(0..count);
            first.push(a[grid]);
            second.push(b[grid]);
        }
        values.push(statistic(&first, &second));
    }
    values.retain(|value| !value.is_nan());
    values.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = (share * values.len().saturating_sub(1) as f64).round() as usize;
        values.get(place).copied().unwrap_or(f64::NAN)
    };
    Estimate {
        value: statistic(a, b),
        low: at(TAIL),
        high: at(1.0 - TAIL),
    }
}

/// `statistic` of one policy, likewise.
#[must_use]
pub fn single(grids: &[Sums], statistic: impl Fn(&[Sums]) -> f64) -> Estimate {
    paired(grids, grids, |grids, _| statistic(grids))
}
