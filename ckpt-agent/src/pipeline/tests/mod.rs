//! Both pipelines connected directly, without a network between them.

mod at_hand;
mod chains;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use codec::anchors::ANCHOR_STEP;
use codec::base::Base;
use codec::compress::Level;
use codec::decode::{Composer, RowDecoder};
use codec::encode::{CheckpointPlan, Link};
use codec::geometry::SEGMENT_BYTES;
use codec::index::{Extent, FileEntry, FileKind, Index, SegmentEntry, StoredSegment};
use codec::keys::Keys;
use codec::labels::Labels;
use codec::layers::Origin;
use codec::manifest::{ImageKind, Manifest, Summary};
use codec::pieces::{BaseRef, PIECE_BYTES, ranges};
use codec::seal::{Cipher, DataKey, OwnerSecret};
use codec::segment::{Again, Cleaning};
use codec::{CheckpointId, JobId, Redundancy, Version};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::budget::Budget;
use super::decode::{
    self, DecodePool, Decoded, ImageRows, ReadAtHand, RowBlocks, RowKeys, RowSource, StreamSink,
};
use super::encode::{self, EncodeFailure, EncodeSettings, Encoded, ReadyRow, SegmentSource};
use super::hash_file::HashFile;
use crate::core::effort::Effort;
use crate::core::pick::{PiecesAtHand, RowFormat, Wanted};
use crate::core::read::{Layout, Materials, Shared};

struct Bytes {
    image: Vec<u8>,
    at: usize,
    fail_at: Option<usize>,
}

impl SegmentSource for Bytes {
    type Error = &'static str;
    type Warning = Infallible;

    fn next_segment(
        &mut self,
        mut buffer: Vec<u8>,
        kept: usize,
    ) -> Result<Option<Vec<u8>>, &'static str> {
        if self.fail_at.is_some_and(|at| self.at >= at) {
            return Err("broken");
        }
        let end = self.image.len().min(self.at + SEGMENT_BYTES - kept);
        buffer.truncate(kept);
        buffer.extend_from_slice(&self.image[self.at..end]);
        self.at = end;
        Ok((!buffer.is_empty()).then_some(buffer))
    }

    fn finish(self) -> Result<(Vec<FileEntry>, ImageKind, Vec<Infallible>), &'static str> {
        let size = self.image.len() as u64;
        let extents = match size {
            0 => vec![],
            len => vec![Extent { offset: 0, len }],
        };
        let file = FileEntry {
            path: b"image".to_vec(),
            mode: 0o600,
            mtime_s: 1,
            mtime_ns: 2,
            kind: FileKind::Regular { size, extents },
            attributes: None,
        };
        Ok((vec![file], ImageKind::File, vec![]))
    }
}

impl Bytes {
    fn of(image: &[u8]) -> Self {
        Self {
            image: image.to_vec(),
            at: 0,
            fail_at: None,
        }
    }
}

struct Collect(Vec<u8>);

impl StreamSink for Collect {
    type Error = Infallible;
    type Written = Vec<u8>;

    fn write(&mut self, bytes: &[u8]) -> Result<(), Infallible> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn zeros(&mut self, count: u64) -> Result<(), Infallible> {
        self.0.resize(self.0.len() + count as usize, 0);
        Ok(())
    }

    fn read_back(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Infallible> {
        let from = offset as usize;
        buffer.copy_from_slice(&self.0[from..from + buffer.len()]);
        Ok(())
    }

    fn finish(self) -> Result<Vec<u8>, Infallible> {
        Ok(self.0)
    }
}

fn keys() -> Keys {
    OwnerSecret::new([5; 32]).into()
}

fn job() -> JobId {
    "42".parse().unwrap()
}

fn settings(redundancy: Redundancy) -> EncodeSettings {
    EncodeSettings {
        base: None,
        cleaning: Cleaning::default(),
        plan: CheckpointPlan {
            checkpoint: CheckpointId([3; 16]),
            job: job(),
            job_tag: keys().job_tag(&job()).unwrap(),
            version: Version::FIRST,
            created: 5,
            previous: None,
            link: None,
            labels: Labels::default(),
            redundancy,
            cipher: Cipher::Aes256Gcm,
            data_key: DataKey::new([4; 32]),
        },
        effort: Effort::Fixed(Level::DEFAULT),
        remembered: 0,
        journal: None,
        remnants: 0,
        hashes_dir: None,
        cpus: 3,
    }
}

fn image(len: usize, rng: &mut SmallRng) -> Vec<u8> {
    let mut image = vec![0; len];
    for part in image.chunks_mut(SEGMENT_BYTES / 2) {
        match rng.random_range(0..3) {
            0 => {}
            1 => part.fill(rng.random()),
            _ => rng.fill(part),
        }
    }
    image
}

/// Encodes within a budget of a few rows, keeping only copies of the rows.
fn encode_all(
    source: Bytes,
    settings: &EncodeSettings,
) -> Result<(Vec<ReadyRow>, Manifest), EncodeFailure<&'static str>> {
    let budget = Budget::new(8 << 20);
    let (report, reports) = mpsc::channel();
    encode::start(source, settings.clone(), budget, move |encoded| {
        report.send(encoded).unwrap();
    });
    let mut rows = Vec::new();
    loop {
        match reports.recv_timeout(Duration::from_secs(60)).unwrap() {
            Encoded::Row(mut row) => {
                assert_eq!(row.row, rows.len() as u64);
                row.blocks = bytes::Bytes::copy_from_slice(&row.blocks);
                rows.push(row);
            }
            Encoded::Zero(_) | Encoded::Same(_) => {}
            Encoded::End(image) => {
                let draft = image.draft;
                let signed = draft.sign(&keys(), Vec::new());
                return Ok((rows, signed.unwrap()));
            }
            Encoded::Failed(failure) => return Err(failure),
        }
    }
}

fn index_of(rows: &[ReadyRow], manifest: &Manifest) -> (Summary, Index) {
    let summary = manifest.open(&keys()).unwrap();
    let first = rows.len() - summary.index.len();
    let bytes = raw_of(&rows[first..], manifest, &summary, &summary.index);
    (summary, Index::decode(&bytes).unwrap())
}

/// The decoded content of the first of these rows.
fn raw_of(
    rows: &[ReadyRow],
    manifest: &Manifest,
    summary: &Summary,
    stored: &[StoredSegment],
) -> Vec<u8> {
    let public = manifest.public();
    let mut decoder = RowDecoder::new(public.redundancy, public.sealer(&summary.data_key));
    let mut bytes = Vec::new();
    let mut raw = Vec::new();
    for (row, stored) in rows.iter().zip(stored) {
        let blocks: Vec<_> = public
            .redundancy
            .shards()
            .rev()
            .take(public.redundancy.data())
            .map(|shard| (shard, row.block(shard)))
            .collect();
        let blocks: Vec<_> = blocks.iter().map(|(s, b)| (*s, &**b)).collect();
        decoder
            .decode(row.row, stored, None, &blocks, &mut raw)
            .unwrap();
        bytes.extend_from_slice(&raw);
    }
    bytes
}

#[test]
fn repeated_bytes_of_an_image_are_stored_once_and_come_back() {
    let mut rng = SmallRng::seed_from_u64(8);
    let settings = EncodeSettings {
        remembered: 100,
        ..settings(Redundancy::DEFAULT)
    };
    let part = image(5 * SEGMENT_BYTES, &mut rng);
    let mut image = [part.clone(), part].concat();
    image[7 * SEGMENT_BYTES + 3] ^= 1;
    let rows = round_trip(&image, &settings, &mut rng);
    assert!(rows < 5 + 1 + 2 + 1, "{rows} rows");
}

#[test]
fn images_of_every_size_come_back() {
    let mut rng = SmallRng::seed_from_u64(7);
    let redundancy = Redundancy::DEFAULT;
    for len in [
        0,
        1,
        SEGMENT_BYTES - 1,
        SEGMENT_BYTES,
        SEGMENT_BYTES + 1,
        9 * SEGMENT_BYTES + 7,
    ] {
        let image = image(len, &mut rng);
        round_trip(&image, &settings(redundancy), &mut rng);
    }
}

type Reports = mpsc::Receiver<Decoded<Infallible, Vec<u8>>>;

fn decoding(manifest: &Manifest, summary: &Summary, index: Index) -> (DecodePool, Reports) {
    decoding_from(manifest, summary, index, &[], None)
}

/// Decodes a version that uses rows of these origins, and what is at hand.
fn decoding_from(
    manifest: &Manifest,
    summary: &Summary,
    index: Index,
    origins: &[&StoredVersion],
    at_hand: Option<Box<dyn ReadAtHand>>,
) -> (DecodePool, Reports) {
    let (report, reports) = mpsc::channel();
    let public = manifest.public();
    let sealer = public.sealer(&summary.data_key);
    let pieces_key = summary.pieces_key().unwrap_or(&summary.data_key);
    let composer = Composer::new(sealer, pieces_key);
    let pieces = at_hand.as_ref().map(|files| files.pieces().clone());
    let rows = Wanted::All.rows(&index, origins.len(), &pieces.unwrap_or_default());
    let mut rows = rows.into_iter();
    let own = RowSource {
        public: public.clone(),
        keys: RowKeys::of(summary),
        rows: rows.next().unwrap(),
    };
    let others = origins.iter().zip(rows).map(|(origin, rows)| RowSource {
        public: origin.manifest.public().clone(),
        keys: RowKeys {
            pieces: None,
            ..RowKeys::of(&origin.summary)
        },
        rows,
    });
    let image = ImageRows {
        sources: [own].into_iter().chain(others).collect(),
        index,
        composer,
        wanted: Wanted::All,
        at_hand,
    };
    let sink = Collect(Vec::new());
    let report = move |decoded| report.send(decoded).unwrap();
    let pool = decode::start(image, sink, 2, report);
    (pool, reports)
}

/// A stored version, in memory.
struct StoredVersion {
    settings: EncodeSettings,
    rows: Vec<ReadyRow>,
    manifest: Manifest,
    summary: Summary,
    index: Index,
}

impl StoredVersion {
    fn of(image: &[u8]) -> Self {
        Self::with(image, settings(Redundancy::DEFAULT))
    }

    fn with(image: &[u8], settings: EncodeSettings) -> Self {
        let (rows, manifest) = encode_all(Bytes::of(image), &settings).unwrap();
        let (summary, index) = index_of(&rows, &manifest);
        Self {
            settings,
            rows,
            manifest,
            summary,
            index,
        }
    }

    fn id(&self) -> CheckpointId {
        self.manifest.public().checkpoint
    }

    /// What a next version compares its image with.
    fn base(&self) -> Base {
        let first = self.rows.len() - self.summary.other_rows() as usize;
        let rows = &self.rows[first..];
        let pieces = &self.summary.tail.pieces;
        let hashes = raw_of(rows, &self.manifest, &self.summary, pieces);
        let key = &self.summary.tail.chain.as_ref().unwrap().pieces_key;
        Base::with_hashes_elsewhere(&self.index, &hashes, key, |hashes| {
            let mut file = HashFile::in_dir(self.settings.hashes_dir.as_ref()?).unwrap();
            file.append(hashes).unwrap();
            Some(Box::new(file))
        })
        .unwrap()
    }

    /// The settings for encoding a version that builds on this one.
    fn next(&self) -> EncodeSettings {
        let number = self.settings.plan.version.number() + 1;
        let chain = self.summary.tail.chain.as_ref().unwrap();
        let own = Origin {
            reference: BaseRef {
                checkpoint: self.id(),
                manifest: self.manifest.hash(),
                created: Some(5),
            },
            data_key: self.summary.data_key.clone(),
            is_version: true,
        };
        let mut settings = self.settings.clone();
        settings.base = Some(Arc::new(self.base()));
        settings.cleaning = Cleaning::default();
        settings.plan.checkpoint = CheckpointId([number as u8; 16]);
        settings.plan.version = Version::new(number).unwrap();
        settings.plan.data_key = DataKey::new([number as u8; 32]);
        settings.plan.link = Some(Link {
            pieces_key: chain.pieces_key.clone(),
            origins: [own].into_iter().chain(chain.origins.clone()).collect(),
        });
        settings
    }

    /// The origins of this version, of `all`.
    fn origins<'a>(&self, all: &'a [&'a Self]) -> Vec<&'a Self> {
        let chain = self.summary.tail.chain.iter();
        let origins = chain.flat_map(|chain| &chain.origins);
        let found = origins.map(|origin| {
            let mut same = all
                .iter()
                .filter(|one| one.manifest.hash() == origin.reference.manifest);
            *same.next().unwrap()
        });
        found.collect()
    }

    /// Restores this version, of which `all` may be origins, with few rows of each at a time.
    fn restored(&self, all: &[&Self]) -> Vec<u8> {
        let (restored, _) = self.restored_with(all, None);
        restored.unwrap()
    }

    /// Restores this version with what is at hand; `None` if that is not what it was. Also returns how many rows were
    /// needed.
    fn restored_with(
        &self,
        all: &[&Self],
        at_hand: Option<Box<dyn ReadAtHand>>,
    ) -> (Option<Vec<u8>>, usize) {
        let origins = self.origins(all);
        let sources: Vec<&Self> = [self].into_iter().chain(origins.clone()).collect();
        let pieces = at_hand.as_ref().map(|files| files.pieces().clone());
        let rows = Wanted::All.rows(&self.index, origins.len(), &pieces.unwrap_or_default());
        let needed = rows.iter().map(BTreeMap::len).sum();
        let index = self.index.clone();
        let (pool, reports) =
            decoding_from(&self.manifest, &self.summary, index, &origins, at_hand);
        let mut rows: Vec<_> = rows.into_iter().map(BTreeMap::into_keys).collect();
        let mut push = |source: usize| {
            if let Some(row) = rows[source].next() {
                pool.push(source, whole_row(&sources[source].rows[row as usize]));
            }
        };
        for source in 0..sources.len() {
            push(source);
        }
        loop {
            match reports.recv_timeout(Duration::from_secs(60)).unwrap() {
                Decoded::Written(_) => {}
                // As a restore does with memory for one row of each.
                Decoded::Used((source, _)) => push(source),
                Decoded::Finished(restored) => return (Some(restored), needed),
                Decoded::ChangedHere => return (None, needed),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Saves and restores a next version; returns how many bytes were stored for it.
    fn round_trip(&self, image: &[u8]) -> u64 {
        let next = Self::with(image, self.next());
        assert!(next.restored(&[self]) == image, "{} bytes", image.len());
        next.summary.stored_bytes
    }
}

fn whole_row(row: &ReadyRow) -> RowBlocks {
    let shards = Redundancy::DEFAULT.shards().rev().take(3);
    RowBlocks {
        row: row.row,
        blocks: shards.map(|shard| (shard, row.block(shard))).collect(),
    }
}

/// Reads parts of a version, as a program does that has the version open.
struct Parts<'a> {
    layout: Layout,
    composer: Composer,
    /// The version itself, then its origins.
    sources: Vec<&'a StoredVersion>,
    made: BTreeMap<usize, Shared>,
}

impl<'a> Parts<'a> {
    fn of(version: &'a StoredVersion, all: &'a [&'a StoredVersion]) -> Self {
        let summary = &version.summary;
        let sealer = version.manifest.public().sealer(&summary.data_key);
        let pieces_key = summary.pieces_key().unwrap();
        let own = [version].into_iter();
        Self {
            layout: Layout::new(version.index.clone()),
            composer: Composer::new(sealer, pieces_key),
            sources: own.chain(version.origins(all)).collect(),
            made: BTreeMap::new(),
        }
    }

    /// Reads a part of the stream; returns its bytes, and how many rows were decoded for it.
    fn read(&mut self, part: Range<u64>) -> (Vec<u8>, usize) {
        let segments = self.layout.overlapping(&part);
        let needs = self
            .layout
            .needs(segments, |number| self.made.contains_key(&number));
        let rows = needs.rows.iter().map(|((source, row), format)| {
            let version = self.sources[*source];
            let ready = &version.rows[*row as usize];
            let raw = decoded(ready, &version.manifest, &version.summary, format);
            ((*source, *row), raw)
        });
        let mut materials = Materials {
            composer: &self.composer,
            rows: rows.collect(),
            made: std::mem::take(&mut self.made),
        };
        self.layout.make(&needs, &mut materials).unwrap();
        self.made = materials.made;
        let mut read = vec![1; (part.end - part.start) as usize];
        self.layout.copy(&part, &mut read, &self.made).unwrap();
        (read, needs.rows.len())
    }

    /// Reads parts of all lengths at random offsets, some of them twice, and compares them with `image`.
    fn compare(&mut self, image: &[u8], rng: &mut SmallRng) {
        let has_shared = |index: Range<usize>| {
            let mut segments = index.clone();
            segments.any(|number| self.layout.is_shared(number))
        };
        let alone = |part: &Range<u64>| {
            let segments = self.layout.overlapping(part);
            (segments.len(), has_shared(segments))
        };
        let size = image.len() as u64;
        let parts: Vec<_> = (0..40)
            .map(|_| {
                let from = rng.random_range(0..=size);
                let len = 1_u64 << rng.random_range(0..23);
                let part = from..(from + len).min(size);
                let (segments, is_shared) = alone(&part);
                (part, segments, is_shared)
            })
            .collect();
        for (part, segments, is_shared) in parts {
            if rng.random_range(0..4) == 0 {
                self.made.clear();
            }
            let (read, rows) = self.read(part.clone());
            let expected = &image[part.start as usize..part.end as usize];
            assert!(read == expected, "{part:?}");
            let most = segments * self.sources.len();
            assert!(is_shared || rows <= most, "{rows}, {segments}");
            assert!(self.sources.len() > 1 || is_shared || rows <= segments);
        }
    }
}

fn decoded(
    ready: &ReadyRow,
    manifest: &Manifest,
    summary: &Summary,
    (stored, hash): &RowFormat,
) -> Vec<u8> {
    let mut decoder = RowKeys::of(summary).decoder(manifest.public());
    let blocks = whole_row(ready).blocks;
    let blocks: Vec<_> = blocks.iter().map(|(s, b)| (*s, &**b)).collect();
    let mut raw = Vec::new();
    decoder
        .decode(ready.row, stored, hash.as_ref(), &blocks, &mut raw)
        .unwrap();
    raw
}

#[test]
fn parts_of_images_and_of_versions_with_a_base_are_what_they_are() {
    let mut rng = SmallRng::seed_from_u64(19);
    let first = image(7 * SEGMENT_BYTES + 77, &mut rng);
    let first = [&first[..], &first[SEGMENT_BYTES / 3..], &first[7..]].concat();
    let base = StoredVersion::of(&first);
    Parts::of(&base, &[]).compare(&first, &mut rng);
    for edits in [0, 1, 3, 9, 27] {
        let mut next = first.clone();
        for _ in 0..edits {
            edit(&mut next, &mut rng);
        }
        let mut settings = base.next();
        // In every second case, segments may be made of earlier ones of the same image.
        settings.remembered = if edits % 2 == 1 { 100 } else { 0 };
        let version = StoredVersion::with(&next, settings);
        Parts::of(&version, &[&base]).compare(&next, &mut rng);
    }
}

#[test]
fn hashes_in_files_change_nothing_of_a_version() {
    let mut rng = SmallRng::seed_from_u64(23);
    let first = image(30 * SEGMENT_BYTES, &mut rng);
    let mut next = first.clone();
    for _ in 0..9 {
        edit(&mut next, &mut rng);
    }
    let mut versions = [None, Some(std::env::temp_dir())].map(|hashes_dir| {
        let settings = EncodeSettings {
            hashes_dir,
            ..settings(Redundancy::DEFAULT)
        };
        let base = StoredVersion::with(&first, settings);
        let next = StoredVersion::with(&next, base.next());
        let memory = base.base().memory_bytes();
        (memory, [base, next])
    });
    let blocks = |one: &StoredVersion| one.rows.iter().map(|row| row.blocks.clone()).collect();
    let [(memory, in_memory), (rest, in_files)] = &mut versions;
    for (one, other) in in_memory.iter().zip(in_files) {
        let of_one: Vec<_> = blocks(one);
        let of_other: Vec<_> = blocks(other);
        assert!(of_one == of_other && one.rows.len() == other.rows.len());
    }
    let pieces = (*memory - *rest) / 16;
    assert!(pieces > 1_000, "only {pieces} hashes are in the file");
    assert!(*rest <= pieces * Base::PIECE_MEMORY_ELSEWHERE, "{rest}");
}

/// Inserts, removes or replaces some bytes; returns how many were edited.
fn edit(image: &mut Vec<u8>, rng: &mut SmallRng) -> usize {
    let at = rng.random_range(0..=image.len());
    let len = 1 << rng.random_range(0..20);
    let mut new = vec![0; len];
    rng.fill(&mut *new);
    let end = image.len().min(at + len);
    match rng.random_range(0..3) {
        0 => drop(image.splice(at..at, new)),
        1 => drop(image.drain(at..end)),
        _ => drop(image.splice(at..end, new)),
    }
    len
}

#[test]
fn a_next_version_stores_little_more_than_what_was_edited() {
    let mut rng = SmallRng::seed_from_u64(11);
    let mut first = vec![0; 24 * SEGMENT_BYTES + 4321];
    rng.fill(&mut *first);
    let base = StoredVersion::of(&first);
    assert_eq!(base.round_trip(&first), 0);
    for edits in [1, 1, 1, 2, 5, 12] {
        let mut next = first.clone();
        let edited: usize = (0..edits).map(|_| edit(&mut next, &mut rng)).sum();
        let stored = base.round_trip(&next);
        // Besides the edited bytes: up to the next anchor, the pieces at both ends, and pieces too few for a
        // segment.
        let most = edited + edits * (ANCHOR_STEP + 10 * PIECE_BYTES);
        assert!(stored <= most as u64, "{stored}, {edits} edits of {edited}");
    }
}

#[test]
fn images_that_repeat_themselves_come_back_with_any_edits() {
    let mut rng = SmallRng::seed_from_u64(12);
    let first = image(9 * SEGMENT_BYTES, &mut rng);
    let first = [&first[..], &first[SEGMENT_BYTES / 3..], &first[7..]].concat();
    let base = StoredVersion::of(&first);
    for edits in [0, 1, 3, 9, 27] {
        let mut next = first.clone();
        for _ in 0..edits {
            edit(&mut next, &mut rng);
        }
        base.round_trip(&next);
    }
}

/// Saves and restores an image; returns the number of its rows.
fn round_trip(image: &[u8], settings: &EncodeSettings, rng: &mut SmallRng) -> usize {
    let redundancy = settings.plan.redundancy;
    let (rows, manifest) = encode_all(Bytes::of(image), settings).unwrap();
    let (summary, index) = index_of(&rows, &manifest);
    assert_eq!(summary.stream_bytes, image.len() as u64);

    let (pool, reports) = decoding(&manifest, &summary, index);
    for row in &rows[..rows.len() - summary.other_rows() as usize] {
        let mut shards: Vec<_> = redundancy.shards().collect();
        shards.shuffle(rng);
        let blocks = shards[..3].iter().map(|s| (*s, row.block(*s))).collect();
        let row = row.row;
        pool.push(0, RowBlocks { row, blocks });
    }
    let restored = loop {
        match reports.recv_timeout(Duration::from_secs(60)).unwrap() {
            Decoded::Written(_) | Decoded::Used(_) => {}
            Decoded::Finished(restored) => break restored,
            other => panic!("{other:?}"),
        }
    };
    assert!(restored == image, "{} bytes", image.len());
    rows.len()
}

#[test]
fn a_broken_source_is_reported() {
    let source = Bytes {
        image: vec![1; 5 * SEGMENT_BYTES],
        at: 0,
        fail_at: Some(3 * SEGMENT_BYTES),
    };
    let failed = encode_all(source, &settings(Redundancy::DEFAULT));
    assert!(matches!(failed, Err(EncodeFailure::Source("broken"))));
}

#[test]
fn closing_the_budget_ends_a_stuck_pipeline() {
    let budget = Budget::new(4 << 20);
    let (report, reports) = mpsc::channel();
    let source = Bytes {
        image: vec![1; 20 * SEGMENT_BYTES],
        at: 0,
        fail_at: None,
    };
    let pipeline = Arc::clone(&budget);
    encode::start(source, settings(Redundancy::DEFAULT), pipeline, move |e| {
        report.send(e).unwrap();
    });
    // The rows are retained and never released, so the pipeline has to wait.
    let kept = reports.recv_timeout(Duration::from_secs(60)).unwrap();
    budget.close();
    let failed = reports.iter().find_map(|encoded| match encoded {
        Encoded::Failed(failure) => Some(failure),
        _ => None,
    });
    assert!(matches!(failed, Some(EncodeFailure::Closed(_))));
    drop(kept);
}

#[test]
fn a_wrong_block_never_becomes_image_bytes() {
    let settings = settings(Redundancy::DEFAULT);
    let source = Bytes {
        image: vec![7; 2 * SEGMENT_BYTES],
        at: 0,
        fail_at: None,
    };
    let (rows, manifest) = encode_all(source, &settings).unwrap();
    let (summary, index) = index_of(&rows, &manifest);
    let (pool, reports) = decoding(&manifest, &summary, index);
    let mut blocks: Vec<_> = Redundancy::DEFAULT
        .shards()
        .take(3)
        .map(|shard| (shard, rows[0].block(shard)))
        .collect();
    let mut wrong = blocks[1].1.to_vec();
    wrong[0] ^= 1;
    blocks[1].1 = wrong.into();
    pool.push(0, RowBlocks { row: 0, blocks });
    let decoded = reports.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(matches!(decoded, Decoded::Undecodable(_)), "{decoded:?}");
}
