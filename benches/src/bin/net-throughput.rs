//! Measures a transfer over QUIC on loopback: rate and CPU time by datagram size and congestion controller
//! and, through a relay, by delay and loss.
//!
//! `net-throughput [MIB]` prints the table for transfers of MIB mebibytes (512 by default). The receiver is a
//! process of its own, so that the CPU time of each side is known.

use std::collections::VecDeque;
use std::env;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use codec::seal::OwnerSecret;
use protocol::identity::{Authority, HostId, Identity, Role, Validity};
use protocol::net::endpoint::{self, Congestion, EndpointConfig};
use quinn::VarInt;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const HOST: [u8; 32] = [2; 32];
const CLIENT: [u8; 32] = [3; 32];

/// A run that takes longer is given up.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// One line of the table.
#[derive(Clone, Copy)]
struct Case {
    mtu: u16,
    congestion: Congestion,
    /// One-way delay at the relay.
    delay: Duration,
    /// Number of datagrams that the relay drops, of each thousand.
    loss_permille: f64,
}

fn main() -> Result<()> {
    let mut args = env::args().skip(1);
    match args.next().as_deref() {
        Some("--receive") => receive(&args.next().context("no case")?),
        mib => table(mib.map_or(Ok(512), str::parse).context("MIB is a number")?),
    }
}

fn table(mib: u64) -> Result<()> {
    let direct = |mtu, congestion| Case {
        mtu,
        congestion,
        delay: Duration::ZERO,
        loss_permille: 0.0,
    };
    let relayed = |congestion, delay_ms, loss_permille| Case {
        mtu: 1452,
        congestion,
        delay: Duration::from_millis(delay_ms),
        loss_permille,
    };
    println!(
        "mtu    congestion  rtt ms  loss %  MiB   MiB/s  send CPU s/GiB  receive CPU s/GiB  lost  mtu at end"
    );
    for congestion in [Congestion::Cubic, Congestion::Bbr] {
        for mtu in [1452, 2500, 4000, 6500] {
            report(direct(mtu, congestion), mib)?;
        }
    }
    for congestion in [Congestion::Cubic, Congestion::Bbr] {
        for (delay_ms, loss_permille) in [
            (0, 1.0),
            (1, 0.0),
            (1, 1.0),
            (10, 0.0),
            (10, 1.0),
            (10, 10.0),
        ] {
            report(relayed(congestion, delay_ms, loss_permille), mib.min(64))?;
        }
    }
    Ok(())
}

fn report(case: Case, mib: u64) -> Result<()> {
    print!(
        "{:<6} {:<10} {:>7} {:>7} {mib:>5}",
        case.mtu,
        format!("{:?}", case.congestion),
        2 * case.delay.as_millis(),
        case.loss_permille / 10.0,
    );
    match run(case, mib) {
        Ok(line) => println!(" {line}"),
        Err(cause) => println!(" {cause:#}"),
    }
    Ok(())
}

fn run(case: Case, mib: u64) -> Result<String> {
    let mut child = Receiver::start(case)?;
    let relay = (case.delay > Duration::ZERO || case.loss_permille > 0.0)
        .then(|| Relay::start(child.addr, case))
        .transpose()?;
    let addr = relay.as_ref().map_or(child.addr, |relay| relay.addr);
    let before = cpu_seconds(std::process::id())?;
    let relay_before = relay.as_ref().map_or(Ok(0.0), Relay::cpu)?;
    let sent = runtime()?.block_on(async {
        tokio::time::timeout(RUN_TIMEOUT, send(case, addr, mib))
            .await
            .context("not done in 60 s")?
    })?;
    let relayed = relay.as_ref().map_or(Ok(0.0), Relay::cpu)? - relay_before;
    let sender = cpu_seconds(std::process::id())? - before - relayed;
    let receiver = cpu_seconds(child.process.id())? - child.cpu_before;
    child.process.kill()?;
    child.process.wait()?;
    let gib = mib as f64 / 1024.0;
    Ok(format!(
        "{:>7.0} {:>15.2} {:>18.2} {:>5} {:>11}",
        mib as f64 / sent.seconds,
        sender / gib,
        receiver / gib,
        sent.lost,
        sent.mtu
    ))
}

struct Receiver {
    process: Child,
    addr: SocketAddr,
    cpu_before: f64,
}

impl Receiver {
    fn start(case: Case) -> Result<Self> {
        let kind = format!("{}:{:?}", case.mtu, case.congestion);
        let mut process = Command::new(env::current_exe()?)
            .args(["--receive", &kind])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("no output")?).read_line(&mut line)?;
        let cpu_before = cpu_seconds(process.id())?;
        Ok(Self {
            addr: line.trim().parse()?,
            process,
            cpu_before,
        })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn receive(kind: &str) -> Result<()> {
    let (mtu, congestion) = kind.split_once(':').context("no case")?;
    let congestion = match congestion {
        "Bbr" => Congestion::Bbr,
        _ => Congestion::Cubic,
    };
    let config = config(HOST, Role::Donor, mtu.parse()?, congestion)?;
    runtime()?.block_on(async {
        let endpoint = endpoint::server(&config, (Ipv4Addr::LOCALHOST, 0).into())?;
        println!("{}", endpoint.local_addr()?);
        let connection = endpoint.accept().await.context("closed")?.await?;
        let (mut send, mut recv) = connection.accept_bi().await?;
        while recv.read_chunk(usize::MAX, true).await?.is_some() {}
        send.write_all(b"all").await?;
        send.finish()?;
        connection.closed().await;
        thread::sleep(RUN_TIMEOUT);
        Ok(())
    })
}

struct Sent {
    seconds: f64,
    lost: u64,
    mtu: u16,
}

async fn send(case: Case, addr: SocketAddr, mib: u64) -> Result<Sent> {
    let config = config(CLIENT, Role::Submitter, case.mtu, case.congestion)?;
    let endpoint = endpoint::client(&config, (Ipv4Addr::LOCALHOST, 0).into())?;
    let id = HostId(OwnerSecret::new(HOST).id());
    let connection = endpoint::connect(&endpoint, addr, id).await?;
    let block = Bytes::from(vec![0x5a; 1 << 20]);
    let begin = Instant::now();
    let (mut send, mut recv) = connection.open_bi().await?;
    for _ in 0..mib {
        // Without a copy, as the program sends blocks.
        send.write_chunk(block.clone()).await?;
    }
    send.finish()?;
    ensure!(recv.read_to_end(3).await? == b"all", "wrong answer");
    let seconds = begin.elapsed().as_secs_f64();
    let path = connection.stats().path;
    connection.close(VarInt::from_u32(0), b"");
    endpoint.wait_idle().await;
    Ok(Sent {
        seconds,
        lost: path.lost_packets,
        mtu: path.current_mtu,
    })
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?)
}

fn config(seed: [u8; 32], role: Role, mtu: u16, congestion: Congestion) -> Result<EndpointConfig> {
    let validity = Validity {
        from: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        lasting: Duration::from_secs(3600),
    };
    // Receiver and sender each make the same authority.
    let fixed = Validity {
        from: 0,
        lasting: Duration::from_secs(u32::MAX.into()),
    };
    let authority = Authority::create(OwnerSecret::new([1; 32]), "bench", fixed)?;
    let secret = OwnerSecret::new(seed);
    let certificate = authority.sign(&[role], "bench", secret.id(), validity)?;
    let identity = Identity::new(secret, certificate)?;
    let mut config = EndpointConfig::new(identity, authority.certificate().clone());
    config.mtu_max = mtu;
    config.congestion = congestion;
    Ok(config)
}

/// User and system time of all threads of a process, in seconds.
fn cpu_seconds(process: u32) -> Result<f64> {
    cpu_seconds_of(&format!("/proc/{process}/stat"))
}

fn cpu_seconds_of(stat: &str) -> Result<f64> {
    /// `USER_HZ`, which is 100 on all of Linux.
    const TICKS: f64 = 100.0;
    let text = std::fs::read_to_string(stat)?;
    let fields = text.rsplit(')').next().context("no fields")?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: Result<Vec<f64>, _> = ticks.map(str::parse::<f64>).collect();
    Ok(ticks?.iter().sum::<f64>() / TICKS)
}

/// Passes datagrams on after a delay, and drops some of them.
struct Relay {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    threads: [u32; 1],
}

impl Relay {
    fn start(to: SocketAddr, case: Case) -> Result<Self> {
        let [near, far] = [socket()?, socket()?];
        let addr = near.local_addr()?;
        far.connect(to)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (started, start) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let path = std::fs::read_link("/proc/thread-self").unwrap_or_default();
            let id = path.file_name().and_then(|id| id.to_str()?.parse().ok());
            let _ = started.send(id.unwrap_or(0));
            relay(&near, &far, case, &stopped);
        });
        Ok(Self {
            addr,
            stop,
            threads: [start.recv()?],
        })
    }

    fn cpu(&self) -> Result<f64> {
        let own = std::process::id();
        self.threads
            .iter()
            .map(|id| cpu_seconds_of(&format!("/proc/{own}/task/{id}/stat")))
            .sum()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn socket() -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn relay(near: &UdpSocket, far: &UdpSocket, case: Case, stop: &AtomicBool) {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut client = None;
    let mut queue: VecDeque<(Instant, bool, Vec<u8>)> = VecDeque::new();
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        for forth in [true, false] {
            let socket = if forth { near } else { far };
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                idle = false;
                if forth {
                    client = Some(from);
                }
                if rng.random_range(0.0..1000.0) >= case.loss_permille {
                    queue.push_back((Instant::now() + case.delay, forth, buffer[..len].to_vec()));
                }
                if queue.len().is_multiple_of(64) {
                    break;
                }
            }
        }
        while queue
            .front()
            .is_some_and(|(due, ..)| *due <= Instant::now())
        {
            let Some((_, forth, datagram)) = queue.pop_front() else {
                break;
            };
            idle = false;
            let _ = match client.filter(|_| !forth) {
                Some(client) => near.send_to(&datagram, client),
                None => far.send(&datagram),
            };
        }
        if idle {
            thread::sleep(Duration::from_micros(50));
        }
    }
}
