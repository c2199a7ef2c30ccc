//! The public part of a manifest.

use serde::{Deserialize, Serialize};

use super::{FORMAT, ManifestError};
use crate::geometry::{Redundancy, ShardIndex, page_count};
use crate::grant::Grant;
use crate::hash::{ManifestHash, ShardRoot};
use crate::id::{CheckpointId, JobTag, OwnerId, PublicKey, Version};
use crate::scope::{Path, is_path_of};
use crate::seal::{Cipher, DataKey, SealContext, SegmentSealer};
use crate::shard_file::{PAGES_MAX, ShardIdentity};

/// What everybody may know of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Public {
    /// The checkpoint that the manifest makes visible.
    pub checkpoint: CheckpointId,
    /// Owner of the checkpoint, who signed the manifest or gave the signer a grant.
    pub owner: OwnerId,
    /// Tag of the job.
    pub job_tag: JobTag,
    /// Version of the checkpoint.
    pub version: Version,
    /// When the save began, Unix seconds; later than for every checkpoint of the job that the save saw.
    pub created: u64,
    /// Hash of the manifest of the version before, if there was one.
    pub previous: Option<ManifestHash>,
    /// Numbers of data and parity shards.
    pub redundancy: Redundancy,
    /// How segments are sealed.
    pub cipher: Cipher,
    /// Number of all rows: of the image, of piece hashes, of the index.
    pub rows: u64,
    /// Sum of the block lengths of one shard; all shards have the same.
    pub block_bytes: u64,
    /// Root of each shard, by its index.
    pub roots: Vec<ShardRoot>,
}

/// Fields of the public part of a new manifest; the keys that sign give owner and job. See [`Public`].
#[derive(Clone, Debug)]
pub struct NewManifest {
    /// The checkpoint that the manifest is to make visible.
    pub checkpoint: CheckpointId,
    /// Version of the checkpoint.
    pub version: Version,
    /// When the save began, Unix seconds.
    pub created: u64,
    /// Hash of the manifest of the version before, if there was one.
    pub previous: Option<ManifestHash>,
    /// Numbers of data and parity shards.
    pub redundancy: Redundancy,
    /// How segments are sealed.
    pub cipher: Cipher,
    /// Number of all rows: of the image, of piece hashes, of the index.
    pub rows: u64,
    /// Sum of the block lengths of one shard.
    pub block_bytes: u64,
    /// Root of each shard, by its index.
    pub roots: Vec<ShardRoot>,
}

impl NewManifest {
    pub(super) fn public(self, owner: OwnerId, job_tag: JobTag) -> Public {
        Public {
            checkpoint: self.checkpoint,
            owner,
            job_tag,
            version: self.version,
            created: self.created,
            previous: self.previous,
            redundancy: self.redundancy,
            cipher: self.cipher,
            rows: self.rows,
            block_bytes: self.block_bytes,
            roots: self.roots,
        }
    }
}

/// The beginning of the body.
#[derive(Serialize, Deserialize)]
pub(super) struct PublicBody {
    pub(super) format: u16,
    checkpoint: CheckpointId,
    owner: OwnerId,
    pub(super) signer: PublicKey,
    #[serde(with = "serde_bytes")]
    pub(super) grant: Option<Vec<u8>>,
    job_tag: JobTag,
    pub(super) path: Path,
    version: Version,
    created: u64,
    previous: Option<ManifestHash>,
    redundancy: Redundancy,
    cipher: Cipher,
    rows: u64,
    block_bytes: u64,
    roots: Vec<ShardRoot>,
}

impl PublicBody {
    pub(super) fn new(
        public: &Public,
        signer: PublicKey,
        grant: Option<&Grant>,
        path: Path,
    ) -> Self {
        Self {
            format: FORMAT,
            checkpoint: public.checkpoint,
            owner: public.owner,
            signer,
            grant: grant.map(|grant| grant.bytes().to_vec()),
            job_tag: public.job_tag,
            path,
            version: public.version,
            created: public.created,
            previous: public.previous,
            redundancy: public.redundancy,
            cipher: public.cipher,
            rows: public.rows,
            block_bytes: public.block_bytes,
            roots: public.roots.clone(),
        }
    }

    pub(super) fn public(&self) -> Public {
        Public {
            checkpoint: self.checkpoint,
            owner: self.owner,
            job_tag: self.job_tag,
            version: self.version,
            created: self.created,
            previous: self.previous,
            redundancy: self.redundancy,
            cipher: self.cipher,
            rows: self.rows,
            block_bytes: self.block_bytes,
            roots: self.roots.clone(),
        }
    }
}

impl Public {
    /// Identity and root of a shard; `None` if the checkpoint has no such shard.
    pub fn shard(&self, shard: ShardIndex) -> Option<(ShardIdentity, ShardRoot)> {
        let identity = ShardIdentity {
            checkpoint: self.checkpoint,
            redundancy: self.redundancy,
            shard,
        };
        Some((identity, *self.roots.get(shard.at())?))
    }

    /// A sealer for the checkpoint's segments.
    pub fn sealer(&self, key: &DataKey) -> SegmentSealer {
        let context = SealContext {
            checkpoint: self.checkpoint,
            job_tag: self.job_tag,
            version: self.version,
        };
        SegmentSealer::new(self.cipher, key, context)
    }

    pub(super) fn check(&self) -> Result<(), ManifestError> {
        if self.roots.len() != self.redundancy.total() {
            return Err(ManifestError::Number("number of roots"));
        }
        if self.rows == 0 || page_count(self.rows) > PAGES_MAX {
            return Err(ManifestError::Number("number of rows"));
        }
        Ok(())
    }

    /// Checks that the path is that of the job.
    pub(super) fn check_path(&self, path: &Path) -> Result<(), ManifestError> {
        if is_path_of(self.owner, &path.blinded(), self.job_tag) {
            return Ok(());
        }
        Err(ManifestError::Path)
    }
}
