//! The restore session: which blocks are read from which hosts, and when others are asked instead.
//!
//! Rows are fetched in **batches** of a few, within a window. Each batch is asked from `data`
//! different shards, those whose hosts are expected to answer first. When one fails, lies or is
//! slow, another shard is asked for what the batch still lacks. Wrong bytes are never used: the
//! shell checks every block against the signed table before it tells of it.

mod source;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use codec::ShardIndex;

use super::{Fault, HostIndex, Millis};
use source::{Source, SourceIndex};

/// Names one request for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(pub u64);

/// Times and sizes that bound a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreLimits {
    /// Rows that may be under way or waiting to be written.
    pub window_rows: u64,
    /// Rows that are asked for at once.
    pub batch_rows: u64,
    /// A request that takes longer than this, and much longer than others do, is hedged.
    pub hedge_ms: u64,
    /// Without one more block from a request.
    pub stall_ms: u64,
    /// Failures after which a source that could come back is given up.
    pub strikes_max: u32,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestorePlan {
    /// Different shards that are needed for each row.
    pub data: usize,
    /// Rows to get.
    pub rows: Range<u64>,
    /// Who has which shard, in order of preference.
    pub sources: Vec<(ShardIndex, HostIndex)>,
    /// Bounds.
    pub limits: RestoreLimits,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreEvent {
    /// A good block of a row came.
    Block(FetchId, u64),
    /// A request is answered completely.
    Done(FetchId),
    /// A request failed, or brought a wrong byte (then the fault is final).
    Failed(FetchId, Fault),
    /// A row was written; its memory is free.
    Consumed(u64),
    /// Time has passed.
    Tick,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreAction {
    /// Ask for blocks.
    Fetch {
        /// The request.
        fetch: FetchId,
        /// Whose blocks.
        shard: ShardIndex,
        /// Whom to ask.
        host: HostIndex,
        /// Which rows.
        rows: Range<u64>,
    },
    /// Give a request up.
    Cancel(FetchId),
    /// Decode a row from the blocks of these shards, and forget its other blocks.
    Decode(u64, Vec<ShardIndex>),
}

/// How a restore ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// Every row was written.
    Done,
    /// A row has too few good blocks, and nobody else can be asked.
    Lost {
        /// The row.
        row: u64,
        /// Different shards of it that came.
        good: usize,
        /// Shards needed.
        needed: usize,
    },
}

/// A restore.
#[derive(Debug)]
pub struct RestoreSession {
    plan: RestorePlan,
    now: Millis,
    sources: Vec<Source>,
    /// First row that no batch asked for.
    next: u64,
    /// Rows asked for and not yet written.
    unwritten: BTreeSet<u64>,
    batches: BTreeMap<u64, Batch>,
    fetches: BTreeMap<FetchId, Fetch>,
    last_fetch: u64,
    /// How long the latest requests took, for knowing what is slow.
    durations: VecDeque<u64>,
    faults: Vec<(HostIndex, Fault)>,
    actions: VecDeque<RestoreAction>,
    outcome: Option<RestoreOutcome>,
}

/// Rows that are asked for together.
#[derive(Debug)]
struct Batch {
    rows: Range<u64>,
    /// Shards that came, for each row that is not decoded.
    missing: BTreeMap<u64, BTreeSet<ShardIndex>>,
    /// Sources that failed for this batch; asked again only when no other is left.
    failed: BTreeSet<SourceIndex>,
}

#[derive(Debug)]
struct Fetch {
    batch: u64,
    source: SourceIndex,
    begun: Millis,
    progress: Millis,
    blocks: u64,
    hedged: bool,
}

/// Requests whose durations are remembered.
const DURATIONS_MAX: usize = 32;

/// A request is slow when it takes this many times as long as the middle one of the latest.
const SLOW_FACTOR: u64 = 4;

impl RestoreSession {
    /// Begins a restore.
    pub fn new(plan: RestorePlan, now: Millis) -> Self {
        let mut session = Self {
            sources: Source::list(&plan.sources),
            next: plan.rows.start,
            plan,
            now,
            unwritten: BTreeSet::new(),
            batches: BTreeMap::new(),
            fetches: BTreeMap::new(),
            last_fetch: 0,
            durations: VecDeque::new(),
            faults: Vec::new(),
            actions: VecDeque::new(),
            outcome: None,
        };
        session.settle();
        session
    }

    /// Takes note of what happened at `now`.
    pub fn handle(&mut self, now: Millis, event: RestoreEvent) {
        self.now = self.now.max(now);
        if self.outcome.is_some() {
            return;
        }
        match event {
            RestoreEvent::Block(fetch, row) => self.block(fetch, row),
            RestoreEvent::Done(fetch) => self.done(fetch),
            RestoreEvent::Failed(fetch, fault) => self.failed(fetch, fault),
            RestoreEvent::Consumed(row) => {
                self.unwritten.remove(&row);
            }
            RestoreEvent::Tick => {}
        }
        self.expire();
        self.settle();
        self.check_invariants();
    }

    /// What to do next, until there is nothing.
    pub fn poll_action(&mut self) -> Option<RestoreAction> {
        self.actions.pop_front()
    }

    /// When to call [`Self::handle`] at the latest.
    pub fn next_deadline(&self) -> Option<Millis> {
        if self.outcome.is_some() {
            return None;
        }
        let hedge = self.hedge_ms();
        let limits = self.plan.limits;
        let fetches = self.fetches.values().map(|fetch| {
            let stalled = fetch.progress.plus(limits.stall_ms);
            if fetch.hedged {
                stalled
            } else {
                stalled.min(fetch.begun.plus(hedge))
            }
        });
        let resting = self.sources.iter().filter_map(|s| s.rests_until(self.now));
        fetches.chain(resting).min()
    }

    /// How it ended.
    pub const fn outcome(&self) -> Option<&RestoreOutcome> {
        self.outcome.as_ref()
    }

    /// Hosts that failed, and how, in the order of failing.
    pub fn faults(&self) -> &[(HostIndex, Fault)] {
        &self.faults
    }

    fn block(&mut self, id: FetchId, row: u64) {
        let now = self.now;
        let Some(fetch) = self.fetches.get_mut(&id) else {
            return;
        };
        fetch.progress = now;
        fetch.blocks += 1;
        let (start, source) = (fetch.batch, fetch.source);
        let Some(shard) = self.sources.get(source.0).map(|source| source.shard) else {
            return;
        };
        let data = self.plan.data;
        let Some(batch) = self.batches.get_mut(&start) else {
            return;
        };
        let Some(shards) = batch.missing.get_mut(&row) else {
            return;
        };
        shards.insert(shard);
        if shards.len() >= data {
            let shards = shards.iter().copied().take(data).collect();
            batch.missing.remove(&row);
            self.actions.push_back(RestoreAction::Decode(row, shards));
        }
        if batch.missing.is_empty() {
            self.batches.remove(&start);
            self.cancel_fetches_of(start);
        }
    }

    /// What a finished batch still waits for is not needed any more.
    fn cancel_fetches_of(&mut self, batch: u64) {
        let of_batch: Vec<FetchId> = self
            .fetches
            .iter()
            .filter(|(_, fetch)| fetch.batch == batch)
            .map(|(id, _)| *id)
            .collect();
        for id in of_batch {
            // The request that brought the last block is complete but for its end.
            if let Some(fetch) = self.end_fetch(id) {
                let full = fetch.blocks >= self.plan.limits.batch_rows;
                if !full {
                    self.actions.push_back(RestoreAction::Cancel(id));
                }
            }
        }
    }

    fn done(&mut self, id: FetchId) {
        let Some(fetch) = self.end_fetch(id) else {
            return;
        };
        if self.batches.contains_key(&fetch.batch) {
            self.ask(fetch.batch, 0);
        }
    }

    /// Takes a fetch off the list and remembers how fast its source was.
    fn end_fetch(&mut self, id: FetchId) -> Option<Fetch> {
        let fetch = self.fetches.remove(&id)?;
        let took = self.now.since(fetch.begun);
        if let Some(source) = self.sources.get_mut(fetch.source.0) {
            source.ended(fetch.blocks, took);
        }
        if fetch.blocks > 0 {
            self.durations.push_back(took);
            if self.durations.len() > DURATIONS_MAX {
                self.durations.pop_front();
            }
        }
        Some(fetch)
    }

    fn failed(&mut self, id: FetchId, fault: Fault) {
        let Some(fetch) = self.fetches.remove(&id) else {
            return;
        };
        let (now, strikes_max) = (self.now, self.plan.limits.strikes_max);
        if let Some(source) = self.sources.get_mut(fetch.source.0) {
            source.failed(&fault, now, strikes_max);
            self.faults.push((source.host, fault));
        }
        if let Some(batch) = self.batches.get_mut(&fetch.batch) {
            batch.failed.insert(fetch.source);
            self.ask(fetch.batch, 0);
        }
    }

    /// Gives up requests that stalled, and hedges those that are slow.
    fn expire(&mut self) {
        let (now, limits, hedge) = (self.now, self.plan.limits, self.hedge_ms());
        let stalled: Vec<FetchId> = self
            .fetches
            .iter()
            .filter(|(_, fetch)| fetch.progress.plus(limits.stall_ms) <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in stalled {
            self.actions.push_back(RestoreAction::Cancel(id));
            self.failed(id, Fault::Stalled(limits.stall_ms));
        }
        let mut slow = Vec::new();
        for fetch in self.fetches.values_mut() {
            if !fetch.hedged && fetch.begun.plus(hedge) <= now {
                fetch.hedged = true;
                slow.push((fetch.batch, fetch.source));
            }
        }
        for (batch, source) in slow {
            if let Some(source) = self.sources.get_mut(source.0) {
                source.was_slow(hedge);
            }
            self.ask(batch, 1);
        }
    }

    /// How long a request may take before it is hedged.
    fn hedge_ms(&self) -> u64 {
        let mut durations: Vec<u64> = self.durations.iter().copied().collect();
        durations.sort_unstable();
        let middle = durations.get(durations.len() / 2).copied().unwrap_or(0);
        self.plan.limits.hedge_ms.max(SLOW_FACTOR * middle)
    }

    /// Begins new batches while the window allows, asks again for batches that lack somebody to
    /// ask, and sees whether it is over.
    fn settle(&mut self) {
        self.begin_batches();
        let starving: Vec<u64> = self.batches.keys().copied().collect();
        for start in starving {
            self.ask(start, 0);
            if self.outcome.is_some() {
                return;
            }
        }
        if self.next == self.plan.rows.end && self.unwritten.is_empty() && self.outcome.is_none() {
            self.outcome = Some(RestoreOutcome::Done);
        }
    }

    fn begin_batches(&mut self) {
        let limits = self.plan.limits;
        while self.next < self.plan.rows.end {
            let end = self.plan.rows.end.min(self.next + limits.batch_rows.max(1));
            let first_unwritten = self.unwritten.first().copied().unwrap_or(self.next);
            if end > first_unwritten + limits.window_rows && !self.unwritten.is_empty() {
                return;
            }
            let rows = self.next..end;
            self.unwritten.extend(rows.clone());
            self.batches.insert(
                rows.start,
                Batch {
                    missing: rows.clone().map(|row| (row, BTreeSet::new())).collect(),
                    rows,
                    failed: BTreeSet::new(),
                },
            );
            self.next = end;
        }
    }

    /// Asks as many sources as the batch still needs, and `extra` more when there are any.
    fn ask(&mut self, start: u64, extra: usize) {
        let mut extra = extra;
        loop {
            let Some(batch) = self.batches.get(&start) else {
                return;
            };
            let (lacking, coming) = self.lacking(start, batch);
            let short = lacking.saturating_sub(coming);
            if short == 0 && extra == 0 {
                return;
            }
            let Some(source) = self.best_source(start, batch) else {
                if short > 0 && coming == 0 {
                    self.give_up_if_nobody_comes_back(start);
                }
                return;
            };
            if short == 0 {
                extra -= 1;
            }
            self.fetch(start, source);
        }
    }

    /// How many more shards the row that has fewest needs, and how many are being fetched that it
    /// does not have.
    fn lacking(&self, start: u64, batch: &Batch) -> (usize, usize) {
        let mut worst = (0, 0);
        for shards in batch.missing.values() {
            let coming: BTreeSet<ShardIndex> = self
                .fetches
                .values()
                .filter(|fetch| fetch.batch == start)
                .filter_map(|fetch| self.sources.get(fetch.source.0))
                .map(|source| source.shard)
                .filter(|shard| !shards.contains(shard))
                .collect();
            let lacking = self.plan.data - shards.len();
            let short = lacking.saturating_sub(coming.len());
            if worst.0 == 0 || short > usize::saturating_sub(worst.0, worst.1) {
                worst = (lacking, coming.len());
            }
        }
        worst
    }

    /// The source that would answer first, of those whose shard the batch neither has nor awaits.
    fn best_source(&self, start: u64, batch: &Batch) -> Option<SourceIndex> {
        let busy: BTreeSet<ShardIndex> = self
            .fetches
            .values()
            .filter(|fetch| fetch.batch == start)
            .filter_map(|fetch| self.sources.get(fetch.source.0))
            .map(|source| source.shard)
            .collect();
        let everywhere = |shard: &ShardIndex| batch.missing.values().all(|s| s.contains(shard));
        let best_known = self.sources.iter().filter_map(Source::ms_per_row).min();
        self.sources
            .iter()
            .enumerate()
            .filter(|(_, source)| source.can_be_asked(self.now))
            .filter(|(_, source)| !busy.contains(&source.shard) && !everywhere(&source.shard))
            .min_by_key(|(index, source)| {
                let failed = batch.failed.contains(&SourceIndex(*index));
                let queued = self.rows_queued(source.host);
                (failed, source.expected_us(queued, best_known), *index)
            })
            .map(|(index, _)| SourceIndex(index))
    }

    /// Rows that were asked of a host and have not come.
    fn rows_queued(&self, host: HostIndex) -> u64 {
        self.fetches
            .values()
            .filter(|fetch| {
                self.sources
                    .get(fetch.source.0)
                    .is_some_and(|s| s.host == host)
            })
            .map(|fetch| self.plan.limits.batch_rows.saturating_sub(fetch.blocks))
            .sum()
    }

    fn fetch(&mut self, start: u64, index: SourceIndex) {
        let (Some(batch), Some(source)) = (self.batches.get_mut(&start), self.sources.get(index.0))
        else {
            return;
        };
        let shard = source.shard;
        let mut lacking = batch
            .missing
            .iter()
            .filter(|(_, shards)| !shards.contains(&shard))
            .map(|(row, _)| *row);
        let Some(first) = lacking.next() else { return };
        let last = lacking.next_back().unwrap_or(first);
        debug_assert!(batch.rows.contains(&first) && batch.rows.contains(&last));
        self.last_fetch += 1;
        let id = FetchId(self.last_fetch);
        self.actions.push_back(RestoreAction::Fetch {
            fetch: id,
            shard,
            host: source.host,
            rows: first..last + 1,
        });
        self.fetches.insert(
            id,
            Fetch {
                batch: start,
                source: index,
                begun: self.now,
                progress: self.now,
                blocks: 0,
                hedged: false,
            },
        );
    }

    /// Ends the restore when the batch can't be completed, now or later.
    fn give_up_if_nobody_comes_back(&mut self, start: u64) {
        let Some(batch) = self.batches.get(&start) else {
            return;
        };
        let hopeless = batch.missing.iter().find(|(_, shards)| {
            let others: BTreeSet<ShardIndex> = self
                .sources
                .iter()
                .filter(|source| !source.is_given_up() && !shards.contains(&source.shard))
                .map(|source| source.shard)
                .collect();
            shards.len() + others.len() < self.plan.data
        });
        if let Some((row, shards)) = hopeless {
            self.outcome = Some(RestoreOutcome::Lost {
                row: *row,
                good: shards.len(),
                needed: self.plan.data,
            });
            let running = std::mem::take(&mut self.fetches);
            let cancel = running.into_keys().map(RestoreAction::Cancel);
            self.actions.extend(cancel);
        }
    }

    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for (start, batch) in &self.batches {
            debug_assert_eq!(*start, batch.rows.start);
            debug_assert!(!batch.missing.is_empty(), "a complete batch is dropped");
            for shards in batch.missing.values() {
                debug_assert!(shards.len() < self.plan.data, "enough blocks are decoded");
            }
        }
        let window = self.unwritten.len() as u64;
        let allowed = self.plan.limits.window_rows + self.plan.limits.batch_rows;
        debug_assert!(window <= allowed, "{window} rows in flight");
    }
}
