//! The signed record with which a restore begins, and which makes a checkpoint visible.
//!
//! The body of a manifest is public: hosts check it, and can rebuild a lost shard with it, without any key.
//! What only the owner may know (name of the job, data key, sizes) is in the sealed summary.
//!
//! There are two formats. The second also has the signer and their grant, the job's path, labels and
//! witnesses.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

mod public;
mod summary;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub use public::{NewManifest, Public};
pub use summary::{ImageKind, Summary, Tail, WITNESSES_MAX};

use crate::geometry::SEAL_OVERHEAD;
use crate::grant::{Grant, GrantError};
use crate::hash::ManifestHash;
use crate::id::{CheckpointId, OwnerId, PublicKey};
use crate::index::StoredSegment;
use crate::job::JobId;
use crate::keys::Keys;
use crate::labels::Labels;
use crate::scope::Path;
use crate::seal::{Cipher, OpenError};
use crate::serial::{self, SerialError};
use public::{Public1, Public2};

/// Most bytes of a manifest.
pub const MANIFEST_BYTES_MAX: usize = 64 << 10;

const MAGIC_1: &[u8; 8] = b"CKPTMAN1";
const MAGIC_2: &[u8; 8] = b"CKPTMAN2";
const SIGNATURE_BYTES: usize = 64;
const PREFIX_BYTES: usize = 12;

/// Most bytes of a manifest beside its public part and its summary: prefix, signature, length and seal of
/// the summary.
const OVERHEAD_BYTES: usize = PREFIX_BYTES + SIGNATURE_BYTES + 9 + SEAL_OVERHEAD;

/// Formats of manifests; the magic at the beginning says which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// The first format: signed by the owner; without labels and witnesses.
    One,
    /// The second format: signed by the owner, or with a grant.
    Two,
}

impl Format {
    const fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::One => MAGIC_1,
            Self::Two => MAGIC_2,
        }
    }
}

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
    #[error("manifest format {0} is not known to this version")]
    Format(u16),
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
    NotGranted(&'static str),
    /// The keys are not for this job.
    #[error("the key is not for job {0}")]
    OtherJob(JobId),
    /// Format 1 has no place for this.
    #[error("manifests of format 1 have no {0}")]
    OnlyIn2(&'static str),
    /// The summary does not open.
    #[error("manifest summary: {0}")]
    Open(#[from] OpenError),
    /// The summary names another job than the public part.
    #[error("manifest: the summary is of another job")]
    Job,
}

/// The fields that only format 2 has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Signed {
    signer: PublicKey,
    grant: Option<Grant>,
    path: Path,
}

/// A manifest whose signature and numbers were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    public: Public,
    public_len: usize,
    /// `None` in format 1.
    signed: Option<Signed>,
    summary: Vec<u8>,
    bytes: Vec<u8>,
}

impl Manifest {
    /// Makes and signs a manifest.
    ///
    /// # Errors
    /// When the manifest is longer than [`MANIFEST_BYTES_MAX`], its numbers contradict each other, the keys
    /// are not for the job, or the format has no place for a field.
    pub fn sign(
        keys: &Keys,
        format: Format,
        new: NewManifest,
        summary: &Summary,
    ) -> Result<Self, ManifestError> {
        let composed = Composed::new(keys, format, new, summary)?;
        let Composed {
            public,
            path,
            mut body,
            plain,
        } = composed;
        let (id, tag) = (public.checkpoint, public.job_tag);
        let sealed = match (public.cipher, format) {
            (Cipher::None, _) => plain,
            (Cipher::Aes256Gcm, Format::One) => keys.plain_summary_key(id)?.seal(&body, plain),
            (Cipher::Aes256Gcm, Format::Two) => {
                keys.summary_key(tag, &path, id)?.seal(&body, plain)
            }
        };
        body.extend(serial::encode(
            &serde_bytes::Bytes::new(&sealed),
            MANIFEST_BYTES_MAX,
        )?);

        let mut bytes = format.magic().to_vec();
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
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(SerialError::TooLong {
                actual: bytes.len(),
                limit: MANIFEST_BYTES_MAX,
            }
            .into());
        }
        let (magic, rest) = bytes.split_first_chunk().ok_or(ManifestError::Frame)?;
        let format = match magic {
            MAGIC_1 => Format::One,
            MAGIC_2 => Format::Two,
            _ => return Err(ManifestError::Frame),
        };
        let (len, rest) = rest.split_first_chunk().ok_or(ManifestError::Frame)?;
        let body_len = u32::from_le_bytes(*len) as usize;
        if rest.len() != body_len.saturating_add(SIGNATURE_BYTES) {
            return Err(ManifestError::Frame);
        }
        let (body, signature) = rest.split_at(body_len);
        let message = bytes
            .get(..PREFIX_BYTES + body_len)
            .ok_or(ManifestError::Frame)?;
        let parts = match format {
            Format::One => Parts::read_1(body, message, signature)?,
            Format::Two => Parts::read_2(body, message, signature)?,
        };
        parts.public.check()?;
        Ok(Self {
            public: parts.public,
            public_len: parts.public_len,
            signed: parts.signed,
            summary: parts.summary,
            bytes,
        })
    }

    /// The part that hosts can read; it was checked against the limits.
    pub const fn public(&self) -> &Public {
        &self.public
    }

    /// The format of the manifest.
    pub const fn format(&self) -> Format {
        match self.signed {
            None => Format::One,
            Some(_) => Format::Two,
        }
    }

    /// The key that signed the manifest.
    pub fn signer(&self) -> PublicKey {
        let signed = self.signed.as_ref();
        signed.map_or_else(|| self.public.owner.into(), |signed| signed.signer)
    }

    /// The grant that allowed the signer to sign; `None` if the owner signed.
    pub fn grant(&self) -> Option<&Grant> {
        self.signed.as_ref()?.grant.as_ref()
    }

    /// Path of the job; `None` in format 1.
    pub fn path(&self) -> Option<&Path> {
        self.signed.as_ref().map(|signed| &signed.path)
    }

    /// The whole manifest as it is sent and stored, signature included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Hash of the manifest's bytes.
    pub fn hash(&self) -> ManifestHash {
        let mut hasher = blake3::Hasher::new_derive_key("ckpt v1 manifest");
        ManifestHash(*hasher.update(&self.bytes).finalize().as_bytes())
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
                let key = match &self.signed {
                    None => keys.plain_summary_key(id)?,
                    Some(signed) => keys.summary_key(self.public.job_tag, &signed.path, id)?,
                };
                let public = PREFIX_BYTES..PREFIX_BYTES + self.public_len;
                let public = self.bytes.get(public).ok_or(ManifestError::Frame)?;
                key.open(public, &self.summary)?
            }
        };
        let summary = Summary::decode(self.format(), &plain)?;
        if keys.job_tag(&summary.job) != Some(self.public.job_tag) {
            return Err(ManifestError::Job);
        }
        if summary.index.is_empty() || summary.other_rows() > self.public.rows {
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
    fn new(
        keys: &Keys,
        format: Format,
        new: NewManifest,
        summary: &Summary,
    ) -> Result<Self, ManifestError> {
        let found = keys.tag_and_path(&summary.job);
        let (tag, path) = found.ok_or_else(|| ManifestError::OtherJob(summary.job.clone()))?;
        let public = new.public(keys.owner(), tag);
        public.check()?;
        let body = match (format, keys.grant()) {
            (Format::One, None) => serial::encode(&Public1::from(&public), MANIFEST_BYTES_MAX)?,
            (Format::One, Some(_)) => return Err(ManifestError::OnlyIn2("grants")),
            (Format::Two, grant) => {
                let body = Public2::new(&public, keys.signer(), grant, path.clone());
                serial::encode(&body, MANIFEST_BYTES_MAX)?
            }
        };
        Ok(Self {
            public,
            path,
            body,
            plain: summary.encode(format)?,
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

    /// Checks that the draft can be signed in this format with any witnesses, and returns its public part.
    ///
    /// # Errors
    /// When the manifest would be too long, or the keys are not for the job or the format.
    pub fn check(&self, keys: &Keys, format: Format) -> Result<Public, ManifestError> {
        let everybody = vec![PublicKey([0; 32]); self.new.redundancy.total()];
        let whole = self.clone().with_witnesses(format, everybody);
        let composed = Composed::new(keys, format, whole.new, &whole.summary)?;
        let actual = composed.body.len() + composed.plain.len() + OVERHEAD_BYTES;
        if actual > MANIFEST_BYTES_MAX {
            let limit = MANIFEST_BYTES_MAX;
            return Err(SerialError::TooLong { actual, limit }.into());
        }
        Ok(composed.public)
    }

    /// Signs the draft, once, since the key that seals the summary may seal one message only. `witnesses`
    /// are hosts that have acknowledged a shard. The first format leaves out witnesses and labels.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn sign(
        self,
        keys: &Keys,
        format: Format,
        witnesses: Vec<PublicKey>,
    ) -> Result<Manifest, ManifestError> {
        let Self { new, summary } = self.with_witnesses(format, witnesses);
        Manifest::sign(keys, format, new, &summary)
    }

    fn with_witnesses(mut self, format: Format, witnesses: Vec<PublicKey>) -> Self {
        match format {
            Format::One => {
                self.summary.tail.labels = Labels::default();
                self.summary.tail.after = None;
            }
            Format::Two => self.summary.tail.witnesses = witnesses,
        }
        self
    }
}

/// The parts of a body whose signature was checked.
struct Parts {
    public: Public,
    /// Bytes of the body before the length of the summary.
    public_len: usize,
    signed: Option<Signed>,
    summary: Vec<u8>,
}

#[derive(Deserialize)]
struct Body1 {
    public: Public1,
    summary: serde_bytes::ByteBuf,
}

#[derive(Serialize, Deserialize)]
struct Body2 {
    public: Public2,
    summary: serde_bytes::ByteBuf,
}

impl Parts {
    fn read_1(body: &[u8], message: &[u8], signature: &[u8]) -> Result<Self, ManifestError> {
        let Body1 { public, summary } = serial::decode(body, MANIFEST_BYTES_MAX)?;
        let public_len = serial::encode(&public, MANIFEST_BYTES_MAX)?.len();
        let format = public.format;
        let public = Public::from(public);
        if !public.owner.verify(message, signature) {
            return Err(ManifestError::Signature(public.owner));
        }
        if format != 1 {
            return Err(ManifestError::Format(format));
        }
        Ok(Self {
            public,
            public_len,
            signed: None,
            summary: summary.into_vec(),
        })
    }

    fn read_2(body: &[u8], message: &[u8], signature: &[u8]) -> Result<Self, ManifestError> {
        let read: Body2 = serial::decode(body, MANIFEST_BYTES_MAX)?;
        if serial::encode(&read, MANIFEST_BYTES_MAX)? != body {
            return Err(ManifestError::Frame);
        }
        let Body2 { public, summary } = read;
        let public_len = serial::encode(&public, MANIFEST_BYTES_MAX)?.len();
        let signer = public.signer;
        let common = public.public();
        if !signer.verify(message, signature) {
            return Err(ManifestError::Signature(common.owner));
        }
        if public.format != 2 {
            return Err(ManifestError::Format(public.format));
        }
        let grant = public.grant.as_deref().map(Grant::parse).transpose()?;
        common.check_path(&public.path)?;
        common.check_grant(signer, grant.as_ref(), &public.path)?;
        Ok(Self {
            public: common,
            public_len,
            signed: Some(Signed {
                signer,
                grant,
                path: public.path,
            }),
            summary: summary.into_vec(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
