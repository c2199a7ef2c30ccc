//! The real program: kills, signals, full disks, commands.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use protocol::identity::Role;
use protocol::net::stream::ExchangeError;
use protocol::wire::Code;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};

use crate::client::{Client, code};
use crate::lab::{Lab, MIB, Process, wait_for};
use crate::sample::Sample;

/// What the daemon acknowledged of a checkpoint.
#[derive(Clone, Copy, Default)]
struct Acknowledged {
    stored: bool,
    committed: bool,
}

fn signal(process: &Process, signal: Signal) {
    let pid = Pid::from_child(&process.child);
    kill_process(pid, signal).unwrap();
}

/// Writes shards until the connection is lost.
async fn write_until_lost(
    client: &Client,
    owner: &codec::seal::OwnerSecret,
    next: &mut u64,
    most: u64,
    acknowledged: &mut BTreeMap<u64, (Sample, Acknowledged)>,
) {
    while *next < most {
        let number = *next;
        *next += 1;
        let sample = Sample::new(owner, "42", number + 1, number);
        let known = acknowledged
            .entry(number)
            .or_insert((sample.clone(), Acknowledged::default()));
        if client.put(&sample, 0).await.is_err() {
            return;
        }
        known.1.stored = true;
        if number.is_multiple_of(3) {
            if client.commit(&sample).await.is_err() {
                return;
            }
            known.1.committed = true;
        }
    }
}

/// Fails unless everything that was acknowledged, and everything that is served, is complete.
async fn check(client: &Client, acknowledged: &BTreeMap<u64, (Sample, Acknowledged)>) {
    let found: Vec<_> = client.find().await.unwrap();
    let found: Vec<_> = found.into_iter().map(|(manifest, _)| manifest).collect();
    for (number, (sample, acknowledged)) in acknowledged {
        match client.holds(sample, 0).await {
            Ok(is_whole) => assert!(is_whole, "shard {number}: wrong bytes"),
            Err(ExchangeError::Refused(refusal)) => {
                assert_eq!(refusal.code, Code::NotFound, "shard {number}: {refusal}");
                assert!(
                    !acknowledged.stored,
                    "shard {number} was acknowledged and is lost"
                );
            }
            Err(other) => panic!("shard {number}: {other}"),
        }
        if acknowledged.committed {
            assert!(found.contains(&sample.manifest), "commit {number} is lost");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_lose_nothing_acknowledged_and_leave_nothing_half_served() {
    let seed: u64 = std::env::var("CKPT_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random);
    eprintln!("CKPT_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let lab = Lab::new();
    let owner = lab.member(Role::Submitter);
    let mut acknowledged = BTreeMap::new();
    let mut next = 0;
    let total = 1000;
    let mut kills = 0;
    while next < total {
        let daemon = lab.spawn(&lab.data(), &[]);
        let client = Client::connect(&lab, &owner, daemon.addr).await;
        // The kill comes in the middle of any write, and often enough to meet every kind of write.
        let writing = write_until_lost(&client, &owner.secret, &mut next, total, &mut acknowledged);
        let pause = Duration::from_micros(rng.random_range(0..400_000));
        tokio::select! {
            () = writing => {}
            () = tokio::time::sleep(pause) => {}
        }
        signal(&daemon, Signal::KILL);
        kills += 1;
        drop(daemon);
        client.connection.close(0_u32.into(), b"");
    }
    eprintln!(
        "{kills} kills, {} shards",
        acknowledged.values().filter(|t| t.1.stored).count()
    );
    let daemon = lab.spawn(&lab.data(), &[]);
    let client = Client::connect(&lab, &owner, daemon.addr).await;
    check(&client, &acknowledged).await;
    let mut left = lab.data().join("incoming").read_dir().unwrap();
    assert!(left.next().is_none(), "unfinished files are left");
    let checked = run(Command::new(env!("CARGO_BIN_EXE_ckpt-store"))
        .args(["check", "--data"])
        .arg(lab.data()));
    assert_eq!(checked.0, Some(0), "{}", checked.1);
}

#[tokio::test]
async fn clients_notice_at_once_that_a_daemon_was_restarted() {
    let lab = Lab::new();
    let owner = lab.member(Role::Submitter);
    let daemon = lab.spawn(&lab.data(), &[]);
    let client = Client::connect(&lab, &owner, daemon.addr).await;
    let addr = daemon.addr.to_string();
    client.status().await;
    drop(daemon);
    let _daemon = lab.spawn(&lab.data(), &["--listen", &addr]);
    // This comes sooner than any timeout, because the request itself makes the new daemon answer.
    let asked = client.ask(&protocol::wire::message::Request::Status).await;
    assert!(matches!(asked, Err(ExchangeError::Lost(_))), "{asked:?}");
    let reason = client.connection.close_reason();
    assert!(
        matches!(reason, Some(quinn::ConnectionError::Reset)),
        "{reason:?}"
    );
}

#[tokio::test]
async fn a_signal_ends_the_daemon_and_loses_nothing_acknowledged() {
    for stop in [Signal::TERM, Signal::INT] {
        let lab = Lab::new();
        let owner = lab.member(Role::Submitter);
        let mut daemon = lab.spawn(&lab.data(), &[]);
        let client = Client::connect(&lab, &owner, daemon.addr).await;
        let done = Sample::new(&owner.secret, "42", 1, 1);
        client.put(&done, 0).await.unwrap();
        client.commit(&done).await.unwrap();
        let ending = Sample::with_rows(&owner.secret, "42", 2, 2, &[MIB, 5]);
        let endless = Sample::with_rows(&owner.secret, "42", 3, 3, &[MIB, 5]);
        let mut ending_put = client.begin(ending.put(0)).await.unwrap();
        let mut endless_put = client.begin(endless.put(0)).await.unwrap();
        endless_put.block(&endless.blocks[0][0]).await.unwrap();

        signal(&daemon, stop);
        wait_for("the daemon stops", || {
            let log = std::fs::read_to_string(lab.data().join("log")).unwrap();
            log.contains("stopping").then_some(())
        });
        // A shard that ends soon may end. Another is refused with the reason.
        assert_eq!(
            code(client.put(&Sample::new(&owner.secret, "42", 4, 4), 0).await),
            Code::Stopping
        );
        ending_put.blocks(&ending, 0).await.unwrap();
        ending_put.end(&ending, 0).await.unwrap();
        assert_eq!(code(endless_put.answer().await), Code::Stopping);
        let status = wait_for("the daemon ends", || daemon.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0));

        let daemon = lab.spawn(&lab.data(), &[]);
        let client = Client::connect(&lab, &owner, daemon.addr).await;
        assert!(client.holds(&done, 0).await.unwrap());
        assert!(client.holds(&ending, 0).await.unwrap());
        assert_eq!(code(client.holds(&endless, 0).await), Code::NotFound);
        assert_eq!(client.find().await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_full_disk_refuses_and_recovers() {
    let lab = Lab::new();
    let data = lab.dir.path().join("small");
    std::fs::create_dir(&data).unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8m", "none"])
        .arg(&data)
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: a full disk can't be tested here: mounting a tmpfs is not allowed");
        return;
    }
    let _unmount = Unmount(&data);
    let owner = lab.member(Role::Submitter);
    let daemon = lab.spawn(&data, &["--capacity", "1GiB"]);
    let client = Client::connect(&lab, &owner, daemon.addr).await;
    let small = Sample::with_rows(&owner.secret, "42", 1, 1, &[MIB; 2]);
    client.put(&small, 0).await.unwrap();
    client.commit(&small).await.unwrap();
    let large = Sample::with_rows(&owner.secret, "42", 2, 2, &[MIB; 12]);
    // The disk is filled from outside while the shard is being received, so reserving space does not see
    // it.
    let mut put = client.begin(large.put(0)).await.unwrap();
    std::fs::write(data.join("owner's own file"), vec![1; 4 * MIB]).unwrap();
    let sent = async {
        put.blocks(&large, 0).await?;
        put.end(&large, 0).await
    };
    match sent.await {
        Err(ExchangeError::Refused(refusal)) => assert_eq!(refusal.code, Code::NoSpace),
        // The host takes no more bytes. Its answer has the reason.
        Err(_) => assert_eq!(code(put.answer().await), Code::NoSpace),
        Ok(()) => panic!("12 MiB in 8"),
    }
    assert!(client.holds(&small, 0).await.unwrap());
    std::fs::remove_file(data.join("owner's own file")).unwrap();
    assert!(client.forget(small.id()).await.unwrap());
    let next = Sample::with_rows(&owner.secret, "42", 3, 3, &[MIB; 4]);
    client.put(&next, 0).await.unwrap();
    assert!(client.holds(&next, 0).await.unwrap());
}

struct Unmount<'a>(&'a std::path::Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        // Lazily, because the daemon may not have ended yet.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// The exit status and the output of a command.
fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn commands_say_what_is_held_and_what_is_damaged() {
    let lab = Lab::new();
    let owner = lab.member(Role::Submitter);
    let store = |args: &[&str]| {
        run(Command::new(env!("CARGO_BIN_EXE_ckpt-store"))
            .args(args)
            .arg("--data")
            .arg(lab.data()))
    };
    assert_eq!(store(&["status"]).0, Some(1), "there is nothing yet");
    let daemon = lab.spawn(&lab.data(), &[]);
    let client = Client::connect(&lab, &owner, daemon.addr).await;
    let sample = Sample::with_rows(&owner.secret, "42", 7, 1, &[5000, 6000]);
    client.put(&sample, 0).await.unwrap();
    client.put(&sample, 1).await.unwrap();
    client.commit(&sample).await.unwrap();
    let (code, text) = store(&["status"]);
    assert_eq!(code, Some(0));
    assert!(
        text.contains("daemon: running") && text.contains("2 shards"),
        "{text}"
    );
    let (_, json) = store(&["status", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["checkpoints"][0]["version"], 7);
    assert_eq!(json["checkpoints"][0]["committed"], true);
    assert_eq!(json["checkpoints"][0]["shards"], serde_json::json!([0, 1]));
    assert_eq!(store(&["check"]).0, Some(0));
    drop(daemon);
    assert!(store(&["status"]).1.contains("daemon: not running"));

    let owner_dir = lab.data().join("shards").join(owner.secret.id().hex());
    let path = owner_dir.join(format!("{}-1.shard", sample.id().hex()));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[7000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (code, text) = store(&["check"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("-1.shard: row 1 is damaged"), "{text}");
}

#[test]
fn a_daemon_that_can_not_start_says_why() {
    let lab = Lab::new();
    let start = |change: &dyn Fn(&mut Command)| {
        let mut command = lab.command(&lab.data());
        command.args(["--listen", "127.0.0.1:0"]);
        change(&mut command);
        run(&mut command)
    };
    let _running = lab.spawn(&lab.data(), &[]);
    let (code, text) = start(&|_| {});
    assert_eq!(code, Some(1));
    assert!(text.contains("in use by another daemon"), "{text}");
    let (code, text) = start(&|command| {
        command.args(["--grid", "/nowhere/grid.toml"]);
    });
    assert_eq!(code, Some(2), "given twice: {text}");
    let (code, text) = start(&|command| {
        command.args(["--capacity", "much"]);
    });
    assert_eq!(code, Some(2), "{text}");
    std::fs::remove_file(lab.data().join("identity.crt")).unwrap();
    let (code, text) = start(&|_| {});
    assert_eq!(code, Some(1));
    assert!(text.contains("identity.crt"), "{text}");
}

#[test]
fn init_makes_a_key_once() {
    let lab = Lab::new();
    let init = || {
        run(Command::new(env!("CARGO_BIN_EXE_ckpt-store"))
            .args(["init", "--data"])
            .arg(lab.dir.path().join("new")))
    };
    let (code, said) = init();
    assert_eq!(code, Some(0));
    let key = said.lines().next().unwrap_or_default();
    assert_eq!(key.len(), 64, "{said}");
    let public = std::fs::read_to_string(lab.dir.path().join("new/identity.pub")).unwrap();
    assert!(public.contains(key), "{public}");
    assert_eq!(init(), (Some(0), said));
}
