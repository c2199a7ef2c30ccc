//! `ckpt-store calibrate`, started as the README says: through a link.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tests::program::wait;

/// Starts a calibration that is as short as can be, through a link of the daemon's name.
fn calibrate(dir: &std::path::Path) -> Result<Child> {
    let program = dir.join("ckpt-store");
    std::os::unix::fs::symlink(tests::ckpt()?, &program)?;
    Ok(Command::new(program)
        .args(["calibrate", "--seconds", "0.02", "--rounds", "1", "--data"])
        .arg(dir.join("data"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?)
}

#[test]
fn a_calibration_through_a_link_measures_beside_a_guest() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let measured = wait(calibrate(dir.path())?)?;
    // Anything else than the table is a complaint of a guest, or the reason for a failure.
    // (A guest that is ended in its first moments may leave an `ionice` behind that does not find it.)
    let is_row = |line: &&str| {
        line.ends_with('%') || line.contains("owner's load") || line.starts_with("ionice")
    };
    let others: Vec<&str> = measured
        .stderr
        .lines()
        .filter(|line| !is_row(line))
        .collect();
    ensure!(others.is_empty(), "{measured}");
    ensure!(measured.code == Some(0), "{measured}");
    let written = fs::read_to_string(dir.path().join("data/calibration.toml"))?;
    ensure!(written.contains("cpu_thresholds"), "{written}");
    Ok(())
}

#[test]
fn guests_that_end_early_calibrate_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let child = calibrate(dir.path())?;
    let guests = format!("/proc/{0}/task/{0}/children", child.id());
    let waiting = std::thread::spawn(move || wait(child));
    while !waiting.is_finished() {
        for pid in fs::read_to_string(&guests).unwrap_or_default().split(' ') {
            if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
                // It may have ended.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = waiting.join().ok().context("waiting failed")??;
    ensure!(ended.code == Some(1), "{ended}");
    ensure!(ended.stderr.contains("the guest ended early"), "{ended}");
    ensure!(ended.stdout.is_empty(), "{ended}");
    ensure!(!dir.path().join("data/calibration.toml").exists());
    Ok(())
}
