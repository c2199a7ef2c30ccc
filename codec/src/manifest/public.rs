//! The public part of a manifest, in both formats.

use serde::{Deserialize, Serialize};

use super::ManifestError;
use crate::geometry::{Redundancy, ShardIndex, page_count};
use crate::grant::{CLOCK_SLACK_S, Grant, Rights};
use crate::hash::{ManifestHash, ShardRoot};
use crate::id::{CheckpointId, JobTag, OwnerId, PublicKey, Version};
use crate::scope::{Path, tag_of};
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

/// The beginning of the body in format 1.
#[derive(Serialize, Deserialize)]
pub(super) struct Public1 {
    pub(super) format: u16,
    checkpoint: CheckpointId,
    owner: OwnerId,
    job_tag: JobTag,
    version: Version,
    created: u64,
    previous: Option<ManifestHash>,
    redundancy: Redundancy,
    cipher: Cipher,
    rows: u64,
    block_bytes: u64,
    roots: Vec<ShardRoot>,
}

impl From<&Public> for Public1 {
    fn from(public: &Public) -> Self {
        Self {
            format: 1,
            checkpoint: public.checkpoint,
            owner: public.owner,
            job_tag: public.job_tag,
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
}

impl From<Public1> for Public {
    fn from(body: Public1) -> Self {
        Self {
            checkpoint: body.checkpoint,
            owner: body.owner,
            job_tag: body.job_tag,
            version: body.version,
            created: body.created,
            previous: body.previous,
            redundancy: body.redundancy,
            cipher: body.cipher,
            rows: body.rows,
            block_bytes: body.block_bytes,
            roots: body.roots,
        }
    }
}

/// The beginning of the body in format 2.
#[derive(Serialize, Deserialize)]
pub(super) struct Public2 {
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

impl Public2 {
    pub(super) fn new(
        public: &Public,
        signer: PublicKey,
        grant: Option<&Grant>,
        path: Path,
    ) -> Self {
        Self {
            format: 2,
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

    /// Checks that the path is that of the job. It can't be checked for a name of one component, whose tag
    /// is made otherwise.
    pub(super) fn check_path(&self, path: &Path) -> Result<(), ManifestError> {
        if path.depth() > 1 && tag_of(self.owner, &path.blinded()) != self.job_tag {
            return Err(ManifestError::Path);
        }
        Ok(())
    }

    /// Checks that `signer` may sign this: the owner without a grant, another key with one that covers it.
    pub(super) fn check_grant(
        &self,
        signer: PublicKey,
        grant: Option<&Grant>,
        path: &Path,
    ) -> Result<(), ManifestError> {
        let is_owner = signer == self.owner.into();
        let terms = match (is_owner, grant) {
            (true, None) => return Ok(()),
            (true, Some(_)) => return Err(ManifestError::NotGranted("a grant for the owner")),
            (false, None) => return Err(ManifestError::NotGranted("no grant")),
            (false, Some(grant)) => grant.terms(),
        };
        let refused = |what| Err(ManifestError::NotGranted(what));
        if terms.owner != self.owner {
            return refused("another owner's grant");
        }
        if terms.key != signer {
            return refused("another key's grant");
        }
        if !terms.rights.has(Rights::SAVE) {
            return refused("no right to save");
        }
        if !terms.covers(self.job_tag, &path.blinded()) {
            return refused("another job");
        }
        // `created` is the time at which the save began, moved forward if it saw later checkpoints.
        let latest = terms.not_after.saturating_add(CLOCK_SLACK_S);
        let earliest = terms.not_before.saturating_sub(CLOCK_SLACK_S);
        if !(earliest..=latest).contains(&self.created) {
            return refused("another time");
        }
        Ok(())
    }
}
