//! All that the store does to a disk, behind one small trait, so that a disk which fails or loses
//! power at any step can be put under it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A directory on a disk. Paths are relative to it.
pub trait Disk: Send + Sync + 'static {
    /// A file of this disk.
    type File: DiskFile;

    /// Makes a directory, and those above it; durable when this returns.
    ///
    /// # Errors
    /// When the disk fails.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// Creates a new file for appending.
    ///
    /// # Errors
    /// When it exists or the disk fails.
    fn create(&self, path: &Path) -> io::Result<Self::File>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// When it does not exist or the disk fails.
    fn open(&self, path: &Path) -> io::Result<Self::File>;

    /// Gives a synced file its final name; durable when this returns.
    ///
    /// # Errors
    /// When the disk fails: then it is unknown which name will be there after a crash.
    fn publish(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file; durable when this returns. It is no error when there is none.
    ///
    /// # Errors
    /// When the disk fails.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// When it is not empty or the disk fails.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Names in a directory, sorted.
    ///
    /// # Errors
    /// When the disk fails.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Bytes that could still be written.
    ///
    /// # Errors
    /// When the disk fails.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// An open file.
pub trait DiskFile: Send + 'static {
    /// Appends all of `bytes`.
    ///
    /// # Errors
    /// When the disk fails or is full.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes durable what was appended. After an error the file must be given up: what the system
    /// could not write it may have dropped, and a second sync would lie.
    ///
    /// # Errors
    /// When the disk fails.
    fn sync(&mut self) -> io::Result<()>;

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// When the file ends before, or the disk fails.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Length of the file.
    ///
    /// # Errors
    /// When the disk fails.
    fn len(&self) -> io::Result<u64>;

    /// Whether it has no bytes.
    ///
    /// # Errors
    /// When the disk fails.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A directory of the real file system.
#[derive(Clone, Debug)]
pub struct RealDisk {
    root: PathBuf,
}

impl RealDisk {
    /// The directory `root`, which exists.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn sync_parent(&self, path: &Path) -> io::Result<()> {
        let parent = path.parent().unwrap_or(Path::new(""));
        File::open(self.root.join(parent))?.sync_all()
    }
}

impl Disk for RealDisk {
    type File = RealFile;

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        if self.root.join(path).is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.make_dir(parent)?;
        }
        match fs::create_dir(self.root.join(path)) {
            Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
            _ => {}
        }
        self.sync_parent(path)
    }

    fn create(&self, path: &Path) -> io::Result<RealFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        options.open(self.root.join(path)).map(RealFile)
    }

    fn open(&self, path: &Path) -> io::Result<RealFile> {
        File::open(self.root.join(path)).map(RealFile)
    }

    fn publish(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(self.root.join(from), self.root.join(to))?;
        self.sync_parent(to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(self.root.join(path)) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(cause) => Err(cause),
            Ok(()) => self.sync_parent(path),
        }
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(self.root.join(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.root.join(path))? {
            // Names that are no text are none of ours.
            names.extend(entry?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// A file of a [`RealDisk`].
#[derive(Debug)]
pub struct RealFile(File);

impl DiskFile for RealFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
