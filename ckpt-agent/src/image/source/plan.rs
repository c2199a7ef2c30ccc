//! The list of an image's files, made before the first byte is read.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use codec::index::{Attributes, FileEntry, FileKind, PATH_BYTES_MAX};
use machine::open_files::FileId;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags, statx};
use rustix::io::Errno;

use super::attributes::{Looked, NotKept, mode_bits};
use super::extents::{allocated_bytes, data_extents};
use super::named::{NamedPath, overlapping};
use super::{Exclude, Remarks, SourceError, SourceOptions, changed};
use crate::image::beneath::{Beneath, join};
use crate::image::path_from_bytes;

/// Flags for opening a regular file: if a fifo has taken its place, opening does not block.
const TO_READ: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// A file to be saved, in the state in which it was when the list was made.
#[derive(Debug)]
pub(super) struct PlannedFile {
    /// Index of the named path to which the file belongs.
    pub(super) root: usize,
    pub(super) entry: FileEntry,
    pub(super) state: FileState,
    /// Whether the file could not be read and is left out.
    pub(super) left_out: bool,
    /// A hash of the names in a directory that are not excluded.
    pub(super) names: Option<blake3::Hash>,
}

impl PlannedFile {
    pub(super) const fn is_regular(&self) -> bool {
        matches!(self.entry.kind, FileKind::Regular { .. })
    }
}

/// The metadata by which a change of a file is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileState {
    inode: (u64, u64),
    /// When it was made, seconds and nanoseconds; known only of a file that is saved alone. Some file systems give
    /// the inode of a file that is gone to the next one.
    born: Option<(i64, u32)>,
    pub(super) size: u64,
    mtime: (i64, u64),
    ctime: (i64, u64),
    /// Names that the file has.
    links: u64,
}

impl FileState {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the types of these fields differ between processors"
    )]
    pub(super) const fn of(stat: &Stat) -> Self {
        Self {
            inode: (stat.st_dev as u64, stat.st_ino as u64),
            born: None,
            size: stat.st_size.cast_unsigned() as u64,
            mtime: (stat.st_mtime as i64, stat.st_mtime_nsec as u64),
            ctime: (stat.st_ctime as i64, stat.st_ctime_nsec as u64),
            links: stat.st_nlink as u64,
        }
    }

    /// The state of an open file, with its time of birth.
    pub(super) fn with_birth(self, file: BorrowedFd<'_>) -> Self {
        let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
        let found = found.ok().filter(|found| {
            StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME)
        });
        Self {
            born: found.map(|found| (found.stx_btime.tv_sec, found.stx_btime.tv_nsec)),
            ..self
        }
    }

    /// The later state of a file with these metadata, where it is not opened for its time of birth.
    pub(super) const fn seen_again(&self, stat: &Stat) -> Self {
        Self {
            born: self.born,
            ..Self::of(stat)
        }
    }

    /// What distinguishes the file from others that exist.
    pub(super) const fn id(&self) -> FileId {
        let (device, inode) = self.inode;
        FileId { inode, device }
    }

    /// When the file or its attributes were changed, seconds and nanoseconds since 1970.
    pub(super) const fn changed_at(&self) -> (i64, u64) {
        self.ctime
    }

    /// Whether the file is another one than in its earlier state, as after a rename into its place.
    pub(super) fn is_another(&self, now: &Self) -> bool {
        let is_born_later = self.born.is_some() && now.born.is_some() && self.born != now.born;
        self.inode != now.inode || is_born_later
    }

    /// How a file differs from its earlier state; `None` if it does not, or if all that happened to it is that it lost a
    /// name: another file was renamed into its place, or the name was removed.
    pub(super) fn change(&self, now: &Self) -> Option<&'static str> {
        if self.is_another(now) {
            Some("it was replaced by another file")
        } else if self.size != now.size {
            Some("its size changed")
        } else if self.mtime != now.mtime || self.ctime != now.ctime && now.links >= self.links {
            Some("it was written to")
        } else {
            None
        }
    }

    /// How the list of files in a directory differs from its earlier state; attributes of the directory may
    /// differ.
    pub(super) fn change_of_names(&self, now: &Self) -> Option<&'static str> {
        if self.inode != now.inode {
            Some("it was replaced by another directory")
        } else if self.mtime != now.mtime {
            Some("files in it were made, renamed or removed")
        } else {
            None
        }
    }
}

/// The paths that the user named.
#[derive(Debug, Default)]
pub(super) struct Roots {
    paths: Vec<PathBuf>,
    /// The name under which each of them is stored.
    names: Vec<Vec<u8>>,
    /// The same names, as a set.
    taken: BTreeSet<Vec<u8>>,
    /// The directory that is open: only one at a time, however many are named.
    open: Option<(usize, Beneath)>,
}

impl Roots {
    /// The whole path of a file, for messages.
    pub(super) fn display(&self, root: usize, path: &[u8]) -> PathBuf {
        let named = self.paths.get(root).cloned().unwrap_or_default();
        match below_root(path) {
            Some(below) => named.join(path_from_bytes(below)),
            None => named,
        }
    }

    /// The path under which a file is stored.
    pub(super) fn stored(&self, root: usize, path: &[u8]) -> Vec<u8> {
        let name = self.names.get(root).map(Vec::as_slice).unwrap_or_default();
        match below_root(path) {
            Some(below) => join(name, below),
            None => name.to_vec(),
        }
    }

    /// Opens a regular file for reading. Only the named path itself may be a symbolic link.
    pub(super) fn open_file(&mut self, root: usize, path: &[u8]) -> io::Result<OwnedFd> {
        let Some(below) = below_root(path) else {
            let named = self.named(root)?;
            return Ok(rustix::fs::open(named, TO_READ, Mode::empty())?);
        };
        let (directory, name) = self.tree(root)?.parent_of(below)?;
        let flags = TO_READ | OFlags::NOFOLLOW;
        Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?)
    }

    /// Metadata of a file.
    pub(super) fn stat(&mut self, root: usize, path: &[u8]) -> io::Result<Stat> {
        let Some(below) = below_root(path) else {
            return Ok(rustix::fs::stat(self.named(root)?)?);
        };
        let (directory, name) = self.tree(root)?.parent_of(below)?;
        Ok(rustix::fs::statat(
            directory,
            name,
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }

    /// A hash of the names in a directory that are not excluded.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub(super) fn names_hash(
        &mut self,
        root: usize,
        path: &[u8],
        exclude: &Exclude,
    ) -> io::Result<blake3::Hash> {
        let below = below_root(path).unwrap_or_default();
        let names = self.tree(root)?.names(below)?;
        Ok(hash_of(&kept_paths(path, &names, exclude)))
    }

    /// The mode of a file without rights that only the mask of an access control list gives, and what else is kept.
    fn look_at(&mut self, not_kept: &mut NotKept, root: usize, path: &[u8], stat: &Stat) -> Looked {
        let mut shown = self.display(root, path);
        if below_root(path).is_none() {
            // The named path itself may be a link, which is followed.
            shown = shown.canonicalize().unwrap_or(shown);
        }
        let place = below_root(path).and_then(|below| {
            let (directory, name) = self.tree(root).ok()?.parent_of(below).ok()?;
            Some((directory, Path::new(name)))
        });
        let directory = place.as_ref().map(|(directory, _)| directory);
        let name = place.as_ref().map_or(Path::new(""), |(_, name)| *name);
        not_kept.look(directory, name, || shown.clone(), stat)
    }

    fn named(&self, root: usize) -> io::Result<&Path> {
        let named = self.paths.get(root).map(PathBuf::as_path);
        named.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn tree(&mut self, root: usize) -> io::Result<&mut Beneath> {
        let opened = match self.open.take() {
            Some((number, tree)) if number == root => tree,
            _ => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                Beneath::new(rustix::fs::open(self.named(root)?, flags, Mode::empty())?)
            }
        };
        Ok(&mut self.open.insert((root, opened)).1)
    }
}

/// The part of a path of the index that lies below its root.
fn below_root(path: &[u8]) -> Option<&[u8]> {
    let slash = path.iter().position(|&byte| byte == b'/')?;
    path.get(slash + 1..)
}

/// The list of files while it is being made.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) files: Vec<PlannedFile>,
    pub(super) roots: Roots,
    pub(super) remarks: Remarks,
    pub(super) not_kept: NotKept,
    /// Bytes that will be read; an estimate for files with holes.
    pub(super) bytes: u64,
    /// For each file with several hard links, by device and inode, its index in the list.
    linked: BTreeMap<(u64, u64), u64>,
    options: SourceOptions,
    pub(super) exclude: Exclude,
}

impl Plan {
    pub(super) fn new(options: SourceOptions, exclude: Exclude) -> Self {
        Self {
            files: Vec::new(),
            roots: Roots::default(),
            remarks: Remarks::default(),
            not_kept: NotKept::new(options),
            bytes: 0,
            linked: BTreeMap::new(),
            options,
            exclude,
        }
    }

    /// Adds a named path, and all files below it if it is a directory.
    pub(super) fn add_root(&mut self, named: &NamedPath) -> Result<(), SourceError> {
        let path = named.path();
        let failed = |cause| SourceError::Io {
            doing: "reading",
            path: path.to_owned(),
            cause,
            can_be_left_out: false,
        };
        // `.` and `..` have no name in the path, so the real name is looked up. A link is saved under its own
        // name.
        let name = match path.file_name() {
            Some(name) => name.to_owned(),
            None => path
                .canonicalize()
                .map_err(failed)?
                .file_name()
                .ok_or_else(|| SourceError::Name(path.to_owned()))?
                .to_owned(),
        };
        let own = name.as_bytes();
        let stored = named.name().unwrap_or(own);
        if named.name().is_some() && path.symlink_metadata().is_ok_and(|of| of.is_symlink()) {
            return Err(SourceError::NamedLink(path.to_owned()));
        }
        if let Some(other) = overlapping(&self.roots.taken, stored) {
            if other == own {
                return Err(SourceError::SameName(name));
            }
            return Err(SourceError::NameTaken {
                one: path_from_bytes(other).to_owned(),
                other: path_from_bytes(stored).to_owned(),
            });
        }
        let root = self.roots.paths.len();
        self.roots.paths.push(path.to_owned());
        self.roots.names.push(stored.to_vec());
        self.roots.taken.insert(stored.to_vec());
        let name = own.to_vec();
        let stat = self.roots.stat(root, &name).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                self.add(root, name.clone(), &stat)?;
                // If it can't be opened now, that is reported when it is read.
                let opened = self.roots.open_file(root, &name);
                if let (Ok(file), Some(planned)) = (opened, self.files.last_mut()) {
                    planned.state = planned.state.with_birth(file.as_fd());
                }
                Ok(())
            }
            FileType::Directory => self.add_tree(root, name),
            kind => Err(SourceError::NotAFile {
                path: path.to_owned(),
                what: kind_name(kind),
            }),
        }
    }

    /// Adds a directory and all files below it, parents before children, in the order of names.
    fn add_tree(&mut self, root: usize, name: Vec<u8>) -> Result<(), SourceError> {
        let mut pending = vec![name];
        while let Some(path) = pending.pop() {
            if self.roots.stored(root, &path).len() > PATH_BYTES_MAX {
                return Err(self.too_long(root, &path));
            }
            let is_directory = match self.roots.stat(root, &path) {
                Ok(stat) => self.add(root, path.clone(), &stat)?,
                Err(cause) => {
                    self.unreadable("reading", root, &path, cause)?;
                    false
                }
            };
            if !is_directory {
                continue;
            }
            let below = below_root(&path).unwrap_or_default();
            let listed = self.roots.tree(root).and_then(|tree| tree.names(below));
            match listed {
                Ok(names) => {
                    let paths = kept_paths(&path, &names, &self.exclude);
                    if let Some(directory) = self.files.last_mut() {
                        directory.names = Some(hash_of(&paths));
                    }
                    pending.extend(paths.into_iter().rev());
                }
                Err(cause) => self.unreadable("listing", root, &path, cause)?,
            }
        }
        Ok(())
    }

    fn too_long(&self, root: usize, path: &[u8]) -> SourceError {
        let below = below_root(path).unwrap_or_default();
        let text = path_from_bytes(below).display().to_string();
        let first = text.split('/').next().unwrap_or_default();
        SourceError::TooLong {
            root: self.roots.paths.get(root).cloned().unwrap_or_default(),
            bytes: self.roots.stored(root, path).len(),
            pattern: pattern_of(first),
            path: cut(&text),
        }
    }

    /// Adds one file; returns whether it is a directory.
    fn add(&mut self, root: usize, path: Vec<u8>, stat: &Stat) -> Result<bool, SourceError> {
        let Some(kind) = self.kind(root, &path, stat)? else {
            return Ok(false);
        };
        let is_directory = kind == FileKind::Directory;
        if let FileKind::Regular { size, .. } = kind {
            self.bytes += self.data_bytes(root, &path, stat, size);
        }
        let mut entry = FileEntry {
            path,
            mode: mode_bits(stat),
            mtime_s: 0,
            mtime_ns: 0,
            kind,
            attributes: None,
        };
        set_time(&mut entry, stat);
        if matches!(entry.kind, FileKind::Regular { .. } | FileKind::Directory) {
            let looked = self
                .roots
                .look_at(&mut self.not_kept, root, &entry.path, stat);
            entry.mode = looked.mode;
            entry.attributes = looked.attributes.map(Box::new);
        } else if self.options.owners && !matches!(entry.kind, FileKind::HardLink { .. }) {
            let owner = Some((stat.st_uid, stat.st_gid));
            let extended = Vec::new();
            entry.attributes = Some(Box::new(Attributes { owner, extended }));
        }
        self.files.push(PlannedFile {
            root,
            entry,
            state: FileState::of(stat),
            left_out: false,
            names: None,
        });
        Ok(is_directory)
    }

    /// The kind of a file; `None` when it is not saved.
    fn kind(
        &mut self,
        root: usize,
        path: &[u8],
        stat: &Stat,
    ) -> Result<Option<FileKind>, SourceError> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Ok(Some(FileKind::Directory)),
            FileType::Fifo => Ok(Some(FileKind::Fifo)),
            FileType::Symlink => match self.link_target(root, path) {
                Ok(target) => Ok(Some(FileKind::Symlink { target })),
                Err(cause) => {
                    self.unreadable("reading link", root, path, cause)?;
                    Ok(None)
                }
            },
            FileType::RegularFile => {
                let state = FileState::of(stat);
                if stat.st_nlink > 1 {
                    if let Some(&file) = self.linked.get(&state.inode) {
                        return Ok(Some(FileKind::HardLink { file }));
                    }
                    self.linked.insert(state.inode, self.files.len() as u64);
                }
                Ok(Some(FileKind::Regular {
                    size: state.size,
                    extents: Vec::new(),
                }))
            }
            kind => {
                let path = self.roots.display(root, path);
                self.remarks
                    .warn(format!("{path:?}: a {} is not saved", kind_name(kind)));
                Ok(None)
            }
        }
    }

    fn link_target(&mut self, root: usize, path: &[u8]) -> io::Result<Vec<u8>> {
        let below = below_root(path).unwrap_or_default();
        let (directory, name) = self.roots.tree(root)?.parent_of(below)?;
        Ok(rustix::fs::readlinkat(directory, name, Vec::new())?.into_bytes())
    }

    /// Bytes of data in a file. Its extents are read only if it may have holes; what is really read is found
    /// out later.
    fn data_bytes(&mut self, root: usize, path: &[u8], stat: &Stat, size: u64) -> u64 {
        let allocated = allocated_bytes(stat);
        if allocated >= size {
            return size;
        }
        self.roots
            .open_file(root, path)
            .and_then(|file| data_extents(file.as_fd(), stat))
            .map_or(allocated, |extents| extents.iter().map(|e| e.len).sum())
    }

    fn unreadable(
        &mut self,
        doing: &'static str,
        root: usize,
        path: &[u8],
        cause: io::Error,
    ) -> Result<(), SourceError> {
        let path = self.roots.display(root, path);
        if vanished(&cause) {
            let warning = changed(&path, "it vanished", self.options)?;
            self.remarks.push(warning);
            return Ok(());
        }
        if !self.options.skip_unreadable {
            return Err(SourceError::Io {
                doing,
                path,
                cause,
                can_be_left_out: true,
            });
        }
        self.remarks.warn(format!("{path:?}: {cause}; left out"));
        Ok(())
    }
}

/// The paths of the files in the directory at `path` that are not excluded.
fn kept_paths(path: &[u8], names: &[OsString], exclude: &Exclude) -> Vec<Vec<u8>> {
    let paths = names.iter().map(|name| join(path, name.as_bytes()));
    let stays = |path: &Vec<u8>| !exclude.leaves_out(below_root(path).unwrap_or_default());
    paths.filter(stays).collect()
}

fn hash_of(paths: &[Vec<u8>]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for path in paths {
        // No name has a byte of 0.
        hasher.update(path).update(&[0]);
    }
    hasher.finalize()
}

/// A pattern for a file right below a named directory, short enough to be typed.
fn pattern_of(name: &str) -> String {
    let beginning: String = name.chars().take(SHOWN_CHARS).collect();
    let rest = if beginning.len() < name.len() {
        "*"
    } else {
        ""
    };
    format!("/{}{rest}", globset::escape(&beginning))
}

/// Characters that are shown of the beginning, and of the end, of a long path.
const SHOWN_CHARS: usize = 40;

/// A text of at most about 80 characters: beginning and end of a longer one.
fn cut(text: &str) -> String {
    let count = text.chars().count();
    if count <= 2 * SHOWN_CHARS {
        return text.to_owned();
    }
    let beginning: String = text.chars().take(SHOWN_CHARS).collect();
    let end: String = text.chars().skip(count - SHOWN_CHARS).collect();
    format!("{beginning}...{end}")
}

/// Whether a listed file does not exist any more, or has become something else.
pub(super) fn vanished(cause: &io::Error) -> bool {
    let errno = Errno::from_io_error(cause);
    cause.kind() == io::ErrorKind::NotFound || matches!(errno, Some(Errno::NOTDIR | Errno::LOOP))
}

/// Copies the time from a file's metadata.
#[allow(
    clippy::unnecessary_cast,
    reason = "the types of these fields differ between processors"
)]
pub(super) fn set_time(entry: &mut FileEntry, stat: &Stat) {
    entry.mtime_s = stat.st_mtime as i64;
    entry.mtime_ns = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
}

/// Metadata of an open file.
pub(super) fn stat_open(file: BorrowedFd<'_>) -> io::Result<Stat> {
    Ok(rustix::fs::fstat(file)?)
}

const fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Socket => "socket",
        FileType::Fifo => "fifo",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::RegularFile => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Unknown => "file of unknown kind",
    }
}
