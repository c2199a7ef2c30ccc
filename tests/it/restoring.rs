//! Where a restore writes, what it replaces, what it leaves behind when it is killed, and restores of some
//! files.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::program::{run, wait, wait_until};
use tests::skip::not_checked;
use tests::{Grid, Outcome, image};

use crate::save_file;

const LIMIT: Duration = Duration::from_secs(60);

/// Names of the files in a directory, sorted.
fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into()));
    let mut names = entries.collect::<Result<Vec<String>>>()?;
    names.sort();
    Ok(names)
}

/// Saves a directory tree as job `tree` and returns its path.
fn save_tree(grid: &Grid) -> Result<std::path::PathBuf> {
    let tree = grid.path("dump");
    fs::create_dir_all(tree.join("sub/deep"))?;
    fs::write(tree.join("a.log"), image::memory(3 << 20, 1))?;
    fs::write(tree.join("sub/b.log"), image::memory(2 << 20, 2))?;
    fs::write(tree.join("sub/deep/c"), b"small")?;
    fs::hard_link(tree.join("a.log"), tree.join("sub/link"))?;
    grid.run(["save", "--job", "tree", "dump"])?.expect(0)?;
    Ok(tree)
}

#[test]
fn a_directory_is_restored_into_and_never_replaced_by_a_file() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "f", b"new")?;
    fs::create_dir(grid.path("victim"))?;
    fs::write(grid.path("victim/p"), b"precious")?;
    for target in ["victim/", "victim"] {
        let restore = ["--json", "restore", "--job", "f", "--force", "-o", target];
        let report = grid.run(restore)?.expect(0)?.json()?;
        let wrote = report["target"].as_str().context("target")?;
        ensure!(wrote == "victim/f.img", "{report}");
        ensure!(fs::read(grid.path("victim/p"))? == b"precious");
        ensure!(fs::read(grid.path("victim/f.img"))? == b"new");
    }
    // A file that exists is replaced only with --force, and a directory never by a file.
    let again = grid
        .run(["restore", "--job", "f", "-o", "victim"])?
        .expect(8)?;
    ensure!(again.stderr.contains("--force"), "{again}");
    fs::remove_file(grid.path("victim/f.img"))?;
    fs::create_dir(grid.path("victim/f.img"))?;
    let refused = grid
        .run(["restore", "--job", "f", "--force", "-o", "victim"])?
        .expect(8)?;
    ensure!(refused.stderr.contains("is a directory"), "{refused}");
    ensure!(grid.path("victim/f.img").is_dir());

    let null = grid
        .run(["restore", "--job", "f", "--force", "-o", "/dev/null"])?
        .expect(8)?;
    ensure!(null.stderr.contains("is a device"), "{null}");
    ensure!(fs::metadata("/dev/null")?.file_type().is_char_device());
    grid.run(["restore", "--job", "f", "-o", "missing/"])?
        .expect(2)?;
    Ok(())
}

#[test]
fn a_tree_goes_into_an_empty_directory_and_replaces_the_one_of_its_name() -> Result<()> {
    let grid = Grid::up(5)?;
    let tree = save_tree(&grid)?;
    fs::create_dir(grid.path("empty"))?;
    grid.run(["restore", "--job", "tree", "-o", "empty"])?
        .expect(0)?;
    image::same(&tree, &grid.path("empty/dump"))?;
    ensure!(names(&grid.path("empty"))? == ["dump"]);

    let copy = grid.path("empty/dump");
    fs::write(copy.join("a.log"), b"old")?;
    grid.run(["restore", "--job", "tree", "-o", "empty/dump"])?
        .expect(8)?;
    grid.run(["restore", "--job", "tree", "--force", "-o", "empty/dump"])?
        .expect(0)?;
    image::same(&tree, &copy)?;
    // A directory with another name is not replaced: the tree goes into it.
    fs::create_dir(grid.path("other"))?;
    fs::write(grid.path("other/p"), b"precious")?;
    grid.run(["restore", "--job", "tree", "--force", "-o", "other"])?
        .expect(0)?;
    ensure!(names(&grid.path("other"))? == ["dump", "p"]);
    // A file is not replaced by a tree.
    fs::write(grid.path("plain"), b"precious")?;
    grid.run(["restore", "--job", "tree", "--force", "-o", "plain"])?
        .expect(8)?;
    ensure!(fs::read(grid.path("plain"))? == b"precious");
    Ok(())
}

#[test]
fn json_is_never_on_standard_output_beside_the_image() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = image::memory(3 << 20, 1);
    save_file(&grid, "f", &bytes)?;
    let streamed = grid
        .run(["--json", "restore", "--job", "f", "-o", "-"])?
        .expect(0)?;
    ensure!(streamed.stdout == bytes);
    let report: Value = serde_json::from_str(&streamed.stderr)?;
    ensure!(
        report["target"] == "-" && report["version"] == 1,
        "{report}"
    );

    grid.run(["save", "--job", "s", "--", "echo", "stream"])?
        .expect(0)?;
    let streamed = grid.run(["--json", "restore", "--job", "s"])?.expect(0)?;
    ensure!(streamed.stdout == b"stream\n", "{streamed}");
    let report: Value = serde_json::from_str(&streamed.stderr)?;
    ensure!(report["job"] == "s", "{report}");

    let missing = grid
        .run(["--json", "restore", "--job", "none", "-o", "-"])?
        .expect(4)?;
    ensure!(missing.stdout.is_empty(), "{missing}");
    let failure: Value = serde_json::from_str(&missing.stderr)?;
    ensure!(failure["exit_code"] == 4, "{failure}");
    Ok(())
}

/// Begins a slow restore to `out` in the directory `scratch`, and waits until it has restored some bytes.
fn begin_slowly(grid: &Grid, job: &str) -> Result<Child> {
    let mut restore = grid.command(["--bandwidth", "1MiB", "--progress", "json", "restore"])?;
    restore.args(["--job", job, "-o", "scratch/out"]);
    let mut child = restore.stderr(Stdio::piped()).spawn()?;
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(
        child.stderr.take().context("stderr")?,
    ));
    for line in &mut lines {
        let event: Value = serde_json::from_str(&line?)?;
        if event["done_bytes"].as_u64() > Some(0) {
            return Ok(child);
        }
    }
    anyhow::bail!("no progress")
}

#[test]
fn a_killed_restore_leaves_nothing_that_the_next_one_does_not_remove() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "f", &noise(24 << 20, 1))?;
    let tree = grid.path("dump");
    fs::create_dir_all(tree.join("sub"))?;
    for number in 0..4 {
        fs::write(tree.join(format!("sub/{number}")), noise(6 << 20, number))?;
    }
    grid.run(["save", "--job", "tree", "dump"])?.expect(0)?;
    let scratch = grid.path("scratch");
    fs::create_dir(&scratch)?;

    // If the file system has unnamed files, a file gets its name only when it is whole.
    let mut child = begin_slowly(&grid, "f")?;
    let has_unnamed = names(&scratch)?.is_empty();
    child.kill()?;
    child.wait()?;
    eprintln!("unnamed files: {has_unnamed}");
    ensure!(names(&scratch)?.is_empty() == has_unnamed);

    let mut child = begin_slowly(&grid, "tree")?;
    let living = names(&scratch)?;
    ensure!(!living.is_empty(), "a tree is made under another name");
    // Another restore into the same directory does not touch the running one's files.
    save_file(&grid, "small", b"small")?;
    grid.run(["restore", "--job", "small", "-o", "scratch/small"])?
        .expect(0)?;
    ensure!(names(&scratch)?.iter().any(|name| living.contains(name)));
    child.kill()?;
    child.wait()?;
    ensure!(names(&scratch)?.len() > 1, "killed: it could not clean up");
    grid.run([
        "restore",
        "--job",
        "small",
        "--force",
        "-o",
        "scratch/small",
    ])?
    .expect(0)?;
    ensure!(names(&scratch)? == ["small"]);
    grid.run(["restore", "--job", "tree", "-o", "scratch/out"])?
        .expect(0)?;
    image::same(&tree, &scratch.join("out"))?;
    ensure!(names(&scratch)? == ["out", "small"]);
    Ok(())
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    let mut bytes = vec![0; len];
    SmallRng::seed_from_u64(seed).fill(bytes.as_mut_slice());
    bytes
}

/// Runs `ckpt` with this limit of `ulimit`.
fn limited(grid: &Grid, limit: &str, args: &[&str]) -> Result<Outcome> {
    let mut shell = std::process::Command::new("sh");
    let script = format!("ulimit {limit} && exec \"$@\"");
    shell
        .args(["-c", &script, "sh"])
        .arg(tests::ckpt()?)
        .args(args);
    shell
        .env("CKPT_GRID", grid.file())
        .env("CKPT_STATE_DIR", grid.path("state"))
        .current_dir(grid.dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    run(&mut shell)
}

#[test]
fn a_limit_for_the_length_of_files_is_an_error_that_leaves_nothing() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "f", &noise(4 << 20, 1))?;
    fs::create_dir(grid.path("scratch"))?;
    let restore = ["restore", "--job", "f", "-o", "scratch/out"];
    let ended = limited(&grid, "-f 100", &restore)?.expect(8)?;
    ensure!(ended.stderr.contains("too large"), "{ended}");
    ensure!(names(&grid.path("scratch"))?.is_empty());
    Ok(())
}

#[test]
fn a_limit_of_the_address_space_is_kept_or_named_in_the_error() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = noise(40 << 20, 1);
    save_file(&grid, "f", &bytes)?;
    let said = limited(&grid, "-v 200000", &["restore", "--job", "f", "-o", "out"])?.expect(8)?;
    ensure!(
        said.stderr.contains("--memory") && said.stderr.contains("ulimit -v"),
        "{said}"
    );
    let cpus = std::thread::available_parallelism()?.get();
    let enough = format!("-v {}", (256 + 96 * cpus + 150) * 1024);
    limited(&grid, &enough, &["restore", "--job", "f", "-o", "out"])?.expect(0)?;
    ensure!(fs::read(grid.path("out"))? == bytes);
    let file = grid.path("f.img");
    let file = file.to_str().context("path")?;
    limited(&grid, &enough, &["save", "--job", "g", file])?.expect(0)?;
    let much = ["--memory", "1GiB", "save", "--job", "g", file];
    let said = limited(&grid, &enough, &much)?.expect(8)?;
    ensure!(said.stderr.contains("try: --memory"), "{said}");
    Ok(())
}

#[test]
fn some_files_are_restored_without_the_others() -> Result<()> {
    let grid = Grid::up(5)?;
    let tree = save_tree(&grid)?;
    let json = |args: &[&str]| -> Result<Value> {
        let restore = ["--json", "restore", "--job", "tree"];
        grid.run(restore.iter().chain(args))?.expect(0)?.json()
    };
    let all = json(&["-o", "all"])?["fetched_bytes"]
        .as_u64()
        .context("bytes")?;
    let some = json(&["--path", "dump/sub/b.log", "-o", "b"])?;
    ensure!(fs::read(grid.path("b"))? == fs::read(tree.join("sub/b.log"))?);
    ensure!(
        some["files"] == 1 && some["image_bytes"] == 2 << 20,
        "{some}"
    );
    ensure!(
        some["fetched_bytes"].as_u64() < Some(all * 3 / 4),
        "{some} of {all}"
    );

    // A hard link is restored as a file if the path that it links to is not restored.
    json(&["--path", "dump/sub/link", "-o", "link"])?;
    ensure!(fs::read(grid.path("link"))? == fs::read(tree.join("a.log"))?);
    json(&["--path", "dump/sub", "-o", "sub"])?;
    ensure!(names(&grid.path("sub"))? == ["b.log", "deep", "link"]);
    for file in ["sub/b.log", "sub/deep/c", "sub/link"] {
        ensure!(
            fs::read(grid.path(file))? == fs::read(tree.join(file))?,
            "{file}"
        );
    }
    json(&["--path", "dump/*.log", "--path", "dump/**/c", "-o", "logs"])?;
    ensure!(names(&grid.path("logs"))? == ["a.log", "sub"]);
    ensure!(names(&grid.path("logs/sub"))? == ["deep"]);
    ensure!(fs::read(grid.path("logs/sub/deep/c"))? == b"small");
    ensure!(fs::read(grid.path("logs/a.log"))? == fs::read(tree.join("a.log"))?);
    let streamed = grid
        .run([
            "restore",
            "--job",
            "tree",
            "--path",
            "dump/sub/deep/c",
            "-o",
            "-",
        ])?
        .expect(0)?;
    ensure!(streamed.stdout == b"small");

    let missing = grid
        .run(["restore", "--job", "tree", "--path", "dump/x", "-o", "x"])?
        .expect(4)?;
    ensure!(
        missing.stderr.contains("dump/x") && !grid.path("x").exists(),
        "{missing}"
    );
    Ok(())
}

/// The files are stored as patches of an earlier version, and as copies of each other.
#[test]
fn files_that_build_on_others_are_restored_alone() -> Result<()> {
    let grid = Grid::up(5)?;
    let tree = grid.path("ranks");
    fs::create_dir(&tree)?;
    let common = noise(5 << 20, 7);
    let rank = |number: u8, version: u8| {
        let mut bytes = common.clone();
        bytes[usize::from(number) * 100_000] ^= 1;
        bytes[3_000_000 + usize::from(version)] ^= 1;
        bytes
    };
    for version in 0..2 {
        for number in 0..3 {
            fs::write(tree.join(format!("{number}")), rank(number, version))?;
        }
        let saved = grid
            .run(["--json", "save", "--job", "r", "ranks"])?
            .expect(0)?;
        ensure!(
            saved.json()?["stored_bytes"].as_u64() < Some(8 << 20),
            "{saved}"
        );
    }
    let saved = grid.run(["--json", "list", "--job", "r"])?.expect(0)?;
    for number in 0..3 {
        let path = format!("ranks/{number}");
        let out = format!("out-{number}");
        grid.run(["restore", "--job", "r", "--path", &path, "-o", &out])?
            .expect(0)?;
        ensure!(
            fs::read(grid.path(&out))? == rank(number, 1),
            "{number}: {saved}"
        );
        let old = format!("old-{number}");
        grid.run([
            "restore",
            "--job",
            "r",
            "--version",
            "1",
            "--path",
            &path,
            "-o",
            &old,
        ])?
        .expect(0)?;
        ensure!(
            fs::read(grid.path(&old))? == rank(number, 0),
            "{number}: {saved}"
        );
    }
    Ok(())
}

#[test]
fn a_dry_run_says_what_would_be_fetched_and_does_nothing() -> Result<()> {
    let grid = Grid::up(5)?;
    save_tree(&grid)?;
    let dry = |args: &[&str]| -> Result<Value> {
        let restore = ["--json", "restore", "--job", "tree", "--dry-run"];
        grid.run(restore.iter().chain(args))?.expect(0)?.json()
    };
    let planned = dry(&["-o", "out"])?;
    ensure!(!grid.path("out").exists());
    ensure!(
        planned["dry_run"] == true && planned["version"] == 1,
        "{planned}"
    );
    ensure!(
        planned["target"] == "out" && planned["seconds"].as_f64() > Some(0.0),
        "{planned}"
    );
    ensure!(
        planned["sources"].as_array().map(Vec::len) == Some(3),
        "{planned}"
    );
    let real = ["--json", "restore", "--job", "tree", "-o", "out"];
    let real = grid.run(real)?.expect(0)?.json()?;
    ensure!(real["dry_run"] == false, "{real}");
    let bytes = |report: &Value| report["fetched_bytes"].as_f64().context("bytes");
    // The plan counts the index as well, so its number of bytes may differ a little.
    let ratio = bytes(&planned)? / bytes(&real)?;
    ensure!((0.9..1.2).contains(&ratio), "{planned} {real}");
    let part = dry(&["--path", "dump/sub/b.log", "-o", "b"])?;
    ensure!(bytes(&part)? < bytes(&planned)? * 0.75, "{part} {planned}");

    let text = grid
        .run(["restore", "--job", "tree", "--dry-run", "-o", "new"])?
        .expect(0)?;
    ensure!(
        String::from_utf8_lossy(&text.stdout).contains("would be fetched"),
        "{text}"
    );
    // A dry run fails where the restore would fail.
    fs::write(grid.path("dump2"), b"there")?;
    grid.run(["restore", "--job", "tree", "--dry-run", "-o", "dump2"])?
        .expect(8)?;
    grid.run(["restore", "--job", "none", "--dry-run"])?
        .expect(4)?;
    Ok(())
}

#[test]
fn a_missing_job_is_an_error_of_list_show_verify_and_touch() -> Result<()> {
    let grid = Grid::up(5)?;
    for command in ["list", "show", "verify", "touch"] {
        let missing = grid.run([command, "--job", "none"])?.expect(4)?;
        ensure!(missing.stderr.contains("no checkpoint"), "{missing}");
    }
    grid.run(["list"])?.expect(0)?;
    Ok(())
}

#[test]
fn job_names_neither_leave_the_directory_nor_count_as_options() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("a"), b"a")?;
    fs::write(grid.path("b"), b"b")?;
    for name in [".", "..", "a/..", "./a"] {
        grid.run(["save", "--job", name, "a"])?.expect(2)?;
    }
    grid.run(["save", "--job=-j", "a", "b"])?.expect(0)?;
    grid.run(["restore", "--job=-j"])?.expect(0)?;
    ensure!(names(&grid.path("%2Dj"))? == ["a", "b"]);
    Ok(())
}

/// `--force` replaces neither a pipe nor a device, also if a user made it.
#[test]
fn devices_and_pipes_of_a_user_are_not_replaced() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "f", b"new")?;
    for (kind, args) in [("p", &[][..]), ("c", &["1", "3"][..])] {
        let node = grid.path(kind);
        let mut mknod = std::process::Command::new("mknod");
        if !mknod.arg(&node).arg(kind).args(args).status()?.success() {
            not_checked(
                &format!("a restore onto a node of kind {kind}"),
                "mknod is refused",
            )?;
            continue;
        }
        let before = fs::symlink_metadata(&node)?.ino();
        grid.run(["restore", "--job", "f", "--force", "-o", kind])?
            .expect(8)?;
        ensure!(fs::symlink_metadata(&node)?.ino() == before);
    }
    Ok(())
}

/// A daemon that was stopped does not wait for its next round to ask others what was deleted meanwhile.
#[test]
fn a_daemon_that_was_stopped_deletes_within_30_s_what_was_deleted_meanwhile() -> Result<()> {
    use rustix::process::Signal;
    let grid = Grid::up_in(5, &[("RUST_LOG", "ckpt_store=debug")])?;
    save_file(&grid, "42", &image::memory(100_000, 1))?;
    let asleep = grid.holders("42")?[0].clone();
    let log = grid.data_dir(&asleep).join("log");
    // The daemon's next round begins only five minutes later.
    wait_until("the first look is over", LIMIT, || {
        Ok(fs::read_to_string(&log)?.contains("checked the held checkpoints"))
    })?;
    let began = Instant::now();
    grid.signal(&asleep, Signal::STOP)?;
    grid.run(["forget", "--job", "42", "--all"])?.expect(3)?;
    // The daemon is stopped for long enough to notice it.
    wait_until("time passes", LIMIT, || {
        Ok(began.elapsed() > Duration::from_secs(8))
    })?;
    grid.signal(&asleep, Signal::CONT)?;
    wait_until("the shard is gone", Duration::from_secs(30), || {
        Ok(grid.shard_files(&asleep)?.is_empty())
    })
}

/// Two hosts miss the removal of a superseded version; no command shows that version afterwards.
#[test]
fn versions_superseded_while_hosts_were_away_are_not_shown() -> Result<()> {
    use rustix::process::Signal;
    let grid = Grid::up(7)?;
    let save = |number: u64| -> Result<()> {
        fs::write(grid.path("image"), image::memory(100_000, number))?;
        let save = ["save", "--job", "mid", "--keep", "1", "--full", "image"];
        grid.run(save)?.expect(0)?;
        Ok(())
    };
    let mut number = 0;
    for round in 0..3_usize {
        number += 1;
        save(number)?;
        let holders = grid.holders("mid")?;
        let away: Vec<_> = holders.iter().skip(round).take(2).collect();
        for host in &away {
            grid.signal(host, Signal::STOP)?;
        }
        number += 1;
        save(number)?;
        for host in &away {
            grid.kill(host)?;
        }
        grid.restart()?;
        let shown = grid.run(["--json", "list"])?.expect(0)?.json()?;
        let all = shown["checkpoints"].as_array().context("checkpoints")?;
        let versions: Vec<_> = all
            .iter()
            .filter_map(|one| one["version"].as_u64())
            .collect();
        ensure!(versions == [number], "{shown}");
        ensure!(grid.versions("mid")? == [number]);
        let shown = grid
            .run(["--json", "show", "--job", "mid"])?
            .expect(0)?
            .json()?;
        ensure!(shown["version"] == number, "{shown}");
        let verified = grid.run(["--json", "verify"])?.expect(0)?.json()?;
        let all = verified["checkpoints"].as_array().context("checkpoints")?;
        ensure!(
            all.len() == 1 && verified["gaps"] == serde_json::json!([]),
            "{verified}"
        );
    }
    Ok(())
}

#[test]
fn an_interrupted_stream_is_not_followed_by_an_older_version() -> Result<()> {
    let grid = Grid::up(3)?;
    // What a host has sent when it dies arrives: a shard is larger than all that can be on the way.
    let length = 96 << 20;
    for seed in 1..=2 {
        fs::write(grid.path("image"), noise(length, seed))?;
        grid.run("save --job s --data 3 --parity 0 --full image".split(' '))?
            .expect(0)?;
    }
    let mut restore = grid.command(["--json", "--bandwidth", "8MiB", "restore", "--job", "s"])?;
    let mut child = restore.args(["-o", "-"]).spawn()?;
    let mut out = child.stdout.take().context("stdout")?;
    let mut first = [0; 1 << 20];
    std::io::Read::read_exact(&mut out, &mut first)?;
    grid.kill("h01")?;
    let reading = std::thread::spawn(move || {
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut out, &mut rest).map(|_| rest)
    });
    let ended = wait(child)?;
    let rest = reading
        .join()
        .map_err(|_| anyhow::anyhow!("reading failed"))??;
    ensure!(ended.code == Some(7) || ended.code == Some(5), "{ended}");
    let all = [&first[..], &rest].concat();
    ensure!(noise(length, 2).starts_with(&all), "{} bytes", all.len());
    let failure: Value = serde_json::from_str(ended.stderr.lines().last().context("said")?)?;
    ensure!(
        failure["error"]["message"]
            .to_string()
            .contains("standard output"),
        "{failure}"
    );
    Ok(())
}

#[test]
fn a_dry_run_refuses_the_targets_that_the_restore_refuses() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", b"image")?;
    fs::write(grid.path("there"), b"old")?;
    let restore = ["--json", "restore", "--job", "42", "-o"];
    let with = |more: &[&str]| grid.run([&restore[..], more].concat());
    let dry = with(&["there", "--dry-run"])?.expect(8)?.json()?;
    let real = with(&["there"])?.expect(8)?.json()?;
    assert_eq!(dry, real);
    with(&["there", "--dry-run", "--force"])?.expect(0)?;
    with(&["free", "--dry-run"])?.expect(0)?;
    assert_eq!(fs::read(grid.path("there"))?, b"old");
    assert!(!grid.path("free").exists());
    Ok(())
}
