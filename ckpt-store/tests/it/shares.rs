//! One member behaves as badly as it can, and the others are served: for each limit that members share,
//! an attack on a daemon, and an honest member that saves, lists and restores meanwhile.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ckpt_store::Daemon;
use codec::keys::Keys;
use codec::notice::{Intervals, Notice, Words};
use codec::scope::Blinded;
use codec::{CheckpointId, JobTag};
use protocol::identity::{Identity, Role};
use protocol::net::{EndpointConfig, client, connect, read_frame, write_frame};
use protocol::wire::Code;
use protocol::wire::message::{Audit, AuditFault, Claim, Request, Response};
use quinn::{Connection, RecvStream};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use crate::client::{Client, LIMIT, code};
use crate::hostile::{honest, peak_is_bounded};
use crate::lab::{Lab, MIB};
use crate::sample::Sample;

/// The tasks of an attack, which end when this is dropped.
struct Attack {
    _tasks: JoinSet<()>,
}

/// A connection on which the host may send only `window` bytes that have not been read yet.
async fn narrow(lab: &Lab, who: &Identity, addr: SocketAddr, window: u32) -> Connection {
    let config = EndpointConfig {
        stream_window: window,
        ..EndpointConfig::new(who.clone(), lab.grid.authority.clone())
    };
    let endpoint = client(&config, ([127, 0, 0, 1], 0).into()).unwrap();
    connect(&endpoint, addr, lab.host_id()).await.unwrap()
}

/// Reads `bytes` bytes, then waits, again and again.
async fn drip(mut recv: RecvStream, bytes: usize, pause: Duration) {
    let mut buffer = vec![0; bytes];
    while bytes > 0 && recv.read_exact(&mut buffer).await.is_ok() {
        tokio::time::sleep(pause).await;
    }
    // Nothing more is read, and the stream stays open.
    std::future::pending::<()>().await;
}

/// Sends the same request many times and reads the answers slowly. Returns when each request was answered
/// in some way, or has waited for longer than a host lets it wait.
async fn ask_slowly(
    connections: &[Connection],
    asked: &Request,
    times: usize,
    (bytes, pause): (usize, Duration),
) -> Attack {
    let answered = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for at in 0..times {
        let connection = connections[at % connections.len()].clone();
        let asked = asked.clone();
        let answered = Arc::clone(&answered);
        tasks.spawn(async move {
            let (mut send, mut recv) = connection.open_bi().await.unwrap();
            write_frame(&mut send, &asked).await.unwrap();
            let _: Result<Response, _> = read_frame(&mut recv, LIMIT).await;
            answered.fetch_add(1, Ordering::SeqCst);
            drip(recv, bytes, pause).await;
        });
    }
    let all = async {
        while answered.load(Ordering::SeqCst) < times {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // Requests that wait for a place are refused after some seconds. All others hold a place.
    let _ = tokio::time::timeout(Duration::from_secs(5), all).await;
    Attack { _tasks: tasks }
}

/// A shard of full rows, stored by its owner.
async fn store_rows(lab: &Lab, who: &Identity, addr: SocketAddr, rows: usize) -> Sample {
    let client = Client::connect(lab, who, addr).await;
    let sample = Sample::with_rows(&who.secret, "large", 1, 1, &vec![MIB; rows]);
    client.put(&sample, 0).await.unwrap();
    client.commit(&sample).await.unwrap();
    client.connection.close(0_u32.into(), b"");
    sample
}

fn rows_of(sample: &Sample, count: u32) -> Request {
    Request::Rows {
        shard: sample.name(0),
        first: 0,
        count,
    }
}

#[tokio::test]
async fn a_slow_reader_leaves_places_to_others() {
    let lab = Lab::new();
    let daemon = lab.spawn(&lab.data(), &[]);
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    let sample = store_rows(&lab, &bad, daemon.addr, 8).await;
    let narrow = [narrow(&lab, &bad, daemon.addr, 16 << 10).await];
    // Fast enough never to count as slow.
    let pace = (12 << 10, Duration::from_millis(500));
    let _attack = ask_slowly(&narrow, &rows_of(&sample, 8), 24, pace).await;
    honest(&lab, &good, daemon.addr, 1).await;
    honest(&lab, &good, daemon.addr, 2).await;
}

#[tokio::test]
async fn several_slow_readers_give_way() {
    let lab = Lab::new();
    let mut config = lab.config();
    config.gives_way_after = Duration::from_millis(500);
    let daemon = Daemon::start(&config).await.unwrap();
    let addr = daemon.local_addr();
    let good = lab.member(Role::Submitter);
    let mut attacks = Vec::new();
    for _ in 0..2 {
        let bad = lab.member(Role::Submitter);
        let sample = store_rows(&lab, &bad, addr, 4).await;
        let narrow = [narrow(&lab, &bad, addr, 16 << 10).await];
        let pace = (4 << 10, Duration::from_millis(500));
        attacks.push(ask_slowly(&narrow, &rows_of(&sample, 4), 12, pace).await);
    }
    honest(&lab, &good, addr, 1).await;
    drop(attacks);
    daemon.stop().await;
}

#[tokio::test]
async fn a_client_that_takes_no_answers_leaves_others_theirs() {
    let lab = Lab::new();
    let daemon = lab.spawn(&lab.data(), &[]);
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    store_rows(&lab, &bad, daemon.addr, 1).await;
    let asked = Request::Find {
        job_tag: None,
        after: None,
    };
    // Less than the first frame of the answer and one record.
    let narrow = [narrow(&lab, &bad, daemon.addr, 64).await];
    let _attack = ask_slowly(&narrow, &asked, 24, (0, Duration::ZERO)).await;
    honest(&lab, &good, daemon.addr, 1).await;
}

#[tokio::test]
async fn answers_are_as_large_as_their_question_is_small_but_bounded() {
    let lab = Lab::new();
    let daemon = lab.spawn(&lab.data(), &[]);
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    let sample = store_rows(&lab, &bad, daemon.addr, 64).await;
    let mut wide = Vec::new();
    for _ in 0..6 {
        wide.push(Client::connect(&lab, &bad, daemon.addr).await.connection);
    }
    // 64 full rows each, of which nothing is read.
    let _attack = ask_slowly(&wide, &rows_of(&sample, 64), 60, (0, Duration::ZERO)).await;
    honest(&lab, &good, daemon.addr, 1).await;
    peak_is_bounded(&daemon);
}

/// A notice of an owner about a job.
fn notice(who: &Identity, job_tag: JobTag, number: u64, gone: &[CheckpointId]) -> Request {
    let job = (who.secret.id(), job_tag);
    let none = Intervals::default();
    let words = Words::following(None, job, number, None, gone, &none);
    let keys = Keys::from(who.secret.clone());
    let notice = Notice::sign(&keys, &[Blinded([0; 32])], &words).unwrap();
    Request::Notice {
        notice: notice.bytes().to_vec(),
    }
}

/// A notice with a number from the year 2030 or later, and with 128 random ids.
fn useless_notice(who: &Identity, claim: &Claim, rng: &mut SmallRng) -> Request {
    let gone: Vec<_> = (0..128).map(|_| CheckpointId(rng.random())).collect();
    let number = 1_900_000_000_000;
    notice(who, claim.job_tag, number, &gone)
}

#[tokio::test]
async fn an_owner_that_sends_notices_without_end_leaves_room_for_those_of_others() {
    let lab = Lab::new();
    let daemon = lab.spawn(&lab.data(), &[]);
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    let mut senders = JoinSet::new();
    let connection = Client::connect(&lab, &bad, daemon.addr).await.connection;
    for sender in 0..8_u64 {
        let client = Client {
            connection: connection.clone(),
        };
        let bad = bad.clone();
        senders.spawn(async move {
            let mut rng = SmallRng::seed_from_u64(sender);
            for number in 0..260 {
                // 2,048 of them took all the room that there was.
                let job = format!("job-{sender}-{number}");
                let seed = 1000 * sender + number;
                let sample = Sample::with_rows(&bad.secret, &job, 1, seed, &[1]);
                client.ask(&Request::Claim(sample.claim())).await.unwrap();
                let useless = useless_notice(&bad, &sample.claim(), &mut rng);
                // The host's answer does not matter.
                let _ = client.ask(&useless).await;
                client.forget(sample.id()).await.unwrap();
            }
        });
    }
    senders.join_all().await;
    let client = Client::connect(&lab, &good, daemon.addr).await;
    let sample = Sample::new(&good.secret, "42", 1, 1);
    client.put(&sample, 0).await.unwrap();
    client.commit(&sample).await.unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap().as_millis() as u64;
    let gone = [sample.id()];
    let tag = sample.claim().job_tag;
    let heard = client.ask(&notice(&good, tag, now, &gone)).await;
    let (heard, _) = heard.unwrap();
    assert_eq!(heard, Response::Noted);
    assert!(client.find().await.unwrap().is_empty());
}

#[tokio::test]
async fn an_owner_that_commits_small_checkpoints_without_end_leaves_space() {
    let lab = Lab::new();
    let daemon = lab.spawn(&lab.data(), &["--capacity", "16MiB"]);
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &bad, daemon.addr).await;
    let mut committed = 0;
    let refused = loop {
        let sample = Sample::with_rows(&bad.secret, "tiny", committed + 1, committed, &[1]);
        if let Err(refused) = client.put(&sample, 0).await {
            break refused;
        }
        client.commit(&sample).await.unwrap();
        committed += 1;
    };
    assert_eq!(code::<()>(Err(refused)), Code::NoSpace);
    assert!(committed < 200, "{committed} for the price of bytes");
    honest(&lab, &good, daemon.addr, 1).await;
}

#[tokio::test]
async fn an_owner_that_reserves_everything_and_sends_nothing_leaves_space() {
    let lab = Lab::new();
    let expected: u64 = 1000 << 20;
    let capacity = (expected + expected / 512 + 4096).to_string();
    let daemon = lab.spawn(&lab.data(), &["--capacity", &capacity]);
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    let greedy = Client::connect(&lab, &bad, daemon.addr).await;
    let mut dripping = JoinSet::new();
    for (version, expected_bytes) in [1000, 480, 400, 100]
        .map(|mib| mib << 20)
        .iter()
        .enumerate()
    {
        let version = version as u64 + 1;
        let sample = Sample::new(&bad.secret, "greedy", version, version);
        let put = sample.put_of(*expected_bytes);
        let Ok(mut put) = greedy.begin(put).await else {
            continue;
        };
        // A block of 1 MiB is sent byte by byte, so the transfer is never silent for long.
        dripping.spawn(async move {
            let send = &mut put.exchange.send;
            let _ = send.write_all(&(MIB as u32).to_le_bytes()).await;
            while send.write_all(&[1]).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
    }
    assert!(!dripping.is_empty(), "nothing was reserved");
    honest(&lab, &good, daemon.addr, 1).await;
    let free = Client::connect(&lab, &good, daemon.addr)
        .await
        .status()
        .await
        .free_bytes;
    assert!(free > 300 << 20, "{free} bytes are left for others");
}

/// Passes on the datagrams of one client until the host has answered with something other than a Retry
/// packet. From then on it passes on only what the host sends, so the handshake never ends.
fn stalling_relay(bind: [u8; 4], host: SocketAddr, ends: Arc<AtomicBool>) -> SocketAddr {
    let front = UdpSocket::bind("127.0.0.1:0").unwrap();
    let back = UdpSocket::bind((std::net::Ipv4Addr::from(bind), 0)).unwrap();
    let addr = front.local_addr().unwrap();
    for socket in [&front, &back] {
        let timeout = Some(Duration::from_millis(1));
        socket.set_read_timeout(timeout).unwrap();
    }
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65536];
        let mut client = None;
        let mut is_stalled = false;
        while !ends.load(Ordering::Relaxed) {
            if let Ok((len, from)) = front.recv_from(&mut buffer) {
                client = Some(from);
                if !is_stalled {
                    let _ = back.send_to(&buffer[..len], host);
                }
            }
            if let (Ok((len, _)), Some(client)) = (back.recv_from(&mut buffer), client) {
                // The form of a Retry packet of QUIC 1 (RFC 9000, section 17.2.5).
                is_stalled |= buffer[0] & 0xf0 != 0xf0;
                let _ = front.send_to(&buffer[..len], client);
            }
        }
    });
    addr
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_handshakes_from_several_addresses_shut_no_member_out() {
    let lab = Lab::new();
    let daemon = lab.spawn(&lab.data(), &[]);
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    let ends = Arc::new(AtomicBool::new(false));
    let mut stalling = JoinSet::new();
    let begun = Arc::new(AtomicUsize::new(0));
    for at in 0..120 {
        let bind = [127, 0, 0, 2 + (at % 2)];
        let config = EndpointConfig::new(bad.clone(), lab.grid.authority.clone());
        let host = daemon.addr;
        let id = lab.host_id();
        let ends = Arc::clone(&ends);
        let begun = Arc::clone(&begun);
        stalling.spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                let one = Arc::new(AtomicBool::new(false));
                let relay = stalling_relay(bind, host, Arc::clone(&one));
                let endpoint = client(&config, ([127, 0, 0, 1], 0).into()).unwrap();
                begun.fetch_add(1, Ordering::Relaxed);
                let _ = tokio::time::timeout(Duration::from_secs(4), connect(&endpoint, relay, id))
                    .await;
                one.store(true, Ordering::Relaxed);
            }
        });
    }
    let crowded = Instant::now();
    while begun.load(Ordering::Relaxed) < 120 || crowded.elapsed() < Duration::from_secs(2) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for version in 1..=5 {
        honest(&lab, &good, daemon.addr, version).await;
    }
    ends.store(true, Ordering::Relaxed);
    eprintln!("{} handshakes", begun.load(Ordering::Relaxed));
    peak_is_bounded(&daemon);
}

#[tokio::test]
async fn one_member_does_not_fill_the_log() {
    let lab = Lab::new();
    let daemon = lab.spawn(&lab.data(), &[]);
    let bad = lab.member(Role::Submitter);
    let good = lab.member(Role::Submitter);
    let sample = Sample::new(&bad.secret, "42", 1, 1);
    let loud = Client::connect(&lab, &bad, daemon.addr).await;
    let audit = Audit {
        checkpoint: sample.id(),
        shard: 0,
        blocks: 1,
        fault: Some(AuditFault::Damaged),
    };
    for _ in 0..500 {
        loud.ask(&Request::Audited(audit)).await.unwrap();
        assert_eq!(code(loud.rows(&sample, 0, 0, 0).await), Code::BadRequest);
    }
    let other = Client::connect(&lab, &good, daemon.addr).await;
    assert_eq!(code(other.rows(&sample, 0, 0, 1).await), Code::NotFound);
    let log = std::fs::read_to_string(lab.data().join("log")).unwrap();
    let about = |who: &Identity| {
        let name = who.peer().unwrap().name;
        log.lines().filter(|line| line.contains(&name)).count()
    };
    assert!((10..200).contains(&about(&bad)), "{} lines", about(&bad));
    assert_eq!(about(&good), 1, "what others do is still seen");
}
