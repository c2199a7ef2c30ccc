//! Finds the part of an image that files of this machine have already, so that a restore need not fetch it: an older
//! version at the target, files that changed little, what a killed restore had written.
//!
//! A file is compared with the file of the same path in the image, piece by piece in its place, by the hashes that the
//! version states. If the image has a file at whose path nothing is, a file of the same size that the image does not
//! have is taken for it: files that were renamed are found. Only hashes decide, and whatever is read is checked once
//! more when it is used; so links and files of others can do no harm here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use codec::base::Base;
use codec::index::{FileEntry, FileKind, Index, SegmentEntry};
use codec::layers::all_pieces;
use codec::pieces::{PIECE_BYTES, PIECES_MAX, ranges};
use rustix::fs::OFlags;

use super::sink::{Left, Shape, left_for};
use super::stream::StreamFiles;
use super::{Sink, SinkOptions, Target, path_from_bytes};
use crate::core::pick::{PiecesAtHand, starts};
use crate::pipeline::decode::ReadAtHand;

/// Most killed restores of which something is used.
const LEFT_MAX: usize = 2;

/// Most places that are looked at.
const TREES_MAX: usize = 4;

/// Most files below a directory among which renamed ones are looked for.
const RENAMED_AMONG_MAX: usize = 100_000;

/// Most files of the same size that are tried for one that was renamed.
const RENAMED_TRIED_MAX: usize = 8;

/// Most tries of all files that were renamed together.
const RENAMED_TRIES_MAX: usize = 1_000;

/// How many segments are tried before all are: if none of them has a piece that is here, nothing is used.
const SAMPLES: usize = 64;

/// Most files that stay open.
const OPEN_MAX: usize = 64;

/// Places of this machine that may have a part of an image.
#[derive(Debug)]
pub struct Places {
    trees: Vec<Tree>,
    left: Vec<Left>,
}

/// Parts of an image in files of this machine.
#[derive(Debug)]
pub struct FilesAtHand {
    stream: StreamFiles,
    trees: Vec<Tree>,
    /// The pieces of each tree, by segment.
    of_trees: Vec<Vec<u64>>,
    /// The pieces of all trees.
    pieces: PiecesAtHand,
    left: Vec<Left>,
}

/// Where the roots of an image are.
#[derive(Debug)]
enum Roots {
    /// Its only root.
    Only(PathBuf),
    /// Each of them, by its name.
    Named(BTreeMap<Vec<u8>, PathBuf>),
}

impl Roots {
    /// Where the file with this path in the image is.
    fn path_of(&self, path: &[u8]) -> Option<PathBuf> {
        let slash = path.iter().position(|&byte| byte == b'/');
        let (first, rest) = match slash {
            Some(slash) => (path.get(..slash)?, path.get(slash + 1..)?),
            None => (path, &b""[..]),
        };
        let root = match self {
            Self::Only(root) => root,
            Self::Named(roots) => roots.get(first)?,
        };
        Some(match rest {
            b"" => root.clone(),
            rest => root.join(path_from_bytes(rest)),
        })
    }

    fn all(&self) -> Vec<&Path> {
        match self {
            Self::Only(root) => vec![root],
            Self::Named(roots) => roots.values().map(PathBuf::as_path).collect(),
        }
    }

    fn is_there(&self) -> bool {
        self.all()
            .into_iter()
            .any(|root| root.symlink_metadata().is_ok())
    }
}

/// One place that may have files of the image.
#[derive(Debug)]
struct Tree {
    roots: Roots,
    /// Paths of files that were renamed, by their numbers in the index.
    renamed: BTreeMap<usize, PathBuf>,
    open: VecDeque<(usize, Option<File>)>,
}

impl Places {
    /// The places with a part of an image that is to be restored to `target`: what is there, what killed restores had
    /// written, and what is at the paths in `others`. `None` if nothing is at any of them.
    pub fn of(
        index: &Index,
        target: &Target,
        others: &[PathBuf],
        options: SinkOptions,
    ) -> Option<Self> {
        let target_path = target;
        let Target::Path(target) = target else {
            return None;
        };
        let names: Vec<&[u8]> = index
            .files
            .iter()
            .map(|file| file.path.as_slice())
            .filter(|path| !path.contains(&b'/'))
            .collect();
        let shape = Shape::of(index);
        // What killed restores left is removed where the room is needed.
        let has_room = Sink::check(index, target_path, options).is_ok();
        let left = if has_room {
            left_for(target, LEFT_MAX)
        } else {
            Vec::new()
        };
        let roots = |root: &Path| match names.len() {
            1 => Roots::Only(root.to_owned()),
            _ => {
                let below = |name: &&[u8]| (name.to_vec(), root.join(path_from_bytes(name)));
                Roots::Named(names.iter().map(below).collect())
            }
        };
        let mut all = vec![roots(target)];
        all.extend(left.iter().map(|left| roots(&left.root(shape))));
        if names.len() == 1 {
            all.extend(others.iter().map(|root| roots(root)));
        } else {
            let named =
                |path: &PathBuf| Some((path.file_name()?.as_bytes().to_vec(), path.clone()));
            all.push(Roots::Named(others.iter().filter_map(named).collect()));
        }
        all.retain(Roots::is_there);
        all.truncate(TREES_MAX);
        let tree = |roots| Tree {
            roots,
            renamed: BTreeMap::new(),
            open: VecDeque::new(),
        };
        let trees: Vec<Tree> = all.into_iter().map(tree).collect();
        (!trees.is_empty()).then_some(Self { trees, left })
    }

    /// Compares the files with the hashes of an image's pieces. `None` if none of them is found.
    pub fn compare(self, index: &Index, hashes: &Base) -> Option<FilesAtHand> {
        let Self { mut trees, left } = self;
        let stream = StreamFiles::of(index);
        let image = Image {
            index,
            hashes,
            stream: &stream,
            begins: starts(index),
        };
        for tree in &mut trees {
            tree.find_renamed(&image);
        }
        if !image.has_a_sample(&mut trees) {
            return None;
        }
        let mut of_trees = vec![vec![0; index.segments.len()]; trees.len()];
        let mut pieces = vec![0; index.segments.len()];
        let mut raw = Vec::new();
        for (number, found) in pieces.iter_mut().enumerate() {
            for (tree, map) in trees.iter_mut().zip(&mut of_trees) {
                let new = image.found_in(tree, number, !*found, &mut raw);
                if let Some(map) = map.get_mut(number) {
                    *map = new;
                }
                *found |= new;
            }
        }
        let found = FilesAtHand {
            stream,
            trees,
            of_trees,
            pieces: PiecesAtHand::new(pieces),
            left,
        };
        (found.pieces.bytes(index) > 0).then_some(found)
    }
}

/// An image whose pieces are looked for.
struct Image<'a> {
    index: &'a Index,
    hashes: &'a Base,
    stream: &'a StreamFiles,
    /// The byte of the stream at which each segment begins.
    begins: Vec<u64>,
}

impl Image<'_> {
    /// Which of the `wanted` pieces of a segment a tree has. `raw` is working memory.
    fn found_in(&self, tree: &mut Tree, number: usize, wanted: u64, raw: &mut Vec<u8>) -> u64 {
        let (Some(segment), Some(begin)) =
            (self.index.segments.get(number), self.begins.get(number))
        else {
            return 0;
        };
        if !matches!(
            segment,
            SegmentEntry::Stored { .. } | SegmentEntry::Layered(_)
        ) {
            return 0;
        }
        let len = usize::try_from(segment.bytes()).unwrap_or_default();
        let wanted = wanted & all_pieces(len);
        if wanted == 0 {
            return 0;
        }
        raw.resize(len, 0);
        let read = tree.read(&self.index.files, self.stream, *begin, wanted, raw);
        match read {
            0 => 0,
            _ => read & self.hashes.same_pieces(*begin, raw),
        }
    }

    /// Whether one of some pieces, spread over the image, is in one of the trees.
    fn has_a_sample(&self, trees: &mut [Tree]) -> bool {
        let step = self.begins.len().div_ceil(SAMPLES).max(1);
        let mut raw = Vec::new();
        (0..self.begins.len()).step_by(step).any(|number| {
            // Another piece of each segment.
            let piece = 1_u64.rotate_left(u32::try_from(number % 61).unwrap_or_default());
            let wanted = piece | 1;
            let mut trees = trees.iter_mut();
            trees.any(|tree| self.found_in(tree, number, wanted, &mut raw) != 0)
        })
    }

    /// How many pieces of a file are in a tree, of those in the segment in which the file begins.
    fn found_of_file(&self, tree: &mut Tree, file: usize) -> Option<u32> {
        let part = self.stream.range_of(file)?;
        let after = self.begins.partition_point(|start| *start <= part.start);
        let number = after.checked_sub(1)?;
        let begin = self.begins.get(number)?;
        let piece = |byte: u64| usize::try_from((byte - begin) / PIECE_BYTES as u64).ok();
        let pieces = piece(part.start)?..piece(part.end.checked_sub(1)?)?.saturating_add(1);
        let wanted = all_pieces(pieces.end.min(PIECES_MAX) * PIECE_BYTES);
        let before = all_pieces(pieces.start.min(PIECES_MAX) * PIECE_BYTES);
        let found = self.found_in(tree, number, wanted & !before, &mut Vec::new());
        Some(found.count_ones())
    }
}

impl Tree {
    /// Reads the `wanted` pieces of a segment to their places in `raw`; returns those that could be read.
    fn read(
        &mut self,
        files: &[FileEntry],
        stream: &StreamFiles,
        begin: u64,
        wanted: u64,
        raw: &mut [u8],
    ) -> u64 {
        let mut done = 0;
        let len = raw.len();
        for piece in ranges(wanted, len) {
            let at = piece.start;
            let offset = begin + at as u64;
            let bytes = raw.get_mut(piece).unwrap_or_default();
            if self.read_stream(files, stream, offset, bytes).is_some() {
                done |= 1 << (at / PIECE_BYTES);
            }
        }
        done
    }

    /// Fills `buffer` from byte `offset` of the image's stream on.
    fn read_stream(
        &mut self,
        files: &[FileEntry],
        stream: &StreamFiles,
        mut offset: u64,
        mut buffer: &mut [u8],
    ) -> Option<()> {
        while !buffer.is_empty() {
            let part = stream.place(offset)?;
            let len = usize::try_from(part.len).unwrap_or(usize::MAX);
            let (now, later) = buffer.split_at_mut(len.min(buffer.len()));
            self.file(files, part.file)?
                .read_exact_at(now, part.at)
                .ok()?;
            offset += now.len() as u64;
            buffer = later;
        }
        Some(())
    }

    /// The file with this number, opened.
    fn file(&mut self, files: &[FileEntry], number: usize) -> Option<&File> {
        let known = self.open.iter().position(|(open, _)| *open == number);
        let at = match known {
            Some(at) => at,
            None => {
                let path = files.get(number).and_then(|file| {
                    let renamed = self.renamed.get(&number).cloned();
                    renamed.or_else(|| self.roots.path_of(&file.path))
                });
                let file = path.and_then(|path| open_regular(&path));
                if self.open.len() == OPEN_MAX {
                    self.open.pop_front();
                }
                self.open.push_back((number, file));
                self.open.len() - 1
            }
        };
        self.open.get(at)?.1.as_ref()
    }

    /// Finds files of the image that have another name here.
    fn find_renamed(&mut self, image: &Image<'_>) {
        let missing = self.missing(image);
        if missing.is_empty() {
            return;
        }
        let own: BTreeSet<PathBuf> = {
            let files = image.index.files.iter();
            files
                .filter_map(|file| self.roots.path_of(&file.path))
                .collect()
        };
        let sizes: BTreeSet<u64> = missing.iter().map(|(_, size)| *size).collect();
        let mut others: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
        for (path, size) in regular_files(&self.roots.all()) {
            if sizes.contains(&size) && !own.contains(&path) {
                others.entry(size).or_default().push(path);
            }
        }
        let mut tries = 0;
        for (number, size) in missing {
            let Some(candidates) = others.get_mut(&size) else {
                continue;
            };
            let named = |path: &PathBuf| {
                let file = image.index.files.get(number);
                file.is_some_and(|file| path.file_name() == path_from_bytes(&file.path).file_name())
            };
            let mut same_name =
                (0..candidates.len()).filter(|at| candidates.get(*at).is_some_and(named));
            let chosen = match (same_name.next(), candidates.len()) {
                (Some(at), _) => Some(at),
                (None, 1) => Some(0),
                _ if tries >= RENAMED_TRIES_MAX => None,
                _ => {
                    tries += candidates.len().min(RENAMED_TRIED_MAX);
                    self.most_alike(image, number, candidates)
                }
            };
            if let Some(at) = chosen {
                self.renamed.insert(number, candidates.remove(at));
            }
        }
    }

    /// Which of the files has the most of a file of the image.
    fn most_alike(
        &mut self,
        image: &Image<'_>,
        number: usize,
        candidates: &[PathBuf],
    ) -> Option<usize> {
        let mut best = (0, None);
        for (at, path) in candidates.iter().take(RENAMED_TRIED_MAX).enumerate() {
            self.renamed.insert(number, path.clone());
            self.open.clear();
            let found = image.found_of_file(self, number).unwrap_or_default();
            if found > best.0 {
                best = (found, Some(at));
            }
        }
        self.renamed.remove(&number);
        self.open.clear();
        best.1
    }

    /// Files of the image of which nothing is here under their names, with their sizes.
    fn missing(&self, image: &Image<'_>) -> Vec<(usize, u64)> {
        let files = image.index.files.iter().enumerate();
        let missing = files.filter_map(|(number, file)| {
            let FileKind::Regular { size, .. } = file.kind else {
                return None;
            };
            let path = self.roots.path_of(&file.path)?;
            let is_here = path.symlink_metadata().is_ok_and(|found| found.is_file());
            (size > 0 && !is_here).then_some((number, size))
        });
        missing.collect()
    }
}

/// Opens a regular file; waits for nothing else.
fn open_regular(path: &Path) -> Option<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let flags = i32::try_from(flags.bits()).ok()?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .ok()?;
    file.metadata().ok().filter(|found| found.is_file())?;
    Some(file)
}

/// The regular files below these directories, with their sizes.
fn regular_files(roots: &[&Path]) -> Vec<(PathBuf, u64)> {
    let mut files = Vec::new();
    let mut directories: Vec<PathBuf> = roots.iter().map(|root| (*root).to_owned()).collect();
    let mut looked_at = 0;
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            looked_at += 1;
            if looked_at > RENAMED_AMONG_MAX {
                return files;
            }
            // Of the entry itself: no link is followed.
            let Ok(found) = entry.metadata() else {
                continue;
            };
            if found.is_dir() {
                directories.push(entry.path());
            } else if found.is_file() {
                files.push((entry.path(), found.len()));
            }
        }
    }
    files
}

impl FilesAtHand {
    /// Which pieces of the image these are.
    pub const fn pieces(&self) -> &PiecesAtHand {
        &self.pieces
    }

    /// To be read while the image of `index` is made; and what killed restores left, which is of use until then.
    pub fn into_reader(self, index: &Index) -> (Box<dyn ReadAtHand>, LeftRemains) {
        let reader = Reader {
            files: index.files.clone(),
            stream: self.stream,
            trees: self.trees,
            of_trees: self.of_trees,
            pieces: self.pieces,
        };
        (Box::new(reader), LeftRemains(self.left))
    }
}

/// Reads what is at hand of an image.
#[derive(Debug)]
struct Reader {
    files: Vec<FileEntry>,
    stream: StreamFiles,
    trees: Vec<Tree>,
    of_trees: Vec<Vec<u64>>,
    pieces: PiecesAtHand,
}

impl ReadAtHand for Reader {
    fn pieces(&self) -> &PiecesAtHand {
        &self.pieces
    }

    fn read(&mut self, segment: usize, begin: u64, raw: &mut [u8]) -> io::Result<()> {
        for (tree, maps) in self.trees.iter_mut().zip(&self.of_trees) {
            let wanted = maps.get(segment).copied().unwrap_or_default();
            if tree.read(&self.files, &self.stream, begin, wanted, raw) != wanted {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

/// What killed restores left.
#[derive(Debug, Default)]
pub struct LeftRemains(Vec<Left>);

impl LeftRemains {
    /// Removes it, since the image is whole.
    pub fn remove(self) {
        for left in self.0 {
            left.remove();
        }
    }
}
