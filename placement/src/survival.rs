//! Survival curves: the temporal reliability (TR) of a host at every step of a horizon.

use std::num::NonZeroU32;

use crate::probability::Probability;

/// Temporal reliability TR(t) of a host at `t = 0, step, 2 step, ...`: the probability that it
/// leaves the usable states at no time up to `t`. Starts at one and never rises.
#[derive(Clone, Debug, PartialEq)]
pub struct SurvivalCurve {
    step_seconds: NonZeroU32,
    /// TR after `i` steps at index `i`; index 0 is 1.
    values: Vec<f64>,
}

/// The numbers offered are not a survival curve.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SurvivalCurveError {
    /// There is no value at all.
    #[error("a survival curve needs at least the value at time zero")]
    Empty,
    /// The first value is not one.
    #[error("a survival curve starts at 1, not at {0}")]
    Start(f64),
    /// A value is NaN, outside `[0, 1]`, or greater than the one before.
    #[error("value {value} at step {step} of a survival curve: expected from 0 to {previous}")]
    NotDecreasing {
        /// Step at which it happened.
        step: usize,
        /// The value found there.
        value: f64,
        /// The value one step before.
        previous: f64,
    },
}

impl SurvivalCurve {
    /// A curve from its values, `values[i]` being TR after `i` steps.
    ///
    /// # Errors
    /// [`SurvivalCurveError`] if the values do not start at one, rise, or leave `[0, 1]`.
    pub fn new(step_seconds: NonZeroU32, values: Vec<f64>) -> Result<Self, SurvivalCurveError> {
        let first = *values.first().ok_or(SurvivalCurveError::Empty)?;
        if first != 1.0 {
            return Err(SurvivalCurveError::Start(first));
        }
        let mut previous = first;
        for (step, &value) in values.iter().enumerate() {
            if !(0.0..=previous).contains(&value) {
                return Err(SurvivalCurveError::NotDecreasing {
                    step,
                    value,
                    previous,
                });
            }
            previous = value;
        }
        Ok(Self {
            step_seconds,
            values,
        })
    }

    /// A curve from the probability of failing in each step, given survival to the step's beginning.
    #[must_use]
    pub fn from_hazards(
        step_seconds: NonZeroU32,
        hazards: impl IntoIterator<Item = Probability>,
    ) -> Self {
        let mut alive = 1.0;
        let failing = hazards.into_iter().map(|hazard| {
            alive *= hazard.complement().value();
            alive
        });
        let values = std::iter::once(1.0).chain(failing).collect();
        Self {
            step_seconds,
            values,
        }
    }

    /// A curve from estimates that rounding or independent fits may have left slightly out of
    /// order: each value is clamped to the range from zero to the value before it. `after_start[i]` is
    /// TR after `i + 1` steps.
    #[must_use]
    pub fn from_estimates(
        step_seconds: NonZeroU32,
        after_start: impl IntoIterator<Item = f64>,
    ) -> Self {
        let after_start = after_start.into_iter();
        let mut values = Vec::with_capacity(after_start.size_hint().0 + 1);
        let mut previous: f64 = 1.0;
        values.push(previous);
        for value in after_start {
            // NaN fails the comparison and becomes zero, as in `Probability::saturating`.
            previous = if value > 0.0 {
                previous.min(value)
            } else {
                0.0
            };
            values.push(previous);
        }
        Self {
            step_seconds,
            values,
        }
    }

    /// A curve from probabilities of which the first is 1, and that rise at most by errors of rounding.
    pub(crate) fn from_computed(step_seconds: NonZeroU32, mut values: Vec<f64>) -> Self {
        let mut previous = 1.0;
        for value in &mut values {
            if *value > previous {
                *value = previous;
            }
            previous = *value;
        }
        debug_assert!(
            values.first() == Some(&1.0) && values.iter().all(|v| (0.0..=1.0).contains(v))
        );
        Self {
            step_seconds,
            values,
        }
    }

    /// The curve of a host that fails at the same rate at all times: `exp(-rate * t)`.
    #[must_use]
    pub fn exponential(step_seconds: NonZeroU32, steps: usize, rate_per_second: f64) -> Self {
        let step = f64::from(step_seconds.get());
        let value = |i: usize| (-rate_per_second.max(0.0) * step * i as f64).exp();
        Self::from_estimates(step_seconds, (1..=steps).map(value))
    }

    /// Seconds between two values.
    #[must_use]
    pub const fn step_seconds(&self) -> NonZeroU32 {
        self.step_seconds
    }

    /// TR after 0, 1, 2, ... steps; never empty.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Number of steps after time zero.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.values.len().saturating_sub(1)
    }

    /// The last time for which the curve has a value, seconds.
    #[must_use]
    pub fn horizon_seconds(&self) -> f64 {
        self.steps() as f64 * f64::from(self.step_seconds.get())
    }

    /// TR after `seconds`. Between two steps the hazard is constant. Beyond the horizon the hazard is the
    /// mean hazard of the last quarter of the curve: with no hazard there, short curves would look better
    /// than long ones.
    #[must_use]
    pub fn at(&self, seconds: f64) -> Probability {
        let position = (seconds / f64::from(self.step_seconds.get())).max(0.0);
        let last = self.steps();
        if position >= last as f64 {
            let tail = self.tail_hazard_per_step();
            let beyond = position - last as f64;
            let factor = if beyond > 0.0 {
                (-tail * beyond).exp()
            } else {
                1.0
            };
            return Probability::saturating(self.value(last) * factor);
        }
        let index = position as usize;
        let low = self.value(index);
        let high = self.value(index + 1);
        let share = position - index as f64;
        let value = if high > 0.0 {
            low * (high / low).powf(share)
        } else {
            low * (1.0 - share)
        };
        Probability::saturating(value)
    }

    /// Failure rate `-d ln TR / dt` per second at `seconds`, constant within a step. Infinite in a
    /// step in which the curve falls to zero and after it.
    #[must_use]
    pub fn hazard_per_second(&self, seconds: f64) -> f64 {
        let step = f64::from(self.step_seconds.get());
        let position = (seconds / step).max(0.0);
        let per_step = if position >= self.steps() as f64 {
            self.tail_hazard_per_step()
        } else {
            let index = position as usize;
            log_ratio(self.value(index), self.value(index + 1))
        };
        per_step / step
    }

    /// Expected time until the failure or the horizon, whichever comes first: `INT_0^horizon TR(t) dt` by
    /// trapezoids, seconds.
    #[must_use]
    pub fn restricted_mean_seconds(&self) -> f64 {
        let steps: f64 = self
            .values
            .windows(2)
            .map(|pair| pair.iter().sum::<f64>() / 2.0)
            .sum();
        steps * f64::from(self.step_seconds.get())
    }

    /// The same curve in `steps` steps of another length.
    #[must_use]
    pub fn resampled(&self, step_seconds: NonZeroU32, steps: usize) -> Self {
        let step = f64::from(step_seconds.get());
        let value = |i: usize| self.at(i as f64 * step).value();
        Self::from_estimates(step_seconds, (1..=steps).map(value))
    }

    /// The curve from `e = elapsed_seconds` on, given survival until then: TR(e + t) / TR(e) over
    /// the rest of the horizon. If TR(e) is zero, it is zero from the first step on.
    #[must_use]
    pub fn given_survival_until(&self, elapsed_seconds: f64) -> Self {
        let step = f64::from(self.step_seconds.get());
        let elapsed = elapsed_seconds.clamp(0.0, self.horizon_seconds());
        let base = self.at(elapsed).value();
        let left = ((self.horizon_seconds() - elapsed) / step) as usize;
        let value = |i: usize| {
            if base > 0.0 {
                self.at(elapsed + i as f64 * step).value() / base
            } else {
                0.0
            }
        };
        Self::from_estimates(self.step_seconds, (1..=left).map(value))
    }

    /// TR after `index` steps; zero beyond the horizon.
    fn value(&self, index: usize) -> f64 {
        self.values.get(index).copied().unwrap_or(0.0)
    }

    /// Mean hazard of the last quarter of the curve, per step.
    fn tail_hazard_per_step(&self) -> f64 {
        let last = self.steps();
        if last == 0 {
            return 0.0;
        }
        let from = last - last.div_ceil(4);
        log_ratio(self.value(from), self.value(last)) / (last - from) as f64
    }
}

/// `ln(earlier / later)`, the hazard over a step; infinite if `later` is zero.
fn log_ratio(earlier: f64, later: f64) -> f64 {
    if later > 0.0 {
        (earlier / later).ln()
    } else {
        f64::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(n: u32) -> NonZeroU32 {
        NonZeroU32::new(n).unwrap()
    }

    #[test]
    fn values_that_are_no_survival_curve_are_refused() {
        let new = |values: &[f64]| SurvivalCurve::new(seconds(6), values.to_vec());
        assert_eq!(new(&[]), Err(SurvivalCurveError::Empty));
        assert_eq!(new(&[0.9]), Err(SurvivalCurveError::Start(0.9)));
        assert!(matches!(
            new(&[1.0, 0.5, 0.6]),
            Err(SurvivalCurveError::NotDecreasing { step: 2, .. })
        ));
        assert!(new(&[1.0, f64::NAN]).is_err());
        assert!(new(&[1.0, -0.1]).is_err());
        assert!(new(&[1.0, 1.0, 0.0]).is_ok());
    }

    #[test]
    fn an_exponential_curve_has_its_rate_as_hazard_everywhere() {
        let curve = SurvivalCurve::exponential(seconds(60), 100, 1e-4);
        for t in [0.0, 30.0, 59.0, 61.0, 3000.5, 6000.0, 90_000.0] {
            assert!((curve.hazard_per_second(t) - 1e-4).abs() < 1e-12, "{t}");
            assert!(
                (curve.at(t).value() - (-1e-4 * t).exp()).abs() < 1e-12,
                "{t}"
            );
        }
    }

    #[test]
    fn a_curve_that_reaches_zero_stays_there() {
        let curve = SurvivalCurve::new(seconds(10), vec![1.0, 0.5, 0.0]).unwrap();
        assert_eq!(curve.at(15.0).value(), 0.25);
        assert_eq!(curve.at(20.0), Probability::ZERO);
        assert_eq!(curve.at(1e9), Probability::ZERO);
        assert_eq!(curve.hazard_per_second(12.0), f64::INFINITY);
    }

    #[test]
    fn a_curve_with_only_its_start_says_certain_at_all_times() {
        let curve = SurvivalCurve::new(seconds(10), vec![1.0]).unwrap();
        assert_eq!(curve.at(500.0), Probability::ONE);
        assert_eq!(curve.hazard_per_second(500.0), 0.0);
    }

    #[test]
    fn mean_time_to_failure_is_the_area() {
        let curve = SurvivalCurve::new(seconds(10), vec![1.0, 0.5, 0.0]).unwrap();
        assert!((curve.restricted_mean_seconds() - 10.0).abs() < 1e-12);
    }

    #[test]
    fn surviving_the_first_part_divides_it_out() {
        let curve = SurvivalCurve::new(seconds(10), vec![1.0, 0.8, 0.4, 0.2]).unwrap();
        let later = curve.given_survival_until(10.0);
        let expected = [1.0, 0.5, 0.25];
        assert_eq!(later.steps(), 2);
        for (value, expected) in later.values().iter().zip(expected) {
            assert!((value - expected).abs() < 1e-12);
        }
    }

    proptest! {
        #[test]
        fn any_hazards_make_a_curve(
            hazards in prop::collection::vec(any::<f64>(), 0..50),
            t in any::<f64>(),
        ) {
            let curve = SurvivalCurve::from_hazards(
                seconds(6), hazards.iter().map(|&h| Probability::saturating(h)));
            prop_assert!(SurvivalCurve::new(seconds(6), curve.values().to_vec()).is_ok());
            prop_assert!((0.0..=1.0).contains(&curve.at(t).value()));
            prop_assert!(curve.hazard_per_second(t) >= 0.0);
        }

        #[test]
        fn interpolation_never_rises(
            hazards in prop::collection::vec(0.0f64..=1.0, 1..50),
            step in 0.01f64..20.0,
        ) {
            let curve = SurvivalCurve::from_hazards(
                seconds(6), hazards.iter().map(|&h| Probability::saturating(h)));
            let mut previous = Probability::ONE;
            for i in 0..100 {
                let now = curve.at(f64::from(i) * step);
                prop_assert!(now <= previous);
                previous = now;
            }
            let coarse = curve.resampled(seconds(17), 20);
            prop_assert!(SurvivalCurve::new(seconds(17), coarse.values().to_vec()).is_ok());
        }
    }
}
