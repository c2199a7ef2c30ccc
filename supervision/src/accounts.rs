//! Where the time of a job went.

use crate::clock::Millis;
use crate::status::Why;

/// Sums over the life of a supervised job, milliseconds. The first three add up to the time that it
/// was there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accounts {
    /// Time in which it was allowed to run.
    pub work_ms: u64,
    /// Time stopped for the owner.
    pub suspended_ms: u64,
    /// Time stopped for checkpoints.
    pub checkpoint_ms: u64,
    /// Work that is in no committed checkpoint at the end: lost to whoever starts the job again.
    pub lost_ms: u64,
    /// Times that it was stopped for the owner.
    pub suspensions: u64,
    /// Checkpoints committed.
    pub committed: u64,
    /// Saves that failed.
    pub failed: u64,
    /// The final checkpoint, if the job had to leave.
    pub last: Option<FinalCheckpoint>,
}

/// Forecast and truth of a final checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FinalCheckpoint {
    /// Why the job had to leave.
    pub why: Why,
    /// When that was known.
    pub since: Millis,
    /// Time given, milliseconds.
    pub grace_ms: u64,
    /// How long it was expected to take, milliseconds.
    pub expected_ms: u64,
    /// The chance that it is in time.
    pub chance: f64,
    /// How long it took until it was committed; none if it was not.
    pub took_ms: Option<u64>,
}
