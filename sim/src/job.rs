//! A job and its checkpoints.

use placement::Probability;

use crate::keeper::Keeper;
use crate::outcome::{ForecastRestore, JobOutcome};
use crate::schedule::Stay;

/// Moments in each part of a checkpoint's life at which it is checked whether it can be read.
const MOMENTS_CHECKED: u32 = 4;

/// Number of checkpoints that are kept.
const CHECKPOINTS_KEPT: usize = 2;

/// A checkpoint that was stored.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    /// Work that it holds, seconds.
    pub(crate) progress: f64,
    /// What keeps a shard of it.
    pub(crate) keepers: Vec<Keeper>,
    /// All others that would have taken a shard of it.
    pub(crate) others: Vec<Keeper>,
    /// Number of shards that are needed to read it.
    pub(crate) data: usize,
    /// When it was stored, seconds since the start.
    pub(crate) stored_at: f64,
    /// See [`Store::readable`].
    pub(crate) readable: Option<Probability>,
    /// Until when it has been checked whether it can be read, seconds since the start.
    looked_until: f64,
}

/// A checkpoint being stored.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    /// Number of shards that have to be stored at least.
    pub(crate) data: usize,
    pub(crate) shard_bytes: f64,
    /// Probability that enough of the hosts chosen can be read when the job has failed; `None` if the policy does
    /// not forecast it.
    pub(crate) readable: Option<Probability>,
    /// Those that have stored their shard.
    pub(crate) stored: Vec<Keeper>,
    /// All that were asked to store a shard.
    pub(crate) asked: Vec<Keeper>,
    /// All others that took shards when this began.
    pub(crate) takers: Vec<Keeper>,
}

/// A checkpoint being read back.
#[derive(Clone, Debug)]
pub(crate) struct Restore {
    /// Index into the job's checkpoints.
    pub(crate) checkpoint: usize,
    /// Number of shards that have been read.
    pub(crate) read: usize,
    /// All that were asked for a shard.
    pub(crate) asked: Vec<Keeper>,
}

/// What a job is doing.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// It has no host.
    Queued,
    Working,
    Storing(Store),
    /// It waits for storage hosts to come back, since this time in seconds.
    Awaiting(f64),
    Restoring(Restore),
    Done,
}

/// A simulated job: its phase, its work, and its checkpoints.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    phase: Phase,
    /// When the phase began.
    since: f64,
    /// When the phase ends or needs attention, apart from transfers and evictions.
    pub(crate) timer: f64,
    /// The stays on hosts that are still to come, the next one last.
    stays: Vec<Stay>,
    /// The present stay; `None` while the job has no host.
    pub(crate) stay: Option<Stay>,
    /// Work done, seconds.
    pub(crate) progress: f64,
    /// Work done before the latest evictions that is neither restored nor counted as lost yet, seconds.
    reached: f64,
    /// Stored checkpoints, newest last.
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Number of the next checkpoint.
    pub(crate) number: u64,
    /// Number of transfers begun; it makes their random draws differ.
    pub(crate) transfers: u64,
    /// Time for which a checkpoint is expected to hold the job up, seconds.
    pub(crate) expected_cost: f64,
    /// Whether the restore under way has been counted as failed.
    failed: bool,
    pub(crate) outcome: JobOutcome,
}

impl Job {
    /// A job of `work_seconds` that will have the hosts of `stays`, in order of time. Its first checkpoint is
    /// expected to take `first_cost` seconds.
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

    /// The phase, to change what has been stored or read so far.
    pub(crate) const fn phase_mut(&mut self) -> &mut Phase {
        &mut self.phase
    }

    /// Index of the present host into the grid's hosts.
    pub(crate) fn host(&self) -> Option<usize> {
        self.stay.map(|stay| stay.host)
    }

    /// When the job has to leave its host; infinite if it has none.
    pub(crate) fn leaves(&self) -> f64 {
        self.stay.map_or(f64::INFINITY, |stay| stay.until)
    }

    /// When the job gets its next host; infinite if it never does.
    pub(crate) fn next_arrival(&self) -> f64 {
        self.stays.last().map_or(f64::INFINITY, |stay| stay.from)
    }

    /// Time of the job's next event that is not the end of a transfer.
    pub(crate) fn next_event(&self) -> f64 {
        self.timer.min(self.leaves())
    }

    /// Accounts for the time of the present phase and begins `phase`, whose timer is `timer`.
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

    /// Begins the next stay.
    pub(crate) fn arrive(&mut self) {
        self.stay = self.stays.pop();
        self.failed = false;
        self.outcome.restores += u64::from(!self.checkpoints.is_empty());
        let readable = self.checkpoints.last().and_then(|newest| newest.readable);
        let forecast = readable.map(|readable| ForecastRestore {
            fails: readable.complement(),
            failed_at: None,
        });
        self.outcome.forecasts.extend(forecast);
    }

    /// Ends the present stay: the job has to leave its host.
    pub(crate) fn evict(&mut self, now: f64) {
        let next = self.next_arrival();
        self.enter(now, Phase::Queued, next);
        self.reached = self.reached.max(self.progress);
        self.outcome.evictions += 1;
        self.stay = None;
    }

    /// Ends the job at `now`; `finished` if its work is done.
    pub(crate) fn finish(&mut self, now: f64, finished: bool) {
        self.enter(now, Phase::Done, f64::INFINITY);
        self.stay = None;
        self.outcome.finished = finished;
        self.outcome.makespan_seconds = now;
    }

    /// Counts the present restore as failed at `unix_seconds`, once; `is_avoidable` if a host is there that could
    /// have had the data.
    pub(crate) fn restore_fails(&mut self, unix_seconds: u64, is_avoidable: bool) {
        if std::mem::replace(&mut self.failed, true) {
            return;
        }
        self.outcome.failed += 1;
        self.outcome.unavoidable += u64::from(!is_avoidable);
        self.outcome.failed_at.push(unix_seconds);
        // Checkpoints of one policy have a forecast all or none, so the last one is that of this restore.
        if let Some(forecast) = self.outcome.forecasts.last_mut() {
            forecast.failed_at = Some(unix_seconds);
        }
    }

    /// Sets the work done to `progress` and counts the work beyond it as lost.
    pub(crate) fn go_back_to(&mut self, progress: f64) {
        self.outcome.lost_seconds += (self.reached - progress).max(0.0);
        self.progress = progress;
        self.reached = progress;
    }

    /// Adds the checkpoint that was stored in the present phase, and drops the oldest one beyond
    /// [`CHECKPOINTS_KEPT`].
    pub(crate) fn commit(&mut self, now: f64, store: Store) {
        if self.checkpoints.len() == CHECKPOINTS_KEPT {
            self.checkpoints.remove(0);
        }
        self.checkpoints.push(Checkpoint {
            progress: self.progress,
            keepers: store.stored,
            others: [store.takers, store.asked].concat(),
            data: store.data,
            stored_at: now,
            readable: store.readable,
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

    /// [`MOMENTS_CHECKED`] moments, evenly spread over the time since the last call for the newest
    /// checkpoint, at which to check whether it can be read.
    pub(crate) fn moments_to_look(&mut self, now: f64) -> Vec<f64> {
        let Some(newest) = self.checkpoints.last_mut() else {
            return Vec::new();
        };
        let from = std::mem::replace(&mut newest.looked_until, now);
        if now <= from {
            return Vec::new();
        }
        let at = |i: u32| from + (now - from) * (f64::from(i) + 0.5) / f64::from(MOMENTS_CHECKED);
        (0..MOMENTS_CHECKED).map(at).collect()
    }
}
