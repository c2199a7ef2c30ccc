//! What a machine does and for whom: CPU time, memory and disk, of its owner and of guests.
//!
//! A [`Sampler`] reads counters. The difference of two readings is the load of the owner
//! ([`Counters::load_since`]): what the machine did, less what this process and its [`Guests`] did. Every
//! reader takes a [`Machine`]: usually [`Machine::here`], in tests a directory with the same files.
//!
//! [`control`] holds a guest back for the owner, by the means that this machine has. [`local`] is the
//! protocol between a daemon and the guests of its machine.

pub mod accounts;
pub mod autogroup;
pub mod cgroup;
pub mod consoles;
pub mod control;
pub mod counters;
pub mod disk;
pub mod guests;
pub mod heaps;
pub mod local;
pub mod open_files;
mod paths;
pub mod power;
pub mod processes;
pub mod programs;
mod sampler;
pub mod speed;

pub use counters::{Counters, Load};
pub use guests::Guests;
pub use paths::Machine;
pub use processes::{ProcessId, Processes};
pub use sampler::{ReadError, Sampler};
