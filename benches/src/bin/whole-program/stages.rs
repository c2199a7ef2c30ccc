//! Each necessary stage alone, on all cores, with everything in memory or in the page cache.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};
use codec::compress::{Compressor, Decompressor, Level, Method};
use codec::geometry::SEGMENT_BYTES;
use codec::hash::BlockHash;
use codec::pieces::PieceHasher;
use codec::rs::Coder;
use codec::seal::{Cipher, DataKey, SealContext, SegmentSealer};
use codec::{CheckpointId, JobTag, Redundancy, Version};
use direct_io::{DirectFile, DirectReader};

use super::{Costs, threads};

/// The level that the program chooses if processors are the bottleneck.
const LEVEL: Level = Level::of::<-5>();

/// A segment on its way through the stages.
struct Segment {
    raw_len: usize,
    method: Method,
    stored_len: usize,
    /// The compressed segment, then the sealed segment, then all blocks of its row.
    bytes: Vec<u8>,
    sealed_len: usize,
    block_len: usize,
}

pub(crate) fn measure(costs: &mut Costs, image: &Path, dir: &Path) -> Result<()> {
    let raw = fs::read(image)?;
    costs.time("zstd -3 to a file, synced", || {
        let mut out = zstd::Encoder::new(File::create(dir.join("zst"))?, 3)?;
        out.write_all(&raw)?;
        Ok(out.finish()?.sync_all()?)
    })?;
    let mut segments = save_stages(costs, image, &raw, dir)?;
    restore_stages(costs, &raw, &mut segments, dir)
}

fn save_stages(costs: &mut Costs, image: &Path, raw: &[u8], dir: &Path) -> Result<Vec<Segment>> {
    costs.time("save: read", || read_all(image))?;
    costs.time("save: hash segments", || hash_segments(raw))?;
    // The compressed bytes are thrown away, because the program reuses its memory, too.
    costs.time("save: compress", || {
        compress(raw, |_| ());
        Ok(())
    })?;
    let kept = Mutex::new(Vec::new());
    compress(raw, |mut segment| {
        // Memory for sealing and coding is allocated here, outside of their measurement.
        segment.bytes.resize(2 * SEGMENT_BYTES, 0);
        segment.bytes.truncate(segment.stored_len);
        if let Ok(mut kept) = kept.lock() {
            kept.push(segment);
        }
    });
    let mut segments = kept.into_inner().unwrap_or_default();
    let sealer = sealer();
    costs.time("save: seal", || {
        on_all(segments.iter_mut(), |segment| {
            sealer.seal(0, &mut segment.bytes, 0);
        });
        Ok(())
    })?;
    let redundancy = Redundancy::DEFAULT;
    let coder = Coder::new(redundancy);
    on_all(segments.iter_mut(), |segment| {
        segment.sealed_len = segment.bytes.len();
        segment.block_len = redundancy.block_len(segment.bytes.len());
        let row = redundancy.total() * segment.block_len;
        segment.bytes.resize(row, 0);
    });
    costs.time("save: code", || {
        on_all(segments.iter_mut(), |segment| {
            coder.encode(&mut segment.bytes, segment.block_len);
        });
        Ok(())
    })?;
    let all = redundancy.total();
    costs.time("save: hash blocks", || hash_blocks(&segments, all))?;
    let total: usize = segments.iter().map(|segment| segment.bytes.len()).sum();
    costs.time("save: QUIC", || benches::quic::transfer(total, all))?;
    costs.time("save: hash blocks at the hosts", || {
        hash_blocks(&segments, all)
    })?;
    costs.time("save: write five files, sync", || {
        write_shards(&segments, dir)
    })?;
    Ok(segments)
}

fn restore_stages(
    costs: &mut Costs,
    raw: &[u8],
    segments: &mut [Segment],
    dir: &Path,
) -> Result<()> {
    let data = Redundancy::DEFAULT.data();
    costs.time("restore: read three files", || {
        (0..data).try_for_each(|shard| read_all(&dir.join(format!("shard{shard}"))))
    })?;
    let total: usize = segments.iter().map(|one| data * one.block_len).sum();
    costs.time("restore: QUIC", || benches::quic::transfer(total, data))?;
    costs.time("restore: hash blocks", || hash_blocks(segments, data))?;
    let sealer = sealer();
    on_all(segments.iter_mut(), |segment| {
        segment.bytes.truncate(segment.sealed_len);
    });
    costs.time("restore: open", || {
        on_all(segments.iter_mut(), |segment| {
            std::hint::black_box(sealer.open(0, &mut segment.bytes).is_ok());
        });
        Ok(())
    })?;
    costs.time("restore: decompress", || decompress(segments, &sealer))?;
    costs.time("restore: hash segments", || hash_segments(raw))?;
    costs.time("restore: write, sync", || {
        let mut out = DirectFile::new(File::create(dir.join("image.out"))?);
        out.write_at(raw, 0)?;
        Ok(out.into_file()?.sync_data()?)
    })
}

fn sealer() -> SegmentSealer {
    let context = SealContext {
        checkpoint: CheckpointId([0; 16]),
        job_tag: JobTag([0; 32]),
        version: Version::FIRST,
    };
    SegmentSealer::new(Cipher::Aes256Gcm, &DataKey::new([1; 32]), context)
}

/// Does `work` for all items on all threads.
fn on_all<T: Send>(items: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    let items = Mutex::new(items);
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                loop {
                    let next = match items.lock() {
                        Ok(mut items) => items.next(),
                        Err(_) => None,
                    };
                    let Some(item) = next else { return };
                    work(item);
                }
            });
        }
    });
}

fn hash_segments(raw: &[u8]) -> Result<()> {
    let hasher = PieceHasher::new(&DataKey::new([1; 32]));
    on_all(raw.chunks(SEGMENT_BYTES), |segment| {
        if !codec::segment::is_zero(segment) {
            std::hint::black_box(hasher.hash(segment));
        }
    });
    Ok(())
}

fn hash_blocks(segments: &[Segment], blocks: usize) -> Result<()> {
    on_all(segments.iter(), |segment| {
        for block in segment.bytes.chunks_exact(segment.block_len).take(blocks) {
            std::hint::black_box(BlockHash::of(block));
        }
    });
    Ok(())
}

/// Compresses all segments with one context for each thread, and passes each compressed segment to `keep`.
fn compress(raw: &[u8], keep: impl Fn(Segment) + Sync) {
    let segments = Mutex::new(raw.chunks(SEGMENT_BYTES));
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                let mut compressor = Compressor::new(LEVEL);
                let mut bytes = Vec::new();
                loop {
                    let next = segments.lock().ok().and_then(|mut all| all.next());
                    let Some(segment) = next else { return };
                    if codec::segment::is_zero(segment) {
                        continue;
                    }
                    let method = compressor.compress(segment, &mut bytes);
                    keep(Segment {
                        raw_len: segment.len(),
                        method,
                        stored_len: bytes.len(),
                        bytes: bytes.clone(),
                        sealed_len: 0,
                        block_len: 0,
                    });
                }
            });
        }
    });
}

fn decompress(segments: &[Segment], sealer: &SegmentSealer) -> Result<()> {
    let overhead = sealer.overhead();
    let segments = Mutex::new(segments.iter());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads())
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    let mut decompressor = Decompressor::new();
                    let mut raw = Vec::new();
                    loop {
                        let next = segments.lock().ok().and_then(|mut all| all.next());
                        let Some(segment) = next else { return Ok(()) };
                        let stored = segment.sealed_len - overhead;
                        let stored = segment.bytes.get(..stored).context("too short")?;
                        decompressor.decompress(
                            segment.method,
                            stored,
                            segment.raw_len,
                            &mut raw,
                        )?;
                    }
                })
            })
            .collect();
        let ended = workers.into_iter().map(|worker| {
            let ended = worker.join();
            ended.unwrap_or_else(|_| anyhow::bail!("a worker panicked"))
        });
        ended.collect()
    })
}

/// Reads a file as the program does: without the page cache, unless the file is in it.
fn read_all(path: &Path) -> Result<()> {
    let file = DirectReader::new(File::open(path)?);
    let mut memory = Vec::new();
    let mut buffer = vec![0; SEGMENT_BYTES];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut memory, &mut buffer, at)?;
        if read == 0 {
            return Ok(());
        }
        at += read as u64;
    }
}

fn write_shards(segments: &[Segment], dir: &Path) -> Result<()> {
    std::thread::scope(|scope| -> Result<()> {
        let writers: Vec<_> = (0..Redundancy::DEFAULT.total())
            .map(|shard| {
                scope.spawn(move || -> Result<()> {
                    let file = File::create(dir.join(format!("shard{shard}")))?;
                    let mut out = DirectFile::new(file);
                    let mut at = 0;
                    for segment in segments {
                        let block = segment.block_len;
                        out.write_at(&segment.bytes[shard * block..(shard + 1) * block], at)?;
                        at += block as u64;
                    }
                    Ok(out.into_file()?.sync_data()?)
                })
            })
            .collect();
        for writer in writers {
            writer
                .join()
                .map_err(|_| anyhow::anyhow!("a writer failed"))??;
        }
        Ok(())
    })
}
