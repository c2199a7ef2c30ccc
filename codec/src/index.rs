//! The list of files and segments of an image, and the checks that make it safe to follow.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

use serde::{Deserialize, Serialize};

use crate::compress::Method;
use crate::geometry::SEGMENT_BYTES;
use crate::hash::SegmentHash;
use crate::pieces;
use crate::serial::{self, SerialError};

/// Longest encoded index.
pub const INDEX_BYTES_MAX: usize = 1 << 30;

/// Longest path or link target, as on Linux.
pub const PATH_BYTES_MAX: usize = 4096;

/// Which bytes of the image stream belong to which file, and how the stream is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// Files, parents before children.
    pub files: Vec<FileEntry>,
    /// The image stream from its begin to its end.
    pub segments: Vec<SegmentEntry>,
}

/// One file of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Relative path; components are separated by `/`. Empty for standard input.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    /// Permission bits, setuid, setgid and sticky bit included.
    pub mode: u32,
    /// Time of the last change, Unix seconds.
    pub mtime_s: i64,
    /// Nanoseconds of that time.
    pub mtime_ns: u32,
    /// What it is.
    pub kind: FileKind,
}

/// What a file of an image is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A regular file; what is in no extent is a hole.
    Regular {
        /// Length of the file, holes included.
        size: u64,
        /// The parts that are in the image stream, ascending.
        extents: Vec<Extent>,
    },
    /// A symbolic link.
    Symlink {
        /// What it points to, as it is.
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
    /// Another name of an earlier regular file.
    HardLink {
        /// That file's number in the list.
        file: u64,
    },
    /// A named pipe.
    Fifo,
}

/// A part of a regular file that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Where it begins in the file.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
}

/// A run of the image stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SegmentEntry {
    /// Consecutive all-zero segments.
    Zero {
        /// How many bytes in all.
        bytes: u64,
    },
    /// The segment in the next row.
    Stored {
        /// How it is stored.
        stored: StoredSegment,
        /// Keyed hash of its image bytes.
        hash: SegmentHash,
    },
    /// A segment of the base checkpoint, or the begin of one, in which some pieces changed.
    Patched {
        /// The base's row; not less than that of any segment before that refers to the base.
        base_row: u64,
        /// What changed.
        patch: Patch,
    },
    /// A segment that this image has already, in which some pieces changed.
    Shared {
        /// Where in the stream the earlier one begins; it ends before this one begins.
        offset: u64,
        /// What changed.
        patch: Patch,
    },
    /// Another part of a segment of the base checkpoint in which some pieces changed.
    Part {
        /// The base's row, as of patched segments.
        base_row: u64,
        /// Where the part begins in its segment.
        from: u32,
        /// What changed.
        patch: Patch,
    },
}

/// How a segment differs from an earlier one, or an equally long part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patch {
    /// Its image bytes.
    pub len: u32,
    /// Which pieces changed; bit 0 is the first.
    pub changed: u64,
    /// The pieces that changed, one after the other, in the next row; none when none did.
    pub row: Option<(StoredSegment, SegmentHash)>,
    /// Keyed hash of the hashes of all its pieces.
    pub hash: SegmentHash,
}

impl Patch {
    /// Whether a segment can have it.
    fn is_possible(&self) -> bool {
        let len = self.len as usize;
        let stored = self.row.map_or(0, |(stored, _)| stored.raw_len as usize);
        let is_segment = len > 0 && len <= SEGMENT_BYTES;
        is_segment
            && pieces::is_map_of(self.changed, len)
            && pieces::patch_bytes(self.changed, len) == stored
    }
}

/// How one segment is stored in its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSegment {
    /// Image bytes.
    pub raw_len: u32,
    /// Bytes after compression.
    pub stored_len: u32,
    /// How it is compressed.
    pub method: Method,
}

/// An index that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// Not an index at all.
    #[error("index: {0}")]
    Serial(#[from] SerialError),
    /// A path that could lead out of the target directory, or is malformed.
    #[error("file {file}: path {path:?} is not a plain relative path")]
    Path {
        /// Number of the file.
        file: usize,
        /// Its path, as text.
        path: String,
    },
    /// Something else about a file.
    #[error("file {file} ({path:?}): {what}")]
    File {
        /// Number of the file.
        file: usize,
        /// Its path, as text.
        path: String,
        /// What is wrong.
        what: &'static str,
    },
    /// Lengths of a segment that none can have.
    #[error("row {row}: impossible lengths ({raw_len} raw, {stored_len} stored)")]
    Segment {
        /// The row.
        row: u64,
        /// Image bytes.
        raw_len: u32,
        /// Stored bytes.
        stored_len: u32,
    },
    /// A patch that does not go with its segment, rows of the base out of order, or something shared
    /// with what is not there yet.
    #[error("segment {0}: impossible patch")]
    Patch(usize),
    /// Files and segments describe streams of different length.
    #[error("files hold {files} bytes, segments {segments}")]
    StreamLength {
        /// Bytes in all extents.
        files: u64,
        /// Bytes in all segments.
        segments: u64,
    },
}

impl StoredSegment {
    /// Whether a segment can have these lengths.
    pub const fn is_possible(&self) -> bool {
        let fits = self.raw_len as usize <= SEGMENT_BYTES && self.stored_len <= self.raw_len;
        let kept = !matches!(self.method, Method::Raw) || self.stored_len == self.raw_len;
        self.stored_len > 0 && fits && kept
    }
}

impl SegmentEntry {
    /// Image bytes of this run.
    pub const fn bytes(&self) -> u64 {
        match self {
            Self::Zero { bytes } => *bytes,
            Self::Stored { stored, .. } => stored.raw_len as u64,
            Self::Patched { patch, .. } | Self::Shared { patch, .. } | Self::Part { patch, .. } => {
                patch.len as u64
            }
        }
    }

    /// Which part of the base it is made of: a row, where in it the part begins, and what changed.
    pub const fn of_base(&self) -> Option<(u64, u32, &Patch)> {
        match self {
            Self::Patched { base_row, patch } => Some((*base_row, 0, patch)),
            Self::Part {
                base_row,
                from,
                patch,
            } => Some((*base_row, *from, patch)),
            Self::Zero { .. } | Self::Stored { .. } | Self::Shared { .. } => None,
        }
    }

    /// What it stores in a row of its own.
    pub fn row(&self) -> Option<(&StoredSegment, &SegmentHash)> {
        match self {
            Self::Zero { .. } => None,
            Self::Stored { stored, hash } => Some((stored, hash)),
            Self::Patched { patch, .. } | Self::Shared { patch, .. } | Self::Part { patch, .. } => {
                patch.row.as_ref().map(|(stored, hash)| (stored, hash))
            }
        }
    }
}

impl FileEntry {
    /// Length of the file, holes included; zero for what is no regular file.
    pub const fn size(&self) -> u64 {
        match self.kind {
            FileKind::Regular { size, .. } => size,
            _ => 0,
        }
    }

    /// The path for messages.
    pub fn display_path(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }
}

impl Index {
    /// Appends a run of the stream; zero runs that follow each other become one.
    pub fn push_segment(&mut self, entry: SegmentEntry) {
        if let (Some(SegmentEntry::Zero { bytes }), SegmentEntry::Zero { bytes: more }) =
            (self.segments.last_mut(), &entry)
        {
            *bytes += more;
        } else {
            self.segments.push(entry);
        }
    }

    /// The index's bytes.
    ///
    /// # Errors
    /// When it is longer than [`INDEX_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, SerialError> {
        serial::encode(self, INDEX_BYTES_MAX)
    }

    /// Reads and checks an index: afterwards every path is a plain relative one, parents come
    /// before children, no file lies below a symbolic link, and all lengths fit together.
    ///
    /// # Errors
    /// When it is malformed or must not be followed.
    pub fn decode(bytes: &[u8]) -> Result<Self, IndexError> {
        let index: Self = serial::decode(bytes, INDEX_BYTES_MAX)?;
        index.check()?;
        Ok(index)
    }

    /// Length of the image stream.
    pub fn stream_bytes(&self) -> u64 {
        self.segments
            .iter()
            .fold(0, |sum, entry| sum.saturating_add(entry.bytes()))
    }

    /// Stored segments, which are rows 0, 1, 2 ...
    pub fn rows(&self) -> impl Iterator<Item = (&StoredSegment, &SegmentHash)> {
        self.segments.iter().filter_map(SegmentEntry::row)
    }

    /// Rows of the base that patched segments refer to, ascending; the same may come repeatedly.
    pub fn base_rows(&self) -> impl Iterator<Item = u64> {
        let parts = self.segments.iter().filter_map(SegmentEntry::of_base);
        parts.map(|(row, _, _)| row)
    }

    /// Checks what [`Index::decode`] promises.
    ///
    /// # Errors
    /// See [`Index::decode`].
    pub fn check(&self) -> Result<(), IndexError> {
        for (row, (stored, _)) in (0..).zip(self.rows()) {
            if !stored.is_possible() {
                return Err(IndexError::Segment {
                    row,
                    raw_len: stored.raw_len,
                    stored_len: stored.stored_len,
                });
            }
        }
        self.check_patches()?;
        let files = self.check_files()?;
        let segments = self.stream_bytes();
        // A sum that does not fit into 64 bits stops there.
        if files != segments || segments == u64::MAX {
            return Err(IndexError::StreamLength { files, segments });
        }
        Ok(())
    }

    fn check_patches(&self) -> Result<(), IndexError> {
        let (mut row, mut at) = (0, 0_u64);
        for (number, entry) in self.segments.iter().enumerate() {
            let begins = at;
            at = at.saturating_add(entry.bytes());
            let (in_order, patch) = if let Some((base_row, from, patch)) = entry.of_base() {
                let in_order = base_row >= row && base_row < u64::MAX;
                row = base_row;
                let end = u64::from(from) + u64::from(patch.len);
                (in_order && end <= SEGMENT_BYTES as u64, patch)
            } else if let SegmentEntry::Shared { offset, patch } = entry {
                let end = offset.checked_add(u64::from(patch.len));
                (end.is_some_and(|end| end <= begins), patch)
            } else {
                continue;
            };
            if !(in_order && patch.is_possible()) {
                return Err(IndexError::Patch(number));
            }
        }
        Ok(())
    }

    /// Checks every file and returns the length of the stream that they make.
    fn check_files(&self) -> Result<u64, IndexError> {
        let mut stream_bytes: u64 = 0;
        let mut directories = std::collections::BTreeSet::<&[u8]>::new();
        let mut names = std::collections::BTreeSet::<&[u8]>::new();
        for (number, file) in self.files.iter().enumerate() {
            let wrong = |what| IndexError::File {
                file: number,
                path: file.display_path(),
                what,
            };
            let is_stream = file.path.is_empty() && self.files.len() == 1;
            if !is_stream && !is_plain_path(&file.path) {
                return Err(IndexError::Path {
                    file: number,
                    path: file.display_path(),
                });
            }
            if let Some(parent) = parent(&file.path)
                && !directories.contains(parent)
            {
                return Err(wrong("its directory is not in the list before it"));
            }
            if !names.insert(&file.path) {
                return Err(wrong("the same path twice"));
            }
            if file.mtime_ns >= 1_000_000_000 || file.mode & !0o7777 != 0 {
                return Err(wrong("impossible time or mode"));
            }
            match &file.kind {
                FileKind::Directory => {
                    directories.insert(&file.path);
                }
                FileKind::Regular { size, extents } => {
                    let bytes = extents_bytes(*size, extents).ok_or(wrong("impossible extents"))?;
                    stream_bytes = stream_bytes
                        .checked_add(bytes)
                        .ok_or(wrong("image too long"))?;
                }
                FileKind::Symlink { target } => {
                    if target.is_empty() || target.len() > PATH_BYTES_MAX || target.contains(&0) {
                        return Err(wrong("impossible link target"));
                    }
                }
                FileKind::HardLink { file } => {
                    let earlier = usize::try_from(*file).ok().filter(|&file| file < number);
                    let linked = earlier.and_then(|file| self.files.get(file));
                    if !linked.is_some_and(|f| matches!(f.kind, FileKind::Regular { .. })) {
                        return Err(wrong("hard link to something that is no earlier file"));
                    }
                }
                FileKind::Fifo => {}
            }
        }
        Ok(stream_bytes)
    }
}

/// Sum of the extents, when they ascend, do not overlap and lie within `size`.
fn extents_bytes(size: u64, extents: &[Extent]) -> Option<u64> {
    let (mut end, mut sum) = (0, 0_u64);
    for extent in extents {
        if extent.offset < end || extent.len == 0 {
            return None;
        }
        end = extent.offset.checked_add(extent.len)?;
        sum += extent.len;
    }
    (end <= size).then_some(sum)
}

/// Whether `path` stays below the directory that it is joined to, and means the same everywhere.
fn is_plain_path(path: &[u8]) -> bool {
    path.len() <= PATH_BYTES_MAX
        && !path.contains(&0)
        && path
            .split(|&byte| byte == b'/')
            .all(|component| !matches!(component, b"" | b"." | b".."))
}

fn parent(path: &[u8]) -> Option<&[u8]> {
    let slash = path.iter().rposition(|&byte| byte == b'/')?;
    path.get(..slash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, kind: FileKind) -> FileEntry {
        FileEntry {
            path: path.as_bytes().to_vec(),
            mode: 0o644,
            mtime_s: 0,
            mtime_ns: 0,
            kind,
        }
    }

    fn regular(len: u64) -> FileKind {
        let extents = vec![Extent { offset: 0, len }];
        FileKind::Regular { size: len, extents }
    }

    fn index(files: Vec<FileEntry>, zeros: u64) -> Index {
        let mut index = Index {
            files,
            segments: vec![],
        };
        if zeros > 0 {
            index.push_segment(SegmentEntry::Zero { bytes: zeros });
        }
        index
    }

    #[test]
    fn a_tree_comes_back() {
        let tree = index(
            vec![
                file("dump", FileKind::Directory),
                file("dump/a\nb", regular(5)),
                file(
                    "dump/link",
                    FileKind::Symlink {
                        target: b"../../etc".to_vec(),
                    },
                ),
                file("dump/same", FileKind::HardLink { file: 1 }),
                file("dump/pipe", FileKind::Fifo),
            ],
            5,
        );
        assert_eq!(Index::decode(&tree.encode().unwrap()), Ok(tree));
    }

    #[test]
    fn paths_that_escape_are_refused() {
        for path in [
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "a/./b",
            "a/",
            "",
            ".",
            "a\0b",
        ] {
            let two = vec![file("first", FileKind::Fifo), file(path, FileKind::Fifo)];
            let refused = index(two, 0).check();
            assert!(
                matches!(refused, Err(IndexError::Path { .. })),
                "{path:?}: {refused:?}"
            );
        }
    }

    #[test]
    fn files_need_a_real_directory_before_them() {
        let link = FileKind::Symlink {
            target: b"/etc".to_vec(),
        };
        for files in [
            vec![file("a/b", FileKind::Fifo)],
            vec![file("a", link), file("a/b", FileKind::Fifo)],
            vec![file("a", FileKind::Fifo), file("a", FileKind::Directory)],
            vec![file("a", FileKind::HardLink { file: 0 })],
            vec![
                file("a", FileKind::Fifo),
                file("b", FileKind::HardLink { file: 0 }),
            ],
        ] {
            let refused = index(files, 0).check();
            assert!(
                matches!(refused, Err(IndexError::File { .. })),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn lengths_have_to_fit() {
        let one = vec![file("", regular(5))];
        assert_eq!(
            index(one.clone(), 6).check(),
            Err(IndexError::StreamLength {
                files: 5,
                segments: 6
            })
        );
        assert_eq!(index(one, 5).check(), Ok(()));
        let overlapping = vec![Extent { offset: 0, len: 4 }, Extent { offset: 3, len: 4 }];
        let kind = FileKind::Regular {
            size: 9,
            extents: overlapping,
        };
        assert!(index(vec![file("a", kind)], 8).check().is_err());
        let beyond = vec![Extent {
            offset: u64::MAX,
            len: 4,
        }];
        let kind = FileKind::Regular {
            size: 9,
            extents: beyond,
        };
        assert!(index(vec![file("a", kind)], 4).check().is_err());
    }

    #[test]
    fn zero_runs_are_joined() {
        let mut index = Index::default();
        index.push_segment(SegmentEntry::Zero { bytes: 3 });
        index.push_segment(SegmentEntry::Zero { bytes: 4 });
        assert_eq!(index.segments, [SegmentEntry::Zero { bytes: 7 }]);
    }

    #[test]
    fn parts_of_the_base_have_to_be_in_order_and_within_a_segment() {
        const LEN: u32 = SEGMENT_BYTES as u32 / 2;
        let part = |base_row, from| SegmentEntry::Part {
            base_row,
            from,
            patch: Patch {
                len: LEN,
                changed: 0,
                row: None,
                hash: SegmentHash([7; 32]),
            },
        };
        let check = |first, second| {
            let mut index = index(vec![file("", regular(2 * u64::from(LEN)))], 0);
            index.segments = vec![first, second];
            index.check()
        };
        assert_eq!(check(part(3, 0), part(3, LEN)), Ok(()));
        assert_eq!(check(part(3, LEN), part(3, 0)), Ok(()), "it is in memory");
        assert_eq!(check(part(3, 5), part(9, 0)), Ok(()));
        assert_eq!(check(part(3, 0), part(2, 0)), Err(IndexError::Patch(1)));
        assert_eq!(
            check(part(3, LEN + 1), part(4, 0)),
            Err(IndexError::Patch(0))
        );
        assert_eq!(
            check(part(u64::MAX, 0), part(u64::MAX, 0)),
            Err(IndexError::Patch(0))
        );
    }

    #[test]
    fn a_stream_longer_than_can_be_counted_is_refused() {
        let one = vec![file("", regular(u64::MAX))];
        let mut index = index(one, u64::MAX);
        index.segments.push(SegmentEntry::Zero { bytes: 5 });
        assert!(matches!(
            index.check(),
            Err(IndexError::StreamLength { .. })
        ));
    }

    #[test]
    fn an_index_cut_anywhere_is_refused() {
        let mut whole = index(vec![file("a", regular(700)), file("b", regular(9))], 700);
        let stored = StoredSegment {
            raw_len: 9,
            stored_len: 9,
            method: Method::Raw,
        };
        let hash = SegmentHash([7; 32]);
        whole.push_segment(SegmentEntry::Stored { stored, hash });
        let bytes = whole.encode().unwrap();
        assert_eq!(Index::decode(&bytes), Ok(whole));
        for len in 0..bytes.len() {
            assert!(Index::decode(&bytes[..len]).is_err(), "{len}");
        }
    }
}
