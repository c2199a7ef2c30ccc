//! The level of a host's forecasts: how often it failed, against how often that was expected.
//!
//! The factor is a Bayesian estimate: the host's failures are taken for a Poisson process whose rate is the
//! model's rate times a factor of this host, with a Gamma distribution of mean 1 as the factor's prior.

use super::summary::PRIOR_EVENTS;

/// How many failures of a host were expected, and how many happened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Level {
    /// Number of failures that the forecasts expected while the host was observed.
    pub(super) expected: f64,
    /// Number of failures that happened in this time.
    pub(super) seen: f64,
}

impl Level {
    /// A level from the number of failures that the model expected while the host was observed, and the
    /// number that happened. A number that is negative or NaN counts as 0.
    #[must_use]
    pub fn new(expected: f64, seen: f64) -> Self {
        let count = |value: f64| if value > 0.0 { value.min(1e9) } else { 0.0 };
        Self {
            expected: count(expected),
            seen: count(seen),
        }
    }

    /// The host's failure rate as a multiple of the model's: `(seen + 1/2) / (expected + 1/2)`, the mean of
    /// the Gamma distribution after the observations. The prior weighs as much as half a failure, as the
    /// pool does in the frequencies of [`super::HostSummary`]. It is 1 as long as nothing is known.
    #[must_use]
    pub fn factor(self) -> f64 {
        (self.seen + PRIOR_EVENTS) / (self.expected + PRIOR_EVENTS)
    }
}
