//! The save session: which shard goes to which host, and what happens when one fails.
//!
//! Each shard has one **attempt** at a time: a host that is to hold it. An attempt is opened, sent
//! all rows in order, finished (synced by the host), and in the end told to commit. When it fails at
//! any point, the next candidate host gets a new attempt. Rows stay in memory while the budget
//! allows; a new attempt that can still have all of them is sent them again, one that can't is
//! **late**: it waits until enough others are stored and is then rebuilt from them.

mod attempt;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use codec::{Redundancy, ShardIndex};

use super::{Fault, HostIndex, Millis};
use attempt::{Attempt, Phase};

/// Names one try to put one shard on one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub u32);

/// Times and sizes that bound a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveLimits {
    /// For a host to accept a shard, connecting included.
    pub open_ms: u64,
    /// Without one more row taken by a host that has rows waiting.
    pub stall_ms: u64,
    /// For a host to sync a whole shard.
    pub sync_ms: u64,
    /// For a host to sync a manifest.
    pub commit_ms: u64,
    /// Rows that everybody has are kept for a possible successor up to this many bytes.
    pub retain_bytes: u64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavePlan {
    /// How many shards.
    pub redundancy: Redundancy,
    /// Different hosts in order of preference; the first `data + parity` are tried first.
    pub candidates: Vec<HostIndex>,
    /// Fewest parity shards with which to commit when there are no more candidates.
    pub min_parity: u8,
    /// When it has to be done.
    pub deadline: Option<Millis>,
    /// Bounds.
    pub limits: SaveLimits,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveEvent {
    /// The host of an attempt takes blocks.
    Accepted(AttemptId),
    /// An attempt failed: refused, lost, wrong root, refused to commit.
    Failed(AttemptId, Fault),
    /// The next row is in memory.
    RowReady {
        /// The row; rows come in order.
        row: u64,
        /// Its bytes.
        bytes: u64,
    },
    /// The transport took a row's block for an attempt; rows go in order.
    Sent(AttemptId, u64),
    /// There are no more rows; the manifest is known.
    InputEnded,
    /// The image can't be read.
    InputFailed,
    /// The host of an attempt has synced the whole shard and its root is right.
    Stored(AttemptId),
    /// The host of an attempt has synced the manifest.
    Committed(AttemptId),
    /// The user wants it to end.
    Cancel,
    /// Time has passed.
    Tick,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveAction {
    /// Connect and offer the shard.
    Open {
        /// The attempt.
        attempt: AttemptId,
        /// Its shard.
        shard: ShardIndex,
        /// Its host.
        host: HostIndex,
    },
    /// Send an attempt its block of a row.
    Send(AttemptId, u64),
    /// Tell the host that all rows were sent, and wait for its root.
    Finish(AttemptId),
    /// Read all rows from `sources` (any `data` of them do), compute this attempt's shard, send
    /// and finish it.
    Rebuild {
        /// The attempt; its host has accepted.
        attempt: AttemptId,
        /// Shards that are whole, and who has them.
        sources: Vec<(ShardIndex, HostIndex)>,
    },
    /// Send the manifest.
    Commit(AttemptId),
    /// Give an attempt up.
    Abort(AttemptId),
    /// Have the host remove what it has of the checkpoint.
    Retract(HostIndex),
    /// Nobody needs this row any more.
    Release(u64),
}

/// How a save ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveOutcome {
    /// The checkpoint is on stable storage and visible.
    Committed {
        /// Who holds which shard; fewer than all only when the plan allows it.
        holders: Vec<(ShardIndex, HostIndex)>,
    },
    /// It is not, and what was stored is being removed.
    Failed(SaveFailure),
}

/// Why a save failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveFailure {
    /// Too few hosts do their part.
    NotEnoughHosts {
        /// Shards that had a host at the end.
        placed: usize,
        /// Shards that are needed.
        needed: usize,
    },
    /// Another checkpoint took the version.
    VersionTaken,
    /// The image could not be read.
    InputFailed,
    /// The user ended it.
    Cancelled,
    /// The time was over.
    Deadline,
}

/// A save.
#[derive(Debug)]
pub struct SaveSession {
    plan: SavePlan,
    now: Millis,
    attempts: Vec<Attempt>,
    /// Current attempt of each shard; `None` when no host is left for it.
    slots: Vec<Option<AttemptId>>,
    candidates: VecDeque<Candidate>,
    /// Shards that wait for a candidate who asked for some time.
    waiting: Vec<ShardIndex>,
    /// Bytes of the rows in memory, the first of which is `released`.
    rows: VecDeque<u64>,
    released: u64,
    retained_bytes: u64,
    ended: bool,
    committing: bool,
    faults: Vec<(HostIndex, Fault)>,
    actions: VecDeque<SaveAction>,
    outcome: Option<SaveOutcome>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    host: HostIndex,
    not_before: Millis,
    retries: u32,
}

/// How often a host that asks for some time is asked again.
const RETRIES_MAX: u32 = 3;

impl SaveSession {
    /// Begins a save.
    pub fn new(plan: SavePlan, now: Millis) -> Self {
        let candidate = |host: &HostIndex| Candidate {
            host: *host,
            not_before: now,
            retries: 0,
        };
        let mut session = Self {
            now,
            attempts: Vec::new(),
            slots: vec![None; plan.redundancy.total()],
            candidates: plan.candidates.iter().map(candidate).collect(),
            waiting: Vec::new(),
            rows: VecDeque::new(),
            released: 0,
            retained_bytes: 0,
            ended: false,
            committing: false,
            faults: Vec::new(),
            actions: VecDeque::new(),
            outcome: None,
            plan,
        };
        for shard in session.plan.redundancy.shards() {
            session.assign(shard);
        }
        session.settle();
        session
    }

    /// Takes note of what happened at `now`.
    pub fn handle(&mut self, now: Millis, event: SaveEvent) {
        self.now = self.now.max(now);
        if self.outcome.is_some() {
            return;
        }
        match event {
            SaveEvent::Accepted(id) => self.accepted(id),
            SaveEvent::Failed(id, fault) => self.failed(id, fault),
            SaveEvent::RowReady { row, bytes } => self.row_ready(row, bytes),
            SaveEvent::Sent(id, row) => self.sent(id, row),
            SaveEvent::InputEnded => self.input_ended(),
            SaveEvent::Stored(id) => self.stored(id),
            SaveEvent::Committed(id) => self.committed(id),
            SaveEvent::InputFailed => self.fail(SaveFailure::InputFailed),
            SaveEvent::Cancel => self.fail(SaveFailure::Cancelled),
            SaveEvent::Tick => {}
        }
        self.expire();
        self.settle();
        self.check_invariants();
    }

    /// What to do next, until there is nothing.
    pub fn poll_action(&mut self) -> Option<SaveAction> {
        self.actions.pop_front()
    }

    /// When to call [`Self::handle`] at the latest.
    pub fn next_deadline(&self) -> Option<Millis> {
        if self.outcome.is_some() {
            return None;
        }
        let attempts = self
            .live()
            .filter_map(|(_, a)| a.deadline(&self.plan.limits));
        let waiting = (!self.waiting.is_empty())
            .then(|| self.candidates.iter().map(|c| c.not_before).min())
            .flatten();
        attempts.chain(waiting).chain(self.plan.deadline).min()
    }

    /// How it ended.
    pub const fn outcome(&self) -> Option<&SaveOutcome> {
        self.outcome.as_ref()
    }

    /// Hosts that failed, and how, in the order of failing.
    pub fn faults(&self) -> &[(HostIndex, Fault)] {
        &self.faults
    }

    /// Bytes of rows that are kept in memory.
    pub const fn retained_bytes(&self) -> u64 {
        self.retained_bytes
    }

    fn live(&self) -> impl Iterator<Item = (AttemptId, &Attempt)> {
        self.slots
            .iter()
            .flatten()
            .filter_map(|id| Some((*id, self.attempts.get(id.0 as usize)?)))
    }

    /// The attempt, when it is still the current one of its shard.
    fn current(&mut self, id: AttemptId) -> Option<&mut Attempt> {
        let attempt = self.attempts.get_mut(id.0 as usize)?;
        (self.slots.get(attempt.shard.at()) == Some(&Some(id))).then_some(attempt)
    }

    fn rows_ready(&self) -> u64 {
        self.released + self.rows.len() as u64
    }

    /// Gives the shard to the next candidate, or has it wait for one that asked for time.
    fn assign(&mut self, shard: ShardIndex) {
        let now = self.now;
        let next = self.candidates.iter().position(|c| c.not_before <= now);
        let Some(candidate) = next.and_then(|at| self.candidates.remove(at)) else {
            if !self.candidates.is_empty() {
                self.waiting.push(shard);
            }
            return;
        };
        let id = AttemptId(self.attempts.len() as u32);
        let mut attempt = Attempt::new(shard, candidate.host, now);
        attempt.retries = candidate.retries;
        attempt.late = self.released > 0;
        self.attempts.push(attempt);
        self.slots[shard.at()] = Some(id);
        self.actions.push_back(SaveAction::Open {
            attempt: id,
            shard,
            host: candidate.host,
        });
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
        self.send_ready(id);
    }

    /// Hands an attempt all rows that it has not been given yet.
    fn send_ready(&mut self, id: AttemptId) {
        let ready = self.rows_ready();
        let Some(attempt) = self.current(id) else {
            return;
        };
        if attempt.phase != Phase::Sending {
            return;
        }
        let given = std::mem::replace(&mut attempt.given, ready);
        self.actions
            .extend((given..ready).map(|row| SaveAction::Send(id, row)));
        self.finish_if_sent(id);
    }

    fn finish_if_sent(&mut self, id: AttemptId) {
        let (now, ready, ended) = (self.now, self.rows_ready(), self.ended);
        let Some(attempt) = self.current(id) else {
            return;
        };
        if ended && attempt.phase == Phase::Sending && attempt.sent == ready {
            attempt.phase = Phase::Finishing;
            attempt.since = now;
            self.actions.push_back(SaveAction::Finish(id));
        }
    }

    fn row_ready(&mut self, row: u64, bytes: u64) {
        debug_assert_eq!(row, self.rows_ready(), "rows come in order");
        let now = self.now;
        self.rows.push_back(bytes);
        self.retained_bytes += bytes;
        let sending: Vec<AttemptId> = self
            .live()
            .filter(|(_, attempt)| attempt.phase == Phase::Sending)
            .map(|(id, _)| id)
            .collect();
        for id in sending {
            if let Some(attempt) = self.current(id)
                && attempt.sent == attempt.given
            {
                // It was waiting for us until now.
                attempt.since = now;
            }
            self.send_ready(id);
        }
    }

    fn sent(&mut self, id: AttemptId, row: u64) {
        let now = self.now;
        let Some(attempt) = self.current(id) else {
            return;
        };
        if attempt.phase != Phase::Sending {
            return;
        }
        attempt.sent = attempt.sent.max(row + 1);
        attempt.since = now;
        self.finish_if_sent(id);
    }

    fn input_ended(&mut self) {
        self.ended = true;
        let live: Vec<AttemptId> = self.live().map(|(id, _)| id).collect();
        for id in live {
            self.finish_if_sent(id);
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
        let Some(attempt) = self.current(id) else {
            return;
        };
        let (shard, host, retries) = (attempt.shard, attempt.host, attempt.retries);
        let may_hold = attempt.phase.may_hold_shard();
        attempt.phase = Phase::Failed;
        if fault.is_version_taken() {
            self.faults.push((host, fault));
            return self.fail(SaveFailure::VersionTaken);
        }
        self.slots[shard.at()] = None;
        if let Some(wait) = fault.retry_after_ms().filter(|_| retries < RETRIES_MAX) {
            self.candidates.push_back(Candidate {
                host,
                not_before: self.now.plus(wait),
                retries: retries + 1,
            });
        } else if may_hold {
            // It may come back with a shard that nobody counts on.
            self.actions.push_back(SaveAction::Retract(host));
        }
        self.faults.push((host, fault));
        self.assign(shard);
    }

    /// Gives up what took too long, and wakes what waited.
    fn expire(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        if self.plan.deadline.is_some_and(|end| end <= self.now) {
            return self.fail(SaveFailure::Deadline);
        }
        let (now, limits) = (self.now, self.plan.limits);
        let overdue: Vec<(AttemptId, u64)> = self
            .live()
            .filter(|(_, attempt)| attempt.deadline(&limits).is_some_and(|end| end <= now))
            .map(|(id, attempt)| (id, now.since(attempt.since)))
            .collect();
        for (id, waited) in overdue {
            self.actions.push_back(SaveAction::Abort(id));
            self.failed(id, Fault::Stalled(waited));
        }
        for shard in std::mem::take(&mut self.waiting) {
            self.assign(shard);
        }
    }

    /// Draws the conclusions from the present state.
    fn settle(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        let needed = self.plan.redundancy.data() + usize::from(self.plan.min_parity);
        let placed = self.slots.iter().flatten().count() + self.waiting.len();
        if placed < needed {
            return self.fail(SaveFailure::NotEnoughHosts { placed, needed });
        }
        self.release_rows();
        self.start_rebuilds();
        self.commit_when_stored();
        let committed = self.in_phase(Phase::Committed);
        if committed.len() == placed {
            let holders = committed
                .into_iter()
                .filter_map(|id| self.attempts.get(id.0 as usize))
                .map(|attempt| (attempt.shard, attempt.host))
                .collect();
            self.release_all();
            self.outcome = Some(SaveOutcome::Committed { holders });
        }
    }

    fn in_phase(&self, phase: Phase) -> Vec<AttemptId> {
        self.live()
            .filter(|(_, attempt)| attempt.phase == phase)
            .map(|(id, _)| id)
            .collect()
    }

    /// Releases the oldest rows that every attempt has, while there are more than may be retained,
    /// or when no attempt can need them any more.
    fn release_rows(&mut self) {
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
            let Some(bytes) = self.rows.pop_front() else {
                return;
            };
            self.retained_bytes -= bytes;
            self.actions.push_back(SaveAction::Release(self.released));
            self.released += 1;
        }
    }

    fn release_all(&mut self) {
        let first = self.released;
        let rows = (first..self.rows_ready()).map(SaveAction::Release);
        self.actions.extend(rows);
        self.released += self.rows.len() as u64;
        self.rows.clear();
        self.retained_bytes = 0;
    }

    /// Late attempts are rebuilt once enough shards are whole to read from.
    fn start_rebuilds(&mut self) {
        if !self.ended {
            return;
        }
        let sources: Vec<_> = self
            .live()
            .filter(|(_, attempt)| attempt.phase.is_whole())
            .map(|(_, attempt)| (attempt.shard, attempt.host))
            .collect();
        let still_coming = self
            .live()
            .any(|(_, a)| matches!(a.phase, Phase::Sending | Phase::Finishing));
        if sources.len() < self.plan.redundancy.data() {
            if !still_coming {
                self.fail_starved(sources.len());
            }
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

    /// Too few shards are whole, no other will become so, and the rows are gone.
    fn fail_starved(&mut self, whole: usize) {
        let unopened_can_be_sent = self
            .live()
            .any(|(_, attempt)| attempt.phase == Phase::Opening && !attempt.late);
        if unopened_can_be_sent || (self.released == 0 && !self.waiting.is_empty()) {
            return;
        }
        self.fail(SaveFailure::NotEnoughHosts {
            placed: whole,
            needed: self.plan.redundancy.data(),
        });
    }

    fn commit_when_stored(&mut self) {
        let all_whole = self.live().all(|(_, attempt)| attempt.phase.is_whole());
        if self.outcome.is_some() || !self.ended || !all_whole || !self.waiting.is_empty() {
            return;
        }
        self.committing = true;
        let now = self.now;
        for id in self.in_phase(Phase::Stored) {
            if let Some(attempt) = self.current(id) {
                attempt.phase = Phase::Committing;
                attempt.since = now;
            }
            self.actions.push_back(SaveAction::Commit(id));
        }
    }

    /// Ends the save: nothing of it stays.
    fn fail(&mut self, failure: SaveFailure) {
        let live: Vec<(AttemptId, HostIndex, Phase)> = self
            .live()
            .map(|(id, attempt)| (id, attempt.host, attempt.phase))
            .collect();
        for (id, host, phase) in live {
            self.actions.push_back(SaveAction::Abort(id));
            if phase.may_hold_shard() {
                self.actions.push_back(SaveAction::Retract(host));
            }
        }
        self.release_all();
        self.outcome = Some(SaveOutcome::Failed(failure));
    }

    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        debug_assert_eq!(self.rows.iter().sum::<u64>(), self.retained_bytes);
        let mut hosts: Vec<HostIndex> = self.live().map(|(_, attempt)| attempt.host).collect();
        hosts.sort_unstable();
        let count = hosts.len();
        hosts.dedup();
        debug_assert_eq!(hosts.len(), count, "two shards on one host");
        for (_, attempt) in self.live() {
            debug_assert!(attempt.sent <= attempt.given && attempt.given <= self.rows_ready());
            let sends = attempt.phase == Phase::Sending;
            debug_assert!(!sends || attempt.given >= self.released, "a row is missing");
        }
    }
}
