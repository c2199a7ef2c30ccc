//! Lets clients in, within limits. Until somebody has shown who it is, it has a place among those
//! only who have not, so that no stranger takes a member's.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use codec::OwnerId;
use protocol::identity::Peer;
use protocol::net::stream::TOO_MANY;
use protocol::net::{Door, Members, NotAdmitted};
use quinn::{Connection, Endpoint, Incoming};
use tracing::{debug, info, warn};

use super::lines::Lines;
use super::pool::{Pool, Size};
use super::{Clock, who};
use crate::core::broken_off::BrokenOff;
use crate::core::places::Who;

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Handshakes under way from which on a client has to show first that its address is its own.
const HANDSHAKES_BEFORE_RETRY: usize = 16;

/// Handshakes under way at once; of more, the oldest from the address with the most is given up.
const HANDSHAKES_MAX: usize = 64;

/// Clients without a certificate at once, where such are let in: to join.
const STRANGERS_MAX: usize = 64;

/// How long a client without a certificate may stay.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(10);

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
    rooms: Rooms,
    lines: Arc<Lines>,
    clock: Clock,
    broken_off: Mutex<BrokenOff>,
}

/// Where clients are.
#[derive(Clone, Debug)]
pub struct Rooms {
    handshakes: Arc<Pool<IpAddr>>,
    strangers: Arc<Pool<IpAddr>>,
    members: Arc<Pool<OwnerId>>,
}

impl Rooms {
    /// Rooms for so many members.
    fn new(members: usize, clock: Clock) -> Self {
        let of = |places| Size { places, queue: 0 };
        Self {
            handshakes: Pool::new(of(HANDSHAKES_MAX), clock, HANDSHAKE_TIMEOUT),
            strangers: Pool::new(of(STRANGERS_MAX), clock, STRANGER_TIMEOUT),
            members: Pool::new(of(members), clock, HANDSHAKE_TIMEOUT),
        }
    }

    /// Clients that are there now, whoever they are.
    pub fn taken(&self) -> usize {
        self.handshakes.taken() + self.strangers.taken() + self.members.taken()
    }

    /// Waits until nobody is there.
    pub async fn empty(&self) {
        self.handshakes.empty().await;
        self.strangers.empty().await;
        self.members.empty().await;
    }
}

impl Reception {
    /// For `connections` members at once.
    pub fn new(
        endpoint: Endpoint,
        door: Door,
        connections: usize,
        clock: Clock,
        lines: Arc<Lines>,
    ) -> Self {
        Self {
            endpoint,
            door,
            rooms: Rooms::new(connections, clock),
            lines,
            clock,
            broken_off: Mutex::default(),
        }
    }

    /// Where clients are.
    pub fn rooms(&self) -> Rooms {
        self.rooms.clone()
    }

    /// Has everybody who comes served by `serve`, until the endpoint is closed.
    pub async fn accept<S, F>(self, serve: S)
    where
        S: Fn(Visitor) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (this, serve) = (Arc::new(self), Arc::new(serve));
        while let Some(incoming) = this.endpoint.accept().await {
            let is_crowded = this.rooms.handshakes.taken() >= HANDSHAKES_BEFORE_RETRY;
            if is_crowded && incoming.may_retry() {
                // Fails never: it was asked whether it may.
                let _ = incoming.retry();
                continue;
            }
            let network = network_of(incoming.remote_address().ip());
            if !this.broken_off(|they, now| they.may_begin(network, now)) {
                // It tries again by itself, and gets in when it does not come too often.
                incoming.ignore();
                continue;
            }
            let (this, serve) = (Arc::clone(&this), Arc::clone(&serve));
            tokio::spawn(async move {
                match this.admit(incoming).await {
                    Some(visitor) => this.attend(visitor, &*serve).await,
                    None => this.broken_off(|they, now| they.add(network, now)),
                }
            });
        }
    }

    fn broken_off<T>(&self, look: impl FnOnce(&mut BrokenOff, u64) -> T) -> T {
        let mut broken_off = self
            .broken_off
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now_ms = u64::try_from(self.clock.uptime().as_millis()).unwrap_or(u64::MAX);
        look(&mut broken_off, now_ms)
    }

    /// Ends a handshake, unless it takes too long or has to give way.
    async fn admit(&self, incoming: Incoming) -> Option<Visitor> {
        let from = incoming.remote_address();
        if self.rooms.members.is_full() {
            if let Some(held_back) = self.lines.about(None) {
                warn!(%from, held_back, "connection refused: too many");
            }
            incoming.refuse();
            return None;
        }
        let place = self
            .rooms
            .handshakes
            .push_in(Who::itself(network_of(from.ip())));
        let admitted = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.door.admit_anybody(incoming));
        let fault = tokio::select! {
            admitted = admitted => match admitted {
                Ok(Ok((connection, peer))) => {
                    let members = self.door.members().clone();
                    return Some(Visitor { connection, peer, members });
                }
                Ok(Err(fault)) => Some(fault),
                Err(_) => None,
            },
            () = place.gives_way() => None,
        };
        let line = self.lines.about(None);
        match (fault, line) {
            (Some(NotAdmitted::Refused { claims, fault }), Some(held_back)) => {
                warn!(%from, name = claims.name, id = %claims.id, %fault, held_back, "refused");
            }
            (Some(cause), Some(held_back)) => info!(%from, %cause, held_back, "handshake failed"),
            (None, Some(held_back)) => info!(%from, held_back, "handshake not finished in time"),
            (_, None) => debug!(%from, "handshake failed"),
        }
        None
    }

    /// Serves somebody who has a place among those of its kind.
    async fn attend<F: Future<Output = ()>>(
        &self,
        visitor: Visitor,
        serve: &impl Fn(Visitor) -> F,
    ) {
        let connection = visitor.connection.clone();
        let from = connection.remote_address();
        let Some(peer) = &visitor.peer else {
            let place = self
                .rooms
                .strangers
                .push_in(Who::itself(network_of(from.ip())));
            tokio::select! {
                _ = tokio::time::timeout(STRANGER_TIMEOUT, serve(visitor)) => {}
                () = place.gives_way() => {}
            }
            return connection.close(TOO_MANY, b"strangers may not stay");
        };
        let Some(_place) = self.rooms.members.try_enter(who(peer)) else {
            if let Some(held_back) = self.lines.about(Some(peer.id)) {
                let (name, id) = (&peer.name, &peer.id);
                warn!(%from, peer = name, %id, held_back, "connection refused: as many as one member may have");
            }
            return connection.close(TOO_MANY, b"too many connections of this member");
        };
        serve(visitor).await;
    }
}

/// Whoever has one IPv6 address has the 2^64 of its network.
fn network_of(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}
