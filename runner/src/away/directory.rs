//! The working directory of a job that runs elsewhere: which files it had when it was saved, and how the
//! files that the job has changed come back.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, FileTimes, Metadata};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::words::Word;
use crate::begin::before;
use crate::files::{are_same, remove};
use ckpt_agent::image::Exclude;

/// Longest line of a list, bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// What distinguishes one state of a file from another, on any machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileStamp {
    kind: Kind,
    size: u64,
    /// Time of the last change: Unix seconds, and nanoseconds.
    modified: (i64, i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    File,
    Link,
    Pipe,
}

impl FileStamp {
    /// `None` for directories and for files that a save leaves out.
    fn of(found: &Metadata) -> Option<Self> {
        let kind = found.file_type();
        let kind = if kind.is_file() {
            Kind::File
        } else if kind.is_symlink() {
            Kind::Link
        } else if kind.is_fifo() {
            Kind::Pipe
        } else {
            return None;
        };
        Some(Self {
            kind,
            size: if kind == Kind::File { found.size() } else { 0 },
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

/// A line of a list: one file.
#[derive(Debug, Serialize, Deserialize)]
struct ListingLine {
    path: Word,
    #[serde(flatten)]
    stamp: FileStamp,
}

/// All files of a directory at one moment, by their paths below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing(BTreeMap<PathBuf, FileStamp>);

impl Listing {
    /// Lists all files below `dir`, except those that `exclude` matches.
    ///
    /// # Errors
    /// When a directory can't be read.
    pub(super) fn of(dir: &Path, exclude: &Exclude) -> io::Result<Self> {
        let mut listing = Self::default();
        listing.add(dir, Path::new(""), exclude)?;
        Ok(listing)
    }

    fn add(&mut self, root: &Path, below: &Path, exclude: &Exclude) -> io::Result<()> {
        for entry in fs::read_dir(root.join(below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if exclude.leaves_out(path.as_os_str().as_bytes()) {
                continue;
            }
            let found = entry.metadata()?;
            if found.is_dir() {
                self.add(root, &path, exclude)?;
            } else if let Some(stamp) = FileStamp::of(&found) {
                self.0.insert(path, stamp);
            }
        }
        Ok(())
    }

    /// Number of files in the list.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Writes the list to a file.
    ///
    /// # Errors
    /// When writing fails.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let next = path.with_extension("next");
        let mut file = BufWriter::new(File::create(&next)?);
        for (path, stamp) in &self.0 {
            let line = ListingLine {
                path: Word::from(path.as_os_str()),
                stamp: *stamp,
            };
            serde_json::to_writer(&mut file, &line)?;
            file.write_all(b"\n")?;
        }
        file.into_inner()?.sync_all()?;
        fs::rename(next, path)
    }

    /// Reads a list that was written.
    ///
    /// # Errors
    /// When the file can't be read, or is no list.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let mut file = BufReader::new(File::open(path)?);
        let mut listing = Self::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut part = io::Read::take(&mut file, LINE_BYTES_MAX);
            if part.read_until(b'\n', &mut line)? == 0 {
                return Ok(listing);
            }
            let read: ListingLine = serde_json::from_slice(&line)?;
            listing
                .0
                .insert(OsString::from(read.path).into(), read.stamp);
        }
    }

    /// Whether the list has this file in this state.
    fn has(&self, below: &Path, found: &Metadata) -> bool {
        let was = self.0.get(below);
        was.is_some_and(|was| FileStamp::of(found).as_ref() == Some(was))
    }
}

/// What a merge has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Merged {
    /// Number of files that are new or different.
    pub files: usize,
    /// New paths of files that both the user and the job have changed.
    pub kept: Vec<PathBuf>,
}

/// Moves the files that the job has changed from `result` into `dir`, whose files were as in `staged`
/// when the job began. A file that the job has not changed stays as it is in `dir`. A file that was
/// changed in both is kept under another name. No file is removed.
///
/// # Errors
/// When a file can't be moved. Files that were moved before stay in their new places.
pub(super) fn merge(result: &Path, dir: &Path, staged: &Listing) -> io::Result<Merged> {
    let mut merged = Merged::default();
    merge_below(result, dir, Path::new(""), staged, &mut merged)?;
    Ok(merged)
}

fn merge_below(
    result: &Path,
    dir: &Path,
    below: &Path,
    staged: &Listing,
    merged: &mut Merged,
) -> io::Result<()> {
    for entry in fs::read_dir(result.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        let from = result.join(&path);
        let to = dir.join(&path);
        let new = entry.metadata()?;
        let there = match fs::symlink_metadata(&to) {
            Ok(found) => Some(found),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => None,
            Err(cause) => return Err(cause),
        };
        if new.is_dir() {
            merge_directory(&to, there.as_ref(), merged)?;
            let is_new = there.is_none_or(|there| !there.is_dir());
            merge_below(result, dir, &path, staged, merged)?;
            if is_new {
                look_like(&to, &new)?;
            }
        } else if !staged.has(&path, &new) {
            let is_own = there
                .as_ref()
                .is_some_and(|there| !staged.has(&path, there));
            if there.is_some() {
                if are_same(&from, &to)? {
                    continue;
                }
                if is_own {
                    put_aside(&to, merged)?;
                }
            }
            fs::rename(&from, &to)?;
            merged.files += 1;
        }
    }
    Ok(())
}

/// Makes a directory if there is none.
fn merge_directory(to: &Path, there: Option<&Metadata>, merged: &mut Merged) -> io::Result<()> {
    match there {
        // A link to a directory is replaced, because it would lead out of `dir`.
        Some(there) if there.is_dir() => return Ok(()),
        Some(_) => put_aside(to, merged)?,
        None => {}
    }
    fs::create_dir(to)
}

fn put_aside(path: &Path, merged: &mut Merged) -> io::Result<()> {
    let aside = before(path);
    remove(&aside)?;
    fs::rename(path, &aside)?;
    merged.kept.push(aside);
    Ok(())
}

fn look_like(dir: &Path, like: &Metadata) -> io::Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(like.mode() & 0o777))?;
    File::open(dir)?.set_times(FileTimes::new().set_modified(like.modified()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_the_job_changed_come_back_and_those_that_the_user_changed_stay() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("dir");
        let result = temporary.path().join("result");
        let write = |root: &Path, name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let names = ["same", "by job", "by user", "by both", "sub/kept", "gone"];
        for name in names {
            write(&dir, name, "old");
        }
        let staged = Listing::of(&dir, &Exclude::default()).unwrap();
        let file = temporary.path().join("staged");
        staged.write(&file).unwrap();
        assert_eq!(Listing::read(&file).unwrap(), staged);
        assert_eq!(staged.count(), names.len());
        // Copies the files with their times, as a restore does.
        for name in names {
            write(&result, name, "old");
            let modified = fs::metadata(dir.join(name)).unwrap().modified().unwrap();
            let copy = File::options().write(true).open(result.join(name)).unwrap();
            copy.set_times(FileTimes::new().set_modified(modified))
                .unwrap();
        }
        for name in ["by job", "by both", "new/deep/file"] {
            write(&result, name, "job's own");
        }
        for name in ["by user", "by both", "another", "sub/another"] {
            write(&dir, name, "user's");
        }
        fs::remove_file(dir.join("gone")).unwrap();
        fs::remove_file(result.join("sub/kept")).unwrap();
        let merged = merge(&result, &dir, &staged).unwrap();
        let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
        let has = |name: &str, text: &str| assert_eq!(read(name).as_deref(), Some(text), "{name}");
        has("same", "old");
        has("by job", "job's own");
        has("by user", "user's");
        has("by both", "job's own");
        has("by both.before", "user's");
        has("another", "user's");
        has("sub/another", "user's");
        has("sub/kept", "old");
        has("new/deep/file", "job's own");
        assert_eq!(read("gone"), None);
        let kept = vec![dir.join("by both.before")];
        assert_eq!(merged, Merged { files: 3, kept });
    }

    #[test]
    fn a_link_that_the_user_made_is_not_followed() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("dir");
        let result = temporary.path().join("result");
        let outside = temporary.path().join("outside");
        for path in [&dir, &outside, &result.join("sub")] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(result.join("sub/file"), "x").unwrap();
        std::os::unix::fs::symlink(&outside, dir.join("sub")).unwrap();
        let merged = merge(&result, &dir, &Listing::default()).unwrap();
        assert_eq!(merged.kept, [dir.join("sub.before")]);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert!(dir.join("sub/file").exists());
    }
}
