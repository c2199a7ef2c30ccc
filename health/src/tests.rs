//! What needs attention, and what does not.

use super::*;

const NOW: u64 = 1_800_000_000;
const DAY: u64 = 86_400;

fn host(name: &str) -> HostHealth {
    HostHealth {
        name: name.into(),
        state: HostState::Up,
        refuses_for_s: Some(0),
        capacity_bytes: Some(10 << 30),
        used_bytes: Some(1 << 30),
        free_bytes: Some(9 << 30),
        clock_ahead_s: Some(0),
        software: Some("1.0.0".into()),
        certificate_ends: Some(NOW + 300 * DAY),
        ..HostHealth::default()
    }
}

fn job(can_lose: Option<usize>) -> JobHealth {
    JobHealth {
        job: "42".parse().unwrap(),
        version: Version::new(7).unwrap(),
        versions: 2,
        created: Known::proved(NOW - 7200),
        age_s: Some(7200),
        interval_s: None,
        redundancy: Redundancy::DEFAULT,
        shards: Known::announced(can_lose.map_or(2, |n| n + 3)),
        holders: Vec::new(),
        can_lose: Known::announced(can_lose),
        kept_until: None,
        retired: false,
    }
}

/// Five hosts that take shards, one job that can lose two of them, one key that is good for a year.
fn well() -> Health {
    let each = ["h1", "h2", "h3", "h4", "h5"].map(host).to_vec();
    Health {
        at: NOW,
        jobs: vec![job(Some(2))],
        keys: vec![KeyHealth {
            what: "certificate of ada".into(),
            ends: Known::proved(NOW + 365 * DAY),
            left_s: 365 * DAY,
        }],
        hosts: HostsHealth::of(each, Some(1)),
        ..Health::default()
    }
}

#[cfg(feature = "view")]
#[test]
fn the_work_of_this_machine_has_a_line_if_there_is_any() {
    let text = |health: &Health| {
        let mut out = Vec::new();
        text::write(&mut out, health).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert!(!text(&well()).contains("at risk"));
    let busy = with(|health| {
        health.work = Some(WorkHealth {
            running: 2,
            at_risk_seconds: 300.0,
            evictions: 7,
            survived: 6,
            rescued_seconds: 36_000.0,
            lost_seconds: 50.0,
            why: Some("job 42: too few hosts".to_owned()),
        });
    });
    let line = "here: 5 min of work at risk in 2 running jobs; 6 of 7 evictions survived, 10 h of work rescued, 50 s lost (seen); last save that failed: job 42: too few hosts";
    assert!(text(&busy).contains(line), "{}", text(&busy));
}

fn kinds(health: Health) -> Vec<Kind> {
    let judged = judged(health, &Limits::default());
    judged.attention.iter().map(|one| one.kind).collect()
}

fn with(change: impl FnOnce(&mut Health)) -> Health {
    let mut health = well();
    change(&mut health);
    health
}

#[test]
fn nothing_needs_attention_when_all_is_well() {
    assert_eq!(kinds(well()), []);
    let six = with(|health| {
        let mut each = std::mem::take(&mut health.hosts.each);
        each.push(HostHealth {
            name: "h6".into(),
            ..HostHealth::default()
        });
        health.hosts = HostsHealth::of(each, None);
    });
    // The save has one host more than it needs, and that one may be down.
    assert_eq!(six.hosts.up, Known::seen(5));
    assert_eq!(kinds(six), []);
}

#[test]
fn a_version_that_was_seen_and_is_shown_by_no_host_needs_attention() {
    let unfound = UnfoundJob {
        job: "42".parse().unwrap(),
        version: Version::new(7).unwrap(),
        created: NOW - 7200,
    };
    let health = with(|health| {
        health.jobs.clear();
        health.unfound = vec![unfound];
        let silent = ["s1", "s2", "s3"].map(|name| HostHealth {
            name: name.into(),
            state: HostState::Silent,
            silent_since: Some(NOW - 3 * DAY),
            ..HostHealth::default()
        });
        let each = health.hosts.each.iter().cloned().chain(silent);
        health.hosts = HostsHealth::of(each.collect(), Some(0));
    });
    let judged = judged(health.clone(), &Limits::default());
    // The cause comes first.
    let [cause, attention] = judged.attention.as_slice() else {
        panic!("{judged:?}");
    };
    assert_eq!(cause.kind, Kind::HostsAway);
    assert!(
        cause.what.contains("s1 silent for 3 days, s2 silent"),
        "{cause:?}"
    );
    assert_eq!(attention.kind, Kind::NotFound);
    assert!(attention.what.contains("version 7") && attention.what.contains("3 hosts are away"));
    let remedy = |health| {
        let last = judge::judged(health, &Limits::default()).attention.pop();
        last.unwrap().remedy.clone()
    };
    // What is forgotten now would not come back with its hosts.
    let away = remedy(health.clone()).unwrap();
    assert!(
        away.contains("when they are back") && !away.contains("forget"),
        "{away}"
    );
    // Where no host is away, waiting does not help.
    let mut lost = health;
    lost.hosts.each.truncate(5);
    lost.hosts = HostsHealth::of(lost.hosts.each, Some(0));
    assert!(!remedy(lost).unwrap().contains("back"));
}

#[test]
fn one_cause_is_one_line_for_many_jobs() {
    let many = with(|health| {
        health.jobs = (0..63)
            .map(|number| JobHealth {
                job: format!("j{number}").parse().unwrap(),
                ..job(Some(0))
            })
            .collect();
        health.hosts.each[1].state = HostState::Silent;
        health.hosts.each[1].silent_since = Some(NOW - 7200);
        health.hosts = HostsHealth::of(health.hosts.each.clone(), Some(0));
    });
    let judged = judged(many, &Limits::default());
    let said: Vec<(Kind, &str, &str)> = judged
        .attention
        .iter()
        .map(|one| (one.kind, &*one.about, &*one.what))
        .collect();
    assert_eq!(
        said[0],
        (
            Kind::HostsAway,
            "hosts",
            "1 of 5 are away: h2 silent for 2 h; 63 jobs can lose none"
        )
    );
    let below = said.iter().filter(|one| one.0 == Kind::BelowRedundancy);
    let below: Vec<_> = below.collect();
    assert_eq!(below.len(), 1);
    assert_eq!(below[0].1, "63 jobs");
    assert!(below[0].2.ends_with("j6, j7 and 55 more"), "{below:?}");
}

#[test]
fn what_can_lose_least_comes_first() {
    let lose = [Some(2), Some(1), None, Some(0), Some(2), Some(0), Some(3)];
    let mixed = with(|health| {
        let named = |(number, lose): (usize, &Option<usize>)| JobHealth {
            job: format!("j{number}").parse().unwrap(),
            ..job(*lose)
        };
        health.jobs = lose.iter().enumerate().map(named).collect();
        health.hosts.each[1].state = HostState::Down;
        health.hosts = HostsHealth::of(health.hosts.each.clone(), Some(0));
    });
    let order: Vec<String> = mixed
        .jobs_worst_first()
        .iter()
        .map(|job| job.job.to_string())
        .collect();
    assert_eq!(order, ["j2", "j3", "j5", "j1", "j0", "j4", "j6"]);
    let judged = judged(mixed, &Limits::default());
    let about: Vec<&str> = judged.attention.iter().map(|one| &*one.about).collect();
    let jobs = about.into_iter().filter(|about| about.starts_with("job"));
    let jobs: Vec<&str> = jobs.collect();
    assert_eq!(jobs, ["job j2", "job j3", "job j5", "job j1"]);
    let cause = &judged.attention[0].what;
    let ends = "h2 down; 1 job can't be restored now; 2 jobs can lose none; 1 job can lose less than at the save";
    assert!(cause.ends_with(ends), "{cause}");
}

#[test]
fn each_thing_that_is_wrong_is_said_once() {
    let of = |change: fn(&mut Health)| kinds(with(change));
    assert_eq!(of(|h| h.jobs = vec![job(None)]), [Kind::NotRestorable]);
    let damaged = judged(with(|h| h.jobs = vec![job(None)]), &Limits::default());
    let remedy = damaged.attention[0].remedy.as_deref().unwrap_or_default();
    assert!(
        !remedy.contains("back") && remedy.contains("older"),
        "{remedy}"
    );
    assert_eq!(of(|h| h.jobs = vec![job(Some(1))]), [Kind::BelowRedundancy]);
    let lease = |left: u64| Some(Known::proved(NOW + left));
    let leased = |left| {
        kinds(with(|h| {
            h.jobs = vec![JobHealth {
                kept_until: lease(left),
                ..job(Some(2))
            }];
        }))
    };
    assert_eq!(leased(DAY), [Kind::LeaseEnds]);
    assert_eq!(leased(3 * DAY), []);
    assert_eq!(of(|h| h.keys[0].left_s = 29 * DAY), [Kind::Ends]);
    assert_eq!(of(|h| h.keys[0].left_s = 0), [Kind::Ends]);
    let two_stand_back = |h: &mut Health| {
        let mut each = std::mem::take(&mut h.hosts.each);
        each[0].state = HostState::StandsBack;
        each[1].state = HostState::Full;
        h.hosts = HostsHealth::of(each, None);
    };
    assert_eq!(of(two_stand_back), [Kind::TooFewHosts]);
    let slow_clock = |h: &mut Health| h.hosts.clock_ahead_s = Some(Known::seen(-301));
    assert_eq!(of(slow_clock), [Kind::Clock]);
    let ending = |h: &mut Health| h.hosts.each[0].certificate_ends = Some(NOW + DAY);
    assert_eq!(of(ending), [Kind::Ends]);
}

#[test]
fn a_submitter_reads_whom_to_ask_about_a_key_that_ends() {
    let attention = |what: &str, left_s| {
        let health = with(|h| {
            h.keys[0].what = what.to_owned();
            h.keys[0].left_s = left_s;
        });
        let judged = judged(health, &Limits::default());
        let one = judged.attention[0].clone();
        (one.what, one.remedy.unwrap_or_default())
    };
    let (what, remedy) = attention("certificate of ada", 3 * DAY);
    assert_eq!(what, "expires in 3 days");
    assert!(remedy.contains("the grid's admin"), "{remedy}");
    let (what, remedy) = attention(JOB_KEY, 0);
    assert_eq!(what, "has expired");
    assert!(remedy.contains("the key's owner"), "{remedy}");
}

#[test]
fn how_old_a_version_may_be_is_for_the_user_to_say() {
    let limits = Limits {
        age_s: Some(3600),
        ..Limits::default()
    };
    let judged = judged(well(), &limits);
    assert_eq!(judged.attention[0].kind, Kind::NotSaved);
    assert_eq!(judged.attention[0].what, "not saved for 2 h");
}

#[test]
fn an_admin_hears_of_hosts_too() {
    let unwell = |h: &mut Health| {
        h.jobs.clear();
        h.hosts.each[0].clock_ahead_s = Some(-4000);
        h.hosts.each[1].software = Some("0.9.0".into());
        h.hosts.each[2].state = HostState::Down;
        h.grid = Some(GridHealth {
            below: 9,
            too_few: 1,
            unchecked: 5,
            failed_checks: 2,
            ..GridHealth::default()
        });
    };
    let judged = judged(with(unwell), &Limits::default());
    let said: Vec<(Kind, &str)> = judged
        .attention
        .iter()
        .map(|one| (one.kind, &*one.what))
        .collect();
    assert!(
        said.contains(&(Kind::Clock, "its clock is 66 min behind most others")),
        "{said:?}"
    );
    assert!(said.contains(&(Kind::Versions, "programs of 2 versions: 0.9.0, 1.0.0")));
    assert!(said.contains(&(Kind::HostsAway, "1 of 5 are away: h3 down")));
    let below = "3 checkpoints have fewer proved shards than they were saved with";
    assert!(said.contains(&(Kind::BelowRedundancy, below)));
    assert!(said.iter().any(|(kind, _)| *kind == Kind::FailedChecks));
    assert_eq!(
        (said[0].0, said[1].0),
        (Kind::HostsAway, Kind::NotRestorable)
    );
}

#[test]
fn hosts_are_summed_up_by_what_they_can_do() {
    let mut back = host("h2");
    back.state = HostState::of(300, 1 << 30);
    let mut full = host("h3");
    full.state = HostState::of(0, 1);
    let down = HostHealth {
        name: "h4".into(),
        ..HostHealth::default()
    };
    let hosts = HostsHealth::of(vec![host("h1"), back, full, down], None);
    assert_eq!(
        (hosts.known, hosts.up.value, hosts.take_shards.value),
        (4, 3, 1)
    );
    assert_eq!(hosts.free_bytes, Known::announced(9 << 30));
    assert_eq!(hosts.capacity_bytes.value, 30 << 30);
    let states: Vec<HostState> = hosts.each.iter().map(|host| host.state).collect();
    assert_eq!(states[1..3], [HostState::StandsBack, HostState::Full]);
}

#[test]
fn the_clock_in_the_middle_counts() {
    assert_eq!(middle_offset(&[]), None);
    // One host's clock is a day ahead; the hosts were asked at different moments.
    let clocks = [(1000, 1000), (1012, 1010), (87_400, 1000)];
    assert_eq!(middle_offset(&clocks), Some(2));
    assert_eq!(ahead(5, 9), -4);
}
