//! Selects files of an image by patterns, and computes which part of the image stream they need.

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use codec::SegmentHash;
use codec::compress::Method;
use codec::index::{FileEntry, FileKind, Index, SegmentEntry, StoredSegment};
use codec::layers::{Layer, all_pieces};
use codec::pieces::patch_bytes;

use super::glob::Glob;

/// Which segments of an image are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// All segments of the image.
    #[default]
    All,
    /// The segments at whose numbers this list is true.
    Some(Arc<[bool]>),
}

impl Wanted {
    /// Whether the segment with this number is wanted.
    pub fn has(&self, number: usize) -> bool {
        match self {
            Self::All => true,
            Self::Some(wanted) => wanted.get(number).copied().unwrap_or(false),
        }
    }

    /// The wanted segments of an index with their numbers, from number `first` on.
    pub fn segments<'a>(
        &'a self,
        index: &'a Index,
        first: usize,
    ) -> impl Iterator<Item = (usize, &'a SegmentEntry)> {
        let all = index.segments.iter().enumerate().skip(first);
        all.filter(|(number, _)| self.has(*number))
    }

    /// The rows that the wanted segments need besides what is at hand, and how they are stored: first those of the
    /// checkpoint with this index, then those of each of its `origins`.
    pub fn rows(&self, index: &Index, origins: usize, at_hand: &PiecesAtHand) -> Vec<WantedRows> {
        let mut rows = vec![WantedRows::new(); origins + 1];
        let mut own = 0;
        for (number, segment) in index.segments.iter().enumerate() {
            let row = own;
            own += u64::from(segment.row().is_some());
            let Some((first, others)) = rows.split_first_mut().filter(|_| self.has(number)) else {
                continue;
            };
            let needs = SegmentNeeds::of(segment, at_hand.of(number));
            if let Some((stored, hash)) = needs.own_row() {
                first.insert(row, (*stored, hash.copied()));
            }
            for layer in needs.layers() {
                if let Some(rows) = others.get_mut(usize::from(layer.origin)) {
                    rows.insert(layer.row, (layer.stored, None));
                }
            }
        }
        rows
    }
}

/// Which pieces of an image are at hand: in files of this machine, so that they need not be fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PiecesAtHand(Arc<[u64]>);

impl PiecesAtHand {
    /// These maps of pieces, one for each segment of the index; bit 0 is the first piece.
    pub fn new(maps: Vec<u64>) -> Self {
        Self(maps.into())
    }

    /// The map of the segment with this number.
    pub fn of(&self, segment: usize) -> u64 {
        self.0.get(segment).copied().unwrap_or_default()
    }

    /// Bytes of all these pieces.
    pub fn bytes(&self, index: &Index) -> u64 {
        let segments = self.0.iter().zip(&index.segments);
        let bytes = |(map, segment): (&u64, &SegmentEntry)| {
            let len = usize::try_from(segment.bytes()).unwrap_or_default();
            patch_bytes(*map, len) as u64
        };
        segments.map(bytes).sum()
    }
}

/// What has to be fetched to make a segment, some of whose pieces are at hand.
#[derive(Clone, Copy, Debug)]
pub struct SegmentNeeds<'a> {
    segment: &'a SegmentEntry,
    at_hand: u64,
}

impl<'a> SegmentNeeds<'a> {
    /// What a segment needs besides the pieces in the map `at_hand`.
    pub const fn of(segment: &'a SegmentEntry, at_hand: u64) -> Self {
        Self { segment, at_hand }
    }

    /// The segment's own row, if it is needed.
    pub fn own_row(&self) -> Option<(&'a StoredSegment, Option<&'a SegmentHash>)> {
        let in_row = match self.segment {
            SegmentEntry::Layered(layered) => layered.new_pieces(),
            SegmentEntry::Stored { stored, .. } => all_pieces(stored.raw_len as usize),
            // What repeats others of its image is made of these, and no piece of it is looked for.
            _ => u64::MAX,
        };
        self.segment.row().filter(|_| in_row & !self.at_hand != 0)
    }

    /// The layers whose rows are needed.
    pub fn layers(&self) -> impl Iterator<Item = &'a Layer> + use<'a> {
        let at_hand = self.at_hand;
        let layers = self.segment.layers().iter();
        layers.filter(move |layer| layer.is_needed(at_hand))
    }
}

/// How a row of a checkpoint is stored, as decoding needs it. A row without a hash is described by the summary, or
/// checked as a part of a segment.
pub type RowFormat = (StoredSegment, Option<SegmentHash>);

/// Rows of one checkpoint.
pub type WantedRows = BTreeMap<u64, RowFormat>;

/// The selected part of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// An image of the selected files alone, as if nothing else had been saved.
    pub index: Index,
    /// The segments of the whole image that the selected files need.
    pub wanted: Wanted,
    /// Offsets of these segments in the whole image's stream, in order.
    pub begins: Vec<u64>,
    /// The ranges of the whole image's stream that the selected files consist of, ascending.
    pub parts: Vec<Range<u64>>,
    /// The ranges of the whole image's stream that wanted segments refer to as their sources, ascending.
    pub sources: Vec<Range<u64>>,
}

impl Pick {
    /// Selects the files of `index` that match one of `globs`, and all files below directories that do. If
    /// the only glob has no wildcards, its file or directory is the root, as if only that had been saved.
    /// Otherwise the directories above the selected files are part of the result.
    ///
    /// # Errors
    /// The index of a glob that matches nothing.
    pub fn of(index: &Index, globs: &[Glob]) -> Result<Self, usize> {
        let chosen = choose(index, globs)?;
        let prefix = match globs {
            [only] => only
                .literal()
                .map(|path| path.len() - last_component(path).len()),
            _ => None,
        };
        let files = Files::new(index, &chosen, prefix);
        let parts = merged(files.parts);
        let starts = starts(index);
        let (wanted, sources) = wanted(index, &starts, &parts);
        let numbers = (0..wanted.len()).filter(|number| wanted.get(*number) == Some(&true));
        let begins = numbers.filter_map(|number| starts.get(number).copied());
        Ok(Self {
            index: Index {
                segments: sizes(index, &starts, &parts),
                files: files.entries,
            },
            begins: begins.collect(),
            wanted: Wanted::Some(wanted.into()),
            parts,
            sources,
        })
    }
}

fn last_component(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

fn parent_of(path: &[u8]) -> Option<&[u8]> {
    let slash = path.iter().rposition(|&byte| byte == b'/')?;
    path.get(..slash)
}

/// For each file, whether it or a directory above it matches a glob. The error is the index of a glob that
/// matches nothing.
fn choose(index: &Index, globs: &[Glob]) -> Result<Vec<bool>, usize> {
    let mut hits = vec![false; globs.len()];
    let mut above: BTreeSet<&[u8]> = BTreeSet::new();
    let mut chosen = Vec::with_capacity(index.files.len());
    for file in &index.files {
        let mut is_named = false;
        for (glob, hit) in globs.iter().zip(&mut hits) {
            if glob.matches(&file.path) {
                (is_named, *hit) = (true, true);
            }
        }
        let is_below = parent_of(&file.path).is_some_and(|parent| above.contains(parent));
        let is_chosen = is_named || is_below;
        if is_chosen && file.kind == FileKind::Directory {
            above.insert(&file.path);
        }
        chosen.push(is_chosen);
    }
    match hits.iter().position(|hit| !hit) {
        Some(glob) => Err(glob),
        None => Ok(chosen),
    }
}

/// The selected files, and the ranges of the whole image's stream that hold them, in order.
struct Files {
    entries: Vec<FileEntry>,
    parts: Vec<Range<u64>>,
}

impl Files {
    /// Directories come first, then files in the order of their bytes in the stream. If a file was selected
    /// only through a later hard link, the link takes its place. The first `prefix` bytes of each path are
    /// left out; without a `prefix`, the directories above come, too.
    fn new(index: &Index, chosen: &[bool], prefix: Option<usize>) -> Self {
        let is_chosen = |number: usize| chosen.get(number) == Some(&true);
        let named = |file: &FileEntry| {
            let mut file = file.clone();
            file.path.drain(..prefix.unwrap_or(0).min(file.path.len()));
            file
        };
        let mut above: BTreeSet<&[u8]> = BTreeSet::new();
        let all = index.files.iter().enumerate();
        for (_, file) in all.clone().filter(|(number, _)| is_chosen(*number)) {
            let mut path: &[u8] = &file.path;
            while let Some(parent) = parent_of(path).filter(|_| prefix.is_none()) {
                above.insert(parent);
                path = parent;
            }
        }
        let is_directory = |file: &FileEntry| file.kind == FileKind::Directory;
        let directories = all.clone().filter(|(number, file)| {
            is_directory(file) && (is_chosen(*number) || above.contains(file.path.as_slice()))
        });
        let mut files = Self {
            entries: directories.map(|(_, file)| named(file)).collect(),
            parts: Vec::new(),
        };
        let heirs = heirs(index, &is_chosen);
        let mut places: BTreeMap<usize, u64> = BTreeMap::new();
        let mut offset = 0;
        for (number, file) in all.filter(|(_, file)| !is_directory(file)) {
            let begin = offset;
            offset += stream_bytes(file);
            let heir = heirs.get(&number).and_then(|heir| index.files.get(*heir));
            let mut entry = match (&file.kind, is_chosen(number), heir) {
                (FileKind::HardLink { file: of }, true, _) => {
                    let of = usize::try_from(*of).unwrap_or(usize::MAX);
                    if heirs.get(&of) == Some(&number) {
                        continue;
                    }
                    let Some(place) = places.get(&of) else {
                        continue;
                    };
                    let mut link = named(file);
                    link.kind = FileKind::HardLink { file: *place };
                    files.entries.push(link);
                    continue;
                }
                (_, true, _) => named(file),
                (_, false, Some(heir)) => named(heir),
                (_, false, None) => continue,
            };
            entry.kind = file.kind.clone();
            places.insert(number, files.entries.len() as u64);
            files.entries.push(entry);
            files.parts.push(begin..offset);
        }
        files
    }
}

/// For each file that is not selected though hard links to it are: the first of these links.
fn heirs(index: &Index, is_chosen: &impl Fn(usize) -> bool) -> BTreeMap<usize, usize> {
    let mut heirs = BTreeMap::new();
    for (number, file) in index.files.iter().enumerate() {
        let FileKind::HardLink { file: of } = file.kind else {
            continue;
        };
        let of = usize::try_from(of).unwrap_or(usize::MAX);
        if is_chosen(number) && !is_chosen(of) {
            heirs.entry(of).or_insert(number);
        }
    }
    heirs
}

pub(super) fn stream_bytes(file: &FileEntry) -> u64 {
    match &file.kind {
        FileKind::Regular { extents, .. } => extents.iter().map(|extent| extent.len).sum(),
        _ => 0,
    }
}

/// The parts without empty ones, in order; parts that touch or overlap become one.
fn merged(mut parts: Vec<Range<u64>>) -> Vec<Range<u64>> {
    parts.retain(|part| !part.is_empty());
    parts.sort_unstable_by_key(|part| part.start);
    let mut all: Vec<Range<u64>> = Vec::with_capacity(parts.len());
    for part in parts {
        match all.last_mut() {
            Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
            _ => all.push(part),
        }
    }
    all
}

/// Offset in the stream of each segment.
pub(crate) fn starts(index: &Index) -> Vec<u64> {
    let mut offset = 0;
    let begin = |segment: &SegmentEntry| {
        let begin = offset;
        offset += segment.bytes();
        begin
    };
    index.segments.iter().map(begin).collect()
}

/// The numbers of the segments that overlap a part of the stream.
pub(super) fn overlapping(starts: &[u64], part: &Range<u64>) -> Range<usize> {
    let first = starts.partition_point(|start| *start <= part.start);
    let end = starts.partition_point(|start| *start < part.end);
    first.saturating_sub(1)..end
}

/// Which segments are needed for these parts of the stream, and the earlier parts of the stream that some of
/// them are made of.
fn wanted(index: &Index, starts: &[u64], parts: &[Range<u64>]) -> (Vec<bool>, Vec<Range<u64>>) {
    let mut wanted = vec![false; index.segments.len()];
    let want = |wanted: &mut Vec<bool>, part: &Range<u64>| {
        if let Some(some) = wanted.get_mut(overlapping(starts, part)) {
            some.fill(true);
        }
    };
    for part in parts {
        want(&mut wanted, part);
    }
    let mut sources = Vec::new();
    // Sources of a segment lie before it, so the last segments come first.
    for (number, segment) in index.segments.iter().enumerate().rev() {
        if let (SegmentEntry::Shared { offset, patch }, Some(true)) = (segment, wanted.get(number))
        {
            let source = *offset..*offset + u64::from(patch.len);
            want(&mut wanted, &source);
            sources.push(source);
        }
    }
    (wanted, merged(sources))
}

/// Segments for the index of the selection: they state only how many bytes of these parts have to be written,
/// and how many are zeros.
fn sizes(index: &Index, starts: &[u64], parts: &[Range<u64>]) -> Vec<SegmentEntry> {
    let mut sizes = Index::default();
    for part in parts {
        for number in overlapping(starts, part) {
            let (Some(segment), Some(start)) = (index.segments.get(number), starts.get(number))
            else {
                continue;
            };
            let end = (start + segment.bytes()).min(part.end);
            let bytes = end.saturating_sub(part.start.max(*start));
            sizes.push_segment(match segment {
                SegmentEntry::Zero { .. } => SegmentEntry::Zero { bytes },
                _ => {
                    let len = u32::try_from(bytes).unwrap_or(u32::MAX);
                    SegmentEntry::Stored {
                        stored: StoredSegment {
                            raw_len: len,
                            stored_len: len,
                            method: Method::Raw,
                        },
                        hash: SegmentHash([0; 32]),
                    }
                }
            });
        }
    }
    sizes.segments
}
