//! The decisions of a save and of a restore, as state machines: events in, actions out.
//!
//! Nothing here does I/O or knows the time: `handle` is told what happened and when, `poll_action`
//! says what to do, `next_deadline` when to call again at the latest. So every fault at every
//! moment can be tested without a socket.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

pub mod claims;
pub mod effort;
pub mod fence;
pub mod glob;
pub mod health;
pub mod pick;
#[allow(
    clippy::indexing_slicing,
    reason = "indices of the views that it is given; they have no type of their own yet"
)]
pub mod place;
pub mod read;
pub mod restore;
pub mod save;
#[cfg(test)]
mod sim;
pub mod sought;

pub use transfer::{Fault, HostIndex};

/// Milliseconds since some fixed moment; never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// This moment and `ms` more.
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds since `earlier`; zero when it is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
