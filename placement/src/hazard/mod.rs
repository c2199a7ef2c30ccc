//! The predictor in use: a discrete-time hazard regression over landmarks.
//!
//! At a moment (the landmark) the horizon is divided into intervals. The probability of failing in
//! interval j, given survival until its beginning, is `1 - exp(-exp(x_j * w))` (complementary
//! log-log link) with covariates `x_j` of the host at the landmark: its own failure frequencies so
//! far, over all its history, lately, from its present state and at this time of day, each shrunk
//! towards the pool; the time in the present state and since the last failure; its load. The
//! weights are common to all hosts. Observations that end early count for the intervals they
//! reached, so censoring needs no further care, and all horizons follow from one model:
//! TR is the product of the intervals' survival.
//!
//! [`HostSummary`] follows a host and keeps what the covariates need in constant memory.
//! [`HazardModel`] holds the weights; [`HazardModel::fit`] learns them from [`Example`]s.
//! [`Forecaster`] is a summary that holds the model's forecasts against what the host then did, and
//! raises or lowers the next ones by that.

pub mod level;
pub mod model;
mod pretrained;
pub mod summary;

pub use level::{Forecaster, Level};
pub use model::{Example, HazardModel};
pub use summary::{Covariates, HostSummary};

/// Number of intervals of the horizon.
pub const INTERVALS: usize = 9;

/// Ends of the intervals in seconds after the landmark.
pub const INTERVAL_ENDS: [u64; INTERVALS] =
    [300, 900, 1800, 3600, 7200, 10_800, 18_000, 25_200, 36_000];

/// Beginning of an interval in seconds after the landmark.
#[must_use]
pub fn interval_start(interval: usize) -> u64 {
    interval
        .checked_sub(1)
        .and_then(|before| INTERVAL_ENDS.get(before))
        .copied()
        .unwrap_or(0)
}
