//! The working directory of a job that runs elsewhere: which files it had when it was saved, and how the
//! files that the job has changed come back.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileTimes, Metadata};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::words::Word;
use crate::begin::before;
use crate::files::are_same;
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
    /// The directory of files that the user did not ask for: hidden ones, programs, and links that lead out.
    pub held_back: Option<PathBuf>,
}

/// Moves the files that the job has changed from `result` into `dir`, whose files were as in `staged`
/// when the job began. A file that the job has not changed stays as it is in `dir`. A file that was
/// changed in both is kept under another name. No file is removed.
///
/// A shell, an editor or git may run a hidden file or a program, or do what it says, and the machine of the job
/// chose name and content. What is written through a link may go anywhere. So hidden files, programs and links that
/// lead out of the directory, new and changed ones, are moved to `held_back` instead, under their paths.
///
/// # Errors
/// When a file can't be moved. Files that were moved before stay in their new places.
pub(super) fn merge(
    result: &Path,
    dir: &Path,
    staged: &Listing,
    held_back: &Path,
) -> io::Result<Merged> {
    let mut merging = Merging {
        result,
        dir,
        staged,
        held_back: first_free(held_back)?,
        merged: Merged::default(),
    };
    merging.below(Path::new(""))?;
    Ok(merging.merged)
}

/// A merge that is under way.
struct Merging<'a> {
    result: &'a Path,
    dir: &'a Path,
    staged: &'a Listing,
    held_back: PathBuf,
    merged: Merged,
}

impl Merging<'_> {
    fn below(&mut self, below: &Path) -> io::Result<()> {
        for entry in fs::read_dir(self.result.join(below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            let to = self.dir.join(&path);
            let new = entry.metadata()?;
            let there = match fs::symlink_metadata(&to) {
                Ok(found) => Some(found),
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => None,
                Err(cause) => return Err(cause),
            };
            // What is below a directory that is there is looked at file by file.
            let is_whole = !new.is_dir() || there.is_none();
            if is_whole && !self.staged.has(&path, &new) && self.is_unasked(&path, &new)? {
                if there.is_none() || !are_same(&self.result.join(&path), &to)? {
                    self.hold_back(&path)?;
                }
            } else if new.is_dir() {
                merge_directory(&to, there.as_ref(), &mut self.merged)?;
                let is_new = there.is_none_or(|there| !there.is_dir());
                self.below(&path)?;
                if is_new {
                    look_like(&to, &new)?;
                }
            } else if !self.staged.has(&path, &new) {
                self.take(&path, there.as_ref())?;
            }
        }
        Ok(())
    }

    /// Moves a file that the job has changed to its place.
    fn take(&mut self, path: &Path, there: Option<&Metadata>) -> io::Result<()> {
        let from = self.result.join(path);
        let to = self.dir.join(path);
        if let Some(there) = there {
            if are_same(&from, &to)? {
                return Ok(());
            }
            if !self.staged.has(path, there) {
                put_aside(&to, &mut self.merged)?;
            }
        }
        fs::rename(&from, &to)?;
        self.merged.files += 1;
        Ok(())
    }

    /// Whether a new or changed file or directory is one that the user did not ask for: it is hidden or below a
    /// hidden directory, can be run, or is a link that leads out of the directory.
    fn is_unasked(&self, path: &Path, new: &Metadata) -> io::Result<bool> {
        let is_hidden = |part: &OsStr| part.as_bytes().starts_with(b".");
        let is_program = new.is_file() && new.mode() & 0o111 != 0;
        if is_program || path.iter().any(is_hidden) {
            return Ok(true);
        }
        Ok(new.is_symlink() && leads_out(path, &fs::read_link(self.result.join(path))?))
    }

    fn hold_back(&mut self, path: &Path) -> io::Result<()> {
        let to = self.held_back.join(path);
        fs::create_dir_all(to.parent().unwrap_or(&self.held_back))?;
        fs::rename(self.result.join(path), &to)?;
        self.merged.held_back = Some(self.held_back.clone());
        Ok(())
    }
}

/// Whether a link at `path` below a directory leads out of it, as far as its own text says.
fn leads_out(path: &Path, target: &Path) -> bool {
    let mut depth = path.components().count().saturating_sub(1);
    target.components().any(|part| match part {
        Component::Normal(_) => {
            depth += 1;
            false
        }
        Component::CurDir => false,
        Component::ParentDir => match depth.checked_sub(1) {
            Some(less) => {
                depth = less;
                false
            }
            None => true,
        },
        Component::RootDir | Component::Prefix(_) => true,
    })
}

/// The first of `PATH`, `PATH.2`, `PATH.3` and so on that no file has.
///
/// # Errors
/// When a path can't be looked at.
fn first_free(path: &Path) -> io::Result<PathBuf> {
    let numbered = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    let all = std::iter::once(path.to_owned()).chain((2..=u32::MAX).map(numbered));
    for path in all {
        match fs::symlink_metadata(&path) {
            Ok(_) => {}
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(cause) => return Err(cause),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
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
    let aside = first_free(&before(path))?;
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
        let merged = merge(&result, &dir, &staged, &dir.join("held")).unwrap();
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
        let held_back = None;
        let expected = Merged {
            files: 3,
            kept,
            held_back,
        };
        assert_eq!(merged, expected);
        assert!(!dir.join("held").exists());
    }

    #[test]
    fn nothing_of_the_user_is_removed_and_nothing_is_brought_in_that_runs_by_itself() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("dir");
        let result = temporary.path().join("result");
        let write = |root: &Path, name: &str, text: &str, mode: u32| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for name in ["data", "data.before", ".git/config", ".same"] {
            write(&dir, name, "precious", 0o644);
        }
        write(&dir, "run.sh", "precious", 0o755);
        let staged = Listing::of(&dir, &Exclude::default()).unwrap();
        write(&dir, "data", "edited here", 0o644);
        write(&dir, "held/earlier", "kept", 0o644);
        for name in [
            "data",
            ".envrc",
            ".git/config",
            ".new/deep/file",
            "out/file",
        ] {
            write(&result, name, "by job", 0o644);
        }
        write(&result, ".same", "precious", 0o644);
        for name in [".git/hooks/post-checkout", "out/program", "run.sh"] {
            write(&result, name, "by job", 0o755);
        }
        let link = |name: &str, to: &str| {
            std::os::unix::fs::symlink(to, result.join(name)).unwrap();
        };
        link("out/keys", "../../.ssh");
        link("etc", "/etc");
        link("out/newest", "../data");
        let merged = merge(&result, &dir, &staged, &dir.join("held")).unwrap();
        let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
        let has = |name: &str, text: &str| assert_eq!(read(name).as_deref(), Some(text), "{name}");
        has("data", "by job");
        has("data.before", "precious");
        has("data.before.2", "edited here");
        // What was there stays as it was, and what the job made of it lies beside.
        has(".git/config", "precious");
        has("held.2/.git/config", "by job");
        has("run.sh", "precious");
        has("held.2/run.sh", "by job");
        has(".same", "precious");
        assert!(!dir.join("held.2/.same").exists());
        has("out/file", "by job");
        has("out/newest", "by job");
        has("held/earlier", "kept");
        for name in [
            ".envrc",
            ".new",
            ".git/hooks",
            "out/program",
            "out/keys",
            "etc",
        ] {
            assert!(dir.join(name).symlink_metadata().is_err(), "{name}");
            let held = dir.join("held.2").join(name);
            assert!(held.symlink_metadata().is_ok(), "{name}");
        }
        assert_eq!(merged.held_back, Some(dir.join("held.2")));
        assert_eq!(merged.kept, [dir.join("data.before.2")]);
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
        let merged = merge(&result, &dir, &Listing::default(), &dir.join("held")).unwrap();
        assert_eq!(merged.kept, [dir.join("sub.before")]);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert!(dir.join("sub/file").exists());
    }
}
