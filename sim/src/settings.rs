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

/// A share of an image, more than 0 and at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(f64);

impl Share {
    /// `None` unless `share` is more than 0 and at most 1.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        (share > 0.0 && share <= 1.0).then_some(Self(share))
    }

    /// The share, from 0 to 1.
    #[must_use]
    pub const fn value(self) -> f64 {
        self.0
    }
}

/// What the versions of a job store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Versions {
    /// All of the image each time.
    Whole,
    /// What changed, without repair and without the limit of layers that a segment has in the program.
    ///
    /// The first version is whole. A later one uses rows of older checkpoints, its origins, so that it can be read
    /// only if enough shards of each of them can. It stores what changed, and some of the rest again: origins that
    /// lack shards or are at risk on their hosts, and a little of what is used least, so that at most 24 origins hold
    /// at most some 2.2 times the image. This little is bounded, by `max(changed, 1/32)` of the image where not much is
    /// held. The new rows go to the hosts of the version before, as far as these take shards, and then to newly chosen
    /// ones. If too few shards of the rows of the version before are there, or the job went back to an older one, the
    /// version is whole. In 60 versions with 2, 5 and 10% changed, 0.038, 0.081 and 0.159 of the image are stored on average;
    /// the program stored 0.037, 0.082 and 0.160 (`docs/inside/decisions.md`).
    Layered {
        /// What changes of the image from one version to the next, however long that is.
        changed: Share,
    },
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
    /// What versions after the first store.
    pub versions: Versions,
    /// Whether hosts rebuild shards that are missing.
    pub repairs: bool,
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
    /// Five jobs of a day with images of 512 MiB, coded 3+2, each stored whole.
    fn default() -> Self {
        Self {
            jobs: 5,
            work_seconds: 86_400.0,
            image_bytes: 512 << 20,
            width: Width::FALCON,
            versions: Versions::Whole,
            repairs: false,
            rule: Rule::Daly,
            restart_seconds: 300.0,
            breaks: 0.0,
            wiped_every_seconds: f64::INFINITY,
            detect_seconds: 10.0,
            network: Network::default(),
        }
    }
}
