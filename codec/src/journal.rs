//! What a save notes of the rows that it sends, on its own machine: the **journal**. If the save is interrupted, the
//! rows that hosts have of it are signed as a **remnant**, a checkpoint that nobody can restore, and the next save uses
//! them as those of an origin: it has an id and a key of its own, and seals nothing under the key of the interrupted
//! save.
//!
//! A journal has the magic, the id of the checkpoint, and then frames, each a length and sealed bytes. Their key follows
//! from the secret of the job and the id, so that a frame that was torn or changed does not open; what comes before it
//! counts. The summary of a checkpoint may be sealed only once: so a save removes its journal before it signs its
//! manifest.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::anchors::{Anchor, anchor_count};
use crate::base::{BaseError, layers_of};
use crate::geometry::Redundancy;
use crate::hash::PieceHash;
use crate::id::{CheckpointId, Version};
use crate::index::{Index, Patch, SegmentEntry};
use crate::job::JobId;
use crate::labels::Labels;
use crate::layers::Layered;
use crate::manifest::{Draft, ImageKind, NewManifest, Summary, Tail};
use crate::pieces::PIECE_BYTES;
use crate::seal::{Cipher, DataKey, SegmentSealer};
use crate::serial;
use crate::shard_file::{BlockEntry, ENTRY_BYTES, ShardIdentity, TableBuilder};

/// Most bytes of a journal that is read: enough for an image of 64 GiB.
pub const JOURNAL_BYTES_MAX: u64 = 128 << 20;

const MAGIC: &[u8; 8] = b"CKPTJRN1";

/// Bytes before the first frame.
const HEAD_BYTES: usize = 24;

/// Most bytes of a frame.
const FRAME_BYTES_MAX: usize = 16 << 20;

const PIECE_HASH_BYTES: usize = 16;

const ANCHOR_BYTES: usize = 8;

/// What is fixed when a save begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalHead {
    /// The checkpoint that is saved.
    pub checkpoint: CheckpointId,
    /// Its version.
    pub version: Version,
    /// Its code.
    pub redundancy: Redundancy,
    /// How its rows are sealed.
    pub cipher: Cipher,
    /// The key of its rows.
    pub data_key: DataKey,
    /// The checkpoints whose rows it may use, in the order of their numbers.
    pub origins: Vec<CheckpointId>,
}

/// A segment of the image, as it was stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedSegment {
    entry: SegmentEntry,
    /// Hashes of its pieces, and its anchors, if later versions can be compared with it.
    pieces: ByteBuf,
    anchors: ByteBuf,
    /// The blocks of its row, one for each shard; empty if it has none.
    blocks: ByteBuf,
}

#[derive(Serialize, Deserialize)]
enum Frame {
    Head(JournalHead),
    Segments(Vec<NotedSegment>),
}

/// Makes the bytes of a journal, which the caller appends to a file.
#[derive(Debug)]
pub struct JournalWriter {
    sealer: SegmentSealer,
    frames: u64,
}

impl JournalWriter {
    /// Begins a journal; its first bytes come back, too.
    pub fn begin(sealer: SegmentSealer, head: &JournalHead) -> (Self, Vec<u8>) {
        let mut writer = Self { sealer, frames: 0 };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&head.checkpoint.0);
        bytes.extend(writer.frame(&Frame::Head(head.clone())));
        (writer, bytes)
    }

    /// These segments follow.
    pub fn segments(&mut self, segments: Vec<NotedSegment>) -> Vec<u8> {
        self.frame(&Frame::Segments(segments))
    }

    fn frame(&mut self, frame: &Frame) -> Vec<u8> {
        // A frame that is too long ends the journal: it does not open.
        let mut sealed = serial::encode(frame, FRAME_BYTES_MAX).unwrap_or_default();
        self.sealer.seal(self.frames, &mut sealed, 0);
        self.frames += 1;
        let len = u32::try_from(sealed.len()).unwrap_or(u32::MAX);
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.append(&mut sealed);
        bytes
    }
}

impl NotedSegment {
    /// A segment with the blocks of its row. Without `hashes` no later version is compared with it.
    pub fn new(
        entry: SegmentEntry,
        hashes: &[PieceHash],
        anchors: &[Anchor],
        blocks: &[BlockEntry],
    ) -> Self {
        let hashes: Vec<u8> = hashes.iter().flat_map(|hash| hash.0).collect();
        let anchors: Vec<u8> = anchors
            .iter()
            .flat_map(|anchor| anchor.0.to_le_bytes())
            .collect();
        let blocks: Vec<u8> = blocks.iter().flat_map(BlockEntry::encode).collect();
        Self {
            entry,
            pieces: hashes.into(),
            anchors: anchors.into(),
            blocks: blocks.into(),
        }
    }

    /// Its bytes in the image.
    pub const fn image_bytes(&self) -> u64 {
        self.entry.bytes()
    }

    /// Whether its parts have the lengths that belong together.
    fn is_possible(&self, redundancy: Redundancy) -> bool {
        let (pieces, anchors) = hash_lens(&self.entry);
        let blocks = match self.entry.row() {
            Some(_) => redundancy.total() * ENTRY_BYTES,
            None => 0,
        };
        let lens = (self.pieces.len(), self.anchors.len(), self.blocks.len());
        lens == (pieces, anchors, blocks)
    }
}

/// Bytes of the hashes of the pieces of a segment, and of its anchors.
fn hash_lens(entry: &SegmentEntry) -> (usize, usize) {
    match entry {
        SegmentEntry::Stored { .. } | SegmentEntry::Layered(_) => {
            let len = usize::try_from(entry.bytes()).unwrap_or(usize::MAX);
            let pieces = len.div_ceil(PIECE_BYTES).saturating_mul(PIECE_HASH_BYTES);
            (pieces, anchor_count(len).saturating_mul(ANCHOR_BYTES))
        }
        _ => (0, 0),
    }
}

/// A journal that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// What was fixed when the save began.
    pub head: JournalHead,
    segments: Vec<NotedSegment>,
}

impl Journal {
    /// The checkpoint that the bytes of a journal name. Nothing was checked.
    pub fn named_in(bytes: &[u8]) -> Option<CheckpointId> {
        let (id, _) = bytes.strip_prefix(MAGIC)?.split_first_chunk()?;
        Some(CheckpointId(*id))
    }

    /// Reads a journal as far as its frames open. `None` if the first one does not.
    pub fn read(bytes: &[u8], sealer: &SegmentSealer) -> Option<Self> {
        let named = Self::named_in(bytes)?;
        let mut rest = bytes.get(HEAD_BYTES..)?;
        let mut journal: Option<Self> = None;
        for number in 0.. {
            let Some(frame) = next_frame(&mut rest, sealer, number) else {
                break;
            };
            match (frame, &mut journal) {
                (Frame::Head(head), None) if head.checkpoint == named => {
                    journal = Some(Self {
                        head,
                        segments: Vec::new(),
                    });
                }
                (Frame::Segments(segments), Some(journal)) => {
                    let code = journal.head.redundancy;
                    if !segments.iter().all(|one| one.is_possible(code)) {
                        break;
                    }
                    journal.segments.extend(segments);
                }
                _ => break,
            }
        }
        journal
    }

    /// How many rows it has.
    pub fn rows(&self) -> u64 {
        let has_row = |one: &&NotedSegment| one.entry.row().is_some();
        self.segments.iter().filter(has_row).count() as u64
    }

    /// The segments before the one with row number `rows`.
    fn before(&self, rows: u64) -> impl Iterator<Item = &NotedSegment> {
        let mut row = 0;
        self.segments.iter().take_while(move |one| {
            let has_row = one.entry.row().is_some();
            let is_before = !has_row || row < rows;
            row += u64::from(has_row);
            is_before
        })
    }

    /// What a later version can be compared with of the image: the segments before the one with row number `rows`.
    pub fn content(&self, rows: u64) -> Content {
        let segments = self.before(rows).map(|one| Compared {
            entry: one.entry.clone(),
            pieces: one.pieces.to_vec(),
            anchors: one.anchors.to_vec(),
        });
        Content(segments.collect())
    }

    /// The remnant of the save that consists of its first `rows` rows: its manifest, not signed yet. It may be signed
    /// once, and only if the manifest of the save was not.
    pub fn remnant(&self, job: &JobId, labels: Labels, rows: u64, created: u64) -> Draft {
        let head = &self.head;
        let mut tables = vec![TableBuilder::default(); head.redundancy.total()];
        let mut stored_bytes = 0;
        for one in self.before(rows) {
            for (table, entry) in tables.iter_mut().zip(one.blocks.as_chunks().0) {
                table.push(BlockEntry::decode(entry));
            }
            let row = one.entry.row();
            stored_bytes += row.map_or(0, |(stored, _)| u64::from(stored.stored_len));
        }
        let outlines = tables.into_iter().map(|table| table.finish().1);
        let outlines = Vec::from_iter(outlines);
        let roots = head.redundancy.shards().zip(&outlines);
        let roots = roots.map(|(shard, outline)| {
            outline.root(&ShardIdentity {
                checkpoint: head.checkpoint,
                redundancy: head.redundancy,
                shard,
            })
        });
        let first = outlines.first();
        let new = NewManifest {
            checkpoint: head.checkpoint,
            version: head.version,
            created,
            previous: None,
            redundancy: head.redundancy,
            cipher: head.cipher,
            rows: first.map_or(0, |outline| outline.rows),
            block_bytes: first.map_or(0, |outline| outline.block_bytes),
            roots: roots.collect(),
        };
        let summary = Summary {
            job: job.clone(),
            data_key: head.data_key.clone(),
            kind: ImageKind::Stream,
            image_bytes: 0,
            stream_bytes: 0,
            stored_bytes,
            files: 0,
            index: Vec::new(),
            tail: Tail {
                labels,
                is_remnant: true,
                ..Tail::default()
            },
        };
        Draft::new(new, summary)
    }
}

fn next_frame(rest: &mut &[u8], sealer: &SegmentSealer, number: u64) -> Option<Frame> {
    let (len, after) = rest.split_first_chunk()?;
    let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
    let (sealed, after) = after.split_at_checked(len)?;
    let mut sealed = sealed.to_vec();
    let opened = sealer.open(number, &mut sealed).ok()?;
    *rest = after;
    serial::decode(opened, FRAME_BYTES_MAX).ok()
}

/// What a new version is compared with: the segments of an image, or of its beginning, with hashes of their pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content(Vec<Compared>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Compared {
    entry: SegmentEntry,
    pieces: Vec<u8>,
    anchors: Vec<u8>,
}

impl Content {
    /// That of a version with this index. `hashes` has the hashes of the pieces of its segments, then their anchors.
    ///
    /// # Errors
    /// When `hashes` has more or fewer bytes than the index asks for.
    pub fn of_version(index: Index, hashes: &[u8]) -> Result<Self, BaseError> {
        let lens = index.segments.iter().map(hash_lens);
        let (all_pieces, all_anchors) = lens.fold((0, 0), |(pieces, anchors), lens| {
            (pieces + lens.0, anchors + lens.1)
        });
        let wrong = BaseError {
            expected: all_pieces + all_anchors,
            actual: hashes.len(),
        };
        let (mut pieces, mut anchors) = hashes.split_at_checked(all_pieces).ok_or(wrong)?;
        if anchors.len() != all_anchors {
            return Err(wrong);
        }
        let mut segments = Vec::with_capacity(index.segments.len());
        for entry in index.segments {
            let (pieces_len, anchors_len) = hash_lens(&entry);
            let (of_pieces, other_pieces) = pieces.split_at_checked(pieces_len).ok_or(wrong)?;
            let (of_anchors, other_anchors) = anchors.split_at_checked(anchors_len).ok_or(wrong)?;
            segments.push(Compared {
                entry,
                pieces: of_pieces.to_vec(),
                anchors: of_anchors.to_vec(),
            });
            pieces = other_pieces;
            anchors = other_anchors;
        }
        Ok(Self(segments))
    }

    /// Bytes of the image.
    pub fn stream_bytes(&self) -> u64 {
        self.0.iter().map(|one| one.entry.bytes()).sum()
    }

    /// This beginning of an image, which was compared with the image of `version`. What that image has after its part
    /// that the beginning uses follows.
    #[must_use]
    pub fn followed_by(mut self, version: Self) -> Self {
        let version = version.into_origins();
        let first = self.goes_on_in(&version);
        self.0.extend(version.0.into_iter().skip(first));
        self
    }

    /// The number of the segment of `version` from which on it uses rows after those that this one uses: as the rows of
    /// each origin have to ascend. If this one uses none, that of the segment at the same place.
    fn goes_on_in(&self, version: &Self) -> usize {
        let mut last = BTreeMap::new();
        for layer in self.0.iter().flat_map(|one| one.entry.layers()) {
            last.insert(layer.origin, layer.row);
        }
        if last.is_empty() {
            let end = self.stream_bytes();
            let mut at = 0;
            let ends = version.0.iter().map(|one| {
                at += one.entry.bytes();
                at
            });
            return ends.take_while(|one| *one <= end).count();
        }
        let is_after = |one: &Compared| {
            let mut layers = one.entry.layers().iter();
            layers.all(|layer| last.get(&layer.origin).is_none_or(|last| layer.row > *last))
        };
        let used = version.0.iter().rposition(|one| !is_after(one));
        used.map_or(0, |used| used + 1)
    }

    /// The same segments, as a version sees them for which this one is origin 0, and the origins of this one follow.
    fn into_origins(self) -> Self {
        let mut row = 0;
        let segments = self.0.into_iter().map(|one| {
            let own = row;
            row += u64::from(one.entry.row().is_some());
            let entry = match one.entry {
                SegmentEntry::Stored { hash, .. } | SegmentEntry::Layered(Layered { hash, .. }) => {
                    let len = u32::try_from(one.entry.bytes()).unwrap_or(u32::MAX);
                    SegmentEntry::Layered(Layered {
                        len,
                        layers: layers_of(&one.entry, own, len as usize),
                        row: None,
                        hash,
                    })
                }
                SegmentEntry::Shared { offset, patch } => SegmentEntry::Shared {
                    offset,
                    patch: Patch { row: None, ..patch },
                },
                other => other,
            };
            Compared { entry, ..one }
        });
        Self(segments.collect())
    }

    /// The index and the bytes of hashes of which [`crate::base::Base::new`] makes what it is to a version that is compared with it.
    pub fn into_parts(self) -> (Index, Vec<u8>) {
        let mut hashes = Vec::new();
        for one in &self.0 {
            hashes.extend_from_slice(&one.pieces);
        }
        for one in &self.0 {
            hashes.extend_from_slice(&one.anchors);
        }
        let index = Index {
            files: Vec::new(),
            segments: self.0.into_iter().map(|one| one.entry).collect(),
        };
        (index, hashes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::Base;
    use crate::compress::Method;
    use crate::hash::SegmentHash;
    use crate::keys::Keys;
    use crate::layers::Layer;
    use crate::manifest::Manifest;
    use crate::pieces::PieceHasher;
    use crate::samples::{key, noise};
    use crate::seal::OwnerSecret;
    use crate::segment::{Cut, RepeatedSource, Segmenter};
    use crate::stored::StoredSegment;

    fn made(content: Content) -> Base {
        let (index, hashes) = content.into_parts();
        Base::new(&index, &hashes, &key()).unwrap()
    }

    /// Bytes of a segment: four pieces and a part of one.
    const SEGMENT: usize = 4 * PIECE_BYTES + 100;

    fn keys() -> Keys {
        OwnerSecret::new([3; 32]).into()
    }

    fn job() -> JobId {
        "42".parse().unwrap()
    }

    fn head(origins: &[u8]) -> JournalHead {
        JournalHead {
            checkpoint: CheckpointId([7; 16]),
            version: Version::FIRST,
            redundancy: Redundancy::new(2, 1).unwrap(),
            cipher: Cipher::Aes256Gcm,
            data_key: DataKey::new([8; 32]),
            origins: origins.iter().map(|id| CheckpointId([*id; 16])).collect(),
        }
    }

    fn sealer() -> SegmentSealer {
        let id = head(&[]).checkpoint;
        keys().journal_sealer(&job(), id).unwrap()
    }

    fn stored(raw: &[u8]) -> StoredSegment {
        let len = u32::try_from(raw.len()).unwrap();
        StoredSegment {
            raw_len: len,
            stored_len: len,
            method: Method::Raw,
        }
    }

    /// What a save made of an image: its segments, and the bytes of its rows.
    struct Saved {
        segments: Vec<NotedSegment>,
        rows: Vec<Vec<u8>>,
    }

    /// Saves an image, compared with what `base` has.
    fn save(image: &[u8], base: Option<Base>) -> Saved {
        let hasher = PieceHasher::new(&key());
        let mut segmenter = Segmenter::with_base(base.map(std::sync::Arc::new));
        let mut saved = Saved {
            segments: Vec::new(),
            rows: Vec::new(),
        };
        let mut rest = image;
        while !rest.is_empty() {
            let raw = &rest[..rest.len().min(SEGMENT)];
            let at = segmenter.cut_at(raw, &hasher.hash(raw));
            let raw = &raw[..at.unwrap_or(raw.len())];
            rest = &rest[raw.len()..];
            let (cut, _) = segmenter.cut(raw.to_vec());
            saved.note(cut.unwrap(), &hasher.hash(raw), raw);
        }
        saved
    }

    impl Saved {
        fn note(&mut self, cut: Cut, hashes: &[PieceHash], raw: &[u8]) {
            let hash = SegmentHash([0; 32]);
            let anchors: Vec<Anchor> = crate::anchors::anchors(raw).collect();
            let mut row = |raw: &[u8]| {
                self.rows.push(raw.to_vec());
                stored(raw)
            };
            let (entry, hashes, anchors) = match cut {
                Cut::Zero { bytes } => (SegmentEntry::Zero { bytes }, &[][..], &[][..]),
                Cut::Stored { raw, .. } => {
                    let stored = row(&raw);
                    (SegmentEntry::Stored { stored, hash }, hashes, &anchors[..])
                }
                Cut::Made(made) => {
                    let RepeatedSource::Rows(layers) = made.source else {
                        panic!("no earlier segments are looked for");
                    };
                    let row = made.patch.map(|(_, raw)| row(&raw));
                    let len = made.len;
                    let layered = Layered {
                        len,
                        layers,
                        row,
                        hash,
                    };
                    assert!(layered.is_possible());
                    (SegmentEntry::Layered(layered), hashes, &anchors[..])
                }
            };
            let blocks = match entry.row() {
                Some(_) => vec![BlockEntry::of(&[self.rows.len() as u8; 9]); 3],
                None => Vec::new(),
            };
            let noted = NotedSegment::new(entry, hashes, anchors, &blocks);
            assert!(noted.is_possible(head(&[]).redundancy));
            self.segments.push(noted);
        }

        /// The image, of the rows of this save and of its `origins`. Checks that the rows of each ascend.
        fn image(&self, origins: &[&[Vec<u8>]]) -> Vec<u8> {
            let mut image = Vec::new();
            let mut own = self.rows.iter();
            let mut last = vec![0; origins.len()];
            for one in &self.segments {
                let new = one.entry.row().map_or(&[][..], |_| own.next().unwrap());
                let mut raw = vec![0; one.entry.bytes() as usize];
                match &one.entry {
                    SegmentEntry::Stored { .. } => raw.copy_from_slice(new),
                    SegmentEntry::Layered(layered) => {
                        let mut row = |layer: &Layer| {
                            let at = usize::from(layer.origin);
                            assert!(layer.row >= last[at], "rows of origin {at} do not ascend");
                            last[at] = layer.row;
                            origins[at].get(layer.row as usize).map(Vec::as_slice)
                        };
                        layered.compose(&mut raw, 0, &mut row, new).unwrap();
                    }
                    _ => {}
                }
                image.extend(raw);
            }
            image
        }

        fn journal(&self, origins: &[u8]) -> Journal {
            let (mut writer, mut bytes) = JournalWriter::begin(sealer(), &head(origins));
            for two in self.segments.chunks(2) {
                bytes.extend(writer.segments(two.to_vec()));
            }
            Journal::read(&bytes, &sealer()).unwrap()
        }
    }

    fn image(segments: u8) -> Vec<u8> {
        let mut image = Vec::new();
        for number in 0..segments {
            image.extend(noise(number, SEGMENT));
        }
        image
    }

    #[test]
    fn a_journal_counts_as_far_as_it_is_whole() {
        let saved = save(&image(6), None);
        let (mut writer, mut bytes) = JournalWriter::begin(sealer(), &head(&[]));
        let mut ends = vec![bytes.len()];
        for two in saved.segments.chunks(2) {
            bytes.extend(writer.segments(two.to_vec()));
            ends.push(bytes.len());
        }
        assert_eq!(Journal::named_in(&bytes), Some(head(&[]).checkpoint));
        for len in (0..bytes.len()).step_by(7).chain(ends.clone()) {
            let read = Journal::read(&bytes[..len], &sealer());
            let whole = ends.iter().filter(|end| **end <= len).count();
            let rows = read.map(|journal| journal.rows());
            let expected = whole.checked_sub(1).map(|frames| 2 * frames as u64);
            assert_eq!(rows, expected, "{len}");
        }
        for at in (0..bytes.len()).step_by(11) {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let rows = Journal::read(&changed, &sealer()).map_or(0, |journal| journal.rows());
            let before = ends.iter().filter(|end| **end <= at).count();
            assert_eq!(rows, 2 * before.saturating_sub(1) as u64, "{at}");
        }
        let other = OwnerSecret::new([4; 32]).into();
        let other: &Keys = &other;
        let other = other.journal_sealer(&job(), head(&[]).checkpoint).unwrap();
        assert_eq!(Journal::read(&bytes, &other), None);
    }

    #[test]
    fn a_remnant_has_the_roots_of_its_rows_and_nobody_takes_it_for_a_version() {
        let saved = save(&image(6), None);
        let journal = saved.journal(&[]);
        let draft = journal.remnant(&job(), Labels::default(), 4, 99);
        let manifest = draft.sign(&keys(), Vec::new()).unwrap();
        let public = manifest.public();
        assert_eq!(
            (public.rows, public.block_bytes, public.created),
            (4, 36, 99)
        );
        let mut table = TableBuilder::default();
        for row in 1..5 {
            table.push(BlockEntry::of(&[row; 9]));
        }
        let identity = ShardIdentity {
            checkpoint: public.checkpoint,
            redundancy: public.redundancy,
            shard: public.redundancy.shard(1).unwrap(),
        };
        assert_eq!(public.roots[1], table.finish().1.root(&identity));
        let summary = manifest.open(&keys()).unwrap();
        assert!(summary.tail.is_remnant && summary.index.is_empty());
        // One without an index that does not say so is none, and one that says so has no index.
        let mut other = summary.clone();
        other.tail.is_remnant = false;
        let new = || NewManifest {
            checkpoint: public.checkpoint,
            version: public.version,
            created: 1,
            previous: None,
            redundancy: public.redundancy,
            cipher: public.cipher,
            rows: 4,
            block_bytes: 36,
            roots: public.roots.clone(),
        };
        let sign = |summary: &Summary| Manifest::sign(&keys(), new(), summary).unwrap();
        assert!(sign(&other).open(&keys()).is_err());
        other.tail.is_remnant = true;
        other.index = vec![stored(&[1])];
        assert!(sign(&other).open(&keys()).is_err());
    }

    /// A change of an image: from which byte on (in per mille), how many bytes, and whether they are put in, taken out
    /// or replaced.
    fn changed(mut image: Vec<u8>, changes: &[(usize, usize, u8)], seed: u8) -> Vec<u8> {
        for (number, (at, len, kind)) in changes.iter().enumerate() {
            let at = image.len() * at / 1000;
            let end = (at + len).min(image.len());
            let new = noise(seed.wrapping_add(number as u8), *len);
            match kind {
                0 => drop(image.splice(at..at, new)),
                1 => drop(image.drain(at..end)),
                _ => drop(image.splice(at..end, new)),
            }
        }
        image
    }

    fn changes() -> impl Strategy<Value = Vec<(usize, usize, u8)>> {
        let change = (0..1000_usize, 1..3 * SEGMENT, 0..3_u8);
        prop::collection::vec(change, 0..4)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// A version, a save that is interrupted, another one, and one that uses rows of all three.
        #[test]
        fn whatever_changed_in_between_the_image_is_right(
            first in changes(),
            second in changes(),
            third in changes(),
            has_version: bool,
            (p, q) in (0..30_u64, 0..30_u64),
        ) {
            let version = image(12);
            let saved = save(&version, None);
            let whole = match has_version {
                true => saved.journal(&[]).content(u64::MAX),
                false => Content::default(),
            };
            let before: Vec<&[Vec<u8>]> = match has_version {
                true => vec![&saved.rows],
                false => Vec::new(),
            };
            let base = |content: &Content| {
                (content.stream_bytes() > 0).then(|| made(content.clone()))
            };
            // The first one ends after `p` rows at hosts, the second after `q`.
            let one_image = changed(version, &first, 100);
            let one = save(&one_image, base(&whole));
            prop_assert_eq!(&one.image(&before), &one_image);
            let one_left = one.journal(&[1]).content(p).followed_by(whole);
            let one_rows = &one.rows[..one.rows.len().min(p as usize)];
            let two_image = changed(one_image, &second, 120);
            let two = save(&two_image, base(&one_left));
            let origins = [&[one_rows][..], &before].concat();
            prop_assert_eq!(&two.image(&origins), &two_image);
            let two_left = two.journal(&[2, 1]).content(q).followed_by(one_left);
            let two_rows = &two.rows[..two.rows.len().min(q as usize)];
            let last_image = changed(two_image, &third, 140);
            let last = save(&last_image, base(&two_left));
            let origins = [&[two_rows][..], &origins].concat();
            prop_assert_eq!(&last.image(&origins), &last_image);
        }

        /// The same image again: no row of the beginning that is there is stored again.
        #[test]
        fn what_was_sent_of_the_same_image_is_not_stored_again(p in 0..12_u64, first in changes()) {
            let version = image(12);
            let saved = save(&version, None);
            let whole = saved.journal(&[]).content(u64::MAX);
            let new = changed(version, &first, 100);
            let one = save(&new, Some(made(whole.clone())));
            let left = one.journal(&[1]).content(p).followed_by(whole);
            let again = save(&new, Some(made(left)));
            let rows = one.rows.len().saturating_sub(p as usize);
            // Where the beginning goes over to the version, a segment may not be found.
            prop_assert!(again.rows.len() <= rows + 2, "{} {rows}", again.rows.len());
        }
    }
}
