//! Weights of the hazard regression, survival curves from them, and how they are learnt.

use std::num::NonZeroU32;

use super::level::Level;
use super::pretrained::PARAMETERS_FROM_TRACES;
use super::summary::{Covariates, HOUR_SECONDS, INTERVAL_COVARIATES, LANDMARK_COVARIATES};
use super::{INTERVAL_ENDS, INTERVALS, interval_start};
use crate::history::FollowUp;
use crate::likelihood::maximise_likelihood;
use crate::survival::SurvivalCurve;

/// Number of weights, in this order: an intercept for each interval; a weight for each interval covariate;
/// one for each landmark covariate; one for each product of a landmark covariate with the interval's place
/// in the horizon ([`place_in_horizon`]).
const WEIGHTS: usize = INTERVALS + INTERVAL_COVARIATES + 2 * LANDMARK_COVARIATES;
/// Number of parameters: pooled hazards and weights.
const PARAMETERS: usize = INTERVALS + WEIGHTS;
/// Index of the first weight of an interval covariate.
const AFTER_INTERCEPTS: usize = INTERVALS;
/// Index of the first weight of a landmark covariate.
const AFTER_INTERVALS: usize = AFTER_INTERCEPTS + INTERVAL_COVARIATES;
/// Index of the first weight of a product with the place in the horizon.
const AFTER_LANDMARK: usize = AFTER_INTERVALS + LANDMARK_COVARIATES;

/// Failure rate that is assumed where nothing at all is known: once in two days.
const PRIOR_RATE_PER_SECOND: f64 = 0.5 / 86_400.0;
/// How strongly a fit holds the intercepts near their prior values (see [`maximise_likelihood`]): weakly.
const INTERCEPT_PENALTY: f64 = 0.5;
/// How strongly a fit holds the other weights near their prior values.
const WEIGHT_PENALTY: f64 = 5.0;

/// Covariates of a host at a landmark, and what became of the host.
#[derive(Clone, Debug)]
pub struct Example {
    /// The host at the landmark.
    pub covariates: Covariates,
    /// The time after the landmark, as far as it was observed.
    pub follow_up: FollowUp,
}

/// A fitted hazard regression, common to all hosts of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct HazardModel {
    /// Probability, over the whole pool, of failing in each interval, given survival to its beginning.
    pool: [f64; INTERVALS],
    weights: [f64; WEIGHTS],
}

/// The numbers offered are not the parameters of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParametersError {
    /// There are fewer or more numbers than a model has parameters.
    #[error("{found} parameters of a hazard model: expected {PARAMETERS}")]
    Count {
        /// How many numbers were offered.
        found: usize,
    },
    /// One is not finite, or a pooled hazard is not between 0 and 1.
    #[error("parameter {index} of a hazard model is out of range")]
    Range {
        /// Index of the first such number, from 0.
        index: usize,
    },
}

impl Default for HazardModel {
    /// A model that was fitted to nothing: one failure in two days, or the frequency that the host's own
    /// history shows.
    fn default() -> Self {
        Self::with_pool(std::array::from_fn(|j| {
            let width = (INTERVAL_ENDS[j] - interval_start(j)) as f64;
            -(-PRIOR_RATE_PER_SECOND * width).exp_m1()
        }))
    }
}

impl HazardModel {
    /// The model as shipped: weights fitted on public traces, for a grid that has none of its own.
    #[must_use]
    pub fn pretrained() -> Self {
        Self::from_parameters(&PARAMETERS_FROM_TRACES).unwrap_or_default()
    }

    /// A model in which each host fails as often as its own history says, shrunk towards the
    /// hazards `pool`.
    fn with_pool(pool: [f64; INTERVALS]) -> Self {
        let mut weights = [0.0; WEIGHTS];
        for (weight, hazard) in weights.iter_mut().zip(&pool) {
            *weight = (-(-hazard).ln_1p()).ln();
        }
        weights[AFTER_INTERCEPTS] = 1.0;
        Self { pool, weights }
    }

    /// The model as numbers: the hazards of the pool, and the weights.
    #[must_use]
    pub fn parameters(&self) -> Vec<f64> {
        self.pool.iter().chain(&self.weights).copied().collect()
    }

    /// The model with these [`parameters`](Self::parameters).
    ///
    /// # Errors
    /// [`ParametersError`] if no model has them.
    pub fn from_parameters(parameters: &[f64]) -> Result<Self, ParametersError> {
        let found = parameters.len();
        let count = ParametersError::Count { found };
        let (pool, rest) = parameters.split_first_chunk::<INTERVALS>().ok_or(count)?;
        let (weights, rest) = rest.split_first_chunk::<WEIGHTS>().ok_or(count)?;
        if !rest.is_empty() {
            return Err(count);
        }
        let in_range = |(index, value): (usize, &f64)| match index {
            0..INTERVALS => *value > 0.0 && *value < 1.0,
            _ => value.is_finite(),
        };
        if let Some(index) = parameters
            .iter()
            .enumerate()
            .position(|pair| !in_range(pair))
        {
            return Err(ParametersError::Range { index });
        }
        Ok(Self {
            pool: *pool,
            weights: *weights,
        })
    }

    /// Hazards of the whole pool, relative to which
    /// [`HostSummary::covariates`](super::HostSummary::covariates) states a host's frequencies.
    #[must_use]
    pub const fn pool(&self) -> &[f64; INTERVALS] {
        &self.pool
    }

    /// A model with the hazards of a pool, from what became of its hosts. This is the first step of a fit,
    /// since the covariates of the examples are relative to these hazards. Each hazard is
    /// `(failed + 1/2) / (at risk + 1/2 / prior hazard)`.
    #[must_use]
    pub fn of_pool(follow_ups: impl IntoIterator<Item = FollowUp>) -> Self {
        let mut pool = Self::default().pool;
        let mut failed = [0.0; INTERVALS];
        let mut at_risk = [0.0; INTERVALS];
        for follow_up in follow_ups {
            for (interval, failure) in outcomes(follow_up) {
                at_risk[interval] += 1.0;
                failed[interval] += f64::from(u8::from(failure));
            }
        }
        for ((hazard, failed), at_risk) in pool.iter_mut().zip(failed).zip(at_risk) {
            *hazard = (failed + 0.5) / (at_risk + 0.5 / *hazard);
        }
        Self::with_pool(pool)
    }

    /// Learns the weights from examples whose covariates are relative to [`pool`](Self::pool). The present
    /// weights are the prior, so few examples change little.
    #[must_use]
    pub fn fit(&self, examples: &[Example]) -> Self {
        let mut penalties = [WEIGHT_PENALTY; WEIGHTS];
        penalties[..AFTER_INTERCEPTS].fill(INTERCEPT_PENALTY);
        let fitted = maximise_likelihood(&self.weights, &penalties, |each| {
            let mut row = [0.0; WEIGHTS];
            for example in examples.iter().filter(|example| !example.covariates.failed) {
                for (interval, failed) in outcomes(example.follow_up) {
                    fill_row(&mut row, &example.covariates, interval);
                    each(&row, failed);
                }
            }
        });
        let mut weights = self.weights;
        weights
            .iter_mut()
            .zip(fitted)
            .for_each(|(weight, fitted)| *weight = fitted);
        Self {
            pool: self.pool,
            weights,
        }
    }

    /// Expected number of failures in each interval, given survival to its beginning:
    /// `exp(x_j * w)`, the rate times the length of the interval.
    pub(super) fn expected_failures(&self, covariates: &Covariates) -> [f64; INTERVALS] {
        let dot = |from: usize, values: &[f32]| -> f64 {
            let weights = self.weights.iter().skip(from);
            weights
                .zip(values)
                .map(|(weight, &value)| weight * f64::from(value))
                .sum()
        };
        let constant = dot(AFTER_INTERVALS, &covariates.landmark);
        let slope = dot(AFTER_LANDMARK, &covariates.landmark);
        std::array::from_fn(|j| {
            let own = dot(AFTER_INTERCEPTS, &covariates.intervals[j]);
            (self.weights[j] + own + constant + slope * place_in_horizon(j))
                .clamp(-30.0, 5.0)
                .exp()
        })
    }

    /// TR at every one of `steps` steps. Beyond ten hours the failure rate is that of the last interval.
    ///
    /// A host in a failure state has a curve that is zero after the first instant.
    #[must_use]
    pub fn curve(
        &self,
        covariates: &Covariates,
        step_seconds: NonZeroU32,
        steps: usize,
    ) -> SurvivalCurve {
        self.curve_at(covariates, Level::default(), step_seconds, steps)
    }

    /// The same curve for a host of this level: the hazards of the first hour are multiplied by
    /// [`Level::factor`].
    #[must_use]
    pub fn curve_at(
        &self,
        covariates: &Covariates,
        level: Level,
        step_seconds: NonZeroU32,
        steps: usize,
    ) -> SurvivalCurve {
        if covariates.failed {
            return SurvivalCurve::from_estimates(step_seconds, std::iter::repeat_n(0.0, steps));
        }
        let mut hazards = self.expected_failures(covariates);
        // The level was measured on the hour after each forecast, so it is applied to that hour alone.
        let first_hour = hazards.iter_mut().zip(INTERVAL_ENDS);
        for (hazard, _) in first_hour.filter(|(_, end)| *end <= HOUR_SECONDS) {
            *hazard *= level.factor();
        }
        let step = f64::from(step_seconds.get());
        let mut values = vec![1.0; steps + 1];
        let mut before = 0.0;
        let mut done = 0;
        for (j, hazard) in hazards.iter().enumerate() {
            let start = interval_start(j) as f64;
            let end = INTERVAL_ENDS[j] as f64;
            let rate = hazard / (end - start);
            // The last step that ends within this interval; the last interval has no end.
            let last = if j + 1 == INTERVALS {
                steps
            } else {
                ((end / step) as usize).min(steps)
            };
            let offset = (done + 1) as f64 * step - start;
            let mut value = (-(before + rate * offset)).exp();
            let factor = (-rate * step).exp();
            for slot in values.iter_mut().take(last + 1).skip(done + 1) {
                *slot = value;
                value *= factor;
            }
            (before, done) = (before + hazard, done.max(last));
        }
        SurvivalCurve::from_computed(step_seconds, values)
    }
}

/// Place of an interval in the horizon, by the logarithm of its end: 0 for the first, 1 for the last.
fn place_in_horizon(interval: usize) -> f64 {
    let end = |j: usize| (INTERVAL_ENDS[j] as f64).ln();
    (end(interval) - end(0)) / (end(INTERVALS - 1) - end(0))
}

/// The intervals that were observed to their end or to a failure, each with whether it was a failure.
fn outcomes(follow_up: FollowUp) -> impl Iterator<Item = (usize, bool)> {
    let reached = INTERVAL_ENDS.partition_point(|&end| end <= follow_up.seconds);
    let failing = (follow_up.failed && reached < INTERVALS).then_some((reached, true));
    (0..reached)
        .map(|interval| (interval, false))
        .chain(failing)
}

/// Sets `row` to the `x_j` of interval `j`, in the order of [`WEIGHTS`].
fn fill_row(row: &mut [f64; WEIGHTS], covariates: &Covariates, interval: usize) {
    row[..AFTER_INTERCEPTS].fill(0.0);
    row[interval] = 1.0;
    let own = &covariates.intervals[interval];
    for (cell, &value) in row[AFTER_INTERCEPTS..AFTER_INTERVALS].iter_mut().zip(own) {
        *cell = f64::from(value);
    }
    let place = place_in_horizon(interval);
    for (k, &value) in covariates.landmark.iter().enumerate() {
        row[AFTER_INTERVALS + k] = f64::from(value);
        row[AFTER_LANDMARK + k] = f64::from(value) * place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hazard::HostSummary;
    use crate::state::AvailabilityState::{self, Gone, Idle};
    use proptest::prelude::*;

    const STEP: NonZeroU32 = NonZeroU32::new(6).unwrap();

    fn host(up_seconds: u64, periods: u64) -> HostSummary<AvailabilityState> {
        let mut summary = HostSummary::new(0);
        let period = up_seconds + 600;
        for i in 0..periods {
            summary.observe(i * period..i * period + up_seconds, Some(Idle), None);
            summary.observe(i * period + up_seconds..(i + 1) * period, Some(Gone), None);
        }
        summary.observe(periods * period..periods * period + 60, Some(Idle), None);
        summary
    }

    #[test]
    fn without_history_the_prior_rate_holds() {
        let model = HazardModel::default();
        let nobody = HostSummary::<AvailabilityState>::new(0);
        let curve = model.curve(&nobody.covariates(model.pool()), STEP, 6000);
        for hours in [1.0, 5.0, 10.0] {
            let expected = (-PRIOR_RATE_PER_SECOND * hours * 3600.0).exp();
            assert!(
                (curve.at(hours * 3600.0).value() - expected).abs() < 1e-9,
                "{hours}"
            );
        }
    }

    #[test]
    fn a_host_that_fails_often_is_believed_without_any_fit() {
        let model = HazardModel::default();
        let flaky = host(3000, 100);
        let steady = host(500_000, 4);
        let tr = |host: &HostSummary<_>| {
            model
                .curve(&host.covariates(model.pool()), STEP, 600)
                .at(3600.0)
                .value()
        };
        assert!(tr(&flaky) < 0.4, "{}", tr(&flaky));
        assert!(tr(&steady) > 0.95, "{}", tr(&steady));
    }

    #[test]
    fn parameters_and_back_is_the_same_model() {
        let model = HazardModel::pretrained();
        let mut parameters = model.parameters();
        assert_eq!(HazardModel::from_parameters(&parameters), Ok(model));
        let count = ParametersError::Count {
            found: PARAMETERS - 1,
        };
        assert_eq!(HazardModel::from_parameters(&parameters[1..]), Err(count));
        parameters[20] = f64::NAN;
        let range = ParametersError::Range { index: 20 };
        assert_eq!(HazardModel::from_parameters(&parameters), Err(range));
    }

    #[test]
    fn the_shipped_parameters_are_a_model() {
        assert_eq!(
            HazardModel::pretrained().parameters(),
            PARAMETERS_FROM_TRACES
        );
        assert_ne!(HazardModel::pretrained(), HazardModel::default());
    }

    #[test]
    fn the_shipped_model_distinguishes_flaky_hosts_from_steady_ones() {
        let model = HazardModel::pretrained();
        let tr = |host: HostSummary<_>| {
            model
                .curve(&host.covariates(model.pool()), STEP, 600)
                .at(3600.0)
                .value()
        };
        let flaky = tr(host(3000, 100));
        let steady = tr(host(500_000, 4));
        assert!(flaky < 0.7 && steady > 0.9, "{flaky} {steady}");
    }

    #[test]
    fn a_failed_host_does_not_survive() {
        let mut gone = HostSummary::new(0);
        gone.observe(0..10, Some(Gone), None);
        let model = HazardModel::default();
        let curve = model.curve(&gone.covariates(model.pool()), STEP, 2);
        assert_eq!(curve.values(), [1.0, 0.0, 0.0]);
    }

    #[test]
    fn fitting_learns_what_the_examples_show() {
        let examples: Vec<Example> = (0..2000)
            .map(|i| Example {
                covariates: HostSummary::<AvailabilityState>::new(0)
                    .covariates(HazardModel::default().pool()),
                follow_up: FollowUp {
                    seconds: if i % 2 == 0 { 600 } else { 36_000 },
                    failed: i % 2 == 0,
                },
            })
            .collect();
        let fitted = HazardModel::default().fit(&examples);
        let nobody = HostSummary::<AvailabilityState>::new(0);
        let curve = fitted.curve(&nobody.covariates(fitted.pool()), STEP, 6000);
        assert!(
            (curve.at(900.0).value() - 0.5).abs() < 0.02,
            "{}",
            curve.at(900.0)
        );
        assert!(
            (curve.at(36_000.0).value() - 0.5).abs() < 0.03,
            "{}",
            curve.at(36_000.0)
        );
    }

    #[test]
    fn censored_examples_count_for_the_intervals_they_reached() {
        let seen: Vec<_> = outcomes(FollowUp {
            seconds: 1000,
            failed: false,
        })
        .collect();
        assert_eq!(seen, [(0, false), (1, false)]);
        let seen: Vec<_> = outcomes(FollowUp {
            seconds: 1000,
            failed: true,
        })
        .collect();
        assert_eq!(seen, [(0, false), (1, false), (2, true)]);
        let seen: Vec<_> = outcomes(FollowUp {
            seconds: 36_000,
            failed: true,
        })
        .collect();
        assert_eq!(seen.len(), INTERVALS);
        assert!(seen.iter().all(|&(_, failed)| !failed));
    }

    proptest! {
        #[test]
        fn the_curve_does_not_depend_on_the_step(
            up in 600u64..200_000, periods in 1u64..20, step in 1u32..2000,
        ) {
            let model = HazardModel::default();
            let covariates = host(up, periods).covariates(model.pool());
            let fine = model.curve(&covariates, NonZeroU32::MIN, 40_000);
            let coarse = model.curve(&covariates, NonZeroU32::new(step).unwrap(), 20);
            for (i, value) in coarse.values().iter().enumerate() {
                let exact = fine.at((i as u32 * step) as f64).value();
                prop_assert!((value - exact).abs() < 1e-6, "{i} {value} {exact}");
            }
        }
    }
}
