//! What the network shell is made of, and how fast sources are.

pub mod sources;

pub use ::transfer::{Hosts, get, hosts, put, rebuild};
