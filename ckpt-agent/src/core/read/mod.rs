//! Reading parts of an image: which segments and rows they need, which segments are kept in memory, how far
//! to read ahead, and which hosts are asked.
//!
//! A read of a file goes through four coordinates. Its offset in the *file* becomes a range of the *stream*
//! ([`Layout::parts`]), which overlaps some *segments* ([`Layout::overlapping`]), which are made of *rows* of
//! the checkpoint and of its origins ([`Layout::needs`]). The rows are fetched, and [`Layout::make`] and
//! [`Layout::copy`] go the same way back.

mod ahead;
mod cache;
mod holders;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use codec::decode::{Composer, DecodeError};
use codec::index::{FileEntry, FileKind, Index, SegmentEntry};
use codec::layers::Layer;

pub use ahead::ReadAhead;
pub use cache::{SegmentCache, Shared};
pub use holders::Holders;

use super::pick::{RowFormat, overlapping, starts, stream_bytes};

/// Index of a file in the file list of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub usize);

/// Why a path names no file to read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFile {
    /// No file has this path.
    #[error("has no file {0:?}")]
    Missing(String),
    /// The path names something without content, such as a directory.
    #[error("{path:?} is a {kind}")]
    NotRegular {
        /// The path that was asked for.
        path: String,
        /// `symbolic link`, `named pipe` or `directory`.
        kind: &'static str,
    },
    /// No path was given, and the image is not a single file.
    #[error("has {0} files: name one of them")]
    Several(usize),
}

/// A row of the checkpoint itself (0) or of one of its origins (from 1 on), and its number.
pub type RowPlace = (usize, u64);

/// Decoded rows.
pub type RawRows = BTreeMap<RowPlace, Vec<u8>>;

/// A part of a file: a hole, or the range of the image's stream that holds the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// This many bytes of zeros that are not stored.
    Hole(u64),
    /// These bytes of the stream.
    Stream(Range<u64>),
}

/// The list of files and segments of an image, with offsets for finding a byte in it.
#[derive(Debug)]
pub struct Layout {
    index: Index,
    /// Offset in the stream of each segment.
    starts: Vec<u64>,
    /// For each segment, the number of rows before it.
    rows_before: Vec<u64>,
    /// Offset in the stream of the first byte of each file.
    file_starts: Vec<u64>,
}

/// What has to be fetched to make some segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The segments to make: the wanted ones, and those that are sources of others.
    pub segments: BTreeSet<usize>,
    /// Needed segments that are there already.
    pub kept: BTreeSet<usize>,
    /// Rows to fetch.
    pub rows: BTreeMap<RowPlace, RowFormat>,
}

/// The sources that segments are made of.
#[derive(Debug)]
pub struct Materials<'a> {
    /// Makes a segment of its patch and the rows that it refers to.
    pub composer: &'a Composer,
    /// Decoded rows.
    pub rows: RawRows,
    /// Segments made so far.
    pub made: BTreeMap<usize, Shared>,
}

impl Layout {
    /// The layout of an index that was checked.
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

    /// Number of segments that the layout has.
    pub const fn segments(&self) -> usize {
        self.index.segments.len()
    }

    /// The regular file with this path; for a hard link, the file that it links to. Without a path, the only
    /// file of the image.
    ///
    /// # Errors
    /// When there is no such file, or more than one for no path.
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

    /// Length of a file in bytes, holes included.
    pub fn size(&self, file: FileNumber) -> u64 {
        self.index.files.get(file.0).map_or(0, FileEntry::size)
    }

    /// Offset in the stream of the byte at `offset` of a file. If that is in a hole, of the next byte that is
    /// stored; if there is none, the end of the file's bytes.
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

    /// The parts of a file's `range`, in order; the range is cut at the end of the file.
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
        let mut at = range.start;
        let mut stream = *begin;
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

    /// The segments that overlap a part of the stream.
    pub fn overlapping(&self, part: &Range<u64>) -> Range<usize> {
        if part.is_empty() {
            return 0..0;
        }
        overlapping(&self.starts, part)
    }

    /// Whether a segment is all zeros, so that no host has to send it.
    pub fn is_zero(&self, number: usize) -> bool {
        let segment = self.index.segments.get(number);
        matches!(segment, None | Some(SegmentEntry::Zero { .. }))
    }

    /// Whether a segment is made of an earlier part of the same image, which may need rows of its own.
    pub fn is_shared(&self, number: usize) -> bool {
        let segment = self.index.segments.get(number);
        matches!(segment, Some(SegmentEntry::Shared { .. }))
    }

    /// The range of the stream that a segment covers.
    pub fn bytes_of(&self, number: usize) -> Range<u64> {
        let begin = self.starts.get(number).copied().unwrap_or_default();
        let segment = self.index.segments.get(number);
        begin..begin + segment.map_or(0, SegmentEntry::bytes)
    }

    /// What has to be fetched for the `wanted` segments, given those that are there already.
    pub fn needs(
        &self,
        wanted: impl IntoIterator<Item = usize>,
        is_there: impl Fn(usize) -> bool,
    ) -> Needs {
        let mut needs = Needs::default();
        let mut open: BTreeSet<usize> = wanted.into_iter().collect();
        // Sources of a segment lie before it in the image, so descending order visits each segment once.
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
                needs.rows.insert((0, *row), (*stored, hash.copied()));
            }
            for layer in segment.layers() {
                let place = (usize::from(layer.origin) + 1, layer.row);
                needs.rows.insert(place, (layer.stored, None));
            }
            if let SegmentEntry::Shared { offset, patch } = segment {
                open.extend(self.overlapping(&(*offset..*offset + u64::from(patch.len))));
            }
        }
        needs
    }

    /// Makes the segments of `needs`, in ascending order, from fetched rows and earlier segments, and adds
    /// them to `of.made`.
    ///
    /// # Errors
    /// When a source is missing, or a segment is not exactly what was saved.
    pub fn make(&self, needs: &Needs, of: &mut Materials<'_>) -> Result<(), DecodeError> {
        for &number in &needs.segments {
            let row = self.rows_before.get(number).copied().unwrap_or_default();
            let begin = self.bytes_of(number).start;
            let missing = DecodeError::Patch(begin);
            let raw = match self.index.segments.get(number) {
                Some(SegmentEntry::Stored { .. }) => of.rows.remove(&(0, row)).ok_or(missing)?,
                Some(SegmentEntry::Shared { offset, patch }) => {
                    let source = *offset..*offset + u64::from(patch.len);
                    let mut raw = vec![0; patch.len as usize];
                    let is_whole = self.copy(&source, &mut raw, &of.made);
                    is_whole.ok_or(missing)?;
                    let changed = own_row(&of.rows, row, patch.row.is_some())?;
                    of.composer.patch(*offset, &mut raw, patch, changed)?;
                    raw
                }
                Some(SegmentEntry::Layered(layered)) => {
                    let new = own_row(&of.rows, row, layered.row.is_some())?;
                    let find = |layer: &Layer| {
                        let row = of.rows.get(&(usize::from(layer.origin) + 1, layer.row));
                        row.map(Vec::as_slice)
                    };
                    let mut raw = Vec::new();
                    of.composer
                        .compose(begin, &mut raw, layered, 0, find, new)?;
                    raw
                }
                _ => continue,
            };
            of.made.insert(number, Shared::from(raw));
        }
        Ok(())
    }

    /// Copies a part of the stream to `buffer`, which has the same length; `None` when a segment in it is
    /// neither zeros nor in `made`.
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
            let from = whole.start.max(part.start);
            let to = whole.end.min(part.end);
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

/// The image bytes of the checkpoint's own row `row`, if the segment has one.
fn own_row(rows: &RawRows, row: u64, has_row: bool) -> Result<&[u8], DecodeError> {
    if !has_row {
        return Ok(&[]);
    }
    let raw = rows.get(&(0, row)).map(Vec::as_slice);
    raw.ok_or(DecodeError::Patch(row))
}
