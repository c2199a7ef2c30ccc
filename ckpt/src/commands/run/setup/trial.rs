//! The trial of a job: in a copy of this directory it is evicted, and in another copy it goes on.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::plan::Plan;
use crate::commands::call::Call;
use crate::commands::demo::machine::{Machine, Running, look_again};
use crate::commands::demo::{Hosts, io_failure, say};
use ckpt_agent::cancel::Cancel;
use ckpt_agent::report::{ExitStatus, Failure};

/// Longest wait for the job's state.
const STATE_LIMIT: Duration = Duration::from_secs(30);

/// How long the job runs on once its state is there.
const RUNS_ON: Duration = Duration::from_secs(2);

/// How long a job runs whose processes are saved.
const RUNS: Duration = Duration::from_secs(5);

/// How long the job gets to leave, if the user names no time: the trial shows whether a save works, and not how fast a
/// busy machine is.
const GRACE: &str = "1m";

/// Most bytes of this directory that are copied.
const COPY_BYTES_MAX: u64 = 256 << 20;

/// What is left to do if a job can't be tried.
const UNTRIED: &str = "--untried, which writes the file without the trial";

/// What the trial showed.
#[derive(Debug, Serialize)]
pub struct Trial {
    /// The version that was saved when the job was evicted, from which it went on.
    pub version: u64,
    /// Seconds from SIGTERM until the job was saved and gone.
    pub eviction_seconds: f64,
    /// Seconds of work that were not saved.
    pub lost_seconds: f64,
    /// Why work was lost, and what helps.
    pub obstacle: Option<String>,
}

impl Trial {
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "tried: evicted, saved and gone in {:.1} s, and started again from version {}",
            self.eviction_seconds, self.version
        )?;
        if self.lost_seconds > 0.0 {
            let obstacle = self
                .obstacle
                .as_deref()
                .unwrap_or("its state was not whole");
            writeln!(
                out,
                "{:.1} s of work were lost: {obstacle}",
                self.lost_seconds
            )?;
        }
        Ok(())
    }
}

/// Tries the job.
pub(super) async fn run(call: &Call<'_>, plan: &Plan, cancel: &Cancel) -> Result<Trial, Failure> {
    let global = call.global;
    let hosts = Hosts::start(call)?;
    let first = machine(&hosts, "machine A", plan)?;
    say(global, "machine A: ckpt run, in a copy of this directory");
    let mut running = start(&first, plan)?;
    works(&first, &mut running, plan, cancel).await?;
    say(global, "machine A: is taken away (SIGTERM)");
    let evicted = Instant::now();
    running.ask_to_leave();
    let left = running.end(cancel).await?;
    let eviction_seconds = evicted.elapsed().as_secs_f64();
    let version = left["version"].as_u64();
    let version = version.filter(|_| left["ended_by"] == "supervisor");
    let version = version.ok_or_else(|| not_saved(&left, plan))?;

    let second = machine(&hosts, "machine B", plan)?;
    say(global, "machine B: ckpt run, the same command");
    let mut running = start(&second, plan)?;
    works(&second, &mut running, plan, cancel).await?;
    running.ask_to_leave();
    let again = running.end(cancel).await?;
    let has_failed = again["ended_by"] == "job" && again["exit_code"] != 0;
    if has_failed || again["began_from"].as_u64().is_none() {
        let message = format!("the job does not go on from its state: {}", why(&again));
        return Err(Failure::new(ExitStatus::Failed, message).next(
            "a job that begins from its files if they exist; ckpt run --help, --files and --ask",
        ));
    }
    Ok(Trial {
        version,
        eviction_seconds,
        lost_seconds: left["lost_seconds"].as_f64().unwrap_or_default(),
        obstacle: left["obstacle"].as_str().map(str::to_owned),
    })
}

fn why(report: &Value) -> String {
    let why = report["why"].as_str();
    why.map_or_else(|| report.to_string(), str::to_owned)
}

fn not_saved(left: &Value, plan: &Plan) -> Failure {
    if left["ended_by"] == "job" {
        let message = format!("the job ended before it was evicted: {}", why(left));
        return Failure::new(ExitStatus::Failed, message)
            .next(format!("a command that runs for a minute; or {UNTRIED}"));
    }
    let names: Vec<String> = plan
        .files
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let message = match left["obstacle"].as_str() {
        Some(obstacle) => format!("no version was saved: {obstacle}"),
        None => format!(
            "no version was saved of what the job writes at {}: {}",
            names.join(", "),
            why(left)
        ),
    };
    Failure::new(ExitStatus::Failed, message).next(format!(
        "--files with the paths that the job writes, --ask signal:USR2 if it has to be asked; or {UNTRIED}"
    ))
}

fn start(machine: &Machine<'_>, plan: &Plan) -> Result<Running, Failure> {
    let options = plan.options_of_trial();
    // The owner of this machine, who watches, is no part of the trial; nor is the trial a run to predict from.
    let mut command = machine.ckpt(&["run", "--batch"]);
    command.args(options.iter().filter(|word| *word != "--batch"));
    if !options.iter().any(|word| word.starts_with("--grace")) {
        command.args(["--grace", GRACE]);
    }
    command.arg("--").args(&plan.command);
    machine.start(&mut command)
}

/// Waits until the job has written its state, or its machine got it back, and then a little longer.
async fn works(
    machine: &Machine<'_>,
    running: &mut Running,
    plan: &Plan,
    cancel: &Cancel,
) -> Result<(), Failure> {
    let began = Instant::now();
    let has_state = || {
        let mut files = plan.files.iter();
        files.all(|path| has_file(&machine.dir.join(path)))
    };
    while !plan.files.is_empty() && !has_state() && began.elapsed() < STATE_LIMIT {
        if running.ended()?.is_some() {
            return Ok(());
        }
        look_again(began, cancel).await?;
    }
    let on = if plan.files.is_empty() { RUNS } else { RUNS_ON };
    let began = Instant::now();
    while began.elapsed() < on && running.ended()?.is_none() {
        look_again(began, cancel).await?;
    }
    Ok(())
}

/// Whether something is at this path, and a directory is not empty.
fn has_file(path: &Path) -> bool {
    match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => path.exists(),
    }
}

/// A machine with a copy of this directory, without the job's state.
fn machine<'a>(hosts: &'a Hosts, name: &'static str, plan: &Plan) -> Result<Machine<'a>, Failure> {
    let machine = Machine::new(hosts, name)?;
    let here = std::env::current_dir().map_err(|cause| io_failure("this directory", &cause))?;
    let state: Vec<PathBuf> = plan
        .files
        .iter()
        .map(|path| plain(&here.join(path)))
        .collect();
    let mut left = COPY_BYTES_MAX;
    let copied = copy(&here, &machine.dir, &state, &mut left);
    copied.map_err(|cause| io_failure("copy of this directory", &cause).next(UNTRIED))?;
    // A directory for the state, where the job may expect one.
    for path in plan.files.iter().filter(|path| here.join(path).is_dir()) {
        let made = fs::create_dir_all(machine.dir.join(path));
        made.map_err(|cause| io_failure("directory of the state", &cause))?;
    }
    Ok(machine)
}

/// The path without `.` and a slash at its end.
fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Copies a directory, but for these paths, and at most `left` bytes.
fn copy(from: &Path, to: &Path, without: &[PathBuf], left: &mut u64) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let source = entry.path();
        if without.contains(&source) {
            continue;
        }
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            fs::create_dir(&target)?;
            copy(&source, &target, without, left)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
        } else if kind.is_file() {
            let bytes = entry.metadata()?.len();
            *left = left.checked_sub(bytes).ok_or_else(|| {
                let most = COPY_BYTES_MAX >> 20;
                io::Error::other(format!("it has more than {most} MiB beside the state"))
            })?;
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}
