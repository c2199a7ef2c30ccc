//! The hosts of a grid: connections that are made once, and the small requests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use codec::notice::Notice;
use codec::{CheckpointId, JobTag, OwnerId};
use protocol::grid::{Grid, GridHost};
use protocol::identity::{Identity, Peer, Revocations};
use protocol::net::endpoint::{self, EndpointConfig, EndpointError, MTU_SMALL};
use protocol::net::stream::{Exchange, ExchangeError, read_frame, request, write_frame};
use protocol::wire::WireVersion;
use protocol::wire::announcement::Announced;
use protocol::wire::limits::{NOTICES_ASKED_MAX, PEER_ASKED_MAX, RECORDS_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{
    Audit, Claim, HostStatus, NoticeRecord, Record, Request, Response, ShardName,
};
use quinn::{Connection, Endpoint, VarInt};
use tokio::sync::Mutex;

use crate::pace::Pace;
use crate::{Fault, HostIndex};

/// Records that one host may tell of one owner; beyond, it is making them up.
const RECORDS_PER_HOST_MAX: usize = 1 << 20;

/// A caller that asks for a window of at most this many bytes wants to save memory, not time.
const SMALL_WINDOW_BYTES: u32 = 1 << 20;

/// Round trips that a probe takes on any way while the connection finds its rate.
const PROBE_RTTS: u32 = 8;

/// A probe that takes less than this is on a way that is fast enough.
const PROBE_TELLS: Duration = Duration::from_millis(40);

/// The hosts of a grid.
#[derive(Clone, Debug)]
pub struct Hosts(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hosts: Vec<GridHost>,
    revoked: Revocations,
    v4: Option<Endpoint>,
    v6: Option<Endpoint>,
    window: u32,
    /// Bytes per second to and from all of them together, and what passed.
    rate: OnceLock<f64>,
    sending: Pace,
    receiving: Pace,
    connections: Vec<Mutex<Slot>>,
}

/// The way to a host.
#[derive(Debug, Default)]
enum Slot {
    /// Nobody asked yet.
    #[default]
    Untried,
    /// The last connection.
    Made(Connection),
    /// There is none: when that was found, and why.
    Failed(Instant, Fault),
}

/// Answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The version is reserved at this host.
    Yes,
    /// Another checkpoint has it.
    Taken {
        /// The lowest version above all that the host knows.
        next: codec::Version,
    },
}

impl Hosts {
    /// The hosts of `grid`, to be spoken to as `identity`, with at most `window` bytes in flight
    /// to or from each.
    ///
    /// # Errors
    /// When there is no socket, or the identity can't be used.
    pub fn new(grid: &Grid, identity: &Identity, window: u32) -> Result<Self, EndpointError> {
        let mut config = EndpointConfig::new(identity.clone(), grid.authority.clone());
        config.receive_window = window;
        config.stream_window = window;
        config.send_window = window.into();
        if window <= SMALL_WINDOW_BYTES {
            config.mtu_max = MTU_SMALL;
        }
        let any: [SocketAddr; 2] = [
            (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0).into(),
            (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0).into(),
        ];
        let [v4, v6] = any.map(|from| {
            let needed = grid
                .hosts
                .iter()
                .any(|h| h.addr.is_ipv4() == from.is_ipv4());
            needed.then(|| endpoint::client(&config, from)).transpose()
        });
        Ok(Self(Arc::new(Inner {
            connections: grid.hosts.iter().map(|_| Mutex::default()).collect(),
            hosts: grid.hosts.clone(),
            revoked: grid.revoked.clone(),
            v4: v4?,
            v6: v6?,
            window,
            rate: OnceLock::new(),
            sending: Pace::default(),
            receiving: Pace::default(),
        })))
    }

    /// Lets at most so many bytes per second of blocks go to all of them together, and as many come
    /// from them. The first limit stays.
    pub fn limit(&self, bytes_per_second: f64) {
        let _ = self.0.rate.set(bytes_per_second);
    }

    /// Waits until so many bytes of blocks may be sent.
    pub(crate) async fn may_send(&self, bytes: usize) {
        self.0.sending.pass(bytes, self.0.rate.get().copied()).await;
    }

    /// Waits for as long as it may take to receive so many bytes of blocks.
    pub(crate) async fn received(&self, bytes: usize) {
        self.0
            .receiving
            .pass(bytes, self.0.rate.get().copied())
            .await;
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = HostIndex> + use<> {
        (0..self.0.hosts.len()).map(HostIndex)
    }

    /// Most bytes in flight to or from each.
    pub fn window(&self) -> u32 {
        self.0.window
    }

    /// Their number.
    pub fn count(&self) -> usize {
        self.0.hosts.len()
    }

    /// A host's entry in the grid file.
    pub fn entry(&self, host: HostIndex) -> Option<&GridHost> {
        self.0.hosts.get(host.0)
    }

    /// A host's name.
    pub fn name(&self, host: HostIndex) -> &str {
        self.entry(host).map_or("?", |host| &host.name)
    }

    /// The connection to a host; a new one when there is none or it broke.
    ///
    /// # Errors
    /// When the host can't be reached or is not the one that the grid file names.
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
            // Somebody else tried while this one waited: a dead host holds nobody up twice.
            Slot::Failed(at, fault) if *at >= asked => return Err(fault.clone()),
            _ => {}
        }
        let connected = inner.connect(entry).await;
        *slot = match &connected {
            Ok(connection) => Slot::Made(connection.clone()),
            Err(fault) => Slot::Failed(Instant::now(), fault.clone()),
        };
        connected
    }

    /// The version of the protocol that a host speaks with us; connects if need be.
    ///
    /// # Errors
    /// As [`Self::connection`].
    pub async fn spoken(&self, host: HostIndex) -> Result<WireVersion, Fault> {
        Ok(endpoint::spoken(&self.connection(host).await?))
    }

    /// Closes the connection to a host, and with it frees the memory of what was sent and never
    /// arrived: a stream that is given up keeps that until the host says that it knows.
    pub async fn hang_up(&self, host: HostIndex) {
        let Some(slot) = self.0.connections.get(host.0) else {
            return;
        };
        let mut slot = slot.lock().await;
        if let Slot::Made(connection) = &*slot {
            connection.close(VarInt::from_u32(0), b"");
            *slot = Slot::Untried;
        }
    }

    /// Sends a request and reads the first answer.
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
        answer.map_err(|cause| why(&connection, cause))
    }

    /// Asks how a host is, and measures how long that takes.
    ///
    /// # Errors
    /// When it does not answer as it should.
    pub async fn status(&self, host: HostIndex) -> Result<(HostStatus, Duration), Fault> {
        let connection = self.connection(host).await?;
        let asked = Instant::now();
        match request(&connection, &Request::Status, REQUEST_TIMEOUT).await {
            // The time that a busy host takes to answer says nothing of the way to it.
            Ok((Response::Status(status), _)) => {
                Ok((status, asked.elapsed().min(connection.rtt())))
            }
            Ok(_) => Err(unexpected("status")),
            Err(cause) => Err(why(&connection, cause)),
        }
    }

    /// Asks for all committed checkpoints, or those of one job.
    ///
    /// # Errors
    /// When the host does not answer as it should.
    pub async fn find(
        &self,
        host: HostIndex,
        job_tag: Option<JobTag>,
    ) -> Result<Vec<Record>, Fault> {
        let mut records: Vec<Record> = Vec::new();
        let mut after = None;
        loop {
            let asked = Request::Find { job_tag, after };
            let (response, mut exchange) = self.request(host, &asked, REQUEST_TIMEOUT).await?;
            let Response::Found { count, more } = response else {
                return Err(unexpected("find"));
            };
            let too_many = records.len() + count as usize > RECORDS_PER_HOST_MAX;
            if count > RECORDS_MAX || too_many || (more && count == 0) {
                return Err(unexpected("find"));
            }
            for _ in 0..count {
                records.push(read_frame(&mut exchange.recv, REQUEST_TIMEOUT).await?);
            }
            if !more {
                return Ok(records);
            }
            after = records.last().and_then(checkpoint_of);
        }
    }

    /// Asks what a host says of its own availability; `None` when it says nothing.
    ///
    /// # Errors
    /// When it does not answer, or what it says makes no sense.
    pub async fn announcement(&self, host: HostIndex) -> Result<Option<Announced>, Fault> {
        let asked = self.request(host, &Request::Announcement, REQUEST_TIMEOUT);
        match asked.await {
            Ok((Response::Announcement(said), _)) => said
                .check()
                .map(Some)
                .map_err(|cause| Fault::Lied(format!("announcement: {cause}"))),
            Ok(_) => Err(unexpected("announcement")),
            // An older host does not know the question, a new one may have nothing to say.
            Err(Fault::Refused { .. }) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Sends a few bytes and measures how fast they arrive. `None` when they took no longer than the
    /// first bytes on any connection: then the way is not slow, and more can't be told.
    ///
    /// # Errors
    /// When the host does not take them.
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
        // Fails when the host has stopped the stream, and then it says why.
        let _ = send.finish();
        match read_frame(&mut recv, REQUEST_TIMEOUT).await? {
            Response::Probed => {}
            Response::Refused(refusal) => return Err(ExchangeError::Refused(refusal).into()),
            _ => return Err(unexpected("probe")),
        }
        let took = started.elapsed();
        let on_the_way = took.saturating_sub(rtt);
        let is_slow = took > PROBE_RTTS * rtt.min(connection.rtt()) && took > PROBE_TELLS;
        Ok(is_slow.then(|| f64::from(bytes) / on_the_way.as_secs_f64().max(1e-6)))
    }

    /// Tells a host what a check of a shard found. Whoever does not want to know need not: an older
    /// host does not know the question.
    pub async fn audited(&self, host: HostIndex, audit: Audit) {
        let found = Request::Audited(audit);
        if let Err(fault) = self.request(host, &found, REQUEST_TIMEOUT).await {
            tracing::debug!(host = self.name(host), %fault, "does not want to know");
        }
    }

    /// Asks a host, as a donor, which shards of some checkpoints it holds.
    ///
    /// # Errors
    /// When the host does not answer as it should.
    pub async fn peer_held(
        &self,
        host: HostIndex,
        checkpoints: &[CheckpointId],
    ) -> Result<Vec<ShardName>, Fault> {
        let mut held = Vec::new();
        for some in checkpoints.chunks(PEER_ASKED_MAX) {
            let checkpoints = some.to_vec();
            let asked = Request::PeerHeld { checkpoints };
            match self.request(host, &asked, REQUEST_TIMEOUT).await? {
                (Response::PeerHeld { shards }, _) => held.extend(shards),
                _ => return Err(unexpected("peer held")),
            }
        }
        Ok(held)
    }

    /// Tells a host what was said of a job.
    ///
    /// # Errors
    /// When the host does not say that it heard.
    pub async fn notice(&self, host: HostIndex, notice: &Notice) -> Result<(), Fault> {
        let notice = notice.bytes().to_vec();
        let said = Request::Notice { notice };
        match self.request(host, &said, REQUEST_TIMEOUT).await? {
            (Response::Noted, _) => Ok(()),
            _ => Err(unexpected("notice")),
        }
    }

    /// Asks a host what it heard last of some jobs. Returns its clock (Unix seconds) and what it
    /// heard, which their owners have signed.
    ///
    /// # Errors
    /// When the host does not answer as it should.
    pub async fn notices(
        &self,
        host: HostIndex,
        jobs: &[(OwnerId, JobTag)],
    ) -> Result<(u64, Vec<Notice>), Fault> {
        let (mut clock, mut heard) = (0, Vec::new());
        for some in jobs.chunks(NOTICES_ASKED_MAX) {
            let asked = Request::Notices {
                jobs: some.to_vec(),
            };
            let (response, mut exchange) = self.request(host, &asked, REQUEST_TIMEOUT).await?;
            let Response::Notices { clock: now, count } = response else {
                return Err(unexpected("notices"));
            };
            if count as usize > some.len() {
                return Err(unexpected("notices"));
            }
            clock = now;
            for _ in 0..count {
                let record: NoticeRecord = read_frame(&mut exchange.recv, REQUEST_TIMEOUT).await?;
                let notice =
                    Notice::parse(record.notice).map_err(|cause| Fault::Lied(cause.to_string()))?;
                let words = notice.words();
                if !some.contains(&(words.owner, words.job_tag)) {
                    return Err(unexpected("notices"));
                }
                heard.push(notice);
            }
        }
        Ok((clock, heard))
    }

    /// Reserves a version.
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

    /// Makes a checkpoint visible at a host that holds a shard of it.
    ///
    /// # Errors
    /// When the host does not say that it did.
    pub async fn commit(&self, host: HostIndex, manifest: Vec<u8>) -> Result<(), Fault> {
        let message = Request::Commit { manifest };
        match self.request(host, &message, REQUEST_TIMEOUT).await? {
            (Response::Committed, _) => Ok(()),
            _ => Err(unexpected("commit")),
        }
    }

    /// Has a host remove what it has of a checkpoint; `false` when it had nothing.
    ///
    /// # Errors
    /// When the host does not say that it did.
    pub async fn forget(&self, host: HostIndex, checkpoint: CheckpointId) -> Result<bool, Fault> {
        let message = Request::Forget { checkpoint };
        match self.request(host, &message, REQUEST_TIMEOUT).await? {
            (Response::Forgotten { existed }, _) => Ok(existed),
            _ => Err(unexpected("forget")),
        }
    }

    /// Says goodbye to all hosts. What was acknowledged stays.
    pub async fn close(&self) {
        for endpoint in [&self.0.v4, &self.0.v6].into_iter().flatten() {
            endpoint.close(VarInt::from_u32(0), b"");
            // Only so that hosts know at once; they would notice later too.
            let _ = tokio::time::timeout(Duration::from_millis(200), endpoint.wait_idle()).await;
        }
    }
}

impl Inner {
    async fn connect(&self, entry: &GridHost) -> Result<Connection, Fault> {
        let endpoint = if entry.addr.is_ipv4() {
            &self.v4
        } else {
            &self.v6
        };
        let endpoint = endpoint
            .as_ref()
            .ok_or_else(|| Fault::Gone("no socket".into()))?;
        let connection = endpoint::connect(endpoint, entry.addr, entry.id).await?;
        let mut issuers = Peer::issuers_of(&connection).into_iter();
        if let Some(issuer) = issuers.find(|issuer| self.revoked.contains(issuer)) {
            connection.close(VarInt::from_u32(0), b"");
            let why = format!("its certificate is from registry {issuer}, whose key was revoked");
            return Err(Fault::Gone(why));
        }
        Ok(connection)
    }
}

/// A host that does not accept us says so only after the handshake (TLS 1.3), by closing.
fn why(connection: &Connection, cause: ExchangeError) -> Fault {
    match (connection.close_reason(), cause) {
        (Some(closed), ExchangeError::Lost(_)) => endpoint::connect_error(&closed).into(),
        (_, cause) => cause.into(),
    }
}

/// Answers that do not go with the question are lies like wrong bytes.
pub(super) fn unexpected(question: &'static str) -> Fault {
    ExchangeError::Unexpected(question).into()
}

fn checkpoint_of(record: &Record) -> Option<CheckpointId> {
    let manifest = codec::manifest::Manifest::parse(record.manifest.clone()).ok()?;
    Some(manifest.public().checkpoint)
}
