//! The signed record that says how to get an image back.
//!
//! Its body is public: hosts check it, and can rebuild a lost shard from it, without any key. What
//! is nobody's business (job, data key, sizes) is in the sealed summary.

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::geometry::{Redundancy, ShardIndex, page_count};
use crate::hash::{ManifestHash, ShardRoot};
use crate::id::{CheckpointId, JobId, JobTag, OwnerId, Version};
use crate::index::StoredSegment;
use crate::pieces::BaseRef;
use crate::seal::{Cipher, DataKey, OpenError, OwnerSecret, SealContext, SegmentSealer};
use crate::serial::{self, SerialError};
use crate::shard_file::{PAGES_MAX, ShardIdentity};

/// Longest manifest.
pub const MANIFEST_BYTES_MAX: usize = 64 << 10;

const MAGIC: &[u8; 8] = b"CKPTMAN1";
const FORMAT: u16 = 1;
const SIGNATURE_BYTES: usize = 64;
const PREFIX_BYTES: usize = 12;

/// What everybody may know of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Public {
    format: u16,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Its owner, who signed.
    pub owner: OwnerId,
    /// Its job, as far as hosts know it.
    pub job_tag: JobTag,
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

/// What only the owner may know of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The job.
    pub job: JobId,
    /// Key of all segments.
    pub data_key: DataKey,
    /// What was saved.
    pub kind: ImageKind,
    /// Sum of the file sizes, holes included.
    pub image_bytes: u64,
    /// Length of the image stream.
    pub stream_bytes: u64,
    /// Sum of the compressed lengths of the image's segments.
    pub stored_bytes: u64,
    /// Number of files.
    pub files: u64,
    /// The index rows, which are the last ones.
    pub index: Vec<StoredSegment>,
    /// What was added later.
    #[serde(skip)]
    pub tail: Tail,
}

/// What summaries did not have at first. Follows the rest, unless it is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tail {
    /// The earlier checkpoint that this one refers to.
    pub base: Option<BaseRef>,
    /// The rows with the hashes of pieces, just before the index rows; none when it can't be a base.
    pub pieces: Vec<StoredSegment>,
}

impl Summary {
    fn encode(&self) -> Result<Vec<u8>, SerialError> {
        let mut bytes = serial::encode(self, MANIFEST_BYTES_MAX)?;
        if self.tail != Tail::default() {
            bytes.extend(serial::encode(&self.tail, MANIFEST_BYTES_MAX)?);
        }
        Ok(bytes)
    }

    fn decode(bytes: &[u8]) -> Result<Self, SerialError> {
        match serial::decode(bytes, MANIFEST_BYTES_MAX) {
            Err(SerialError::Trailing(_)) => {
                let (summary, tail): (Self, Tail) = serial::decode(bytes, MANIFEST_BYTES_MAX)?;
                Ok(Self { tail, ..summary })
            }
            decoded => decoded,
        }
    }

    /// Rows before those of the image's segments end: all others are the index's and the pieces'.
    pub const fn other_rows(&self) -> u64 {
        (self.index.len() + self.tail.pieces.len()) as u64
    }
}

/// What was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageKind {
    /// One file.
    File,
    /// A directory, or several files and directories.
    Tree,
    /// Standard input or the output of a command.
    Stream,
}

/// Bytes that are no manifest, or one that must not be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not a manifest at all.
    #[error("manifest: {0}")]
    Serial(#[from] SerialError),
    /// It does not begin as a manifest does, or has another length than it says.
    #[error("not a manifest")]
    Frame,
    /// The signature is not the owner's.
    #[error("manifest of owner {0}: bad signature")]
    Signature(OwnerId),
    /// A format that this version does not read.
    #[error("manifest format {0} is not known to this version")]
    Format(u16),
    /// Numbers that contradict each other.
    #[error("manifest: impossible {0}")]
    Number(&'static str),
    /// The summary does not open.
    #[error("manifest summary: {0}")]
    Open(#[from] OpenError),
}

/// A manifest whose signature and numbers were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    public: Public,
    public_len: usize,
    summary: Vec<u8>,
    bytes: Vec<u8>,
}

impl Manifest {
    /// Makes and signs a manifest.
    ///
    /// # Errors
    /// When it is longer than [`MANIFEST_BYTES_MAX`] or its numbers contradict each other.
    pub fn sign(
        owner: &OwnerSecret,
        new: NewManifest,
        summary: &Summary,
    ) -> Result<Self, ManifestError> {
        let public = Public {
            format: FORMAT,
            checkpoint: new.checkpoint,
            owner: owner.id(),
            job_tag: owner.job_tag(&summary.job),
            version: new.version,
            created: new.created,
            previous: new.previous,
            redundancy: new.redundancy,
            cipher: new.cipher,
            rows: new.rows,
            block_bytes: new.block_bytes,
            roots: new.roots,
        };
        let mut body = serial::encode(&public, MANIFEST_BYTES_MAX)?;
        let plain = summary.encode()?;
        let sealed = match public.cipher {
            Cipher::None => plain,
            Cipher::Aes256Gcm => owner.seal_summary(public.checkpoint, &body, plain),
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
        let signature = owner.sign(&bytes);
        bytes.extend_from_slice(&signature);
        Self::parse(bytes)
    }

    /// Reads a manifest and checks its signature and numbers.
    ///
    /// # Errors
    /// When it is malformed, changed, or contradicts itself.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, ManifestError> {
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(SerialError::TooLong {
                actual: bytes.len(),
                limit: MANIFEST_BYTES_MAX,
            }
            .into());
        }
        let rest = bytes.strip_prefix(MAGIC).ok_or(ManifestError::Frame)?;
        let (len, rest) = rest.split_first_chunk().ok_or(ManifestError::Frame)?;
        let body_len = u32::from_le_bytes(*len) as usize;
        if rest.len() != body_len.saturating_add(SIGNATURE_BYTES) {
            return Err(ManifestError::Frame);
        }
        let (body, signature) = rest.split_at(body_len);
        let Body { public, summary } = serial::decode(body, MANIFEST_BYTES_MAX)?;
        let signed = &bytes[..PREFIX_BYTES + body_len];
        if !public.owner.verify(signed, signature) {
            return Err(ManifestError::Signature(public.owner));
        }
        public.check()?;
        let summary = summary.into_vec();
        let public_len = serial::encode(&public, MANIFEST_BYTES_MAX)?.len();
        Ok(Self {
            public,
            public_len,
            summary,
            bytes,
        })
    }

    /// What everybody may know.
    pub const fn public(&self) -> &Public {
        &self.public
    }

    /// The manifest's bytes.
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
    /// When `owner` is not the one who sealed it, or it contradicts the public part.
    pub fn open(&self, owner: &OwnerSecret) -> Result<Summary, ManifestError> {
        if owner.id() != self.public.owner {
            return Err(OpenError.into());
        }
        let plain = match self.public.cipher {
            Cipher::None => Zeroizing::new(self.summary.clone()),
            Cipher::Aes256Gcm => {
                let body = &self.bytes[PREFIX_BYTES..];
                owner.open_summary(
                    self.public.checkpoint,
                    &body[..self.public_len],
                    &self.summary,
                )?
            }
        };
        let summary = Summary::decode(&plain)?;
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

/// A manifest's body.
#[derive(Deserialize)]
struct Body {
    public: Public,
    summary: serde_bytes::ByteBuf,
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

    fn check(&self) -> Result<(), ManifestError> {
        if self.format != FORMAT {
            return Err(ManifestError::Format(self.format));
        }
        if self.roots.len() != self.redundancy.total() {
            return Err(ManifestError::Number("number of roots"));
        }
        if self.rows == 0 || page_count(self.rows) > PAGES_MAX {
            return Err(ManifestError::Number("number of rows"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::Method;

    fn owner() -> OwnerSecret {
        OwnerSecret::new([9; 32])
    }

    fn new() -> NewManifest {
        NewManifest {
            checkpoint: CheckpointId([1; 16]),
            version: Version(3),
            created: 1_700_000_000,
            previous: Some(ManifestHash([4; 32])),
            redundancy: Redundancy::DEFAULT,
            cipher: Cipher::Aes256Gcm,
            rows: 300,
            block_bytes: 1 << 40,
            roots: vec![ShardRoot([5; 32]); 5],
        }
    }

    fn summary() -> Summary {
        Summary {
            job: "42".parse().unwrap(),
            data_key: DataKey::new([6; 32]),
            kind: ImageKind::Tree,
            image_bytes: 70_000,
            stream_bytes: 60_000,
            stored_bytes: 50_000,
            files: 3,
            index: vec![index_row()],
            tail: Tail::default(),
        }
    }

    fn index_row() -> StoredSegment {
        StoredSegment {
            raw_len: 100,
            stored_len: 90,
            method: Method::Zstd,
        }
    }

    fn sign(change: impl Fn(&mut NewManifest, &mut Summary)) -> Result<Manifest, ManifestError> {
        let (mut new, mut summary) = (new(), summary());
        change(&mut new, &mut summary);
        Manifest::sign(&owner(), new, &summary)
    }

    #[test]
    fn a_manifest_comes_back() {
        for cipher in [Cipher::Aes256Gcm, Cipher::None] {
            let signed = sign(|new, _| new.cipher = cipher).unwrap();
            let parsed = Manifest::parse(signed.bytes().to_vec()).unwrap();
            assert_eq!(parsed, signed);
            assert_eq!(parsed.hash(), signed.hash());
            assert_eq!(parsed.open(&owner()), Ok(summary()));
            let public = parsed.public();
            assert_eq!(public.owner, owner().id());
            assert_eq!(public.job_tag, owner().job_tag(&summary().job));
            assert_eq!((public.rows, public.block_bytes), (300, 1 << 40));
        }
    }

    #[test]
    fn only_the_owner_opens_it() {
        let other = OwnerSecret::new([8; 32]);
        for cipher in [Cipher::Aes256Gcm, Cipher::None] {
            let signed = sign(|new, _| new.cipher = cipher).unwrap();
            assert_eq!(signed.open(&other), Err(ManifestError::Open(OpenError)));
        }
    }

    #[test]
    fn the_summary_says_nothing_to_others() {
        let signed = sign(|_, summary| summary.job = "secret-job".parse().unwrap()).unwrap();
        let mut windows = signed.bytes().windows(6);
        assert!(!windows.any(|bytes| bytes == b"secret" || bytes == [6; 6]));
    }

    #[test]
    fn every_flipped_byte_is_refused() {
        for cipher in [Cipher::Aes256Gcm, Cipher::None] {
            let signed = sign(|new, _| new.cipher = cipher).unwrap();
            for at in 0..signed.bytes().len() {
                for change in [1, 0x80] {
                    let mut bytes = signed.bytes().to_vec();
                    bytes[at] ^= change;
                    assert!(Manifest::parse(bytes).is_err(), "{at}");
                }
            }
        }
    }

    #[test]
    fn cut_or_longer_manifests_are_refused() {
        let signed = sign(|_, _| ()).unwrap();
        for len in 0..signed.bytes().len() {
            assert!(Manifest::parse(signed.bytes()[..len].to_vec()).is_err());
        }
        let mut longer = signed.bytes().to_vec();
        longer.push(0);
        assert_eq!(Manifest::parse(longer), Err(ManifestError::Frame));
        let too_long = Manifest::parse(vec![0; MANIFEST_BYTES_MAX + 1]);
        assert!(matches!(too_long, Err(ManifestError::Serial(_))));
    }

    #[test]
    fn another_owners_signature_is_refused() {
        let signed = sign(|_, _| ()).unwrap();
        let mut bytes = signed.bytes().to_vec();
        let start = bytes.len() - SIGNATURE_BYTES;
        let other = OwnerSecret::new([8; 32]).sign(&bytes[..start]);
        bytes[start..].copy_from_slice(&other);
        let refused = Manifest::parse(bytes);
        assert_eq!(refused, Err(ManifestError::Signature(owner().id())));
    }

    #[test]
    fn impossible_numbers_are_not_signed() {
        let number = |what| Err(ManifestError::Number(what));
        for roots in [0, 4, 6] {
            let refused = sign(|new, _| new.roots = vec![ShardRoot([5; 32]); roots]);
            assert_eq!(refused, number("number of roots"));
        }
        for rows in [0, PAGES_MAX * 1024 + 1, u64::MAX] {
            assert_eq!(sign(|new, _| new.rows = rows), number("number of rows"));
        }
    }

    #[test]
    fn impossible_index_rows_are_refused() {
        for rows in [0, 301] {
            let signed = sign(|_, summary| summary.index = vec![index_row(); rows]).unwrap();
            assert_eq!(
                signed.open(&owner()),
                Err(ManifestError::Number("number of index rows"))
            );
        }
        for (raw_len, stored_len) in [(100, 101), (100, 0), (u32::MAX, 5)] {
            let row = StoredSegment {
                raw_len,
                stored_len,
                method: Method::Zstd,
            };
            let signed = sign(|_, summary| summary.index = vec![row]).unwrap();
            assert_eq!(
                signed.open(&owner()),
                Err(ManifestError::Number("length of an index row"))
            );
        }
    }

    #[test]
    fn too_long_a_manifest_is_not_signed() {
        let refused = sign(|new, summary| {
            new.rows = 100_000;
            summary.index = vec![index_row(); 30_000];
        });
        assert!(matches!(refused, Err(ManifestError::Serial(_))));
    }

    #[test]
    fn what_was_added_later_comes_back_and_what_is_empty_takes_no_byte() {
        let plain = Manifest::sign(&owner(), new(), &summary()).unwrap();
        let mut more = summary();
        more.tail.base = Some(BaseRef {
            checkpoint: CheckpointId([8; 16]),
            manifest: ManifestHash([7; 32]),
        });
        more.tail.pieces = vec![StoredSegment {
            raw_len: 2,
            stored_len: 2,
            method: Method::Raw,
        }];
        let mut big = new();
        big.rows += 1;
        let signed = Manifest::sign(&owner(), big, &more).unwrap();
        assert_eq!(signed.open(&owner()).unwrap(), more);
        assert_eq!(plain.open(&owner()).unwrap().tail, Tail::default());
        assert!(plain.bytes().len() + 48 < signed.bytes().len());
    }
}
