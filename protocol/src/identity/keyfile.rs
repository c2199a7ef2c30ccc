//! Secret keys on disk: one line of text, readable by their owner only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use codec::OwnerId;
use codec::seal::OwnerSecret;
use zeroize::Zeroizing;

const PREFIX: &str = "ckpt-key-v1 ";

/// Why a key file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// Reading or writing failed.
    #[error("key file {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// Others could read the secret.
    #[error("key file {path} has mode {mode:04o}: others can read it; run chmod 600 {path}")]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Not a key.
    #[error("key file {0} is not `{PREFIX}` followed by 64 hexadecimal digits")]
    Malformed(PathBuf),
}

/// Reads a secret key.
///
/// # Errors
/// When the file is not there, is readable by others, or holds something else.
pub fn read_key(path: &Path) -> Result<OwnerSecret, KeyFileError> {
    let failed = |cause| KeyFileError::Io {
        path: path.to_owned(),
        cause,
    };
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Mode {
            path: path.to_owned(),
            mode,
        });
    }
    let mut text = Zeroizing::new(String::new());
    file.take(1024).read_to_string(&mut text).map_err(failed)?;
    text.trim_end()
        .strip_prefix(PREFIX)
        .and_then(OwnerId::from_hex)
        .map(|seed| OwnerSecret::new(seed.0))
        .ok_or_else(|| KeyFileError::Malformed(path.to_owned()))
}

/// Writes a secret key to a new file.
///
/// # Errors
/// When the file exists already or can't be written.
pub fn write_key(path: &Path, secret: &OwnerSecret) -> Result<(), KeyFileError> {
    let text = Zeroizing::new(format!("{PREFIX}{}\n", OwnerId(*secret.seed()).hex()));
    write_private(path, text.as_bytes()).map_err(|cause| KeyFileError::Io {
        path: path.to_owned(),
        cause,
    })
}

/// Writes a new file that only its owner can read, and syncs it.
///
/// # Errors
/// When the file exists already or can't be written.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if written.is_err() {
        // A half-written key would be taken for a broken one later.
        let _ = fs::remove_file(path);
    }
    written
}

#[cfg(test)]
mod tests {
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
    fn keys_that_others_can_read_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("owner.key");
        write_key(&path, &OwnerSecret::new([7; 32])).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let refused = read_key(&path).unwrap_err();
        assert!(matches!(refused, KeyFileError::Mode { mode: 0o640, .. }));
    }

    #[test]
    fn other_text_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("owner.key");
        for text in ["", "ckpt-key-v1 12", "ckpt-key-v2 00"] {
            write_private(&path, text.as_bytes()).unwrap();
            assert!(matches!(read_key(&path), Err(KeyFileError::Malformed(_))));
            fs::remove_file(&path).unwrap();
        }
    }
}
