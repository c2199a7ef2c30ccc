//! The decisions of a host: which checkpoint gets a version, what there is room for, what expires, what
//! is rebuilt, and who is served next.
//!
//! This module is pure: it has no I/O, no clock and no async code. The time and the free space of the
//! disk are arguments.

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
pub mod joiners;
mod key;
pub mod known_donors;
pub mod ledger;
pub mod notices;
pub mod places;
pub mod proofs;
pub mod quiet;
pub mod reach;
pub mod registry;
pub mod release;
pub mod repair;
pub mod rhythm;
#[cfg(test)]
mod sim;
pub mod traffic;

pub use catalog::{Catalog, Denied, PutId, Shard};
pub use key::Key;
pub use ledger::Ledger;
pub use placement::clock::Millis;
