//! Times the choice of hosts among many: exact for independent hosts, with correlation, and with the code.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use placement::bandwidth::RateForecast;
use placement::bitmap::{Availability, Slot};
use placement::joint::{Correlated, DomainId, Member};
use placement::objective::{Candidate, Stake, Width};
use placement::redundancy::cheapest;
use placement::select::{choose, choose_independent};
use placement::{AvailabilityBitmap, Probability};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Random hosts at a hundred sites: rates from 1e5 to 1e9 bytes/s, and all reliabilities.
fn pool(hosts: usize) -> Vec<Candidate> {
    let mut random = SmallRng::seed_from_u64(hosts as u64);
    let mut host = || -> Option<Candidate> {
        Some(Candidate {
            rate: RateForecast::new(10_f64.powf(random.random_range(5.0..9.0)), 0.3)?,
            rtt_seconds: random.random_range(0.000_1..0.2),
            readable: Probability::saturating(1.0 - random.random::<f64>().powi(3)),
            domains: [
                Some(DomainId(random.random_range(0..100))),
                Some(DomainId(random.random())),
            ],
            draw: random.random(),
        })
    };
    (0..hosts).filter_map(|_| host()).collect()
}

/// A random past of 28 days, in slots of 5 minutes, of a host that is gone for a tenth of its stretches.
fn past(random: &mut SmallRng) -> AvailabilityBitmap {
    let mut bitmap = AvailabilityBitmap::unknown(Slot(8063));
    let mut slot = 0;
    while slot < 8064 {
        let (up, length) = (random.random_ratio(9, 10), random.random_range(5..300));
        for slot in slot..(slot + length).min(8064) {
            let seen = if up {
                Availability::Usable
            } else {
                Availability::NotUsable
            };
            bitmap.record(Slot(slot), seen);
        }
        slot += length;
    }
    bitmap
}

fn stake() -> Stake {
    Stake {
        stored_bytes: 700 << 20,
        width: Width::FALCON,
        lead_seconds: 0.2,
        uplink_bytes_per_second: Some(125e6),
        need: Probability::saturating(0.2),
        work_seconds: 1800.0,
    }
}

fn placement(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("choose");
    group.sample_size(20);
    let mut random = SmallRng::seed_from_u64(1);
    let pasts: Vec<AvailabilityBitmap> = (0..200).map(|_| past(&mut random)).collect();
    for hosts in [40, 100, 1_000, 10_000, 100_000] {
        let candidates = pool(hosts);
        group.bench_with_input(
            BenchmarkId::new("independent", hosts),
            &candidates,
            |b, candidates| {
                b.iter(|| choose_independent(black_box(candidates), &stake()));
            },
        );
        let members = candidates.iter().enumerate().map(|(i, candidate)| Member {
            readable: candidate.readable,
            domains: candidate.domains,
            past: pasts.get(i % pasts.len()).cloned(),
        });
        let joint = Correlated::learn(members.collect(), None);
        group.bench_with_input(
            BenchmarkId::new("correlated", hosts),
            &candidates,
            |b, candidates| {
                b.iter(|| choose(black_box(candidates), &stake(), &joint));
            },
        );
        for target in [0.97, 0.999, 0.999_999_9] {
            group.bench_with_input(
                BenchmarkId::new(format!("auto {target}"), hosts),
                &candidates,
                |b, candidates| {
                    let target = Probability::saturating(target);
                    b.iter(|| cheapest(black_box(candidates), &stake(), &joint, target));
                },
            );
        }
    }
    group.finish();
}

criterion_group!(group, placement);
criterion_main!(group);
