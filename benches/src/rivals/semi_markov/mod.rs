//! The semi-Markov predictor of the papers: a host that has entered a state stays for a random time and then
//! jumps to the next state.
//!
//! [`visits`] cuts a history into stays, and [`counting`] or [`competing_risks`] estimates a [`Kernel`] from
//! them. The kernel yields, for a whole horizon in one pass, survival (failure states are never left) and
//! point availability (they are left again).

pub mod competing_risks;
pub mod counting;
pub mod kernel;
pub mod visits;

pub use competing_risks::CompetingRisks;
pub use kernel::Kernel;
pub use visits::Visit;
