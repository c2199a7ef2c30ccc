//! The semi-Markov predictor: a host that has entered a state stays for a random time and then
//! jumps to the next.
//!
//! [`visits`] cuts a history into stays, [`counting`] and [`competing_risks`] estimate a
//! [`Kernel`] from them, and the kernel yields survival (failure states absorb) and point
//! availability (they do not) for a whole horizon in one pass.

pub mod competing_risks;
pub mod counting;
pub mod kernel;
pub mod visits;

pub use competing_risks::CompetingRisks;
pub use kernel::Kernel;
pub use visits::Visit;
