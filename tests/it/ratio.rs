//! How much one hostile member of a grid can slow another down. A submitter saves, lists and restores
//! 64 MiB, once beside a member that attacks and once beside an honest member that is as busy. Attacker
//! and honest member each have a quarter of a core.
//!
//! This takes minutes, and an idle machine:
//! `cargo test -p tests --test it --locked --features tests/etcd,ckpt/etcd -- --ignored ratio:: --nocapture`.
//! `CKPT_ATTACK_KIND` chooses one attack.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use codec::CheckpointId;
use codec::keys::Keys;
use codec::notice::{Intervals, Notice, Words};
use codec::scope::Blinded;
use codec::seal::OwnerSecret;
use protocol::authority_dir::{AuthorityDir, Certify};
use protocol::grid::Grid as GridFile;
use protocol::identity::{Identity, Role, Validity, certificate_from_pem, certificate_to_pem};
use protocol::net::stream::{ExchangeError, request, write_frame};
use protocol::net::{EndpointConfig, client, connect};
use protocol::wire::message::{Audit, AuditFault, PutShard, Request, Response, ShardName};
use quinn::Connection;
use rustix::process::{Pid, Signal, kill_process};
use tests::program::wait_until;
use tests::solo::{Solo, SoloPlan};
use tests::{Grid, image};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(30);

/// Size of the image that the measured submitter saves.
const IMAGE_BYTES: usize = 64 << 20;

/// How often each command is timed; the median counts.
const ROUNDS: usize = 5;

/// Most that a time beside an attacker may be, as a multiple of the time beside an honest member.
const RATIO_MAX: f64 = 3.0;

/// The busy member runs for a quarter of each period, and is stopped for the rest.
const PERIOD: Duration = Duration::from_millis(40);

const BLOCK_BYTES: usize = 1 << 20;

/// The attacks, one on each limit that members share; [`Member`] has a function for each.
const ATTACKS: [&str; 7] = [
    "reads",
    "space",
    "questions",
    "books",
    "notices",
    "connections",
    "log",
];

/// Enrols the busy member as a submitter, and writes its certificate to the grid's directory.
fn enrol(grid: &Grid) -> Result<()> {
    let secret = OwnerSecret::new([99; 32]);
    let mut authority = AuthorityDir::open(&grid.dir().join("grid"))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let certificate = authority.certify(&Certify {
        roles: vec![Role::Submitter],
        name: "busy".into(),
        key: secret.id(),
        validity: Validity {
            from: now,
            lasting: Duration::from_secs(86_400),
        },
        host: None,
    })?;
    Ok(fs::write(
        grid.path("busy.crt"),
        certificate_to_pem(&certificate),
    )?)
}

/// The process of the busy member, which has a quarter of a core. Dropping it ends the process.
struct Busy {
    child: Child,
    ends: Arc<AtomicBool>,
    pacer: Option<JoinHandle<()>>,
}

impl Busy {
    fn start(grid: &Grid, kind: &str) -> Result<Self> {
        let ready = grid.path("busy.ready");
        let _ = fs::remove_file(&ready);
        let child = Command::new(std::env::current_exe()?)
            .args(["--ignored", "--exact", "ratio::the_busy_member"])
            .env("CKPT_BUSY_KIND", kind)
            .env("CKPT_BUSY_GRID", grid.file())
            .env("CKPT_BUSY_DIR", grid.dir())
            .stdout(Stdio::null())
            .spawn()?;
        let pid = Pid::from_raw(i32::try_from(child.id())?).context("no process")?;
        let mut busy = Self {
            child,
            ends: Arc::default(),
            pacer: None,
        };
        wait_until("it has begun", Duration::from_secs(120), || {
            ensure!(busy.child.try_wait()?.is_none(), "{kind} has ended");
            Ok(ready.exists())
        })?;
        let ends = Arc::clone(&busy.ends);
        busy.pacer = Some(std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let _ = kill_process(pid, Signal::CONT);
                std::thread::sleep(PERIOD / 4);
                let _ = kill_process(pid, Signal::STOP);
                std::thread::sleep(PERIOD - PERIOD / 4);
            }
            let _ = kill_process(pid, Signal::CONT);
        }));
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(pacer) = self.pacer.take() {
            let _ = pacer.join();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Median seconds of a save, a list and a restore.
fn times(grid: &Grid) -> Result<[f64; 3]> {
    let mut all: [Vec<f64>; 3] = Default::default();
    for round in 0..ROUNDS {
        let bytes = image::memory(IMAGE_BYTES, round as u64);
        fs::write(grid.path("image"), &bytes)?;
        let save = ["save", "--full", "--job", "other", "--keep", "2", "image"];
        let restore = ["restore", "--job", "other", "-o", "-"];
        for (times, args) in all.iter_mut().zip([&save[..], &["list"], &restore]) {
            let began = Instant::now();
            let done = grid.run(args)?;
            times.push(began.elapsed().as_secs_f64());
            ensure!(matches!(done.code, Some(0 | 3)), "{done}");
            ensure!(args != restore || done.stdout == bytes, "other bytes");
        }
    }
    Ok(all.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    }))
}

#[test]
#[ignore = "takes minutes, and a machine with nothing else to do"]
fn one_member_at_its_worst_costs_another_no_more_than_three_times_an_honest_one() -> Result<()> {
    let chosen = std::env::var("CKPT_ATTACK_KIND").ok();
    let is_chosen = |kind: &&str| chosen.as_ref().is_none_or(|chosen| chosen == kind);
    let measure = |kind: &str| -> Result<[f64; 3]> {
        // Each attack gets a grid of its own, so that what it leaves behind does not slow the next one.
        let grid = Grid::up(6)?;
        enrol(&grid)?;
        let _busy = Busy::start(&grid, kind)?;
        times(&grid)
    };
    let honest = measure("honest")?;
    println!(
        "{:<12} {:>8} {:>8} {:>8}   ratios",
        "", "save", "list", "restore"
    );
    let line = |kind: &str, times: [f64; 3]| {
        let ratios = [0, 1, 2].map(|at| times[at] / honest[at]);
        let [save, list, restore] = times;
        let shown = ratios.map(|ratio| format!("{ratio:.2}")).join(" ");
        println!("{kind:<12} {save:>8.2} {list:>8.2} {restore:>8.2}   {shown}");
        ratios.into_iter().fold(0.0, f64::max)
    };
    line("honest", honest);
    let mut worst = Vec::new();
    if let Some(chosen) = &chosen {
        ensure!(
            ATTACKS.contains(&chosen.as_str()),
            "{chosen}: no such attack"
        );
    }
    for kind in ATTACKS.iter().filter(|kind| is_chosen(kind)) {
        worst.push((kind, line(kind, measure(kind)?)));
    }
    let too_much = worst.iter().find(|(_, ratio)| *ratio > RATIO_MAX);
    ensure!(too_much.is_none(), "{too_much:?}");
    Ok(())
}

#[test]
#[ignore = "the busy member of the test above, which runs it as a process"]
fn the_busy_member() -> Result<()> {
    let Ok(kind) = std::env::var("CKPT_BUSY_KIND") else {
        return Ok(());
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let grid = std::env::var("CKPT_BUSY_GRID")?;
    let dir = std::env::var("CKPT_BUSY_DIR")?;
    runtime.block_on(be_busy(&kind, Path::new(&grid), Path::new(&dir)))
}

async fn be_busy(kind: &str, grid: &Path, dir: &Path) -> Result<()> {
    let file = GridFile::load(grid)?;
    let certificate = certificate_from_pem(&fs::read_to_string(dir.join("busy.crt"))?)?;
    let identity = Identity::new(OwnerSecret::new([99; 32]), certificate)?;
    let mut config = EndpointConfig::new(identity.clone(), file.authority.clone());
    if matches!(kind, "reads" | "questions") {
        config.stream_window = 16 << 10;
    }
    let endpoint = client(&config, (Ipv4Addr::LOCALHOST, 0).into())?;
    let mut members = JoinSet::new();
    let owner = identity.secret.clone();
    for (at, host) in file.hosts.iter().enumerate() {
        let addr = host.addr.ip().context("a name")?;
        let connection = connect(&endpoint, addr, host.id).await?;
        let member = Member {
            connection,
            owner: owner.clone(),
            base: (at as u64 + 1) << 32,
        };
        let kind = kind.to_owned();
        let reconnect = (endpoint.clone(), addr, host.id);
        members.spawn(async move {
            if kind == "connections" {
                let (endpoint, addr, id) = reconnect;
                let mut open = Vec::new();
                loop {
                    // Open as many connections as the host accepts, and replace those that it closes.
                    if let Ok(one) = connect(&endpoint, addr, id).await {
                        open.push(one);
                    }
                    open.retain(|one: &Connection| one.close_reason().is_none());
                    tokio::task::yield_now().await;
                }
            }
            member.act_as(&kind).await
        });
    }
    fs::write(dir.join("busy.ready"), "")?;
    // These tasks end only with an error.
    members.join_all().await.into_iter().collect()
}

/// The busy member's connection to one host.
#[derive(Clone)]
struct Member {
    connection: Connection,
    owner: OwnerSecret,
    /// First number of the checkpoints that this connection makes.
    base: u64,
}

impl Member {
    fn make(&self, number: u64, rows: usize, len: usize) -> Result<Solo> {
        let mut id = [3; 16];
        id[..8].copy_from_slice(&(self.base + number).to_le_bytes());
        let plan = SoloPlan {
            job: "busy".parse()?,
            version: self.base + number + 1,
            created: number,
            id,
            rows,
            block: vec![7; len],
        };
        Solo::sign(&Keys::from(self.owner.clone()), plan)
    }

    async fn ask(&self, asked: &Request) -> Result<Response, ExchangeError> {
        request(&self.connection, asked, LIMIT)
            .await
            .map(|answer| answer.0)
    }

    async fn store(&self, made: &Solo) -> Result<(), ExchangeError> {
        made.store(&self.connection, LIMIT).await?;
        made.commit(&self.connection, LIMIT).await
    }

    async fn act_as(self, kind: &str) -> Result<()> {
        match kind {
            "honest" => self.honest().await,
            "reads" => self.reads().await,
            "space" => self.space().await,
            "questions" => self.questions().await,
            "books" => self.books().await,
            "notices" => self.notices().await,
            _ => self.log().await,
        }
    }

    /// Saves, lists, restores and removes, again and again.
    async fn honest(self) -> Result<()> {
        for number in 0.. {
            let made = self.make(number, 4, BLOCK_BYTES)?;
            let _ = self.store(&made).await;
            let job_tag = None;
            let after = None;
            let _ = self.ask(&Request::Find { job_tag, after }).await;
            let rows = Request::Rows {
                shard: made.shard(),
                first: 0,
                count: 4,
            };
            if let Ok((_, mut exchange)) = request(&self.connection, &rows, LIMIT).await {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(Some(_)) = exchange.recv.read(&mut buffer).await {}
            }
            let checkpoint = made.shard().checkpoint;
            let _ = self.ask(&Request::Forget { checkpoint }).await;
        }
        Ok(())
    }

    /// Asks for many blocks and reads them slowly.
    async fn reads(self) -> Result<()> {
        let made = self.make(0, 8, BLOCK_BYTES)?;
        self.store(&made).await?;
        let rows = Request::Rows {
            shard: made.shard(),
            first: 0,
            count: 8,
        };
        self.each_stream(|member| {
            let rows = rows.clone();
            async move {
                let (mut send, mut recv) = member.connection.open_bi().await?;
                write_frame(&mut send, &rows).await?;
                let mut buffer = [0; 4 << 10];
                while recv.read_exact(&mut buffer).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(400)).await;
                }
                Ok(())
            }
        })
        .await
    }

    /// Reserves 1 GiB for each shard and sends it byte by byte.
    async fn space(self) -> Result<()> {
        let number = std::sync::atomic::AtomicU64::new(0);
        self.each_stream(|member| {
            let number = number.fetch_add(1, Ordering::Relaxed);
            async move {
                let made = member.make(number, 1, BLOCK_BYTES)?;
                let put = PutShard {
                    expected_bytes: 1 << 30,
                    ..made.put()
                };
                let asked = Request::PutShard(put);
                let (_, mut exchange) = request(&member.connection, &asked, LIMIT).await?;
                let len = (BLOCK_BYTES as u32).to_le_bytes();
                exchange.send.write_all(&len).await?;
                while exchange.send.write_all(&[1]).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Ok(())
            }
        })
        .await
    }

    /// Asks for long lists and reads them slowly.
    async fn questions(self) -> Result<()> {
        for number in 0..300 {
            self.store(&self.make(number, 1, 1)?).await?;
        }
        let job_tag = None;
        let after = None;
        let asked = Request::Find { job_tag, after };
        self.each_stream(|member| {
            let asked = asked.clone();
            async move {
                let (mut send, mut recv) = member.connection.open_bi().await?;
                write_frame(&mut send, &asked).await?;
                let mut buffer = [0; 1 << 10];
                while recv.read_exact(&mut buffer).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Ok(())
            }
        })
        .await
    }

    /// Commits checkpoints of one byte.
    async fn books(self) -> Result<()> {
        for number in 0.. {
            let _ = self.store(&self.make(number, 1, 1)?).await;
        }
        Ok(())
    }

    /// Sends notices about a job, each with 128 more checkpoints that are gone.
    async fn notices(self) -> Result<()> {
        let made = self.make(0, 1, 1)?;
        self.store(&made).await?;
        let keys = Keys::from(self.owner.clone());
        let job = (keys.owner(), made.put().claim.job_tag);
        let mut now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
        loop {
            now += 1;
            let gone = (0..128_u64).map(|at| {
                let mut id = [1; 16];
                id[..8].copy_from_slice(&(now * 128 + at).to_le_bytes());
                CheckpointId(id)
            });
            let gone: Vec<_> = gone.collect();
            let words = Words::following(None, job, now, None, &gone, &Intervals::default());
            let notice = Notice::sign(&keys, &[Blinded([0; 32])], &words)?;
            let notice = notice.bytes().to_vec();
            let _ = self.ask(&Request::Notice { notice }).await;
        }
    }

    /// Reports failed checks and sends requests that are refused, all of which hosts log.
    async fn log(self) -> Result<()> {
        let audit = Audit {
            checkpoint: CheckpointId([5; 16]),
            shard: 0,
            blocks: 1,
            fault: Some(AuditFault::Damaged),
        };
        loop {
            let _ = self.ask(&Request::Audited(audit)).await;
            let checkpoint = CheckpointId([5; 16]);
            let shard = ShardName {
                checkpoint,
                shard: 0,
            };
            let _ = self.ask(&Request::Outline(shard)).await;
        }
    }

    /// Runs `task` on 32 streams at once, and starts it again when it ends.
    async fn each_stream<F>(&self, mut task: impl FnMut(Self) -> F) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let mut running = JoinSet::new();
        loop {
            while running.len() < 32 {
                running.spawn(task(self.clone()));
            }
            let _ended = running.join_next().await;
            // Without a pause, requests that are refused at once would be sent at full speed.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
