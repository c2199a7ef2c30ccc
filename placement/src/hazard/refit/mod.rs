//! A model refitted to a grid: one damped step from the shipped weights, along the sums of its hosts.
//!
//! Hosts are strangers, and some may lie. So no host counts more than a twentieth, no host counts for more
//! days than it has been known, and no host moves the forecasts of the others by more than its share: see
//! [`refit`].

use super::INTERVALS;
use super::model::{HazardModel, INTERCEPT_PENALTY, WEIGHT_PENALTY, WEIGHTS};
use super::summary::PRIOR_EVENTS;
use super::sums::{Sums, square};
use crate::linear::{cholesky, solve_factored};

/// The largest share of one host in the sum is one in this many. Hosts that are missing from this number are
/// made up for by the shipped model: it gets their share.
const LEAST_HOSTS: usize = 20;
/// A host's information about a weight is cut to this multiple of what nine of ten hosts stay below.
const INFORMATION_MAX: f64 = 2.0;
/// Nine of ten hosts.
const USUAL: f64 = 0.9;
/// One host may move the forecasts of the grid by one in the number of hosts, in the quadratic mean. A step `d`
/// changes a forecast by at most `exp(-M) * sqrt(M * d * H * d)`, where `M` is the expected number of failures
/// and `H` the landmark's information. `exp(-2 M) * M` is at most 0.184, and each landmark weighs a tenth in the
/// sum `R` of all information. So the mean square of the changes is at most `1.84 * d * R * d / landmarks`. The
/// limit is half of that, since the linear estimate is too small for large changes, and for hosts that differ
/// from the others.
const CHANGE: f64 = 2.0 * 1.84;
/// The greatest change of all hazards by a common factor, as a logarithm: 20 times as many failures, or as few.
const LEVEL_MAX: f64 = 3.0;
/// The greatest mean square change of the logarithm of a hazard beyond the common factor. Chosen on the traces
/// of `docs/prediction.md`: with 1, steps on few days overshoot, and four weeks gain next to nothing.
const STEP_MAX: f64 = 0.25;

/// What one host contributes to a refit.
#[derive(Clone, Copy, Debug)]
pub struct Contribution<'a> {
    /// Its sums, at the weights of the model that is refitted.
    pub sums: &'a Sums,
    /// Days since this machine first heard of the host.
    pub days_known: f64,
}

/// A model that was refitted, and how much it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Refit {
    /// The model with the refitted parameters.
    pub model: HazardModel,
    /// Number of hosts that contributed.
    pub hosts: usize,
    /// Number of landmarks that they contributed.
    pub landmarks: f64,
}

/// The weights of `model` after one damped step along the sums of hosts, which were taken at its weights.
/// `None` if no host contributes anything.
///
/// 1. A host counts for at most 24 landmarks for each day that it has been known, and for at most a
///    twentieth of all landmarks.
/// 2. Its information about a weight counts for at most twice what nine of ten hosts have.
/// 3. Its gradient is cut so that the step which it causes moves the forecasts of the grid by at most one in the
///    number of hosts.
/// 4. All hazards are multiplied by the ratio of failures that were seen to failures that were expected. For a
///    Poisson process that is the most likely factor, also far from 1, where a Newton step is bad.
/// 5. From there one Newton step, which is cut where it would change the logarithms of hazards by more than 1/2
///    in the quadratic mean.
#[must_use]
pub fn refit(model: &HazardModel, contributions: &[Contribution<'_>]) -> Option<Refit> {
    let mut parts = Part::of(contributions);
    if parts.is_empty() {
        return None;
    }
    let missing = share_out(&mut parts);
    cut_information(&mut parts);
    let landmarks: f64 = parts.iter().map(Part::landmarks).sum();
    let grid = Grid::of(&parts, 1.0 + missing / landmarks);
    let gradient = grid.cut_gradients(&parts, landmarks + missing)?;
    Some(Refit {
        model: model.moved(&grid.step(&gradient)?),
        hosts: parts.len(),
        landmarks,
    })
}

fn penalty(i: usize) -> f64 {
    if i < INTERVALS {
        INTERCEPT_PENALTY
    } else {
        WEIGHT_PENALTY
    }
}

/// A host's sums with their weight.
struct Part<'a> {
    sums: &'a Sums,
    weight: f64,
}

impl<'a> Part<'a> {
    fn of(contributions: &[Contribution<'a>]) -> Vec<Self> {
        let part = |one: &Contribution<'a>| {
            let most = 24.0 * one.days_known.max(0.0);
            let weight = (most / one.sums.landmarks()).min(1.0);
            Self {
                sums: one.sums,
                weight,
            }
        };
        contributions
            .iter()
            .filter(|one| one.sums.landmarks() > 0.0)
            .map(part)
            .filter(|part| part.weight > 0.0)
            .collect()
    }

    fn landmarks(&self) -> f64 {
        self.weight * self.sums.landmarks()
    }
}

/// Cuts the weights so that no host has more than one in [`LEAST_HOSTS`] of all landmarks. Returns the number of
/// landmarks that the shipped model gets in place of hosts that are missing.
fn share_out(parts: &mut [Part<'_>]) -> f64 {
    let missing = LEAST_HOSTS.saturating_sub(parts.len()) as f64;
    let mut most = parts.iter().map(Part::landmarks).fold(0.0, f64::max);
    // Each round cuts the largest; the limit converges to the one that all shares keep to.
    for _ in 0..100 {
        let sum: f64 = parts.iter().map(|part| part.landmarks().min(most)).sum();
        most = most.min((sum + missing * most) / LEAST_HOSTS as f64);
    }
    for part in parts {
        part.weight *= (most / part.landmarks()).min(1.0);
    }
    missing * most
}

/// Cuts the weights of hosts whose information about a weight is far beyond that of the others.
fn cut_information(parts: &mut [Part<'_>]) {
    let mut most = [0.0; WEIGHTS];
    for (i, most) in most.iter_mut().enumerate() {
        let at = i * (i + 3) / 2;
        let mut found: Vec<f64> = parts
            .iter()
            .map(|part| part.weight * part.sums.information()[at])
            .collect();
        let usual = (USUAL * (found.len() - 1) as f64) as usize;
        let (_, usual, _) = found.select_nth_unstable_by(usual, f64::total_cmp);
        *most = INFORMATION_MAX * (*usual + penalty(i));
    }
    for part in parts {
        let cut = (0..WEIGHTS)
            .map(|i| most[i] / (part.weight * part.sums.information()[i * (i + 3) / 2]))
            .fold(1.0, f64::min);
        part.weight *= cut;
    }
}

/// The information of all hosts.
struct Grid {
    /// The information matrix, which is symmetric, row by row.
    information: Vec<f64>,
    /// The sum over all rows of their expected number of failures, times the row.
    expected: [f64; WEIGHTS],
    /// Expected number of failures.
    total: f64,
}

impl Grid {
    /// The information of `parts`, times `factor`.
    fn of(parts: &[Part<'_>], factor: f64) -> Self {
        let mut sum = vec![0.0; WEIGHTS * (WEIGHTS + 1) / 2];
        for part in parts {
            let cells = sum.iter_mut().zip(part.sums.information());
            cells.for_each(|(cell, value)| *cell += factor * part.weight * value);
        }
        let information = square(&sum);
        // The information is the sum of m * x * x' over all rows x, where m is the expected number of failures
        // (somewhat less where that is large). Each row has a 1 at one of the intercepts, so their rows of the
        // information add up to the sum of m * x.
        let mut expected = [0.0; WEIGHTS];
        for line in information.chunks_exact(WEIGHTS).take(INTERVALS) {
            let cells = expected.iter_mut().zip(line);
            cells.for_each(|(cell, value)| *cell += value);
        }
        let total = expected.iter().take(INTERVALS).sum::<f64>();
        Self {
            information,
            expected,
            total: total.max(f64::MIN_POSITIVE),
        }
    }

    /// The information after all hazards were multiplied by `factor`, with the penalties, factored.
    fn penalised(&self, factor: f64) -> Option<Vec<f64>> {
        let mut matrix: Vec<f64> = self.information.iter().map(|x| x * factor).collect();
        for (i, line) in matrix.chunks_exact_mut(WEIGHTS).enumerate() {
            line[i] += penalty(i);
        }
        cholesky(&matrix, WEIGHTS)
    }

    /// The sum of the gradients, each cut so that it moves the forecasts by no more than its share.
    fn cut_gradients(&self, parts: &[Part<'_>], landmarks: f64) -> Option<[f64; WEIGHTS]> {
        let factor = self.penalised(1.0)?;
        let hosts = parts.len().max(LEAST_HOSTS) as f64;
        let most = landmarks / (CHANGE * hosts * hosts);
        let mut sum = [0.0; WEIGHTS];
        for part in parts {
            let gradient = part.sums.gradient().map(|value| value * part.weight);
            let step = solve_factored(&factor, &gradient);
            let cut = (most / self.quadratic(&step)).sqrt().min(1.0);
            let cells = sum.iter_mut().zip(gradient);
            cells.for_each(|(cell, value)| *cell += cut * value);
        }
        Some(sum)
    }

    /// How far the weights move.
    fn step(&self, gradient: &[f64; WEIGHTS]) -> Option<[f64; WEIGHTS]> {
        let surplus: f64 = gradient.iter().take(INTERVALS).sum();
        let seen = (self.total + surplus + PRIOR_EVENTS).max(PRIOR_EVENTS / 10.0);
        let level = (seen / (self.total + PRIOR_EVENTS)).ln();
        let level = level.clamp(-LEVEL_MAX, LEVEL_MAX);
        let rest: Vec<f64> = (0..WEIGHTS)
            .map(|k| {
                let pull = if k < INTERVALS {
                    penalty(k) * level
                } else {
                    0.0
                };
                gradient[k] - level.exp_m1() * self.expected[k] - pull
            })
            .collect();
        let mut step = solve_factored(&self.penalised(level.exp())?, &rest);
        let mean_square = self.quadratic(&step) / self.total;
        let factor = (STEP_MAX / mean_square).sqrt().min(1.0);
        step.iter_mut().for_each(|value| *value *= factor);
        // Hazards that are moved up and down by equal factors grow in the mean, since exp is convex.
        let mean = 1.0 + dot(&self.expected, &step) / self.total;
        let growth = (1.0 + self.quadratic(&step) / (2.0 * self.total * mean.max(0.1))).ln();
        let common = |k: usize| if k < INTERVALS { level - growth } else { 0.0 };
        Some(std::array::from_fn(|k| step[k] + common(k)))
    }

    /// `x * information * x`, not negative.
    fn quadratic(&self, x: &[f64]) -> f64 {
        let lines = self.information.chunks_exact(WEIGHTS).zip(x);
        lines
            .map(|(line, value)| value * dot(line, x))
            .sum::<f64>()
            .max(0.0)
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests;
