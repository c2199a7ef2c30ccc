//! The codec through its public interface: images come back, and damage is found.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]
#![allow(
    clippy::disallowed_methods,
    reason = "fixtures are files; only the crate is pure"
)]

mod allocation;
mod checkpoint;
mod damage;
mod golden;
mod round_trip;
mod vectors;
