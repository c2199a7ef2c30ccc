//! A grid of honest daemons and of hosts that can lie, all within the test's process.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use ckpt_store::repair::RepairSettings;
use ckpt_store::{Daemon, DaemonConfig, Quota};
use protocol::grid::Grid;
use protocol::identity::{HostId, Identity, Role};
use tokio::runtime::Runtime;

use crate::liar::{Liar, Lie};
use crate::members::{self, Members};
use crate::program::{Outcome, command, run};

/// The grid.
#[derive(Debug)]
pub struct MixedGrid {
    dir: tempfile::TempDir,
    liars: Vec<Liar>,
    daemons: Vec<Daemon>,
    runtime: Option<Runtime>,
}

impl Drop for MixedGrid {
    fn drop(&mut self) {
        let daemons = std::mem::take(&mut self.daemons);
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(async {
                self.liars.clear();
                for daemon in daemons {
                    daemon.stop().await;
                }
            });
            runtime.shutdown_background();
        }
    }
}

impl MixedGrid {
    /// Starts so many hosts of both kinds; the others do not lie yet.
    ///
    /// # Errors
    /// When one does not start.
    pub fn up(honest: u8, others: u8) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let mut members = Members::of("mixed")?;
        let mut grid = members.grid();
        let (mut daemons, mut liars) = (Vec::new(), Vec::new());
        for number in 1..=honest + others {
            let name = format!("h{number:02}");
            let identity = members.enrol(&name, Role::Donor)?;
            let id = HostId(identity.secret.id());
            let addr = if number <= honest {
                let config = daemon_config(&grid, identity, &name, dir.path().join(&name));
                let daemon = runtime.block_on(Daemon::start(&config))?;
                let addr = daemon.local_addr();
                daemons.push(daemon);
                addr
            } else {
                let _inside = runtime.enter();
                let liar = Liar::start(&name, identity, grid.authority.clone())?;
                let addr = liar.addr();
                liars.push(liar);
                addr
            };
            grid.hosts.push(members::host(name, addr, id));
        }
        grid.owner = Some(members.owner_in(dir.path())?);
        grid.save(&dir.path().join("grid.toml"))?;
        Ok(Self {
            dir,
            liars,
            daemons,
            runtime: Some(runtime),
        })
    }

    /// Has all hosts that can lie do so.
    pub fn lie(&self, lie: Lie) {
        for liar in &self.liars {
            liar.lie(lie);
        }
    }

    /// A path in the directory of the grid.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `ckpt` for this grid.
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

    /// Runs `ckpt` for this grid.
    ///
    /// # Errors
    /// When it can't be run.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Outcome> {
        run(&mut self.command(args)?)
    }
}

fn daemon_config(grid: &Grid, identity: Identity, name: &str, data_dir: PathBuf) -> DaemonConfig {
    DaemonConfig {
        grid: grid.clone(),
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
        memory_bytes: 64 << 20,
        gives_way_after: Duration::from_secs(30),
        repair: RepairSettings {
            rebuilds: false,
            ..RepairSettings::default()
        },
        scrub: None,
        stand_back: false,
    }
}
