//! A grid of honest daemons and hosts that can lie, all within the process of the test.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use ckpt_store::monitor::outlook::Predictor;
use ckpt_store::repair::RepairSettings;
use ckpt_store::{Daemon, DaemonConfig, Quota};
use codec::CheckpointId;
use protocol::grid::{Grid, GridRegistry};
use protocol::identity::{HostId, Identity, Role};
use protocol::wire::message::MemberRecord;
use tokio::runtime::Runtime;

use crate::claimant::Claimant;
use crate::liar::{Liar, Lie};
use crate::members::{self, Members};
use crate::program::{COMMAND_TIMEOUT, Outcome, command, run, wait_until};
use crate::relay::Relay;

/// A running grid. Dropping it stops all its hosts and registries.
#[derive(Debug)]
pub struct MixedGrid {
    dir: tempfile::TempDir,
    members: Members,
    liars: Vec<Liar>,
    claimants: Vec<Claimant>,
    daemons: Vec<(String, Daemon)>,
    relays: Vec<Relay>,
    runtime: Option<Runtime>,
}

impl Drop for MixedGrid {
    fn drop(&mut self) {
        let daemons = std::mem::take(&mut self.daemons);
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(async {
                self.liars.clear();
                self.claimants.clear();
                for (_, daemon) in daemons {
                    daemon.stop().await;
                }
            });
            runtime.shutdown_background();
        }
    }
}

/// Waits until each daemon knows this many hosts. One that knows only those that started before it would rebuild
/// what the others hold.
fn await_members(daemons: &[(String, Daemon)], hosts: usize) -> Result<()> {
    wait_until("each host knows all hosts", COMMAND_TIMEOUT, || {
        let known = |daemon: &Daemon| daemon.members().grid().hosts.len();
        Ok(daemons.iter().all(|(_, daemon)| known(daemon) == hosts))
    })
}

impl MixedGrid {
    /// Starts `honest` daemons and `others` hosts that can lie, but don't yet. Daemons repair nothing.
    ///
    /// # Errors
    /// When one does not start.
    pub fn up(honest: u8, others: u8) -> Result<Self> {
        Self::start(honest, others, false, |_| no_repair())
    }

    /// Like [`Self::up`], with daemons that repair. `repair` returns the settings of a daemon by its name.
    ///
    /// # Errors
    /// When one does not start.
    pub fn up_with(
        honest: u8,
        others: u8,
        repair: impl Fn(&str) -> RepairSettings,
    ) -> Result<Self> {
        Self::start(honest, others, false, repair)
    }

    /// Starts `honest` daemons, each behind a relay. The daemons don't know each other: only clients
    /// connect to them.
    ///
    /// # Errors
    /// When one does not start.
    pub fn behind_relays(honest: u8) -> Result<Self> {
        Self::start(honest, 0, true, |_| no_repair())
    }

    fn start(
        honest: u8,
        others: u8,
        is_relayed: bool,
        repair: impl Fn(&str) -> RepairSettings,
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let mut members = Members::of("mixed")?;
        let mut grid = members.grid();
        let mut daemons = Vec::new();
        let mut liars = Vec::new();
        let mut relays = Vec::new();
        for number in 1..=honest + others {
            let name = format!("h{number:02}");
            let identity = members.enrol(&name, Role::Donor)?;
            let id = HostId(identity.secret.id());
            let mut addr = if number <= honest {
                let known = if is_relayed {
                    members.grid()
                } else {
                    grid.clone()
                };
                let file = dir.path().join("grid.toml");
                grid.save(&file)?;
                let config = DaemonConfig {
                    repair: repair(&name),
                    grid_file: (!is_relayed).then_some(file),
                    ..daemon_config(known, identity, &name, dir.path().join(&name))
                };
                let daemon = runtime.block_on(Daemon::start(&config))?;
                let addr = daemon.local_addr();
                daemons.push((name.clone(), daemon));
                addr
            } else {
                let _inside = runtime.enter();
                let liar = Liar::start(&name, identity, grid.authority.clone())?;
                let addr = liar.addr();
                liars.push(liar);
                addr
            };
            if is_relayed {
                let relay = runtime.block_on(Relay::to(addr))?;
                addr = relay.addr;
                relays.push(relay);
            }
            grid.hosts.push(members::host(name, addr, id));
        }
        grid.owner = Some(members.owner_in(dir.path())?);
        grid.save(&dir.path().join("grid.toml"))?;
        if !is_relayed {
            await_members(&daemons, grid.hosts.len())?;
        }
        Ok(Self {
            dir,
            members,
            liars,
            claimants: Vec::new(),
            daemons,
            relays,
            runtime: Some(runtime),
        })
    }

    /// Has all hosts that can lie do so in this way from now on.
    pub fn lie(&self, lie: Lie) {
        for liar in &self.liars {
            liar.lie(lie);
        }
    }

    /// Has all hosts that can lie pass questions for proofs on to the others.
    ///
    /// # Errors
    /// When the grid file can't be read.
    pub fn pass_questions_on(&self) -> Result<()> {
        let grid = Grid::load(&self.path("grid.toml"))?;
        let runtime = self.runtime.as_ref().context("no runtime")?;
        let _inside = runtime.enter();
        for liar in &self.liars {
            liar.knows(&grid)?;
        }
        self.lie(Lie::PassesQuestionsOn);
        Ok(())
    }

    /// Has some of the hosts that can lie do so: those with the numbers `which`, counted from 0.
    pub fn lie_at(&self, which: std::ops::Range<usize>, lie: Lie) {
        for liar in self.liars.get(which).unwrap_or_default() {
            liar.lie(lie);
        }
    }

    /// How often each host that can lie was asked for its notices and its clock.
    pub fn clock_asked(&self) -> Vec<u64> {
        self.liars.iter().map(Liar::clock_asked).collect()
    }

    /// Has every host that can lie send all its committed shards to all other hosts, as if they were rebuilt.
    /// Returns the checkpoints of which a host took a shard.
    ///
    /// # Errors
    /// When the grid file can't be read.
    pub fn bring_back(&self) -> Result<BTreeSet<CheckpointId>> {
        let grid = Grid::load(&self.path("grid.toml"))?;
        let runtime = self.runtime.as_ref().context("no runtime")?;
        let mut taken = BTreeSet::new();
        let _inside = runtime.enter();
        for liar in &self.liars {
            taken.extend(runtime.block_on(liar.bring_back(&grid)?.run()));
        }
        Ok(taken)
    }

    /// Changes the grid file.
    ///
    /// # Errors
    /// When it can't be read or written.
    pub fn edit(&self, change: impl FnOnce(&mut Grid)) -> Result<()> {
        let path = self.path("grid.toml");
        let mut grid = Grid::load(&path)?;
        change(&mut grid);
        Ok(grid.save(&path)?)
    }

    /// Starts a registry that answers with a record of every host of the grid file, and enters the registry
    /// in the grid file. `say` may change each record first. Unchanged, a record is true, except that the
    /// host announced itself 5 s ago.
    ///
    /// # Errors
    /// When the registry does not start.
    pub fn claim(&mut self, name: &str, say: impl Fn(&mut MemberRecord)) -> Result<()> {
        let identity = self.members.enrol(name, Role::Registry)?;
        let id = HostId(identity.secret.id());
        let grid = Grid::load(&self.path("grid.toml"))?;
        let records = grid.hosts.iter().filter_map(|host| {
            let mut record = members::record(host, host.addr.ip()?);
            say(&mut record);
            Some(record)
        });
        let runtime = self.runtime.as_ref().context("it runs")?;
        let _inside = runtime.enter();
        let claimant = Claimant::start(identity, grid.authority.clone(), records.collect())?;
        let name = name.to_owned();
        let addr = claimant.addr();
        self.claimants.push(claimant);
        self.edit(|grid| {
            grid.registries.push(GridRegistry {
                name,
                addr: addr.into(),
                id,
            })
        })
    }

    /// Has all relays drop `per_mille` of a thousand packets.
    pub fn lose(&self, per_mille: u32) {
        for relay in &self.relays {
            relay.weather(per_mille, 0, 0);
        }
    }

    /// Number of connections that the honest hosts count against their limits now.
    pub fn connections(&self) -> usize {
        self.daemons.iter().map(|(_, one)| one.connections()).sum()
    }

    /// Stops an honest host.
    pub fn stop(&mut self, name: &str) {
        let found = self.daemons.iter().position(|(of, _)| of == name);
        if let (Some(at), Some(runtime)) = (found, self.runtime.as_ref()) {
            let (_, daemon) = self.daemons.remove(at);
            runtime.block_on(daemon.stop());
        }
    }

    /// Has an honest host hand its shards over to others. Returns how many it handed over, and how many not.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn drain(&self, name: &str, limit: Duration) -> Result<(usize, usize)> {
        let found = self.daemons.iter().find(|(of, _)| of == name);
        let (_, daemon) = found.with_context(|| format!("no host {name}"))?;
        let runtime = self.runtime.as_ref().context("no runtime")?;
        let drained = runtime.block_on(daemon.drain(limit));
        Ok((drained.handed_over, drained.left))
    }

    /// Shard files of an honest host.
    ///
    /// # Errors
    /// When its directory can't be read.
    pub fn shard_files(&self, name: &str) -> Result<Vec<PathBuf>> {
        crate::grid::files_of_owners(&self.path(name).join("shards"))
    }

    /// A path in the directory of the grid, which has the grid file and the data directories.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A `ckpt` command on this grid.
    ///
    /// # Errors
    /// When the program does not build.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Command> {
        let mut program = command(args)?;
        program
            .env("CKPT_GRID", self.path("grid.toml"))
            .env("CKPT_STATE_DIR", self.path("state"))
            .current_dir(self.dir.path());
        Ok(program)
    }

    /// Runs a `ckpt` command on this grid.
    ///
    /// # Errors
    /// When it can't be run.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Outcome> {
        run(&mut self.command(args)?)
    }
}

fn no_repair() -> RepairSettings {
    RepairSettings {
        rebuilds: false,
        ..RepairSettings::default()
    }
}

fn daemon_config(grid: Grid, identity: Identity, name: &str, data_dir: PathBuf) -> DaemonConfig {
    DaemonConfig {
        metrics: None,
        guest_sockets: Vec::new(),
        grid,
        grid_file: None,
        identity,
        name: name.to_owned(),
        data_dir,
        listen: ([127, 0, 0, 1], 0).into(),
        announce: None,
        site: None,
        owner: None,
        capacity_bytes: Some(1 << 30),
        quota: Quota::default(),
        reserve_bytes: Some(0),
        memory_bytes: 128 << 20,
        gives_way_after: Duration::from_secs(30),
        repair: RepairSettings {
            rebuilds: false,
            ..RepairSettings::default()
        },
        scrub: None,
        list_period: Duration::from_secs(30),
        stand_back: false,
        predictor: Predictor::Hazard,
    }
}
