//! What travels between machines, who they are, and how they are reached.
//!
//! [`wire`] is plain data: messages, limits, codes; no I/O. [`identity`] is keys, certificates and
//! roles. [`grid`] is the file that describes a grid. [`net`] makes QUIC endpoints and exchanges
//! frames on streams. Arrows go one way: `net` knows `wire`, not the other way round.

pub mod grid;
pub mod identity;
pub mod net;
pub mod wire;
