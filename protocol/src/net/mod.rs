//! QUIC endpoints, connections between members, and frames on streams.

mod address;
pub mod close;
mod connect_error;
mod door;
pub mod endpoint;
mod fault;
pub mod join;
mod lists;
mod members;
mod resolve;
pub mod stream;
mod trust;

#[cfg(test)]
mod tests;

pub use address::may_be_announced;
pub use connect_error::{ConnectError, ResolveError};
pub use door::{Door, NotAdmitted};
pub use endpoint::{EndpointConfig, client, connect, connect_as, link_of, server, spoken};
pub use lists::{Offered, compare_lists, newer_list, offer_list, receive_list, send_list};
pub use members::Members;
pub use resolve::{RESOLVED_MAX, Sockets, connect_at, resolve, resolve_here};
pub use stream::{ExchangeError, read_exact, read_frame, write_frame};
pub use trust::CertificateFault;
