//! The decisions of a save and of a restore, as state machines: events in, actions out.
//!
//! Nothing here does I/O or reads a clock. The caller passes each event and its time to `handle`, takes from
//! `poll_action` what it has to do, and calls again at `next_deadline` at the latest. So a test can produce
//! every fault at every moment without a socket.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

pub mod claims;
pub mod clocks;
pub mod compared;
pub mod effort;
pub mod fence;
pub mod gather;
pub mod glob;
pub mod knowledge;
pub mod map;
pub mod marks;
pub mod pick;
#[allow(
    clippy::indexing_slicing,
    reason = "positions in the views that it is given, as `placement` returns them"
)]
pub mod place;
pub mod pool_watch;
pub(crate) mod pooled;
pub mod read;
pub mod remains;
pub mod restore;
pub mod retention;
pub mod save;
#[cfg(test)]
mod sim;
pub mod sought;

pub use placement::clock::Millis;
pub use protocol::fault::{Fault, HostIndex};
