//! The guest's side of the connection to a daemon.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{FromDaemon, FromGuest, Lines, Message, MessageError, Report, Shortened, Uses};

/// Most bytes of one read.
const READ_BYTES: usize = 4096;

/// Most reads in one call of [`Link::poll`], so that it ends even if a daemon sends without a pause.
const READS_MAX: usize = 64;

/// Why there is no connection to a daemon, or why it has ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// An error of the system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The daemon has ended, or closed the connection.
    #[error("the daemon has closed the connection")]
    Closed,
    /// The daemon has refused this guest, for this reason.
    #[error("the daemon refused: {0}")]
    Refused(String),
    /// The daemon has sent something that is no message.
    #[error("the daemon: {0}")]
    Message(#[from] MessageError),
}

/// A connection to a daemon of this machine. As long as it lasts, this process and all its descendants are
/// guests of the daemon. No call waits.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    lines: Lines,
    /// The rest of a message that could not be written yet.
    unsent: Vec<u8>,
}

impl Link {
    /// Connects to the daemon whose socket is at `path`.
    ///
    /// # Errors
    /// When no daemon listens there.
    pub fn connect(path: &Path) -> Result<Self, LinkError> {
        let short = Shortened::of(path)?;
        let stream = UnixStream::connect(short.path())?;
        Self::over(stream)
    }

    /// A link over an existing connection.
    ///
    /// # Errors
    /// When the connection can't be switched to calls that do not wait.
    pub fn over(stream: UnixStream) -> Result<Self, LinkError> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            lines: Lines::default(),
            unsent: Vec::new(),
        })
    }

    /// The newest report that has arrived since the last call; `None` if none has arrived.
    ///
    /// # Errors
    /// When the connection has ended, or the daemon has sent something that is no message. This process is
    /// no longer a guest once the link is dropped.
    pub fn poll(&mut self) -> Result<Option<Report>, LinkError> {
        let mut newest = None;
        let mut bytes = [0; READ_BYTES];
        for _ in 0..READS_MAX {
            let read = match self.stream.read(&mut bytes) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(read) => read,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                Err(cause) => return Err(cause.into()),
            };
            for line in self.lines.take(bytes.get(..read).unwrap_or_default())? {
                match FromDaemon::parse(&line)? {
                    FromDaemon::Report(report) => newest = Some(report),
                    FromDaemon::Refused(why) => {
                        return Err(LinkError::Refused(why.escape_debug().collect()));
                    }
                }
            }
        }
        Ok(newest)
    }

    /// Sends what this guest uses. Returns `false`, and sends nothing, while an earlier message is not
    /// written because the daemon does not read.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn send(&mut self, uses: &Uses) -> Result<bool, LinkError> {
        if !self.write_unsent()? {
            return Ok(false);
        }
        self.unsent = FromGuest::Uses(*uses).line()?;
        self.write_unsent()?;
        Ok(true)
    }

    /// Writes the rest of a message, and returns whether all of it is written.
    pub(super) fn write_unsent(&mut self) -> Result<bool, LinkError> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(written) => {
                    self.unsent.drain(..written);
                }
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {
                    return Err(LinkError::Closed);
                }
                Err(cause) => return Err(cause.into()),
            }
        }
        Ok(true)
    }
}

impl AsFd for Link {
    /// Readable when a report has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
