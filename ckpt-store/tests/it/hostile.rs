//! Members and strangers that try to use up the daemon's memory, places or time. The daemon's memory must
//! stay within its bound, and other members must be served meanwhile.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use ckpt_store::core::ledger::CHECKPOINT_BYTES;
use ckpt_store::{Daemon, Quota};
use protocol::identity::{HostId, Identity, Role};
use protocol::net::stream::ExchangeError;

use protocol::net::{ConnectError, EndpointConfig, client, connect, connect_as};
use protocol::wire::Code;
use protocol::wire::message::Request;
use quinn::{Connection, Endpoint};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use crate::client::{Client, LIMIT, code};
use crate::lab::{Lab, Process};
use crate::memory::enrol;
use crate::sample::Sample;

/// Memory that the daemon may use, and what a debug build needs beyond that.
const MEMORY_BYTES: u64 = 64 << 20;
const SLACK_BYTES: u64 = 32 << 20;

/// Longest time that an honest client may need while others are hostile.
const SERVED_WITHIN: Duration = Duration::from_secs(60);

/// The most memory that a process has ever used.
pub(crate) fn peak_bytes(daemon: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Fails if the daemon has ever used more memory than it may.
pub(crate) fn peak_is_bounded(daemon: &Process) {
    let peak = peak_bytes(daemon);
    assert!(peak < MEMORY_BYTES + SLACK_BYTES, "{peak}");
}

/// An endpoint of a member at a loopback address.
fn endpoint(lab: &Lab, who: &Identity, addr: [u8; 4]) -> Endpoint {
    let config = EndpointConfig::new(who.clone(), lab.grid.authority.clone());
    client(&config, (addr, 0).into()).unwrap()
}

/// Stores a shard as an honest member with an address of its own, commits its checkpoint, finds and reads
/// it.
pub(crate) async fn honest(lab: &Lab, who: &Identity, daemon: SocketAddr, version: u64) {
    let served = async {
        let endpoint = endpoint(lab, who, [127, 0, 0, 9]);
        let connection = connect(&endpoint, daemon, lab.host_id()).await.unwrap();
        let client = Client { connection };
        let sample = Sample::new(&who.secret, "honest", version, version);
        while let Err(ExchangeError::Refused(refusal)) = client.put(&sample, 0).await {
            // There may be no space either, because a shard has to be silent for some time before it
            // gives way.
            assert!(
                matches!(refusal.code, Code::Busy | Code::NoSpace),
                "{refusal:?}"
            );
            let wait = refusal.retry_after_ms.max(20);
            tokio::time::sleep(Duration::from_millis(wait.into())).await;
        }
        client.commit(&sample).await.unwrap();
        let found = client.find().await.unwrap();
        assert!(
            found
                .iter()
                .any(|(manifest, _)| *manifest == sample.manifest)
        );
        assert!(client.holds(&sample, 0).await.unwrap());
    };
    let in_time = tokio::time::timeout(SERVED_WITHIN, served).await;
    assert!(in_time.is_ok(), "an honest client is not served");
}

/// Opens as many connections of one member as the host allows.
async fn connections(
    lab: &Lab,
    who: &Identity,
    daemon: SocketAddr,
    wanted: usize,
) -> Vec<Connection> {
    let endpoint = endpoint(lab, who, [127, 0, 0, 1]);
    let mut got = Vec::new();
    for _ in 0..wanted {
        match connect(&endpoint, daemon, lab.host_id()).await {
            Ok(connection) => got.push(connection),
            Err(ConnectError::Busy) => break,
            Err(other) => panic!("{other}"),
        }
    }
    got
}

#[tokio::test]
async fn ten_thousand_half_open_streams_cost_little() {
    let lab = Lab::new();
    let daemon = lab.spawn(&lab.data(), &[]);
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    let open = connections(&lab, &bad, daemon.addr, 40).await;
    assert!(open.len() >= 10, "{} connections", open.len());
    let mut opening = JoinSet::new();
    for connection in &open {
        let connection = connection.clone();
        opening.spawn(async move {
            let mut half = Vec::new();
            let until = Instant::now() + Duration::from_secs(4);
            let mut opened = 0;
            while Instant::now() < until && opened < 1000 {
                let next = tokio::time::timeout(Duration::from_millis(200), connection.open_bi());
                match next.await {
                    Ok(Ok((mut send, recv))) => {
                        opened += 1;
                        // The beginning of a frame that never ends.
                        if send.write_all(&[100, 0]).await.is_err() {
                            break;
                        }
                        half.push((send, recv));
                    }
                    // The connection has as many streams as it may have, so some are given up for others.
                    Err(_) => {
                        half.drain(..half.len() / 2);
                    }
                    Ok(Err(_)) => break,
                }
            }
            (opened, half)
        });
    }
    honest(&lab, &good, daemon.addr, 1).await;
    let opened = opening.join_all().await;
    let count: usize = opened.iter().map(|(opened, _)| opened).sum();
    eprintln!("{count} streams on {} connections", open.len());
    honest(&lab, &good, daemon.addr, 2).await;
    peak_is_bounded(&daemon);
    assert!(count > 1000, "{count}");
}

#[tokio::test]
async fn a_flood_of_handshakes_shuts_no_member_out() {
    let lab = Lab::new();
    let daemon = lab.spawn(&lab.data(), &[]);
    let good = lab.member(Role::Submitter);
    let stranger = {
        let mut elsewhere = Lab::new();
        let stranger = elsewhere.member(Role::Submitter);
        elsewhere.grid = lab.grid.clone();
        stranger
    };
    let addr = daemon.addr;
    let mut flood = JoinSet::new();
    for sender in 0..8 {
        let endpoint = endpoint(&lab, &stranger, [127, 0, 0, 1]);
        let id = lab.host_id();
        flood.spawn(async move {
            let mut rng = SmallRng::seed_from_u64(sender);
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let until = Instant::now() + Duration::from_secs(4);
            let mut begun: u64 = 0;
            while Instant::now() < until {
                // Some handshakes break off in the middle, and some end with the wrong certificate.
                let patience = Duration::from_millis(rng.random_range(0..20));
                let _ = tokio::time::timeout(patience, connect(&endpoint, addr, id)).await;
                let mut packet = vec![0; 1200];
                rng.fill(packet.as_mut_slice());
                // The form of an Initial packet of QUIC 1 (RFC 9000, section 17.2.2).
                packet[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
                socket.send_to(&packet, addr).unwrap();
                begun += 1;
            }
            begun
        });
    }
    honest(&lab, &good, addr, 1).await;
    let begun: u64 = flood.join_all().await.into_iter().sum();
    eprintln!("{begun} handshakes");
    honest(&lab, &good, addr, 2).await;
    assert!(begun > 100, "{begun}");
    peak_is_bounded(&daemon);
}

#[tokio::test]
async fn four_gib_for_a_small_message_are_not_taken() {
    let lab = Lab::new();
    let daemon = lab.spawn(&lab.data(), &[]);
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    let mut senders = JoinSet::new();
    for connection in connections(&lab, &bad, daemon.addr, 16).await {
        senders.spawn(async move {
            let (mut send, mut recv) = connection.open_bi().await.unwrap();
            let mut sent: u64 = 0;
            // A length of 4 GiB less one byte, and then as many bytes as the host takes.
            send.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
            while send.write_all(&[0; 64 << 10]).await.is_ok() {
                sent += 64 << 10;
                assert!(sent < 4 << 20, "{sent} bytes were taken");
            }
            let answer = protocol::net::read_frame(&mut recv, LIMIT).await;
            matches!(answer, Ok(protocol::wire::message::Response::Refused(refusal)) if refusal.code == Code::BadRequest)
        });
    }
    honest(&lab, &good, daemon.addr, 1).await;
    let refused = senders.join_all().await;
    assert!(refused.len() >= 8 && refused.into_iter().all(|refused| refused));
    peak_is_bounded(&daemon);
}

#[tokio::test]
async fn one_member_and_one_address_leave_room_for_others() {
    let lab = Lab::new();
    let mut config = lab.config();
    config.memory_bytes = 0;
    let daemon = Daemon::start(&config).await.unwrap();
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    let addr = daemon.local_addr();
    // A handshake succeeds before the host counts connections. The host refuses the connection right
    // after.
    let mut held = connections(&lab, &bad, addr, 100).await;
    let closed = async {
        while held.iter().filter(|c| c.close_reason().is_none()).count() > 12 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, closed)
        .await
        .expect("a member has at most its share");
    held.retain(|connection| connection.close_reason().is_none());
    assert!((8..=12).contains(&held.len()), "{}", held.len());
    honest(&lab, &good, addr, 1).await;
    daemon.stop().await;
}

/// Begins a shard, sends one block, and goes silent.
async fn silent(client: &Client, sample: &Sample, shard: u8) -> crate::client::Put {
    let mut put = client.begin(sample.put(shard)).await.unwrap();
    put.block(&sample.blocks[0][0]).await.unwrap();
    put
}

#[tokio::test]
async fn silent_shards_give_way_to_those_that_wait_for_a_place() {
    let lab = Lab::new();
    let mut config = lab.config();
    config.memory_bytes = 0;
    config.gives_way_after = Duration::from_millis(200);
    let daemon = Daemon::start(&config).await.unwrap();
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    // There are two places, and both are taken by members that do nothing.
    let mut held = Vec::new();
    for who in [&bad, &lab.member(Role::Submitter)] {
        let loris = Client::connect(&lab, who, daemon.local_addr()).await;
        let kept = Sample::new(&who.secret, "loris", 1, 1);
        held.push((silent(&loris, &kept, 0).await, loris));
    }
    honest(&lab, &good, daemon.local_addr(), 1).await;
    assert_eq!(code(held[0].0.answer().await), Code::Busy);
    daemon.stop().await;
}

#[tokio::test]
async fn silent_shards_give_way_to_those_that_wait_for_space() {
    let lab = Lab::new();
    let mut config = lab.config();
    config.gives_way_after = Duration::from_millis(200);
    // The size of a shard with its hashes, and the price of its checkpoint.
    config.capacity_bytes = Some((3 << 20) + (10 << 10) + CHECKPOINT_BYTES);
    config.quota = Quota::Percent(100);
    let daemon = Daemon::start(&config).await.unwrap();
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    let loris = Client::connect(&lab, &bad, daemon.local_addr()).await;
    let kept = Sample::new(&bad.secret, "loris", 1, 1);
    let greedy = kept.put_of(3 << 20);
    let mut held = loris.begin(greedy).await.unwrap();
    held.block(&kept.blocks[0][0]).await.unwrap();
    assert_eq!(loris.status().await.free_bytes, 0);
    honest(&lab, &good, daemon.local_addr(), 1).await;
    assert_eq!(code(held.answer().await), Code::Busy);
    daemon.stop().await;
}

#[tokio::test]
async fn a_submitter_stays_within_its_share_whatever_it_leaves_unfinished() {
    let lab = Lab::new();
    let mut config = lab.config();
    config.capacity_bytes = Some(64 << 20);
    config.quota = Quota::Bytes(5 << 20);
    let daemon = Daemon::start(&config).await.unwrap();
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    let greedy = Client::connect(&lab, &bad, daemon.local_addr()).await;
    let mut unfinished = Vec::new();
    let refused = loop {
        let version = unfinished.len() as u64 + 1;
        let sample = Sample::new(&bad.secret, "greedy", version, version);
        let put = sample.put_of(2 << 20);
        match greedy.begin(put).await {
            Ok(put) => unfinished.push(put),
            Err(cause) => break cause,
        }
        assert!(unfinished.len() < 10, "never refused");
    };
    assert_eq!(code::<()>(Err(refused)), Code::NoSpace);
    assert_eq!(unfinished.len(), 2);
    honest(&lab, &good, daemon.local_addr(), 1).await;
    let usage = |client: &Client| {
        let connection = client.connection.clone();
        async move { Client { connection }.status().await.free_bytes }
    };
    let free_bytes = usage(&greedy).await;
    assert!(free_bytes < 1 << 20, "it learns only of its own share");
    drop(unfinished);
    greedy.connection.close(0_u32.into(), b"");
    let again = Client::connect(&lab, &bad, daemon.local_addr()).await;
    let deadline = Instant::now() + LIMIT;
    while usage(&again).await < 5 << 20 {
        assert!(Instant::now() < deadline, "space is not given back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    daemon.stop().await;
}

#[tokio::test]
async fn a_slow_loris_is_cut_off_and_others_are_served() {
    let lab = Lab::new();
    let daemon = lab.spawn(&lab.data(), &[]);
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    let open = connections(&lab, &bad, daemon.addr, 24).await;
    let mut lorises = JoinSet::new();
    for connection in open {
        lorises.spawn(async move {
            let (mut send, mut recv) = connection.open_bi().await.unwrap();
            let frame = [100, 0, 0, 0];
            let mut at = 0;
            // A byte is sent now and then, without an end; the host has to give up at some time.
            loop {
                let byte = frame.get(at).copied().unwrap_or(0);
                at += 1;
                if send.write_all(&[byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
                assert!(at < 100, "never cut off");
            }
            let mut rest = [0; 1];
            let _ = recv.read(&mut rest).await;
        });
    }
    honest(&lab, &good, daemon.addr, 1).await;
    lorises.join_all().await;
    honest(&lab, &good, daemon.addr, 2).await;
    peak_is_bounded(&daemon);
}

/// Bytes that a registry takes before anybody attacks it, and what an attack of one member may add: its
/// connections, and three quarters of the places for long requests.
const REGISTRY_BYTES: u64 = 64 << 20;
const ATTACK_BYTES: u64 = 48 << 20;

#[tokio::test]
async fn one_member_does_not_fill_the_memory_of_a_registry() {
    let lab = Lab::new();
    let of_registry = lab.member(Role::Registry);
    let data = lab.dir.path().join("registry");
    enrol(&data, &of_registry);
    let id = HostId(of_registry.secret.id());
    let process = lab.spawn_registry(&data, "127.0.0.1:0");
    let bad = lab.member(Role::Submitter);
    let endpoint = endpoint(&lab, &bad, [127, 0, 0, 1]);
    let mut open = Vec::new();
    for _ in 0..100 {
        match connect_as(&endpoint, process.addr, id, Role::Registry).await {
            Ok(connection) => open.push(connection),
            Err(ConnectError::Busy) => break,
            Err(other) => panic!("{other}"),
        }
    }
    // The registry closes those that are too many; some close a moment after the handshake.
    tokio::time::sleep(Duration::from_secs(1)).await;
    open.retain(|connection| connection.close_reason().is_none());
    assert!((32..=64).contains(&open.len()), "{}", open.len());
    // On each stream nearly all of the longest frame, whose end never comes.
    let mut held = JoinSet::new();
    for connection in &open {
        for _ in 0..16 {
            let connection = connection.clone();
            held.spawn(async move {
                let opening = tokio::time::timeout(Duration::from_secs(3), connection.open_bi());
                let Ok(Ok((mut send, recv))) = opening.await else {
                    return None;
                };
                let mut frame = vec![0_u8; 72_000];
                frame[..4].copy_from_slice(&73_000_u32.to_le_bytes());
                let sending = tokio::time::timeout(Duration::from_secs(3), send.write_all(&frame));
                // Without a place the registry reads no further.
                let _ = sending.await;
                Some((send, recv))
            });
        }
    }
    let held = held.join_all().await;
    assert!(held.iter().flatten().count() > 200);
    let good = lab.member(Role::Submitter);
    let client = Client::connect_to_registry(&lab, &good, id, process.addr).await;
    let asked = Request::Members { after: None };
    client.ask(&asked).await.unwrap();
    let peak = peak_bytes(&process);
    assert!(peak < REGISTRY_BYTES + ATTACK_BYTES, "{} MiB", peak >> 20);
}
