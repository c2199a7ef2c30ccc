//! The messages between machines, the identities of machines and people, and connections between them.
//!
//! - [`wire`]: messages, limits and codes as plain data, without I/O;
//! - [`identity`]: keys, certificates and roles;
//! - [`grid`]: the file that describes a grid; [`list`]: the signed list of its members, which they pass on;
//! - [`authority_dir`]: the directory in which the authority signs certificates and records them;
//! - [`address`]: where a member listens, by IP address or host name;
//! - [`fault`]: what can go wrong with a host;
//! - [`places`]: the usual directories of the programs; [`errors`]: errors as text;
//! - [`net`]: QUIC endpoints, and frames on their streams. `net` uses `wire`, and `wire` does not use `net`.

pub mod address;
pub mod authority_dir;
pub mod errors;
pub mod fault;
pub mod grid;
pub mod identity;
pub mod list;
pub mod net;
pub mod places;
pub mod wire;
