//! What the stages of the codec cost, beside memory copies and the Reed-Solomon library.
//!
//! `cargo bench -p benches --bench kernels [FILTER]`. Throughput is image bytes (or, for parts of
//! the pipeline, input bytes) per second of one core. Only ratios within one run mean something:
//! machines are shared and their clocks vary.

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
