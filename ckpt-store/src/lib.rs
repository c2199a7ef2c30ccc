//! The storage daemon: keeps shards of other people's checkpoints on this machine's disk.
//!
//! [`core`] decides (whose version a number is, what has room, what expires) and does no I/O,
//! [`disk`] is the little that is asked of a file system, [`shards`] puts both together into what
//! a host does for an owner so that nothing acknowledged is lost at any crash, [`serve`] speaks to
//! clients, [`monitor`] watches the machine for its owner, [`calibrate`] measures from which load on
//! that is needed, [`audit_file`] keeps what others found wrong here, [`checking`] what proofs cost,
//! [`guest_socket`] is where guests make themselves known, [`gossip`] asks others for a newer list of the grid, [`daemon`] runs it all.

pub mod accounts;
pub mod audit_file;
pub mod calibrate;
pub mod checking;
pub mod cli;
pub mod config;
pub mod core;
pub mod daemon;
pub mod disk;
pub mod gossip;
pub mod guest_socket;
pub mod json_file;
pub mod monitor;
pub mod priority;
pub mod registry;
pub mod repair;
pub mod scrub;
pub mod serve;
pub mod shards;
pub mod standing;
pub mod traffic;

pub use config::DaemonConfig;
pub use core::ledger::Quota;
pub use daemon::{Daemon, StartError};
