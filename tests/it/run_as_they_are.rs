//! `ckpt run` with jobs as they are: they keep a log open, ignore SIGTERM, have no state yet, or name the wrong path.

use std::fs;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tests::Grid;
use tests::program::{Outcome, wait_until};
use tests::supervised::{PATIENCE, RunMachine, Running};

/// The job's name.
const JOB: &str = "as.they.are";

/// Renames its state into place, keeps a log open beside it, and dies of SIGTERM.
const KEEPS_A_LOG: &str = r#"
    exec 3>>"$1/log"
    n=0
    while :; do
        n=$((n + 1)); echo $n >"$1/n.new"; mv "$1/n.new" "$1/n"; echo line >&3
        echo $n >"$1.count"; sleep 0.3
    done
"#;

/// The same, and ignores SIGTERM.
const IGNORES_TERM: &str = r#"
    trap '' TERM
    n=0
    while :; do
        n=$((n + 1)); echo $n >"$1/n.new"; mv "$1/n.new" "$1/n"
        echo $n >"$1.count"; sleep 0.3
    done
"#;

/// Keeps the one file of its state open for writing in place.
const WRITES_IN_PLACE: &str = r#"
    exec 3>"$1/image"
    echo 1 >"$1.count"
    while :; do printf x >&3; sleep 0.1; done
"#;

/// Writes nothing.
const WRITES_NOTHING: &str = r#"
    echo 1 >"$1.count"
    while :; do sleep 0.1; done
"#;

struct Desk<'a> {
    grid: &'a Grid,
    here: RunMachine<'a>,
}

impl<'a> Desk<'a> {
    fn new(grid: &'a Grid) -> Result<Self> {
        let here = RunMachine::new(grid, "here", JOB, "sh")?;
        fs::create_dir(here.dir.join("st"))?;
        Ok(Self { grid, here })
    }

    fn start(&self, files: &str, options: &[&str], script: &str) -> Result<Running> {
        let begin = ["--json", "run", "--batch", "--job", JOB, "--files", files];
        let end = ["--", "sh", "-c", script, "job", "st"];
        Running::of(self.here.bare(&[&begin, options, &end].concat())?)
    }

    /// How often the job has written its state.
    fn count(&self) -> u64 {
        let text = fs::read_to_string(self.here.dir.join("st.count")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    fn wait_for_count(&self, least: u64) -> Result<()> {
        wait_until("the job writes", PATIENCE, || Ok(self.count() >= least))
    }

    fn saved(&self, name: &str) -> Result<u64> {
        let args = ["restore", "--job", JOB, "-o", "back", "--force"];
        tests::program::run(&mut self.here.bare(&args)?)?.expect(0)?;
        let text = fs::read_to_string(self.here.dir.join("back").join(name))?;
        Ok(text.trim().parse()?)
    }
}

#[test]
fn a_log_that_is_open_beside_a_state_keeps_no_checkpoint_away() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid)?;
    let mut rounds = 0;
    for options in [vec![], vec!["--exclude", "log"], vec!["--append", "log"]] {
        let (ended, report) = loop {
            let (ended, report) = evict_once(&desk, &options, rounds)?;
            rounds += 1;
            // The signal may come while the job writes its next state, which is then nothing that it lost by its log.
            let is_half = report["obstacle"]
                .as_str()
                .is_some_and(|at| at.contains("/n.new"));
            if report["version"].is_u64() || !is_half || rounds > ROUNDS_MAX {
                break (ended, report);
            }
        };
        ensure!([Some(75), Some(76)].contains(&ended.code), "{ended}");
        ensure!(report["version"].is_u64(), "{options:?} {ended}");
        // It writes its count after its state, and three times a second.
        let saved = desk.saved("n")?;
        let count = desk.count();
        ensure!(saved + 5 >= count, "{options:?}: {saved} of {count}");
    }
    Ok(())
}

/// Most evictions in the test of a log that is open.
const ROUNDS_MAX: usize = 10;

/// Starts the job that keeps a log open, and evicts it once it has written. `rounds` is how often it was started before.
fn evict_once(desk: &Desk<'_>, options: &[&str], rounds: usize) -> Result<(Outcome, Value)> {
    let before = desk.count();
    let running = desk.start("st", options, KEEPS_A_LOG)?;
    wait_until("the job begins", PATIENCE, || {
        Ok(desk.here.entries("started").len() > rounds)
    })?;
    wait_until("the job writes", PATIENCE, || {
        let count = desk.count();
        Ok(count >= 5 && count != before)
    })?;
    running.signal(Signal::TERM)?;
    running.end()
}

#[test]
fn a_job_that_ignores_sigterm_is_stopped_in_time_and_saved() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid)?;
    let running = desk.start("st", &["--grace", "20s"], IGNORES_TERM)?;
    desk.wait_for_count(5)?;
    running.signal(Signal::TERM)?;
    running.signal(Signal::HUP)?;
    let (ended, report) = running.end()?;
    ensure!([Some(75), Some(76)].contains(&ended.code), "{ended}");
    ensure!(report["version"] == 1, "{ended}");
    let saved = desk.saved("n")?;
    let count = desk.count();
    ensure!(saved + 5 >= count, "{saved} of {count}");
    Ok(())
}

#[test]
fn a_job_that_was_evicted_before_it_had_any_state_is_to_be_started_again() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid)?;
    for (options, status) in [(&["--evict-exit", "85"][..], 85), (&[], 75)] {
        fs::write(desk.here.dir.join("st.count"), "")?;
        let running = desk.start("st", options, WRITES_NOTHING)?;
        desk.wait_for_count(1)?;
        running.signal(Signal::TERM)?;
        let (ended, report) = running.end()?;
        let ended = ended.expect(status)?;
        ensure!(report["version"].is_null(), "{ended}");
        let why = report["obstacle"].as_str().unwrap_or_default();
        ensure!(why.contains("--files"), "{ended}");
    }
    Ok(())
}

#[test]
fn a_file_that_keeps_checkpoints_away_is_named_while_the_job_runs_and_at_its_end() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid)?;
    let running = desk.start("st", &["--mtbf", "2s", "--grace", "5s"], WRITES_IN_PLACE)?;
    desk.here.wait_for_entries("no_checkpoint", 1)?;
    let names = |why: &Value| why.as_str().is_some_and(|why| why.contains("image"));
    let said = desk.here.entries("no_checkpoint");
    ensure!(said.iter().all(|entry| names(&entry["why"])), "{said:?}");
    running.signal(Signal::TERM)?;
    let (ended, report) = running.end()?;
    let ended = ended.expect(76)?;
    ensure!(names(&report["obstacle"]), "{ended}");
    ensure!(ended.stderr.contains("try: "), "{ended}");
    // Little work was lost, so nothing was saved that may be torn.
    desk.grid.run(["list", "--job", JOB])?.expect(4)?;
    Ok(())
}

#[test]
fn a_path_that_is_not_there_is_named_at_the_start() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid)?;
    let running = desk.start("stat", &[], WRITES_NOTHING)?;
    desk.here.wait_for_entries("nothing_yet", 1)?;
    running.signal(Signal::TERM)?;
    let (ended, _) = running.end()?;
    ensure!(ended.stderr.contains("there is nothing at"), "{ended}");
    ensure!(ended.stderr.contains("/stat"), "{ended}");
    Ok(())
}

/// Kills `ckpt run` after `saves` checkpoints. Returns what the job had written before the kill, and what it left.
fn kill_after(desk: &Desk, saves: usize) -> Result<(u64, u64)> {
    let running = desk.start("st", &["--mtbf", "2s"], IGNORES_TERM)?;
    desk.here.wait_for_entries("saved", saves)?;
    let count = desk.count();
    desk.wait_for_count(count + 10)?;
    let job = desk.here.job_pid()?;
    running.signal(Signal::KILL)?;
    running.outcome()?;
    wait_until("the job is gone", PATIENCE, || {
        Ok(!tests::supervised::lives(job))
    })?;
    let left = fs::read_to_string(desk.here.dir.join("st/n"))?;
    Ok((count, left.trim().parse()?))
}

/// Starts the job again. Returns with what it began, and how it ended.
fn begins_with(desk: &Desk) -> Result<(u64, Outcome)> {
    let running = desk.start("st", &[], "cat \"$1/n\"")?;
    let (ended, report) = running.end()?;
    let ended = ended.expect(0)?;
    ensure!(report["version"].is_u64(), "{report}");
    let began = String::from_utf8_lossy(&ended.stdout).trim().parse()?;
    Ok((began, ended))
}

#[test]
fn after_a_kill_of_ckpt_run_the_newer_whole_files_here_are_taken() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid)?;
    let (count, left) = kill_after(&desk, 1)?;
    let (began, ended) = begins_with(&desk)?;
    ensure!(
        began == left && left >= count + 9,
        "{began} {left} {count} {ended}"
    );
    Ok(())
}

/// Writes newer whole files after a kill, and makes the note of the version before the last one.
fn go_on_unnoted(desk: &Desk, incarnation: Option<&str>) -> Result<()> {
    fs::write(desk.here.dir.join("n"), "1000")?;
    fs::rename(desk.here.dir.join("n"), desk.here.dir.join("st/n"))?;
    let path = desk.here.memory().join("state.json");
    let mut note: Value = serde_json::from_slice(&fs::read(&path)?)?;
    let version = note["version"].as_u64().context("version")?;
    note["version"] = (version - 1).into();
    if let Some(incarnation) = incarnation {
        note["incarnation"] = incarnation.into();
    }
    Ok(fs::write(&path, serde_json::to_vec(&note)?)?)
}

#[test]
fn after_a_kill_between_a_commit_and_its_note_the_files_here_are_taken() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid)?;
    kill_after(&desk, 3)?;
    go_on_unnoted(&desk, None)?;
    let (began, ended) = begins_with(&desk)?;
    ensure!(began == 1000, "{began} {ended}");
    Ok(())
}

#[test]
fn after_a_kill_the_files_here_are_not_taken_where_another_incarnation_has_saved() -> Result<()> {
    let grid = Grid::up(5)?;
    let desk = Desk::new(&grid)?;
    let (_, left) = kill_after(&desk, 3)?;
    go_on_unnoted(&desk, Some("another"))?;
    let (began, ended) = begins_with(&desk)?;
    ensure!(began <= left, "{began} {left} {ended}");
    Ok(())
}
