//! The save session: which shard goes to which host, and what happens when a host fails.
//!
//! Each shard has one **attempt** at a time: one host that is to hold it. A good attempt goes through four
//! steps. The host is asked to take the shard (*open*), gets all rows in order (*send*), syncs them to disk
//! (*finish*), and in the end gets the manifest (*commit*). When an attempt fails at any step, the next
//! candidate host gets a new attempt for the same shard.
//!
//! Rows stay in memory while the budget allows, and a new attempt gets all of them from there. Once the first
//! rows are released, a lost shard has to be rebuilt from others: the shard waits until enough others are
//! whole, and only then a host is asked to take it, since no host waits that long for the first block.

mod again;
#[cfg(test)]
mod again_tests;
mod attempt;
#[cfg(test)]
mod lead_tests;
mod pace;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use codec::ShardIndex;

use super::{Fault, HostIndex, Millis};
pub(crate) use again::CROWDED_MS;
use again::Candidate;
use attempt::{Attempt, Phase};
pub use plan::{
    AttemptId, RowSize, SaveAction, SaveEvent, SaveFailure, SaveLimits, SaveOutcome, SavePlan,
    Setback,
};

/// The state of a save.
#[derive(Debug)]
pub struct SaveSession {
    plan: SavePlan,
    began: Millis,
    now: Millis,
    attempts: Vec<Attempt>,
    /// Current attempt of each shard.
    slots: Vec<Option<AttemptId>>,
    candidates: VecDeque<Candidate>,
    /// Shards without an attempt: they wait for a candidate, or for whole shards to be rebuilt from.
    unplaced: Vec<ShardIndex>,
    /// The rows in memory; the first is row number `released`.
    rows: VecDeque<KeptRow>,
    released: u64,
    /// Bytes of one shard in the rows that were released.
    released_bytes: u64,
    retained_bytes: u64,
    ended: bool,
    /// Whether the save has reached its last step, the commits.
    committing: bool,
    /// Whether the save needs to be chosen before it commits, and how far that is.
    choice: Decision,
    /// When the save is given up if it is not committing yet.
    commit_by: Option<Millis>,
    setbacks: Vec<Setback>,
    /// The last fault of each host that had one.
    troubles: BTreeMap<HostIndex, Fault>,
    /// Since when there have been too few hosts.
    lacking_since: Option<Millis>,
    /// The earliest time that a host named, of those that refused, to be asked again.
    soonest: Option<Millis>,
    actions: VecDeque<SaveAction>,
    outcome: Option<SaveOutcome>,
}

/// A row in memory.
#[derive(Clone, Copy, Debug)]
struct KeptRow {
    /// Bytes of memory that the row takes.
    memory: u64,
    /// Bytes of one shard up to the end of this row.
    end: u64,
}

/// Whether a save has to be chosen as the successor of a checkpoint before it commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// The save is not fenced.
    NotNeeded,
    /// It has to be chosen as soon as it is stored.
    Needed,
    /// It was proposed. The next save may find it chosen and finish it, so what is stored stays.
    Asked,
    /// The checkpoint was chosen as the successor.
    Made,
}

/// How many times a host is sent the manifest when the connection breaks.
const COMMITS_MAX: u32 = 3;

/// A host is given rows that lie at most this many bytes of a shard, or what the slowest host takes in
/// [`LEAD_SECONDS`], before those that the slowest has. Only rows that all hosts have serve the next save if this one
/// is killed, and a host that is further ahead ends the save no earlier.
const LEAD_BYTES_MIN: u64 = 4 << 20;

/// See [`LEAD_BYTES_MIN`]. For so long, a host may pause without another one having to wait for it.
const LEAD_SECONDS: u64 = 1;

/// Time that is reserved before the deadline for the removal of what was stored, milliseconds.
const RETRACT_MS: u64 = 1000;

impl SaveSession {
    /// Begins a session of a save: opens attempts on the first candidates. All times are milliseconds since the
    /// beginning of the save, which is earlier than `now` if the save begins again.
    pub fn new(plan: SavePlan, now: Millis) -> Self {
        let mut candidates = VecDeque::with_capacity(plan.candidates.len());
        for host in &plan.candidates {
            if candidates.iter().all(|c: &Candidate| c.host != *host) {
                candidates.push_back(if plan.silent.contains(host) {
                    Candidate::silent(*host, now)
                } else {
                    Candidate::new(*host, now)
                });
            }
        }
        let commit_by = plan.deadline.map(|end| {
            let reserve = (end.since(now) / 10).min(RETRACT_MS);
            Millis(end.0.saturating_sub(reserve))
        });
        let mut session = Self {
            began: now,
            now,
            attempts: Vec::new(),
            slots: vec![None; plan.redundancy.total()],
            candidates,
            unplaced: plan.redundancy.shards().collect(),
            rows: VecDeque::new(),
            released: 0,
            released_bytes: 0,
            retained_bytes: 0,
            ended: false,
            committing: false,
            choice: Decision::NotNeeded,
            commit_by,
            setbacks: Vec::new(),
            troubles: BTreeMap::new(),
            lacking_since: None,
            soonest: None,
            actions: VecDeque::new(),
            outcome: None,
            plan,
        };
        let placed = session.candidates.len();
        let needed = session.needed();
        if placed < needed {
            session.fail(SaveFailure::NotEnoughHosts { placed, needed });
            return session;
        }
        session.place();
        session.settle();
        session
    }

    /// Makes this a save that commits only once it is chosen as the successor of a checkpoint.
    #[must_use]
    pub const fn to_be_chosen(mut self) -> Self {
        self.choice = Decision::Needed;
        self
    }

    /// Applies an event that happened at `now`.
    pub fn handle(&mut self, now: Millis, event: SaveEvent) {
        self.now = self.now.max(now);
        if self.outcome.is_some() {
            return;
        }
        match event {
            SaveEvent::Reached(id) => self.reached(id),
            SaveEvent::Accepted(id) => self.accepted(id),
            SaveEvent::Failed(id, fault) => self.failed(id, fault),
            SaveEvent::RowReady { row, size } => self.row_ready(row, size),
            SaveEvent::Sent(id, row) => self.sent(id, row),
            SaveEvent::InputEnded => self.ended = true,
            SaveEvent::Stored(id) => self.stored(id),
            SaveEvent::Committed(id) => self.committed(id),
            SaveEvent::InputFailed => self.fail(SaveFailure::InputFailed),
            SaveEvent::Decided if self.choice == Decision::Asked => self.choice = Decision::Made,
            SaveEvent::Decided => {}
            SaveEvent::Undecided(why) => self.fail(why),
            SaveEvent::ShutOut(host) => self.ask_at_once(|candidate| candidate == host),
            SaveEvent::Cancel => self.fail(SaveFailure::Cancelled),
            SaveEvent::Tick => {}
        }
        self.expire();
        self.settle();
        self.check_invariants();
    }

    /// The next action for the caller; `None` until another event comes.
    pub fn poll_action(&mut self) -> Option<SaveAction> {
        self.actions.pop_front()
    }

    /// When to call [`Self::handle`] at the latest, with a `Tick` if nothing else happened.
    pub fn next_deadline(&self) -> Option<Millis> {
        if self.outcome.is_some() {
            return None;
        }
        let attempts = self.live().filter_map(|(_, a)| self.overdue_at(a));
        let asked = self.candidates.iter().filter(|c| self.may_ask(c));
        let places = !self.unplaced.is_empty() && self.can_open() && self.lacking_since.is_none();
        let unplaced = places.then(|| asked.map(|c| c.not_before).min()).flatten();
        let times = attempts.chain(unplaced).chain(self.gives_up_at());
        let times = times.chain(self.heard_at());
        times.chain(self.unjudged_until()).min()
    }

    /// Whether a host is to be asked later.
    pub fn waits_for(&self, host: HostIndex) -> bool {
        let mut asked = self.candidates.iter();
        asked.any(|candidate| candidate.host == host && candidate.not_before > self.now)
    }

    /// How the save ended; `None` while it runs.
    pub const fn outcome(&self) -> Option<&SaveOutcome> {
        self.outcome.as_ref()
    }

    /// Bytes of memory that the retained rows take.
    pub const fn retained_bytes(&self) -> u64 {
        self.retained_bytes
    }

    fn live(&self) -> impl Iterator<Item = (AttemptId, &Attempt)> {
        self.slots
            .iter()
            .flatten()
            .filter_map(|id| Some((*id, self.attempts.get(id.0 as usize)?)))
    }

    /// The attempt, unless its shard has a newer one or none.
    fn current(&mut self, id: AttemptId) -> Option<&mut Attempt> {
        let attempt = self.attempts.get_mut(id.0 as usize)?;
        (self.slots.get(attempt.shard.at()) == Some(&Some(id))).then_some(attempt)
    }

    /// Makes an attempt the current one of its shard.
    fn set_slot(&mut self, shard: ShardIndex, attempt: Option<AttemptId>) {
        if let Some(slot) = self.slots.get_mut(shard.at()) {
            *slot = attempt;
        }
    }

    fn rows_ready(&self) -> u64 {
        self.released + self.rows.len() as u64
    }

    /// Bytes of one shard in all rows up to now.
    fn ready_bytes(&self) -> u64 {
        self.offset(self.rows_ready())
    }

    /// Bytes of one shard in the rows before this one; in those that were released, if it is one of them.
    fn offset(&self, row: u64) -> u64 {
        let kept = row.saturating_sub(self.released);
        let last = usize::try_from(kept).unwrap_or(usize::MAX).checked_sub(1);
        let last = last.and_then(|at| self.rows.get(at));
        last.map_or(self.released_bytes, |row| row.end)
    }

    /// Bytes of one shard in those of these rows that are in memory.
    fn bytes_of(&self, rows: std::ops::Range<u64>) -> u64 {
        self.offset(rows.end)
            .saturating_sub(self.offset(rows.start))
    }

    /// When the save ends for want of time.
    const fn gives_up_at(&self) -> Option<Millis> {
        if self.committing {
            self.plan.deadline
        } else {
            self.commit_by
        }
    }

    /// Whether a new attempt could be sent all rows, or be rebuilt at once.
    fn can_open(&self) -> bool {
        let whole = self.live().filter(|(_, a)| a.phase.is_whole()).count();
        self.released == 0 || (self.ended && whole >= self.plan.redundancy.data())
    }

    /// Gives shards without an attempt to the next candidates that may be asked now.
    fn place(&mut self) {
        if !self.can_open() || self.lacking_since.is_some() {
            return;
        }
        let mut unplaced = std::mem::take(&mut self.unplaced).into_iter();
        while let Some(at) = self.next_candidate() {
            let Some(shard) = unplaced.next() else { break };
            if let Some(candidate) = self.candidates.remove(at) {
                self.open(shard, candidate);
            }
        }
        self.unplaced = unplaced.collect();
    }

    /// Index of the first candidate that may be asked now.
    fn next_candidate(&self) -> Option<usize> {
        let may_ask = |c: &Candidate| c.not_before <= self.now && self.may_ask(c);
        self.candidates.iter().position(may_ask)
    }

    fn open(&mut self, shard: ShardIndex, candidate: Candidate) {
        let id = AttemptId(u32::try_from(self.attempts.len()).unwrap_or(u32::MAX));
        let mut attempt = Attempt::new(shard, candidate.host, self.now);
        attempt.retries = candidate.retries;
        attempt.was_silent = candidate.was_silent;
        attempt.late = self.released > 0;
        self.attempts.push(attempt);
        self.set_slot(shard, Some(id));
        self.actions.push_back(SaveAction::Open {
            attempt: id,
            shard,
            host: candidate.host,
        });
    }

    /// The host of an attempt is connected: if it was silent before, it now gets the time that any other
    /// gets.
    fn reached(&mut self, id: AttemptId) {
        let now = self.now;
        if let Some(attempt) = self.current(id)
            && attempt.phase == Phase::Opening
            && std::mem::take(&mut attempt.was_silent)
        {
            attempt.since = now;
        }
    }

    fn accepted(&mut self, id: AttemptId) {
        let now = self.now;
        let Some(attempt) = self.current(id) else {
            return;
        };
        if attempt.phase != Phase::Opening {
            return;
        }
        attempt.since = now;
        attempt.phase = if attempt.late {
            Phase::Late
        } else {
            Phase::Sending
        };
    }

    /// Hands all attempts the rows that they have not been given yet, as far as they may be before the slowest.
    fn give_rows(&mut self) {
        let until = self.may_be_given();
        for id in self.in_phase(Phase::Sending) {
            self.give(id, until);
            self.finish_if_sent(id);
        }
    }

    fn give(&mut self, id: AttemptId, until: u64) {
        let now = self.now;
        let Some(attempt) = self.current(id) else {
            return;
        };
        if attempt.given >= until {
            return;
        }
        if attempt.sent == attempt.given {
            // Until now the host waited for a row, not a row for the host.
            attempt.since = now;
        }
        let given = std::mem::replace(&mut attempt.given, until);
        self.actions
            .extend((given..until).map(|row| SaveAction::Send(id, row)));
    }

    /// The first row that no host may be given yet.
    fn may_be_given(&self) -> u64 {
        let sending = self.live().filter(|(_, a)| a.phase == Phase::Sending);
        let Some((_, slowest)) = sending.min_by_key(|(_, attempt)| attempt.sent) else {
            return self.released;
        };
        let has = self.offset(slowest.sent);
        let seconds = (self.now.since(self.began) / 1000).max(1);
        let lead = (has / seconds)
            .saturating_mul(LEAD_SECONDS)
            .max(LEAD_BYTES_MIN);
        let within = self
            .rows
            .partition_point(|row| row.end <= has.saturating_add(lead));
        let until = self.released + within as u64;
        // A row may be larger than this.
        until.max(slowest.sent + 1).min(self.rows_ready())
    }

    fn finish_if_sent(&mut self, id: AttemptId) {
        let now = self.now;
        let ready = self.rows_ready();
        let ended = self.ended;
        let Some(attempt) = self.current(id) else {
            return;
        };
        if ended && attempt.phase == Phase::Sending && attempt.sent == ready {
            attempt.phase = Phase::Finishing;
            attempt.since = now;
            self.actions.push_back(SaveAction::Finish(id));
        }
    }

    fn row_ready(&mut self, row: u64, size: RowSize) {
        debug_assert_eq!(row, self.rows_ready(), "rows come in order");
        let end = self.ready_bytes() + size.block;
        self.retained_bytes += size.memory;
        let memory = size.memory;
        self.rows.push_back(KeptRow { memory, end });
    }

    fn sent(&mut self, id: AttemptId, row: u64) {
        let now = self.now;
        let Some(attempt) = self.current(id) else {
            return;
        };
        let from = attempt.sent;
        let end = attempt.given.min(row + 1);
        // A rebuild reports rows of its own, which do not count here.
        if attempt.phase != Phase::Sending || end <= from {
            return;
        }
        let bytes = self.bytes_of(from..end);
        if let Some(attempt) = self.current(id) {
            attempt.taken(end, bytes, now);
        }
    }

    fn stored(&mut self, id: AttemptId) {
        let Some(attempt) = self.current(id) else {
            return;
        };
        if matches!(attempt.phase, Phase::Finishing | Phase::Rebuilding) {
            attempt.phase = Phase::Stored;
        }
    }

    fn committed(&mut self, id: AttemptId) {
        let Some(attempt) = self.current(id) else {
            return;
        };
        if attempt.phase == Phase::Committing {
            attempt.phase = Phase::Committed;
        }
    }

    fn failed(&mut self, id: AttemptId, fault: Fault) {
        let now = self.now;
        let Some(attempt) = self.current(id) else {
            return;
        };
        let shard = attempt.shard;
        let host = attempt.host;
        let phase = attempt.phase;
        let retries = attempt.retries;
        if phase == Phase::Committing
            && attempt.commits < COMMITS_MAX
            && let Some(wait) = rest_before_commit(&fault, attempt.commits.saturating_sub(1))
        {
            attempt.phase = Phase::Stored;
            attempt.commit_at = now.plus(wait);
            return;
        }
        attempt.phase = Phase::Failed;
        if fault.is_version_taken() {
            self.note(host, fault, None);
            return self.fail(SaveFailure::VersionTaken);
        }
        self.actions.push_back(SaveAction::Abort(id));
        let is_starved = fault == Fault::Starved;
        if phase.may_hold_shard() && !is_starved {
            self.actions.push_back(SaveAction::Retract(host));
        }
        let again = self.again((host, phase, retries), &fault);
        self.set_slot(shard, None);
        if fault.is_forbidden() {
            self.ask_at_once(|_| true);
        }
        let will_ask = again.filter(|again| self.may_ask(again));
        self.note(host, fault, will_ask.map(|again| again.not_before));
        match again {
            Some(again) if is_starved => self.candidates.push_front(again),
            Some(again) => self.candidates.push_back(again),
            None => {}
        }
        self.unplaced.push(shard);
        self.place();
    }

    /// Ends attempts that took too long, and asks candidates whose time has come.
    fn expire(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        if self.gives_up_at().is_some_and(|end| end <= self.now) {
            return self.out_of_time();
        }
        let now = self.now;
        let overdue: Vec<(AttemptId, Fault)> = self
            .live()
            .filter(|(_, attempt)| attempt.phase != Phase::Stored)
            .filter(|(_, attempt)| self.overdue_at(attempt).is_some_and(|end| end <= now))
            .map(|(id, attempt)| (id, attempt.overdue(now)))
            .collect();
        for (id, fault) in overdue {
            self.failed(id, fault);
        }
        if let Some((id, fault)) = self.too_slow() {
            self.failed(id, fault);
        }
        self.place();
    }

    /// The deadline ends the save, for want of hosts or of speed. A host that is asked for the first time and
    /// has not accepted yet is slow. A host that did not answer before the save is missing.
    fn out_of_time(&mut self) {
        let placed = self.accepted_count();
        let needed = self.needed();
        let plan = &self.plan;
        let answering = plan.candidates.len().saturating_sub(plan.silent.len());
        let are_missing = !self.troubles.is_empty() || answering < needed;
        let is_short = !self.committing && placed < needed && are_missing;
        self.fail(if is_short {
            SaveFailure::NotEnoughHosts { placed, needed }
        } else {
            SaveFailure::Deadline
        });
    }

    fn overdue_at(&self, attempt: &Attempt) -> Option<Millis> {
        attempt.deadline(&self.plan.limits, self.open_ms(attempt))
    }

    /// Decides what follows from the present state: end, give and release rows, open attempts, rebuild, or commit.
    fn settle(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        self.give_rows();
        let redundancy = self.plan.redundancy;
        let needed = self.needed();
        let waiting = self.unplaced.len().min(self.candidates.len());
        if self.live().count() + waiting < needed {
            return self.lacks_hosts(needed);
        }
        // The other shards can only be rebuilt from these, and a rebuild needs `data` of them.
        let independent = self.independent();
        let coming = independent + if self.released == 0 { waiting } else { 0 };
        if coming < redundancy.data() {
            return self.fail(SaveFailure::NotEnoughHosts {
                placed: coming,
                needed: redundancy.data(),
            });
        }
        self.release_rows();
        self.place();
        self.start_rebuilds();
        self.commit_when_stored();
        self.end_when_committed();
    }

    /// How many attempts need no rebuild from other shards.
    fn independent(&self) -> usize {
        self.live().filter(|(_, a)| a.needs_no_others()).count()
    }

    fn end_when_committed(&mut self) {
        let all = self.live().all(|(_, a)| a.phase == Phase::Committed);
        if self.outcome.is_some() || !all || !self.is_placed() {
            return;
        }
        let holders = self.live().map(|(_, a)| (a.shard, a.host)).collect();
        self.release_all();
        self.outcome = Some(SaveOutcome::Committed { holders });
    }

    fn in_phase(&self, phase: Phase) -> Vec<AttemptId> {
        self.live()
            .filter(|(_, attempt)| attempt.phase == phase)
            .map(|(id, _)| id)
            .collect()
    }

    /// Releases the oldest rows that every attempt has, while more bytes are retained than the limit. Keeps
    /// all rows while too few shards have a host for the others to be rebuilt from, and while it is not yet
    /// clear whether a host is so slow that it has to be replaced.
    fn release_rows(&mut self) {
        let too_few = self.independent() < self.plan.redundancy.data();
        if too_few || self.unjudged_until().is_some() {
            return;
        }
        let needed = self
            .live()
            .filter(|(_, attempt)| !attempt.late)
            .filter_map(|(_, attempt)| match attempt.phase {
                Phase::Opening => Some(0),
                Phase::Sending => Some(attempt.sent),
                _ => None,
            })
            .min()
            .unwrap_or(u64::MAX);
        while self.released < needed && self.retained_bytes > self.plan.limits.retain_bytes {
            let Some(row) = self.rows.pop_front() else {
                return;
            };
            self.retained_bytes -= row.memory;
            self.released_bytes = row.end;
            self.actions.push_back(SaveAction::Release(self.released));
            self.released += 1;
        }
    }

    fn release_all(&mut self) {
        let first = self.released;
        let rows = (first..self.rows_ready()).map(SaveAction::Release);
        self.actions.extend(rows);
        self.released_bytes = self.ready_bytes();
        self.released += self.rows.len() as u64;
        self.rows.clear();
        self.retained_bytes = 0;
    }

    /// Starts the rebuild of late attempts once enough shards are whole.
    fn start_rebuilds(&mut self) {
        let sources: Vec<_> = self
            .live()
            .filter(|(_, attempt)| attempt.phase.is_whole())
            .map(|(_, attempt)| (attempt.shard, attempt.host))
            .collect();
        if sources.len() < self.plan.redundancy.data() {
            return;
        }
        for id in self.in_phase(Phase::Late) {
            if let Some(attempt) = self.current(id) {
                attempt.phase = Phase::Rebuilding;
            }
            self.actions.push_back(SaveAction::Rebuild {
                attempt: id,
                sources: sources.clone(),
            });
        }
    }

    /// Sends the manifest to all hosts once all shards are whole; before that, to none.
    fn commit_when_stored(&mut self) {
        let all_whole = self.live().all(|(_, attempt)| attempt.phase.is_whole());
        if !self.ended || !all_whole || !self.is_placed() {
            return;
        }
        self.committing = true;
        match self.choice {
            Decision::NotNeeded | Decision::Made => {}
            Decision::Needed => {
                self.choice = Decision::Asked;
                return self.actions.push_back(SaveAction::Decide);
            }
            Decision::Asked => return,
        }
        let now = self.now;
        for id in self.in_phase(Phase::Stored) {
            if let Some(attempt) = self.current(id)
                && attempt.commit_at <= now
            {
                attempt.phase = Phase::Committing;
                attempt.since = now;
                attempt.commits += 1;
                self.actions.push_back(SaveAction::Commit(id));
            }
        }
    }

    /// Whether what is stored stays although the save failed: it may be chosen already, and then the next
    /// save finishes it.
    pub fn is_half_done(&self) -> bool {
        let is_lost = SaveOutcome::Failed(SaveFailure::AnotherSuccessor);
        matches!(self.choice, Decision::Asked | Decision::Made)
            && matches!(self.outcome, Some(SaveOutcome::Failed(_)))
            && self.outcome != Some(is_lost)
    }

    /// Ends the save: nothing of it stays, unless it may have been chosen.
    fn fail(&mut self, failure: SaveFailure) {
        self.outcome = Some(SaveOutcome::Failed(failure));
        let stays = self.is_half_done();
        let live: Vec<(AttemptId, HostIndex, Phase)> = self
            .live()
            .map(|(id, attempt)| (id, attempt.host, attempt.phase))
            .collect();
        for (id, host, phase) in live {
            self.actions.push_back(SaveAction::Abort(id));
            if phase.may_hold_shard() && !stays {
                self.actions.push_back(SaveAction::Retract(host));
            }
        }
        self.release_all();
    }

    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let memory: u64 = self.rows.iter().map(|row| row.memory).sum();
        debug_assert_eq!(memory, self.retained_bytes);
        let mut hosts: Vec<HostIndex> = self.live().map(|(_, attempt)| attempt.host).collect();
        hosts.sort_unstable();
        let count = hosts.len();
        hosts.dedup();
        debug_assert_eq!(hosts.len(), count, "two shards on one host");
        for (_, attempt) in self.live() {
            let waits = self.candidates.iter().any(|c| c.host == attempt.host);
            debug_assert!(!waits, "a host in use is a candidate");
            debug_assert!(attempt.sent <= attempt.given && attempt.given <= self.rows_ready());
            let sends = attempt.phase == Phase::Sending && self.outcome.is_none();
            debug_assert!(!sends || attempt.given >= self.released, "a row is missing");
        }
    }
}

/// How long to wait before the same host is sent the same manifest again, milliseconds; `None` when another
/// host has to take over.
fn rest_before_commit(fault: &Fault, tries: u32) -> Option<u64> {
    match fault {
        Fault::Gone(_) => Some(again::REST_MS << tries.min(6)),
        // A silent or slow host has cost enough time already.
        Fault::Silent(_)
        | Fault::Slow { .. }
        | Fault::Stalled(_)
        | Fault::Lied(_)
        | Fault::Starved => None,
        Fault::Refused { .. } => fault.retry_after_ms(),
    }
}
