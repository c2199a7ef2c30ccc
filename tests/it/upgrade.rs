//! Upgrades: present programs read checkpoints of the first format, and programs of two versions work in
//! one grid.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ckpt_store::shards::FenceFile;
use codec::proposal::Ballot;
use serde_json::Value;
use tests::program::{older, wait_until};
use tests::{Grid, ckpt, image};

/// Longest wait for a repair.
const LIMIT: Duration = Duration::from_secs(180);

/// Hosts rebuild a shard that was missing for one second, and ask each other for notices every 300 ms.
const QUICK_REPAIR: [(&str, &str); 2] =
    [("CKPT_REPAIR_AFTER", "1s"), ("CKPT_REPAIR_PERIOD", "300ms")];

fn fixture() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/format-1"))
}

/// Copies a directory. In the copy, only the user can read keys, and addresses have a port that the kernel
/// chooses.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
            continue;
        }
        fs::copy(entry.path(), &target)?;
        if target
            .extension()
            .is_some_and(|extension| extension == "key")
        {
            fs::set_permissions(&target, fs::Permissions::from_mode(0o600))?;
        }
        if target.ends_with("grid.toml") {
            let text = fs::read_to_string(&target)?;
            let lines = text.lines().map(|line| match line.rsplit_once(':') {
                Some((start, _)) if line.starts_with("addr = ") => format!("{start}:0\""),
                _ => line.to_owned(),
            });
            fs::write(&target, lines.collect::<Vec<_>>().join("\n"))?;
        }
    }
    Ok(())
}

fn numbers(last: u32) -> Vec<u8> {
    (1..=last)
        .flat_map(|number| format!("{number}\n").into_bytes())
        .collect()
}

#[test]
fn checkpoints_of_the_first_format_are_restored_and_continued() -> Result<()> {
    let grid = Grid::of(|dir| copy(&fixture().join("grid"), dir))?;
    copy(&fixture().join("state"), &grid.path("state"))?;

    for (job, version, bytes) in [
        ("stream", "2", numbers(5000)),
        ("stream", "1", numbers(9000)),
        ("plain", "1", numbers(100)),
    ] {
        let restore = ["restore", "--job", job, "--version", version, "-o", "-"];
        let restored = grid.run(restore)?.expect(0)?;
        ensure!(
            restored.stdout == bytes,
            "{job} {version}: {}",
            restored.stderr
        );
    }
    grid.run(["restore", "--job", "tree", "-o", "tree"])?
        .expect(0)?;
    let tree = grid.path("tree");
    ensure!(fs::read(tree.join("random"))? == fs::read(fixture().join("random"))?);
    ensure!(tree.join("random").metadata()?.permissions().mode() & 0o777 == 0o640);
    ensure!(fs::read(tree.join("sub/numbers"))? == numbers(4000));
    ensure!(fs::read_link(tree.join("link"))? == Path::new("sub/numbers"));
    let hole = fs::read(tree.join("hole"))?;
    ensure!(hole.len() == (3 << 20) + 3 && hole.ends_with(b"\0end"));

    grid.run(["verify", "--read-data"])?.expect(0)?;
    // The job continues: the next version is 3, saved by the present program.
    fs::write(grid.path("image"), image::memory(100_000, 1))?;
    let saved = grid
        .run(["--json", "save", "--job", "stream", "image"])?
        .expect(0)?
        .json()?;
    ensure!(saved["version"] == 3, "{saved}");
    let warned = grid.run(["hosts", "--for-job", "stream"])?.expect(0)?;
    ensure!(!warned.stderr.contains("without knowledge"), "{warned}");
    grid.kill("h02")?;
    let restored = grid
        .run(["restore", "--job", "stream", "-o", "-"])?
        .expect(0)?;
    ensure!(restored.stdout == image::memory(100_000, 1));
    Ok(())
}

fn save(grid: &Grid, client: &Path, job: &str, seed: u64) -> Result<(Vec<u8>, Value)> {
    let bytes = image::memory(2 << 20, seed);
    fs::write(grid.path("image"), &bytes)?;
    let saved = grid.run_as(client, ["--json", "save", "--full", "--job", job, "image"])?;
    Ok((bytes, saved.expect(0)?.json()?))
}

fn restored(grid: &Grid, client: &Path, job: &str, version: u64) -> Result<Vec<u8>> {
    let version = version.to_string();
    let restore = ["restore", "--job", job, "--version", &version, "-o", "-"];
    Ok(grid.run_as(client, restore)?.expect(0)?.stdout)
}

fn versions(grid: &Grid, client: &Path, job: &str) -> Result<Vec<u64>> {
    let listed = grid.run_as(client, ["--json", "list", "--job", job])?;
    // Without a checkpoint, present programs exit with 4, and earlier ones show an empty list.
    if listed.code == Some(4) {
        return Ok(Vec::new());
    }
    let listed = listed.json()?;
    let all = listed["checkpoints"].as_array().context("no checkpoints")?;
    Ok(all
        .iter()
        .filter_map(|one| one["version"].as_u64())
        .collect())
}

/// Uses a job as usual: saves three versions of which two are kept, restores them, verifies, and removes
/// one. Returns the newest image.
fn use_as_usual(grid: &Grid, client: &Path, job: &str) -> Result<Vec<u8>> {
    let mut images = Vec::new();
    for seed in 1..=3 {
        images.push(save(grid, client, job, seed)?.0);
    }
    ensure!(versions(grid, client, job)? == [2, 3]);
    for version in [2, 3] {
        let bytes = restored(grid, client, job, version)?;
        ensure!(
            bytes == images[version as usize - 1],
            "{job} version {version}"
        );
    }
    grid.run_as(client, ["verify", "--job", job, "--read-data"])?
        .expect(0)?;
    // Version 4 is whole, so no version builds on version 3, which can be removed then.
    let full = grid.run_as(
        client,
        ["save", "--job", job, "--full", "--keep", "3", "image"],
    )?;
    full.expect(0)?;
    grid.run_as(client, ["forget", "--job", job, "--version", "3"])?
        .expect(0)?;
    ensure!(!versions(grid, client, job)?.contains(&3));
    ensure!(restored(grid, client, job, 4)? == images[2]);
    Ok(images.remove(2))
}

/// Shards of the job's newest version that `verify` finds, each with its holder.
fn good(grid: &Grid, client: &Path, job: &str) -> Result<Vec<(u64, String)>> {
    let verified = grid
        .run_as(client, ["--json", "verify", "--job", job])?
        .json()?;
    let newest = verified["checkpoints"]
        .as_array()
        .and_then(|all| all.last());
    let good = newest.context("no checkpoint")?["good"].clone();
    let one = |one: &Value| Some((one["shard"].as_u64()?, one["host"].as_str()?.to_owned()));
    Ok(good
        .as_array()
        .context("good")?
        .iter()
        .filter_map(one)
        .collect())
}

fn is_whole(grid: &Grid, client: &Path, job: &str) -> Result<bool> {
    let mut shards: Vec<u64> = good(grid, client, job)?
        .into_iter()
        .map(|one| one.0)
        .collect();
    shards.sort_unstable();
    shards.dedup();
    Ok(shards == [0, 1, 2, 3, 4])
}

/// Kills the first holder that `chosen` accepts, and waits until others have rebuilt its shards.
fn check_repair(
    grid: &Grid,
    client: &Path,
    job: &str,
    chosen: impl Fn(&str) -> bool,
) -> Result<()> {
    let holders = good(grid, client, job)?;
    let mut chosen = holders.into_iter().filter(|(_, host)| chosen(host));
    let (_, victim) = chosen.next().context("no such holder")?;
    grid.kill(&victim)?;
    wait_until("all shards are there again", LIMIT, || {
        is_whole(grid, client, job)
    })
}

fn check_removal(grid: &Grid, client: &Path, job: &str, hosts: usize) -> Result<()> {
    grid.run_as(client, ["forget", "--job", job, "--all"])?
        .expect(0)?;
    ensure!(versions(grid, client, job)?.is_empty());
    wait_until("all shards are gone", LIMIT, || {
        let mut left = 0;
        for number in 1..=hosts {
            left += grid.shard_files(&format!("h{number:02}"))?.len();
        }
        Ok(left == 0)
    })
}

#[test]
fn a_client_of_today_uses_daemons_of_yesterday_and_says_what_they_lack() -> Result<()> {
    let Some(old) = older()? else { return Ok(()) };
    let client = ckpt()?;
    let grid = Grid::up_of(&old, 7, &QUICK_REPAIR)?;
    let bytes = use_as_usual(&grid, client, "42")?;
    check_repair(&grid, client, "42", |_| true)?;
    ensure!(restored(&grid, client, "42", 4)? == bytes);

    let (_, saved) = save(&grid, client, "42", 5)?;
    let note = saved["notes"].to_string();
    ensure!(note.contains("older program (ckpt/1) on "), "{saved}");
    let hosts = grid.run_as(client, ["--json", "hosts"])?.json()?;
    let hosts = hosts["hosts"].as_array().context("no hosts")?.clone();
    let up = hosts.iter().filter(|host| host["up"] == true);
    let spoken: Vec<&Value> = up.map(|host| &host["protocol"]).collect();
    ensure!(spoken == ["ckpt/1"; 6], "{spoken:?}");
    grid.restart_as(&old)?;
    check_removal(&grid, client, "42", 7)
}

#[test]
fn a_client_of_yesterday_uses_daemons_of_today() -> Result<()> {
    let Some(old) = older()? else { return Ok(()) };
    let grid = Grid::up_of(ckpt()?, 7, &QUICK_REPAIR)?;
    let bytes = use_as_usual(&grid, &old, "42")?;
    check_repair(&grid, &old, "42", |_| true)?;
    ensure!(restored(&grid, &old, "42", 4)? == bytes);
    // The present client restores the version, too, and saves the next one.
    ensure!(restored(&grid, ckpt()?, "42", 4)? == bytes);
    let (_, saved) = save(&grid, ckpt()?, "42", 5)?;
    ensure!(saved["version"] == 5, "{saved}");
    ensure!(
        !saved["notes"].to_string().contains("older program"),
        "{saved}"
    );
    grid.restart()?;
    check_removal(&grid, ckpt()?, "42", 7)
}

/// Hosts with an earlier program don't know job keys. A save with a job key offers them no shards.
#[test]
fn a_save_with_a_job_key_does_without_hosts_that_know_no_job_keys() -> Result<()> {
    let Some(old) = older()? else { return Ok(()) };
    let new = ckpt()?;
    let grid = Grid::up_of(&old, 8, &QUICK_REPAIR)?;
    let upgraded = ["h01", "h02", "h03", "h04", "h05"];
    for host in &upgraded[..4] {
        grid.kill(host)?;
        grid.restart()?;
    }
    grid.run_as(new, ["key", "for-job", "--job", "42", "-o", "job.key"])?
        .expect(0)?;
    let bytes = image::memory(2 << 20, 1);
    fs::write(grid.path("image"), &bytes)?;
    let with_key = |args: &[&str]| {
        let mut command = grid.command(args)?;
        command.env("CKPT_KEY_FILE", grid.path("job.key"));
        tests::program::run(&mut command)
    };
    // Four hosts that know job keys are too few for five shards.
    let given = ["--json", "save", "--job", "42", "--data", "3", "image"];
    let save = ["--json", "save", "--job", "42", "image"];
    let failed = with_key(&given)?.expect(5)?;
    ensure!(failed.json()?.to_string().contains("h08"), "{failed}");
    // The other hosts were no candidates, so none was asked to take a shard.
    ensure!(!failed.stderr.contains("given up"), "{failed}");
    grid.kill(upgraded[4])?;
    grid.restart()?;
    for _ in 0..3 {
        let saved = with_key(&save)?.expect(0)?.json()?;
        let holders = saved["holders"].as_array().context("no holders")?;
        let holders = holders.iter().filter_map(|one| one["host"].as_str());
        let holders: std::collections::BTreeSet<&str> = holders.collect();
        ensure!(holders == upgraded.into(), "{saved}");
        // No host was tried in vain.
        ensure!(saved["replaced"] == serde_json::json!([]), "{saved}");
    }
    let restored = with_key(&["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(restored.stdout == bytes);
    Ok(())
}

/// Four of eight daemons are upgraded, so of five shards at least one is on each kind.
#[test]
fn in_a_grid_that_is_half_upgraded_both_versions_serve_both() -> Result<()> {
    let Some(old) = older()? else { return Ok(()) };
    let new = ckpt()?;
    let grid = Grid::up_of(&old, 8, &QUICK_REPAIR)?;
    let (before, _) = save(&grid, &old, "before", 9)?;
    let upgraded = ["h01", "h02", "h03", "h04"];
    for host in upgraded {
        grid.kill(host)?;
        grid.restart()?;
    }
    ensure!(restored(&grid, new, "before", 1)? == before);
    ensure!(restored(&grid, &old, "before", 1)? == before);
    let mut images = Vec::new();
    for (client, job) in [(new.as_path(), "by-new"), (&*old, "by-old")] {
        images.push((job, use_as_usual(&grid, client, job)?));
    }
    // Each kind of host rebuilds what the other lost.
    let is_new = |host: &str| upgraded.contains(&host);
    for (client, lost) in [(new.as_path(), true), (&*old, false)] {
        check_repair(&grid, client, "by-new", |host| is_new(host) == lost)?;
    }
    // Both killed hosts come back with the present program.
    grid.restart()?;
    for (job, bytes) in &images {
        for client in [new, &old] {
            ensure!(restored(&grid, client, job, 4)? == *bytes, "{job}");
        }
    }
    // A host that was away while a job was removed hears of the removal after its upgrade.
    let holders = good(&grid, new, "by-old")?;
    let hosts = grid.run_as(new, ["--json", "hosts"])?.json()?;
    let hosts = hosts["hosts"].as_array().context("no hosts")?;
    let is_old = |name: &str| {
        let mut named = hosts.iter().filter(|host| host["name"] == name);
        named.any(|host| host["protocol"] == "ckpt/1")
    };
    let away = holders.iter().find(|(_, host)| is_old(host));
    let away = away.context("no older holder")?.1.clone();
    grid.kill(&away)?;
    for job in ["before", "by-new", "by-old"] {
        let forgotten = grid.run_as(new, ["--json", "forget", "--job", job, "--all"])?;
        let unheard = forgotten.json()?["unheard"].clone();
        let unheard = unheard.as_array().context("unheard")?;
        // The host that is away counts unless others have rebuilt all of its shards of the job already.
        let status = if unheard.is_empty() { 0 } else { 3 };
        ensure!(forgotten.code == Some(status), "{forgotten}");
        ensure!(
            unheard.iter().all(|host| host["host"] == *away),
            "{forgotten}"
        );
    }
    grid.restart()?;
    wait_until(
        "it has removed what it was not asked to remove",
        LIMIT,
        || Ok(grid.shard_files(&away)?.is_empty()),
    )?;
    ensure!(versions(&grid, &old, "by-old")?.is_empty());
    Ok(())
}

/// Files of promises of the first format stay readable, and come back in the second.
#[test]
fn promises_of_the_first_format_hold_on() -> Result<()> {
    let fixture = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/fence-1"));
    for (name, accepted) in [("promised.fence", 0), ("accepted.fence", 1)] {
        let first = fs::read(fixture.join(name))?;
        let read = FenceFile::decode(&first)?;
        let acceptor = &read.fence.acceptor;
        ensure!(acceptor.promised() > Ballot::NONE, "{read:?}");
        ensure!(
            acceptor.acceptances().len() == accepted && read.accepted.len() == accepted,
            "{read:?}"
        );
        let second = read.encode()?;
        ensure!(first.starts_with(b"CKPTFNC1") && second.starts_with(b"CKPTFNC2"));
        ensure!(FenceFile::decode(&second)? == read);
    }
    Ok(())
}
