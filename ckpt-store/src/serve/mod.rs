//! Serves clients: one task for each connection, and one for each request.
//!
//! The way of a request: `rules` states who may ask it and what it costs, the stance of the machine's
//! owner may refuse it, and `scope` limits what a job key may ask. Then the request waits for a place in
//! a pool before it takes memory. Every wait for a client has a bound.

#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

pub mod auditing;
mod blocks;
mod buffers;
mod cards;
mod census;
pub(crate) mod exchange;
mod fences;
pub(crate) mod frames;
pub mod lines;
pub(crate) mod lists;
mod peers;
pub mod pool;
mod probe;
mod put;
mod read;
pub mod reception;
pub(crate) mod rules;
mod scope;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use codec::notice::Notice;
use codec::{CheckpointId, JobTag, OwnerId};
use protocol::identity::{Peer, Role};
use protocol::net::Members;
use protocol::net::stream::{ExchangeError, write_frame};
use protocol::wire::Code;
use protocol::wire::limits::NOTICES_ASKED_MAX;
use protocol::wire::message::{
    Audit, Claim, HostStatus, Message, NoticeRecord, Refusal, Request, Response, RowRun, ShardName,
};
use quinn::{Connection, RecvStream, SendStream};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinError;
use tracing::{Instrument, Span, debug, error, info, info_span, warn};

use crate::config::{CONNECTION_WINDOW, MemoryPlan, SEND_WINDOW, WRITER_WINDOW};
use crate::core::catalog::Claimed;
use crate::core::places::Who;
use crate::host::Host;
use crate::monitor::stance::Stance;
use crate::others::OtherCards;
use crate::shards::StoreError;

use buffers::Buffers;
use exchange::{Answer, Asked, Received, serve_requests};
use frames::FramePlaces;
use lines::Lines;
use lists::ListPlaces;
use pool::{Place, Pool, Size};
use rules::{Load, Rule, Server};
use scope::{Permit, Scope};
use transfer::rate_limit::RateLimit;

/// Most requests of each kind that may wait for a place. A request that brings a manifest keeps the
/// manifest in memory while it waits, so few changes may wait.
const READS_QUEUED_MAX: usize = 512;
const CHANGES_QUEUED_MAX: usize = 64;

/// Most ends of transfers that a transfer has not heard of yet. Who asked for one that it missed asks again.
const ENDED_QUEUED_MAX: usize = 16;

/// A client that got no place may ask again after this time, milliseconds.
const BUSY_RETRY_MS: u32 = 1_000;

/// What a [`ServedHost`] needs beside the host.
#[derive(Debug)]
pub struct Surroundings {
    /// The key of this host.
    pub id: OwnerId,
    /// The name of this host in its answers.
    pub name: String,
    /// The limit on log lines that peers cause.
    pub lines: Arc<Lines>,
    /// Becomes true when the daemon stops.
    pub stopping: watch::Receiver<bool>,
    /// The signed list of the grid, as far as this host knows it.
    pub members: Members,
    /// The cards of the other hosts.
    pub(crate) cards: OtherCards,
}

/// What all requests to this host share.
#[derive(Debug)]
pub struct ServedHost {
    parts: Arc<Host>,
    id: OwnerId,
    name: String,
    /// Places for shards that are received.
    writers: Arc<Pool<OwnerId>>,
    /// Places for blocks that are sent.
    readers: Arc<Pool<OwnerId>>,
    /// Places for small answers: records, tables, notices. They are separate from those of blocks, so
    /// that a client that has to wait for blocks can still find its checkpoints.
    questions: Arc<Pool<OwnerId>>,
    /// Places for small changes that wait for the disk.
    changes: Arc<Pool<OwnerId>>,
    /// Places for lists of the grid that are received.
    lists: ListPlaces,
    /// Places for long requests that are received.
    frames: FramePlaces,
    lines: Arc<Lines>,
    receiving: RateLimit,
    sending: RateLimit,
    /// Checkpoints whose transfers end, because their client asks what is here of them.
    ended: broadcast::Sender<put::Transferred>,
    stopping: watch::Receiver<bool>,
    members: Members,
    cards: OtherCards,
}

impl ServedHost {
    /// A host whose pools have the sizes of `plan`. A transfer that moves too little in `gives_way_after`
    /// loses its place if others wait.
    pub fn new(
        parts: Arc<Host>,
        around: Surroundings,
        plan: &MemoryPlan,
        gives_way_after: Duration,
    ) -> Self {
        let clock = parts.clock;
        let pool = |places, queue| Pool::new(Size { places, queue }, clock, gives_way_after);
        Self {
            parts,
            id: around.id,
            name: around.name,
            writers: pool(plan.writers, CHANGES_QUEUED_MAX),
            readers: pool(plan.readers, READS_QUEUED_MAX),
            questions: pool(plan.questions, READS_QUEUED_MAX),
            changes: pool(plan.changes, CHANGES_QUEUED_MAX),
            lists: ListPlaces::new(clock, gives_way_after),
            frames: FramePlaces::new(plan.frames, clock, gives_way_after),
            lines: around.lines,
            receiving: RateLimit::default(),
            sending: RateLimit::default(),
            ended: broadcast::Sender::new(ENDED_QUEUED_MAX),
            stopping: around.stopping,
            members: around.members,
            cards: around.cards,
        }
    }

    /// Becomes true when the daemon stops.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.clone()
    }
}

/// Serves one connection until it ends or `peer` is no longer a member. When the daemon stops, the
/// connection ends after its last request.
pub async fn connection(
    host: Arc<ServedHost>,
    connection: Connection,
    peer: Peer,
    members: Members,
) {
    let peer = Arc::new(peer);
    host.parts.traffic.serve(&connection);
    let shared = Arc::new(Shared {
        scope: peer
            .grant
            .as_ref()
            .map(|grant| Scope::new(Arc::clone(grant))),
        connection,
        received: AtomicU32::new(0),
        sent: AtomicU64::new(0),
        buffers: Arc::default(),
    });
    let gone = members.until_gone(&peer);
    let stopping = host.stopping();
    let serve = |send, recv| {
        let host = Arc::clone(&host);
        let peer = Arc::clone(&peer);
        let shared = Arc::clone(&shared);
        async move { request(&host, &peer, &shared, send, recv).await }
    };
    serve_requests(&shared.connection, Some(&peer), gone, stopping, serve).await;
}

/// The member and grant to which the places, space and entries of a peer are charged.
pub fn who(peer: &Peer) -> Who<OwnerId> {
    Who {
        member: peer.account(),
        grant: peer.grant.as_ref().map(|_| peer.id),
    }
}

/// What all requests of one connection share: the connection, by how much its windows are larger than
/// those of a connection that moves no data, and buffers for blocks that it sends.
struct Shared {
    connection: Connection,
    /// The jobs that the peer may ask about, if it acts with a job key.
    scope: Option<Scope>,
    received: AtomicU32,
    sent: AtomicU64,
    buffers: Arc<Buffers>,
}

/// Enlarges the windows of a connection while this value lives. Whoever makes one has a place in a pool.
struct Window<'a> {
    of: &'a Shared,
    receive: u32,
    send: u64,
}

impl Shared {
    /// For a shard that is being received.
    fn open_window(&self) -> Window<'_> {
        self.windows(WRITER_WINDOW, 0)
    }

    /// For an answer of which this many bytes may be in flight.
    fn open_send_window(&self, bytes: u64) -> Window<'_> {
        self.windows(0, bytes)
    }

    fn windows(&self, receive: u32, send: u64) -> Window<'_> {
        let of = self;
        of.received.fetch_add(receive, Ordering::Relaxed);
        of.sent.fetch_add(send, Ordering::Relaxed);
        let window = Window { of, receive, send };
        window.set();
        window
    }

    /// Most bytes that are in flight to the peer.
    fn send_window(&self) -> u64 {
        SEND_WINDOW.saturating_add(self.sent.load(Ordering::Relaxed))
    }
}

impl Window<'_> {
    fn set(&self) {
        let connection = &self.of.connection;
        if self.receive > 0 {
            let received = self.of.received.load(Ordering::Relaxed);
            connection.set_receive_window(CONNECTION_WINDOW.saturating_add(received).into());
        }
        if self.send > 0 {
            connection.set_send_window(self.of.send_window());
        }
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        self.of.received.fetch_sub(self.receive, Ordering::Relaxed);
        self.of.sent.fetch_sub(self.send, Ordering::Relaxed);
        self.set();
    }
}

impl Answer {
    fn internal(panicked: &JoinError) -> Self {
        error!(cause = %panicked, "a thread ended");
        Self::refuse(Code::Internal, "a thread of the host ended")
    }
}

impl From<StoreError> for Answer {
    fn from(cause: StoreError) -> Self {
        if cause.is_ours() {
            error!(%cause, "request failed");
        }
        Self::refuse(cause.code(), cause.to_string())
    }
}

/// A request that is being answered.
struct Exchange<'a> {
    host: &'a Arc<ServedHost>,
    peer: &'a Peer,
    connection: &'a Shared,
    send: &'a mut SendStream,
    recv: &'a mut RecvStream,
}

async fn request(
    host: &Arc<ServedHost>,
    peer: &Peer,
    connection: &Shared,
    mut send: SendStream,
    mut recv: RecvStream,
) {
    let reading = host.frames.read(Some(peer), &mut recv);
    let (asked, read) = Asked::read(&connection.connection, Some(peer), reading).await;
    let mut exchange = Exchange {
        host,
        peer,
        connection,
        send: &mut send,
        recv: &mut recv,
    };
    // Each line about this request names what it is about.
    let about = read
        .as_ref()
        .ok()
        .and_then(|read| read.request.checkpoint());
    let span = match about {
        Some(checkpoint) => info_span!("of", %checkpoint),
        None => Span::none(),
    };
    let answering = async {
        let Received { request, place } = read?;
        let answered = exchange.answer(request).await;
        drop(place);
        answered
    };
    let answered = answering.instrument(span.clone()).await;
    let requests = &host.parts.metrics.requests;
    let lines = &host.lines;
    let streams = (send, recv);
    asked
        .end(Server::Donor, requests, lines, answered, streams)
        .instrument(span)
        .await;
}

impl Exchange<'_> {
    async fn answer(&mut self, request: Request) -> Result<(), Answer> {
        if *self.host.stopping.borrow() {
            return Err(Answer::Refused(Refusal::new(Code::Stopping, "")));
        }
        let rule = Rule::of(&request);
        let allowed = rule.check(Server::Donor, Some(self.peer));
        allowed.map_err(Answer::Refused)?;
        self.check_stance(rule.load)?;
        if let Permit::NotThere(answer) = self.permit(&request)? {
            return self.not_there(answer).await;
        }
        match request {
            Request::Status => self.status().await,
            Request::Claim(claim) => self.claim(claim).await,
            Request::PutShard(put) => self.put_shard(put).await,
            Request::Commit { manifest } => self.commit(manifest).await,
            Request::KeepManifest { manifest } => self.keep_manifest(manifest).await,
            Request::RowsHeld(claim) => self.rows_held(claim).await,
            Request::EndEarly { put, rows, root } => self.end_early(put, rows, root).await,
            Request::Find { job_tag, after } => self.find(job_tag, after).await,
            Request::Outline(shard) => self.outline(shard).await,
            Request::Page { shard, page } => self.page(shard, page).await,
            Request::Rows {
                shard,
                first,
                count,
            } => self.rows(shard, vec![RowRun { first, count }]).await,
            Request::RowRuns { shard, runs } => self.rows(shard, runs).await,
            Request::Forget { checkpoint } => self.forget(checkpoint).await,
            Request::Probe { bytes } => self.probe(bytes).await,
            Request::Announcement => self.announcement().await,
            Request::Audited(audit) => self.audited(audit).await,
            Request::PutRebuilt(put) => self.put_rebuilt(*put).await,
            Request::Notice { notice } => self.notice(notice).await,
            Request::Notices { jobs } => self.notices(&jobs).await,
            Request::PeerHolds { salt, tags } => self.peer_holds(salt, tags).await,
            Request::Prove { owner, shard, spot } => self.prove(owner, shard, spot).await,
            Request::Within { path } => self.within(&path).await,
            Request::Void { list } => self.void(&list).await,
            Request::Voids { owners } => self.voids(&owners).await,
            Request::List { number } => self.list(number).await,
            Request::PutList { number, bytes } => self.put_list(number, bytes).await,
            Request::Census => self.census().await,
            Request::CompareCards { after, .. } => self.compare_cards(after).await,
            Request::Cards { ids } => self.cards(ids).await,
            Request::Prepare {
                job_tag,
                after,
                ballot,
            } => self.prepare(job_tag, after, ballot).await,
            Request::Propose { proposal } => self.propose(proposal).await,
            Request::Announce(_)
            | Request::Heartbeat { .. }
            | Request::Holds(_)
            | Request::Members { .. }
            | Request::Holders { .. }
            | Request::Join(_)
            | Request::PutCards { .. }
            | Request::Joiners { .. }
            | Request::Reached => Err(Answer::Refused(Server::Donor.does_not_answer())),
            Request::Retired12(never) | Request::Retired18(never) | Request::Retired33(never) => {
                match never {}
            }
        }
    }

    /// The owner whose shards of this checkpoint the peer may read. A submitter may read its own shards,
    /// and a donor those of every owner, as ciphertext.
    fn owner_for(&self, shard: &ShardName) -> Result<OwnerId, Answer> {
        if self.peer.has(Role::Submitter) {
            return Ok(self.peer.account());
        }
        let owner = self.host.parts.store.owner_of_shard(shard);
        owner.ok_or_else(|| Answer::Refused(Refusal::new(Code::NotFound, "")))
    }

    /// Refuses what the owner of the machine does not allow now.
    fn check_stance(&self, load: Load) -> Result<(), Answer> {
        let (what, reason) = match (self.host.parts.monitor.stance(), load) {
            (Stance::StandBack(reason), Load::BringsBytes) => ("stands back", reason),
            (Stance::Closed(reason), Load::Work | Load::BringsBytes) => ("is closed", reason),
            (Stance::Open, _)
            | (Stance::StandBack(_), Load::Question | Load::Work)
            | (Stance::Closed(_), Load::Question) => return Ok(()),
        };
        Err(Answer::Refused(Refusal {
            retry_after_ms: reason.retry_after_s.saturating_mul(1000),
            ..Refusal::new(Code::Busy, format!("the host {what}: {}", reason.what))
        }))
    }

    async fn announcement(&mut self) -> Result<(), Answer> {
        let _place = self.place(&self.host.questions, "answers").await?;
        let now = self.host.parts.clock.unix_seconds();
        let announced = self.host.parts.monitor.announced(now).to_wire();
        let announced = Box::new(announced.into());
        self.respond(&Response::Announcement(announced)).await
    }

    async fn status(&mut self) -> Result<(), Answer> {
        let store = Arc::clone(&self.host.parts.store);
        let who = who(self.peer);
        let usage = blocking(move || Ok(store.usage(Some(who)))).await?;
        let status = HostStatus {
            name: self.host.name.clone(),
            software: env!("CARGO_PKG_VERSION").to_owned(),
            capacity_bytes: usage.capacity_bytes,
            used_bytes: usage.used_bytes,
            free_bytes: usage.free_bytes,
            shards: usage.counts.shards,
            checkpoints: usage.counts.committed,
            uptime_s: self.host.parts.clock.uptime().as_secs(),
            parts: self.list_number(),
        };
        self.respond(&Response::Status(Box::new(status))).await
    }

    async fn claim(&mut self, claim: Claim) -> Result<(), Answer> {
        let now = self.host.parts.clock.now();
        let response = match self.host.parts.store.claim(now, who(self.peer), &claim)? {
            Claimed::Yes => Response::Claimed,
            Claimed::Taken { next } => Response::Taken { next },
        };
        self.respond(&response).await
    }

    async fn commit(&mut self, manifest: Vec<u8>) -> Result<(), Answer> {
        let _place = self.place(&self.host.changes, "small changes").await?;
        let store = Arc::clone(&self.host.parts.store);
        let owner = self.peer.account();
        let checkpoint = blocking(move || store.commit(owner, manifest)).await?;
        self.host.parts.accounts.enter(owner, &self.peer.name);
        info!(peer = self.peer.name, %checkpoint, "committed");
        self.respond(&Response::Committed).await
    }

    async fn keep_manifest(&mut self, manifest: Vec<u8>) -> Result<(), Answer> {
        let _place = self.place(&self.host.changes, "small changes").await?;
        let store = Arc::clone(&self.host.parts.store);
        let who = who(self.peer);
        let now = self.host.parts.clock.now();
        let checkpoint = blocking(move || store.keep_manifest(now, who, manifest)).await?;
        self.host.parts.accounts.enter(who.member, &self.peer.name);
        info!(peer = self.peer.name, %checkpoint, "keeps its manifest");
        self.respond(&Response::Committed).await
    }

    async fn forget(&mut self, checkpoint: CheckpointId) -> Result<(), Answer> {
        let _place = self.place(&self.host.changes, "small changes").await?;
        let store = Arc::clone(&self.host.parts.store);
        let owner = self.peer.account();
        let now = self.host.parts.clock.now();
        let existed = blocking(move || store.forget(now, owner, checkpoint)).await?;
        info!(peer = self.peer.name, %checkpoint, existed, "removed");
        self.respond(&Response::Forgotten { existed }).await
    }

    /// Enters a notice. It is signed by its owner, so any donor may bring it; a submitter may bring only
    /// its own.
    async fn notice(&mut self, notice: Vec<u8>) -> Result<(), Answer> {
        let notice = Notice::parse(notice).map_err(StoreError::from)?;
        if !self.peer.has(Role::Donor) && notice.words().owner != self.peer.account() {
            return Err(StoreError::Mismatch("owner").into());
        }
        let _place = self.place(&self.host.changes, "small changes").await?;
        let store = Arc::clone(&self.host.parts.store);
        let clock = self.host.parts.clock;
        let heard = move || store.notice(clock.now(), clock.unix_seconds(), &notice);
        let removed = blocking(heard).await?;
        debug!(peer = self.peer.name, removed, "received a notice");
        self.respond(&Response::Noted).await
    }

    async fn notices(&mut self, jobs: &[(OwnerId, JobTag)]) -> Result<(), Answer> {
        if jobs.len() > NOTICES_ASKED_MAX {
            let refusal = Refusal::new(Code::BadRequest, "too many jobs");
            return Err(Answer::Refused(refusal));
        }
        let is_donor = self.peer.has(Role::Donor);
        let scope = self.connection.scope.as_ref();
        let may = |job: &&(OwnerId, JobTag)| {
            let is_in_scope = scope.is_none_or(|scope| scope.has(job.1));
            is_donor || (job.0 == self.peer.account() && is_in_scope)
        };
        let jobs: Vec<_> = jobs.iter().filter(may).copied().collect();
        let place = self.place(&self.host.questions, "answers").await?;
        let store = Arc::clone(&self.host.parts.store);
        let reading = Arc::clone(&store);
        let notices = blocking(move || Ok(reading.notices(&jobs))).await?;
        let count = u32::try_from(notices.len()).unwrap_or(u32::MAX);
        let clock = self.host.parts.clock.unix_seconds();
        self.respond(&Response::Notices { clock, count }).await?;
        for source in notices {
            let store = Arc::clone(&store);
            // The answer has begun already, so a notice that has been removed meanwhile ends the answer
            // early.
            let read = blocking(move || Ok(store.notice_bytes(source))).await?;
            let lost = |cause: StoreError| Answer::Lost(ExchangeError::Lost(cause.to_string()));
            let record = NoticeRecord {
                notice: read.map_err(lost)?,
            };
            let bytes = record.notice.len();
            self.send_record(&place, &record, bytes).await?;
        }
        Ok(())
    }

    /// Sends one record of an answer; `bytes` is its length. A client that takes the record slowly loses
    /// its place if others wait.
    async fn send_record(
        &mut self,
        place: &Place<OwnerId>,
        record: &impl Message,
        bytes: usize,
    ) -> Result<(), Answer> {
        place.waits();
        tokio::select! {
            written = write_frame(self.send, record) => written?,
            () = place.gives_way() => return Err(too_slow()),
        }
        place.moved(bytes);
        Ok(())
    }

    /// Waits for a place in `pool`. `what` names the pool's requests in the refusal.
    async fn place(
        &self,
        pool: &Arc<Pool<OwnerId>>,
        what: &'static str,
    ) -> Result<Place<OwnerId>, Answer> {
        let place = pool.enter(who(self.peer)).await;
        place.ok_or_else(|| {
            busy(format!(
                "too many {what} at once for the host's memory, or for one member's share of it"
            ))
        })
    }

    async fn audited(&mut self, audit: Audit) -> Result<(), Answer> {
        let about = |fault| Some((fault, self.host.lines.about(Some(self.peer.id))?));
        if let Some((fault, held_back)) = audit.fault.and_then(about) {
            let peer = &self.peer.name;
            let fault = fault.name();
            warn!(peer, id = %self.peer.id, checkpoint = %audit.checkpoint, shard = audit.shard, fault, held_back, "a check of a shard failed");
        }
        let now = self.host.parts.clock.unix_seconds();
        self.host.parts.metrics.audited(audit.fault.is_none());
        self.host
            .parts
            .auditing
            .enter(self.peer.account(), audit, now);
        self.respond(&Response::Noted).await
    }

    async fn respond(&mut self, response: &Response) -> Result<(), Answer> {
        Ok(write_frame(self.send, response).await?)
    }
}

/// Runs `work`, which may wait for the disk, on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Answer> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(panicked) => Err(Answer::internal(&panicked)),
    }
}

/// Waits for a client, but not longer than `limit`.
async fn pause<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, Answer> {
    tokio::time::timeout(limit, future)
        .await
        .map_err(|_| Answer::Lost(ExchangeError::Stalled(limit)))
}

/// How a request ends that loses its place after its answer has begun.
fn too_slow() -> Answer {
    Answer::Lost(ExchangeError::Lost(
        "too slow while others were waiting".into(),
    ))
}

/// The refusal of a request that may be asked again soon.
pub(crate) fn busy(why: impl Into<String>) -> Answer {
    Answer::Refused(Refusal {
        retry_after_ms: BUSY_RETRY_MS,
        ..Refusal::new(Code::Busy, why)
    })
}

/// Ends `grace` after the daemon began to stop.
async fn stopped(mut stopping: watch::Receiver<bool>, grace: Duration) {
    // An error means that the daemon is gone already.
    let _ = stopping.wait_for(|stop| *stop).await;
    tokio::time::sleep(grace).await;
}
