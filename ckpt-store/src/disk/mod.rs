//! The operations that a store needs of a disk, as a trait, so that a simulated disk can stand in for the
//! real one.
//!
//! Paths are relative to the data directory. When a call that changes something returns, the change is
//! durable. The exceptions are [`Disk::create`], [`Disk::reopen`], [`Append::append`] and
//! [`Disk::discard`].

mod behind;
mod real;

#[cfg(test)]
pub(crate) mod crash;

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub use real::{RealDisk, sync_times};

/// The operations on files of a data directory, so that tests can stand in for the disk and its failures.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Creates a directory and syncs its parent. Does nothing if the directory exists.
    ///
    /// # Errors
    /// When the directory can't be created or its parent can't be synced.
    fn create_dir(&self, dir: &Path) -> Result<(), ChangeError>;

    /// Creates a new file for writing.
    ///
    /// # Errors
    /// When the file exists or can't be created.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Append>>;

    /// Opens a synced file to append to it, cut to its first `len` bytes.
    ///
    /// # Errors
    /// When the file can't be opened or cut.
    fn reopen(&self, path: &Path, len: u64) -> io::Result<Box<dyn Append>>;

    /// Gives a synced file its final name, and syncs the directory of that name. A file of that name is
    /// replaced.
    ///
    /// # Errors
    /// When the file can't be renamed, or the directory can't be synced.
    fn publish(&self, from: &Path, to: &Path) -> Result<(), ChangeError>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// When the file does not exist or can't be read.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn Read>>;

    /// Removes a file and syncs its directory. Does nothing if there is no such file. When this returns,
    /// the name is gone durably. The space counts as free, but the file system may free it a little
    /// later.
    ///
    /// # Errors
    /// When the file can't be removed, or the directory can't be synced.
    fn remove(&self, path: &Path) -> Result<(), ChangeError>;

    /// Removes a file without syncing its directory. It is meant for files that a restart would remove as
    /// well.
    ///
    /// # Errors
    /// When the file can't be removed.
    fn discard(&self, path: &Path) -> io::Result<()>;

    /// The names in a directory, in no particular order.
    ///
    /// # Errors
    /// When the directory can't be read.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Bytes that can be written without touching the reserve of the machine's owner.
    ///
    /// # Errors
    /// When the file system does not answer.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Bytes that the free space falls short of the reserve of the machine's owner.
    ///
    /// # Errors
    /// When the file system does not answer.
    fn short_bytes(&self) -> io::Result<u64>;
}

/// A file that is being written.
pub trait Append: Debug + Send {
    /// Appends bytes at the end of the file.
    ///
    /// # Errors
    /// When the bytes can't be written. The file can't be used any more then.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes all bytes durable. The file is closed in any case: a failed sync may have dropped what it
    /// could not write, and a second sync would not report that.
    ///
    /// # Errors
    /// When it is not certain that the bytes are durable.
    fn sync(self: Box<Self>) -> io::Result<()>;
}

/// A file that is being read.
pub trait Read: Debug + Send + Sync {
    /// The size of the file in bytes.
    fn size(&self) -> u64;

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// When the bytes can't be read, or the file is shorter.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Reads a long run of `len` bytes from `offset` on into `memory`, whose old content is lost. Returns
    /// the range of the bytes in `memory`.
    ///
    /// # Errors
    /// When the bytes can't be read, or the file is shorter.
    fn read_long(&self, memory: &mut Vec<u8>, offset: u64, len: usize) -> io::Result<Range<usize>> {
        memory.resize(len, 0);
        self.read_exact_at(memory, offset)?;
        Ok(0..len)
    }
}

/// Why a change of names failed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The change did not happen.
    #[error("{0}")]
    NotDone(#[from] io::Error),
    /// The change happened, but may be lost in a crash, because the directory could not be synced.
    #[error("directory not synced: {0}")]
    NotSynced(io::Error),
}
