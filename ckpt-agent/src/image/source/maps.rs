//! Files that a program may write through a map while they are read.
//!
//! Such a write does not always move the file's times (never on tmpfs; on others only the first one after the
//! system has written the page back). So what was read of such a file is read once more after the end: if both
//! are the same, then there was a moment, between the two, at which the whole was like this.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use codec::index::Extent;
use direct_io::DirectReader;
use machine::open_files::{FileId, StateFiles, mapped_files};

use super::extents::data_extents;
use super::plan::{FileState, PlannedFile, Roots, stat_open};

/// Most files that stay open until they are read once more. Others are opened again by their path.
const KEPT_OPEN_MAX: usize = 64;

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// What was read of files that are mapped to be written.
#[derive(Debug, Default)]
pub(super) struct Maps {
    mapped: BTreeSet<FileId>,
    read: BTreeMap<usize, FirstRead>,
    kept_open: usize,
}

/// What was read of a file.
#[derive(Debug)]
struct FirstRead {
    hash: blake3::Hash,
    extents: Vec<Extent>,
    /// The file itself: another one may have been renamed into its place.
    file: Option<File>,
}

impl Maps {
    /// Looks which of the files processes have mapped.
    pub(super) fn of(files: &[PlannedFile]) -> Self {
        Self {
            mapped: mapped(files),
            ..Self::default()
        }
    }

    /// Begins a hash of what is read of the file, if it is mapped.
    pub(super) fn hasher(&self, state: &FileState) -> Option<blake3::Hasher> {
        self.mapped.contains(&state.id()).then(blake3::Hasher::new)
    }

    /// Notes what was read of the file with this number.
    pub(super) fn was_read(
        &mut self,
        number: usize,
        hasher: &blake3::Hasher,
        extents: Vec<Extent>,
        file: &File,
    ) {
        let file = file
            .try_clone()
            .ok()
            .filter(|_| self.kept_open < KEPT_OPEN_MAX);
        self.kept_open += usize::from(file.is_some());
        let hash = hasher.finalize();
        let read = FirstRead {
            hash,
            extents,
            file,
        };
        self.read.insert(number, read);
    }

    /// The files that were written through a map, or may have been; by their numbers, with what happened.
    ///
    /// # Errors
    /// When a file can't be read again; with its number.
    pub(super) fn changed(
        self,
        files: &[PlannedFile],
        roots: &mut Roots,
    ) -> Result<Vec<(usize, &'static str)>, (usize, io::Error)> {
        let now = mapped(files);
        let new: BTreeSet<FileId> = now.difference(&self.mapped).copied().collect();
        let mut changed = Vec::new();
        let mut memory = Memory::default();
        for (number, first) in self.read {
            let Some(planned) = files.get(number) else {
                continue;
            };
            let file = match first.file {
                Some(file) => Ok(file),
                None => roots
                    .open_file(planned.root, &planned.entry.path)
                    .map(File::from),
            };
            let again = file.and_then(|file| memory.hash(file));
            let (hash, extents) = again.map_err(|cause| (number, cause))?;
            if hash != first.hash || extents != first.extents {
                changed.push((number, "it was written through a map"));
            }
        }
        let is_new = |planned: &PlannedFile| !planned.left_out && new.contains(&planned.state.id());
        let all = files.iter().enumerate();
        let new = all.filter(|(_, planned)| planned.is_regular() && is_new(planned));
        let what = "a program mapped it, and may have written to it";
        changed.extend(new.map(|(number, _)| (number, what)));
        Ok(changed)
    }
}

/// Those of the files that processes have mapped to be written now.
fn mapped(files: &[PlannedFile]) -> BTreeSet<FileId> {
    let regular = files.iter().filter(|planned| planned.is_regular());
    mapped_files(&StateFiles::new(
        &[],
        regular.map(|planned| planned.state.id()),
    ))
}

/// Buffers for reading.
#[derive(Default)]
struct Memory {
    buffer: Vec<u8>,
    direct: Vec<u8>,
}

impl Memory {
    fn hash(&mut self, file: File) -> io::Result<(blake3::Hash, Vec<Extent>)> {
        let stat = stat_open(file.as_fd())?;
        let extents = data_extents(file.as_fd(), &stat)?;
        let file = DirectReader::new(file);
        let mut hasher = blake3::Hasher::new();
        self.buffer.resize(READ_BYTES, 0);
        for extent in &extents {
            let end = extent.offset + extent.len;
            let mut at = extent.offset;
            while at < end {
                let len = usize::try_from(end - at).map_or(READ_BYTES, |left| left.min(READ_BYTES));
                let room = self.buffer.get_mut(..len).unwrap_or_default();
                let read = match file.read_at(&mut self.direct, room, at) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(read) => read,
                    Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                    Err(cause) => return Err(cause),
                };
                hasher.update(room.get(..read).unwrap_or_default());
                at += read as u64;
            }
        }
        Ok((hasher.finalize(), extents))
    }
}
