//! Connects to a host, at whichever of its addresses it is.

use std::net::SocketAddr;
use std::time::Duration;

use protocol::grid::GridHost;
use protocol::identity::{HostId, Peer, Role};
use protocol::net::close::DONE;
use protocol::net::{ConnectError, connect_at, endpoint};
use quinn::Connection;
use tokio::task::JoinSet;

use crate::Fault;
use crate::hosts::Inner;

/// The first address of a host is tried for this long before the others are tried as well.
const HEAD_START: Duration = Duration::from_millis(300);

/// The source of a host's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SaidBy {
    List,
    Registry,
}

/// The source of the address that was tried, and the result.
type Dialed = (SaidBy, Result<Connection, Fault>);

impl Inner {
    /// Connects to a host at the first of its addresses at which a machine has its key.
    pub(crate) async fn connect_to(&self, entry: &GridHost) -> Result<Connection, Fault> {
        let mut others = self.elsewhere.get(&entry.id).map(Vec::as_slice);
        let mut dialing = JoinSet::new();
        self.dial_listed(&mut dialing, entry);
        let mut head_start = std::pin::pin!(tokio::time::sleep(HEAD_START));
        let mut why = None;
        let connection = loop {
            let is_over = tokio::select! {
                Some(ended) = dialing.join_next() => match ended {
                    Ok((_, Ok(connection))) => break connection,
                    Ok((from, Err(fault))) => {
                        // The fault at the listed address is returned, because people can look after that
                        // address.
                        if from == SaidBy::List || why.is_none() {
                            why = Some(fault);
                        }
                        true
                    }
                    Err(_) => true,
                },
                () = &mut head_start, if others.is_some() => true,
                else => return Err(why.unwrap_or_else(|| Fault::Gone("no socket".into()))),
            };
            if is_over && let Some(others) = others.take() {
                for addr in others {
                    self.dial(&mut dialing, *addr, entry.id);
                }
            }
        };
        let mut issuers = Peer::issuers_of(&connection).into_iter();
        if let Some(issuer) = issuers.find(|issuer| self.revoked.contains(issuer)) {
            connection.close(DONE, b"");
            let why = format!("its certificate is from registry {issuer}, whose key was revoked");
            return Err(Fault::Gone(why));
        }
        Ok(connection)
    }

    /// Begins to connect to a host at the address in the list of the grid.
    fn dial_listed(&self, dialing: &mut JoinSet<Dialed>, entry: &GridHost) {
        let v4 = self.v4.clone();
        let v6 = self.v6.clone();
        let address = entry.addr.clone();
        let id = entry.id;
        dialing.spawn(async move {
            let socket = |addr: SocketAddr| {
                let made = if addr.is_ipv4() { &v4 } else { &v6 }.clone();
                made.ok_or_else(|| ConnectError::Other("no socket".into()))
            };
            let connected = connect_at(socket, &address, id, Role::Donor).await;
            (SaidBy::List, connected.map_err(Fault::from))
        });
    }

    /// Begins to connect to the host `id` at `addr`, if there is a socket for that kind of address.
    fn dial(&self, dialing: &mut JoinSet<Dialed>, addr: SocketAddr, id: HostId) {
        let endpoint = if addr.is_ipv4() { &self.v4 } else { &self.v6 };
        if let Some(endpoint) = endpoint.clone() {
            dialing.spawn(async move {
                let connected = endpoint::connect(&endpoint, addr, id).await;
                (SaidBy::Registry, connected.map_err(Fault::from))
            });
        }
    }
}
