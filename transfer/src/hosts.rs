//! The hosts of a grid: their connections, which are made once and kept, and the small requests to them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use codec::grant::VoidList;
use codec::notice::Notice;
use codec::scope::Blinded;
use codec::{CheckpointId, OwnerId};
use protocol::address::Address;
use protocol::grid::{Grid, GridHost};
use protocol::identity::{HostId, Identity, Peer, Revocations};
use protocol::list::{Contents, GridList};
use protocol::net::close::{DONE, EXPIRED, NOT_ALLOWED, REVOKED};
use protocol::net::compare_lists;
use protocol::net::endpoint::{self, EndpointConfig, EndpointError, MTU_SMALL};
use protocol::net::stream::{Exchange, ExchangeError, read_frame, request, write_frame};
use protocol::wire::WireVersion;
use protocol::wire::announcement::{Announced, Announcement};
use protocol::wire::limits::REQUEST_TIMEOUT;
use protocol::wire::message::{Audit, Claim, HostStatus, Request, Response};
use quinn::{Connection, ConnectionError, Endpoint};
use tokio::sync::Mutex;

use crate::leaving::Leaving;
use crate::names::{Names, note_asked};
use crate::rate_limit::RateLimit;
use crate::rejection::{rejection, why};
use crate::roster::{Reported, Silent};
use crate::watch::{self, AGAIN, SILENCE, Watches, Watching};
use crate::{Fault, HostIndex};

/// A caller that asks for a window of at most this many bytes wants to save memory, not time.
const SMALL_WINDOW_BYTES: u32 = 1 << 20;

/// While a connection finds its rate, a probe takes up to this many round trips on any connection.
const PROBE_RTTS: u32 = 8;

/// A probe that takes less than this shows that the connection is fast enough.
const PROBE_FAST: Duration = Duration::from_millis(40);

/// How often it is checked whether the last datagrams have been sent.
const LEAVING_PERIOD: Duration = Duration::from_millis(1);

/// Longest wait until the last datagrams have been sent. Mostly they are sent before the first check, but
/// quinn delays even the end of a connection while the congestion window is full.
const LEAVING_MAX: Duration = Duration::from_millis(200);

/// Longest wait for a connection that loses datagrams. For this long its host may ask for the end again.
const DRAIN_MAX: Duration = Duration::from_millis(200);

/// The hosts of a grid, with connections to them.
#[derive(Clone, Debug)]
pub struct Hosts(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    /// The certificate under which connections are made, DER.
    pub(crate) certificate: Vec<u8>,
    /// First the hosts that are there as far as is known, then the absent ones.
    pub(crate) hosts: Vec<GridHost>,
    /// How many of the hosts are not absent.
    present: usize,
    /// Other addresses at which the hosts may be.
    pub(crate) elsewhere: BTreeMap<HostId, Vec<SocketAddr>>,
    /// Members that no registry hears.
    silent: BTreeMap<HostId, Silent>,
    unreached: BTreeSet<HostId>,
    pub(crate) names: Names,
    pub(crate) revoked: Revocations,
    pub(crate) v4: Option<Endpoint>,
    pub(crate) v6: Option<Endpoint>,
    window: u32,
    /// Most bytes per second in each direction, over all connections together.
    rate: OnceLock<f64>,
    pub(crate) sending: Arc<RateLimit>,
    pub(crate) receiving: Arc<RateLimit>,
    pub(crate) connections: Vec<Mutex<Slot>>,
    /// Where the jobs of a job key for a prefix lie. Each new connection begins with these.
    pub(crate) paths: std::sync::Mutex<BTreeSet<Vec<Blinded>>>,
    /// The number of the list of the grid that each host has, as far as the host stated it.
    lists: std::sync::Mutex<BTreeMap<HostIndex, u64>>,
    /// Hosts whose program does not know `RowRuns`.
    without_row_runs: std::sync::Mutex<BTreeSet<HostIndex>>,
    pub(crate) watches: Watches,
}

/// The connection to a host.
#[derive(Debug, Default)]
pub(crate) enum Slot {
    /// Nothing was tried so far.
    #[default]
    Untried,
    /// The connection that was made last; it may have ended since.
    Made(Connection),
    /// Connecting failed: when, and why.
    Failed(Instant, Fault),
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The version is reserved at this host.
    Yes,
    /// The version belongs to another checkpoint.
    Taken {
        /// The lowest version above all that the host knows of the job.
        next: codec::Version,
    },
}

impl Hosts {
    /// The hosts of `grid`, for a client with this identity. `window` limits the bytes in flight to or
    /// from each host.
    ///
    /// # Errors
    /// When no socket can be opened, or the identity can't be used.
    pub fn new(grid: &Grid, identity: &Identity, window: u32) -> Result<Self, EndpointError> {
        Self::with_reports(grid, Reported::default(), identity, window)
    }

    /// As [`Self::new`], for hosts of which registries report something. Addresses that they report are
    /// tried a little later than the one in `grid`; a machine counts as the host if it proves to have the
    /// host's key. A name that they report holds until a connection shows the host's certificate.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_reports(
        grid: &Grid,
        reported: Reported,
        identity: &Identity,
        window: u32,
    ) -> Result<Self, EndpointError> {
        Self::made_of(grid, Vec::new(), reported, identity, window, Watching::Off)
    }

    /// As [`Self::with_reports`], for a client that waits for its hosts: it gives a host up after [`crate::SILENCE`]
    /// without a datagram from it. Hosts that are `absent` are reached like the others, but not among [`Self::all`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn attentive(
        grid: &Grid,
        absent: Vec<GridHost>,
        reported: Reported,
        identity: &Identity,
        window: u32,
    ) -> Result<Self, EndpointError> {
        Self::made_of(grid, absent, reported, identity, window, Watching::On)
    }

    fn made_of(
        grid: &Grid,
        absent: Vec<GridHost>,
        reported: Reported,
        identity: &Identity,
        window: u32,
        watching: Watching,
    ) -> Result<Self, EndpointError> {
        let mut config = EndpointConfig::new(identity.clone(), grid.authority.clone());
        config.receive_window = window;
        config.stream_window = window;
        config.send_window = window.into();
        if watching == Watching::On {
            config.keep_alive = watch::ASKED_AFTER;
        }
        if window <= SMALL_WINDOW_BYTES {
            config.mtu_max = MTU_SMALL;
        }
        let any: [SocketAddr; 2] = [
            (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0).into(),
            (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0).into(),
        ];
        let hosts: Vec<GridHost> = grid.hosts.iter().cloned().chain(absent).collect();
        let has_names = hosts.iter().any(|host| host.addr.ip().is_none());
        let [v4, v6] = any.map(|from| {
            let listed = hosts.iter().filter_map(|host| host.addr.ip());
            let mut all = listed.chain(reported.addresses.values().flatten().copied());
            let needed = all.any(|addr| addr.is_ipv4() == from.is_ipv4());
            if !needed && !has_names {
                return Ok(None);
            }
            match endpoint::client(&config, from) {
                // The machine may lack IPv4 or IPv6: no error if only hosts with names could need it.
                Err(_) if !needed => Ok(None),
                made => made.map(Some),
            }
        });
        Ok(Self(Arc::new(Inner {
            certificate: identity.certificate.to_vec(),
            connections: hosts.iter().map(|_| Mutex::default()).collect(),
            names: Names::new(&hosts, &reported.named),
            present: grid.hosts.len(),
            hosts,
            elsewhere: reported.addresses,
            silent: reported.silent,
            unreached: reported.unreached,
            revoked: grid.revoked.clone(),
            v4: v4?,
            v6: v6?,
            window,
            rate: OnceLock::new(),
            sending: Arc::default(),
            receiving: Arc::default(),
            paths: std::sync::Mutex::default(),
            lists: std::sync::Mutex::default(),
            without_row_runs: std::sync::Mutex::default(),
            watches: Watches::new(watching),
        })))
    }

    /// Limits the blocks that are sent to all hosts together, and those that are received, to
    /// `bytes_per_second` each. A second call changes nothing.
    pub fn limit(&self, bytes_per_second: f64) {
        let _ = self.0.rate.set(bytes_per_second);
    }

    /// Waits until `bytes` of blocks may be sent.
    pub(crate) async fn may_send(&self, bytes: usize) {
        self.0.sending.pass(bytes, self.0.rate.get().copied()).await;
    }

    /// Waits for the time that receiving `bytes` of blocks may take.
    pub(crate) async fn received(&self, bytes: usize) {
        self.0
            .receiving
            .pass(bytes, self.0.rate.get().copied())
            .await;
    }

    /// All hosts, in the order of the grid, without the absent ones.
    pub fn all(&self) -> impl Iterator<Item = HostIndex> + use<> {
        (0..self.0.present).map(HostIndex)
    }

    /// When a registry, or this machine, saw a silent host last, Unix seconds by this machine's clock.
    pub fn silent_since(&self, host: HostIndex) -> Option<u64> {
        let silent = self.0.silent.get(&self.entry(host)?.id)?;
        Some(silent.seen_at)
    }

    /// Whether all registries that hear a host get no answer at its address.
    pub fn is_unreached(&self, host: HostIndex) -> bool {
        let id = self.entry(host).map(|entry| entry.id);
        id.is_some_and(|id| self.0.unreached.contains(&id))
    }

    /// The absent hosts, those that were seen last first.
    pub fn absent(&self) -> impl Iterator<Item = HostIndex> + use<> {
        (self.0.present..self.0.hosts.len()).map(HostIndex)
    }

    /// Most bytes in flight to or from each host.
    pub fn window(&self) -> u32 {
        self.0.window
    }

    /// The number of hosts, without the absent ones.
    pub fn count(&self) -> usize {
        self.0.present
    }

    /// The entry of a host in the grid file.
    pub fn entry(&self, host: HostIndex) -> Option<&GridHost> {
        self.0.hosts.get(host.0)
    }

    /// The name of a host: the one in the list of the grid. If only registries report a name, it is the
    /// one in the host's certificate, as soon as a connection has shown that.
    pub fn name(&self, host: HostIndex) -> &str {
        let shown = self.0.names.shown(host);
        shown.unwrap_or_else(|| self.entry(host).map_or("?", |host| &host.name))
    }

    /// What is known of names that registries report.
    pub(crate) fn names(&self) -> &Names {
        &self.0.names
    }

    /// The address at which a host answered, or its first one. `None` while only its name is known.
    pub fn address(&self, host: HostIndex) -> Option<SocketAddr> {
        let slot = self.0.connections.get(host.0)?.try_lock();
        match slot.as_deref() {
            Ok(Slot::Made(connection)) => Some(connection.remote_address()),
            _ => self.entry(host)?.addr.ip(),
        }
    }

    /// The connection to a host. It is made if there is none or the last one ended.
    ///
    /// # Errors
    /// When the host can't be reached, or does not have the key that the grid file names.
    pub async fn connection(&self, host: HostIndex) -> Result<Connection, Fault> {
        let inner = &self.0;
        let (Some(entry), Some(slot)) = (inner.hosts.get(host.0), inner.connections.get(host.0))
        else {
            return Err(Fault::Gone("no such host".into()));
        };
        let asked = Instant::now();
        let mut slot = slot.lock().await;
        match &*slot {
            Slot::Made(connection) if connection.close_reason().is_none() => {
                return Ok(connection.clone());
            }
            // Another task tried while this one waited. The result is shared, so that a dead host delays
            // each task only once.
            Slot::Failed(at, fault) if *at >= asked => return Err(fault.clone()),
            _ => {}
        }
        let connected = match self.connect(host, entry).await {
            Ok(connection) => inner.begin(host, connection).await,
            Err(fault) => Err(inner.watches.not_reached(host, fault)),
        };
        *slot = match &connected {
            Ok(connection) => Slot::Made(connection.clone()),
            Err(fault) => Slot::Failed(Instant::now(), fault.clone()),
        };
        connected
    }

    /// Tries to reach a host. Nobody waits for that: a task that needs the connection meanwhile makes its own.
    pub(crate) async fn reach_aside(&self, host: HostIndex) {
        let inner = &self.0;
        let (Some(entry), Some(slot)) = (inner.hosts.get(host.0), inner.connections.get(host.0))
        else {
            return;
        };
        let reached = self.connect(host, entry).await;
        let Ok(mut slot) = slot.try_lock() else {
            return;
        };
        if matches!(&*slot, Slot::Made(made) if made.close_reason().is_none()) {
            return;
        }
        match reached {
            Ok(connection) => {
                if let Ok(connection) = inner.begin(host, connection).await {
                    *slot = Slot::Made(connection);
                }
            }
            Err(fault) => {
                inner.watches.not_reached(host, fault);
            }
        }
    }

    /// Connects to a host, with a shorter time limit if the host fell silent.
    async fn connect(&self, host: HostIndex, entry: &GridHost) -> Result<Connection, Fault> {
        let connecting = self.0.connect_to(entry);
        if !self.0.watches.is_silent(host) {
            return connecting.await;
        }
        let waited_ms = u64::try_from(AGAIN.as_millis()).unwrap_or(u64::MAX);
        let reached = tokio::time::timeout(AGAIN, connecting).await;
        reached.unwrap_or_else(|_| Err(Fault::no_answer(waited_ms)))
    }

    /// What is remembered of hosts that did not answer.
    pub(crate) fn watches(&self) -> &Watches {
        &self.0.watches
    }

    /// The fault of a host whose exchange failed with `fault`. It is `Silent` if the host fell silent.
    pub(crate) fn blamed(&self, host: HostIndex, fault: Fault) -> Fault {
        if !matches!(fault, Fault::Gone(_)) {
            return fault;
        }
        if let Some(rejected) = self.rejection(host) {
            return rejected;
        }
        if self.0.watches.is_silent(host) {
            return Fault::Silent(u64::try_from(SILENCE.as_millis()).unwrap_or(u64::MAX));
        }
        fault
    }

    /// The refusal of a host that has closed its connection because it does not accept this client any more: the
    /// client's key was revoked, or its certificate ended.
    fn rejection(&self, host: HostIndex) -> Option<Fault> {
        let slot = self.0.connections.get(host.0)?.try_lock().ok()?;
        let Slot::Made(connection) = &*slot else {
            return None;
        };
        rejection(connection)
    }

    /// Whether there is a connection to a host. A connection that is being made does not count.
    pub fn is_connected(&self, host: HostIndex) -> bool {
        let slot = self.0.connections.get(host.0).map(Mutex::try_lock);
        let Some(Ok(slot)) = slot else { return false };
        matches!(&*slot, Slot::Made(connection) if connection.close_reason().is_none())
    }

    /// All present connections. Connections that are being made are left out.
    pub fn made(&self) -> Vec<Connection> {
        let slots = self.0.connections.iter().map(Mutex::try_lock);
        let made = slots.filter_map(|slot| match &*slot.ok()? {
            Slot::Made(connection) => Some(connection.clone()),
            Slot::Untried | Slot::Failed(..) => None,
        });
        made.collect()
    }

    /// The version of the protocol that a host speaks with this client. Connects if needed.
    ///
    /// # Errors
    /// As [`Self::connection`].
    pub async fn spoken(&self, host: HostIndex) -> Result<WireVersion, Fault> {
        Ok(endpoint::spoken(&self.connection(host).await?))
    }

    /// Has each connection that is made from now on begin with the proof that a job lies below the prefix
    /// of the client's job key.
    pub fn introduce(&self, path: Vec<Blinded>) {
        let mut paths = self.0.paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.insert(path);
    }

    /// Asks which job keys of an owner are void. `None` if the host has no list of them.
    ///
    /// # Errors
    /// When the host does not answer as it should.
    pub async fn void_of(
        &self,
        host: HostIndex,
        owner: OwnerId,
    ) -> Result<Option<VoidList>, Fault> {
        let owners = vec![owner];
        let asked = Request::Voids { owners };
        let (Response::Voids { lists }, _) = self.request(host, &asked, REQUEST_TIMEOUT).await?
        else {
            return Err(unexpected("voids"));
        };
        let Some(list) = lists.first() else {
            return Ok(None);
        };
        match VoidList::parse(list) {
            Ok(list) if list.owner() == owner && lists.len() == 1 => Ok(Some(list)),
            Ok(_) => Err(unexpected("voids")),
            Err(cause) => Err(Fault::Lied(cause.to_string())),
        }
    }

    /// Sends a host the list of an owner's void job keys.
    ///
    /// # Errors
    /// When the host does not confirm it.
    pub async fn say_void(&self, host: HostIndex, list: &VoidList) -> Result<(), Fault> {
        let list = list.bytes().to_vec();
        match self
            .request(host, &Request::Void { list }, REQUEST_TIMEOUT)
            .await?
        {
            (Response::Noted, _) => Ok(()),
            _ => Err(unexpected("void")),
        }
    }

    /// Closes the connection to a host. That frees the memory of what was sent and never arrived: a
    /// stream that was given up keeps its memory until the host acknowledges that.
    pub async fn hang_up(&self, host: HostIndex) {
        let Some(slot) = self.0.connections.get(host.0) else {
            return;
        };
        let mut slot = slot.lock().await;
        if let Slot::Made(connection) = &*slot {
            connection.close(DONE, b"");
            *slot = Slot::Untried;
        }
    }

    /// Connects to a host and waits until the connection ends. Returns whether the host does not accept this
    /// client, or not any more.
    pub async fn shuts_out(&self, host: HostIndex) -> bool {
        let connection = match self.connection(host).await {
            Ok(connection) => connection,
            Err(fault) => return fault.is_forbidden(),
        };
        match connection.closed().await {
            ConnectionError::ApplicationClosed(close) => {
                [NOT_ALLOWED, REVOKED, EXPIRED].contains(&close.error_code)
            }
            _ => false,
        }
    }

    /// Whether another clone of these hosts exists, which may use the connections.
    pub fn are_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Closes all connections, unless another clone of these hosts exists. The next request to a host makes
    /// a new connection.
    pub fn hang_up_unless_shared(&self) {
        if self.are_shared() {
            return;
        }
        // Without a clone, no slot is locked for longer than this takes.
        for mut slot in self
            .0
            .connections
            .iter()
            .filter_map(|slot| slot.try_lock().ok())
        {
            if let Slot::Made(connection) = &*slot {
                connection.close(DONE, b"");
                *slot = Slot::Untried;
            }
        }
    }

    /// Sends a request and reads the first message of the answer.
    ///
    /// # Errors
    /// When the host can't be reached, refuses, or does not answer within `limit`.
    pub async fn request(
        &self,
        host: HostIndex,
        message: &Request,
        limit: Duration,
    ) -> Result<(Response, Exchange), Fault> {
        let connection = self.connection(host).await?;
        let answer = request(&connection, message, limit).await;
        note_asked(self.name(host), &connection, message, answer.as_ref().err());
        answer.map_err(|cause| self.blamed(host, why(&connection, cause)))
    }

    /// Asks a host for its status, and measures the round trip.
    ///
    /// # Errors
    /// When the host does not answer as it should.
    pub async fn status(&self, host: HostIndex) -> Result<(HostStatus, Duration), Fault> {
        let connection = self.connection(host).await?;
        let asked = Instant::now();
        match request(&connection, &Request::Status, REQUEST_TIMEOUT).await {
            // A busy host may take long to answer, so the round trip of QUIC is used if that is shorter.
            Ok((Response::Status(status), _)) => {
                self.note_list(host, &status);
                Ok((*status, asked.elapsed().min(connection.rtt())))
            }
            Ok(_) => Err(unexpected("status")),
            Err(cause) => Err(self.blamed(host, why(&connection, cause))),
        }
    }

    fn note_list(&self, host: HostIndex, status: &HostStatus) {
        let mut lists = self.0.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.extend(status.list_number().map(|number| (host, number)));
    }

    /// The number of the list of the grid that each host has, as far as the host stated it; 0 for none.
    pub fn lists(&self) -> BTreeMap<HostIndex, u64> {
        let lists = self.0.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.clone()
    }

    /// Hosts whose program is too old for `RowRuns`.
    pub(crate) fn without_row_runs(&self) -> std::sync::MutexGuard<'_, BTreeSet<HostIndex>> {
        let hosts = self.0.without_row_runs.lock();
        hosts.unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares lists of the grid with a host. Returns the list of the host if it is newer than that of
    /// `grid`; otherwise the host gets that of `grid`.
    ///
    /// # Errors
    /// When the host does not answer as it should.
    pub async fn compare_lists(
        &self,
        host: HostIndex,
        grid: &Grid,
    ) -> Result<Option<(GridList, Contents)>, Fault> {
        let connection = self.connection(host).await?;
        let compared = compare_lists(&connection, grid).await;
        compared.map_err(|cause| why(&connection, cause))
    }

    /// When the certificate of a connected host ends, in Unix seconds.
    pub fn certified_until(&self, host: HostIndex) -> Option<u64> {
        let slot = self.0.connections.get(host.0)?.try_lock().ok()?;
        match &*slot {
            Slot::Made(connection) => Some(Peer::of(connection).ok()?.not_after),
            Slot::Untried | Slot::Failed(..) => None,
        }
    }

    /// Asks for the announcement of a host. `None` if it has none.
    ///
    /// # Errors
    /// When the host does not answer, or its announcement is not valid.
    pub async fn announcement(&self, host: HostIndex) -> Result<Option<Announced>, Fault> {
        let asked = self.request(host, &Request::Announcement, REQUEST_TIMEOUT);
        match asked.await {
            Ok((Response::Announcement(said), _)) => Announcement::from(*said)
                .check()
                .map(Some)
                .map_err(|cause| Fault::Lied(format!("announcement: {cause}"))),
            Ok(_) => Err(unexpected("announcement")),
            // It may have nothing to announce.
            Err(Fault::Refused { .. }) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Sends `bytes` to a host and returns their rate in bytes per second. `None` if they took no longer
    /// than the first bytes of any connection: the connection is not slow then, and this number of bytes is
    /// too small to measure its rate.
    ///
    /// # Errors
    /// When the host does not take the bytes.
    pub async fn probe(&self, host: HostIndex, bytes: u32) -> Result<Option<f64>, Fault> {
        let connection = self.connection(host).await?;
        let rtt = connection.rtt();
        let (mut send, mut recv) = connection
            .open_bi()
            .await
            .map_err(|cause| Fault::Gone(cause.to_string()))?;
        let lost = |cause: quinn::WriteError| Fault::Gone(cause.to_string());
        let started = Instant::now();
        write_frame(&mut send, &Request::Probe { bytes }).await?;
        send.write_all(&vec![0; bytes as usize])
            .await
            .map_err(lost)?;
        // An error means that the host has stopped the stream. Its answer has the reason.
        let _ = send.finish();
        match read_frame(&mut recv, REQUEST_TIMEOUT).await? {
            Response::Probed => {}
            Response::Refused(refusal) => return Err(ExchangeError::Refused(refusal).into()),
            _ => return Err(unexpected("probe")),
        }
        let took = started.elapsed();
        let on_the_way = took.saturating_sub(rtt);
        let is_slow = took > PROBE_RTTS * rtt.min(connection.rtt()) && took > PROBE_FAST;
        Ok(is_slow.then(|| f64::from(bytes) / on_the_way.as_secs_f64().max(1e-6)))
    }

    /// Reports the result of a check of a shard to the host. A failure is ignored: the
    /// check itself is recorded here.
    pub async fn audited(&self, host: HostIndex, audit: Audit) {
        let found = Request::Audited(audit);
        if let Err(fault) = self.request(host, &found, REQUEST_TIMEOUT).await {
            tracing::debug!(host = self.name(host), %fault, "the host did not accept the result of a check");
        }
    }

    /// Sends a host a notice of an owner about a job.
    ///
    /// # Errors
    /// When the host does not confirm it.
    pub async fn notice(&self, host: HostIndex, notice: &Notice) -> Result<(), Fault> {
        let notice = notice.bytes().to_vec();
        let said = Request::Notice { notice };
        match self.request(host, &said, REQUEST_TIMEOUT).await? {
            (Response::Noted, _) => Ok(()),
            _ => Err(unexpected("notice")),
        }
    }

    /// Reserves a version of a job at a host.
    ///
    /// # Errors
    /// When the host does not answer as it should.
    pub async fn claim(&self, host: HostIndex, claim: Claim) -> Result<Claimed, Fault> {
        match self
            .request(host, &Request::Claim(claim), REQUEST_TIMEOUT)
            .await?
        {
            (Response::Claimed, _) => Ok(Claimed::Yes),
            (Response::Taken { next }, _) => Ok(Claimed::Taken { next }),
            _ => Err(unexpected("claim")),
        }
    }

    /// Commits a checkpoint at a host that holds a shard of it, which makes the checkpoint visible there.
    ///
    /// # Errors
    /// When the host does not confirm it.
    pub async fn commit(&self, host: HostIndex, manifest: Vec<u8>) -> Result<(), Fault> {
        let message = Request::Commit { manifest };
        match self.request(host, &message, REQUEST_TIMEOUT).await? {
            (Response::Committed, _) => Ok(()),
            _ => Err(unexpected("commit")),
        }
    }

    /// Has a host remove everything of a checkpoint. Returns false if the host had nothing of it.
    ///
    /// # Errors
    /// When the host does not confirm it.
    pub async fn forget(&self, host: HostIndex, checkpoint: CheckpointId) -> Result<bool, Fault> {
        let message = Request::Forget { checkpoint };
        match self.request(host, &message, REQUEST_TIMEOUT).await? {
            (Response::Forgotten { existed }, _) => Ok(existed),
            _ => Err(unexpected("forget")),
        }
    }

    /// Closes all connections. What was acknowledged stays.
    ///
    /// Returns as soon as the closing datagrams have been sent, mostly within 3 ms. QUIC would wait for
    /// longer (three times the time after which a datagram counts as lost). That wait is useful only for
    /// connections that have lost datagrams before. A host that misses the end of a connection keeps the
    /// connection for its idle timeout.
    pub async fn close(&self) {
        // A locked slot belongs to a connection that is being made.
        let slots = self.0.connections.iter().map(Mutex::try_lock);
        let leaving: Vec<Leaving> = slots
            .filter_map(|slot| match &*slot.ok()? {
                Slot::Made(connection) => Some(Leaving::close(connection)),
                Slot::Untried | Slot::Failed(..) => None,
            })
            .collect();
        let endpoints = || [&self.0.v4, &self.0.v6].into_iter().flatten();
        for endpoint in endpoints() {
            endpoint.close(DONE, b"");
        }
        let _ = tokio::time::timeout(LEAVING_MAX, async {
            while !leaving.iter().all(Leaving::has_left) {
                tokio::time::sleep(LEAVING_PERIOD).await;
            }
        })
        .await;
        if leaving.iter().any(Leaving::may_be_lost) {
            for endpoint in endpoints() {
                let _ = tokio::time::timeout(DRAIN_MAX, endpoint.wait_idle()).await;
            }
        }
    }
}

impl Inner {
    /// Begins to use a new connection to a host.
    async fn begin(&self, host: HostIndex, connection: Connection) -> Result<Connection, Fault> {
        self.watches.begin(host, &connection);
        self.names.look(&self.hosts, host, &connection);
        self.introduce(connection).await
    }

    /// All addresses at which a host may be: the one in the list, and those that registries report.
    pub(crate) fn addresses(&self, host: HostIndex) -> Option<(&Address, Option<&[SocketAddr]>)> {
        let entry = self.hosts.get(host.0)?;
        Some((
            &entry.addr,
            self.elsewhere.get(&entry.id).map(Vec::as_slice),
        ))
    }

    /// Begins a new connection with the proofs that jobs lie below the key's prefix.
    async fn introduce(&self, connection: Connection) -> Result<Connection, Fault> {
        let paths = self
            .paths
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for path in paths {
            let said = request(&connection, &Request::Within { path }, REQUEST_TIMEOUT).await;
            said.map_err(|cause| why(&connection, cause))?;
        }
        Ok(connection)
    }
}

/// The fault of an answer of the wrong kind. It counts as a lie, like wrong bytes.
pub(crate) fn unexpected(question: &'static str) -> Fault {
    ExchangeError::Unexpected(question).into()
}
