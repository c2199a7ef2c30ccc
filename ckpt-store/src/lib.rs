//! The storage daemon: keeps shards of other people's checkpoints on this machine's disk.
//!
//! [`core`] decides (what is held, what may be taken, what has expired), [`disk`] and [`store`]
//! carry it out so that nothing acknowledged is lost at any crash, [`serve`] speaks to clients,
//! [`daemon`] puts it together.

pub mod cli;
pub mod config;
pub mod core;
pub mod daemon;
pub mod disk;
pub mod priority;
pub mod serve;
pub mod store;
