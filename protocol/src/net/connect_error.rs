//! Why there is no connection to a member.

use std::time::Duration;

use super::trust::CertificateFault;
use crate::identity::{HostId, PeerError};
use crate::wire::WireVersion;
use crate::wire::limits::CONNECT_TIMEOUT;

/// A connection on which no datagram arrives for this long is dead. A peer that lives sends one more often.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest wait for the system to resolve a name. The C library alone would wait up to half a minute.
pub(super) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why there is no connection to a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No QUIC endpoint answers at the address.
    #[error(
        "no answer within {} s: host down, wrong address, or UDP blocked on the way",
        CONNECT_TIMEOUT.as_secs()
    )]
    NoAnswer,
    /// The host answered before, and does not any more.
    #[error("no packet for {} s: host or network down", IDLE_TIMEOUT.as_secs())]
    Silent,
    /// The host's certificate is not accepted here.
    #[error("its certificate is not accepted here: {0}")]
    Certificate(CertificateFault),
    /// The host does not accept our certificate.
    #[error("it does not accept our certificate: {0}")]
    Rejected(CertificateFault),
    /// The host speaks another version of the protocol.
    #[error(
        "it does not speak {}: upgrade the older one of both programs (ckpt 0.1.0 speaks ckpt/1)",
        WireVersion::Two
    )]
    Protocol,
    /// The host has no room for another connection.
    #[error("it has too many connections; try again later")]
    Busy,
    /// The host shuts down.
    #[error("it is shutting down")]
    Stopping,
    /// Another member of this grid answers at the address.
    #[error("it is host {actual}, not {expected}: the grid file has another host's address")]
    OtherHost {
        /// The member that was meant.
        expected: HostId,
        /// The member that answered.
        actual: HostId,
    },
    /// The host's certificate can't be read.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The host's name has no address.
    #[error(transparent)]
    Unresolved(#[from] ResolveError),
    /// A reason without a variant of its own, in the words of the library.
    #[error("{0}")]
    Other(String),
}

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The system knows no address of the name.
    #[error("host name {name:?} does not resolve: {why}")]
    Unknown {
        /// The host name that was looked up.
        name: String,
        /// The error of the system.
        why: String,
    },
    /// The system did not answer in time.
    #[error("host name {0:?} does not resolve: no answer within {seconds} s", seconds = RESOLVE_TIMEOUT.as_secs())]
    Late(String),
}
