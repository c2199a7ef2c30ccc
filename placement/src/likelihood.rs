//! Maximum likelihood for binary outcomes with the complementary log-log link.

use crate::linear::solve_positive_definite;

/// Steps of Fisher scoring after which the search ends.
const MOST_ITERATIONS: usize = 30;
/// How often a step that does not raise the likelihood is halved before the search ends.
const MOST_HALVINGS: usize = 20;
/// Bounds of the linear predictor `row * weights`: beyond them events are practically impossible or certain.
const PREDICTOR_RANGE: (f64, f64) = (-25.0, 4.0);

/// Finds the weights `w` that maximise `ln L(w) - SUM_i penalties[i] / 2 * (w_i - prior_i)^2` by Fisher
/// scoring with step halving, where `L` is the likelihood of the observed events under
/// `Pr{event} = 1 - exp(-exp(row * w))`. The search starts at `prior`, and ends there without data.
///
/// `for_each_row` has to call its argument with every row (as long as `prior`) and whether the event
/// happened. It is called once for each set of weights that is tried. Penalties must be positive.
pub fn maximise_likelihood(
    prior: &[f64],
    penalties: &[f64],
    for_each_row: impl Fn(&mut dyn FnMut(&[f64], bool)),
) -> Vec<f64> {
    let mut best = prior.to_vec();
    let mut at_best = Derivatives::at(&best, prior, penalties, &for_each_row);
    for _ in 0..MOST_ITERATIONS {
        let Some(step) = solve_positive_definite(&at_best.information, &at_best.gradient) else {
            break;
        };
        let mut share = 1.0;
        let mut improved = None;
        for _ in 0..MOST_HALVINGS {
            let weights: Vec<f64> = best.iter().zip(&step).map(|(w, s)| w + share * s).collect();
            let there = Derivatives::at(&weights, prior, penalties, &for_each_row);
            if there.log_likelihood > at_best.log_likelihood {
                improved = Some((weights, there));
                break;
            }
            share /= 2.0;
        }
        let Some((weights, there)) = improved else {
            break;
        };
        let gain = there.log_likelihood - at_best.log_likelihood;
        (best, at_best) = (weights, there);
        if gain < 1e-6 * (1.0 + at_best.log_likelihood.abs()) {
            break;
        }
    }
    best
}

/// Penalised log likelihood at some weights, its gradient, and the expected information matrix.
struct Derivatives {
    log_likelihood: f64,
    gradient: Vec<f64>,
    /// Row-major; only the lower triangle is filled in.
    information: Vec<f64>,
}

impl Derivatives {
    fn at(
        weights: &[f64],
        prior: &[f64],
        penalties: &[f64],
        for_each_row: impl Fn(&mut dyn FnMut(&[f64], bool)),
    ) -> Self {
        let n = weights.len();
        let mut sum = Self {
            log_likelihood: 0.0,
            gradient: vec![0.0; n],
            information: vec![0.0; n * n],
        };
        for_each_row(&mut |row, event| sum.add(weights, row, event));
        for i in 0..n {
            let away = weights[i] - prior[i];
            sum.log_likelihood -= penalties[i] * away * away / 2.0;
            sum.gradient[i] -= penalties[i] * away;
            sum.information[i * n + i] += penalties[i];
        }
        sum
    }

    fn add(&mut self, weights: &[f64], row: &[f64], event: bool) {
        let predictor: f64 = row.iter().zip(weights).map(|(x, w)| x * w).sum();
        let mean = predictor.clamp(PREDICTOR_RANGE.0, PREDICTOR_RANGE.1).exp();
        // Pr{no event} / Pr{event} = exp(-mean) / (1 - exp(-mean)).
        let odds = 1.0 / mean.exp_m1();
        let slope = if event { mean * odds } else { -mean };
        self.log_likelihood += if event {
            (-(-mean).exp_m1()).ln()
        } else {
            -mean
        };
        let weight = mean * mean * odds;
        let n = weights.len();
        for (i, &x) in row.iter().enumerate() {
            if x == 0.0 {
                continue;
            }
            self.gradient[i] += slope * x;
            let scaled = weight * x;
            let line = &mut self.information[i * n..i * n + i + 1];
            for (cell, &other) in line.iter_mut().zip(row) {
                *cell += scaled * other;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_data_the_prior_stays() {
        assert_eq!(
            maximise_likelihood(&[1.0, -2.0], &[1.0, 1.0], |_| {}),
            [1.0, -2.0]
        );
    }

    #[test]
    fn the_intercept_alone_fits_the_frequency() {
        let rows = |each: &mut dyn FnMut(&[f64], bool)| {
            for i in 0..1000 {
                each(&[1.0], i % 4 == 0);
            }
        };
        let weights = maximise_likelihood(&[0.0], &[1e-6], rows);
        let probability = 1.0 - (-weights[0].exp()).exp();
        assert!((probability - 0.25).abs() < 1e-4, "{probability}");
    }

    #[test]
    fn weights_that_made_the_data_are_found_again() {
        // Expected outcomes instead of random ones: rows with fractional events as repeated rows.
        let rows = |each: &mut dyn FnMut(&[f64], bool)| {
            for x in [-1.0, 0.0, 1.0, 2.0] {
                let probability = 1.0 - (-f64::exp(-1.0 + 0.5 * x)).exp();
                let events = (probability * 10_000.0).round() as usize;
                for i in 0..10_000 {
                    each(&[1.0, x], i < events);
                }
            }
        };
        let weights = maximise_likelihood(&[0.0, 0.0], &[1e-6, 1e-6], rows);
        assert!(
            (weights[0] + 1.0).abs() < 1e-2 && (weights[1] - 0.5).abs() < 1e-2,
            "{weights:?}"
        );
    }

    #[test]
    fn separable_data_end_with_finite_weights() {
        let rows = |each: &mut dyn FnMut(&[f64], bool)| {
            for i in 0..100 {
                each(&[1.0, f64::from(i) - 50.0], i > 50);
            }
        };
        let weights = maximise_likelihood(&[0.0, 0.0], &[0.1, 0.1], rows);
        assert!(weights.iter().all(|w| w.is_finite()));
    }
}
