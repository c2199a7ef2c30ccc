//! The public part of a manifest, as both formats have it.

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
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Its owner, who signed or let somebody sign.
    pub owner: OwnerId,
    /// Its job, as far as hosts know it.
    pub job_tag: JobTag,
    /// Its version.
    pub version: Version,
    /// When the save began, Unix seconds; later than of all that the save saw of the job.
    pub created: u64,
    /// The manifest of the version before it.
    pub previous: Option<ManifestHash>,
    /// Its redundancy.
    pub redundancy: Redundancy,
    /// How its segments are sealed.
    pub cipher: Cipher,
    /// Rows, index included.
    pub rows: u64,
    /// Sum of the block lengths of one shard.
    pub block_bytes: u64,
    /// Root of each shard.
    pub roots: Vec<ShardRoot>,
}

/// Fields of a new manifest.
#[derive(Clone, Debug)]
pub struct NewManifest {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Its version.
    pub version: Version,
    /// When the save began, Unix seconds.
    pub created: u64,
    /// The manifest of the version before it.
    pub previous: Option<ManifestHash>,
    /// Its redundancy.
    pub redundancy: Redundancy,
    /// How its segments are sealed.
    pub cipher: Cipher,
    /// Rows, index included.
    pub rows: u64,
    /// Sum of the block lengths of one shard.
    pub block_bytes: u64,
    /// Root of each shard.
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

/// The begin of the body in format 1.
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

/// The begin of the body in format 2.
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
    /// What the root of `shard` binds, and the root itself.
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

    /// Whether the path is that of the job. A name of one component has a tag of its own kind.
    pub(super) fn check_path(&self, path: &Path) -> Result<(), ManifestError> {
        if path.depth() > 1 && tag_of(self.owner, &path.blinded()) != self.job_tag {
            return Err(ManifestError::Path);
        }
        Ok(())
    }

    /// Whether `signer` may sign this.
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
        // The time of a save is its beginning, and later than what it saw of the job.
        let latest = terms.not_after.saturating_add(CLOCK_SLACK_S);
        let earliest = terms.not_before.saturating_sub(CLOCK_SLACK_S);
        if !(earliest..=latest).contains(&self.created) {
            return refused("another time");
        }
        Ok(())
    }
}
