//! The simulation as a whole.

use placement::hazard::HazardModel;
use placement::history::Timeline;
use placement::objective::Width;
use placement::state::AvailabilityState;
use proptest::prelude::*;
use sim::schemes::Scheme;
use sim::{
    Grid, Host, JobOutcome, Knowledge, Network, Policy, Reading, Rule, Settings, Share, Target,
    Versions, World, grid5000, run,
};

const HOUR: u64 = 3600;

fn policies() -> impl Iterator<Item = Policy> {
    let schemes = Scheme::ALL.into_iter().map(Policy::Hosts);
    let auto = Target::ALL.into_iter().map(Policy::Auto);
    [
        Policy::Dedicated,
        Policy::Foresight,
        Policy::Narrow,
        Policy::Usual,
    ]
    .into_iter()
    .chain(schemes)
    .chain(auto)
}

/// Whether the policy uses the code that is asked for.
const fn keeps_code(policy: Policy) -> bool {
    !matches!(policy, Policy::Auto(_) | Policy::Usual)
}

fn outcomes(world: &World, grid: &Grid, settings: &Settings, policy: Policy) -> Vec<JobOutcome> {
    let model = HazardModel::pretrained();
    run(&Knowledge::at(world, grid, &model), settings, policy)
}

fn grid(hosts: usize, start: u64, seed: u64) -> Grid {
    Grid {
        hosts: (0..hosts).collect(),
        start,
        seed,
    }
}

/// A host that is gone in the spans `gone` (Unix seconds) and idle else.
fn host(gone: &[(u64, u64)], end: u64, site: u32) -> Host {
    let mut timeline = Timeline::new(0);
    for (from, to) in gone {
        timeline.push(timeline.end()..*from, Some(AvailabilityState::Idle));
        timeline.push(*from..*to, Some(AvailabilityState::Gone));
    }
    timeline.push(timeline.end()..end, Some(AvailabilityState::Idle));
    Host::new(timeline, Vec::new(), Some(site), None, Reading::Gone)
}

/// A network in which each transfer moves a megabyte per second, with no round-trip time and nothing random.
fn plain_network() -> Network {
    Network {
        path_median: 1e6,
        path_spread: 0.0,
        access_median: 1e9,
        slow_share: 0.0,
        access_spread: 0.0,
        rtt_median: 0.0,
        rtt_spread: 0.0,
        noise: 0.0,
        probe_noise: 0.0,
        ..Network::default()
    }
}

/// Versions that store what changed, which is this share of the image.
const fn layered(changed: Share) -> Versions {
    Versions::Layered { changed }
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let world = grid5000::world(3, 60);
    let grid = grid(40, grid5000::START + 30 * 24 * HOUR, 5);
    let settings = Settings::default();
    for policy in policies() {
        let once = outcomes(&world, &grid, &settings, policy);
        assert_eq!(
            once,
            outcomes(&world, &grid, &settings, policy),
            "{policy:?}"
        );
    }
    let other = Grid {
        seed: 6,
        ..grid.clone()
    };
    let random = Policy::Hosts(Scheme::Random);
    assert_ne!(
        outcomes(&world, &grid, &settings, random),
        outcomes(&world, &other, &settings, random)
    );
}

#[test]
fn a_job_on_hosts_that_never_fail_takes_its_work_and_its_checkpoints() {
    let hosts = (0..8).map(|i| host(&[], 1000 * HOUR, i)).collect();
    let world = World::new(hosts, 0);
    let settings = Settings {
        jobs: 1,
        work_seconds: 30_000.0,
        image_bytes: 3_000_000,
        network: plain_network(),
        ..Settings::default()
    };
    let grid = grid(8, 672 * HOUR, 1);
    for policy in policies() {
        let [job] = &outcomes(&world, &grid, &settings, policy)[..] else {
            panic!("one job")
        };
        assert!(job.finished && job.evictions == 0 && job.restores == 0);
        assert!((job.makespan_seconds - 30_000.0 - job.storing_seconds).abs() < 1e-3);
        if !keeps_code(policy) {
            continue;
        }
        // A megabyte for each shard at a megabyte per second, and a tenth of a second to begin;
        // the server gets the whole image.
        let each = if policy == Policy::Dedicated {
            3.1
        } else {
            1.1
        };
        assert!(
            (job.storing_seconds - each * job.stored as f64).abs() < 1e-3,
            "{policy:?} {job:?}"
        );
        let shards = match policy {
            Policy::Dedicated => 3.0,
            Policy::Hosts(Scheme::PessimisticWide) => 7.0,
            _ => 5.0,
        };
        assert!((job.sent_bytes - shards * 1e6 * job.stored as f64).abs() < 10.0);
    }
}

#[test]
fn versions_of_which_all_changed_are_whole_ones() {
    let world = parted(1, 1, 1700 * HOUR);
    let grid = grid(20, 700 * HOUR, 9);
    let whole = Settings {
        jobs: 3,
        work_seconds: 20.0 * 3600.0,
        breaks: 0.2,
        wiped_every_seconds: 100_000.0,
        ..Settings::default()
    };
    let changed = Settings {
        versions: layered(Share::new(1.0).unwrap()),
        ..whole
    };
    let random = Policy::Hosts(Scheme::Random);
    for policy in [Policy::Dedicated, random, Policy::Narrow, Policy::Usual] {
        let jobs = outcomes(&world, &grid, &whole, policy);
        assert!(jobs.iter().any(|job| job.restores > 0), "{policy:?}");
        assert_eq!(
            jobs,
            outcomes(&world, &grid, &changed, policy),
            "{policy:?}"
        );
    }
}

#[test]
fn versions_store_what_changed_and_some_of_the_rest_again() {
    let hosts = (0..8).map(|i| host(&[], 1000 * HOUR, i)).collect();
    let world = World::new(hosts, 0);
    let settings = Settings {
        jobs: 1,
        work_seconds: 500_000.0,
        image_bytes: 3_000_000,
        versions: layered(Share::new(0.05).unwrap()),
        network: plain_network(),
        ..Settings::default()
    };
    let policy = Policy::Hosts(Scheme::Random);
    let [job] = &outcomes(&world, &grid(8, 672 * HOUR, 1), &settings, policy)[..] else {
        panic!("one job")
    };
    let images = job.sent_bytes / 5e6;
    let each = (images - 1.0) / (job.stored - 1) as f64;
    assert!(job.stored > 60 && (0.08..0.085).contains(&each), "{job:?}");
}

/// A job that stores whole versions, one that stores layered ones, and the same where hosts rebuild missing shards. Its
/// host is gone at `evicted`. The seeds are those of 100 for which the first two are as `wanted`. A host leaves at `leaves`, after it has stored a shard of the first versions, so
/// that later ones are on two others, of which one leaves with the job's host. The last one has a shard of the newest
/// rows, and none of the first ones.
fn whole_and_layered(
    leaves: u64,
    evicted: u64,
    wanted: impl Fn(&JobOutcome, &JobOutcome) -> bool,
) -> Option<Vec<[JobOutcome; 3]>> {
    let end = 2000 * HOUR;
    let mut busy = Timeline::new(0);
    busy.push(0..evicted, Some(AvailabilityState::CpuTaken));
    busy.push(evicted..end, Some(AvailabilityState::Idle));
    // What leaves with the job was away before, so that no shard is rebuilt there.
    let away = [(400 * HOUR, 401 * HOUR), (evicted, end)];
    let hosts = vec![
        host(&away, end, 0),
        host(&[(leaves, evicted + 900)], end, 1),
        host(&away, end, 2),
        host(&[], end, 3),
        Host::new(busy, Vec::new(), Some(4), None, Reading::Gone),
    ];
    let changed = Share::new(0.05)?;
    let world = World::new(hosts, 0);
    let settings = Settings {
        jobs: 1,
        work_seconds: 60.0 * 3600.0,
        image_bytes: 3_000_000,
        width: Width::new(1, 1)?,
        network: plain_network(),
        ..Settings::default()
    };
    let run_with = |versions, repairs, seed| {
        let settings = Settings {
            versions,
            repairs,
            ..settings
        };
        let random = Policy::Hosts(Scheme::Random);
        outcomes(&world, &grid(5, 700 * HOUR, seed), &settings, random).remove(0)
    };
    // Which hosts get the shards is drawn.
    let all = (0..100).filter_map(|seed| {
        let whole = run_with(Versions::Whole, false, seed);
        let unrepaired = run_with(layered(changed), false, seed);
        wanted(&whole, &unrepaired).then(|| {
            let repaired = run_with(layered(changed), true, seed);
            [whole, unrepaired, repaired]
        })
    });
    Some(all.collect())
}

#[test]
fn a_version_can_not_be_read_while_one_of_its_origins_can_not_unless_that_is_repaired() {
    let evicted = 730 * HOUR;
    let found = whole_and_layered(evicted - 2700, evicted, |whole, layered| {
        let fails = layered.failed_at == [evicted + 300];
        whole.evictions == 1 && whole.failed == 0 && fails
    });
    let found = found.unwrap();
    let [whole, layered, _] = &found[0];
    assert_eq!((layered.evictions, layered.lost_newest), (1, 0));
    // It is waited for until the host is back, and some is read of rows of which only a part is used.
    assert_eq!(layered.waiting_seconds, 600.0);
    assert!(layered.finished && whole.finished);
    assert!((whole.read_bytes - 3e6).abs() < 10.0);
    assert!((3.15e6..3.9e6).contains(&layered.read_bytes), "{layered:?}");
    let is_saved = |of: &[JobOutcome; 3]| of[2].evictions == 1 && of[2].failed == 0;
    assert!(found.iter().any(is_saved));
}

#[test]
fn origins_are_stored_again_when_a_host_is_not_expected_back_any_more() {
    let evicted = 730 * HOUR;
    let fails = whole_and_layered(evicted - 29 * HOUR, evicted, |whole, layered| {
        whole.evictions == 1 && whole.failed == 0 && layered.failed > 0
    });
    assert_eq!(fails, Some(Vec::new()));
}

/// Hosts of which `servers` are always there and the others leave each evening for fourteen hours.
fn office(servers: u32, desktops: u32, days: u64) -> World {
    let end = days * 24 * HOUR;
    let nights: Vec<(u64, u64)> = (0..days - 1)
        .map(|day| {
            (
                day * 24 * HOUR + 18 * HOUR,
                (day + 1) * 24 * HOUR + 8 * HOUR,
            )
        })
        .collect();
    let servers = (0..servers).map(|site| host(&[], end, site));
    let desktops = (0..desktops).map(|number| host(&nights, end, 100 + number));
    World::new(servers.chain(desktops).collect(), 0)
}

/// A version is whole after an evening if three of five shards of its base left with desktops: a restore could not read
/// more of it that night.
#[test]
fn desktops_that_go_home_each_night_for_four_weeks_leave_hardly_a_version_whole() {
    let mut whole = 0;
    for (servers, repairs) in [(4, false), (6, true)] {
        let world = office(servers, 20, 28 + 40);
        let settings = Settings {
            jobs: 1,
            work_seconds: 28.0 * 86_400.0,
            versions: layered(Share::new(0.05).unwrap()),
            repairs,
            ..Settings::default()
        };
        let hosts = grid(20 + servers as usize, (28 * 24 + 9) * HOUR, 1);
        let [job] = &outcomes(&world, &hosts, &settings, Policy::Usual)[..] else {
            panic!("one job")
        };
        assert!(job.finished && job.stored > 200, "{job:?}");
        // With parity, as shares of the image: 0.14 in a grid whose hosts stay.
        let images = job.sent_bytes / settings.image_bytes as f64;
        assert!(images / (job.stored as f64) < 0.25, "{job:?}");
        whole += job.whole_later;
    }
    assert!(whole <= 3, "{whole} in 56 nights");
}

#[test]
fn a_checkpoint_on_hosts_that_go_is_waited_for_and_then_given_up() {
    // Host 1 is busy at first, so the job begins on another host and stores its checkpoints on the remaining
    // three. Then these four leave at the same moment and stay away, and only host 1 is left to compute.
    let start = 700 * HOUR;
    let evicted = start + 30 * HOUR;
    let busy = |until: u64| {
        let mut timeline = Timeline::new(0);
        timeline.push(0..until, Some(AvailabilityState::CpuTaken));
        timeline.push(until..2000 * HOUR, Some(AvailabilityState::Idle));
        Host::new(timeline, Vec::new(), Some(1), None, Reading::Gone)
    };
    let mut hosts = vec![
        host(&[(evicted, 2000 * HOUR)], 2000 * HOUR, 0),
        busy(evicted),
    ];
    hosts.extend((2..5).map(|site| host(&[(evicted, 2000 * HOUR)], 2000 * HOUR, site)));
    let world = World::new(hosts, 0);
    let settings = Settings {
        jobs: 1,
        work_seconds: 60.0 * 3600.0,
        image_bytes: 3_000_000,
        width: Width::new(3, 0).unwrap(),
        network: plain_network(),
        ..Settings::default()
    };
    // The first compute host is drawn; take the first seed with which a checkpoint is stored.
    let stored = (0..50).map(|seed| grid(5, start, seed)).find_map(|grid| {
        let jobs = outcomes(&world, &grid, &settings, Policy::Hosts(Scheme::Random));
        (jobs[0].stored > 0).then(|| jobs[0].clone())
    });
    let job = stored.unwrap();
    assert_eq!((job.evictions, job.restores, job.failed), (1, 1, 1));
    assert_eq!((job.lost_newest, job.from_scratch), (1, 1));
    assert!(job.finished);
    // The job waits for as long as the work in the checkpoint took, then begins again: the work of the thirty
    // hours before is lost.
    let before = job.computing_seconds - job.work_seconds;
    assert!((job.lost_seconds - before).abs() < 1.0, "{job:?}");
    assert!(job.waiting_seconds > 0.9 * before && job.waiting_seconds <= before);
    assert_eq!(job.queued_seconds, settings.restart_seconds);
}

#[test]
fn a_transfer_that_breaks_is_made_good_elsewhere() {
    let hosts = (0..12).map(|i| host(&[], 1000 * HOUR, i)).collect();
    let world = World::new(hosts, 0);
    let settings = Settings {
        jobs: 1,
        work_seconds: 200_000.0,
        image_bytes: 3_000_000,
        breaks: 0.3,
        network: plain_network(),
        ..Settings::default()
    };
    let grid = grid(12, 672 * HOUR, 1);
    let policy = Policy::Hosts(Scheme::Correlated);
    let [job] = &outcomes(&world, &grid, &settings, policy)[..] else {
        panic!("one job")
    };
    assert!(job.finished && job.not_stored == 0 && job.stored > 3);
    assert!(job.storing_seconds > 1.2 * job.stored as f64, "{job:?}");
    assert!(job.sent_bytes > 5e6 * job.stored as f64, "{job:?}");
}

/// Hosts whose random outages follow from `seed` until `until`, and from `other` after that.
fn parted(seed: u64, other: u64, until: u64) -> World {
    let outages = |seed: u64, i: u64| {
        (0..200_u64).map(move |n| {
            let spread = (seed ^ (i << 20) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
            let from = n * 9 * HOUR + spread % (6 * HOUR);
            (from, from + HOUR + spread % HOUR)
        })
    };
    let hosts = (0..20_u64).map(|i| {
        let before = outages(seed, i).filter(|(_, to)| *to < until);
        let after = outages(other, i).filter(|(from, _)| *from > until);
        let spans: Vec<(u64, u64)> = before.chain(after).collect();
        host(&spans, 1800 * HOUR, (i / 2) as u32)
    });
    World::new(hosts.collect(), 0)
}

#[test]
fn nothing_depends_on_what_happens_after_the_jobs_are_done() {
    let start = 700 * HOUR;
    let settings = Settings {
        jobs: 3,
        work_seconds: 20.0 * 3600.0,
        ..Settings::default()
    };
    let schemes = policies().filter(|policy| *policy != Policy::Foresight);
    for policy in schemes {
        let grid = grid(20, start, 9);
        let one = outcomes(&parted(1, 2, 1200 * HOUR), &grid, &settings, policy);
        let done = one
            .iter()
            .map(|job| job.makespan_seconds)
            .fold(0.0, f64::max);
        assert!(one.iter().all(|job| job.finished && job.evictions > 0) && done < 500.0 * 3600.0);
        let other = outcomes(&parted(1, 3, 1200 * HOUR), &grid, &settings, policy);
        assert_eq!(one, other, "{policy:?}");
    }
}

/// The job's host leaves with all hosts that take shards but one, and they stay away. What is left is enough
/// for 1+2 shards, which three hosts get. If all leave, no code helps, and the failure is none of the policy's.
#[test]
fn a_code_that_fits_the_hosts_saves_what_another_loses() {
    let end = 2000 * HOUR;
    let evicted = 730 * HOUR;
    for (leaving, staying, narrow_loses) in [(3, 1, false), (4, 1, true), (5, 0, true)] {
        let leave = (0..leaving).map(|site| host(&[(evicted, end)], end, site));
        let mut hosts: Vec<Host> = leave.collect();
        hosts.extend((0..staying).map(|site| host(&[], end, leaving + site)));
        let mut timeline = Timeline::new(0);
        timeline.push(0..evicted, Some(AvailabilityState::CpuTaken));
        timeline.push(evicted..end, Some(AvailabilityState::Idle));
        hosts.push(Host::new(
            timeline,
            Vec::new(),
            Some(9),
            None,
            Reading::Gone,
        ));
        let count = hosts.len();
        let world = World::new(hosts, 0);
        let settings = Settings {
            jobs: 1,
            work_seconds: 60.0 * 3600.0,
            image_bytes: 3_000_000,
            network: plain_network(),
            ..Settings::default()
        };
        let run_with = |policy, seed| {
            let grid = grid(count, 700 * HOUR, seed);
            outcomes(&world, &grid, &settings, policy).remove(0)
        };
        // The job begins on one of the hosts that leave.
        let is_evicted = |seed: &u64| run_with(Policy::Dedicated, *seed).evictions == 1;
        let seed = (0..50).find(is_evicted).unwrap();
        let failed = |policy| {
            let job = run_with(policy, seed);
            assert_eq!(job.failed as usize, job.failed_at.len());
            assert_eq!(job.unavoidable, if staying == 0 { job.failed } else { 0 });
            job.failed_at.first().copied()
        };
        let loses = Some(evicted + 300);
        assert_eq!(failed(Policy::Hosts(Scheme::Correlated)), loses);
        assert_eq!(failed(Policy::Narrow), loses.filter(|_| narrow_loses));
    }
}

/// As long as little is known of a pool, the code is 3+2. Later, hosts that never fail get fewer bytes.
#[test]
fn the_code_follows_from_the_past_once_enough_of_it_is_known() {
    let end = 2000 * HOUR;
    let hosts = (0..21).map(|site| host(&[], end, site));
    let world = World::new(hosts.collect(), 0);
    let settings = Settings {
        jobs: 1,
        work_seconds: 30.0 * 3600.0,
        image_bytes: 60_000_000,
        network: plain_network(),
        ..Settings::default()
    };
    let bytes = |policy, start| {
        let job = outcomes(&world, &grid(21, start, 3), &settings, policy).remove(0);
        assert!(job.finished && job.stored > 0);
        job.sent_bytes / job.stored as f64
    };
    let usual = 60_000_000.0 * 5.0 / 3.0;
    assert!((bytes(Policy::Usual, 20 * 24 * HOUR) - usual).abs() < 1.0);
    assert!(bytes(Policy::Usual, 30 * 24 * HOUR) < 0.9 * usual);
    assert!((bytes(Policy::Narrow, 30 * 24 * HOUR) - usual).abs() < 1.0);
}

#[test]
fn all_schemes_meet_the_same_evictions() {
    let world = grid5000::world(11, 60);
    let grid = Grid {
        hosts: (0..40).map(|i| 30 * i).collect(),
        start: grid5000::START + 30 * 24 * HOUR,
        seed: 5,
    };
    // No job can finish work of this length, so all are evicted until the trace ends.
    let settings = Settings {
        work_seconds: 1e9,
        ..Settings::default()
    };
    let evictions = |policy| -> Vec<u64> {
        let jobs = outcomes(&world, &grid, &settings, policy);
        jobs.iter().map(|job| job.evictions).collect()
    };
    let expected = evictions(Policy::Dedicated);
    assert!(expected.iter().sum::<u64>() > 10);
    for scheme in [Scheme::Random, Scheme::Fastest, Scheme::Correlated] {
        assert_eq!(evictions(Policy::Hosts(scheme)), expected);
    }
}

#[test]
fn each_restore_keeps_the_forecast_of_its_checkpoint() {
    let day = 24 * HOUR;
    // Three hosts at a time are away for an hour of each six, so that jobs move; wiped disks fail their restores.
    let away = |host: u64| -> Vec<(u64, u64)> {
        let all = (1..240).map(|i| i * 6 * HOUR + (host % 3) * 2 * HOUR);
        all.map(|from| (from, from + HOUR)).collect()
    };
    let hosts = (0..9).map(|i| host(&away(i), 60 * day, i as u32));
    let world = World::new(hosts.collect(), 0);
    let settings = Settings {
        work_seconds: 40_000.0,
        image_bytes: 300_000_000,
        wiped_every_seconds: 3000.0,
        network: plain_network(),
        ..Settings::default()
    };
    let mut failed = 0;
    for policy in policies() {
        let jobs = outcomes(&world, &grid(9, 30 * day, 1), &settings, policy);
        for job in &jobs {
            let forecasts = matches!(
                policy,
                Policy::Hosts(Scheme::Correlated)
                    | Policy::Narrow
                    | Policy::Usual
                    | Policy::Auto(_)
            );
            let expected = if forecasts { job.restores } else { 0 };
            assert_eq!(job.forecasts.len() as u64, expected, "{policy:?}");
            let failed_at = job.forecasts.iter().filter_map(|one| one.failed_at);
            let failed_at: Vec<u64> = failed_at.collect();
            assert!(!forecasts || failed_at == job.failed_at, "{policy:?}");
            failed += failed_at.len();
        }
        assert!(jobs.iter().any(|job| job.restores > 0), "{policy:?}");
    }
    assert!(failed > 0);
}

#[test]
fn wiped_disks_and_clients_at_the_same_time_cost() {
    let world = grid5000::world(3, 60);
    let grid = grid(40, grid5000::START + 30 * 24 * HOUR, 5);
    let random = Policy::Hosts(Scheme::Random);
    let settings = Settings::default();
    let wiped = Settings {
        wiped_every_seconds: 3600.0,
        ..settings
    };
    let failed = |settings: &Settings| -> u64 {
        let jobs = outcomes(&world, &grid, settings, random);
        jobs.iter().map(|job| job.looks_failed).sum()
    };
    assert!(failed(&wiped) > failed(&settings));
    let each = |jobs: usize| {
        let settings = Settings { jobs, ..settings };
        let jobs = outcomes(&world, &grid, &settings, Policy::Dedicated);
        let seconds: f64 = jobs.iter().map(|job| job.stored_seconds).sum();
        seconds / jobs.iter().map(|job| job.stored).sum::<u64>() as f64
    };
    assert!(each(32) > each(1), "{} {}", each(32), each(1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn work_done_is_work_asked_for_and_work_lost(
        seed in any::<u64>(),
        jobs in 1_usize..6,
        hosts in 4_usize..40,
        hours in 1_u64..40,
        breaks in 0.0..0.5,
        accumulator in any::<bool>(),
        changed in prop::option::of(0.01..1.0),
        policy in 0_usize..9,
    ) {
        let world = grid5000::world(seed, 45);
        let settings = Settings {
            jobs,
            work_seconds: (hours * HOUR) as f64,
            breaks,
            rule: if accumulator { Rule::Accumulator } else { Rule::Daly },
            versions: changed.and_then(Share::new).map_or(Versions::Whole, layered),
            ..Settings::default()
        };
        let grid = grid(hosts, grid5000::START + 15 * 24 * HOUR, seed);
        let policy = policies().nth(policy).unwrap();
        for job in outcomes(&world, &grid, &settings, policy) {
            let spent = job.queued_seconds
                + job.computing_seconds
                + job.storing_seconds
                + job.waiting_seconds
                + job.restoring_seconds;
            prop_assert!((spent - job.makespan_seconds).abs() < 1e-3, "{job:?}");
            prop_assert!(job.stored_seconds <= job.storing_seconds + 1e-6);
            prop_assert!(!job.finished || job.makespan_seconds >= job.work_seconds - 1e-3);
            prop_assert!(job.lost_newest <= job.failed && job.from_scratch <= job.lost_newest);
            prop_assert!(job.looks_failed <= job.looks);
            if job.finished {
                let useful = job.computing_seconds - job.lost_seconds;
                prop_assert!((useful - job.work_seconds).abs() < 0.1, "{job:?}");
            }
        }
    }
}
