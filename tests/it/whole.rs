//! What a version holds is what the user meant: versions that are not known to be whole, that are much smaller, from
//! the future, or saved by a machine that slept; disks that are full or lost power.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::cluster::faketime;
use tests::program::{Outcome, run, wait};
use tests::skip::not_checked;
use tests::{Grid, image};

const MIB: usize = 1 << 20;

/// Longer than hosts and clients wait for each other.
const SLEEP: Duration = Duration::from_secs(27);

fn save(grid: &Grid, file: &str, more: &[&str]) -> Result<Outcome> {
    let save = ["--json", "save", "--job", "42", file];
    grid.run(save.iter().chain(more))
}

/// Saves a file with a few bytes.
fn save_text(grid: &Grid, text: &str) -> Result<Value> {
    fs::write(grid.path("data"), text)?;
    save(grid, "data", &[])?.expect(0)?.json()
}

/// Saves the file with `--accept-changed` while it is appended to all the time.
fn save_changing(grid: &Grid, more: &[&str]) -> Result<Value> {
    let path = grid.path("data");
    fs::write(&path, image::noise(4 * MIB, 1))?;
    let is_over = AtomicBool::new(false);
    let saved = std::thread::scope(|scope| {
        scope.spawn(|| -> Result<()> {
            let mut file = File::options().append(true).open(&path)?;
            while !is_over.load(Ordering::Relaxed) {
                file.write_all(b"more")?;
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        let args: Vec<&str> = ["--accept-changed"].iter().chain(more).copied().collect();
        let saved = save(grid, "data", &args);
        is_over.store(true, Ordering::Relaxed);
        saved
    });
    saved?.expect(3)?.json()
}

fn restored(grid: &Grid, more: &[&str]) -> Result<Outcome> {
    let restore = ["restore", "--job", "42", "-o", "-"];
    grid.run(restore.iter().chain(more))
}

#[test]
fn a_marked_version_is_not_restored_while_an_older_one_is_whole() -> Result<()> {
    let grid = Grid::up(3)?;
    let whole = save_text(&grid, "whole")?;
    ensure!(whole["marked"].is_null(), "{whole}");
    let // A base would stay, marked or not.
        marked = save_changing(&grid, &["--full"])?;
    ensure!(
        marked["marked"] == "files changed while they were read",
        "{marked}"
    );
    let back = restored(&grid, &[])?.expect(3)?;
    ensure!(back.stdout == b"whole", "the marked version came back");
    ensure!(back.stderr.contains("--accept-marked"), "{}", back.stderr);
    let cat = grid.run(["cat", "--job", "42"])?.expect(3)?;
    ensure!(cat.stdout == b"whole");
    let accepted = restored(&grid, &["--accept-marked"])?.expect(3)?;
    ensure!(accepted.stdout.len() > 4 * MIB);
    ensure!(accepted.stderr.contains("may mix several states"));
    let named = restored(&grid, &["--version", "2"])?.expect(3)?;
    ensure!(named.stdout.len() > 4 * MIB);
    let listed = grid.run(["list", "--job", "42"])?.expect(0)?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    ensure!(listed.contains(", marked"), "{listed}");
    let shown = grid.run(["--json", "show", "--job", "42"])?.json()?;
    ensure!(
        shown["version"] == 2 && shown["marked"].is_string(),
        "{shown}"
    );
    // What health says is of the version that a restore takes.
    let health = grid.run(["--json", "health"])?.json()?;
    ensure!(health["jobs"][0]["version"] == 1, "{health}");
    Ok(())
}

#[test]
fn marked_versions_do_not_count_for_keep() -> Result<()> {
    let grid = Grid::up(3)?;
    for text in ["one", "two"] {
        save_text(&grid, text)?;
    }
    let mut marked = Value::Null;
    for _ in 0..3 {
        // A base would stay, marked or not.
        marked = save_changing(&grid, &["--full"])?;
    }
    ensure!(grid.versions("42")? == [1, 2, 4, 5], "{marked}");
    ensure!(restored(&grid, &[])?.stdout == b"two");
    // A whole version ends all that: it is what a restore takes, and the marked ones go.
    fs::write(grid.path("data"), image::noise(4 * MIB, 2))?;
    save(&grid, "data", &["--full"])?.expect(0)?;
    ensure!(grid.versions("42")? == [2, 6]);
    Ok(())
}

#[test]
fn a_job_goes_on_after_a_marked_version_from_the_whole_one() -> Result<()> {
    let grid = Grid::up(3)?;
    save_text(&grid, "whole")?;
    save_changing(&grid, &[])?;
    fs::remove_file(grid.path("data"))?;
    let job = "grep -q whole data && echo next > data && sleep 1.5";
    let run = ["run", "--job", "42", "--files", "data", "--batch", "--"];
    let ended = grid.run(run.iter().chain(&["sh", "-c", job]))?.expect(0)?;
    ensure!(!ended.stderr.contains("another"), "{}", ended.stderr);
    Ok(())
}

#[test]
fn a_much_smaller_version_is_warned_of_and_the_one_before_stays_once_more() -> Result<()> {
    let grid = Grid::up(3)?;
    let write = |bytes: usize| fs::write(grid.path("data"), image::noise(bytes, bytes as u64));
    write(100_000)?;
    save(&grid, "data", &["--keep", "1"])?.expect(0)?;
    write(9_000)?;
    let small = save(&grid, "data", &["--keep", "1"])?.expect(3)?.json()?;
    let warning = small["warnings"][0].as_str().context("no warning")?;
    ensure!(
        warning.contains("9000 bytes") && warning.contains("version 1"),
        "{warning}"
    );
    ensure!(grid.versions("42")? == [1, 2]);
    save(&grid, "data", &["--keep", "1"])?.expect(0)?;
    ensure!(grid.versions("42")? == [3]);
    Ok(())
}

#[test]
fn a_version_from_the_future_is_warned_of_and_hides_nothing() -> Result<()> {
    let Some(library) = faketime() else {
        return not_checked("wrong clocks", "needs faketime");
    };
    let grid = Grid::up(3)?;
    let ahead = |args: &[&str]| -> Result<Outcome> {
        let mut command = grid.command(args)?;
        command.env("LD_PRELOAD", library).env("FAKETIME", "+300d");
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command.env("DONT_FAKE_MONOTONIC", "1");
        run(&mut command)
    };
    save_text(&grid, "now")?;
    let future = ahead(&["--json", "save", "--job", "42", "data"])?;
    let future = future.expect(3)?.json()?;
    let warnings = future["warnings"].to_string();
    ensure!(warnings.contains("clock is 300 days ahead"), "{warnings}");
    let health = grid.run(["--json", "health", "--max-age", "1h"])?;
    let health = health.expect(3)?.json()?;
    ensure!(health["jobs"][0]["age_s"].is_null(), "{health}");
    ensure!(health["attention"][0]["kind"] == "clock", "{health}");
    // A later save has to be dated after it, which is no fault of its machine.
    let later = save(&grid, "data", &["--keep", "9"])?.expect(0)?.json()?;
    ensure!(
        later["notes"].to_string().contains("ahead of most hosts"),
        "{later}"
    );
    // By neither clock is the first version older than a week.
    let keep = ["forget", "--job", "42", "--keep-within", "7d"];
    grid.run(keep)?.expect(0)?;
    ahead(&keep)?.expect(0)?;
    ensure!(grid.versions("42")?.len() == 3);
    Ok(())
}

#[test]
fn a_machine_that_slept_in_a_save_saves_and_blames_nobody() -> Result<()> {
    let grid = Grid::up(4)?;
    let bytes = image::noise(40 * MIB, 7);
    fs::write(grid.path("image"), &bytes)?;
    let save = [
        "--json",
        "save",
        "--job",
        "42",
        "--bandwidth",
        "10MiB",
        "image",
    ];
    let mut command = grid.command(save)?;
    command.stdout(std::process::Stdio::piped());
    let mut child = command.stderr(std::process::Stdio::piped()).spawn()?;
    let pid = Pid::from_child(&child);
    std::thread::sleep(Duration::from_secs(2));
    ensure!(child.try_wait()?.is_none(), "it has ended already");
    kill_process(pid, Signal::STOP)?;
    std::thread::sleep(SLEEP);
    kill_process(pid, Signal::CONT)?;
    let said = wait(child)?.expect(0)?.stderr;
    ensure!(!said.contains("given up"), "{said}");
    ensure!(said.contains("this machine slept"), "{said}");
    ensure!(restored(&grid, &[])?.expect(0)?.stdout == bytes);
    Ok(())
}

/// What a power loss can make of a small file.
fn damages(bytes: &[u8]) -> [(&'static str, Vec<u8>); 4] {
    let half = bytes.get(..bytes.len() / 2).unwrap_or_default();
    [
        ("empty", Vec::new()),
        ("NULs", vec![0; bytes.len().max(32)]),
        ("half", half.to_vec()),
        ("dirt", image::noise(bytes.len().max(500), 5)),
    ]
}

/// The small files below a directory, without those in these directories.
fn small_files(dir: &Path, without: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if without.iter().any(|one| name.starts_with(one)) {
            continue;
        }
        if path.is_dir() {
            found.extend(small_files(&path, without)?);
        } else if path.is_file() {
            found.push(path.clone());
        }
    }
    found.sort();
    Ok(found)
}

/// Files without which a daemon can't say who it is, and those that its owner writes. Damage to them is an error with
/// the name of the file.
const NEEDED: [&str; 5] = ["identity", "grid", "preferences", "log", "shards"];

#[test]
fn no_small_file_that_lost_power_stops_a_donor() -> Result<()> {
    let grid = Grid::up(3)?;
    let bytes = image::noise(MIB, 3);
    fs::write(grid.path("image"), &bytes)?;
    save(&grid, "image", &["--parity", "2", "--data", "1"])?.expect(0)?;
    grid.stop()?;
    let data = grid.data_dir("h01");
    fs::write(
        data.join("calibration.toml"),
        "cpu_thresholds = [0.2, 0.6]\n",
    )?;
    let files = small_files(&data, &NEEDED)?;
    ensure!(
        files.iter().any(|path| path.ends_with("history")),
        "{files:?}"
    );
    for number in 0..4 {
        let kept: Vec<(&PathBuf, Vec<u8>)> = files
            .iter()
            .filter_map(|path| Some((path, fs::read(path).ok()?)))
            .collect();
        let mut how = "";
        for (path, bytes) in &kept {
            let (name, damaged) = damages(bytes).into_iter().nth(number).context("no such")?;
            how = name;
            fs::write(path, damaged)?;
        }
        let up = grid.restart();
        let log = fs::read_to_string(data.join("log")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(5).collect();
        up.with_context(|| format!("{how}: {tail:#?}"))?;
        let back = restored(&grid, &[])?.expect(0)?;
        ensure!(back.stdout == bytes, "{how}");
        grid.stop()?;
        for (path, bytes) in &kept {
            fs::write(path, bytes)?;
        }
    }
    Ok(())
}

#[test]
fn no_small_file_that_lost_power_stops_a_submitter() -> Result<()> {
    let grid = Grid::up(3)?;
    save_text(&grid, "one")?;
    let state = grid.path("state-dir");
    let with_state = |args: &[&str]| -> Result<Outcome> {
        let mut command = grid.command(args)?;
        run(command.env("CKPT_STATE_DIR", &state))
    };
    with_state(&["save", "--job", "42", "data"])?.expect(0)?;
    for path in small_files(&state, &[])? {
        let bytes = fs::read(&path)?;
        for (how, damaged) in damages(&bytes) {
            fs::write(&path, damaged)?;
            let about = || format!("{how} {}", path.display());
            let saved = with_state(&["save", "--job", "42", "data"])?;
            saved.expect(0).with_context(about)?;
            let back = with_state(&["restore", "--job", "42", "-o", "-"])?;
            ensure!(back.expect(0)?.stdout == b"one", "{}", about());
        }
    }
    Ok(())
}

#[test]
fn the_log_of_a_grid_for_trials_is_bounded() -> Result<()> {
    let grid = Grid::up(1)?;
    let log = grid.data_dir("h01").join("log");
    let long = vec![b'\n'; 5 * MIB];
    File::options().append(true).open(&log)?.write_all(&long)?;
    // A daemon looks at the length when it begins, and each time that it has written some more.
    grid.stop()?;
    grid.restart()?;
    let length = fs::metadata(&log)?.len();
    ensure!(length < MIB as u64, "{length}");
    ensure!(fs::read_to_string(&log)?.contains("earlier lines of the log were dropped"));
    Ok(())
}
