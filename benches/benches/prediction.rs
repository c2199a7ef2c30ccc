//! Times the prediction of temporal reliability (TR) over ten hours, the paper's dense recursion in steps of
//! 6 s against ours.

use std::hint::black_box;

use benches::predict_eval::speed::{STEPS, kernel, model, predict, summary};
use criterion::{Criterion, criterion_group, criterion_main};
use placement::state::AvailabilityState::Idle;

fn prediction(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reliability-10h-6s");
    group.sample_size(10);
    let kernel = kernel();
    group.bench_function("smp-dense", |b| {
        b.iter(|| kernel.survival_dense(black_box(Idle), STEPS))
    });
    group.bench_function("smp-sparse", |b| {
        b.iter(|| kernel.survival(black_box(Idle), STEPS))
    });
    let summary = summary();
    let model = model();
    group.bench_function("hazard-regression", |b| {
        b.iter(|| predict(black_box(&summary), &model))
    });
    group.finish();
}

criterion_group!(group, prediction);
criterion_main!(group);
