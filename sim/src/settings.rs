//! What is simulated.

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
    /// Size of an image after compression.
    pub image_bytes: u64,
    /// How it is coded.
    pub width: Width,
    /// When checkpoints are taken.
    pub rule: Rule,
    /// Time from an eviction until the job is started elsewhere, and between attempts to find a
    /// host, seconds.
    pub restart_seconds: f64,
    /// Probability that a storage host breaks a transfer off while a shard is being stored.
    pub breaks: f64,
    /// Mean time between losses of all that a storage host keeps, seconds; infinite for never.
    pub wiped_every_seconds: f64,
    /// Time until a storage host that went away is given up, seconds.
    pub detect_seconds: f64,
    /// The links.
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
