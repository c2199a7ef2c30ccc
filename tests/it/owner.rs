//! `ckpt-store calibrate` and `status`, for owners of donors. The program is started through a symbolic
//! link called `ckpt-store`, as docs/use/usage.md says.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tests::Grid;
use tests::program::{run, wait};

/// A `ckpt-store` command, through a link in this directory.
fn store(dir: &Path, args: &[&str]) -> Result<Command> {
    let program = dir.join("ckpt-store");
    if !program.exists() {
        std::os::unix::fs::symlink(tests::ckpt()?, &program)?;
    }
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(command)
}

/// Starts the shortest calibration that the options allow.
fn calibrate(dir: &Path) -> Result<Child> {
    let args = ["calibrate", "--seconds", "0.02", "--rounds", "1", "--data"];
    Ok(store(dir, &args)?.arg(dir.join("data")).spawn()?)
}

#[test]
fn status_shows_preferences_that_are_not_in_force() -> Result<()> {
    let grid = Grid::up(1)?;
    let data = grid.data_dir("h01");
    let status = || -> Result<tests::Outcome> {
        run(store(grid.dir(), &["status", "--data"])?.arg(&data))?.expect(0)
    };
    let well = status()?;
    ensure!(
        !String::from_utf8_lossy(&well.stdout).contains("NOT IN FORCE"),
        "{well}"
    );
    fs::write(data.join("preferences.toml"), "start_hour = 25\n")?;
    let wrong = status()?;
    ensure!(
        String::from_utf8_lossy(&wrong.stdout).contains("NOT IN FORCE"),
        "{wrong}"
    );
    let mut json = store(grid.dir(), &["status", "--json", "--data"])?;
    let json = run(json.arg(&data))?.expect(0)?.json()?;
    ensure!(json["owner"]["preferences_error"].is_string(), "{json}");
    Ok(())
}

#[test]
fn status_ends_without_an_error_when_its_reader_has_gone() -> Result<()> {
    let grid = Grid::up(1)?;
    let mut status = store(grid.dir(), &["status", "--data"])?;
    let mut child = status.arg(grid.data_dir("h01")).spawn()?;
    drop(child.stdout.take());
    let ended = wait(child)?.expect(0)?;
    ensure!(ended.stderr.is_empty(), "{ended}");
    Ok(())
}

#[test]
fn a_calibration_through_a_link_measures_beside_a_guest() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let child = calibrate(dir.path())?;
    let pid = child.id();
    let measured = wait(child)?;
    // A line that is no row of the table is a complaint of a guest, or the reason for a failure. A row ends
    // with a dash if the machine lacks autogroups or control groups. An `ionice` complains if its guest
    // has ended already.
    let is_row = |line: &&str| {
        line.ends_with(['%', '-']) || line.contains("owner's load") || line.starts_with("ionice")
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
    // The file has all three places of a guest, each with a load or with what the machine lacks.
    for place in ["same session", "another session", "another control group"] {
        let line = written.lines().find(|line| line.contains(place));
        let said = line.and_then(|line| line.split_once(": "));
        let (_, said) = said.with_context(|| format!("{place}: {written}"))?;
        let is_load = said
            .parse::<f64>()
            .is_ok_and(|load| load > 0.0 && load <= 1.0);
        ensure!(is_load || said.starts_with("not measured: "), "{written}");
    }
    let is_root = rustix::process::geteuid().is_root();
    if is_root && Path::new("/sys/fs/cgroup/cpu/cpu.shares").exists() {
        ensure!(
            !written.contains("control group: not measured"),
            "{written}"
        );
    }
    let left = fs::read_dir("/sys/fs/cgroup/cpu")
        .into_iter()
        .flatten()
        .flatten();
    let pid = format!("-{pid}");
    ensure!(
        !left
            .map(|one| one.file_name())
            .any(|name| name.to_string_lossy().ends_with(&pid))
    );
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
                // The guest may have ended already.
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
