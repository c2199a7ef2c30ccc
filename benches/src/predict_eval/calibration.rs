//! Calibration: after it, of the hosts that are predicted to survive with probability p a share p does.

use placement::Probability;
use placement::likelihood::maximise_likelihood;

/// Probabilities are clamped to this distance from 0 and 1: no finite history proves that a host cannot
/// fail, or must fail.
const MARGIN: f64 = 1e-5;

/// A correction `ln H' = intercept + slope * ln H` of the cumulative hazard `H = -ln TR`, learnt
/// from forecasts whose outcome is known. It preserves order, so a corrected curve never rises either.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    intercept: f64,
    slope: f64,
}

impl Default for Calibration {
    /// The parameters that change no forecast.
    fn default() -> Self {
        Self {
            intercept: 0.0,
            slope: 1.0,
        }
    }
}

impl Calibration {
    /// A correction with these parameters; `None` unless both are finite and the slope is positive.
    #[must_use]
    pub fn new(intercept: f64, slope: f64) -> Option<Self> {
        let valid = intercept.is_finite() && slope.is_finite() && slope > 0.0;
        valid.then_some(Self { intercept, slope })
    }

    /// Learns the correction from pairs of a predicted TR and whether the host survived: the most likely
    /// intercept and slope, held back towards 0 and 1, so that few pairs change little.
    #[must_use]
    pub fn fit(forecasts: &[(Probability, bool)]) -> Self {
        let weights = maximise_likelihood(&[0.0, 1.0], &[1.0, 10.0], |each| {
            for &(predicted, survived) in forecasts {
                each(&[1.0, log_cumulative_hazard(predicted)], !survived);
            }
        });
        match weights.as_slice() {
            &[intercept, slope] => Self::new(intercept, slope).unwrap_or_default(),
            _ => Self::default(),
        }
    }

    /// The corrected probability of surviving.
    #[must_use]
    pub fn apply(&self, predicted: Probability) -> Probability {
        if *self == Self::default() {
            return predicted;
        }
        let hazard = self.apply_to_hazard(-predicted.value().max(f64::MIN_POSITIVE).ln());
        Probability::saturating((-hazard).exp())
    }

    /// The corrected cumulative hazard `H'` for `H = cumulative`. It rises with `H`.
    #[must_use]
    pub fn apply_to_hazard(&self, cumulative: f64) -> f64 {
        if *self == Self::default() {
            return cumulative;
        }
        let least = -(-MARGIN).ln_1p();
        let most = -MARGIN.ln();
        (self.intercept + self.slope * cumulative.clamp(least, most).ln()).exp()
    }
}

/// `ln H` of a probability of survival.
fn log_cumulative_hazard(survival: Probability) -> f64 {
    (-survival.value().clamp(MARGIN, 1.0 - MARGIN).ln()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn p(value: f64) -> Probability {
        Probability::new(value).unwrap()
    }

    #[test]
    fn without_forecasts_nothing_is_corrected() {
        assert_eq!(Calibration::fit(&[]), Calibration::default());
        assert_eq!(Calibration::default().apply(p(0.7)), p(0.7));
    }

    #[test]
    fn forecasts_that_are_too_low_are_raised() {
        let forecasts: Vec<_> = (0..1000)
            .map(|i| (p(if i % 2 == 0 { 0.3 } else { 0.6 }), i % 10 != 0))
            .collect();
        let calibration = Calibration::fit(&forecasts);
        let mean = (calibration.apply(p(0.3)).value() + calibration.apply(p(0.6)).value()) / 2.0;
        assert!((mean - 0.9).abs() < 0.01, "{mean}");
    }

    proptest! {
        #[test]
        fn order_is_kept(
            forecasts in prop::collection::vec((0.0f64..=1.0, any::<bool>()), 0..100),
        ) {
            let forecasts: Vec<_> = forecasts.into_iter().map(|(value, y)| (p(value), y)).collect();
            let calibration = Calibration::fit(&forecasts);
            prop_assert!(calibration.apply(p(0.2)) <= calibration.apply(p(0.8)));
        }
    }
}
