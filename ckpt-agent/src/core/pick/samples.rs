//! Entries of an index, for tests.

use codec::SegmentHash;
use codec::compress::Method;
use codec::index::{Extent, FileEntry, FileKind, SegmentEntry, StoredSegment};

/// A file with this path, of this kind.
pub(crate) fn entry(path: &str, kind: FileKind) -> FileEntry {
    FileEntry {
        path: path.as_bytes().to_vec(),
        mode: 0o700,
        mtime_s: 0,
        mtime_ns: 0,
        kind,
        attributes: None,
    }
}

/// A regular file of `len` bytes, without holes.
pub(crate) fn regular(len: u64) -> FileKind {
    FileKind::Regular {
        size: len,
        extents: vec![Extent { offset: 0, len }],
    }
}

/// A stored segment of `len` bytes, not compressed.
pub(crate) fn stored(len: u32) -> SegmentEntry {
    SegmentEntry::Stored {
        stored: StoredSegment {
            raw_len: len,
            stored_len: len,
            method: Method::Raw,
        },
        hash: SegmentHash([0; 32]),
    }
}
