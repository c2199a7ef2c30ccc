//! The promises of this host about the successors of checkpoints. A promise is on the disk before the
//! host answers.
//!
//! ```text
//! fences/<owner>/<checkpoint>.fence      what was promised, and the proposals that were accepted
//! ```

use std::path::PathBuf;

use codec::grant::Grant;
use codec::proposal::{Ballot, PROPOSAL_BYTES_MAX, Proposal, ProposalError, Successor};
use codec::serial::{self, SerialError};
use codec::{CheckpointId, JobTag, OwnerId};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::error::StoreError;
use super::layout::{FENCES, owner_dir};
use super::load::{read_small, walk};
use super::store::Store;
use crate::core::fence::{Acceptance, Acceptor, BIDDERS_MAX, Bidder, Fence, Promise};
use crate::core::places::Who;
use crate::core::{Catalog, Denied, Key};
use crate::disk::Disk;

/// The first bytes of a file of the first format, which is read and no longer written: one promise without
/// the key that asked for it, and one proposal.
const MAGIC_1: &[u8; 8] = b"CKPTFNC1";

const MAGIC: &[u8; 8] = b"CKPTFNC2";

const HASH_BYTES: usize = 16;

/// Longest file of a promise, bytes.
pub const FENCE_BYTES_MAX: usize = BIDDERS_MAX * (PROPOSAL_BYTES_MAX + 128) + 256;

/// The part of a file of the first format between its first bytes and its hash.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct WrittenFirst {
    job_tag: JobTag,
    created: u64,
    grant: Option<OwnerId>,
    promised: Ballot,
    #[serde(with = "serde_bytes")]
    accepted: Option<Vec<u8>>,
}

/// The part of a file between its first bytes and its hash.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    job_tag: JobTag,
    created: u64,
    grant: Option<OwnerId>,
    promised: Vec<WrittenPromise>,
    accepted: Vec<ByteBuf>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct WrittenPromise {
    ballot: Ballot,
    /// Serial of the grant of the key that asked; `None` for the owner's key.
    serial: Option<u64>,
}

/// The content of a file of a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceFile {
    /// What was promised and accepted.
    pub fence: Fence,
    /// The proposals that were accepted, with their signatures: those of the acceptor's acceptances, in that
    /// order.
    pub accepted: Vec<Proposal>,
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
    /// An accepted proposal is about another job, or the promises and acceptances are not in their order.
    #[error("file of a promise: its parts contradict each other")]
    Mismatch,
}

fn hash(bytes: &[u8]) -> [u8; HASH_BYTES] {
    let whole = blake3::hash(bytes);
    let mut hash = [0; HASH_BYTES];
    hash.copy_from_slice(&whole.as_bytes()[..HASH_BYTES]);
    hash
}

fn bidder(proposal: &Proposal) -> Bidder {
    Bidder::of(proposal.grant().map(Grant::terms))
}

fn acceptance(proposal: &Proposal) -> Acceptance<Successor> {
    let proposed = proposal.proposed();
    (proposed.ballot, bidder(proposal), proposed.successor)
}

impl WrittenFirst {
    /// The same in the present form. The first format does not state which key asked for a promise. It was the
    /// signer of the proposal if that has the promised ballot, and else counts as the owner's, which never
    /// becomes void.
    fn upgraded(self) -> Result<(Written, Vec<Proposal>), FenceFileError> {
        let accepted = self.accepted.map(Proposal::parse).transpose()?;
        let is_right = |one: &Proposal| one.proposed().ballot <= self.promised;
        if !accepted.as_ref().is_none_or(is_right) {
            return Err(FenceFileError::Mismatch);
        }
        let last = accepted
            .as_ref()
            .filter(|one| one.proposed().ballot == self.promised);
        let by = last.map_or(Bidder::Owner, bidder);
        let promised =
            (self.promised != Ballot::NONE).then(|| WrittenPromise::of((self.promised, by)));
        let written = Written {
            job_tag: self.job_tag,
            created: self.created,
            grant: self.grant,
            promised: promised.into_iter().collect(),
            accepted: Vec::new(),
        };
        Ok((written, accepted.into_iter().collect()))
    }
}

impl WrittenPromise {
    const fn of((ballot, by): Promise) -> Self {
        let serial = match by {
            Bidder::Owner => None,
            Bidder::JobKey(serial) => Some(serial),
        };
        Self { ballot, serial }
    }

    fn promise(&self) -> Promise {
        (
            self.ballot,
            self.serial.map_or(Bidder::Owner, Bidder::JobKey),
        )
    }
}

impl FenceFile {
    /// The file of a fence, with the proposals that its acceptor has accepted, from among `proposals`.
    fn of(fence: Fence, proposals: &[Proposal]) -> Self {
        let accepted = fence.acceptor.acceptances().iter().filter_map(|wanted| {
            let mut all = proposals.iter();
            all.find(|one| acceptance(one) == *wanted).cloned()
        });
        let accepted = accepted.collect();
        Self { fence, accepted }
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// Never, because the longest proposals fit.
    pub fn encode(&self) -> Result<Vec<u8>, SerialError> {
        let promises = self.fence.acceptor.promises().iter();
        let accepted = self.accepted.iter();
        let written = Written {
            job_tag: self.fence.job_tag,
            created: self.fence.created,
            grant: self.fence.grant,
            promised: promises.map(|one| WrittenPromise::of(*one)).collect(),
            accepted: accepted.map(|one| ByteBuf::from(one.bytes())).collect(),
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

    /// Parses the bytes that [`Self::encode`] writes, or those of the first format.
    ///
    /// # Errors
    /// When the bytes are not such a file, or its parts contradict each other.
    pub fn decode(bytes: &[u8]) -> Result<Self, FenceFileError> {
        let (hashed, found) = bytes
            .split_last_chunk::<HASH_BYTES>()
            .ok_or(FenceFileError::Frame)?;
        let (magic, body) = hashed.split_first_chunk().ok_or(FenceFileError::Frame)?;
        if magic != MAGIC && magic != MAGIC_1 {
            return Err(FenceFileError::Frame);
        }
        if hash(hashed) != *found {
            return Err(FenceFileError::Hash);
        }
        let (written, accepted) = if magic == MAGIC_1 {
            serial::decode::<WrittenFirst>(body, FENCE_BYTES_MAX)?.upgraded()?
        } else {
            let mut written: Written = serial::decode(body, FENCE_BYTES_MAX)?;
            let accepted = std::mem::take(&mut written.accepted).into_iter();
            let accepted = accepted.map(|bytes| Proposal::parse(bytes.into_vec()));
            (written, accepted.collect::<Result<_, _>>()?)
        };
        Self::checked(&written, accepted)
    }

    fn checked(written: &Written, accepted: Vec<Proposal>) -> Result<Self, FenceFileError> {
        let promised = written.promised.iter().map(WrittenPromise::promise);
        let values = accepted.iter().map(acceptance);
        let acceptor = Acceptor::restored(promised.collect(), values.collect());
        let is_of = |proposal: &Proposal| proposal.proposed().job_tag == written.job_tag;
        let acceptor = acceptor.filter(|_| accepted.iter().all(is_of));
        Ok(Self {
            fence: Fence {
                job_tag: written.job_tag,
                created: written.created,
                grant: written.grant,
                acceptor: acceptor.ok_or(FenceFileError::Mismatch)?,
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
    if !file.accepted.iter().all(is_of) {
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
    /// The host has promised this ballot, which is higher, or far below the one that was asked for.
    Outbid(Ballot),
}

impl Store {
    /// Promises to accept no successor of a checkpoint with a lower ballot.
    ///
    /// # Errors
    /// When this host is no witness of the checkpoint, there is no room, or the disk fails.
    pub fn promise(
        &self,
        (who, by): (Who<OwnerId>, Bidder),
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
        let standing = fence.standing(self.serials_below(key.owner));
        let acceptor = match standing.acceptor.promise(by, ballot) {
            Ok(acceptor) => acceptor,
            Err(outbid) => return Ok(Witnessed::Outbid(outbid.0)),
        };
        let proposals = self.accepted(key, &acceptor)?;
        let file = FenceFile::of(
            Fence {
                acceptor,
                ..standing
            },
            &proposals,
        );
        if file.fence != fence || self.catalog().fences().get(key).is_none() {
            self.write_fence(who, key, &file)?;
        }
        let shown = file.accepted.into_iter().next();
        Ok(Witnessed::Promised(shown.map(Box::new)))
    }

    /// The proposals that are on the disk, if the acceptor has accepted any.
    fn accepted(
        &self,
        key: Key,
        acceptor: &Acceptor<Successor>,
    ) -> Result<Vec<Proposal>, StoreError> {
        match acceptor.acceptances() {
            [] => Ok(Vec::new()),
            _ => Ok(read(&*self.disk, key)?.accepted),
        }
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
        let standing = fence.standing(self.serials_below(key.owner));
        let mut proposals = self.accepted(key, &standing.acceptor)?;
        let by = bidder(&proposal);
        let ballot = proposed.ballot;
        let acceptor = match standing.acceptor.accept(by, ballot, proposed.successor) {
            Ok(acceptor) => acceptor,
            Err(outbid) => return Ok(Witnessed::Outbid(outbid.0)),
        };
        proposals.insert(0, proposal);
        let file = FenceFile::of(
            Fence {
                acceptor,
                ..standing
            },
            &proposals,
        );
        self.write_fence(who, key, &file)?;
        Ok(Witnessed::Accepted)
    }

    fn write_fence(&self, who: Who<OwnerId>, key: Key, file: &FenceFile) -> Result<(), StoreError> {
        let free = self.free_bytes()?;
        self.catalog().check_fence_space(who, key, free)?;
        let bytes = file.encode().map_err(ProposalError::from)?;
        self.write(FENCES, key.owner, &fence_path(key), &bytes)?;
        self.catalog().fenced(key, file.fence.clone());
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
            accepted: Vec::new(),
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
