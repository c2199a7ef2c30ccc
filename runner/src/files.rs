//! The files that contain a job's state: whether they have changed, whether they are at rest, and whether
//! they are the restored ones.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ckpt_agent::image::{Exclude, is_unfinished};
use machine::open_files::{FileId, StateFiles, Writing, written_to};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

/// Most files that are looked at. A larger tree always counts as changed.
const FILES_MAX: usize = 1_000_000;

/// Size of the buffers for comparing files, bytes.
const COMPARED_BYTES: usize = 1 << 16;

/// What distinguishes one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    file: FileId,
    /// When the file was made, where the file system keeps that: some give the inode of a file that is gone to
    /// the next one.
    born: Option<SystemTime>,
    size: u64,
    modified: (i64, i64),
    is_directory: bool,
}

impl Mark {
    fn of(found: &Metadata) -> Self {
        let is_directory = found.is_dir();
        Self {
            file: FileId::of(found),
            born: found.created().ok(),
            size: if is_directory { 0 } else { found.size() },
            // Changes of a directory show in its entries, so its own times are left out.
            modified: match is_directory {
                true => (0, 0),
                false => (found.mtime(), found.mtime_nsec()),
            },
            is_directory,
        }
    }

    /// Of a file or directory that can't be looked at: something is there, and it may change.
    fn unseen(path: &Path) -> Self {
        let found = fs::symlink_metadata(path);
        let seen = found.as_ref().map(Self::of);
        let changed = found.as_ref().map(|of| (of.ctime(), of.ctime_nsec()));
        let nowhere = FileId {
            inode: 0,
            device: 0,
        };
        Self {
            file: seen.map_or(nowhere, |seen| seen.file),
            born: None,
            size: 0,
            modified: changed.unwrap_or_default(),
            is_directory: false,
        }
    }

    /// Whether this is another file than `was`.
    fn is_another(&self, was: &Self) -> bool {
        self.file != was.file
            || self
                .born
                .is_some_and(|born| was.born.is_some_and(|was| was != born))
    }
}

/// How a file differs from an earlier state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// There was no file of this name.
    New,
    /// Another file was renamed into its place.
    Replaced,
    /// It was written to.
    Written,
}

fn change(mark: &Mark, before: Option<&Mark>) -> Option<Change> {
    match before {
        None => Some(Change::New),
        Some(was) if was == mark => None,
        Some(was) if mark.is_another(was) => Some(Change::Replaced),
        Some(_) => Some(Change::Written),
    }
}

/// The state of all files at one moment, without their contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fingerprint {
    marks: BTreeMap<PathBuf, Mark>,
    is_cut: bool,
}

impl Fingerprint {
    /// Takes the fingerprint of all files. Files that are missing are left out; what can't be looked at counts as
    /// a file.
    pub(super) fn of(paths: &[PathBuf], exclude: &Exclude) -> Self {
        let mut print = Self::default();
        for path in paths {
            // A path that the user names may be a link, as for `ckpt save`.
            print.add(path.clone(), fs::metadata(path), |print| {
                print.add_below(path, path, exclude)
            });
        }
        print
    }

    /// Adds what was found at a path, and what `below` adds if it is a directory.
    fn add(
        &mut self,
        path: PathBuf,
        found: io::Result<Metadata>,
        below: impl FnOnce(&mut Self) -> io::Result<()>,
    ) {
        let looked = found.and_then(|found| {
            self.marks.insert(path.clone(), Mark::of(&found));
            if found.is_dir() { below(self) } else { Ok(()) }
        });
        match looked {
            Ok(()) => {}
            Err(cause) if is_gone(&cause) => _ = self.marks.remove(&path),
            Err(_) => _ = self.marks.insert(path.clone(), Mark::unseen(&path)),
        }
    }

    fn add_below(&mut self, root: &Path, dir: &Path, exclude: &Exclude) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if self.marks.len() >= FILES_MAX {
                self.is_cut = true;
                return Ok(());
            }
            let path = entry.path();
            if exclude.leaves_out_path(root, &path) {
                continue;
            }
            self.add(path.clone(), entry.metadata(), |print| {
                print.add_below(root, &path, exclude)
            });
        }
        Ok(())
    }

    /// Whether it contains no file.
    pub(super) fn is_empty(&self) -> bool {
        !self.marks.values().any(|mark| !mark.is_directory)
    }

    /// A hash of names below `root`, sizes and times. It is the same for a copy that keeps the times.
    pub(super) fn digest(&self, root: &Path) -> String {
        let mut hasher = blake3::Hasher::new();
        for (path, mark) in &self.marks {
            let name = path.strip_prefix(root).unwrap_or(path).as_os_str();
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name.as_bytes());
            hasher.update(&mark.size.to_le_bytes());
            hasher.update(&mark.modified.0.to_le_bytes());
            hasher.update(&mark.modified.1.to_le_bytes());
            hasher.update(&[u8::from(mark.is_directory)]);
        }
        let hash = hasher.finalize().to_hex();
        hash.as_str().chars().take(32).collect()
    }

    /// The files that differ from `before`, and how.
    pub(super) fn changes<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = (&'a Path, Change)> {
        let files = self.marks.iter().filter(|(_, mark)| !mark.is_directory);
        files.filter_map(move |(path, mark)| {
            let change = change(mark, before.marks.get(path))?;
            Some((path.as_path(), change))
        })
    }

    /// How one file differs from `before`; `None` if it does not.
    pub(super) fn change_of(&self, path: &Path, before: &Self) -> Option<Change> {
        change(self.marks.get(path)?, before.marks.get(path))
    }

    /// Files that it has and `now` has not.
    pub(super) fn gone<'a>(&'a self, now: &'a Self) -> impl Iterator<Item = &'a Path> {
        let files = self.marks.iter().filter(|(_, mark)| !mark.is_directory);
        let paths = files.map(|(path, _)| path.as_path());
        paths.filter(|path| !now.marks.contains_key(*path))
    }

    /// Leaves this file out.
    pub(super) fn forget(&mut self, path: &Path) {
        self.marks.remove(path);
    }

    /// What the file at this path is.
    pub(super) fn id_of(&self, path: &Path) -> Option<FileId> {
        self.marks.get(path).map(|mark| mark.file)
    }

    /// Size of a file, bytes.
    pub(super) fn size_of(&self, path: &Path) -> Option<u64> {
        self.marks.get(path).map(|mark| mark.size)
    }

    /// The path of a file.
    pub(super) fn path_of(&self, id: FileId) -> Option<&Path> {
        let mut files = self.marks.iter().filter(|(_, mark)| !mark.is_directory);
        files
            .find(|(_, mark)| mark.file == id)
            .map(|(path, _)| path.as_path())
    }

    /// Whether it has too many files to be looked at.
    pub(super) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// All files in it that are no directories.
    pub(super) fn files(&self) -> impl Iterator<Item = FileId> {
        let files = self.marks.values().filter(|mark| !mark.is_directory);
        files.map(|mark| mark.file)
    }

    /// Number of files and directories in it.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.marks.len()).unwrap_or(u32::MAX)
    }

    /// Whether the state is one file.
    pub(super) fn is_one_file(&self) -> bool {
        !self.is_cut && self.marks.len() == 1 && !self.is_empty()
    }

    /// Whether the state is the same as before.
    pub(super) fn is_as(&self, before: &Self) -> bool {
        !self.is_cut && self == before
    }

    /// Size of all files together, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.marks.values().map(|mark| mark.size).sum()
    }

    /// Whether every file that differs from `before` is a new file, which was renamed into its place.
    /// Such a file does not change any more, unlike one that was written to.
    pub(super) fn was_replaced_since(&self, before: &Self) -> bool {
        !self.is_cut && self.changed_in_place(before).is_none()
    }

    /// A file that was written to since `before`.
    pub(super) fn changed_in_place<'a>(&'a self, before: &'a Self) -> Option<&'a Path> {
        let mut changes = self.changes(before);
        let written = changes.find(|(_, change)| *change == Change::Written);
        written.map(|(path, _)| path)
    }
}

/// Whether nothing is there, as opposed to something that can't be looked at.
fn is_gone(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Which files of a state these processes can write to: those of the fingerprint, and all below `roots` (absolute
/// paths without links) that is not excluded.
pub(super) fn written_by(
    processes: &BTreeSet<i32>,
    roots: &[PathBuf],
    exclude: &Exclude,
    print: &Fingerprint,
) -> Writing {
    let is_left_out = |below: &Path| exclude.leaves_out(below.as_os_str().as_bytes());
    let files = StateFiles::new(roots, print.files()).without(&is_left_out);
    written_to(processes, &files)
}

/// The directory that a path is in.
pub(super) fn above(path: &Path) -> PathBuf {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    above.map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// The same paths with links resolved, as far as they exist.
pub(super) fn resolved(paths: &[PathBuf]) -> Vec<PathBuf> {
    let resolve = |path: &PathBuf| {
        fs::canonicalize(path).or_else(|_| {
            let above = fs::canonicalize(above(path))?;
            Ok::<_, io::Error>(above.join(path.file_name().unwrap_or_default()))
        })
    };
    let or_given = |path: &PathBuf| resolve(path).unwrap_or_else(|_| path.clone());
    paths.iter().map(or_given).collect()
}

/// Whether two files or trees are the same: names, kinds, contents, execute permissions and links. Times
/// are ignored.
///
/// # Errors
/// When a file can't be read.
pub(super) fn are_same(one: &Path, other: &Path) -> io::Result<bool> {
    let left = fs::symlink_metadata(one)?;
    let right = fs::symlink_metadata(other)?;
    if left.file_type() != right.file_type() || (left.mode() ^ right.mode()) & 0o111 != 0 {
        return Ok(false);
    }
    if left.is_dir() {
        return are_same_trees(one, other);
    }
    if left.file_type().is_symlink() {
        return Ok(fs::read_link(one)? == fs::read_link(other)?);
    }
    if !left.is_file() {
        return Ok(true);
    }
    Ok(left.len() == right.len() && are_same_bytes(File::open(one)?, File::open(other)?)?)
}

fn are_same_trees(one: &Path, other: &Path) -> io::Result<bool> {
    let names = |dir: &Path| -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.push(entry?.file_name());
        }
        names.sort();
        Ok(names)
    };
    let all = names(one)?;
    if all != names(other)? {
        return Ok(false);
    }
    for name in all {
        if !are_same(&one.join(&name), &other.join(&name))? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn are_same_bytes(mut one: File, mut other: File) -> io::Result<bool> {
    let mut left = vec![0; COMPARED_BYTES];
    let mut right = vec![0; COMPARED_BYTES];
    loop {
        let length = one.read(&mut left)?;
        if length == 0 {
            return Ok(other.read(&mut right)? == 0);
        }
        let Some(part) = right.get_mut(..length) else {
            return Ok(false);
        };
        match other.read_exact(part) {
            Ok(()) => {}
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(cause) => return Err(cause),
        }
        if left.get(..length) != Some(&*part) {
            return Ok(false);
        }
    }
}

/// Removes a file or a tree, if it exists.
///
/// # Errors
/// When it can't be removed.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(cause),
    }
}

/// Removes what is in a directory of restored files, if it is this user's, but for what a restore that was killed had written: the next one
/// goes on with it.
///
/// # Errors
/// When something can't be removed.
pub(super) fn clear(dir: &Path) -> io::Result<()> {
    match fs::symlink_metadata(dir) {
        Ok(found) if found.is_dir() && found.uid() == geteuid().as_raw() => {
            let all = restored(dir)?;
            all.iter().try_for_each(|path| remove(path))
        }
        _ => remove(dir),
    }
}

/// What was restored into a directory, without what a restore that was killed had written.
///
/// # Errors
/// When the directory can't be read.
pub(super) fn restored(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if !is_unfinished(&entry.file_name()) {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(path: &Path) -> Fingerprint {
        Fingerprint::of(&[path.to_owned()], &Exclude::default())
    }

    #[test]
    fn a_replaced_file_is_distinguished_from_one_that_was_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let next = dir.path().join("next");
        assert!(print(&path).is_empty());
        fs::write(&path, b"one").unwrap();
        let first = print(&path);
        assert!(!first.is_empty() && first.bytes() == 3);
        assert!(print(&path).is_as(&first));
        fs::write(&next, b"second").unwrap();
        fs::rename(&next, &path).unwrap();
        let second = print(&path);
        assert!(!second.is_as(&first) && second.was_replaced_since(&first));
        fs::write(&path, b"third, longer").unwrap();
        let third = print(&path);
        assert!(!third.was_replaced_since(&second));
        // The first state may have been renamed into place; this can't be known.
        assert!(third.was_replaced_since(&Fingerprint::default()));
    }

    #[test]
    fn a_file_that_took_the_inode_of_the_one_before_is_known_by_its_birth() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        fs::write(&path, b"one").unwrap();
        let first = print(&path);
        let was = *first.marks.get(&path).unwrap();
        // As on ext4, where the third file gets the inode of the first one.
        let later = Mark {
            born: Some(SystemTime::UNIX_EPOCH),
            size: 6,
            modified: (9, 9),
            ..was
        };
        let with = |mark: Mark| Fingerprint {
            marks: [(path.clone(), mark)].into(),
            is_cut: false,
        };
        let has_birth = with(Mark {
            born: Some(SystemTime::now()),
            ..was
        });
        assert!(with(later).was_replaced_since(&has_birth));
        // Without a birth it may have been written to.
        let unborn = Mark {
            born: None,
            ..later
        };
        assert!(!with(unborn).was_replaced_since(&has_birth));
        assert!(!with(later).was_replaced_since(&with(Mark { born: None, ..was })));
        for _ in 0..20 {
            let before = print(&path);
            // The inodes of the file before and of the one before that are in turn.
            for _ in 0..2 {
                std::thread::sleep(std::time::Duration::from_millis(5));
                fs::write(dir.path().join("next"), b"other").unwrap();
                fs::rename(dir.path().join("next"), &path).unwrap();
            }
            let has_births = fs::metadata(&path).unwrap().created().is_ok();
            assert!(!has_births || print(&path).was_replaced_since(&before));
        }
    }

    #[test]
    fn a_directory_that_can_t_be_read_is_not_empty() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("state");
        let hidden = root.join("hidden");
        fs::create_dir_all(&hidden).unwrap();
        fs::write(hidden.join("state"), b"some").unwrap();
        fs::set_permissions(&hidden, fs::Permissions::from_mode(0o000)).unwrap();
        let closed = print(&root);
        assert!(!closed.is_empty() && closed.is_as(&print(&root)));
        fs::set_permissions(&hidden, fs::Permissions::from_mode(0o700)).unwrap();
        fs::remove_file(hidden.join("state")).unwrap();
        assert!(print(&root).is_empty());
        // A link to itself can't be followed.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&link, &link).unwrap();
        assert!(!print(&link).is_empty());
    }

    #[test]
    fn a_tree_is_looked_at_without_what_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("state");
        fs::create_dir_all(root.join("deep")).unwrap();
        fs::write(root.join("deep/a"), b"1").unwrap();
        let pattern = ckpt_agent::image::exclude_pattern("*.log").unwrap();
        let exclude = Exclude::new(vec![pattern]).unwrap();
        let of = || Fingerprint::of(std::slice::from_ref(&root), &exclude);
        let before = of();
        fs::write(root.join("deep/b.log"), b"1").unwrap();
        assert!(of().is_as(&before));
        fs::write(root.join("deep/b"), b"1").unwrap();
        assert!(!of().is_as(&before));
    }

    #[test]
    fn trees_are_the_same_when_names_kinds_and_bytes_are() {
        let dir = tempfile::tempdir().unwrap();
        let one = dir.path().join("one");
        let other = dir.path().join("other");
        for root in [&one, &other] {
            fs::create_dir_all(root.join("deep")).unwrap();
            fs::write(root.join("deep/a"), vec![7; 3 * COMPARED_BYTES / 2]).unwrap();
            std::os::unix::fs::symlink("deep/a", root.join("link")).unwrap();
        }
        assert!(are_same(&one, &other).unwrap());
        let mut bytes = vec![7; 3 * COMPARED_BYTES / 2];
        *bytes.last_mut().unwrap() = 8;
        fs::write(other.join("deep/a"), &bytes).unwrap();
        assert!(!are_same(&one, &other).unwrap());
        fs::write(one.join("deep/a"), &bytes).unwrap();
        assert!(are_same(&one, &other).unwrap());
        fs::write(one.join("more"), b"").unwrap();
        assert!(!are_same(&one, &other).unwrap());
    }
}
