//! Writes images back. Until the image is whole and on disk, nothing is visible at the target's name. Nothing
//! is ever written outside of the target. Nothing is left behind after a failure.

mod attributes;
mod content;
mod files;
mod output;
mod picked;
mod place;
mod unfinished;

use std::io;
use std::path::PathBuf;

use codec::index::Index;

pub use content::{Content, Existing, place_in, roots, taken};
pub use files::FileSink;
pub use output::OutputSink;
pub use picked::PickedSink;
pub(super) use place::Shape;
pub use place::place;
pub use unfinished::is_unfinished;
pub(super) use unfinished::{Left, left_for};

use crate::core::pick::Pick;
use crate::pipeline::decode::StreamSink;

/// Where an image is written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To this path, and not into it: see [`place()`]. If the image has a single root, a file or a directory,
    /// that gets this name; if it has several, a directory with this name holds them.
    Path(PathBuf),
    /// Standard output, for a single file or a stream.
    Stdout,
}

/// How an image is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkOptions {
    /// Replace what is at the target once the new image is whole: a file or a link by a file, a directory by
    /// a tree.
    pub force: bool,
    /// Restore setuid and setgid bits.
    pub set_id_bits: bool,
}

/// Why an image can't be written. Paths are quoted, so that no byte of a name can mislead.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The target exists already.
    #[error("{0:?} exists")]
    Exists(PathBuf),
    /// The name of a root exists in the directory that the image is to be put into.
    #[error("{0:?} exists, and what exists was to stay")]
    Taken(PathBuf),
    /// What is at the target is of a kind that `--force` does not replace by this image.
    #[error("{path:?} is {there}, which --force does not replace by {image}")]
    Unlike {
        /// Path of the target.
        path: PathBuf,
        /// Kind of what is at the target.
        there: &'static str,
        /// Kind of the image.
        image: &'static str,
    },
    /// A directory has to be at this path, and is not.
    #[error("{0:?} is not a directory")]
    NoDirectory(PathBuf),
    /// A tree can't go to standard output.
    #[error("a tree can't be written to standard output")]
    TreeToStdout,
    /// The target does not end in a name for a new file.
    #[error("{0:?}: not a name for a new file")]
    Name(PathBuf),
    /// There is not enough room.
    #[error("{path:?}: {needed} bytes needed, {free} free")]
    NoSpace {
        /// Path of the target.
        path: PathBuf,
        /// Bytes of the whole image without its holes.
        needed: u64,
        /// Bytes that are free now.
        free: u64,
    },
    /// A system call failed.
    #[error("{doing} {path:?}")]
    Io {
        /// What was being done, such as `writing to`.
        doing: &'static str,
        /// Path of the file that the call was about.
        path: PathBuf,
        /// The error of the system.
        #[source]
        cause: io::Error,
    },
    /// The image is in place, but what it replaced can't be removed.
    #[error(
        "the image is complete at {target:?}; the previous content is now {old:?} and can't be removed"
    )]
    OldRemains {
        /// Path of the target, where the whole image is.
        target: PathBuf,
        /// Where the old content is now.
        old: PathBuf,
        /// The error of the system.
        #[source]
        cause: io::Error,
    },
    /// More bytes came than the files hold.
    #[error("more bytes than the image has")]
    TooLong,
    /// Fewer bytes came than the files hold.
    #[error("fewer bytes than the image has")]
    TooShort,
}

/// An image while it is being written. Dropping it before it is finished leaves nothing behind.
#[derive(Debug)]
pub enum Sink {
    /// An image that is written to files.
    Files(Box<FileSink>),
    /// An image that is written to standard output.
    Output(OutputSink),
    /// Only some files of the image.
    Picked(Box<PickedSink>),
}

impl Sink {
    /// Begins to write the image of `index`, which has been checked.
    ///
    /// # Errors
    /// When the target exists, can't be made, or has too little room.
    pub fn create(index: &Index, target: &Target, options: SinkOptions) -> Result<Self, SinkError> {
        match target {
            Target::Path(path) => {
                let sink = FileSink::create(index, path, options)?;
                Ok(Self::Files(Box::new(sink)))
            }
            Target::Stdout => Ok(Self::Output(OutputSink::stdout(index)?)),
        }
    }

    /// Begins to write the selected part of an image.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn of_picked(
        pick: &Pick,
        target: &Target,
        options: SinkOptions,
    ) -> Result<Self, SinkError> {
        let sink = PickedSink::create(pick, target, options)?;
        Ok(Self::Picked(Box::new(sink)))
    }

    /// Fails if [`Self::create`] would fail because of the target; creates nothing.
    ///
    /// # Errors
    /// When the target exists, can't be made, or has too little room.
    pub fn check(index: &Index, target: &Target, options: SinkOptions) -> Result<(), SinkError> {
        match target {
            Target::Path(path) => FileSink::check(index, path, options),
            Target::Stdout => OutputSink::stdout(index).map(|_| ()),
        }
    }
}

impl StreamSink for Sink {
    type Error = SinkError;
    type Written = ();

    fn write(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        match self {
            Self::Files(files) => files.advance(Run::Bytes(bytes)),
            Self::Output(output) => output.advance(Run::Bytes(bytes)),
            Self::Picked(picked) => picked.write(bytes),
        }
    }

    fn zeros(&mut self, count: u64) -> Result<(), SinkError> {
        match self {
            Self::Files(files) => files.advance(Run::Zeros(count)),
            Self::Output(output) => output.advance(Run::Zeros(count)),
            Self::Picked(picked) => picked.zeros(count),
        }
    }

    fn read_back(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), SinkError> {
        match self {
            Self::Files(files) => files.read_back(offset, buffer),
            Self::Output(_) => Err(SinkError::TreeToStdout),
            Self::Picked(picked) => picked.read_back(offset, buffer),
        }
    }

    fn finish(self) -> Result<(), SinkError> {
        match self {
            Self::Files(files) => files.finish(),
            Self::Output(output) => output.finish(),
            Self::Picked(picked) => picked.finish(),
        }
    }
}

/// Consecutive bytes of the image stream.
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

    /// The first `len` bytes, and the rest.
    fn split(self, len: u64) -> (Self, Self) {
        match self {
            Self::Bytes(bytes) => {
                let at = usize::try_from(len).unwrap_or(usize::MAX).min(bytes.len());
                let (head, tail) = bytes.split_at(at);
                (Self::Bytes(head), Self::Bytes(tail))
            }
            Self::Zeros(count) => (Self::Zeros(len), Self::Zeros(count.saturating_sub(len))),
        }
    }
}
