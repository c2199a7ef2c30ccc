//! Fetches rows of a checkpoint from its holders: the shell of the restore session.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use codec::ShardIndex;
use codec::decode::{DecodeError, RowDecoder};
use codec::geometry::SEAL_OVERHEAD;
use codec::index::{Index, StoredSegment};
use codec::manifest::Summary;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{Duration, Instant};

use crate::agent::Agent;
use crate::agent::ask::gather::Gathered;
use crate::agent::keep::verdict::may_come_back;
use crate::agent::read::host_rates::SourceMeter;
use crate::core::pick::{RowFormat, WantedRows};
use crate::core::restore::{
    FetchId, PlannedRow, RestoreAction, RestoreEvent, RestoreLimits, RestoreOutcome, RestorePlan,
    RestoreSession,
};
use crate::core::{Fault, HostIndex, Millis};
use crate::inventory::KnownCheckpoint;
use crate::pipeline::decode::{RowBlocks, RowKeys};
use crate::report::{ExitStatus, Failure, HostNote, SourceBytes};
use transfer::get::BlockReader;

/// Bytes of one request to each host, at most: about those of four full rows of three data shards.
const BATCH_BYTES: u64 = 1_400_000;

/// Most rows of one request.
const BATCH_ROWS_MAX: usize = 64;

/// Requests that take longer than this may be hedged, milliseconds.
const HEDGE_MS: u64 = 500;

/// Failures after which a host is given up, even if it could come back.
const STRIKES_MAX: u32 = 4;

/// Half of the memory is for blocks in flight, and half for decoded rows.
pub(crate) const READ_SHARES: u64 = 2;

/// How often one read asks all hosts who holds the shards now.
const SEARCHES_MAX: u32 = 3;

/// Longest such search, milliseconds: more than a request to a silent host takes.
const SEARCH_MS: u64 = 60_000;

/// Longest wait of a driver before it calls its session again.
const LOOK_PERIOD: Duration = Duration::from_millis(200);

/// Why a checkpoint can't be restored.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// An older checkpoint may still be restorable.
    Short(Shortfall),
    /// No other checkpoint could be restored either.
    Fatal(Failure),
}

/// Too few shards of a checkpoint were found.
#[derive(Debug)]
pub(crate) struct Shortfall {
    /// The reason, for messages.
    pub(crate) reason: String,
    /// The faults of hosts.
    pub(crate) notes: Vec<HostNote>,
    /// Whether hosts that broke off, or had no time, may have the missing shards.
    pub(crate) may_come_back: bool,
}

impl Shortfall {
    /// The exit status of a command that needs the checkpoint: hosts that did not answer may have the missing
    /// shards.
    pub(crate) fn status(&self, gathered: &Gathered) -> ExitStatus {
        self.status_or(gathered.lost_status())
    }

    /// The exit status, which is `lost` if no host is expected to come back with the missing shards.
    pub(crate) fn status_or(&self, lost: ExitStatus) -> ExitStatus {
        if self.may_come_back {
            ExitStatus::TooFewHosts
        } else {
            lost
        }
    }
}

impl Unreadable {
    pub(crate) fn because(reason: impl Into<String>) -> Self {
        Self::Short(Shortfall {
            reason: reason.into(),
            notes: Vec::new(),
            may_come_back: false,
        })
    }
}

impl Agent {
    /// Bytes of memory for rows in flight of a read that is one of so many at the same time.
    pub(crate) const fn window(&self, reads: u64) -> u64 {
        self.resources.memory_bytes * 3 / 4 / reads
    }

    /// Reads the index of a checkpoint.
    pub(crate) async fn read_index(
        &self,
        known: &KnownCheckpoint,
        summary: &Summary,
        reader: &BlockReader,
    ) -> Result<Index, Unreadable> {
        let first = known.manifest.public().rows - summary.index.len() as u64;
        let bytes = self
            .read_rows(known, summary, reader, first, &summary.index)
            .await?;
        // Decoding and checking the index of a large image takes a while, so it runs on a thread of its own.
        let index = spawn_blocking(move || Index::decode(&bytes)).await;
        match index {
            Ok(Ok(index)) => Ok(index),
            Ok(Err(cause)) => Err(Unreadable::because(cause.to_string())),
            Err(cause) => Err(Unreadable::because(cause.to_string())),
        }
    }

    /// Reads the rows from `first` on whose formats are `rows`, and returns their content in one piece.
    pub(crate) async fn read_rows(
        &self,
        known: &KnownCheckpoint,
        summary: &Summary,
        reader: &BlockReader,
        first: u64,
        rows: &[StoredSegment],
    ) -> Result<Vec<u8>, Unreadable> {
        let rows = (first..).zip(rows.iter().map(|stored| (*stored, None)));
        let rows: WantedRows = rows.collect();
        let planned = planned(known, &rows);
        let driver = Driver::new(self, known, reader, planned, self.window(READ_SHARES));
        let keys = RowKeys::of(summary);
        let (read, _) = self.read_with(driver, known, &keys, &rows).await;
        let parts = read?;
        let mut all = Vec::with_capacity(parts.values().map(Vec::len).sum());
        // Each part is dropped as soon as it is copied: the hashes of a large image are tens of MiB.
        for part in parts.into_values() {
            all.extend_from_slice(&part);
        }
        Ok(all)
    }

    /// Reads and decodes these rows of a checkpoint from its known holders, for a caller that searches for
    /// others itself. Also returns what was observed of the hosts.
    pub(crate) async fn read_from_known(
        &self,
        known: &KnownCheckpoint,
        keys: &RowKeys,
        reader: &BlockReader,
        rows: &WantedRows,
        window_bytes: u64,
    ) -> (Result<BTreeMap<u64, Vec<u8>>, Unreadable>, SeenOfHosts) {
        let planned = planned(known, rows);
        let driver = Driver::of_known_holders(self, known, reader, planned, window_bytes);
        self.read_with(driver, known, keys, rows).await
    }

    async fn read_with(
        &self,
        mut driver: Driver<'_>,
        known: &KnownCheckpoint,
        keys: &RowKeys,
        rows: &WantedRows,
    ) -> (Result<BTreeMap<u64, Vec<u8>>, Unreadable>, SeenOfHosts) {
        let public = known.manifest.public();
        let cpus = self.resources.cpus.max(1);
        let mut decoding: JoinSet<(u64, Result<Vec<u8>, DecodeError>)> = JoinSet::new();
        let mut parts: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let ended = loop {
            tokio::select! {
                biased;
                Some(decoded) = decoding.join_next() => match decoded {
                    Ok((row, Ok(raw))) => {
                        parts.insert(row, raw);
                        driver.handle(RestoreEvent::Consumed(row));
                    }
                    Ok((_, Err(cause))) => break Err(Unreadable::because(cause.to_string())),
                    Err(cause) => break Err(Unreadable::because(cause.to_string())),
                },
                step = driver.next(), if decoding.len() < cpus => match step {
                    Step::Decode(blocks) => {
                        let Some(format) = rows.get(&blocks.row).copied() else {
                            continue;
                        };
                        let mut decoder = keys.decoder(public);
                        decoding.spawn_blocking(move || {
                            (blocks.row, decode_row(&mut decoder, &blocks, &format))
                        });
                    }
                    Step::Wait => {}
                    Step::Ended(RestoreOutcome::Done) => break Ok(()),
                    Step::Ended(RestoreOutcome::Lost { row, good, needed }) => {
                        break Err(driver.lost(row, good, needed));
                    }
                },
            }
        };
        (ended.map(|()| parts), driver.seen())
    }
}

/// What these rows of a checkpoint cost. A row in flight takes the memory of its blocks, perhaps of hedges too, and of its
/// decoded segment.
pub(crate) fn planned(known: &KnownCheckpoint, rows: &WantedRows) -> Vec<PlannedRow> {
    let redundancy = known.manifest.public().redundancy;
    let planned = |(row, (stored, _)): (&u64, &RowFormat)| {
        let block = redundancy.block_len(stored.stored_len as usize + SEAL_OVERHEAD);
        let blocks = redundancy.total() * block;
        PlannedRow {
            row: *row,
            block_bytes: block as u64,
            memory_bytes: blocks as u64 + u64::from(stored.raw_len),
        }
    };
    rows.iter().map(planned).collect()
}

/// The shards of a checkpoint that were fetched ahead.
fn at_hand(agent: &Agent, known: &KnownCheckpoint) -> BTreeSet<ShardIndex> {
    let Some(ahead) = &agent.blocks_ahead else {
        return BTreeSet::new();
    };
    let checkpoint = known.manifest.public().checkpoint;
    let shards = known.holders.iter().map(|(shard, _)| *shard);
    shards
        .filter(|shard| ahead.has((checkpoint, *shard)))
        .collect()
}

/// What was observed of hosts during a read.
#[derive(Debug, Default)]
pub(crate) struct SeenOfHosts {
    /// Bytes of good blocks.
    pub(crate) bytes: u64,
    /// Hosts that failed, with their faults.
    pub(crate) faults: Vec<(HostIndex, Fault)>,
    /// Hosts that had sent nothing when another host had answered in their place.
    pub(crate) slow: BTreeSet<HostIndex>,
}

fn decode_row(
    decoder: &mut RowDecoder,
    blocks: &RowBlocks,
    (stored, hash): &RowFormat,
) -> Result<Vec<u8>, DecodeError> {
    let given: Vec<_> = blocks.blocks.iter().map(|(s, b)| (*s, &**b)).collect();
    let mut raw = Vec::new();
    decoder.decode(blocks.row, stored, hash.as_ref(), &given, &mut raw)?;
    Ok(raw)
}

enum Event {
    Session(RestoreEvent),
    Block(FetchId, u64, ShardIndex, Bytes),
    /// A block that was fetched ahead.
    AtHand(FetchId, u64, ShardIndex, Bytes),
}

/// What the owner of a driver has to do next.
pub(crate) enum Step {
    /// Decode this row, and report `Consumed`.
    Decode(RowBlocks),
    /// There is nothing to do yet; the driver is called again.
    Wait,
    /// The session has ended.
    Ended(RestoreOutcome),
}

/// Runs one restore session against the network.
pub(crate) struct Driver<'a> {
    agent: &'a Agent,
    reader: BlockReader,
    known: KnownCheckpoint,
    pub(crate) session: RestoreSession,
    started: Instant,
    events: mpsc::UnboundedReceiver<Event>,
    sender: mpsc::UnboundedSender<Event>,
    fetches: BTreeMap<FetchId, (HostIndex, JoinHandle<()>)>,
    /// Blocks of rows that were requested and are not decoded; blocks that come later are dropped.
    blocks: BTreeMap<u64, BTreeMap<ShardIndex, Bytes>>,
    /// First row that was never requested.
    unasked: u64,
    meter: SourceMeter,
    /// Requests of which no block has come yet.
    silent: BTreeSet<FetchId>,
    slow: BTreeSet<HostIndex>,
    /// The search for holders, if one is under way.
    search: JoinSet<()>,
}

impl<'a> Driver<'a> {
    /// Reads from the known holders, and if these handed shards over to other hosts, from those. Rows in flight take
    /// `window_bytes` of memory.
    pub(crate) fn new(
        agent: &'a Agent,
        known: &KnownCheckpoint,
        reader: &BlockReader,
        rows: Vec<PlannedRow>,
        window_bytes: u64,
    ) -> Self {
        let limits = Self::limits(agent, known, window_bytes);
        Self::with_limits(agent, known, reader, rows, limits)
    }

    /// Reads from the known holders only.
    fn of_known_holders(
        agent: &'a Agent,
        known: &KnownCheckpoint,
        reader: &BlockReader,
        rows: Vec<PlannedRow>,
        window_bytes: u64,
    ) -> Self {
        let limits = RestoreLimits {
            searches_max: 0,
            ..Self::limits(agent, known, window_bytes)
        };
        Self::with_limits(agent, known, reader, rows, limits)
    }

    fn limits(agent: &Agent, known: &KnownCheckpoint, window_bytes: u64) -> RestoreLimits {
        let redundancy = known.manifest.public().redundancy;
        RestoreLimits {
            window_bytes,
            batch_bytes: BATCH_BYTES,
            batch_rows: BATCH_ROWS_MAX,
            hedge_ms: HEDGE_MS + agent.resources.patience_ms(redundancy),
            stall_ms: 10_000 + agent.resources.patience_ms(redundancy),
            strikes_max: STRIKES_MAX,
            searches_max: SEARCHES_MAX,
            search_ms: SEARCH_MS,
        }
    }

    fn with_limits(
        agent: &'a Agent,
        known: &KnownCheckpoint,
        reader: &BlockReader,
        rows: Vec<PlannedRow>,
        limits: RestoreLimits,
    ) -> Self {
        let plan = RestorePlan {
            data: known.manifest.public().redundancy.data(),
            rows,
            sources: known.holders.clone(),
            at_hand: at_hand(agent, known),
            limits,
        };
        let (sender, events) = mpsc::unbounded_channel();
        Self {
            agent,
            reader: reader.clone(),
            known: known.clone(),
            session: RestoreSession::new(plan, Millis(0)),
            started: Instant::now(),
            events,
            sender,
            fetches: BTreeMap::new(),
            blocks: BTreeMap::new(),
            unasked: 0,
            meter: SourceMeter::default(),
            silent: BTreeSet::new(),
            slow: BTreeSet::new(),
            search: JoinSet::new(),
        }
    }

    /// What was observed of hosts so far.
    fn seen(&self) -> SeenOfHosts {
        SeenOfHosts {
            bytes: self.fetched_bytes(),
            faults: self.session.faults().to_vec(),
            slow: self.slow.clone(),
        }
    }

    pub(crate) fn handle(&mut self, event: RestoreEvent) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.session.handle(Millis(now), event);
    }

    /// Runs until there is something for the owner to do. May be cancelled and called again.
    pub(crate) async fn next(&mut self) -> Step {
        while let Some(action) = self.session.poll_action() {
            match action {
                RestoreAction::Fetch {
                    fetch,
                    shard,
                    host,
                    rows,
                } => self.fetch(fetch, shard, host, rows),
                RestoreAction::FindHolders => self.find_holders(),
                RestoreAction::Cancel(fetch) => {
                    let is_silent = self.silent.contains(&fetch);
                    if let Some((host, _)) = self.fetches.get(&fetch).filter(|_| is_silent) {
                        self.slow.insert(*host);
                    }
                    if let Some(task) = self.end(fetch) {
                        task.abort();
                    }
                }
                RestoreAction::Decode(row, shards) => {
                    let mut blocks = self.blocks.remove(&row).unwrap_or_default();
                    blocks.retain(|shard, _| shards.contains(shard));
                    return Step::Decode(RowBlocks {
                        row,
                        blocks: blocks.into_iter().collect(),
                    });
                }
            }
        }
        if let Some(outcome) = self.session.outcome() {
            return Step::Ended(outcome.clone());
        }
        let wake = self.session.next_deadline().map_or_else(
            || Instant::now() + LOOK_PERIOD,
            |at| self.started + Duration::from_millis(at.0),
        );
        tokio::select! {
            biased;
            event = self.events.recv() => {
                if let Some(event) = event {
                    self.handle_event(event);
                }
            }
            () = tokio::time::sleep_until(wake) => self.handle(RestoreEvent::Tick),
        }
        Step::Wait
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Block(fetch, row, shard, block) => {
                if let Some((host, _)) = self.fetches.get(&fetch) {
                    self.meter.got(*host, block.len() as u64);
                }
                self.take_block(fetch, row, shard, block);
            }
            Event::AtHand(fetch, row, shard, block) => self.take_block(fetch, row, shard, block),
            Event::Session(event) => {
                if let RestoreEvent::Done(fetch) | RestoreEvent::Failed(fetch, _) = &event {
                    self.end(*fetch);
                }
                self.handle(event);
            }
        }
    }

    fn take_block(&mut self, fetch: FetchId, row: u64, shard: ShardIndex, block: Bytes) {
        // Blocks of a cancelled request may still have been on their way.
        if !self.fetches.contains_key(&fetch) {
            return;
        }
        self.silent.remove(&fetch);
        if let Some(blocks) = self.blocks.get_mut(&row) {
            blocks.insert(shard, block);
        }
        self.handle(RestoreEvent::Block(fetch, row));
    }

    fn end(&mut self, fetch: FetchId) -> Option<JoinHandle<()>> {
        self.silent.remove(&fetch);
        let (host, task) = self.fetches.remove(&fetch)?;
        self.meter.end(host, self.started.elapsed());
        Some(task)
    }

    fn fetch(&mut self, fetch: FetchId, shard: ShardIndex, host: HostIndex, rows: Vec<u64>) {
        for row in rows.iter().filter(|row| **row >= self.unasked) {
            self.blocks.insert(*row, BTreeMap::new());
        }
        let after = rows.last().map_or(0, |last| last + 1);
        self.unasked = self.unasked.max(after);
        let reader = self.reader.clone();
        let sender = self.sender.clone();
        let checkpoint = self.known.manifest.public().checkpoint;
        let is_at_hand = self.session.is_at_hand(shard);
        let ahead = self.agent.blocks_ahead.clone().filter(|_| is_at_hand);
        let task = tokio::spawn(async move {
            let blocks = sender.clone();
            let on_block = move |row, block| {
                // Fails only when the restore has ended.
                let _ = blocks.send(Event::Block(fetch, row, shard, block));
            };
            let at_hand = sender.clone();
            let reading = async {
                let mut rows = rows;
                if let Some(ahead) = ahead {
                    let entries = reader.entries(shard, host, rows.iter().copied()).await?;
                    let read = spawn_blocking(move || ahead.blocks((checkpoint, shard), &entries));
                    for (row, block) in read.await.unwrap_or_default() {
                        rows.retain(|wanted| *wanted != row);
                        let _ = at_hand.send(Event::AtHand(fetch, row, shard, block));
                    }
                }
                reader.blocks(shard, host, rows, on_block).await
            };
            let event = match reading.await {
                Ok(()) => RestoreEvent::Done(fetch),
                Err(fault) => RestoreEvent::Failed(fetch, fault),
            };
            let _ = sender.send(Event::Session(event));
        });
        self.meter.begin(host, self.started.elapsed());
        self.silent.insert(fetch);
        self.fetches.insert(fetch, (host, task));
    }

    /// Asks all hosts who holds the shards now.
    fn find_holders(&mut self) {
        let agent = self.agent.clone();
        let known = self.known.clone();
        let sender = self.sender.clone();
        self.search.spawn(async move {
            let (_, holders) = agent.holders_now(&known).await;
            let found = RestoreEvent::Holders(holders.unwrap_or_default());
            // Fails only when the restore has ended.
            let _ = sender.send(Event::Session(found));
        });
    }

    /// Bytes that hosts sent.
    pub(crate) fn fetched_bytes(&self) -> u64 {
        self.meter.bytes().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes from each host.
    pub(crate) fn sources(&self) -> Vec<SourceBytes> {
        self.meter
            .bytes()
            .map(|(host, bytes)| SourceBytes {
                host: self.agent.hosts.name(host).to_owned(),
                bytes,
            })
            .collect()
    }

    pub(crate) fn lost(&self, row: u64, good: usize, needed: usize) -> Unreadable {
        let mut seen: Vec<&(HostIndex, Fault)> = Vec::new();
        for fault in self.session.faults().iter().rev() {
            if seen.iter().all(|(host, _)| *host != fault.0) {
                seen.push(fault);
            }
        }
        let away = seen.iter().filter(|(_, fault)| may_come_back(fault));
        Unreadable::Short(Shortfall {
            reason: format!("row {row}: {good} good blocks found, {needed} needed"),
            may_come_back: good + away.count() >= needed,
            notes: seen
                .into_iter()
                .map(|(host, fault)| self.agent.note(*host, fault))
                .collect(),
        })
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        for (host, task) in std::mem::take(&mut self.fetches).into_values() {
            self.meter.end(host, self.started.elapsed());
            task.abort();
        }
        for (host, rate) in self.meter.rates() {
            self.agent.learn_rate(host, rate);
        }
    }
}
