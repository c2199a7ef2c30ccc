//! The answer of `ckpt verify`.

use codec::{JobId, Version};
use serde::Serialize;

use crate::report::{Holder, HostNote};

/// What of each shard was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Checked {
    /// That its host has it, with the hashes of its blocks. No block was read.
    Present,
    /// Also, some of its blocks, which were read.
    Sampled,
    /// Also, all of its blocks, which were read.
    Read,
}

/// Answer of `ckpt verify`.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// The checkpoints that were verified, by job and then by version.
    pub checkpoints: Vec<VerifiedCheckpoint>,
    /// What of each shard was checked.
    pub checked: Checked,
    /// Whether every block was read and checked.
    pub read_data: bool,
    /// How many random blocks of each shard were read, if only a sample was.
    pub sampled_blocks: Option<u32>,
    /// Bytes of blocks that were read and checked.
    pub read_bytes: u64,
    /// Versions that no host shows, although their owner did not delete them.
    pub gaps: Vec<String>,
    /// Hosts that did not answer.
    pub silent: Vec<HostNote>,
}

/// What verification found of a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct VerifiedCheckpoint {
    /// Name of the job.
    pub job: JobId,
    /// Version of the checkpoint within the job.
    pub version: Version,
    /// Shards that are whole, as far as `checked` of the report says.
    pub good: Vec<Holder>,
    /// Shards that are missing or damaged.
    pub bad: Vec<BadShard>,
    /// How many more shards can be lost; `None` if it can't be restored now.
    pub can_lose: Option<usize>,
    /// How many shards could not be checked because hosts that may have them do not answer.
    pub away: usize,
    /// Whether the checkpoint can't be restored even if these hosts come back. The exit status is 7 when any
    /// checkpoint is lost, and 5 when none is lost and one can't be restored now.
    pub lost: bool,
}

/// A shard that is missing or damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadShard {
    /// Number of the shard.
    pub shard: u8,
    /// The host that announced it; `None` if no host that answers has it.
    pub host: Option<String>,
    /// What is wrong with the shard.
    pub what: String,
}
