//! Everyday use when nothing fails: saves, restores, lists, and a grid that stops and starts.

use std::fs;

use anyhow::{Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tests::{Grid, image};

use crate::{restore_bytes, save_file};

#[test]
fn a_file_comes_back() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = image::memory((20 << 20) + 123, 1);
    let file = save_file(&grid, "42", &bytes)?;
    let out = grid.path("restored");
    grid.run(["restore", "--job", "42", "-o", "restored"])?
        .expect(0)?;
    image::same(&file, &out)?;
    assert!(restore_bytes(&grid, "42")? == bytes);
    Ok(())
}

#[test]
fn a_tree_comes_back_with_all_that_is_kept() -> Result<()> {
    let grid = Grid::up(5)?;
    let tree = grid.path("dump");
    image::tree(&tree, 2)?;
    grid.run(["save", "--job", "tree", "dump"])?.expect(0)?;
    grid.run(["restore", "--job", "tree", "-o", "again"])?
        .expect(0)?;
    image::same(&tree, &grid.path("again"))?;

    fs::create_dir(grid.path("elsewhere"))?;
    let mut here = grid.command(["restore", "--job", "tree"])?;
    tests::program::run(here.current_dir(grid.path("elsewhere")))?.expect(0)?;
    image::same(&tree, &grid.path("elsewhere/dump"))?;

    grid.run(["save", "--job", "two", "dump", "again"])?
        .expect(0)?;
    grid.run(["restore", "--job", "two", "-o", "both"])?
        .expect(0)?;
    image::same(&tree, &grid.path("both/dump"))?;
    image::same(&tree, &grid.path("both/again"))?;
    Ok(())
}

#[test]
fn streams_and_commands_come_back() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = image::memory(5 << 20, 3);
    let saved = grid.run_with_input(["save", "--job", "in", "-"], &bytes)?;
    saved.expect(0)?;
    assert!(restore_bytes(&grid, "in")? == bytes);

    let command = [
        "save",
        "--job",
        "cmd",
        "--",
        "sh",
        "-c",
        "echo one; echo two",
    ];
    grid.run(command)?.expect(0)?;
    assert_eq!(restore_bytes(&grid, "cmd")?, b"one\ntwo\n");
    Ok(())
}

#[test]
fn a_failed_command_leaves_the_old_version() -> Result<()> {
    let grid = Grid::up(5)?;
    grid.run(["save", "--job", "cmd", "--", "echo", "good"])?
        .expect(0)?;
    let failed = grid.run(["save", "--job", "cmd", "--", "sh", "-c", "echo bad; exit 3"])?;
    let failed = failed.expect(8)?;
    assert!(failed.stderr.contains("exit status: 3"), "{failed}");
    assert!(
        failed.stderr.contains("version 1 is still the newest"),
        "{failed}"
    );
    assert_eq!(restore_bytes(&grid, "cmd")?, b"good\n");
    Ok(())
}

#[test]
fn old_versions_are_removed_after_the_commit() -> Result<()> {
    let grid = Grid::up(5)?;
    for number in 1..=4 {
        save_file(&grid, "42", format!("version {number}").as_bytes())?;
    }
    let list = grid
        .run(["--json", "list", "--job", "42"])?
        .expect(0)?
        .json()?;
    let versions: Vec<_> = list["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["version"].as_u64().unwrap())
        .collect();
    assert_eq!(versions, [3, 4]);
    let older = grid.run(["restore", "--job", "42", "--version", "3", "-o", "-"])?;
    assert_eq!(older.expect(0)?.stdout, b"version 3");
    grid.run(["restore", "--job", "42", "--version", "1", "-o", "-"])?
        .expect(4)?;
    // Shards of removed versions are gone from the disks, too.
    assert_eq!(grid.shard_files("h01")?.len(), 2);
    Ok(())
}

#[test]
fn forgotten_jobs_are_gone() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", b"one")?;
    save_file(&grid, "43", b"other")?;
    grid.run(["forget", "--job", "42", "--all"])?.expect(0)?;
    grid.run(["restore", "--job", "42", "-o", "-"])?.expect(4)?;
    grid.run(["forget", "--job", "42", "--all"])?.expect(4)?;
    grid.run(["restore", "--job", "42", "--if-exists", "-o", "x"])?
        .expect(0)?;
    assert!(!grid.path("x").exists());
    assert_eq!(restore_bytes(&grid, "43")?, b"other");
    assert_eq!(grid.shard_files("h01")?.len(), 1);
    Ok(())
}

#[test]
fn reports_say_what_was_done() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("img"), image::memory(3 << 20, 4))?;
    let saved = grid
        .run(["--json", "save", "--job", "42", "img"])?
        .expect(0)?
        .json()?;
    assert_eq!(saved["version"], 1);
    assert_eq!(saved["image_bytes"], 3 << 20);
    assert_eq!(saved["can_lose"], 2);
    assert_eq!(saved["holders"].as_array().unwrap().len(), 5);
    let shown = grid
        .run(["--json", "show", "--job", "42"])?
        .expect(0)?
        .json()?;
    assert_eq!(shown["files"][0]["path"], "img");
    assert_eq!(shown["encrypted"], true);
    let verified = grid
        .run(["--json", "verify", "--read-data"])?
        .expect(0)?
        .json()?;
    assert_eq!(
        verified["checkpoints"][0]["good"].as_array().unwrap().len(),
        5
    );
    assert!(verified["read_bytes"].as_u64().unwrap() > 1 << 20);
    let hosts = grid.run(["--json", "hosts"])?.expect(0)?.json()?;
    assert!(
        hosts["hosts"]
            .as_array()
            .unwrap()
            .iter()
            .all(|host| host["up"] == true)
    );
    let events = grid
        .run(["--progress", "json", "save", "--job", "42", "img"])?
        .expect(0)?;
    let last = events.stderr.lines().last().unwrap();
    let last: serde_json::Value = serde_json::from_str(last)?;
    assert_eq!(last["event"], "progress");
    assert_eq!(last["done_bytes"], 3 << 20);
    Ok(())
}

#[test]
fn every_code_comes_back() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = image::memory((2 << 20) + 1, 5);
    fs::write(grid.path("img"), &bytes)?;
    for (data, parity) in [("1", "0"), ("1", "4"), ("5", "0"), ("2", "1"), ("4", "1")] {
        let args = [
            "save", "--job", "c", "--data", data, "--parity", parity, "img",
        ];
        grid.run(args)?.expect(0)?;
        assert!(restore_bytes(&grid, "c")? == bytes, "{data}+{parity}");
    }
    Ok(())
}

#[test]
fn a_sparse_terabyte_is_cheap_and_stays_sparse() -> Result<()> {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let grid = Grid::up(5)?;
    let file = fs::File::create(grid.path("sparse"))?;
    file.set_len(1 << 40)?;
    let data = image::memory(1 << 20, 6);
    file.write_all_at(&data, 700 << 30)?;
    grid.run(["save", "--job", "s", "sparse"])?.expect(0)?;
    grid.run(["restore", "--job", "s", "-o", "back"])?
        .expect(0)?;
    let meta = fs::metadata(grid.path("back"))?;
    assert_eq!(meta.len(), 1 << 40);
    assert!(meta.blocks() * 512 < 4 << 20, "{} blocks", meta.blocks());
    let mut back = vec![0; data.len()];
    fs::File::open(grid.path("back"))?.read_exact_at(&mut back, 700 << 30)?;
    assert!(back == data);
    Ok(())
}

#[test]
fn the_demonstration_ends_well_and_leaves_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let tree = dir.path().join("tree");
    image::tree(&tree, 7)?;
    let mut demo = tests::program::command(["--json", "demo"])?;
    let temporary = dir.path().join("tmp");
    fs::create_dir(&temporary)?;
    demo.arg(&tree).env("TMPDIR", &temporary);
    let shown = tests::program::run(&mut demo)?.expect(0)?.json()?;
    assert_eq!(shown["identical"], true);
    assert_eq!(shown["killed"].as_array().unwrap().len(), 2);
    assert_eq!(fs::read_dir(&temporary)?.count(), 0);
    Ok(())
}

#[test]
fn the_demonstration_shows_a_job_that_is_evicted_and_leaves_nothing() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let mut demo = tests::program::command(["--json", "demo"])?;
    demo.env("TMPDIR", temporary.path());
    let shown = tests::program::run(&mut demo)?.expect(0)?.json()?;
    assert_eq!(shown["steps"], 40, "{shown}");
    let evicted_after = shown["evicted_after"].as_u64().unwrap();
    assert!((20..40).contains(&evicted_after), "{shown}");
    assert_eq!(shown["went_on_at"], evicted_after + 1, "{shown}");
    assert_eq!(shown["computed_twice"], 0, "{shown}");
    assert_eq!(shown["killed"].as_array().unwrap().len(), 2);
    assert_eq!(fs::read_dir(temporary.path())?.count(), 0);
    Ok(())
}

#[test]
fn a_grid_goes_down_and_comes_up_again() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", b"kept")?;
    let dir = grid.file().parent().unwrap().to_owned();
    let mut down = tests::program::command(["grid", "down", "--dir"])?;
    tests::program::run(down.arg(&dir))?.expect(0)?;
    assert!(grid.running()?.is_empty());
    grid.run(["restore", "--job", "42", "-o", "-"])?.expect(5)?;
    grid.restart()?;
    assert_eq!(restore_bytes(&grid, "42")?, b"kept");
    Ok(())
}

#[test]
fn a_long_stream_stays_within_the_memory_setting() -> Result<()> {
    let grid = Grid::up(5)?;
    let script = "head -c 400M /dev/urandom";
    let mut save = grid.command(["--memory", "64MiB", "save", "--job", "m", "--", "sh", "-c"])?;
    let peak = peak_memory(save.arg(script))?;
    assert!(peak < 110 << 20, "save took {peak} bytes");
    let mut restore = grid.command(["--memory", "64MiB", "restore", "--job", "m", "-o", "m"])?;
    let peak = peak_memory(&mut restore)?;
    assert!(peak < 110 << 20, "restore took {peak} bytes");
    for (host, pid) in grid.running()? {
        let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
        let peak = tests::program::high_water(&status);
        assert!(peak < 64 << 20, "{host} took {peak} bytes");
    }
    Ok(())
}

/// Runs a command, which has to succeed, and returns the most memory that it ever had.
fn peak_memory(command: &mut std::process::Command) -> Result<u64> {
    let (outcome, peak) = tests::program::run_measured(command)?;
    outcome.expect(0)?;
    Ok(peak)
}

#[test]
fn saves_and_restores_keep_to_their_bandwidth() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes: Vec<u8> = {
        let mut noise = vec![0; 3 << 20];
        SmallRng::seed_from_u64(1).fill(noise.as_mut_slice());
        noise
    };
    fs::write(grid.path("image"), &bytes)?;
    // The save sends 5 MiB in all, at 2 MiB per second.
    let save = ["--json", "--bandwidth", "2MiB", "--nice", "10", "save"];
    let saved = grid.run(save.iter().chain(&["--job", "42", "image"]))?;
    let saved = saved.expect(0)?.json()?;
    ensure!(saved["seconds"].as_f64() > Some(2.0), "{saved}");
    ensure!(saved["replaced"] == serde_json::json!([]), "{saved}");
    let restore = ["--json", "--bandwidth", "1MiB", "restore", "--job", "42"];
    let restored = grid.run(restore.iter().chain(&["-o", "out"]))?;
    let restored = restored.expect(0)?.json()?;
    // The restore asks for its first rows at once, so it takes less than 3 s for 3 MiB.
    ensure!(restored["seconds"].as_f64() > Some(1.0), "{restored}");
    ensure!(fs::read(grid.path("out"))? == bytes);
    grid.run(["--nice", "20", "list"])?.expect(2)?;
    Ok(())
}
