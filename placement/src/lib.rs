//! The choice of hosts for shards: availability states, prediction of failures, correlation, bandwidth.
//!
//! Pure: no clock, no file, no socket, no randomness. Time is always an argument.
//!
//! From readings to a survival curve: a [`state::HostClassifier`] turns a monitor's readings into
//! states, a [`history::Timeline`] keeps them, a [`hazard::HostSummary`] follows the host, and a
//! [`hazard::HazardModel`] predicts. [`semi_markov`] is the predictor of the papers.
//!
//! ```
//! use std::num::NonZeroU32;
//! use placement::hazard::{HazardModel, HostSummary};
//! use placement::state::AvailabilityState;
//!
//! let mut summary = HostSummary::new(0);
//! // Two days of use, an hour off, a day of use. Spans may be cut anywhere.
//! summary.observe(0..172_800, Some(AvailabilityState::Idle), Some(0.05));
//! summary.observe(172_800..176_400, Some(AvailabilityState::Gone), None);
//! summary.observe(176_400..262_800, Some(AvailabilityState::Idle), Some(0.05));
//!
//! let model = HazardModel::pretrained();
//! let six_seconds = NonZeroU32::new(6).unwrap();
//! let curve = model.curve(&summary.covariates(model.pool()), six_seconds, 6000);
//! assert!(curve.at(3600.0) > curve.at(36_000.0));
//! ```

pub mod absence;
pub mod bandwidth;
pub mod bitmap;
pub mod clock;
pub mod contention;
pub mod hazard;
pub mod history;
pub mod interval;
pub mod joint;
pub mod judge;
pub mod levels;
pub mod likelihood;
pub mod linear;
pub mod objective;
pub mod pool_model;
pub mod probability;
pub mod rank;
pub mod redundancy;
pub mod renewal;
pub mod select;
pub mod semi_markov;
pub mod state;
pub mod survival;
pub mod week;

pub use bitmap::AvailabilityBitmap;
pub use probability::Probability;
pub use survival::SurvivalCurve;
