//! The predictor in use: a discrete-time hazard regression over landmarks.
//!
//! A forecast is made at a moment (the landmark), for a horizon of ten hours that is divided into nine
//! intervals. The probability of failing in interval j, given survival until its beginning, is
//! `1 - exp(-exp(x_j * w))` (complementary log-log link). The covariates `x_j` of the host at the landmark
//! are
//!
//! - its failure frequencies so far: over all its history, lately, from its present state, and at this time
//!   of day, each shrunk towards a more general frequency, in the end that of the pool;
//! - the time in the present state and since the last failure;
//! - its load; the time of day; whether it is a weekend.
//!
//! The weights `w` are common to all hosts. An observation that ends early counts for the intervals that it
//! reached, so censoring needs no further care. TR at the end of an interval is the product of the survival
//! probabilities of the intervals up to it, so one model serves all horizons.
//!
//! [`HostSummary`] follows a host and keeps what the covariates need in constant memory.
//! [`HazardModel`] holds the weights; [`HazardModel::fit`] learns them from [`Example`]s.
//! [`Forecaster`] is a summary that also compares the model's forecasts with what the host then did, and
//! scales later forecasts by the ratio.

pub mod forecaster;
pub mod level;
pub mod model;
mod pretrained;
pub mod summary;

pub use forecaster::Forecaster;
pub use level::Level;
pub use model::{Example, HazardModel};
pub use summary::{Covariates, HostSummary};

/// Number of intervals of the horizon.
pub const INTERVALS: usize = 9;

/// Ends of the intervals in seconds after the landmark.
pub const INTERVAL_ENDS: [u64; INTERVALS] =
    [300, 900, 1800, 3600, 7200, 10_800, 18_000, 25_200, 36_000];

/// Beginning of interval number `interval` in seconds after the landmark.
#[must_use]
pub fn interval_start(interval: usize) -> u64 {
    interval
        .checked_sub(1)
        .and_then(|before| INTERVAL_ENDS.get(before))
        .copied()
        .unwrap_or(0)
}
