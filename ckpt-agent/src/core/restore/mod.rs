//! The restore session: which blocks are read from which hosts, and when others are asked instead.
//!
//! Rows are fetched in **batches** of a few, within a window. Each batch is asked from `data`
//! different shards, those whose hosts are expected to answer first. When one fails, lies or is
//! slow, another shard is asked for what the batch still lacks. Wrong bytes are never used: the
//! shell checks every block against the signed table before it tells of it.

mod pace;
mod plan;
mod source;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use codec::ShardIndex;

use super::{Fault, HostIndex, Millis};
use pace::Pace;
pub use plan::{FetchId, RestoreAction, RestoreEvent, RestoreLimits, RestoreOutcome, RestorePlan};
use source::{Source, SourceIndex};

/// A restore.
#[derive(Debug)]
pub struct RestoreSession {
    plan: RestorePlan,
    now: Millis,
    sources: Vec<Source>,
    /// Rows that no batch asked for.
    left: VecDeque<Range<u64>>,
    /// Rows asked for and not yet written.
    unwritten: BTreeSet<u64>,
    batches: BTreeMap<u64, Batch>,
    /// Batches for which somebody may have to be asked.
    wanting: BTreeSet<u64>,
    fetches: BTreeMap<FetchId, Fetch>,
    last_fetch: u64,
    pace: Pace,
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
    host: HostIndex,
    begun: Millis,
    progress: Millis,
    /// Rows that were asked for.
    rows: u64,
    /// Blocks that came.
    blocks: u64,
    /// Whether another source was asked because this one was slow.
    hedged: bool,
    /// Whether it was begun because another one was slow.
    is_hedge: bool,
}

/// Of all requests, one in this many may be a hedge; but one always.
const HEDGE_SHARE: usize = 4;

impl RestoreSession {
    /// Begins a restore.
    pub fn new(plan: RestorePlan, now: Millis) -> Self {
        let runs = plan.rows.iter().filter(|run| !run.is_empty());
        let mut session = Self {
            sources: Source::list(&plan.sources),
            left: runs.cloned().collect(),
            plan,
            now,
            unwritten: BTreeSet::new(),
            batches: BTreeMap::new(),
            wanting: BTreeSet::new(),
            fetches: BTreeMap::new(),
            last_fetch: 0,
            pace: Pace::default(),
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
        let may_hedge = self.may_hedge();
        let fetches = self.fetches.values().map(|fetch| {
            let stalls = self.pace.stalls_at(fetch, &self.plan.limits);
            if may_hedge && !fetch.hedged {
                stalls.min(self.pace.hedge_at(fetch, &self.plan.limits))
            } else {
                stalls
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
        self.pace.heard_from(fetch.host, now);
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
            if let Some(fetch) = self.end_fetch(id)
                && fetch.blocks < fetch.rows
            {
                self.actions.push_back(RestoreAction::Cancel(id));
            }
        }
    }

    fn done(&mut self, id: FetchId) {
        if let Some(fetch) = self.fetches.get(&id)
            && fetch.blocks < fetch.rows
        {
            let short = format!("{} of {} blocks", fetch.blocks, fetch.rows);
            return self.failed(id, Fault::Lied(short));
        }
        if let Some(fetch) = self.end_fetch(id) {
            self.wanting.insert(fetch.batch);
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
            self.pace.took(took);
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
            self.wanting.insert(fetch.batch);
        }
    }

    /// Gives up requests that stalled, and hedges those that are slow.
    fn expire(&mut self) {
        let (now, limits) = (self.now, self.plan.limits);
        let stalled: Vec<FetchId> = self
            .fetches
            .iter()
            .filter(|(_, fetch)| self.pace.stalls_at(fetch, &limits) <= now)
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
                .find(|fetch| !fetch.hedged && self.pace.hedge_at(fetch, &limits) <= now);
            let Some(slow) = slow else { return };
            slow.hedged = true;
            let (batch, waited) = (slow.batch, now.since(slow.begun));
            if let Some(source) = self.sources.get_mut(slow.source.0) {
                source.was_slow(slow.rows, waited);
            }
            self.ask(batch, 1);
        }
    }

    /// Whether there are few enough hedges. When everything is slow at once, the fault is ours or
    /// that of the network between, and to ask for everything twice would make it worse.
    fn may_hedge(&self) -> bool {
        let hedges = self.fetches.values().filter(|f| f.is_hedge).count();
        hedges < (self.fetches.len() / HEDGE_SHARE).max(1)
    }

    /// Begins new batches while the window allows, asks again for batches that lack somebody to
    /// ask, and sees whether it is over.
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
        let limits = self.plan.limits;
        while let Some(next) = self.left.front_mut() {
            let rows = next.start..next.end.min(next.start + limits.batch_rows.max(1));
            let window = self.unwritten.len() as u64 + (rows.end - rows.start);
            if window > limits.window_rows && !self.unwritten.is_empty() {
                return;
            }
            next.start = rows.end;
            if next.is_empty() {
                self.left.pop_front();
            }
            self.unwritten.extend(rows.clone());
            self.wanting.insert(rows.start);
            self.batches.insert(
                rows.start,
                Batch {
                    missing: rows.clone().map(|row| (row, BTreeSet::new())).collect(),
                    rows,
                    failed: BTreeSet::new(),
                },
            );
        }
    }

    /// Asks as many sources as the batch still needs, and `extra` more when there are any. Returns
    /// whether as many are asked as it needs.
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
                    self.give_up_if_nobody_comes_back(start);
                }
                return short == 0;
            };
            let is_hedge = short == 0;
            if is_hedge {
                extra -= 1;
            }
            self.fetch(start, source, is_hedge);
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
        let best_known = self.sources.iter().filter_map(Source::us_per_row).min();
        let open: Vec<(bool, u64, ShardIndex, SourceIndex)> = self
            .sources
            .iter()
            .enumerate()
            .filter(|(_, source)| source.can_be_asked(self.now))
            .filter(|(_, source)| !busy.contains(&source.shard) && !everywhere(&source.shard))
            .map(|(index, source)| {
                let failed = batch.failed.contains(&SourceIndex(index));
                let expected = source.expected_us(self.rows_queued(source.host), best_known);
                (failed, expected, source.shard, SourceIndex(index))
            })
            .collect();
        let (failed, fastest) = open.iter().map(|(f, us, ..)| (*f, *us)).min()?;
        // Data shards are cheaper to decode, which decides when speeds are alike.
        let alike = fastest.saturating_add(fastest / 4);
        open.into_iter()
            .filter(|(also_failed, us, ..)| *also_failed == failed && *us <= alike)
            .map(|(_, _, shard, index)| (shard, index))
            .min()
            .map(|(_, index)| index)
    }

    /// Rows that were asked of a host and have not come.
    fn rows_queued(&self, host: HostIndex) -> u64 {
        self.fetches
            .values()
            .filter(|fetch| fetch.host == host)
            .map(|fetch| fetch.rows.saturating_sub(fetch.blocks))
            .sum()
    }

    fn fetch(&mut self, start: u64, index: SourceIndex, is_hedge: bool) {
        let (Some(batch), Some(source)) = (self.batches.get_mut(&start), self.sources.get(index.0))
        else {
            return;
        };
        let (shard, host) = (source.shard, source.host);
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
            host,
            rows: first..last + 1,
        });
        self.fetches.insert(
            id,
            Fetch {
                batch: start,
                source: index,
                host,
                begun: self.now,
                progress: self.now,
                rows: last + 1 - first,
                blocks: 0,
                hedged: false,
                is_hedge,
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
