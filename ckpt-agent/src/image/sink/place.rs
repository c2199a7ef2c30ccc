//! Decides where an image goes when the user names a path, and what it may replace there.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use codec::index::{FileKind, Index};
use rustix::fs::{AtFlags, FileType};

use super::SinkError;

/// The kind of file that an image becomes at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::image) enum Shape {
    /// A single file, link or pipe.
    File,
    /// A directory with files in it.
    Tree,
}

impl Shape {
    /// The shape of the image of `index`.
    pub(in crate::image) fn of(index: &Index) -> Self {
        let mut roots = index.files.iter().filter(|file| !file.path.contains(&b'/'));
        match (roots.next(), roots.next()) {
            (Some(only), None) if only.kind != FileKind::Directory => Self::File,
            _ => Self::Tree,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Tree => "a directory",
        }
    }
}

/// Where the image of `index` goes when the user names `path`. As with `cp`: if `path` is an existing
/// directory, into it, under `name`; otherwise to `path` itself. But a tree replaces a directory with its own
/// name, and does not go into it, unless `path` ends with a slash.
///
/// # Errors
/// When `path` ends with a slash, is not a directory, and can't become one.
pub fn place(index: &Index, path: &Path, name: &OsStr) -> Result<PathBuf, SinkError> {
    let shape = Shape::of(index);
    let says_into = is_of_a_directory(path);
    let found = if says_into {
        fs::metadata(path)
    } else {
        fs::symlink_metadata(path)
    };
    let is_itself = !says_into && shape == Shape::Tree && path.file_name() == Some(name);
    match found {
        Ok(found) if found.is_dir() && !is_itself => Ok(path.join(name)),
        Err(cause) if says_into && shape == Shape::Tree && is_missing(&cause) => {
            Ok(path.components().collect())
        }
        _ if says_into => Err(SinkError::NoDirectory(path.to_owned())),
        _ => Ok(path.to_owned()),
    }
}

fn is_missing(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::NotFound
}

/// Whether a path can only name a directory.
fn is_of_a_directory(path: &Path) -> bool {
    let last = path
        .as_os_str()
        .as_bytes()
        .rsplit(|&byte| byte == b'/')
        .next();
    matches!(last, Some(b"" | b"." | b".."))
}

/// Fails when the file at the target must not be replaced by an image of this shape.
pub(super) fn may_replace(
    parent: &OwnedFd,
    target: &Path,
    image: Shape,
    force: bool,
) -> Result<(), SinkError> {
    let name = target.file_name().unwrap_or_default();
    let Ok(found) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return Ok(());
    };
    if !force {
        return Err(SinkError::Exists(target.to_owned()));
    }
    let there = FileType::from_raw_mode(found.st_mode);
    let is_like = match image {
        Shape::File => matches!(there, FileType::RegularFile | FileType::Symlink),
        Shape::Tree => there == FileType::Directory,
    };
    if is_like {
        return Ok(());
    }
    Err(SinkError::Unlike {
        path: target.to_owned(),
        there: match there {
            FileType::RegularFile => "a file",
            FileType::Directory => "a directory",
            FileType::Symlink => "a link",
            FileType::Fifo => "a pipe",
            FileType::Socket => "a socket",
            FileType::CharacterDevice | FileType::BlockDevice => "a device",
            _ => "something else",
        },
        image: image.name(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use codec::index::FileEntry;

    use super::*;

    fn index(files: &[(&str, FileKind)]) -> Index {
        let entry = |(path, kind): &(&str, FileKind)| FileEntry {
            path: path.as_bytes().to_vec(),
            mode: 0o700,
            mtime_s: 0,
            mtime_ns: 0,
            kind: kind.clone(),
            attributes: None,
        };
        Index {
            files: files.iter().map(entry).collect(),
            segments: vec![],
        }
    }

    #[test]
    fn an_existing_directory_is_gone_into() {
        let file = || FileKind::Regular {
            size: 0,
            extents: vec![],
        };
        let single = index(&[("dump", file())]);
        let tree = index(&[("dump", FileKind::Directory), ("dump/a", file())]);
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for name in ["full/sub", "dump", "empty"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        symlink("full", dir.join("link")).unwrap();
        fs::write(dir.join("file"), b"").unwrap();
        let at = |index: &Index, path: &str| {
            let placed = place(index, &dir.join(path), OsStr::new("dump")).ok()?;
            Some(placed.strip_prefix(dir).unwrap().display().to_string())
        };
        for (path, of_file, of_tree) in [
            ("new", Some("new"), Some("new")),
            ("new/", None, Some("new")),
            ("full", Some("full/dump"), Some("full/dump")),
            ("full/", Some("full/dump"), Some("full/dump")),
            ("full/.", Some("full/./dump"), Some("full/./dump")),
            ("empty", Some("empty/dump"), Some("empty/dump")),
            ("dump", Some("dump/dump"), Some("dump")),
            ("dump/", Some("dump/dump"), Some("dump/dump")),
            ("link", Some("link"), Some("link")),
            ("link/", Some("link/dump"), Some("link/dump")),
            ("file", Some("file"), Some("file")),
            ("file/", None, None),
        ] {
            assert_eq!(at(&single, path).as_deref(), of_file, "{path}");
            assert_eq!(at(&tree, path).as_deref(), of_tree, "{path}");
        }
        let several = index(&[("a", file()), ("b", file())]);
        assert_eq!(at(&several, "full").as_deref(), Some("full/dump"));
        assert_eq!(at(&several, "dump").as_deref(), Some("dump"));
    }
}
