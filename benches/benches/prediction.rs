//! Times the prediction of temporal reliability (TR) over ten hours, the paper's dense recursion in steps of
//! 6 s against ours, and the refit of a model to a thousand hosts.

use std::hint::black_box;

use benches::predict_eval::speed::{STEPS, kernel, model, predict, summary};
use criterion::{Criterion, criterion_group, criterion_main};
use placement::hazard::refit::refit;
use placement::hazard::{Contribution, Forecaster, HazardModel, Sums};
use placement::state::AvailabilityState::Idle;
use placement::state::Presence;

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

fn learning(criterion: &mut Criterion) {
    let shipped = HazardModel::pretrained();
    let sums: Vec<Sums> = (1..=1000u64)
        .map(|number| {
            let mut host = Forecaster::<Presence>::learning(0);
            for day in 0..28 {
                let from = day * 86_400;
                let until = (day + 1) * 86_400 - number;
                host.observe(&shipped, from..until, Some(Presence::Here), None);
                host.observe(&shipped, until..until + number, Some(Presence::Away), None);
            }
            host.sums().cloned().unwrap_or_default()
        })
        .collect();
    let contributions: Vec<Contribution<'_>> = sums
        .iter()
        .map(|sums| Contribution {
            sums,
            days_known: 28.0,
        })
        .collect();
    criterion.bench_function("refit-1000-hosts", |b| {
        b.iter(|| refit(&shipped, black_box(&contributions)))
    });
    let numbers: Vec<Vec<f32>> = sums.iter().map(Sums::to_numbers).collect();
    criterion.bench_function("check-sums-of-1000-hosts", |b| {
        b.iter(|| {
            let checked = numbers.iter().map(|numbers| Sums::from_numbers(numbers));
            checked.filter(Result::is_ok).count()
        })
    });
}

criterion_group!(group, prediction, learning);
criterion_main!(group);
