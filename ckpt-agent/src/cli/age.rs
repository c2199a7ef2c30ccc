//! Files that are encrypted with a passphrase, in the format of the program `age`, so that `age
//! --decrypt` can read them.

use std::io::{Read, Write};
use std::iter;

use age::secrecy::SecretString;
use age::{DecryptError, Decryptor, EncryptError, Encryptor, scrypt};
use zeroize::Zeroizing;

/// Cost of deriving the key from the passphrase, as a power of two: 128 MiB, and about half a second.
/// Fixed, because the library would fit it to the speed of this machine, and a backup may be read on a
/// slower one.
const WORK_LOG2: u8 = 17;

/// Highest accepted cost of a file that someone else may have written, as a power of two: 1 GiB.
const WORK_LOG2_MAX: u8 = 20;

/// Why a file can't be opened or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum AgeError {
    /// It is no such file.
    #[error("not a file of the age format that is encrypted with a passphrase")]
    Form,
    /// Deriving its key would cost too much.
    #[error("the passphrase's work factor (2^{0}) is above the limit of this program")]
    Work(u8),
    /// The passphrase is wrong.
    #[error("wrong passphrase")]
    Passphrase,
    /// It has changed since it was written.
    #[error("damaged")]
    Damaged,
    /// It can't be encrypted.
    #[error(transparent)]
    Seal(#[from] EncryptError),
    /// The encrypted bytes can't be written or read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Encrypts `plain`.
pub(super) fn seal(passphrase: &str, plain: &[u8]) -> Result<Vec<u8>, AgeError> {
    let mut recipient = scrypt::Recipient::new(SecretString::from(passphrase));
    recipient.set_work_factor(WORK_LOG2);
    let encryptor = Encryptor::with_recipients(iter::once(&recipient as &dyn age::Recipient))?;
    let mut sealed = encryptor.wrap_output(Vec::new())?;
    sealed.write_all(plain)?;
    Ok(sealed.finish()?)
}

/// Decrypts what [`seal`] or `age --passphrase` wrote.
pub(super) fn open(passphrase: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, AgeError> {
    let mut identity = scrypt::Identity::new(SecretString::from(passphrase));
    identity.set_max_work_factor(WORK_LOG2_MAX);
    let sealed_file = Decryptor::new_buffered(sealed).map_err(said)?;
    if !sealed_file.is_scrypt() {
        return Err(AgeError::Form);
    }
    let mut opened = sealed_file
        .decrypt(iter::once(&identity as &dyn age::Identity))
        .map_err(said)?;
    // Enough capacity for everything: growing would leave copies of the secret in memory.
    let mut plain = Zeroizing::new(Vec::with_capacity(sealed.len()));
    opened
        .read_to_end(&mut plain)
        .map_err(|_| AgeError::Damaged)?;
    Ok(plain)
}

fn said(error: DecryptError) -> AgeError {
    match error {
        DecryptError::ExcessiveWork { required, .. } => AgeError::Work(required),
        DecryptError::KeyDecryptionFailed | DecryptError::DecryptionFailed => AgeError::Passphrase,
        DecryptError::InvalidMac => AgeError::Damaged,
        DecryptError::InvalidHeader
        | DecryptError::NoMatchingKeys
        | DecryptError::UnknownFormat
        | DecryptError::Io(_) => AgeError::Form,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 70,000 bytes, each its index modulo 251, encrypted by `age` 1.1.1 with the passphrase `correct
    /// horse`.
    const OF_AGE: &[u8] = include_bytes!("age_of_another_program.age");

    /// A backup of `ckpt grid backup` from the time when the format was code of this project. The
    /// passphrase is `battery staple`.
    const OF_EARLIER: &[u8] = include_bytes!("age_of_earlier_program.age");

    /// Bytes of a chunk of the format.
    const CHUNK_BYTES: usize = 64 << 10;

    fn counted(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn files_of_other_and_earlier_programs_are_read() {
        assert_eq!(*open("correct horse", OF_AGE).unwrap(), counted(70_000));
        let archive = open("battery staple", OF_EARLIER).unwrap();
        let names: Vec<_> = tar::Archive::new(archive.as_slice())
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().into_owned())
            .collect();
        assert!(names.contains(&"authority.key".into()), "{names:?}");
    }

    #[test]
    fn a_sealed_file_is_opened_with_its_passphrase_alone() {
        for len in [0, 5, CHUNK_BYTES, CHUNK_BYTES + 1] {
            let sealed = seal("battery staple", &counted(len)).unwrap();
            assert!(sealed.starts_with(b"age-encryption.org/v1\n-> scrypt "));
            assert_eq!(*open("battery staple", &sealed).unwrap(), counted(len));
        }
        let sealed = seal("battery staple", b"secret").unwrap();
        let wrong = open("battery", &sealed);
        assert!(matches!(wrong, Err(AgeError::Passphrase)), "{wrong:?}");
    }

    #[test]
    fn a_changed_or_cut_file_is_refused() {
        let head_len = OF_AGE.windows(4).position(|some| some == b"\n---").unwrap() + 49;
        for at in [head_len - 3, head_len + 3, head_len + 40, OF_AGE.len() - 1] {
            let mut changed = OF_AGE.to_vec();
            changed[at] ^= 1;
            assert!(open("correct horse", &changed).is_err(), "byte {at}");
        }
        for cut in [OF_AGE.len() - 4464 - 16, OF_AGE.len() - 1] {
            let cut = open("correct horse", &OF_AGE[..cut]);
            assert!(matches!(cut, Err(AgeError::Damaged)), "{cut:?}");
        }
        for nonsense in [&b"nonsense"[..], b"", &OF_AGE[..60]] {
            let refused = open("correct horse", nonsense);
            assert!(matches!(refused, Err(AgeError::Form)), "{refused:?}");
        }
    }

    #[test]
    fn more_work_than_is_bearable_is_refused() {
        let (salt, key, mac) = ("A".repeat(22), "A".repeat(43), "A".repeat(43));
        let head = format!(
            "age-encryption.org/v1\n-> scrypt {salt} 30\n{key}\n--- {mac}\n{}",
            "n".repeat(16)
        );
        let refused = open("x", head.as_bytes());
        assert!(matches!(refused, Err(AgeError::Work(30))), "{refused:?}");
    }
}
