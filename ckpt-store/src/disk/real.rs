//! The file system of this machine.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use direct_io::{DirectFile, DirectReader};
use machine::disk::free_bytes;
use prometheus_client::metrics::histogram::Histogram;

use super::behind::Closer;
use super::{Append, ChangeError, Disk, Read};

/// Files that take less space, in bytes, are closed at once. That takes no longer than handing them to
/// the thread.
const CLOSED_BEHIND_FROM: u64 = 1 << 20;

/// Upper bounds of the histogram of syncs, seconds: from a disk with a cache that survives a power loss to
/// one that is overloaded.
const SYNC_BOUNDS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0,
];

/// A histogram of the times of syncs.
pub fn sync_times() -> Histogram {
    Histogram::new(SYNC_BOUNDS)
}

/// Unit of [`MetadataExt::blocks`], bytes.
const STAT_BLOCK: u64 = 512;

/// The files below a data directory.
///
/// Shards are written past the page cache if the file system allows it. Removed files are closed by a
/// thread of their own, because freeing their space takes time.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
    reserve_bytes: AtomicU64,
    closer: Closer<File>,
    syncs: Histogram,
}

impl RealDisk {
    /// The disk below `root`, of which `reserve_bytes` have to stay free.
    pub fn new(root: PathBuf, reserve_bytes: u64) -> Self {
        Self {
            root,
            reserve_bytes: AtomicU64::new(reserve_bytes),
            closer: Closer::default(),
            syncs: sync_times(),
        }
    }

    /// Notes in `syncs` how long syncs take.
    #[must_use]
    pub fn measured(self, syncs: Histogram) -> Self {
        Self { syncs, ..self }
    }

    /// Changes how many bytes have to stay free.
    pub fn set_reserve(&self, reserve_bytes: u64) {
        self.reserve_bytes.store(reserve_bytes, Ordering::Relaxed);
    }

    fn reserve(&self) -> u64 {
        self.reserve_bytes.load(Ordering::Relaxed)
    }

    /// Free space of the file system, including the space that is being freed.
    fn available(&self) -> io::Result<u64> {
        // The file system is asked first. Space that is freed in between is then missing for a moment,
        // but never counted twice.
        let stat = rustix::fs::statvfs(&self.root)?;
        // Where the free space is not known, nothing is stored.
        let free = free_bytes(&stat).unwrap_or(0);
        Ok(free.saturating_add(self.closer.bytes()))
    }

    /// Hands an open file whose name has been removed to the thread that closes files. Freeing the space
    /// of 170 MB takes a tenth of a second on ext4.
    fn close_behind(&self, file: File) {
        let bytes = file
            .metadata()
            .map_or(0, |data| data.blocks().saturating_mul(STAT_BLOCK));
        if bytes >= CLOSED_BEHIND_FROM {
            self.closer.close(file, bytes);
        }
    }

    /// The size of the file system that holds `path`, in bytes.
    ///
    /// # Errors
    /// When the file system does not answer.
    pub fn size_bytes(path: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
    }

    fn sync_dir_of(&self, path: &Path) -> Result<(), ChangeError> {
        let dir = self.root.join(path.parent().unwrap_or(Path::new("")));
        File::open(dir)
            .and_then(|dir| timed(&self.syncs, || dir.sync_all()))
            .map_err(ChangeError::NotSynced)
    }
}

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> Result<(), ChangeError> {
        let made = fs::DirBuilder::new()
            .mode(0o700)
            .create(self.root.join(dir));
        match made {
            Ok(()) => self.sync_dir_of(dir),
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(cause) => Err(cause.into()),
        }
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Append>> {
        let path = self.root.join(path);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&path)?;
        Ok(Box::new(RealFile {
            file: DirectFile::new(file),
            len: 0,
            syncs: self.syncs.clone(),
        }))
    }

    fn reopen(&self, path: &Path, len: u64) -> io::Result<Box<dyn Append>> {
        let file = OpenOptions::new().write(true).open(self.root.join(path))?;
        if file.metadata()?.len() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.set_len(len)?;
        Ok(Box::new(RealFile {
            file: DirectFile::new(file),
            len,
            syncs: self.syncs.clone(),
        }))
    }

    fn publish(&self, from: &Path, to: &Path) -> Result<(), ChangeError> {
        fs::rename(self.root.join(from), self.root.join(to))?;
        self.sync_dir_of(to)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn Read>> {
        let file = File::open(self.root.join(path))?;
        let len = file.metadata()?.len();
        let file = DirectReader::new(file);
        Ok(Arc::new(OpenFile { file, len }))
    }

    fn remove(&self, path: &Path) -> Result<(), ChangeError> {
        let full_path = self.root.join(path);
        // As long as the file is open, removing its name frees no space. A file that can't be opened is
        // removed all the same.
        let file = File::open(&full_path);
        match fs::remove_file(&full_path) {
            Ok(()) => {
                let synced = self.sync_dir_of(path);
                if let Ok(file) = file {
                    self.close_behind(file);
                }
                synced
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(cause) => Err(cause.into()),
        }
    }

    fn discard(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(self.root.join(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(self.root.join(dir))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.available()?.saturating_sub(self.reserve()))
    }

    fn short_bytes(&self) -> io::Result<u64> {
        Ok(self.reserve().saturating_sub(self.available()?))
    }
}

/// Syncs, and notes how long that took, whether it succeeded or not.
fn timed(syncs: &Histogram, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let begun = Instant::now();
    let synced = sync();
    syncs.observe(begun.elapsed().as_secs_f64());
    synced
}

/// A file to which bytes are appended.
#[derive(Debug)]
struct RealFile {
    file: DirectFile,
    len: u64,
    syncs: Histogram,
}

impl Append for RealFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn sync(mut self: Box<Self>) -> io::Result<()> {
        self.file.flush()?;
        timed(&self.syncs, || self.file.file().sync_data())
    }
}

#[derive(Debug)]
struct OpenFile {
    file: DirectReader,
    len: u64,
}

impl Read for OpenFile {
    fn size(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.file().read_exact_at(buffer, offset)
    }

    fn read_long(&self, memory: &mut Vec<u8>, offset: u64, len: usize) -> io::Result<Range<usize>> {
        let read = self.file.read(memory, offset, len)?;
        if read.len() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use direct_io::WRITE_BYTES;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_appears_under_its_name_when_published() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(dir.path().to_owned(), 0);
        disk.create_dir(Path::new("a")).unwrap();
        disk.create_dir(Path::new("a")).unwrap();
        let mut file = disk.create(Path::new("temp")).unwrap();
        file.append(b"bytes").unwrap();
        file.sync().unwrap();
        disk.publish(Path::new("temp"), Path::new("a/file"))
            .unwrap();
        assert_eq!(disk.list(Path::new("a")).unwrap(), ["file"]);
        disk.remove(Path::new("a/file")).unwrap();
        disk.remove(Path::new("a/file")).unwrap();
        assert!(disk.list(Path::new("a")).unwrap().is_empty());
    }

    #[test]
    fn the_names_of_large_files_are_gone_when_they_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(dir.path().to_owned(), 0);
        disk.create_dir(Path::new("a")).unwrap();
        for number in 0..40 {
            let path = PathBuf::from(format!("a/{number}"));
            let mut file = disk.create(&path).unwrap();
            file.append(&vec![7; 2 * CLOSED_BEHIND_FROM as usize])
                .unwrap();
            file.sync().unwrap();
            disk.remove(&path).unwrap();
            disk.create(&path).unwrap();
            disk.remove(&path).unwrap();
        }
        assert!(disk.list(Path::new("a")).unwrap().is_empty());
        let start = Instant::now();
        while disk.closer.bytes() > 0 {
            assert!(start.elapsed() < std::time::Duration::from_secs(60));
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_reserve_is_not_free() {
        let dir = tempfile::tempdir().unwrap();
        let all = RealDisk::new(dir.path().to_owned(), 0)
            .free_bytes()
            .unwrap();
        let disk = RealDisk::new(dir.path().to_owned(), all);
        assert!(disk.free_bytes().unwrap() < all);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn appended_bytes_come_back(lengths in prop::collection::vec(
            prop_oneof![0..10_usize, 4000..4200_usize, (WRITE_BYTES - 2)..(2 * WRITE_BYTES + 2)],
            0..6,
        )) {
            let dir = tempfile::tempdir().unwrap();
            let disk = RealDisk::new(dir.path().to_owned(), 0);
            let mut file = disk.create(Path::new("file")).unwrap();
            let mut expected = Vec::new();
            for (i, len) in lengths.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + i) as u8).collect();
                file.append(&bytes).unwrap();
                expected.extend_from_slice(&bytes);
            }
            file.sync().unwrap();
            let file = disk.open(Path::new("file")).unwrap();
            prop_assert_eq!(file.size(), expected.len() as u64);
            let mut actual = vec![0; expected.len()];
            file.read_exact_at(&mut actual, 0).unwrap();
            prop_assert!(actual == expected);
            let mut memory = Vec::new();
            let read = file.read_long(&mut memory, 0, expected.len()).unwrap();
            prop_assert!(memory[read] == *expected);
            prop_assert!(file.read_long(&mut memory, 0, expected.len() + 1).is_err());
        }
    }
}
