//! Host names become IP addresses when somebody connects.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::{Connection, Endpoint};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use super::endpoint::{ConnectError, EndpointConfig, EndpointError, client, connect_as};
use crate::address::{Address, NamedAddress};
use crate::identity::{HostId, Role};

/// How long the system may take to resolve a name. The C library itself may take half a minute.
const PATIENCE: Duration = Duration::from_secs(2);

/// Most addresses of a name that are tried.
pub const RESOLVED_MAX: usize = 3;

/// Head start of an address of a name before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(300);

/// Names that are resolved at once: each occupies a thread for as long as the system takes.
static LOOKUPS: Semaphore = Semaphore::const_new(16);

/// A name without an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The system knows none.
    #[error("host name {name:?} does not resolve: {why}")]
    Unknown {
        /// The name.
        name: String,
        /// What the system says.
        why: String,
    },
    /// The system does not answer.
    #[error("host name {0:?} does not resolve: no answer within {seconds} s", seconds = PATIENCE.as_secs())]
    Late(String),
}

/// The IP addresses at which somebody listens: of a name at most [`RESOLVED_MAX`].
///
/// # Errors
/// When it is a name that does not resolve within two seconds.
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
        // A thread of tokio's would be waited for at the end of the program.
        let begun = std::thread::Builder::new().spawn(move || {
            let _ = answer.send(look_up(&asking));
            drop(permit);
        });
        begun.map_err(|cause| unknown(named, &cause))?;
        answered.await.map_err(|_| late())
    };
    let found = tokio::time::timeout(PATIENCE, asked).await;
    checked(named, found.map_err(|_| late())??)
}

/// The same for those who can wait.
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
    match answered.recv_timeout(PATIENCE) {
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
        why: why.to_string().escape_debug().to_string(),
    }
}

/// Sockets for connections to members wherever they listen; each kind is made when it is needed for the
/// first time.
#[derive(Clone, Debug)]
pub struct Sockets(Arc<Slots>);

#[derive(Debug)]
struct Slots {
    config: EndpointConfig,
    v4: Mutex<Option<Endpoint>>,
    v6: Mutex<Option<Endpoint>>,
}

impl Sockets {
    /// None yet.
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

    /// Connects to the member `id`, whose certificate has to give it this role, as [`connect_at`].
    ///
    /// # Errors
    /// As [`connect_at`], or when there is no socket.
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

    /// Waits until all that was said has left, but not for ever.
    pub async fn wait_idle(&self, limit: Duration) {
        for slot in [&self.0.v4, &self.0.v6] {
            let made = slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(endpoint) = made {
                let _ = tokio::time::timeout(limit, endpoint.wait_idle()).await;
            }
        }
    }
}

/// Connects to the member `id`, whose certificate has to give it this role, where `address` says. The
/// addresses of a name are tried one after the other, each beside the one before when that takes more
/// than 0.3 s. `endpoint_for` gives the socket for an address.
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
            // What is wrong with the first address is what people can look after.
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
