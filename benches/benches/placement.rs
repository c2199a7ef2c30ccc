//! Times the choice of hosts among many: exact for independent hosts, with correlation, and with the code.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use placement::bandwidth::RateForecast;
use placement::bitmap::{Availability, Slot};
use placement::joint::{Compute, Correlated, DomainId, Member};
use placement::objective::{Candidate, Stake, Width};
use placement::redundancy::{Aim, Bounds, choose_with_code};
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
            free_bytes: u64::MAX,
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
        let up = random.random_ratio(9, 10);
        let length = random.random_range(5..300);
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
    }
    group.finish();
}

/// The choice of hosts and code in a pool whose hosts are away now and then: a target that a cheap code reaches,
/// one that a dear one reaches, and one that none does.
fn auto(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("auto");
    group.sample_size(20);
    let mut random = SmallRng::seed_from_u64(2);
    let pasts: Vec<AvailabilityBitmap> = (0..200).map(|_| past(&mut random)).collect();
    for hosts in [40, 1_000, 100_000] {
        let mut candidates = pool(hosts);
        for candidate in &mut candidates {
            candidate.readable = Probability::saturating(random.random_range(0.6..0.97));
        }
        // Announcements of at most 2,000 hosts are compared.
        let members = candidates.iter().enumerate().map(|(i, candidate)| Member {
            readable: candidate.readable,
            domains: candidate.domains,
            past: pasts.get(i % pasts.len()).filter(|_| i < 2_000).cloned(),
        });
        let compute = Compute {
            survives: Probability::saturating(0.9),
            domains: [Some(DomainId(1)), None],
            failures: pasts.first().map(AvailabilityBitmap::failures),
            restart_seconds: 600,
        };
        let joint = Correlated::learn(members.collect(), Some(compute));
        group.bench_with_input(
            BenchmarkId::new("usual", hosts),
            &candidates,
            |b, candidates| {
                b.iter(|| {
                    choose_with_code(
                        black_box(candidates),
                        &stake(),
                        &joint,
                        Aim::LeastLoss,
                        Bounds::usual(hosts),
                    )
                });
            },
        );
        for target in [0.9, 0.99, 0.999_999_9] {
            group.bench_with_input(
                BenchmarkId::new(format!("{target}"), hosts),
                &candidates,
                |b, candidates| {
                    let target = Probability::saturating(target);
                    b.iter(|| {
                        choose_with_code(
                            black_box(candidates),
                            &stake(),
                            &joint,
                            Aim::Reliability(target),
                            Bounds::ASKED,
                        )
                    });
                },
            );
        }
    }
    group.finish();
}

criterion_group!(group, placement, auto);
criterion_main!(group);
