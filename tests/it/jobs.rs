//! `ckpt jobs` and the ledger: what runs on this machine, what is at risk, what evictions cost.

use std::fs;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tests::Grid;
use tests::program::{run, wait_until};
use tests::supervised::{PATIENCE, RunMachine};

use crate::run::HASH_JOB;

fn answer(here: &RunMachine, args: &[&str], status: i32) -> Result<Value> {
    let args = [&["--json"], args].concat();
    let ended = run(&mut here.bare(&args)?)?.expect(status)?;
    Ok(serde_json::from_slice(&ended.stdout)?)
}

/// Waits until `ckpt jobs` shows one job of which this is true, and returns that job.
fn seen(here: &RunMachine, what: &str, is_it: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut found = Value::Null;
    wait_until(what, PATIENCE, || {
        let report = answer(here, &["jobs"], 0)?;
        found = report["jobs"][0].clone();
        Ok(report["jobs"]
            .as_array()
            .is_some_and(|jobs| jobs.len() == 1)
            && is_it(&found))
    })?;
    Ok(found)
}

fn ledger(here: &RunMachine) -> Result<Value> {
    Ok(answer(here, &["runs"], 0)?["ledger"].clone())
}

#[test]
fn a_running_job_is_seen_with_what_is_at_risk_until_its_supervisor_is_gone() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = RunMachine::new(&grid, "here", "seen.1", HASH_JOB)?;
    let none = answer(&here, &["jobs"], 0)?;
    ensure!(none["jobs"].as_array().is_some_and(Vec::is_empty), "{none}");
    let options = ["--ask", "signal:USR2", "--mtbf", "2s", "--grace", "30s"];
    let words = ["every=0", "usr2", "bytes=300000"];
    let running = here.start(&options, &words)?;
    let saved = seen(&here, "a save is seen", |job| job["saved_at"].is_u64())?;
    ensure!(
        saved["job"] == "seen.1" && saved["host"].is_null(),
        "{saved}"
    );
    let risk = saved["at_risk_seconds"].as_f64().context("no risk")?;
    ensure!(risk < 60.0, "{saved}");
    seen(&here, "it runs", |job| {
        job["state"] == "running" || job["state"] == "saving"
    })?;
    let text = run(&mut here.bare(&["jobs"])?)?.expect(0)?;
    let shown = String::from_utf8(text.stdout)?;
    let last = shown.lines().last().unwrap_or_default();
    ensure!(last.ends_with("of work at risk in 1 job"), "{shown}");
    // A killed supervisor leaves its files, and no lock: its process id may be another process's by now.
    running.signal(Signal::KILL)?;
    wait_until("the job is not shown", PATIENCE, || {
        let report = answer(&here, &["jobs"], 0)?;
        Ok(report["jobs"].as_array().is_some_and(Vec::is_empty))
    })?;
    let unknown = ledger(&here)?;
    ensure!(unknown["all"]["evictions"] == 0, "{unknown}");
    // The next start enters the kill, and its own eviction at its end.
    let running = here.start(&options, &words)?;
    here.wait_for_start(2)?;
    seen(&here, "it works", |job| {
        job["at_risk_seconds"].as_f64() > Some(0.3)
    })?;
    let health = answer(&here, &["health"], 0)?;
    ensure!(
        health["work"]["running"] == 1 && health["work"]["evictions"] == 1,
        "{health}"
    );
    running.signal(Signal::TERM)?;
    running.end()?.0.expect(75)?;
    let known = ledger(&here)?;
    let job = &known["jobs"][0];
    ensure!(
        job["job"] == "seen.1" && job["evictions"] == 2 && job["survived"] == 2,
        "{known}"
    );
    ensure!(
        known["all"]["rescued_seconds"].as_f64() > Some(0.3),
        "{known}"
    );
    let text = run(&mut here.bare(&["runs"])?)?.expect(0)?;
    let shown = String::from_utf8(text.stdout)?;
    ensure!(shown.contains("2 of 2 evictions survived"), "{shown}");
    Ok(())
}

#[test]
fn a_job_that_is_not_saved_says_why() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = RunMachine::new(&grid, "here", "mute", "sh")?;
    let state = here.state().display().to_string();
    // It has its file open for writing all the time.
    let script = "exec 3>>\"$1\"; while :; do echo x >&3; sleep 0.2; done";
    let args = [
        "--json", "run", "--batch", "--job", "mute", "--mtbf", "2s", "--grace", "2s", "--files",
        &state, "--", "sh", "-c", script, "sh", &state,
    ];
    let mut supervisor = here.bare(&args)?.spawn()?;
    let mute = seen(&here, "the reason is seen", |job| {
        job["not_saved"].is_string()
    });
    supervisor.kill()?;
    supervisor.wait()?;
    let mute = mute?;
    ensure!(
        mute["version"].is_null() && mute["next_save_seconds"] == 0.0,
        "{mute}"
    );
    let why = mute["not_saved"].as_str().unwrap_or_default();
    ensure!(why.contains("state"), "{mute}");
    // The next start enters the kill, and why the save before it failed.
    let mut supervisor = here.bare(&args)?.spawn()?;
    let noted = wait_until("the reason is in the ledger", PATIENCE, || {
        let job = ledger(&here)?["jobs"][0].clone();
        Ok(job["why"].as_str().is_some_and(|kept| kept == why))
    });
    supervisor.kill()?;
    supervisor.wait()?;
    noted?;
    let text = run(&mut here.bare(&["runs"])?)?.expect(0)?;
    let shown = String::from_utf8(text.stdout)?;
    ensure!(shown.contains("WHY") && shown.contains("state"), "{shown}");
    let health = answer(&here, &["health"], 0)?;
    let last = health["work"]["why"].as_str().unwrap_or_default();
    ensure!(last == format!("job mute: {why}"), "{health}");
    Ok(())
}

#[test]
fn a_state_directory_that_can_t_be_read_is_an_error_and_not_an_empty_list() -> Result<()> {
    let grid = Grid::up(1)?;
    let here = RunMachine::new(&grid, "here", "none", HASH_JOB)?;
    let state = here.dir.join("memory");
    fs::create_dir_all(&state)?;
    let jobs = state.join("run");
    fs::write(&jobs, "no directory")?;
    let failed = answer(&here, &["jobs"], 8)?;
    let message = failed["error"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("Not a directory"), "{failed}");
    Ok(())
}
