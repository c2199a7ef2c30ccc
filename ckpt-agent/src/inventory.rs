//! What the hosts say they hold, put together: which checkpoints there are, and where.

use std::collections::BTreeMap;

use codec::keys::Keys;
use codec::manifest::{Manifest, ManifestError, Summary};
use codec::{CheckpointId, OwnerId, ShardIndex, Version};
use protocol::wire::message::Record;

use crate::core::HostIndex;

/// A checkpoint that at least one host knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownCheckpoint {
    /// Its manifest; the signature was checked.
    pub manifest: Manifest,
    /// Who holds which shard, in the order of shards.
    pub holders: Vec<(ShardIndex, HostIndex)>,
    /// Who has the manifest.
    pub knowers: Vec<HostIndex>,
}

impl KnownCheckpoint {
    /// Its version.
    pub const fn version(&self) -> Version {
        self.manifest.public().version
    }

    /// Different shards that are held by somebody.
    pub fn shards_found(&self) -> usize {
        let mut shards: Vec<ShardIndex> = self.holders.iter().map(|(shard, _)| *shard).collect();
        shards.dedup();
        shards.len()
    }

    /// How many shards can still be lost; `None` when there are too few already.
    pub fn can_lose(&self) -> Option<usize> {
        self.shards_found()
            .checked_sub(self.manifest.public().redundancy.data())
    }
}

/// All checkpoints of one owner that hosts told of.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    checkpoints: BTreeMap<CheckpointId, KnownCheckpoint>,
}

/// A record that must not be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The manifest is not one.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// It is somebody else's.
    #[error("a manifest of owner {0}, who is somebody else")]
    Owner(OwnerId),
    /// The same checkpoint has two manifests, both signed.
    #[error("a second manifest of checkpoint {0}")]
    Contradiction(CheckpointId),
}

impl Inventory {
    /// Adds what `host` holds of one checkpoint.
    ///
    /// # Errors
    /// When the record must not be believed; it is left out.
    pub fn add(
        &mut self,
        owner: OwnerId,
        host: HostIndex,
        record: Record,
    ) -> Result<(), RecordError> {
        let manifest = Manifest::parse(record.manifest)?;
        let public = manifest.public();
        if public.owner != owner {
            return Err(RecordError::Owner(public.owner));
        }
        let (id, redundancy) = (public.checkpoint, public.redundancy);
        let known = self
            .checkpoints
            .entry(id)
            .or_insert_with(|| KnownCheckpoint {
                manifest: manifest.clone(),
                holders: Vec::new(),
                knowers: Vec::new(),
            });
        if known.manifest != manifest {
            return Err(RecordError::Contradiction(id));
        }
        known.knowers.push(host);
        let shards = record.shards.iter().filter_map(|&n| redundancy.shard(n));
        known.holders.extend(shards.map(|shard| (shard, host)));
        known.holders.sort_unstable();
        known.holders.dedup();
        Ok(())
    }

    /// Leaves out what its owner deleted.
    pub fn drop_gone(&mut self, gone: &[CheckpointId]) {
        for checkpoint in gone {
            self.checkpoints.remove(checkpoint);
        }
    }

    /// What is known of a checkpoint.
    pub fn get(&self, checkpoint: CheckpointId) -> Option<&KnownCheckpoint> {
        self.checkpoints.get(&checkpoint)
    }

    /// All checkpoints, newest first: by version, then time, then id, so that every client agrees
    /// on which is the newest even when two have the same version.
    pub fn newest_first(&self) -> Vec<&KnownCheckpoint> {
        let mut all: Vec<_> = self.checkpoints.values().collect();
        all.sort_by_key(|known| {
            let public = known.manifest.public();
            std::cmp::Reverse((public.version, public.created, public.checkpoint))
        });
        all
    }

    /// All checkpoints with their opened summaries, by job and version; those that do not open are
    /// returned with the reason.
    pub fn opened(&self, keys: &Keys) -> (Vec<OpenedCheckpoint>, Vec<ManifestError>) {
        let (mut opened, mut failed) = (Vec::new(), Vec::new());
        for known in self.newest_first().into_iter().rev() {
            match known.manifest.open(keys) {
                Ok(summary) => opened.push(OpenedCheckpoint {
                    known: known.clone(),
                    summary,
                }),
                Err(cause) => failed.push(cause),
            }
        }
        // Stable: within a job the order of versions stays.
        opened.sort_by(|a, b| a.summary.job.cmp(&b.summary.job));
        (opened, failed)
    }
}

/// A checkpoint whose summary could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedCheckpoint {
    /// What hosts say of it.
    pub known: KnownCheckpoint,
    /// What only its owner knows.
    pub summary: Summary,
}
