//! Images of unknown length: a reader, or the output of a command.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use codec::geometry::SEGMENT_BYTES;
use codec::index::{Extent, FileEntry, FileKind};
use codec::manifest::ImageKind;

use super::{Emptiness, ReadImage, SourceError, SourceOptions};
use crate::image::command::Producer;

/// A stream has no permissions of its own, so its file is private until its owner changes that.
const STREAM_MODE: u32 = 0o600;

/// A stream that is read to its end, as a source of segments.
#[derive(Debug)]
pub struct StreamSource {
    pub(super) input: Input,
    pub(super) bytes: u64,
    allow_empty: bool,
}

pub(super) enum Input {
    Stdin(io::Stdin),
    Reader(Box<dyn Read + Send>),
    Command(Producer, OsString),
}

impl StreamSource {
    pub(super) const fn new(input: Input, options: SourceOptions) -> Self {
        Self {
            input,
            bytes: 0,
            allow_empty: options.allow_empty,
        }
    }

    pub(super) fn next_segment(
        &mut self,
        mut buffer: Vec<u8>,
        kept: usize,
    ) -> Result<Option<Vec<u8>>, SourceError> {
        // The rest of the buffer is overwritten; clearing it first would cost a pass over its memory.
        buffer.resize(SEGMENT_BYTES, 0);
        let mut filled = kept;
        while filled < SEGMENT_BYTES {
            let room = buffer.get_mut(filled..).unwrap_or_default();
            match self.input.read(room) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(self.input.failed(cause)),
            }
        }
        self.bytes += (filled - kept) as u64;
        buffer.truncate(filled);
        Ok((filled > 0).then_some(buffer))
    }

    pub(super) fn finish(self) -> Result<ReadImage, SourceError> {
        if let Input::Command(producer, name) = &self.input {
            let status = producer.wait().map_err(|cause| self.input.failed(cause))?;
            if !status.success() {
                let name = name.clone();
                return Err(SourceError::CommandFailed { name, status });
            }
        }
        let size = self.bytes;
        if size == 0 && !self.allow_empty {
            return Err(SourceError::Empty(self.input.emptiness()));
        }
        let whole = Extent {
            offset: 0,
            len: size,
        };
        let entry = FileEntry {
            path: Vec::new(),
            mode: STREAM_MODE,
            mtime_s: 0,
            mtime_ns: 0,
            kind: FileKind::Regular {
                size,
                extents: if size == 0 { vec![] } else { vec![whole] },
            },
            attributes: None,
        };
        Ok((vec![entry], ImageKind::Stream, Vec::new()))
    }
}

impl Input {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Stdin(stdin) => stdin.read(room),
            Self::Reader(reader) => reader.read(room),
            Self::Command(producer, _) => producer.read(room),
        }
    }

    fn failed(&self, cause: io::Error) -> SourceError {
        match self {
            Self::Stdin(_) | Self::Reader(_) => SourceError::Stdin(cause),
            Self::Command(_, name) => SourceError::Command {
                name: name.clone(),
                cause,
            },
        }
    }

    /// What an image without bytes shows about its origin.
    fn emptiness(&self) -> Emptiness {
        match self {
            Self::Stdin(_) => Emptiness::Stdin,
            Self::Reader(_) => Emptiness::Reader,
            Self::Command(_, name) => Emptiness::Output(name.clone()),
        }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdin(_) => f.write_str("Stdin"),
            Self::Reader(_) => f.write_str("Reader"),
            Self::Command(_, name) => f.debug_tuple("Command").field(name).finish(),
        }
    }
}

/// A reader as the input of a save request. It is read once; clones share it.
#[derive(Clone)]
pub struct OnceReader(Arc<Mutex<dyn Read + Send>>);

impl OnceReader {
    /// A reader that one save can take.
    pub fn new(reader: impl Read + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(reader)))
    }
}

impl Read for OnceReader {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut reader = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reader.read(room)
    }
}

impl fmt::Debug for OnceReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnceReader")
    }
}

/// Two are equal if they share a reader.
impl PartialEq for OnceReader {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for OnceReader {}
