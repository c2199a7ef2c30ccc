//! Writes the page of an invented grid to standard output, to be looked at in a browser:
//! `cargo run -p health --features view --example page -- many > many.html`. `many` has 1000 hosts, `pool` 200
//! hosts and 1000 jobs, `tricks` has names that try to be more than names.

use codec::{Redundancy, Version};
use health::history::History;
use health::page::{View, page};
use health::{
    Health, HeldShard, HostHealth, HostState, HostsHealth, JobHealth, Known, Limits, judged,
};

const NOW: u64 = 1_800_000_000;

const TRICK: &str = "</td></table><script>document.title='owned'</script><img src=x onerror=document.title='owned'>\u{202e}\"'";

fn host(number: usize, name: String) -> HostHealth {
    let state = match number % 50 {
        7 => HostState::Down,
        13 => HostState::StandsBack,
        29 => HostState::Full,
        _ => HostState::Up,
    };
    let used = (number as u64 % 90) << 30;
    HostHealth {
        name,
        state,
        silent_since: None,
        why: (state == HostState::StandsBack).then(|| "its owner needs it".to_owned()),
        refuses_for_s: Some(if state == HostState::StandsBack {
            1800
        } else {
            0
        }),
        capacity_bytes: Some(100 << 30),
        used_bytes: Some(used),
        free_bytes: Some((100 << 30) - used),
        clock_ahead_s: Some(0),
        software: Some("0.1.0".to_owned()),
        protocol: Some("ckpt/2".to_owned()),
        certificate_ends: Some(NOW + 300 * 86_400),
        bytes_per_second: (!number.is_multiple_of(3)).then_some(1e6 * (number % 100) as f64),
        stays_10h: Some((number % 100) as f64 / 100.0),
    }
}

fn job(number: u64, lose: Option<usize>) -> JobHealth {
    let name = format!("simulation.{number}");
    JobHealth {
        job: name.parse().unwrap_or_else(|cause| panic!("{cause}")),
        version: Version::new(number * 7).unwrap_or(Version::FIRST),
        versions: 2,
        created: Known::proved(NOW - 600 * number),
        age_s: Some(600 * number),
        interval_s: Some(3600),
        redundancy: Redundancy::DEFAULT,
        shards: Known::announced(3 + lose.unwrap_or(0)),
        holders: (0..5)
            .map(|shard| HeldShard {
                shard,
                host: format!(
                    "node{:04}.cluster.example",
                    (number * 7 + u64::from(shard) * 13) % 40
                ),
            })
            .collect(),
        can_lose: Known::announced(lose),
        kept_until: None,
        retired: false,
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a program, not a part of the pure crate"
)]
fn main() {
    let kind = std::env::args().nth(1).unwrap_or_default();
    let has_tricks = kind == "tricks";
    let (count, jobs) = match kind.as_str() {
        "tricks" => (20, 0),
        "pool" => (200, 1000),
        _ => (1000, 0),
    };
    let mut history = History::default();
    let mut shown = Health::default();
    for sample in 0..500_u64 {
        let name = |number: usize| match has_tricks {
            true => format!("{number}{TRICK}"),
            false => format!("node{number:04}.cluster.example"),
        };
        let each = (0..count).map(|number| {
            let mut host = host(number, name(number));
            if (number as u64 * 31 + sample / 9).is_multiple_of(41) {
                host.state = HostState::Down;
                host.why = Some(if has_tricks { TRICK } else { "timed out" }.to_owned());
            }
            host
        });
        shown = Health {
            at: NOW - (500 - sample) * 600,
            jobs: [
                job(1, Some(2)),
                job(5, Some(1 + usize::from(sample % 90 > 40))),
                job(9, if sample > 400 { None } else { Some(2) }),
            ]
            .into_iter()
            .chain(
                (10..10 + jobs).map(|number| job(number, Some(2 - usize::from(number % 7 == 0)))),
            )
            .collect(),
            hosts: HostsHealth {
                stay: (0..=10).map(|hour| 0.97_f64.powi(hour)).collect(),
                ..HostsHealth::of(each.collect(), Some(0))
            },
            ..Health::default()
        };
        history.enter(&shown);
    }
    let health = judged(shown, &Limits::default());
    let view = View {
        of: if has_tricks { TRICK } else { "grid example" },
        health: &health,
        history: &history,
        now: health.at + 12,
        stale: has_tricks.then_some(TRICK),
        is_live: false,
    };
    println!("{}", page(&view).into_string());
}
