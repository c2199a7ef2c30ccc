//! What became of a job.

/// Counts and sums over the life of one job. The times add up to its makespan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobOutcome {
    /// Whether it was done before its trace ended.
    pub finished: bool,
    /// Time from its beginning until it was done, or until the trace ended.
    pub makespan_seconds: f64,
    /// Work that it had to do.
    pub work_seconds: f64,
    /// Time in which it had no host.
    pub queued_seconds: f64,
    /// Time in which it computed.
    pub computing_seconds: f64,
    /// Time for which checkpoints held it up, whether or not they were stored in the end.
    pub storing_seconds: f64,
    /// Time spent waiting for storage hosts to come back.
    pub waiting_seconds: f64,
    /// Time spent reading back.
    pub restoring_seconds: f64,
    /// Work that was done and then lost: part of the time in which it computed.
    pub lost_seconds: f64,
    /// Times it had to leave its host.
    pub evictions: u64,
    /// Checkpoints that were stored.
    pub stored: u64,
    /// Time from beginning to commit, of these alone.
    pub stored_seconds: f64,
    /// Checkpoints that could not be stored.
    pub not_stored: u64,
    /// Bytes sent to store, whether or not that ended well.
    pub sent_bytes: f64,
    /// Bytes read to restore.
    pub read_bytes: f64,
    /// Restores tried: new hosts found with a checkpoint in store.
    pub restores: u64,
    /// Of these, those that failed: the newest checkpoint could not be read at once, or too few of
    /// its hosts were left before the end.
    pub failed: u64,
    /// Restores at whose beginning just as many shards could be read as are needed, or fewer: with
    /// one parity shard less they would have failed.
    pub without_spare: u64,
    /// The same with one to spare, or fewer: with two parity shards less they would have failed.
    pub with_one_spare: u64,
    /// Of those that failed, those that in spite of waiting went back to an older checkpoint or the beginning.
    pub lost_newest: u64,
    /// Those that went back to the beginning.
    pub from_scratch: u64,
    /// Restores of which the trace does not say whether they would have been possible; they are taken
    /// to be.
    pub unjudged: u64,
    /// Moments, spread evenly over the life of each checkpoint, at which it was looked whether it
    /// could be read.
    pub looks: u64,
    /// Of these, those at which it could not.
    pub looks_failed: u64,
}
