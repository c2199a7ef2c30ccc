use super::search::{OF_ONE_SITE_MAX, SHORTLIST, first_by, shortlist};
use super::*;
use crate::bandwidth::RateForecast;
use crate::joint::{DomainId, Independent, Joint};
use crate::objective::{Candidate, Stake};
use proptest::prelude::*;

fn pool(readable: &[f64]) -> Vec<Candidate> {
    let host = |readable: &f64| Candidate {
        rate: RateForecast::new(1e8, 0.0).unwrap(),
        rtt_seconds: 0.0,
        readable: Probability::new(*readable).unwrap(),
        free_bytes: u64::MAX,
        domains: [None; 2],
        draw: 0,
    };
    readable.iter().map(host).collect()
}

fn stake_of(stored_bytes: u64) -> Stake {
    Stake {
        stored_bytes,
        width: Width::FALCON,
        lead_seconds: 0.0,
        uplink_bytes_per_second: None,
        need: Probability::new(0.1).unwrap(),
        work_seconds: 600.0,
    }
}

/// The fastest code that reaches the target.
fn fastest_of(readable: &[f64], target: f64) -> Chosen {
    let candidates = pool(readable);
    let stake = stake_of(1 << 30);
    let readable: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
    let target = Probability::new(target).unwrap();
    let joint = Independent(&readable);
    choose_with_code(
        &candidates,
        &stake,
        &joint,
        Aim::Reliability(target),
        Bounds::ASKED,
    )
    .unwrap()
}

#[test]
fn too_few_hosts_cost_data_shards_and_no_parity() {
    let of = |hosts: usize| narrowed(Width::FALCON, |_| hosts);
    let code = |data| Width::new(data, 2);
    assert_eq!([of(100), of(5)], [code(3), code(3)]);
    assert_eq!([of(4), of(3)], [code(2), code(1)]);
    assert_eq!([of(2), of(0)], [None, None]);
    // Four hosts have room for a third of the image, three of them for half of it, and none for all.
    let by_room = |width: Width| [0, 3, 4][width.data() - 1];
    assert_eq!(narrowed(Width::FALCON, by_room), None);
    let by_room = |width: Width| [3, 3, 4][width.data() - 1];
    assert_eq!(narrowed(Width::FALCON, by_room), code(1));
}

#[test]
fn better_hosts_need_less_redundancy() {
    let good = fastest_of(&[0.9999; 12], 0.999);
    let fair = fastest_of(&[0.97; 12], 0.999);
    let poor = fastest_of(&[0.8; 12], 0.999);
    for chosen in [&good, &fair, &poor] {
        assert!(chosen.reaches_target, "{chosen:?}");
        assert!(chosen.choice.score.reliability.value() >= 0.999);
    }
    let expansion = |chosen: &Chosen| chosen.width.expansion();
    assert!(expansion(&good) < expansion(&fair) && expansion(&fair) < expansion(&poor));
}

/// The least time of any code that reaches the target and leaves some of `hosts` equal hosts, by trying all.
fn least_seconds(hosts: usize, readable: f64, target: f64) -> f64 {
    let readable = [Probability::new(readable).unwrap(); 24];
    let of = |width: Width| {
        let sure =
            crate::joint::at_least(readable.iter().take(width.total()).copied(), width.data());
        (sure.value() >= target).then(|| 1.1 * (1_u64 << 30) as f64 / width.data() as f64 / 1e8)
    };
    let sparing = Bounds::ASKED.codes(most_but_spares(hosts));
    sparing.filter_map(of).fold(f64::INFINITY, f64::min)
}

#[test]
fn no_code_that_reaches_the_target_is_faster_and_none_as_fast_is_cheaper() {
    for (hosts, readable, target) in [(10, 0.95, 0.999), (20, 0.9, 0.99), (24, 0.99, 0.9999)] {
        let chosen = fastest_of(&vec![readable; hosts], target);
        let seconds = chosen.choice.score.store_seconds + 0.1 * chosen.choice.score.restore_seconds;
        let least = least_seconds(hosts, readable, target);
        assert!(
            chosen.reaches_target && seconds >= least - 1e-6,
            "{chosen:?}"
        );
        assert!(
            seconds <= 1.1 * least + 0.1 + 1e-6,
            "{seconds} {least} {chosen:?}"
        );
    }
}

#[test]
fn of_codes_that_are_as_good_the_one_with_the_fewest_bytes_is_taken() {
    // The image is stored in no time, whatever the code.
    let candidates = pool(&[0.99; 12]);
    let readable = [Probability::new(0.99).unwrap(); 12];
    let target = Probability::new(0.9).unwrap();
    let aim = Aim::Reliability(target);
    let joint = Independent(&readable);
    let tiny = choose_with_code(&candidates, &stake_of(1000), &joint, aim, Bounds::ASKED).unwrap();
    let cheapest = Bounds::ASKED
        .codes(12)
        .map(cost)
        .fold(f64::INFINITY, f64::min);
    assert!(cost(tiny.width) <= cheapest + 1e-9, "{tiny:?}");
}

#[test]
fn a_code_for_a_target_can_lose_a_host_even_if_one_host_would_reach_it() {
    let chosen = fastest_of(&[0.999; 6], 0.9);
    assert!(chosen.width.parity() >= 1, "{chosen:?}");
    // With one host there is nothing to lose.
    assert_eq!(fastest_of(&[0.9], 0.5).width, Width::new(1, 0).unwrap());
}

#[test]
fn a_code_for_a_target_leaves_spares_unless_it_takes_all_hosts_to_reach_it() {
    let easy = fastest_of(&[0.999; 7], 0.99);
    assert!(
        easy.reaches_target && easy.width.total() == 5,
        "{:?}",
        easy.width
    );
    let hard = fastest_of(&[0.5; 7], 0.98);
    assert!(
        hard.reaches_target && hard.width.total() > 5,
        "{:?}",
        hard.width
    );
}

#[test]
fn hosts_without_room_for_a_shard_of_the_code_are_passed_over() {
    let stake = Stake {
        work_seconds: 1e8,
        ..stake_of(1 << 20)
    };
    let joint = [Probability::new(0.6).unwrap(); 9];
    let with_room_for_all = |roomy: &[usize]| {
        let mut candidates = pool(&[0.6; 9]);
        for (host, candidate) in candidates.iter_mut().enumerate() {
            let parts = if roomy.contains(&host) { 1 } else { 3 };
            candidate.free_bytes = stake.stored_bytes.div_ceil(parts);
        }
        let joint = Independent(&joint);
        let bounds = Bounds::usual(9);
        choose_with_code(&candidates, &stake, &joint, Aim::LeastLoss, bounds).unwrap()
    };
    // Whole images on three hosts are the best code, as long as three hosts have room for one.
    let mut chosen = with_room_for_all(&[0, 3, 5]);
    chosen.choice.hosts.sort_unstable();
    assert_eq!(chosen.width, Width::new(1, 2).unwrap());
    assert_eq!(chosen.choice.hosts, [0, 3, 5]);
    let chosen = with_room_for_all(&[0, 5]);
    assert!(chosen.width.data() >= 3, "{chosen:?}");
}

#[test]
fn a_target_out_of_reach_gives_the_most_reliable_code_and_says_so() {
    let chosen = fastest_of(&[0.5; 4], 0.999_999);
    assert!(!chosen.reaches_target);
    assert_eq!(chosen.width, Width::new(1, 3).unwrap());
}

#[test]
fn bad_hosts_are_passed_over_to_reach_the_target() {
    let mut readable = vec![0.05; 10];
    readable.extend([0.999; 6]);
    let chosen = fastest_of(&readable, 0.9999);
    assert!(chosen.reaches_target);
    assert!(chosen.choice.hosts.iter().all(|host| *host >= 10));
}

#[test]
fn without_hosts_there_is_no_code() {
    let aims = [Aim::LeastLoss, Aim::Reliability(Probability::ONE)];
    for aim in aims {
        let stake = stake_of(1);
        let none = choose_with_code(&[], &stake, &Independent(&[]), aim, Bounds::ASKED);
        assert!(none.is_none());
    }
}

/// The code with which the job loses the least time.
fn usual_of(readable: &[f64], work_seconds: f64) -> Chosen {
    let candidates = pool(readable);
    let stake = Stake {
        work_seconds,
        ..stake_of(1 << 30)
    };
    let readable: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
    let bounds = Bounds::usual(candidates.len());
    let joint = Independent(&readable);
    choose_with_code(&candidates, &stake, &joint, Aim::LeastLoss, bounds).unwrap()
}

#[test]
fn a_code_that_nobody_asked_for_can_lose_two_hosts_stores_three_times_and_leaves_spares() {
    for (hosts, readable) in [(12, 0.995), (12, 0.6), (9, 0.3), (5, 0.9)] {
        let width = usual_of(&vec![readable; hosts], 1e6).width;
        assert!(width.parity() >= 2 && width.expansion() <= 3.0, "{width:?}");
        assert!(width.total() <= (hosts * 2 / 3).max(5), "{width:?}");
    }
    // With two hosts, one of them can be lost.
    assert_eq!(usual_of(&[0.9; 2], 1e6).width, Width::new(1, 1).unwrap());
}

#[test]
fn the_more_work_is_at_stake_the_fewer_restores_fail() {
    let of = |work| usual_of(&[0.95; 12], work);
    let little = of(21_600.0);
    let much = of(1e8);
    assert_eq!(of(60.0).width, little.width, "six hours count at least");
    let reliability = |chosen: &Chosen| chosen.choice.score.reliability;
    assert!(
        reliability(&much) > reliability(&little),
        "{little:?} {much:?}"
    );
    assert!(much.choice.score.store_seconds > little.choice.score.store_seconds);
    // No other code within the bounds would lose less by more than what counts as equal.
    let candidates = pool(&[0.95; 12]);
    let readable = [Probability::new(0.95).unwrap(); 12];
    for width in Bounds::usual(12).codes(12) {
        let stake = Stake {
            width,
            work_seconds: 1e8,
            ..stake_of(1 << 30)
        };
        let hosts: Vec<usize> = (0..width.total()).collect();
        let other = crate::objective::score(&candidates, &hosts, &stake, &Independent(&readable));
        assert!(
            much.choice.score.loss() <= 1.1 * other.loss() + 0.1,
            "{width:?}"
        );
    }
}

/// Independent hosts in a pool that is gone as a whole for a share of the time.
struct Gone<'a>(Independent<'a>, f64);

impl Joint for Gone<'_> {
    fn at_least(&self, hosts: &[usize], needed: usize) -> Probability {
        let there = self.0.at_least(hosts, needed).value();
        Probability::saturating(there * (1.0 - self.1))
    }

    fn at_best(&self) -> Probability {
        Probability::saturating(1.0 - self.1)
    }
}

#[test]
fn what_no_code_prevents_does_not_drive_the_code() {
    let candidates = pool(&[0.95; 20]);
    let readable = [Probability::new(0.95).unwrap(); 20];
    let stake = stake_of(1 << 30);
    let target = Probability::new(0.999).unwrap();
    let of = |gone| {
        let joint = Gone(Independent(&readable), gone);
        let aim = Aim::Reliability(target);
        choose_with_code(&candidates, &stake, &joint, aim, Bounds::ASKED).unwrap()
    };
    let safe = of(0.0);
    let unsafe_pool = of(0.002);
    assert!(safe.reaches_target && !unsafe_pool.reaches_target);
    assert_eq!(safe.width, unsafe_pool.width);
    // As long as the target can be reached, the code makes up for the pool.
    let half = of(0.000_6);
    assert!(half.reaches_target && cost(half.width) > cost(safe.width));
}

#[test]
fn two_thirds_of_the_failures_that_the_target_allows_may_be_forecast() {
    let forecast = |target| forecast_for(Probability::new(target).unwrap()).value();
    assert!((forecast(0.97) - 0.98).abs() < 1e-12);
    assert_eq!(forecast(1.0), 1.0);
    // One host of two: 0.9775 by the forecast is more than 0.97, and not enough for it.
    let with = |readable: f64| {
        let candidates = pool(&[readable; 2]);
        let probabilities = [Probability::new(readable).unwrap(); 2];
        let joint = Independent(&probabilities);
        let aim = Aim::Reliability(Probability::new(0.97).unwrap());
        choose_with_code(&candidates, &stake_of(1 << 30), &joint, aim, Bounds::ASKED).unwrap()
    };
    assert!(!with(0.85).reaches_target);
    assert!(with(0.86).reaches_target);
}

#[test]
fn of_many_hosts_the_good_ones_are_found_in_small_sites() {
    let mut candidates = pool(&[0.97; 500]);
    for (host, candidate) in candidates.iter_mut().enumerate() {
        candidate.domains[0] = Some(DomainId(u32::from(host >= 480)));
        candidate.draw = host as u64;
    }
    let readable: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
    let listed = shortlist(&candidates, &stake_of(1 << 30));
    assert_eq!(listed.len(), SHORTLIST);
    assert!(listed.iter().filter(|host| **host >= 480).count() >= OF_ONE_SITE_MAX);
    let target = Probability::new(0.999).unwrap();
    let joint = Independent(&readable);
    let aim = Aim::Reliability(target);
    let stake = stake_of(1 << 30);
    let chosen = choose_with_code(&candidates, &stake, &joint, aim, Bounds::ASKED);
    assert!(chosen.unwrap().reaches_target);
}

/// The least loss of any code within the bounds, with the most reliable of equally fast hosts.
fn least_loss_of(readable: &[f64], stake: &Stake, bounds: Bounds) -> f64 {
    let candidates = pool(readable);
    let mut best: Vec<usize> = (0..readable.len()).collect();
    best.sort_by(|a, b| readable[*b].total_cmp(&readable[*a]));
    let probabilities: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
    let joint = Independent(&probabilities);
    let losses = bounds.codes(readable.len()).map(|width| {
        let stake = Stake { width, ..*stake };
        crate::objective::score(&candidates, &best[..width.total()], &stake, &joint).loss()
    });
    losses.fold(f64::INFINITY, f64::min)
}

proptest! {
    #[test]
    fn hosts_are_given_in_order_until_no_more_are_wanted(
        keys in prop::collection::vec(any::<u16>(), 0..3000),
        wanted in 1..2000_usize,
    ) {
        let mut hosts: Vec<usize> = (0..keys.len()).collect();
        let order = |a: &usize, b: &usize| keys[*a].cmp(&keys[*b]).then(a.cmp(b));
        let mut given = Vec::new();
        first_by(&mut hosts, order, |host| {
            given.push(host);
            given.len() < wanted
        });
        let mut sorted: Vec<usize> = (0..keys.len()).collect();
        sorted.sort_by(order);
        sorted.truncate(wanted);
        prop_assert_eq!(given, sorted);
        hosts.sort_unstable();
        prop_assert!(hosts.into_iter().eq(0..keys.len()), "no host is lost");
    }

    #[test]
    fn what_is_chosen_is_allowed_and_as_good_as_claimed(
        readable in prop::collection::vec(0.05..0.999_f64, 1..14),
        target in 0.3..0.9999_f64,
        hours in 6.0..1000.0_f64,
        bytes in 1_u64..1 << 34,
    ) {
        let candidates = pool(&readable);
        let probabilities: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
        let joint = Independent(&probabilities);
        let stake = Stake { work_seconds: 3600.0 * hours, ..stake_of(bytes) };
        let bounds = Bounds::usual(readable.len());
        let usual = choose_with_code(&candidates, &stake, &joint, Aim::LeastLoss, bounds).unwrap();
        let least = least_loss_of(&readable, &stake, bounds);
        prop_assert!(usual.choice.score.loss() <= 1.1 * least + 0.1 + 1e-6, "{usual:?} {least}");

        let aim = Aim::Reliability(Probability::new(target).unwrap());
        let asked = choose_with_code(&candidates, &stake, &joint, aim, Bounds::ASKED).unwrap();
        let target = forecast_for(Probability::new(target).unwrap());
        prop_assert_eq!(asked.reaches_target, asked.choice.score.reliability >= target);
        let target = target.value();
        for (chosen, bounds) in [(&usual, bounds), (&asked, Bounds::ASKED)] {
            prop_assert!(bounds.codes(readable.len()).any(|width| width == chosen.width));
            let mut hosts = chosen.choice.hosts.clone();
            hosts.sort_unstable();
            hosts.dedup();
            prop_assert_eq!(hosts.len(), chosen.width.total());
        }
        // Nothing reaches the target if the target is said to be missed: the most reliable hosts of each code do not.
        if !asked.reaches_target {
            let mut best = probabilities.clone();
            best.sort_by(|a, b| b.cmp(a));
            for width in Bounds::ASKED.codes(readable.len()) {
                let first = best.iter().take(width.total()).copied();
                let reached = crate::joint::at_least(first, width.data()).value();
                prop_assert!(reached < target + 1e-9, "{width:?} {reached} {asked:?}");
            }
        }
    }
}
