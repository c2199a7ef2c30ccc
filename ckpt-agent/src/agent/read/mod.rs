//! Reads checkpoints: chooses one, fetches its rows from hosts, and writes files or parts of them.

pub(crate) mod ahead;
pub(crate) mod at_hand;
pub(crate) mod cat;
pub(crate) mod choose;
pub(crate) mod content;
pub(crate) mod dry_run;
pub(crate) mod fetch;
pub(crate) mod hashes;
pub(crate) mod host_rates;
pub(crate) mod image;
pub(crate) mod restore;
pub(crate) mod row_feed;
