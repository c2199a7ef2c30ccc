//! A job and its checkpoints.

use crate::outcome::JobOutcome;
use crate::schedule::Stay;

/// Looks at a checkpoint in each part of its life.
const LOOKS: u32 = 4;

/// Checkpoints that are kept.
const KEPT: usize = 2;

/// A checkpoint that was stored.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    /// Work that it holds, seconds.
    pub(crate) progress: f64,
    /// Where its shards are.
    pub(crate) hosts: Vec<usize>,
    /// Shards needed to read it.
    pub(crate) data: usize,
    /// When it was stored.
    pub(crate) stored_at: f64,
    /// Until when it has been looked at.
    looked_until: f64,
}

/// A checkpoint being stored.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) data: usize,
    pub(crate) shard_bytes: f64,
    pub(crate) stored: Vec<usize>,
    /// All hosts that were asked.
    pub(crate) asked: Vec<usize>,
}

/// A checkpoint being read back.
#[derive(Clone, Debug)]
pub(crate) struct Restore {
    /// Which of the checkpoints.
    pub(crate) checkpoint: usize,
    pub(crate) read: usize,
    /// All hosts that were asked.
    pub(crate) asked: Vec<usize>,
}

/// What a job is doing.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// Has no host.
    Queued,
    Working,
    Storing(Store),
    /// Waits for storage hosts to come back, since the time given.
    Awaiting(f64),
    Restoring(Restore),
    Done,
}

/// A job.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    phase: Phase,
    /// Since when it is in this phase.
    since: f64,
    /// When the next thing happens that is no transfer and no eviction.
    pub(crate) timer: f64,
    /// Its stays on hosts, the next one last.
    stays: Vec<Stay>,
    /// The host that it has.
    pub(crate) stay: Option<Stay>,
    /// Work done, seconds.
    pub(crate) progress: f64,
    /// Most work that was done before an eviction and is not yet restored or lost.
    reached: f64,
    /// Stored checkpoints, newest last.
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Number of the next checkpoint.
    pub(crate) number: u64,
    /// Transfers begun, to tell them apart.
    pub(crate) transfers: u64,
    /// What a checkpoint is expected to cost, seconds.
    pub(crate) expected_cost: f64,
    /// Whether the restore under way has been counted as failed.
    failed: bool,
    pub(crate) outcome: JobOutcome,
}

impl Job {
    /// A job that will have the hosts of `stays`, in order of time.
    pub(crate) fn new(work_seconds: f64, first_cost: f64, mut stays: Vec<Stay>) -> Self {
        stays.reverse();
        Self {
            phase: Phase::Queued,
            since: 0.0,
            timer: stays.last().map_or(f64::INFINITY, |stay| stay.from),
            stays,
            stay: None,
            progress: 0.0,
            reached: 0.0,
            checkpoints: Vec::new(),
            number: 0,
            transfers: 0,
            expected_cost: first_cost,
            failed: false,
            outcome: JobOutcome {
                work_seconds,
                ..JobOutcome::default()
            },
        }
    }

    pub(crate) const fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Changes what has been stored or read so far; nothing if it does neither.
    pub(crate) const fn phase_mut(&mut self) -> &mut Phase {
        &mut self.phase
    }

    /// Index of its host.
    pub(crate) fn host(&self) -> Option<usize> {
        self.stay.map(|stay| stay.host)
    }

    /// When it has to leave its host.
    pub(crate) fn leaves(&self) -> f64 {
        self.stay.map_or(f64::INFINITY, |stay| stay.until)
    }

    /// When something happens to it that is no transfer.
    pub(crate) fn next_event(&self) -> f64 {
        self.timer.min(self.leaves())
    }

    /// Begins `phase`, which ends by itself at `timer`, and accounts for the time of the last one.
    pub(crate) fn enter(&mut self, now: f64, phase: Phase, timer: f64) {
        let spent = now - self.since;
        let outcome = &mut self.outcome;
        match self.phase {
            Phase::Queued => outcome.queued_seconds += spent,
            Phase::Working => {
                outcome.computing_seconds += spent;
                self.progress += spent;
            }
            Phase::Storing(_) => outcome.storing_seconds += spent,
            Phase::Awaiting(_) => outcome.waiting_seconds += spent,
            Phase::Restoring(_) => outcome.restoring_seconds += spent,
            Phase::Done => {}
        }
        self.phase = phase;
        self.since = now;
        self.timer = timer;
    }

    /// Takes the next host.
    pub(crate) fn arrive(&mut self) {
        self.stay = self.stays.pop();
        self.failed = false;
        self.outcome.restores += u64::from(!self.checkpoints.is_empty());
    }

    /// Loses its host.
    pub(crate) fn evict(&mut self, now: f64) {
        let next = self.stays.last().map_or(f64::INFINITY, |stay| stay.from);
        self.enter(now, Phase::Queued, next);
        self.reached = self.reached.max(self.progress);
        self.outcome.evictions += 1;
        self.stay = None;
    }

    /// Ends at `now`.
    pub(crate) fn finish(&mut self, now: f64, finished: bool) {
        self.enter(now, Phase::Done, f64::INFINITY);
        self.stay = None;
        self.outcome.finished = finished;
        self.outcome.makespan_seconds = now;
    }

    /// Notes that the restore under way failed.
    pub(crate) fn restore_fails(&mut self) {
        self.outcome.failed += u64::from(!self.failed);
        self.failed = true;
    }

    /// Notes that work beyond `progress` is lost.
    pub(crate) fn go_back_to(&mut self, progress: f64) {
        self.outcome.lost_seconds += (self.reached - progress).max(0.0);
        self.progress = progress;
        self.reached = progress;
    }

    /// Adds a checkpoint.
    pub(crate) fn commit(&mut self, now: f64, hosts: Vec<usize>, data: usize) {
        if self.checkpoints.len() == KEPT {
            self.checkpoints.remove(0);
        }
        self.checkpoints.push(Checkpoint {
            progress: self.progress,
            hosts,
            data,
            stored_at: now,
            looked_until: now,
        });
        let seconds = now - self.since;
        self.expected_cost = if self.outcome.stored == 0 {
            seconds
        } else {
            f64::midpoint(self.expected_cost, seconds)
        };
        self.outcome.stored += 1;
        self.outcome.stored_seconds += seconds;
    }

    /// Moments between the last look at the newest checkpoint and `now` at which to look again.
    pub(crate) fn moments_to_look(&mut self, now: f64) -> Vec<f64> {
        let Some(newest) = self.checkpoints.last_mut() else {
            return Vec::new();
        };
        let from = std::mem::replace(&mut newest.looked_until, now);
        if now <= from {
            return Vec::new();
        }
        let at = |i: u32| from + (now - from) * (f64::from(i) + 0.5) / f64::from(LOOKS);
        (0..LOOKS).map(at).collect()
    }
}
