//! A job and its checkpoints.

use crate::outcome::JobOutcome;

/// Looks at a checkpoint in each part of its life.
const LOOKS: u32 = 4;

/// A checkpoint that was stored.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    /// Work that it holds, seconds.
    pub(crate) progress: f64,
    /// Where its shards are.
    pub(crate) hosts: Vec<usize>,
    /// Shards needed to read it.
    pub(crate) data: usize,
    /// Until when it has been looked at.
    looked_until: f64,
}

/// A checkpoint being stored.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) begun: f64,
    pub(crate) data: usize,
    pub(crate) shard_bytes: f64,
    pub(crate) stored: Vec<usize>,
    /// All hosts that were asked.
    pub(crate) asked: Vec<usize>,
}

/// A checkpoint being read back.
#[derive(Clone, Debug)]
pub(crate) struct Restore {
    pub(crate) begun: f64,
    /// Which of the generations.
    pub(crate) generation: usize,
    pub(crate) read: usize,
    /// All hosts that were asked.
    pub(crate) asked: Vec<usize>,
}

/// What a job is doing.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// Looks for a host when its time comes.
    Queued,
    /// Computes since then.
    Working {
        since: f64,
    },
    Storing(Store),
    /// Waits since then for storage hosts to come back.
    Awaiting {
        since: f64,
    },
    Restoring(Restore),
    Done,
}

/// A job.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) phase: Phase,
    /// When the next thing happens that is no transfer.
    pub(crate) timer: f64,
    pub(crate) compute: Option<usize>,
    /// When the compute host fails.
    pub(crate) fails_at: f64,
    /// Work done when the phase began, seconds.
    pub(crate) progress: f64,
    /// Most work that was done before an eviction and is not yet restored or lost.
    pub(crate) reached: f64,
    /// Stored checkpoints, newest last; at most two.
    pub(crate) generations: Vec<Generation>,
    /// Number of the next checkpoint.
    pub(crate) number: u64,
    /// Transfers begun, to tell them apart.
    pub(crate) transfers: u64,
    /// What a checkpoint is expected to cost, seconds.
    pub(crate) expected_cost: f64,
    /// Whether the restore under way has been counted as failed.
    pub(crate) counted: bool,
    pub(crate) outcome: JobOutcome,
}

impl Job {
    pub(crate) fn new(work_seconds: f64, first_cost: f64) -> Self {
        Self {
            phase: Phase::Queued,
            timer: 0.0,
            compute: None,
            fails_at: f64::INFINITY,
            progress: 0.0,
            reached: 0.0,
            generations: Vec::new(),
            number: 0,
            transfers: 0,
            expected_cost: first_cost,
            counted: false,
            outcome: JobOutcome {
                work_seconds,
                ..JobOutcome::default()
            },
        }
    }

    /// When something happens to it that is no transfer.
    pub(crate) const fn next_event(&self) -> f64 {
        self.timer.min(self.fails_at)
    }

    /// Ends a time of computing.
    pub(crate) fn stop_working(&mut self, now: f64) {
        if let Phase::Working { since } = self.phase {
            self.progress += now - since;
            self.outcome.computing_seconds += now - since;
        }
    }

    /// Notes that work beyond `progress` is lost.
    pub(crate) fn go_back_to(&mut self, progress: f64) {
        self.outcome.lost_seconds += (self.reached - progress).max(0.0);
        self.progress = progress;
        self.reached = progress;
    }

    /// Adds a checkpoint; two are kept.
    pub(crate) fn commit(&mut self, store: &Store, now: f64) {
        if self.generations.len() == 2 {
            self.generations.remove(0);
        }
        self.generations.push(Generation {
            progress: self.progress,
            hosts: store.stored.clone(),
            data: store.data,
            looked_until: now,
        });
        let seconds = now - store.begun;
        self.expected_cost = if self.outcome.stored == 0 {
            seconds
        } else {
            f64::midpoint(self.expected_cost, seconds)
        };
        self.outcome.stored += 1;
        self.outcome.store_seconds += seconds;
    }

    /// Looks at the newest checkpoint at moments between the last look and `now`.
    pub(crate) fn look(&mut self, now: f64, readable: impl Fn(&Generation, f64) -> bool) {
        let Some(newest) = self.generations.last_mut() else {
            return;
        };
        let from = newest.looked_until;
        if now <= from {
            return;
        }
        for i in 0..LOOKS {
            let at = from + (now - from) * (f64::from(i) + 0.5) / f64::from(LOOKS);
            self.outcome.looks += 1;
            self.outcome.looks_failed += u64::from(!readable(newest, at));
        }
        newest.looked_until = now;
    }
}
