//! Reading parts of an image: which segments are needed for them, which rows these are made of, what is
//! kept in memory, how far to read ahead, and which holders are asked.

mod ahead;
mod cache;
mod holders;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use codec::SegmentHash;
use codec::decode::{Composer, DecodeError};
use codec::index::{FileEntry, FileKind, Index, Patch, SegmentEntry, StoredSegment};

pub use ahead::ReadAhead;
pub use cache::{SegmentCache, Shared};
pub use holders::Holders;

use super::pick::{overlapping, starts, stream_bytes};

/// A file's number in the list of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub usize);

/// Why there is nothing to read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFile {
    /// No file has this path.
    #[error("has no file {0:?}")]
    Missing(String),
    /// What has this path holds no bytes.
    #[error("{path:?} is a {kind}")]
    NotRegular {
        /// The path.
        path: String,
        /// What it is.
        kind: &'static str,
    },
    /// No path was given, and the image is not a single file.
    #[error("has {0} files: say which")]
    Several(usize),
}

/// How a row of a checkpoint is stored: what decoding it needs.
pub type RowFormat = (StoredSegment, SegmentHash);

/// Decoded rows, by their numbers.
pub type RawRows = BTreeMap<u64, Vec<u8>>;

/// A part of a file: a hole, or where in the image's stream its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// This many bytes of zeros that are not stored.
    Hole(u64),
    /// These bytes of the stream.
    Stream(Range<u64>),
}

/// The list of files and segments of an image, with what finding a byte in it needs.
#[derive(Debug)]
pub struct Layout {
    index: Index,
    /// Where in the stream each segment begins.
    starts: Vec<u64>,
    /// Rows before each segment.
    rows_before: Vec<u64>,
    /// Where in the stream the bytes of each file begin.
    file_starts: Vec<u64>,
}

/// What has to be fetched for some segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The segments that are made, with those of which others are made.
    pub segments: BTreeSet<usize>,
    /// Segments that are there already.
    pub kept: BTreeSet<usize>,
    /// Rows of the checkpoint.
    pub rows: BTreeMap<u64, RowFormat>,
    /// Rows of its base.
    pub base_rows: BTreeSet<u64>,
}

/// What segments are made of.
#[derive(Debug)]
pub struct Materials<'a> {
    /// Makes segments of earlier ones and patches.
    pub composer: &'a Composer,
    /// Rows of the checkpoint.
    pub rows: RawRows,
    /// Rows of its base.
    pub base_rows: RawRows,
    /// Segments that were made before.
    pub made: BTreeMap<usize, Shared>,
}

impl Layout {
    /// Of an index that was checked.
    pub fn new(index: Index) -> Self {
        let mut rows = 0;
        let count = |segment: &SegmentEntry| {
            let before = rows;
            rows += u64::from(segment.row().is_some());
            before
        };
        let rows_before = index.segments.iter().map(count).collect();
        let mut offset = 0;
        let begin = |file: &FileEntry| {
            let begin = offset;
            offset += stream_bytes(file);
            begin
        };
        Self {
            file_starts: index.files.iter().map(begin).collect(),
            starts: starts(&index),
            rows_before,
            index,
        }
    }

    /// The files, in the order of their numbers.
    pub fn files(&self) -> &[FileEntry] {
        &self.index.files
    }

    /// Number of segments.
    pub const fn segments(&self) -> usize {
        self.index.segments.len()
    }

    /// The regular file with this path; a hard link is the file that it names. Without a path, the only
    /// file that there is.
    ///
    /// # Errors
    /// When there is none.
    pub fn file(&self, path: Option<&[u8]>) -> Result<FileNumber, NoFile> {
        let files = &self.index.files;
        let number = match path {
            None if files.len() == 1 => 0,
            None => return Err(NoFile::Several(files.len())),
            Some(path) => files
                .iter()
                .position(|file| file.path == path)
                .ok_or_else(|| NoFile::Missing(String::from_utf8_lossy(path).into_owned()))?,
        };
        let file = files.get(number);
        let kind = match file.map(|file| &file.kind) {
            Some(FileKind::Regular { .. }) => return Ok(FileNumber(number)),
            Some(FileKind::HardLink { file }) => {
                return Ok(FileNumber(usize::try_from(*file).unwrap_or(usize::MAX)));
            }
            Some(FileKind::Symlink { .. }) => "symbolic link",
            Some(FileKind::Fifo) => "named pipe",
            Some(FileKind::Directory) | None => "directory",
        };
        let path = file.map(FileEntry::display_path).unwrap_or_default();
        Err(NoFile::NotRegular { path, kind })
    }

    /// Bytes of a file, holes included.
    pub fn size(&self, file: FileNumber) -> u64 {
        self.index.files.get(file.0).map_or(0, FileEntry::size)
    }

    /// Where in the stream the first byte of a file is that is at this offset or behind it, if it is not
    /// in a hole to the end: then where its bytes end.
    pub fn stream_at(&self, file: FileNumber, offset: u64) -> u64 {
        let mut at = self.file_starts.get(file.0).copied().unwrap_or_default();
        let Some(FileKind::Regular { extents, .. }) =
            self.index.files.get(file.0).map(|file| &file.kind)
        else {
            return at;
        };
        for extent in extents {
            let before = offset.saturating_sub(extent.offset).min(extent.len);
            at += before;
            if before < extent.len {
                break;
            }
        }
        at
    }

    /// The parts of a file, in order; what lies beyond its end is left out.
    pub fn parts(&self, file: FileNumber, range: Range<u64>) -> Vec<Part> {
        let end = range.end.min(self.size(file));
        let mut parts = Vec::new();
        let (Some(entry), Some(begin)) =
            (self.index.files.get(file.0), self.file_starts.get(file.0))
        else {
            return parts;
        };
        let FileKind::Regular { extents, .. } = &entry.kind else {
            return parts;
        };
        let (mut at, mut stream) = (range.start, *begin);
        for extent in extents {
            let extent_end = extent.offset + extent.len;
            if at >= end || extent.offset >= end {
                break;
            }
            if extent_end > at {
                if extent.offset > at {
                    parts.push(Part::Hole(extent.offset - at));
                    at = extent.offset;
                }
                let from = stream + (at - extent.offset);
                let to = stream + (extent_end.min(end) - extent.offset);
                parts.push(Part::Stream(from..to));
                at = extent_end.min(end);
            }
            stream += extent.len;
        }
        if at < end {
            parts.push(Part::Hole(end - at));
        }
        parts
    }

    /// The segments that hold a part of the stream.
    pub fn overlapping(&self, part: &Range<u64>) -> Range<usize> {
        if part.is_empty() {
            return 0..0;
        }
        overlapping(&self.starts, part)
    }

    /// Whether a segment is zeros, which nobody has to send.
    pub fn is_zero(&self, number: usize) -> bool {
        let segment = self.index.segments.get(number);
        matches!(segment, None | Some(SegmentEntry::Zero { .. }))
    }

    /// Whether a segment is made of earlier parts of the same image, which need rows of their own.
    pub fn is_shared(&self, number: usize) -> bool {
        let segment = self.index.segments.get(number);
        matches!(segment, Some(SegmentEntry::Shared { .. }))
    }

    /// The bytes of the stream in a segment.
    pub fn bytes_of(&self, number: usize) -> Range<u64> {
        let begin = self.starts.get(number).copied().unwrap_or_default();
        let segment = self.index.segments.get(number);
        begin..begin + segment.map_or(0, SegmentEntry::bytes)
    }

    /// What `wanted` segments need beside those that are there already.
    pub fn needs(
        &self,
        wanted: impl IntoIterator<Item = usize>,
        is_there: impl Fn(usize) -> bool,
    ) -> Needs {
        let mut needs = Needs::default();
        let mut open: BTreeSet<usize> = wanted.into_iter().collect();
        // What a segment is made of lies before it.
        while let Some(number) = open.pop_last() {
            let Some(segment) = self.index.segments.get(number) else {
                continue;
            };
            if self.is_zero(number) {
                continue;
            }
            if is_there(number) {
                needs.kept.insert(number);
                continue;
            }
            needs.segments.insert(number);
            if let (Some((stored, hash)), Some(row)) = (segment.row(), self.rows_before.get(number))
            {
                needs.rows.insert(*row, (*stored, *hash));
            }
            if let Some((row, _, _)) = segment.of_base() {
                needs.base_rows.insert(row);
            }
            if let SegmentEntry::Shared { offset, patch } = segment {
                open.extend(self.overlapping(&(*offset..*offset + u64::from(patch.len))));
            }
        }
        needs
    }

    /// Makes segments of what was fetched for them, in ascending order, and adds them to those that were
    /// made before.
    ///
    /// # Errors
    /// When something is missing, or the result is not exactly what was saved.
    pub fn make(&self, needs: &Needs, of: &mut Materials<'_>) -> Result<(), DecodeError> {
        for &number in &needs.segments {
            let row = self.rows_before.get(number).copied().unwrap_or_default();
            let raw = match self.index.segments.get(number) {
                Some(SegmentEntry::Stored { .. }) => {
                    of.rows.remove(&row).ok_or(DecodeError::Patch(row))?
                }
                Some(SegmentEntry::Shared { offset, patch }) => {
                    let source = *offset..*offset + u64::from(patch.len);
                    let mut raw = vec![0; patch.len as usize];
                    let is_whole = self.copy(&source, &mut raw, &of.made);
                    is_whole.ok_or(DecodeError::Patch(*offset))?;
                    compose(of, *offset, raw, patch, row)?
                }
                Some(segment) => match segment.of_base() {
                    Some((base_row, from, patch)) => {
                        let whole = of.base_rows.get(&base_row);
                        let from = from as usize;
                        let part =
                            whole.and_then(|whole| whole.get(from..from + patch.len as usize));
                        let part = part.ok_or(DecodeError::Patch(base_row))?.to_vec();
                        compose(of, base_row, part, patch, row)?
                    }
                    None => continue,
                },
                None => continue,
            };
            of.made.insert(number, Shared::from(raw));
        }
        Ok(())
    }

    /// Fills `buffer` with a part of the stream that is as long; `None` when a segment of it that is not
    /// zeros is not among those that were `made`.
    pub fn copy(
        &self,
        part: &Range<u64>,
        buffer: &mut [u8],
        made: &BTreeMap<usize, Shared>,
    ) -> Option<()> {
        buffer.fill(0);
        for number in self.overlapping(part) {
            if self.is_zero(number) {
                continue;
            }
            let raw = made.get(&number)?;
            let whole = self.bytes_of(number);
            let (from, to) = (whole.start.max(part.start), whole.end.min(part.end));
            let place = |offset: u64, begin: u64| {
                usize::try_from(offset.saturating_sub(begin)).unwrap_or(usize::MAX)
            };
            let bytes = raw.get(place(from, whole.start)..place(to, whole.start))?;
            let room = buffer.get_mut(place(from, part.start)..place(to, part.start))?;
            room.copy_from_slice(bytes);
        }
        Some(())
    }
}

/// Makes a segment of earlier bytes and its patch; what changed is in `row`, if anything did.
fn compose(
    of: &mut Materials<'_>,
    place: u64,
    mut raw: Vec<u8>,
    patch: &Patch,
    row: u64,
) -> Result<Vec<u8>, DecodeError> {
    let changed = match patch.row {
        Some(_) => of.rows.remove(&row).ok_or(DecodeError::Patch(row))?,
        None => Vec::new(),
    };
    of.composer
        .compose(place, &mut raw, Vec::new(), patch, &changed)?;
    Ok(raw)
}
