//! What the daemon knows and decides. No I/O, no clock: time is an argument.

pub mod catalog;
