//! Which hosts to trust with a shard: availability states, prediction and the choice of hosts.
//!
//! Pure: no clock, no file, no socket, no randomness. Time is always an argument.

pub mod bitmap;
pub mod calibration;
pub mod hazard;
pub mod history;
mod likelihood;
mod linear;
pub mod probability;
pub mod reference;
pub mod semi_markov;
pub mod state;
pub mod survival;

pub use bitmap::AvailabilityBitmap;
pub use probability::Probability;
pub use survival::SurvivalCurve;
