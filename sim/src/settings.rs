//! Settings of a simulation: the jobs and their surroundings.

use placement::objective::Width;

use crate::network::Network;

/// When a job takes a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Daly's interval for the mean time between failures of the compute host so far.
    Daly,
    /// The accumulator rule on the predicted hazard of the compute host.
    Accumulator,
}

/// The jobs and their surroundings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Jobs that run at the same time.
    pub jobs: usize,
    /// Work of each job, seconds on one host.
    pub work_seconds: f64,
    /// Size of an image after compression, bytes.
    pub image_bytes: u64,
    /// The code of a checkpoint: data and parity shards.
    pub width: Width,
    /// When checkpoints are taken.
    pub rule: Rule,
    /// Time from an eviction until the job is started elsewhere, and between attempts to find a
    /// host, seconds.
    pub restart_seconds: f64,
    /// Probability, 0 to 1, that a storage host breaks off the transfer of a shard that is being stored.
    pub breaks: f64,
    /// Mean time after which a storage host loses all its shards, seconds; infinite for never.
    pub wiped_every_seconds: f64,
    /// Time until a storage host that went away is replaced, seconds.
    pub detect_seconds: f64,
    /// Rates and round-trip times of the links.
    pub network: Network,
}

impl Default for Settings {
    /// Five jobs of a day with images of 512 MiB, coded 3+2.
    fn default() -> Self {
        Self {
            jobs: 5,
            work_seconds: 86_400.0,
            image_bytes: 512 << 20,
            width: Width::FALCON,
            rule: Rule::Daly,
            restart_seconds: 300.0,
            breaks: 0.0,
            wiped_every_seconds: f64::INFINITY,
            detect_seconds: 10.0,
            network: Network::default(),
        }
    }
}
