//! Answer of `ckpt rank`.

use serde::Serialize;

use crate::report::HostNote;

/// Answer of `ckpt rank`.
#[derive(Clone, Debug, Serialize)]
pub struct RankReport {
    /// The job's work, in seconds on processors of speed 1 that it has for itself.
    pub work_seconds: f64,
    /// Processors that it uses.
    pub cores: u16,
    /// Memory that it needs.
    pub memory_bytes: u64,
    /// What machines are ordered by: `falcon` or `expected`.
    pub rule: &'static str,
    /// Whether the job is saved, so that a failure costs only what came after the last checkpoint.
    pub checkpoints: bool,
    /// The machines, the best first.
    pub hosts: Vec<RankedHost>,
    /// Machines that are too small or take no guest now.
    pub unfit: Vec<HostNote>,
    /// Hosts that do not answer.
    pub silent: Vec<HostNote>,
    /// How it is printed.
    #[serde(skip)]
    pub(super) format: super::Format,
}

/// A machine on which a job could run. What is said of machines is what they claim.
#[derive(Clone, Debug, Serialize)]
pub struct RankedHost {
    /// The host's name.
    pub host: String,
    /// Whether it says nothing of its machine, and counts as average.
    pub assumed: bool,
    /// Its processors.
    pub cores: Option<u16>,
    /// Speed of one of them, 1 being the reference.
    pub speed: f64,
    /// Whether that was seen in runs of one's own, which outrank what the host says.
    pub speed_seen: bool,
    /// Memory that a guest could have now.
    pub memory_bytes: Option<u64>,
    /// The owner's mean load on the processors that the job takes, over its time, 0 to 1.
    pub load: f64,
    /// Work done in a second.
    pub rate: f64,
    /// The chance that the job ends before it is driven off (TR), 0 to 1.
    pub reliability: f64,
    /// Mean time to failure (MTTF); none when none is in sight.
    pub stays_seconds: Option<f64>,
    /// Time of the job without failures (JCT); none when it never ends.
    pub done_seconds: Option<f64>,
    /// Work that is done until the failure (ETL), in seconds at speed 1; none when none is in sight.
    pub work_until_failure: Option<f64>,
    /// Time of the job by FALCON's formula (JCTF); none when it is not expected to end there.
    pub done_with_failures: Option<f64>,
    /// Time to the job's end, wherever that is; none when it never ends.
    pub expected_seconds: Option<f64>,
}
