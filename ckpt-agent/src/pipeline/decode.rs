//! Decodes rows on all cores, and writes the image in order on a thread of its own.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use codec::decode::{Composer, DecodeError, RowDecoder};
use codec::geometry::SEGMENT_BYTES;
use codec::index::{Index, Patch, SegmentEntry};
use codec::layers::{Layer, Layered};
use codec::manifest::{Public, Summary};
use codec::seal::DataKey;
use codec::{SegmentHash, ShardIndex};

use crate::core::pick::{PiecesAtHand, SegmentNeeds, Wanted, WantedRows};
use crate::core::read::{RawRows, RowPlace};

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

/// Reads pieces of an image that are at hand.
pub trait ReadAtHand: std::fmt::Debug + Send {
    /// Which pieces these are.
    fn pieces(&self) -> &PiecesAtHand;

    /// Puts those of a segment, which begins at byte `begin` of the image, in their places in `raw`, which has the
    /// segment's length.
    ///
    /// # Errors
    /// When one can't be read any more.
    fn read(&mut self, segment: usize, begin: u64, raw: &mut [u8]) -> io::Result<()>;
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
    /// This many bytes of the image were written, zeros included.
    Written(u64),
    /// A row is not needed any more; its memory is free.
    Used(RowPlace),
    /// The image is complete.
    Finished(W),
    /// A row could not be decoded.
    Undecodable(DecodeError),
    /// The files with the pieces at hand changed meanwhile: the image has to be made without them.
    ChangedHere,
    /// The sink could not write the image.
    Failed(E),
}

/// The keys that rows of a checkpoint are decoded with.
#[derive(Clone, Debug)]
pub struct RowKeys {
    /// The key that seals them.
    pub data: DataKey,
    /// The key of the hashes of pieces, if hashes of rows are made of these.
    pub pieces: Option<DataKey>,
}

impl RowKeys {
    /// The keys of the checkpoint with this summary.
    pub fn of(summary: &Summary) -> Self {
        Self {
            data: summary.data_key.clone(),
            pieces: summary.pieces_key().cloned(),
        }
    }

    /// A decoder for the rows.
    pub fn decoder(&self, public: &Public) -> RowDecoder {
        let decoder = RowDecoder::new(public.redundancy, public.sealer(&self.data));
        match &self.pieces {
            Some(key) => decoder.with_pieces(key),
            None => decoder,
        }
    }
}

/// A checkpoint whose rows are decoded.
#[derive(Debug)]
pub struct RowSource {
    /// Its public part.
    pub public: Public,
    /// Its keys.
    pub keys: RowKeys,
    /// The rows that are needed, and how they are stored.
    pub rows: WantedRows,
}

/// Takes rows to decode. If it is dropped before the last row, the image is not completed.
#[derive(Debug)]
pub struct DecodePool {
    jobs: Sender<(usize, RowBlocks)>,
}

impl DecodePool {
    /// Queues a row of the checkpoint with this number in the list that [`start`] got. The caller bounds the number of
    /// rows in flight.
    pub fn push(&self, source: usize, row: RowBlocks) {
        // Fails only when the threads have ended, which they have reported.
        let _ = self.jobs.send((source, row));
    }
}

/// What is written of an image, and from where.
#[derive(Debug)]
pub struct ImageRows {
    /// The checkpoint of the image, then its origins.
    pub sources: Vec<RowSource>,
    /// The index of the image.
    pub index: Index,
    /// Checks segments that are made of rows of origins.
    pub composer: Composer,
    /// The segments to make; the sink gets no others.
    pub wanted: Wanted,
    /// What need not be fetched, if it was looked for.
    pub at_hand: Option<Box<dyn ReadAtHand>>,
}

/// Starts `cpus` threads that decode and one that writes. They report to `report`, which must not block.
pub fn start<S, F>(image: ImageRows, sink: S, cpus: usize, report: F) -> DecodePool
where
    S: StreamSink,
    F: FnMut(Decoded<S::Error, S::Written>) + Send + 'static,
{
    let ImageRows {
        sources,
        index,
        composer,
        wanted,
        at_hand,
    } = image;
    let pieces = at_hand.as_ref().map(|at_hand| at_hand.pieces().clone());
    let pieces = pieces.unwrap_or_default();
    let uses = LastUses::of(&index, &wanted, &pieces, sources.len());
    let (jobs, queue) = channel();
    let (done, decoded) = channel();
    let queue = Arc::new(Mutex::new(queue));
    let sources = Arc::new(sources);
    let buffers = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..cpus.max(1) {
        let queue = Arc::clone(&queue);
        let done = done.clone();
        let sources = Arc::clone(&sources);
        let buffers = Arc::clone(&buffers);
        thread::spawn(move || decode_all(&queue, &sources, &buffers, &done));
    }
    thread::spawn(move || {
        let mut writer = Writer {
            rows: DecodedRows {
                decoded,
                waiting: BTreeMap::new(),
                buffers,
            },
            uses,
            composer,
            wanted,
            pieces,
            at_hand,
            report,
            image_bytes: 0,
        };
        writer.run(&index, sink);
    });
    DecodePool { jobs }
}

/// For each checkpoint, its rows in the order in which they are used, each with the number of the last segment that
/// uses it.
struct LastUses(Vec<VecDeque<(u64, usize)>>);

impl LastUses {
    fn of(index: &Index, wanted: &Wanted, at_hand: &PiecesAtHand, sources: usize) -> Self {
        let mut uses = Self(vec![VecDeque::new(); sources]);
        let mut own = 0;
        for (number, segment) in index.segments.iter().enumerate() {
            let row = own;
            own += u64::from(segment.row().is_some());
            if !wanted.has(number) {
                continue;
            }
            let needs = SegmentNeeds::of(segment, at_hand.of(number));
            if needs.own_row().is_some() {
                uses.enter((0, row), number);
            }
            for layer in needs.layers() {
                uses.enter(place_of(layer), number);
            }
        }
        uses
    }

    fn enter(&mut self, (source, row): RowPlace, segment: usize) {
        let Some(rows) = self.0.get_mut(source) else {
            return;
        };
        match rows.back_mut() {
            Some((last, until)) if *last == row => *until = segment,
            _ => rows.push_back((row, segment)),
        }
    }

    /// Whether a segment is the last one that uses the row, which is the next one of its checkpoint.
    fn ends(&mut self, (source, row): RowPlace, segment: usize) -> bool {
        let Some(rows) = self.0.get_mut(source) else {
            return true;
        };
        let ends = rows.front() == Some(&(row, segment));
        if ends {
            rows.pop_front();
        }
        ends
    }
}

/// The row of a layer.
fn place_of(layer: &Layer) -> RowPlace {
    (usize::from(layer.origin) + 1, layer.row)
}

/// Decoded rows, in any order in which they are asked for.
#[derive(Debug)]
struct DecodedRows {
    decoded: Receiver<RowResult>,
    waiting: RawRows,
    buffers: Arc<Buffers>,
}

impl DecodedRows {
    /// Waits until a row is there.
    fn wait_for<E>(&mut self, place: RowPlace) -> Result<(), Stop<E>> {
        while !self.waiting.contains_key(&place) {
            let (decoded, result) = self.decoded.recv().map_err(|_| Stop::Abandoned)?;
            self.waiting
                .insert(decoded, result.map_err(Stop::Undecodable)?);
        }
        Ok(())
    }

    fn get(&self, place: RowPlace) -> Option<&[u8]> {
        self.waiting.get(&place).map(Vec::as_slice)
    }

    fn buffer(&self) -> Vec<u8> {
        take_buffer(&self.buffers)
    }

    fn give_back(&self, raw: Vec<u8>) {
        if raw.capacity() <= REUSED_BYTES_MIN {
            return;
        }
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.push(raw);
    }
}

/// Shorter buffers are not used again.
const REUSED_BYTES_MIN: usize = SEGMENT_BYTES / 2;

type RowResult = (RowPlace, Result<Vec<u8>, DecodeError>);
type Buffers = Mutex<Vec<Vec<u8>>>;

fn decode_all(
    queue: &Mutex<Receiver<(usize, RowBlocks)>>,
    sources: &[RowSource],
    buffers: &Buffers,
    done: &Sender<RowResult>,
) {
    let mut decoders: BTreeMap<usize, RowDecoder> = BTreeMap::new();
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((source, RowBlocks { row, blocks })) = job else {
            return;
        };
        let Some(from) = sources.get(source) else {
            continue;
        };
        let Some((stored, hash)) = from.rows.get(&row) else {
            continue;
        };
        let decoder = decoders
            .entry(source)
            .or_insert_with(|| from.keys.decoder(&from.public));
        let blocks: Vec<(ShardIndex, &[u8])> = blocks
            .iter()
            .map(|(shard, block)| (*shard, &**block))
            .collect();
        // A short row does not keep the memory of a long one.
        let mut raw = match stored.raw_len as usize > REUSED_BYTES_MIN {
            true => take_buffer(buffers),
            false => Vec::new(),
        };
        let result = decoder
            .decode(row, stored, hash.as_ref(), &blocks, &mut raw)
            .map(|()| raw);
        if done.send(((source, row), result)).is_err() {
            return;
        }
    }
}

fn take_buffer(buffers: &Buffers) -> Vec<u8> {
    let returned = buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
    returned.unwrap_or_default()
}

struct Writer<F> {
    rows: DecodedRows,
    uses: LastUses,
    composer: Composer,
    wanted: Wanted,
    pieces: PiecesAtHand,
    at_hand: Option<Box<dyn ReadAtHand>>,
    report: F,
    image_bytes: u64,
}

/// A segment that is being made.
#[derive(Clone, Copy)]
struct Making {
    number: usize,
    /// The byte of the image at which it begins.
    begin: u64,
    /// Its own row, if it has one.
    own: RowPlace,
    /// Which of its pieces are at hand.
    at_hand: u64,
}

/// Why the writer stops early.
enum Stop<E> {
    Undecodable(DecodeError),
    Failed(E),
    ChangedHere,
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
            Err(Stop::ChangedHere) => (self.report)(Decoded::ChangedHere),
            Err(Stop::Abandoned) => {}
        }
    }

    fn write_all<S>(&mut self, index: &Index, sink: &mut S) -> Result<(), Stop<S::Error>>
    where
        S: StreamSink,
        F: FnMut(Decoded<S::Error, S::Written>),
    {
        let mut row = 0;
        let mut begin = 0;
        for (number, segment) in index.segments.iter().enumerate() {
            let making = Making {
                number,
                begin,
                own: (0, row),
                at_hand: self.pieces.of(number),
            };
            row += u64::from(segment.row().is_some());
            begin += segment.bytes();
            if !self.wanted.has(number) {
                continue;
            }
            self.write_segment(sink, segment, making)?;
            self.image_bytes += segment.bytes();
            (self.report)(Decoded::Written(self.image_bytes));
            let needs = SegmentNeeds::of(segment, making.at_hand);
            let own = needs.own_row().map(|_| making.own);
            for place in needs.layers().map(place_of).chain(own) {
                self.release(place, number);
            }
        }
        Ok(())
    }

    fn write_segment<S: StreamSink>(
        &mut self,
        sink: &mut S,
        segment: &SegmentEntry,
        making: Making,
    ) -> Result<(), Stop<S::Error>> {
        let own = making.own;
        match segment {
            SegmentEntry::Zero { bytes } => sink.zeros(*bytes).map_err(Stop::Failed),
            SegmentEntry::Stored { hash, .. } => {
                if SegmentNeeds::of(segment, making.at_hand)
                    .own_row()
                    .is_none()
                {
                    return self.write_at_hand(sink, segment.bytes(), hash, making);
                }
                self.rows.wait_for(own)?;
                let raw = self.rows.get(own).unwrap_or_default();
                sink.write(raw).map_err(Stop::Failed)
            }
            SegmentEntry::Shared { offset, patch } => self.write_shared(sink, *offset, patch, own),
            SegmentEntry::Layered(layered) => self.write_layered(sink, segment, layered, making),
            // The index of a version with a base was read together with that of the base.
            SegmentEntry::Patched { .. } | SegmentEntry::Part { .. } => {
                Err(Stop::Undecodable(DecodeError::Patch(making.begin)))
            }
        }
    }

    /// Writes a segment of `len` bytes that is at hand as a whole.
    fn write_at_hand<S: StreamSink>(
        &mut self,
        sink: &mut S,
        len: u64,
        hash: &SegmentHash,
        making: Making,
    ) -> Result<(), Stop<S::Error>> {
        let mut raw = self.rows.buffer();
        raw.resize(usize::try_from(len).unwrap_or_default(), 0);
        self.read_at_hand(making, &mut raw)?;
        let checked = self.composer.check(making.begin, &raw, hash);
        checked.map_err(|_| Stop::ChangedHere)?;
        sink.write(&raw).map_err(Stop::Failed)?;
        self.rows.give_back(raw);
        Ok(())
    }

    /// Puts the pieces at hand of a segment in their places.
    fn read_at_hand<E>(&mut self, making: Making, raw: &mut [u8]) -> Result<(), Stop<E>> {
        let Some(files) = self.at_hand.as_mut().filter(|_| making.at_hand != 0) else {
            return Ok(());
        };
        let read = files.read(making.number, making.begin, raw);
        read.map_err(|_| Stop::ChangedHere)
    }

    /// Drops a row if no segment after this one uses it.
    fn release<E, W>(&mut self, place: RowPlace, segment: usize)
    where
        F: FnMut(Decoded<E, W>),
    {
        if self.uses.ends(place, segment) {
            if let Some(raw) = self.rows.waiting.remove(&place) {
                self.rows.give_back(raw);
            }
            (self.report)(Decoded::Used(place));
        }
    }

    /// Writes a segment that repeats earlier bytes of the image, but for those in its `own` row.
    fn write_shared<S: StreamSink>(
        &mut self,
        sink: &mut S,
        offset: u64,
        patch: &Patch,
        own: RowPlace,
    ) -> Result<(), Stop<S::Error>> {
        let mut raw = self.rows.buffer();
        raw.resize(patch.len as usize, 0);
        sink.read_back(offset, &mut raw).map_err(Stop::Failed)?;
        if patch.row.is_some() {
            self.rows.wait_for(own)?;
        }
        let changed = self.rows.get(own).filter(|_| patch.row.is_some());
        let made = self
            .composer
            .patch(offset, &mut raw, patch, changed.unwrap_or_default());
        made.map_err(Stop::Undecodable)?;
        sink.write(&raw).map_err(Stop::Failed)?;
        self.rows.give_back(raw);
        Ok(())
    }

    /// Writes a segment that is made of rows of origins, of its own row, and of what is at hand.
    fn write_layered<S: StreamSink>(
        &mut self,
        sink: &mut S,
        segment: &SegmentEntry,
        layered: &Layered,
        making: Making,
    ) -> Result<(), Stop<S::Error>> {
        let needs = SegmentNeeds::of(segment, making.at_hand);
        for layer in needs.layers() {
            self.rows.wait_for(place_of(layer))?;
        }
        let needs_own = needs.own_row().is_some();
        if needs_own {
            self.rows.wait_for(making.own)?;
        }
        let mut raw = self.rows.buffer();
        raw.resize(layered.len as usize, 0);
        self.read_at_hand(making, &mut raw)?;
        let rows = &self.rows;
        let new = rows.get(making.own).filter(|_| needs_own);
        let find = |layer: &Layer| rows.get(place_of(layer));
        let new = new.unwrap_or_default();
        let Making { begin, at_hand, .. } = making;
        let composer = &self.composer;
        let made = composer.compose(begin, &mut raw, layered, at_hand, find, new);
        made.map_err(|cause| match at_hand {
            0 => Stop::Undecodable(cause),
            _ => Stop::ChangedHere,
        })?;
        sink.write(&raw).map_err(Stop::Failed)?;
        self.rows.give_back(raw);
        Ok(())
    }
}
