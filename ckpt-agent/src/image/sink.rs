//! Writes images back. Nothing is visible at the target's name before the image is whole; nothing
//! is ever written outside of the target; nothing is left behind after a failure.
//!
//! An image is built under a temporary name in the target's directory, with calls relative to open
//! directories that follow no links, and renamed when it is complete and synced. The index was
//! checked: paths are plain, and the directory of every file comes before it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use codec::index::{FileEntry, FileKind, Index};
use codec::manifest::ImageKind;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawMode, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::path_from_bytes;
use crate::pipeline::decode::StreamSink;

/// Where an image goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To this path.
    Path(PathBuf),
    /// To standard output.
    Stdout,
}

/// How an image is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkOptions {
    /// Replace what is at the target.
    pub force: bool,
    /// Restore setuid and setgid bits.
    pub set_id_bits: bool,
}

/// Why an image can't be written.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The target is there already.
    #[error("{} exists; choose another with -o, or replace it with --force", .0.display())]
    Exists(PathBuf),
    /// A tree can't go to standard output.
    #[error("a tree can't be written to standard output; name a directory with -o")]
    TreeToStdout,
    /// The target has no name to give.
    #[error("{}: not a name for a new file", .0.display())]
    Name(PathBuf),
    /// There is not enough room.
    #[error("{}: {needed} bytes needed, {free} free", path.display())]
    NoSpace {
        /// The target.
        path: PathBuf,
        /// Bytes that are not holes.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The system says no.
    #[error("{doing} {}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// More bytes came than the files hold.
    #[error("more bytes than the image has")]
    TooLong,
}

/// An image that is being written.
#[derive(Debug)]
pub enum Sink {
    /// To files.
    Files(FileSink),
    /// To standard output.
    Stdout(StdoutSink),
}

impl Sink {
    /// Begins writing the image of `index`.
    ///
    /// # Errors
    /// When the target exists, can't be made, or has no room.
    pub fn create(
        index: &Index,
        kind: ImageKind,
        target: &Target,
        options: SinkOptions,
    ) -> Result<Self, SinkError> {
        match target {
            Target::Path(path) => {
                let sink = FileSink::create(index, kind, path, options)?;
                Ok(Self::Files(sink))
            }
            Target::Stdout => {
                let [file] = index.files.as_slice() else {
                    return Err(SinkError::TreeToStdout);
                };
                let FileKind::Regular { size, extents } = &file.kind else {
                    return Err(SinkError::TreeToStdout);
                };
                Ok(Self::Stdout(StdoutSink {
                    out: io::stdout(),
                    extents: extents.iter().map(|e| (e.offset, e.len)).collect(),
                    size: *size,
                    at: 0,
                }))
            }
        }
    }
}

impl StreamSink for Sink {
    type Error = SinkError;
    type Written = ();

    fn write(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        match self {
            Self::Files(files) => files.advance(Run::Bytes(bytes)),
            Self::Stdout(stdout) => stdout.advance(Run::Bytes(bytes)),
        }
    }

    fn zeros(&mut self, count: u64) -> Result<(), SinkError> {
        match self {
            Self::Files(files) => files.advance(Run::Zeros(count)),
            Self::Stdout(stdout) => stdout.advance(Run::Zeros(count)),
        }
    }

    fn finish(self) -> Result<(), SinkError> {
        match self {
            Self::Files(files) => files.finish(),
            Self::Stdout(stdout) => stdout.finish(),
        }
    }
}

/// A run of the image stream.
#[derive(Clone, Copy, Debug)]
enum Run<'a> {
    Bytes(&'a [u8]),
    Zeros(u64),
}

impl Run<'_> {
    const fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Zeros(count) => *count,
        }
    }

    /// Its first `len` bytes and the rest.
    fn split(self, len: u64) -> (Self, Self) {
        match self {
            Self::Bytes(bytes) => {
                let at = usize::try_from(len).unwrap_or(usize::MAX).min(bytes.len());
                let (head, tail) = bytes.split_at(at);
                (Self::Bytes(head), Self::Bytes(tail))
            }
            Self::Zeros(count) => (Self::Zeros(len), Self::Zeros(count - len)),
        }
    }
}

/// Files below a temporary name.
#[derive(Debug)]
pub struct FileSink {
    target: PathBuf,
    parent: OwnedFd,
    /// Final and temporary name in `parent`.
    name: OsString,
    temporary: OsString,
    /// The temporary directory; `None` when the image is a single file.
    tree: Option<OwnedFd>,
    /// How many leading components of the index's paths the target stands for.
    strip: usize,
    files: Vec<FileEntry>,
    options: SinkOptions,
    /// Number of the file that is written next.
    next: usize,
    open: Option<OpenFile>,
    done: bool,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    extents: Vec<(u64, u64)>,
    extent: usize,
    done: u64,
}

impl FileSink {
    fn create(
        index: &Index,
        kind: ImageKind,
        target: &Path,
        options: SinkOptions,
    ) -> Result<Self, SinkError> {
        let name = target
            .file_name()
            .ok_or_else(|| SinkError::Name(target.to_owned()))?
            .to_owned();
        let directory = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let parent = rustix::fs::open(directory, flags, Mode::empty())
            .map_err(|cause| io_error("opening directory", directory, cause))?;
        let exists = rustix::fs::statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if exists && !options.force {
            return Err(SinkError::Exists(target.to_owned()));
        }
        check_space(&parent, index, target)?;
        let mut sink = Self {
            temporary: temporary_name(&name),
            target: target.to_owned(),
            parent,
            name,
            tree: None,
            strip: usize::from(is_single_root(index)),
            files: index.files.clone(),
            options,
            next: 0,
            open: None,
            done: false,
        };
        if kind == ImageKind::Tree {
            sink.make_tree()?;
        }
        Ok(sink)
    }

    fn make_tree(&mut self) -> Result<(), SinkError> {
        // A single root that is no directory is made under the temporary name itself.
        let root_is_directory = match self.files.first() {
            Some(first) if self.strip == 1 => first.kind == FileKind::Directory,
            _ => true,
        };
        if !root_is_directory {
            return Ok(());
        }
        let made = rustix::fs::mkdirat(&self.parent, &self.temporary, Mode::RWXU).and_then(|()| {
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
            rustix::fs::openat(&self.parent, &self.temporary, flags, Mode::empty())
        });
        self.tree = Some(made.map_err(|cause| io_error("creating", &self.target, cause))?);
        Ok(())
    }

    /// Directory and path relative to it at which a file is built; `None` for the root of a tree,
    /// which exists already.
    fn place<'a>(&'a self, file: &'a FileEntry) -> Option<(&'a OwnedFd, PathBuf)> {
        let path = path_from_bytes(&file.path);
        match &self.tree {
            None => Some((&self.parent, PathBuf::from(&self.temporary))),
            Some(tree) => {
                let below: PathBuf = path.components().skip(self.strip).collect();
                (!below.as_os_str().is_empty()).then_some((tree, below))
            }
        }
    }

    /// Writes or skips the next run of the stream.
    fn advance(&mut self, mut run: Run<'_>) -> Result<(), SinkError> {
        while run.len() > 0 {
            let Some(open) = &mut self.open else {
                if !self.make_next()? {
                    return Err(SinkError::TooLong);
                }
                continue;
            };
            let Some((offset, len)) = open.extents.get(open.extent).copied() else {
                self.open = None;
                continue;
            };
            let (head, tail) = run.split(run.len().min(len - open.done));
            if let Run::Bytes(bytes) = head {
                open.file
                    .write_all_at(bytes, offset + open.done)
                    .map_err(|cause| SinkError::Io {
                        doing: "writing",
                        path: self.target.clone(),
                        cause,
                    })?;
            }
            open.done += head.len();
            if open.done == len {
                open.extent += 1;
                open.done = 0;
            }
            run = tail;
        }
        Ok(())
    }

    /// Makes the next file; `false` when there are no more.
    fn make_next(&mut self) -> Result<bool, SinkError> {
        let Some(file) = self.files.get(self.next) else {
            return Ok(false);
        };
        let made = match self.place(file) {
            Some((directory, path)) => self.make(file, directory, &path),
            None => Ok(None),
        };
        let open = made.map_err(|cause| SinkError::Io {
            doing: "creating",
            path: self.target.join(path_from_bytes(&file.path)),
            cause,
        })?;
        self.next += 1;
        self.open = open;
        Ok(true)
    }

    fn make(
        &self,
        file: &FileEntry,
        directory: &OwnedFd,
        path: &Path,
    ) -> io::Result<Option<OpenFile>> {
        match &file.kind {
            FileKind::Directory => rustix::fs::mkdirat(directory, path, Mode::RWXU)?,
            FileKind::Regular { size, extents } => {
                let flags = OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC
                    | OFlags::RDWR;
                let mode = Mode::RUSR | Mode::WUSR;
                let created = File::from(rustix::fs::openat(directory, path, flags, mode)?);
                created.set_len(*size)?;
                return Ok(Some(OpenFile {
                    file: created,
                    extents: extents.iter().map(|e| (e.offset, e.len)).collect(),
                    extent: 0,
                    done: 0,
                }));
            }
            FileKind::Symlink { target } => {
                rustix::fs::symlinkat(OsStr::from_bytes(target), directory, path)?;
            }
            FileKind::HardLink { file } => {
                let first = usize::try_from(*file)
                    .ok()
                    .and_then(|at| self.files.get(at));
                let Some((from, old)) = first.and_then(|first| self.place(first)) else {
                    return Err(io::Error::other("hard link to nothing"));
                };
                rustix::fs::linkat(from, &old, directory, path, AtFlags::empty())?;
            }
            FileKind::Fifo => {
                let mode = Mode::RUSR | Mode::WUSR;
                rustix::fs::mknodat(directory, path, FileType::Fifo, mode, 0)?;
            }
        }
        Ok(None)
    }

    /// Completes all files, syncs them, and gives the image its name.
    fn finish(mut self) -> Result<(), SinkError> {
        self.open = None;
        while self.make_next()? {}
        self.open = None;
        for file in self.files.iter().rev() {
            self.set_attributes(file).map_err(|cause| SinkError::Io {
                doing: "setting mode and time of",
                path: self.target.join(path_from_bytes(&file.path)),
                cause,
            })?;
        }
        self.sync()
            .and_then(|()| self.give_name())
            .map_err(|cause| match cause.kind() {
                io::ErrorKind::AlreadyExists => SinkError::Exists(self.target.clone()),
                _ => SinkError::Io {
                    doing: "completing",
                    path: self.target.clone(),
                    cause,
                },
            })?;
        self.done = true;
        Ok(())
    }

    /// Children come before their directories here, so that a directory's time stays.
    fn set_attributes(&self, file: &FileEntry) -> io::Result<()> {
        let own_root = PathBuf::from(&self.temporary);
        let (directory, path) = self.place(file).unwrap_or((&self.parent, own_root));
        let is_link = matches!(file.kind, FileKind::Symlink { .. });
        if matches!(file.kind, FileKind::HardLink { .. }) {
            return Ok(());
        }
        if !is_link {
            let allowed: RawMode = if self.options.set_id_bits {
                0o7777
            } else {
                0o1777
            };
            let mode = Mode::from_raw_mode(file.mode & allowed);
            rustix::fs::chmodat(directory, &path, mode, AtFlags::empty())?;
        }
        // A stream has no time of its own.
        if file.path.is_empty() {
            return Ok(());
        }
        let time = Timespec {
            tv_sec: file.mtime_s,
            tv_nsec: file.mtime_ns.into(),
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        Ok(rustix::fs::utimensat(
            directory,
            &path,
            &times,
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }

    /// One sync of the file system is cheaper than one for each file of a tree.
    fn sync(&self) -> io::Result<()> {
        if let Some(tree) = &self.tree {
            return Ok(rustix::fs::syncfs(tree)?);
        }
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY | OFlags::NONBLOCK;
        match rustix::fs::openat(&self.parent, &self.temporary, flags, Mode::empty()) {
            Ok(file) => Ok(rustix::fs::fsync(file)?),
            // A link, or a file that we may not read any more: sync all instead.
            Err(_) => Ok(rustix::fs::syncfs(&self.parent)?),
        }
    }

    fn give_name(&self) -> io::Result<()> {
        let (parent, old, new) = (&self.parent, &self.temporary, &self.name);
        let renamed = rustix::fs::renameat_with(parent, old, parent, new, RenameFlags::NOREPLACE);
        match renamed {
            Ok(()) => {}
            Err(Errno::EXIST) if self.options.force => {
                // The old one is at the temporary name afterwards, and is removed.
                rustix::fs::renameat_with(parent, old, parent, new, RenameFlags::EXCHANGE)?;
                remove_all(parent.as_fd(), old)?;
            }
            // File systems without these flags: there is a moment between check and rename.
            Err(Errno::INVAL | Errno::NOSYS) => self.give_name_plainly()?,
            Err(cause) => return Err(cause.into()),
        }
        Ok(rustix::fs::fsync(parent)?)
    }

    fn give_name_plainly(&self) -> io::Result<()> {
        let (parent, old, new) = (&self.parent, &self.temporary, &self.name);
        if rustix::fs::statat(parent, new, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            if !self.options.force {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let aside = temporary_name(new);
            rustix::fs::renameat(parent, new, parent, &aside)?;
            rustix::fs::renameat(parent, old, parent, new)?;
            return remove_all(parent.as_fd(), &aside);
        }
        Ok(rustix::fs::renameat(parent, old, parent, new)?)
    }
}

impl Drop for FileSink {
    fn drop(&mut self) {
        if !self.done {
            self.open = None;
            // What can't be removed has a name that says what it is.
            let _ = remove_all(self.parent.as_fd(), &self.temporary);
        }
    }
}

/// Whether all paths lie below one root, for which the target stands.
fn is_single_root(index: &Index) -> bool {
    let roots = index.files.iter().filter(|file| !file.path.contains(&b'/'));
    roots.take(2).count() == 1
}

fn temporary_name(name: &OsStr) -> OsString {
    use std::sync::atomic::{AtomicU32, Ordering};
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    /// Leaves room for the rest of the name within the 255 bytes that a name may have.
    const KEPT: usize = 200;
    let kept = name.as_bytes().get(..KEPT).unwrap_or(name.as_bytes());
    let mut temporary = OsString::from(".");
    temporary.push(OsStr::from_bytes(kept));
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    temporary.push(format!(".ckpt-{}-{serial}", std::process::id()));
    temporary
}

fn check_space(parent: &OwnedFd, index: &Index, target: &Path) -> Result<(), SinkError> {
    let zeros = index.segments.iter().map(|segment| match segment {
        codec::index::SegmentEntry::Zero { bytes } => *bytes,
        codec::index::SegmentEntry::Stored { .. } => 0,
    });
    let needed = index.stream_bytes().saturating_sub(zeros.sum());
    let Ok(stat) = rustix::fs::fstatvfs(parent) else {
        return Ok(());
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free < needed {
        return Err(SinkError::NoSpace {
            path: target.to_owned(),
            needed,
            free,
        });
    }
    Ok(())
}

/// Removes a file or a tree, following no links.
fn remove_all(parent: impl AsFd, name: &OsStr) -> io::Result<()> {
    let parent = parent.as_fd();
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(cause) => return Err(cause.into()),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    // A directory without permissions has to be opened before it can be emptied.
    let _ = rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty());
    let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let mut entries = rustix::fs::Dir::read_from(&directory)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            remove_all(&directory, name)?;
        }
    }
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

fn io_error(doing: &'static str, path: &Path, cause: Errno) -> SinkError {
    SinkError::Io {
        doing,
        path: path.to_owned(),
        cause: cause.into(),
    }
}

/// A single file that goes to standard output, holes as zeros.
#[derive(Debug)]
pub struct StdoutSink {
    out: io::Stdout,
    extents: std::collections::VecDeque<(u64, u64)>,
    size: u64,
    at: u64,
}

impl StdoutSink {
    fn advance(&mut self, mut run: Run<'_>) -> Result<(), SinkError> {
        while run.len() > 0 {
            let (offset, len) = *self.extents.front().ok_or(SinkError::TooLong)?;
            if self.at < offset {
                self.write_zeros(offset - self.at)?;
            }
            let end = offset + len;
            let (head, tail) = run.split(run.len().min(end - self.at));
            match head {
                Run::Bytes(bytes) => {
                    self.out.write_all(bytes).map_err(stdout_error)?;
                    self.at += bytes.len() as u64;
                }
                Run::Zeros(count) => self.write_zeros(count)?,
            }
            if self.at == end {
                self.extents.pop_front();
            }
            run = tail;
        }
        Ok(())
    }

    fn write_zeros(&mut self, count: u64) -> Result<(), SinkError> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut left = count;
        while left > 0 {
            let len = left.min(ZEROS.len() as u64);
            let zeros = ZEROS.get(..len as usize).unwrap_or_default();
            self.out.write_all(zeros).map_err(stdout_error)?;
            left -= len;
        }
        self.at += count;
        Ok(())
    }

    fn finish(mut self) -> Result<(), SinkError> {
        self.write_zeros(self.size - self.at)?;
        self.out.flush().map_err(stdout_error)
    }
}

fn stdout_error(cause: io::Error) -> SinkError {
    SinkError::Io {
        doing: "writing to",
        path: PathBuf::from("standard output"),
        cause,
    }
}
