//! Where the time of a job went.

use crate::clock::Millis;
use crate::status::Why;

/// Sums over the life of a supervised job. `work_ms`, `suspended_ms` and `checkpoint_ms` add up to the
/// time from its start to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accounts {
    /// Time in which the job was allowed to run, milliseconds.
    pub work_ms: u64,
    /// Time for which it was stopped because the owner needed the machine, or because the machine slept,
    /// milliseconds.
    pub suspended_ms: u64,
    /// Time for which it was stopped or dumped for checkpoints, milliseconds.
    pub checkpoint_ms: u64,
    /// Work that no committed checkpoint holds at the end, milliseconds: the next start of the job
    /// repeats it.
    pub lost_ms: u64,
    /// How often it was stopped because the owner needed the machine.
    pub suspensions: u64,
    /// How many checkpoints were committed.
    pub committed: u64,
    /// How many saves failed.
    pub failed: u64,
    /// The final checkpoint, if the job had to leave its machine.
    pub last: Option<FinalCheckpoint>,
}

/// What was forecast of a final checkpoint, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FinalCheckpoint {
    /// Why the job had to leave.
    pub why: Why,
    /// When the supervisor learnt that the job has to leave.
    pub since: Millis,
    /// Time from then to the deadline, milliseconds.
    pub grace_ms: u64,
    /// How long the final checkpoint was expected to take, milliseconds.
    pub expected_ms: u64,
    /// The probability, 0 to 1, with which it was expected to be in time.
    pub chance: f64,
    /// Time from `since` to its commit, milliseconds; `None` if it was not committed.
    pub took_ms: Option<u64>,
}
