//! The messages of the protocol, as plain data. Nothing in this module does I/O.
//!
//! [`message`] has the requests, the responses and the records in them; [`announcement`], [`machine`],
//! [`status`] and [`parts`] have what hosts report about themselves; [`code`] has the reasons of
//! refusals and [`limits`] every maximum. The bytes are described in `docs/inside/format.md`, and the fields in
//! `docs/inside/messages.md`, which is made of the comments in these files.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

mod about;
pub mod announcement;
pub mod code;
pub mod forecast;
mod frame;
#[allow(
    clippy::cast_possible_truncation,
    reason = "constants that follow from the geometry, far below 2^32"
)]
pub mod limits;
pub mod machine;
pub mod message;
pub mod parts;
mod refusal;
mod retired;
mod shards;
pub mod status;
mod text;
mod version;
mod withheld;

#[cfg(test)]
mod tests;

pub use code::Code;
pub use retired::Retired;
pub use text::escaped;
pub use version::WireVersion;
pub use withheld::{WITHHELD_PART, Withheld};
