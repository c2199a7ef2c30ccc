//! Reads files past the page cache.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};
use rustix::param::page_size;

use crate::cached::cached_pages;
use crate::{ALIGN, is_invalid};

/// Bytes of one read. Larger reads gain little, and do not fit into the cache of a core.
pub const READ_BYTES: usize = 512 << 10;

/// Runs that are shorter than this are always read through the page cache.
const DIRECT_MIN: usize = 256 << 10;

/// A file that is read in long runs, past the page cache if the file system can do that.
///
/// A direct read takes a fraction of the processor time of a read through the cache, and pushes none of the
/// owner's files out of it. Bytes that are in the cache already are read from there.
#[derive(Debug)]
pub struct DirectReader {
    file: File,
    /// The same file, opened for direct reading; `None` if that can't be done.
    direct: OnceLock<Option<File>>,
}

impl DirectReader {
    /// Takes a file that is open for reading.
    pub const fn new(file: File) -> Self {
        Self {
            file,
            direct: OnceLock::new(),
        }
    }

    /// The file that is read.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Reads as `pread` does. Long runs that are not in the page cache are read past it, at most
    /// [`READ_BYTES`] at once, through the buffer `memory`.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn read_at(
        &self,
        memory: &mut Vec<u8>,
        buffer: &mut [u8],
        offset: u64,
    ) -> io::Result<usize> {
        if buffer.len() < DIRECT_MIN || !self.is_better(offset, buffer.len()) {
            return self.file.read_at(buffer, offset);
        }
        let read = self.read(memory, offset, buffer.len().min(READ_BYTES))?;
        let bytes = memory.get(read).unwrap_or_default();
        let (now, _) = buffer.split_at_mut(bytes.len());
        now.copy_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Whether a direct read is likely to be faster: at most an eighth of the pages are in the cache, and
    /// none of them are still to be written. False if the kernel does not report that.
    fn is_better(&self, offset: u64, len: usize) -> bool {
        let pages = cached_pages(self.file.as_fd(), offset, len as u64);
        pages.is_some_and(|pages| {
            let few = (len / page_size() / 8) as u64;
            pages.cached <= few && pages.dirty + pages.writeback == 0
        })
    }

    /// Reads `len` bytes from `offset` on into `memory`, and returns where in `memory` they are. They are
    /// fewer only at the end of the file. Earlier content of `memory` is overwritten.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn read(&self, memory: &mut Vec<u8>, offset: u64, len: usize) -> io::Result<Range<usize>> {
        if let Some(direct) = self.direct.get_or_init(|| reopen(&self.file)) {
            match read_direct(direct, memory, offset, len) {
                // The file system needs a larger alignment.
                Err(cause) if is_invalid(&cause) => {}
                read => return read,
            }
        }
        grow(memory, len);
        let buffer = memory.get_mut(..len).unwrap_or_default();
        Ok(0..fill(&self.file, buffer, offset, 1)?)
    }
}

/// Makes `memory` at least `len` bytes long. Its content is kept, since zeroing it would cost a pass over
/// it for each read.
fn grow(memory: &mut Vec<u8>, len: usize) {
    if memory.len() < len {
        memory.resize(len, 0);
    }
}

/// Opens the same file again for direct reading, so that `file` itself stays in its mode.
fn reopen(file: &File) -> Option<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let direct = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    Some(direct.into())
}

/// Reads whole aligned blocks around the bytes that are wanted, and returns where these are in `memory`.
fn read_direct(
    file: &File,
    memory: &mut Vec<u8>,
    offset: u64,
    len: usize,
) -> io::Result<Range<usize>> {
    let before = (offset % ALIGN as u64) as usize;
    let whole = (before + len).next_multiple_of(ALIGN);
    grow(memory, whole + ALIGN);
    let begin = memory.as_ptr().align_offset(ALIGN);
    let aligned = memory.get_mut(begin..begin + whole).unwrap_or_default();
    let read = fill(file, aligned, offset - before as u64, ALIGN)?;
    let end = read.clamp(before, before + len);
    Ok(begin + before..begin + end)
}

/// Reads until `buffer` is full or the file ends; a read that ends within a multiple of `step` is the last
/// one. Returns the number of bytes.
fn fill(file: &File, buffer: &mut [u8], offset: u64, step: usize) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() && filled.is_multiple_of(step) {
        let rest = buffer.get_mut(filled..).unwrap_or_default();
        match file.read_at(rest, offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at / 251 + at) as u8).collect()
    }

    fn check(reader: &DirectReader, all: &[u8], offset: usize, len: usize) {
        let mut memory = vec![9; 100];
        let read = reader.read(&mut memory, offset as u64, len).unwrap();
        let expected = all.get(offset..).unwrap_or_default();
        let expected = &expected[..len.min(expected.len())];
        assert!(memory[read] == *expected, "{len} bytes from {offset}");
        let mut buffer = vec![0; len];
        let read = reader.read_at(&mut memory, &mut buffer, offset as u64);
        let read = read.unwrap();
        assert!(read > 0 || expected.is_empty());
        assert!(buffer[..read] == expected[..read], "as much as there was");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn the_bytes_of_the_file_are_read(
            len in prop_oneof![0..10_usize, 4000..4200_usize, 0..1_000_000_usize],
            reads in prop::collection::vec((0..1_000_000_usize, 0..600_000_usize), 1..8),
        ) {
            let all = bytes(len);
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&all).unwrap();
            let reader = DirectReader::new(file);
            for (offset, len) in reads {
                check(&reader, &all, offset, len);
                check(&reader, &all, offset & !4095, len & !4095);
            }
        }
    }

    #[test]
    fn files_without_direct_access_use_the_cache() {
        let shm = Path::new("/dev/shm");
        if !shm.is_dir() {
            return;
        }
        let mut file = tempfile::tempfile_in(shm).unwrap();
        let all = bytes(300_000);
        file.write_all(&all).unwrap();
        check(&DirectReader::new(file), &all, 5, 200_000);
    }

    #[test]
    fn a_file_that_is_in_the_cache_is_read_from_there() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes(1 << 20)).unwrap();
        let reader = DirectReader::new(file);
        assert!(!reader.is_better(0, 1 << 20));
    }
}
