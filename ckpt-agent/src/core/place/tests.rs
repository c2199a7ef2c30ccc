use std::num::NonZeroU32;

use placement::AvailabilityBitmap;
use placement::bitmap::{Availability, SLOTS, Slot};
use proptest::prelude::*;

use super::*;
use crate::core::knowledge::{Contact, Knowledge, Observation};
use protocol::identity::HostId;

const NOW: u64 = 1_700_000_000;

fn question(width: Width) -> Question {
    Question {
        stored_bytes: 600 << 20,
        code: CodeRequest::Width(width),
        work_seconds: 3600.0,
        interval_seconds: 3600.0,
        compute: None,
        uplink: None,
        watched: Watched::default(),
        seed: [1; 16],
        now: NOW,
    }
}

/// A host that fails with this rate per hour and is gone for this share of the time.
fn claims(rate_per_hour: f64, gone: f64) -> Announced {
    claims_in_phase(rate_per_hour, gone, 0)
}

/// A host like that of [`claims`]; hosts in another phase are gone at other times.
fn claims_in_phase(rate_per_hour: f64, gone: f64, phase: u64) -> Announced {
    let mut bitmap = AvailabilityBitmap::unknown(Slot(SLOTS as u64 - 1));
    for slot in 0..SLOTS as u64 {
        let down = ((slot + phase * 83) % 1000) as f64 >= 1000.0 * (1.0 - gone);
        let seen = if down {
            Availability::NotUsable
        } else {
            Availability::Usable
        };
        bitmap.record(Slot(slot), seen);
    }
    let step = NonZeroU32::new(300).unwrap();
    let curve = SurvivalCurve::exponential(step, 120, rate_per_hour / 3600.0);
    Announced {
        at: NOW,
        storage_state: StorageState::FullRate,
        guest_state: AvailabilityState::Idle,
        refuses_for_s: 0,
        withheld: None,
        machine: None,
        forecast_by: None,
        receives_bytes_per_s: None,
        presence: curve.clone(),
        guest: curve,
        presence_bitmap: bitmap.clone(),
        guest_bitmap: bitmap,
    }
}

fn view(host: usize, claims: Option<Announced>) -> HostView {
    HostView {
        host: HostIndex(host),
        rtt_seconds: 0.001,
        measured: None,
        passed_probe: false,
        claims,
        seen: None,
        domains: [None; LEVELS],
        free_bytes: u64::MAX,
    }
}

fn room(has_room: bool) -> u64 {
    if has_room { u64::MAX } else { 0 }
}

fn chosen(views: &[HostView], question: &Question) -> Vec<usize> {
    let placed = place(views, question, false).unwrap();
    let mut hosts: Vec<usize> = placed.order[..placed.width.total()]
        .iter()
        .map(|host| host.0)
        .collect();
    hosts.sort_unstable();
    let mut all: Vec<usize> = placed.order.iter().map(|host| host.0).collect();
    all.sort_unstable();
    assert_eq!(
        all,
        (0..views.len()).collect::<Vec<_>>(),
        "every host is in the order once"
    );
    hosts
}

#[test]
fn too_few_hosts_cost_data_shards_before_parity() {
    let usual = Question {
        code: CodeRequest::AtMost(Width::FALCON),
        ..question(Width::FALCON)
    };
    let code = |views: &[HostView], question: &Question| {
        let placed = place(views, question, false).unwrap();
        let shown = |width: Width| (width.data(), width.parity());
        (shown(placed.code), shown(placed.width), placed.is_narrowed)
    };
    let views = |hosts: usize| -> Vec<HostView> {
        (0..hosts)
            .map(|i| view(i, Some(claims(0.01, 0.0))))
            .collect()
    };
    assert_eq!(code(&views(7), &usual), ((3, 2), (3, 2), false));
    assert_eq!(code(&views(4), &usual), ((2, 2), (2, 2), true));
    assert_eq!(code(&views(3), &usual), ((1, 2), (1, 2), true));
    assert_eq!(code(&views(2), &usual), ((1, 2), (1, 1), true));
    assert_eq!(code(&views(4), &question(Width::FALCON)).0, (3, 2), "given");

    let mut five = views(5);
    five[0].claims.as_mut().unwrap().refuses_for_s = 60;
    assert_eq!(code(&five, &usual).0, (2, 2), "who refuses takes no shard");
    let on_two = Question {
        compute: Some(HostIndex(2)),
        ..usual.clone()
    };
    assert_eq!(code(&views(5), &on_two).0, (3, 2), "the job's machine does");
    for view in &mut five {
        view.claims.as_mut().unwrap().refuses_for_s = 60;
    }
    assert_eq!(code(&five, &usual).0, (3, 2), "all may relent");
    // Two of five hosts have no room for a third of the image, and the others only for that much.
    let mut five = views(5);
    for (view, share) in five.iter_mut().zip([0, 0, 3, 3, 1]) {
        view.free_bytes = usual.stored_bytes / share.max(1) * share.min(1);
    }
    assert_eq!(
        code(&five, &usual).0,
        (3, 2),
        "narrower ones need more room"
    );
    for view in &mut five[1..] {
        view.free_bytes = usual.stored_bytes / 2;
    }
    assert_eq!(code(&five, &usual).0, (2, 2));
}

#[test]
fn steady_hosts_are_chosen_over_flaky_ones() {
    let flaky = |i| view(i, Some(claims_in_phase(0.5, 0.3, i as u64)));
    let steady = |i| view(i, Some(claims_in_phase(0.001, 0.001, i as u64)));
    let views: Vec<HostView> = (0..5).map(flaky).chain((5..10).map(steady)).collect();
    assert_eq!(chosen(&views, &question(Width::FALCON)), [5, 6, 7, 8, 9]);
}

#[test]
fn a_random_draw_leaves_hosts_that_take_a_shard_and_other_ones_each_time() {
    let views = |full: usize| -> Vec<HostView> {
        let view = |i| HostView {
            free_bytes: room(i >= full),
            ..view(i, None)
        };
        (0..10).map(view).collect()
    };
    let drawn = |full: usize, seed: u8| {
        let question = Question {
            seed: [seed; 16],
            ..question(Width::FALCON)
        };
        let left = Among::Random.leave(views(full), &question, 5);
        let mut hosts: Vec<usize> = left.iter().map(|view| view.host.0).collect();
        hosts.sort_unstable();
        hosts
    };
    assert_eq!(drawn(0, 1), drawn(0, 1));
    assert!((2..10).any(|seed| drawn(0, seed) != drawn(0, 1)));
    assert_eq!(drawn(5, 1), [5, 6, 7, 8, 9]);
    // A host without room is better than none: it may have room again.
    assert_eq!(drawn(6, 1).len(), 5);
    let these = Among::These(vec![HostIndex(3), HostIndex(7)]);
    let left = these.leave(views(0), &question(Width::FALCON), 5);
    assert_eq!(left.len(), 2);
}

#[test]
fn a_host_that_was_seen_to_be_unsteady_loses_its_place_whatever_it_says() {
    let mut known = Knowledge::default();
    let liar = HostId(codec::OwnerId([9; 32]));
    for hour in 0..8 {
        let at = NOW - hour * 3600;
        known.observe(&Observation::Contact(liar, Contact::Silent), at);
    }
    let mut views: Vec<HostView> = (0..6).map(|i| view(i, Some(claims(0.01, 0.01)))).collect();
    views[2].claims = Some(claims(0.0, 0.0));
    views[2].seen = known.host(liar).cloned();
    assert_eq!(chosen(&views, &question(Width::FALCON)), [0, 1, 3, 4, 5]);
}

#[test]
fn a_host_behind_a_slow_link_is_left_out() {
    let rate = |rate| Some(RateForecast::saturating(rate, 0.1));
    let mut views: Vec<HostView> = (0..6).map(|i| view(i, None)).collect();
    for view in &mut views {
        view.measured = rate(100e6);
    }
    views[0].measured = rate(1e6);
    assert_eq!(chosen(&views, &question(Width::FALCON)), [1, 2, 3, 4, 5]);
}

#[test]
fn on_the_first_day_shards_are_spread_over_sites_and_hosts_take_turns() {
    let mut names = DomainNames::default();
    let mut views: Vec<HostView> = (0..12).map(|i| view(i, None)).collect();
    for (i, view) in views.iter_mut().enumerate() {
        let site = ["a", "a", "a", "a", "b", "c"][i % 6];
        view.domains = names.of(Some(site), None, IpAddr::from([10, 0, 0, 1]));
    }
    let mut times = [0; 12];
    for seed in 0..60 {
        let mut question = question(Width::FALCON);
        question.seed = [seed; 16];
        let hosts = chosen(&views, &question);
        assert!(
            hosts.iter().filter(|i| **i % 6 < 4).count() <= 2,
            "{hosts:?}"
        );
        for host in hosts {
            times[host] += 1;
        }
    }
    assert!(times.iter().all(|times| *times > 5), "{times:?}");
}

#[test]
fn hosts_that_are_fast_enough_take_turns_however_fast_they_are() {
    let mut views: Vec<HostView> = (0..10).map(|i| view(i, None)).collect();
    for (i, view) in views.iter_mut().enumerate() {
        view.measured = Some(RateForecast::saturating(1e8 * (i + 1) as f64, 0.05));
    }
    let mut times = [0; 10];
    for seed in 0..40 {
        let mut question = question(Width::FALCON);
        (question.seed, question.uplink) = ([seed; 16], Some(4e8));
        for host in chosen(&views, &question) {
            times[host] += 1;
        }
    }
    assert!(times.iter().all(|times| *times > 5), "{times:?}");
}

#[test]
fn hosts_that_refuse_have_no_room_or_run_the_job_come_last() {
    let mut views: Vec<HostView> = (0..8).map(|i| view(i, Some(claims(0.001, 0.0)))).collect();
    views[0].free_bytes = 0;
    let mut refusing = claims(0.0, 0.0);
    refusing.refuses_for_s = 60;
    views[1].claims = Some(refusing);
    let mut question = question(Width::FALCON);
    question.compute = Some(HostIndex(2));
    assert_eq!(chosen(&views, &question), [3, 4, 5, 6, 7]);
    // When there are too few others, these hosts are asked all the same.
    assert_eq!(chosen(&views[..5], &question), [0, 1, 2, 3, 4]);
}

#[test]
fn with_fewer_hosts_than_shards_all_are_offered() {
    let views: Vec<HostView> = (0..4).map(|i| view(i, None)).collect();
    let placed = place(&views, &question(Width::FALCON), false).unwrap();
    assert_eq!(placed.order.len(), 4);
    assert!(place(&[], &question(Width::FALCON), false).is_none());
}

#[test]
fn better_hosts_need_less_redundancy_for_the_same_target() {
    let auto = Question {
        code: CodeRequest::Target(Probability::saturating(0.998)),
        ..question(Width::FALCON)
    };
    let pool = |rate, gone| {
        let in_phase = |i| claims_in_phase(rate, gone, i as u64);
        let views: Vec<HostView> = (0..12).map(|i| view(i, Some(in_phase(i)))).collect();
        place(&views, &auto, false).unwrap()
    };
    let good = pool(0.000_1, 0.000_1);
    let poor = pool(0.3, 0.1);
    assert!(good.reaches_target && poor.reaches_target);
    assert!(
        good.width.expansion() < poor.width.expansion(),
        "{:?} {:?}",
        good.width,
        poor.width
    );
}

fn usual(views: &[HostView]) -> Placed {
    usual_with(views, question(Width::FALCON).work_seconds)
}

fn usual_with(views: &[HostView], work_seconds: f64) -> Placed {
    let usual = Question {
        code: CodeRequest::Usual,
        work_seconds,
        ..question(Width::FALCON)
    };
    place(views, &usual, false).unwrap()
}

fn pool(hosts: usize, rate_per_hour: f64, gone: f64) -> Vec<HostView> {
    let claims = |host| claims_in_phase(rate_per_hour, gone, host as u64);
    (0..hosts).map(|i| view(i, Some(claims(i)))).collect()
}

/// The pool, of which only the last ten days are known. On this many of these days, all hosts were away for half
/// an hour.
fn young(mut views: Vec<HostView>, incidents: u64) -> Vec<HostView> {
    let first = SLOTS as u64 - 2880;
    for view in &mut views {
        let bitmap = &mut view.claims.as_mut().unwrap().presence_bitmap;
        for slot in 0..first {
            bitmap.record(Slot(slot), Availability::Unknown);
        }
        for day in 0..incidents {
            for slot in 0..6 {
                bitmap.record(Slot(first + day * 288 + slot), Availability::NotUsable);
            }
        }
    }
    views
}

#[test]
fn without_much_history_the_usual_code_is_3_and_2() {
    let unknown: Vec<HostView> = (0..12).map(|i| view(i, None)).collect();
    for views in [unknown, young(pool(12, 0.001, 0.005), 2)] {
        let placed = usual(&views);
        assert_eq!((placed.code, placed.is_forecast), (Width::FALCON, false));
    }
    // Too few hosts cost data shards, whatever is known of them.
    let placed = usual(&pool(4, 0.001, 0.005));
    assert_eq!(
        (placed.code, placed.is_forecast),
        (Width::new(2, 2).unwrap(), false)
    );
}

#[test]
fn with_four_weeks_or_three_incidents_the_usual_code_is_chosen_by_forecast() {
    let steady = usual(&pool(12, 0.001, 0.005));
    assert!(
        steady.is_forecast && steady.reaches_target,
        "{:?}",
        steady.score
    );
    assert!(steady.code.parity() >= 2 && steady.code.total() <= 8);
    assert!(steady.code.expansion() < Width::FALCON.expansion());
    let poor = usual_with(&pool(12, 2.0, 0.4), 1e6);
    assert!(
        poor.is_forecast && poor.code.expansion() > steady.code.expansion(),
        "{:?} {:?}",
        poor.code,
        poor.score
    );
    assert!(poor.code.parity() >= 2 && poor.code.expansion() <= 3.0);
    assert!(usual(&young(pool(12, 0.001, 0.005), 3)).is_forecast);
}

#[test]
fn incidents_that_this_machine_saw_count_as_those_on_the_bitmaps() {
    let views = young(pool(12, 0.001, 0.005), 2);
    let seen = |incidents: u32| {
        let usual = Question {
            code: CodeRequest::Usual,
            watched: Watched {
                days: 10.0,
                incidents,
                incident_seconds: 3600.0 * f64::from(incidents),
            },
            ..question(Width::FALCON)
        };
        place(&views, &usual, false).unwrap()
    };
    // The bitmaps show two incidents: two that were seen may be the same.
    assert!(!seen(2).is_forecast && seen(3).is_forecast);
    assert!(seen(6).score.reliability < seen(2).score.reliability);
}

#[test]
fn the_more_work_is_at_stake_the_more_reliable_is_the_code_by_forecast() {
    let views = pool(12, 2.0, 0.4);
    let little = usual_with(&views, 60.0);
    let much = usual_with(&views, 1e9);
    assert!(little.is_forecast && much.is_forecast);
    assert!(
        much.score.reliability > little.score.reliability,
        "{:?} {:?}, {:?} {:?}",
        little.code,
        little.score,
        much.code,
        much.score
    );
}

#[test]
fn with_two_hosts_no_code_is_chosen_by_forecast() {
    // A code that can lose two hosts needs three of them: the save is to say so, not to make 1+1.
    let placed = usual(&pool(2, 0.001, 0.005));
    assert_eq!(placed.code, Width::new(1, 2).unwrap());
    assert!(!placed.is_forecast);
}

#[test]
fn a_code_for_which_the_chosen_hosts_have_no_room_is_not_chosen() {
    let mut views = pool(6, 0.3, 0.2);
    let roomy = usual_with(&views, 1e6);
    assert!(
        roomy.is_forecast && roomy.code.data() < 3,
        "{:?}",
        roomy.code
    );
    for view in &mut views {
        view.free_bytes = question(Width::FALCON).stored_bytes / 3 + 1;
    }
    let placed = usual_with(&views, 1e6);
    assert_eq!((placed.code, placed.is_forecast), (Width::FALCON, false));
    // As soon as enough hosts have room for it, it is chosen with these.
    for host in [1, 2, 4] {
        views[host].free_bytes = u64::MAX;
    }
    let placed = usual_with(&views, 1e6);
    assert_eq!(placed.code, Width::new(1, 2).unwrap());
    let mut hosts: Vec<usize> = placed.order[..3].iter().map(|host| host.0).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, [1, 2, 4]);
}

#[test]
fn a_target_for_which_no_host_has_room_is_missed_and_the_save_may_still_try() {
    let mut views = pool(6, 0.01, 0.01);
    let asked = Question {
        code: CodeRequest::Target(Probability::saturating(0.9)),
        ..question(Width::FALCON)
    };
    assert!(place(&views, &asked, false).unwrap().reaches_target);
    for view in &mut views {
        view.free_bytes = 0;
    }
    let placed = place(&views, &asked, false).unwrap();
    assert!(!placed.reaches_target);
    assert_eq!((placed.code, placed.order.len()), (Width::FALCON, 6));
}

#[test]
fn crowding_is_said_when_there_is_no_other_way() {
    let mut views: Vec<HostView> = (0..6).map(|i| view(i, None)).collect();
    for view in &mut views {
        view.domains = [Some(DomainId(0)), None];
    }
    let placed = place(&views, &question(Width::FALCON), false).unwrap();
    assert_eq!(placed.crowded, Some([Some(5), Some(0)]));
    for (i, view) in views.iter_mut().enumerate() {
        view.domains = [Some(DomainId(i as u32 / 2)), None];
    }
    assert_eq!(
        place(&views, &question(Width::FALCON), false)
            .unwrap()
            .crowded,
        None
    );
}

#[test]
fn a_code_of_more_shards_than_a_checkpoint_can_have_is_refused() {
    let views: Vec<HostView> = (0..8).map(|i| view(i, None)).collect();
    let placed = place(&views, &question(Width::FALCON), false).unwrap();
    assert_eq!(placed.redundancy(), Ok(Redundancy::DEFAULT));
    for (data, refused) in [
        (33, RedundancyError::Data(33)),
        (1, RedundancyError::Parity(63)),
    ] {
        let code = Width::new(data, 64 - data).unwrap();
        let wide = Placed {
            code,
            ..placed.clone()
        };
        assert_eq!(wide.redundancy(), Err(refused));
    }
}

#[test]
fn the_table_says_what_each_host_is_worth() {
    let mut views: Vec<HostView> = (0..8).map(|i| view(i, Some(claims(0.01, 0.01)))).collect();
    views[7].free_bytes = 0;
    let placed = place(&views, &question(Width::FALCON), true).unwrap();
    assert_eq!(placed.rows.len(), 8);
    assert!(placed.rows[..5].iter().all(|row| row.chosen));
    for row in &placed.rows[..7] {
        let with = row.with.unwrap().total();
        let without = row.without.unwrap().total();
        assert!(!row.chosen || with <= without + 1e-9);
        assert!(row.chosen || with >= without - 1e-9);
    }
    assert_eq!(placed.rows[7].reserve, Some(Reserve::NoRoom));
}

#[test]
fn networks_stand_in_for_sites_without_a_name() {
    let mut names = DomainNames::default();
    let mut of = |site, addr: &str| names.of(site, None, addr.parse().unwrap())[0];
    assert_eq!(of(None, "10.1.2.3"), of(None, "10.1.2.200"));
    assert_ne!(of(None, "10.1.2.3"), of(None, "10.1.3.3"));
    assert_ne!(of(Some("x"), "10.1.2.3"), of(None, "10.1.2.3"));
    assert_eq!(of(Some("x"), "10.1.2.3"), of(Some("x"), "192.0.2.1"));
    assert_eq!(of(None, "2001:db8:1::1"), of(None, "2001:db8:1:ff::1"));
    assert_eq!(of(None, "127.0.0.1"), None);
}

proptest! {
    #[test]
    fn whatever_hosts_say_every_one_is_in_the_order_once(
        rates in prop::collection::vec((0.0f64..5.0, 0.0f64..1.0, any::<bool>(), 0u32..4), 1..14),
        data in 1usize..5,
        parity in 0usize..4,
        auto in any::<bool>(),
    ) {
        let views: Vec<HostView> = rates
            .iter()
            .enumerate()
            .map(|(i, (rate, gone, has_room, site))| HostView {
                free_bytes: room(*has_room),
                domains: [Some(DomainId(*site)), None],
                ..view(i, (*site > 0).then(|| claims(*rate, *gone)))
            })
            .collect();
        let mut question = question(Width::new(data, parity).unwrap());
        if auto {
            question.code = CodeRequest::Target(Probability::saturating(0.99));
        }
        if let Some(placed) = place(&views, &question, true) {
            let mut hosts: Vec<usize> = placed.order.iter().map(|host| host.0).collect();
            hosts.sort_unstable();
            prop_assert_eq!(hosts, (0..views.len()).collect::<Vec<_>>());
            prop_assert_eq!(placed.rows.len(), views.len());
        }
    }
}

/// Which of origins on these hosts, with 600 MiB each, are stored again where the job's machine is likely to fail.
fn origins_stored_again(views: &[HostView], holders: &[&[usize]], work_seconds: f64) -> Vec<bool> {
    let question = Question {
        compute: Some(HostIndex(views.len() - 1)),
        work_seconds,
        ..question(Width::FALCON)
    };
    let placed = place(views, &question, false).unwrap();
    let origin = |holders: &&[usize]| placement::renewal::OlderRows {
        hosts: holders.iter().copied().map(HostIndex).collect(),
        data: 3,
        stored_bytes: 600 << 20,
    };
    let origins: Vec<_> = holders.iter().map(origin).collect();
    renewal::stored_again(views, &question, &placed, &origins)
}

#[test]
fn origins_are_stored_again_where_their_hosts_often_fail() {
    let hosts = |rate: f64| -> Vec<HostView> {
        let others = (0..8).map(|i| view(i, Some(claims_in_phase(rate, 0.1, i as u64))));
        others.chain([view(8, Some(claims(0.2, 0.0)))]).collect()
    };
    let day = 86_400.0;
    let [bare, spare] = [&[0, 1, 2][..], &[0, 1, 2, 3]];
    let again = |rate, work| origins_stored_again(&hosts(rate), &[bare, spare], work);
    assert_eq!(again(0.2, day), [true, true]);
    assert_eq!(again(0.001, day), [false, false], "their hosts stay");
    assert_eq!(again(0.2, 60.0), [false, false], "little work is at stake");
}
