//! Machines of a grid, each with a home of its own: they share nothing but what the network or a copied
//! file brings.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::program::{Outcome, ckpt, command, run, wait_until};

/// Longest wait until a daemon is ready.
const LIMIT: Duration = Duration::from_secs(60);

/// The machines, in a temporary directory; dropping them ends their daemons.
#[derive(Debug)]
pub struct Machines {
    dir: tempfile::TempDir,
    running: Vec<(String, Child)>,
}

/// Has a command run with a home and directories of its own.
///
/// # Errors
/// When the home can't be made.
pub fn in_home<'a>(command: &'a mut Command, home: &Path) -> Result<&'a mut Command> {
    fs::create_dir_all(home)?;
    Ok(command
        .env("HOME", home)
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_DATA_HOME", home.join("data"))
        .env("XDG_STATE_HOME", home.join("state"))
        .env_remove("CKPT_STATE_DIR")
        .env_remove("CKPT_AUTHORITY")
        .current_dir(home))
}

/// The tokens that `ckpt --json grid invite` printed.
///
/// # Errors
/// When there are none.
pub fn tokens_of(made: &Value) -> Result<Vec<String>> {
    let tokens = made["tokens"].as_array().context("tokens")?.iter();
    let tokens = tokens.map(|token| token.as_str().map(str::to_owned).context("token"));
    tokens.collect()
}

impl Drop for Machines {
    fn drop(&mut self) {
        for (_, daemon) in &mut self.running {
            // The daemon may have ended already.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

impl Machines {
    /// A temporary directory without machines; a machine begins with its first command.
    ///
    /// # Errors
    /// When the directory can't be made.
    pub fn new() -> Result<Self> {
        Ok(Self {
            dir: tempfile::Builder::new()
                .prefix("ckpt-machines-")
                .tempdir()?,
            running: Vec::new(),
        })
    }

    /// The home of a machine's user.
    pub fn home(&self, machine: &str) -> PathBuf {
        self.dir.path().join(machine)
    }

    /// A file or directory of a machine.
    pub fn path(&self, machine: &str, name: &str) -> PathBuf {
        self.home(machine).join(name)
    }

    /// Where programs on a machine keep `what` if no option or variable names another place.
    pub fn usual(&self, machine: &str, what: &str) -> PathBuf {
        self.home(machine).join("data/ckpt").join(what)
    }

    /// Has a command run in the home and the environment of a machine's user.
    ///
    /// # Errors
    /// When the home can't be made.
    pub fn at(&self, machine: &str, command: &mut Command) -> Result<()> {
        in_home(command, &self.home(machine))?.env("USER", machine);
        Ok(())
    }

    /// A `ckpt` command on a machine.
    ///
    /// # Errors
    /// When the program does not build.
    pub fn command(&self, machine: &str, args: &[&str]) -> Result<Command> {
        let mut command = command(args)?;
        self.at(machine, &mut command)?;
        Ok(command)
    }

    /// Runs `ckpt` on a machine.
    ///
    /// # Errors
    /// When it can't be run or does not end.
    pub fn ckpt(&self, machine: &str, args: &[&str]) -> Result<Outcome> {
        run(&mut self.command(machine, args)?)
    }

    /// Runs `ckpt --json` on a machine, and returns its report.
    ///
    /// # Errors
    /// When its exit status is not 0, or the report can't be read.
    pub fn json(&self, machine: &str, args: &[&str]) -> Result<Value> {
        let args = [&["--json"], args].concat();
        self.ckpt(machine, &args)?.expect(0)?.json()
    }

    fn store_command(&self, machine: &str, args: &[&str]) -> Result<Command> {
        let mut program = Command::new(ckpt()?);
        program
            .arg0("ckpt-store")
            .args(args)
            .env_remove("CKPT_GRID")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.at(machine, &mut program)?;
        Ok(program)
    }

    /// Runs `ckpt-store` on a machine.
    ///
    /// # Errors
    /// When it can't be run or does not end.
    pub fn store(&self, machine: &str, args: &[&str]) -> Result<Outcome> {
        run(&mut self.store_command(machine, args)?)
    }

    /// Starts `ckpt-store serve` on a machine, at full speed, and waits until it answers.
    ///
    /// # Errors
    /// When it ends or does not answer.
    pub fn serve(&mut self, machine: &str, more: &[&str]) -> Result<()> {
        let usual = [
            "serve",
            "--normal-priority",
            "--no-stand-back",
            "--reserve",
            "0",
            "--list-period",
            "300ms",
        ];
        self.start(machine, &[&usual, more].concat())
    }

    /// Starts `ckpt-store` with these arguments on a machine, and waits until it answers.
    ///
    /// # Errors
    /// When it ends or does not answer.
    pub fn start(&mut self, machine: &str, args: &[&str]) -> Result<()> {
        let mut program = self.store_command(machine, args)?;
        let ready = self.path(machine, "ready");
        // An earlier start may have left the file.
        let _ = fs::remove_file(&ready);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path(machine, "log"))?;
        program
            .arg("--ready-file")
            .arg(&ready)
            .stdout(Stdio::null())
            .stderr(log);
        let mut daemon = program.spawn()?;
        let is_ready = wait_until("the daemon is ready", LIMIT, || {
            let ended = daemon.try_wait()?;
            ensure!(ended.is_none(), "{machine} ended: {}", self.log(machine)?);
            Ok(ready.exists())
        });
        self.running.push((machine.to_owned(), daemon));
        is_ready
    }

    /// The address at which the daemon of a machine listens.
    ///
    /// # Errors
    /// When none was started.
    pub fn address(&self, machine: &str) -> Result<String> {
        let ready = self.path(machine, "ready");
        fs::read_to_string(&ready).with_context(|| format!("{machine} was not started"))
    }

    /// Kills the daemon of a machine.
    ///
    /// # Errors
    /// When none runs.
    pub fn stop(&mut self, machine: &str) -> Result<()> {
        let at = self.running.iter().position(|(name, _)| name == machine);
        let (_, mut daemon) = self.running.remove(at.context("not running")?);
        daemon.kill()?;
        daemon.wait()?;
        Ok(())
    }

    /// The log of a machine's daemons.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn log(&self, machine: &str) -> Result<String> {
        Ok(fs::read_to_string(self.path(machine, "log"))?)
    }

    /// Copies a file from one machine to another.
    ///
    /// # Errors
    /// When it can't be copied.
    pub fn carry(&self, from: &Path, to: &Path) -> Result<()> {
        if let Some(dir) = to.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::copy(from, to).with_context(|| format!("{} to {}", from.display(), to.display()))?;
        Ok(())
    }

    /// Makes an authority on the machine `admin`, and starts a registry there at `addr`.
    ///
    /// # Errors
    /// When a command fails.
    pub fn found(&mut self, addr: &str) -> Result<()> {
        let init = ["grid", "init", "--name", "lab", "--registry", addr];
        self.ckpt("admin", &init)?.expect(0)?;
        self.start("admin", &["registry"])
    }

    /// Makes tokens: first those for `donors` donors, then those for `submitters` submitters.
    ///
    /// # Errors
    /// When the command fails.
    pub fn invite(&self, donors: usize, submitters: usize) -> Result<Vec<String>> {
        let donors = donors.to_string();
        let submitters = submitters.to_string();
        let asked = [
            "grid",
            "invite",
            "--count",
            &donors,
            "--submitters",
            &submitters,
        ];
        let made = self.json("admin", &asked)?;
        tokens_of(&made)
    }

    /// Has a person join the grid with a token and the name of the machine.
    ///
    /// # Errors
    /// When the person can't join.
    pub fn join_person(&self, machine: &str, token: &str) -> Result<()> {
        let join = ["join", token, "--name", machine];
        self.ckpt(machine, &join)?.expect(0)?;
        Ok(())
    }

    /// Waits until a submitter sees that this many hosts are up.
    ///
    /// # Errors
    /// When that does not happen within the limit.
    pub fn await_up(&self, machine: &str, count: usize, limit: Duration) -> Result<()> {
        wait_until(&format!("{machine} sees {count} hosts up"), limit, || {
            let report = self.ckpt(machine, &["--json", "hosts"])?.json()?;
            Ok(report["summary"]["up"] == count)
        })
    }

    /// Has a machine join the grid as a donor and serve, on a port that the kernel chooses.
    ///
    /// # Errors
    /// When the machine can't join, or its daemon does not start.
    pub fn join(&mut self, machine: &str, token: &str) -> Result<()> {
        self.store(machine, &["join", token, "--name", machine])?
            .expect(0)?;
        self.serve(machine, &["--listen", "127.0.0.1:0"])
    }

    /// Names of the hosts that a submitter sees, and whether each of them answers.
    ///
    /// # Errors
    /// When the command fails.
    pub fn hosts(&self, machine: &str) -> Result<Vec<(String, bool)>> {
        let report = self.json(machine, &["hosts"])?;
        let hosts = report["hosts"].as_array().context("hosts")?;
        let one = |host: &Value| Some((host["name"].as_str()?.to_owned(), host["up"].as_bool()?));
        hosts.iter().map(|host| one(host).context("host")).collect()
    }
}
