//! When to take a checkpoint.
//!
//! [`first_after`] finds the time from a hazard of the compute host that changes over time; [`young`],
//! [`daly`] and [`exponential_optimum`] are the classic intervals for a constant hazard. All times are
//! seconds.

use crate::survival::SurvivalCurve;

/// What a checkpoint and a failure cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Time for which one checkpoint holds the job up (C).
    pub checkpoint_seconds: f64,
    /// Time to read the checkpoint back.
    pub restore_seconds: f64,
    /// Time from a failure to the beginning of the restore.
    pub downtime_seconds: f64,
}

/// Young 1974: work between two checkpoints, `sqrt(2 C M)`, for a checkpoint of `C` seconds and a mean time
/// between failures of `M` seconds.
#[must_use]
pub fn young(checkpoint: f64, mtbf: f64) -> f64 {
    (2.0 * checkpoint * mtbf).sqrt()
}

/// Daly 2006, equation 37: a higher-order estimate of the same interval, which holds for long checkpoints,
/// too: `sqrt(2 C M) (1 + sqrt(f) / 3 + f / 9) - C` with `f = C / (2 M)`, and `M` if `C >= 2 M`.
#[must_use]
pub fn daly(checkpoint: f64, mtbf: f64) -> f64 {
    if checkpoint >= 2.0 * mtbf {
        return mtbf;
    }
    let f = checkpoint / (2.0 * mtbf);
    young(checkpoint, mtbf) * (1.0 + f.sqrt() / 3.0 + f / 9.0) - checkpoint
}

/// The interval with the least [`expected_makespan`], exact for exponential failures:
/// `M (1 + W0(-exp(-1 - C/M)))`, where `W0` is Lambert's function.
#[must_use]
pub fn exponential_optimum(checkpoint: f64, mtbf: f64) -> f64 {
    mtbf * (1.0 + lambert_w0(-(-1.0 - checkpoint / mtbf).exp()))
}

/// Expected time to do `work` with a checkpoint after each `interval` of work, when the time between
/// failures is exponential with mean `mtbf` (Daly 2006, section 3):
///
/// ```text
/// work / interval * exp(R / M) * (M + D) * (exp((interval + C) / M) - 1)
/// ```
///
/// An interval with its checkpoint is repeated until it succeeds. A failure costs the downtime D and a
/// restore of R seconds, during which the job can fail again.
#[must_use]
pub fn expected_makespan(work: f64, interval: f64, mtbf: f64, costs: &Costs) -> f64 {
    let rate = 1.0 / mtbf;
    let segments = (work / interval).max(1.0);
    let segment = work / segments + costs.checkpoint_seconds;
    segments
        * (rate * costs.restore_seconds).exp()
        * (mtbf + costs.downtime_seconds)
        * (rate * segment).exp_m1()
}

/// The accumulator rule: seconds from the last checkpoint, or from the start, to the next one. It is the
/// time `u` at which the expected loss of work since then, `INT_0^u h(t) t dt`, reaches the cost
/// `checkpoint`. `hazard` is the curve of the compute host from now on, with `h` its failure rate; a constant
/// rate gives Young's interval. The result is stretched by the ratio of Daly's interval to Young's for the
/// mean rate up to `u`, which matters where a checkpoint takes long.
///
/// `None` when that time is not before `longest` seconds: then a checkpoint does not pay.
#[must_use]
pub fn first_after(hazard: &SurvivalCurve, checkpoint: f64, longest: f64) -> Option<f64> {
    let step = f64::from(hazard.step_seconds().get());
    let mut time = 0.0;
    let mut sum = 0.0;
    let mut total = 0.0;
    while time < longest {
        // In a step that nothing survives the rate is infinite: cap it at a survival of exp(-50).
        let rate = hazard.hazard_per_second(time).min(50.0 / step);
        let next = time + step;
        // INT_time^next rate * t dt
        let part = rate * (next * next - time * time) / 2.0;
        if sum + part >= checkpoint {
            let within = (time * time + 2.0 * (checkpoint - sum) / rate).sqrt();
            total += rate * (within - time);
            let mtbf = within / total;
            let stretched = within * daly(checkpoint, mtbf) / young(checkpoint, mtbf);
            // Where a checkpoint takes far longer than the mean time between failures, the stretched time
            // goes to zero; but a checkpoint needs some new work to keep.
            return Some(stretched.max(checkpoint.min(within))).filter(|at| *at < longest);
        }
        sum += part;
        total += rate * step;
        time = next;
    }
    None
}

/// When to take checkpoints in a job that has `job_seconds` of work to do: seconds of wall time from now,
/// at most `most` of them, and none at the end of the job. Each checkpoint holds the job up for `checkpoint`
/// seconds. From one to the next there are at least `least` seconds of work, so that one is stored when the
/// next begins.
#[must_use]
pub fn schedule(
    hazard: &SurvivalCurve,
    checkpoint: f64,
    least: f64,
    job_seconds: f64,
    most: usize,
) -> Vec<f64> {
    let mut times = Vec::new();
    let mut now = 0.0;
    let mut left = job_seconds;
    while times.len() < most {
        let ahead = if now < hazard.horizon_seconds() {
            hazard.given_survival_until(now)
        } else {
            flat(hazard)
        };
        let ahead = if ahead.steps() == 0 {
            flat(hazard)
        } else {
            ahead
        };
        let after = first_after(&ahead, checkpoint, left).map(|after| after.max(least));
        let Some(after) = after.filter(|after| *after < left) else {
            return times;
        };
        times.push(now + after);
        now += after + checkpoint;
        left -= after;
    }
    times
}

/// A curve of one step with the failure rate that `curve` has beyond its horizon.
fn flat(curve: &SurvivalCurve) -> SurvivalCurve {
    let rate = curve.hazard_per_second(curve.horizon_seconds());
    SurvivalCurve::exponential(curve.step_seconds(), 1, rate)
}

/// Mean time between failures of the exponential distribution that has the survival of `curve` at its
/// horizon, `-horizon / ln TR(horizon)`. Infinite for a curve that never falls.
#[must_use]
pub fn equivalent_mtbf(curve: &SurvivalCurve) -> f64 {
    let horizon = curve.horizon_seconds();
    let survival = curve.at(horizon).value();
    if survival >= 1.0 || horizon == 0.0 {
        return f64::INFINITY;
    }
    // No exponential falls to zero: its mean life stands in.
    if survival <= 0.0 {
        return curve.restricted_mean_seconds();
    }
    -horizon / survival.ln()
}

/// Principal branch of Lambert's W on `[-1/e, 0]` by Halley's method.
fn lambert_w0(x: f64) -> f64 {
    let e = std::f64::consts::E;
    // Series at the branch point, where Halley's method starts slowly.
    let p = (2.0 * (e * x + 1.0).max(0.0)).sqrt();
    let mut w = -1.0 + p - p * p / 3.0 + 11.0 / 72.0 * p.powi(3);
    for _ in 0..20 {
        let ew = w.exp();
        let f = w * ew - x;
        let slope = ew * (w + 1.0);
        if slope.abs() < 1e-14 {
            break;
        }
        let change = f / (slope - (w + 2.0) * f / (2.0 * w + 2.0));
        w -= change;
        if change.abs() < 1e-14 {
            break;
        }
    }
    w
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use proptest::prelude::*;

    const MINUTE: f64 = 60.0;
    const HOUR: f64 = 3600.0;

    fn minute() -> NonZeroU32 {
        NonZeroU32::new(60).unwrap()
    }

    #[test]
    fn intervals_are_those_that_daly_printed() {
        // Abstract of Daly 2006: checkpoints of 5 minutes.
        for (mtbf, daly_minutes, exact_minutes) in [
            (24.0 * HOUR, 116.69, 116.69),
            (6.0 * HOUR, 56.71, 56.714),
            (0.25 * HOUR, 9.14, 9.167),
        ] {
            assert!((daly(5.0 * MINUTE, mtbf) / MINUTE - daly_minutes).abs() < 0.005);
            let exact = exponential_optimum(5.0 * MINUTE, mtbf) / MINUTE;
            assert!((exact - exact_minutes).abs() < 0.005, "{exact}");
        }
        assert_eq!(daly(10.0, 5.0), 5.0);
    }

    #[test]
    fn a_constant_hazard_gives_dalys_interval() {
        let mtbf = 6.0 * HOUR;
        let curve = SurvivalCurve::exponential(minute(), 600, 1.0 / mtbf);
        let at = first_after(&curve, 300.0, 100.0 * HOUR).unwrap();
        assert!((at - daly(300.0, mtbf)).abs() < 1.0, "{at}");
    }

    #[test]
    fn a_hazard_that_rises_brings_the_checkpoint_forward() {
        let calm = SurvivalCurve::exponential(minute(), 600, 0.02 / HOUR);
        let storm = SurvivalCurve::from_estimates(
            minute(),
            (1..=600).map(|i| {
                let hours = f64::from(i) / 60.0;
                (-0.02 * hours - 1.0 * (hours - 2.0).max(0.0)).exp()
            }),
        );
        let calm = first_after(&calm, 300.0, 10.0 * HOUR).unwrap();
        let storm = first_after(&storm, 300.0, 10.0 * HOUR).unwrap();
        assert!(storm < calm, "{storm} {calm}");
        assert!(
            storm > 1.9 * HOUR,
            "before the storm nothing hurries: {storm}"
        );
    }

    #[test]
    fn a_host_that_never_fails_needs_no_checkpoint() {
        let curve = SurvivalCurve::exponential(minute(), 600, 0.0);
        assert_eq!(first_after(&curve, 10.0, 10.0 * HOUR), None);
        assert_eq!(
            schedule(&curve, 10.0, 10.0, 10.0 * HOUR, 100),
            Vec::<f64>::new()
        );
        assert_eq!(equivalent_mtbf(&curve), f64::INFINITY);
    }

    #[test]
    fn a_host_that_fails_now_is_checkpointed_after_little_work() {
        let curve = SurvivalCurve::new(minute(), vec![1.0, 0.0]).unwrap();
        let at = first_after(&curve, 10.0, HOUR).unwrap();
        assert!(at.is_finite() && at > 0.0 && at <= 70.0, "{at}");
    }

    #[test]
    fn a_schedule_covers_the_job_at_even_distances_under_a_constant_hazard() {
        let mtbf = 5.0 * HOUR;
        let curve = SurvivalCurve::exponential(minute(), 600, 1.0 / mtbf);
        let times = schedule(&curve, 60.0, 60.0, 12.0 * HOUR, 1000);
        let expected = daly(60.0, mtbf);
        assert!(times.len() as f64 > 12.0 * HOUR / expected - 2.0);
        for pair in times.windows(2) {
            assert!(
                (pair[1] - pair[0] - expected - 60.0).abs() < 2.0,
                "{pair:?}"
            );
        }
        assert_eq!(schedule(&curve, 60.0, 60.0, 12.0 * HOUR, 3).len(), 3);
    }

    #[test]
    fn dalys_interval_is_near_the_best_makespan() {
        let costs = Costs {
            checkpoint_seconds: 300.0,
            restore_seconds: 300.0,
            downtime_seconds: 60.0,
        };
        let work = 24.0 * HOUR;
        let mtbf = 5.0 * HOUR;
        let at = |interval| expected_makespan(work, interval, mtbf, &costs);
        let best = at(exponential_optimum(300.0, mtbf));
        assert!(at(daly(300.0, mtbf)) / best < 1.001);
        assert!(at(3.0 * daly(300.0, mtbf)) / best > 1.05);
        assert!(at(daly(300.0, mtbf) / 3.0) / best > 1.05);
    }

    #[test]
    fn the_equivalent_mtbf_of_an_exponential_is_its_mean() {
        let curve = SurvivalCurve::exponential(minute(), 600, 1.0 / 7000.0);
        assert!((equivalent_mtbf(&curve) - 7000.0).abs() < 1.0);
    }

    proptest! {
        #[test]
        fn any_curve_gives_a_time_within_bounds(
            hazards in prop::collection::vec(0.0f64..=1.0, 1..60),
            checkpoint in 0.1f64..2000.0,
            longest in 1.0f64..100_000.0,
        ) {
            let hazards = hazards.iter().map(|h| crate::Probability::saturating(*h));
            let curve = SurvivalCurve::from_hazards(minute(), hazards);
            if let Some(at) = first_after(&curve, checkpoint, longest) {
                prop_assert!(at > 0.0 && at < longest);
            }
            let least = 2.0 * checkpoint;
            let times = schedule(&curve, checkpoint, least, longest, 50);
            prop_assert!(times.len() <= 50);
            prop_assert!(times.first().is_none_or(|first| *first >= least));
            prop_assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= least));
        }

        #[test]
        fn lambert_inverts_its_definition(w in -0.999f64..0.0) {
            prop_assert!((lambert_w0(w * w.exp()) - w).abs() < 1e-6);
        }
    }
}
