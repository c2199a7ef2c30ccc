//! The commands `ckpt key`, `init` and `join`, and the keys that other commands use.

pub(super) mod any;
pub(super) mod identity;
pub(super) mod job;
pub(super) mod join;
pub(super) mod own;
