//! The few things that a store asks of a disk, so that a simulated one can stand in for it.
//!
//! Paths are relative to the data directory. A change is durable when the call that makes it
//! returns; [`Append::append`] alone promises nothing.

mod behind;
mod real;

#[cfg(test)]
pub(crate) mod crash;

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub use real::RealDisk;

/// A disk.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Makes a directory and syncs the one that it is in; nothing happens when it is there.
    ///
    /// # Errors
    /// When it can't be made.
    fn create_dir(&self, dir: &Path) -> Result<(), ChangeError>;

    /// Makes a new file for writing.
    ///
    /// # Errors
    /// When it can't be made or there is one.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Append>>;

    /// Gives a synced file its final name and syncs that name's directory.
    ///
    /// # Errors
    /// When it can't be done, or it can't be known whether it will last.
    fn publish(&self, from: &Path, to: &Path) -> Result<(), ChangeError>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// When there is none or it can't be read.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn Read>>;

    /// Removes a file and syncs its directory; nothing happens when there is none. Its name is gone for
    /// good when this returns; its space counts as free, and may be so only a little later.
    ///
    /// # Errors
    /// When it can't be removed, or it can't be known whether it will stay so.
    fn remove(&self, path: &Path) -> Result<(), ChangeError>;

    /// Removes a file that a restart would remove as well: not synced.
    ///
    /// # Errors
    /// When it can't be removed.
    fn discard(&self, path: &Path) -> io::Result<()>;

    /// Names in a directory, in no order.
    ///
    /// # Errors
    /// When it can't be read.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Bytes that can be written before the owner of the machine runs short.
    ///
    /// # Errors
    /// When the file system does not say.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Bytes that are missing to the free space that the owner of the machine wants to keep.
    ///
    /// # Errors
    /// When the file system does not say.
    fn short_bytes(&self) -> io::Result<u64>;
}

/// A file that is being written.
pub trait Append: Debug + Send {
    /// Adds bytes at the end.
    ///
    /// # Errors
    /// When they can't be written; the file is of no use any more.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes all bytes durable. The file is closed whatever comes of it: a failed sync may have
    /// dropped what it could not write, and a second one would not tell.
    ///
    /// # Errors
    /// When it can't be known that the bytes are durable.
    fn sync(self: Box<Self>) -> io::Result<()>;
}

/// A file that is being read.
pub trait Read: Debug + Send + Sync {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Fills `buffer` with the bytes from `offset`.
    ///
    /// # Errors
    /// When they can't be read or there are not as many.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Reads a long run of `len` bytes from `offset` into `memory`, whatever is in it, and returns where
    /// in it they are.
    ///
    /// # Errors
    /// When they can't be read or there are not as many.
    fn read_long(&self, memory: &mut Vec<u8>, offset: u64, len: usize) -> io::Result<Range<usize>> {
        memory.resize(len, 0);
        self.read_exact_at(memory, offset)?;
        Ok(0..len)
    }
}

/// A change of names that failed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// It did not happen.
    #[error("{0}")]
    NotDone(#[from] io::Error),
    /// It happened, and whether it lasts is not known: the directory could not be synced.
    #[error("directory not synced: {0}")]
    NotSynced(io::Error),
}
