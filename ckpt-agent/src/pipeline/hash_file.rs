//! Hashes of pieces in files without names. Those of an image of 64 GiB take 64 MiB, which memory would not hold beside
//! the rows.
//!
//! They are hashes under the key of the job's chain, which is in no file: without it they only show which pieces are
//! equal. Nothing depends on them but what is stored again: a hash that was read wrong equals none.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use codec::base::HashStore;
use codec::encode::CheckpointBuilder;
use codec::hash::PieceHash;

/// Bytes of a hash.
const HASH_BYTES: usize = size_of::<PieceHash>();

/// Most bytes of one file: the hashes of an image of 8 TiB.
const FILE_BYTES_MAX: u64 = 8 << 30;

/// A file of hashes. It is gone when nobody has it open any more.
#[derive(Debug)]
pub struct HashFile {
    file: File,
    bytes: u64,
}

impl HashFile {
    /// A file in this directory without hashes.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn in_dir(dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let file = tempfile::tempfile_in(dir)?;
        Ok(Self { file, bytes: 0 })
    }

    /// Adds the bytes of these hashes.
    ///
    /// # Errors
    /// When they can't be written, or there would be too many.
    pub fn append(&mut self, hashes: &[u8]) -> io::Result<()> {
        let end = self.bytes.saturating_add(hashes.len() as u64);
        if end > FILE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_all_at(hashes, self.bytes)?;
        self.bytes = end;
        Ok(())
    }
}

impl HashStore for HashFile {
    fn read(&self, first: usize, count: usize) -> Option<Vec<PieceHash>> {
        let at = first.checked_mul(HASH_BYTES)?;
        let mut bytes = vec![0; count.checked_mul(HASH_BYTES)?];
        let read = self.file.read_exact_at(&mut bytes, at as u64);
        read.inspect_err(|cause| tracing::warn!(%cause, "hashes of pieces can't be read"))
            .ok()?;
        let each = bytes.as_chunks().0.iter();
        Some(each.map(|hash| PieceHash(*hash)).collect())
    }
}

/// The first hashes of a new version, in a file as soon as there are many.
#[derive(Debug, Default)]
pub struct NewHashes {
    /// Where to make the file; nothing more is put into it without.
    dir: Option<PathBuf>,
    file: Option<HashFile>,
}

impl NewHashes {
    /// Bytes of hashes that are written at once: those of 4 GiB of an image. Tests have no such images.
    const PART_BYTES: usize = if cfg!(test) { 100 } else { 4 << 20 };

    /// Puts hashes into a file in this directory, if there is one.
    pub const fn in_dir(dir: Option<PathBuf>) -> Self {
        Self { dir, file: None }
    }

    /// Takes the hashes that the builder has, if they are many. If they can't be written, they stay.
    pub fn take_from(&mut self, builder: &mut CheckpointBuilder) {
        let is_many = builder.piece_hashes().len() >= Self::PART_BYTES;
        let Some(dir) = self.dir.as_ref().filter(|_| is_many) else {
            return;
        };
        match put(&mut self.file, dir, builder.piece_hashes()) {
            Ok(()) => builder.forget_piece_hashes(),
            Err(cause) => {
                tracing::warn!(%cause, "hashes of pieces stay in memory, because no file for them can be written");
                self.dir = None;
            }
        }
    }

    /// The bytes of the hashes in the file, in order.
    pub const fn reader(&self) -> HashReader<'_> {
        HashReader {
            file: self.file.as_ref(),
            at: 0,
        }
    }
}

fn put(file: &mut Option<HashFile>, dir: &Path, hashes: &[u8]) -> io::Result<()> {
    if let Some(file) = file {
        return file.append(hashes);
    }
    let mut new = HashFile::in_dir(dir)?;
    new.append(hashes)?;
    *file = Some(new);
    Ok(())
}

/// Reads the bytes of a file of hashes.
#[derive(Debug)]
pub struct HashReader<'a> {
    file: Option<&'a HashFile>,
    at: u64,
}

impl Read for HashReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(all) = self.file else { return Ok(0) };
        let left = usize::try_from(all.bytes.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let wanted = left.min(buffer.len());
        let (buffer, _) = buffer.split_at_mut(wanted);
        all.file.read_exact_at(buffer, self.at)?;
        self.at += wanted as u64;
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = HashFile::in_dir(&dir.path().join("new")).unwrap();
        let hash = |number: u8| PieceHash([number; 16]);
        for part in [0..3, 3..10] {
            let bytes: Vec<u8> = part.flat_map(|number| hash(number).0).collect();
            file.append(&bytes).unwrap();
        }
        assert_eq!(
            HashStore::read(&file, 2, 3),
            Some(vec![hash(2), hash(3), hash(4)])
        );
        assert_eq!(HashStore::read(&file, 8, 3), None, "beyond the end");
        assert_eq!(HashStore::read(&file, usize::MAX, 1), None);
        let mut all = Vec::new();
        let new = NewHashes {
            dir: None,
            file: Some(file),
        };
        new.reader().read_to_end(&mut all).unwrap();
        assert_eq!(
            (all.len(), all.first(), all.last()),
            (160, Some(&0), Some(&9))
        );
    }
}
