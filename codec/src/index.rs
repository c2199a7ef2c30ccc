//! The list of files and segments of an image, and the checks that make the list safe to restore from.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::geometry::{INDEX_BYTES_MAX, SEGMENT_BYTES};
use crate::hash::SegmentHash;
use crate::layers::{Layer, Layered, all_pieces};
use crate::pieces::{self, PIECE_BYTES};
use crate::serial::{self, SerialError};
pub use crate::stored::StoredSegment;

/// Most bytes of a path or link target, as on Linux.
pub const PATH_BYTES_MAX: usize = 4096;

/// The files of an image, with the bytes of the image stream that each has, and the segments in which the
/// stream is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// Files, parents before children.
    pub files: Vec<FileEntry>,
    /// The segments of the image stream, from its beginning to its end.
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
    /// Kind of the file, with its content.
    pub kind: FileKind,
    /// What the user asked to be kept besides; `None` for most files.
    #[serde(skip)]
    pub attributes: Option<Box<Attributes>>,
}

/// What is kept of a file only if the user asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Numbers of its user and group.
    pub owner: Option<(u32, u32)>,
    /// Extended attributes, access control lists among them: names and values.
    pub extended: Vec<(serde_bytes::ByteBuf, serde_bytes::ByteBuf)>,
}

/// Most bytes of the name of an extended attribute, as on Linux.
pub const ATTRIBUTE_NAME_BYTES_MAX: usize = 255;

/// Most bytes of the value of an extended attribute, as on Linux.
pub const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

impl Attributes {
    fn is_possible(&self) -> bool {
        let is_name = |name: &[u8]| {
            (1..=ATTRIBUTE_NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0)
        };
        let mut all = self.extended.iter();
        all.all(|(name, value)| is_name(name) && value.len() <= ATTRIBUTE_BYTES_MAX)
    }
}

/// What a file of an image is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A directory; what is below it has entries of its own.
    Directory,
    /// A regular file. Bytes that are in no extent are holes.
    Regular {
        /// Length of the file, holes included.
        size: u64,
        /// The parts that are in the image stream, ascending.
        extents: Vec<Extent>,
    },
    /// A symbolic link, which is stored and not followed.
    Symlink {
        /// The target as it is in the link.
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
    /// Another name of an earlier regular file.
    HardLink {
        /// Number of that file in the list.
        file: u64,
    },
    /// A named pipe; only its name and metadata are stored.
    Fifo,
}

/// A part of a regular file that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Where the part begins in the file.
    pub offset: u64,
    /// Length of the part in bytes.
    pub len: u64,
}

/// A segment of the image stream, or several segments of zeros.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SegmentEntry {
    /// Consecutive segments of zeros.
    Zero {
        /// Bytes of all of them together.
        bytes: u64,
    },
    /// A segment that is stored whole, in the next row.
    Stored {
        /// Its lengths and compression.
        stored: StoredSegment,
        /// Keyed hash of its image bytes.
        hash: SegmentHash,
    },
    /// The bytes of a segment of the base, from its first byte on, in which some pieces changed.
    Patched {
        /// Row of that segment in the base. Rows of the base ascend from entry to entry, or stay the same.
        base_row: u64,
        /// The pieces that changed.
        patch: Patch,
    },
    /// Earlier bytes of this image in which some pieces changed.
    Shared {
        /// Where in the stream the earlier bytes begin. They end before this segment begins.
        offset: u64,
        /// The pieces that changed.
        patch: Patch,
    },
    /// The bytes of a segment of the base, from a later byte on, in which some pieces changed.
    Part {
        /// Row of that segment in the base, ascending as in `Patched`.
        base_row: u64,
        /// Bytes of that segment before the repeated ones.
        from: u32,
        /// The pieces that changed.
        patch: Patch,
    },
    /// Pieces of rows of several older checkpoints, and new pieces. A checkpoint with these has no `Patched` and no
    /// `Part`, and names its origins in its summary.
    Layered(Layered),
}

/// How a segment differs from earlier bytes of the same length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patch {
    /// Image bytes of the segment.
    pub len: u32,
    /// Which pieces changed; bit 0 is the first.
    pub changed: u64,
    /// The next row, with the pieces that changed, one after the other; `None` if no piece changed.
    pub row: Option<(StoredSegment, SegmentHash)>,
    /// Keyed hash of the hashes of all pieces of the segment.
    pub hash: SegmentHash,
}

impl Patch {
    /// Whether length, map and row fit together.
    fn is_possible(&self) -> bool {
        let len = self.len as usize;
        let stored = self.row.map_or(0, |(stored, _)| stored.raw_len as usize);
        let is_segment = len > 0 && len <= SEGMENT_BYTES;
        is_segment
            && pieces::is_map_of(self.changed, len)
            && pieces::patch_bytes(self.changed, len) == stored
    }
}

/// Why an index is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The bytes are no index.
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
        /// What is wrong with it, for the message.
        what: &'static str,
    },
    /// A stored segment has lengths that contradict each other or the limits.
    #[error("row {row}: impossible lengths ({raw_len} raw, {stored_len} stored)")]
    Segment {
        /// Number of the row that stores the segment.
        row: u64,
        /// Image bytes that the index states.
        raw_len: u32,
        /// Stored bytes that the index states.
        stored_len: u32,
    },
    /// A patch or layers do not fit their segment, rows of the base or of an origin do not ascend or are not there, or
    /// a shared segment refers to bytes that do not end before it.
    #[error("segment {0}: impossible patch")]
    Patch(usize),
    /// Attributes are impossible, or of no file, or there twice.
    #[error("file {0}: impossible attributes")]
    Attributes(u64),
    /// The extents of all files and all segments have different lengths in sum.
    #[error("files hold {files} bytes, segments {segments}")]
    StreamLength {
        /// Bytes in all extents.
        files: u64,
        /// Bytes in all segments.
        segments: u64,
    },
}

impl SegmentEntry {
    /// Image bytes of this entry.
    pub const fn bytes(&self) -> u64 {
        match self {
            Self::Zero { bytes } => *bytes,
            Self::Stored { stored, .. } => stored.raw_len as u64,
            Self::Patched { patch, .. } | Self::Shared { patch, .. } | Self::Part { patch, .. } => {
                patch.len as u64
            }
            Self::Layered(layered) => layered.len as u64,
        }
    }

    /// The part of the base that the segment repeats: row, first byte within the row's segment, and the
    /// pieces that changed. `None` for segments that do not refer to the base.
    pub const fn of_base(&self) -> Option<(u64, u32, &Patch)> {
        match self {
            Self::Patched { base_row, patch } => Some((*base_row, 0, patch)),
            Self::Part {
                base_row,
                from,
                patch,
            } => Some((*base_row, *from, patch)),
            _ => None,
        }
    }

    /// The rows of origins that the segment uses.
    pub fn layers(&self) -> &[Layer] {
        match self {
            Self::Layered(layered) => &layered.layers,
            _ => &[],
        }
    }

    /// The content of the entry's own row, if it has one. Without a hash, the row is checked as a part of its segment.
    pub fn row(&self) -> Option<(&StoredSegment, Option<&SegmentHash>)> {
        match self {
            Self::Zero { .. } => None,
            Self::Stored { stored, hash } => Some((stored, Some(hash))),
            Self::Patched { patch, .. } | Self::Shared { patch, .. } | Self::Part { patch, .. } => {
                let row = patch.row.as_ref();
                row.map(|(stored, hash)| (stored, Some(hash)))
            }
            Self::Layered(layered) => layered.row.as_ref().map(|stored| (stored, None)),
        }
    }

    /// A segment that refers to rows of a base which are stored like this, as layers; any other one as it is. `None`
    /// if the base has no such row.
    fn over(self, rows: &[&StoredSegment]) -> Option<Self> {
        let Some((row, from, patch)) = self.of_base() else {
            return Some(self);
        };
        let from = from as usize;
        let used = all_pieces(patch.len as usize) & !patch.changed;
        if !from.is_multiple_of(PIECE_BYTES) {
            return None;
        }
        let stored = **rows.get(usize::try_from(row).ok()?)?;
        let layer = Layer {
            origin: 0,
            row,
            stored,
            used,
            taken: used << (from / PIECE_BYTES),
        };
        let layered = Layered {
            len: patch.len,
            layers: Vec::from_iter((used != 0).then_some(layer)),
            row: patch.row.map(|(stored, _)| stored),
            hash: patch.hash,
        };
        layered.is_possible().then_some(Self::Layered(layered))
    }
}

impl FileEntry {
    /// Length of the file, holes included; zero unless it is a regular file.
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
    /// Appends an entry; consecutive entries of zeros become one.
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
        let numbered = (0_u64..).zip(&self.files);
        let attributes =
            numbered.filter_map(|(file, entry)| Some((file, entry.attributes.as_ref()?)));
        let attributes: Vec<(u64, &Box<Attributes>)> = attributes.collect();
        match attributes.is_empty() {
            true => serial::encode(self, INDEX_BYTES_MAX),
            false => serial::encode(&(self, attributes), INDEX_BYTES_MAX),
        }
    }

    /// Reads and checks an index. Then every path is relative and has no `.` or `..`, directories come
    /// before the files in them, no file is below a symbolic link, and all lengths fit together.
    ///
    /// # Errors
    /// When the index is malformed or one of these does not hold.
    pub fn decode(bytes: &[u8]) -> Result<Self, IndexError> {
        let index = match serial::decode::<Self>(bytes, INDEX_BYTES_MAX) {
            // The attributes of some files follow.
            Err(SerialError::Trailing(_)) => Self::decode_with_attributes(bytes)?,
            index => index?,
        };
        index.check()?;
        Ok(index)
    }

    fn decode_with_attributes(bytes: &[u8]) -> Result<Self, IndexError> {
        let (mut index, attributes): (Self, Vec<(u64, Attributes)>) =
            serial::decode(bytes, INDEX_BYTES_MAX)?;
        for (file, attributes) in attributes {
            let number = usize::try_from(file).unwrap_or(usize::MAX);
            let entry = index.files.get_mut(number);
            let entry =
                entry.filter(|entry| entry.attributes.is_none() && attributes.is_possible());
            let Some(entry) = entry else {
                return Err(IndexError::Attributes(file));
            };
            entry.attributes = Some(Box::new(attributes));
        }
        Ok(index)
    }

    /// Length of the image stream.
    pub fn stream_bytes(&self) -> u64 {
        self.segments
            .iter()
            .fold(0, |sum, entry| sum.saturating_add(entry.bytes()))
    }

    /// The content of the image rows 0, 1, 2, ...
    pub fn rows(&self) -> impl Iterator<Item = (&StoredSegment, Option<&SegmentHash>)> {
        self.segments.iter().filter_map(SegmentEntry::row)
    }

    /// Whether segments refer to a base, as those of older programs do.
    pub fn has_base(&self) -> bool {
        let mut all = self.segments.iter();
        all.any(|segment| segment.of_base().is_some())
    }

    /// This index of a checkpoint with a base, with layers instead of references to rows of `base`. The base is
    /// origin 0.
    ///
    /// # Errors
    /// When the base has no such rows.
    pub fn over(self, base: &Self) -> Result<Self, IndexError> {
        let rows: Vec<&StoredSegment> = base.rows().map(|(stored, _)| stored).collect();
        let segments = self.segments.into_iter().enumerate();
        let layered =
            segments.map(|(number, entry)| entry.over(&rows).ok_or(IndexError::Patch(number)));
        let index = Self {
            segments: layered.collect::<Result<_, _>>()?,
            files: self.files,
        };
        index.check_patches()?;
        index.check_origins(1)?;
        Ok(index)
    }

    /// Checks that segments use rows of the first `origins` origins only, and have no other references.
    ///
    /// # Errors
    /// When one does not.
    pub fn check_origins(&self, origins: usize) -> Result<(), IndexError> {
        let is_possible = |entry: &SegmentEntry| {
            let mut layers = entry.layers().iter();
            entry.of_base().is_none() && layers.all(|layer| usize::from(layer.origin) < origins)
        };
        match self.segments.iter().position(|entry| !is_possible(entry)) {
            Some(number) => Err(IndexError::Patch(number)),
            None => Ok(()),
        }
    }

    /// Checks all that [`Index::decode`] promises.
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
        // `stream_bytes` returns `u64::MAX` for a sum that does not fit into 64 bits.
        if files != segments || segments == u64::MAX {
            return Err(IndexError::StreamLength { files, segments });
        }
        Ok(())
    }

    fn check_patches(&self) -> Result<(), IndexError> {
        let mut row = 0;
        let mut at = 0_u64;
        let mut rows = BTreeMap::new();
        for (number, entry) in self.segments.iter().enumerate() {
            let begins = at;
            at = at.saturating_add(entry.bytes());
            if let SegmentEntry::Layered(layered) = entry {
                let in_order = layered.layers.iter().all(|layer| {
                    let before = rows.insert(layer.origin, layer.row);
                    before.is_none_or(|before| before <= layer.row)
                });
                if !(in_order && layered.is_possible()) {
                    return Err(IndexError::Patch(number));
                }
                continue;
            }
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

    /// Checks every file and returns the length of the stream: the sum of all extents.
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
                return Err(wrong("the path occurs twice"));
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
                        return Err(wrong("hard link to something that is not an earlier file"));
                    }
                }
                FileKind::Fifo => {}
            }
        }
        Ok(stream_bytes)
    }
}

/// Sum of the extents; `None` unless they ascend, do not overlap and lie within `size`.
fn extents_bytes(size: u64, extents: &[Extent]) -> Option<u64> {
    let mut end = 0;
    let mut sum = 0_u64;
    for extent in extents {
        if extent.offset < end || extent.len == 0 {
            return None;
        }
        end = extent.offset.checked_add(extent.len)?;
        sum += extent.len;
    }
    (end <= size).then_some(sum)
}

/// Whether `path`, joined to a directory, stays below it and has only one meaning.
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
    use crate::compress::Method;

    #[test]
    fn attributes_come_back_with_their_files_and_impossible_ones_are_refused() {
        let bytes = |text: &[u8]| serde_bytes::ByteBuf::from(text.to_vec());
        let with = |name: &[u8], owner| {
            let mut index = index(
                vec![file("a", FileKind::Fifo), file("b", FileKind::Fifo)],
                0,
            );
            let extended = vec![(bytes(name), bytes(&[0, 1]))];
            index.files[1].attributes = Some(Box::new(Attributes { owner, extended }));
            index
        };
        let good = with(b"user.a", Some((1, u32::MAX)));
        assert_eq!(Index::decode(&good.encode().unwrap()).unwrap(), good);
        let nameless = with(b"", None).encode().unwrap();
        assert_eq!(Index::decode(&nameless), Err(IndexError::Attributes(1)));
        // Of no file, and of one file twice.
        let plain = index(vec![file("a", FileKind::Fifo)], 0);
        let attributes = Attributes::default();
        for numbers in [vec![1_u64], vec![0, 0]] {
            let tail: Vec<_> = numbers.iter().map(|file| (*file, &attributes)).collect();
            let bytes = serial::encode(&(&plain, tail), INDEX_BYTES_MAX).unwrap();
            let last = *numbers.last().unwrap();
            assert_eq!(Index::decode(&bytes), Err(IndexError::Attributes(last)));
        }
    }

    fn file(path: &str, kind: FileKind) -> FileEntry {
        FileEntry {
            path: path.as_bytes().to_vec(),
            mode: 0o644,
            mtime_s: 0,
            mtime_ns: 0,
            kind,
            attributes: None,
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
