//! The storage daemon: keeps shards of other people's checkpoints on this machine's disk.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`core`] | decides, without I/O, who gets a version, what there is room for and what is rebuilt |
//! | [`disk`] | the few operations that are needed of a file system |
//! | [`shards`] | combines both, such that no crash loses what was acknowledged |
//! | [`serve`] | answers the requests of clients and of other hosts |
//! | [`repair`] | has other hosts prove their shards, and rebuilds missing ones |
//! | [`scrub`] | reads this host's shards to find damage |
//! | [`monitor`] | watches the machine for its owner |
//! | [`calibrate`] | measures above which load the owner notices a guest |
//! | [`guest_socket`] | lets guests of this machine register |
//! | [`registry`] | the registry server, and the daemon's announcements to it |
//! | [`clock`] | the clocks of a daemon or a registry |
//! | [`metrics`] | counts for monitoring, and serves the counts over HTTP |
//! | [`gossip`] | asks other hosts for a newer list of the grid |
//! | [`accounts`], [`audit_file`], [`checking`], [`status_file`], [`traffic`] | small files for the owner |
//! | [`reached`] | which registries reach this host |
//! | [`daemon`] | runs everything |

pub mod accounts;
pub mod audit_file;
pub mod calibrate;
pub mod checking;
pub mod cli;
pub mod clock;
pub mod config;
pub mod core;
pub mod daemon;
pub mod disk;
pub mod gossip;
pub mod guest_socket;
pub mod host;
pub mod json_file;
pub mod metrics;
pub mod monitor;
mod others;
pub mod priority;
pub mod reached;
pub mod registry;
pub mod repair;
pub mod scrub;
pub mod serve;
pub mod shards;
pub mod status_file;
mod tasks;
pub mod traffic;

pub use config::DaemonConfig;
pub use core::ledger::Quota;
pub use daemon::{Daemon, StartError};
