//! Reads an image, encodes it on all cores, and hands rows out in order.
//!
//! One thread reads and cuts; it takes the memory of each row from the budget before it passes the
//! segment on, in the order of rows, so that a later row never holds what an earlier one waits for.
//! Workers encode. Whoever finishes the row that is next in order hands it out, with all that
//! follow.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use codec::compress::Level;
use codec::encode::{
    BuildError, CheckpointBuilder, CheckpointPlan, EncodedRow, RowEncoder, row_bytes_max,
};
use codec::geometry::SEGMENT_BYTES;
use codec::hash::SegmentHash;
use codec::index::FileEntry;
use codec::manifest::{ImageKind, Manifest};
use codec::pieces::{Base, Match, PieceHash, PieceHasher, Seen};
use codec::seal::OwnerSecret;
use codec::segment::{Cut, Segmenter, is_zero};
use codec::{Redundancy, ShardIndex};

use super::budget::{Budget, Closed, Grant};
use super::governor::Governor;
use crate::core::effort::Effort;

/// Where the image's bytes come from.
pub trait SegmentSource: Send + 'static {
    /// Why reading failed.
    type Error: Send + 'static;
    /// What the user should know.
    type Warning: Send + 'static;

    /// Fills the emptied `buffer` with the next segment; `None` at the end.
    ///
    /// # Errors
    /// When the image can't be read.
    fn next_segment(&mut self, buffer: Vec<u8>) -> Result<Option<Vec<u8>>, Self::Error>;

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
    /// The signed manifest.
    pub manifest: Manifest,
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
    /// Whose it is.
    pub owner: OwnerSecret,
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

/// Segments that wait to be compared with the base, for each worker.
const COMPARED_AT_ONCE: usize = 2;

/// Bytes of image buffers that a pipeline with `cpus` workers needs beside its budget.
pub const fn raw_bytes(cpus: usize) -> u64 {
    (((2 + COMPARED_AT_ONCE) * cpus + 2) * SEGMENT_BYTES) as u64
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

type Hashed = (u64, Vec<u8>, Vec<PieceHash>);

fn hash_all(hasher: &PieceHasher, queue: &Mutex<Receiver<(u64, Vec<u8>)>>, done: &Sender<Hashed>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((number, raw)) = job else { return };
        let hashes = if is_zero(&raw) {
            Vec::new()
        } else {
            hasher.hash(&raw)
        };
        if done.send((number, raw, hashes)).is_err() {
            return;
        }
    }
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

    fn buffer(&self, spare: &mut Vec<Vec<u8>>) -> Vec<u8> {
        spare
            .pop()
            .or_else(|| self.unused.try_recv().ok())
            .unwrap_or_else(|| Vec::with_capacity(SEGMENT_BYTES))
    }

    fn read_plain<S: SegmentSource>(
        &mut self,
        source: &mut S,
    ) -> Result<(), EncodeFailure<S::Error>> {
        let mut spare = Vec::new();
        loop {
            let buffer = self.buffer(&mut spare);
            let read = source.next_segment(buffer).map_err(EncodeFailure::Source)?;
            let Some(raw) = read else { return Ok(()) };
            self.cut(raw, Vec::new(), &mut spare)?;
        }
    }

    /// Hashes the pieces of segments on all cores while it reads on; compares and numbers them in the
    /// order in which they were read.
    fn read_compared<S: SegmentSource>(
        &mut self,
        source: &mut S,
        hasher: &PieceHasher,
    ) -> Result<(), EncodeFailure<S::Error>> {
        let (jobs, queue) = sync_channel::<(u64, Vec<u8>)>(COMPARED_AT_ONCE * self.cpus);
        let (done, hashed) = channel();
        let queue = Mutex::new(queue);
        thread::scope(|scope| {
            for _ in 0..self.cpus {
                let (queue, done) = (&queue, done.clone());
                scope.spawn(move || hash_all(hasher, queue, &done));
            }
            drop(done);
            // Dropped at the end of this, whatever comes: the threads end with it.
            let jobs = jobs;
            let (mut spare, mut waiting, mut next) = (Vec::new(), BTreeMap::new(), 0);
            let mut read = 0;
            loop {
                let buffer = self.buffer(&mut spare);
                let segment = source.next_segment(buffer).map_err(EncodeFailure::Source)?;
                let Some(raw) = segment else { break };
                jobs.send((read, raw)).map_err(|_| Closed)?;
                read += 1;
                while let Ok((number, raw, hashes)) = hashed.try_recv() {
                    waiting.insert(number, (raw, hashes));
                }
                while let Some((raw, hashes)) = waiting.remove(&next) {
                    self.cut(raw, hashes, &mut spare)?;
                    next += 1;
                }
            }
            drop(jobs);
            while next < read {
                if let Some((raw, hashes)) = waiting.remove(&next) {
                    self.cut(raw, hashes, &mut spare)?;
                    next += 1;
                    continue;
                }
                // All threads are gone only if one of them panicked.
                let (number, raw, hashes) = hashed.recv().map_err(|_| Closed)?;
                waiting.insert(number, (raw, hashes));
            }
            Ok(())
        })
    }

    fn cut(
        &mut self,
        raw: Vec<u8>,
        hashes: Vec<PieceHash>,
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<(), Closed> {
        let (cut, back) = self.segmenter.cut_hashed(raw, hashes);
        spare.extend(back);
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
    let sealer = settings.plan.sealer(&settings.owner);
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

    /// Codes the index, which makes the last rows, and signs the manifest.
    fn finish(
        &mut self,
        (files, kind, warnings): ReadImage<W>,
        zero_bytes: u64,
        settings: &EncodeSettings,
        budget: &Arc<Budget>,
    ) -> Result<EncodedImage<W>, EncodeFailure<E>> {
        let mut builder = self.builder.take().ok_or(Closed)?;
        let redundancy = settings.plan.redundancy;
        let sealer = settings.plan.sealer(&settings.owner);
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
        let manifest = builder.finish(&settings.owner, kind)?;
        Ok(EncodedImage {
            manifest,
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
