//! Linear time series models of host load (the RPS models of the paper).
//!
//! They forecast load samples many steps ahead from the latest samples. A host is predicted to survive a
//! window if no forecast in it exceeds the second threshold.

use std::fmt;

use placement::linear::solve_positive_definite;

/// A model with its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadModel {
    /// AR(p): autoregressive, fitted by Yule-Walker equations.
    Autoregressive(usize),
    /// ARMA(p, q), fitted by the method of Hannan and Rissanen.
    AutoregressiveMovingAverage(usize, usize),
    /// BM(p): mean over the previous N <= p values, N with the least squared error so far.
    BestMean(usize),
    /// LAST: the last value.
    Last,
    /// MA(q): moving average, fitted by the method of Hannan and Rissanen.
    MovingAverage(usize),
}

impl fmt::Display for LoadModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Autoregressive(p) => write!(f, "AR({p})"),
            Self::AutoregressiveMovingAverage(p, q) => write!(f, "ARMA({p},{q})"),
            Self::BestMean(p) => write!(f, "BM({p})"),
            Self::Last => write!(f, "LAST"),
            Self::MovingAverage(q) => write!(f, "MA({q})"),
        }
    }
}

impl LoadModel {
    /// Loads of the next `steps` samples, each in `[0, 1]`, after `samples` (oldest first). If the samples
    /// are too few for the model, or do not determine it, the forecast is their mean; without samples it is
    /// zero.
    #[must_use]
    pub fn forecast(self, samples: &[f64], steps: usize) -> Vec<f64> {
        let Some(&last) = samples.last() else {
            return vec![0.0; steps];
        };
        let mean = mean(samples);
        let forecast = match self {
            Self::Last => Some(vec![last; steps]),
            Self::BestMean(p) => Some(vec![best_mean(samples, p); steps]),
            Self::Autoregressive(p) => autoregressive(samples, p)
                .map(|weights| extrapolate(samples, &[], &weights, &[], steps)),
            Self::MovingAverage(q) => arma(samples, 0, q, steps),
            Self::AutoregressiveMovingAverage(p, q) => arma(samples, p, q, steps),
        };
        let mut forecast = forecast.unwrap_or_else(|| vec![mean; steps]);
        for value in &mut forecast {
            *value = if value.is_finite() {
                value.clamp(0.0, 1.0)
            } else {
                mean
            };
        }
        forecast
    }
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len().max(1) as f64
}

/// Mean of the last N samples, with the N from 1 to `longest` that had the least squared error so far.
fn best_mean(samples: &[f64], longest: usize) -> f64 {
    let tail_mean = |end: usize, n: usize| mean(&samples[end - n..end]);
    let error = |n: usize| -> f64 {
        let missed = |t: usize| samples[t] - tail_mean(t, n);
        // All lengths are judged on the same samples.
        (longest.min(samples.len() / 2)..samples.len())
            .map(|t| missed(t).powi(2))
            .sum()
    };
    let lengths = 1..=longest.min(samples.len() / 2).max(1);
    let best = lengths
        .min_by(|&a, &b| error(a).total_cmp(&error(b)))
        .unwrap_or(1);
    tail_mean(samples.len(), best)
}

/// Weights of the previous values by Levinson-Durbin recursion on the autocovariances.
fn autoregressive(samples: &[f64], order: usize) -> Option<Vec<f64>> {
    if samples.len() <= order {
        return None;
    }
    let mean = mean(samples);
    let lagged = |lag: usize| -> f64 {
        samples
            .iter()
            .zip(&samples[lag..])
            .map(|(a, b)| (a - mean) * (b - mean))
            .sum()
    };
    let covariances: Vec<f64> = (0..=order).map(lagged).collect();
    let mut error = covariances[0];
    let mut weights: Vec<f64> = Vec::with_capacity(order);
    for i in 1..=order {
        if error <= 1e-12 * covariances[0].max(1e-12) {
            break;
        }
        let explained: f64 = weights
            .iter()
            .enumerate()
            .map(|(j, weight)| weight * covariances[i - 1 - j])
            .sum();
        let reflection = (covariances[i] - explained) / error;
        let reversed: Vec<f64> = weights.iter().rev().copied().collect();
        for (weight, mirrored) in weights.iter_mut().zip(reversed) {
            *weight -= reflection * mirrored;
        }
        weights.push(reflection);
        error *= 1.0 - reflection * reflection;
    }
    Some(weights)
}

/// Forecast of an ARMA(p, q) fitted by the method of Hannan and Rissanen: a long autoregression gives the
/// innovations, then each sample is regressed (least squares) on the `p` values and the `q` innovations
/// before it.
fn arma(samples: &[f64], p: usize, q: usize, steps: usize) -> Option<Vec<f64>> {
    let long = (2 * (p + q)).max(16).min(samples.len() / 4);
    let first = long + p.max(q);
    if long == 0 || samples.len() < first + 2 * (p + q) {
        return None;
    }
    let mean = mean(samples);
    let centred: Vec<f64> = samples.iter().map(|x| x - mean).collect();
    let weights = autoregressive(samples, long)?;
    let mut innovations = vec![0.0; samples.len()];
    for t in long..samples.len() {
        let predicted: f64 = weights
            .iter()
            .zip(centred[..t].iter().rev())
            .map(|(w, x)| w * x)
            .sum();
        innovations[t] = centred[t] - predicted;
    }
    let n = p + q;
    let mut matrix = vec![0.0; n * n];
    let mut right = vec![0.0; n];
    for t in first..samples.len() {
        let values = centred[t - p..t].iter().rev();
        let row: Vec<f64> = values
            .chain(innovations[t - q..t].iter().rev())
            .copied()
            .collect();
        for (i, x) in row.iter().enumerate() {
            right[i] += x * centred[t];
            for (j, y) in row.iter().enumerate() {
                matrix[i * n + j] += x * y;
            }
        }
    }
    let trace: f64 = (0..n).map(|i| matrix[i * n + i]).sum();
    for i in 0..n {
        matrix[i * n + i] += 1e-6 * trace / n as f64 + 1e-12;
    }
    let solution = solve_positive_definite(&matrix, &right)?;
    let (own, past) = solution.split_at_checked(p)?;
    Some(extrapolate(samples, &innovations, own, past, steps))
}

/// Forecasts `steps` samples: each is the weighted sum of the values and innovations before it. Future
/// innovations are zero.
fn extrapolate(
    samples: &[f64],
    innovations: &[f64],
    value_weights: &[f64],
    innovation_weights: &[f64],
    steps: usize,
) -> Vec<f64> {
    let mean = mean(samples);
    let mut values: Vec<f64> = samples.iter().map(|x| x - mean).collect();
    let mut innovations = innovations.to_vec();
    for _ in 0..steps {
        let dot = |weights: &[f64], series: &[f64]| -> f64 {
            weights
                .iter()
                .zip(series.iter().rev())
                .map(|(w, x)| w * x)
                .sum()
        };
        let next = dot(value_weights, &values) + dot(innovation_weights, &innovations);
        // Loads are shares: an unstable fit must not run away.
        values.push(next.clamp(-1.0, 1.0));
        innovations.push(0.0);
    }
    values
        .iter()
        .skip(samples.len())
        .map(|x| x + mean)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MODELS: [LoadModel; 6] = [
        LoadModel::Autoregressive(8),
        LoadModel::AutoregressiveMovingAverage(4, 4),
        LoadModel::BestMean(8),
        LoadModel::Last,
        LoadModel::MovingAverage(8),
        LoadModel::Autoregressive(1),
    ];

    /// A fixed pseudo-random sequence in [-1/2, 1/2).
    fn noise(n: usize) -> Vec<f64> {
        let mut state = 1u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn a_constant_load_stays() {
        for model in MODELS {
            let forecast = model.forecast(&[0.3; 100], 5);
            assert!(
                forecast.iter().all(|x| (x - 0.3).abs() < 1e-9),
                "{model}: {forecast:?}"
            );
        }
    }

    #[test]
    fn yule_walker_finds_the_coefficient_of_an_autoregressive_load() {
        let mut x = vec![0.0];
        for e in noise(20_000) {
            x.push(0.8 * x[x.len() - 1] + 0.1 * e);
        }
        let weights = autoregressive(&x, 2).unwrap();
        assert!(
            (weights[0] - 0.8).abs() < 0.03 && weights[1].abs() < 0.03,
            "{weights:?}"
        );
    }

    #[test]
    fn a_moving_average_forecasts_its_mean_beyond_its_order() {
        let e = noise(5000);
        let x: Vec<f64> = e
            .windows(2)
            .map(|w| 0.5 + 0.2 * (w[1] + 0.9 * w[0]))
            .collect();
        let forecast = LoadModel::MovingAverage(1).forecast(&x, 3);
        let expected = mean(&x);
        assert!((forecast[1] - expected).abs() < 1e-9 && (forecast[2] - expected).abs() < 1e-9);
        let first = expected + 0.2 * 0.9 * e[e.len() - 1];
        assert!(
            (forecast[0] - first).abs() < 0.02,
            "{} {first}",
            forecast[0]
        );
    }

    #[test]
    fn the_best_mean_is_short_for_a_wandering_load_and_long_for_noise() {
        let steps: Vec<f64> = (0..200).map(|i| f64::from(i / 50) / 4.0).collect();
        assert_eq!(best_mean(&steps, 32), 0.75);
        let noisy: Vec<f64> = noise(2000).iter().map(|e| 0.5 + e).collect();
        assert!((best_mean(&noisy, 32) - 0.5).abs() < 0.15);
    }

    proptest! {
        #[test]
        fn any_samples_give_shares(
            samples in prop::collection::vec(0.0f64..=1.0, 0..80),
            steps in 0usize..40,
            model in 0usize..6,
        ) {
            let forecast = MODELS[model].forecast(&samples, steps);
            prop_assert_eq!(forecast.len(), steps);
            prop_assert!(forecast.iter().all(|x| (0.0..=1.0).contains(x)));
        }
    }
}
