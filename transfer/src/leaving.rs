//! How a connection ends: whether the datagram that closes it was sent.

use protocol::net::close::DONE;
use quinn::{Connection, ConnectionError};

/// A connection that this client has closed.
pub(crate) struct Leaving {
    connection: Connection,
    /// The number of datagrams that had been sent when the connection was closed.
    sent_before: u64,
}

impl Leaving {
    /// Closes a connection, and notes how many datagrams had been sent by then.
    pub(crate) fn close(connection: &Connection) -> Self {
        connection.close(DONE, b"");
        // Counted after closing, because before that the search for the largest datagram could add one.
        // If the closing datagram is sent in between, the wait for it is in vain, but no host misses its
        // end.
        Self {
            sent_before: connection.stats().udp_tx.datagrams,
            connection: connection.clone(),
        }
    }

    /// Whether the closing datagram was sent. A closed connection sends nothing else.
    pub(crate) fn has_left(&self) -> bool {
        let is_dead = matches!(
            self.connection.close_reason(),
            Some(cause) if cause != ConnectionError::LocallyClosed
        );
        is_dead || self.connection.stats().udp_tx.datagrams > self.sent_before
    }

    /// Whether this connection has lost datagrams.
    pub(crate) fn may_be_lost(&self) -> bool {
        self.connection.stats().path.lost_packets > 0
    }
}
