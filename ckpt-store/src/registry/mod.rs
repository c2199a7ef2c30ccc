//! The registry: donors tell it that they are there and what they hold, others ask it. It keeps
//! nothing on disk but which join tokens were redeemed; one that restarts is told everything again
//! within a heartbeat.

#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

pub mod announcer;
mod tokens;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use codec::OwnerId;
use protocol::grid::Grid;
use protocol::identity::{
    Enroller, Identity, JoinToken, Peer, PeerError, Validity, certificate_from_pem, is_name,
};
use protocol::net::endpoint::{self, EndpointConfig, EndpointError};
use protocol::net::stream::{ExchangeError, GIVEN_UP, STOPPING, read_frame, write_frame};
use protocol::net::{Door, Members, spoken};
use protocol::wire::limits::{MEMBERS_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{
    JoinRequest, Joined, MemberRecord, Presence, Refusal, Request, Response,
};
use protocol::wire::parts::Extended;
use protocol::wire::{Code, WireVersion};
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tracing::{debug, info, warn};

use crate::core::registry::{NotHeard, Registry, Wanted};
use crate::serve::Clock;
use crate::serve::lines::Lines;
use crate::serve::reception::{Reception, Visitor};
use crate::serve::rules::{NO_CERTIFICATE, Rule, Server};
use tokens::Redeemed;

/// Requests that one member may have open at once on a connection.
const STREAMS_MAX: u32 = 16;

/// Bytes that one member may have in flight to here on a connection.
const WINDOW: u32 = 256 << 10;

/// The same for everybody who has not shown a certificate: one request, to join.
const STRANGER_STREAMS_MAX: u32 = 1;
const STRANGER_WINDOW: u32 = 4 << 10;

/// Connections of members at once: one of every donor, and those of clients.
const CONNECTIONS_MAX: usize = 20_000;

/// How often the silent are looked for.
const EXPIRE_PERIOD: Duration = Duration::from_secs(60);

/// How long an answer may take to arrive.
const ARRIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long requests that are under way at a stop may go on.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// All that a registry needs to run.
#[derive(Debug)]
pub struct RegistryConfig {
    /// The grid that it serves.
    pub grid: Grid,
    /// The grid file, which new donors are given, and which says who was revoked.
    pub grid_file: PathBuf,
    /// Who it is.
    pub identity: Identity,
    /// Where it keeps which tokens were redeemed; with `enrol.crt` it redeems them.
    pub data_dir: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
}

/// Why a registry does not start.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// A file.
    #[error("{path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// The certificate that lets it sign.
    #[error("{path}: {cause}")]
    Enrol {
        /// Where it is.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// The network.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// A running registry.
#[derive(Debug)]
pub struct RegistryServer {
    endpoint: Endpoint,
    local_addr: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    expiring: JoinHandle<()>,
}

impl RegistryServer {
    /// Starts a registry within the current tokio runtime.
    ///
    /// # Errors
    /// When files or address can't be used.
    pub fn start(config: RegistryConfig) -> Result<Self, RegistryError> {
        let enrolment = Enrolment::open(&config)?;
        let mut settings =
            EndpointConfig::new(config.identity.clone(), config.grid.authority.clone());
        settings.receive_window = STRANGER_WINDOW;
        settings.stream_window = WINDOW;
        settings.streams_max = STRANGER_STREAMS_MAX;
        let members = Members::follow(config.grid_file.clone(), &config.grid);
        let mut door = Door::new(&settings, members)?;
        if enrolment.is_some() {
            door = door.with_strangers();
        }
        let endpoint = endpoint::server(&settings, config.listen)?;
        let local_addr = endpoint.local_addr().map_err(|cause| RegistryError::Io {
            path: config.data_dir.clone(),
            cause,
        })?;
        let (stop, stopping) = watch::channel(false);
        let mut registry = Registry::default();
        registry.list(addresses(&config.grid));
        let clock = Clock::start();
        let lines = Arc::new(Lines::new(clock));
        let office = Arc::new(Office {
            registry: Mutex::new(registry),
            enrolment,
            clock,
            lines: Arc::clone(&lines),
            stopping,
        });
        info!(
            grid = config.grid.name, addr = %local_addr,
            redeems_tokens = office.enrolment.is_some(), "registry serving"
        );
        let reception = Reception::new(endpoint.clone(), door, CONNECTIONS_MAX, clock, lines);
        let serving = Arc::clone(&office);
        Ok(Self {
            accepting: tokio::spawn(reception.accept(move |visitor| {
                let office = Arc::clone(&serving);
                async move { office.serve(visitor).await }
            })),
            expiring: tokio::spawn(expire(office, config.grid, config.grid_file)),
            endpoint,
            local_addr,
            stop,
        })
    }

    /// Where it listens.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stops it. Nothing is lost that is not said again elsewhere.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        self.endpoint.set_server_config(None);
        self.endpoint.close(STOPPING, b"shutting down");
        let _ = tokio::time::timeout(STOP_GRACE, self.endpoint.wait_idle()).await;
        self.accepting.abort();
        self.expiring.abort();
        info!("registry stopped");
    }
}

/// Where the grid file says that donors are.
fn addresses(grid: &Grid) -> BTreeMap<OwnerId, SocketAddr> {
    let hosts = grid.hosts.iter();
    hosts.map(|host| (host.id.0, host.addr)).collect()
}

/// Forgets those who are silent, and takes over which addresses the grid file names.
async fn expire(office: Arc<Office>, grid: Grid, grid_file: PathBuf) {
    let mut period = tokio::time::interval(EXPIRE_PERIOD);
    loop {
        period.tick().await;
        let file = grid_file.clone();
        let read = tokio::task::spawn_blocking(move || Grid::load(&file)).await;
        // What is wrong with the file is logged by whoever follows the list of revoked keys.
        if let Ok(Ok(now)) = read
            && now.authority == grid.authority
        {
            office.registry().list(addresses(&now));
        }
        let gone = office.registry().expire(office.clock.now());
        let (hosts, shards) = office.registry().counts();
        debug!(gone, hosts, shards, "donors looked over");
    }
}

/// What all requests share.
#[derive(Debug)]
struct Office {
    registry: Mutex<Registry>,
    enrolment: Option<Enrolment>,
    clock: Clock,
    lines: Arc<Lines>,
    stopping: watch::Receiver<bool>,
}

/// Why a request is not answered as it was asked.
enum Answer {
    Refused(Refusal),
    Lost(ExchangeError),
}

impl Answer {
    fn refuse(code: Code, why: impl Into<String>) -> Self {
        Self::Refused(Refusal::new(code, why))
    }
}

impl From<ExchangeError> for Answer {
    fn from(cause: ExchangeError) -> Self {
        match cause {
            ExchangeError::Malformed(cause) => Self::refuse(Code::BadRequest, cause.to_string()),
            cause @ (ExchangeError::Lost(_)
            | ExchangeError::Stalled(_)
            | ExchangeError::Unexpected(_)
            | ExchangeError::Refused(_)
            | ExchangeError::TooOld { .. }) => Self::Lost(cause),
        }
    }
}

impl From<NotHeard> for Answer {
    fn from(cause: NotHeard) -> Self {
        let code = match cause {
            NotHeard::Full | NotHeard::TooManyShards => Code::NoSpace,
            NotHeard::TooLong | NotHeard::OutOfOrder | NotHeard::NoLabel(_) => Code::BadRequest,
            NotHeard::NoAddress(_) | NotHeard::Elsewhere { .. } => Code::BadRequest,
            NotHeard::Unknown => Code::NotFound,
        };
        Self::refuse(code, cause.to_string())
    }
}

/// Who asks, how, and where the answer goes.
struct Visit<'a> {
    peer: Option<&'a Peer>,
    from: SocketAddr,
    spoken: WireVersion,
    send: &'a mut SendStream,
}

impl Office {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self: Arc<Self>, visitor: Visitor) {
        let Visitor {
            connection,
            peer,
            members,
        } = visitor;
        if peer.is_some() {
            connection.set_receive_window(WINDOW.into());
            connection.set_max_concurrent_bi_streams(STREAMS_MAX.into());
        }
        let peer = peer.map(Arc::new);
        let known = peer.clone();
        let gone = async move {
            match &known {
                Some(peer) => members.until_gone(peer).await,
                None => std::future::pending().await,
            }
        };
        let mut gone = std::pin::pin!(gone);
        let mut stopping = self.stopping.clone();
        let mut requests = JoinSet::new();
        loop {
            tokio::select! {
                stream = connection.accept_bi() => match stream {
                    Ok((send, recv)) => {
                        let (office, peer) = (Arc::clone(&self), peer.clone());
                        let on = connection.clone();
                        requests.spawn(async move { office.request(peer, on, send, recv).await });
                    }
                    Err(_) => return,
                },
                Some(_) = requests.join_next() => {}
                fault = &mut gone => {
                    let from = connection.remote_address();
                    let name = peer.as_ref().map(|peer| peer.name.clone());
                    warn!(%from, name, %fault, "connection ended");
                    return connection.close(fault.close_code(), fault.to_string().as_bytes());
                }
                _ = stopping.wait_for(|stop| *stop) => return,
            }
        }
    }

    async fn request(
        &self,
        peer: Option<Arc<Peer>>,
        connection: Connection,
        mut send: SendStream,
        mut recv: RecvStream,
    ) {
        let from = connection.remote_address();
        let asked = read_frame::<Request>(&mut recv, REQUEST_TIMEOUT).await;
        let asked = asked.map(Request::from_wire);
        let name_of = |request| Rule::of(request).name;
        let request = asked.as_ref().map_or("?", name_of);
        let answered = match asked {
            Ok(asked) => {
                let mut visit = Visit {
                    peer: peer.as_deref(),
                    from,
                    spoken: spoken(&connection),
                    send: &mut send,
                };
                self.answer(&mut visit, asked).await
            }
            Err(cause) => Err(cause.into()),
        };
        match answered {
            Ok(()) => {}
            Err(Answer::Refused(refusal)) => {
                let name = peer.as_ref().map(|peer| peer.name.clone());
                if let Some(held_back) = self.lines.about(peer.as_ref().map(|peer| peer.id)) {
                    info!(%from, name, request, code = ?refusal.code, detail = refusal.detail, held_back, "refused");
                }
                // Fails when the client is gone.
                let _ = write_frame(&mut send, &Response::Refused(refusal)).await;
            }
            Err(Answer::Lost(cause)) => {
                debug!(%from, request, %cause, "given up");
                let _ = send.reset(GIVEN_UP);
            }
        }
        let _ = recv.stop(GIVEN_UP);
        let _ = send.finish();
        let _ = tokio::time::timeout(ARRIVE_TIMEOUT, send.stopped()).await;
    }

    async fn answer(&self, visit: &mut Visit<'_>, asked: Request) -> Result<(), Answer> {
        let (peer, from, spoken) = (visit.peer, visit.from, visit.spoken);
        let send = &mut *visit.send;
        let allowed = Rule::of(&asked).check(Server::Registry, peer);
        allowed.map_err(Answer::Refused)?;
        let now = self.clock.now();
        let asker = || {
            let id = peer.map(|peer| peer.id);
            id.ok_or_else(|| Answer::refuse(Code::Forbidden, NO_CERTIFICATE))
        };
        match asked {
            Request::Announce(presence) => {
                let wanted = self.announce(asker()?, from, *presence)?;
                heard(send, wanted).await
            }
            Request::Heartbeat { epoch, holdings } => {
                let id = asker()?;
                let wanted = self.registry().heartbeat(now, id, epoch, holdings);
                heard(send, wanted).await
            }
            Request::Holds(page) => {
                let id = asker()?;
                self.registry().holds(now, id, page)?;
                Ok(write_frame(send, &Response::Noted).await?)
            }
            Request::Members { after } => {
                let found = self.registry().members(now, after, MEMBERS_MAX as usize);
                send_members(send, spoken, found).await
            }
            // Which host has a shard of which checkpoint is none of a job key's business.
            Request::Holders { .. } if peer.is_some_and(|peer| peer.grant.is_some()) => {
                let why = "the job key is not for this";
                Err(Answer::refuse(Code::Forbidden, why))
            }
            Request::Holders { checkpoint } => {
                let holders = self.registry().holders(checkpoint);
                Ok(write_frame(send, &Response::Holders { holders }).await?)
            }
            Request::Join(wish) => self.join(from, wish, send).await,
            Request::Status
            | Request::Claim(_)
            | Request::PutShard(_)
            | Request::Commit { .. }
            | Request::Find { .. }
            | Request::Outline(_)
            | Request::Page { .. }
            | Request::Rows { .. }
            | Request::Forget { .. }
            | Request::Announcement
            | Request::Probe { .. }
            | Request::Audited(_)
            | Request::PeerHeld { .. }
            | Request::PutRebuilt(_)
            | Request::Notice { .. }
            | Request::Notices { .. }
            | Request::PeerHolds { .. }
            | Request::Prove { .. }
            | Request::Within { .. }
            | Request::Void { .. }
            | Request::Voids { .. }
            | Request::ExtendedAnnounce(_) => {
                // `from_wire` made an `Announce` of an `ExtendedAnnounce`.
                Err(Answer::Refused(Server::Registry.does_not_answer()))
            }
        }
    }

    fn announce(
        &self,
        id: OwnerId,
        from: SocketAddr,
        mut presence: Presence,
    ) -> Result<Wanted, NotHeard> {
        let from = from.ip().to_canonical();
        // Who listens everywhere is where it comes from.
        if presence.addr.ip().is_unspecified() {
            presence.addr.set_ip(from);
        }
        let mut registry = self.registry();
        registry.check_address(id, presence.addr, from)?;
        registry.announce(self.clock.now(), id, presence)
    }

    async fn join(
        &self,
        from: SocketAddr,
        wish: JoinRequest,
        send: &mut SendStream,
    ) -> Result<(), Answer> {
        let Some(enrolment) = &self.enrolment else {
            return Err(Answer::refuse(
                Code::Forbidden,
                "no tokens are redeemed here",
            ));
        };
        let now = self.clock.unix_seconds();
        let refused = |why: String| {
            if let Some(held_back) = self.lines.about(None) {
                warn!(%from, name = wish.name, key = %wish.key, why, held_back, "not let in");
            }
            Answer::refuse(Code::Forbidden, why)
        };
        let token = enrolment.check(&wish, now).map_err(refused)?;
        // Not before the token: who has none is not to learn which names there are.
        if self.registry().has_name(&wish.name, wish.key) {
            return Err(Answer::refuse(Code::Exists, "another donor has this name"));
        }
        let joined = enrolment.join(&wish, &token, now).map_err(refused)?;
        info!(%from, name = wish.name, key = wish.key.hex(), "joined as a donor");
        Ok(write_frame(send, &Response::Joined(Box::new(joined))).await?)
    }
}

/// Sends a page of members, in the form of the version that is spoken, and whether there are more.
async fn send_members(
    send: &mut SendStream,
    spoken: WireVersion,
    (records, more): (Vec<MemberRecord>, bool),
) -> Result<(), Answer> {
    let count = records.len() as u32;
    write_frame(send, &Response::Members { count, more }).await?;
    for record in records {
        if spoken >= WireVersion::Two {
            write_frame(send, &Extended::close(record)).await?;
        } else {
            write_frame(send, &record).await?;
        }
    }
    Ok(())
}

async fn heard(send: &mut SendStream, wanted: Wanted) -> Result<(), Answer> {
    let Wanted { announce, holdings } = wanted;
    Ok(write_frame(send, &Response::Heard { announce, holdings }).await?)
}

/// Redeems tokens.
#[derive(Debug)]
struct Enrolment {
    authority: rustls_pki_types::CertificateDer<'static>,
    registry: OwnerId,
    enroller: Enroller,
    /// When its own right ends, Unix seconds.
    until: u64,
    grid_file: PathBuf,
    redeemed: Redeemed,
}

impl Enrolment {
    /// With `enrol.crt` in the data directory; `None` without.
    fn open(config: &RegistryConfig) -> Result<Option<Self>, RegistryError> {
        let path = config.data_dir.join("enrol.crt");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |cause| RegistryError::Io { path, cause }
        };
        let pem = match fs::read_to_string(&path) {
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(failed(&path))?,
        };
        let wrong = |cause: PeerError| RegistryError::Enrol {
            path: path.clone(),
            cause: cause.to_string(),
        };
        let certificate = certificate_from_pem(&pem).map_err(wrong)?;
        let own = Peer::from_certificate(&certificate).map_err(wrong)?;
        let registry = config.identity.secret.id();
        if own.id != registry {
            return Err(RegistryError::Enrol {
                path,
                cause: "it is for another key".into(),
            });
        }
        let redeemed = config.data_dir.join("redeemed");
        Ok(Some(Self {
            authority: config.grid.authority.clone(),
            registry,
            enroller: Enroller::new(config.identity.secret.clone(), certificate),
            until: own.not_after,
            grid_file: config.grid_file.clone(),
            redeemed: Redeemed::open(&redeemed).map_err(failed(&redeemed))?,
        }))
    }

    /// Checks that the token is good and that the key is the asker's.
    fn check(&self, wish: &JoinRequest, now: u64) -> Result<JoinToken, String> {
        let token = JoinToken::parse(&wish.token).map_err(|cause| cause.to_string())?;
        token
            .check(&self.authority, now)
            .map_err(|cause| cause.to_string())?;
        if token.registry.0 != self.registry {
            return Err("the token is for another registry".into());
        }
        if !is_name(&wish.name) {
            return Err("that is no name".into());
        }
        let signed = JoinRequest::signed(&wish.token, &wish.name);
        let signature: Option<[u8; 64]> = wish.signature.as_slice().try_into().ok();
        if !signature.is_some_and(|signature| wish.key.verify(&signed, &signature)) {
            return Err("the key is not the asker's".into());
        }
        Ok(token)
    }

    /// Redeems a token that was checked.
    fn join(&self, wish: &JoinRequest, token: &JoinToken, now: u64) -> Result<Joined, String> {
        let grid = Grid::load(&self.grid_file).map_err(|cause| cause.to_string())?;
        if grid.revoked.contains(&wish.key) {
            return Err("the key was revoked".into());
        }
        let named = grid.hosts.iter().find(|host| host.name == wish.name);
        if named.is_some_and(|host| host.id.0 != wish.key) {
            return Err("another donor has this name".into());
        }
        let text = fs::read_to_string(&self.grid_file).map_err(|cause| cause.to_string())?;
        let validity = Validity {
            from: now,
            lasting: Duration::from_secs(self.until.saturating_sub(now)),
        };
        let certificate = self
            .enroller
            .sign(&wish.name, wish.key, validity)
            .map_err(|cause| cause.to_string())?;
        // Last: from here on the token is gone, whatever happens to the answer. The same key may
        // ask again, in case it did not arrive.
        self.redeemed
            .redeem(token.nonce, wish.key, token.expires, now)
            .map_err(|cause| cause.to_string())?;
        Ok(Joined {
            certificate: certificate.to_vec(),
            issuer: self.enroller.certificate().to_vec(),
            grid: text,
        })
    }
}
