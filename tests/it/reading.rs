//! `ckpt cat` reads parts of files: how much it fetches, that faulty hosts change no byte, and how it ends.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, symlink};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tests::liar::{Kind, Lie};
use tests::mixed::MixedGrid;
use tests::program::wait;
use tests::{Grid, Outcome};

const MIB: usize = 1 << 20;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SmallRng::seed_from_u64(seed).fill(bytes.as_mut_slice());
    bytes
}

fn range_of(offset: usize, len: usize) -> String {
    format!("{offset}:{len}")
}

/// Reads a part with `ckpt cat`, compares it with `expected`, and returns the report.
fn read(grid: &Grid, args: &[&str], expected: &[u8]) -> Result<Value> {
    let mut command = vec!["--json", "cat", "--job", "42"];
    command.extend(args);
    let read = grid.run(command)?.expect(0)?;
    ensure!(read.stdout == expected, "{args:?}: other bytes");
    Ok(serde_json::from_str(&read.stderr)?)
}

/// The numbers of rows and of bytes that were fetched, from a report.
fn cost(report: &Value) -> Result<(u64, u64)> {
    let number = |name: &str| report[name].as_u64().context(name.to_owned());
    Ok((number("fetched_rows")?, number("fetched_bytes")?))
}

#[test]
fn four_kibibytes_cost_one_segment_and_two_of_a_patch() -> Result<()> {
    let grid = Grid::up(5)?;
    let mut bytes = noise(12 * MIB, 1);
    fs::write(grid.path("f"), &bytes)?;
    grid.run(["save", "--job", "42", "f"])?.expect(0)?;
    let at = 5 * MIB + 77;
    let range = range_of(at, 4096);
    let report = read(&grid, &["--range", &range], &bytes[at..at + 4096])?;
    let (rows, fetched) = cost(&report)?;
    // Noise is stored uncompressed, and each block is filled up to a multiple of 64 bytes.
    ensure!(rows == 1 && fetched < (MIB + 1024) as u64, "{report}");
    ensure!(report["version"] == 1 && report["offset"] == at, "{report}");
    ensure!(
        report["bytes"] == 4096 && report["complete"] == true,
        "{report}"
    );

    // A patch of a segment, a segment that did not change, and a part on both sides of a boundary.
    bytes[at..at + 9].copy_from_slice(b"different");
    fs::write(grid.path("f"), &bytes)?;
    let saved = grid.run(["--json", "save", "--job", "42", "f"])?;
    ensure!(saved.expect(0)?.json()?["base"] == 1);
    for (at, rows_max) in [(at, 2), (9 * MIB, 1), (5 * MIB - 2048, 3)] {
        let range = range_of(at, 4096);
        let report = read(&grid, &["f", "--range", &range], &bytes[at..at + 4096])?;
        let (rows, fetched) = cost(&report)?;
        ensure!(rows <= rows_max && rows > 0, "{at}: {report}");
        ensure!(fetched < rows * (MIB + 1024) as u64, "{at}: {report}");
    }
    // A long part fetches no segment behind its end either.
    let range = range_of(2 * MIB, 6 * MIB);
    let report = read(
        &grid,
        &["--range", &range, "--memory", "16MiB"],
        &bytes[2 * MIB..8 * MIB],
    )?;
    ensure!(cost(&report)?.0 <= 7, "six segments and a patch: {report}");
    Ok(())
}

#[test]
fn parts_of_edited_versions_are_what_the_files_have() -> Result<()> {
    let grid = Grid::up(5)?;
    let mut rng = SmallRng::seed_from_u64(19);
    let tree = grid.path("tree");
    fs::create_dir_all(tree.join("sub"))?;
    fs::write(tree.join("sub/small"), noise(3000, 2))?;
    fs::write(tree.join("big"), noise(5 * MIB + 1234, 3))?;
    fs::hard_link(tree.join("big"), tree.join("sub/same"))?;
    let sparse = fs::File::create(tree.join("sparse"))?;
    sparse.set_len(9 * MIB as u64)?;
    sparse.write_all_at(&noise(70_000, 4), 3 * MIB as u64)?;
    sparse.write_all_at(&noise(MIB, 5), 7 * MIB as u64 + 9)?;
    for version in 1..=3 {
        if version > 1 {
            let mut bytes = fs::read(tree.join("big"))?;
            for _ in 0..3 {
                let at = rng.random_range(0..bytes.len());
                let new = noise(1 << rng.random_range(0..18), rng.random());
                let end = (at + new.len() / 2).min(bytes.len());
                bytes.splice(at..end, new);
            }
            fs::write(tree.join("big"), bytes)?;
        }
        grid.run(["save", "--job", "42", "tree"])?.expect(0)?;
        for path in ["big", "sub/same", "sub/small", "sparse", "big", "sparse"] {
            let bytes = fs::read(tree.join(path))?;
            let at = rng.random_range(0..bytes.len());
            let len = 1 << rng.random_range(0..22);
            let expected = &bytes[at..bytes.len().min(at + len)];
            let path = format!("tree/{path}");
            read(&grid, &[&path, "--range", &range_of(at, len)], expected)?;
        }
    }
    let big = fs::read(tree.join("big"))?;
    let report = read(&grid, &["./tree/sub/same"], &big)?;
    ensure!(
        report["version"] == 3 && report["path"] == "tree/big",
        "{report}"
    );
    read(&grid, &["tree/big", "--range", "1MiB:"], &big[MIB..])?;
    let beyond = format!("{}:5", big.len());
    read(&grid, &["tree/big", "--range", &beyond], b"")?;
    read(&grid, &["tree/big", "--range", "7:0"], b"")?;
    Ok(())
}

/// Reads parts while two of five hosts are dead and one lies. The checkpoint has three parity shards.
fn read_beside_a_liar(lie: Lie) -> Result<()> {
    let mut grid = MixedGrid::up(4, 1)?;
    let mut bytes = noise(5 * MIB, 7);
    for _ in 0..2 {
        bytes[3 * MIB + 5] ^= 1;
        fs::write(grid.path("f"), &bytes)?;
        let save = ["save", "--job", "42", "--data", "2", "--parity", "3", "f"];
        grid.run(save)?.expect(0)?;
    }
    grid.stop("h01");
    grid.stop("h03");
    grid.lie(lie);
    for (at, len) in [(3 * MIB, 4096), (MIB - 9, 3 * MIB)] {
        let range = range_of(at, len);
        let read = grid.run(["cat", "--job", "42", "f", "--range", &range])?;
        let read = read.expect(0)?;
        ensure!(read.stdout == bytes[at..at + len], "{lie:?}: {at}");
    }
    Ok(())
}

#[test]
fn two_dead_hosts_and_one_that_lies_change_no_byte() -> Result<()> {
    let lies = [
        Lie::FlipsBits,
        Lie::SwapsBlocks,
        Lie::Truncates,
        Lie::IsSilent,
        Lie::HangsUpAt(Kind::Rows),
    ];
    thread::scope(|scope| {
        let running: Vec<_> = lies
            .iter()
            .map(|lie| scope.spawn(|| read_beside_a_liar(*lie)))
            .collect();
        for thread in running {
            thread.join().unwrap_or_else(|_| anyhow::bail!("panic"))?;
        }
        Ok(())
    })
}

#[test]
fn with_too_few_good_hosts_a_read_fails_in_bounded_time_and_writes_nothing_wrong() -> Result<()> {
    let mut grid = MixedGrid::up(4, 1)?;
    fs::write(grid.path("f"), noise(3 * MIB, 7))?;
    grid.run(["save", "--job", "42", "f"])?.expect(0)?;
    grid.stop("h01");
    grid.stop("h03");
    grid.lie(Lie::FlipsBits);
    let begun = Instant::now();
    let read = grid.run(["--json", "cat", "--job", "42", "f"])?.expect(5)?;
    ensure!(
        read.stdout.is_empty(),
        "bytes of a segment that is not whole"
    );
    let failure: Value = serde_json::from_str(&read.stderr).context(read.stderr)?;
    ensure!(failure["exit_code"] == 5, "{failure}");
    ensure!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
    Ok(())
}

#[test]
fn a_reader_that_closes_its_end_early_ends_cat_quietly() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = noise(24 * MIB, 1);
    fs::write(grid.path("f"), &bytes)?;
    grid.run(["save", "--job", "42", "f"])?.expect(0)?;
    let mut cat = grid.command(["--json", "--memory", "16MiB", "cat", "--job", "42"])?;
    let mut child = cat.spawn()?;
    let mut stdout = child.stdout.take().context("stdout")?;
    let mut first = vec![0; 1000];
    stdout.read_exact(&mut first)?;
    drop(stdout);
    let ended = wait(child)?.expect(0)?;
    ensure!(first == bytes[..1000]);
    let report: Value = serde_json::from_str(&ended.stderr)?;
    ensure!(report["complete"] == false, "{report}");
    let fetched = report["fetched_bytes"].as_u64().context("fetched")?;
    ensure!(
        fetched < bytes.len() as u64,
        "it stopped fetching: {report}"
    );
    Ok(())
}

fn refused(grid: &Grid, args: &[&str], status: i32, says: &str) -> Result<Outcome> {
    let mut command = vec!["--json", "cat", "--job"];
    command.extend(args);
    let refused = grid.run(command)?.expect(status)?;
    ensure!(refused.stdout.is_empty(), "{refused}");
    let failure: Value = serde_json::from_str(&refused.stderr)?;
    let message = failure["error"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains(says), "{failure}");
    Ok(refused)
}

#[test]
fn cat_says_why_there_is_nothing_to_read() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::create_dir(grid.path("dir"))?;
    fs::write(grid.path("dir/a"), b"one")?;
    symlink("a", grid.path("dir/link"))?;
    grid.run(["save", "--job", "42", "dir"])?.expect(0)?;
    grid.run(["save", "--job", "s", "--", "printf", "0123456789"])?
        .expect(0)?;
    refused(&grid, &["none", "x"], 4, "no checkpoint")?;
    refused(&grid, &["42", "dir/b"], 4, "has no file \"dir/b\"")?;
    refused(&grid, &["42", "dir/a", "--version", "7"], 4, "version 7")?;
    refused(&grid, &["42", "dir"], 2, "is a directory")?;
    refused(&grid, &["42", "dir/link"], 2, "symbolic link")?;
    refused(&grid, &["42"], 2, "name one of them")?;
    let stream = grid
        .run(["cat", "--job", "s", "--range", "3:4"])?
        .expect(0)?;
    ensure!(stream.stdout == b"3456", "{stream}");
    grid.run(["cat", "--job", "42", "dir/a", "--range", "4"])?
        .expect(2)?;
    let full = fs::File::create("/dev/full")?;
    let mut cat = grid.command(["cat", "--job", "42", "dir/a"])?;
    let full = wait(cat.stdout(full).spawn()?)?.expect(8)?;
    ensure!(full.stderr.contains("cannot write"), "{full}");
    Ok(())
}

#[test]
fn files_can_be_saved_under_other_names_and_jobs_listed_by_prefix() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("a"), b"one")?;
    fs::write(grid.path("b=c"), b"two")?;
    symlink("a", grid.path("link"))?;
    let save = [
        "save",
        "--job",
        "run/1",
        "a=out/first",
        "b=c",
        "b=c=out/x=y",
    ];
    grid.run(save)?.expect(0)?;
    grid.run(["restore", "--job", "run/1", "-o", "back"])?
        .expect(0)?;
    for (path, text) in [("out/first", "one"), ("b=c", "two"), ("out/x=y", "two")] {
        ensure!(
            fs::read_to_string(grid.path("back").join(path))? == text,
            "{path}"
        );
    }
    let read = grid
        .run(["cat", "--job", "run/1", "out/first"])?
        .expect(0)?;
    ensure!(read.stdout == b"one");
    for (args, says) in [
        (["a=x", "b=c=x"], "cannot be stored together"),
        (["a=x", "b=c=x/y"], "cannot be stored together"),
        (["a=x", "link=y"], "is a symbolic link"),
        (["a=x", "b=c=../y"], "a name is a relative path"),
    ] {
        let refused = grid.run(["save", "--job", "run/1"].iter().chain(&args))?;
        let refused = refused.expect(2)?;
        ensure!(refused.stderr.contains(says), "{refused}");
    }
    ensure!(grid.versions("run/1")? == [1], "nothing was committed");

    grid.run(["save", "--job", "run/2", "a=b"])?.expect(0)?;
    grid.run(["save", "--job", "other", "a"])?.expect(0)?;
    for (prefix, jobs) in [
        ("run/", &["run/1", "run/2"][..]),
        ("r", &["run/1", "run/2"]),
        ("run/2", &["run/2"]),
        ("x", &[]),
    ] {
        let listed = grid.run(["--json", "list", "--prefix", prefix])?;
        let listed = listed.expect(0)?.json()?;
        let all = listed["checkpoints"].as_array().context("checkpoints")?;
        let found: Vec<_> = all.iter().filter_map(|one| one["job"].as_str()).collect();
        ensure!(found == jobs, "{prefix}: {listed}");
    }
    grid.run(["list", "--prefix", "run/", "--job", "other"])?
        .expect(2)?;
    // A job key for the jobs whose names begin with `run/` can list them.
    grid.run(["key", "for-job", "--job", "run/", "-o", "run.key"])?
        .expect(0)?;
    let mut list = grid.command(["--json", "list", "--prefix", "run/2"])?;
    let listed = wait(list.env("CKPT_KEY_FILE", grid.path("run.key")).spawn()?)?;
    let listed = listed.expect(0)?.json()?;
    ensure!(listed["checkpoints"][0]["job"] == "run/2", "{listed}");
    Ok(())
}

/// What each command reports of a job without a checkpoint: its status, by how many hosts are silent.
fn of_no_checkpoint(grid: &Grid, status: i32) -> Result<()> {
    let refused = |command: &str, more: &[&str]| -> Result<()> {
        let args = [command, "--job", "none"];
        let failed = grid.run(args.iter().chain(more))?.expect(status)?;
        ensure!(failed.stderr.contains("no checkpoint found"), "{failed}");
        ensure!(failed.stderr.contains("no answer"), "{failed}");
        Ok(())
    };
    thread::scope(|scope| {
        let reads = ["show", "verify", "list", "touch", "cat", "restore"];
        let reads = reads.map(|command| scope.spawn(move || refused(command, &[])));
        let forgotten = refused("forget", &["--all"]);
        let ended = reads.map(|read| read.join().unwrap_or_else(|_| bail!("a test panicked")));
        ended.into_iter().chain([forgotten]).collect()
    })
}

#[test]
fn silence_leaves_open_whether_a_job_has_versions_only_if_enough_hosts_are_silent() -> Result<()> {
    let grid = Grid::up(8)?;
    grid.kill("h01")?;
    grid.kill("h02")?;
    of_no_checkpoint(&grid, 4)?;
    grid.kill("h03")?;
    of_no_checkpoint(&grid, 5)
}
