//! Tests of the daemon from outside: over real sockets and, in some tests, with the real program.

#![allow(
    clippy::unwrap_used,
    reason = "all of this is tests, also what is not marked as one"
)]

mod client;
mod guests;
mod hostile;
mod lab;
mod lists;
mod memory;
mod owner;
mod owner_rules;
mod process;
mod registry;
mod requests;
#[path = "../../src/shards/sample.rs"]
mod sample;
mod shares;
mod unkind;
mod worst;
