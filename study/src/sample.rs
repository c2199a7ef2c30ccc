//! Samples as sorted values with counts, since many lengths in traces are equal.

use crate::spread::Spread;

/// A sample of numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Distinct values, rising, each with how often it occurs.
    values: Vec<(f64, u64)>,
}

impl Sample {
    /// The sample of these values; values that are not finite are left out.
    #[must_use]
    pub fn new(mut values: Vec<f64>) -> Self {
        values.retain(|value| value.is_finite());
        values.sort_unstable_by(f64::total_cmp);
        let mut counted: Vec<(f64, u64)> = Vec::new();
        for value in values {
            match counted.last_mut() {
                Some((last, count)) if *last == value => *count += 1,
                _ => counted.push((value, 1)),
            }
        }
        Self { values: counted }
    }

    /// The sample of these whole numbers, such as lengths in seconds.
    pub(crate) fn of_seconds(mut seconds: Vec<u64>) -> Self {
        seconds.sort_unstable();
        let runs = seconds.chunk_by(|a, b| a == b);
        let counted = runs.filter_map(|run| Some((*run.first()? as f64, run.len() as u64)));
        Self {
            values: counted.collect(),
        }
    }

    /// Distinct values, rising, each with how often it occurs.
    #[must_use]
    pub fn values(&self) -> &[(f64, u64)] {
        &self.values
    }

    /// Number of values, equal ones included.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.values.iter().map(|(_, count)| count).sum()
    }

    /// The values above `least`, each replaced by `change(value)`; `change` has to be increasing.
    pub(crate) fn above(&self, least: f64, change: impl Fn(f64) -> f64) -> Self {
        let kept = self.values.iter().filter(|(value, _)| *value > least);
        Self {
            values: kept
                .map(|(value, count)| (change(*value), *count))
                .collect(),
        }
    }

    /// Mean of a function of the values; zero for an empty sample.
    pub(crate) fn mean_of(&self, of: impl Fn(f64) -> f64) -> f64 {
        let sum: f64 = self
            .values
            .iter()
            .map(|(value, count)| of(*value) * *count as f64)
            .sum();
        sum / self.count().max(1) as f64
    }

    /// Mean, standard deviation (of the population) and quartiles; `None` for an empty sample.
    pub(crate) fn spread(&self) -> Option<Spread> {
        let first = self.values.first()?;
        let last = self.values.last()?;
        let mean = self.mean_of(|value| value);
        let variance = self.mean_of(|value| (value - mean).powi(2));
        Some(Spread {
            count: self.count(),
            mean,
            sd: variance.sqrt(),
            min: first.0,
            quarter: self.quantile(0.25),
            median: self.quantile(0.5),
            three_quarters: self.quantile(0.75),
            max: last.0,
        })
    }

    /// The quantile: the value below which the `share` of the sample lies, interpolated between neighbours.
    fn quantile(&self, share: f64) -> f64 {
        let place = share * self.count().saturating_sub(1) as f64;
        let below = self.at(place.floor() as u64);
        let above = self.at(place.ceil() as u64);
        below + (above - below) * place.fract()
    }

    /// The value at an index of the sorted sample, counted from 0; the last value beyond the end.
    fn at(&self, place: u64) -> f64 {
        let mut before = 0;
        for (value, count) in &self.values {
            before += count;
            if place < before {
                return *value;
            }
        }
        self.values.last().map_or(0.0, |(value, _)| *value)
    }

    /// Points (value, share of the sample up to it) of the cumulative distribution, at most `most + 1`.
    pub(crate) fn cumulative(&self, most: usize) -> Vec<(f64, f64)> {
        let total = self.count().max(1) as f64;
        let step = self.values.len().div_ceil(most.max(1)).max(1);
        let mut points = Vec::new();
        let mut before = 0;
        for (i, (value, count)) in self.values.iter().enumerate() {
            before += count;
            if i % step == 0 || i + 1 == self.values.len() {
                points.push((*value, before as f64 / total));
            }
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_neighbours() {
        let sample = Sample::new(vec![4.0, 1.0, 2.0, 2.0, f64::NAN]);
        let spread = sample.spread().unwrap();
        assert_eq!((spread.count, spread.min, spread.max), (4, 1.0, 4.0));
        assert_eq!(
            (spread.quarter, spread.median, spread.three_quarters),
            (1.75, 2.0, 2.5)
        );
        assert_eq!(spread.mean, 2.25);
        assert!(Sample::new(Vec::new()).spread().is_none());
        assert_eq!(Sample::of_seconds(vec![4, 1, 2, 2]), sample);
    }

    #[test]
    fn a_cumulative_distribution_ends_at_one_however_few_points_it_has() {
        let sample = Sample::new((0..1000).map(f64::from).collect());
        for most in [1, 7, 100, 5000] {
            let points = sample.cumulative(most);
            assert_eq!(points.last(), Some(&(999.0, 1.0)));
            assert!(points.len() <= most + 1, "{}", points.len());
        }
    }
}
