//! What the end of a connection means for a request.

use protocol::net::stream::ExchangeError;
use protocol::net::{ConnectError, endpoint};
use quinn::Connection;

use crate::Fault;

/// The refusal of a host that has closed a connection because it does not accept this client any more: the
/// client's key was revoked, or its certificate ended.
pub(crate) fn rejection(connection: &Connection) -> Option<Fault> {
    match endpoint::connect_error(&connection.close_reason()?) {
        cause @ ConnectError::Rejected(_) => Some(cause.into()),
        _ => None,
    }
}

/// In TLS 1.3 a host that does not accept this client closes with a reason after the handshake.
pub(crate) fn why(connection: &Connection, cause: ExchangeError) -> Fault {
    match (connection.close_reason(), cause) {
        (Some(closed), ExchangeError::Lost(_)) => endpoint::connect_error(&closed).into(),
        (_, cause) => cause.into(),
    }
}
