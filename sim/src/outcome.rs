//! The outcome of a simulated job.

use placement::Probability;

/// A restore for which it was forecast whether it would fail, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForecastRestore {
    /// Probability that too few hosts of the newest checkpoint can be read at the moment of need, as forecast when
    /// these hosts were chosen.
    pub fails: Probability,
    /// When the restore failed, Unix seconds; `None` if it did not.
    pub failed_at: Option<u64>,
}

/// Counts and sums over the life of one job. Times are seconds; the times in phases add up to the makespan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobOutcome {
    /// Whether the job was done before the trace ended and before it was given up.
    pub finished: bool,
    /// Time from the beginning of the job until it was done, given up, or the trace ended.
    pub makespan_seconds: f64,
    /// Work of the job.
    pub work_seconds: f64,
    /// Time in which the job had no host.
    pub queued_seconds: f64,
    /// Time in which the job computed.
    pub computing_seconds: f64,
    /// Time for which checkpoints held the job up, whether or not they were stored in the end.
    pub storing_seconds: f64,
    /// Time spent waiting for storage hosts to come back.
    pub waiting_seconds: f64,
    /// Time spent reading back.
    pub restoring_seconds: f64,
    /// Work that was done and then lost; it is a part of `computing_seconds`.
    pub lost_seconds: f64,
    /// Number of times that the job had to leave its host.
    pub evictions: u64,
    /// Number of checkpoints that were stored.
    pub stored: u64,
    /// Number of these after the first that used nothing older.
    pub whole_later: u64,
    /// Time from beginning to commit of the checkpoints that were stored.
    pub stored_seconds: f64,
    /// Number of checkpoints that could not be stored.
    pub not_stored: u64,
    /// Bytes sent to store checkpoints, those of failed attempts included.
    pub sent_bytes: f64,
    /// Bytes read to restore checkpoints, those of failed attempts included.
    pub read_bytes: f64,
    /// Number of restores: arrivals on a new host with a checkpoint in store.
    pub restores: u64,
    /// Number of restores that failed: the newest checkpoint could not be read at once, or too few of
    /// its hosts were left before it was read.
    pub failed: u64,
    /// Number of these that nobody could have made: no host was there that took shards when the checkpoint was
    /// stored, so that copies on all of them would not have helped.
    pub unavoidable: u64,
    /// When these restores failed, Unix seconds, ascending.
    pub failed_at: Vec<u64>,
    /// Each restore of a checkpoint whose policy forecasts, in order of time. Empty for the other policies.
    pub forecasts: Vec<ForecastRestore>,
    /// Number of restores at whose beginning no more shards could be read than are needed: with
    /// one parity shard less they would have failed.
    pub without_spare: u64,
    /// Number of restores at whose beginning at most one more shard could be read than is needed: with two
    /// parity shards less they would have failed.
    pub with_one_spare: u64,
    /// Number of times that the job waited for the newest checkpoint in vain, and went back to an older one
    /// or to the beginning.
    pub lost_newest: u64,
    /// Number of these times that it went back to the beginning.
    pub from_scratch: u64,
    /// Number of attempts to restore of which the trace does not say whether enough hosts were present; they
    /// are assumed to be possible.
    pub unjudged: u64,
    /// Number of moments, spread evenly over the life of each checkpoint, at which it was checked whether the
    /// checkpoint could be read.
    pub looks: u64,
    /// Number of these moments at which it could not be read.
    pub looks_failed: u64,
}
