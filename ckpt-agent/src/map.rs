//! The answer of `ckpt map`.

use codec::{JobId, Redundancy, Version};
use serde::Serialize;

use crate::report::{Holder, HostNote, redundancy};

/// Answer of `ckpt map`.
#[derive(Clone, Debug, Serialize)]
pub struct MapReport {
    /// The jobs, by name.
    pub jobs: Vec<MapJob>,
    /// The hosts of the grid.
    pub hosts: Vec<MapHost>,
    /// Whether hosts are assumed to go away; with `--tonight` that may be none.
    pub is_supposed: bool,
    /// Hosts that did not answer; shards that only they hold are missing here.
    pub silent: Vec<HostNote>,
}

/// A host in a map.
#[derive(Clone, Debug, Serialize)]
pub struct MapHost {
    /// Its name.
    pub name: String,
    /// Its site, if the grid file names one.
    pub site: Option<String>,
    /// Whether it is assumed to go away.
    pub goes: bool,
}

/// The newest version of a job, and from what the job could go on.
#[derive(Clone, Debug, Serialize)]
pub struct MapJob {
    /// Name of the job.
    pub job: JobId,
    /// Its newest version.
    pub version: Version,
    /// When the save of that began, Unix seconds.
    pub created: u64,
    /// How many shards carry data and parity, such as `3+2`.
    #[serde(serialize_with = "redundancy")]
    pub redundancy: Redundancy,
    /// Which host holds which shard of it.
    pub holders: Vec<Holder>,
    /// What a restore takes now; null if it takes nothing.
    pub now: Option<MapIf>,
    /// What a restore would take if the hosts that are assumed to go away were; null if it would take nothing, or if
    /// nothing is assumed.
    pub then: Option<MapIf>,
}

/// What a restore takes.
#[derive(Clone, Debug, Serialize)]
pub struct MapIf {
    /// The version.
    pub version: Version,
    /// How many more shards it can lose.
    pub can_lose: usize,
    /// How much older it is than the newest version, seconds: work that would be lost.
    pub older_s: u64,
}
