//! What a machine does and for whom: CPU time, memory, disk and pressure, of its owner and of guests.
//!
//! A [`Sampler`] reads counters; two readings make a load of the owner ([`Counters::load_since`]), which
//! is what the machine does less what this process and its [`Guests`] do. Every reader takes a
//! [`Machine`]: usually [`Machine::here`], in tests a directory that looks like one.
//!
//! [`control`] holds a guest back for the owner, by what this machine has. [`local`] is what a daemon and
//! the guests of its machine say to each other.

pub mod accounts;
pub mod autogroup;
pub mod cgroup;
pub mod consoles;
pub mod control;
pub mod counters;
pub mod guests;
pub mod heaps;
pub mod local;
mod paths;
pub mod power;
pub mod pressure;
pub mod processes;
pub mod programs;
mod sampler;
pub mod speed;

pub use counters::{Counters, Load};
pub use guests::Guests;
pub use paths::Machine;
pub use processes::{ProcessId, Processes};
pub use sampler::{ReadError, Sampler};
