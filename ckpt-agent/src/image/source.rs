//! Reads images: plans the list of files first, then reads their data in order.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use codec::geometry::SEGMENT_BYTES;
use codec::index::{Extent, FileEntry, FileKind, PATH_BYTES_MAX};
use codec::manifest::ImageKind;
use rustix::fs::{Advice, OFlags, SeekFrom, fadvise, seek};
use rustix::io::Errno;

use super::command::{Ender, Producer};
use crate::pipeline::encode::SegmentSource;

/// Why an image can't be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The system says no.
    #[error("{doing} {path}", path = path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// The file was changed while it was read; what was read may never have existed.
    #[error("{path} changed while it was read ({what})", path = .path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What changed.
        what: &'static str,
    },
    /// Two of the named paths end in the same name.
    #[error("two of the paths are called {0:?}; save the directory above them instead")]
    SameName(OsString),
    /// A path without a name, or too long a one.
    #[error("{0}: no usable name")]
    Name(PathBuf),
    /// Standard input broke.
    #[error("reading standard input")]
    Stdin(#[source] io::Error),
    /// The command can't be started or read.
    #[error("running {name:?}")]
    Command {
        /// Its name.
        name: OsString,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// The command failed; its output is not committed.
    #[error("{name:?} ended with {status}; its output was not saved")]
    CommandFailed {
        /// Its name.
        name: OsString,
        /// How it ended.
        status: ExitStatus,
    },
}

/// Something about the image that the user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning(pub String);

/// What to do about files that can't be read as they should.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceOptions {
    /// Leave unreadable files out with a warning instead of failing.
    pub skip_unreadable: bool,
    /// Keep what was read of a file that changed meanwhile, with a warning, instead of failing.
    pub accept_changed: bool,
}

/// An image that is read.
#[derive(Debug)]
pub enum Source {
    /// Files and directories.
    Files(FileSource),
    /// Standard input or a command.
    Stream(StreamSource),
}

impl Source {
    /// Plans an image of files and directories. Symbolic links among `paths` are followed, those
    /// below them are kept as links.
    ///
    /// # Errors
    /// When a path can't be read or has no usable name.
    pub fn from_paths(paths: &[PathBuf], options: SourceOptions) -> Result<Self, SourceError> {
        let mut plan = Plan {
            options,
            ..Plan::default()
        };
        for path in paths {
            plan.add_root(path)?;
        }
        let kind = match plan.files.as_slice() {
            [only] if matches!(only.entry.kind, FileKind::Regular { .. }) => ImageKind::File,
            _ => ImageKind::Tree,
        };
        Ok(Self::Files(FileSource {
            files: plan.files,
            kind,
            next: 0,
            open: None,
            options,
            warnings: plan.warnings,
        }))
    }

    /// An image that is read from standard input.
    pub fn from_stdin() -> Self {
        Self::Stream(StreamSource {
            input: Input::Stdin(io::stdin()),
            bytes: 0,
        })
    }

    /// An image that a command writes to its standard output.
    ///
    /// # Errors
    /// When the command can't be started.
    pub fn from_command(command: &[OsString]) -> Result<Self, SourceError> {
        let name = command.first().cloned().unwrap_or_default();
        let producer = Producer::start(command).map_err(|cause| SourceError::Command {
            name: name.clone(),
            cause,
        })?;
        Ok(Self::Stream(StreamSource {
            input: Input::Command(producer, name),
            bytes: 0,
        }))
    }

    /// Bytes that will be read, as far as that is known.
    pub fn planned_bytes(&self) -> Option<u64> {
        match self {
            Self::Files(files) => Some(files.files.iter().map(|file| file.data_bytes).sum()),
            Self::Stream(_) => None,
        }
    }

    /// A handle to end the command that writes the image, if one does.
    pub fn ender(&self) -> Option<Ender> {
        match self {
            Self::Stream(StreamSource {
                input: Input::Command(producer, _),
                ..
            }) => Some(producer.ender()),
            _ => None,
        }
    }
}

impl SegmentSource for Source {
    type Error = SourceError;
    type Warning = Warning;

    fn next_segment(&mut self, buffer: Vec<u8>) -> Result<Option<Vec<u8>>, SourceError> {
        match self {
            Self::Files(files) => files.next_segment(buffer),
            Self::Stream(stream) => stream.next_segment(buffer),
        }
    }

    fn finish(self) -> Result<(Vec<FileEntry>, ImageKind, Vec<Warning>), SourceError> {
        match self {
            Self::Files(files) => {
                let entries = files.files.into_iter().map(|file| file.entry).collect();
                Ok((entries, files.kind, files.warnings))
            }
            Self::Stream(stream) => stream.finish(),
        }
    }
}

/// A file that is to be saved, as it was when the list was made.
#[derive(Debug)]
struct PlannedFile {
    path: PathBuf,
    entry: FileEntry,
    state: FileState,
    data_bytes: u64,
}

/// What tells that a file was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    inode: (u64, u64),
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl FileState {
    fn of(meta: &Metadata) -> Self {
        Self {
            inode: (meta.dev(), meta.ino()),
            size: meta.size(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// What is different now.
    fn change(&self, now: &Self) -> Option<&'static str> {
        if self.inode != now.inode {
            Some("it was replaced by another file")
        } else if self.size != now.size {
            Some("its size changed")
        } else if self.mtime != now.mtime || self.ctime != now.ctime {
            Some("it was written to")
        } else {
            None
        }
    }
}

#[derive(Debug, Default)]
struct Plan {
    files: Vec<PlannedFile>,
    /// Number in the list of each file that has several names.
    linked: BTreeMap<(u64, u64), u64>,
    options: SourceOptions,
    warnings: Vec<Warning>,
}

impl Plan {
    fn add_root(&mut self, path: &Path) -> Result<(), SourceError> {
        let failed = |cause| SourceError::Io {
            doing: "reading",
            path: path.to_owned(),
            cause,
        };
        // `.` and `..` have a name too, but not in the path; a link is saved under its own name.
        let name = match path.file_name() {
            Some(name) => name.to_owned(),
            None => path
                .canonicalize()
                .map_err(failed)?
                .file_name()
                .ok_or_else(|| SourceError::Name(path.to_owned()))?
                .to_owned(),
        };
        if self
            .files
            .iter()
            .any(|file| file.entry.path == name.as_bytes())
        {
            return Err(SourceError::SameName(name));
        }
        let meta = fs::metadata(path).map_err(failed)?;
        self.add(path, name.as_bytes().to_vec(), &meta)
    }

    /// Adds a file, and all below it when it is a directory.
    fn add(&mut self, path: &Path, name: Vec<u8>, meta: &Metadata) -> Result<(), SourceError> {
        if name.len() > PATH_BYTES_MAX {
            return Err(SourceError::Name(path.to_owned()));
        }
        let Some(kind) = self.kind(path, meta)? else {
            return Ok(());
        };
        let is_directory = kind == FileKind::Directory;
        let is_regular = matches!(kind, FileKind::Regular { .. });
        self.files.push(PlannedFile {
            path: path.to_owned(),
            entry: FileEntry {
                path: name.clone(),
                mode: meta.mode() & 0o7777,
                mtime_s: meta.mtime(),
                mtime_ns: u32::try_from(meta.mtime_nsec()).unwrap_or(0),
                kind,
            },
            state: FileState::of(meta),
            data_bytes: if is_regular {
                meta.size().min(meta.blocks().saturating_mul(512).max(1))
            } else {
                0
            },
        });
        if is_directory {
            self.add_children(path, &name)?;
        }
        Ok(())
    }

    fn add_children(&mut self, path: &Path, name: &[u8]) -> Result<(), SourceError> {
        let listed = fs::read_dir(path).and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name()))
                .collect::<io::Result<Vec<_>>>()
        });
        let mut children = match listed {
            Ok(children) => children,
            Err(cause) => return self.unreadable("listing", path, cause),
        };
        children.sort();
        for child in children {
            let path = path.join(&child);
            match path.symlink_metadata() {
                Ok(meta) => {
                    let name = [name, b"/", child.as_bytes()].concat();
                    self.add(&path, name, &meta)?;
                }
                Err(cause) => self.unreadable("reading", &path, cause)?,
            }
        }
        Ok(())
    }

    fn unreadable(
        &mut self,
        doing: &'static str,
        path: &Path,
        cause: io::Error,
    ) -> Result<(), SourceError> {
        if !self.options.skip_unreadable {
            return Err(SourceError::Io {
                doing,
                path: path.to_owned(),
                cause,
            });
        }
        self.warnings
            .push(Warning(format!("{}: {cause}; left out", path.display())));
        Ok(())
    }

    fn kind(&mut self, path: &Path, meta: &Metadata) -> Result<Option<FileKind>, SourceError> {
        let kind = meta.file_type();
        if kind.is_dir() {
            return Ok(Some(FileKind::Directory));
        }
        if kind.is_symlink() {
            return match fs::read_link(path) {
                Ok(target) => Ok(Some(FileKind::Symlink {
                    target: target.as_os_str().as_bytes().to_vec(),
                })),
                Err(cause) => self.unreadable("reading link", path, cause).map(|()| None),
            };
        }
        if kind.is_file() {
            let number = self.files.len() as u64;
            if meta.nlink() > 1 {
                let key = (meta.dev(), meta.ino());
                if let Some(first) = self.linked.get(&key) {
                    return Ok(Some(FileKind::HardLink { file: *first }));
                }
                self.linked.insert(key, number);
            }
            return Ok(Some(FileKind::Regular {
                size: meta.size(),
                extents: Vec::new(),
            }));
        }
        if kind.is_fifo() {
            return Ok(Some(FileKind::Fifo));
        }
        let what = if kind.is_socket() { "socket" } else { "device" };
        self.warnings.push(Warning(format!(
            "{}: a {what} is not saved",
            path.display()
        )));
        Ok(None)
    }
}

/// Files that are read one after the other.
#[derive(Debug)]
pub struct FileSource {
    files: Vec<PlannedFile>,
    kind: ImageKind,
    next: usize,
    open: Option<OpenFile>,
    options: SourceOptions,
    warnings: Vec<Warning>,
}

/// The file that is being read.
#[derive(Debug)]
struct OpenFile {
    number: usize,
    file: File,
    extents: Vec<Extent>,
    /// Extent and place in it that are read next.
    extent: usize,
    done: u64,
}

impl FileSource {
    fn next_segment(&mut self, mut buffer: Vec<u8>) -> Result<Option<Vec<u8>>, SourceError> {
        // What is in the buffer is overwritten; clearing it first would cost a pass over memory.
        buffer.resize(SEGMENT_BYTES, 0);
        let mut filled = 0;
        while filled < SEGMENT_BYTES {
            if self.open.is_none() {
                if filled > 0 && self.next_is_large() {
                    break;
                }
                if !self.open_next()? {
                    break;
                }
            }
            let room = buffer.get_mut(filled..).unwrap_or_default();
            filled += self.read_some(room)?;
        }
        buffer.truncate(filled);
        Ok((filled > 0).then_some(buffer))
    }

    /// Whether the next file begins a segment of its own.
    fn next_is_large(&self) -> bool {
        let mut rest = self.files.iter().skip(self.next);
        rest.find(|file| file.data_bytes > 0)
            .is_some_and(|file| file.data_bytes >= SEGMENT_BYTES as u64)
    }

    /// Opens the next file that has data; `false` when there is none.
    fn open_next(&mut self) -> Result<bool, SourceError> {
        while let Some(planned) = self.files.get(self.next) {
            let number = self.next;
            self.next += 1;
            if !matches!(planned.entry.kind, FileKind::Regular { .. }) {
                continue;
            }
            match open_unchanged(planned, self.options.accept_changed) {
                Ok((file, state, extents, warning)) => {
                    self.warnings.extend(warning);
                    if let Some(planned) = self.files.get_mut(number) {
                        planned.state = state;
                        planned.entry.kind = FileKind::Regular {
                            size: state.size,
                            extents: extents.clone(),
                        };
                    }
                    self.open = Some(OpenFile {
                        number,
                        file,
                        extents,
                        extent: 0,
                        done: 0,
                    });
                    return Ok(true);
                }
                Err(SourceError::Io { path, cause, .. }) if self.options.skip_unreadable => {
                    self.leave_empty(number, &path, &cause);
                }
                Err(cause) => return Err(cause),
            }
        }
        Ok(false)
    }

    /// The list was made and may be referred to, so the file stays in it, as an empty one.
    fn leave_empty(&mut self, number: usize, path: &Path, cause: &io::Error) {
        self.warnings.push(Warning(format!(
            "{}: {cause}; saved as an empty file",
            path.display()
        )));
        if let Some(planned) = self.files.get_mut(number) {
            planned.entry.kind = FileKind::Regular {
                size: 0,
                extents: Vec::new(),
            };
        }
    }

    /// Reads from the open file; closes it after its last byte.
    fn read_some(&mut self, room: &mut [u8]) -> Result<usize, SourceError> {
        let Some(open) = &mut self.open else {
            return Ok(0);
        };
        let Some(planned) = self.files.get(open.number) else {
            return Ok(0);
        };
        let Some(extent) = open.extents.get(open.extent).copied() else {
            let now = open.file.metadata().map(|meta| FileState::of(&meta));
            let path = planned.path.clone();
            let changed = match now {
                Ok(now) => planned.state.change(&now),
                Err(cause) => return Err(io_error("reading", &path, cause)),
            };
            self.open = None;
            if let Some(what) = changed {
                self.warnings
                    .extend(changed_file(&path, what, self.options.accept_changed)?);
            }
            return Ok(0);
        };
        let left = usize::try_from(extent.len - open.done).unwrap_or(usize::MAX);
        let room_len = room.len().min(left);
        let room = room.get_mut(..room_len).unwrap_or_default();
        let read = open
            .file
            .read_at(room, extent.offset + open.done)
            .map_err(|cause| io_error("reading", &planned.path, cause))?;
        if read == 0 {
            // Shorter than it was: when that is accepted, the rest is zeros.
            let what = "it became shorter";
            let warning = changed_file(&planned.path, what, self.options.accept_changed)?;
            self.warnings.extend(warning);
            room.fill(0);
        }
        let taken = if read == 0 { room_len } else { read };
        open.done += taken as u64;
        if open.done == extent.len {
            open.extent += 1;
            open.done = 0;
        }
        Ok(taken)
    }
}

fn changed_file(
    path: &Path,
    what: &'static str,
    accept: bool,
) -> Result<Option<Warning>, SourceError> {
    if !accept {
        return Err(SourceError::Changed {
            path: path.to_owned(),
            what,
        });
    }
    Ok(Some(Warning(format!(
        "{} changed while it was read ({what}); saved as it was read",
        path.display()
    ))))
}

fn io_error(doing: &'static str, path: &Path, cause: io::Error) -> SourceError {
    SourceError::Io {
        doing,
        path: path.to_owned(),
        cause,
    }
}

type Opened = (File, FileState, Vec<Extent>, Option<Warning>);

/// Opens a file and finds its extents, unless it is not the one that was planned any more.
fn open_unchanged(planned: &PlannedFile, accept_changed: bool) -> Result<Opened, SourceError> {
    let path = &planned.path;
    let failed = |cause| io_error("reading", path, cause);
    // A fifo that took the file's place must not block us.
    let file = File::options()
        .read(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
        .open(path)
        .map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    let state = FileState::of(&meta);
    let mut warning = None;
    if !meta.is_file() {
        return Err(SourceError::Changed {
            path: path.clone(),
            what: "it is no regular file any more",
        });
    }
    if let Some(what) = planned.state.change(&state) {
        warning = changed_file(path, what, accept_changed)?;
    }
    // Only advice: without it reading is slower.
    let _ = fadvise(&file, 0, None, Advice::Sequential);
    let extents = data_extents(&file, state.size).map_err(failed)?;
    Ok((file, state, extents, warning))
}

/// The parts of a file that are not holes.
fn data_extents(file: &File, size: u64) -> io::Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let mut at = 0;
    while at < size {
        let offset = match seek(file, SeekFrom::Data(at)) {
            Ok(offset) => offset,
            // Only a hole until the end.
            Err(Errno::NXIO) => break,
            // The file system knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY) if at == 0 => {
                return Ok(vec![Extent {
                    offset: 0,
                    len: size,
                }]);
            }
            Err(cause) => return Err(cause.into()),
        };
        if offset >= size {
            break;
        }
        let end = seek(file, SeekFrom::Hole(offset))?.min(size);
        if end <= offset {
            break;
        }
        extents.push(Extent {
            offset,
            len: end - offset,
        });
        at = end;
    }
    Ok(extents)
}

/// A stream of unknown length.
#[derive(Debug)]
pub struct StreamSource {
    input: Input,
    bytes: u64,
}

#[derive(Debug)]
enum Input {
    Stdin(io::Stdin),
    Command(Producer, OsString),
}

impl StreamSource {
    fn next_segment(&mut self, mut buffer: Vec<u8>) -> Result<Option<Vec<u8>>, SourceError> {
        buffer.resize(SEGMENT_BYTES, 0);
        let mut filled = 0;
        while filled < SEGMENT_BYTES {
            let room = buffer.get_mut(filled..).unwrap_or_default();
            let read = match &mut self.input {
                Input::Stdin(stdin) => stdin.read(room),
                Input::Command(producer, _) => producer.read(room),
            };
            match read {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(self.input.failed(cause)),
            }
        }
        self.bytes += filled as u64;
        buffer.truncate(filled);
        Ok((filled > 0).then_some(buffer))
    }

    fn finish(mut self) -> Result<(Vec<FileEntry>, ImageKind, Vec<Warning>), SourceError> {
        if let Input::Command(producer, name) = &mut self.input {
            let name = name.clone();
            let status = producer.wait().map_err(|cause| SourceError::Command {
                name: name.clone(),
                cause,
            })?;
            if !status.success() {
                return Err(SourceError::CommandFailed { name, status });
            }
        }
        let size = self.bytes;
        let whole = Extent {
            offset: 0,
            len: size,
        };
        let entry = FileEntry {
            path: Vec::new(),
            mode: 0o600,
            mtime_s: 0,
            mtime_ns: 0,
            kind: FileKind::Regular {
                size,
                extents: if size == 0 { vec![] } else { vec![whole] },
            },
        };
        Ok((vec![entry], ImageKind::Stream, Vec::new()))
    }
}

impl Input {
    fn failed(&self, cause: io::Error) -> SourceError {
        match self {
            Self::Stdin(_) => SourceError::Stdin(cause),
            Self::Command(_, name) => SourceError::Command {
                name: name.clone(),
                cause,
            },
        }
    }
}
