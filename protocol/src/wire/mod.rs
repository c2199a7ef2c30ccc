//! Messages as plain data. Nothing here does I/O.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

pub mod announcement;
pub mod code;
mod frame;
#[allow(
    clippy::cast_possible_truncation,
    reason = "constants that follow from the geometry, far below 2^32"
)]
pub mod limits;
pub mod machine;
pub mod message;
pub mod parts;
pub mod status;
mod version;
mod withheld;

#[cfg(test)]
mod tests;

pub use code::Code;
pub use version::WireVersion;
pub use withheld::{WITHHELD_PART, Withheld};
