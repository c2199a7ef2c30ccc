//! What a save proposes to the witnesses of a checkpoint: to be the one checkpoint that follows it.
//!
//! A proposal is signed, so that a witness can hide or repeat one and can't invent it. It carries the
//! manifest of what is proposed, sealed with a key that only the owner's programs have: should the save
//! die, the next one can finish it, and a witness can't show it as committed.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::grant::{Grant, GrantError, Rights};
use crate::hash::ManifestHash;
use crate::id::{CheckpointId, JobTag, OwnerId, PublicKey, Version};
use crate::job::{JOB_COMPONENTS_MAX, JobId};
use crate::keys::Keys;
use crate::manifest::{MANIFEST_BYTES_MAX, Manifest, ManifestError};
use crate::scope::{Blinded, tag_of};
use crate::seal::{OpenError, SummaryKey};
use crate::serial::SerialError;
use crate::signed::{self, FrameError};

/// Longest proposal: a manifest, and who proposes it.
pub const PROPOSAL_BYTES_MAX: usize = MANIFEST_BYTES_MAX + (3 << 10);

const MAGIC: &[u8; 8] = b"CKPTPRO1";

const FORMAT: u16 = 1;

/// The number of an attempt to have a successor chosen; of two, the higher one counts. No two attempts
/// have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ballot {
    /// Larger than that of all attempts of which the save has heard.
    pub round: u64,
    /// The checkpoint that is being saved.
    pub proposer: CheckpointId,
}

impl Ballot {
    /// Lower than that of any attempt.
    pub const NONE: Self = Self {
        round: 0,
        proposer: CheckpointId([0; 16]),
    };
}

/// A checkpoint that is proposed to follow another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Successor {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Its version.
    pub version: Version,
    /// Hash of its manifest.
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

/// What a proposal says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposed {
    /// Whose checkpoints it is about.
    pub owner: OwnerId,
    /// Their job.
    pub job_tag: JobTag,
    /// The checkpoint that is to be followed.
    pub after: CheckpointId,
    /// The attempt.
    pub ballot: Ballot,
    /// What is to follow it.
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

/// Bytes that are no proposal, or one that must not be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// Not a proposal at all.
    #[error("proposal: {0}")]
    Serial(#[from] SerialError),
    /// It does not begin as a proposal does.
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
    /// The grant in it is none.
    #[error("proposal: {0}")]
    Grant(#[from] GrantError),
    /// The signer may not propose this.
    #[error("proposal: the signer is not allowed to sign it: {0}")]
    NotGranted(&'static str),
    /// The keys are not for this job.
    #[error("the key is not for job {0}")]
    OtherJob(JobId),
    /// The manifest in it does not open.
    #[error("proposal: {0}")]
    Open(#[from] OpenError),
    /// What is sealed in it is no manifest.
    #[error("proposal: {0}")]
    Manifest(#[from] ManifestError),
    /// The manifest in it is that of another checkpoint.
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

    /// Proposes the same once more, in another attempt.
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
    /// it. Whether the grant is void is the caller's to check.
    ///
    /// # Errors
    /// When it is malformed, changed, or not allowed.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, ProposalError> {
        let record = signed::read::<Body>(MAGIC, &bytes, PROPOSAL_BYTES_MAX)?;
        let body = record.body;
        if !body.signer.verify(record.signed, record.signature) {
            return Err(ProposalError::Signature(body.owner));
        }
        if body.format != FORMAT {
            return Err(ProposalError::Format(body.format));
        }
        let depth = body.path.len();
        if !(1..=JOB_COMPONENTS_MAX).contains(&depth)
            || (depth > 1 && tag_of(body.owner, &body.path) != body.job_tag)
        {
            return Err(ProposalError::Path);
        }
        let grant = body.grant.as_deref().map(Grant::parse).transpose()?;
        check_grant(&body, grant.as_ref())?;
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

    /// What it says.
    pub const fn proposed(&self) -> &Proposed {
        &self.proposed
    }

    /// The key that signed it.
    pub const fn signer(&self) -> PublicKey {
        self.signer
    }

    /// The grant that allowed its signer to sign; none when the owner signed.
    pub const fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The manifest of what is proposed.
    ///
    /// # Errors
    /// When the keys are not those of the job, or it is not the manifest of what is proposed.
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

/// Key of the manifest in a proposal: it seals one message only, as a checkpoint has one manifest.
fn key_of(keys: &Keys, job: &JobId, checkpoint: CheckpointId) -> Result<SummaryKey, ProposalError> {
    let found = keys.tag_and_path(job);
    let (tag, path) = found.ok_or_else(|| ProposalError::OtherJob(job.clone()))?;
    let summary = keys.summary_key(tag, &path, checkpoint)?;
    let key = blake3::derive_key("ckpt v2 proposed manifest", &summary.0);
    Ok(SummaryKey(key))
}

/// Whether the signer may propose this.
fn check_grant(body: &Body, grant: Option<&Grant>) -> Result<(), ProposalError> {
    let refused = |what| Err(ProposalError::NotGranted(what));
    let terms = match (body.signer == body.owner.into(), grant) {
        (true, None) => return Ok(()),
        (true, Some(_)) => return refused("a grant for the owner"),
        (false, None) => return refused("no grant"),
        (false, Some(grant)) => grant.terms(),
    };
    if terms.owner != body.owner || terms.key != body.signer {
        return refused("another's grant");
    }
    if !terms.rights.has(Rights::SAVE) {
        return refused("no right to save");
    }
    if !terms.covers(body.job_tag, &body.path) {
        return refused("another job");
    }
    Ok(())
}
