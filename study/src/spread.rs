//! What is said of a sample of numbers.

use serde::Serialize;

/// Statistics of a sample of numbers, in the unit of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Size of the sample.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation of the population.
    pub sd: f64,
    /// The least number.
    pub min: f64,
    /// First quartile.
    pub quarter: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub three_quarters: f64,
    /// The largest number.
    pub max: f64,
}
