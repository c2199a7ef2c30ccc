//! The machine's owner comes first, and the host knows its own availability.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ckpt_store::monitor::history::{self, Run, States};
use ckpt_store::{Daemon, DaemonConfig};
use placement::bitmap::{Availability, Slot};
use protocol::identity::Role;
use protocol::net::stream::ExchangeError;
use protocol::wire::Code;
use protocol::wire::announcement::{Announced, Announcement};
use protocol::wire::limits::PROBE_BYTES_MAX;
use protocol::wire::message::{Request, Response};
use rustix::process::{Pid, Signal, kill_process};

use crate::client::{Client, code};
use crate::lab::{Lab, MIB, wait_for};
use crate::sample::Sample;

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}

fn prefer(data: &Path, preferences: &str) {
    std::fs::create_dir_all(data).unwrap();
    std::fs::write(data.join("preferences.toml"), preferences).unwrap();
}

fn run(span: std::ops::Range<u64>, states: States) -> Run {
    Run {
        span,
        states: Some(states),
        cpu: 0.0,
        disk: 0.0,
    }
}

fn past(data: &Path) -> Vec<Run> {
    history::runs(data).unwrap().collect()
}

impl Client {
    async fn announced(&self) -> Announced {
        match self.ask(&Request::Announcement).await.unwrap() {
            (Response::Announcement(wire), _) => Announcement::from(*wire).check().unwrap(),
            (other, _) => panic!("{other:?}"),
        }
    }

    /// Asks until the host refuses new shards, or until it takes them.
    async fn wait_until_refusing(&self, refusing: bool) -> Announced {
        let began = Instant::now();
        loop {
            let announced = self.announced().await;
            if (announced.refuses_for_s > 0) == refusing {
                return announced;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{announced:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn a_host_whose_owner_needs_it_takes_no_shards_and_gives_back_what_it_has() {
    let lab = Lab::new();
    let config = DaemonConfig {
        stand_back: true,
        ..lab.config()
    };
    let daemon = Daemon::start(&config).await.unwrap();
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let before = Sample::new(&owner.secret, "42", 1, 1);
    client.put(&before, 0).await.unwrap();
    client.commit(&before).await.unwrap();

    // No machine has this much memory, so it has too little for a guest.
    prefer(&lab.data(), "[monitor]\nguest_memory_mb = 1e12\n");
    let announced = client.wait_until_refusing(true).await;
    assert_eq!(announced.guest_state.to_string(), "no memory");
    let after = Sample::new(&owner.secret, "42", 2, 2);
    let Err(ExchangeError::Refused(refusal)) = client.put(&after, 0).await else {
        panic!("not refused");
    };
    assert_eq!(refusal.code, Code::Busy);
    assert!(refusal.retry_after_ms >= 1000, "{refusal:?}");
    assert!(refusal.detail.contains("memory"), "{refusal:?}");
    assert!(client.holds(&before, 0).await.unwrap());

    prefer(&lab.data(), "# nothing\n");
    client.wait_until_refusing(false).await;
    client.put(&after, 0).await.unwrap();
    daemon.stop().await;
}

#[tokio::test]
async fn a_host_that_may_not_use_the_network_only_says_so() {
    let lab = Lab::new();
    let config = DaemonConfig {
        stand_back: true,
        ..lab.config()
    };
    let daemon = Daemon::start(&config).await.unwrap();
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let sample = Sample::new(&owner.secret, "42", 1, 1);
    client.put(&sample, 0).await.unwrap();
    client.commit(&sample).await.unwrap();
    // The host is open for a minute that is half a day away, in any time zone whose offset is in whole
    // minutes.
    let hour = (now() % 86_400) as f64 / 3600.0;
    let from = (hour + 12.0) % 24.0;
    let to = (hour + 12.02) % 24.0;
    let zone = local_offset_hours();
    let text = format!(
        "net_start_hour = {:.4}\nnet_end_hour = {:.4}\n",
        (from + zone).rem_euclid(24.0),
        (to + zone).rem_euclid(24.0)
    );
    prefer(&lab.data(), &text);
    let announced = client.wait_until_refusing(true).await;
    assert!((11 * 3600..=12 * 3600).contains(&announced.refuses_for_s));
    assert_eq!(code(client.holds(&sample, 0).await), Code::Busy);
    assert_eq!(client.status().await.checkpoints, 1);
    daemon.stop().await;
}

/// By how many hours local time is ahead of UTC.
fn local_offset_hours() -> f64 {
    let out = Command::new("date").arg("+%z").output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let number: i32 = text.trim().parse().unwrap();
    f64::from(number / 100) + f64::from(number % 100) / 60.0
}

#[tokio::test]
async fn transfers_stay_within_the_owners_limits() {
    let lab = Lab::new();
    prefer(
        &lab.data(),
        "max_bytes_sec_up = 2e6\nmax_bytes_sec_down = 4e6\n",
    );
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let sample = Sample::with_rows(&owner.secret, "42", 1, 1, &[MIB; 5]);
    let began = Instant::now();
    client.put(&sample, 0).await.unwrap();
    let put = began.elapsed();
    client.commit(&sample).await.unwrap();
    let began = Instant::now();
    assert!(client.holds(&sample, 0).await.unwrap());
    let got = began.elapsed();
    // The time for 5 MiB at 4 MB/s and at 2 MB/s, less what may pass before the first wait.
    assert!(put > Duration::from_millis(800), "{put:?}");
    assert!(got > Duration::from_millis(1700), "{got:?}");
    assert!(client.announced().await.receives_bytes_per_s.unwrap() <= 4_000_000);
    daemon.stop().await;
}

#[tokio::test]
async fn a_host_announces_what_it_remembers() {
    let lab = Lab::new();
    let data = lab.data();
    let now = now();
    std::fs::create_dir_all(&data).unwrap();
    // Twenty days that ended an hour ago, with a day of absence five days ago.
    let day = 86_400;
    let runs = [
        run(now - 20 * day..now - 5 * day, States::CALM),
        run(now - 5 * day..now - 4 * day, States::GONE),
        run(now - 4 * day..now - 3600, States::CALM),
    ];
    history::write(&data, &runs).unwrap();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let announced = client.announced().await;
    let bitmap = &announced.presence_bitmap;
    let at = |seconds_ago: u64| bitmap.get(Slot::containing(now - seconds_ago));
    assert_eq!(at(25 * day), Availability::Unknown);
    assert_eq!(at(10 * day), Availability::Usable);
    assert_eq!(at(5 * day - 7200), Availability::NotUsable);
    assert_eq!(at(2 * day), Availability::Usable);
    assert_eq!(at(1800), Availability::NotUsable);
    let away = bitmap.known().count() - bitmap.usable().count();
    assert!((299..=303).contains(&away), "{away}");
    assert_eq!(announced.presence.steps(), 120);
    let ten_hours = announced.presence.at(36_000.0).value();
    assert!((0.3..1.0).contains(&ten_hours), "{ten_hours}");
    daemon.stop().await;
}

#[test]
fn the_history_has_no_gap_after_a_kill() {
    let lab = Lab::new();
    let data = lab.data();
    let mut process = lab.spawn(&data, &[]);
    assert!(!past(&data).is_empty());
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    let mut process = lab.spawn(&data, &[]);
    let pid = Pid::from_child(&process.child);
    kill_process(pid, Signal::TERM).unwrap();
    wait_for("the daemon ends", || process.child.try_wait().unwrap());
    let runs = past(&data);
    assert!(runs.iter().all(|run| run.states != Some(States::GONE)));
    assert!(
        runs.windows(2)
            .all(|pair| pair[0].span.end == pair[1].span.start)
    );
}

#[test]
fn an_absence_is_noticed_at_the_next_start() {
    let lab = Lab::new();
    let data = lab.data();
    let now = now();
    std::fs::create_dir_all(&data).unwrap();
    history::write(&data, &[run(now - 9000..now - 1000, States::CALM)]).unwrap();
    drop(lab.spawn(&data, &[]));
    let runs = past(&data);
    assert_eq!(runs[1].states, Some(States::GONE));
    assert_eq!(runs[1].span.start, now - 1000);
    assert!(runs[1].span.end >= now - 1);
}

#[test]
fn status_says_what_was_seen() {
    let lab = Lab::new();
    let data = lab.data();
    let now = now();
    std::fs::create_dir_all(&data).unwrap();
    history::write(&data, &[run(now - 864_000..now - 10, States::CALM)]).unwrap();
    let _process = lab.spawn(&data, &[]);
    let status = |json: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-store"));
        let out = command.args(["status", "--data"]).arg(&data).args(json);
        String::from_utf8(out.output().unwrap().stdout).unwrap()
    };
    let text = status(&[]);
    assert!(text.contains("machine: idle"), "{text}");
    assert!(text.contains("available 100.0% of 10.0 days"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&status(&["--json"])).unwrap();
    assert_eq!(json["monitor"]["disk"], "full rate");
    assert!(json["monitor"]["stays_10h"].as_f64().unwrap() > 0.5);
}

#[test]
fn wrong_preferences_are_named_at_the_start() {
    let lab = Lab::new();
    prefer(&lab.data(), "disk_max_use_gb = 5\n");
    let mut command = lab.command(&lab.data());
    let out = command.args(["--listen", "127.0.0.1:0"]).output().unwrap();
    assert!(!out.status.success());
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(text.contains("disk_max_use_gb"), "{text}");
    assert!(text.contains("preferences.toml"), "{text}");
}

#[tokio::test]
async fn a_probe_is_answered_once_its_bytes_have_arrived() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let opened = client.connection.open_bi().await.unwrap();
    let (mut send, mut recv) = opened;
    let asked = Request::Probe { bytes: 200_000 };
    protocol::net::stream::write_frame(&mut send, &asked)
        .await
        .unwrap();
    send.write_all(&[7; 199_999]).await.unwrap();
    let early = tokio::time::timeout(
        Duration::from_millis(200),
        protocol::net::read_frame::<Response>(&mut recv, crate::client::LIMIT),
    );
    assert!(early.await.is_err());
    let too_large = Request::Probe {
        bytes: PROBE_BYTES_MAX + 1,
    };
    assert_eq!(code(client.ask(&too_large).await), Code::BadRequest);
    let donor = Client::connect(&lab, &lab.member(Role::Donor), daemon.local_addr()).await;
    let asked = Request::Probe { bytes: 1 };
    assert_eq!(code(donor.ask(&asked).await), Code::Forbidden);

    let (mut send, mut recv) = client.connection.open_bi().await.unwrap();
    let asked = Request::Probe { bytes: 200_000 };
    protocol::net::stream::write_frame(&mut send, &asked)
        .await
        .unwrap();
    send.write_all(&[7; 200_000]).await.unwrap();
    let answer: Response = protocol::net::read_frame(&mut recv, crate::client::LIMIT)
        .await
        .unwrap();
    assert_eq!(answer, Response::Probed);
    daemon.stop().await;
}
