//! Files that are written and read past the page cache (`O_DIRECT`), if the file system can do that. Then
//! checkpoints don't push the owner's files out of the cache, and no byte is copied into the cache or has to
//! be reclaimed from it.

mod cached;
mod read;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub use read::{DirectReader, READ_BYTES};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Addresses in memory, offsets in files and lengths of direct reads and writes are multiples of this.
const ALIGN: usize = 4096;

/// Bytes of one write. Larger ones gain nothing, smaller ones cost more calls.
pub const WRITE_BYTES: usize = 512 << 10;

/// A file that is written in long runs, from its beginning to its end.
///
/// Bytes are certain to be in the file only after [`Self::flush`].
pub struct DirectFile {
    file: File,
    mode: Mode,
    memory: Vec<u8>,
    /// Where in `memory` an aligned buffer of [`WRITE_BYTES`] begins.
    aligned: usize,
    /// Where in the file the bytes of the buffer begin.
    offset: u64,
    /// Bytes in the buffer.
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Direct,
    Cached,
    /// Through the cache for good: the file system can't write this file directly.
    CachedOnly,
}

impl std::fmt::Debug for DirectFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectFile")
            .field("file", &self.file)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl DirectFile {
    /// Takes a file that is open for writing, and not in append mode.
    pub fn new(file: File) -> Self {
        let memory = vec![0; WRITE_BYTES + ALIGN];
        Self {
            file,
            mode: Mode::Cached,
            aligned: memory.as_ptr().align_offset(ALIGN),
            memory,
            offset: 0,
            len: 0,
        }
    }

    /// The file, to read or set its attributes.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// When bytes of this call or an earlier one can't be written; the file then is of no use any more.
    pub fn write_at(&mut self, mut bytes: &[u8], offset: u64) -> io::Result<()> {
        if offset != self.offset + self.len as u64 {
            self.flush()?;
            self.offset = offset;
        }
        while !bytes.is_empty() {
            // End at a multiple of the buffer's size, so that the next buffer is aligned.
            let end = WRITE_BYTES - (self.offset % WRITE_BYTES as u64) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(end - self.len));
            let at = self.aligned + self.len;
            self.memory[at..at + now.len()].copy_from_slice(now);
            self.len += now.len();
            if self.len == end {
                self.flush()?;
            }
            bytes = later;
        }
        Ok(())
    }

    /// Reads bytes that were written, after [`Self::flush`]. The file has to be open for reading, too.
    ///
    /// # Errors
    /// When the bytes can't be read, or the buffer can't be written.
    pub fn read_exact_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.flush()?;
        self.set_mode(false)?;
        self.file.read_exact_at(buffer, offset)
    }

    /// Writes the buffer and returns the file, without direct mode.
    ///
    /// # Errors
    /// When the buffer can't be written.
    pub fn into_file(mut self) -> io::Result<File> {
        self.flush()?;
        self.set_mode(false)?;
        Ok(self.file)
    }

    /// Writes the bytes in the buffer.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn flush(&mut self) -> io::Result<()> {
        let fits = |number: u64| number.is_multiple_of(ALIGN as u64);
        let is_aligned = fits(self.offset) && fits(self.len as u64);
        let mut done = 0;
        while done < self.len {
            // A full disk may accept an unaligned part. The rest then goes through the cache.
            self.set_mode(is_aligned && fits(done as u64))?;
            let bytes = &self.memory[self.aligned + done..self.aligned + self.len];
            match self.file.write_at(bytes, self.offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                // The file system needs a larger alignment.
                Err(cause) if self.mode == Mode::Direct && is_invalid(&cause) => {
                    self.set_mode(false)?;
                    self.mode = Mode::CachedOnly;
                }
                Err(cause) => return Err(cause),
            }
        }
        self.offset += self.len as u64;
        self.len = 0;
        Ok(())
    }

    fn set_mode(&mut self, direct: bool) -> io::Result<()> {
        let (wanted, flag) = match (self.mode, direct) {
            (Mode::Cached, true) => (Mode::Direct, OFlags::DIRECT),
            (Mode::Direct, false) => (Mode::Cached, OFlags::empty()),
            _ => return Ok(()),
        };
        let others = fcntl_getfl(&self.file)? - OFlags::DIRECT;
        match fcntl_setfl(&self.file, others | flag) {
            Ok(()) => self.mode = wanted,
            Err(_) if direct => self.mode = Mode::CachedOnly,
            Err(cause) => return Err(cause.into()),
        }
        Ok(())
    }
}

fn is_invalid(cause: &io::Error) -> bool {
    cause.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write(file: File, runs: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let mut direct = DirectFile::new(file);
        let mut expected: Vec<u8> = Vec::new();
        for (offset, bytes) in runs {
            direct.write_at(bytes, *offset).unwrap();
            let from = *offset as usize;
            let to = *offset as usize + bytes.len();
            expected.resize(expected.len().max(to), 0);
            expected[from..to].copy_from_slice(bytes);
        }
        let mut last = [0];
        if let Some(end) = expected.len().checked_sub(1) {
            direct.read_exact_at(&mut last, end as u64).unwrap();
            assert_eq!(last, expected[end..]);
        }
        let reader = direct.into_file().unwrap();
        let mut actual = vec![0; reader.metadata().unwrap().len() as usize];
        reader.read_exact_at(&mut actual, 0).unwrap();
        assert!(actual == expected, "{} {}", actual.len(), expected.len());
        actual
    }

    fn run(gap: u64, len: usize, seed: u8) -> (u64, Vec<u8>) {
        let bytes = (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed));
        (gap, bytes.collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn written_bytes_are_there(parts in prop::collection::vec(
            (
                prop_oneof![Just(0), 0..9000_u64, Just(4096), Just(WRITE_BYTES as u64)],
                prop_oneof![
                    1..10_usize,
                    4000..4200_usize,
                    (WRITE_BYTES - 2)..(2 * WRITE_BYTES + 2),
                    Just(2 * WRITE_BYTES)
                ],
            ),
            0..6,
        )) {
            let mut runs = Vec::new();
            let mut at = 0;
            for (seed, (gap, len)) in parts.into_iter().enumerate() {
                let (gap, bytes) = run(gap, len, seed as u8);
                at += gap;
                let end = at + bytes.len() as u64;
                runs.push((at, bytes));
                at = end;
            }
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("file");
            let mut options = File::options();
            options.read(true).write(true).create_new(true);
            write(options.open(&path).unwrap(), &runs);
        }
    }

    #[test]
    fn files_without_direct_access_use_the_cache() {
        let shm = std::path::Path::new("/dev/shm");
        if !shm.is_dir() {
            return;
        }
        let file = tempfile::tempfile_in(shm).unwrap();
        write(file, &[run(0, 3 * WRITE_BYTES + 5, 1)]);
    }
}
