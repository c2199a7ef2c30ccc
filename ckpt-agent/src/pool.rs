//! The answer of `ckpt plan pool`.

use serde::Serialize;

/// Answer of `ckpt plan pool`.
#[derive(Clone, Debug, Serialize)]
pub struct PoolReport {
    /// Hosts that answered, or whose past a registry passed on.
    pub hosts: usize,
    /// Time that the job takes, seconds.
    pub job_s: u64,
    /// The hours of the week in UTC, from Monday 0:00; 168 of them.
    pub hours: Vec<PoolHour>,
    /// The present hour, as its number in `hours`.
    pub now: usize,
    /// When to start a job within a day; null if too few starts were seen at any of these hours.
    pub best: Option<BestStart>,
}

/// What was seen of the pool in one hour of the week, over the last four weeks.
#[derive(Clone, Debug, Serialize)]
pub struct PoolHour {
    /// Hosts of which anything is known for this hour.
    pub known: u32,
    /// Hosts that were there, in the mean of the weeks: they take shards.
    pub hosts: f64,
    /// Hosts whose processors were free for jobs, in the mean of the weeks.
    pub free: f64,
    /// Starts that were seen: hosts whose processors were free when such an hour began.
    pub starts: u32,
    /// Of these, how many stayed free for as long as the job takes.
    pub stayed: u32,
}

/// When to start a job.
#[derive(Clone, Debug, Serialize)]
pub struct BestStart {
    /// The hour, as its number in `hours`.
    pub hour: usize,
    /// How many hours that is from now.
    pub in_hours: usize,
}
