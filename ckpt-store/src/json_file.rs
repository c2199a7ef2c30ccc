//! Small files in the data directory, most of them JSON, with counts and names that a daemon can start without.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads a file of at most `bytes_max` bytes; `None` if there is no such file.
///
/// # Errors
/// When the file can't be read, is longer, or has another content.
pub fn read<T: DeserializeOwned>(path: &Path, bytes_max: u64) -> io::Result<Option<T>> {
    match fs::metadata(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(cause),
        Ok(found) if found.len() > bytes_max => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "too large"))
        }
        Ok(_) => Ok(Some(serde_json::from_slice(&fs::read(path)?)?)),
    }
}

/// Moves a damaged file out of the way, so that its next version can take its place: `NAME.damaged`, which replaces
/// an earlier one. Returns the new path, if it could be moved.
pub fn set_aside(path: &Path) -> Option<PathBuf> {
    let mut name = path.file_name()?.to_owned();
    name.push(".damaged");
    let aside = path.with_file_name(name);
    fs::rename(path, &aside).is_ok().then_some(aside)
}

/// Replaces the file `path` in the directory `data` in one step. A crash may lose the new content, but
/// leaves a file that can be read.
///
/// # Errors
/// When the file can't be written.
pub fn write(data: &Path, path: &Path, contents: &impl Serialize) -> io::Result<()> {
    replace(data, path, &serde_json::to_vec(contents)?)
}

/// As [`write()`], for contents of any kind.
///
/// # Errors
/// When the file can't be written.
pub fn replace(data: &Path, path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(data)?;
    file.write_all(contents)?;
    file.as_file().sync_data()?;
    file.persist(path).map_err(|persist| persist.error)?;
    Ok(())
}
