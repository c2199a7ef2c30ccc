//! Copies of a job's files that share their blocks with them (reflinks), if the file system can make such
//! copies. They are made within milliseconds, and are saved while the job goes on.

use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Most files that are copied while the job stands still.
const FILES_MAX: usize = 20_000;

/// Prefix of the directories that this program makes beside a job's files.
pub(super) const PREFIX: &str = ".ckpt-run-";

/// Copies of a job's files. They are removed when this is dropped.
#[derive(Debug)]
pub(super) struct Stage {
    dirs: Vec<TempDir>,
    paths: Vec<PathBuf>,
}

impl Stage {
    /// Copies `paths`, each under its own name.
    ///
    /// # Errors
    /// When the file system can't make reflinks, when there are other things than files, directories and
    /// links, or when there are too many files. The caller then reads the files themselves.
    pub(super) fn of(paths: &[PathBuf]) -> io::Result<Self> {
        let mut stage = Self {
            dirs: Vec::new(),
            paths: Vec::new(),
        };
        let mut files = 0;
        for path in paths {
            let name = path
                .file_name()
                .ok_or_else(|| io::Error::other("a path without a name"))?;
            let above = path.parent().filter(|above| !above.as_os_str().is_empty());
            let dir = tempfile::Builder::new()
                .prefix(PREFIX)
                .permissions(fs::Permissions::from_mode(0o700))
                .tempdir_in(above.unwrap_or_else(|| Path::new(".")))?;
            let copy = dir.path().join(name);
            // A path that the user names may be a link, as for `ckpt save`.
            clone(&fs::canonicalize(path)?, &copy, &mut files)?;
            stage.dirs.push(dir);
            stage.paths.push(copy);
        }
        Ok(stage)
    }

    /// The paths of the copies.
    pub(super) const fn paths(&self) -> &Vec<PathBuf> {
        &self.paths
    }
}

fn clone(from: &Path, to: &Path, files: &mut usize) -> io::Result<()> {
    *files += 1;
    if *files > FILES_MAX {
        return Err(io::Error::other("too many files"));
    }
    let found = fs::symlink_metadata(from)?;
    let kind = found.file_type();
    if kind.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(from)?, to);
    }
    let times = FileTimes::new()
        .set_modified(found.modified()?)
        .set_accessed(found.accessed()?);
    if kind.is_dir() {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            clone(&entry.path(), &to.join(entry.file_name()), files)?;
        }
        File::open(to)?.set_times(times)?;
        return fs::set_permissions(to, found.permissions());
    }
    if !kind.is_file() || found.nlink() > 1 {
        return Err(io::Error::other(
            "a file with several names, or a special one",
        ));
    }
    let copy = File::create_new(to)?;
    rustix::fs::ioctl_ficlone(&copy, File::open(from)?)?;
    copy.set_times(times)?;
    copy.set_permissions(found.permissions())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_reflinks_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("state");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("a"), b"some").unwrap();
        match Stage::of(std::slice::from_ref(&root)) {
            Ok(stage) => {
                let copy = stage.paths().first().unwrap().clone();
                fs::write(root.join("a"), b"more").unwrap();
                assert_eq!(fs::read(copy.join("a")).unwrap(), b"some");
            }
            Err(cause) => assert!(cause.raw_os_error().is_some(), "{cause}"),
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
