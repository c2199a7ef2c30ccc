//! Machines with links of their own: donors, some of them behind slow links, compute machines, and a server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tests::image;
use tests::net::{CLIENT, NetGrid};
use tests::program::wait_until;

/// Number of donors.
pub const HOSTS: u8 = 12;

/// Number of donors behind slow links: the last ones.
pub const SLOW_HOSTS: u8 = 3;

/// Most machines on which jobs run.
pub const CLIENTS_MAX: u8 = 16;

const SERVER_PORT: u16 = 7001;

/// What links carry in each direction, Mbit/s.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// Links of donors and compute machines.
    pub usual: u32,
    /// Links of the slow donors.
    pub slow: u32,
    /// The link of the server.
    pub server: u32,
}

/// How checkpoints are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One server, uncompressed.
    Server,
    /// `ckpt` with these options for saves.
    Ckpt(&'static [&'static str]),
}

impl Way {
    /// Random donors, uncompressed, 3+2.
    pub const RANDOM_RAW: Self = Self::Ckpt(&["--full", "--choose", "random", "--level", "none"]);
    /// Random donors, 3+2.
    pub const RANDOM: Self = Self::Ckpt(&["--full", "--choose", "random"]);
    /// One good donor: all bytes over one link.
    pub const SERIAL: Self =
        Self::Ckpt(&["--full", "--choose", "h1", "--data", "1", "--parity", "0"]);
    /// The same, uncompressed.
    pub const SERIAL_RAW: Self = Self::Ckpt(&[
        "--full", "--choose", "h1", "--data", "1", "--parity", "0", "--level", "none",
    ]);
    /// Donors as `ckpt` chooses them, uncompressed.
    pub const CHOSEN_RAW: Self = Self::Ckpt(&["--full", "--level", "none"]);
    /// Everything that `ckpt` does for a first version.
    pub const CKPT: Self = Self::Ckpt(&[]);
}

/// The machines.
pub struct Lab {
    /// Donors and compute machines.
    pub grid: NetGrid,
    clients: u8,
    server: Child,
    server_addr: String,
}

impl Lab {
    /// Builds them, with this many machines on which jobs run, each of which has saved and restored twice
    /// before, so that it knows the links.
    ///
    /// # Errors
    /// When the network can't be built.
    pub fn up(clients: u8, links: Links) -> Result<Self> {
        ensure!(
            clients <= CLIENTS_MAX,
            "{clients} clients of at most {CLIENTS_MAX}"
        );
        let grid = NetGrid::up_with(HOSTS, clients + 1)?;
        for host in 1..=HOSTS {
            let is_slow = host > HOSTS - SLOW_HOSTS;
            limit(&grid, host, if is_slow { links.slow } else { links.usual })?;
        }
        for client in 0..clients {
            limit(&grid, CLIENT - client, links.usual)?;
        }
        let number = CLIENT - clients;
        limit(&grid, number, links.server)?;
        let server_addr = SocketAddr::from(([10, 77, 0, number], SERVER_PORT)).to_string();
        let dir = grid.path("server").display().to_string();
        let server = itself(&grid, number)?
            .args(["serve", &dir, &server_addr])
            .spawn()?;
        let lab = Self {
            grid,
            clients,
            server,
            server_addr,
        };
        wait_until("the server listens", Duration::from_secs(10), || {
            let probe = lab.fetch(0, "nothing", &lab.path("nothing"))?.output()?;
            let said = String::from_utf8_lossy(&probe.stderr);
            Ok(!said.contains("refused"))
        })?;
        lab.learn()?;
        Ok(lab)
    }

    fn learn(&self) -> Result<()> {
        let small = self.path("small");
        std::fs::write(&small, image::memory(16 << 20, 7))?;
        for client in 0..self.clients {
            for _ in 0..2 {
                let job = format!("small-{client}");
                timed(self.save(client, Way::RANDOM, &job, &small)?)?;
                timed(self.restore(client, Way::RANDOM, &job, &self.path("out"))?)?;
            }
        }
        Ok(())
    }

    /// A path for files of the experiments.
    pub fn path(&self, name: &str) -> PathBuf {
        self.grid.path(name)
    }

    /// The command that saves a file from a compute machine, counted from 0.
    ///
    /// # Errors
    /// When the program does not build.
    pub fn save(&self, client: u8, way: Way, job: &str, file: &Path) -> Result<Command> {
        let file = file.display().to_string();
        match way {
            Way::Server => self.itself_at(client, &["put", job, &file]),
            Way::Ckpt(options) => {
                let save = ["--json", "save", "--memory", "64MiB", "--job", job];
                self.grid
                    .command(CLIENT - client, [&save, options, &[&file]].concat())
            }
        }
    }

    /// The command that restores it.
    ///
    /// # Errors
    /// When the program does not build.
    pub fn restore(&self, client: u8, way: Way, job: &str, out: &Path) -> Result<Command> {
        match way {
            Way::Server => self.fetch(client, job, out),
            Way::Ckpt(_) => {
                let out = out.display().to_string();
                let restore = [
                    "--json", "restore", "--memory", "64MiB", "--force", "--job", job, "-o", &out,
                ];
                self.grid.command(CLIENT - client, restore)
            }
        }
    }

    /// Removes what a job has saved.
    ///
    /// # Errors
    /// When that fails.
    pub fn forget(&self, way: Way, job: &str) -> Result<()> {
        match way {
            Way::Server => Ok(std::fs::remove_file(self.path("server").join(job))?),
            Way::Ckpt(_) => {
                let forget = ["forget", "--all", "--job", job];
                timed(self.grid.command(CLIENT, forget)?).map(|_| ())
            }
        }
    }

    fn fetch(&self, client: u8, job: &str, out: &Path) -> Result<Command> {
        self.itself_at(client, &["get", job, &out.display().to_string()])
    }

    fn itself_at(&self, client: u8, words: &[&str]) -> Result<Command> {
        let mut command = itself(&self.grid, CLIENT - client)?;
        command
            .arg(words[0])
            .arg(&self.server_addr)
            .args(&words[1..]);
        Ok(command)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn limit(grid: &NetGrid, member: u8, mbit: u32) -> Result<()> {
    grid.limit(member, mbit)?;
    grid.limit_uplink(member, mbit)
}

/// This program on a machine.
fn itself(grid: &NetGrid, member: u8) -> Result<Command> {
    let mut command = grid.inside(member, &std::env::current_exe()?);
    command.stdout(Stdio::null());
    Ok(command)
}

/// Runs a command to its good end; seconds.
///
/// # Errors
/// When it fails.
pub fn timed(mut command: Command) -> Result<f64> {
    let began = Instant::now();
    let done = command.stderr(Stdio::piped()).output()?;
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    ensure!(
        done.status.success(),
        "{command:?}: {}: {said}",
        done.status
    );
    Ok(began.elapsed().as_secs_f64())
}

/// Hosts that hold the newest version of a job.
///
/// # Errors
/// When it can't be asked.
pub fn holders(lab: &Lab, job: &str) -> Result<Vec<u8>> {
    let shown = lab
        .grid
        .run(["--json", "show", "--job", job])?
        .expect(0)?
        .json()?;
    let holders = shown["holders"].as_array().context("no holders")?.iter();
    let names =
        holders.filter_map(|holder| holder["host"].as_str()?.strip_prefix('h')?.parse().ok());
    Ok(names.collect())
}
