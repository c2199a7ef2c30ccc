//! Reads images: makes the list of files first, then reads their data in order.
//!
//! A checkpoint that mixes two states of an image is worse than none. So a file that changes between the
//! making of the list and the end of the save is an error, unless the user accepts that.

mod attributes;
mod exclude;
mod extents;
mod files;
mod maps;
mod named;
mod plan;
mod stream;

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use codec::index::{FileEntry, PATH_BYTES_MAX};
use codec::manifest::ImageKind;

pub use exclude::{Exclude, exclude_pattern};
pub use extents::data_extents;
pub use files::FileSource;
pub use named::{NameError, NamedPath};
pub use stream::{OnceReader, StreamSource};

use super::command::{Ender, Producer};
use super::keeper::Keeper;
use crate::pipeline::encode::SegmentSource;
use plan::Plan;
use stream::Input;

/// Why an image can't be read. Paths are quoted, so that no byte of a name can mislead.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A system call failed.
    #[error("{doing} {path:?}")]
    Io {
        /// What was being done, such as `reading`.
        doing: &'static str,
        /// Path of the file that the call was about.
        path: PathBuf,
        /// The error of the system.
        #[source]
        cause: io::Error,
        /// Whether [`SourceOptions::skip_unreadable`] leaves the file out.
        can_be_left_out: bool,
    },
    /// The file was changed during the save; what was read may never have existed.
    #[error("{path:?} changed while it was read ({what})")]
    Changed {
        /// Path of the file.
        path: PathBuf,
        /// Which property of the file changed.
        what: &'static str,
    },
    /// A named path that is neither a file nor a directory.
    #[error("{path:?} is a {what}, neither a file nor a directory")]
    NotAFile {
        /// The path that was named.
        path: PathBuf,
        /// What is there, such as a named pipe.
        what: &'static str,
    },
    /// Two of the named paths end in the same name.
    #[error("two of the paths are called {0:?}")]
    SameName(OsString),
    /// Two of the named paths would be stored in the same place, or one below the other.
    #[error(
        "{one:?} and {other:?} cannot be stored together: one name is the other, or lies below it"
    )]
    NameTaken {
        /// The name of one of them.
        one: PathBuf,
        /// The name of the other one.
        other: PathBuf,
    },
    /// A symbolic link that is to be stored under another name.
    #[error("{0:?} is a symbolic link, which gets no other name")]
    NamedLink(PathBuf),
    /// A path without a name.
    #[error("{0:?} has no name to save it under")]
    Name(PathBuf),
    /// A path that is too long; the message shows it shortened.
    #[error(
        "{path:?}: the path has {bytes} bytes below {root:?}, but at most {PATH_BYTES_MAX} can be saved"
    )]
    TooLong {
        /// The directory that the user named.
        root: PathBuf,
        /// The path below it, without its middle.
        path: String,
        /// Length of the path as it would be saved.
        bytes: usize,
        /// An exclude pattern that leaves it out.
        pattern: String,
    },
    /// Reading standard input failed.
    #[error("reading standard input")]
    Stdin(#[source] io::Error),
    /// The command can't be started or read.
    #[error("running {name:?}")]
    Command {
        /// Name of the command.
        name: OsString,
        /// The error of the system.
        #[source]
        cause: io::Error,
    },
    /// The image has no bytes or no files, and the caller did not allow that.
    #[error("{0}; an empty version would take the place of an earlier one")]
    Empty(Emptiness),
    /// The command failed; its output is not committed.
    #[error("{name:?} ended with {status}; its output was not saved")]
    CommandFailed {
        /// Name of the command.
        name: OsString,
        /// Its exit status, or the signal that ended it.
        status: ExitStatus,
    },
}

/// What is empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Emptiness {
    /// Standard input ended before its first byte.
    #[error("standard input is empty or closed")]
    Stdin,
    /// A reader ended before its first byte.
    #[error("the stream is empty")]
    Reader,
    /// The command with this name succeeded, and wrote nothing.
    #[error("{0:?} ended with success, but wrote nothing to its standard output")]
    Output(OsString),
    /// No path was named.
    #[error("no file or directory was named")]
    NoPaths,
    /// Everything that was named was left out.
    #[error("all that was named was left out, and no file remains")]
    NoFiles,
}

/// What is to be said to the user about the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The text.
    pub text: String,
    /// How much it matters.
    pub weight: Weight,
}

/// How much a remark on an image matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// It is as documented.
    Note,
    /// Something is not as in most saves.
    Warning,
    /// The image may mix several states.
    Mixed,
}

/// Remarks in the order in which they came.
#[derive(Debug, Default)]
struct Remarks {
    list: Vec<Remark>,
    more: u64,
}

impl Remarks {
    /// Most remarks that are kept: they stay in memory until the end, and no user reads more.
    const MAX: usize = 1000;

    fn push(&mut self, remark: Remark) {
        if self.list.len() < Self::MAX {
            self.list.push(remark);
        } else {
            self.more += 1;
        }
    }

    fn warn(&mut self, text: String) {
        let weight = Weight::Warning;
        self.push(Remark { text, weight });
    }

    fn into_list(mut self) -> Vec<Remark> {
        if self.more > 0 {
            let text = format!("{} more warnings", self.more);
            let weight = Weight::Mixed;
            self.list.push(Remark { text, weight });
        }
        self.list
    }
}

/// What to do about files that can't be read, or that change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceOptions {
    /// Leave out files that can't be opened, with a warning, instead of failing. An error in the middle of a
    /// file is always a failure.
    pub skip_unreadable: bool,
    /// Keep what was read of a file that changed meanwhile, with a warning, instead of failing. The file gets
    /// the length that it had when it was opened; if it became shorter, the rest is zeros.
    pub accept_changed: bool,
    /// Save a stream without bytes, or an image without files and directories, instead of failing. A named file
    /// without bytes, or a named directory without files, is never a failure.
    pub allow_empty: bool,
    /// Keep extended attributes and access control lists.
    pub extended_attributes: bool,
    /// Keep the numbers of user and group.
    pub owners: bool,
}

/// Files, kind and warnings of an image that was read to its end.
type ReadImage = (Vec<FileEntry>, ImageKind, Vec<Remark>);

/// A source of an image.
#[derive(Debug)]
pub enum Source {
    /// Files and directories of this machine.
    Files(Box<FileSource>),
    /// Standard input or a command.
    Stream(StreamSource),
}

impl Source {
    /// Plans an image of files and directories. Symbolic links among `paths` are followed; links below them
    /// are stored as links.
    ///
    /// # Errors
    /// When a path can't be read, has no usable name, or is no file or directory. When there is none.
    pub fn from_paths(paths: &[PathBuf], options: SourceOptions) -> Result<Self, SourceError> {
        Self::from_paths_without(paths, options, Exclude::default())
    }

    /// Like [`Self::from_paths`], without the files below `paths` that match `exclude`.
    ///
    /// # Errors
    /// As [`Self::from_paths`].
    pub fn from_paths_without(
        paths: &[PathBuf],
        options: SourceOptions,
        exclude: Exclude,
    ) -> Result<Self, SourceError> {
        let named: Vec<NamedPath> = paths.iter().map(NamedPath::own).collect();
        Self::from_named(&named, options, exclude)
    }

    /// Like [`Self::from_paths_without`], with files and directories of which some are stored under other
    /// names. Directories that such a name contains are added.
    ///
    /// # Errors
    /// As [`Self::from_paths`]. Also when two names are the same or one lies below the other, and when a
    /// renamed path is a symbolic link. what gets another name is a symbolic link.
    pub fn from_named(
        named: &[NamedPath],
        options: SourceOptions,
        exclude: Exclude,
    ) -> Result<Self, SourceError> {
        if named.is_empty() && !options.allow_empty {
            return Err(SourceError::Empty(Emptiness::NoPaths));
        }
        let mut plan = Plan::new(options, exclude);
        for path in named {
            plan.add_root(path)?;
        }
        Ok(Self::Files(Box::new(FileSource::new(plan, options))))
    }

    /// An image that is read from standard input.
    pub fn from_stdin(options: SourceOptions) -> Self {
        Self::Stream(StreamSource::new(Input::Stdin(io::stdin()), options))
    }

    /// An image that is read to the end of `reader`, which error messages call standard input.
    pub fn from_reader(reader: impl Read + Send + 'static, options: SourceOptions) -> Self {
        Self::Stream(StreamSource::new(Input::Reader(Box::new(reader)), options))
    }

    /// An image that a command writes to its standard output. The image counts only if the command ends with
    /// status 0. Dropping the source ends the command.
    ///
    /// # Errors
    /// When the command can't be started.
    pub fn from_command(command: &[OsString], options: SourceOptions) -> Result<Self, SourceError> {
        Self::from_kept_command(command, None, options)
    }

    /// Like [`Self::from_command`], with a `keeper` that ends the command if this process is killed.
    ///
    /// # Errors
    /// As [`Self::from_command`].
    pub fn from_kept_command(
        command: &[OsString],
        keeper: Option<&Keeper>,
        options: SourceOptions,
    ) -> Result<Self, SourceError> {
        let name = command.first().cloned().unwrap_or_default();
        let producer = Producer::start(command, keeper).map_err(|cause| SourceError::Command {
            name: name.clone(),
            cause,
        })?;
        Ok(Self::Stream(StreamSource::new(
            Input::Command(producer, name),
            options,
        )))
    }

    /// Bytes that will be read; `None` for a stream.
    pub fn planned_bytes(&self) -> Option<u64> {
        match self {
            Self::Files(files) => Some(files.planned_bytes),
            Self::Stream(_) => None,
        }
    }

    /// Whether there is more than one large file: several may have much content in common. Repetition within
    /// one file is left to compression.
    pub fn may_repeat(&self) -> bool {
        match self {
            Self::Files(files) => files.large_files() > 1,
            Self::Stream(_) => false,
        }
    }

    /// A handle to end the command that writes the image, if there is one.
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
    type Warning = Remark;

    fn next_segment(
        &mut self,
        buffer: Vec<u8>,
        kept: usize,
    ) -> Result<Option<Vec<u8>>, SourceError> {
        match self {
            Self::Files(files) => files.next_segment(buffer, kept),
            Self::Stream(stream) => stream.next_segment(buffer, kept),
        }
    }

    fn finish(self) -> Result<ReadImage, SourceError> {
        match self {
            Self::Files(files) => files.finish(),
            Self::Stream(stream) => stream.finish(),
        }
    }
}

/// The remark about an accepted change.
///
/// # Errors
/// When the options do not accept changes.
fn changed(path: &Path, what: &'static str, options: SourceOptions) -> Result<Remark, SourceError> {
    if options.accept_changed {
        return Ok(Remark {
            text: format!("{path:?} changed while it was read ({what}); saved as it was read"),
            weight: Weight::Mixed,
        });
    }
    Err(SourceError::Changed {
        path: path.to_owned(),
        what,
    })
}
