//! Writes files of identities: private ones that only their owner can read, public ones in one step.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Writes a new file that only its owner can read, and syncs it and its directory.
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
    // Checkpoints that were saved with a key are lost if a crash loses the key, so it is synced.
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| sync_directory_of(path));
    if written.is_err() {
        // Otherwise a key that is half written would be found later, and taken for a damaged one.
        let _ = fs::remove_file(path);
    }
    written
}

/// Writes a file that everybody may read, in one step: readers see the old or the new content.
///
/// # Errors
/// When the file can't be written; the old one then stays.
pub fn replace_public(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o644))
        .tempfile_in(directory_of(path))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|persist| persist.error)?;
    sync_directory_of(path)
}

/// Syncs the directory of `path`, so that files that were created, renamed or removed there stay so after a
/// crash.
///
/// # Errors
/// When the directory can't be read.
pub fn sync_directory_of(path: &Path) -> io::Result<()> {
    File::open(directory_of(path))?.sync_all()
}

/// The directory that a file is in.
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_file_is_never_overwritten_and_a_public_one_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write_private(&path, b"1").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let exists = write_private(&path, b"2").unwrap_err();
        assert_eq!(exists.kind(), io::ErrorKind::AlreadyExists);
        replace_public(&path, b"3").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"3");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
