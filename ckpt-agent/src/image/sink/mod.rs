//! Writes images back. Nothing is visible at the target's name before the image is whole and on
//! the disk; nothing is ever written outside of the target; nothing is left behind after a failure.

mod files;
mod output;
mod picked;
mod place;
mod unfinished;

use std::io;
use std::path::PathBuf;

use codec::index::Index;

pub use files::FileSink;
pub use output::OutputSink;
pub use picked::PickedSink;
pub use place::place;

use crate::core::pick::Pick;
use crate::pipeline::decode::StreamSink;

/// Where an image goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To this path, and not into it: see [`place()`]. An image of a single file or of a single directory
    /// gets this name; one of several becomes a directory of this name that holds them.
    Path(PathBuf),
    /// To standard output.
    Stdout,
}

/// How an image is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkOptions {
    /// Replace what is at the target, once the new image is whole: a file or a link by a file, a
    /// directory by a tree.
    pub force: bool,
    /// Restore setuid and setgid bits.
    pub set_id_bits: bool,
}

/// Why an image can't be written. Paths are quoted, so that no byte of a name can mislead.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The target is there already.
    #[error("{0:?} exists; choose another with -o, or replace it with --force")]
    Exists(PathBuf),
    /// What is at the target is not of the kind that `--force` replaces by this image.
    #[error(
        "{path:?} is {there}, which --force does not replace by {image}; choose another with -o"
    )]
    Unlike {
        /// The target.
        path: PathBuf,
        /// What is there.
        there: &'static str,
        /// What the image is.
        image: &'static str,
    },
    /// A directory is wanted, and is not there.
    #[error("{0:?} is no directory")]
    NoDirectory(PathBuf),
    /// A tree can't go to standard output.
    #[error("a tree can't be written to standard output; name a directory with -o")]
    TreeToStdout,
    /// The target has no name to give.
    #[error("{0:?}: not a name for a new file")]
    Name(PathBuf),
    /// There is not enough room.
    #[error("{path:?}: {needed} bytes needed, {free} free")]
    NoSpace {
        /// The target.
        path: PathBuf,
        /// Bytes that are not holes, in the whole image.
        needed: u64,
        /// Bytes free now.
        free: u64,
    },
    /// The system says no.
    #[error("{doing} {path:?}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// The image is in place, but what it replaced can't be removed.
    #[error(
        "the image is whole at {target:?}; what was there before is now {old:?} and can't be removed"
    )]
    OldRemains {
        /// The target.
        target: PathBuf,
        /// What it replaced.
        old: PathBuf,
        /// Why it can't be removed.
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

/// An image that is being written. Dropping it before it is finished leaves nothing behind.
#[derive(Debug)]
pub enum Sink {
    /// To files.
    Files(Box<FileSink>),
    /// To standard output.
    Output(OutputSink),
    /// Of the image only some files.
    Picked(Box<PickedSink>),
}

impl Sink {
    /// Begins writing the image of `index`, which was checked.
    ///
    /// # Errors
    /// When the target exists, can't be made, or has no room.
    pub fn create(index: &Index, target: &Target, options: SinkOptions) -> Result<Self, SinkError> {
        match target {
            Target::Path(path) => {
                let sink = FileSink::create(index, path, options)?;
                Ok(Self::Files(Box::new(sink)))
            }
            Target::Stdout => Ok(Self::Output(OutputSink::stdout(index)?)),
        }
    }

    /// Begins writing what was picked of an image.
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

    /// Fails as [`Self::create`] would because of what is at the target; makes nothing.
    ///
    /// # Errors
    /// When the target exists, can't be there, or has no room.
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
            Self::Zeros(count) => (Self::Zeros(len), Self::Zeros(count.saturating_sub(len))),
        }
    }
}
