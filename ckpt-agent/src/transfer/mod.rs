//! The client's side of transfers with hosts, and how fast hosts send.

pub mod sources;

pub use ::transfer::{Hosts, find, get, hosts, put, rebuild};
