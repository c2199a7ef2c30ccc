//! A number that is known to be a probability.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Mul;

/// A finite number in `[0, 1]`. Never NaN, so it is totally ordered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Probability(f64);

/// The value offered is not a probability.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{0} is not a probability: expected a number from 0 to 1")]
pub struct NotAProbability(pub f64);

impl Probability {
    /// Probability of an impossible event.
    pub const ZERO: Self = Self(0.0);
    /// Probability of a certain event.
    pub const ONE: Self = Self(1.0);

    /// Takes `value` if it is finite and in `[0, 1]`.
    ///
    /// # Errors
    /// [`NotAProbability`] for anything else, NaN included.
    pub fn new(value: f64) -> Result<Self, NotAProbability> {
        if (0.0..=1.0).contains(&value) {
            // Adding zero turns -0.0 into 0.0, so that equal values have equal bits.
            Ok(Self(value + 0.0))
        } else {
            Err(NotAProbability(value))
        }
    }

    /// The nearest probability to `value`, for results that rounding may have pushed outside `[0, 1]`.
    /// NaN becomes zero, so that a broken estimate is never trusted.
    #[must_use]
    pub fn saturating(value: f64) -> Self {
        if value.is_nan() {
            Self::ZERO
        } else {
            Self(value.clamp(0.0, 1.0) + 0.0)
        }
    }

    /// The estimate of a probability after `successes` in `trials`, with Jeffreys prior Beta(1/2, 1/2):
    /// `(successes + 1/2) / (trials + 1)`. One half without trials.
    #[must_use]
    pub fn jeffreys(successes: u64, trials: u64) -> Self {
        Self::saturating((successes as f64 + 0.5) / (trials as f64 + 1.0))
    }

    /// The probability as a number from 0 to 1.
    #[must_use]
    pub const fn value(self) -> f64 {
        self.0
    }

    /// The probability that the event does not happen.
    #[must_use]
    pub fn complement(self) -> Self {
        Self(1.0 - self.0)
    }
}

impl PartialEq for Probability {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Probability {}

impl PartialOrd for Probability {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Probability {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The probability that two independent events both happen.
impl Mul for Probability {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self(self.0 * other.0)
    }
}

impl TryFrom<f64> for Probability {
    type Error = NotAProbability;

    fn try_from(value: f64) -> Result<Self, Self::Error> {
        Self::new(value)
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_numbers_from_zero_to_one_are_probabilities() {
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(Probability::new(bad).is_err(), "{bad}");
        }
        for good in [0.0, 0.25, 1.0] {
            assert_eq!(Probability::new(good).unwrap().value(), good);
        }
    }

    #[test]
    fn negative_zero_equals_zero() {
        assert_eq!(Probability::new(-0.0).unwrap(), Probability::ZERO);
        assert_eq!(Probability::saturating(-0.0), Probability::ZERO);
    }

    #[test]
    fn saturating_never_trusts_nan() {
        assert_eq!(Probability::saturating(f64::NAN), Probability::ZERO);
        assert_eq!(Probability::saturating(f64::INFINITY), Probability::ONE);
        assert_eq!(Probability::saturating(-3.0), Probability::ZERO);
    }

    #[test]
    fn jeffreys_is_one_half_without_trials_and_never_certain() {
        assert_eq!(Probability::jeffreys(0, 0).value(), 0.5);
        assert!((Probability::jeffreys(20, 20).value() - 0.976).abs() < 5e-4);
        assert!(Probability::jeffreys(9, 9) < Probability::ONE);
    }

    #[test]
    fn the_error_names_the_value() {
        let error = Probability::new(1.5).unwrap_err();
        assert_eq!(
            error.to_string(),
            "1.5 is not a probability: expected a number from 0 to 1"
        );
    }

    proptest! {
        #[test]
        fn saturating_accepts_every_float(bits in any::<u64>()) {
            let p = Probability::saturating(f64::from_bits(bits));
            prop_assert!((0.0..=1.0).contains(&p.value()));
            prop_assert!((0.0..=1.0).contains(&p.complement().value()));
        }
    }
}
