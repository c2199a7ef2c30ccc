//! Restores to a machine that has a part of the image already: an older version at the target, files that changed or
//! were renamed, what a killed restore had written.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::program::{wait, wait_until};
use tests::supervised::{journal_entries, report_of};
use tests::{Grid, image};

const MIB: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// Saves a file or directory as a new version of job 42.
fn save(grid: &Grid, name: &str) -> Result<()> {
    grid.run(["save", "--job", "42", "--keep", "9", name])?
        .expect(0)?;
    Ok(())
}

/// Restores job 42 and returns the report.
fn restore(grid: &Grid, more: &[&str]) -> Result<Value> {
    let all = ["--json", "restore", "--job", "42", "--force"];
    grid.run(all.iter().chain(more))?.expect(0)?.json()
}

fn number(report: &Value, field: &str) -> Result<u64> {
    report[field].as_u64().with_context(|| format!("{report}"))
}

/// Checks that at most `percent` of `bytes` were fetched, and that all the rest was here.
fn fetched_at_most(report: &Value, percent: u64, bytes: usize) -> Result<()> {
    let fetched = number(report, "fetched_bytes")?;
    ensure!(fetched * 100 <= bytes as u64 * percent, "{report}");
    let here = number(report, "at_hand_bytes")?;
    ensure!(here > 0 && here + fetched >= bytes as u64, "{report}");
    Ok(())
}

/// Overwrites one piece of 16 KiB in `every`.
fn change(bytes: &mut [u8], every: usize, seed: u64) {
    let pieces = bytes.chunks_mut(16 << 10).enumerate();
    for (number, piece) in pieces.filter(|(number, _)| number % every == 0) {
        piece.copy_from_slice(&image::noise(piece.len(), seed + number as u64));
    }
}

#[test]
fn a_target_with_an_older_version_gets_only_what_changed() -> Result<()> {
    let grid = Grid::up(6)?;
    let old = image::noise(24 * MIB + 4_321, 1);
    let mut new = old.clone();
    change(&mut new, 10, 77);
    for bytes in [&old, &new] {
        fs::write(grid.path("image"), bytes)?;
        save(&grid, "image")?;
    }
    let version = ["--version", "1", "-o", "out"];
    let first = restore(&grid, &version)?;
    ensure!(first["at_hand_bytes"] == 0, "{first}");
    ensure!(fs::read(grid.path("out"))? == old);

    let planned = restore(&grid, &["--dry-run", "-o", "out"])?;
    fetched_at_most(&planned, 12, new.len())?;
    ensure!(fs::read(grid.path("out"))? == old, "a dry run");
    let human = [
        "restore",
        "--job",
        "42",
        "--dry-run",
        "--force",
        "-o",
        "out",
    ];
    let human = grid.run(human)?.expect(0)?;
    let text = String::from_utf8_lossy(&human.stdout);
    ensure!(text.contains("here already"), "{human}");
    let second = restore(&grid, &["-o", "out"])?;
    fetched_at_most(&second, 12, new.len())?;
    ensure!(fs::read(grid.path("out"))? == new);
    // Back again: the older version is whole rows, which are fetched where a piece of them differs.
    restore(&grid, &version)?;
    ensure!(fs::read(grid.path("out"))? == old);

    // What differs altogether is fetched, and nothing is left of the rest.
    fs::write(grid.path("out"), image::noise(30 * MIB, 5))?;
    let other = restore(&grid, &["-o", "out"])?;
    ensure!(other["at_hand_bytes"] == 0, "{other}");
    ensure!(fs::read(grid.path("out"))? == new);
    let to_stdout = ["restore", "--job", "42", "-o", "-"];
    ensure!(grid.run(to_stdout)?.expect(0)?.stdout == new);
    Ok(())
}

#[test]
fn of_a_tree_unchanged_and_renamed_files_are_not_fetched() -> Result<()> {
    let grid = Grid::up(5)?;
    let tree = grid.path("tree");
    fs::create_dir_all(tree.join("steps"))?;
    let mut bytes = 0;
    for name in 0..4_u64 {
        let noise = image::noise(2 * MIB + 77, name);
        bytes += noise.len();
        fs::write(tree.join(format!("steps/{name}")), noise)?;
    }
    for name in 0..200_u64 {
        let noise = image::noise(3_000, 100 + name);
        bytes += noise.len();
        fs::write(tree.join(format!("small-{name}")), noise)?;
    }
    save(&grid, "tree")?;
    let mut copying = Command::new("cp");
    copying.arg("-a").arg(&tree).arg(grid.path("whole"));
    ensure!(copying.status()?.success());

    // As a job leaves it: files gone, renamed (some of the same size), changed, longer, and new ones.
    for (old, new) in [("0", "x"), ("1", "y"), ("2", "moved")] {
        fs::rename(tree.join("steps").join(old), tree.join("steps").join(new))?;
    }
    fs::write(tree.join("steps/new"), image::noise(2 * MIB + 77, 9))?;
    fs::write(tree.join("steps/longer"), b"longer")?;
    fs::remove_file(tree.join("small-7"))?;
    fs::write(tree.join("small-9"), b"changed")?;
    let restored = restore(&grid, &["-o", "tree"])?;
    fetched_at_most(&restored, 15, bytes)?;
    image::same(&grid.path("whole"), &tree)?;

    // The same below another name: nothing has to be fetched, and what does not belong to it is no part of it.
    fs::rename(&tree, grid.path("tree2"))?;
    fs::create_dir(&tree)?;
    fs::rename(grid.path("tree2"), tree.join("inner"))?;
    let restored = restore(&grid, &["-o", "tree"])?;
    fetched_at_most(&restored, 15, bytes)?;
    image::same(&grid.path("whole"), &tree)?;
    Ok(())
}

/// Blocks of 512 bytes on disk below a directory.
fn blocks(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let blocks = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => blocks(&entry.path()),
        Ok(found) => found.blocks(),
        Err(_) => 0,
    };
    entries.map(blocks).sum()
}

/// Begins a slow restore to `scratch/out`, and kills it when so many bytes of the image are on disk.
fn killed_at(grid: &Grid, bytes: usize) -> Result<()> {
    let slow = ["--bandwidth", "30MiB", "restore", "--job", "42", "--force"];
    let mut command = grid.command(slow)?;
    let mut child: Child = command.args(["-o", "scratch/out"]).spawn()?;
    let scratch = grid.path("scratch");
    let before = blocks(&scratch);
    let written = wait_until("a part is on disk", LIMIT, || {
        ensure!(child.try_wait()?.is_none(), "it is whole already");
        Ok((blocks(&scratch) - before) * 512 >= bytes as u64)
    });
    child.kill()?;
    child.wait()?;
    written
}

#[test]
fn a_killed_restore_goes_on_where_it_was() -> Result<()> {
    let grid = Grid::up(5)?;
    let scratch = grid.path("scratch");
    let file = image::noise(72 * MIB, 1);
    fs::write(grid.path("image"), &file)?;
    save(&grid, "image")?;
    fs::create_dir(&scratch)?;
    killed_at(&grid, 40 * MIB)?;
    ensure!(!scratch.join("out").exists(), "it is not whole");
    // Killed again, before it comes as far.
    killed_at(&grid, 20 * MIB)?;
    let restored = restore(&grid, &["-o", "scratch/out"])?;
    fetched_at_most(&restored, 60, file.len())?;
    ensure!(fs::read(scratch.join("out"))? == file);
    ensure!(fs::read_dir(&scratch)?.count() == 1, "nothing else is left");

    // With an older version at the target, which stays until the new one is whole.
    let mut newer = image::noise(72 * MIB, 2);
    newer[..20 * MIB].copy_from_slice(&file[..20 * MIB]);
    fs::write(grid.path("image"), &newer)?;
    save(&grid, "image")?;
    killed_at(&grid, 40 * MIB)?;
    ensure!(fs::read(scratch.join("out"))? == file, "a mixture");
    let restored = restore(&grid, &["-o", "scratch/out"])?;
    fetched_at_most(&restored, 60, newer.len())?;
    ensure!(fs::read(scratch.join("out"))? == newer);
    ensure!(fs::read_dir(&scratch)?.count() == 1, "nothing else is left");
    Ok(())
}

#[test]
fn a_killed_restore_of_a_tree_goes_on_where_it_was() -> Result<()> {
    let grid = Grid::up(5)?;
    let tree = grid.path("tree");
    fs::create_dir(&tree)?;
    for name in 0..12_u64 {
        let noise = image::noise(3 * MIB, name);
        fs::write(tree.join(name.to_string()), noise)?;
    }
    save(&grid, "tree")?;
    fs::create_dir(grid.path("scratch"))?;
    killed_at(&grid, 20 * MIB)?;
    let restored = restore(&grid, &["-o", "scratch/out"])?;
    fetched_at_most(&restored, 60, 36 * MIB)?;
    image::same(&tree, &grid.path("scratch").join("out"))?;
    ensure!(fs::read_dir(grid.path("scratch"))?.count() == 1);
    Ok(())
}

/// A machine that comes back to a job has an older state of it, and what a restore had written that was killed there.
#[test]
fn a_job_that_starts_again_where_it_was_fetches_what_changed() -> Result<()> {
    let grid = Grid::up(5)?;
    let state = grid.path("data");
    fs::create_dir(&state)?;
    let mut bytes = image::noise(24 * MIB, 1);
    fs::write(state.join("a"), &bytes)?;
    save(&grid, "data")?;
    change(&mut bytes, 10, 9);
    let old = fs::read(state.join("a"))?;
    fs::write(state.join("a"), &bytes)?;
    save(&grid, "data")?;
    fs::write(state.join("a"), &old)?;
    fs::write(grid.path("whole"), &bytes)?;
    let compare = ["--", "cmp", "data/a", "whole"];
    let run = ["--json", "run", "--job", "42", "--files", "data"];
    let ended = grid.run(run.iter().chain(&compare))?.expect(0)?;
    let report = report_of(&ended)?;
    let journal = report["journal"].as_str().context("no journal")?;
    let started = journal_entries(Path::new(journal), "started");
    let started = started.first().context("not started")?;
    ensure!(
        number(started, "at_hand_bytes")? >= 20 * MIB as u64,
        "{started}"
    );
    ensure!(fs::read(grid.path("data.before").join("a"))? == old);
    Ok(())
}

/// While a restore runs, another program writes to the file from which parts are taken.
#[test]
fn a_file_that_changes_during_a_restore_makes_no_wrong_byte() -> Result<()> {
    let grid = Grid::up(5)?;
    let file = image::noise(64 * MIB, 1);
    fs::write(grid.path("image"), &file)?;
    save(&grid, "image")?;
    let mut other = file.clone();
    // The last segments have to be fetched, and the first ones.
    other[..4 * MIB].fill(1);
    other[60 * MIB..].fill(1);
    fs::write(grid.path("out"), &other)?;
    let slow = ["--bandwidth", "4MiB", "restore", "--job", "42", "--force"];
    let mut command = grid.command(slow)?;
    command.args(["-o", "out", "--json"]).stdout(Stdio::piped());
    let child = command.spawn()?;
    wait_until("the restore has begun to write", LIMIT, || {
        let names = fs::read_dir(grid.dir())?.flatten();
        let mut names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        Ok(names.any(|name| name.starts_with(".out.ckpt-")))
    })?;
    let changed = fs::OpenOptions::new().write(true).open(grid.path("out"))?;
    changed.set_len(30 * MIB as u64)?;
    drop(changed);
    let ended = wait(child)?.expect(0)?;
    ensure!(
        number(&ended.json()?, "at_hand_bytes")? == 0,
        "{ended}: it was fetched anew"
    );
    ensure!(fs::read(grid.path("out"))? == file);
    Ok(())
}
