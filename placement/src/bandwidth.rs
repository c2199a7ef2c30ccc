//! Forecasts of the rate at which a host can be reached, from what transfers measured.
//!
//! The method is that of the Network Weather Service (Wolski, Spring, Hayes 1999): several simple
//! predictors are run over the measurements, and the one with the least recent error makes the forecast.
//! Rates are handled as natural logarithms, since a link is as likely to be twice as fast as half as fast.
//! A forecast is a lognormal distribution: its median, and the standard deviation of the logarithm (the
//! *spread*).

use std::collections::VecDeque;

/// Measurements that are kept of one host.
pub const MEASUREMENTS_MAX: usize = 32;

/// Spread of a rate about which nothing is known: about `ln 3`, so that one standard deviation reaches from
/// a third of the guess to three times the guess.
pub const UNKNOWN_SPREAD: f64 = 1.1;

/// Smallest spread of a forecast, even if all measurements were equal.
const LEAST_SPREAD: f64 = 0.05;

/// Spread of a forecast from a single measurement.
const FIRST_SPREAD: f64 = 0.5;

/// Growth of a forecast's variance for each day since the newest measurement.
const VARIANCE_PER_DAY: f64 = 0.04;

/// Weight of each squared error relative to the next, newer one.
const FORGETTING: f64 = 0.85;

/// Seconds in a day.
const DAY_SECONDS: f64 = 86_400.0;

/// One transfer: when it ended, and its rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// When the transfer ended, Unix seconds.
    pub at: u64,
    /// Rate that the transfer showed, bytes per second.
    pub bytes_per_second: f64,
}

/// The latest measurements of one host, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateHistory {
    measurements: VecDeque<Measurement>,
}

/// The forecast of a rate: a lognormal distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateForecast {
    /// The rate that is as often exceeded as not reached, bytes per second.
    median: f64,
    /// Standard deviation of the natural logarithm of the rate.
    spread: f64,
}

/// The simple predictors. Each predicts the next logarithm of a rate from the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Predictor {
    /// The latest measured value, unchanged.
    Last,
    /// The mean of the latest values, at most this many.
    Mean(usize),
    /// The median of the latest values, at most this many.
    Median(usize),
    /// Exponential smoothing: the weight of each new value, per cent.
    Smoothed(u8),
}

impl Predictor {
    /// The predictors that are compared.
    pub const ALL: [Self; 10] = [
        Self::Last,
        Self::Mean(4),
        Self::Mean(8),
        Self::Mean(MEASUREMENTS_MAX),
        Self::Median(3),
        Self::Median(7),
        Self::Median(MEASUREMENTS_MAX),
        Self::Smoothed(10),
        Self::Smoothed(30),
        Self::Smoothed(60),
    ];

    /// The prediction after `values`; `None` when there are none.
    fn next(self, values: &[f64]) -> Option<f64> {
        let latest = |count: usize| &values[values.len().saturating_sub(count)..];
        let last = *values.last()?;
        Some(match self {
            Self::Last => last,
            Self::Mean(count) => {
                let window = latest(count);
                window.iter().sum::<f64>() / window.len() as f64
            }
            Self::Median(count) => median(latest(count)).unwrap_or(last),
            Self::Smoothed(percent) => {
                let gain = f64::from(percent) / 100.0;
                values
                    .iter()
                    .copied()
                    .reduce(|level, value| level + gain * (value - level))
                    .unwrap_or(last)
            }
        })
    }
}

impl RateHistory {
    /// Adds a measurement, unless its rate is no positive finite number. The oldest one is dropped when
    /// there are more than [`MEASUREMENTS_MAX`].
    pub fn observe(&mut self, measurement: Measurement) {
        let rate = measurement.bytes_per_second;
        if !(rate.is_finite() && rate > 0.0) {
            return;
        }
        if self.measurements.len() == MEASUREMENTS_MAX {
            self.measurements.pop_front();
        }
        self.measurements.push_back(measurement);
    }

    /// The measurements, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Measurement> {
        self.measurements.iter()
    }

    /// The rate expected at `now` (Unix seconds); `None` without a measurement.
    #[must_use]
    pub fn forecast(&self, now: u64) -> Option<RateForecast> {
        let logs: Vec<f64> = self
            .measurements
            .iter()
            .map(|measurement| measurement.bytes_per_second.ln())
            .collect();
        let newest = self.measurements.back()?;
        let (predictor, variance) = self.best(&logs);
        let age_days = now.saturating_sub(newest.at) as f64 / DAY_SECONDS;
        let variance = variance + VARIANCE_PER_DAY * age_days;
        Some(RateForecast {
            median: predictor.next(&logs)?.exp(),
            spread: variance.sqrt().clamp(LEAST_SPREAD, UNKNOWN_SPREAD),
        })
    }

    /// The predictor that makes the present forecast; `None` without a measurement.
    #[must_use]
    pub fn predictor(&self) -> Option<Predictor> {
        let logs: Vec<f64> = self.iter().map(|m| m.bytes_per_second.ln()).collect();
        (!logs.is_empty()).then(|| self.best(&logs).0)
    }

    /// The predictor with the least recent mean squared error, and that error. Newer errors weigh more.
    fn best(&self, logs: &[f64]) -> (Predictor, f64) {
        let mut best = (Predictor::Last, f64::INFINITY);
        for predictor in Predictor::ALL {
            // Each begins with an error of the size of a first guess: one lucky prediction proves little.
            let mut sum = FIRST_SPREAD * FIRST_SPREAD;
            let mut weight = 1.0;
            for (i, value) in logs.iter().enumerate().skip(1) {
                if let Some(said) = predictor.next(&logs[..i]) {
                    sum = FORGETTING * sum + (value - said).powi(2);
                    weight = FORGETTING * weight + 1.0;
                }
            }
            if sum / weight < best.1 {
                best = (predictor, sum / weight);
            }
        }
        best
    }
}

impl RateForecast {
    /// A forecast with median `bytes_per_second` and standard deviation `spread` of the logarithm; `None`
    /// unless the rate is positive and finite. The spread is clamped to 0 to 2.2.
    #[must_use]
    pub fn new(bytes_per_second: f64, spread: f64) -> Option<Self> {
        let good = bytes_per_second.is_finite() && bytes_per_second > 0.0;
        good.then(|| Self {
            median: bytes_per_second,
            spread: if spread.is_finite() {
                spread.clamp(0.0, 2.0 * UNKNOWN_SPREAD)
            } else {
                UNKNOWN_SPREAD
            },
        })
    }

    /// The nearest forecast in range: a median of 1 to 10^15 bytes per second, a spread of 0 to 2.2.
    #[must_use]
    pub fn saturating(bytes_per_second: f64, spread: f64) -> Self {
        Self {
            median: bytes_per_second.clamp(1.0, 1e15).max(1.0),
            spread: spread.clamp(0.0, 2.0 * UNKNOWN_SPREAD).max(0.0),
        }
    }

    /// The forecast for a host that was never measured: the median of the other hosts' `rates` (bytes per
    /// second), with [`UNKNOWN_SPREAD`]. `None` when no rate is known at all.
    #[must_use]
    pub fn of_unknown(rates: impl IntoIterator<Item = f64>) -> Option<Self> {
        let logs: Vec<f64> = rates.into_iter().map(f64::ln).collect();
        Self::new(median(&logs)?.exp(), UNKNOWN_SPREAD)
    }

    /// The median of the rate, bytes per second.
    #[must_use]
    pub const fn median(&self) -> f64 {
        self.median
    }

    /// Standard deviation of the natural logarithm of the rate.
    #[must_use]
    pub const fn spread(&self) -> f64 {
        self.spread
    }

    /// Expected time to move `bytes`, seconds: the mean of `bytes / rate`, which for a lognormal rate is
    /// `bytes / median * exp(spread^2 / 2)`. A wider spread makes it longer: a link that turns out slow
    /// costs more time than one that turns out fast saves.
    #[must_use]
    pub fn expected_seconds(&self, bytes: u64) -> f64 {
        bytes as f64 / self.median * (self.spread * self.spread / 2.0).exp()
    }

    /// The same forecast with a median of at most `limit` bytes per second; a limit of 0 is none.
    #[must_use]
    pub fn limited_to(self, limit: f64) -> Self {
        if limit > 0.0 && limit < self.median {
            Self {
                median: limit,
                ..self
            }
        } else {
            self
        }
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    sorted
        .get(sorted.len() / 2 - 1)
        .map(|lower| f64::midpoint(*lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn history(rates: &[f64]) -> RateHistory {
        let mut history = RateHistory::default();
        for (i, rate) in rates.iter().enumerate() {
            history.observe(Measurement {
                at: i as u64 * 60,
                bytes_per_second: *rate,
            });
        }
        history
    }

    fn forecast(rates: &[f64]) -> RateForecast {
        history(rates).forecast(rates.len() as u64 * 60).unwrap()
    }

    #[test]
    fn a_steady_rate_is_foreseen_with_little_doubt() {
        let steady = forecast(&[1e8; 20]);
        assert!((steady.median() / 1e8 - 1.0).abs() < 1e-9);
        assert!(steady.spread() < 0.1, "{}", steady.spread());
        assert!((steady.expected_seconds(100_000_000) - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_link_that_was_cut_is_noticed_at_once() {
        let mut rates = vec![1e8; 12];
        rates.extend([1e7; 3]);
        let cut = history(&rates);
        assert!(matches!(
            cut.predictor(),
            Some(Predictor::Last | Predictor::Smoothed(60) | Predictor::Median(3))
        ));
        assert!(cut.forecast(1000).unwrap().median() < 2e7);
    }

    #[test]
    fn noise_around_a_mean_is_averaged() {
        let rates: Vec<f64> = (0..32)
            .map(|i| if i % 2 == 0 { 5e7 } else { 2e8 })
            .collect();
        let noisy = history(&rates);
        assert!(!matches!(noisy.predictor(), Some(Predictor::Last)));
        let median = noisy.forecast(2000).unwrap().median();
        assert!((7e7..1.4e8).contains(&median), "{median}");
    }

    #[test]
    fn doubt_makes_a_transfer_longer_and_grows_with_age() {
        let young = history(&[1e8; 8]);
        let now = 8 * 60;
        let later = 8 * 60 + 20 * 86_400;
        let sure = young.forecast(now).unwrap();
        let unsure = young.forecast(later).unwrap();
        assert!(unsure.spread() > sure.spread());
        assert!(unsure.expected_seconds(1 << 30) > sure.expected_seconds(1 << 30));
    }

    #[test]
    fn an_unmeasured_host_is_assumed_to_have_the_median_rate() {
        let guess = RateForecast::of_unknown([1e6, 1e8, 1e7]).unwrap();
        assert!((guess.median() / 1e7 - 1.0).abs() < 1e-9);
        assert_eq!(guess.spread(), UNKNOWN_SPREAD);
        assert!(RateForecast::of_unknown([]).is_none());
        assert!(RateHistory::default().forecast(0).is_none());
    }

    proptest! {
        #[test]
        fn any_measurements_give_a_sensible_forecast(
            rates in prop::collection::vec(any::<f64>(), 0..80),
            now in any::<u64>(),
        ) {
            let history = history(&rates);
            prop_assert!(history.iter().count() <= MEASUREMENTS_MAX);
            if let Some(forecast) = history.forecast(now) {
                prop_assert!(forecast.median() >= 0.0);
                prop_assert!((LEAST_SPREAD..=UNKNOWN_SPREAD).contains(&forecast.spread()));
            }
        }

        #[test]
        fn a_forecast_lies_within_what_was_measured(
            rates in prop::collection::vec(1e3f64..1e10, 1..40),
        ) {
            let low = rates.iter().copied().fold(f64::INFINITY, f64::min);
            let high = rates.iter().copied().fold(0.0, f64::max);
            let median = forecast(&rates).median();
            prop_assert!(median >= low * 0.999 && median <= high * 1.001);
        }
    }
}
