//! Times the stages of the pipeline without coding, each alone, and whole rows.

use std::hint::black_box;

use codec::compress::{Compressor, Decompressor, Level, Method};
use codec::decode::RowDecoder;
use codec::encode::RowEncoder;
use codec::geometry::SEGMENT_BYTES;
use codec::pieces::PieceHasher;
use codec::seal::{Cipher, DataKey, SealContext, SegmentSealer};
use codec::segment::is_zero;
use codec::{BlockHash, CheckpointId, JobTag, Redundancy, Version};
use criterion::{Criterion, Throughput};

use crate::images;

fn sealer() -> SegmentSealer {
    let context = SealContext {
        checkpoint: CheckpointId([1; 16]),
        job_tag: JobTag([2; 32]),
        version: Version::FIRST,
    };
    SegmentSealer::new(Cipher::Aes256Gcm, &key(), context)
}

fn key() -> DataKey {
    DataKey::new([3; 32])
}

/// A function that calls `run` with the next segment each time, and begins again after the last one.
fn in_turn<T>(items: &[T], mut run: impl FnMut(&T)) -> impl FnMut() {
    let mut at = 0;
    move || {
        run(black_box(&items[at]));
        at = (at + 1) % items.len();
    }
}

/// Each stage alone.
pub(crate) fn stages(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("stage");
    group.throughput(Throughput::Bytes(SEGMENT_BYTES as u64));
    let random = images::random();
    let mut target = vec![0; SEGMENT_BYTES];
    group.bench_function("memcpy", |b| {
        b.iter(in_turn(&random, |raw| {
            black_box(&mut target).copy_from_slice(raw);
        }));
    });
    let zeros = vec![0; SEGMENT_BYTES];
    group.bench_function("zero-test", |b| b.iter(|| is_zero(black_box(&zeros))));
    let sealer = sealer();
    group.bench_function("hash/segment", |b| {
        b.iter(in_turn(&random, |raw| {
            black_box(sealer.hash(raw, None));
        }));
    });
    let hasher = PieceHasher::new(&key());
    group.bench_function("hash/pieces", |b| {
        b.iter(in_turn(&random, |raw| {
            black_box(hasher.hash(raw));
        }));
    });
    group.bench_function("hash/blocks", |b| {
        b.iter(in_turn(&random, |raw| {
            for block in raw.chunks(SEGMENT_BYTES.div_ceil(3)) {
                black_box(BlockHash::of(block));
            }
        }));
    });
    let mut buffer = random[0].clone();
    group.bench_function("seal", |b| {
        b.iter(|| {
            buffer.truncate(SEGMENT_BYTES);
            sealer.seal(0, &mut buffer, 0);
        });
    });
    for (name, segments) in images::all() {
        let mut compressor = Compressor::new(Level::DEFAULT);
        let mut out = Vec::new();
        group.bench_function(format!("compress/{name}"), |b| {
            b.iter(in_turn(&segments, |raw| {
                compressor.compress(raw, &mut out);
            }));
        });
        let stored: Vec<(Method, Vec<u8>)> = segments
            .iter()
            .map(|raw| {
                let mut out = Vec::new();
                (compressor.compress(raw, &mut out), out)
            })
            .collect();
        let mut decompressor = Decompressor::new();
        let mut out = Vec::new();
        group.bench_function(format!("decompress/{name}"), |b| {
            b.iter(in_turn(&stored, |(method, stored)| {
                let done = decompressor.decompress(*method, stored, SEGMENT_BYTES, &mut out);
                debug_assert!(done.is_ok());
            }));
        });
    }
}

/// Whole rows of 3+2: zero test, hash, compress, seal, code and hash blocks; and decoding, with all data
/// blocks and with two of them lost.
pub(crate) fn rows(criterion: &mut Criterion) {
    let redundancy = Redundancy::DEFAULT;
    let mut group = criterion.benchmark_group("row");
    group.throughput(Throughput::Bytes(SEGMENT_BYTES as u64));
    for (name, segments) in images::all() {
        let mut encoder = RowEncoder::new(redundancy, sealer(), Level::DEFAULT).with_pieces(&key());
        let mut memory = Some(Vec::new());
        group.bench_function(format!("encode/{name}"), |b| {
            b.iter(in_turn(&segments, |raw| {
                if !is_zero(raw) {
                    let blocks = memory.take().unwrap_or_default();
                    memory = Some(encoder.encode(0, raw, blocks).blocks);
                }
            }));
        });
        let stored = segments.iter().filter(|raw| !is_zero(raw));
        let rows: Vec<_> = stored
            .map(|raw| encoder.encode(0, raw, Vec::new()))
            .collect();
        for (lost, keep) in [("nothing-lost", [0, 1, 2]), ("two-lost", [2, 3, 4])] {
            let mut decoder = RowDecoder::new(redundancy, sealer()).with_pieces(&key());
            let mut raw = Vec::new();
            group.bench_function(format!("decode/{name}/{lost}"), |b| {
                b.iter(in_turn(&rows, |row| {
                    let shards = keep.map(|at| redundancy.shard(at));
                    let blocks: Vec<_> = shards
                        .into_iter()
                        .flatten()
                        .map(|shard| (shard, &row.blocks[row.block_range(shard)]))
                        .collect();
                    let done = decoder.decode(0, &row.stored, Some(&row.hash), &blocks, &mut raw);
                    debug_assert!(done.is_ok());
                }));
            });
        }
    }
}
