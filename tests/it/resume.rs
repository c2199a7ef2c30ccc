//! Saves that are killed, and the saves after them, which send only what the killed ones had not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::cluster::Cluster;
use tests::liar::{Hoard, Lie};
use tests::program::wait_until;
use tests::{Grid, image};

pub(crate) const MIB: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);

/// How much of the image a killed save is to have sent.
const SENT: usize = 80;

/// Bytes that are being received by a host.
fn incoming(grid: &Grid, host: &str) -> u64 {
    incoming_in(&grid.data_dir(host))
}

fn incoming_in(data: &Path) -> u64 {
    let entries = fs::read_dir(data.join("incoming"));
    let sizes = entries.into_iter().flatten().flatten();
    let sizes = sizes.filter_map(|entry| Some(entry.metadata().ok()?.len()));
    sizes.sum()
}

/// The same, and those of shards that it holds.
fn received(grid: &Grid, host: &str) -> Result<u64> {
    let shards = grid.shard_files(host)?.into_iter();
    let sizes = shards.filter_map(|path| Some(fs::metadata(path).ok()?.len()));
    Ok(sizes.sum::<u64>() + incoming(grid, host))
}

/// Begins a slow save of job 42 and kills it when each host that takes part has `percent` of its shard of an image of so
/// many bytes.
pub(crate) fn killed_at(grid: &Grid, args: &[&str], bytes: usize, percent: usize) -> Result<()> {
    // With little memory no host is far ahead of another.
    let slow = [
        "--memory",
        "64MiB",
        "--bandwidth",
        "30MiB",
        "save",
        "--job",
        "42",
    ];
    let mut command = grid.command(slow.iter().chain(args))?;
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // Rows of saves that were killed before.
    let hosts = grid.running()?;
    let before = hosts.iter().map(|(host, _)| received(grid, host));
    let before: Vec<u64> = before.collect::<Result<_>>()?;
    let mut child: Child = command.spawn()?;
    let wanted = (bytes * percent / 300) as u64;
    let sent = wait_until("a part is sent", LIMIT, || {
        ensure!(child.try_wait()?.is_none(), "it is whole already");
        let hosts = hosts.iter().zip(&before);
        let has = |((host, _), before): &(&(String, _), &u64)| {
            received(grid, host).is_ok_and(|bytes| bytes >= *before + wanted)
        };
        Ok(hosts.filter(has).count() >= 5)
    });
    child.kill()?;
    child.wait()?;
    sent
}

/// Saves job 42 and returns the report.
fn save(grid: &Grid, args: &[&str]) -> Result<Value> {
    let all = ["--json", "save", "--job", "42"];
    grid.run(all.iter().chain(args))?.expect(0)?.json()
}

fn restored(grid: &Grid, version: &Value) -> Result<Vec<u8>> {
    let version = version.to_string();
    let args = ["restore", "--job", "42", "--version", &version, "--force"];
    grid.run(args.iter().chain(&["-o", "out"]))?.expect(0)?;
    Ok(fs::read(grid.path("out"))?)
}

fn number(report: &Value, field: &str) -> Result<u64> {
    report[field].as_u64().with_context(|| format!("{report}"))
}

/// Checks that a save sent at most `percent` of an image of so many bytes.
fn sent_at_most(report: &Value, percent: u64, bytes: usize) -> Result<()> {
    let stored = number(report, "stored_bytes")?;
    ensure!(stored * 100 <= bytes as u64 * percent, "{report}");
    let resumed = number(report, "resumed_bytes")?;
    ensure!(resumed * 100 >= bytes as u64 * (100 - percent), "{report}");
    Ok(())
}

/// What this machine keeps of saves.
fn journals(grid: &Grid) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut dirs = vec![grid.path("")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)?.flatten() {
            let path = entry.path();
            match path.extension().and_then(|one| one.to_str()) {
                _ if path.is_dir() => dirs.push(path),
                Some("journal" | "remnant") => found.push(path),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// The versions of job 42, without what is kept for the rows alone.
fn versions(grid: &Grid) -> Result<Vec<u64>> {
    let listed = grid.run(["--json", "list", "--job", "42"])?;
    if listed.code == Some(4) {
        return Ok(Vec::new());
    }
    let listed = listed.json()?;
    let all = listed["checkpoints"].as_array().context("no checkpoints")?;
    let versions = all.iter().filter(|one| one["kept_for"].is_null());
    Ok(versions.filter_map(|one| one["version"].as_u64()).collect())
}

#[test]
fn a_killed_save_serves_the_next_one() -> Result<()> {
    let grid = Grid::up(5)?;
    let file = image::noise(128 * MIB, 1);
    fs::write(grid.path("image"), &file)?;
    killed_at(&grid, &["image"], file.len(), SENT)?;
    ensure!(versions(&grid)?.is_empty());
    let resumed = save(&grid, &["image"])?;
    sent_at_most(&resumed, 25, file.len())?;
    ensure!(number(&resumed, "can_lose")? == 2, "{resumed}");
    ensure!(restored(&grid, &resumed["version"])? == file);
    ensure!(journals(&grid)?.is_empty(), "{:?}", journals(&grid)?);
    // Nothing of it is a version, and the next version builds on both.
    let first = number(&resumed, "version")?;
    ensure!(versions(&grid)? == [first]);
    let mut newer = file.clone();
    newer[..MIB].fill(7);
    fs::write(grid.path("image"), &newer)?;
    let next = save(&grid, &["image"])?;
    ensure!(next["base"] == first, "{next}");
    ensure!(number(&next, "stored_bytes")? < 3 * MIB as u64, "{next}");
    ensure!(restored(&grid, &next["version"])? == newer);
    ensure!(restored(&grid, &resumed["version"])? == file);
    grid.run(["verify", "--job", "42", "--read-data"])?
        .expect(0)?;
    Ok(())
}

#[test]
fn a_save_of_another_image_after_a_killed_one_is_right() -> Result<()> {
    let grid = Grid::up(5)?;
    let file = image::noise(96 * MIB, 1);
    fs::write(grid.path("image"), &file)?;
    killed_at(&grid, &["image"], file.len(), SENT)?;
    // Bytes were changed, put in, taken out, and moved.
    let mut changed = file.clone();
    changed[10 * MIB..11 * MIB].copy_from_slice(&image::noise(MIB, 7));
    changed.splice(30 * MIB..30 * MIB, image::noise(12_345, 8));
    changed.drain(50 * MIB..50 * MIB + 54_321);
    let tail = changed.split_off(80 * MIB);
    changed.extend(image::noise(3 * MIB, 9));
    changed.extend(tail);
    fs::write(grid.path("image"), &changed)?;
    let resumed = save(&grid, &["image"])?;
    sent_at_most(&resumed, 40, changed.len())?;
    ensure!(restored(&grid, &resumed["version"])? == changed);

    // An image that has nothing in common with what was sent leaves nothing of it.
    let first = versions(&grid)?;
    let other = image::noise(96 * MIB, 20);
    fs::write(grid.path("image"), &other)?;
    killed_at(&grid, &["image"], other.len(), SENT)?;
    let third = image::noise(80 * MIB, 30);
    fs::write(grid.path("image"), &third)?;
    let whole = save(&grid, &["--keep", "1", "image"])?;
    ensure!(whole["resumed_bytes"].is_null(), "{whole}");
    ensure!(restored(&grid, &whole["version"])? == third);
    let listed = grid.versions("42")?;
    ensure!(
        listed == [number(&whole, "version")?],
        "{listed:?}, {first:?}"
    );
    for (host, _) in grid.running()? {
        ensure!(incoming(&grid, &host) == 0, "{host} keeps rows");
        ensure!(grid.shard_files(&host)?.len() <= 1, "{host} keeps a shard");
    }
    ensure!(journals(&grid)?.is_empty());
    Ok(())
}

#[test]
fn several_killed_saves_serve_the_next_one_with_a_version_before_them() -> Result<()> {
    let grid = Grid::up(6)?;
    let mut file = image::noise(96 * MIB, 1);
    fs::write(grid.path("image"), &file)?;
    let first = save(&grid, &["image"])?;
    // The first quarter stays as it is in the version.
    file[24 * MIB..].copy_from_slice(&image::noise(72 * MIB, 2));
    fs::write(grid.path("image"), &file)?;
    killed_at(&grid, &["image"], file.len(), 25)?;
    killed_at(&grid, &["image"], file.len(), 20)?;
    let resumed = save(&grid, &["image"])?;
    ensure!(resumed["base"] == first["version"], "{resumed}");
    let stored = number(&resumed, "stored_bytes")?;
    ensure!(stored <= 40 * MIB as u64, "{resumed}");
    ensure!(restored(&grid, &resumed["version"])? == file);
    grid.run(["verify", "--job", "42", "--read-data"])?
        .expect(0)?;

    // What nobody needs goes with the versions.
    grid.run(["forget", "--job", "42", "--all"])?.expect(0)?;
    for (host, _) in grid.running()? {
        ensure!(grid.shard_files(&host)?.is_empty(), "{host} keeps a shard");
        ensure!(grid.manifest_files(&host)?.is_empty(), "{host}");
    }
    Ok(())
}

#[test]
fn a_host_that_died_meanwhile_is_no_part_of_a_resumed_save() -> Result<()> {
    let grid = Grid::up(6)?;
    let file = image::noise(96 * MIB, 1);
    fs::write(grid.path("image"), &file)?;
    killed_at(&grid, &["image"], file.len(), SENT)?;
    let hosts: Vec<String> = grid.running()?.into_iter().map(|(name, _)| name).collect();
    let holder = hosts.iter().find(|host| incoming(&grid, host) > 0);
    grid.kill(holder.context("no host has rows")?)?;
    // Too few hosts have the rows of all shards, unless the user takes fewer.
    let degraded = ["--allow-degraded=1", "image"];
    let all = ["--json", "save", "--job", "42"];
    let resumed = grid.run(all.iter().chain(&degraded))?;
    ensure!(matches!(resumed.code, Some(0 | 3)), "{resumed}");
    let resumed = resumed.json()?;
    sent_at_most(&resumed, 25, file.len())?;
    ensure!(number(&resumed, "can_lose")? == 1, "{resumed}");
    ensure!(restored(&grid, &resumed["version"])? == file);
    Ok(())
}

#[test]
fn a_stream_and_a_tree_that_were_killed_serve_the_next_save() -> Result<()> {
    let grid = Grid::up(5)?;
    let tree = grid.path("tree");
    fs::create_dir(&tree)?;
    for name in 0..10_u64 {
        fs::write(tree.join(name.to_string()), image::noise(9 * MIB, name))?;
    }
    killed_at(&grid, &["tree"], 90 * MIB, SENT)?;
    let resumed = save(&grid, &["tree"])?;
    sent_at_most(&resumed, 25, 90 * MIB)?;
    let args = ["restore", "--job", "42", "-o", "back"];
    grid.run(args)?.expect(0)?;
    image::same(&tree, &grid.path("back"))?;

    // Of a stream nobody knows the length before.
    let cat = ["--no-encryption", "--", "cat", "long"];
    let file = image::noise(120 * MIB, 50);
    fs::write(grid.path("long"), &file)?;
    killed_at(&grid, &cat, file.len(), SENT)?;
    let resumed = save(&grid, &cat)?;
    sent_at_most(&resumed, 25, file.len())?;
    ensure!(restored(&grid, &resumed["version"])? == file);
    Ok(())
}

/// Begins a slow save, and kills it when `is_reached`.
fn killed_when(grid: &Grid, args: &[&str], is_reached: impl Fn() -> Result<bool>) -> Result<()> {
    let slow = ["--bandwidth", "20MiB", "save", "--job", "42"];
    let mut command = grid.command(slow.iter().chain(args))?;
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child: Child = command.spawn()?;
    let reached = wait_until("the save is as far", LIMIT, || {
        ensure!(child.try_wait()?.is_none(), "it is whole already");
        is_reached()
    });
    child.kill()?;
    child.wait()?;
    reached
}

/// How many manifests hosts have.
fn manifests(grid: &Grid) -> Result<usize> {
    let hosts = grid.running()?.into_iter();
    let of = |(host, _): (String, _)| Ok(grid.manifest_files(&host)?.len());
    hosts.map(of).sum()
}

#[test]
fn a_save_that_is_killed_after_it_has_signed_what_another_left_serves_the_next_one() -> Result<()> {
    let grid = Grid::up(5)?;
    let file = image::noise(160 * MIB, 1);
    fs::write(grid.path("image"), &file)?;
    killed_at(&grid, &["image"], file.len(), 50)?;
    killed_when(&grid, &["image"], || Ok(manifests(&grid)? >= 5))?;
    // What is committed is no version, and nobody can restore it.
    ensure!(versions(&grid)?.is_empty());
    grid.run(["restore", "--job", "42", "-o", "none"])?
        .expect(4)?;
    let named = ["restore", "--job", "42", "--version", "1", "-o", "none"];
    grid.run(named)?.expect(4)?;
    grid.run(["show", "--job", "42"])?.expect(4)?;
    let resumed = save(&grid, &["image"])?;
    sent_at_most(&resumed, 50, file.len())?;
    ensure!(restored(&grid, &resumed["version"])? == file);
    ensure!(journals(&grid)?.is_empty());
    grid.run(["verify", "--job", "42", "--read-data"])?
        .expect(0)?;
    Ok(())
}

#[test]
fn what_an_interrupted_save_left_goes_when_no_version_uses_it() -> Result<()> {
    let grid = Grid::up(5)?;
    let file = image::noise(160 * MIB, 1);
    fs::write(grid.path("image"), &file)?;
    killed_at(&grid, &["image"], file.len(), 50)?;
    killed_when(&grid, &["image"], || Ok(manifests(&grid)? >= 5))?;
    // This machine has lost what it knew.
    for path in journals(&grid)? {
        fs::remove_file(path)?;
    }
    let whole = save(&grid, &["image"])?;
    ensure!(whole["resumed_bytes"].is_null(), "{whole}");
    ensure!(grid.versions("42")? == [number(&whole, "version")?]);
    for (host, _) in grid.running()? {
        ensure!(grid.shard_files(&host)?.len() == 1, "{host} keeps a shard");
        ensure!(grid.manifest_files(&host)?.len() == 1, "{host}");
    }
    Ok(())
}

#[test]
fn a_fenced_save_that_was_killed_serves_the_next_one() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("image"), image::noise(5 * MIB, 9))?;
    let first = save(&grid, &["image"])?["version"].to_string();
    let file = image::noise(96 * MIB, 1);
    fs::write(grid.path("image"), &file)?;
    let after = ["--after", &first, "image"];
    killed_at(&grid, &after, file.len(), SENT)?;
    let resumed = save(&grid, &after)?;
    sent_at_most(&resumed, 25, file.len())?;
    ensure!(resumed["fence"]["fenced"] == true, "{resumed}");
    ensure!(restored(&grid, &resumed["version"])? == file);
    Ok(())
}

#[test]
fn a_save_that_was_interrupted_serves_the_next_one_of_the_same_key_alone() -> Result<()> {
    let grid = Grid::up(5)?;
    let file = image::noise(96 * MIB, 1);
    fs::write(grid.path("image"), &file)?;
    let slow = ["--bandwidth", "40MiB", "save", "--job", "42", "image"];
    let mut command = grid.command(slow)?;
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child: Child = command.spawn()?;
    wait_until("a part is sent", LIMIT, || {
        ensure!(child.try_wait()?.is_none(), "it is whole already");
        let hosts = grid.running()?;
        let sent = |host: &&(String, _)| incoming(&grid, &host.0) >= 20 * MIB as u64;
        Ok(hosts.iter().filter(sent).count() >= 5)
    })?;
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::INT,
    )?;
    ensure!(child.wait()?.code() == Some(130), "not interrupted");
    let for_job = ["key", "for-job", "--job", "42", "-o", "job.key"];
    grid.run(for_job)?.expect(0)?;
    // Another key finds nothing of it.
    let key = grid.path("job.key");
    let key = key.to_str().context("a path")?;
    let other = ["--key-file", key, "--json", "save", "--job", "42", "image"];
    let other = grid.run(other)?.expect(0)?.json()?;
    ensure!(other["resumed_bytes"].is_null(), "{other}");
    ensure!(restored(&grid, &other["version"])? == file);
    Ok(())
}

#[test]
fn a_host_that_claims_rows_which_it_never_got_costs_no_more_than_itself() -> Result<()> {
    let env = [("CKPT_REPAIR_AFTER", "2s"), ("CKPT_REPAIR_PERIOD", "1s")];
    let cluster = Cluster::start(5, 0, &env)?;
    let file = image::noise(96 * MIB, 1);
    fs::write(cluster.path("image"), &file)?;
    let slow = ["--bandwidth", "30MiB", "save", "--job", "42", "image"];
    let mut command = cluster.command("state", slow)?;
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child: Child = command.spawn()?;
    wait_until("each host has some rows", LIMIT, || {
        ensure!(child.try_wait()?.is_none(), "it is whole already");
        let mut hosts = cluster.hosts.iter();
        Ok(hosts.all(|node| incoming_in(&node.data()) >= 8 << 20))
    })?;
    child.kill()?;
    child.wait()?;
    let [false_host, lost, ..] = &cluster.hosts[..] else {
        return Ok(());
    };
    false_host.kill()?;
    let liar = cluster.impersonate(false_host, Lie::ClaimsRows, Hoard::default())?;
    let save = ["--json", "save", "--job", "42", "image"];
    let saved = cluster.run(save)?.expect(0)?.json()?;
    ensure!(number(&saved, "resumed_bytes")? > 0, "{saved}");
    lost.kill()?;
    let restore = ["restore", "--job", "42", "--force", "-o", "out"];
    let restored = cluster.run(restore)?;
    ensure!(matches!(restored.code, Some(0 | 3)), "{restored}");
    ensure!(fs::read(cluster.path("out"))? == file);
    // The honest program at its place has nothing of what was claimed; the others have it rebuilt.
    cluster.unmask(false_host, liar)?;
    cluster.start_stopped()?;
    wait_until("all shards are there", LIMIT, || {
        let verify = ["--json", "verify", "--job", "42", "--read-data"];
        Ok(cluster.run(verify)?.code == Some(0))
    })
}
