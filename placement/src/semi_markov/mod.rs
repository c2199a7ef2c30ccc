//! The predictor of the papers: the temporal reliability of a semi-Markov process (SMP). A host that has entered
//! a state stays for a random time and then jumps to the next state.
//!
//! [`visits`] cuts a history into stays, and [`counting`] estimates a [`Kernel`] from them: from the same clock
//! window of the latest weekdays, or weekend days. The kernel yields, for a whole horizon in one pass, survival
//! (failure states are never left) and point availability (they are left again). [`SemiMarkov`] does all of it
//! for a host that is followed.

pub mod counting;
pub mod kernel;
mod predictor;
pub mod visits;

pub use kernel::Kernel;
pub use predictor::SemiMarkov;
pub use visits::Visit;
