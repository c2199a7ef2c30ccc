//! The client: saves images to the hosts of a grid and gets them back.
//!
//! Programs use [`client`]: a [`client::Client`] saves from files or any reader, restores to files, writes
//! a file of a checkpoint to any writer, reads parts of it, lists and forgets. Nothing in this crate reads
//! arguments, prints, or ends the process.
//!
//! # What is stable
//!
//! Stable within 0.x are [`client`], the items of other modules that it names, and the exit statuses. What
//! is there stays; structs of reports may get more fields (match them with `..`). Everything else (`core`,
//! `pipeline`, `image`, `inventory`, `knowledge`, `learning` and so on) is implementation. It is public for
//! the program and its tests, and changes without notice.

#![cfg_attr(
    not(test),
    deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)
)]

pub mod agent;
pub mod blocks_ahead;
pub mod cancel;
pub mod client;
pub mod connection;
pub mod core;
pub mod events;
pub mod file_lock;
pub mod image;
pub mod inventory;
pub mod knowledge;
pub mod map;
pub mod models;
pub mod pipeline;
pub mod pool;
pub mod report;
mod sleep;
pub mod unix_time;
pub mod verified;
