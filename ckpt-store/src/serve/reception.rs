//! Lets clients in, within limits: of all, of one address, of handshakes under way.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use protocol::identity::Peer;
use protocol::net::{Door, Members, NotAdmitted};
use quinn::{Connection, Endpoint, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{info, warn};

use super::shares::{Share, Shares};
use crate::config::MemoryPlan;

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Handshakes under way from which on a client has to show first that its address is its own.
const HANDSHAKES_BEFORE_RETRY: usize = 16;

/// Somebody who was let in.
#[derive(Debug)]
pub struct Visitor {
    /// The connection.
    pub connection: Connection,
    /// Who it is; `None` for a stranger, where such are let in.
    pub peer: Option<Peer>,
    /// Says when it is no member any more.
    pub members: Members,
}

/// Lets clients in.
#[derive(Debug)]
pub struct Reception {
    endpoint: Endpoint,
    door: Door,
    places: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
    by_address: Arc<Shares<IpAddr>>,
}

/// What a client holds from its first datagram to its last.
struct Seat {
    _place: OwnedSemaphorePermit,
    _share: Share<IpAddr>,
}

impl Reception {
    /// For `connections` clients at once.
    pub fn new(endpoint: Endpoint, door: Door, connections: usize) -> Self {
        Self {
            endpoint,
            door,
            places: Arc::new(Semaphore::new(connections)),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES_BEFORE_RETRY)),
            by_address: Shares::new(MemoryPlan::share_of(connections)),
        }
    }

    /// As many permits as clients can be there at once; all are free when nobody is.
    pub fn places(&self) -> Arc<Semaphore> {
        Arc::clone(&self.places)
    }

    /// Has everybody who comes served by `serve`, until the endpoint is closed.
    pub async fn accept<S, F>(self, serve: S)
    where
        S: Fn(Visitor) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (this, serve) = (Arc::new(self), Arc::new(serve));
        while let Some(incoming) = this.endpoint.accept().await {
            let handshake = Arc::clone(&this.handshakes).try_acquire_owned().ok();
            let seat = this.seat(&incoming);
            if (handshake.is_none() || seat.is_err()) && incoming.may_retry() {
                // Fails never: it was asked whether it may.
                let _ = incoming.retry();
                continue;
            }
            let seat = match seat {
                Ok(seat) => seat,
                Err(why) => {
                    warn!(from = %incoming.remote_address(), "connection refused: {why}");
                    incoming.refuse();
                    continue;
                }
            };
            let (this, serve) = (Arc::clone(&this), Arc::clone(&serve));
            tokio::spawn(async move {
                let visitor = this.admit(incoming).await;
                drop(handshake);
                if let Some(visitor) = visitor {
                    serve(visitor).await;
                }
                drop(seat);
            });
        }
    }

    fn seat(&self, incoming: &Incoming) -> Result<Seat, &'static str> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let share = self
            .by_address
            .take(network_of(incoming.remote_address().ip()));
        Ok(Seat {
            _place: place.map_err(|_| "too many")?,
            _share: share.ok_or("as many as one address may have")?,
        })
    }

    async fn admit(&self, incoming: Incoming) -> Option<Visitor> {
        let from = incoming.remote_address();
        let admitted = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.door.admit_anybody(incoming));
        match admitted.await {
            Ok(Ok((connection, peer))) => {
                let members = self.door.members().clone();
                return Some(Visitor {
                    connection,
                    peer,
                    members,
                });
            }
            Ok(Err(NotAdmitted::Refused { claims, fault })) => {
                warn!(%from, name = claims.name, id = %claims.id, %fault, "refused");
            }
            Ok(Err(cause)) => info!(%from, %cause, "handshake failed"),
            Err(_) => info!(%from, "handshake not finished in time"),
        }
        None
    }
}

/// Whoever has one IPv6 address has the 2^64 of its network.
fn network_of(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}
