//! Segments of several kinds for measurements.

use codec::geometry::SEGMENT_BYTES;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Every kind of segment, by name.
pub(crate) fn all() -> [(&'static str, Vec<Vec<u8>>); 3] {
    [
        ("memory", memory()),
        ("random", random()),
        ("sparse", sparse()),
    ]
}

/// Like the memory of a numerical job: smooth fields with noise in their low bits, uniform random
/// numbers, zero pages, sorted indices, in the proportions 3:3:2:2.
pub(crate) fn memory() -> Vec<Vec<u8>> {
    let mut rng = SmallRng::seed_from_u64(12345);
    let words = SEGMENT_BYTES / 8;
    let smooth = |rng: &mut SmallRng, segment: usize| -> Vec<u8> {
        let field = |x: usize| {
            let x = x as f64;
            let y = segment as f64;
            let wave = 10.0 * (y * 0.002 + x * 0.0007).sin() + (y * 0.01).cos() * (x * 0.003).sin();
            300.0 + wave + 1e-9 * rng.random_range(-1.0..1.0)
        };
        (0..words).map(field).flat_map(f64::to_le_bytes).collect()
    };
    let uniform = |rng: &mut SmallRng| -> Vec<u8> {
        let numbers = (0..words).map(|_| rng.random::<f64>());
        numbers.flat_map(f64::to_le_bytes).collect()
    };
    let sorted = |rng: &mut SmallRng| -> Vec<u8> {
        let mut indices: Vec<u64> = (0..words).map(|_| rng.random_range(0..5_000_000)).collect();
        for row in indices.chunks_mut(8192) {
            row.sort_unstable();
        }
        indices.into_iter().flat_map(u64::to_le_bytes).collect()
    };
    (0..10)
        .map(|segment| match segment {
            0..3 => smooth(&mut rng, segment),
            3..6 => uniform(&mut rng),
            6..8 => vec![0; SEGMENT_BYTES],
            _ => sorted(&mut rng),
        })
        .collect()
}

/// Random bytes, which can't be compressed.
pub(crate) fn random() -> Vec<Vec<u8>> {
    let mut rng = SmallRng::seed_from_u64(1);
    (0..4)
        .map(|_| {
            let mut segment = vec![0; SEGMENT_BYTES];
            rng.fill(&mut segment[..]);
            segment
        })
        .collect()
}

/// Zeros, with 200 random bytes in every sixteenth page of 4 KiB.
pub(crate) fn sparse() -> Vec<Vec<u8>> {
    let mut rng = SmallRng::seed_from_u64(2);
    (0..4)
        .map(|_| {
            let mut segment = vec![0; SEGMENT_BYTES];
            for page in segment.chunks_exact_mut(4096).step_by(16) {
                rng.fill(&mut page[..200]);
            }
            segment
        })
        .collect()
}
