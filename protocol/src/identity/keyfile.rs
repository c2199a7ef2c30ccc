//! Files with secret keys: one line of text, which only the file's owner can read.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use codec::seal::OwnerSecret;
use zeroize::Zeroizing;

use super::Identity;
use super::files::write_private;
use super::jobkey::{JOB_KEY_FILE_BYTES_MAX, JobKeyTextError, is_job_key, job_key_from_text};

const PREFIX: &str = "ckpt-key-v1 ";

/// Most bytes that are read of a key file; it is always shorter.
pub const KEY_FILE_BYTES_MAX: usize = 256;

/// Why a key file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// Reading or writing failed.
    #[error("key file {path}")]
    Io {
        /// Path of the key file.
        path: PathBuf,
        /// Why the system refused it.
        #[source]
        cause: io::Error,
    },
    /// Other users can read the file.
    #[error("key file {path} has mode {mode:04o}: others can read it; run chmod 600 {path}")]
    Mode {
        /// Path of the key file.
        path: PathBuf,
        /// The permission bits that the file has.
        mode: u32,
    },
    /// The file belongs to another user.
    #[error(
        "key file {path} belongs to user {owner}, who can read and replace it; run chown {user} {path}"
    )]
    Owner {
        /// Path of the key file.
        path: PathBuf,
        /// User id of the file's owner.
        owner: u32,
        /// User id of this process.
        user: u32,
    },
    /// The file has something else.
    #[error("key file {0} is not `{PREFIX}` followed by 64 hexadecimal digits")]
    Malformed(PathBuf),
    /// The file begins as a job key does, and the rest is not one.
    #[error("job key {path}")]
    JobKey {
        /// Path of the key file.
        path: PathBuf,
        /// Why the rest of the text is no job key.
        #[source]
        cause: JobKeyTextError,
    },
}

/// The system gives no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system returned no random numbers")]
pub struct RandomError;

/// Makes a new secret key.
///
/// # Errors
/// When the system gives no random numbers.
pub fn new_key() -> Result<OwnerSecret, RandomError> {
    let mut seed = Zeroizing::new([0; 32]);
    aws_lc_rs::rand::fill(seed.as_mut()).map_err(|_| RandomError)?;
    Ok(OwnerSecret::new(*seed))
}

/// Reads a secret key.
///
/// # Errors
/// When the file is missing, belongs to another user, can be read by others, or has something else.
pub fn read_key(path: &Path) -> Result<OwnerSecret, KeyFileError> {
    let text = read_private(path, KEY_FILE_BYTES_MAX)?;
    key_from_text(&text).ok_or_else(|| KeyFileError::Malformed(path.to_owned()))
}

/// A key that a program can act with.
#[derive(Debug)]
pub enum AnyKey {
    /// A member's own key; its certificate is in another file.
    Member(OwnerSecret),
    /// A job key, with its certificates.
    Job(Box<Identity>),
}

/// Reads a member's secret key, or a job key.
///
/// # Errors
/// When the file is missing, belongs to another user, can be read by others, or has something else.
pub fn read_any_key(path: &Path) -> Result<AnyKey, KeyFileError> {
    let text = read_private(path, JOB_KEY_FILE_BYTES_MAX)?;
    if is_job_key(&text) {
        let read = job_key_from_text(&text);
        let identity = read.map_err(|cause| KeyFileError::JobKey {
            path: path.to_owned(),
            cause,
        })?;
        return Ok(AnyKey::Job(Box::new(identity)));
    }
    any_key_from_text(&text).ok_or_else(|| KeyFileError::Malformed(path.to_owned()))
}

/// Reads the text of a member's key file, or of a job key; `None` if the text is something else.
pub fn any_key_from_text(text: &str) -> Option<AnyKey> {
    if is_job_key(text) {
        let identity = job_key_from_text(text).ok()?;
        return Some(AnyKey::Job(Box::new(identity)));
    }
    key_from_text(text).map(AnyKey::Member)
}

/// Reads at most `most` bytes of a file, after checking that no other user can read it.
fn read_private(path: &Path, most: usize) -> Result<Zeroizing<String>, KeyFileError> {
    let failed = |cause| KeyFileError::Io {
        path: path.to_owned(),
        cause,
    };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let owner = metadata.uid();
    let user = rustix::process::geteuid().as_raw();
    if !is_owner_fit(owner, user) {
        return Err(KeyFileError::Owner {
            path: path.to_owned(),
            owner,
            user,
        });
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Mode {
            path: path.to_owned(),
            mode,
        });
    }
    // Enough capacity from the beginning: a string that grows leaves copies of the secret in memory.
    let mut text = Zeroizing::new(String::with_capacity(most));
    file.take(most as u64)
        .read_to_string(&mut text)
        .map_err(failed)?;
    Ok(text)
}

/// Whether `user` can rely on a key file of `owner`: it has to be their own, or root's.
const fn is_owner_fit(owner: u32, user: u32) -> bool {
    owner == user || owner == 0
}

/// Reads the text of a key file; `None` if the text is something else.
pub fn key_from_text(text: &str) -> Option<OwnerSecret> {
    let seed = text.trim_end().strip_prefix(PREFIX).and_then(seed_from_hex);
    seed.map(|seed| OwnerSecret::new(*seed))
}

/// The text of a key file.
pub fn key_to_text(secret: &OwnerSecret) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(KEY_FILE_BYTES_MAX));
    text.push_str(PREFIX);
    for byte in secret.seed() {
        text.extend(
            [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])),
        );
    }
    text.push('\n');
    text
}

/// Writes a secret key to a new file.
///
/// # Errors
/// When the file exists already or can't be written.
pub fn write_key(path: &Path, secret: &OwnerSecret) -> Result<(), KeyFileError> {
    let text = key_to_text(secret);
    write_private(path, text.as_bytes()).map_err(|cause| KeyFileError::Io {
        path: path.to_owned(),
        cause,
    })
}

fn seed_from_hex(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let mut seed = Zeroizing::new([0; 32]);
    if text.len() != 2 * seed.len() {
        return None;
    }
    for (byte, digits) in seed.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        for &digit in digits {
            let value = char::from(digit).to_digit(16)?;
            *byte = *byte << 4 | value as u8;
        }
    }
    Some(seed)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn keys_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("owner.key");
        write_key(&path, &OwnerSecret::new([7; 32])).unwrap();
        assert_eq!(read_key(&path).unwrap().seed(), &[7; 32]);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert!(matches!(
            write_key(&path, &OwnerSecret::new([8; 32])),
            Err(KeyFileError::Io { .. })
        ));
    }

    #[test]
    fn the_text_of_a_key_is_as_documented() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("owner.key");
        let seed: [u8; 32] = std::array::from_fn(|i| 16 * (i as u8 % 16) + 15 - i as u8 % 16);
        write_key(&path, &OwnerSecret::new(seed)).unwrap();
        let digits = "0f1e2d3c4b5a69788796a5b4c3d2e1f0".repeat(2);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("ckpt-key-v1 {digits}\n"));
        assert_eq!(read_key(&path).unwrap().seed(), &seed);
    }

    #[test]
    fn keys_that_others_can_read_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("owner.key");
        write_key(&path, &OwnerSecret::new([7; 32])).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let refused = read_key(&path).unwrap_err();
        assert!(matches!(refused, KeyFileError::Mode { mode: 0o640, .. }));
        let text = refused.to_string();
        assert!(
            text.contains("owner.key") && text.contains("0640"),
            "{text}"
        );
    }

    #[test]
    fn a_key_file_of_another_user_is_refused() {
        assert!(is_owner_fit(1000, 1000) && is_owner_fit(0, 1000) && is_owner_fit(0, 0));
        assert!(!is_owner_fit(1001, 1000) && !is_owner_fit(1000, 0));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("owner.key");
        write_key(&path, &OwnerSecret::new([7; 32])).unwrap();
        // Only root can give a file away.
        if std::os::unix::fs::chown(&path, Some(4711), None).is_ok() {
            let refused = read_key(&path).unwrap_err();
            assert!(matches!(refused, KeyFileError::Owner { owner: 4711, .. }));
        }
    }

    #[test]
    fn new_keys_differ() {
        assert_ne!(new_key().unwrap().seed(), new_key().unwrap().seed());
    }

    #[test]
    fn other_text_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("owner.key");
        let digits = "0a".repeat(32);
        for text in [
            String::new(),
            "ckpt-key-v1 12".into(),
            format!("ckpt-key-v2 {digits}"),
            format!("ckpt-key-v1 {digits}00"),
            format!("ckpt-key-v1 {}", digits.replace("0a", "+a")),
            format!("ckpt-key-v1 {}", "\u{e9}".repeat(32)),
        ] {
            write_private(&path, text.as_bytes()).unwrap();
            assert!(matches!(read_key(&path), Err(KeyFileError::Malformed(_))));
            fs::remove_file(&path).unwrap();
        }
    }
}
