//! Which files hold which bytes of an image's stream.

use std::ops::Range;

use codec::index::{Extent, FileKind, Index};

/// Finds the files that hold parts of the stream of an image.
#[derive(Debug, Default)]
pub(super) struct StreamFiles {
    /// Extents with their offsets in the stream and their files' indices.
    extents: Vec<(u64, usize, Extent)>,
}

/// Where a part of the stream is: file, offset in it, and length.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilePart {
    /// Number of the file in the index.
    pub(super) file: usize,
    /// Byte of the file at which the part begins.
    pub(super) at: u64,
    /// How many bytes follow there.
    pub(super) len: u64,
}

impl StreamFiles {
    /// The files of this index.
    pub(super) fn of(index: &Index) -> Self {
        let mut extents = Vec::new();
        let mut offset = 0;
        for (number, file) in index.files.iter().enumerate() {
            let FileKind::Regular { extents: own, .. } = &file.kind else {
                continue;
            };
            for extent in own.iter().filter(|extent| extent.len > 0) {
                extents.push((offset, number, *extent));
                offset += extent.len;
            }
        }
        Self { extents }
    }

    /// Whether no file holds anything.
    pub(super) const fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// The part of the stream that a file holds.
    pub(super) fn range_of(&self, file: usize) -> Option<Range<u64>> {
        let first = self
            .extents
            .partition_point(|(_, number, _)| *number < file);
        let own = self.extents.get(first..)?.iter();
        let mut own = own.take_while(|(_, number, _)| *number == file);
        let (begin, _, extent) = own.next()?;
        let end = own
            .last()
            .map_or(begin + extent.len, |(last, _, extent)| last + extent.len);
        Some(*begin..end)
    }

    /// The file with the byte `offset` of the stream.
    pub(super) fn place(&self, offset: u64) -> Option<FilePart> {
        let after = self.extents.partition_point(|(begin, ..)| *begin <= offset);
        let (begin, file, extent) = self.extents.get(after.checked_sub(1)?)?;
        let done = offset - begin;
        Some(FilePart {
            file: *file,
            at: extent.offset + done,
            len: extent.len.checked_sub(done).filter(|len| *len > 0)?,
        })
    }
}
