//! Encryption of segments and summaries; the owner's secret, and the keys that are derived from it.
//!
//! The cipher is AES-256-GCM by `aws-lc-rs`. A data key is random and used for one checkpoint only, and
//! every row has a nonce of its own, so no pair of key and nonce is used twice.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::geometry::SEAL_OVERHEAD;
use crate::hash::{PieceHash, SegmentHash};
use crate::id::{CheckpointId, JobTag, OwnerId, PublicKey, Version};
use crate::job::JobId;

/// How segments are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum Cipher {
    /// Not sealed: hosts can read the image.
    None,
    /// AES-256-GCM, with 16 bytes of tag for each segment.
    Aes256Gcm,
}

/// A cipher number that this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cipher {0} is not known to this version")]
pub struct UnknownCipher(u8);

impl TryFrom<u8> for Cipher {
    type Error = UnknownCipher;

    fn try_from(number: u8) -> Result<Self, UnknownCipher> {
        match number {
            0 => Ok(Self::None),
            1 => Ok(Self::Aes256Gcm),
            other => Err(UnknownCipher(other)),
        }
    }
}

impl From<Cipher> for u8 {
    fn from(cipher: Cipher) -> Self {
        match cipher {
            Cipher::None => 0,
            Cipher::Aes256Gcm => 1,
        }
    }
}

impl Cipher {
    /// Bytes that sealing adds.
    pub const fn overhead(self) -> usize {
        match self {
            Self::None => 0,
            Self::Aes256Gcm => SEAL_OVERHEAD,
        }
    }
}

/// Sealed bytes do not open: they were changed, belong to another place, or were sealed with another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("can't decrypt: wrong key, wrong place or changed bytes")]
pub struct OpenError;

/// The random key of one checkpoint. Segments are sealed with it, and keys for hashes derived from it.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop, Serialize, Deserialize)]
pub struct DataKey([u8; 32]);

impl DataKey {
    /// A key of 32 random bytes, which the caller draws.
    pub const fn new(random: [u8; 32]) -> Self {
        Self(random)
    }

    /// Derives a key for the purpose that `context` names.
    pub(crate) fn derive(&self, context: &str) -> [u8; 32] {
        blake3::derive_key(context, &self.0)
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(secret)")
    }
}

/// The checkpoint that a segment belongs to. It is authenticated with every segment, so that a segment of
/// another checkpoint does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealContext {
    /// The checkpoint, which every segment is bound to.
    pub checkpoint: CheckpointId,
    /// Tag of the checkpoint's job.
    pub job_tag: JobTag,
    /// Version of the checkpoint.
    pub version: Version,
}

/// Seals, opens and hashes the segments of one checkpoint.
#[derive(Clone)]
pub struct SegmentSealer {
    key: Option<std::sync::Arc<LessSafeKey>>,
    hash_key: Zeroizing<[u8; 32]>,
    context: SealContext,
}

impl SegmentSealer {
    /// A sealer for the checkpoint of `context`.
    pub fn new(cipher: Cipher, key: &DataKey, context: SealContext) -> Self {
        Self {
            key: match cipher {
                Cipher::None => None,
                Cipher::Aes256Gcm => Some(std::sync::Arc::new(aes_key(&key.0))),
            },
            hash_key: Zeroizing::new(blake3::derive_key("ckpt v1 segment hash", &key.0)),
            context,
        }
    }

    /// Bytes that sealing adds to a segment.
    pub const fn overhead(&self) -> usize {
        match self.key {
            None => Cipher::None.overhead(),
            Some(_) => Cipher::Aes256Gcm.overhead(),
        }
    }

    /// Keyed hash of a segment, from the hashes of its pieces.
    pub fn hash_pieces(&self, pieces: &[PieceHash]) -> SegmentHash {
        let hashes: Vec<u8> = pieces.iter().flat_map(|hash| hash.0).collect();
        self.keyed(&hashes)
    }

    /// Keyed hash of a segment: of the hashes of its pieces if there are any, so that the bytes are hashed
    /// only once, and of its image bytes otherwise.
    pub fn hash(&self, raw: &[u8], pieces: Option<&[PieceHash]>) -> SegmentHash {
        pieces.map_or_else(|| self.keyed(raw), |pieces| self.hash_pieces(pieces))
    }

    fn keyed(&self, bytes: &[u8]) -> SegmentHash {
        SegmentHash(*blake3::keyed_hash(&self.hash_key, bytes).as_bytes())
    }

    /// Seals `buffer[from..]` in place as the bytes of `row`, and appends the tag.
    pub fn seal(&self, row: u64, buffer: &mut Vec<u8>, from: usize) {
        let Some(key) = &self.key else { return };
        let sealed = key.seal_in_place_separate_tag(nonce(row), self.aad(row), &mut buffer[from..]);
        // aws-lc refuses only messages of more than 64 GiB.
        let Ok(tag) = sealed else {
            unreachable!("a segment fits into one AES-GCM message")
        };
        buffer.extend_from_slice(tag.as_ref());
    }

    /// Opens the sealed bytes of `row` in place and returns them without the tag.
    ///
    /// # Errors
    /// When the bytes are not those that were sealed with this key for this row.
    pub fn open<'a>(&self, row: u64, buffer: &'a mut [u8]) -> Result<&'a [u8], OpenError> {
        match &self.key {
            None => Ok(buffer),
            Some(key) => key
                .open_in_place(nonce(row), self.aad(row), buffer)
                .map(|opened| &*opened)
                .map_err(|_| OpenError),
        }
    }

    fn aad(&self, row: u64) -> Aad<[u8; 72]> {
        let mut aad = [0; 72];
        let parts: [&[u8]; 5] = [
            b"ckpt v1 ",
            &self.context.checkpoint.0,
            &self.context.job_tag.0,
            &self.context.version.number().to_le_bytes(),
            &row.to_le_bytes(),
        ];
        let mut rest = aad.as_mut_slice();
        for part in parts {
            let (head, tail) = rest.split_at_mut(part.len());
            head.copy_from_slice(part);
            rest = tail;
        }
        Aad::from(aad)
    }
}

impl fmt::Debug for SegmentSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentSealer")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

fn nonce(row: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&row.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

pub(crate) fn aes_key(key: &[u8; 32]) -> LessSafeKey {
    let Ok(key) = UnboundKey::new(&AES_256_GCM, key) else {
        unreachable!("AES-256 has keys of 32 bytes")
    };
    LessSafeKey::new(key)
}

/// The owner's secret: the seed of an Ed25519 key, from which all other keys are derived.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct OwnerSecret([u8; 32]);

impl OwnerSecret {
    /// A secret of 32 random bytes, which the caller draws, or reads from the key file.
    pub const fn new(seed: [u8; 32]) -> Self {
        Self(seed)
    }

    /// The seed, for the key file and the TLS identity.
    pub const fn seed(&self) -> &[u8; 32] {
        &self.0
    }

    /// The public half of the key, by which others know the owner.
    pub fn id(&self) -> OwnerId {
        let mut id = [0; 32];
        id.copy_from_slice(self.key_pair().public_key().as_ref());
        OwnerId(id)
    }

    /// The tag of a job whose name has one component.
    pub(crate) fn plain_job_tag(&self, job: &JobId) -> JobTag {
        let key = Zeroizing::new(blake3::derive_key("ckpt v1 job tag", &self.0));
        JobTag(*blake3::keyed_hash(&key, job.as_str().as_bytes()).as_bytes())
    }

    /// Ed25519 signature of `message`.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        signature.copy_from_slice(self.key_pair().sign(message).as_ref());
        signature
    }

    fn key_pair(&self) -> Ed25519KeyPair {
        let Ok(pair) = Ed25519KeyPair::from_seed_unchecked(&self.0) else {
            unreachable!("every 32 bytes are an Ed25519 seed")
        };
        pair
    }
}

/// Key of one checkpoint's summary.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop, Serialize, Deserialize)]
pub struct SummaryKey(pub(crate) [u8; 32]);

impl SummaryKey {
    /// Seals a manifest's summary, bound to the public part of the manifest.
    pub fn seal(&self, public: &[u8], mut summary: Vec<u8>) -> Vec<u8> {
        let key = aes_key(&self.0);
        let sealed = key.seal_in_place_append_tag(zero_nonce(), Aad::from(public), &mut summary);
        if sealed.is_err() {
            unreachable!("a summary fits into one AES-GCM message")
        }
        summary
    }

    /// Opens what [`Self::seal`] sealed.
    ///
    /// # Errors
    /// When the bytes were not sealed with this key for this manifest.
    pub fn open(&self, public: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        let mut summary = Zeroizing::new(sealed.to_vec());
        let len = aes_key(&self.0)
            .open_in_place(zero_nonce(), Aad::from(public), &mut summary)
            .map_err(|_| OpenError)?
            .len();
        summary.truncate(len);
        Ok(summary)
    }
}

impl fmt::Debug for SummaryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SummaryKey(secret)")
    }
}

/// The nonce for keys that seal one message only.
pub(crate) fn zero_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

impl fmt::Debug for OwnerSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerSecret(secret)")
    }
}

impl OwnerId {
    /// Whether `signature` is this owner's over `message`.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        PublicKey::from(*self).verify(message, signature)
    }
}

impl PublicKey {
    /// Whether `signature` was made over `message` with the private half of this key.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0)
            .verify(message, signature)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> SealContext {
        SealContext {
            checkpoint: CheckpointId([1; 16]),
            job_tag: JobTag([2; 32]),
            version: Version::new(3).unwrap(),
        }
    }

    #[test]
    fn segments_open_only_in_their_place() {
        let key = DataKey::new([7; 32]);
        let sealer = SegmentSealer::new(Cipher::Aes256Gcm, &key, context());
        let mut sealed = b"head".to_vec();
        sealed.extend_from_slice(b"segment");
        sealer.seal(5, &mut sealed, 4);
        let sealed = sealed.split_off(4);
        assert_eq!(sealed.len(), 7 + SEAL_OVERHEAD);

        assert_eq!(
            sealer.open(5, &mut sealed.clone()),
            Ok(b"segment".as_slice())
        );
        assert_eq!(sealer.open(6, &mut sealed.clone()), Err(OpenError));
        let elsewhere = SealContext {
            version: Version::new(4).unwrap(),
            ..context()
        };
        let other = SegmentSealer::new(Cipher::Aes256Gcm, &key, elsewhere);
        assert_eq!(other.open(5, &mut sealed.clone()), Err(OpenError));
        let other = SegmentSealer::new(Cipher::Aes256Gcm, &DataKey::new([8; 32]), context());
        assert_eq!(other.open(5, &mut sealed.clone()), Err(OpenError));
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(sealer.open(5, &mut changed), Err(OpenError));
        }
    }

    #[test]
    fn without_cipher_bytes_stay_as_they_are() {
        let sealer = SegmentSealer::new(Cipher::None, &DataKey::new([7; 32]), context());
        let mut bytes = b"plain".to_vec();
        sealer.seal(0, &mut bytes, 0);
        assert_eq!(sealer.open(0, &mut bytes), Ok(b"plain".as_slice()));
    }

    #[test]
    fn summaries_are_bound_to_their_manifest() {
        let key =
            |seed: u8, id: u8| SummaryKey([[seed; 16], [id; 16]].concat().try_into().unwrap());
        let sealed = key(9, 1).seal(b"public", b"secret".to_vec());
        assert_eq!(*key(9, 1).open(b"public", &sealed).unwrap(), b"secret");
        assert!(key(9, 1).open(b"changed", &sealed).is_err());
        assert!(key(9, 2).open(b"public", &sealed).is_err());
        assert!(key(8, 1).open(b"public", &sealed).is_err());
        assert!(key(9, 1).open(b"public", &[]).is_err());
    }

    #[test]
    fn signatures_are_the_owners() {
        let owner = OwnerSecret::new([9; 32]);
        let signature = owner.sign(b"message");
        assert!(owner.id().verify(b"message", &signature));
        assert!(!owner.id().verify(b"massage", &signature));
        assert!(
            !OwnerSecret::new([8; 32])
                .id()
                .verify(b"message", &signature)
        );
        assert!(!owner.id().verify(b"message", &signature[..63]));
    }

    /// Compiles only for types that overwrite their bytes when they are dropped.
    #[test]
    fn keys_erase_themselves_when_they_are_dropped() {
        const fn erases_itself<T: ZeroizeOnDrop>() -> bool {
            std::mem::needs_drop::<T>()
        }
        assert!(erases_itself::<OwnerSecret>() && erases_itself::<DataKey>());
    }

    #[test]
    fn secrets_are_not_printed() {
        assert_eq!(
            format!("{:?}", OwnerSecret::new([9; 32])),
            "OwnerSecret(secret)"
        );
        assert_eq!(format!("{:?}", DataKey::new([9; 32])), "DataKey(secret)");
    }
}
