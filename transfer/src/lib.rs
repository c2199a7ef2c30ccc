//! The client's side of the protocol: connects to hosts, sends shards, reads blocks, rebuilds a shard
//! from others, and asks registries. It decides nothing: which host is used for what is an argument.

pub mod cards;
pub mod census;
mod dial;
#[cfg_attr(not(feature = "etcd"), path = "no_etcd.rs")]
pub mod etcd;
pub mod fences;
pub mod find;
pub mod get;
pub mod herald;
pub mod hosts;
pub mod joiners;
mod leaving;
mod names;
mod naming;
pub mod notices;
pub mod peers;
pub mod put;
pub mod rate_limit;
pub mod rebuild;
pub mod registry;
pub mod registry_answer;
mod rejection;
mod remains;
pub mod roster;
mod successor;
mod unreached;
mod voids;
mod watch;

pub use hosts::Hosts;
pub use protocol::fault::{Fault, HostIndex};
pub use watch::{AGAIN, SILENCE};
