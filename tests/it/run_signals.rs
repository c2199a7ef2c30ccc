//! Signals to `ckpt run` while it restores, while its job runs, and while its job leaves.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tests::Grid;
use tests::program::{Outcome, wait_until};
use tests::supervised::{PATIENCE, RunMachine, Running, is_run_by_somebody, lives, report_of};

/// The job's name.
const JOB: &str = "signals.1";

/// A job that takes as long as the test wants to write its last state at SIGTERM. Other signals have the
/// effect that the system gives them.
const WRITES_AT_TERM: &str = r#"
    trap 'touch "$1.asked"
        while [ ! -e "$1.go" ]; do sleep 0.05; done
        echo last >"$1.new"; mv "$1.new" "$1"; exit 0' TERM
    touch "$1.runs"
    while :; do sleep 0.05; done
"#;

/// A job that writes down each signal that it gets.
const NOTES_SIGNALS: &str = r#"
    for one in HUP INT QUIT USR2 WINCH; do trap "touch \"$1.$one\"" $one; done
    touch "$1.runs"
    while [ ! -e "$1.go" ]; do sleep 0.05; done
"#;

/// The signals that do not ask a job to leave, with the ending of the file that notes them.
const NOT_LEAVING: [(Signal, &str); 5] = [
    (Signal::HUP, "HUP"),
    (Signal::INT, "INT"),
    (Signal::QUIT, "QUIT"),
    (Signal::USR2, "USR2"),
    (Signal::WINCH, "WINCH"),
];

/// A machine, and the words of a `ckpt run` on it.
struct Desk<'a> {
    grid: &'a Grid,
    here: RunMachine<'a>,
}

impl<'a> Desk<'a> {
    fn new(grid: &'a Grid, name: &str) -> Result<Self> {
        let here = RunMachine::new(grid, name, JOB, "sh")?;
        Ok(Self { grid, here })
    }

    fn command(&self, options: &[&str], script: &str) -> Result<Command> {
        let state = self.here.state().display().to_string();
        let begin = ["--json", "run", "--batch", "--job", JOB, "--files", &state];
        let end = ["--", "sh", "-c", script, "job", &state];
        self.here.bare(&[&begin, options, &end].concat())
    }

    /// Starts the command of [`Self::command`] by another one, which ends with becoming it.
    fn start_by(&self, mut outer: Command, inner: &Command) -> Result<Running> {
        outer
            .arg(inner.get_program())
            .args(inner.get_args())
            .current_dir(&self.here.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        Running::of(outer)
    }

    /// Starts it as a terminal does, also if these tests run under `nohup`.
    fn start(&self, options: &[&str], script: &str) -> Result<Running> {
        let mut usual = Command::new("env");
        usual.arg("--default-signal=HUP");
        self.start_by(usual, &self.command(options, script)?)
    }

    fn wait_for_file(&self, ending: &str) -> Result<()> {
        let path = self.here.state().with_extension(ending);
        wait_until(ending, PATIENCE, || Ok(path.exists()))
    }

    fn touch(&self, ending: &str) -> Result<()> {
        Ok(fs::write(self.here.state().with_extension(ending), "")?)
    }

    fn warnings(&self) -> Vec<Value> {
        self.here.entries("warning")
    }

    /// Saves a state of the job and stops all hosts, so that a restore lasts.
    fn save_and_stop_hosts(&self) -> Result<()> {
        fs::write(self.here.state(), "saved")?;
        let state = self.here.state().display().to_string();
        self.grid.run(["save", "--job", JOB, &state])?.expect(0)?;
        fs::remove_file(self.here.state())?;
        self.signal_hosts(Signal::STOP)
    }

    fn signal_hosts(&self, signal: Signal) -> Result<()> {
        for (host, _) in self.grid.running()? {
            self.grid.signal(&host, signal)?;
        }
        Ok(())
    }

    fn stage(&self) -> std::path::PathBuf {
        self.here.dir.join(format!(".ckpt-run-{JOB}"))
    }

    /// Starts a run that ends at this signal while it restores.
    fn end_restore(&self, options: &[&str], signal: Signal, status: i32) -> Result<Outcome> {
        let running = self.start(options, "exit 3")?;
        wait_until("the restore has begun", PATIENCE, || {
            Ok(self.stage().exists())
        })?;
        running.signal(signal)?;
        let ended = running.outcome()?.expect(status)?;
        let report = report_of(&ended)?;
        ensure!(report["exit_code"] == status, "{ended}");
        ensure!(self.here.entries("started").is_empty(), "{ended}");
        ensure!(!self.stage().exists(), "{ended}");
        Ok(ended)
    }
}

/// The state of a process as `/proc` has it.
fn is_stopped(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

#[test]
fn a_signal_that_informs_does_not_end_a_restore() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid, "here")?;
    desk.save_and_stop_hosts()?;
    let running = desk.start(&[], "cat \"$1\"")?;
    wait_until("the restore has begun", PATIENCE, || {
        Ok(desk.stage().exists())
    })?;
    running.signal(Signal::WINCH)?;
    running.signal(Signal::USR2)?;
    // Signals are handled in order, so the two before have been handled when this process stops.
    running.signal(Signal::TSTP)?;
    wait_until("it is stopped", PATIENCE, || Ok(is_stopped(running.pid)))?;
    running.signal(Signal::CONT)?;
    desk.signal_hosts(Signal::CONT)?;
    let (ended, report) = running.end()?;
    let ended = ended.expect(0)?;
    ensure!(ended.stdout == b"saved", "{ended}");
    ensure!(report["began_from"] == 1, "{report}");
    Ok(())
}

#[test]
fn an_eviction_during_the_restore_asks_for_another_start() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid, "here")?;
    desk.save_and_stop_hosts()?;
    let ended = desk.end_restore(&[], Signal::TERM, 75)?;
    ensure!(ended.stderr.contains("SIGTERM"), "{ended}");
    ensure!(ended.stderr.contains("holds all of its state"), "{ended}");
    desk.end_restore(&["--evict-exit", "85"], Signal::TERM, 85)?;
    desk.end_restore(&[], Signal::USR1, 75)?;
    // Ctrl-C is no eviction, and neither are the other two.
    desk.end_restore(&["--evict-exit", "85"], Signal::INT, 128 + 2)?;
    desk.end_restore(&[], Signal::QUIT, 128 + 3)?;
    desk.end_restore(&[], Signal::HUP, 128 + 1)?;
    desk.signal_hosts(Signal::CONT)?;
    let (ended, _) = desk.start(&[], "cat \"$1\"")?.end()?;
    ensure!(ended.expect(0)?.stdout == b"saved");
    Ok(())
}

#[test]
fn an_eviction_while_hosts_are_waited_for_asks_for_another_start() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid, "here")?;
    fs::write(desk.here.state(), "saved")?;
    let state = desk.here.state().display().to_string();
    grid.run(["save", "--job", JOB, &state])?.expect(0)?;
    fs::remove_file(desk.here.state())?;
    for host in ["h01", "h02", "h03"] {
        grid.kill(host)?;
    }
    desk.end_restore(&["--wait", "10m"], Signal::TERM, 75)?;
    Ok(())
}

#[test]
fn a_job_that_runs_gets_each_signal_that_asks_nobody_to_leave() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid, "here")?;
    let running = desk.start(&[], NOTES_SIGNALS)?;
    desk.wait_for_file("runs")?;
    for (signal, name) in NOT_LEAVING {
        running.signal(signal)?;
        desk.wait_for_file(name)?;
    }
    desk.touch("go")?;
    let (ended, report) = running.end()?;
    ended.expect(0)?;
    ensure!(report["ended_by"] == "job", "{report}");
    Ok(())
}

#[test]
fn a_job_that_leaves_gets_no_other_signal_and_is_saved() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid, "here")?;
    let running = desk.start(&["--grace", "50s"], WRITES_AT_TERM)?;
    desk.wait_for_file("runs")?;
    running.signal(Signal::TERM)?;
    desk.wait_for_file("asked")?;
    for signal in [
        Signal::HUP,
        Signal::TERM,
        Signal::QUIT,
        Signal::USR1,
        Signal::USR2,
    ] {
        running.signal(signal)?;
    }
    for warnings in 1..=2 {
        running.signal(Signal::INT)?;
        wait_until("a warning", PATIENCE, || {
            Ok(desk.warnings().len() == warnings)
        })?;
    }
    desk.touch("go")?;
    let (ended, report) = running.end()?;
    let ended = ended.expect(75)?;
    ensure!(ended.stderr.contains("one more ends it at once"), "{ended}");
    ensure!(report["version"] == 1, "{report}");
    let saved = grid.run(["restore", "--job", JOB, "-o", "-"])?.expect(0)?;
    ensure!(saved.stdout == b"last\n", "{saved}");
    Ok(())
}

#[test]
fn a_hangup_that_comes_with_sigterm_does_not_reach_the_job() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid, "here")?;
    let running = desk.start(&["--grace", "50s"], WRITES_AT_TERM)?;
    desk.wait_for_file("runs")?;
    // Of two signals that wait, the kernel delivers SIGHUP first.
    running.signal(Signal::HUP)?;
    running.signal(Signal::TERM)?;
    desk.wait_for_file("asked")?;
    desk.touch("go")?;
    let (ended, report) = running.end()?;
    ended.expect(75)?;
    ensure!(report["version"] == 1, "{report}");
    Ok(())
}

#[test]
fn the_third_interrupt_ends_a_job_that_leaves() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid, "here")?;
    let running = desk.start(&["--grace", "10m"], WRITES_AT_TERM)?;
    desk.wait_for_file("runs")?;
    running.signal(Signal::TERM)?;
    desk.wait_for_file("asked")?;
    let job = desk.here.job_pid()?;
    for warnings in 1..=2 {
        running.signal(Signal::INT)?;
        wait_until("a warning", PATIENCE, || {
            Ok(desk.warnings().len() == warnings)
        })?;
        ensure!(lives(job));
    }
    running.signal(Signal::INT)?;
    let (ended, report) = running.end()?;
    ended.expect(76)?;
    ensure!(report["version"].is_null(), "{report}");
    ensure!(!is_run_by_somebody(&desk.here.state()));
    Ok(())
}

#[test]
fn a_hangup_that_nohup_keeps_off_reaches_neither_ckpt_run_nor_the_job() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid, "here")?;
    let inner = desk.command(&["--grace", "50s"], WRITES_AT_TERM)?;
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]);
    let running = desk.start_by(nohup, &inner)?;
    desk.wait_for_file("runs")?;
    running.signal(Signal::HUP)?;
    // USR2 comes after the hangup. It ends the job, which a hangup would have ended before.
    running.signal(Signal::USR2)?;
    let (ended, report) = running.end()?;
    ended.expect(128 + 12)?;
    ensure!(report["ended_by"] == "job", "{report}");
    Ok(())
}
