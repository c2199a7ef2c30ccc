//! Jobs under `ckpt run` in tests.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;

use crate::Grid;
use crate::hash_job::Steps;
use crate::program::{Outcome, wait, wait_until};

/// Longest wait for a job or its supervisor to reach a state.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A machine that runs a job: a directory for the job's files and for what `ckpt` remembers.
#[derive(Debug)]
pub struct RunMachine<'a> {
    grid: &'a Grid,
    /// Working directory of the job.
    pub dir: PathBuf,
    job: String,
    /// The program that the job runs.
    program: PathBuf,
}

/// A running supervisor: a `ckpt run`.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// The supervisor's process id.
    pub pid: Pid,
}

impl<'a> RunMachine<'a> {
    /// A machine called `name`, for the job called `job`, which runs `program`.
    ///
    /// # Errors
    /// When its directory can't be made.
    pub fn new(grid: &'a Grid, name: &str, job: &str, program: &str) -> Result<Self> {
        let dir = grid.path(name);
        std::fs::create_dir_all(&dir)?;
        Ok(Self {
            grid,
            dir,
            job: job.to_owned(),
            program: program.into(),
        })
    }

    /// The file to which the job writes its state.
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// `ckpt run` with `options`, and the job's program with `words` as its arguments. `--batch` is added,
    /// because the machine on which tests run has load of its own, which must not suspend the job.
    ///
    /// # Errors
    /// When the program does not build.
    pub fn command(&self, options: &[&str], words: &[&str]) -> Result<Command> {
        self.watched(&[options, &["--batch"]].concat(), words)
    }

    /// Like [`Self::command`], on a machine whose owner's load `ckpt run` watches.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub fn watched(&self, options: &[&str], words: &[&str]) -> Result<Command> {
        let state = self.state().display().to_string();
        let mut args = vec!["--json", "run", "--job", &self.job, "--files", &state];
        args.extend(options);
        args.push("--");
        let program = self.program.display().to_string();
        args.extend([program.as_str(), &state]);
        args.extend(words);
        self.bare(&args)
    }

    /// Any command of `ckpt` on this machine.
    ///
    /// # Errors
    /// When the program does not build.
    pub fn bare(&self, args: &[&str]) -> Result<Command> {
        let mut command = self.grid.command(args)?;
        command
            .env("CKPT_STATE_DIR", self.dir.join("memory"))
            .env("CKPT_GUEST_SOCKET", self.dir.join("guests.sock"))
            .env_remove("SLURM_JOB_ID")
            .env_remove("_CONDOR_SLOT")
            .env_remove("_CONDOR_SCRATCH_DIR")
            .current_dir(&self.dir)
            .stdin(Stdio::null());
        Ok(command)
    }

    /// Starts the supervisor with [`Self::command`].
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(&self, options: &[&str], words: &[&str]) -> Result<Running> {
        Running::of(self.command(options, words)?)
    }

    /// The step at which the job began, for each time that it was started.
    pub fn began(&self) -> Vec<u64> {
        let text = std::fs::read_to_string(self.dir.join("state.began")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Waits until the job has been started `times` times.
    ///
    /// # Errors
    /// When that takes longer than [`PATIENCE`].
    pub fn wait_for_start(&self, times: usize) -> Result<()> {
        wait_until("the job runs", PATIENCE, || Ok(self.began().len() >= times))
    }

    /// Waits until the state that the job wrote is at step `number` or later.
    ///
    /// # Errors
    /// When that takes longer than [`PATIENCE`].
    pub fn wait_for_step(&self, number: u64) -> Result<()> {
        wait_until("the job gets on", PATIENCE, || {
            Ok(Steps::read(&self.state()).is_ok_and(|steps| steps.number >= number))
        })
    }

    /// Waits until the supervisor's journal has `times` entries of the kind `event`.
    ///
    /// # Errors
    /// When that takes longer than [`PATIENCE`].
    pub fn wait_for_entries(&self, event: &str, times: usize) -> Result<()> {
        wait_until(event, PATIENCE, || Ok(self.entries(event).len() >= times))
    }

    /// Entries of the kind `event` in the supervisor's journal.
    pub fn entries(&self, event: &str) -> Vec<Value> {
        journal_entries(&self.memory().join("journal.jsonl"), event)
    }

    /// The directory in which `ckpt run` keeps what it knows of the job.
    pub fn memory(&self) -> PathBuf {
        self.dir.join("memory/run").join(&self.job)
    }

    /// Process id of the job when it was started last.
    ///
    /// # Errors
    /// When the job was never started.
    pub fn job_pid(&self) -> Result<Pid> {
        let started = self.entries("started");
        let pid = started.last().and_then(|entry| entry["pid"].as_i64());
        let pid = i32::try_from(pid.context("no job was started")?)?;
        Pid::from_raw(pid).context("no process id")
    }

    /// The steps in the newest checkpoint.
    ///
    /// # Errors
    /// When there is no checkpoint, or its content is not a state that the job ever had.
    pub fn saved(&self) -> Result<Steps> {
        let restored = self.grid.run(["restore", "--job", &self.job, "-o", "-"])?;
        ensure!(matches!(restored.code, Some(0 | 3)), "{restored}");
        Steps::of_state(&restored.stdout)
    }
}

impl Running {
    /// Starts a supervisor by this command.
    ///
    /// # Errors
    /// When the command does not start.
    pub fn of(mut command: Command) -> Result<Self> {
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        Ok(Self { child, pid })
    }

    /// Sends a signal to the supervisor.
    ///
    /// # Errors
    /// When it is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.pid, signal)?)
    }

    /// Whether the supervisor has ended.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn has_ended(&mut self) -> Result<bool> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        Ok(waitid(WaitId::Pid(self.pid), look)?.is_some())
    }

    /// Waits until the supervisor ends.
    ///
    /// # Errors
    /// When the supervisor does not end.
    pub fn outcome(self) -> Result<Outcome> {
        wait(self.child)
    }

    /// Waits until the supervisor ends, and returns its outcome and its report.
    ///
    /// # Errors
    /// When the supervisor does not end, or writes no report.
    pub fn end(self) -> Result<(Outcome, Value)> {
        let ended = self.outcome()?;
        let report = report_of(&ended).with_context(|| ended.to_string())?;
        Ok((ended, report))
    }
}

/// Entries of the kind `event` in a journal; none if the file does not exist yet.
pub fn journal_entries(journal: &Path, event: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(journal).unwrap_or_default();
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    lines
        .filter(|entry: &Value| entry["event"] == event)
        .collect()
}

/// The report of a `ckpt --json run`: the last line on standard error.
///
/// # Errors
/// When standard error has no line of JSON.
pub fn report_of(ended: &Outcome) -> Result<Value> {
    let line = ended
        .stderr
        .lines()
        .rev()
        .find(|line| line.starts_with('{'));
    Ok(serde_json::from_str(line.context("no report")?)?)
}

/// Whether a process exists and has not ended as a zombie.
pub fn lives(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some(Some(state)) if !matches!(state, 'Z' | 'X'))
}

/// Whether any other process has this path in its command line.
pub fn is_run_by_somebody(path: &Path) -> bool {
    let wanted = path.display().to_string();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let own = std::process::id().cast_signed();
    pids.filter(|pid| *pid != own).any(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&wanted)
    })
}
