//! The signed record with which a restore begins, and which makes a checkpoint visible.
//!
//! The body of a manifest is public: hosts check it, and can rebuild a lost shard with it, without any key.
//! What only the owner may know (name of the job, data key, sizes) is in the sealed summary.
//!
//! The number of the format stands at the end of the magic and in the body. A next format gets a new number
//! and a reader of its own; programs that do not know it refuse it ([`crate::format`]).

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

mod public;
mod summary;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub use public::{NewManifest, Public};
pub use summary::{ImageKind, Mark, Summary, Tail, WITNESSES_MAX};

use crate::format::UnknownFormat;
use crate::geometry::SEAL_OVERHEAD;
use crate::grant::{Act, Grant, GrantError, Moment, Refused, Rights};
use crate::hash::ManifestHash;
use crate::id::{CheckpointId, OwnerId, PublicKey};
use crate::index::StoredSegment;
use crate::job::JobId;
use crate::keys::Keys;
use crate::scope::Path;
use crate::seal::{Cipher, OpenError};
use crate::serial::{self, SerialError};
use public::PublicBody;

/// Most bytes of a manifest.
pub const MANIFEST_BYTES_MAX: usize = 64 << 10;

const MAGIC: &[u8; 8] = b"CKPTMAN2";
const FORMAT: u16 = 2;
const SIGNATURE_BYTES: usize = 64;
const PREFIX_BYTES: usize = 12;

/// Most bytes of a manifest beside its public part and its summary: prefix, signature, length and seal of
/// the summary.
const OVERHEAD_BYTES: usize = PREFIX_BYTES + SIGNATURE_BYTES + 9 + SEAL_OVERHEAD;

/// Why bytes are refused as a manifest, or why a manifest can't be signed or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The body is malformed, or too long.
    #[error("manifest: {0}")]
    Serial(#[from] SerialError),
    /// The bytes do not begin as a manifest does, or have another length than they state.
    #[error("not a manifest")]
    Frame,
    /// The signature is not the owner's.
    #[error("manifest of owner {0}: bad signature")]
    Signature(OwnerId),
    /// A format that this version does not read.
    #[error("manifest: {0}")]
    Format(#[from] UnknownFormat),
    /// A number contradicts another one.
    #[error("manifest: impossible {0}")]
    Number(&'static str),
    /// The path is not that of the job.
    #[error("manifest: the path is another job's")]
    Path,
    /// The grant in the manifest is not valid.
    #[error("manifest: {0}")]
    Grant(#[from] GrantError),
    /// The grant does not allow the signer to sign this manifest.
    #[error("manifest: the signer is not allowed to sign it: {0}")]
    NotGranted(#[from] Refused),
    /// The keys are not for this job.
    #[error("the key is not for job {0}")]
    OtherJob(JobId),
    /// The summary does not open.
    #[error("manifest summary: {0}")]
    Open(#[from] OpenError),
    /// The summary names another job than the public part.
    #[error("manifest: the summary is of another job")]
    Job,
}

/// A manifest whose signature and numbers were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    public: Public,
    public_len: usize,
    signer: PublicKey,
    grant: Option<Grant>,
    path: Path,
    summary: Vec<u8>,
    bytes: Vec<u8>,
}

impl Manifest {
    /// Makes and signs a manifest.
    ///
    /// # Errors
    /// When the manifest is longer than [`MANIFEST_BYTES_MAX`], its numbers contradict each other, or the
    /// keys are not for the job.
    pub fn sign(keys: &Keys, new: NewManifest, summary: &Summary) -> Result<Self, ManifestError> {
        let composed = Composed::new(keys, new, summary)?;
        let Composed {
            public,
            path,
            mut body,
            plain,
        } = composed;
        let id = public.checkpoint;
        let tag = public.job_tag;
        let sealed = match public.cipher {
            Cipher::None => plain,
            Cipher::Aes256Gcm => keys.summary_key(tag, &path, id)?.seal(&body, plain),
        };
        body.extend(serial::encode(
            &serde_bytes::Bytes::new(&sealed),
            MANIFEST_BYTES_MAX,
        )?);

        let mut bytes = MAGIC.to_vec();
        let too_long = SerialError::TooLong {
            actual: PREFIX_BYTES + body.len() + SIGNATURE_BYTES,
            limit: MANIFEST_BYTES_MAX,
        };
        if PREFIX_BYTES + body.len() + SIGNATURE_BYTES > MANIFEST_BYTES_MAX {
            return Err(too_long.into());
        }
        let body_len = u32::try_from(body.len()).map_err(|_| too_long)?;
        bytes.extend_from_slice(&body_len.to_le_bytes());
        bytes.extend_from_slice(&body);
        let signature = keys.sign(&bytes);
        bytes.extend_from_slice(&signature);
        Self::parse(bytes)
    }

    /// Reads a manifest and checks its signature and numbers and, if it was signed with a grant, that the
    /// grant covers it. The caller has to check that the grant is not void.
    ///
    /// # Errors
    /// When the manifest is malformed, changed, not allowed, or contradicts itself.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, ManifestError> {
        Self::read(bytes, |signer, message, signature| {
            signer.verify(message, signature)
        })
    }

    /// Reads again what [`Self::parse`] has read: the bytes have the hash of that manifest, so its signature is
    /// not checked a second time.
    ///
    /// # Errors
    /// When the bytes are others.
    pub fn parse_again(bytes: Vec<u8>, hash: ManifestHash) -> Result<Self, ManifestError> {
        if Self::hash_of(&bytes) != hash {
            return Err(ManifestError::Frame);
        }
        Self::read(bytes, |_, _, _| true)
    }

    /// The checkpoint that these bytes name, if they are a manifest. Nothing was checked.
    pub fn named_in(bytes: &[u8]) -> Option<CheckpointId> {
        let body = bytes.strip_prefix(MAGIC)?.get(size_of::<u32>()..)?;
        // The number of the format takes one byte.
        let (id, _) = body.get(1..)?.split_first_chunk()?;
        Some(CheckpointId(*id))
    }

    fn read(
        bytes: Vec<u8>,
        is_signed: impl FnOnce(PublicKey, &[u8], &[u8]) -> bool,
    ) -> Result<Self, ManifestError> {
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(SerialError::TooLong {
                actual: bytes.len(),
                limit: MANIFEST_BYTES_MAX,
            }
            .into());
        }
        let (magic, rest) = bytes.split_first_chunk().ok_or(ManifestError::Frame)?;
        if magic != MAGIC {
            let other = UnknownFormat::by_magic(magic, MAGIC);
            return Err(other.map_or(ManifestError::Frame, ManifestError::Format));
        }
        let (len, rest) = rest.split_first_chunk().ok_or(ManifestError::Frame)?;
        let body_len = u32::from_le_bytes(*len) as usize;
        if rest.len() != body_len.saturating_add(SIGNATURE_BYTES) {
            return Err(ManifestError::Frame);
        }
        let (body, signature) = rest.split_at(body_len);
        let message = bytes
            .get(..PREFIX_BYTES + body_len)
            .ok_or(ManifestError::Frame)?;
        let read: Body = serial::decode(body, MANIFEST_BYTES_MAX)?;
        if serial::encode(&read, MANIFEST_BYTES_MAX)? != body {
            return Err(ManifestError::Frame);
        }
        let Body {
            public: body,
            summary,
        } = read;
        let public = body.public();
        if !is_signed(body.signer, message, signature) {
            return Err(ManifestError::Signature(public.owner));
        }
        UnknownFormat::check(body.format, FORMAT)?;
        let grant = body.grant.as_deref().map(Grant::parse).transpose()?;
        public.check_path(&body.path)?;
        let act = Act {
            owner: public.owner,
            signer: body.signer,
            job_tag: public.job_tag,
            path: &body.path.blinded(),
            right: Rights::SAVE,
            // The time at which the save began, moved forward if it saw later checkpoints.
            moment: Moment::Within(public.created),
        };
        Grant::permits(grant.as_ref(), act)?;
        public.check()?;
        Ok(Self {
            public,
            public_len: serial::encode(&body, MANIFEST_BYTES_MAX)?.len(),
            signer: body.signer,
            grant,
            path: body.path,
            summary: summary.into_vec(),
            bytes,
        })
    }

    /// The part that hosts can read; it was checked against the limits.
    pub const fn public(&self) -> &Public {
        &self.public
    }

    /// The key that signed the manifest.
    pub const fn signer(&self) -> PublicKey {
        self.signer
    }

    /// The grant that allowed the signer to sign; `None` if the owner signed.
    pub const fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// Path of the job.
    pub const fn path(&self) -> &Path {
        &self.path
    }

    /// The whole manifest as it is sent and stored, signature included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Hash of the manifest's bytes.
    pub fn hash(&self) -> ManifestHash {
        Self::hash_of(&self.bytes)
    }

    /// Hash of the bytes of a manifest.
    pub fn hash_of(bytes: &[u8]) -> ManifestHash {
        let mut hasher = blake3::Hasher::new_derive_key("ckpt v1 manifest");
        ManifestHash(*hasher.update(bytes).finalize().as_bytes())
    }

    /// Opens the summary.
    ///
    /// # Errors
    /// When the keys are not those of the job, or the summary contradicts the public part.
    pub fn open(&self, keys: &Keys) -> Result<Summary, ManifestError> {
        if keys.owner() != self.public.owner {
            return Err(OpenError.into());
        }
        let plain = match self.public.cipher {
            Cipher::None => Zeroizing::new(self.summary.clone()),
            Cipher::Aes256Gcm => {
                let id = self.public.checkpoint;
                let key = keys.summary_key(self.public.job_tag, &self.path, id)?;
                let public = PREFIX_BYTES..PREFIX_BYTES + self.public_len;
                let public = self.bytes.get(public).ok_or(ManifestError::Frame)?;
                key.open(public, &self.summary)?
            }
        };
        let summary = Summary::decode(&plain)?;
        if keys.job_tag(&summary.job) != Some(self.public.job_tag) {
            return Err(ManifestError::Job);
        }
        // A remnant has no index, and nothing else is without one.
        let has_index = !summary.index.is_empty();
        if has_index == summary.tail.is_remnant || summary.other_rows() > self.public.rows {
            return Err(ManifestError::Number("number of index rows"));
        }
        let mut others = summary.index.iter().chain(&summary.tail.pieces);
        if !others.all(StoredSegment::is_possible) {
            return Err(ManifestError::Number("length of an index row"));
        }
        Ok(summary)
    }
}

/// The parts of a manifest before it is sealed and signed.
struct Composed {
    public: Public,
    path: Path,
    /// The encoded body up to the summary.
    body: Vec<u8>,
    /// The encoded summary, not sealed.
    plain: Vec<u8>,
}

impl Composed {
    fn new(keys: &Keys, new: NewManifest, summary: &Summary) -> Result<Self, ManifestError> {
        let found = keys.tag_and_path(&summary.job);
        let (tag, path) = found.ok_or_else(|| ManifestError::OtherJob(summary.job.clone()))?;
        let public = new.public(keys.owner(), tag);
        public.check()?;
        let body = PublicBody::new(&public, keys.signer(), keys.grant(), path.clone());
        let body = serial::encode(&body, MANIFEST_BYTES_MAX)?;
        Ok(Self {
            public,
            path,
            body,
            plain: summary.encode()?,
        })
    }
}

/// A manifest that is not signed yet.
#[derive(Clone, Debug)]
pub struct Draft {
    new: NewManifest,
    summary: Summary,
}

impl Draft {
    /// A manifest with these fields.
    pub const fn new(new: NewManifest, summary: Summary) -> Self {
        Self { new, summary }
    }

    /// The summary of the manifest.
    pub const fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Adds the checkpoint after which this one is saved as the only successor.
    #[must_use]
    pub const fn following(mut self, after: Option<CheckpointId>) -> Self {
        self.summary.tail.after = after;
        self
    }

    /// Marks the image as one that is not known to be one whole state.
    #[must_use]
    pub const fn marked(mut self, mark: Option<Mark>) -> Self {
        self.summary.tail.mark = mark;
        self
    }

    /// Checks that the draft can be signed with any witnesses, and returns its public part.
    ///
    /// # Errors
    /// When the manifest would be too long, or the keys are not for the job.
    pub fn check(&self, keys: &Keys) -> Result<Public, ManifestError> {
        let mut whole = self.clone();
        whole.summary.tail.witnesses = vec![PublicKey([0; 32]); self.new.redundancy.total()];
        let composed = Composed::new(keys, whole.new, &whole.summary)?;
        let actual = composed.body.len() + composed.plain.len() + OVERHEAD_BYTES;
        if actual > MANIFEST_BYTES_MAX {
            let limit = MANIFEST_BYTES_MAX;
            return Err(SerialError::TooLong { actual, limit }.into());
        }
        Ok(composed.public)
    }

    /// Signs the draft, once, since the key that seals the summary may seal one message only. `witnesses`
    /// are hosts that have acknowledged a shard.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn sign(
        mut self,
        keys: &Keys,
        witnesses: Vec<PublicKey>,
    ) -> Result<Manifest, ManifestError> {
        self.summary.tail.witnesses = witnesses;
        Manifest::sign(keys, self.new, &self.summary)
    }
}

#[derive(Serialize, Deserialize)]
struct Body {
    public: PublicBody,
    summary: serde_bytes::ByteBuf,
}

#[cfg(test)]
pub(crate) mod tests;
