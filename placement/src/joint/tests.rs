use super::*;
use crate::bitmap::{Availability, SLOTS};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const SITE: usize = 0;

fn p(value: f64) -> Probability {
    Probability::new(value).unwrap()
}

fn bitmap(mut up: impl FnMut(u64) -> bool) -> AvailabilityBitmap {
    let mut bitmap = AvailabilityBitmap::unknown(Slot(SLOTS as u64 - 1));
    for slot in 0..SLOTS as u64 {
        let seen = if up(slot) {
            Availability::Usable
        } else {
            Availability::NotUsable
        };
        bitmap.record(Slot(slot), seen);
    }
    bitmap
}

fn member(readable: f64, site: u32, past: Option<AvailabilityBitmap>) -> Member {
    Member {
        readable: p(readable),
        domains: [Some(DomainId(site)), None],
        past,
    }
}

/// Outages of two hours that cover about `per_mille` of a thousand slots; `true` is down.
fn outages(seed: u64, per_mille: u32) -> Vec<bool> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut down = vec![false; SLOTS];
    let mut slot = 0;
    while slot < SLOTS {
        if random.random_ratio(per_mille, 24_000) {
            for down in down.iter_mut().skip(slot).take(24) {
                *down = true;
            }
            slot += 24;
        } else {
            slot += 1;
        }
    }
    down
}

fn enumerate(probabilities: &[f64], needed: usize) -> f64 {
    let n = probabilities.len();
    (0..1_u32 << n)
        .filter(|set| set.count_ones() as usize >= needed)
        .map(|set| {
            let of = |i: usize, q: f64| if set >> i & 1 == 1 { q } else { 1.0 - q };
            probabilities
                .iter()
                .enumerate()
                .map(|(i, q)| of(i, *q))
                .product::<f64>()
        })
        .sum()
}

#[test]
fn tails_of_equal_hosts_are_those_of_the_binomial() {
    let of = |q: f64, n: usize, m: usize| 1.0 - at_least(vec![p(q); n], m).value();
    // Losses of 3-of-5 and 6-of-10 codes.
    assert!((of(0.9, 5, 3) - 8.56e-3).abs() < 1e-5);
    assert!((of(0.97, 5, 3) - 2.58e-4).abs() < 1e-6);
    assert!((of(0.97, 10, 6) - 5.4e-6).abs() < 1e-7);
    assert!((of(0.76, 20, 16) - 0.544).abs() < 1e-3);
    assert_eq!(at_least([], 0), Probability::ONE);
    assert_eq!(at_least([], 1), Probability::ZERO);
}

#[test]
fn without_data_hosts_are_independent() {
    let hosts: Vec<Member> = (0..5).map(|i| member(0.9, i % 2, None)).collect();
    let correlated = Correlated::learn(hosts, None);
    let expected = at_least(vec![p(0.9); 5], 3);
    let all = [0, 1, 2, 3, 4];
    assert!((correlated.at_least(&all, 3).value() - expected.value()).abs() < 1e-12);
    assert_eq!(correlated.observations(&all), 0.0);
}

#[test]
fn sites_that_fail_together_are_found_and_spread_over() {
    // Four sites of five hosts; each site fails as a whole for 2% of the time, each host for 1%.
    let mut hosts = Vec::new();
    for site in 0..4 {
        let together = outages(100 + u64::from(site), 20);
        for host in 0..5 {
            let own = outages(u64::from(site * 10 + host), 10);
            let past = bitmap(|slot| !together[slot as usize] && !own[slot as usize]);
            hosts.push(member(0.97, site, Some(past)));
        }
    }
    let correlated = Correlated::learn(hosts, None);
    assert!(
        correlated.correlation(0, 1) > 0.4,
        "{}",
        correlated.correlation(0, 1)
    );
    assert!(
        correlated.correlation(0, 5) < 0.1,
        "{}",
        correlated.correlation(0, 5)
    );
    let together = correlated.at_least(&[0, 1, 2, 3, 4], 3);
    let split = correlated.at_least(&[0, 1, 2, 5, 6], 3);
    let spread = correlated.at_least(&[0, 1, 5, 10, 15], 3);
    assert!(together.value() < 0.99, "{together}");
    assert!(
        split.value() < 0.99,
        "three in one site are no better: {split}"
    );
    assert!(
        spread.complement().value() * 3.0 < together.complement().value(),
        "{spread}"
    );
}

#[test]
fn a_host_in_the_site_of_the_compute_host_is_of_less_use() {
    let mut hosts = Vec::new();
    for site in 0..2 {
        let together = outages(7 + u64::from(site), 30);
        for _ in 0..5 {
            let together = together.clone();
            hosts.push(member(
                0.97,
                site,
                Some(bitmap(|slot| !together[slot as usize])),
            ));
        }
    }
    let compute = Compute {
        survives: p(0.9),
        domains: [Some(DomainId(0)), None],
        failures: None,
        restart_seconds: 300,
    };
    let correlated = Correlated::learn(hosts, Some(compute));
    let near = correlated.at_least(&[0, 1, 2], 2);
    let far = correlated.at_least(&[5, 6, 7], 2);
    assert!(near < far, "{near} {far}");
}

/// Whether a desktop is up that is used for ten hours a day.
const fn by_day(slot: u64) -> bool {
    slot % 288 < 120
}

/// A compute host that hardly ever fails, in `site`.
fn steady_compute(site: u32) -> Compute {
    Compute {
        survives: p(0.9995),
        domains: [Some(DomainId(site)), None],
        failures: None,
        restart_seconds: 600,
    }
}

#[test]
fn servers_that_stay_are_not_hit_when_the_desktops_around_them_go_home() {
    let servers = (0..6).map(|site| member(0.999, site, Some(bitmap(|_| true))));
    let desktops = (6..26).map(|site| member(0.4, site, Some(bitmap(by_day))));
    let hosts = servers.chain(desktops).collect();
    let correlated = Correlated::learn(hosts, Some(steady_compute(99)));
    let servers = correlated.at_least(&[0, 1, 2, 3, 4], 3);
    let mixed = correlated.at_least(&[0, 1, 2, 6, 7], 3);
    let desktops = correlated.at_least(&[6, 7, 8, 9, 10], 3);
    assert!(servers.value() > 0.98, "{servers}");
    assert!(mixed.value() > 0.9, "{mixed}");
    assert!(desktops.value() < 0.6, "{desktops}");
}

#[test]
fn a_server_of_a_site_is_not_hit_when_its_desktops_go_home() {
    // One site has three servers and twelve desktops; the others have hosts that stay.
    let mut hosts: Vec<Member> = (0..3)
        .map(|_| member(0.999, 0, Some(bitmap(|_| true))))
        .collect();
    hosts.extend((0..12).map(|_| member(0.4, 0, Some(bitmap(by_day)))));
    let correlated = Correlated::learn(hosts, Some(steady_compute(0)));
    let servers = correlated.at_least(&[0, 1, 2], 2);
    assert!(servers.value() > 0.98, "{servers}");
    assert!(correlated.at_least(&[3, 4, 5], 2).value() < 0.6);
}

#[test]
fn a_compute_host_that_hardly_fails_does_not_make_the_shock_certain() {
    // Hosts that fail together for 3% of the time, and a compute host that fails a tenth as often.
    let together = outages(21, 30);
    let hosts: Vec<Member> = (0..10)
        .map(|site| {
            let own = outages(50 + u64::from(site), 30);
            let past = bitmap(|slot| !together[slot as usize] && !own[slot as usize]);
            member(0.95, site, Some(past))
        })
        .collect();
    let correlated = Correlated::learn(hosts, Some(steady_compute(99)));
    let five = correlated.at_least(&[0, 1, 2, 3, 4], 3);
    assert!((0.2..0.9).contains(&five.value()), "{five}");
}

#[test]
fn what_happened_when_the_compute_host_failed_is_counted() {
    // Hosts 0 to 2 are down whenever the compute host has failed, though they share no declared domain;
    // hosts 3 to 5 do not depend on it.
    let fails: Vec<u64> = (1..80).map(|i| i * 100).collect();
    let near = |slot: u64| fails.iter().all(|f| !(*f..f + 6).contains(&slot));
    let own = outages(5, 60);
    let mut hosts: Vec<Member> = (0..3)
        .map(|i| member(0.94, i, Some(bitmap(near))))
        .collect();
    for i in 3..6 {
        let shift = i as usize * 1000;
        let past = bitmap(|slot| !own[(slot as usize + shift) % SLOTS]);
        hosts.push(member(0.94, i, Some(past)));
    }
    let failures = bitmap(|slot| !fails.contains(&slot)).failures();
    let compute = |failures| Compute {
        survives: p(0.9),
        domains: [None; LEVELS],
        failures,
        restart_seconds: 600,
    };
    let counted = Correlated::learn(hosts.clone(), Some(compute(Some(failures))));
    let blind = Correlated::learn(hosts, Some(compute(None)));
    assert!(counted.observations(&[0, 1, 2]) >= 70.0);
    let bad = counted.at_least(&[0, 1, 2], 2);
    let good = counted.at_least(&[3, 4, 5], 2);
    assert!(bad.value() + 0.1 < good.value(), "{bad} {good}");
    assert!(bad < blind.at_least(&[0, 1, 2], 2));
}

#[test]
fn slots_are_counted_word_by_word_as_one_by_one() {
    let mut random = SmallRng::seed_from_u64(3);
    let mut sets: Vec<[u64; WORDS]> = Vec::new();
    let mut among: [u64; WORDS] = std::array::from_fn(|_| random.random());
    among[20..40].fill(0);
    // As many sets as binary digits of 3, 4, 5 and 8 places count.
    for of in [1, 7, 8, 15, 16, 31, 32, 40] {
        sets.resize_with(of, || std::array::from_fn(|_| random.random()));
        let refs: Vec<&[u64; WORDS]> = sets.iter().collect();
        let counts = (0..SLOTS)
            .filter(|bit| among[bit / 64] >> (bit % 64) & 1 == 1)
            .map(|bit| {
                sets.iter()
                    .filter(move |s| s[bit / 64] >> (bit % 64) & 1 == 1)
            });
        let counts: Vec<usize> = counts.map(Iterator::count).collect();
        for needed in 0..=of + 1 {
            let slow = counts.iter().filter(|count| **count >= needed).count();
            let fast = count_at_least(&refs, &among, needed) as usize;
            assert_eq!(fast, slow, "{needed} of {of}");
        }
    }
}

#[test]
fn both_levels_of_domain_count() {
    let together = outages(1, 50);
    let past = bitmap(|slot| !together[slot as usize]);
    let mut hosts: Vec<Member> = (0..4)
        .map(|i| member(0.95, i, Some(past.clone())))
        .collect();
    for host in &mut hosts {
        host.domains[1] = Some(DomainId(9));
    }
    let correlated = Correlated::learn(hosts, None);
    assert!(correlated.correlation(0, 3) > 0.8);
    assert_eq!(correlated.levels[SITE].domains.len(), 4);
}

proptest! {
    #[test]
    fn the_tail_equals_the_sum_over_all_subsets(
        probabilities in prop::collection::vec(0.0f64..=1.0, 0..10),
        needed in 0usize..11,
    ) {
        let fast = at_least(probabilities.iter().map(|q| p(*q)), needed).value();
        prop_assert!((fast - enumerate(&probabilities, needed)).abs() < 1e-9);
    }

    #[test]
    fn a_more_reliable_host_never_makes_a_set_worse(
        readable in prop::collection::vec(0.01f64..0.99, 3..7),
        sites in prop::collection::vec(0u32..3, 7),
        which in 0usize..7,
        r in 0.0f64..0.9,
    ) {
        let build = |better: bool| {
            let hosts = readable.iter().enumerate().map(|(i, q)| {
                let q = if better && i == which % readable.len() { q + 0.009 } else { *q };
                member(q, sites[i], None)
            });
            let mut correlated = Correlated::learn(hosts.collect(), None);
            correlated.levels[SITE].pool = r;
            let all: Vec<usize> = (0..readable.len()).collect();
            correlated.at_least(&all, 3).value()
        };
        // A shock's probability follows from the mean availability, so a single host changes it a little.
        prop_assert!(build(true) >= build(false) - 0.01);
    }

    #[test]
    fn any_pool_gives_probabilities(
        readable in prop::collection::vec(0.0f64..=1.0, 1..8),
        sites in prop::collection::vec(prop::option::of(0u32..3), 8),
        seeds in prop::collection::vec(prop::option::of(any::<u64>()), 8),
        survives in 0.0f64..=1.0,
        needed in 0usize..9,
    ) {
        let hosts = readable.iter().enumerate().map(|(i, q)| Member {
            readable: p(*q),
            domains: [sites[i].map(DomainId), None],
            past: seeds[i].map(|seed| {
                let down = outages(seed, 200);
                bitmap(|slot| !down[slot as usize])
            }),
        });
        let compute = Compute {
            survives: p(survives),
            domains: [Some(DomainId(0)), None],
            failures: None,
            restart_seconds: 0,
        };
        let correlated = Correlated::learn(hosts.collect(), Some(compute));
        let all: Vec<usize> = (0..readable.len()).collect();
        let value = correlated.at_least(&all, needed).value();
        prop_assert!((0.0..=1.0).contains(&value));
        prop_assert!(correlated.at_least(&all, 0).value() > 0.999_999);
    }
}
