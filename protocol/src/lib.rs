//! What travels between machines, who they are, and how they are reached.
//!
//! [`wire`] is plain data: messages, limits, codes; no I/O. [`identity`] is keys, certificates and
//! roles. [`grid`] is the file that describes a grid, [`list`] what its authority says of it and members
//! pass on. [`authority_dir`] is where the authority signs members and keeps account of them.
//! [`address`] is where a member listens, by address or by name.
//! [`places`] says where files are unless it is said otherwise. [`net`] makes QUIC endpoints and exchanges
//! frames on streams. Arrows go one way: `net` knows `wire`, not the other way round.

pub mod address;
pub mod authority_dir;
pub mod grid;
pub mod identity;
pub mod list;
pub mod net;
pub mod places;
pub mod wire;
