//! The promises of this host about the successors of checkpoints. A promise is on the disk before the
//! host answers.
//!
//! ```text
//! fences/<owner>/<checkpoint>.fence      what was promised, and the proposal that was accepted
//! ```

use std::path::PathBuf;

use codec::proposal::{Ballot, PROPOSAL_BYTES_MAX, Proposal, ProposalError};
use codec::serial::{self, SerialError};
use codec::{CheckpointId, JobTag, OwnerId};
use serde::{Deserialize, Serialize};

use super::layout::{FENCES, owner_dir};
use super::load::{read_small, walk};
use super::store::{Store, StoreError};
use crate::core::fence::{Acceptor, Fence};
use crate::core::places::Who;
use crate::core::{Catalog, Denied, Key};
use crate::disk::Disk;

const MAGIC: &[u8; 8] = b"CKPTFNC1";

const HASH_BYTES: usize = 16;

/// Longest file of a promise, bytes.
pub const FENCE_BYTES_MAX: usize = PROPOSAL_BYTES_MAX + 256;

/// The part of a file between its first bytes and its hash.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    job_tag: JobTag,
    created: u64,
    grant: Option<OwnerId>,
    promised: Ballot,
    #[serde(with = "serde_bytes")]
    accepted: Option<Vec<u8>>,
}

/// The content of a file of a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceFile {
    /// What was promised and accepted.
    pub fence: Fence,
    /// The proposal that was accepted, with its signature.
    pub accepted: Option<Proposal>,
}

/// Why bytes are not a valid file of a promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceFileError {
    /// The bytes are too short or begin differently.
    #[error("not a file of a promise")]
    Frame,
    /// The hash at the end is wrong.
    #[error("file of a promise: wrong hash")]
    Hash,
    /// The serialized part is malformed.
    #[error("file of a promise: {0}")]
    Serial(#[from] SerialError),
    /// The accepted proposal is not valid.
    #[error("file of a promise: {0}")]
    Proposal(#[from] ProposalError),
    /// The accepted proposal is about another job, or its ballot is above the promised one.
    #[error("file of a promise: the proposal differs from that of the promise")]
    Mismatch,
}

fn hash(bytes: &[u8]) -> [u8; HASH_BYTES] {
    let whole = blake3::hash(bytes);
    let mut hash = [0; HASH_BYTES];
    hash.copy_from_slice(&whole.as_bytes()[..HASH_BYTES]);
    hash
}

impl FenceFile {
    /// The bytes of the file.
    ///
    /// # Errors
    /// Never, because the longest proposal fits.
    pub fn encode(&self) -> Result<Vec<u8>, SerialError> {
        let written = Written {
            job_tag: self.fence.job_tag,
            created: self.fence.created,
            grant: self.fence.grant,
            promised: self.fence.acceptor.promised(),
            accepted: self.accepted.as_ref().map(|one| one.bytes().to_vec()),
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(serial::encode(&written, FENCE_BYTES_MAX)?);
        Ok(Self::hashed(bytes))
    }

    /// These bytes, followed by their hash.
    pub fn hashed(mut bytes: Vec<u8>) -> Vec<u8> {
        let hash = hash(&bytes);
        bytes.extend_from_slice(&hash);
        bytes
    }

    /// Parses the bytes that [`Self::encode`] writes.
    ///
    /// # Errors
    /// When the bytes are not such a file, or its parts contradict each other.
    pub fn decode(bytes: &[u8]) -> Result<Self, FenceFileError> {
        let (hashed, found) = bytes
            .split_last_chunk::<HASH_BYTES>()
            .ok_or(FenceFileError::Frame)?;
        let body = hashed.strip_prefix(MAGIC).ok_or(FenceFileError::Frame)?;
        if hash(hashed) != *found {
            return Err(FenceFileError::Hash);
        }
        let written: Written = serial::decode(body, FENCE_BYTES_MAX)?;
        let accepted = written.accepted.map(Proposal::parse).transpose()?;
        let value = accepted.as_ref().map(|proposal| {
            let proposed = proposal.proposed();
            (proposed.ballot, proposed.successor)
        });
        let is_right = accepted.as_ref().is_none_or(|proposal| {
            let proposed = proposal.proposed();
            proposed.job_tag == written.job_tag && proposed.ballot <= written.promised
        });
        if !is_right {
            return Err(FenceFileError::Mismatch);
        }
        Ok(Self {
            fence: Fence {
                job_tag: written.job_tag,
                created: written.created,
                grant: written.grant,
                acceptor: Acceptor::restored(written.promised, value),
            },
            accepted,
        })
    }
}

fn fence_path(key: Key) -> PathBuf {
    owner_dir(FENCES, key.owner).join(format!("{}.fence", key.checkpoint.hex()))
}

fn parse_fence_name(name: &str) -> Option<CheckpointId> {
    CheckpointId::from_hex(name.strip_suffix(".fence")?)
}

/// Reads all files of promises. A promise whose file can't be read still holds. So nothing more is
/// promised about its checkpoint, and the log has a line about it.
///
/// # Errors
/// When a directory can't be read.
pub(super) fn load(disk: &dyn Disk, catalog: &mut Catalog) -> std::io::Result<()> {
    walk(disk, FENCES, |owner, path, name| {
        let Some(checkpoint) = parse_fence_name(name) else {
            tracing::error!(path = %path.display(), "ignored a file that is not named like a promise");
            return;
        };
        let key = Key { owner, checkpoint };
        match read(disk, key) {
            Ok(file) => catalog.fenced(key, file.fence),
            Err(cause) => {
                tracing::error!(path = %path.display(), %cause, "no more promises are made for this checkpoint");
                catalog.fence_damaged(key);
            }
        }
    })
}

fn read(disk: &dyn Disk, key: Key) -> Result<FenceFile, StoreError> {
    let bytes = read_small(disk, &fence_path(key), FENCE_BYTES_MAX)?;
    let file = FenceFile::decode(&bytes).map_err(|cause| {
        tracing::error!(checkpoint = %key.checkpoint, %cause, "a promise is damaged");
        StoreError::Denied(Denied::FenceDamaged)
    })?;
    let is_of = |proposal: &Proposal| {
        let proposed = proposal.proposed();
        (proposed.owner, proposed.after) == (key.owner, key.checkpoint)
    };
    if !file.accepted.as_ref().is_none_or(is_of) {
        return Err(Denied::FenceDamaged.into());
    }
    Ok(file)
}

/// The answer of a host to a save that asks about a checkpoint's successors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witnessed {
    /// The host promised. The proposal is the one that it accepted before, if there is one.
    Promised(Option<Box<Proposal>>),
    /// The host accepted the proposal.
    Accepted,
    /// The host has promised this higher ballot to another save.
    Outbid(Ballot),
}

impl Store {
    /// Promises to accept no successor of a checkpoint with a lower ballot.
    ///
    /// # Errors
    /// When this host is no witness of the checkpoint, there is no room, or the disk fails.
    pub fn promise(
        &self,
        who: Who<OwnerId>,
        after: CheckpointId,
        job_tag: JobTag,
        ballot: Ballot,
    ) -> Result<Witnessed, StoreError> {
        let key = Key {
            owner: who.member,
            checkpoint: after,
        };
        let _changes = self.change()?;
        let fence = self.catalog().fence(who, key, job_tag)?;
        let acceptor = match fence.acceptor.promise(ballot) {
            Ok(acceptor) => acceptor,
            Err(outbid) => return Ok(Witnessed::Outbid(outbid.0)),
        };
        let accepted = match fence.acceptor.accepted() {
            Some(_) => read(&*self.disk, key)?.accepted,
            None => None,
        };
        let file = FenceFile {
            fence: Fence { acceptor, ..fence },
            accepted,
        };
        if file.fence != fence || self.catalog().fences().get(key).is_none() {
            self.write_fence(who, key, &file)?;
        }
        Ok(Witnessed::Promised(file.accepted.map(Box::new)))
    }

    /// Accepts a successor of a checkpoint, unless a higher ballot was promised.
    ///
    /// # Errors
    /// When this host is no witness of the checkpoint, there is no room, or the disk fails.
    pub fn accept(&self, who: Who<OwnerId>, proposal: Proposal) -> Result<Witnessed, StoreError> {
        let proposed = *proposal.proposed();
        if proposed.owner != who.member {
            return Err(StoreError::Mismatch("owner"));
        }
        let key = Key {
            owner: proposed.owner,
            checkpoint: proposed.after,
        };
        let _changes = self.change()?;
        let fence = self.catalog().fence(who, key, proposed.job_tag)?;
        let acceptor = match fence.acceptor.accept(proposed.ballot, proposed.successor) {
            Ok(acceptor) => acceptor,
            Err(outbid) => return Ok(Witnessed::Outbid(outbid.0)),
        };
        let file = FenceFile {
            fence: Fence { acceptor, ..fence },
            accepted: Some(proposal),
        };
        self.write_fence(who, key, &file)?;
        Ok(Witnessed::Accepted)
    }

    fn write_fence(&self, who: Who<OwnerId>, key: Key, file: &FenceFile) -> Result<(), StoreError> {
        let free = self.free_bytes()?;
        self.catalog().check_fence_space(who, key, free)?;
        let bytes = file.encode().map_err(ProposalError::from)?;
        self.write(FENCES, key.owner, &fence_path(key), &bytes)?;
        self.catalog().fenced(key, file.fence);
        Ok(())
    }

    /// Keeps this host a witness of a checkpoint that it hands over, unless a later version of the job is
    /// here. If there is no room for the promise, the checkpoint has one witness less.
    pub(super) fn keep_fence(&self, key: Key) -> Result<(), StoreError> {
        let who = Who::itself(key.owner);
        let fence = {
            let catalog = self.catalog();
            let is_needed = catalog.fences().get(key).is_none() && catalog.is_newest(key);
            let has_room = is_needed && catalog.fences().has_room(who);
            has_room.then(|| catalog.new_fence(key, None)).flatten()
        };
        let Some(fence) = fence else { return Ok(()) };
        let file = FenceFile {
            fence,
            accepted: None,
        };
        match self.write_fence(who, key, &file) {
            Err(StoreError::Denied(cause)) => {
                tracing::warn!(checkpoint = %key.checkpoint, %cause, "this host can't be a witness of the checkpoint");
                Ok(())
            }
            written => written,
        }
    }

    /// Forgets the promises about a checkpoint that is forgotten.
    pub(super) fn remove_fence(&self, key: Key) -> Result<(), StoreError> {
        let is_there = {
            let catalog = self.catalog();
            catalog.fences().get(key).is_some() || catalog.fences().is_damaged(key)
        };
        if is_there {
            self.remove(&fence_path(key))?;
            self.catalog().fence_removed(key);
        }
        Ok(())
    }

    /// Forgets the promises about several checkpoints.
    pub(super) fn remove_fences(&self, keys: &[Key]) -> Result<(), StoreError> {
        keys.iter().try_for_each(|key| self.remove_fence(*key))
    }
}
