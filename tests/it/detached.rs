//! `ckpt save --detach` and `ckpt wait`: the program goes on at once, and what is committed is one image, whole.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tests::Grid;
use tests::program::{run, wait_until};
use tests::supervised::PATIENCE;

/// Kills at random moments.
const KILLS: u64 = 20;

/// Files of one image, each of which has its number.
const FILES: usize = 20;

/// Writes an image whose files all have this number.
fn write_image(dir: &Path, number: u64) -> Result<()> {
    fs::create_dir_all(dir)?;
    for file in 0..FILES {
        let content = format!("{number}\n").repeat(20_000);
        fs::write(dir.join(format!("part-{file}")), content)?;
    }
    Ok(())
}

/// The number that all files of an image have.
fn number_of(dir: &Path) -> Result<u64> {
    let mut numbers = Vec::new();
    for file in 0..FILES {
        let text = fs::read_to_string(dir.join(format!("part-{file}")))?;
        let lines: Vec<&str> = text.lines().collect();
        let first: u64 = lines.first().context("an empty file")?.parse()?;
        ensure!(
            lines.len() == 20_000 && lines.iter().all(|line| *line == lines[0]),
            "a torn file"
        );
        numbers.push(first);
    }
    numbers.dedup();
    ensure!(numbers.len() == 1, "a mixture of {numbers:?}");
    Ok(numbers[0])
}

fn restored(grid: &Grid, job: &str, to: &str) -> Result<u64> {
    let to = grid.path(to);
    let target = to.display().to_string();
    run(&mut grid.command(["restore", "--job", job, "-o", &target])?)?.expect(0)?;
    number_of(&to)
}

fn queued(grid: &Grid) -> Result<Value> {
    grid.run(["--json", "list", "--queued"])?.expect(0)?.json()
}

#[test]
fn an_image_that_is_taken_is_gone_at_once_and_saved_behind() -> Result<()> {
    let grid = Grid::up(5)?;
    let image = grid.path("image");
    write_image(&image, 1)?;
    let path = image.display().to_string();
    let began = Instant::now();
    let args = ["--json", "save", "--detach", "--take", "--job", "d1", &path];
    let detached = grid.run(args)?.expect(0)?.json()?;
    eprintln!("returned after {:?}", began.elapsed());
    ensure!(
        detached["how"] == "taken" && detached["job"] == "d1",
        "{detached}"
    );
    ensure!(!image.exists(), "it is still there");
    let saved = grid.run(["--json", "wait", "d1"])?.expect(0)?.json()?;
    ensure!(saved["job"] == "d1" && saved["version"] == 1, "{saved}");
    ensure!(restored(&grid, "d1", "back")? == 1);
    // The outcome stays, and the spool is empty.
    grid.run(["wait", "d1"])?.expect(0)?;
    let list = queued(&grid)?;
    ensure!(
        list["saves"] == serde_json::json!([]) && list["bytes"] == 0,
        "{list}"
    );
    grid.run(["wait", "unknown"])?.expect(4)?;
    Ok(())
}

#[test]
fn an_image_that_is_copied_or_linked_is_that_of_the_moment() -> Result<()> {
    let grid = Grid::up(5)?;
    let image = grid.path("image");
    let path = image.display().to_string();
    for (number, option) in [(1, None), (2, Some("--link"))] {
        write_image(&image, number)?;
        let mut args = vec!["--json", "save", "--detach", "--job", "d2"];
        args.extend(option);
        args.push(&path);
        let detached = grid.run(args)?.expect(0)?.json()?;
        let how = detached["how"].as_str().unwrap_or_default();
        ensure!(option.is_some() == (how == "linked"), "{detached}");
        // A program that replaces its files by renaming.
        let next = grid.path("next");
        write_image(&next, 99)?;
        for file in 0..FILES {
            let name = format!("part-{file}");
            fs::rename(next.join(&name), image.join(&name))?;
        }
        grid.run(["wait", "d2"])?.expect(0)?;
        ensure!(restored(&grid, "d2", &format!("back-{number}"))? == number);
    }
    Ok(())
}

#[test]
fn what_a_detached_save_leaves_out_is_not_set_aside() -> Result<()> {
    let grid = Grid::up(5)?;
    let image = grid.path("image");
    write_image(&image, 1)?;
    // No save takes a socket, and a pipe would never end.
    let _socket = UnixListener::bind(image.join("job.sock"))?;
    fs::create_dir(image.join("run"))?;
    let fifo = image.join("run/pipe");
    ensure!(Command::new("mkfifo").arg(&fifo).status()?.success());
    let path = image.display().to_string();
    let save = ["save", "--detach", "--job", "d5", &path];
    let refused = grid.run(save)?;
    ensure!(refused.code != Some(0), "{refused}");
    let exclude = ["--exclude", "*.sock", "--exclude", "/run"];
    grid.run([&save[..], &exclude].concat())?.expect(0)?;
    grid.run(["wait", "d5"])?.expect(0)?;
    ensure!(restored(&grid, "d5", "back")? == 1);
    ensure!(!grid.path("back/run").exists());
    Ok(())
}

#[test]
fn a_save_that_fails_is_reported_by_wait_and_by_the_next_save_and_is_tried_again() -> Result<()> {
    let grid = Grid::up(5)?;
    let image = grid.path("image");
    write_image(&image, 1)?;
    let path = image.display().to_string();
    grid.stop()?;
    let args = [
        "save",
        "--detach",
        "--take",
        "--deadline",
        "2s",
        "--job",
        "d3",
        &path,
    ];
    grid.run(args)?.expect(0)?;
    let failed = grid.run(["wait", "d3"])?.expect(5)?;
    ensure!(failed.stderr.contains("stays in the spool"), "{failed}");
    let list = queued(&grid)?;
    ensure!(list["saves"][0]["error"].is_string(), "{list}");
    grid.restart()?;
    // The next command takes it up.
    wait_until("it is saved", PATIENCE, || {
        Ok(queued(&grid)?["saves"] == serde_json::json!([]))
    })?;
    ensure!(restored(&grid, "d3", "back")? == 1);
    Ok(())
}

#[test]
fn kills_at_any_moment_leave_the_version_before_or_the_next_one() -> Result<()> {
    let grid = Grid::up(5)?;
    let seed = std::env::var("CKPT_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let kills = std::env::var("CKPT_KILLS")
        .ok()
        .and_then(|kills| kills.parse().ok());
    let mut rng = SmallRng::seed_from_u64(seed.unwrap_or(7));
    let image = grid.path("image");
    let path = image.display().to_string();
    let mut newest = 0;
    for number in 1..=kills.unwrap_or(KILLS) {
        let _ = fs::remove_dir_all(&image);
        write_image(&image, number)?;
        let takes = rng.random_bool(0.5);
        let mut command = grid.command(["save", "--detach", "--job", "d4"])?;
        command.args(takes.then_some("--take")).arg(&path);
        use std::os::unix::process::CommandExt;
        let mut child = command.process_group(0).spawn()?;
        let wait = Duration::from_millis(rng.random_range(0..400));
        std::thread::sleep(wait);
        // The command, and the process that saves, if it has been started.
        if let Some(group) = Pid::from_raw(i32::try_from(child.id())?) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        child.wait()?;
        for pid in savers(&grid)? {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        // What was left behind is taken up, and what was not queued is where it was.
        wait_until("the spool is empty", PATIENCE, || {
            Ok(queued(&grid)?["saves"] == serde_json::json!([]))
        })?;
        let list = grid.run(["list", "--job", "d4"])?;
        // The first kills may come before anything is queued.
        let is_saved = list.code != Some(4) || newest > 0;
        if is_saved {
            list.expect(0)?;
            let _ = fs::remove_dir_all(grid.path("back"));
            let found = restored(&grid, "d4", "back")?;
            ensure!(
                found == number || found == newest,
                "{found} after {newest} and {number}"
            );
            newest = found;
        }
        if newest != number && takes {
            wait_until("what was taken is back", PATIENCE, || {
                grid.run(["list", "--job", "d4"])?;
                Ok(image.exists() || newest == number)
            })?;
            ensure!(number_of(&image)? == number);
        }
    }
    Ok(())
}

/// The processes that save for this grid.
fn savers(grid: &Grid) -> Result<Vec<Pid>> {
    let state = format!("CKPT_STATE_DIR={}", grid.path("state").display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let is_saver = words.split(|byte| *byte == 0).nth(1) == Some(b"spool");
        if is_saver
            && environ
                .split(|byte| *byte == 0)
                .any(|one| one == state.as_bytes())
        {
            found.extend(Pid::from_raw(pid));
        }
    }
    Ok(found)
}
