//! How long a run takes, from what earlier runs of the same program took.
//!
//! Two runs are comparable when their words are the same and only their numbers differ: whoever asks sees to
//! that. Each number counts by how far it moved the cost of earlier runs (the rank correlation), over its
//! spread; the forecast is the geometric mean of the three nearest runs, the nearer the heavier. The interval
//! is that of the errors which the same rule makes on each earlier run when it knows only the others.

mod ranks;
#[cfg(test)]
mod tests;

use self::ranks::spearman;

/// Runs that a forecast is made of: the nearest ones.
const NEAREST: usize = 3;

/// Added to every distance, so that a run with the same numbers has one.
const LEAST_DISTANCE: f64 = 1e-9;

/// The share of runs that an interval should hold.
pub const INTERVAL_SHARE: f64 = 0.9;

/// Newest runs that are looked at; older ones are passed over. The errors of so many take a tenth of a second.
pub const RUNS_MAX: usize = 500;

/// A run that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct PastRun {
    /// Its numbers: as many as those of any other, and in the same order.
    pub numbers: Vec<f64>,
    /// What it cost, above zero, such as seconds of processor time at reference speed.
    pub cost: f64,
}

/// What a run will cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// The cost.
    pub cost: f64,
    /// The costs between which it is; none when there was one earlier run only.
    pub interval: Option<Interval>,
    /// Earlier runs that were looked at.
    pub runs: usize,
    /// Places of the numbers that lie outside of all earlier ones, counted from 0: what is said of these is a
    /// guess.
    pub outside: Vec<usize>,
}

/// Costs between which one is, in so many of a hundred cases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The share of runs that lie in it, 0 to 1: [`INTERVAL_SHARE`], or less when there were few runs.
    pub share: f64,
}

/// What earlier runs say, ready to be asked.
#[derive(Clone, Debug)]
pub struct Model {
    runs: Vec<PastRun>,
    scale: Vec<f64>,
    /// ln(cost / forecast) of each run, with only the others known; in order.
    errors: Vec<f64>,
}

impl Model {
    /// Learns from runs, the oldest first. Runs with a cost that is none, or with other numbers than the
    /// newest one has, are passed over. None when no run is left.
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
        let mut errors = Vec::with_capacity(runs.len());
        for left_out in 0..runs.len() {
            let mut others = all.clone();
            let one = others.remove(left_out);
            if let Some(cost) = cost_of(&others, &scale(&others), &one.numbers) {
                errors.push((one.cost / cost).ln());
            }
        }
        errors.sort_by(f64::total_cmp);
        let scale = scale(&all);
        Some(Self {
            runs,
            scale,
            errors,
        })
    }

    /// What a run with these numbers will cost. None when it has another count of numbers.
    #[must_use]
    pub fn forecast(&self, numbers: &[f64]) -> Option<Forecast> {
        let all: Vec<&PastRun> = self.runs.iter().collect();
        let cost = cost_of(&all, &self.scale, numbers)?;
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

    /// The smallest interval by order of the errors that holds the share wanted, or all of them.
    fn interval(&self, cost: f64) -> Option<Interval> {
        let count = self.errors.len();
        // A new error falls into each of the count + 1 gaps between the old ones equally often.
        let gaps = count as f64 + 1.0;
        let cut = below((1.0 - INTERVAL_SHARE) / 2.0 * gaps).max(1);
        let low = self.errors.get(cut - 1)?;
        let high = self.errors.get(count.checked_sub(cut)?)?;
        (low <= high && count > 1).then(|| Interval {
            low: cost * low.exp(),
            high: cost * high.exp(),
            share: (gaps - 2.0 * cut as f64) / gaps,
        })
    }
}

/// The whole number below one of a few hundreds.
#[allow(
    clippy::cast_possible_truncation,
    reason = "cutting the fraction off is what is wanted"
)]
const fn below(number: f64) -> usize {
    number as usize
}

/// What the run with the nearest numbers cost, by the distance between the numbers as they are: the papers'
/// rule, as what ours is compared with. Of runs that are equally near, the newest counts.
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

/// What a difference of one weighs in the distance, for each number; zero for one that never differed.
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

/// The cost by the nearest runs; of those that are equally near, the newest count.
fn cost_of(runs: &[&PastRun], scale: &[f64], numbers: &[f64]) -> Option<f64> {
    if numbers.len() != scale.len() {
        return None;
    }
    let distance = |run: &PastRun| -> f64 {
        let differences = run.numbers.iter().zip(numbers).zip(scale);
        let squares = differences.map(|((have, wanted), scale)| (scale * (have - wanted)).powi(2));
        squares.sum::<f64>().sqrt() + LEAST_DISTANCE
    };
    let mut near: Vec<(f64, f64)> = runs
        .iter()
        .rev()
        .map(|run| (distance(run), run.cost))
        .collect();
    near.sort_by(|one, other| one.0.total_cmp(&other.0));
    near.truncate(NEAREST);
    let weights: f64 = near.iter().map(|(distance, _)| 1.0 / distance).sum();
    let sum: f64 = near
        .iter()
        .map(|(distance, cost)| cost.ln() / distance)
        .sum();
    (weights > 0.0).then(|| (sum / weights).exp())
}
