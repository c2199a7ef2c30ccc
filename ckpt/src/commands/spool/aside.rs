//! Sets the content of paths aside within moments, so that their program can go on.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use ckpt_agent::image::Exclude;
use runner::set_aside::{Means, SetAside, at};

use super::queue::{Aside, BESIDE};
use super::report::How;

/// Most files and directories of an image that is set aside.
const FILES_MAX: usize = 100_000;

/// What is set aside, and by which means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// The paths are moved.
    Take,
    /// Their files are only ever replaced by renaming, so further names of them keep their content.
    Link,
    /// They may be written in place.
    Copy,
}

/// What was found of paths before they are set aside.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    files: Vec<(PathBuf, u64, i64, i64, i64, i64)>,
    /// Bytes of the files.
    pub bytes: u64,
}

impl Found {
    /// Looks at all files below these paths, but for those that are left out.
    ///
    /// # Errors
    /// When something is there that can't be set aside.
    pub(crate) fn of(paths: &[PathBuf], exclude: &Exclude) -> io::Result<Self> {
        let mut found = Self::default();
        for path in paths {
            found.add(path, path, exclude)?;
        }
        Ok(found)
    }

    fn add(&mut self, root: &Path, path: &Path, exclude: &Exclude) -> io::Result<()> {
        let data = fs::symlink_metadata(path).map_err(at(path))?;
        let kind = data.file_type();
        if !kind.is_dir() && !kind.is_file() && !kind.is_symlink() {
            return Err(at(path)(no_file()));
        }
        if self.files.len() >= FILES_MAX {
            return Err(too_many());
        }
        if kind.is_file() {
            self.bytes = self.bytes.saturating_add(data.len());
        }
        let changed = (data.ctime(), data.ctime_nsec());
        let written = (data.mtime(), data.mtime_nsec());
        let size = if kind.is_file() { data.len() } else { 0 };
        let file = (
            path.to_owned(),
            size,
            changed.0,
            changed.1,
            written.0,
            written.1,
        );
        self.files.push(file);
        if kind.is_dir() {
            for entry in fs::read_dir(path).map_err(at(path))? {
                let path = entry.map_err(at(path))?.path();
                if !exclude.leaves_out_path(root, &path) {
                    self.add(root, &path, exclude)?;
                }
            }
        }
        Ok(())
    }
}

/// Where the content of each path will be: in the entry's directory, or beside the path where that is on another file
/// system.
///
/// # Errors
/// When a directory can't be made.
pub(crate) fn places(dir: &Path, paths: &[(PathBuf, PathBuf)]) -> io::Result<Vec<Aside>> {
    let device = fs::metadata(dir).map_err(at(dir))?.dev();
    let mut places = Vec::new();
    for (number, (from, name)) in paths.iter().enumerate() {
        let of_path = fs::symlink_metadata(from).map_err(at(from))?.dev();
        let place = if of_path == device {
            PathBuf::from("image").join(number.to_string())
        } else {
            let above = from.parent().unwrap_or_else(|| Path::new("/"));
            let own = dir.file_name().unwrap_or_default().to_string_lossy();
            above.join(format!("{BESIDE}{own}-{number}")).join("0")
        };
        places.push(Aside {
            from: from.clone(),
            at: place,
            name: name.clone(),
        });
    }
    Ok(places)
}

/// Makes the directories of the places. What is made is in the entry by then, so that it can be removed after a kill.
///
/// # Errors
/// When one can't be made.
pub(crate) fn prepare(dir: &Path, places: &[Aside]) -> io::Result<()> {
    for place in places {
        let to = dir.join(&place.at);
        if let Some(above) = to.parent() {
            let mut builder = fs::DirBuilder::new();
            builder
                .recursive(true)
                .mode(0o700)
                .create(above)
                .map_err(at(above))?;
        }
    }
    Ok(())
}

/// Moves the paths to their places.
///
/// # Errors
/// When one can't be moved; those before it have been.
pub(crate) fn take(dir: &Path, places: &[Aside]) -> io::Result<()> {
    for place in places {
        fs::rename(&place.from, dir.join(&place.at)).map_err(at(&place.from))?;
    }
    Ok(())
}

/// Makes further names or copies of the paths in their places. `before` is what was found of them. Returns the way that
/// cost most.
///
/// # Errors
/// When something can't be copied, or was changed meanwhile.
pub(crate) fn keep(
    dir: &Path,
    places: &[Aside],
    wish: Wish,
    before: &Found,
    exclude: &Exclude,
    accepts_changes: bool,
) -> io::Result<How> {
    let is_replaced = |_: &fs::Metadata| wish == Wish::Link;
    let mut set_aside = SetAside::new(FILES_MAX, &is_replaced, &|| true)
        .without(exclude)
        .dividing_names()
        .with_copies(wish == Wish::Copy);
    for place in places {
        let done = set_aside.duplicate(&place.from, &dir.join(&place.at));
        done.map_err(|cause| match cause.kind() {
            io::ErrorKind::StorageFull => {
                io::Error::other(format!("{cause}: save it without --detach, or with --take"))
            }
            _ => cause,
        })?;
    }
    if wish == Wish::Link {
        return Ok(How::Linked);
    }
    let paths: Vec<PathBuf> = places.iter().map(|place| place.from.clone()).collect();
    if !accepts_changes && Found::of(&paths, exclude)? != *before {
        let message = "files were changed while they were set aside: --accept-changed takes them";
        return Err(io::Error::other(message));
    }
    Ok(match set_aside.used() {
        Means::Copied => How::Copied,
        Means::Shared | Means::Linked => How::Shared,
    })
}

fn too_many() -> io::Error {
    io::Error::other(format!(
        "more than {FILES_MAX} files: save it without --detach"
    ))
}

fn no_file() -> io::Error {
    io::Error::other("neither a file nor a directory")
}

#[cfg(test)]
mod tests {
    use ckpt_agent::image::exclude_pattern;

    use super::*;

    fn image(dir: &Path) -> PathBuf {
        let root = dir.join("state");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(root.join("a"), b"one").unwrap();
        fs::write(root.join("sub/b"), b"two").unwrap();
        root
    }

    fn aside(dir: &Path, wish: Wish) -> (PathBuf, io::Result<How>) {
        let root = image(dir);
        let entry = dir.join("entry");
        fs::create_dir_all(&entry).unwrap();
        let places = places(&entry, &[(root, "state".into())]).unwrap();
        prepare(&entry, &places).unwrap();
        let found = Found::of(&[dir.join("state")], &Exclude::default()).unwrap();
        assert_eq!(found.bytes, 6);
        let done = keep(&entry, &places, wish, &found, &Exclude::default(), false);
        (entry.join(&places[0].at), done)
    }

    #[test]
    fn content_that_is_set_aside_is_that_of_the_moment() {
        let dir = tempfile::tempdir().unwrap();
        let (at, done) = aside(dir.path(), Wish::Copy);
        assert!(done.unwrap() >= How::Shared);
        fs::write(dir.path().join("state/a"), b"later").unwrap();
        assert_eq!(fs::read(at.join("a")).unwrap(), b"one");
        assert_eq!(fs::read(at.join("sub/b")).unwrap(), b"two");
    }

    #[test]
    fn linked_content_is_that_of_the_moment_if_files_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (at, done) = aside(dir.path(), Wish::Link);
        assert_eq!(done.unwrap(), How::Linked);
        fs::write(dir.path().join("next"), b"later").unwrap();
        fs::rename(dir.path().join("next"), dir.path().join("state/a")).unwrap();
        assert_eq!(fs::read(at.join("a")).unwrap(), b"one");
    }

    #[test]
    fn a_thing_that_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = image(dir.path());
        let socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let roots = [root];
        let refused = Found::of(&roots, &Exclude::default()).unwrap_err();
        assert!(refused.to_string().contains("socket"), "{refused}");
        let exclude = Exclude::new(vec![exclude_pattern("socket").unwrap()]).unwrap();
        assert_eq!(Found::of(&roots, &exclude).unwrap().bytes, 6);
        drop(socket);
    }
}
