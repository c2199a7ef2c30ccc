//! Where a job should run: machines ranked by FALCON's rule, or by the time at which the job is expected to
//! end.
//!
//! A machine works at the rate `v = speed * (1 - owner's load)`. Work is measured in seconds at speed 1.
//! FALCON's rule uses four figures of a machine, and a failure costs the whole job:
//!
//! | figure | meaning |
//! |---|---|
//! | JCT | time of the job without failures, `work / v` |
//! | MTTF | mean time until the machine fails, seconds |
//! | ETL | work done until the failure, `v * MTTF` |
//! | JCTF | time of the job with failures: the smallest t with `v * INT_0^t TR(s) ds >= work` |
//!
//! With checkpoints a failure costs the time until the job is running elsewhere, and the work since the last
//! checkpoint. [`expected_seconds`] takes that into account.

mod load;
mod profile;
#[cfg(test)]
mod tests;

pub use load::{LOAD_HOURS, LoadForecast};
pub use profile::LoadProfile;

use crate::SurvivalCurve;

/// Number of the fastest machines whose mean rate is assumed for a job that has to move.
const NEXT_BEST: usize = 3;

/// Parts into which a job's time is cut for the numerical integral over the time of the failure.
const INTEGRAL_PARTS: u32 = 512;

/// Longest time of a job that is considered, seconds: ten years.
const LONGEST_SECONDS: f64 = 10.0 * 365.0 * 86_400.0;

/// What a job's time on a machine depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Work done in a second without other load; 1 for a processor of reference speed.
    pub speed: f64,
    /// Forecast of the owner's load.
    pub load: LoadForecast,
    /// Probability that a guest has not been driven off the machine, over time.
    pub stays: SurvivalCurve,
    /// What it costs a job to be driven off.
    pub failure: Failure,
}

/// What a failure costs a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Failure {
    /// The whole job, which begins again.
    Everything {
        /// Seconds from a failure until the job is running again.
        delay_seconds: f64,
    },
    /// The work since the last checkpoint.
    SinceCheckpoint {
        /// Seconds from a failure until the job is running again: to notice the failure, to wait in the
        /// queue, to restore.
        delay_seconds: f64,
        /// Mean work that is lost, seconds at speed 1.
        lost_seconds: f64,
        /// Share of the running time for which checkpoints hold the job up, 0 to 1.
        overhead: f64,
    },
}

impl Failure {
    /// The cost of a failure with checkpoints at Young's interval `I = sqrt(2 C M)`, on a machine that works
    /// at `rate` and stays for `M = stays_seconds` on average, when a checkpoint holds the job up for
    /// `C = cost_seconds`. The overhead is `C / (I + C)`. A failure comes without warning, on average half an
    /// interval after the last checkpoint, so `rate * (1 - overhead) * I / 2` is lost.
    #[must_use]
    pub fn with_checkpoints(
        delay_seconds: f64,
        cost_seconds: f64,
        rate: f64,
        stays_seconds: f64,
    ) -> Self {
        // No checkpoint is taken on a machine that never fails.
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

    /// Share of the running time for which checkpoints hold the job up, 0 to 1.
    const fn overhead(self) -> f64 {
        match self {
            Self::Everything { .. } => 0.0,
            Self::SinceCheckpoint { overhead, .. } => overhead,
        }
    }
}

/// The rule by which machines are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// FALCON's: machines that stay for longer than the job takes (JCT <= MTTF), by JCTF; then the others,
    /// those with the most work until the failure (ETL) first.
    Falcon,
    /// The earliest expected end of the job first ([`expected_seconds`]).
    Expected,
}

/// What to expect of a job on one machine. Times are seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rated {
    /// Index of the machine in the list given to [`rank`].
    pub place: usize,
    /// Mean load of the owner while the job would run.
    pub load: f64,
    /// Work done in a second on the machine.
    pub rate: f64,
    /// Probability that the job is done before it is driven off, 0 to 1.
    pub reliability: f64,
    /// Mean time to failure (MTTF).
    pub stays_seconds: f64,
    /// Time of the job without failures (JCT); infinite if the owner uses the whole machine.
    pub done_seconds: f64,
    /// Work done until the failure (ETL), seconds at speed 1.
    pub work_until_failure: f64,
    /// Time of the job with failures by FALCON's formula (JCTF); `None` if the job is not expected to end on
    /// this machine within ten years.
    pub done_with_failures: Option<f64>,
    /// Expected time until the job ends, on this machine or another.
    pub expected_seconds: f64,
}

/// Rates every machine for a job of `work_seconds` (TL): seconds on a machine of speed 1 without other load.
/// Returns the best machine first.
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

/// The rate that is assumed for a job after it has moved, failures included: the mean of the [`NEXT_BEST`]
/// machines with the highest such rates.
fn next_rate(places: &[Place], work_seconds: f64) -> f64 {
    let with_failures = |place: &Place| place.rate_with_failures(work_seconds);
    let mut rates: Vec<f64> = places.iter().map(with_failures).collect();
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
    /// Work done in a second, on average over the next `seconds`: `speed * (1 - load)`.
    #[must_use]
    pub fn rate(&self, seconds: f64) -> f64 {
        self.speed * (1.0 - self.load.over(seconds))
    }

    /// Work done in a second by a job of `work` (seconds at speed 1) that goes on, or begins again, on a
    /// machine like this one after each failure. Failures cost a job that keeps nothing the more, the longer
    /// it is: it has to begin again until it gets through.
    ///
    /// ```text
    /// nothing is kept    work / E,  E = (INT_0^end TR(t) dt + (1 - TR(end)) * delay) / TR(end)
    /// with checkpoints   rate * (1 - overhead) / (1 + (delay + lost / rate) / MTTF)
    /// ```
    fn rate_with_failures(&self, work: f64) -> f64 {
        let rate = self.rate(work);
        if rate <= 0.0 {
            return 0.0;
        }
        match self.failure {
            Failure::Everything { delay_seconds } => {
                let end = work / rate;
                let gets_through = self.stays.at(end).value();
                let once = mean_within(&self.stays, end) + (1.0 - gets_through) * delay_seconds;
                work * gets_through / once
            }
            Failure::SinceCheckpoint {
                delay_seconds,
                lost_seconds,
                overhead,
            } => {
                let failure = (delay_seconds + lost_seconds / rate) / mean_seconds(&self.stays);
                rate * (1.0 - overhead) / (1.0 + failure)
            }
        }
    }
}

/// Mean time until the failure (MTTF), seconds: the integral of the curve over its horizon, and beyond it
/// with the failure rate of its end. Infinite for a curve that never falls.
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

/// Mean time until the failure or until `seconds` are over, whichever comes first: `INT_0^seconds TR(t) dt`.
fn mean_within(stays: &SurvivalCurve, seconds: f64) -> f64 {
    let step = f64::from(stays.step_seconds().get());
    let whole = (seconds.min(stays.horizon_seconds()) / step) as usize;
    let values = stays.values().get(..=whole).unwrap_or_default();
    let mut sum: f64 = values
        .windows(2)
        .map(|pair| pair.iter().sum::<f64>() / 2.0 * step)
        .sum();
    // The rest lies within a step, or beyond the horizon. There the hazard is constant, and the integral of
    // TR over a time is its fall divided by the hazard.
    let from = whole as f64 * step;
    let start = stays.at(from).value();
    let end = stays.at(seconds).value();
    let hazard = stays.hazard_per_second(from);
    if hazard > 0.0 && hazard.is_finite() {
        sum += (start - end) / hazard;
    } else {
        sum += end * (seconds - from);
    }
    sum
}

/// The smallest time t at which the work that is expected to be done until t, or until a failure before t,
/// reaches `work` (JCTF).
fn done_with_failures(machine: &Place, work: f64) -> Option<f64> {
    let done = |seconds: f64| machine.rate(seconds) * mean_within(&machine.stays, seconds);
    smallest(|seconds| done(seconds) >= work)
}

/// The smallest time at which a condition holds that stays true from then on; `None` if that is not within
/// ten years.
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

/// Expected time until a job of `work` (seconds at speed 1) that starts on this machine ends, seconds. After
/// a failure the rest of the job goes on at the rate `elsewhere`, which includes what further failures cost.
/// Infinite if the machine gets nothing done.
///
/// ```text
/// INT_0^end TR(t) dt  +  INT_0^end (delay + left(t) / elsewhere) * -dTR(t)
///
/// end      time of the job here without a failure, with the checkpoints' overhead
/// left(t)  work left after a failure at t: all of it, or what is not done by t and the mean loss
/// ```
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
    for part in 1..=INTEGRAL_PARTS {
        let from = end * f64::from(part - 1) / f64::from(INTEGRAL_PARTS);
        let to = end * f64::from(part) / f64::from(INTEGRAL_PARTS);
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
