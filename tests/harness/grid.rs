//! A grid of real daemons in a temporary directory.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::program::{
    COMMAND_TIMEOUT, Outcome, ckpt, command, command_of, run, run_with_input, wait_until,
};

/// A running grid. Dropping it stops the daemons and removes all files.
#[derive(Debug)]
pub struct Grid {
    dir: tempfile::TempDir,
    env: Vec<(String, String)>,
}

impl Grid {
    /// Starts `hosts` daemons.
    ///
    /// # Errors
    /// When one does not start.
    pub fn up(hosts: usize) -> Result<Self> {
        Self::up_with(hosts, &[])
    }

    /// Starts `hosts` daemons with further arguments of `ckpt grid up`.
    ///
    /// # Errors
    /// When one does not start.
    pub fn up_with(hosts: usize, args: &[&str]) -> Result<Self> {
        Self::start(hosts, args, &[])
    }

    /// Starts `hosts` daemons with these environment variables, now and at every restart.
    ///
    /// # Errors
    /// When one does not start.
    pub fn up_in(hosts: usize, env: &[(&str, &str)]) -> Result<Self> {
        Self::start(hosts, &[], env)
    }

    /// Starts the daemons of a grid whose directory `make` fills.
    ///
    /// # Errors
    /// When `make` fails, or a daemon does not start.
    pub fn of(make: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        let grid = Self {
            dir: tempfile::Builder::new().prefix("ckpt-test-").tempdir()?,
            env: Vec::new(),
        };
        make(&grid.grid_dir())?;
        grid.restart()?;
        Ok(grid)
    }

    /// Starts `hosts` daemons of the program at `program`, with these environment variables, now and
    /// at every restart.
    ///
    /// # Errors
    /// When one does not start.
    pub fn up_of(program: &Path, hosts: usize, env: &[(&str, &str)]) -> Result<Self> {
        Self::start_of(program, hosts, &[], env)
    }

    fn start(hosts: usize, args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        Self::start_of(ckpt()?, hosts, args, env)
    }

    fn start_of(program: &Path, hosts: usize, args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let grid = Self {
            dir: tempfile::Builder::new().prefix("ckpt-test-").tempdir()?,
            env: env.iter().map(owned).collect(),
        };
        let mut up = command_of(program, ["grid", "up", "--dir"]);
        up.arg(grid.grid_dir())
            .args(["--hosts", &hosts.to_string()]);
        run(up.args(args).envs(grid.env.iter().cloned()))?.expect(0)?;
        Ok(grid)
    }

    /// Ends all daemons by SIGTERM, and waits until they are down.
    ///
    /// # Errors
    /// When a daemon does not end.
    pub fn stop(&self) -> Result<()> {
        for (_, pid) in self.running()? {
            kill_process(pid, Signal::TERM)?;
        }
        wait_until("all hosts are down", COMMAND_TIMEOUT, || {
            Ok(self.running()?.is_empty())
        })
    }

    /// Starts the daemons that do not run.
    ///
    /// # Errors
    /// When a daemon does not start.
    pub fn restart(&self) -> Result<()> {
        self.restart_as(ckpt()?)
    }

    /// Starts the daemons that do not run, with the program at `program`.
    ///
    /// # Errors
    /// When a daemon does not start.
    pub fn restart_as(&self, program: &Path) -> Result<()> {
        let mut up = command_of(program, ["grid", "up", "--dir"]);
        run(up.arg(self.grid_dir()).envs(self.env.iter().cloned()))?.expect(0)?;
        Ok(())
    }

    fn grid_dir(&self) -> PathBuf {
        self.dir.path().join("grid")
    }

    /// Runs `ckpt-store` on the data of a host.
    ///
    /// # Errors
    /// When the program can't be started.
    pub fn store(&self, host: &str, args: &[&str]) -> Result<Outcome> {
        let mut store = command(args)?;
        store.arg0("ckpt-store");
        run(store.arg("--data").arg(self.data_dir(host)))
    }

    /// The grid file.
    pub fn file(&self) -> PathBuf {
        self.grid_dir().join("grid.toml")
    }

    /// A path for the test's own files, removed with the grid.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Data directory of a host.
    pub fn data_dir(&self, host: &str) -> PathBuf {
        self.grid_dir().join("hosts").join(host)
    }

    /// A `ckpt` command on this grid.
    ///
    /// # Errors
    /// When the program does not build.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Command> {
        let mut command = command(args)?;
        command
            .env("CKPT_GRID", self.file())
            .env("CKPT_STATE_DIR", self.path("state"))
            .current_dir(self.dir.path());
        Ok(command)
    }

    /// Runs a `ckpt` command on this grid.
    ///
    /// # Errors
    /// When it can't be run or does not end.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Outcome> {
        run(&mut self.command(args)?)
    }

    /// Runs a command of the program at `program` on this grid.
    ///
    /// # Errors
    /// When it can't be run or does not end.
    pub fn run_as<S: AsRef<OsStr>>(
        &self,
        program: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Outcome> {
        run(&mut self.command_as(program, args)?)
    }

    /// A command of the program at `program` on this grid. A program other than the one under test has a
    /// state directory of its own.
    ///
    /// # Errors
    /// When the program under test does not build.
    pub fn command_as<S: AsRef<OsStr>>(
        &self,
        program: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Command> {
        let state = if program == ckpt()?.as_path() {
            "state"
        } else {
            "state-of-other"
        };
        let mut command = command_of(program, args);
        command
            .env("CKPT_GRID", self.file())
            .env("CKPT_STATE_DIR", self.path(state))
            .current_dir(self.dir.path());
        Ok(command)
    }

    /// Runs a `ckpt` command with `input` on its standard input.
    ///
    /// # Errors
    /// When it can't be run or does not end.
    pub fn run_with_input<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
        input: &[u8],
    ) -> Result<Outcome> {
        run_with_input(&mut self.command(args)?, input)
    }

    /// Names and process ids of the hosts that run.
    ///
    /// # Errors
    /// When `ckpt grid status` fails.
    pub fn running(&self) -> Result<Vec<(String, Pid)>> {
        let mut status = command(["--json", "grid", "status", "--dir"])?;
        let report = run(status.arg(self.grid_dir()))?.json()?;
        let hosts = report["hosts"].as_array().context("no hosts")?;
        Ok(hosts.iter().filter_map(running_host).collect())
    }

    /// Sends `signal` to the daemon of `host`.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&self, host: &str, signal: Signal) -> Result<Pid> {
        let running = self.running()?;
        let found = running.iter().find(|(name, _)| name == host);
        let (_, pid) = found.with_context(|| format!("{host} does not run"))?;
        kill_process(*pid, signal)?;
        Ok(*pid)
    }

    /// Kills the daemon of `host` and waits until it is gone.
    ///
    /// # Errors
    /// When it does not run or does not die.
    pub fn kill(&self, host: &str) -> Result<()> {
        let pid = self.signal(host, Signal::KILL)?;
        wait_until("a killed daemon is gone", Duration::from_secs(10), || {
            Ok(test_kill_process(pid).is_err() || is_zombie(pid))
        })
    }

    /// Versions of a job that `ckpt list` shows, oldest first.
    ///
    /// # Errors
    /// When the output of `ckpt list` can't be read.
    pub fn versions(&self, job: &str) -> Result<Vec<u64>> {
        let listed = self.run(["--json", "list", "--job", job])?;
        if listed.code == Some(4) {
            return Ok(Vec::new());
        }
        let listed = listed.json()?;
        let all = listed["checkpoints"].as_array().context("no checkpoints")?;
        Ok(all.iter().filter_map(|c| c["version"].as_u64()).collect())
    }

    /// Which host holds which shard of the job's newest version, in the order of shards.
    ///
    /// # Errors
    /// When `ckpt show` fails.
    pub fn holders(&self, job: &str) -> Result<Vec<String>> {
        let shown = self
            .run(["--json", "show", "--job", job])?
            .expect(0)?
            .json()?;
        let holders = shown["holders"].as_array().context("no holders")?;
        ensure!(!holders.is_empty(), "no holders");
        Ok(holders
            .iter()
            .filter_map(|holder| holder["host"].as_str().map(str::to_owned))
            .collect())
    }

    /// Shard files of `host`.
    ///
    /// # Errors
    /// When its directory can't be read.
    pub fn shard_files(&self, host: &str) -> Result<Vec<PathBuf>> {
        files_of_owners(&self.data_dir(host).join("shards"))
    }

    /// Manifest files of `host`.
    ///
    /// # Errors
    /// When its directory can't be read.
    pub fn manifest_files(&self, host: &str) -> Result<Vec<PathBuf>> {
        files_of_owners(&self.data_dir(host).join("manifests"))
    }

    /// Files in which `host` keeps what it promised about the successors of checkpoints.
    ///
    /// # Errors
    /// When its directory can't be read.
    pub fn fence_files(&self, host: &str) -> Result<Vec<PathBuf>> {
        files_of_owners(&self.data_dir(host).join("fences"))
    }

    /// Directory of the files of the grid and of the test.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        // A stopped process handles SIGTERM only once it is continued.
        for (_, pid) in self.running().unwrap_or_default() {
            let _ = kill_process(pid, Signal::CONT);
        }
        if let Ok(mut down) = command(["grid", "down", "--dir"]) {
            let _ = run(down.arg(self.grid_dir()));
        }
    }
}

fn running_host(host: &Value) -> Option<(String, Pid)> {
    let pid = i32::try_from(host["pid"].as_i64()?).ok()?;
    Some((host["name"].as_str()?.to_owned(), Pid::from_raw(pid)?))
}

fn is_zombie(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|s| s.starts_with(" Z")))
}

/// All files of a directory that has a directory for each owner. None if the directory does not exist,
/// as before the daemon's first start.
pub(crate) fn files_of_owners(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if !dir.exists() {
        return Ok(files);
    }
    for owner in std::fs::read_dir(dir)? {
        for file in std::fs::read_dir(owner?.path())? {
            files.push(file?.path());
        }
    }
    Ok(files)
}
