//! Where a job should run: machines ranked by FALCON's rule, and by the time at which it is expected to end.
//!
//! A machine's rate v is its speed times what its owner leaves of it. FALCON asks how long a job takes there
//! without failures (JCT), how long the machine stays (MTTF), how much it gets done until then (ETL), and when
//! a job is done that may fail meanwhile (JCTF); a failure costs it the whole job. With checkpoints a failure
//! costs the time to be running elsewhere and the work since the last checkpoint: that is what
//! [`expected_seconds`] counts.

mod load;
mod profile;
#[cfg(test)]
mod tests;

pub use load::{LOAD_HOURS, LoadForecast};
pub use profile::LoadProfile;

use crate::SurvivalCurve;

/// Machines whose mean rate is that of a job which has to move.
const NEXT_BEST: usize = 3;

/// Parts into which the time of a job is cut where no formula helps.
const PARTS: u32 = 512;

/// Longest time that is looked at: ten years, seconds.
const LONGEST_SECONDS: f64 = 10.0 * 365.0 * 86_400.0;

/// A machine as far as a job's time on it depends on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Work done in a second that is free of others, 1 being a processor of reference speed.
    pub speed: f64,
    /// What its owner takes.
    pub load: LoadForecast,
    /// That a guest is not driven off it.
    pub stays: SurvivalCurve,
    /// What it costs a job when it is.
    pub failure: Failure,
}

/// What a failure costs, beside the time until the job is running again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Failure {
    /// The whole job: nothing is kept of it.
    Everything {
        /// Seconds from a failure until the job is running again.
        delay_seconds: f64,
    },
    /// The work since the last checkpoint.
    SinceCheckpoint {
        /// Seconds from a failure until the job is running again: notice, queue, restore.
        delay_seconds: f64,
        /// Work that is lost, seconds at speed 1.
        lost_seconds: f64,
        /// Share of the time that goes into checkpoints, 0 to 1.
        overhead: f64,
    },
}

impl Failure {
    /// With checkpoints as often as pays on a machine that stays for `stays_seconds` on average and works at
    /// `rate`, when a checkpoint holds the job up for `cost_seconds`: none is in time when the machine goes.
    #[must_use]
    pub fn with_checkpoints(
        delay_seconds: f64,
        cost_seconds: f64,
        rate: f64,
        stays_seconds: f64,
    ) -> Self {
        // On a machine that never goes none is taken.
        if !stays_seconds.is_finite() || cost_seconds <= 0.0 {
            return Self::SinceCheckpoint {
                delay_seconds,
                lost_seconds: 0.0,
                overhead: 0.0,
            };
        }
        let interval = (2.0 * cost_seconds * stays_seconds).sqrt();
        let overhead = cost_seconds / (interval + cost_seconds);
        Self::SinceCheckpoint {
            delay_seconds,
            lost_seconds: rate * (1.0 - overhead) * interval / 2.0,
            overhead,
        }
    }

    const fn overhead(self) -> f64 {
        match self {
            Self::Everything { .. } => 0.0,
            Self::SinceCheckpoint { overhead, .. } => overhead,
        }
    }
}

/// By what machines are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// FALCON's.
    Falcon,
    /// The time at which the job is expected to end.
    Expected,
}

/// What is to be expected of a job on one machine. Times are seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rated {
    /// Place of the machine in the list that was given.
    pub place: usize,
    /// Mean load of the owner while the job would run.
    pub load: f64,
    /// Work done in a second there.
    pub rate: f64,
    /// The chance that the job is done before it is driven off, 0 to 1.
    pub reliability: f64,
    /// Mean time to failure (MTTF).
    pub stays_seconds: f64,
    /// Time of the job without failures (JCT); infinite where its owner leaves nothing.
    pub done_seconds: f64,
    /// Work done until the failure (ETL), seconds at speed 1.
    pub work_until_failure: f64,
    /// Time of the job with failures by FALCON's formula (JCTF); none when it is not expected to end there.
    pub done_with_failures: Option<f64>,
    /// Expected time to the end, wherever that is.
    pub expected_seconds: f64,
}

/// Rates every machine for a job of so much work (TL), in seconds of a machine of speed 1 that nobody else uses;
/// the best first.
#[must_use]
pub fn rank(places: &[Place], work_seconds: f64, rule: Rule) -> Vec<Rated> {
    let elsewhere = next_rate(places, work_seconds);
    let rate = |(place, machine)| rated(place, machine, work_seconds, elsewhere);
    let mut rated: Vec<Rated> = places.iter().enumerate().map(rate).collect();
    match rule {
        Rule::Expected => {
            rated.sort_by(|one, other| one.expected_seconds.total_cmp(&other.expected_seconds));
        }
        Rule::Falcon => rated.sort_by(|one, other| {
            let fits = |one: &Rated| one.done_seconds <= one.stays_seconds;
            let soonest = |one: &Rated| one.done_with_failures.unwrap_or(f64::INFINITY);
            fits(other).cmp(&fits(one)).then_with(|| {
                if fits(one) {
                    let by_end = soonest(one).total_cmp(&soonest(other));
                    by_end.then(one.done_seconds.total_cmp(&other.done_seconds))
                } else {
                    other.work_until_failure.total_cmp(&one.work_until_failure)
                }
            })
        }),
    }
    rated
}

/// The rate that a job reaches after it has moved: the mean of the best few machines.
fn next_rate(places: &[Place], work_seconds: f64) -> f64 {
    let mut rates: Vec<f64> = places
        .iter()
        .map(|place| place.rate(work_seconds))
        .collect();
    rates.sort_by(|one, other| other.total_cmp(one));
    rates.truncate(NEXT_BEST);
    if rates.is_empty() {
        return 0.0;
    }
    rates.iter().sum::<f64>() / rates.len() as f64
}

fn rated(place: usize, machine: &Place, work: f64, elsewhere: f64) -> Rated {
    let rate = machine.rate(work);
    let done_seconds = if rate > 0.0 {
        work / rate
    } else {
        f64::INFINITY
    };
    let stays_seconds = mean_seconds(&machine.stays);
    let work_until_failure = stays_seconds * machine.rate(stays_seconds);
    Rated {
        place,
        load: machine.load.over(work),
        rate,
        reliability: machine.stays.at(done_seconds.min(LONGEST_SECONDS)).value(),
        stays_seconds,
        done_seconds,
        work_until_failure,
        done_with_failures: done_with_failures(machine, work),
        expected_seconds: expected_seconds(machine, work, elsewhere),
    }
}

impl Place {
    /// Work done in a second, on average over the next `seconds`.
    #[must_use]
    pub fn rate(&self, seconds: f64) -> f64 {
        self.speed * (1.0 - self.load.over(seconds))
    }
}

/// Mean time until a curve's failure: over its horizon, and beyond it at the rate of its end. Infinite for one
/// that never fails.
#[must_use]
pub fn mean_seconds(stays: &SurvivalCurve) -> f64 {
    let horizon = stays.horizon_seconds();
    let left = stays.at(horizon).value();
    let within = stays.restricted_mean_seconds();
    if left <= 0.0 {
        return within;
    }
    within + left / stays.hazard_per_second(horizon)
}

/// Mean time until the failure, or until `seconds` are over.
fn mean_within(stays: &SurvivalCurve, seconds: f64) -> f64 {
    let step = f64::from(stays.step_seconds().get());
    let whole = (seconds.min(stays.horizon_seconds()) / step) as usize;
    let values = stays.values().get(..=whole).unwrap_or_default();
    let mut sum: f64 = values
        .windows(2)
        .map(|pair| pair.iter().sum::<f64>() / 2.0 * step)
        .sum();
    // What is left is within a step, or beyond the horizon: there the hazard is the same all the time.
    let from = whole as f64 * step;
    let (start, end) = (stays.at(from).value(), stays.at(seconds).value());
    let hazard = stays.hazard_per_second(from);
    if hazard > 0.0 && hazard.is_finite() {
        sum += (start - end) / hazard;
    } else {
        sum += end * (seconds - from);
    }
    sum
}

/// The smallest time after which the work that is expected to be done until then, or until a failure, is this.
fn done_with_failures(machine: &Place, work: f64) -> Option<f64> {
    let done = |seconds: f64| machine.rate(seconds) * mean_within(&machine.stays, seconds);
    smallest(|seconds| done(seconds) >= work)
}

/// The smallest time at which something holds that goes on to hold; none within ten years.
fn smallest(holds: impl Fn(f64) -> bool) -> Option<f64> {
    let mut high = 1.0;
    while !holds(high) {
        if high >= LONGEST_SECONDS {
            return None;
        }
        high = (2.0 * high).min(LONGEST_SECONDS);
    }
    let mut low = if high > 1.0 { high / 2.0 } else { 0.0 };
    while high - low > 1e-9 * high {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            break;
        }
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}

/// The time at which a job of so much work that starts on this machine is expected to end, seconds. When it
/// fails there, what is left of it goes on at the rate `elsewhere`, and does not fail again. Infinite where it
/// gets nothing done.
#[must_use]
pub fn expected_seconds(machine: &Place, work: f64, elsewhere: f64) -> f64 {
    let share = 1.0 - machine.failure.overhead();
    let done = |seconds: f64| machine.rate(seconds) * share * seconds;
    let Some(end) = smallest(|seconds| done(seconds) >= work) else {
        return f64::INFINITY;
    };
    let (delay, lost) = match machine.failure {
        Failure::Everything { delay_seconds } => (delay_seconds, None),
        Failure::SinceCheckpoint {
            delay_seconds,
            lost_seconds,
            ..
        } => (delay_seconds, Some(lost_seconds)),
    };
    let after = |seconds: f64| match lost {
        None => work,
        Some(lost) => (work - done(seconds)).max(0.0) + lost,
    };
    let mut expected = mean_within(&machine.stays, end);
    let mut before = 1.0;
    for part in 1..=PARTS {
        let from = end * f64::from(part - 1) / f64::from(PARTS);
        let to = end * f64::from(part) / f64::from(PARTS);
        let there = machine.stays.at(to).value();
        let fails = before - there;
        if fails > 0.0 {
            let left = after(from.midpoint(to));
            expected += fails * (delay + left / elsewhere);
        }
        before = there;
    }
    expected
}
