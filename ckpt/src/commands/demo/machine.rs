//! A machine of a demonstration: a directory with a state directory of its own, where `ckpt run` runs a job.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus as ChildStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Hosts, io_failure};
use ckpt_agent::cancel::Cancel;
use ckpt_agent::report::{ExitStatus, Failure};

/// Longest wait for the job or for `ckpt run`. A usual demonstration ends within 20 s.
const LIMIT: Duration = Duration::from_secs(120);

/// Time from one look at the job to the next.
const LOOK: Duration = Duration::from_millis(20);

/// Most bytes of what a job and `ckpt run` wrote that a failure shows.
const SHOWN_BYTES: usize = 2000;

/// What `ckpt run` ends with when the state is saved and the job has to be started again.
pub(crate) const START_AGAIN: i64 = 75;

/// A machine that has nothing but the grid file and the key.
pub(crate) struct Machine<'a> {
    pub(crate) name: &'static str,
    /// The working directory.
    pub(crate) dir: PathBuf,
    hosts: &'a Hosts,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(hosts: &'a Hosts, name: &'static str) -> Result<Self, Failure> {
        let dir = hosts.folder().join(name);
        fs::create_dir(&dir).map_err(|cause| io_failure("directory of a machine", &cause))?;
        Ok(Self { name, dir, hosts })
    }

    /// A file of the demonstration's own for this machine.
    fn file(&self, what: &str) -> PathBuf {
        self.hosts.folder().join(format!("{}.{what}", self.name))
    }

    /// `ckpt` on this machine.
    pub(crate) fn ckpt(&self, words: &[&str]) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("ckpt")
            .arg("--json")
            .args(words)
            .env("CKPT_GRID", self.hosts.grid_file())
            .env("CKPT_STATE_DIR", self.file("state"))
            .env_remove("CKPT_KEY_FILE")
            .env_remove("CKPT_KEY_COMMAND")
            .env_remove("CKPT_CERT_FILE")
            .env_remove("CKPT_JOB")
            .current_dir(&self.dir)
            .stdin(Stdio::null());
        command
    }

    /// Starts `ckpt run`. What it and the job write goes to a file.
    pub(crate) fn start(&self, run: &mut Command) -> Result<Running, Failure> {
        let said = self.file("said");
        let file = File::create(&said);
        let written = file.and_then(|file| Ok((file.try_clone()?, file)));
        let written = written.map_err(|cause| io_failure("output of ckpt run", &cause))?;
        let child = run.stdout(written.0).stderr(written.1).spawn();
        let child = child.map_err(|cause| io_failure("ckpt run", &cause))?;
        Ok(Running { child, said })
    }
}

/// `ckpt run`, which is asked to leave if the demonstration ends before it.
pub(crate) struct Running {
    child: Child,
    said: PathBuf,
}

impl Running {
    pub(crate) fn ask_to_leave(&self) {
        // It may have ended.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    pub(crate) fn ended(&mut self) -> Result<Option<ChildStatus>, Failure> {
        self.child
            .try_wait()
            .map_err(|cause| io_failure("ckpt run", &cause))
    }

    /// Waits for its end, and returns its report.
    pub(crate) async fn end(mut self, cancel: &Cancel) -> Result<Value, Failure> {
        let began = Instant::now();
        while self.ended()?.is_none() {
            look_again(began, cancel).await?;
        }
        report_in(&self.said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.ask_to_leave();
            // Its grace bounds the wait.
            let _ = self.child.wait();
        }
    }
}

/// Waits until a look is due.
pub(crate) async fn look_again(began: Instant, cancel: &Cancel) -> Result<(), Failure> {
    if cancel.is_cancelled() {
        return Err(Failure::new(ExitStatus::Failed, "interrupted"));
    }
    if began.elapsed() > LIMIT {
        let message = format!("the job does not get on within {} s", LIMIT.as_secs());
        return Err(Failure::new(ExitStatus::Failed, message));
    }
    tokio::time::sleep(LOOK).await;
    Ok(())
}

/// The report of `ckpt run`, which has ended: the last line of what was written.
fn report_in(said: &Path) -> Result<Value, Failure> {
    let bytes = fs::read(said).map_err(|cause| io_failure("report of ckpt run", &cause))?;
    let text = String::from_utf8_lossy(&bytes);
    let report = text.lines().last().map(serde_json::from_str::<Value>);
    let report = report.and_then(Result::ok);
    report
        .filter(|report| !report["exit_code"].is_null())
        .ok_or_else(|| {
            let skipped = text.chars().count().saturating_sub(SHOWN_BYTES);
            let end: String = text.chars().skip(skipped).collect();
            let message = format!("ckpt run ended without a report: {}", end.trim());
            Failure::new(ExitStatus::Failed, message)
        })
}
