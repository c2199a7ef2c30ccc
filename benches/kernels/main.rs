//! Times the stages of the codec, beside memory copies and a Reed-Solomon library.
//!
//! `cargo bench -p benches --bench kernels [FILTER]`. Throughput is in image bytes (for parts of the
//! pipeline, in input bytes) per second of one core. Compare figures only within one run, as ratios:
//! machines are shared and their clock rates vary.

mod images;
mod pipeline;
mod rs;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};

criterion_group! {
    name = kernels;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20);
    targets = rs::encode, rs::decode, pipeline::stages, pipeline::rows
}
criterion_main!(kernels);
