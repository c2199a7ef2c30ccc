//! Files that are encrypted with a passphrase: PBKDF2 (RFC 8018) makes the key of the passphrase, AES-256-GCM
//! (NIST SP 800-38D) encrypts. The bytes are in `docs/inside/format.md`, *Sealed files*.

use std::num::NonZeroU32;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{pbkdf2, rand};
use zeroize::Zeroizing;

/// First bytes of a file.
const MAGIC: &[u8; 16] = b"ckpt v1 sealed  ";

/// First bytes of a file that programs before this format wrote, and that the program `age` reads.
const AGE_MAGIC: &[u8] = b"age-encryption.org/";

const SALT_BYTES: usize = 16;

/// Magic, rounds, salt.
const HEAD_BYTES: usize = MAGIC.len() + size_of::<u32>() + SALT_BYTES;

/// Rounds of PBKDF2 with HMAC-SHA-512 for a new file: nearly five times the 210,000 that OWASP recommends
/// (Password Storage Cheat Sheet, 2023). Fixed, so that a slower machine reads the file in a known time.
const ROUNDS: NonZeroU32 = match NonZeroU32::new(1_000_000) {
    Some(rounds) => rounds,
    None => NonZeroU32::MIN,
};

/// Most rounds of a file that someone else may have written: ten times the time of an own file.
const ROUNDS_MAX: u32 = 10_000_000;

/// Why a file can't be opened or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum SealedFileError {
    /// It is no such file.
    #[error("not a file that `ckpt grid backup` or `ckpt key export --seal` wrote")]
    Form,
    /// A program from before this format wrote it.
    #[error("has the age format, which earlier programs wrote")]
    Age,
    /// The rounds that it asks for would take too long.
    #[error("asks for {0} rounds of key derivation, and this program does {ROUNDS_MAX} at most")]
    Rounds(u32),
    /// The key does not fit. AES-GCM can't distinguish the two causes.
    #[error("wrong passphrase, or the file was changed")]
    Passphrase,
    /// The library of cryptography failed, for want of memory or random numbers.
    #[error("can't be encrypted")]
    Seal,
}

/// Encrypts `plain`.
pub(super) fn seal(passphrase: &str, plain: &[u8]) -> Result<Vec<u8>, SealedFileError> {
    let mut salt = [0; SALT_BYTES];
    rand::fill(&mut salt).map_err(|_| SealedFileError::Seal)?;
    let mut head = Vec::with_capacity(HEAD_BYTES);
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(&ROUNDS.get().to_le_bytes());
    head.extend_from_slice(&salt);
    let key = key_of(passphrase, ROUNDS, &salt).ok_or(SealedFileError::Seal)?;
    let mut sealed = head.clone();
    sealed.reserve(plain.len() + AES_256_GCM.tag_len());
    sealed.extend_from_slice(plain);
    let content = sealed.get_mut(HEAD_BYTES..).ok_or(SealedFileError::Seal)?;
    let tag = key
        .seal_in_place_separate_tag(nonce(), Aad::from(&head), content)
        .map_err(|_| SealedFileError::Seal)?;
    sealed.extend_from_slice(tag.as_ref());
    Ok(sealed)
}

/// What a file says of its key, and its encrypted content.
struct Parts<'a> {
    head: &'a [u8],
    rounds: NonZeroU32,
    salt: &'a [u8],
    content: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(sealed: &'a [u8]) -> Result<Self, SealedFileError> {
        if sealed.starts_with(AGE_MAGIC) {
            return Err(SealedFileError::Age);
        }
        let parts = sealed.split_at_checked(HEAD_BYTES);
        let (head, content) = parts.ok_or(SealedFileError::Form)?;
        let rest = head.strip_prefix(MAGIC).ok_or(SealedFileError::Form)?;
        let (rounds, salt) = rest.split_first_chunk().ok_or(SealedFileError::Form)?;
        let rounds = u32::from_le_bytes(*rounds);
        let bearable = NonZeroU32::new(rounds).filter(|rounds| rounds.get() <= ROUNDS_MAX);
        Ok(Self {
            head,
            rounds: bearable.ok_or(SealedFileError::Rounds(rounds))?,
            salt,
            content,
        })
    }
}

/// Checks what can be checked without the passphrase.
pub(super) fn check(sealed: &[u8]) -> Result<(), SealedFileError> {
    Parts::of(sealed).map(|_| ())
}

/// Whether these bytes are a tar archive (POSIX.1-1988, `ustar`), which is what is sealed.
pub(super) fn is_archive(bytes: &[u8]) -> bool {
    bytes.get(257..262) == Some(b"ustar")
}

/// Decrypts what [`seal`] wrote.
pub(super) fn open(passphrase: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealedFileError> {
    let parts = Parts::of(sealed)?;
    let key = key_of(passphrase, parts.rounds, parts.salt).ok_or(SealedFileError::Form)?;
    let mut content = Zeroizing::new(parts.content.to_vec());
    let plain = key
        .open_in_place(nonce(), Aad::from(parts.head), &mut content)
        .map_err(|_| SealedFileError::Passphrase)?;
    let len = plain.len();
    content.truncate(len);
    Ok(content)
}

fn key_of(passphrase: &str, rounds: NonZeroU32, salt: &[u8]) -> Option<LessSafeKey> {
    let mut key = Zeroizing::new([0; 32]);
    let secret = passphrase.as_bytes();
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA512, rounds, salt, secret, &mut *key);
    let key = UnboundKey::new(&AES_256_GCM, &*key).ok()?;
    Some(LessSafeKey::new(key))
}

/// A key encrypts one file, because its salt is drawn for the file: so the nonce need not differ.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_file_is_opened_with_its_passphrase_alone() {
        let plain = b"secret".repeat(20_000);
        for len in [0, 1, plain.len()] {
            let sealed = seal("battery staple", &plain[..len]).unwrap();
            assert_eq!(*open("battery staple", &sealed).unwrap(), plain[..len]);
            assert!(len == 0 || !sealed.windows(6).any(|some| some == b"secret"));
            let wrong = open("battery", &sealed);
            assert!(
                matches!(wrong, Err(SealedFileError::Passphrase)),
                "{wrong:?}"
            );
        }
        let one = seal("a", b"same").unwrap();
        let other = seal("a", b"same").unwrap();
        assert_ne!(
            one[HEAD_BYTES..],
            other[HEAD_BYTES..],
            "each has a salt of its own"
        );
    }

    /// `plain`, encrypted by another program: `PBKDF2HMAC(SHA512(), 32, salt, rounds)` and `AESGCM(key).encrypt(bytes(12),
    /// b"plain", head)` of the Python package `cryptography`, with salt 0 to 15, one round, and the passphrase
    /// `correct horse`.
    const OF_ANOTHER_PROGRAM: [u8; 21] = [
        0x9f, 0xb5, 0x2c, 0xbb, 0x09, 0xa1, 0x11, 0xb4, 0x82, 0x6e, 0x67, 0x08, 0x05, 0x26, 0x52,
        0xd8, 0xdb, 0x7b, 0xbf, 0xfe, 0xb7,
    ];

    #[test]
    fn a_file_of_another_program_is_opened() {
        let mut sealed = MAGIC.to_vec();
        sealed.extend([1, 0, 0, 0]);
        sealed.extend(0..16);
        sealed.extend(OF_ANOTHER_PROGRAM);
        assert_eq!(*open("correct horse", &sealed).unwrap(), b"plain");
    }

    #[test]
    fn a_changed_or_cut_file_is_refused() {
        let sealed = seal("battery staple", b"secret").unwrap();
        for at in [
            0,
            MAGIC.len() - 1,
            MAGIC.len(),
            HEAD_BYTES - 1,
            HEAD_BYTES,
            sealed.len() - 1,
        ] {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(open("battery staple", &changed).is_err(), "byte {at}");
        }
        for len in [0, 3, HEAD_BYTES - 1, HEAD_BYTES, sealed.len() - 1] {
            assert!(
                open("battery staple", &sealed[..len]).is_err(),
                "{len} bytes"
            );
        }
    }

    #[test]
    fn more_rounds_than_are_bearable_are_refused() {
        for rounds in [0, ROUNDS_MAX + 1, u32::MAX] {
            let mut sealed = MAGIC.to_vec();
            sealed.extend(rounds.to_le_bytes());
            sealed.extend([0; 64]);
            let refused = open("x", &sealed);
            assert!(
                matches!(refused, Err(SealedFileError::Rounds(_))),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn a_file_of_an_earlier_program_is_named() {
        let refused = open("x", b"age-encryption.org/v1\n-> scrypt ");
        assert!(matches!(refused, Err(SealedFileError::Age)), "{refused:?}");
    }
}
