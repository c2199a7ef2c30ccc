//! The history of runs that `ckpt run` writes, and the forecasts that `ckpt runs` makes from it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tests::Grid;
use tests::program::{ckpt, command, run};
use tests::supervised::{RunMachine, Running};

use crate::run::HASH_JOB;

/// A shell script that takes processor time in proportion to its one argument.
const BURN: &str = "i=0; while [ $i -lt $1 ]; do i=$((i+1)); done";

/// `ckpt runs` for the history in this directory.
fn runs(here: &RunMachine, args: &[&str]) -> Result<Command> {
    let mut command = command(["runs", "--json", "--history"])?;
    command.arg(here.dir.join("history")).args(args);
    Ok(command)
}

fn answer(mut command: Command, status: i32) -> Result<Value> {
    let ended = run(&mut command)?.expect(status)?;
    Ok(serde_json::from_slice(&ended.stdout)?)
}

/// Runs a command under `ckpt run`, with the history that [`runs`] reads.
fn supervised(here: &RunMachine, words: &[&str], status: i32) -> Result<()> {
    let history = here.dir.join("history").display().to_string();
    let options = [
        "run",
        "--batch",
        "--job",
        "burn",
        "--files",
        "none",
        "--history",
        &history,
        "--",
    ];
    run(&mut here.bare(&[&options[..], words].concat())?)?.expect(status)?;
    Ok(())
}

#[test]
fn earlier_runs_forecast_the_time_of_another_one() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = RunMachine::new(&grid, "here", "burn", HASH_JOB)?;
    let last = ["sh", "-c", BURN, "sh", "600000"];
    let predict = [&["--predict", "--"][..], &last].concat();
    let nothing = answer(runs(&here, &predict)?, 4)?;
    let message = nothing["error"]["message"].to_string();
    ensure!(message.contains("no earlier run"), "{nothing}");
    for count in ["150000", "300000", "600000"] {
        supervised(&here, &["sh", "-c", BURN, "sh", count], 0)?;
    }
    // A run that fails is not recorded.
    supervised(&here, &["sh", "-c", "exit 3", "sh", "5"], 3)?;
    let listed = answer(runs(&here, &[])?, 0)?;
    let all = listed["runs"].as_array().map_or(&[] as &[Value], |all| all);
    ensure!(all.len() == 3 && listed["unreadable"] == 0, "{listed}");
    let cpu = |run: &Value| run["cpu_seconds"].as_f64().unwrap_or_default();
    // The processor time of processes that live for less than a second counts, too.
    ensure!(all.iter().all(|run| cpu(run) > 0.0), "{listed}");
    let first = &all[0]["forecast_seconds"];
    let second = &all[1]["error"];
    ensure!(first.is_null() && second.is_f64(), "{listed}");
    let command = all[2]["command"].as_str().unwrap_or_default();
    ensure!(command.ends_with("sh 600000"), "{command}");
    let foreseen = answer(runs(&here, &predict)?, 0)?;
    let outside = foreseen["outside"].as_array();
    ensure!(
        foreseen["runs"] == 3 && outside.is_some_and(Vec::is_empty),
        "{foreseen}"
    );
    let nearest = foreseen["nearest_seconds"].as_f64();
    ensure!(nearest == Some(cpu(&all[2])), "{foreseen}");
    ensure!(
        (cpu(&foreseen) / cpu(&all[2]) - 1.0).abs() < 1e-3,
        "{foreseen}"
    );
    let mode = fs::metadata(here.dir.join("history"))?.mode();
    ensure!(mode & 0o077 == 0, "others can read it: {mode:o}");
    Ok(())
}

#[test]
fn the_record_of_a_job_goes_with_it_to_another_machine() -> Result<()> {
    let grid = Grid::up(5)?;
    let first = RunMachine::new(&grid, "first", "hash.record", HASH_JOB)?;
    let running = first.start(
        &["--history", "none", "--ask", "signal:USR2"],
        &["usr2", "every=0"],
    )?;
    first.wait_for_start(1)?;
    std::thread::sleep(Duration::from_millis(1200));
    running.signal(Signal::TERM)?;
    let (ended, left) = running.end()?;
    ended.expect(75)?;
    ensure!(left["starts"] == 1, "{left}");
    let saved = first.saved()?.number;
    let second = RunMachine::new(&grid, "second", "hash.record", HASH_JOB)?;
    let history = second.dir.join("history").display().to_string();
    let options = [
        "--history",
        &history,
        "--param",
        "size=3",
        "--finish-within",
        "1h",
    ];
    let end = format!("end={}", saved + 20);
    let (ended, report) = second.start(&options, &[&end])?.end()?;
    ended.expect(0)?;
    ensure!(
        report["starts"] == 2 && report["in_time"] == true,
        "{report}"
    );
    let listed = answer(runs(&second, &["--job", "hash.record"])?, 0)?;
    let noted = &listed["runs"][0];
    ensure!(noted["starts"] == 2, "{listed}");
    ensure!(noted["command"] == "hash-job size=3", "{listed}");
    let seconds = |key: &str| noted[key].as_f64().unwrap_or_default();
    // The entry covers both starts of the job, and the time between them.
    ensure!(
        seconds("work_seconds") > 0.0 && seconds("elapsed_seconds") > 1.2,
        "{listed}"
    );
    // Lists show only labels that users wrote, not the record of the job.
    let list = grid.run(["list", "--job", "hash.record"])?.expect(0)?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    ensure!(!list.contains("ckpt.record"), "{list}");
    Ok(())
}

#[test]
fn a_job_that_will_be_late_is_reported_while_it_runs() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = RunMachine::new(&grid, "here", "late", HASH_JOB)?;
    let program = ckpt()?.display();
    let script = format!(
        "for i in 1 2 3 4 5 6 7 8 9; do {program} notify PROGRESS=0.0$i; sleep 1; done; sleep 600"
    );
    let args = [
        "--json",
        "run",
        "--batch",
        "--job",
        "late",
        "--files",
        "none",
        "--history",
        "none",
        "--finish-within",
        "60s",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let running = Running::of(here.bare(&args)?)?;
    here.wait_for_entries("late", 1)?;
    let late = here.entries("late").remove(0);
    ensure!(late["by"] == "progress", "{late}");
    let remaining = late["remaining_s"].as_f64();
    let left = late["left_s"].as_f64();
    ensure!(remaining > left && left > Some(0.0), "{late}");
    running.signal(Signal::TERM)?;
    running.end()?;
    Ok(())
}
