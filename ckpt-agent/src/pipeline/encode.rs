//! Reads an image, encodes it on all cores, and hands rows out in order.
//!
//! One thread reads and cuts; it takes the memory of each row from the budget before it passes the
//! segment on, in the order of rows, so that a later row never holds what an earlier one waits for.
//! Workers encode. Whoever finishes the row that is next in order hands it out, with all that
//! follow.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use codec::base::Base;
use codec::compress::Level;
use codec::encode::{
    BuildError, CheckpointBuilder, CheckpointPlan, EncodedRow, RowEncoder, row_bytes_max,
};
use codec::geometry::SEGMENT_BYTES;
use codec::hash::SegmentHash;
use codec::index::FileEntry;
use codec::manifest::{Draft, ImageKind};
use codec::pieces::{Match, PIECE_BYTES, PieceHash, PieceHasher, Seen};
use codec::segment::{Cut, Segmenter};
use codec::{Redundancy, ShardIndex};

use super::ahead::Ahead;
use super::budget::{Budget, Closed, Grant};
use super::governor::Governor;
use super::hashing::{HashedSegment, Hashing, WAITING_EACH, hash_segment};
use crate::core::effort::Effort;

/// Where the image's bytes come from.
pub trait SegmentSource: Send + 'static {
    /// Why reading failed.
    type Error: Send + 'static;
    /// What the user should know.
    type Warning: Send + 'static;

    /// Fills `buffer` with the next segment, after the first `kept` bytes, which belong to it and
    /// stay; `None` at the end, when none were to be kept.
    ///
    /// # Errors
    /// When the image can't be read.
    fn next_segment(
        &mut self,
        buffer: Vec<u8>,
        kept: usize,
    ) -> Result<Option<Vec<u8>>, Self::Error>;

    /// After the last segment: what was read.
    ///
    /// # Errors
    /// When the image changed on the way, or its producer failed.
    #[allow(
        clippy::type_complexity,
        reason = "three plain lists, named in the text"
    )]
    fn finish(self) -> Result<(Vec<FileEntry>, ImageKind, Vec<Self::Warning>), Self::Error>;
}

/// A row in memory, ready to be sent.
#[derive(Clone, Debug)]
pub struct ReadyRow {
    /// Its row.
    pub row: u64,
    /// All its blocks, one after the other.
    pub blocks: Bytes,
    /// Length of each.
    pub block_len: usize,
    /// Memory that the row takes, which is more than its blocks.
    pub memory_bytes: u64,
    /// Image bytes of its segment; none for index rows.
    pub image_bytes: u64,
    /// Bytes after compression.
    pub stored_bytes: u64,
}

impl ReadyRow {
    /// The block of `shard`.
    pub fn block(&self, shard: ShardIndex) -> Bytes {
        let start = shard.at() * self.block_len;
        self.blocks.slice(start..start + self.block_len)
    }
}

/// What the pipeline tells.
#[derive(Debug)]
pub enum Encoded<E, W> {
    /// The next row.
    Row(ReadyRow),
    /// So many zero bytes of the image went by.
    Zero(u64),
    /// So many bytes that are stored already went by.
    Same(u64),
    /// The image is encoded; there are no more rows.
    End(Box<EncodedImage<W>>),
    /// The image could not be encoded.
    Failed(EncodeFailure<E>),
}

/// An image that is encoded.
#[derive(Debug)]
pub struct EncodedImage<W> {
    /// The manifest, to be signed.
    pub draft: Draft,
    /// What the user should know.
    pub warnings: Vec<W>,
    /// Bytes of zero segments.
    pub zero_bytes: u64,
}

/// Why an image could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeFailure<E> {
    /// Reading failed.
    #[error("reading the image")]
    Source(E),
    /// The image can't be described.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Nobody wants the rows any more.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// How to encode.
#[derive(Clone, Debug)]
pub struct EncodeSettings {
    /// What is fixed of the checkpoint.
    pub plan: CheckpointPlan,
    /// Effort of compression.
    pub effort: Effort,
    /// Number of workers.
    pub cpus: usize,
    /// What the image is compared with.
    pub base: Option<Arc<Base>>,
    /// Segments that are remembered to find what the image has twice; none when it is not looked for.
    pub remembered: usize,
}

impl EncodeSettings {
    /// Hashes the pieces of segments that are compared with others; `None` when none are.
    fn comparing(&self) -> Option<PieceHasher> {
        let own = || PieceHasher::new(&self.plan.data_key);
        let base = self.base.as_ref().map(|base| base.hasher().clone());
        base.or_else(|| (self.remembered > 0).then(own))
    }
}

/// Bytes of image buffers that a pipeline with `cpus` workers needs beside its budget.
pub const fn raw_bytes(cpus: usize) -> u64 {
    (((2 + WAITING_EACH) * cpus + 4) * SEGMENT_BYTES) as u64
}

/// Starts the threads. `tell` is called in the order of the image, from any of them, and must not
/// wait. Closing the budget ends them.
pub fn start<S, F>(source: S, settings: EncodeSettings, budget: Arc<Budget>, tell: F)
where
    S: SegmentSource,
    F: FnMut(Encoded<S::Error, S::Warning>) + Send + 'static,
{
    let queue = settings.cpus.max(1);
    let (work, jobs) = sync_channel::<Job>(queue);
    let (used, unused) = sync_channel::<Vec<u8>>(2 * queue + 2);
    let jobs = Arc::new(Mutex::new(jobs));
    let output = Arc::new(Mutex::new(Output {
        builder: Some(CheckpointBuilder::new(settings.plan.clone())),
        waiting: BTreeMap::new(),
        next: 0,
        tell,
        source: std::marker::PhantomData,
    }));
    let workers: Vec<_> = (0..queue)
        .map(|_| {
            let (jobs, used, output) = (Arc::clone(&jobs), used.clone(), Arc::clone(&output));
            let (settings, budget) = (settings.clone(), Arc::clone(&budget));
            thread::spawn(move || work_on(&jobs, &used, &output, &settings, &budget))
        })
        .collect();
    thread::spawn(move || {
        let mut reader = Reader {
            budget: Arc::clone(&budget),
            redundancy: settings.plan.redundancy,
            comparing: settings.comparing(),
            cpus: queue,
            governor: Governor::new(settings.effort),
            segmenter: Segmenter::with_base(settings.base.clone()).with_seen(
                settings
                    .comparing()
                    .filter(|_| settings.remembered > 0)
                    .map(|hasher| Seen::new(hasher, settings.remembered)),
            ),
            sequence: 0,
            work,
            unused,
            spare: Vec::new(),
        };
        let read = reader.read_all(source);
        let zero_bytes = reader.segmenter.zero_bytes();
        drop(reader);
        for worker in workers {
            let _ = worker.join();
        }
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        let end = read.and_then(|read| output.finish(read, zero_bytes, &settings, &budget));
        (output.tell)(match end {
            Ok(image) => Encoded::End(Box::new(image)),
            Err(failure) => Encoded::Failed(failure),
        });
    });
}

/// A piece of the image, numbered in the order of reading.
struct Job {
    sequence: u64,
    piece: Unencoded,
    level: Level,
}

enum Unencoded {
    Zero(u64),
    Segment {
        row: u64,
        raw: Vec<u8>,
        hashes: Vec<PieceHash>,
        grant: Grant,
    },
    Patched(Patched, Option<(u64, Vec<u8>, Grant)>),
}

/// A segment that the base or the image has already, but for some pieces.
struct Patched {
    found: Match,
    len: u32,
    hashes: Vec<PieceHash>,
}

struct Reader {
    budget: Arc<Budget>,
    redundancy: Redundancy,
    comparing: Option<PieceHasher>,
    cpus: usize,
    governor: Governor,
    segmenter: Segmenter,
    sequence: u64,
    work: SyncSender<Job>,
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

    /// Compares segments in the order in which they were read; they are hashed while it reads on.
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

    /// Cuts a segment. Where it ends early, all that was read after it is cut anew, one segment
    /// after the other.
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

    /// Cuts a segment out of `raw`; what it does not take goes to `ahead`.
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
        let piece = match cut {
            Cut::Zero { bytes } => Unencoded::Zero(bytes),
            Cut::Stored { row, raw, hashes } => Unencoded::Segment {
                row,
                raw,
                hashes,
                grant: self.budget.take(row_bytes_max(self.redundancy) as u64)?,
            },
            Cut::Patched {
                found,
                len,
                hashes,
                patch,
            } => {
                let patch = match patch {
                    Some((row, raw)) => {
                        let grant = self.budget.take(row_bytes_max(self.redundancy) as u64)?;
                        Some((row, raw, grant))
                    }
                    None => None,
                };
                Unencoded::Patched(Patched { found, len, hashes }, patch)
            }
        };
        let job = Job {
            sequence: self.sequence,
            piece,
            level: self.governor.level(&self.budget),
        };
        self.sequence += 1;
        self.work.send(job).map_err(|_| Closed)
    }
}

fn work_on<E, W, F: FnMut(Encoded<E, W>)>(
    jobs: &Mutex<Receiver<Job>>,
    used: &SyncSender<Vec<u8>>,
    output: &Mutex<Output<E, W, F>>,
    settings: &EncodeSettings,
    budget: &Budget,
) {
    let redundancy = settings.plan.redundancy;
    let sealer = settings.plan.sealer();
    let mut encoder = RowEncoder::new(redundancy, sealer.clone(), Level::DEFAULT);
    if settings.base.is_none() {
        // What refers to another checkpoint is no base itself: chains have one link.
        encoder = encoder.with_pieces(&settings.plan.data_key);
    }
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        encoder.set_level(job.level);
        let piece = match job.piece {
            Unencoded::Zero(bytes) => Piece::Zero(bytes),
            Unencoded::Segment {
                row,
                raw,
                hashes,
                grant,
            } => {
                let blocks = budget.buffer(row_bytes_max(redundancy));
                let encoded = if settings.base.is_none() && !hashes.is_empty() {
                    encoder.encode_hashed(row, &raw, Some(hashes), blocks)
                } else {
                    encoder.encode(row, &raw, blocks)
                };
                // The reader may have gone: then nobody needs the buffer.
                let _ = used.try_send(raw);
                Piece::Row(Box::new((encoded, grant)))
            }
            Unencoded::Patched(patched, patch) => {
                let hash = sealer.hash_pieces(&patched.hashes);
                let row = patch.map(|(row, raw, grant)| {
                    let blocks = budget.buffer(row_bytes_max(redundancy));
                    Box::new((encoder.encode(row, &raw, blocks), grant))
                });
                Piece::Patched(patched, hash, row)
            }
        };
        output
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(job.sequence, piece);
    }
}

enum Piece {
    Row(Box<(EncodedRow, Grant)>),
    Zero(u64),
    Patched(Patched, SegmentHash, Option<Box<(EncodedRow, Grant)>>),
}

/// Puts pieces into order, and counts them into the manifest.
struct Output<E, W, F> {
    builder: Option<CheckpointBuilder>,
    waiting: BTreeMap<u64, Piece>,
    next: u64,
    tell: F,
    source: std::marker::PhantomData<fn() -> (E, W)>,
}

impl<E, W, F: FnMut(Encoded<E, W>)> Output<E, W, F> {
    fn push(&mut self, sequence: u64, piece: Piece) {
        self.waiting.insert(sequence, piece);
        while let Some(piece) = self.waiting.remove(&self.next) {
            self.next += 1;
            let Some(builder) = &mut self.builder else {
                return;
            };
            match piece {
                Piece::Zero(bytes) => {
                    builder.push_zero(bytes);
                    (self.tell)(Encoded::Zero(bytes));
                }
                Piece::Row(row) => {
                    let (encoded, grant) = *row;
                    // Rows are numbered by the one reader and put into order here.
                    let pushed = builder.push_row(&encoded);
                    debug_assert!(pushed.is_ok(), "{pushed:?}");
                    let image_bytes = u64::from(encoded.stored.raw_len);
                    (self.tell)(Encoded::Row(ready(encoded, grant, image_bytes)));
                }
                Piece::Patched(patched, hash, row) => {
                    let (found, len) = (patched.found, patched.len);
                    let encoded = row.as_ref().map(|row| &row.0);
                    let pushed = builder.push_patched(found, len, hash, encoded);
                    debug_assert!(pushed.is_ok(), "{pushed:?}");
                    let image_bytes = u64::from(len);
                    (self.tell)(match row {
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

    /// Codes the index, which makes the last rows, and writes the manifest.
    fn finish(
        &mut self,
        (files, kind, warnings): ReadImage<W>,
        zero_bytes: u64,
        settings: &EncodeSettings,
        budget: &Arc<Budget>,
    ) -> Result<EncodedImage<W>, EncodeFailure<E>> {
        let mut builder = self.builder.take().ok_or(Closed)?;
        let redundancy = settings.plan.redundancy;
        let sealer = settings.plan.sealer();
        let mut encoder = RowEncoder::new(redundancy, sealer, Level::DEFAULT);
        let mut encode = |row, raw: &[u8]| {
            let grant = budget.take(row_bytes_max(redundancy) as u64)?;
            let blocks = budget.buffer(row_bytes_max(redundancy));
            Ok::<_, Closed>((encoder.encode(row, raw, blocks), grant))
        };
        for raw in builder.take_pieces().chunks(SEGMENT_BYTES) {
            let (encoded, grant) = encode(builder.rows(), raw)?;
            builder.push_piece_row(&encoded)?;
            (self.tell)(Encoded::Row(ready(encoded, grant, 0)));
        }
        for raw in builder.finish_image(files)?.chunks(SEGMENT_BYTES) {
            let (encoded, grant) = encode(builder.rows(), raw)?;
            builder.push_index_row(&encoded)?;
            (self.tell)(Encoded::Row(ready(encoded, grant, 0)));
        }
        Ok(EncodedImage {
            draft: builder.finish(kind),
            warnings,
            zero_bytes,
        })
    }
}

fn ready(mut encoded: EncodedRow, mut grant: Grant, image_bytes: u64) -> ReadyRow {
    let memory_bytes = grant.fit(&mut encoded.blocks);
    ReadyRow {
        memory_bytes,
        row: encoded.row,
        block_len: encoded.block_len,
        stored_bytes: u64::from(encoded.stored.stored_len),
        image_bytes,
        blocks: grant.share(encoded.blocks),
    }
}
