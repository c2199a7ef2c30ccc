//! Proposals: a save asks the witnesses of a checkpoint that its own checkpoint becomes the only successor.
//!
//! A proposal is signed. So a witness may hide a proposal or repeat it, and can't invent one. The proposal
//! carries the manifest of the proposed checkpoint, sealed with a key that only programs of its owner have:
//! if the save dies, the next save can finish it, and no witness can present the manifest as committed.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::grant::{Act, Grant, GrantError, Moment, Refused, Rights};
use crate::hash::ManifestHash;
use crate::id::{CheckpointId, JobTag, OwnerId, PublicKey, Version};
use crate::job::JobId;
use crate::keys::Keys;
use crate::manifest::{MANIFEST_BYTES_MAX, Manifest, ManifestError};
use crate::scope::{Blinded, is_path_of};
use crate::seal::{OpenError, SummaryKey};
use crate::serial::SerialError;
use crate::signed::{self, FrameError};

/// Most bytes of a proposal: a manifest, and the fields around it.
pub const PROPOSAL_BYTES_MAX: usize = MANIFEST_BYTES_MAX + (3 << 10);

/// How far above the highest promised round a witness promises or accepts a round. Rounds are counted up by
/// one for each attempt, so honest saves stay far below, and no key can use up the rounds in its lifetime:
/// the last one is 2^54 requests away. A proposer that meets a witness further behind climbs in steps of
/// this size.
pub const ROUNDS_AHEAD_MAX: u64 = 1_000;

const MAGIC: &[u8; 8] = b"CKPTPRO1";

const FORMAT: u16 = 1;

/// The number of an attempt to have a successor chosen. Of two attempts the one with the higher ballot
/// counts; no two attempts have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ballot {
    /// Larger than the rounds of all attempts that the save knows of.
    pub round: u64,
    /// The checkpoint of the save that makes the attempt.
    pub proposer: CheckpointId,
}

impl Ballot {
    /// A ballot that is lower than that of any attempt.
    pub const NONE: Self = Self {
        round: 0,
        proposer: CheckpointId([0; 16]),
    };
}

/// A checkpoint that is proposed to follow another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Successor {
    /// The checkpoint that is to follow.
    pub checkpoint: CheckpointId,
    /// Version of the checkpoint.
    pub version: Version,
    /// Hash of the checkpoint's manifest.
    pub manifest: ManifestHash,
}

impl From<&Manifest> for Successor {
    fn from(manifest: &Manifest) -> Self {
        let public = manifest.public();
        Self {
            checkpoint: public.checkpoint,
            version: public.version,
            manifest: manifest.hash(),
        }
    }
}

impl Ballot {
    /// The highest ballot, up to `wanted`, that a witness takes which has promised this one.
    #[must_use]
    pub fn step_to(self, wanted: Self) -> Self {
        let round = self.round.saturating_add(ROUNDS_AHEAD_MAX);
        Self {
            round: wanted.round.min(round),
            proposer: wanted.proposer,
        }
    }

    /// Whether a witness that has promised this ballot refuses `asked` because its round is too far ahead.
    #[must_use]
    pub const fn is_too_low_for(self, asked: Self) -> bool {
        asked.round > self.round.saturating_add(ROUNDS_AHEAD_MAX)
    }
}

/// The content of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposed {
    /// Owner of both checkpoints.
    pub owner: OwnerId,
    /// Tag of the job of both checkpoints.
    pub job_tag: JobTag,
    /// The checkpoint that gets a successor.
    pub after: CheckpointId,
    /// Number of the attempt.
    pub ballot: Ballot,
    /// The checkpoint that is to follow `after`.
    pub successor: Successor,
}

#[derive(Serialize, Deserialize)]
struct Body {
    format: u16,
    owner: OwnerId,
    signer: PublicKey,
    #[serde(with = "serde_bytes")]
    grant: Option<Vec<u8>>,
    job_tag: JobTag,
    path: Vec<Blinded>,
    after: CheckpointId,
    ballot: Ballot,
    successor: Successor,
    #[serde(with = "serde_bytes")]
    sealed: Vec<u8>,
}

/// Why bytes are refused as a proposal, or why a proposal can't be signed or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// The body is malformed, or too long.
    #[error("proposal: {0}")]
    Serial(#[from] SerialError),
    /// The bytes do not begin as a proposal does.
    #[error("not a proposal")]
    Frame,
    /// The signature is not the owner's.
    #[error("proposal of owner {0}: bad signature")]
    Signature(OwnerId),
    /// A format that this version does not read.
    #[error("proposal format {0} is not known to this version")]
    Format(u16),
    /// The path is not that of the job.
    #[error("proposal: the path is another job's")]
    Path,
    /// The grant in the proposal is not valid.
    #[error("proposal: {0}")]
    Grant(#[from] GrantError),
    /// The grant does not allow the signer to propose this.
    #[error("proposal: the signer is not allowed to sign it: {0}")]
    NotGranted(#[from] Refused),
    /// The keys are not for this job.
    #[error("the key is not for job {0}")]
    OtherJob(JobId),
    /// The sealed manifest does not open.
    #[error("proposal: {0}")]
    Open(#[from] OpenError),
    /// The sealed bytes are no valid manifest.
    #[error("proposal: {0}")]
    Manifest(#[from] ManifestError),
    /// The sealed manifest is that of another checkpoint.
    #[error("proposal: the manifest is another checkpoint's")]
    OtherManifest,
}

impl From<FrameError> for ProposalError {
    fn from(cause: FrameError) -> Self {
        match cause {
            FrameError::Serial(cause) => Self::Serial(cause),
            FrameError::Frame => Self::Frame,
        }
    }
}

/// A proposal whose signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    proposed: Proposed,
    signer: PublicKey,
    grant: Option<Grant>,
    sealed: Vec<u8>,
    bytes: Vec<u8>,
}

impl Proposal {
    /// Proposes that the checkpoint of `manifest` follows `after`.
    ///
    /// # Errors
    /// When the keys are not for the job.
    pub fn sign(
        keys: &Keys,
        job: &JobId,
        (after, ballot): (CheckpointId, Ballot),
        manifest: &Manifest,
    ) -> Result<Self, ProposalError> {
        let successor = Successor::from(manifest);
        let key = key_of(keys, job, successor.checkpoint)?;
        let sealed = key.seal(&successor.manifest.0, manifest.bytes().to_vec());
        Self::sign_sealed(keys, job, (after, ballot), successor, sealed)
    }

    /// Proposes the same successor again, in a new attempt.
    ///
    /// # Errors
    /// When the keys are not for the job.
    pub fn again(&self, keys: &Keys, job: &JobId, ballot: Ballot) -> Result<Self, ProposalError> {
        let Proposed {
            after, successor, ..
        } = self.proposed;
        Self::sign_sealed(keys, job, (after, ballot), successor, self.sealed.clone())
    }

    fn sign_sealed(
        keys: &Keys,
        job: &JobId,
        (after, ballot): (CheckpointId, Ballot),
        successor: Successor,
        sealed: Vec<u8>,
    ) -> Result<Self, ProposalError> {
        let found = keys.tag_and_path(job);
        let (job_tag, path) = found.ok_or_else(|| ProposalError::OtherJob(job.clone()))?;
        let body = Body {
            format: FORMAT,
            owner: keys.owner(),
            signer: keys.signer(),
            grant: keys.grant().map(|grant| grant.bytes().to_vec()),
            job_tag,
            path: path.blinded(),
            after,
            ballot,
            successor,
            sealed,
        };
        let sign = |bytes: &[u8]| keys.sign(bytes);
        Self::parse(signed::write(MAGIC, &body, PROPOSAL_BYTES_MAX, sign)?)
    }

    /// Reads a proposal and checks its signature and, if it was signed with a grant, that the grant covers
    /// it. The caller has to check that the grant is not void.
    ///
    /// # Errors
    /// When the proposal is malformed, changed, or not allowed.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, ProposalError> {
        let record = signed::read::<Body>(MAGIC, &bytes, PROPOSAL_BYTES_MAX)?;
        let body = record.body;
        if !body.signer.verify(record.signed, record.signature) {
            return Err(ProposalError::Signature(body.owner));
        }
        if body.format != FORMAT {
            return Err(ProposalError::Format(body.format));
        }
        if !is_path_of(body.owner, &body.path, body.job_tag) {
            return Err(ProposalError::Path);
        }
        let grant = body.grant.as_deref().map(Grant::parse).transpose()?;
        let act = Act {
            owner: body.owner,
            signer: body.signer,
            job_tag: body.job_tag,
            path: &body.path,
            right: Rights::SAVE,
            moment: Moment::HostsDecide,
        };
        Grant::permits(grant.as_ref(), act)?;
        Ok(Self {
            proposed: Proposed {
                owner: body.owner,
                job_tag: body.job_tag,
                after: body.after,
                ballot: body.ballot,
                successor: body.successor,
            },
            signer: body.signer,
            grant,
            sealed: body.sealed,
            bytes,
        })
    }

    /// The content of the proposal.
    pub const fn proposed(&self) -> &Proposed {
        &self.proposed
    }

    /// The key that signed the proposal.
    pub const fn signer(&self) -> PublicKey {
        self.signer
    }

    /// The grant that allowed the signer to sign; `None` if the owner signed.
    pub const fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// The bytes of the proposal, with its signature.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Opens the manifest of the proposed successor.
    ///
    /// # Errors
    /// When the keys are not those of the job, or the manifest is another one.
    pub fn manifest(&self, keys: &Keys, job: &JobId) -> Result<Manifest, ProposalError> {
        let successor = self.proposed.successor;
        let key = key_of(keys, job, successor.checkpoint)?;
        let plain = key.open(&successor.manifest.0, &self.sealed)?;
        let manifest = Manifest::parse(plain.to_vec())?;
        let public = manifest.public();
        let whose = (public.owner, public.job_tag);
        if Successor::from(&manifest) != successor
            || whose != (self.proposed.owner, self.proposed.job_tag)
        {
            return Err(ProposalError::OtherManifest);
        }
        Ok(manifest)
    }
}

/// The key that seals the manifest in a proposal. A checkpoint has one manifest, so the key seals one
/// message only.
fn key_of(keys: &Keys, job: &JobId, checkpoint: CheckpointId) -> Result<SummaryKey, ProposalError> {
    let found = keys.tag_and_path(job);
    let (tag, path) = found.ok_or_else(|| ProposalError::OtherJob(job.clone()))?;
    let summary = keys.summary_key(tag, &path, checkpoint)?;
    let key = blake3::derive_key("ckpt v2 proposed manifest", &summary.0);
    Ok(SummaryKey(key))
}
