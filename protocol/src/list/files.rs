//! The files in which a program keeps the list of its grid.

use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustls_pki_types::CertificateDer;
use tracing::warn;

use super::{Contents, GridList, ListError};
use crate::identity::{directory_of, replace_public};
use crate::wire::limits::LIST_BYTES_MAX;

/// How long to wait for another process that writes the same file.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The file that the grid file names, and a file of the program's own in case the first can't be written.
/// Of two lists the one with the higher number counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFiles {
    named: PathBuf,
    own: Option<PathBuf>,
}

impl ListFiles {
    /// The file that the grid file names ([`Grid::list_path`](crate::grid::Grid::list_path)), and a file that this
    /// program can write.
    pub const fn new(named: PathBuf, own: Option<PathBuf>) -> Self {
        Self { named, own }
    }

    /// The paths of the files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&self.named)
            .chain(&self.own)
            .map(PathBuf::as_path)
    }

    /// The newest list in the files. A list that must not be believed is left aside, with a line in the log.
    pub fn newest(&self, authority: &CertificateDer<'_>) -> Option<(GridList, Contents)> {
        let lists = self.paths().filter_map(|path| load(path, authority));
        lists.max_by_key(|(list, _)| list.number())
    }

    /// Writes a list, unless the file has one that is as new. Returns whether it was written.
    ///
    /// # Errors
    /// When none of the files can be written; their content then stays.
    pub fn keep(&self, authority: &CertificateDer<'_>, list: &GridList) -> io::Result<bool> {
        let written = keep_at(&self.named, authority, list);
        match (written, &self.own) {
            (Err(_), Some(own)) => keep_at(own, authority, list),
            (written, _) => written,
        }
    }
}

fn keep_at(path: &Path, authority: &CertificateDer<'_>, list: &GridList) -> io::Result<bool> {
    // Several programs of a machine may share the file.
    let _lock = lock_directory(directory_of(path))?;
    let known = load(path, authority);
    if known.is_some_and(|(known, _)| known.number() >= list.number()) {
        return Ok(false);
    }
    replace_public(path, list.bytes()).map(|()| true)
}

fn lock_directory(dir: &Path) -> io::Result<File> {
    let file = File::open(dir)?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(cause) => return Err(cause.into()),
        }
    }
}

/// The list in a file; `None` if there is no file or its list must not be believed.
fn load(path: &Path, authority: &CertificateDer<'_>) -> Option<(GridList, Contents)> {
    let read = read(path).map_err(|cause| cause.to_string());
    let checked = match read {
        Ok(None) => return None,
        Ok(Some(bytes)) => {
            GridList::check(authority, bytes).map_err(|cause: ListError| cause.to_string())
        }
        Err(cause) => Err(cause),
    };
    checked
        .inspect_err(|why| warn!(file = %path.display(), why, "ignored a list of the grid"))
        .ok()
}

/// The bytes of a file, at most one more than a list may have; `None` if there is no file.
fn read(path: &Path) -> io::Result<Option<Bytes>> {
    let file = match File::open(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    // One byte more shows that the file is too long.
    file.take(LIST_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(Some(bytes.into()))
}
