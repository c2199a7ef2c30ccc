//! Measures the memory and CPU time of a registry with many hosts.
//!
//! `registry-scale PROGRAM [HOSTS...]` starts `PROGRAM registry`. Simulated hosts connect, announce
//! themselves with a full history and a hundred shards each, and send heartbeats. For each number of hosts,
//! the memory and CPU time of the registry are printed, and how long a client needs to get the whole list of
//! members. Needs as many open files as hosts. `MEMORY` in the environment is the `--memory` of the registry:
//! 10,000 hosts need `4GiB`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use benches::usage::{cpu_seconds, memory_mib};
use codec::seal::OwnerSecret;
use codec::{CheckpointId, OwnerId};
use placement::bitmap::Slot;
use placement::{AvailabilityBitmap, SurvivalCurve};
use protocol::grid::{Grid, GridRegistry};
use protocol::identity::{
    Authority, HostId, Identity, Role, Validity, certificate_to_pem, write_key,
};
use protocol::net::endpoint::{EndpointConfig, MTU_SMALL};
use protocol::net::stream::{read_frame, request};
use protocol::net::{client, connect_as};
use protocol::wire::announcement::Announcement;
use protocol::wire::message::{HoldsPage, MemberRecord, Presence, Request, Response, ShardName};
use protocol::wire::parts::Parts;
use quinn::{Connection, Endpoint};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Hosts that connect at the same time.
const AT_ONCE: usize = 12;

/// Number of attempts to connect before the last one.
const ATTEMPTS: usize = 5;

/// Number of shards that each host holds.
const SHARDS: u64 = 100;

/// How long the CPU time of heartbeats is measured.
const MEASURED: Duration = Duration::from_secs(30);

const HEARTBEAT: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let program = args.next().context("the program ckpt-store")?;
    let sizes: Vec<u64> = args.map(|size| Ok(size.parse()?)).collect::<Result<_>>()?;
    let sizes = if sizes.is_empty() {
        vec![1_000, 3_000, 10_000]
    } else {
        sizes
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(Path::new(&program), &sizes))
}

struct Site {
    dir: tempfile::TempDir,
    authority: Authority,
    registry: GridRegistry,
    process: Child,
}

impl Drop for Site {
    fn drop(&mut self) {
        // The registry may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn validity() -> Result<Validity> {
    Ok(Validity {
        from: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        lasting: Duration::from_secs(86_400),
    })
}

impl Site {
    fn open(program: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let authority = Authority::create(OwnerSecret::new([250; 32]), "scale", validity()?)?;
        let secret = OwnerSecret::new([251; 32]);
        let id = HostId(secret.id());
        let certificate = authority.sign(&[Role::Registry], "r1", id.0, validity()?)?;
        write_key(&dir.path().join("identity.key"), &secret)?;
        std::fs::write(
            dir.path().join("identity.crt"),
            certificate_to_pem(&certificate),
        )?;
        let grid = Grid::new("scale", authority.certificate().clone());
        let file = dir.path().join("grid.toml");
        grid.save(&file)?;
        let ready = dir.path().join("ready");
        let mut command = Command::new(program);
        command.args(["registry", "--listen", "127.0.0.1:0"]);
        if let Ok(memory) = std::env::var("MEMORY") {
            command.args(["--memory", &memory]);
        }
        let process = command
            .arg("--grid")
            .arg(&file)
            .arg("--data")
            .arg(dir.path())
            .arg("--ready-file")
            .arg(&ready)
            .env("RUST_LOG", "error")
            .stdout(Stdio::null())
            .spawn()?;
        let began = Instant::now();
        let addr: SocketAddr = loop {
            if let Ok(addr) = std::fs::read_to_string(&ready).unwrap_or_default().parse() {
                break addr;
            }
            if began.elapsed() > LIMIT {
                bail!("the registry does not start");
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let registry = GridRegistry {
            name: "r1".into(),
            addr: addr.into(),
            id,
        };
        Ok(Self {
            dir,
            authority,
            registry,
            process,
        })
    }

    fn member(&self, number: u64, role: Role) -> Result<EndpointConfig> {
        let mut seed = [1; 32];
        seed[..8].copy_from_slice(&number.to_le_bytes());
        let secret = OwnerSecret::new(seed);
        let name = format!("h{number}");
        let certificate = self
            .authority
            .sign(&[role], &name, secret.id(), validity()?)?;
        let identity = Identity::new(secret, certificate)?;
        let mut config = EndpointConfig::new(identity, self.authority.certificate().clone());
        config.receive_window = 64 << 10;
        config.stream_window = 64 << 10;
        config.mtu_max = MTU_SMALL;
        Ok(config)
    }

    /// Memory of the registry in MiB, and its CPU seconds.
    fn used(&self) -> Result<(f64, f64)> {
        let pid = self.process.id();
        Ok((memory_mib(pid)?, cpu_seconds(pid)?))
    }
}

async fn run(program: &Path, sizes: &[u64]) -> Result<()> {
    let site = Arc::new(Site::open(program)?);
    println!("files of the registry in {}", site.dir.path().display());
    let mut hosts: Vec<(Endpoint, Connection)> = Vec::new();
    for size in sizes {
        let began = Instant::now();
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let mut coming = JoinSet::new();
        for number in hosts.len() as u64..*size {
            let site = Arc::clone(&site);
            let places = Arc::clone(&places);
            coming.spawn(async move {
                let _place = places.acquire().await?;
                // With thousands of handshakes at a time, a single one may exceed its timeout.
                for _ in 0..ATTEMPTS {
                    if let Ok(host) = arrive(&site, number).await {
                        return Ok(host);
                    }
                }
                arrive(&site, number).await
            });
        }
        while let Some(host) = coming.join_next().await {
            hosts.push(host??);
        }
        let arrived = began.elapsed().as_secs_f64();
        let (_, before) = site.used()?;
        let began = Instant::now();
        while began.elapsed() < MEASURED {
            let round = Instant::now();
            let mut beating = JoinSet::new();
            for (number, (_, connection)) in hosts.iter().enumerate() {
                let connection = connection.clone();
                let at = HEARTBEAT.mul_f64(number as f64 / hosts.len() as f64);
                beating.spawn(async move {
                    tokio::time::sleep(at).await;
                    let beat = Request::Heartbeat {
                        epoch: 1,
                        holdings: 1,
                    };
                    request(&connection, &beat, LIMIT)
                        .await
                        .map(|(answer, _)| answer)
                });
            }
            while let Some(beat) = beating.join_next().await {
                match beat?? {
                    Response::Heard {
                        announce: false,
                        holdings: false,
                    } => {}
                    other => bail!("{other:?}"),
                }
            }
            tokio::time::sleep(HEARTBEAT.saturating_sub(round.elapsed())).await;
        }
        let (mib, after) = site.used()?;
        let share = (after - before) / began.elapsed().as_secs_f64();
        let (listed, took) = list(&site).await?;
        println!(
            "{size} hosts: {mib:.0} MiB ({:.1} KiB each), {:.1}% of one CPU for heartbeats, list of {listed} in {took:.2} s; they came within {arrived:.0} s",
            mib * 1024.0 / *size as f64,
            100.0 * share,
        );
    }
    Ok(())
}

/// Has a host connect, announce itself and send the list of its shards.
async fn arrive(site: &Site, number: u64) -> Result<(Endpoint, Connection)> {
    let config = site.member(number, Role::Donor)?;
    let endpoint = client(&config, ([127, 0, 0, 1], 0).into())?;
    let registry = &site.registry;
    let connection = connect_as(
        &endpoint,
        registry.addr.ip().context("a name")?,
        registry.id,
        Role::Registry,
    )
    .await?;
    let presence = Presence {
        name: format!("h{number}"),
        addr: ([127, 0, 0, 1], 7600).into(),
        site: Some(format!("site-{}", number % 50)),
        owner: None,
        capacity_bytes: 1 << 40,
        free_bytes: 1 << 39,
        epoch: 1,
        announcement: announcement(),
        parts: Parts::default(),
    };
    request(&connection, &Request::Announce(Box::new(presence)), LIMIT).await?;
    let shards = (0..SHARDS).map(|shard| {
        let mut id = [0; 16];
        // Each checkpoint has five holders.
        id[..8].copy_from_slice(&((number / 5) * SHARDS + shard).to_le_bytes());
        ShardName {
            checkpoint: CheckpointId(id),
            shard: (number % 5) as u8,
        }
    });
    let page = HoldsPage {
        epoch: 1,
        first: true,
        last: true,
        shards: shards.collect(),
    };
    request(&connection, &Request::Holds(page), LIMIT).await?;
    Ok((endpoint, connection))
}

/// The largest possible announcement: with curves of ten hours and bitmaps of 28 days.
fn announcement() -> Announcement {
    let step = std::num::NonZeroU32::new(300).unwrap_or(std::num::NonZeroU32::MIN);
    let curve = SurvivalCurve::exponential(step, 120, 1e-5);
    let bitmap = AvailabilityBitmap::unknown(Slot(10_000)).to_bytes();
    let values = |curve: &SurvivalCurve| {
        curve
            .values()
            .iter()
            .map(|value| (value * 65535.0) as u16)
            .collect()
    };
    Announcement {
        at: 1,
        curve_step_s: 300,
        presence: values(&curve),
        guest: values(&curve),
        presence_bitmap: bitmap.clone(),
        guest_bitmap: bitmap,
        ..Announcement::default()
    }
}

/// Asks for all members. Returns their number, and how long that took in seconds.
async fn list(site: &Site) -> Result<(usize, f64)> {
    let config = site.member(u64::MAX, Role::Submitter)?;
    let endpoint = client(&config, ([127, 0, 0, 1], 0).into())?;
    let registry = &site.registry;
    let connection = connect_as(
        &endpoint,
        registry.addr.ip().context("a name")?,
        registry.id,
        Role::Registry,
    )
    .await?;
    let began = Instant::now();
    let (mut count, mut after): (usize, Option<OwnerId>) = (0, None);
    loop {
        let asked = request(&connection, &Request::Members { after }, LIMIT).await?;
        let (Response::Members { count: some, more }, mut exchange) = asked else {
            bail!("another answer");
        };
        for _ in 0..some {
            let record: MemberRecord = read_frame(&mut exchange.recv, LIMIT).await?;
            after = Some(record.id);
            count += 1;
        }
        if !more {
            return Ok((count, began.elapsed().as_secs_f64()));
        }
    }
}
