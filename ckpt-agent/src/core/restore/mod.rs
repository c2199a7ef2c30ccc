//! The restore session: which blocks are read from which hosts, and when other hosts are asked instead.
//!
//! Rows are fetched in **batches** of a few, within a window. Each batch is requested from `data` different
//! shards: those whose hosts are expected to answer first. When one of these hosts fails, lies or is slow,
//! another shard is requested for the rows that still lack blocks. When too few hosts are left, the shell is asked who
//! holds the shards now, since a host that leaves hands its shards over to others. Wrong bytes are never used: the shell
//! checks every block against the signed table before it reports the block. A source that sent some is asked again only
//! for rows that can't be had without it, one by one: a disk may have damaged one block of many.

mod plan;
mod request_times;
mod source;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use codec::ShardIndex;

use super::{Fault, HostIndex, Millis};
pub use plan::{
    FetchId, PlannedRow, RestoreAction, RestoreEvent, RestoreLimits, RestoreOutcome, RestorePlan,
    windows,
};
use request_times::RequestTimes;
use source::{Source, SourceIndex};

/// The state of a restore.
#[derive(Debug)]
pub struct RestoreSession {
    plan: RestorePlan,
    now: Millis,
    sources: Vec<Source>,
    /// Rows that were not requested yet.
    left: VecDeque<PlannedRow>,
    /// Rows requested and not yet written, with the bytes of memory that each takes.
    unwritten: BTreeMap<u64, u64>,
    /// The sum of these bytes.
    unwritten_bytes: u64,
    batches: BTreeMap<u64, Batch>,
    /// Batches that may have to be requested from one more source.
    wanting: BTreeSet<u64>,
    fetches: BTreeMap<FetchId, Fetch>,
    last_fetch: u64,
    searches: u32,
    /// When the search for holders that is under way counts as one that found nothing.
    search_ends: Option<Millis>,
    request_times: RequestTimes,
    faults: Vec<(HostIndex, Fault)>,
    actions: VecDeque<RestoreAction>,
    outcome: Option<RestoreOutcome>,
}

/// Rows that are requested together.
#[derive(Debug)]
struct Batch {
    /// At least one row, ascending.
    rows: Vec<PlannedRow>,
    /// For each row that is not decoded, the shards whose blocks came.
    missing: BTreeMap<u64, BTreeSet<ShardIndex>>,
    /// Sources that failed for this batch; they are asked again only if no other source is left.
    failed: BTreeSet<SourceIndex>,
    /// Rows for which a source has no good block.
    damaged: BTreeSet<(u64, SourceIndex)>,
}

#[derive(Debug)]
struct Fetch {
    batch: u64,
    source: SourceIndex,
    host: HostIndex,
    begun: Millis,
    progress: Millis,
    /// Rows that were asked for.
    rows: Vec<u64>,
    /// Number of blocks that have arrived.
    blocks: u64,
    /// Bytes of the blocks that were asked for.
    bytes: u64,
    /// Bytes of the blocks that have arrived.
    came: u64,
    /// Whether another source was asked because this one is slow.
    hedged: bool,
    why: FetchReason,
}

impl Fetch {
    fn lacks_blocks(&self) -> bool {
        self.blocks < self.rows.len() as u64
    }
}

impl Batch {
    /// Bytes of one block of each of its rows.
    fn bytes(&self) -> u64 {
        self.rows.iter().map(|planned| planned.block_bytes).sum()
    }
}

/// A source that a batch can be requested from.
struct Open {
    /// Whether it failed for this batch before.
    failed: bool,
    /// Whether the blocks have to come from the host.
    is_far: bool,
    /// Nanoseconds until it would have answered.
    expected_ns: u64,
    /// Bytes that its host was asked for and has not sent.
    queued: u64,
    shard: ShardIndex,
    index: SourceIndex,
}

/// Why blocks are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchReason {
    /// A batch lacks them.
    Missing,
    /// Another request for the batch is slow.
    Hedge,
}

/// One in this many requests may be a hedge (a request because another one is slow), and always one.
const HEDGE_SHARE: usize = 4;

impl RestoreSession {
    /// A restore of this plan that begins at `now`.
    pub fn new(plan: RestorePlan, now: Millis) -> Self {
        let mut plan = plan;
        let mut session = Self {
            sources: Source::list(&plan.sources),
            left: std::mem::take(&mut plan.rows).into(),
            plan,
            now,
            unwritten: BTreeMap::new(),
            unwritten_bytes: 0,
            batches: BTreeMap::new(),
            wanting: BTreeSet::new(),
            fetches: BTreeMap::new(),
            last_fetch: 0,
            searches: 0,
            search_ends: None,
            request_times: RequestTimes::default(),
            faults: Vec::new(),
            actions: VecDeque::new(),
            outcome: None,
        };
        session.settle();
        session
    }

    /// Applies an event that happened at `now`.
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
                let bytes = self.unwritten.remove(&row);
                self.unwritten_bytes -= bytes.unwrap_or_default();
            }
            RestoreEvent::Holders(holders) => self.found(&holders),
            RestoreEvent::Tick => {}
        }
        self.expire();
        self.settle();
        self.check_invariants();
    }

    /// The next action for the caller; `None` until another event comes.
    pub fn poll_action(&mut self) -> Option<RestoreAction> {
        self.actions.pop_front()
    }

    /// When to call [`Self::handle`] at the latest, with a `Tick` if nothing else happened.
    pub fn next_deadline(&self) -> Option<Millis> {
        if self.outcome.is_some() {
            return None;
        }
        let may_hedge = self.may_hedge();
        let fetches = self.fetches.values().map(|fetch| {
            let stalls = self.request_times.stalls_at(fetch, &self.plan.limits);
            if may_hedge && !fetch.hedged {
                stalls.min(self.request_times.hedge_at(fetch, &self.plan.limits))
            } else {
                stalls
            }
        });
        let resting = self.sources.iter().filter_map(|s| s.rests_until(self.now));
        fetches.chain(resting).chain(self.search_ends).min()
    }

    /// How the restore ended; `None` while it runs.
    pub const fn outcome(&self) -> Option<&RestoreOutcome> {
        self.outcome.as_ref()
    }

    /// Hosts that failed, with their faults, in order of time.
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
        let start = fetch.batch;
        let source = fetch.source;
        let rows = self.batches.get(&start).map(|batch| &batch.rows);
        let planned = rows.and_then(|rows| rows.iter().find(|planned| planned.row == row));
        fetch.came += planned.map_or(0, |planned| planned.block_bytes);
        self.request_times.heard_from(fetch.host, now);
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

    /// Cancels the requests of a batch that is complete.
    fn cancel_fetches_of(&mut self, batch: u64) {
        let of_batch: Vec<FetchId> = self
            .fetches
            .iter()
            .filter(|(_, fetch)| fetch.batch == batch)
            .map(|(id, _)| *id)
            .collect();
        for id in of_batch {
            // Of the request with the last block, only the end has not come: nothing to cancel.
            if let Some(fetch) = self.end_fetch(id)
                && fetch.lacks_blocks()
            {
                self.actions.push_back(RestoreAction::Cancel(id));
            }
        }
    }

    fn done(&mut self, id: FetchId) {
        if let Some(fetch) = self.fetches.get(&id)
            && fetch.lacks_blocks()
        {
            let short = format!("{} of {} blocks", fetch.blocks, fetch.rows.len());
            return self.failed(id, Fault::Lied(short));
        }
        if let Some(fetch) = self.end_fetch(id) {
            self.wanting.insert(fetch.batch);
        }
    }

    /// Removes a request from the list, and updates the speed of its source.
    fn end_fetch(&mut self, id: FetchId) -> Option<Fetch> {
        let fetch = self.fetches.remove(&id)?;
        let took = self.now.since(fetch.begun);
        if let Some(source) = self.sources.get_mut(fetch.source.0) {
            source.ended(fetch.came, took);
        }
        if fetch.blocks > 0 {
            self.request_times.add(took);
        }
        Some(fetch)
    }

    fn failed(&mut self, id: FetchId, fault: Fault) {
        let Some(fetch) = self.fetches.remove(&id) else {
            return;
        };
        let now = self.now;
        let lied = matches!(fault, Fault::Lied(_));
        let strikes_max = self.plan.limits.strikes_max;
        if let Some(source) = self.sources.get_mut(fetch.source.0) {
            source.failed(&fault, now, strikes_max);
            self.faults.push((source.host, fault));
        }
        if let Some(batch) = self.batches.get_mut(&fetch.batch) {
            batch.failed.insert(fetch.source);
            if let ([row], true) = (&fetch.rows[..], lied) {
                batch.damaged.insert((*row, fetch.source));
            }
            self.wanting.insert(fetch.batch);
        }
    }

    /// Ends requests that stalled, and hedges those that are slow.
    fn expire(&mut self) {
        let now = self.now;
        let limits = self.plan.limits;
        if self.search_ends.is_some_and(|end| end <= now) {
            self.found(&[]);
        }
        let stalled: Vec<FetchId> = self
            .fetches
            .iter()
            .filter(|(_, fetch)| self.request_times.stalls_at(fetch, &limits) <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in stalled {
            self.actions.push_back(RestoreAction::Cancel(id));
            self.failed(id, Fault::Stalled(limits.stall_ms));
        }
        while self.may_hedge() {
            let slow = self
                .fetches
                .values_mut()
                .find(|fetch| !fetch.hedged && self.request_times.hedge_at(fetch, &limits) <= now);
            let Some(slow) = slow else { return };
            slow.hedged = true;
            let batch = slow.batch;
            let waited = now.since(slow.begun);
            if let Some(source) = self.sources.get_mut(slow.source.0) {
                source.was_slow(slow.bytes, waited);
            }
            self.ask(batch, 1);
        }
    }

    /// Whether another hedge is allowed. When everything is slow at once, this machine or the network between
    /// is the cause, and requesting everything twice would make it worse.
    fn may_hedge(&self) -> bool {
        let hedges = self
            .fetches
            .values()
            .filter(|f| f.why == FetchReason::Hedge)
            .count();
        hedges < (self.fetches.len() / HEDGE_SHARE).max(1)
    }

    /// Begins new batches while the window allows, requests again what batches lack, and ends the session
    /// when all rows are written.
    fn settle(&mut self) {
        self.begin_batches();
        for start in std::mem::take(&mut self.wanting) {
            if !self.ask(start, 0) {
                self.wanting.insert(start);
            }
            if self.outcome.is_some() {
                return;
            }
        }
        if self.left.is_empty() && self.unwritten.is_empty() {
            self.outcome = Some(RestoreOutcome::Done);
        }
    }

    fn begin_batches(&mut self) {
        let window = self.plan.limits.window_bytes;
        while let Some(start) = self.left.front().map(|first| first.row) {
            let count = self.next_batch();
            let rows = self.left.iter().take(count);
            let bytes: u64 = rows.map(|row| row.memory_bytes).sum();
            if self.unwritten_bytes + bytes > window && !self.unwritten.is_empty() {
                return;
            }
            let rows: Vec<PlannedRow> = self.left.drain(..count).collect();
            let memory = rows.iter().map(|row| (row.row, row.memory_bytes));
            self.unwritten.extend(memory);
            self.unwritten_bytes += bytes;
            self.wanting.insert(start);
            let missing = rows.iter().map(|row| (row.row, BTreeSet::new()));
            self.batches.insert(
                start,
                Batch {
                    missing: missing.collect(),
                    rows,
                    failed: BTreeSet::new(),
                    damaged: BTreeSet::new(),
                },
            );
        }
    }

    /// How many of the rows that are left are in the next batch: one, or as many as take at most half of the window, so
    /// that the next batch is requested before this one is written.
    fn next_batch(&self) -> usize {
        let limits = self.plan.limits;
        let mut blocks = 0;
        let mut memory = 0;
        let mut fits = |planned: &PlannedRow| {
            blocks += planned.block_bytes;
            memory += planned.memory_bytes;
            blocks <= limits.batch_bytes && memory <= limits.window_bytes / 2
        };
        let fitting = self.left.iter().take_while(|planned| fits(planned));
        fitting.take(limits.batch_rows).count().max(1)
    }

    /// Requests the batch from as many sources as it still needs, and from `extra` more if there are any.
    /// Returns whether as many are asked as it needs.
    fn ask(&mut self, start: u64, extra: usize) -> bool {
        let mut extra = extra;
        loop {
            let Some(batch) = self.batches.get(&start) else {
                return true;
            };
            let (lacking, coming) = self.lacking(start, batch);
            let short = lacking.saturating_sub(coming);
            if short == 0 && extra == 0 {
                return true;
            }
            let Some(source) = self.best_source(start, batch) else {
                if short > 0 && coming == 0 {
                    self.search_or_give_up_if_no_source_comes_back(start);
                }
                return short == 0;
            };
            let why = match short {
                0 => FetchReason::Hedge,
                _ => FetchReason::Missing,
            };
            if why == FetchReason::Hedge {
                extra -= 1;
            }
            self.fetch(start, source, why);
        }
    }

    /// For the row of a batch that lacks most: how many more shards it needs, and how many shards that it
    /// does not have are being fetched.
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

    /// The rows of a batch to request from a source: those that lack its shard. If it sent wrong bytes before, one
    /// that can't be had without such a source.
    fn rows_to_ask_for(&self, batch: &Batch, index: SourceIndex) -> Vec<u64> {
        let Some(source) = self.sources.get(index.0) else {
            return Vec::new();
        };
        let lacking = batch.missing.iter();
        let lacking = lacking.filter(|(_, shards)| !shards.contains(&source.shard));
        if !source.has_lied() {
            return lacking.map(|(row, _)| *row).collect();
        }
        let data = self.plan.data;
        let mut needed = lacking.filter(|(row, shards)| {
            !batch.damaged.contains(&(**row, index))
                && shards.len() + self.others(shards, |_, other| !other.has_lied()) < data
        });
        needed.next().map(|(row, _)| *row).into_iter().collect()
    }

    /// How many shards other than these can still come from sources for which `counts` is true.
    fn others(
        &self,
        shards: &BTreeSet<ShardIndex>,
        counts: impl Fn(SourceIndex, &Source) -> bool,
    ) -> usize {
        let sources = self.sources.iter().enumerate();
        let others = sources.filter(|(index, source)| {
            !source.is_given_up()
                && !shards.contains(&source.shard)
                && counts(SourceIndex(*index), source)
        });
        let others: BTreeSet<ShardIndex> = others.map(|(_, source)| source.shard).collect();
        others.len()
    }

    /// The source expected to answer first, of those whose shard the batch neither has nor awaits.
    fn best_source(&self, start: u64, batch: &Batch) -> Option<SourceIndex> {
        let busy: BTreeSet<ShardIndex> = self
            .fetches
            .values()
            .filter(|fetch| fetch.batch == start)
            .filter_map(|fetch| self.sources.get(fetch.source.0))
            .map(|source| source.shard)
            .collect();
        let best_known = self.sources.iter().filter_map(Source::ns_per_byte).min();
        let sources = self.sources.iter().enumerate();
        let open: Vec<Open> = sources
            .filter(|(_, source)| source.can_be_asked(self.now))
            .filter(|(_, source)| !busy.contains(&source.shard))
            .filter(|(index, _)| !self.rows_to_ask_for(batch, SourceIndex(*index)).is_empty())
            .map(|(index, source)| {
                let queued = self.bytes_queued(source.host);
                Open {
                    failed: batch.failed.contains(&SourceIndex(index)),
                    is_far: !self.plan.at_hand.contains(&source.shard),
                    expected_ns: source.expected_ns(queued + batch.bytes(), best_known),
                    queued,
                    shard: source.shard,
                    index: SourceIndex(index),
                }
            })
            .collect();
        let best = open.iter();
        let best = best.map(|open| (open.failed, open.is_far, open.expected_ns));
        let (failed, is_far, fastest) = best.min()?;
        let alike = fastest.saturating_add(fastest / 4);
        open.into_iter()
            .filter(|open| (open.failed, open.is_far) == (failed, is_far))
            .filter(|open| open.expected_ns <= alike)
            // Data shards are cheaper to decode.
            .min_by_key(|open| (open.queued, open.shard, open.index))
            .map(|open| open.index)
    }

    /// Whether blocks of this shard were fetched ahead.
    pub fn is_at_hand(&self, shard: ShardIndex) -> bool {
        self.plan.at_hand.contains(&shard)
    }

    /// Bytes of the blocks that were requested of a host and have not come.
    fn bytes_queued(&self, host: HostIndex) -> u64 {
        self.fetches
            .values()
            .filter(|fetch| fetch.host == host)
            .map(|fetch| fetch.bytes.saturating_sub(fetch.came))
            .sum()
    }

    fn fetch(&mut self, start: u64, index: SourceIndex, why: FetchReason) {
        let (Some(batch), Some(source)) = (self.batches.get(&start), self.sources.get(index.0))
        else {
            return;
        };
        let shard = source.shard;
        let host = source.host;
        let rows = self.rows_to_ask_for(batch, index);
        let asked = batch.rows.iter();
        let asked = asked.filter(|planned| rows.contains(&planned.row));
        let bytes = asked.map(|planned| planned.block_bytes).sum();
        self.last_fetch += 1;
        let id = FetchId(self.last_fetch);
        self.fetches.insert(
            id,
            Fetch {
                batch: start,
                source: index,
                host,
                begun: self.now,
                progress: self.now,
                rows: rows.clone(),
                blocks: 0,
                bytes,
                came: 0,
                hedged: false,
                why,
            },
        );
        self.actions.push_back(RestoreAction::Fetch {
            fetch: id,
            shard,
            host,
            rows,
        });
    }

    /// Ends the restore if the batch can't be completed, neither now nor later, nor from holders that a search
    /// finds.
    fn search_or_give_up_if_no_source_comes_back(&mut self, start: u64) {
        let Some(batch) = self.batches.get(&start) else {
            return;
        };
        let hopeless = batch.missing.iter().find(|(row, shards)| {
            let may_have = |index, _: &Source| !batch.damaged.contains(&(**row, index));
            shards.len() + self.others(shards, may_have) < self.plan.data
        });
        let lost = hopeless.map(|(row, shards)| RestoreOutcome::Lost {
            row: *row,
            good: shards.len(),
            needed: self.plan.data,
        });
        if lost.is_some() && self.search_ends.is_none() && !self.search() {
            self.outcome = lost;
            let running = std::mem::take(&mut self.fetches);
            let cancel = running.into_keys().map(RestoreAction::Cancel);
            self.actions.extend(cancel);
        }
    }

    /// Begins a search for the holders if one of them may have handed its shard over. Returns whether it did.
    fn search(&mut self) -> bool {
        let is_over = self.searches >= self.plan.limits.searches_max;
        if is_over || !self.sources.iter().any(Source::may_have_moved) {
            return false;
        }
        self.searches += 1;
        self.search_ends = Some(self.now.plus(self.plan.limits.search_ms));
        self.actions.push_back(RestoreAction::FindHolders);
        true
    }

    /// These hosts hold shards now.
    fn found(&mut self, holders: &[(ShardIndex, HostIndex)]) {
        if self.search_ends.take().is_none() {
            return;
        }
        for source in &mut self.sources {
            source.searched(holders.contains(&(source.shard, source.host)));
        }
        for (shard, host) in holders {
            let mut known = self.sources.iter();
            if !known.any(|source| (source.shard, source.host) == (*shard, *host)) {
                self.sources.push(Source::new(*shard, *host));
            }
        }
    }

    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for (start, batch) in &self.batches {
            let first = batch.rows.first().map(|planned| planned.row);
            debug_assert_eq!(Some(*start), first);
            debug_assert!(!batch.missing.is_empty(), "a complete batch is dropped");
            for shards in batch.missing.values() {
                debug_assert!(shards.len() < self.plan.data, "enough blocks are decoded");
            }
        }
        let bytes: u64 = self.unwritten.values().sum();
        debug_assert_eq!(bytes, self.unwritten_bytes);
        let fits = bytes <= self.plan.limits.window_bytes || self.unwritten.len() == 1;
        debug_assert!(fits, "rows in flight take {bytes} bytes");
    }
}
