//! Files that are encrypted with a passphrase, in the format of the program `age`, version 1
//! (age-encryption.org/v1, recipient `scrypt`): what is written here can be read by `age --decrypt`.
//!
//! ```text
//! age-encryption.org/v1
//! -> scrypt SALT WORK
//! file key, sealed with a key of the passphrase
//! --- MAC of the lines above
//! nonce 16, then chunks of 64 KiB, each sealed with a key of file key and nonce
//! ```

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::{hmac, rand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use zeroize::Zeroizing;

const VERSION: &str = "age-encryption.org/v1";
const STANZA: &str = "-> scrypt ";
const MAC: &str = "\n---";
const SALT_CONTEXT: &[u8] = b"age-encryption.org/v1/scrypt";
const SALT_BYTES: usize = 16;
const FILE_KEY_BYTES: usize = 16;
const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
const NONCE_BYTES: usize = 16;
const CHUNK_BYTES: usize = 64 << 10;

/// Work for the passphrase, as a power of two: 128 MiB and about half a second.
const WORK: u8 = 17;

/// Most work that is done for a file that somebody else may have written.
const WORK_MAX: u8 = 20;

/// Longest head of a file.
const HEAD_BYTES_MAX: usize = 4 << 10;

/// Bytes that can't be opened, or none that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AgeError {
    /// It is something else.
    #[error("not a file of the age format that is encrypted with a passphrase")]
    Form,
    /// It would take too long.
    #[error("made with more work for the passphrase than is done here (2^{0})")]
    Work(u8),
    /// It can't be opened.
    #[error("wrong passphrase")]
    Passphrase,
    /// It is not as it was written.
    #[error("damaged")]
    Damaged,
    /// The system.
    #[error("the system has no random numbers")]
    Random,
}

struct Bytes32;

impl KeyType for Bytes32 {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

/// Encrypts `plain`.
pub(super) fn seal(passphrase: &str, plain: &[u8]) -> Result<Vec<u8>, AgeError> {
    let (mut salt, mut nonce) = ([0; SALT_BYTES], [0; NONCE_BYTES]);
    let mut file_key = Zeroizing::new([0; FILE_KEY_BYTES]);
    for bytes in [&mut salt[..], &mut nonce[..], &mut file_key[..]] {
        rand::fill(bytes).map_err(|_| AgeError::Random)?;
    }
    let mut sealed = file_key.to_vec();
    let wrap = key_of_passphrase(passphrase, &salt, WORK)?;
    let tag = aead(&wrap)?
        .seal_in_place_separate_tag(
            Nonce::assume_unique_for_key([0; 12]),
            Aad::empty(),
            &mut sealed,
        )
        .map_err(|_| AgeError::Damaged)?;
    sealed.extend_from_slice(tag.as_ref());
    let (salt, sealed) = (BASE64.encode(salt), BASE64.encode(sealed));
    let head = format!("{VERSION}\n{STANZA}{salt} {WORK}\n{sealed}{MAC}");
    let mac = hmac::sign(&mac_key(&file_key)?, head.as_bytes());
    let mut out = format!("{head} {}\n", BASE64.encode(mac)).into_bytes();
    out.extend_from_slice(&nonce);
    let key = aead(&*derive(&file_key, &nonce, b"payload")?)?;
    let count = plain.len().div_ceil(CHUNK_BYTES).max(1);
    for number in 0..count {
        let chunk = plain.iter().skip(number * CHUNK_BYTES).take(CHUNK_BYTES);
        let mut chunk: Zeroizing<Vec<u8>> = Zeroizing::new(chunk.copied().collect());
        let nonce = nonce_of(number, number + 1 == count);
        let tag = key
            .seal_in_place_separate_tag(nonce, Aad::empty(), &mut chunk)
            .map_err(|_| AgeError::Damaged)?;
        out.extend_from_slice(&chunk);
        out.extend_from_slice(tag.as_ref());
    }
    Ok(out)
}

/// Decrypts what [`seal`] or `age --passphrase` wrote.
pub(super) fn open(passphrase: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, AgeError> {
    let (head, mac, payload) = split(sealed).ok_or(AgeError::Form)?;
    let (salt, work, wrapped) = read_head(head).ok_or(AgeError::Form)?;
    if work > WORK_MAX {
        return Err(AgeError::Work(work));
    }
    let mut wrapped = Zeroizing::new(wrapped);
    let wrap = key_of_passphrase(passphrase, &salt, work)?;
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    let file_key = aead(&wrap)?
        .open_in_place(nonce, Aad::empty(), &mut wrapped)
        .map_err(|_| AgeError::Passphrase)?;
    let file_key: &[u8; FILE_KEY_BYTES] = (&*file_key).try_into().map_err(|_| AgeError::Form)?;
    hmac::verify(&mac_key(file_key)?, head.as_bytes(), &mac).map_err(|_| AgeError::Damaged)?;
    let (nonce, chunks) = payload
        .split_first_chunk::<NONCE_BYTES>()
        .ok_or(AgeError::Damaged)?;
    let key = aead(&*derive(file_key, nonce, b"payload")?)?;
    let count = chunks.len().div_ceil(CHUNK_BYTES + TAG_BYTES);
    let mut plain = Zeroizing::new(Vec::with_capacity(chunks.len()));
    for (number, chunk) in chunks.chunks(CHUNK_BYTES + TAG_BYTES).enumerate() {
        let mut chunk = Zeroizing::new(chunk.to_vec());
        let opened = key.open_in_place(
            nonce_of(number, number + 1 == count),
            Aad::empty(),
            &mut chunk,
        );
        let opened = opened.map_err(|_| AgeError::Damaged)?;
        plain.extend_from_slice(opened);
    }
    // Even nothing has a chunk.
    if count == 0 {
        Err(AgeError::Damaged)
    } else {
        Ok(plain)
    }
}

/// Head with the dashes at its end, MAC, and what follows.
fn split(sealed: &[u8]) -> Option<(&str, Vec<u8>, &[u8])> {
    let start = sealed.get(..sealed.len().min(HEAD_BYTES_MAX))?;
    let at = start
        .windows(MAC.len())
        .position(|some| some == MAC.as_bytes())?;
    let (head, rest) = sealed.split_at_checked(at + MAC.len())?;
    let rest = rest.strip_prefix(b" ")?;
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let (mac, payload) = rest.split_at_checked(end)?;
    let mac = BASE64.decode(mac).ok()?;
    Some((std::str::from_utf8(head).ok()?, mac, payload.get(1..)?))
}

fn read_head(head: &str) -> Option<([u8; SALT_BYTES], u8, Vec<u8>)> {
    let mut lines = head.lines();
    if lines.next()? != VERSION {
        return None;
    }
    let (salt, work) = lines.next()?.strip_prefix(STANZA)?.split_once(' ')?;
    let salt = BASE64.decode(salt).ok()?.try_into().ok()?;
    let wrapped = BASE64.decode(lines.next()?).ok()?;
    let is_whole = wrapped.len() == FILE_KEY_BYTES + TAG_BYTES && lines.next()? == "---";
    is_whole.then_some((salt, work.parse().ok()?, wrapped))
}

fn key_of_passphrase(
    passphrase: &str,
    salt: &[u8; SALT_BYTES],
    work: u8,
) -> Result<Zeroizing<[u8; KEY_BYTES]>, AgeError> {
    let params = scrypt::Params::new(work, 8, 1).map_err(|_| AgeError::Work(work))?;
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    let salt = [SALT_CONTEXT, salt].concat();
    scrypt::scrypt(passphrase.as_bytes(), &salt, &params, key.as_mut())
        .map_err(|_| AgeError::Work(work))?;
    Ok(key)
}

fn derive(
    file_key: &[u8; FILE_KEY_BYTES],
    salt: &[u8],
    info: &[u8],
) -> Result<Zeroizing<[u8; KEY_BYTES]>, AgeError> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    Salt::new(HKDF_SHA256, salt)
        .extract(file_key)
        .expand(&[info], Bytes32)
        .and_then(|derived| derived.fill(key.as_mut()))
        .map_err(|_| AgeError::Damaged)?;
    Ok(key)
}

fn mac_key(file_key: &[u8; FILE_KEY_BYTES]) -> Result<hmac::Key, AgeError> {
    let key = derive(file_key, &[], b"header")?;
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &*key))
}

fn aead(key: &[u8; KEY_BYTES]) -> Result<LessSafeKey, AgeError> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key).map_err(|_| AgeError::Damaged)?;
    Ok(LessSafeKey::new(key))
}

/// Number of the chunk, big-endian in 11 bytes, and whether it is the last one.
#[allow(clippy::big_endian_bytes, reason = "the format of age counts parts so")]
fn nonce_of(number: usize, is_last: bool) -> Nonce {
    let mut nonce = [0; 12];
    if let Some(place) = nonce.get_mut(3..11) {
        place.copy_from_slice(&(number as u64).to_be_bytes());
    }
    if let Some(last) = nonce.last_mut() {
        *last = u8::from(is_last);
    }
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by `age` 1.1.1 with the passphrase `correct horse`, of 70,000 bytes
    /// that are their index modulo 251.
    const OF_AGE: &[u8] = include_bytes!("age_of_another_program.age");

    fn counted(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn what_another_program_wrote_is_read() {
        assert_eq!(*open("correct horse", OF_AGE).unwrap(), counted(70_000));
    }

    #[test]
    fn what_was_sealed_is_opened_with_its_passphrase_alone() {
        for len in [0, 5, CHUNK_BYTES, CHUNK_BYTES + 1] {
            let sealed = seal("battery staple", &counted(len)).unwrap();
            assert_eq!(*open("battery staple", &sealed).unwrap(), counted(len));
        }
        let sealed = seal("battery staple", b"secret").unwrap();
        assert_eq!(open("battery", &sealed), Err(AgeError::Passphrase));
    }

    #[test]
    fn what_was_changed_or_cut_is_refused() {
        let head_len = OF_AGE.windows(4).position(|some| some == b"\n---").unwrap() + 49;
        for at in [head_len - 3, head_len + 3, head_len + 40, OF_AGE.len() - 1] {
            let mut changed = OF_AGE.to_vec();
            changed[at] ^= 1;
            assert!(open("correct horse", &changed).is_err(), "byte {at}");
        }
        let cut = &OF_AGE[..OF_AGE.len() - 4464 - 16];
        assert_eq!(open("correct horse", cut), Err(AgeError::Damaged));
        assert_eq!(open("correct horse", b"nonsense"), Err(AgeError::Form));
        let hard = String::from_utf8_lossy(&OF_AGE[..60]).into_owned();
        assert!(hard.starts_with(VERSION), "{hard}");
    }

    #[test]
    fn more_work_than_is_bearable_is_refused() {
        let head = format!(
            "{VERSION}\n{STANZA}{} 30\n{}{MAC}",
            "A".repeat(22),
            "A".repeat(43)
        );
        let sealed = format!("{head} {}\n", "A".repeat(43));
        assert_eq!(open("x", sealed.as_bytes()), Err(AgeError::Work(30)));
    }
}
