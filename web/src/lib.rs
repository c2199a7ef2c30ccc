//! Pages and metrics over HTTP, for reading only: a listener that bounds connections, sizes and times, and
//! that admits clients by a token.
//!
//! There is no TLS here. Beyond this machine, the token and the pages can be read on the way; an SSH tunnel
//! or a reverse proxy prevents that.

mod admission;
pub mod board;
mod pages;
mod token;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, server::conn::http1};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tracing::{debug, warn};

pub use hyper::header;
pub use pages::{Answer, Pages, of_kind};
pub use token::{Token, TokenError};

/// Most connections at the same time. Further ones wait in the queue of the system.
pub const CONNECTIONS_MAX: usize = 32;

/// Most connections from one address of another machine at the same time. Further ones are closed.
pub const CONNECTIONS_OF_ONE_MAX: usize = 8;

/// The head of a request has to arrive within this time.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection ends after this time, whatever is under way. It carries one request.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest head of a request, bytes.
pub const HEAD_BYTES_MAX: usize = 8 << 10;

/// Most headers of a request.
pub const HEADERS_MAX: usize = 64;

/// After a failure to accept a connection, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where to listen, and whom to admit.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address to listen on. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// What a client has to show. Without a token, only an address of the loopback net can be listened on.
    pub token: Option<Token>,
}

/// The address in a text such as `127.0.0.1:7480`, `localhost:7480`, `:7480` or `7480`. Without an address
/// it is that of this machine alone.
///
/// # Errors
/// When the text is none of these.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost").unwrap_or(text);
    let port = port.strip_prefix(':').unwrap_or(port);
    match (port.parse::<u16>(), text.parse()) {
        (Ok(port), _) => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
        (Err(_), Ok(addr)) => Ok(addr),
        (Err(_), Err(_)) => Err("expected ADDRESS:PORT, such as 127.0.0.1:7480".to_owned()),
    }
}

/// Why a listener does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Other machines can reach the address, and there is no token.
    #[error(
        "other machines can reach {0}: name a file with a token that readers have to present, or listen on 127.0.0.1"
    )]
    NoToken(SocketAddr),
    /// The address can't be listened on.
    #[error("can't listen on {addr}: {cause}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// The error of the system.
        cause: io::Error,
    },
}

/// A running listener. It ends when this is dropped, with all its connections.
#[derive(Debug)]
pub struct Server {
    local_addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// Starts a listener on the current tokio runtime, which answers with `pages`.
    ///
    /// # Errors
    /// When the address can't be listened on, or may not be without a token.
    pub fn start(settings: &Settings, pages: Pages) -> Result<Self, StartError> {
        let addr = settings.listen;
        if settings.token.is_none() && !addr.ip().to_canonical().is_loopback() {
            return Err(StartError::NoToken(addr));
        }
        let failed = |cause| StartError::Bind { addr, cause };
        let listener = std::net::TcpListener::bind(addr).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let local_addr = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            pages,
            token: settings.token.clone(),
            clients: Clients::default(),
        });
        Ok(Self {
            local_addr,
            task: tokio::spawn(accept(listener, shared)),
        })
    }

    /// The address on which it listens.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Ends it. When this returns, the address is free.
    pub async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct Shared {
    pages: Pages,
    token: Option<Token>,
    clients: Clients,
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, from)) => {
                let shared = Arc::clone(&shared);
                connections.spawn(async move { serve(stream, from.ip(), &shared, place).await });
            }
            Err(cause) => {
                warn!(%cause, "no connection accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(
    stream: TcpStream,
    from: IpAddr,
    shared: &Arc<Shared>,
    _place: OwnedSemaphorePermit,
) {
    let Some(_client) = shared.clients.enter(from.to_canonical()) else {
        debug!(%from, "has too many connections");
        return;
    };
    let service = service_fn(|request| answer(Arc::clone(shared), request));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(cause)) => debug!(%from, %cause, "connection ended"),
        Err(_) => debug!(%from, "connection took too long"),
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let (head, _) = request.into_parts();
    if let Err(refused) = admission::check(&head.headers, shared.token.as_ref()) {
        return Ok(refused.answer());
    }
    let answering = shared
        .pages
        .answer(&head.method, head.uri.path(), head.headers);
    let mut answer = answering.await;
    admission::protect(answer.headers_mut());
    Ok(answer)
}

/// How many connections each address has.
#[derive(Debug, Default)]
struct Clients(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// One connection of an address, as long as it lives.
#[derive(Debug)]
struct Client {
    all: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
    from: IpAddr,
}

impl Clients {
    /// `None` if the address has its share of connections already. This machine has no such limit: all
    /// that run on it share an address.
    fn enter(&self, from: IpAddr) -> Option<Client> {
        let is_this_machine = from.is_loopback();
        let from = machine_of(from);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(from).or_default();
        if *count >= CONNECTIONS_OF_ONE_MAX && !is_this_machine {
            return None;
        }
        *count += 1;
        Some(Client {
            all: Arc::clone(&self.0),
            from,
        })
    }
}

/// The address by which a machine is counted: with IPv6 it has all addresses of a network of 64 bits.
fn machine_of(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(v6) => {
            let network = u128::from(v6) & !u128::from(u64::MAX);
            Ipv6Addr::from(network).into()
        }
        v4 => v4,
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.from) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                all.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests;
