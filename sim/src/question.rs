//! What a policy is asked when a checkpoint is saved, and its answer.

use placement::Probability;
use placement::objective::Width;

use crate::jobs::JobIndex;

/// Time to connect before the first byte is sent, seconds.
pub(crate) const LEAD_SECONDS: f64 = 0.1;

/// What the choice of hosts for a checkpoint depends on.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) job: JobIndex,
    /// Number of the checkpoint.
    pub(crate) number: u64,
    /// Index of the compute host into the grid's hosts.
    pub(crate) compute: usize,
    /// When the checkpoint is taken, Unix seconds.
    pub(crate) now: u64,
    /// Seconds until the next checkpoint is stored.
    pub(crate) interval_seconds: f64,
    /// Bytes that the checkpoint is expected to have: as many as the one before stored.
    pub(crate) stored_bytes: u64,
    /// Work that would be lost without this checkpoint, seconds.
    pub(crate) work_seconds: f64,
}

/// The hosts chosen, as indices into the grid's hosts, and the code.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chosen {
    pub(crate) hosts: Vec<usize>,
    pub(crate) width: Width,
    /// Probability that enough of the hosts can be read when the job has failed; `None` if the policy does not
    /// forecast it.
    pub(crate) readable: Option<Probability>,
}

impl Chosen {
    pub(crate) const fn without_forecast(hosts: Vec<usize>, width: Width) -> Self {
        Self {
            hosts,
            width,
            readable: None,
        }
    }
}
