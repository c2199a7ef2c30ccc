//! The script `packaging/ckpt-job.sh`, which runs a job, saves it at intervals, and restores it first.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tests::Grid;
use tests::program::{Outcome, wait, wait_until};

/// A job that counts in its state, appends the number from which it began to another file, and ends with
/// a given status. Its arguments are: state, last number, status, seconds of a step.
const COUNT: &str = r#"
n=$(cat "$1" 2>/dev/null || echo 0)
echo "$n" >>"$1.began"
while [ "$n" -lt "$2" ]; do
    n=$((n + 1))
    echo "$n" >"$1.next"
    mv "$1.next" "$1"
    sleep "$4"
done
exit "$3"
"#;

const PATIENCE: Duration = Duration::from_secs(60);

/// A machine on which the script runs: a directory with the job's files and the state of `ckpt`.
struct Machine<'a> {
    grid: &'a Grid,
    dir: PathBuf,
}

impl<'a> Machine<'a> {
    fn new(grid: &'a Grid, name: &str) -> Result<Self> {
        let dir = grid.path(name);
        std::fs::create_dir_all(dir.join("bin"))?;
        std::os::unix::fs::symlink(tests::ckpt()?, dir.join("bin/ckpt"))?;
        Ok(Self { grid, dir })
    }

    /// The script with a job that counts to `end`, by one each `period` seconds, and ends with `status`.
    fn script(&self, end: u32, status: u32, period: &str) -> Result<Command> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/ckpt-job.sh");
        let path = std::env::var("PATH").context("no PATH")?;
        let mut command = Command::new(script);
        command
            .args(["count.1", "state", "sh", "-c", COUNT, "count", "state"])
            .args([&end.to_string(), &status.to_string(), period])
            .env("CKPT_GRID", self.grid.file())
            .env("CKPT_STATE_DIR", self.dir.join("memory"))
            .env("PATH", format!("{}:{path}", self.dir.join("bin").display()))
            .env("CKPT_JOB_INTERVAL", "1")
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        Ok(command)
    }

    fn start(&self) -> Result<Child> {
        Ok(self.script(1_000_000, 0, "0.7")?.spawn()?)
    }

    fn number(&self, file: &str) -> Result<u32> {
        let text = std::fs::read_to_string(self.dir.join(file))?;
        let last = text.lines().last().context("nothing written")?;
        Ok(last.trim().parse()?)
    }

    /// The newest version that the script noted; 0 while the script saves.
    fn known(&self) -> Result<u32> {
        let saves = self.dir.join("state.ckpt-version.new").exists();
        let known = self.number("state.ckpt-version").unwrap_or(0);
        Ok(if saves { 0 } else { known })
    }

    /// The number from which the job began last.
    fn began(&self) -> Result<u32> {
        self.number("state.began")
    }

    fn wait_for_start(&self, times: usize) -> Result<()> {
        wait_until("the job runs", PATIENCE, || {
            let text = std::fs::read_to_string(self.dir.join("state.began"));
            Ok(text.unwrap_or_default().lines().count() == times)
        })
    }
}

fn newest(grid: &Grid) -> Result<u64> {
    // While a host is away, `list` can't be sure that there is no checkpoint yet, and exits with 5.
    if grid.run(["list", "--job", "count.1"])?.code == Some(5) {
        return Ok(0);
    }
    Ok(grid.versions("count.1")?.last().copied().unwrap_or(0))
}

fn stopped(child: Child, signal: Signal) -> Result<Outcome> {
    kill_process(Pid::from_child(&child), signal)?;
    wait(child)
}

fn saved(grid: &Grid) -> Result<u32> {
    let saved = grid
        .run(["restore", "--job", "count.1", "-o", "-"])?
        .expect(0)?;
    Ok(String::from_utf8(saved.stdout)?.trim().parse()?)
}

#[test]
fn the_script_ends_with_its_job_and_passes_its_status_on() -> Result<()> {
    let grid = Grid::up(5)?;
    let machine = Machine::new(&grid, "machine")?;
    let begun = Instant::now();
    let ended = tests::program::run(&mut machine.script(5, 7, "0.1")?)?.expect(7)?;
    ensure!(begun.elapsed() < PATIENCE, "{ended}");
    ensure!(machine.number("state")? == 5, "{ended}");
    // If the grid can't be asked, the script does not start the job and exits with the status of `ckpt`.
    let elsewhere = Machine::new(&grid, "elsewhere")?;
    let mut script = elsewhere.script(5, 7, "0.1")?;
    let failed = tests::program::run(script.env("CKPT_GRID", "nowhere.toml"))?.expect(2)?;
    ensure!(!elsewhere.dir.join("state.began").exists(), "{failed}");
    Ok(())
}

#[test]
fn a_job_goes_on_where_it_was_on_the_same_machine_and_on_another() -> Result<()> {
    let grid = Grid::up(5)?;
    let first = Machine::new(&grid, "first")?;
    // The machine crashes: all processes are killed at once.
    let child = first.start()?;
    wait_until(
        "two checkpoints are known",
        PATIENCE,
        // This waits for a moment between two saves. The script would take a version that it did not note
        // for another machine's.
        || Ok(first.known()? >= 2),
    )?;
    kill_process_group(Pid::from_child(&child), Signal::KILL)?;
    wait(child)?;
    let lies_there = first.number("state")?;
    // The machine starts again, with a state on its disk that is newer than the last checkpoint.
    let child = first.start()?;
    first.wait_for_start(2)?;
    ensure!(first.began()? >= lies_there, "{}", first.began()?);
    wait_until("it goes on", PATIENCE, || {
        Ok(first.number("state")? > lies_there + 1)
    })?;
    // At SIGTERM the script saves the last state without waiting for the interval.
    let ended = stopped(child, Signal::TERM)?.expect(143)?;
    let last = first.number("state")?;
    ensure!(saved(&grid)? == last, "{ended}");

    // Another machine goes on from there.
    let second = Machine::new(&grid, "second")?;
    let child = second.start()?;
    second.wait_for_start(1)?;
    ensure!(second.began()? == last, "{} {last}", second.began()?);
    wait_until("it goes on", PATIENCE, || {
        Ok(second.number("state")? > last + 1)
    })?;
    stopped(child, Signal::TERM)?.expect(143)?;
    let later = second.number("state")?;

    // The state on the first machine's disk is older than the newest checkpoint now.
    let child = first.start()?;
    first.wait_for_start(3)?;
    let began = first.began()?;
    let ended = stopped(child, Signal::TERM)?.expect(143)?;
    ensure!(began == later, "{began} {later} {ended}");
    ensure!(first.number("state.old")? == last, "{ended}");
    ensure!(ended.stderr.contains("elsewhere"), "{ended}");
    Ok(())
}

#[test]
fn a_save_with_less_redundancy_counts_as_one() -> Result<()> {
    let grid = Grid::up(5)?;
    let machine = Machine::new(&grid, "machine")?;
    grid.kill("h03")?;
    let mut script = machine.script(1_000_000, 0, "5")?;
    let child = script
        // Without --data, the save would choose 2+2 for four hosts, which is not degraded.
        .env("CKPT_JOB_SAVE_ARGS", "--data 3 --allow-degraded=1")
        .spawn()?;
    wait_until(
        "a checkpoint is there",
        PATIENCE,
        || Ok(newest(&grid)? >= 1),
    )?;
    let ended = stopped(child, Signal::TERM)?.expect(143)?;
    ensure!(ended.stderr.contains("was saved, with less"), "{ended}");
    ensure!(saved(&grid)? == machine.number("state")?, "{ended}");
    Ok(())
}
