//! How the cost of runs grows with their numbers: a power law, fitted by least squares.
//!
//! ln(cost) = c + sum of b_i f_i, where f_i is the logarithm of the i-th number, or the number itself if some
//! run has a zero or negative one. The cost of many programs is close to such a product of powers, as cells
//! of a grid times steps; what is left the nearest runs correct.

use placement::linear::solve_positive_definite;

use super::PastRun;

/// Weight of the squares of the coefficients beside the mean square error; keeps numbers that always change
/// together from taking huge coefficients of opposite signs.
const RIDGE: f64 = 1e-3;

/// Most numbers that differ between runs. The time to fit a trend grows with the square of their count.
const NUMBERS_MAX: usize = 8;

/// Runs for each coefficient, at least: fewer fix a coefficient no better than chance.
const RUNS_PER_COEFFICIENT: usize = 3;

/// One number of a run, as the power law takes it.
#[derive(Clone, Debug)]
struct Feature {
    /// Position of the number, counted from 0.
    place: usize,
    /// The smallest number of the runs, if the logarithm is taken; smaller ones count as this one.
    least: Option<f64>,
    mean: f64,
    spread: f64,
}

impl Feature {
    /// `None` if the number is the same in all runs.
    fn of(runs: &[&PastRun], place: usize) -> Option<Self> {
        let numbers: Vec<f64> = runs
            .iter()
            .filter_map(|run| run.numbers.get(place).copied())
            .collect();
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        if numbers.iter().all(|number| *number == least) {
            return None;
        }
        let mut feature = Self {
            place,
            least: (least > 0.0).then_some(least),
            mean: 0.0,
            spread: 1.0,
        };
        let values = numbers.iter().map(|number| feature.of_number(*number));
        let values: Vec<f64> = values.collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares = values.iter().map(|value| (value - mean).powi(2));
        let spread = (squares.sum::<f64>() / values.len() as f64).sqrt();
        if !(spread.is_finite() && spread > 0.0) {
            return None;
        }
        (feature.mean, feature.spread) = (mean, spread);
        Some(feature)
    }

    fn of_number(&self, number: f64) -> f64 {
        let value = self.least.map_or(number, |least| number.max(least).ln());
        (value - self.mean) / self.spread
    }

    fn of_run(&self, numbers: &[f64]) -> f64 {
        numbers
            .get(self.place)
            .map_or(0.0, |number| self.of_number(*number))
    }
}

/// A fitted power law.
#[derive(Clone, Debug)]
pub(super) struct Trend {
    features: Vec<Feature>,
    coefficients: Vec<f64>,
    /// Mean of ln(cost).
    level: f64,
}

impl Trend {
    /// Fits a trend. `None` if there are too few runs for the numbers that differ between them, too many
    /// such numbers, or none.
    pub(super) fn fit(runs: &[&PastRun]) -> Option<Self> {
        let count = runs.first()?.numbers.len();
        let places = (0..count).filter_map(|place| Feature::of(runs, place));
        let features: Vec<Feature> = places.collect();
        let order = features.len();
        let enough = runs.len() >= RUNS_PER_COEFFICIENT * (order + 1);
        if order == 0 || order > NUMBERS_MAX || !enough {
            return None;
        }
        let level = runs.iter().map(|run| run.cost.ln()).sum::<f64>() / runs.len() as f64;
        let mut matrix = vec![0.0; order * order];
        let mut right = vec![0.0; order];
        for run in runs {
            let row: Vec<f64> = features
                .iter()
                .map(|one| one.of_run(&run.numbers))
                .collect();
            let wanted = run.cost.ln() - level;
            for ((line, sum), value) in matrix.chunks_mut(order).zip(&mut right).zip(&row) {
                *sum += value * wanted;
                for (cell, other) in line.iter_mut().zip(&row) {
                    *cell += value * other;
                }
            }
        }
        for (place, line) in matrix.chunks_mut(order).enumerate() {
            if let Some(cell) = line.get_mut(place) {
                *cell += RIDGE * runs.len() as f64;
            }
        }
        Some(Self {
            coefficients: solve_positive_definite(&matrix, &right)?,
            features,
            level,
        })
    }

    /// ln(cost) of a run with these numbers.
    pub(super) fn log_cost(&self, numbers: &[f64]) -> f64 {
        let terms = self.features.iter().zip(&self.coefficients);
        let terms = terms.map(|(feature, coefficient)| coefficient * feature.of_run(numbers));
        self.level + terms.sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(count: u32, cost: fn(f64, f64) -> f64) -> Vec<PastRun> {
        let run = |at: u32| {
            let first = f64::from(1 + at % 5);
            let second = f64::from(10 + at * at % 17);
            PastRun {
                numbers: vec![first, second, 7.0],
                cost: cost(first, second),
            }
        };
        (0..count).map(run).collect()
    }

    fn fit(runs: &[PastRun]) -> Option<Trend> {
        Trend::fit(&runs.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_power_law_is_found_and_continued() {
        let past = runs(40, |first, second| 0.5 * first.powi(3) * second);
        let trend = fit(&past).unwrap();
        let cost = trend.log_cost(&[10.0, 40.0, 7.0]).exp();
        assert!((cost / (0.5 * 1000.0 * 40.0) - 1.0).abs() < 0.02, "{cost}");
    }

    #[test]
    fn numbers_that_may_be_zero_count_as_they_are() {
        let mut past = runs(40, |first, _| (first - 1.0).exp());
        for run in &mut past {
            run.numbers[0] -= 1.0;
        }
        let trend = fit(&past).unwrap();
        let cost = trend.log_cost(&[2.5, 12.0, 7.0]);
        assert!((cost - 2.5).abs() < 0.05, "{cost}");
    }

    #[test]
    fn too_few_runs_and_numbers_that_never_differ_have_no_trend() {
        let past = runs(40, |first, second| first + second);
        assert!(fit(&past[..8]).is_none() && fit(&past[..9]).is_some());
        assert!(fit(&[]).is_none());
        let same = vec![past[0].clone(); 40];
        assert!(fit(&same).is_none());
    }
}
