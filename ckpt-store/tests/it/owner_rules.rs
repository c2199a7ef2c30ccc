//! The owner decides: pauses, programs during which the owner wants the machine alone, and limits on what
//! is moved. The owner also sees what the daemon does, for whom, and why not more.

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ckpt_store::{Daemon, DaemonConfig};
use protocol::identity::Role;
use protocol::net::stream::ExchangeError;
use protocol::wire::announcement::{Announced, Announcement};
use protocol::wire::message::{Request, Response};
use protocol::wire::{Code, Withheld};

use crate::client::{Client, code};
use crate::lab::{Lab, MIB, wait_for};
use crate::sample::Sample;

fn ckpt_store(args: &[&str], data: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-store"));
    let (first, rest) = args.split_first().unwrap();
    let out = command.arg(first).arg("--data").arg(data).args(rest);
    let out = out.output().unwrap();
    let text = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8(text).unwrap())
}

fn status(data: &Path) -> String {
    ckpt_store(&["status"], data).1
}

async fn announced(client: &Client) -> Announced {
    match client.ask(&Request::Announcement).await.unwrap() {
        (Response::Announcement(wire), _) => Announcement::from(*wire).check().unwrap(),
        (other, _) => panic!("{other:?}"),
    }
}

/// Asks until the host gives this reason, or until it gives none.
async fn wait_until_withheld(client: &Client, reason: Option<Withheld>) -> Announced {
    let began = Instant::now();
    loop {
        let said = announced(client).await;
        if said.withheld == reason {
            return said;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{said:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_paused_host_takes_no_shards_gives_back_what_it_has_and_stays_paused() {
    let lab = Lab::new();
    let data = lab.data();
    let process = lab.spawn(&data, &[]);
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, process.addr).await;
    let before = Sample::new(&owner.secret, "42", 1, 1);
    client.put(&before, 0).await.unwrap();
    client.commit(&before).await.unwrap();

    let (done, said) = ckpt_store(&["pause", "2h"], &data);
    assert!(
        done && said.contains("stands back within seconds"),
        "{said}"
    );
    let paused = wait_until_withheld(&client, Some(Withheld::Paused)).await;
    assert!((7000..=7200).contains(&paused.refuses_for_s), "{paused:?}");
    let after = Sample::new(&owner.secret, "42", 2, 2);
    let Err(ExchangeError::Refused(refusal)) = client.put(&after, 0).await else {
        panic!("not refused");
    };
    assert_eq!(refusal.code, Code::Busy);
    assert!(
        refusal.detail.contains("its owner has paused it"),
        "{refusal:?}"
    );
    assert!(client.holds(&before, 0).await.unwrap());
    let text = wait_for("status says so", || {
        Some(status(&data)).filter(|text| text.contains("standing back since"))
    });
    assert!(
        text.contains(": its owner has paused it, until 20"),
        "{text}"
    );

    // The next daemon stands back from its first moment on.
    drop(process);
    assert!(
        status(&data).contains("paused until 20"),
        "{}",
        status(&data)
    );
    let process = lab.spawn(&data, &[]);
    let client = Client::connect(&lab, &owner, process.addr).await;
    wait_until_withheld(&client, Some(Withheld::Paused)).await;
    let (done, said) = ckpt_store(&["resume"], &data);
    assert!(done && said.contains("resumed"), "{said}");
    wait_until_withheld(&client, None).await;
    client.put(&after, 0).await.unwrap();
    let (_, said) = ckpt_store(&["resume"], &data);
    assert!(said.contains("not paused before"), "{said}");
}

#[tokio::test]
async fn status_names_borrowers_of_space_and_counts_transfers() {
    let lab = Lab::new();
    let data = lab.data();
    let process = lab.spawn(&data, &["--capacity", "1GiB"]);
    assert!(status(&data).contains("to nobody"), "{}", status(&data));
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, process.addr).await;
    let sample = Sample::with_rows(&owner.secret, "42", 1, 1, &[MIB]);
    client.put(&sample, 0).await.unwrap();
    client.commit(&sample).await.unwrap();
    let text = wait_for("the name is written down", || {
        Some(status(&data)).filter(|text| text.contains("to member-1 (1.0 MiB)"))
    });
    let lent = text
        .lines()
        .find(|line| line.starts_with("lent: "))
        .unwrap();
    assert!(lent.contains(" of 1.0 GiB, to member-1"), "{text}");
    wait_for("traffic is written down", || {
        let (_, text) = ckpt_store(&["status", "--json"], &data);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let received = json["moved"]["month_received_bytes"].as_u64().unwrap();
        (received > MIB as u64).then_some(())
    });
    assert!(
        status(&data).contains("transferred this month: "),
        "{}",
        status(&data)
    );
}

/// A program with a name that no other program has.
struct Program(Child);

impl Program {
    fn run(dir: &Path, name: &str) -> Self {
        let path = dir.join(name);
        std::fs::copy("/bin/sleep", &path).unwrap();
        Self(Command::new(path).arg("300").spawn().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_host_stands_back_while_a_program_runs_that_its_owner_names() {
    let lab = Lab::new();
    let data = lab.data();
    std::fs::create_dir_all(&data).unwrap();
    let name = format!("game-{}", std::process::id());
    let preferences = format!("exclusive_app = [\"{name}\"]\n");
    std::fs::write(data.join("preferences.toml"), preferences).unwrap();
    let config = DaemonConfig {
        stand_back: true,
        ..lab.config()
    };
    let daemon = Daemon::start(&config).await.unwrap();
    let client = Client::connect(&lab, &lab.member(Role::Submitter), daemon.local_addr()).await;
    let program = Program::run(lab.dir.path(), &name);
    wait_until_withheld(&client, Some(Withheld::Program)).await;
    let text = wait_for("status says so", || {
        Some(status(&data)).filter(|text| text.contains(&format!("alone ({name})")))
    });
    assert!(text.contains("standing back since"), "{text}");
    drop(program);
    let began = Instant::now();
    while announced(&client).await.withheld == Some(Withheld::Program) {
        assert!(began.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    daemon.stop().await;
}

#[tokio::test]
async fn a_host_that_moved_enough_does_nothing_until_its_days_are_over() {
    let lab = Lab::new();
    let data = lab.data();
    std::fs::create_dir_all(&data).unwrap();
    let preferences = "daily_xfer_limit_mb = 2\ndaily_xfer_period_days = 30\n";
    std::fs::write(data.join("preferences.toml"), preferences).unwrap();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let sample = Sample::with_rows(&owner.secret, "42", 1, 1, &[MIB; 3]);
    client.put(&sample, 0).await.unwrap();
    client.commit(&sample).await.unwrap();
    let said = wait_until_withheld(&client, Some(Withheld::Transfers)).await;
    assert!(said.refuses_for_s > 28 * 86_400, "{said:?}");
    assert_eq!(code(client.holds(&sample, 0).await), Code::Busy);
    // The host still answers requests for its status.
    assert_eq!(client.status().await.checkpoints, 1);
    let text = wait_for("status says so", || {
        Some(status(&data)).filter(|text| text.contains("closed since"))
    });
    assert!(text.contains(" of 2.0 MiB in 30 days"), "{text}");
    // What was moved is remembered over a restart.
    daemon.stop().await;
    let daemon = lab.start().await;
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    wait_until_withheld(&client, Some(Withheld::Transfers)).await;
    daemon.stop().await;
}

#[tokio::test]
async fn an_admin_hears_counts_and_nobody_else_does() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let sample = Sample::new(&owner.secret, "42", 1, 1);
    client.put(&sample, 0).await.unwrap();
    client.commit(&sample).await.unwrap();
    let admin = Client::connect(&lab, &lab.member(Role::Admin), daemon.local_addr()).await;
    let Response::Census(census) = admin.ask(&Request::Census).await.unwrap().0 else {
        panic!("another answer");
    };
    assert_eq!(census.software, env!("CARGO_PKG_VERSION"));
    assert_eq!((census.stance, census.withheld), (0, 0));
    assert_eq!(census.owners.len(), 1);
    assert_eq!(census.owners[0].name, "member-1");
    assert_eq!(census.owners[0].key, owner.secret.id().hex()[..8]);
    assert!(census.owners[0].used_bytes >= 64 << 10);
    assert_eq!(census.capacity_bytes, 1 << 30);
    // An admin can do nothing else, and other members can't ask this.
    assert_eq!(code(admin.put(&sample, 0).await), Code::Forbidden);
    assert_eq!(
        code(admin.ask(&Request::Announcement).await),
        Code::Forbidden
    );
    // A registry gets the counts, and not who uses how much.
    let registry = Client::connect(&lab, &lab.member(Role::Registry), daemon.local_addr()).await;
    let Response::Census(counts) = registry.ask(&Request::Census).await.unwrap().0 else {
        panic!("another answer");
    };
    assert_eq!(counts.capacity_bytes, census.capacity_bytes);
    assert!(counts.owners.is_empty());
    assert_eq!(code(registry.put(&sample, 0).await), Code::Forbidden);
    for role in [Role::Submitter, Role::Donor] {
        let other = Client::connect(&lab, &lab.member(role), daemon.local_addr()).await;
        assert_eq!(code(other.ask(&Request::Census).await), Code::Forbidden);
    }
    daemon.stop().await;
}
