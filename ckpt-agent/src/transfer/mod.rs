//! The network shell: connections to hosts, shards out and blocks in. Decides nothing.

pub mod get;
pub mod hosts;
pub mod put;
pub mod registry;
pub mod sources;

pub use hosts::Hosts;
