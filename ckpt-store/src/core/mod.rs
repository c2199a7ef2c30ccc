//! What a host decides: whose version a number is, what has room, what expires.
//!
//! Pure: no I/O, no clock, no async. Time and the disk's free space are arguments.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

pub mod audits;
pub mod broken_off;
pub mod by_key;
pub mod catalog;
pub mod census;
pub mod fence;
pub mod histories;
pub mod ledger;
pub mod notices;
pub mod places;
pub mod proofs;
pub mod quiet;
pub mod registry;
pub mod release;
pub mod repair;
pub mod rhythm;
#[cfg(test)]
mod sim;
pub mod traffic;

pub use catalog::{Catalog, Denied, Key, PutId, Shard};
pub use ledger::Ledger;

/// Milliseconds on a clock that only goes forward and begins anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// The moment `duration` later.
    pub fn after(self, duration: std::time::Duration) -> Self {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }
}
