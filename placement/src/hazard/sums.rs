//! What a host's own past says about the weights of a model: the sums from which a grid refits it.
//!
//! A host sends no history. It sends the gradient of the likelihood of what became of it at the weights of
//! the shipped model, and the expected information, both summed over its landmarks.

use std::collections::VecDeque;

use super::model::{HazardModel, WEIGHTS, fill_row, outcomes};
use super::summary::{Covariates, HOUR_SECONDS};
use super::{INTERVAL_ENDS, INTERVALS};
use crate::history::FollowUp;
use crate::linear::cholesky;

/// Numbers in the lower triangle of the information.
const TRIANGLE: usize = WEIGHTS * (WEIGHTS + 1) / 2;
/// Numbers in the form that travels: number of landmarks, gradient, information by rows.
pub const NUMBERS: usize = 1 + WEIGHTS + TRIANGLE;

/// Landmarks begin every hour and are followed for ten hours, so each moment counts in ten of them.
const OVERLAP: f64 = 10.0;
/// Half-life of a landmark in the sums, hours: 28 days, the time that a bitmap covers.
const HALF_LIFE_HOURS: f64 = 28.0 * 24.0;
/// Most landmarks in the sums: one an hour for ever gives `1 / (1 - 0.5^(1 / half-life))`, 970.
const LANDMARKS_MAX: f64 = 971.0;
/// Covariates are cut to this size before they are added. No host that works comes near it.
const COVARIATE_MAX: f64 = 8.0;
/// Bounds of the linear predictor. At the upper one, five failures are expected in one interval.
const PREDICTOR_RANGE: (f64, f64) = (-25.0, 1.6);
/// Largest weight of a row in the information: the maximum of `m^2 / (exp(m) - 1)`.
const ROW_WEIGHT_MAX: f64 = 0.6477;
/// Largest slope of a row, at the upper end of [`PREDICTOR_RANGE`].
const SLOPE_MAX: f64 = 4.9531;
/// Numbers travel in single precision. Bounds and definiteness are checked with this relative tolerance.
const TOLERANCE: f64 = 1e-4;
/// How long a landmark is followed.
const HORIZON_SECONDS: u64 = INTERVAL_ENDS[INTERVALS - 1];

/// Gradient and information of a host's likelihood at the weights of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    /// Number of landmarks, faded.
    landmarks: f64,
    gradient: [f64; WEIGHTS],
    /// Lower triangle by rows.
    information: Vec<f64>,
}

/// Why sums that a host sent are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SumsError {
    /// There are fewer or more numbers than sums have.
    #[error("{found} numbers: expected {NUMBERS}")]
    Count {
        /// How many numbers were offered.
        found: usize,
    },
    /// A number is not finite, or beyond what the number of landmarks allows.
    #[error("number {index} is beyond what its landmarks allow")]
    Range {
        /// Index of such a number, from 0.
        index: usize,
    },
    /// The information is not positive semidefinite.
    #[error("the information is not positive semidefinite")]
    Indefinite,
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            landmarks: 0.0,
            gradient: [0.0; WEIGHTS],
            information: vec![0.0; TRIANGLE],
        }
    }
}

impl Sums {
    /// Number of landmarks, of which each fades with a half-life of 28 days.
    #[must_use]
    pub const fn landmarks(&self) -> f64 {
        self.landmarks
    }

    pub(super) const fn gradient(&self) -> &[f64; WEIGHTS] {
        &self.gradient
    }

    pub(super) fn information(&self) -> &[f64] {
        &self.information
    }

    /// Adds a landmark at which the host was usable, and what became of the host. `model` is the one at whose
    /// weights the sums are taken, the same for all landmarks.
    pub fn add(&mut self, model: &HazardModel, covariates: &Covariates, follow_up: FollowUp) {
        let mut row = [0.0; WEIGHTS];
        self.landmarks += 1.0;
        for (interval, failed) in outcomes(follow_up) {
            fill_row(&mut row, covariates, interval);
            for value in &mut row {
                *value = value.clamp(-COVARIATE_MAX, COVARIATE_MAX);
            }
            self.add_row(model.weights(), &row, failed);
        }
    }

    fn add_row(&mut self, weights: &[f64; WEIGHTS], row: &[f64; WEIGHTS], failed: bool) {
        let predictor: f64 = row.iter().zip(weights).map(|(x, w)| x * w).sum();
        let mean = predictor.clamp(PREDICTOR_RANGE.0, PREDICTOR_RANGE.1).exp();
        let odds = 1.0 / mean.exp_m1();
        let slope = if failed { mean * odds } else { -mean } / OVERLAP;
        let weight = mean * mean * odds / OVERLAP;
        let mut start = 0;
        for (i, &x) in row.iter().enumerate() {
            if x != 0.0 {
                self.gradient[i] += slope * x;
                let scaled = weight * x;
                let line = &mut self.information[start..=start + i];
                for (cell, &other) in line.iter_mut().zip(row) {
                    *cell += scaled * other;
                }
            }
            start += i + 1;
        }
    }

    /// Multiplies everything by `factor`.
    pub(super) fn scale(&mut self, factor: f64) {
        self.landmarks *= factor;
        let numbers = self.gradient.iter_mut().chain(&mut self.information);
        numbers.for_each(|number| *number *= factor);
    }

    /// The form that travels: number of landmarks, gradient, and lower triangle of the information by rows.
    #[must_use]
    pub fn to_numbers(&self) -> Vec<f32> {
        std::iter::once(&self.landmarks)
            .chain(&self.gradient)
            .chain(&self.information)
            .map(|&number| number as f32)
            .collect()
    }

    /// Sums from their [numbers](Self::to_numbers), if any past of a host could have led to such sums: each
    /// number is within the bounds that the number of landmarks allows, and the information is positive
    /// semidefinite.
    ///
    /// # Errors
    /// [`SumsError`], otherwise.
    pub fn from_numbers(numbers: &[f32]) -> Result<Self, SumsError> {
        let found = numbers.len();
        let count = SumsError::Count { found };
        if found != NUMBERS {
            return Err(count);
        }
        let numbers: Vec<f64> = numbers.iter().map(|&number| f64::from(number)).collect();
        let (&landmarks, rest) = numbers.split_first().ok_or(count)?;
        let (gradient, information) = rest.split_first_chunk::<WEIGHTS>().ok_or(count)?;
        if !(0.0..=LANDMARKS_MAX).contains(&landmarks) {
            return Err(SumsError::Range { index: 0 });
        }
        let sums = Self {
            landmarks,
            gradient: *gradient,
            information: information.to_vec(),
        };
        sums.check()?;
        Ok(sums)
    }

    fn check(&self) -> Result<(), SumsError> {
        let rounding = 1.0 + TOLERANCE;
        for (i, value) in self.gradient.iter().enumerate() {
            let most = self.most(i, SLOPE_MAX) * rounding;
            // NaN is in no range.
            if !(-most..=most).contains(value) {
                return Err(SumsError::Range { index: 1 + i });
            }
        }
        let mut start = 0;
        for i in 0..WEIGHTS {
            let most = self.most(i, ROW_WEIGHT_MAX) * largest(i) * rounding;
            let index = start + i;
            let found = self.information.get(index).copied().unwrap_or(f64::NAN);
            if !(0.0..=most).contains(&found) {
                let index = 1 + WEIGHTS + index;
                return Err(SumsError::Range { index });
            }
            start += i + 1;
        }
        // With all diagonal elements in range, a number outside of the diagonal that is not finite or too
        // large makes the matrix indefinite.
        let mut matrix = square(&self.information);
        for i in 0..WEIGHTS {
            let cell = &mut matrix[i * WEIGHTS + i];
            *cell += TOLERANCE * (*cell + 1e-6);
        }
        cholesky(&matrix, WEIGHTS).ok_or(SumsError::Indefinite)?;
        Ok(())
    }

    /// Largest sum over the rows of `|x_i| * each`. An intercept is 1 in one row of a landmark, and 0 in all
    /// others.
    fn most(&self, i: usize, each: f64) -> f64 {
        let rows = if i < INTERVALS { 1.0 } else { INTERVALS as f64 };
        self.landmarks / OVERLAP * rows * largest(i) * each
    }
}

/// Largest size of a covariate.
const fn largest(i: usize) -> f64 {
    if i < INTERVALS { 1.0 } else { COVARIATE_MAX }
}

/// The whole of a symmetric matrix, of which only the lower triangle matters here.
pub(super) fn square(triangle: &[f64]) -> Vec<f64> {
    let mut matrix = vec![0.0; WEIGHTS * WEIGHTS];
    let mut cells = triangle.iter();
    for i in 0..WEIGHTS {
        for j in 0..=i {
            let value = cells.next().copied().unwrap_or(0.0);
            matrix[i * WEIGHTS + j] = value;
            matrix[j * WEIGHTS + i] = value;
        }
    }
    matrix
}

/// Follows a host's landmarks to the end of their horizons, and adds them up.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Follower {
    sums: Sums,
    /// The time up to which the sums have faded, Unix seconds.
    faded_until: u64,
    /// Landmarks that are still followed, oldest first.
    pending: VecDeque<(u64, Covariates)>,
}

impl Follower {
    /// The sums over all landmarks whose horizon has ended.
    pub(super) const fn sums(&self) -> &Sums {
        &self.sums
    }

    /// A landmark at `at`, at which the host is usable.
    pub(super) fn begin(&mut self, model: &HazardModel, at: u64, covariates: Covariates) {
        let is_over = |(time, _): &(u64, Covariates)| at.saturating_sub(*time) >= HORIZON_SECONDS;
        while self.pending.front().is_some_and(is_over)
            && let Some((time, covariates)) = self.pending.pop_front()
        {
            self.add(model, time, &covariates, time + HORIZON_SECONDS, false);
        }
        let hours = at.saturating_sub(self.faded_until) / HOUR_SECONDS;
        if hours > 0 {
            self.sums.scale(0.5f64.powf(hours as f64 / HALF_LIFE_HOURS));
            self.faded_until += hours * HOUR_SECONDS;
        }
        self.pending.push_back((at, covariates));
    }

    /// Ends all landmarks at `at`, by a failure or because nothing more will be known of them.
    pub(super) fn end(&mut self, model: &HazardModel, at: u64, failed: bool) {
        for (time, covariates) in std::mem::take(&mut self.pending) {
            self.add(model, time, &covariates, at, failed);
        }
    }

    fn add(&mut self, model: &HazardModel, from: u64, of: &Covariates, until: u64, failed: bool) {
        let seconds = until.saturating_sub(from);
        let ends_by_failure = failed && seconds <= HORIZON_SECONDS;
        let follow_up = FollowUp {
            seconds: seconds.min(HORIZON_SECONDS),
            failed: ends_by_failure,
        };
        self.sums.add(model, of, follow_up);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hazard::{Forecaster, HostSummary};
    use crate::likelihood::maximise_likelihood;
    use crate::state::Presence::{self, Away, Here};

    const HOUR: u64 = 3600;

    /// The sums of a host with these spans: (seconds unknown, seconds, whether it was there).
    fn sums(spans: &[(u64, u64, bool)]) -> Sums {
        let model = HazardModel::pretrained();
        let mut host = Forecaster::<Presence>::learning(0);
        let mut time = 0;
        for &(gap, length, here) in spans {
            time += gap;
            let state = Some(if here { Here } else { Away });
            host.observe(&model, time..time + length, state, None);
            time += length;
        }
        host.sums().unwrap().clone()
    }

    #[test]
    fn landmarks_are_added_when_their_horizon_ends() {
        // 21 landmarks, from hour 0 to hour 20; at that time the horizon of 11 of them has ended.
        let steady = sums(&[(0, 20 * HOUR + 1, true)]);
        assert!(
            (steady.landmarks() - 11.0).abs() < 0.1,
            "{}",
            steady.landmarks()
        );
        // A failure ends all.
        let failed = sums(&[(0, 20 * HOUR + 1, true), (0, 60, false)]);
        assert!(
            (failed.landmarks() - 21.0).abs() < 0.2,
            "{}",
            failed.landmarks()
        );
        // More failures than expected raise the intercepts, fewer lower them.
        assert!(steady.gradient().iter().take(INTERVALS).all(|g| *g < 0.0));
        let more: f64 = failed.gradient().iter().take(INTERVALS).sum();
        assert!(
            more > 0.5,
            "one failure, seen by ten landmarks of a tenth: {more}"
        );
        // What is unknown counts as far as it was seen.
        let lost = sums(&[(0, 20 * HOUR + 1, true), (HOUR, 60, false)]);
        assert!(
            (lost.landmarks() - 21.0).abs() < 0.2,
            "{}",
            lost.landmarks()
        );
        assert!(lost.gradient().iter().take(INTERVALS).sum::<f64>() < 0.0);
    }

    #[test]
    fn sums_fade_and_stay_below_their_bound() {
        let year = sums(&[(0, 24 * HOUR, true); 365]).landmarks();
        assert!((960.0..LANDMARKS_MAX).contains(&year), "{year}");
        let year = sums(&[(0, 24 * HOUR, true); 365]);
        assert!(Sums::from_numbers(&year.to_numbers()).is_ok());
    }

    #[test]
    fn one_step_along_the_sums_is_a_step_of_the_fit() {
        // Fisher scoring with all penalties but those of the intercepts too large to move.
        let model = HazardModel::pretrained();
        let mut all = Sums::default();
        let covariates = |age: u64| {
            let mut host = HostSummary::<Presence>::new(0);
            host.observe(0..age, Some(Here), None);
            host.covariates(model.pool())
        };
        let follow_up = |failed| FollowUp {
            seconds: 200,
            failed,
        };
        for age in 1..200 {
            all.add(&model, &covariates(age * HOUR), follow_up(age % 40 == 0));
        }
        let mut penalties = vec![1e12; WEIGHTS];
        penalties[0] = 1e-9;
        let fitted = maximise_likelihood(model.weights(), &penalties, |each| {
            for age in 1..200 {
                let mut row = [0.0; WEIGHTS];
                for (interval, failed) in outcomes(follow_up(age % 40 == 0)) {
                    fill_row(&mut row, &covariates(age * HOUR), interval);
                    each(&row, failed);
                }
            }
        });
        // The sign and the size of one Newton step in the intercept.
        let newton = all.gradient()[0] / all.information()[0];
        let moved = fitted[0] - model.weights()[0];
        assert!(newton * moved > 0.0, "{newton} {moved}");
    }

    #[test]
    fn sums_that_no_past_leads_to_are_refused() {
        let good = sums(&[(0, 90 * HOUR, true), (0, 60, false), (0, 50 * HOUR, true)]).to_numbers();
        assert!(Sums::from_numbers(&good).is_ok());
        let with = |index: usize, value: f32| {
            let mut bad = good.clone();
            bad[index] = value;
            Sums::from_numbers(&bad)
        };
        let count = SumsError::Count { found: NUMBERS - 1 };
        assert_eq!(Sums::from_numbers(&good[1..]), Err(count));
        for value in [f32::NAN, f32::INFINITY, -1.0, 1e6] {
            assert_eq!(
                with(0, value),
                Err(SumsError::Range { index: 0 }),
                "{value}"
            );
        }
        // A gradient beyond what the landmarks allow, and a diagonal.
        for index in [1, WEIGHTS, 1 + WEIGHTS] {
            for value in [f32::NAN, f32::NEG_INFINITY, 1e9] {
                assert_eq!(
                    with(index, value),
                    Err(SumsError::Range { index }),
                    "{value}"
                );
            }
        }
        // Beside the diagonal: a number that is larger than both diagonals, or none.
        for value in [f32::NAN, f32::INFINITY, 1e3] {
            assert_eq!(
                with(NUMBERS - 2, value),
                Err(SumsError::Indefinite),
                "{value}"
            );
        }
        // Sums of few landmarks under the name of fewer.
        assert!(matches!(with(0, 0.01), Err(SumsError::Range { .. })));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_sums_of_any_past_are_admitted(
            spans in prop::collection::vec((0u64..9000, 1u64..200_000, any::<bool>()), 0..40),
        ) {
            let sums = sums(&spans);
            let read = Sums::from_numbers(&sums.to_numbers());
            prop_assert!(read.is_ok(), "{:?} {}", read, sums.landmarks());
        }

        #[test]
        fn any_numbers_are_read_without_harm(
            numbers in prop::collection::vec(any::<f32>(), NUMBERS - 1..NUMBERS + 2),
        ) {
            let _ = Sums::from_numbers(&numbers);
        }
    }
}
