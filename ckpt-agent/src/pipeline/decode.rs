//! Decodes rows on all cores, and writes the image in order on a thread of its own.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use codec::ShardIndex;
use codec::decode::{Composer, DecodeError, RowDecoder};
use codec::hash::PieceHash;
use codec::hash::SegmentHash;
use codec::index::{Index, Patch, SegmentEntry, StoredSegment};
use codec::manifest::{Public, Summary};
use codec::pieces::PIECE_BYTES;

use crate::core::pick::Wanted;

/// Takes the image's bytes in the order of the image stream.
pub trait StreamSink: Send + 'static {
    /// The error when bytes can't be written.
    type Error: Send + 'static;
    /// What remains to be reported after the last byte.
    type Written: Send + 'static;

    /// Takes the next bytes.
    ///
    /// # Errors
    /// When they can't be written.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Takes the next `count` zero bytes.
    ///
    /// # Errors
    /// When they can't be written.
    fn zeros(&mut self, count: u64) -> Result<(), Self::Error>;

    /// Fills `buffer` with bytes that were written before, from `offset` of the stream on.
    ///
    /// # Errors
    /// When they can't be read back.
    fn read_back(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Self::Error>;

    /// Makes the image visible, after its last byte.
    ///
    /// # Errors
    /// When it can't be completed; then nothing is visible.
    fn finish(self) -> Result<Self::Written, Self::Error>;
}

/// Good blocks of a row, enough of them to decode it.
#[derive(Clone, Debug)]
pub struct RowBlocks {
    /// Number of the row in the checkpoint.
    pub row: u64,
    /// Its blocks, which agree with the tables of their shards.
    pub blocks: Vec<(ShardIndex, Bytes)>,
}

/// Reports of the threads.
#[derive(Debug)]
pub enum Decoded<E, W> {
    /// A row was written; its memory is free.
    Written {
        /// Number of the row.
        row: u64,
        /// Image bytes written so far, zeros included.
        image_bytes: u64,
    },
    /// All rows of the base up to this one were used; their memory is free.
    BaseUsed(u64),
    /// The image is complete.
    Finished(W),
    /// A row could not be decoded.
    Undecodable(DecodeError),
    /// The sink could not write the image.
    Failed(E),
}

/// Takes rows to decode. If it is dropped before the last row, the image is not completed.
#[derive(Debug)]
pub struct DecodePool {
    jobs: Sender<RowBlocks>,
}

impl DecodePool {
    /// Queues a row. The caller bounds the number of rows in flight.
    pub fn push(&self, row: RowBlocks) {
        // Fails only when the threads have ended, which they have reported.
        let _ = self.jobs.send(row);
    }
}

/// Earlier bytes that segments are made of.
#[derive(Debug)]
pub struct Earlier {
    /// Makes a segment of its patch and the rows that it refers to.
    pub composer: Composer,
    /// Decoded rows of the base, if segments of the image refer to it.
    pub base: Option<DecodedRows>,
    /// The segments to make; the sink gets no others.
    pub wanted: Wanted,
}

/// Starts `cpus` threads that decode and one that writes. They report to `report`, which must not block.
pub fn start<S, F>(
    public: &Public,
    summary: &Summary,
    index: Index,
    sink: S,
    cpus: usize,
    earlier: Earlier,
    report: F,
) -> DecodePool
where
    S: StreamSink,
    F: FnMut(Decoded<S::Error, S::Written>) + Send + 'static,
{
    let (pool, rows) = start_rows(public, summary, &index, cpus);
    thread::spawn(move || {
        let mut writer = Writer {
            rows,
            earlier,
            report,
            image_bytes: 0,
        };
        writer.run(&index, sink);
    });
    pool
}

/// Starts `cpus` threads that decode rows of a checkpoint with this index.
pub fn start_rows(
    public: &Public,
    summary: &Summary,
    index: &Index,
    cpus: usize,
) -> (DecodePool, DecodedRows) {
    let (jobs, queue) = channel::<RowBlocks>();
    let (done, decoded) = channel();
    let queue = Arc::new(Mutex::new(queue));
    let rows: Arc<Vec<(StoredSegment, SegmentHash)>> =
        Arc::new(index.rows().map(|(s, h)| (*s, *h)).collect());
    let buffers = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..cpus.max(1) {
        let mut decoder = row_decoder(public, summary);
        let queue = Arc::clone(&queue);
        let done = done.clone();
        let rows = Arc::clone(&rows);
        let buffers = Arc::clone(&buffers);
        thread::spawn(move || decode_all(&mut decoder, &queue, &rows, &buffers, &done));
    }
    let rows = DecodedRows {
        decoded,
        waiting: BTreeMap::new(),
        buffers,
    };
    (DecodePool { jobs }, rows)
}

/// A decoder for the rows of a checkpoint.
pub fn row_decoder(public: &Public, summary: &Summary) -> RowDecoder {
    let decoder = RowDecoder::new(public.redundancy, public.sealer(&summary.data_key));
    if summary.tail.pieces.is_empty() {
        return decoder;
    }
    decoder.with_pieces(&summary.data_key)
}

/// Decoded rows of a checkpoint, in any order in which they are asked for.
#[derive(Debug)]
pub struct DecodedRows {
    decoded: Receiver<RowResult>,
    waiting: BTreeMap<u64, DecodedRow>,
    buffers: Arc<Buffers>,
}

/// A decoded row, and the hashes of its pieces, if it is stored with them.
#[derive(Debug)]
struct DecodedRow {
    raw: Vec<u8>,
    pieces: Vec<PieceHash>,
}

impl DecodedRows {
    fn wait_for<E>(&mut self, row: u64) -> Result<DecodedRow, Stop<E>> {
        loop {
            if let Some(found) = self.waiting.remove(&row) {
                return Ok(found);
            }
            let (decoded, result) = self.decoded.recv().map_err(|_| Stop::Abandoned)?;
            self.waiting
                .insert(decoded, result.map_err(Stop::Undecodable)?);
        }
    }

    fn buffer(&self) -> Vec<u8> {
        take_buffer(&self.buffers)
    }

    fn give_back(&self, raw: Vec<u8>) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.push(raw);
    }
}

type RowResult = (u64, Result<DecodedRow, DecodeError>);
type Buffers = Mutex<Vec<Vec<u8>>>;

fn decode_all(
    decoder: &mut RowDecoder,
    queue: &Mutex<Receiver<RowBlocks>>,
    rows: &[(StoredSegment, SegmentHash)],
    buffers: &Buffers,
    done: &Sender<RowResult>,
) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(RowBlocks { row, blocks }) = job else {
            return;
        };
        let Some((stored, hash)) = usize::try_from(row).ok().and_then(|at| rows.get(at)) else {
            continue;
        };
        let blocks: Vec<(ShardIndex, &[u8])> = blocks
            .iter()
            .map(|(shard, block)| (*shard, &**block))
            .collect();
        let mut raw = take_buffer(buffers);
        let result = decoder
            .decode(row, stored, Some(hash), &blocks, &mut raw)
            .map(|pieces| DecodedRow { raw, pieces });
        if done.send((row, result)).is_err() {
            return;
        }
    }
}

fn take_buffer(buffers: &Buffers) -> Vec<u8> {
    let returned = buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
    returned.unwrap_or_default()
}

/// Whether `row` is the row of the base to which the first of these segments refers that refers to any.
fn is_next_base_row<'a>(mut segments: impl Iterator<Item = &'a SegmentEntry>, row: u64) -> bool {
    let next = segments.find_map(SegmentEntry::of_base);
    next.is_some_and(|(next, _, _)| next == row)
}

struct Writer<F> {
    rows: DecodedRows,
    earlier: Earlier,
    report: F,
    image_bytes: u64,
}

/// Why the writer stops early.
enum Stop<E> {
    Undecodable(DecodeError),
    Failed(E),
    /// No more rows come, because the restore was ended.
    Abandoned,
}

impl<F> Writer<F> {
    fn run<S>(&mut self, index: &Index, mut sink: S)
    where
        S: StreamSink,
        F: FnMut(Decoded<S::Error, S::Written>),
    {
        let written = self
            .write_all(index, &mut sink)
            .and_then(|()| sink.finish().map_err(Stop::Failed));
        match written {
            Ok(written) => (self.report)(Decoded::Finished(written)),
            Err(Stop::Undecodable(cause)) => (self.report)(Decoded::Undecodable(cause)),
            Err(Stop::Failed(cause)) => (self.report)(Decoded::Failed(cause)),
            Err(Stop::Abandoned) => {}
        }
    }

    fn write_all<S>(&mut self, index: &Index, sink: &mut S) -> Result<(), Stop<S::Error>>
    where
        S: StreamSink,
        F: FnMut(Decoded<S::Error, S::Written>),
    {
        let mut row = 0;
        for (number, segment) in index.segments.iter().enumerate() {
            if !self.earlier.wanted.has(number) {
                row += u64::from(segment.row().is_some());
                continue;
            }
            self.image_bytes += segment.bytes();
            match segment {
                SegmentEntry::Zero { bytes } => sink.zeros(*bytes).map_err(Stop::Failed)?,
                SegmentEntry::Stored { .. } => {
                    let raw = self.rows.wait_for(row)?.raw;
                    sink.write(&raw).map_err(Stop::Failed)?;
                    self.rows.give_back(raw);
                    self.report_written(row);
                    row += 1;
                }
                SegmentEntry::Patched { .. } | SegmentEntry::Part { .. } => {
                    if let Some(part) = segment.of_base() {
                        let rest = self.earlier.wanted.segments(index, number + 1);
                        let rest = rest.map(|(_, segment)| segment);
                        let is_last = !is_next_base_row(rest, part.0);
                        row += self.write_part(sink, part, row, is_last)?;
                    }
                }
                SegmentEntry::Shared { offset, patch } => {
                    let mut raw = self.rows.buffer();
                    raw.resize(patch.len as usize, 0);
                    sink.read_back(*offset, &mut raw).map_err(Stop::Failed)?;
                    let pieces = Vec::new();
                    let mut part = DecodedRow { raw, pieces };
                    self.compose(*offset, &mut part, patch, row)?;
                    sink.write(&part.raw).map_err(Stop::Failed)?;
                    self.rows.give_back(part.raw);
                    row += self.end_patch(patch, row);
                }
            }
        }
        Ok(())
    }

    fn report_written<E, W>(&mut self, row: u64)
    where
        F: FnMut(Decoded<E, W>),
    {
        let image_bytes = self.image_bytes;
        (self.report)(Decoded::Written { row, image_bytes });
    }

    /// Writes a segment that is made of a part of a row of the base. `is_last` says that no later segment is
    /// made of the same row. Returns how many rows the segment's patch used: 0 or 1.
    fn write_part<S>(
        &mut self,
        sink: &mut S,
        (base_row, from, patch): (u64, u32, &Patch),
        row: u64,
        is_last: bool,
    ) -> Result<u64, Stop<S::Error>>
    where
        S: StreamSink,
        F: FnMut(Decoded<S::Error, S::Written>),
    {
        let from = from as usize;
        let mut part = self.base_part(base_row, from..from + patch.len as usize, is_last)?;
        self.compose(base_row, &mut part, patch, row)?;
        sink.write(&part.raw).map_err(Stop::Failed)?;
        self.give_base_back(part.raw);
        if is_last {
            (self.report)(Decoded::BaseUsed(base_row));
        }
        Ok(self.end_patch(patch, row))
    }

    /// A part of a row of the base. It is copied if more of that row is needed later.
    fn base_part<E>(
        &mut self,
        row: u64,
        range: Range<usize>,
        is_last: bool,
    ) -> Result<DecodedRow, Stop<E>> {
        let Some(base) = &mut self.earlier.base else {
            return Err(Stop::Abandoned);
        };
        let DecodedRow {
            mut raw,
            mut pieces,
        } = base.wait_for(row)?;
        // Waiting rows before this one are dropped: no segment refers to them.
        base.waiting = base.waiting.split_off(&row);
        let part = raw.get(range.clone());
        let part = part.ok_or(Stop::Undecodable(DecodeError::Patch(row)))?;
        let first = range.start / PIECE_BYTES;
        let known = match range.start.is_multiple_of(PIECE_BYTES) {
            true => first..first + range.len().div_ceil(PIECE_BYTES),
            false => 0..0,
        };
        if !is_last {
            let mut copy = base.buffer();
            copy.clear();
            copy.extend_from_slice(part);
            let copied = pieces.get(known).unwrap_or_default().to_vec();
            base.waiting.insert(row, DecodedRow { raw, pieces });
            return Ok(DecodedRow {
                raw: copy,
                pieces: copied,
            });
        }
        raw.truncate(range.end);
        raw.drain(..range.start);
        pieces.truncate(known.end);
        pieces.drain(..known.start.min(pieces.len()));
        Ok(DecodedRow { raw, pieces })
    }

    /// Applies a patch to `part`, a copy of earlier bytes. The patch's new bytes, if it has any, are in
    /// `row`.
    fn compose<E>(
        &mut self,
        place: u64,
        part: &mut DecodedRow,
        patch: &Patch,
        row: u64,
    ) -> Result<(), Stop<E>> {
        let changed = match patch.row {
            Some(_) => self.rows.wait_for(row)?.raw,
            None => Vec::new(),
        };
        let raw = &mut part.raw;
        let pieces = std::mem::take(&mut part.pieces);
        let composer = &self.earlier.composer;
        let made = composer.compose(place, raw, pieces, patch, &changed);
        if patch.row.is_some() {
            self.rows.give_back(changed);
        }
        made.map_err(Stop::Undecodable)
    }

    /// Reports the row of a patch as written. Returns how many rows the patch used: 0 or 1.
    fn end_patch<E, W>(&mut self, patch: &Patch, row: u64) -> u64
    where
        F: FnMut(Decoded<E, W>),
    {
        if patch.row.is_none() {
            return 0;
        }
        self.report_written(row);
        1
    }

    fn give_base_back(&self, raw: Vec<u8>) {
        if let Some(base) = &self.earlier.base {
            base.give_back(raw);
        }
    }
}
