//! Reads an image, encodes it on all cores, and hands rows out in order.
//!
//! ```text
//! source -> reader: cuts, takes memory -> workers: compress, seal, code -> output: puts in order -> report
//! ```
//!
//! One thread reads the image and cuts it into segments. It takes the memory of each row from the budget
//! before it passes the segment on, in the order of rows; so no later row holds memory that an earlier one
//! waits for. Workers encode. The worker that finishes the next row in order hands out that row, and all
//! finished rows that follow it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use codec::anchors::Anchor;
use codec::base::Base;
use codec::compress::Level;
use codec::encode::{
    BuildError, CheckpointBuilder, CheckpointPlan, EncodedRow, RowEncoder, row_bytes_max,
};
use codec::geometry::SEGMENT_BYTES;
use codec::hash::PieceHash;
use codec::index::{FileEntry, SegmentEntry, StoredSegment};
use codec::journal::NotedSegment;
use codec::layers::Layer;
use codec::manifest::{Draft, ImageKind};
use codec::pieces::{EarlierSegments, PIECE_BYTES, PieceHasher, patch_bytes};
use codec::segment::{Cleaning, Cut, MadeSegment, RepeatedSource, Segmenter};
use codec::{Redundancy, ShardIndex};

use super::ahead::Ahead;
use super::budget::{Budget, Closed, Reservation};
use super::governor::Governor;
use super::hash_file::NewHashes;
use super::hashing::{HashedSegment, Hashing, WAITING_EACH, hash_segment};
use crate::core::effort::Effort;

/// A source of the image's bytes.
pub trait SegmentSource: Send + 'static {
    /// The error when bytes can't be read.
    type Error: Send + 'static;
    /// A note for the user.
    type Warning: Send + 'static;

    /// Fills `buffer` with the next segment. The first `kept` bytes of `buffer` belong to the segment already
    /// and stay. `None` at the end of the image, if `kept` is 0.
    ///
    /// # Errors
    /// When the image can't be read.
    fn next_segment(
        &mut self,
        buffer: Vec<u8>,
        kept: usize,
    ) -> Result<Option<Vec<u8>>, Self::Error>;

    /// The files of the image, its kind and the warnings, after the last segment was read.
    ///
    /// # Errors
    /// When the image changed while it was read, or its producer failed.
    #[allow(
        clippy::type_complexity,
        reason = "three plain lists, named in the text"
    )]
    fn finish(self) -> Result<(Vec<FileEntry>, ImageKind, Vec<Self::Warning>), Self::Error>;
}

/// An encoded row in memory, ready to be sent.
#[derive(Clone, Debug)]
pub struct ReadyRow {
    /// Number of the row.
    pub row: u64,
    /// All its blocks, one after the other.
    pub blocks: Bytes,
    /// Length of each block in bytes.
    pub block_len: usize,
    /// Bytes of memory that the row takes, which are more than those of its blocks.
    pub memory_bytes: u64,
    /// Image bytes of its segment; 0 for rows of the index and of piece hashes.
    pub image_bytes: u64,
    /// Lengths and compression of the segment.
    pub stored: StoredSegment,
}

impl ReadyRow {
    /// The block of this row for `shard`.
    pub fn block(&self, shard: ShardIndex) -> Bytes {
        let start = shard.at() * self.block_len;
        self.blocks.slice(start..start + self.block_len)
    }
}

/// Reports of the pipeline, in the order of the image.
#[derive(Debug)]
pub enum Encoded<E, W> {
    /// The next row, coded into blocks.
    Row(ReadyRow),
    /// This many bytes of the image are zeros.
    Zero(u64),
    /// This many bytes of the image are stored already.
    Same(u64),
    /// The whole image is encoded; there are no more rows.
    End(Box<EncodedImage<W>>),
    /// The image could not be encoded.
    Failed(EncodeFailure<E>),
}

/// The result of encoding an image.
#[derive(Debug)]
pub struct EncodedImage<W> {
    /// The manifest, not signed yet.
    pub draft: Draft,
    /// Notes for the user.
    pub warnings: Vec<W>,
    /// Bytes of segments that are all zeros.
    pub zero_bytes: u64,
    /// Compressed bytes that were stored because they are new, and not again.
    pub new_bytes: u64,
    /// Bytes of the image that are in rows of remnants.
    pub resumed_bytes: u64,
}

/// Why an image could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeFailure<E> {
    /// The image can't be read.
    #[error("reading the image")]
    Source(E),
    /// The image exceeds what an index can describe.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The file with the hashes of pieces can't be read.
    #[error("reading the hashes of pieces: {0}")]
    Hashes(std::io::Error),
    /// The save has ended, and its budget is closed.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// How an image is to be encoded.
#[derive(Clone, Debug)]
pub struct EncodeSettings {
    /// The checkpoint's properties that do not depend on the image.
    pub plan: CheckpointPlan,
    /// How hard to compress.
    pub effort: Effort,
    /// Number of worker threads.
    pub cpus: usize,
    /// The base with which the image is compared.
    pub base: Option<Arc<Base>>,
    /// What is stored again although the base has it.
    pub cleaning: Cleaning,
    /// How many segments of the image itself are remembered, to find content that occurs twice; 0 to not look
    /// for it.
    pub remembered: usize,
    /// Where the segments are noted, so that the next save can use their rows if this one is interrupted.
    pub journal: Option<Notes>,
    /// The first so many origins of the base are remnants.
    pub remnants: u8,
    /// Where hashes of pieces are put that memory would not hold.
    pub hashes_dir: Option<PathBuf>,
}

/// Takes the segments of a save in the order of the image. What does not fit ends the journal.
pub type Notes = SyncSender<NotedSegment>;

impl EncodeSettings {
    /// The hasher for pieces, if segments are compared with a base or with each other.
    fn comparing(&self) -> Option<PieceHasher> {
        let is_compared = self.base.is_some() || self.remembered > 0;
        is_compared.then(|| PieceHasher::new(self.plan.pieces_key()))
    }
}

/// Bytes of image buffers that a pipeline with `cpus` workers needs besides its budget.
pub const fn raw_bytes(cpus: usize) -> u64 {
    (((2 + WAITING_EACH) * cpus + 4) * SEGMENT_BYTES) as u64
}

/// Starts the threads. They call `report` in the order of the image, from any of them; `report` must not block.
/// Closing the budget ends them.
pub fn start<S, F>(source: S, settings: EncodeSettings, budget: Arc<Budget>, report: F)
where
    S: SegmentSource,
    F: FnMut(Encoded<S::Error, S::Warning>) + Send + 'static,
{
    let queue = settings.cpus.max(1);
    let (work, items) = sync_channel::<WorkItem>(queue);
    let (used, unused) = sync_channel::<Vec<u8>>(2 * queue + 2);
    let items = Arc::new(Mutex::new(items));
    let output = Arc::new(Mutex::new(Output {
        builder: Some(CheckpointBuilder::new(settings.plan.clone())),
        refused: None,
        journal: settings.journal.clone(),
        remnants: settings.remnants,
        hashes: NewHashes::in_dir(settings.hashes_dir.clone()),
        resumed_bytes: 0,
        waiting: BTreeMap::new(),
        next: 0,
        report,
        source: std::marker::PhantomData,
    }));
    let workers: Vec<_> = (0..queue)
        .map(|_| {
            let items = Arc::clone(&items);
            let used = used.clone();
            let output = Arc::clone(&output);
            let settings = settings.clone();
            let budget = Arc::clone(&budget);
            thread::spawn(move || work_on(&items, &used, &output, &settings, &budget))
        })
        .collect();
    thread::spawn(move || {
        let mut reader = Reader {
            budget: Arc::clone(&budget),
            redundancy: settings.plan.redundancy,
            comparing: settings.comparing(),
            cpus: queue,
            governor: Governor::new(settings.effort),
            segmenter: Segmenter::with_base(settings.base.clone())
                .with_cleaning(settings.cleaning.clone())
                .with_earlier(
                    settings
                        .comparing()
                        .filter(|_| settings.remembered > 0)
                        .map(|hasher| EarlierSegments::new(hasher, settings.remembered)),
                ),
            sequence: 0,
            work,
            unused,
            spare: Vec::new(),
        };
        let read = reader.read_all(source);
        let bytes = ReadBytes {
            zero: reader.segmenter.zero_bytes(),
            changed: reader.segmenter.changed_bytes(),
        };
        drop(reader);
        for worker in workers {
            let _ = worker.join();
        }
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        let end = read.and_then(|read| output.finish(read, bytes, &settings, &budget));
        (output.report)(match end {
            Ok(image) => Encoded::End(Box::new(image)),
            Err(failure) => Encoded::Failed(failure),
        });
    });
}

/// A part of the image, numbered in the order of reading, for a worker to encode.
struct WorkItem {
    sequence: u64,
    part: Unencoded,
    level: Level,
}

enum Unencoded {
    Zero(u64),
    Segment {
        row: u64,
        raw: Vec<u8>,
        hashes: Vec<PieceHash>,
        grant: Reservation,
    },
    Made(MadeSegment, Option<Reservation>),
}

/// Bytes of the stream, by what became of them.
struct ReadBytes {
    /// Of segments of zeros.
    zero: u64,
    /// Stored because they are new.
    changed: u64,
}

struct Reader {
    budget: Arc<Budget>,
    redundancy: Redundancy,
    comparing: Option<PieceHasher>,
    cpus: usize,
    governor: Governor,
    segmenter: Segmenter,
    sequence: u64,
    work: SyncSender<WorkItem>,
    unused: Receiver<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

type ReadImage<W> = (Vec<FileEntry>, ImageKind, Vec<W>);

impl Reader {
    fn read_all<S: SegmentSource>(
        &mut self,
        mut source: S,
    ) -> Result<ReadImage<S::Warning>, EncodeFailure<S::Error>> {
        match self.comparing.clone() {
            None => self.read_plain(&mut source)?,
            Some(hasher) => self.read_compared(&mut source, &hasher)?,
        }
        source.finish().map_err(EncodeFailure::Source)
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.spare
            .pop()
            .or_else(|| self.unused.try_recv().ok())
            .unwrap_or_else(|| Vec::with_capacity(SEGMENT_BYTES))
    }

    /// Reads the rest of a segment that begins with the first `kept` bytes of `buffer`.
    fn read<S: SegmentSource>(
        source: &mut S,
        buffer: Vec<u8>,
        kept: usize,
    ) -> Result<Option<Vec<u8>>, EncodeFailure<S::Error>> {
        let read = source.next_segment(buffer, kept);
        read.map_err(EncodeFailure::Source)
    }

    fn read_plain<S: SegmentSource>(
        &mut self,
        source: &mut S,
    ) -> Result<(), EncodeFailure<S::Error>> {
        while let Some(raw) = Self::read(source, self.buffer(), 0)? {
            self.cut(raw, Vec::new())?;
        }
        Ok(())
    }

    /// Compares segments with the base in the order of the image, and hashes the next ones meanwhile.
    fn read_compared<S: SegmentSource>(
        &mut self,
        source: &mut S,
        hasher: &PieceHasher,
    ) -> Result<(), EncodeFailure<S::Error>> {
        thread::scope(|scope| {
            let mut hashing = Hashing::start(scope, hasher, self.cpus);
            while let Some(raw) = Self::read(source, self.buffer(), 0)? {
                hashing.push(raw)?;
                while let Some(segment) = hashing.try_next() {
                    self.compare(source, hasher, &mut hashing, segment)?;
                }
            }
            while let Some(segment) = hashing.next()? {
                self.compare(source, hasher, &mut hashing, segment)?;
            }
            Ok(())
        })
    }

    /// Cuts a segment. If known content makes the segment end early, everything that was read after its end
    /// is cut anew, one segment after the other.
    fn compare<S: SegmentSource>(
        &mut self,
        source: &mut S,
        hasher: &PieceHasher,
        hashing: &mut Hashing,
        (raw, hashes): HashedSegment,
    ) -> Result<(), EncodeFailure<S::Error>> {
        let mut ahead = Ahead::default();
        self.cut_compared(raw, hashes, hasher, &mut ahead)?;
        if ahead.is_empty() {
            return Ok(());
        }
        while let Some((raw, _)) = hashing.next()? {
            ahead.push_back(raw);
        }
        while !ahead.is_empty() {
            let (begin, is_whole) = ahead.take(self.buffer(), &mut self.spare);
            let kept = begin.len();
            let raw = match is_whole {
                true => begin,
                false => Self::read(source, begin, kept)?.unwrap_or_default(),
            };
            let hashes = hash_segment(hasher, &raw);
            self.cut_compared(raw, hashes, hasher, &mut ahead)?;
        }
        Ok(())
    }

    /// Cuts a segment off the beginning of `raw`; the rest goes to `ahead`.
    fn cut_compared(
        &mut self,
        raw: Vec<u8>,
        mut hashes: Vec<PieceHash>,
        hasher: &PieceHasher,
        ahead: &mut Ahead,
    ) -> Result<(), Closed> {
        let Some(at) = self.segmenter.cut_at(&raw, &hashes) else {
            return self.cut(raw, hashes);
        };
        let mut head = self.buffer();
        head.clear();
        head.extend_from_slice(raw.get(..at).unwrap_or(&raw));
        ahead.push_front(raw, at);
        let whole = at / PIECE_BYTES;
        hashes.truncate(whole);
        hashes.extend(hasher.hash(head.get(whole * PIECE_BYTES..).unwrap_or_default()));
        self.cut(head, hashes)
    }

    fn cut(&mut self, raw: Vec<u8>, hashes: Vec<PieceHash>) -> Result<(), Closed> {
        let (cut, back) = self.segmenter.cut_hashed(raw, hashes);
        self.spare.extend(back);
        cut.map_or(Ok(()), |cut| self.pass_on(cut))
    }

    fn pass_on(&mut self, cut: Cut) -> Result<(), Closed> {
        let part = match cut {
            Cut::Zero { bytes } => Unencoded::Zero(bytes),
            Cut::Stored { row, raw, hashes } => Unencoded::Segment {
                row,
                raw,
                hashes,
                grant: self.budget.take(row_bytes_max(self.redundancy) as u64)?,
            },
            Cut::Made(made) => {
                let bytes = row_bytes_max(self.redundancy) as u64;
                let grant = made.patch.is_some().then(|| self.budget.take(bytes));
                Unencoded::Made(made, grant.transpose()?)
            }
        };
        let item = WorkItem {
            sequence: self.sequence,
            part,
            level: self.governor.level(&self.budget),
        };
        self.sequence += 1;
        self.work.send(item).map_err(|_| Closed)
    }
}

fn work_on<E, W, F: FnMut(Encoded<E, W>)>(
    items: &Mutex<Receiver<WorkItem>>,
    used: &SyncSender<Vec<u8>>,
    output: &Mutex<Output<E, W, F>>,
    settings: &EncodeSettings,
    budget: &Budget,
) {
    let redundancy = settings.plan.redundancy;
    let encoder = RowEncoder::new(redundancy, settings.plan.sealer(), Level::DEFAULT);
    let mut encoder = encoder.with_pieces(settings.plan.pieces_key());
    loop {
        let item = items.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(item) = item else { return };
        encoder.set_level(item.level);
        let part = match item.part {
            Unencoded::Zero(bytes) => EncodedPart::Zero(bytes),
            Unencoded::Segment {
                row,
                raw,
                hashes,
                grant,
            } => {
                let blocks = budget.buffer(row_bytes_max(redundancy));
                let encoded = if !hashes.is_empty() {
                    encoder.encode_hashed(row, &raw, Some(hashes), blocks)
                } else {
                    encoder.encode(row, &raw, blocks)
                };
                // Fails only if the reader has ended; then the buffer is not needed.
                let _ = used.try_send(raw);
                EncodedPart::Row(Box::new((encoded, grant)))
            }
            Unencoded::Made(made, grant) => {
                let rows = made.patch.as_ref().zip(grant);
                let row = rows.map(|((row, raw), grant)| {
                    let blocks = budget.buffer(row_bytes_max(redundancy));
                    Box::new((encoder.encode(*row, raw, blocks), grant))
                });
                EncodedPart::Made(made, row)
            }
        };
        output
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(item.sequence, part);
    }
}

enum EncodedPart {
    Row(Box<(EncodedRow, Reservation)>),
    Zero(u64),
    Made(MadeSegment, Option<Box<(EncodedRow, Reservation)>>),
}

/// Puts encoded parts in order, and adds them to the manifest.
struct Output<E, W, F> {
    builder: Option<CheckpointBuilder>,
    /// Why the builder refused a row or a segment.
    refused: Option<BuildError>,
    journal: Option<Notes>,
    remnants: u8,
    hashes: NewHashes,
    resumed_bytes: u64,
    waiting: BTreeMap<u64, EncodedPart>,
    next: u64,
    report: F,
    source: std::marker::PhantomData<fn() -> (E, W)>,
}

impl<E, W, F: FnMut(Encoded<E, W>)> Output<E, W, F> {
    fn push(&mut self, sequence: u64, part: EncodedPart) {
        self.waiting.insert(sequence, part);
        while let Some(part) = self.waiting.remove(&self.next) {
            self.next += 1;
            let Some(builder) = &mut self.builder else {
                return;
            };
            self.hashes.take_from(builder);
            match part {
                EncodedPart::Zero(bytes) => {
                    builder.push_zero(bytes);
                    let zero = SegmentEntry::Zero { bytes };
                    note(&mut self.journal, Some(zero), (&[], &[]), None);
                    (self.report)(Encoded::Zero(bytes));
                }
                EncodedPart::Row(row) => {
                    let (encoded, grant) = *row;
                    if let Err(cause) = builder.push_row(&encoded) {
                        return self.stop(cause);
                    }
                    let last = builder.last_segment().cloned();
                    let hashes = (&*encoded.pieces, &*encoded.anchors);
                    note(&mut self.journal, last, hashes, Some(&encoded));
                    let image_bytes = u64::from(encoded.stored.raw_len);
                    (self.report)(Encoded::Row(ready(encoded, grant, image_bytes)));
                }
                EncodedPart::Made(made, row) => {
                    let encoded = row.as_ref().map(|row| &row.0);
                    if let Err(cause) = builder.push_made(&made, encoded) {
                        return self.stop(cause);
                    }
                    let last = builder.last_segment().cloned();
                    let hashes = match &made.source {
                        RepeatedSource::Rows(layers) => {
                            self.resumed_bytes += resumed(layers, self.remnants, made.len);
                            (&*made.hashes, &*made.anchors)
                        }
                        RepeatedSource::Image { .. } => (&[][..], &[][..]),
                    };
                    note(&mut self.journal, last, hashes, encoded);
                    let image_bytes = u64::from(made.len);
                    (self.report)(match row {
                        Some(row) => {
                            let (encoded, grant) = *row;
                            Encoded::Row(ready(encoded, grant, image_bytes))
                        }
                        None => Encoded::Same(image_bytes),
                    });
                }
            }
        }
    }

    /// Takes no more parts, since the builder refused one. The one reader numbers the rows, and they are put
    /// in order here, so this never happens unless the program has a bug.
    fn stop(&mut self, cause: BuildError) {
        self.builder = None;
        self.refused = Some(cause);
    }

    /// Encodes the hashes of pieces and the index, which are the last rows, and drafts the manifest.
    fn finish(
        &mut self,
        (files, kind, warnings): ReadImage<W>,
        bytes: ReadBytes,
        settings: &EncodeSettings,
        budget: &Arc<Budget>,
    ) -> Result<EncodedImage<W>, EncodeFailure<E>> {
        if let Some(cause) = self.refused.take() {
            return Err(cause.into());
        }
        let mut builder = self.builder.take().ok_or(Closed)?;
        let last_hashes = builder.take_pieces();
        let mut hashes = self.hashes.reader().chain(&*last_hashes);
        self.journal = None;
        let whole = u128::from(builder.row_bytes().max(1));
        let new = u128::from(builder.stored_bytes()) * u128::from(bytes.changed) / whole;
        let new_bytes = u64::try_from(new).unwrap_or(u64::MAX);
        let redundancy = settings.plan.redundancy;
        let sealer = settings.plan.sealer();
        let mut encoder = RowEncoder::new(redundancy, sealer, Level::DEFAULT);
        let mut encode = |row, raw: &[u8]| {
            let grant = budget.take(row_bytes_max(redundancy) as u64)?;
            let blocks = budget.buffer(row_bytes_max(redundancy));
            Ok::<_, Closed>((encoder.encode(row, raw, blocks), grant))
        };
        let mut raw = Vec::with_capacity(SEGMENT_BYTES);
        loop {
            raw.clear();
            let mut next = hashes.by_ref().take(SEGMENT_BYTES as u64);
            next.read_to_end(&mut raw).map_err(EncodeFailure::Hashes)?;
            if raw.is_empty() {
                break;
            }
            let (encoded, grant) = encode(builder.rows(), &raw)?;
            builder.push_piece_row(&encoded)?;
            (self.report)(Encoded::Row(ready(encoded, grant, 0)));
        }
        for raw in builder
            .finish_image(files, bytes.changed)?
            .chunks(SEGMENT_BYTES)
        {
            let (encoded, grant) = encode(builder.rows(), raw)?;
            builder.push_index_row(&encoded)?;
            (self.report)(Encoded::Row(ready(encoded, grant, 0)));
        }
        Ok(EncodedImage {
            draft: builder.finish(kind),
            warnings,
            zero_bytes: bytes.zero,
            new_bytes,
            resumed_bytes: self.resumed_bytes,
        })
    }
}

/// Notes a segment with its row. A journal that lacks a segment is of no use, so it ends where one does not fit.
fn note(
    journal: &mut Option<Notes>,
    segment: Option<SegmentEntry>,
    (hashes, anchors): (&[PieceHash], &[Anchor]),
    row: Option<&EncodedRow>,
) {
    let (Some(notes), Some(segment)) = (journal.as_ref(), segment) else {
        return;
    };
    let blocks = row.map_or(&[][..], |row| &row.table);
    let noted = NotedSegment::new(segment, hashes, anchors, blocks);
    if notes.try_send(noted).is_err() {
        *journal = None;
    }
}

/// Bytes of a segment of `len` bytes that are in rows of the first `remnants` origins.
fn resumed(layers: &[Layer], remnants: u8, len: u32) -> u64 {
    let of_remnants = layers.iter().filter(|layer| layer.origin < remnants);
    let bytes = of_remnants.map(|layer| patch_bytes(layer.used, len as usize));
    bytes.sum::<usize>() as u64
}

fn ready(mut encoded: EncodedRow, mut grant: Reservation, image_bytes: u64) -> ReadyRow {
    let memory_bytes = grant.fit(&mut encoded.blocks);
    ReadyRow {
        memory_bytes,
        row: encoded.row,
        block_len: encoded.block_len,
        stored: encoded.stored,
        image_bytes,
        blocks: grant.share(encoded.blocks),
    }
}
