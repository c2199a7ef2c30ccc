//! Times Reed-Solomon coding: every kernel of this CPU, beside a library and a copy of the same bytes.

use std::hint::black_box;

use codec::Redundancy;
use codec::rs::{Coder, Kernel};
use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use reed_solomon_erasure::galois_8::ReedSolomon;

use crate::images;

/// Redundancy and length of each block.
const SHAPES: [(u8, u8, usize); 5] = [
    (3, 2, 1 << 20),
    // A segment of 1 MiB, as a save codes it.
    (3, 2, 349_531),
    (10, 4, 64 << 10),
    (16, 4, 64 << 10),
    (20, 12, 64 << 10),
];

fn blocks(redundancy: Redundancy, len: usize) -> Vec<u8> {
    let noise = images::random().concat();
    let data = redundancy.data() * len;
    let mut blocks: Vec<u8> = noise.into_iter().cycle().take(data).collect();
    blocks.resize(redundancy.total() * len, 0);
    blocks
}

fn size(len: usize) -> String {
    match len {
        len if len.is_multiple_of(1 << 20) => format!("{}MiB", len >> 20),
        len if len.is_multiple_of(1 << 10) => format!("{}KiB", len >> 10),
        len => format!("{len}B"),
    }
}

fn copy(group: &mut BenchmarkGroup<'_, WallTime>, bytes: &[u8]) {
    let mut target = bytes.to_vec();
    group.bench_function("memcpy", |b| {
        b.iter(|| black_box(&mut target).copy_from_slice(black_box(bytes)));
    });
}

/// Computes the parity of all data blocks, beside a copy of the data.
pub(crate) fn encode(criterion: &mut Criterion) {
    for (data, parity, len) in SHAPES {
        let Ok(redundancy) = Redundancy::new(data, parity) else {
            continue;
        };
        let mut group = criterion.benchmark_group(format!("encode/{redundancy}/{}", size(len)));
        let mut blocks = blocks(redundancy, len);
        group.throughput(Throughput::Bytes((redundancy.data() * len) as u64));
        copy(&mut group, &blocks[..redundancy.data() * len]);
        for kernel in Kernel::all() {
            let coder = Coder::with_kernel(redundancy, kernel);
            group.bench_function(kernel.name(), |b| {
                b.iter(|| coder.encode(black_box(&mut blocks), len));
            });
        }
        if let Ok(library) = ReedSolomon::new(redundancy.data(), redundancy.parity()) {
            group.bench_function("reed-solomon-erasure", |b| {
                b.iter(|| {
                    let mut blocks: Vec<&mut [u8]> = blocks.chunks_exact_mut(len).collect();
                    library.encode(black_box(&mut blocks))
                });
            });
        }
    }
}

/// Decodes all data blocks, with as many of them lost as there are parity blocks, beside a copy of the data,
/// which is the cost of a restore without losses.
pub(crate) fn decode(criterion: &mut Criterion) {
    for (data, parity, len) in SHAPES {
        let Ok(redundancy) = Redundancy::new(data, parity) else {
            continue;
        };
        let mut group = criterion.benchmark_group(format!("decode/{redundancy}/{}", size(len)));
        let mut blocks = blocks(redundancy, len);
        group.throughput(Throughput::Bytes((redundancy.data() * len) as u64));
        copy(&mut group, &blocks[..redundancy.data() * len]);
        Coder::new(redundancy).encode(&mut blocks, len);
        let all: Vec<_> = redundancy.shards().zip(blocks.chunks_exact(len)).collect();
        let mut out = Vec::new();
        let mut coder = Coder::new(redundancy);
        group.bench_function("nothing-lost", |b| {
            b.iter(|| coder.decode_data(black_box(&all), &mut out));
        });
        let left = &all[redundancy.parity()..];
        for kernel in Kernel::all() {
            let mut coder = Coder::with_kernel(redundancy, kernel);
            group.bench_function(kernel.name(), |b| {
                b.iter(|| coder.decode_data(black_box(left), &mut out));
            });
        }
        if let Ok(library) = ReedSolomon::new(redundancy.data(), redundancy.parity()) {
            let lost: Vec<Option<Vec<u8>>> = (0..redundancy.total())
                .map(|at| (at >= redundancy.parity()).then(|| all[at].1.to_vec()))
                .collect();
            group.bench_function("reed-solomon-erasure", |b| {
                b.iter_batched_ref(
                    || lost.clone(),
                    |lost| library.reconstruct_data(lost),
                    criterion::BatchSize::LargeInput,
                );
            });
        }
    }
}
