//! The answer of `ckpt plan where`.

use serde::Serialize;

use ckpt_agent::report::HostNote;

/// Answer of `ckpt plan where`.
#[derive(Clone, Debug, Serialize)]
pub struct RankReport {
    /// The job's work: seconds on processors of speed 1 that it has for itself.
    pub work_seconds: f64,
    /// Number of processors that the job uses.
    pub cores: u16,
    /// Memory that the job needs, bytes.
    pub memory_bytes: u64,
    /// The rule of the order: `falcon` or `expected`.
    pub rule: &'static str,
    /// Whether the job is saved, so that a failure costs only the work since the last checkpoint.
    pub checkpoints: bool,
    /// The machines that can run the job, the best first.
    pub hosts: Vec<RankedHost>,
    /// Machines that are too small, or take no guest now.
    pub unfit: Vec<HostNote>,
    /// Hosts that did not answer.
    pub silent: Vec<HostNote>,
    /// The form in which it is printed.
    #[serde(skip)]
    pub(super) format: super::Format,
}

/// A machine on which the job could run. Its properties are what its host claims.
#[derive(Clone, Debug, Serialize)]
pub struct RankedHost {
    /// Name of the host.
    pub host: String,
    /// Whether the host claims nothing, so that the machine counts as average.
    pub assumed: bool,
    /// Number of its processors.
    pub cores: Option<u16>,
    /// Speed of one processor, 1 for the reference.
    pub speed: f64,
    /// Whether the speed comes from the user's own runs, which outrank the claim.
    pub speed_seen: bool,
    /// Memory that a guest could have now, bytes.
    pub memory_bytes: Option<u64>,
    /// The owner's mean load on the processors that the job takes, over the time of the job, 0 to 1.
    pub load: f64,
    /// Work done per second of time.
    pub rate: f64,
    /// Probability that the job ends before it is driven off (TR), 0 to 1.
    pub reliability: f64,
    /// Mean time to failure (MTTF), seconds; `None` if no failure is in sight.
    pub stays_seconds: Option<f64>,
    /// Time of the job without failures (JCT), seconds; `None` if it never ends.
    pub done_seconds: Option<f64>,
    /// Work done until the failure (ETL), seconds at speed 1; `None` if no failure is in sight.
    pub work_until_failure: Option<f64>,
    /// Time of the job by FALCON's formula (JCTF), seconds; `None` if it is not expected to end there.
    pub done_with_failures: Option<f64>,
    /// Expected time to the job's end, on this machine or another, seconds; `None` if it never ends.
    pub expected_seconds: Option<f64>,
}
