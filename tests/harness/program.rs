//! The program under test, built from this source tree, and how tests run it.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Longest time that one command of a test may take.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(180);

/// How long the output of a command that was killed is waited for.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

/// Path of the `ckpt` binary: that in the environment variable `CKPT_PROGRAM`, or else the first call in a test
/// process builds it.
///
/// `cargo test` builds the binaries of other packages only by chance, so a test that takes the binary from
/// the target directory could run an outdated program.
///
/// # Errors
/// When it does not build.
pub fn ckpt() -> Result<&'static PathBuf> {
    static PATH: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    PATH.get_or_init(|| build().map_err(|cause| format!("{cause:#}")))
        .as_ref()
        .map_err(|cause| anyhow::anyhow!("{cause}"))
}

fn build() -> Result<PathBuf> {
    // The gate has built it with the tests. Built alone, all crates would be compiled again for its features.
    if let Some(built) = std::env::var_os("CKPT_PROGRAM") {
        return Ok(PathBuf::from(built).canonicalize()?);
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--locked", "--package", "ckpt", "--bin", "ckpt"])
        .arg("--message-format=json-render-diagnostics");
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    if cfg!(feature = "etcd") {
        command.args(["--features", "etcd"]);
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "cargo build: {}", output.status);
    let path = output
        .stdout
        .split(|&byte| byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "ckpt")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo did not say where the binary is")?;
    eprintln!("testing {}", path.display());
    Ok(path)
}

/// Path of an earlier program, which `CKPT_OLDER_PROGRAM` names. `tests/ecosystem/mixed-grid.sh` builds it.
///
/// # Errors
/// When there is no such file.
pub fn older() -> Result<PathBuf> {
    let path = std::env::var_os("CKPT_OLDER_PROGRAM").map(PathBuf::from);
    path.filter(|path| path.exists())
        .context("CKPT_OLDER_PROGRAM names no program: run tests/ecosystem/mixed-grid.sh")
}

/// The exit code and the output of a command that ended.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error, as text.
    pub stderr: String,
}

impl Outcome {
    /// The one JSON object on standard output.
    ///
    /// # Errors
    /// When standard output is not one JSON value.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.stdout).with_context(|| format!("{self}"))
    }

    /// Fails unless the command ended with `code`.
    ///
    /// # Errors
    /// When it ended otherwise; the error shows its output.
    pub fn expect(self, code: i32) -> Result<Self> {
        if self.code != Some(code) {
            bail!("exit code {code} expected\n{self}");
        }
        Ok(self)
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stdout = String::from_utf8_lossy(&self.stdout);
        let shown: String = stdout.chars().take(4000).collect();
        write!(
            f,
            "exit {:?}\nstdout: {shown}\nstderr: {}",
            self.code, self.stderr
        )
    }
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A `ckpt` command with `args` in a clean environment.
///
/// # Errors
/// When the program does not build.
pub fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Result<Command> {
    Ok(command_of(ckpt()?, args))
}

/// A command of the `ckpt` at `program`, in a clean environment.
pub fn command_of<S: AsRef<OsStr>>(program: &Path, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .env_remove("CKPT_GRID")
        .env_remove("CKPT_JOB")
        .env_remove("CKPT_KEY_FILE")
        .env_remove("CKPT_CERT_FILE")
        .env_remove("CKPT_KEY_COMMAND")
        .env_remove("CKPT_COMPUTE_HOST")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs `command` to its end.
///
/// # Errors
/// When it can't be started or takes longer than [`COMMAND_TIMEOUT`].
pub fn run(command: &mut Command) -> Result<Outcome> {
    wait(command.spawn()?)
}

/// Runs `command` with `input` on its standard input.
///
/// # Errors
/// As [`run`].
pub fn run_with_input(command: &mut Command, input: &[u8]) -> Result<Outcome> {
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The command may end before it has read everything.
            let _ = stdin.write_all(input);
        });
        wait(child)
    })
}

/// Waits until `child` ends and collects its output.
///
/// # Errors
/// When it takes longer than [`COMMAND_TIMEOUT`]; then it is killed.
pub fn wait(child: Child) -> Result<Outcome> {
    let pid = rustix::process::Pid::from_child(&child);
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    match finished.recv_timeout(COMMAND_TIMEOUT) {
        Ok(output) => Ok(output?.into()),
        Err(_) => {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
            // Programs that it started may hold its output open.
            let output = finished.recv_timeout(OUTPUT_TIMEOUT);
            let shown = output
                .ok()
                .and_then(Result::ok)
                .map(Outcome::from)
                .map_or_else(String::new, |outcome| format!("\n{outcome}"));
            bail!("not finished after {COMMAND_TIMEOUT:?}{shown}");
        }
    }
}

/// Runs `command` to its end, with any exit code. Returns its outcome, and the most memory in bytes that
/// the process had.
///
/// # Errors
/// As [`run`], and when the command ends before its memory can be read once.
pub fn run_measured(command: &mut Command) -> Result<(Outcome, u64)> {
    let child = command.spawn()?;
    let path = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let waiting = std::thread::spawn(move || wait(child));
    while !waiting.is_finished() {
        peak = peak.max(high_water(
            &std::fs::read_to_string(&path).unwrap_or_default(),
        ));
        std::thread::sleep(Duration::from_millis(2));
    }
    let outcome = waiting
        .join()
        .map_err(|_| anyhow::anyhow!("waiting failed"))??;
    ensure!(peak > 0, "too fast to be measured");
    Ok((outcome, peak))
}

/// Most memory in bytes that a process had, from the text of its `/proc/PID/status`; 0 if it has no `VmHWM`.
pub fn high_water(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Waits until `state` returns true.
///
/// # Errors
/// When it returns an error, or false for longer than `limit`.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut state: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    while !state()? {
        if start.elapsed() > limit {
            bail!("waited {limit:?} in vain for: {what}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
