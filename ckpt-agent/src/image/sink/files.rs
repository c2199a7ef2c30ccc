//! Builds files and directories under a temporary name beside the target.
//!
//! Every file is made by a call relative to an open directory, with a single name that must not exist yet,
//! and no symbolic link is ever followed. The index has been checked: its paths are plain, and the directory
//! of every file comes before the file.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use codec::index::{Extent, FileEntry, FileKind, Index, SegmentEntry};
use direct_io::DirectFile;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::attributes::{owner_of, set_attributes, times};
use super::place::{Shape, may_replace};
use super::unfinished::{self, ONLY_FILE, aside_name, is_there, temporary_name};
use super::{Run, SinkError, SinkOptions};
use crate::image::beneath::{Beneath, remove_all};
use crate::image::path_from_bytes;
use crate::image::stream::{FilePart, StreamFiles};

/// Up to this many files are synced one by one. For more, one sync of the whole file system is faster, though
/// it also waits for what other programs wrote there.
const SYNC_EACH_MAX: usize = 64;

const TO_WRITE: OFlags = OFlags::CREATE
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::RDWR);

const TO_LOOK: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// Flags for a file without a name.
const OPEN_UNNAMED: OFlags = OFlags::TMPFILE.union(OFlags::CLOEXEC).union(OFlags::RDWR);

/// A file of at least this many bytes is written under a name, so that the next restore finds what a killed one had
/// written.
const FOUND_AGAIN_BYTES_MIN: u64 = 64 << 20;

/// The files of an image while they are being made under a temporary name.
#[derive(Debug)]
pub struct FileSink {
    target: PathBuf,
    parent: OwnedFd,
    /// Final name in `parent`; `temporary` is the name until then.
    name: OsString,
    temporary: OsString,
    layout: Layout,
    files: Vec<FileEntry>,
    options: SinkOptions,
    /// Bytes that will be written.
    needed: u64,
    /// Index of the file that is made next.
    next: usize,
    open: Option<OpenFile>,
    /// For reading back what was written before.
    earlier: EarlierFiles,
    sync_each: bool,
    named: bool,
}

/// How the image is built until it gets its name.
#[derive(Debug)]
enum Layout {
    /// The only file of the image, without a name until it gets its own. No other user can put another file
    /// in its place, and nothing is left of it when this program is killed.
    Unnamed(File),
    /// The only file of the image, if it is large, on a file system without unnamed files, or when an old file is
    /// to be replaced. It is alone in a directory of its own, so that no other user who may write beside the target
    /// can put another file in its place.
    File(Beneath),
    /// The only root of the image, which is a directory.
    Directory(Beneath),
    /// A directory that holds the several roots of the image.
    Several(Beneath),
}

/// Where the replaced file or directory is now.
#[derive(Debug)]
enum Old {
    /// Where the new one was made.
    Exchanged,
    /// Beside the target, under this name.
    Aside(OsString),
}

/// The file that is being written.
#[derive(Debug)]
struct OpenFile {
    number: usize,
    file: DirectFile,
    /// Index of the extent, and offset in it, that are written next.
    extent: usize,
    done: u64,
}

/// Most files that stay open to be read back. A closed file may have got attributes that do not allow it to
/// be opened again.
const KEPT_MAX: usize = 64;

/// Finds the files that hold earlier parts of the stream.
#[derive(Debug, Default)]
struct EarlierFiles {
    /// Empty when nothing will be read back.
    stream: StreamFiles,
    kept: VecDeque<(usize, File)>,
}

impl EarlierFiles {
    fn of(index: &Index) -> Self {
        let is_shared = |segment: &SegmentEntry| matches!(segment, SegmentEntry::Shared { .. });
        let mut earlier = Self::default();
        if index.segments.iter().any(is_shared) {
            earlier.stream = StreamFiles::of(index);
        }
        earlier
    }

    fn keep(&mut self, number: usize, file: File) {
        if self.stream.is_empty() {
            return;
        }
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((number, file));
    }

    fn kept(&self, number: usize) -> Option<&File> {
        let found = self.kept.iter().find(|(kept, _)| *kept == number);
        found.map(|(_, file)| file)
    }
}

impl FileSink {
    /// Fails when the image of `index` can't be written to `target`.
    pub(super) fn check(
        index: &Index,
        target: &Path,
        options: SinkOptions,
    ) -> Result<(), SinkError> {
        let (parent, _) = open_parent(target)?;
        check_in(&parent, index, target, options).map(|_| ())
    }

    pub(super) fn create(
        index: &Index,
        target: &Path,
        options: SinkOptions,
    ) -> Result<Self, SinkError> {
        let (parent, name) = open_parent(target)?;
        unfinished::remove_dead(&parent);
        let needed = check_in(&parent, index, target, options)?;
        let temporary = temporary_name(&parent, name);
        let layout = Layout::make(index, &parent, &temporary)
            .map_err(|cause| io_error("creating", target, cause))?;
        Ok(Self {
            target: target.to_owned(),
            name: name.to_owned(),
            temporary,
            parent,
            layout,
            files: index.files.clone(),
            options,
            needed,
            next: 0,
            open: None,
            earlier: EarlierFiles::of(index),
            sync_each: index.files.len() <= SYNC_EACH_MAX,
            named: false,
        })
    }

    /// Writes or skips the next bytes of the stream.
    pub(super) fn advance(&mut self, mut run: Run<'_>) -> Result<(), SinkError> {
        while run.len() > 0 {
            let Some(extent) = self.next_extent() else {
                self.close()?;
                if !self.make_next()? {
                    return Err(SinkError::TooLong);
                }
                continue;
            };
            let Some(open) = &mut self.open else { continue };
            let (head, tail) = run.split(run.len().min(extent.len - open.done));
            // A new file is one hole, so zeros need not be written.
            if let Run::Bytes(bytes) = head
                && let Err(cause) = open.file.write_at(bytes, extent.offset + open.done)
            {
                let number = open.number;
                return Err(self.failed("writing", number, cause));
            }
            open.done += head.len();
            if open.done == extent.len {
                open.extent += 1;
                open.done = 0;
            }
            run = tail;
        }
        Ok(())
    }

    /// The extent of the open file that is written next.
    fn next_extent(&self) -> Option<Extent> {
        let open = self.open.as_ref()?;
        match &self.files.get(open.number)?.kind {
            FileKind::Regular { extents, .. } => extents.get(open.extent).copied(),
            _ => None,
        }
    }

    /// Makes the next file; `false` if there are no more.
    fn make_next(&mut self) -> Result<bool, SinkError> {
        let number = self.next;
        if number >= self.files.len() {
            return Ok(false);
        }
        self.next += 1;
        match self.make(number) {
            Ok(()) => Ok(true),
            Err(cause) => Err(self.failed("creating", number, cause)),
        }
    }

    fn make(&mut self, number: usize) -> io::Result<()> {
        let Some(file) = self.files.get(number) else {
            return Ok(());
        };
        if let (Layout::Unnamed(made), FileKind::Regular { size, .. }) = (&self.layout, &file.kind)
        {
            let made = made.try_clone()?;
            let size = *size;
            return self.open(number, made, size);
        }
        let place = self.layout.place(&file.path);
        if let (Layout::Directory(_), b"") = (&self.layout, place) {
            return Ok(());
        }
        let old = match file.kind {
            FileKind::HardLink { file } => {
                let old = usize::try_from(file).ok().and_then(|at| self.files.get(at));
                let old = old.ok_or_else(|| io::Error::other("hard link to nothing"))?;
                let (directory, name) =
                    self.layout
                        .directory_of(&self.parent, &self.temporary, &old.path)?;
                Some((directory.try_clone_to_owned()?, name.to_owned()))
            }
            _ => None,
        };
        let (directory, name) =
            self.layout
                .directory_of(&self.parent, &self.temporary, &file.path)?;
        match &file.kind {
            FileKind::Directory => rustix::fs::mkdirat(directory, name, Mode::RWXU)?,
            FileKind::Regular { size, .. } => {
                let mode = Mode::RUSR | Mode::WUSR;
                let made = File::from(rustix::fs::openat(directory, name, TO_WRITE, mode)?);
                let size = *size;
                self.open(number, made, size)?;
            }
            FileKind::Symlink { target } => {
                rustix::fs::symlinkat(OsStr::from_bytes(target), directory, name)?;
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                if let Some((user, group)) = owner_of(file) {
                    rustix::fs::chownat(directory, name, Some(user), Some(group), flags)?;
                }
                rustix::fs::utimensat(directory, name, &times(file), flags)?;
            }
            FileKind::HardLink { .. } => {
                if let Some((from, old)) = old {
                    rustix::fs::linkat(from, old, directory, name, AtFlags::empty())?;
                }
            }
            FileKind::Fifo => {
                let mode = Mode::RUSR | Mode::WUSR;
                rustix::fs::mknodat(directory, name, FileType::Fifo, mode, 0)?;
                let made = rustix::fs::openat(directory, name, TO_LOOK, Mode::empty())?;
                set_attributes(made.as_fd(), file, self.options)?;
            }
        }
        Ok(())
    }

    /// Begins to write a file that was just made.
    fn open(&mut self, number: usize, made: File, size: u64) -> io::Result<()> {
        made.set_len(size)?;
        self.open = Some(OpenFile {
            number,
            file: DirectFile::new(made),
            extent: 0,
            done: 0,
        });
        Ok(())
    }

    /// Completes the open file: sets its attributes and syncs it.
    fn close(&mut self) -> Result<(), SinkError> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let Some(file) = self.files.get(open.number) else {
            return Ok(());
        };
        let closed = open.file.into_file().and_then(|made| {
            set_attributes(made.as_fd(), file, self.options)?;
            if self.sync_each {
                made.sync_all()?;
            }
            self.earlier.keep(open.number, made);
            Ok(())
        });
        closed.map_err(|cause| self.failed("completing", open.number, cause))
    }

    /// Reads bytes that were written before, from `offset` of the stream on.
    pub(super) fn read_back(
        &mut self,
        mut offset: u64,
        mut buffer: &mut [u8],
    ) -> Result<(), SinkError> {
        while !buffer.is_empty() {
            let Some(place) = self.earlier.stream.place(offset) else {
                return Err(SinkError::TooShort);
            };
            let len = usize::try_from(place.len).unwrap_or(usize::MAX);
            let (now, later) = buffer.split_at_mut(len.min(buffer.len()));
            self.read_file(place, now)
                .map_err(|cause| self.failed("reading back", place.file, cause))?;
            offset += now.len() as u64;
            buffer = later;
        }
        Ok(())
    }

    fn read_file(&mut self, place: FilePart, buffer: &mut [u8]) -> io::Result<()> {
        if let Some(open) = self.open.as_mut().filter(|open| open.number == place.file) {
            return open.file.read_exact_at(buffer, place.at);
        }
        if let Some(file) = self.earlier.kept(place.file) {
            return file.read_exact_at(buffer, place.at);
        }
        if let Layout::Unnamed(file) = &self.layout {
            return file.read_exact_at(buffer, place.at);
        }
        let Some(FileEntry { path, .. }) = self.files.get(place.file) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let (directory, name) = self
            .layout
            .directory_of(&self.parent, &self.temporary, path)?;
        let file = File::from(rustix::fs::openat(directory, name, TO_LOOK, Mode::empty())?);
        file.read_exact_at(buffer, place.at)?;
        self.earlier.keep(place.file, file);
        Ok(())
    }

    /// Completes all files, syncs them, and gives the image its name.
    pub(super) fn finish(mut self) -> Result<(), SinkError> {
        loop {
            if self.next_extent().is_some() {
                return Err(SinkError::TooShort);
            }
            self.close()?;
            if !self.make_next()? {
                break;
            }
        }
        // Making a file in a directory changes the directory's time, so directories are completed last, and
        // children before their parents.
        for number in (0..self.files.len()).rev() {
            self.complete_directory(number)
                .map_err(|cause| self.failed("completing", number, cause))?;
        }
        self.sync()
            .map_err(|cause| self.failed_as_whole("syncing", cause))?;
        self.give_name()
    }

    fn complete_directory(&mut self, number: usize) -> io::Result<()> {
        let Some(file) = self.files.get(number) else {
            return Ok(());
        };
        if file.kind != FileKind::Directory {
            return Ok(());
        }
        let (directory, name) =
            self.layout
                .directory_of(&self.parent, &self.temporary, &file.path)?;
        let flags = TO_LOOK | OFlags::DIRECTORY;
        let made = rustix::fs::openat(directory, name, flags, Mode::empty())?;
        set_attributes(made.as_fd(), file, self.options)?;
        if self.sync_each {
            rustix::fs::fsync(&made)?;
        }
        Ok(())
    }

    /// Syncs the files that were not synced when they were closed.
    fn sync(&self) -> io::Result<()> {
        match &self.layout {
            Layout::Unnamed(_) | Layout::File(_) => Ok(()),
            Layout::Directory(tree) | Layout::Several(tree) if self.sync_each => {
                Ok(rustix::fs::fsync(tree.root())?)
            }
            Layout::Directory(_) | Layout::Several(_) => Ok(rustix::fs::syncfs(&self.parent)?),
        }
    }

    fn give_name(&mut self) -> Result<(), SinkError> {
        if let Layout::Unnamed(file) = &self.layout {
            match link(file, self.parent.as_fd(), &self.name) {
                Ok(()) => return self.sync_name(),
                Err(Errno::EXIST) if self.options.force => self
                    .stage()
                    .map_err(|cause| self.failed_as_whole("naming", cause))?,
                Err(Errno::EXIST) => return Err(SinkError::Exists(self.target.clone())),
                Err(cause) => return Err(self.failed_as_whole("naming", cause.into())),
            }
        }
        // A file may have appeared at the target, or changed its kind, since the restore began.
        may_replace(
            &self.parent,
            &self.target,
            self.layout.shape(),
            self.options.force,
        )?;
        let replaced = match self.rename() {
            Ok(replaced) => replaced,
            Err(Errno::EXIST) => return Err(SinkError::Exists(self.target.clone())),
            Err(cause) => return Err(self.failed_as_whole("naming", cause.into())),
        };
        self.sync_name()?;
        self.remove_old(replaced)
    }

    /// Gives the unnamed file a name in a directory of its own.
    fn stage(&mut self) -> io::Result<()> {
        let Layout::Unnamed(file) = &self.layout else {
            return Ok(());
        };
        let tree = Beneath::new(unfinished::make(&self.parent, &self.temporary)?);
        link(file, tree.root(), OsStr::new(ONLY_FILE))?;
        self.layout = Layout::File(tree);
        Ok(())
    }

    /// Moves the new image to the target. Returns where the old one is now, if there was one.
    fn rename(&self) -> rustix::io::Result<Option<Old>> {
        let parent = &self.parent;
        let new = &self.name;
        let (from, old) = self.made();
        let rename = |flags| rustix::fs::renameat_with(from, old, parent, new, flags);
        match rename(RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) if self.options.force => match rename(RenameFlags::EXCHANGE) {
                Ok(()) => Ok(Some(Old::Exchanged)),
                Err(Errno::INVAL | Errno::NOSYS) => self.replace_in_two_steps().map(Some),
                Err(cause) => Err(cause),
            },
            // On file systems without these flags there is a moment between the check and the rename.
            Err(Errno::INVAL | Errno::NOSYS) if !is_there(parent, new) => {
                rustix::fs::renameat(from, old, parent, new).map(|()| None)
            }
            Err(Errno::INVAL | Errno::NOSYS) if self.options.force => {
                self.replace_in_two_steps().map(Some)
            }
            Err(Errno::INVAL | Errno::NOSYS) => Err(Errno::EXIST),
            Err(cause) => Err(cause),
            Ok(()) => Ok(None),
        }
    }

    fn sync_name(&mut self) -> Result<(), SinkError> {
        self.named = true;
        rustix::fs::fsync(&self.parent)
            .map_err(|cause| self.failed_as_whole("syncing the directory of", cause.into()))
    }

    /// Removes the replaced file or directory, and the directory in which a single file was made.
    fn remove_old(&self, replaced: Option<Old>) -> Result<(), SinkError> {
        let parent = self.parent.as_fd();
        let (directory, name) = match &replaced {
            None => return self.remove_staging(),
            Some(Old::Exchanged) => self.made(),
            Some(Old::Aside(aside)) => (parent, aside.as_os_str()),
        };
        let removed = match self.layout.shape() {
            Shape::Tree => remove_all(directory, name),
            // If a directory has appeared there at the last moment, it stays.
            Shape::File => {
                rustix::fs::unlinkat(directory, name, AtFlags::empty()).map_err(Into::into)
            }
        };
        removed.map_err(|cause| {
            let place = match (&self.layout, &replaced) {
                (Layout::File(_), Some(Old::Exchanged)) => Path::new(&self.temporary).join(name),
                _ => PathBuf::from(name),
            };
            self.old_remains(&place, cause)
        })?;
        self.remove_staging()
    }

    fn remove_staging(&self) -> Result<(), SinkError> {
        if matches!(self.layout, Layout::File(_))
            && let Err(cause) = self.remove_temporary()
        {
            tracing::warn!("{:?} can't be removed: {cause}", self.temporary);
        }
        Ok(())
    }

    fn old_remains(&self, old: &Path, cause: io::Error) -> SinkError {
        SinkError::OldRemains {
            target: self.target.clone(),
            old: self.target.with_file_name("").join(old),
            cause,
        }
    }

    /// Directory and name of what will get the target's name.
    fn made(&self) -> (BorrowedFd<'_>, &OsStr) {
        match &self.layout {
            Layout::File(tree) => (tree.root(), OsStr::new(ONLY_FILE)),
            Layout::Unnamed(_) | Layout::Directory(_) | Layout::Several(_) => {
                (self.parent.as_fd(), &self.temporary)
            }
        }
    }

    fn remove_temporary(&self) -> io::Result<()> {
        remove_all(self.parent.as_fd(), &self.temporary)
    }

    /// Replaces the target where two names can't be exchanged: moves the old file aside, and back if the
    /// rename fails.
    fn replace_in_two_steps(&self) -> rustix::io::Result<Old> {
        let parent = &self.parent;
        let new = &self.name;
        let aside = aside_name(parent, new);
        rustix::fs::renameat(parent, new, parent, &aside)?;
        let (from, old) = self.made();
        if let Err(cause) = rustix::fs::renameat(from, old, parent, new) {
            rustix::fs::renameat(parent, &aside, parent, new)?;
            return Err(cause);
        }
        Ok(Old::Aside(aside))
    }

    fn failed(&self, doing: &'static str, number: usize, cause: io::Error) -> SinkError {
        let path = match self.files.get(number) {
            Some(file) => match self.layout.place(&file.path) {
                b"" => self.target.clone(),
                place => self.target.join(path_from_bytes(place)),
            },
            None => self.target.clone(),
        };
        self.no_space(&cause)
            .unwrap_or_else(|| io_error(doing, &path, cause))
    }

    fn failed_as_whole(&self, doing: &'static str, cause: io::Error) -> SinkError {
        self.no_space(&cause)
            .unwrap_or_else(|| io_error(doing, &self.target, cause))
    }

    fn no_space(&self, cause: &io::Error) -> Option<SinkError> {
        if cause.kind() != io::ErrorKind::StorageFull {
            return None;
        }
        let free = free_bytes(&self.parent)?;
        Some(no_space(&self.target, self.needed, free))
    }
}

impl Drop for FileSink {
    fn drop(&mut self) {
        if self.named {
            return;
        }
        self.open = None;
        if let Err(cause) = self.remove_temporary() {
            let left = self.target.with_file_name(&self.temporary);
            tracing::warn!("{left:?} of a failed restore can't be removed: {cause}");
        }
    }
}

impl Layout {
    /// Makes a file without a name for an image of one file, if the file system allows that and the file is not so
    /// large that the next restore shall find what a killed one had written. Otherwise makes a directory with the
    /// temporary name: it becomes the image, or the only file is made in it.
    fn make(index: &Index, parent: &OwnedFd, temporary: &OsStr) -> io::Result<Self> {
        let mut roots = index.files.iter().filter(|file| !file.path.contains(&b'/'));
        let only = match (roots.next(), roots.next()) {
            (Some(only), None) => Some(&only.kind),
            _ => None,
        };
        if let Some(FileKind::Regular { size, .. }) = only
            && *size < FOUND_AGAIN_BYTES_MIN
            && let Some(file) = unnamed(parent)
        {
            return Ok(Self::Unnamed(file));
        }
        let tree = Beneath::new(unfinished::make(parent, temporary)?);
        Ok(match only {
            Some(FileKind::Directory) => Self::Directory(tree),
            Some(_) => Self::File(tree),
            None => Self::Several(tree),
        })
    }

    const fn shape(&self) -> Shape {
        match self {
            Self::Unnamed(_) | Self::File(_) => Shape::File,
            Self::Directory(_) | Self::Several(_) => Shape::Tree,
        }
    }

    /// Path of a file of the index relative to the target; empty for the target itself.
    fn place<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Unnamed(_) | Self::File(_) => b"",
            Self::Several(_) => path,
            Self::Directory(_) => {
                let slash = path.iter().position(|&byte| byte == b'/');
                slash
                    .and_then(|slash| path.get(slash + 1..))
                    .unwrap_or_default()
            }
        }
    }

    /// The open directory that contains a file of the index, and the file's name in it.
    fn directory_of<'a>(
        &'a mut self,
        parent: &'a OwnedFd,
        temporary: &'a OsStr,
        path: &'a [u8],
    ) -> io::Result<(BorrowedFd<'a>, &'a OsStr)> {
        let place = self.place(path);
        match self {
            Self::Directory(tree) | Self::Several(tree) if !place.is_empty() => {
                tree.parent_of(place)
            }
            Self::File(tree) => Ok((tree.root(), OsStr::new(ONLY_FILE))),
            Self::Unnamed(_) | Self::Directory(_) | Self::Several(_) => {
                Ok((parent.as_fd(), temporary))
            }
        }
    }
}

/// The directory of a target, opened, and the target's name in it.
pub(super) fn open_parent(target: &Path) -> Result<(OwnedFd, &OsStr), SinkError> {
    let name = target
        .file_name()
        .ok_or_else(|| SinkError::Name(target.to_owned()))?;
    let directory = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
    let parent = rustix::fs::open(directory, flags, Mode::empty())
        .map_err(|cause| io_error("opening directory", directory, cause.into()))?;
    Ok((parent, name))
}

/// Fails when the image of `index` can't be written to `target`; returns the number of bytes that will be
/// written.
fn check_in(
    parent: &OwnedFd,
    index: &Index,
    target: &Path,
    options: SinkOptions,
) -> Result<u64, SinkError> {
    may_replace(parent, target, Shape::of(index), options.force)?;
    let needed = bytes_to_write(index);
    match free_bytes(parent) {
        Some(free) if free < needed => Err(no_space(target, needed, free)),
        _ => Ok(needed),
    }
}

/// A file without a name in a directory; `None` if the file system has no such files, or if the file could
/// not get a name afterwards.
fn unnamed(parent: &OwnedFd) -> Option<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::openat(parent, ".", OPEN_UNNAMED, mode).ok()?;
    rustix::fs::stat(itself(file.as_fd())).ok()?;
    Some(File::from(file))
}

/// Gives an unnamed file a name, which must not exist yet.
fn link(file: &File, directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    let from = itself(file.as_fd());
    rustix::fs::linkat(CWD, from, directory, name, AtFlags::SYMLINK_FOLLOW)
}

/// A path that names an open file.
fn itself(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Length of the stream without segments of zeros.
fn bytes_to_write(index: &Index) -> u64 {
    let stored = index.segments.iter().map(|segment| match segment {
        SegmentEntry::Zero { .. } => 0,
        _ => segment.bytes(),
    });
    stored.fold(0, u64::saturating_add)
}

/// Free bytes of a file system, if it reports them.
fn free_bytes(directory: &OwnedFd) -> Option<u64> {
    machine::disk::free_bytes(&rustix::fs::fstatvfs(directory).ok()?)
}

fn no_space(target: &Path, needed: u64, free: u64) -> SinkError {
    SinkError::NoSpace {
        path: target.to_owned(),
        needed,
        free,
    }
}

pub(super) fn io_error(doing: &'static str, path: &Path, cause: io::Error) -> SinkError {
    SinkError::Io {
        doing,
        path: path.to_owned(),
        cause,
    }
}
