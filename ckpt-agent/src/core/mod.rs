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
pub mod effort;
pub mod fence;
pub mod glob;
pub mod knowledge;
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

/// Milliseconds since a fixed moment, which the caller chooses; never decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// The moment `ms` milliseconds after this one.
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this moment; zero when `earlier` is the later of the two.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
