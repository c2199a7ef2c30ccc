//! Resolves host names to IP addresses, each time when a connection is made.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::{Connection, Endpoint};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use super::connect_error::{ConnectError, RESOLVE_TIMEOUT, ResolveError};
use super::endpoint::{EndpointConfig, EndpointError, client, connect_as};
use crate::address::{Address, NamedAddress};
use crate::identity::{HostId, Role};
use crate::wire::escaped;

/// Most addresses of a name that are tried.
pub const RESOLVED_MAX: usize = 3;

/// How long one address of a name is tried before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(300);

/// Names that are resolved at the same time. Each takes a thread for as long as the system needs.
static LOOKUPS: Semaphore = Semaphore::const_new(16);

/// The IP addresses of `address`: itself, or those of its name, at most [`RESOLVED_MAX`].
///
/// # Errors
/// When a name does not resolve within two seconds.
pub async fn resolve(address: &Address) -> Result<Vec<SocketAddr>, ResolveError> {
    let named = match address {
        Address::Ip(addr) => return Ok(vec![*addr]),
        Address::Name(named) => named,
    };
    let late = || ResolveError::Late(named.name().to_owned());
    let (answer, answered) = oneshot::channel();
    let asked = async {
        let permit = LOOKUPS.acquire().await.map_err(|_| late())?;
        let asking = named.clone();
        // Not one of tokio's threads: at its end, a program would wait for these.
        let begun = std::thread::Builder::new().spawn(move || {
            let _ = answer.send(look_up(&asking));
            drop(permit);
        });
        begun.map_err(|cause| unknown(named, &cause))?;
        answered.await.map_err(|_| late())
    };
    let found = tokio::time::timeout(RESOLVE_TIMEOUT, asked).await;
    checked(named, found.map_err(|_| late())??)
}

/// As [`resolve`], for callers outside of a tokio runtime. Blocks.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_here(address: &Address) -> Result<Vec<SocketAddr>, ResolveError> {
    let named = match address {
        Address::Ip(addr) => return Ok(vec![*addr]),
        Address::Name(named) => named,
    };
    let (answer, answered) = sync_channel(1);
    let asking = named.clone();
    let begun = std::thread::Builder::new().spawn(move || {
        let _ = answer.send(look_up(&asking));
    });
    begun.map_err(|cause| unknown(named, &cause))?;
    match answered.recv_timeout(RESOLVE_TIMEOUT) {
        Ok(found) => checked(named, found),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Err(ResolveError::Late(named.name().to_owned()))
        }
    }
}

fn look_up(named: &NamedAddress) -> io::Result<Vec<SocketAddr>> {
    let mut found = Vec::new();
    for addr in (named.name(), named.port()).to_socket_addrs()? {
        if found.len() < RESOLVED_MAX && !found.contains(&addr) {
            found.push(addr);
        }
    }
    Ok(found)
}

fn checked(
    named: &NamedAddress,
    found: io::Result<Vec<SocketAddr>>,
) -> Result<Vec<SocketAddr>, ResolveError> {
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unknown(named, &"it has no address")),
        Err(cause) => Err(unknown(named, &cause)),
    }
}

fn unknown(named: &NamedAddress, why: &dyn std::fmt::Display) -> ResolveError {
    ResolveError::Unknown {
        name: named.name().to_owned(),
        why: escaped(&why.to_string()),
    }
}

/// Sockets for connections to members: one for IPv4 and one for IPv6, each made when it is first needed.
#[derive(Clone, Debug)]
pub struct Sockets(Arc<Slots>);

#[derive(Debug)]
struct Slots {
    config: EndpointConfig,
    v4: Mutex<Option<Endpoint>>,
    v6: Mutex<Option<Endpoint>>,
}

impl Sockets {
    /// Makes no socket yet.
    pub fn new(config: EndpointConfig) -> Self {
        Self(Arc::new(Slots {
            config,
            v4: Mutex::default(),
            v6: Mutex::default(),
        }))
    }

    /// The socket from which this address can be reached.
    fn to(&self, addr: SocketAddr) -> Result<Endpoint, EndpointError> {
        let (slot, any): (_, SocketAddr) = match addr {
            SocketAddr::V4(_) => (&self.0.v4, ([0, 0, 0, 0], 0).into()),
            SocketAddr::V6(_) => (&self.0.v6, ([0; 8], 0).into()),
        };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = slot.as_ref() {
            return Ok(endpoint.clone());
        }
        Ok(slot.insert(client(&self.0.config, any)?).clone())
    }

    /// Connects to the member `id`, whose certificate has to have this role, as [`connect_at`].
    ///
    /// # Errors
    /// As [`connect_at`], or when no socket can be made.
    pub async fn connect(
        &self,
        address: &Address,
        id: HostId,
        role: Role,
    ) -> Result<Connection, ConnectError> {
        let socket = |addr| {
            let made = self.to(addr);
            made.map_err(|cause| ConnectError::Other(format!("{cause:#}")))
        };
        connect_at(socket, address, id, role).await
    }

    /// Waits until all connections are closed and their last datagrams sent, at most `limit` for each socket.
    pub async fn wait_idle(&self, limit: Duration) {
        for slot in [&self.0.v4, &self.0.v6] {
            let made = slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(endpoint) = made {
                let _ = tokio::time::timeout(limit, endpoint.wait_idle()).await;
            }
        }
    }
}

/// Connects to the member `id` at `address`; its certificate has to have this role. The IP addresses of a
/// name are tried one after the other; if one takes more than 0.3 s, the next is tried beside it.
/// `endpoint_for` gives the socket for an address.
///
/// # Errors
/// When the name does not resolve, or the member is at none of its addresses.
pub async fn connect_at(
    mut endpoint_for: impl FnMut(SocketAddr) -> Result<Endpoint, ConnectError>,
    address: &Address,
    id: HostId,
    role: Role,
) -> Result<Connection, ConnectError> {
    let mut addresses = resolve(address).await?.into_iter();
    let mut dialing: JoinSet<Result<Connection, ConnectError>> = JoinSet::new();
    let mut why = None;
    loop {
        let next = addresses.next();
        let is_last = next.is_none();
        match next.map(|addr| (addr, endpoint_for(addr))) {
            Some((addr, Ok(endpoint))) => {
                dialing.spawn(async move { connect_as(&endpoint, addr, id, role).await });
            }
            Some((_, Err(cause))) => {
                why = why.or(Some(cause));
                continue;
            }
            None => {}
        }
        let ended = match is_last {
            true => Ok(dialing.join_next().await),
            false => tokio::time::timeout(HEAD_START, dialing.join_next()).await,
        };
        match ended {
            Ok(Some(Ok(Ok(connection)))) => return Ok(connection),
            // The first error is kept: people most likely expect the first address to work.
            Ok(Some(Ok(Err(cause)))) => why = why.or(Some(cause)),
            Ok(Some(Err(_))) | Err(_) => {}
            Ok(None) if is_last => {
                return Err(why.unwrap_or_else(|| ConnectError::Other("no socket".into())));
            }
            Ok(None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_becomes_addresses_and_one_that_is_none_an_error_that_names_it() {
        let local: Address = "localhost:7600".parse().unwrap();
        let found = resolve(&local).await.unwrap();
        assert!(
            found
                .iter()
                .all(|addr| addr.ip().is_loopback() && addr.port() == 7600)
        );
        assert!((1..=RESOLVED_MAX).contains(&found.len()));
        assert_eq!(resolve_here(&local), Ok(found));
        let nobody: Address = "no-such-host.invalid:7600".parse().unwrap();
        for error in [resolve(&nobody).await, resolve_here(&nobody)] {
            let text = error.unwrap_err().to_string();
            assert!(
                text.contains("\"no-such-host.invalid\" does not resolve"),
                "{text}"
            );
        }
        let ip: Address = "10.0.0.1:7600".parse().unwrap();
        assert_eq!(resolve(&ip).await.unwrap(), [ip.ip().unwrap()]);
    }
}
