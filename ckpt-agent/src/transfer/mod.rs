//! What the network shell is made of, and how fast sources are.

pub mod sources;

pub use ::transfer::{Hosts, find, get, hosts, put, rebuild};
