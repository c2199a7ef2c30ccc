//! Two submitters at their worst take all that members can take of a daemon at the same time. The daemon is
//! in a control group with the limit of the shipped unit, stays within its memory plan, and serves a third
//! member.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use codec::geometry::BLOCK_BYTES_MAX;
use codec::seal::OwnerSecret;
use protocol::identity::{Identity, Role};
use protocol::net::{ConnectError, EndpointConfig, client, connect};
use protocol::wire::limits::{FRAME_BYTES_MAX, LIST_BYTES_MAX};
use protocol::wire::message::Request;
use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::task::JoinSet;

use crate::client::Client;
use crate::hostile::{honest, peak_bytes};
use crate::lab::Lab;
use crate::sample::Sample;

/// The default of `--memory`, and what a debug build needs beyond that.
const MEMORY_BYTES: u64 = 128 << 20;
const SLACK_BYTES: u64 = 16 << 20;

/// How long a step of the attack waits for a stream, or for the host to take bytes.
const PATIENCE: Duration = Duration::from_secs(3);

/// The limit of memory of the unit that is shipped.
fn unit_limit() -> u64 {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/ckpt-store.service");
    let text = fs::read_to_string(unit).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemoryMax="));
    let mib: u64 = line.unwrap().strip_suffix('M').unwrap().parse().unwrap();
    mib << 20
}

/// A control group (version 1) with a limit of memory. It is removed with this value.
struct Group(PathBuf);

impl Group {
    /// `None` where this machine does not let us make one.
    fn new(limit: u64) -> Option<Self> {
        let dir = PathBuf::from(format!(
            "/sys/fs/cgroup/memory/ckpt-worst-{}",
            std::process::id()
        ));
        fs::create_dir(&dir).ok()?;
        let group = Self(dir);
        fs::write(group.0.join("memory.limit_in_bytes"), limit.to_string()).ok()?;
        Some(group)
    }

    fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn number(&self, name: &str) -> u64 {
        let text = fs::read_to_string(self.0.join(name)).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Fails as long as the daemon is still ending; then the empty group stays.
        let _ = fs::remove_dir(&self.0);
    }
}

/// As many connections as the host gives to a member. It reads nothing that the host sends on them.
async fn connections(lab: &Lab, who: &Identity, daemon: &crate::lab::Process) -> Vec<Connection> {
    let mut config = EndpointConfig::new(who.clone(), lab.grid.authority.clone());
    config.receive_window = 16 << 20;
    let endpoint = client(&config, ([127, 0, 0, 1], 0).into()).unwrap();
    let mut open = Vec::new();
    for _ in 0..80 {
        match connect(&endpoint, daemon.addr, lab.host_id()).await {
            Ok(connection) => open.push(connection),
            Err(ConnectError::Busy) => break,
            Err(other) => panic!("{other}"),
        }
    }
    open
}

/// Opens a stream and sends `bytes`, as far as the host takes them, and goes silent.
async fn half(connection: &Connection, bytes: &[u8]) -> Option<(SendStream, RecvStream)> {
    let opening = tokio::time::timeout(PATIENCE, connection.open_bi());
    let (mut send, recv) = opening.await.ok()?.ok()?;
    let _ = tokio::time::timeout(PATIENCE, send.write_all(bytes)).await;
    Some((send, recv))
}

fn framed(request: &Request) -> Vec<u8> {
    use protocol::wire::message::Message;
    let frame = request.to_frame().unwrap();
    [&(frame.len() as u32).to_le_bytes()[..], &frame].concat()
}

/// A frame of full size without its last byte.
fn long_frame() -> Vec<u8> {
    let mut frame = vec![0_u8; FRAME_BYTES_MAX + 3];
    frame[..4].copy_from_slice(&(FRAME_BYTES_MAX as u32).to_le_bytes());
    frame
}

/// A list of the grid of the largest size without its last byte.
fn list_without_end() -> Vec<u8> {
    let mut bytes = framed(&Request::PutList {
        number: u64::MAX,
        bytes: LIST_BYTES_MAX as u32,
    });
    bytes.resize(bytes.len() + LIST_BYTES_MAX - 1, 0);
    bytes
}

/// Everything that a member can have under way on a connection.
async fn attack(
    connection: Connection,
    owner: &OwnerSecret,
    sample: &Sample,
    number: u64,
) -> Vec<(SendStream, RecvStream)> {
    let mut held = Vec::new();
    let rows = framed(&Request::Rows {
        shard: sample.name(0),
        first: 0,
        count: 64,
    });
    let find = framed(&Request::Find {
        job_tag: None,
        after: None,
    });
    let announcement = framed(&Request::Announcement);
    let begun = Sample::new(owner, "begun", number + 10, number + 10);
    let mut shard = framed(&Request::PutShard(begun.put_of(60 << 20)));
    shard.extend_from_slice(&(300_000_u32).to_le_bytes());
    shard.resize(shard.len() + 299_999, 1);
    let long = long_frame();
    let list = list_without_end();
    let ways = [
        &list,
        &shard,
        &rows,
        &rows,
        &find,
        &announcement,
        &long,
        &long,
    ];
    for way in 0..32 {
        held.extend(half(&connection, ways[way % ways.len()]).await);
    }
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_submitters_at_their_worst_stay_within_the_plan_and_a_third_is_served() {
    let lab = Lab::new();
    let limit = unit_limit();
    let daemon = lab.spawn(&lab.data(), &[]);
    let group = Group::new(limit);
    if let Some(group) = &group {
        group.add(daemon.child.id());
    } else {
        eprintln!("no control group can be made here: only the peak is looked at");
    }
    let good = lab.member(Role::Submitter);
    let mut attacking = JoinSet::new();
    let mut count = 0;
    for name in ["first", "second"] {
        let bad = lab.member(Role::Submitter);
        // Large blocks, which it will read and not take.
        let sample = Sample::with_rows(&bad.secret, name, 1, 1, &[BLOCK_BYTES_MAX; 16]);
        let honestly = Client::connect(&lab, &bad, daemon.addr).await;
        honestly.put(&sample, 0).await.unwrap();
        honestly.commit(&sample).await.unwrap();
        honestly.connection.close(VarInt::from_u32(0), b"");
        let open = connections(&lab, &bad, &daemon).await;
        eprintln!("{name}: {} connections", open.len());
        count += open.len();
        let bad = Arc::new((bad.secret.clone(), sample));
        for (number, connection) in open.into_iter().enumerate() {
            let bad = Arc::clone(&bad);
            attacking.spawn(async move { attack(connection, &bad.0, &bad.1, number as u64).await });
        }
    }
    assert!(count >= 40, "{count}");
    honest(&lab, &good, daemon.addr, 1).await;
    let held: usize = attacking.join_all().await.iter().map(Vec::len).sum();
    eprintln!("{held} streams");
    honest(&lab, &good, daemon.addr, 2).await;
    let peak = peak_bytes(&daemon);
    eprintln!("peak {} MiB", peak >> 20);
    if let Some(group) = &group {
        let most = group.number("memory.max_usage_in_bytes");
        eprintln!("most in the group, with pages of files: {} MiB", most >> 20);
    }
    assert!(peak < MEMORY_BYTES + SLACK_BYTES, "{} MiB", peak >> 20);
    assert!(peak < limit);
}
