//! Puts the roots of an image into a directory, each under its own name, whether the directory exists or not.
//!
//! The image is made in a temporary directory on the same file system. A new directory, and one whose content is
//! replaced as a whole, gets its name in one step; otherwise each root does, one after the other.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use codec::index::Index;
use rustix::fs::{Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::SinkError;
use super::files::{io_error, open_parent};
use super::unfinished::{self, is_there, temporary_name};
use crate::image::beneath::remove_all;
use crate::image::path_from_bytes;

/// Name in the temporary directory of the directory with the roots.
const CONTENT: &str = "content";

const TO_LOOK: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// What becomes of names that exist in the directory into which an image is restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// They stay: if a root of the image has such a name, nothing is restored.
    #[default]
    Stay,
    /// Those that roots of the image have are replaced; others stay.
    Replace,
    /// None stays: afterwards the directory has what the image has, and nothing else.
    Clear,
}

/// A directory that will get an image. Dropping it before it is finished leaves the directory as it was.
#[derive(Debug)]
pub struct Content {
    to: PathBuf,
    existing: Existing,
    /// Whether the directory exists.
    is_there: bool,
    /// Where the temporary directory is, and its name there.
    parent: OwnedFd,
    temporary: OsString,
    /// The temporary directory, locked.
    stage: OwnedFd,
    stage_path: PathBuf,
}

impl Content {
    /// Makes a temporary directory for what will be restored into the directory `to`.
    ///
    /// # Errors
    /// When `to` is something else than a directory, or when nothing can be made there.
    pub fn begin(to: &Path, existing: Existing) -> Result<Self, SinkError> {
        let is_there = to.symlink_metadata().is_ok();
        // A link to a directory stays; what it leads to gets the image.
        let to = if is_there {
            to.canonicalize()
                .ok()
                .filter(|to| to.is_dir())
                .ok_or_else(|| SinkError::NoDirectory(to.to_owned()))?
        } else {
            to.components().collect()
        };
        let holds_stage = is_there && existing != Existing::Clear;
        let (parent, around) = if holds_stage {
            let opened = rustix::fs::open(&to, TO_LOOK, Mode::empty());
            let opened = opened.map_err(|cause| io_error("opening", &to, cause.into()))?;
            (opened, to.clone())
        } else {
            let around = to.parent().map(Path::to_path_buf).unwrap_or_default();
            (open_parent(&to)?.0, around)
        };
        unfinished::remove_dead(&parent);
        let name = to.file_name().unwrap_or(OsStr::new(CONTENT));
        let temporary = temporary_name(&parent, name);
        let stage = unfinished::make(&parent, &temporary)
            .map_err(|cause| io_error("creating a directory beside", &to, cause))?;
        Ok(Self {
            existing,
            is_there,
            stage_path: around.join(&temporary),
            to,
            parent,
            temporary,
            stage,
        })
    }

    /// Where the roots are to be made.
    pub fn made(&self) -> PathBuf {
        self.stage_path.join(CONTENT)
    }

    /// The directory that will get the image.
    pub fn to(&self) -> &Path {
        &self.to
    }

    /// Puts the image that was made into the directory.
    ///
    /// # Errors
    /// When a name is taken that shall stay, or when the file system fails.
    pub fn finish(self) -> Result<(), SinkError> {
        if self.holds_stage() {
            self.put_roots()?;
        } else {
            self.put_whole()?;
        }
        rustix::fs::fsync(&self.parent)
            .map_err(|cause| io_error("syncing the directory of", &self.to, cause.into()))?;
        remove_all(self.parent.as_fd(), &self.temporary).map_err(|cause| SinkError::OldRemains {
            target: self.to.clone(),
            old: self.stage_path.clone(),
            cause,
        })
    }

    fn holds_stage(&self) -> bool {
        self.is_there && self.existing != Existing::Clear
    }

    /// Gives the directory with the roots the name of the one that gets the image.
    fn put_whole(&self) -> Result<(), SinkError> {
        if self.is_there {
            let like = fs::metadata(&self.to).map_err(|cause| io_error("reading", &self.to, cause));
            fs::set_permissions(self.made(), like?.permissions())
                .map_err(|cause| io_error("setting the mode of", &self.to, cause))?;
        }
        let name = self.to.file_name().unwrap_or_default();
        let may_replace = self.is_there;
        self.put(&self.stage, OsStr::new(CONTENT), name, may_replace)
            .map_err(|cause| self.failed(self.to.clone(), cause))
    }

    /// Gives each root its name in the directory.
    fn put_roots(&self) -> Result<(), SinkError> {
        let opened = rustix::fs::openat(&self.stage, CONTENT, TO_LOOK, Mode::empty());
        let roots = opened.and_then(|made| Ok((names(&made)?, made)));
        let (names, made) = roots.map_err(|cause| self.failed(self.made(), cause))?;
        if self.existing == Existing::Stay {
            taken(&self.to, names.clone())?;
        }
        for name in &names {
            let may_replace = self.existing == Existing::Replace;
            self.put(&made, name, name, may_replace)
                .map_err(|cause| self.failed(self.to.join(name), cause))?;
        }
        Ok(())
    }

    /// Moves what was made to its place. What was there before is in the temporary directory then.
    fn put(
        &self,
        made: &OwnedFd,
        old: &OsStr,
        new: &OsStr,
        may_replace: bool,
    ) -> rustix::io::Result<()> {
        let parent = &self.parent;
        let rename = |flags| rustix::fs::renameat_with(made, old, parent, new, flags);
        match rename(RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) if may_replace => match rename(RenameFlags::EXCHANGE) {
                Err(Errno::INVAL | Errno::NOSYS) => {}
                ended => return ended,
            },
            Err(Errno::INVAL | Errno::NOSYS) if may_replace || !is_there(parent, new) => {}
            Err(Errno::INVAL | Errno::NOSYS) => return Err(Errno::EXIST),
            ended => return ended,
        }
        // A file system without these flags: there is a moment in which the name is missing.
        let aside = temporary_name(&self.stage, new);
        let was_there = is_there(parent, new);
        if was_there {
            rustix::fs::renameat(parent, new, &self.stage, &aside)?;
        }
        let put = rustix::fs::renameat(made, old, parent, new);
        if put.is_err() && was_there {
            rustix::fs::renameat(&self.stage, &aside, parent, new)?;
        }
        put
    }

    fn failed(&self, path: PathBuf, cause: Errno) -> SinkError {
        match cause {
            Errno::EXIST => SinkError::Taken(path),
            cause => io_error("naming", &path, cause.into()),
        }
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        match remove_all(self.parent.as_fd(), &self.temporary) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(
                    "{:?} of a restore can't be removed: {cause}",
                    self.stage_path
                );
            }
            _ => {}
        }
    }
}

/// Where to make the image of `index`, so that its roots are in the directory `made`, which may not exist yet.
/// `name` is for a stream, which has none.
///
/// # Errors
/// When the directory can't be made.
pub fn place_in(index: &Index, made: &Path, name: &OsStr) -> Result<PathBuf, SinkError> {
    // An older version that could not be restored may have had another number of roots.
    let removed = match fs::remove_dir(made) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(cause),
        _ => Ok(()),
    };
    let mut roots = roots(index);
    let first = roots.next();
    let Some(only) = first.filter(|_| roots.next().is_none()) else {
        return Ok(made.to_owned());
    };
    removed
        .and_then(|()| fs::DirBuilder::new().mode(0o700).create(made))
        .map_err(|cause| io_error("creating", made, cause))?;
    Ok(made.join(if only.is_empty() { name } else { only }))
}

/// Fails when one of these names is taken in a directory.
///
/// # Errors
/// When there is one.
pub fn taken(directory: &Path, names: impl IntoIterator<Item = OsString>) -> Result<(), SinkError> {
    let mut paths = names.into_iter().map(|name| directory.join(name));
    match paths.find(|path| path.symlink_metadata().is_ok()) {
        Some(path) => Err(SinkError::Taken(path)),
        None => Ok(()),
    }
}

/// Names of the roots of an image.
pub fn roots(index: &Index) -> impl Iterator<Item = &OsStr> {
    let roots = index.files.iter().filter(|file| !file.path.contains(&b'/'));
    roots.map(|root| path_from_bytes(&root.path).as_os_str())
}

fn names(directory: &OwnedFd) -> rustix::io::Result<Vec<OsString>> {
    let mut entries = Dir::read_from(directory)?;
    let mut names = Vec::new();
    while let Some(entry) = entries.read() {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(&name).to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_default()
    }

    fn entries(directory: &Path) -> Vec<OsString> {
        let mut entries: Vec<OsString> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        entries.sort();
        entries
    }

    /// Puts a file `step` and a tree `weights` into `out`.
    fn put(out: &Path, existing: Existing, step: &str) -> Result<(), SinkError> {
        let content = Content::begin(out, existing)?;
        fs::create_dir_all(content.made().join("weights")).unwrap();
        fs::write(content.made().join("weights").join(step), step).unwrap();
        fs::write(content.made().join("step"), step).unwrap();
        content.finish()
    }

    #[test]
    fn names_that_exist_stay_are_replaced_or_go() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        put(&out, Existing::Stay, "1").unwrap();
        assert_eq!(entries(&out), ["step", "weights"]);
        let refused = put(&out, Existing::Stay, "2");
        assert!(matches!(refused, Err(SinkError::Taken(_))), "{refused:?}");
        assert_eq!(read(&out.join("step")), "1");
        fs::write(out.join("own"), "own").unwrap();
        put(&out, Existing::Replace, "2").unwrap();
        assert_eq!(entries(&out), ["own", "step", "weights"]);
        assert_eq!(read(&out.join("step")), "2");
        assert_eq!(entries(&out.join("weights")), ["2"]);
        put(&out, Existing::Clear, "3").unwrap();
        assert_eq!(entries(&out), ["step", "weights"]);
        assert_eq!(entries(&out.join("weights")), ["3"]);
        let file = put(&out.join("step"), Existing::Replace, "4");
        assert!(matches!(file, Err(SinkError::NoDirectory(_))), "{file:?}");
        assert_eq!(entries(dir.path()), ["out"]);
    }

    #[test]
    fn what_is_not_finished_changes_nothing_and_what_was_killed_goes() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        for existing in [Existing::Stay, Existing::Replace, Existing::Clear] {
            let content = Content::begin(&out, existing).unwrap();
            fs::create_dir(content.made()).unwrap();
            drop(content);
            assert!(!out.exists() || entries(&out) == ["step", "weights"]);
            put(&out, Existing::Clear, "1").unwrap();
        }
        let killed = Content::begin(&out, Existing::Replace).unwrap();
        fs::create_dir(killed.made()).unwrap();
        let left = killed.stage_path.clone();
        // As a kill does: the lock is gone, the directory is not.
        let unlocked = rustix::fs::flock(&killed.stage, rustix::fs::FlockOperation::Unlock);
        unlocked.unwrap();
        std::mem::forget(killed);
        put(&out, Existing::Replace, "2").unwrap();
        assert!(!left.exists());
        assert_eq!(entries(&out), ["step", "weights"]);
    }
}
