//! How long a run takes, from what earlier runs of the same program took.
//!
//! The caller passes only comparable runs: those whose command lines have the same words and differ in
//! numbers alone. A number counts for much if it moved the cost of earlier runs: its weight is the rank
//! correlation between number and cost, divided by the spread of the number. The forecast is the
//! geometric mean of the costs of the three nearest runs, weighted by 1 / distance. Where a power law
//! (the module `trend`) explains the earlier runs, that mean is taken of what the runs cost beside the law.
//!
//! Each earlier run is forecast from all the others, with the law and without it. The way with the smaller
//! errors is used, and its errors, sorted, make the interval.

mod ranks;
#[cfg(test)]
mod tests;
mod trend;

use self::ranks::spearman;
use self::trend::Trend;

/// How many of the nearest runs make a forecast.
const NEAREST: usize = 3;

/// Added to every distance, so that the weight of a run with the same numbers is finite.
const LEAST_DISTANCE: f64 = 1e-9;

/// The share of runs whose cost should lie in the interval.
pub const INTERVAL_SHARE: f64 = 0.9;

/// Only this many of the newest runs are used: leaving each of them out once takes a tenth of a second.
pub const RUNS_MAX: usize = 500;

/// An earlier run that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct PastRun {
    /// Its numbers, of the same count and in the same order for all runs.
    pub numbers: Vec<f64>,
    /// What the run cost, above zero, such as seconds of processor time at reference speed.
    pub cost: f64,
}

/// The forecast for one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// The expected cost, in the unit of [`PastRun::cost`].
    pub cost: f64,
    /// The interval in which the cost probably lies; `None` if there was one earlier run only.
    pub interval: Option<Interval>,
    /// How many earlier runs the forecast rests on.
    pub runs: usize,
    /// Positions, counted from 0, of the numbers that lie outside the range of all earlier ones. A
    /// forecast with such a number is a guess.
    pub outside: Vec<usize>,
}

/// An interval of costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The share of runs whose cost lies in the interval, 0 to 1: [`INTERVAL_SHARE`], or less if there
    /// were few runs.
    pub share: f64,
}

/// A model of earlier runs, which forecasts new ones.
#[derive(Clone, Debug)]
pub struct Model {
    runs: Vec<PastRun>,
    scale: Vec<f64>,
    /// The law that explains the runs, if it makes forecasts better.
    trend: Option<Trend>,
    /// ln(cost / forecast) of each run, forecast from all the others; sorted.
    errors: Vec<f64>,
}

impl Model {
    /// Learns from `past`, the oldest run first. Leaves out runs whose cost is not finite and positive,
    /// and runs with another count of numbers than the newest one. `None` if no run is left.
    #[must_use]
    pub fn new(past: &[PastRun]) -> Option<Self> {
        let numbers = past.last()?.numbers.len();
        let usable = |run: &&PastRun| {
            let finite = run.numbers.iter().all(|number| number.is_finite());
            finite && run.numbers.len() == numbers && run.cost.is_finite() && run.cost > 0.0
        };
        let mut runs: Vec<PastRun> = past.iter().filter(usable).cloned().collect();
        runs.drain(..runs.len().saturating_sub(RUNS_MAX));
        if runs.is_empty() {
            return None;
        }
        let all: Vec<&PastRun> = runs.iter().collect();
        let mut plain = Vec::new();
        let mut with_law = Vec::new();
        for left_out in 0..runs.len() {
            let mut others = all.clone();
            let one = others.remove(left_out);
            let scale = scale(&others);
            let error = |law: Option<&Trend>| {
                let cost = cost_of(&others, &scale, law, &one.numbers)?;
                Some((one.cost / cost).ln())
            };
            plain.extend(error(None));
            let law = Trend::fit(&others);
            with_law.extend(law.and_then(|law| error(Some(&law))));
        }
        let size = |errors: &[f64]| errors.iter().map(|error| error.abs()).sum::<f64>();
        let is_better = with_law.len() == plain.len() && size(&with_law) < size(&plain);
        let trend = Trend::fit(&all).filter(|_| is_better);
        let mut errors = if trend.is_some() { with_law } else { plain };
        errors.sort_by(f64::total_cmp);
        let scale = scale(&all);
        Some(Self {
            runs,
            scale,
            trend,
            errors,
        })
    }

    /// Forecasts a run with these numbers. `None` if their count differs from that of the earlier runs.
    #[must_use]
    pub fn forecast(&self, numbers: &[f64]) -> Option<Forecast> {
        let all: Vec<&PastRun> = self.runs.iter().collect();
        let cost = cost_of(&all, &self.scale, self.trend.as_ref(), numbers)?;
        let outside = numbers.iter().enumerate().filter(|(place, number)| {
            let seen = self.runs.iter().filter_map(|run| run.numbers.get(*place));
            let (low, high) = seen.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), one| {
                (one.min(low), one.max(high))
            });
            !(low..=high).contains(*number)
        });
        Some(Forecast {
            cost,
            interval: self.interval(cost),
            runs: self.runs.len(),
            outside: outside.map(|(place, _)| place).collect(),
        })
    }

    /// Cuts equally many errors off both ends of the sorted list, as many as [`INTERVAL_SHARE`] allows.
    fn interval(&self, cost: f64) -> Option<Interval> {
        let count = self.errors.len();
        // A new error falls with equal probability into each of the `count + 1` gaps around the old ones.
        let gaps = count as f64 + 1.0;
        let cut = floor((1.0 - INTERVAL_SHARE) / 2.0 * gaps).max(1);
        let low = self.errors.get(cut - 1)?;
        let high = self.errors.get(count.checked_sub(cut)?)?;
        (low <= high && count > 1).then(|| Interval {
            low: cost * low.exp(),
            high: cost * high.exp(),
            share: (gaps - 2.0 * cut as f64) / gaps,
        })
    }
}

/// A small positive number, rounded down.
#[allow(
    clippy::cast_possible_truncation,
    reason = "cutting the fraction off is what is wanted"
)]
const fn floor(number: f64) -> usize {
    number as usize
}

/// The cost of the run with the nearest numbers, by their Euclidean distance without weights: the rule of
/// AVAM, against which ours is measured. Among equally near runs the newest counts.
#[must_use]
pub fn cost_of_nearest(past: &[PastRun], numbers: &[f64]) -> Option<f64> {
    let comparable = past.iter().rev();
    let comparable = comparable.filter(|run| run.numbers.len() == numbers.len());
    let nearest = comparable.min_by(|one, other| {
        let distance = |run: &PastRun| -> f64 {
            let pairs = run.numbers.iter().zip(numbers);
            pairs.map(|(a, b)| (a - b) * (a - b)).sum()
        };
        distance(one).total_cmp(&distance(other))
    })?;
    Some(nearest.cost)
}

/// The weight of each number in the distance: |rank correlation with the cost| / spread; 0 for a number
/// that never differed.
fn scale(runs: &[&PastRun]) -> Vec<f64> {
    let count = runs.first().map_or(0, |run| run.numbers.len());
    let costs: Vec<f64> = runs.iter().map(|run| run.cost).collect();
    let of_place = |place: usize| {
        let numbers = runs.iter().filter_map(|run| run.numbers.get(place));
        let numbers: Vec<f64> = numbers.copied().collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let squares = numbers
            .iter()
            .map(|number| (number - mean) * (number - mean));
        let spread = (squares.sum::<f64>() / numbers.len() as f64).sqrt();
        if spread > 0.0 {
            spearman(&numbers, &costs).abs() / spread
        } else {
            0.0
        }
    };
    (0..count).map(of_place).collect()
}

/// The forecast cost by the nearest runs, of which a law explains a part. Among equally near runs the newest
/// count.
fn cost_of(runs: &[&PastRun], scale: &[f64], law: Option<&Trend>, numbers: &[f64]) -> Option<f64> {
    if numbers.len() != scale.len() {
        return None;
    }
    let distance = |run: &PastRun| -> f64 {
        let differences = run.numbers.iter().zip(numbers).zip(scale);
        let squares = differences.map(|((have, wanted), scale)| (scale * (have - wanted)).powi(2));
        squares.sum::<f64>().sqrt() + LEAST_DISTANCE
    };
    let explained = |numbers: &[f64]| law.map_or(0.0, |law| law.log_cost(numbers));
    let mut near: Vec<(f64, f64)> = runs
        .iter()
        .rev()
        .map(|run| (distance(run), run.cost.ln() - explained(&run.numbers)))
        .collect();
    near.sort_by(|one, other| one.0.total_cmp(&other.0));
    near.truncate(NEAREST);
    let weights: f64 = near.iter().map(|(distance, _)| 1.0 / distance).sum();
    let sum: f64 = near
        .iter()
        .map(|(distance, unexplained)| unexplained / distance)
        .sum();
    let cost = (explained(numbers) + sum / weights).exp();
    (weights > 0.0 && cost.is_finite() && cost > 0.0).then_some(cost)
}
