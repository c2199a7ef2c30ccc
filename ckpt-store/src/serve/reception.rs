//! Accepts connections, within limits. A client that has not shown its certificate yet takes a place
//! among the handshakes only, so that no stranger takes a member's place.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use codec::OwnerId;
use protocol::identity::Peer;
use protocol::net::close::TOO_MANY;
use protocol::net::{Door, Members, NotAdmitted};
use quinn::{Connection, Endpoint, Incoming};
use tracing::{debug, info, warn};

use super::lines::Lines;
use super::pool::{Pool, Share, Size};
use super::who;
use crate::clock::Clock;
use crate::core::broken_off::BrokenOff;
use crate::core::places::Who;

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// If this many handshakes are under way, a further client first has to prove that it receives datagrams
/// at its address (QUIC retry).
const HANDSHAKES_BEFORE_RETRY: usize = 16;

/// Most handshakes at the same time. If there are more, the oldest one from the address with the most is
/// ended.
const HANDSHAKES_MAX: usize = 64;

/// Most clients without a certificate at the same time. They come to join, and only some servers accept
/// them.
const STRANGERS_MAX: usize = 64;

/// Most clients at the same time that take no place of a member.
pub(crate) const CLIENTS_WITHOUT_PLACE: usize = HANDSHAKES_MAX + STRANGERS_MAX;

/// Only members that have no connection get the last connections: this many, or a quarter of all if that is
/// less. So two members together do not shut out the others.
const RESERVED_MAX: usize = 4;

/// A client without a certificate may stay for this long.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(10);

/// A client whose handshake is complete.
#[derive(Debug)]
pub struct Visitor {
    /// The connection, on which requests may come.
    pub connection: Connection,
    /// The member; `None` for a client without a certificate.
    pub peer: Option<Peer>,
    /// For noticing when the client is no longer a member.
    pub members: Members,
}

/// Accepts connections, and bounds those that have shown no certificate yet.
#[derive(Debug)]
pub struct Reception {
    endpoint: Endpoint,
    door: Door,
    rooms: Rooms,
    lines: Arc<Lines>,
    clock: Clock,
    broken_off: Mutex<BrokenOff>,
}

/// How many connections members may have at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// All members together.
    pub all: usize,
    /// One member. It never has more than three quarters of all.
    pub of_a_member: usize,
}

/// The places of clients: during their handshakes, without a certificate, and as members.
#[derive(Clone, Debug)]
pub struct Rooms {
    handshakes: Arc<Pool<IpAddr>>,
    strangers: Arc<Pool<IpAddr>>,
    members: Arc<Pool<OwnerId>>,
}

impl Rooms {
    /// Places for connections of members.
    fn new(members: Connections, clock: Clock) -> Self {
        let of = |places| Size { places, queue: 0 };
        Self {
            handshakes: Pool::new(of(HANDSHAKES_MAX), clock, HANDSHAKE_TIMEOUT),
            strangers: Pool::new(of(STRANGERS_MAX), clock, STRANGER_TIMEOUT),
            members: Pool::with_share(
                of(members.all),
                Share {
                    most: members.of_a_member,
                    reserve: RESERVED_MAX.min(members.all / 4),
                },
                clock,
                HANDSHAKE_TIMEOUT,
            ),
        }
    }

    /// How many clients of all three kinds are connected.
    pub fn taken(&self) -> usize {
        self.handshakes.taken() + self.strangers.taken() + self.members.taken()
    }

    /// Waits until no client is connected.
    pub async fn empty(&self) {
        self.handshakes.empty().await;
        self.strangers.empty().await;
        self.members.empty().await;
    }
}

impl Reception {
    /// Accepts connections of members up to these numbers.
    pub fn new(
        endpoint: Endpoint,
        door: Door,
        connections: Connections,
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

    /// The places of clients.
    pub fn rooms(&self) -> Rooms {
        self.rooms.clone()
    }

    /// Calls `serve` for every client that is accepted, until the endpoint is closed.
    pub async fn accept<S, F>(self, serve: S)
    where
        S: Fn(Visitor) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let this = Arc::new(self);
        let serve = Arc::new(serve);
        while let Some(incoming) = this.endpoint.accept().await {
            let is_crowded = this.rooms.handshakes.taken() >= HANDSHAKES_BEFORE_RETRY;
            if is_crowded && incoming.may_retry() {
                // Has no error: `may_retry` was asked before.
                let _ = incoming.retry();
                continue;
            }
            let network = network_of(incoming.remote_address().ip());
            if !this.broken_off(|they, now| they.may_begin(network, now)) {
                // The client's QUIC sends its first packet again by itself, and gets in if it does not
                // come too often.
                incoming.ignore();
                continue;
            }
            let this = Arc::clone(&this);
            let serve = Arc::clone(&serve);
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

    /// Completes a handshake. `None` if it fails, takes too long, or has to give way.
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

    /// Serves a client that has completed its handshake, if there is a place for it.
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
                let name = &peer.name;
                let id = &peer.id;
                warn!(%from, peer = name, %id, held_back, "connection refused: too many of one member");
            }
            return connection.close(TOO_MANY, b"too many connections of this member");
        };
        serve(visitor).await;
    }
}

/// The address by which connections are counted. A host with one IPv6 address usually has the 2^64
/// addresses of its network, so these count as one.
fn network_of(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}
