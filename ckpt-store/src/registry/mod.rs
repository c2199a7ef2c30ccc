//! The registry: donors announce that they are there and what they hold, and others ask for it. On its
//! disk it keeps which join tokens were redeemed, and which donors belong to the grid and where each was
//! last. After a restart it is sent everything else again within a heartbeat; a registry that has lost its
//! disk is also brought the cards of the donors that are silent.

#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

pub mod announcer;
mod cards;
mod counting;
mod enrolment;
mod keeping;
mod plan;
mod reach;
mod tokens;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use codec::{CheckpointId, OwnerId};
use protocol::grid::Grid;
use protocol::identity::{
    CARD_PART, CardError, CardVerifier, Identity, MemberCard, Peer, TokenRole,
};
use protocol::net::close::STOPPING;
use protocol::net::endpoint::{self, EndpointConfig, EndpointError};
use protocol::net::stream::write_frame;
use protocol::net::{Door, Members, send_list};
use protocol::wire::Code;
use protocol::wire::limits::{JOINERS_MAX, MEMBERS_MAX};
use protocol::wire::message::{JoinRequest, MemberRecord, Presence, Request, Response};
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::sync::watch;
use tracing::{debug, info, warn};
use web::board::Board;

use crate::clock::Clock;
use crate::config::{GIVES_WAY_AFTER, LIST_FILE};
use crate::core::joiners::NoPlace;
use crate::core::quiet::Quiet;
use crate::core::registry::{Moment, NotHeard, Registry, Wanted};
use crate::metrics::{self, RegistryMetrics};
use crate::serve::exchange::{Answer, Asked, Received, serve_requests};
use crate::serve::frames::FramePlaces;
use crate::serve::lines::Lines;
use crate::serve::lists::ListPlaces;
use crate::serve::pool::{Pool, Size};
use crate::serve::reception::{Reception, Visitor};
use crate::serve::rules::{NO_CERTIFICATE, Rule, Server};
use crate::serve::{busy, who};
use crate::tasks::Tasks;
use counting::Counting;
use enrolment::Enrolments;
use keeping::KnownDonorsFile;
pub use plan::{MEMORY_USUAL, RegistryPlan};
use plan::{SEND_WINDOW, STREAMS_MAX, WINDOW};
use tokens::NotRedeemed;

/// The limits of [`plan`] for a client without a certificate, which sends a single request, to join.
const STRANGER_STREAMS_MAX: u32 = 1;
const STRANGER_WINDOW: u32 = 4 << 10;

/// How many answers may wait for a place.
const ANSWERS_QUEUED_MAX: usize = 4096;

/// How often silent donors are looked for.
const EXPIRE_PERIOD: Duration = Duration::from_secs(60);

/// At a stop, requests that are under way may go on for this long.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Everything that a registry needs to run.
#[derive(Clone, Debug)]
pub struct RegistryConfig {
    /// The grid that it serves.
    pub grid: Grid,
    /// The grid file. New members are sent its content, and it lists revoked keys.
    pub grid_file: PathBuf,
    /// The key and certificate of the registry.
    pub identity: Identity,
    /// The directory with the redeemed tokens and the known donors. The registry redeems tokens only if
    /// `enrol.crt` is in it.
    pub data_dir: PathBuf,
    /// The address on which the registry listens.
    pub listen: SocketAddr,
    /// Where metrics and the page are served, and to whom. `None` serves none.
    pub metrics: Option<web::Settings>,
    /// Most memory that members can make the registry take, bytes.
    pub memory_bytes: u64,
}

/// Why a registry does not start.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// A file can't be read or written.
    #[error("{path}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        cause: std::io::Error,
    },
    /// The certificate with which the registry signs members can't be used.
    #[error("{path}: {cause}")]
    Enrol {
        /// Path of the certificate.
        path: PathBuf,
        /// What is wrong with it, for the message.
        cause: String,
    },
    /// The authority's certificate can't be used.
    #[error("the grid's authority: {0}")]
    Authority(#[from] CardError),
    /// The socket can't be opened, or TLS can't be set up.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Metrics and the page can't be served.
    #[error("metrics: {0}")]
    Metrics(#[from] web::StartError),
}

/// A running registry. Dropping it ends its tasks.
#[derive(Debug)]
pub struct RegistryServer {
    endpoint: Endpoint,
    local_addr: SocketAddr,
    members: Members,
    stop: watch::Sender<bool>,
    tasks: Tasks,
    /// The server of metrics and the page.
    web: Option<web::Server>,
    shared: Arc<Shared>,
}

impl RegistryServer {
    /// Starts a registry on the current tokio runtime.
    ///
    /// # Errors
    /// When its files or its address can't be used.
    pub fn start(config: RegistryConfig) -> Result<Self, RegistryError> {
        let plan = RegistryPlan::new(config.memory_bytes);
        let enrolments = Enrolments::open(&config)?;
        let redeems_tokens = enrolments.now()?.is_some();
        let mut settings =
            EndpointConfig::new(config.identity.clone(), config.grid.authority.clone());
        settings.receive_window = STRANGER_WINDOW;
        settings.stream_window = WINDOW;
        settings.streams_max = STRANGER_STREAMS_MAX;
        settings.send_window = SEND_WINDOW;
        let own = Some(config.data_dir.join(LIST_FILE));
        let members = Members::follow(config.grid_file.clone(), &config.grid, own);
        let followed = members.clone();
        // Clients without a certificate are accepted even if no tokens are redeemed, so that they get a
        // refusal with the reason.
        let door = Door::new(&settings, members.clone())?.with_strangers();
        let endpoint = endpoint::server(&settings, config.listen)?;
        let local_addr = endpoint.local_addr().map_err(|cause| RegistryError::Io {
            path: config.data_dir.clone(),
            cause,
        })?;
        let (stop, stopping) = watch::channel(false);
        let verifier = CardVerifier::new(&config.grid.authority)?;
        let known_donors = KnownDonorsFile::in_directory(&config.data_dir);
        let mut registry = Registry::new(plan.limits);
        registry.list(addresses(&config.grid));
        known_donors.recall_into(&mut registry, &config.grid, &verifier);
        let clock = Clock::start();
        let pool = |places, queue| Pool::new(Size { places, queue }, clock, GIVES_WAY_AFTER);
        let lines = Arc::new(Lines::new(clock));
        let shared = Arc::new(Shared {
            registry: Mutex::new(registry),
            enrolments,
            members,
            lists: ListPlaces::new(clock, GIVES_WAY_AFTER),
            lists_sent: Mutex::default(),
            frames: FramePlaces::new(plan.frames, clock, GIVES_WAY_AFTER),
            answers: pool(plan.answers, ANSWERS_QUEUED_MAX),
            card_places: Pool::new(cards::CARDS_OF_MEMBERS, clock, GIVES_WAY_AFTER),
            verifier,
            known_donors,
            clock,
            lines: Arc::clone(&lines),
            metrics: RegistryMetrics::default(),
            stopping,
        });
        let mut tasks = Tasks::default();
        let web = show(&mut tasks, &config, &shared)?;
        info!(grid = config.grid.name, addr = %local_addr, redeems_tokens, "registry serving");
        let connections = plan.connections();
        let reception = Reception::new(endpoint.clone(), door, connections, clock, lines);
        let serving = Arc::clone(&shared);
        tasks.spawn(reception.accept(move |visitor| {
            let shared = Arc::clone(&serving);
            async move { shared.serve(visitor).await }
        }));
        tasks.spawn(expire(Arc::clone(&shared)));
        tasks.spawn(reach::try_donors(Arc::clone(&shared), local_addr.ip()));
        tasks.spawn(keeping::keep(Arc::clone(&shared)));
        Ok(Self {
            shared,
            tasks,
            web,
            endpoint,
            local_addr,
            members: followed,
            stop,
        })
    }

    /// What this registry knows of the grid.
    pub const fn members(&self) -> &Members {
        &self.members
    }

    /// The address on which the registry listens.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The address on which metrics and the page are served, if they are.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.web.as_ref().map(web::Server::local_addr)
    }

    /// Stops the registry. Nothing is lost, because donors announce themselves to the next one, and which
    /// donors are known is written down.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        self.endpoint.set_server_config(None);
        self.endpoint.close(STOPPING, b"shutting down");
        let _ = tokio::time::timeout(STOP_GRACE, self.endpoint.wait_idle()).await;
        drop(self.tasks);
        keeping::keep_at_stop(self.shared).await;
        if let Some(web) = self.web {
            web.stop().await;
        }
        info!("registry stopped");
    }
}

/// The addresses of donors in the grid file. Names are not resolved here: a donor that is listed by name
/// is announced with the address from which it connects.
fn addresses(grid: &Grid) -> BTreeMap<OwnerId, SocketAddr> {
    let hosts = grid.hosts.iter();
    hosts
        .filter_map(|host| Some((host.id.0, host.addr.ip()?)))
        .collect()
}

/// Serves metrics and the page, if the configuration says so, and starts the task that looks up what the
/// page shows.
fn show(
    tasks: &mut Tasks,
    config: &RegistryConfig,
    shared: &Arc<Shared>,
) -> Result<Option<web::Server>, RegistryError> {
    let peer = config.identity.peer();
    if let Ok(peer) = &peer {
        shared.metrics.certified_until(peer.not_after);
    }
    let Some(settings) = &config.metrics else {
        return Ok(None);
    };
    let board = Board::new(format!("grid {}", config.grid.name));
    let pages = metrics::pages(shared.metrics.registry()).and(board.pages());
    let server = web::Server::start(settings, pages)?;
    info!(addr = %server.local_addr(), token = settings.token.is_some(), "serving metrics and the page");
    let counting = Counting {
        shared: Arc::clone(shared),
        identity: config.identity.clone(),
        name: peer.map_or_else(|_| "registry".to_owned(), |peer| peer.name),
        board,
    };
    tasks.spawn(counting.run());
    Ok(Some(server))
}

/// Forgets donors that are no members any more, and takes over the addresses and the revoked keys of each
/// newer list of the grid.
async fn expire(shared: Arc<Shared>) {
    let mut period = tokio::time::interval(EXPIRE_PERIOD);
    let mut changes = shared.members.changes();
    loop {
        tokio::select! {
            _ = period.tick() => {}
            Ok(()) = changes.changed() => {}
        }
        let grid = Arc::clone(&changes.borrow_and_update());
        shared.registry().list(addresses(&grid));
        let is_revoked = |key: &OwnerId| grid.revoked.contains(key);
        let gone = shared.registry().expire(shared.moment(), is_revoked);
        let (hosts, shards) = shared.registry().counts();
        let cards = shared.registry().cards_kept();
        shared.metrics.list(shards, cards);
        debug!(gone, hosts, shards, "checked the donors");
    }
}

/// What all requests share.
#[derive(Debug)]
struct Shared {
    registry: Mutex<Registry>,
    enrolments: Enrolments,
    members: Members,
    /// Places for lists of the grid that are being received.
    lists: ListPlaces,
    /// How often each member was recently sent the list.
    lists_sent: Mutex<Quiet<OwnerId>>,
    /// Places for long requests that are being received.
    frames: FramePlaces,
    /// Places for answers that may be long.
    answers: Arc<Pool<OwnerId>>,
    /// Places for cards that are being checked.
    card_places: Arc<Pool<OwnerId>>,
    verifier: CardVerifier,
    known_donors: KnownDonorsFile,
    clock: Clock,
    lines: Arc<Lines>,
    metrics: RegistryMetrics,
    stopping: watch::Receiver<bool>,
}

impl From<NotHeard> for Answer {
    fn from(cause: NotHeard) -> Self {
        let code = match cause {
            NotHeard::Full | NotHeard::TooManyShards => Code::NoSpace,
            NotHeard::TooLong | NotHeard::OutOfOrder | NotHeard::NoLabel(_) => Code::BadRequest,
            NotHeard::NoAddress(_) | NotHeard::Elsewhere { .. } => Code::BadRequest,
            NotHeard::OtherName => Code::Forbidden,
            NotHeard::Unknown => Code::NotFound,
        };
        Self::refuse(code, cause.to_string())
    }
}

/// One request: the peer, its address, and the stream for the answer.
struct Visit<'a> {
    peer: Option<&'a Peer>,
    from: SocketAddr,
    send: &'a mut SendStream,
    recv: &'a mut RecvStream,
}

impl Shared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moment(&self) -> Moment {
        Moment {
            now: self.clock.now(),
            unix: self.clock.unix_seconds(),
        }
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
        let serve = |send, recv| {
            let shared = Arc::clone(&self);
            let peer = peer.clone();
            let on = connection.clone();
            async move { shared.request(peer, on, send, recv).await }
        };
        let stopping = self.stopping.clone();
        serve_requests(&connection, peer.as_deref(), gone, stopping, serve).await;
    }

    async fn request(
        self: &Arc<Self>,
        peer: Option<Arc<Peer>>,
        connection: Connection,
        mut send: SendStream,
        mut recv: RecvStream,
    ) {
        let peer = peer.as_deref();
        if let Some(peer) = peer.filter(|peer| peer.grant.is_none()) {
            let now = self.clock.unix_seconds();
            self.enrolments.redeemed().hear(&peer.id, now);
        }
        let reading = self.frames.read(peer, &mut recv);
        let (asked, read) = Asked::read(&connection, peer, reading).await;
        let answered = match read {
            Ok(Received { request, place }) => {
                let mut visit = Visit {
                    peer,
                    from: connection.remote_address(),
                    send: &mut send,
                    recv: &mut recv,
                };
                let answered = self.answer_within(&mut visit, request).await;
                drop(place);
                answered
            }
            Err(cause) => Err(cause),
        };
        let requests = &self.metrics.requests;
        let lines = &self.lines;
        let streams = (send, recv);
        asked
            .end(Server::Registry, requests, lines, answered, streams)
            .await;
    }

    /// Answers a request; one with a long answer once there is a place for it. A client that reads too
    /// slowly loses the place if others wait.
    async fn answer_within(
        self: &Arc<Self>,
        visit: &mut Visit<'_>,
        asked: Request,
    ) -> Result<(), Answer> {
        let Some(peer) = visit.peer.filter(|_| has_long_answer(&asked)) else {
            return self.answer(visit, asked).await;
        };
        let place = self.answers.enter(who(peer)).await;
        let place = place.ok_or_else(|| busy("other answers are being sent"))?;
        place.waits();
        tokio::select! {
            answered = self.answer(visit, asked) => answered,
            () = place.gives_way() => Err(busy("too slow while another answer was waiting")),
        }
    }

    async fn answer(self: &Arc<Self>, visit: &mut Visit<'_>, asked: Request) -> Result<(), Answer> {
        let peer = visit.peer;
        let from = visit.from;
        let send = &mut *visit.send;
        let allowed = Rule::of(&asked).check(Server::Registry, peer);
        allowed.map_err(Answer::Refused)?;
        let now = self.clock.now();
        let member = || peer.ok_or_else(|| Answer::refuse(Code::Forbidden, NO_CERTIFICATE));
        let asker = || member().map(|peer| peer.id);
        match asked {
            Request::Announce(presence) => {
                let wanted = self.announce(member()?, from, *presence)?;
                heard(send, wanted).await
            }
            Request::Heartbeat { epoch, holdings } => {
                let wanted = self.registry().heartbeat(now, asker()?, epoch, holdings);
                heard(send, wanted).await
            }
            Request::Holds(page) => {
                self.registry().holds(now, asker()?, page)?;
                Ok(write_frame(send, &Response::Noted).await?)
            }
            Request::Members { after } => {
                let at = self.moment();
                let found = self.registry().members(at, after, MEMBERS_MAX as usize);
                send_members(send, found).await
            }
            Request::Holders { checkpoint } => self.holders(peer, send, checkpoint).await,
            Request::Join(wish) => self.join(from, wish, send).await,
            Request::Joiners { after } => self.joiners(send, after).await,
            Request::Reached => self.reached(&asker()?, send).await,
            Request::List { number } => self.list(asker()?, send, number).await,
            Request::PutList { number, bytes } => self.put_list(visit, number, bytes).await,
            Request::CompareCards { digest, after } => self.compare(send, digest, after).await,
            Request::Cards { ids } => self.cards(send, &ids).await,
            Request::PutCards { cards } => self.put_cards(member()?, send, cards).await,
            Request::Status
            | Request::Claim(_)
            | Request::PutShard(_)
            | Request::Commit { .. }
            | Request::RowsHeld(_)
            | Request::EndEarly { .. }
            | Request::Find { .. }
            | Request::Outline(_)
            | Request::Page { .. }
            | Request::Rows { .. }
            | Request::RowRuns { .. }
            | Request::Forget { .. }
            | Request::Announcement
            | Request::Probe { .. }
            | Request::Audited(_)
            | Request::PutRebuilt(_)
            | Request::Notice { .. }
            | Request::Notices { .. }
            | Request::PeerHolds { .. }
            | Request::Prove { .. }
            | Request::Within { .. }
            | Request::Void { .. }
            | Request::Voids { .. }
            | Request::Census
            | Request::Prepare { .. }
            | Request::Propose { .. }
            | Request::KeepManifest { .. } => {
                Err(Answer::Refused(Server::Registry.does_not_answer()))
            }
            Request::Retired12(never) | Request::Retired18(never) | Request::Retired33(never) => {
                match never {}
            }
        }
    }

    async fn reached(&self, asker: &OwnerId, send: &mut SendStream) -> Result<(), Answer> {
        let answered = self.registry().is_reached(asker);
        Ok(write_frame(send, &Response::Reached { answered }).await?)
    }

    /// Names the holders of a checkpoint. Job keys may not learn which host holds which shard.
    async fn holders(
        &self,
        peer: Option<&Peer>,
        send: &mut SendStream,
        checkpoint: CheckpointId,
    ) -> Result<(), Answer> {
        if peer.is_some_and(|peer| peer.grant.is_some()) {
            return Err(Answer::refuse(
                Code::Forbidden,
                "the job key is not for this",
            ));
        }
        let holders = self.registry().holders(checkpoint);
        Ok(write_frame(send, &Response::Holders { holders }).await?)
    }

    /// Sends the list of the grid to a member that has an older one, but not too often.
    async fn list(&self, asker: OwnerId, send: &mut SendStream, asked: u64) -> Result<(), Answer> {
        let grid = self.members.grid();
        if grid.number() > asked {
            let mut sent = self
                .lists_sent
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if sent.line(self.clock.now(), asker).is_none() {
                let why = "the list was sent too often on this connection";
                return Err(Answer::refuse(Code::Busy, why));
            }
        }
        Ok(send_list(send, asked, grid.list.as_ref()).await?)
    }

    /// Receives a list of the grid. The authority has signed it, so any member may bring it.
    async fn put_list(&self, visit: &mut Visit<'_>, number: u64, bytes: u32) -> Result<(), Answer> {
        let Some(peer) = visit.peer else {
            return Err(Answer::refuse(Code::Forbidden, NO_CERTIFICATE));
        };
        let grid = self.members.grid();
        let known = grid.number();
        if number <= known {
            let number = known;
            let bytes = 0;
            return Ok(write_frame(visit.send, &Response::List { number, bytes }).await?);
        }
        let receiving = self.lists.receive(peer, visit.recv, &grid, (number, bytes));
        let (list, contents) = receiving.await?;
        if self.members.take_over(list, contents).await {
            let name = &peer.name;
            info!(from = %visit.from, name, number, "received a newer list of the grid");
        }
        Ok(write_frame(visit.send, &Response::Noted).await?)
    }

    fn announce(
        &self,
        peer: &Peer,
        from: SocketAddr,
        mut presence: Presence,
    ) -> Result<Wanted, NotHeard> {
        if presence.name != peer.name {
            return Err(NotHeard::OtherName);
        }
        let id = peer.id;
        let from = from.ip().to_canonical();
        // A donor that listens on all addresses is announced with the address from which it connects.
        if presence.addr.ip().is_unspecified() {
            presence.addr.set_ip(from);
        }
        let card = self.card_of(peer, &presence);
        let mut registry = self.registry();
        registry.check_address(id, presence.addr, from)?;
        registry.announce(self.clock.now(), id, presence, card.as_ref())
    }

    /// The card in an announcement, if it is good: others are shown it when the donor is silent.
    fn card_of(&self, peer: &Peer, presence: &Presence) -> Option<MemberCard> {
        let bytes = presence.parts.get(CARD_PART)?;
        let read = self.verifier.read(bytes);
        let card = read
            .inspect_err(
                |cause| debug!(name = peer.name, %cause, "an announcement with a bad card"),
            )
            .ok()?;
        let is_own = card.id() == peer.id && card.is_at(presence.addr);
        (is_own && !card.is_early(self.clock.unix_seconds())).then_some(card)
    }

    /// Sends one page of who joined here, and of whom tokens are redeemed now.
    async fn joiners(&self, send: &mut SendStream, after: Option<OwnerId>) -> Result<(), Answer> {
        // A certificate that can't be read was logged when somebody tried to join.
        let enrolment = self.enrolments.now().ok().flatten();
        let signs = |role| enrolment.as_ref().is_some_and(|one| one.signs(role));
        let (joiners, more) = self.enrolments.redeemed().page(after, JOINERS_MAX);
        let answer = Response::Joiners {
            donors: signs(TokenRole::Donor),
            submitters: signs(TokenRole::Submitter),
            joiners,
            more,
        };
        Ok(write_frame(send, &answer).await?)
    }

    async fn join(
        &self,
        from: SocketAddr,
        wish: JoinRequest,
        send: &mut SendStream,
    ) -> Result<(), Answer> {
        let enrolment = self.enrolments.now().map_err(|cause| {
            warn!(%cause, "can't accept join tokens");
            Answer::refuse(
                Code::Internal,
                "the registry can't read its certificate for this",
            )
        })?;
        let Some(enrolment) = enrolment else {
            let why = "this registry accepts no tokens; the grid's admin permits it with ckpt grid delegate";
            return Err(Answer::refuse(Code::Forbidden, why));
        };
        let now = self.clock.unix_seconds();
        let refused = |why: String| {
            if let Some(held_back) = self.lines.about(None) {
                warn!(%from, name = wish.name, key = %wish.key, why, held_back, "a join was refused");
            }
            Answer::refuse(Code::Forbidden, why)
        };
        let token = enrolment.check(&wish, now).map_err(refused)?;
        let grid = self.members.grid();
        // Only now is the name looked at: a client without a token does not learn which names exist.
        let others = self.registry().names();
        let joined = enrolment.join(&wish, &token, (&grid, others), now);
        let joined = joined.map_err(|cause| match cause {
            NotRedeemed::NoPlace(NoPlace::NameTaken) => {
                Answer::refuse(Code::Exists, cause.to_string())
            }
            NotRedeemed::NoPlace(NoPlace::Full) => Answer::refuse(Code::NoSpace, cause.to_string()),
            NotRedeemed::NoPlace(NoPlace::Used) | NotRedeemed::Refused(_) | NotRedeemed::Io(_) => {
                refused(cause.to_string())
            }
        })?;
        let role = token.terms.role.role().name();
        info!(%from, name = wish.name, key = wish.key.hex(), role, "joined");
        Ok(write_frame(send, &Response::Joined(Box::new(joined))).await?)
    }
}

/// Whether the answer may be longer than a few hundred bytes.
const fn has_long_answer(asked: &Request) -> bool {
    matches!(
        asked,
        Request::Members { .. }
            | Request::Holders { .. }
            | Request::List { .. }
            | Request::CompareCards { .. }
            | Request::Cards { .. }
            | Request::Joiners { .. }
    )
}

/// Sends one page of members, and whether there are more.
async fn send_members(
    send: &mut SendStream,
    (records, more): (Vec<MemberRecord>, bool),
) -> Result<(), Answer> {
    let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
    write_frame(send, &Response::Members { count, more }).await?;
    for record in records {
        write_frame(send, &record).await?;
    }
    Ok(())
}

async fn heard(send: &mut SendStream, wanted: Wanted) -> Result<(), Answer> {
    let Wanted { announce, holdings } = wanted;
    Ok(write_frame(send, &Response::Heard { announce, holdings }).await?)
}
