//! A job and its checkpoints.

use placement::Probability;
use placement::objective::Width;

use crate::keeper::Keeper;
use crate::layers::{Part, Rows};
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
    /// The rows that were stored for it, all of which it uses.
    pub(crate) own: Part,
    /// What it uses of rows that were stored for older checkpoints.
    pub(crate) origins: Vec<Part>,
    /// The share of the image that had changed; 1 where nothing was compared.
    pub(crate) changed: f64,
    /// All others that would have taken a shard of it.
    pub(crate) others: Vec<Keeper>,
    /// See [`Store::readable`].
    pub(crate) readable: Option<Probability>,
    /// Until when it has been checked whether it can be read, seconds since the start.
    looked_until: f64,
}

impl Checkpoint {
    /// All that a restore has to read: its own rows, then those of its origins.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.own).chain(&self.origins)
    }

    /// See [`Self::parts`].
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        std::iter::once(&mut self.own).chain(&mut self.origins)
    }
}

/// What a new checkpoint holds.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    /// The share of the image that is stored.
    pub(crate) stores: f64,
    /// See [`Checkpoint::changed`].
    pub(crate) changed: f64,
    /// See [`Checkpoint::origins`].
    pub(crate) origins: Vec<Part>,
    /// The keepers of the version before that are there; none if nothing older is used.
    pub(crate) keepers_before: Vec<Keeper>,
}

impl Content {
    /// That of a checkpoint that uses nothing older.
    pub(crate) const fn whole() -> Self {
        Self {
            stores: 1.0,
            changed: 1.0,
            origins: Vec::new(),
            keepers_before: Vec::new(),
        }
    }
}

/// A checkpoint being stored.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    /// Its code: as many shards as data shards have to be stored at least.
    pub(crate) width: Width,
    pub(crate) shard_bytes: f64,
    pub(crate) content: Content,
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
    /// All shards that were asked for, those of failed transfers included.
    pub(crate) shards: Vec<AskedShard>,
}

/// A shard of a part of a checkpoint that is being read back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedShard {
    /// Place of the part among [`Checkpoint::parts`].
    pub(crate) part: usize,
    pub(crate) keeper: Keeper,
    /// What is read of it.
    pub(crate) bytes: f64,
    pub(crate) progress: ShardProgress,
}

/// How far the reading of a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardProgress {
    /// No transfer has it yet.
    Chosen,
    /// The job's transfer with this number brings it.
    UnderWay(u64),
    Read,
    Failed,
}

impl Restore {
    /// Whether all shards have been read. Each failed one was replaced by another.
    pub(crate) fn is_done(&self) -> bool {
        let ended = [ShardProgress::Read, ShardProgress::Failed];
        self.shards
            .iter()
            .all(|shard| ended.contains(&shard.progress))
    }

    /// Notes how the transfer with this number ended, and returns the shards that it was to bring.
    pub(crate) fn end(&mut self, transfer: u64, progress: ShardProgress) -> Vec<AskedShard> {
        let all = self.shards.iter_mut();
        let ended = all.filter(|shard| shard.progress == ShardProgress::UnderWay(transfer));
        let ended = ended.map(|shard| {
            shard.progress = progress;
            *shard
        });
        ended.collect()
    }

    /// All that were asked for a shard of a part.
    pub(crate) fn asked(&self, part: usize) -> Vec<Keeper> {
        let of_part = self.shards.iter().filter(|shard| shard.part == part);
        of_part.map(|shard| shard.keeper).collect()
    }
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
    /// Whether a newer checkpoint than those could not be read, so that the next one is compared with none.
    gave_up_newest: bool,
    /// Number of the next checkpoint.
    pub(crate) number: u64,
    /// Number of transfers begun, which is that of the last one; it makes their random draws differ.
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
            gave_up_newest: false,
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

    /// Gives up all checkpoints but the oldest `kept` ones.
    pub(crate) fn give_up_newest(&mut self, kept: usize) {
        self.outcome.lost_newest += 1;
        self.outcome.from_scratch += u64::from(kept == 0);
        self.checkpoints.truncate(kept);
        self.gave_up_newest = true;
    }

    /// The checkpoint with which the next one is compared.
    pub(crate) fn base(&self) -> Option<&Checkpoint> {
        self.checkpoints.last().filter(|_| !self.gave_up_newest)
    }

    /// Adds the checkpoint that was stored in the present phase, and drops the oldest one beyond
    /// [`CHECKPOINTS_KEPT`].
    pub(crate) fn commit(&mut self, now: f64, store: Store) {
        if self.checkpoints.len() == CHECKPOINTS_KEPT {
            self.checkpoints.remove(0);
        }
        let is_whole = store.content.origins.is_empty();
        let rows = Rows {
            keepers: store.stored,
            width: store.width,
            stored_at: now,
            repaired_until: now,
            held: store.content.stores,
        };
        self.gave_up_newest = false;
        self.checkpoints.push(Checkpoint {
            progress: self.progress,
            own: Part {
                used: rows.held,
                rows,
            },
            origins: store.content.origins,
            changed: store.content.changed,
            others: [store.takers, store.asked].concat(),
            readable: store.readable,
            looked_until: now,
        });
        let seconds = now - self.since;
        self.expected_cost = if self.outcome.stored == 0 {
            seconds
        } else {
            f64::midpoint(self.expected_cost, seconds)
        };
        self.outcome.whole_later += u64::from(is_whole && self.outcome.stored > 0);
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
