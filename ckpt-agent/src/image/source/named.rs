//! Files that are stored under other names than their own.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use codec::index::PATH_BYTES_MAX;

/// A path on this machine, and the name under which it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPath {
    path: PathBuf,
    name: Option<Vec<u8>>,
}

/// Why a file can't be stored under a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is not a relative path, or contains `.` or `..`.
    #[error("{path:?} cannot be stored as {name:?}: a name is a relative path without . and ..")]
    Impossible {
        /// The path to store.
        path: PathBuf,
        /// The name that was asked for.
        name: PathBuf,
    },
    /// The argument can be read in two ways, and both paths exist.
    #[error("{argument:?} is ambiguous: {one:?} and {other:?} both exist")]
    Ambiguous {
        /// What the user typed.
        argument: PathBuf,
        /// A path that it can mean.
        one: PathBuf,
        /// Another path that it can mean.
        other: PathBuf,
    },
}

impl NamedPath {
    /// A path that is stored under its own name.
    pub fn own(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            name: None,
        }
    }

    /// A path that is stored as `name`, a relative path. `path` must not be a symbolic link.
    ///
    /// # Errors
    /// When `name` is not a relative path without `.` and `..`.
    pub fn renamed(path: impl Into<PathBuf>, name: &OsStr) -> Result<Self, NameError> {
        let path = path.into();
        let name = name.as_bytes();
        let is_name = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
        if name.len() > PATH_BYTES_MAX || !name.split(|&byte| byte == b'/').all(is_name) {
            let name = PathBuf::from(OsStr::from_bytes(name));
            return Err(NameError::Impossible { path, name });
        }
        Ok(Self {
            path,
            name: Some(name.to_vec()),
        })
    }

    /// Parses `PATH` or `PATH=NAME`. If the whole argument is an existing path, it is that path. Otherwise
    /// the `=` is used before which there is an existing path.
    ///
    /// # Errors
    /// When the name is not valid, or when there are several such `=`.
    pub fn of_argument(argument: &Path) -> Result<Self, NameError> {
        let is_there = |path: &Path| path.symlink_metadata().is_ok();
        let bytes = argument.as_os_str().as_bytes();
        if !bytes.contains(&b'=') || is_there(argument) {
            return Ok(Self::own(argument));
        }
        let places = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'=');
        let ways = places.filter_map(|(at, _)| {
            let path = bytes.get(..at)?;
            let name = bytes.get(at + 1..)?;
            Some((Path::new(OsStr::from_bytes(path)), OsStr::from_bytes(name)))
        });
        let mut ways = ways.filter(|(path, _)| is_there(path));
        match (ways.next(), ways.next()) {
            (None, _) => Ok(Self::own(argument)),
            (Some((path, name)), None) => Self::renamed(path, name),
            (Some((one, _)), Some((other, _))) => Err(NameError::Ambiguous {
                argument: argument.to_owned(),
                one: one.to_owned(),
                other: other.to_owned(),
            }),
        }
    }

    /// The name under which it is stored; `None` if it has none, as `/` and `..`.
    #[must_use]
    pub fn stored_name(&self) -> Option<PathBuf> {
        match &self.name {
            Some(name) => Some(PathBuf::from(OsStr::from_bytes(name))),
            None => self.path.file_name().map(PathBuf::from),
        }
    }

    /// The path whose content is stored.
    #[must_use]
    pub fn into_path(self) -> PathBuf {
        self.path
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }
}

/// The one of the `taken` paths that equals `path`, or lies above or below it.
pub(super) fn overlapping<'a>(taken: &'a BTreeSet<Vec<u8>>, path: &[u8]) -> Option<&'a [u8]> {
    let mut itself_and_above = std::iter::once(path).chain(above(path));
    let found = itself_and_above.find_map(|path| taken.get(path));
    let first_below = [path, b"/"].concat();
    let below = || {
        let next = taken.range(first_below.clone()..).next();
        next.filter(|next| next.starts_with(&first_below))
    };
    found.or_else(below).map(Vec::as_slice)
}

/// The paths of the directories above `name`, the outermost first.
pub(super) fn above(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = name.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    slashes.filter_map(|(at, _)| name.get(..at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_overlaps_with_itself_and_with_those_above_and_below_it() {
        let taken: BTreeSet<Vec<u8>> = [&b"a/b"[..], b"a-b", b"c", b"d/e/f"]
            .map(<[u8]>::to_vec)
            .into();
        let found = |path: &[u8]| overlapping(&taken, path).map(<[u8]>::to_vec);
        for (path, other) in [
            (&b"a/b"[..], &b"a/b"[..]),
            (b"a", b"a/b"),
            (b"a/b/c/d", b"a/b"),
            (b"c/x", b"c"),
            (b"d", b"d/e/f"),
        ] {
            assert_eq!(found(path).as_deref(), Some(other), "{path:?}");
        }
        for path in [&b"a/bc"[..], b"a/c", b"b", b"cc", b"d/e/g", b"a-"] {
            assert_eq!(found(path), None, "{path:?}");
        }
    }
}
