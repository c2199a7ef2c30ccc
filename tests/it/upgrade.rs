//! Upgrades: present programs go on with what an earlier one left, and both work in one grid.
//!
//! Tests that need the earlier program itself are run by `tests/ecosystem/mixed-grid.sh`, which builds it.

use std::collections::BTreeMap;
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

use crate::resume::{MIB, killed_at};

/// Longest wait for a repair.
const LIMIT: Duration = Duration::from_secs(180);

/// Hosts rebuild a shard that was missing for one second, and ask each other for notices every 300 ms.
const QUICK_REPAIR: [(&str, &str); 2] =
    [("CKPT_REPAIR_AFTER", "1s"), ("CKPT_REPAIR_PERIOD", "300ms")];

fn fixture() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/format-2"))
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
fn what_an_earlier_program_saved_is_restored_and_continued() -> Result<()> {
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
    grid.run(["restore", "--job", "lab/tree", "-o", "tree"])?
        .expect(0)?;
    let tree = grid.path("tree");
    ensure!(fs::read(tree.join("random"))? == fs::read(fixture().join("random"))?);
    ensure!(tree.join("random").metadata()?.permissions().mode() & 0o777 == 0o640);
    ensure!(fs::read(tree.join("sub/numbers"))? == numbers(4000));
    ensure!(fs::read_link(tree.join("link"))? == Path::new("sub/numbers"));
    let hole = fs::read(tree.join("hole"))?;
    ensure!(hole.len() == (3 << 20) + 3 && hole.ends_with(b"\0end"));

    grid.run(["verify", "--read-data"])?.expect(0)?;
    // The jobs continue. The witnesses of the fenced one hold to what they agreed on: version 2 has its
    // successor, and version 3 has none yet.
    fs::write(grid.path("image"), image::memory(100_000, 1))?;
    for (job, after) in [("stream", None), ("fenced", Some("3"))] {
        let mut save = vec!["--json", "save", "--job", job, "image"];
        save.extend(after.iter().flat_map(|after| ["--after", after]));
        let saved = grid.run(save)?.expect(0)?.json()?;
        let next = if after.is_some() { 4 } else { 3 };
        ensure!(saved["version"] == next, "{saved}");
    }
    grid.run(["save", "--job", "fenced", "--after", "2", "image"])?
        .expect(10)?;
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
    // Without a checkpoint.
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

/// Kills the first holder that `chosen` accepts, and waits until others have rebuilt its shards. Returns
/// the holder.
fn check_repair(
    grid: &Grid,
    client: &Path,
    job: &str,
    chosen: impl Fn(&str) -> bool,
) -> Result<String> {
    let holders = good(grid, client, job)?;
    let mut chosen = holders.into_iter().filter(|(_, host)| chosen(host));
    let (_, victim) = chosen.next().context("no such holder")?;
    grid.kill(&victim)?;
    wait_until("all shards are there again", LIMIT, || {
        is_whole(grid, client, job)
    })?;
    Ok(victim)
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
#[ignore = "needs an earlier program: tests/ecosystem/mixed-grid.sh"]
fn a_client_of_today_uses_earlier_daemons() -> Result<()> {
    let old = older()?;
    let client = ckpt()?;
    let grid = Grid::up_of(&old, 7, &QUICK_REPAIR)?;
    let bytes = use_as_usual(&grid, client, "42")?;
    check_repair(&grid, client, "42", |_| true)?;
    ensure!(restored(&grid, client, "42", 4)? == bytes);
    save(&grid, client, "42", 5)?;
    grid.restart_as(&old)?;
    check_removal(&grid, client, "42", 7)
}

#[test]
#[ignore = "needs an earlier program: tests/ecosystem/mixed-grid.sh"]
fn an_earlier_client_uses_daemons_of_today() -> Result<()> {
    let old = older()?;
    let grid = Grid::up_of(ckpt()?, 7, &QUICK_REPAIR)?;
    let bytes = use_as_usual(&grid, &old, "42")?;
    check_repair(&grid, &old, "42", |_| true)?;
    ensure!(restored(&grid, &old, "42", 4)? == bytes);
    // The present client restores the version, too, and saves the next one.
    ensure!(restored(&grid, ckpt()?, "42", 4)? == bytes);
    let (_, saved) = save(&grid, ckpt()?, "42", 5)?;
    ensure!(saved["version"] == 5, "{saved}");
    grid.restart()?;
    check_removal(&grid, ckpt()?, "42", 7)
}

#[test]
#[ignore = "needs an earlier program: tests/ecosystem/mixed-grid.sh"]
fn an_earlier_client_refuses_numbers_in_planes_and_harms_nothing() -> Result<()> {
    let old = older()?;
    let grid = Grid::up_of(&old, 7, &QUICK_REPAIR)?;
    // Less than what has a chain, which an earlier client refuses by itself.
    let bytes = image::weights(3 << 20, 1);
    fs::write(grid.path("image"), &bytes)?;
    grid.run(["save", "--job", "weights", "image"])?.expect(0)?;
    let refused = grid.run_as(&old, ["restore", "--job", "weights", "-o", "out"])?;
    ensure!(
        refused.code != Some(0) && refused.stderr.contains("compression method 3"),
        "{refused}"
    );
    ensure!(!grid.path("out").exists());
    check_repair(&grid, ckpt()?, "weights", |_| true)?;
    ensure!(restored(&grid, ckpt()?, "weights", 1)? == bytes);
    Ok(())
}

/// Has an earlier client delete what it can of job 42, whatever it reports, and checks that it restores nothing.
fn delete_and_restore_by(grid: &Grid, old: &Path) -> Result<()> {
    for args in [
        ["forget", "--job", "42", "--keep", "1"].as_slice(),
        ["gc", "--keep", "1"].as_slice(),
    ] {
        grid.run_as(old, args)?;
    }
    let refused = grid.run_as(old, ["restore", "--job", "42", "-o", "-"])?;
    ensure!(
        refused.code != Some(0) && refused.stdout.is_empty(),
        "{refused}"
    );
    Ok(())
}

/// An earlier client can't open versions of a chain, so it deletes nothing of their job and restores none of them.
#[test]
#[ignore = "needs an earlier program: tests/ecosystem/mixed-grid.sh"]
fn an_earlier_client_harms_no_chain_of_versions() -> Result<()> {
    let old = older()?;
    let new = ckpt()?;
    let grid = Grid::up_of(new, 7, &QUICK_REPAIR)?;
    let mut bytes = image::noise(5 << 20, 1);
    let mut saved = BTreeMap::new();
    for round in 0..4 {
        bytes[round << 20] ^= 1;
        fs::write(grid.path("image"), &bytes)?;
        let save = ["--json", "save", "--job", "42", "--keep", "3", "image"];
        let report = grid.run_as(new, save)?.expect(0)?.json()?;
        saved.insert(
            report["version"].as_u64().context("version")?,
            bytes.clone(),
        );
        delete_and_restore_by(&grid, &old)?;
        for (version, bytes) in saved.iter().rev().take(3) {
            ensure!(restored(&grid, new, "42", *version)? == *bytes, "{version}");
        }
    }
    Ok(())
}

/// An earlier client can't open what an interrupted save left, so it deletes nothing of the job. The present one
/// deletes it.
#[test]
#[ignore = "needs an earlier program: tests/ecosystem/mixed-grid.sh"]
fn an_earlier_client_harms_no_save_that_was_interrupted() -> Result<()> {
    let old = older()?;
    let new = ckpt()?;
    let grid = Grid::up_of(new, 5, &QUICK_REPAIR)?;
    let bytes = image::noise(96 * MIB, 1);
    fs::write(grid.path("image"), &bytes)?;
    killed_at(&grid, &["image"], bytes.len(), 60)?;
    let saved = grid.run_as(new, ["--json", "save", "--job", "42", "image"])?;
    let saved = saved.expect(0)?.json()?;
    ensure!(saved["resumed_bytes"].is_u64(), "{saved}");
    delete_and_restore_by(&grid, &old)?;
    let version = saved["version"].as_u64().context("version")?;
    ensure!(restored(&grid, new, "42", version)? == bytes);
    check_removal(&grid, new, "42", 5)
}

/// Earlier daemons keep no rows of a save that was interrupted, and do not know the question for them.
#[test]
#[ignore = "needs an earlier program: tests/ecosystem/mixed-grid.sh"]
fn with_earlier_daemons_a_save_after_one_that_was_interrupted_sends_all() -> Result<()> {
    let old = older()?;
    let new = ckpt()?;
    let grid = Grid::up_of(&old, 5, &QUICK_REPAIR)?;
    let bytes = image::noise(96 * MIB, 1);
    fs::write(grid.path("image"), &bytes)?;
    killed_at(&grid, &["image"], bytes.len(), 60)?;
    let saved = grid.run_as(new, ["--json", "save", "--job", "42", "image"])?;
    let saved = saved.expect(0)?.json()?;
    ensure!(saved["resumed_bytes"].is_null(), "{saved}");
    let version = saved["version"].as_u64().context("version")?;
    ensure!(restored(&grid, new, "42", version)? == bytes);
    check_removal(&grid, new, "42", 5)
}

/// Upgrades the hosts h01 to h04.
fn upgrade(grid: &Grid) -> Result<[&'static str; 4]> {
    let upgraded = ["h01", "h02", "h03", "h04"];
    for host in upgraded {
        grid.kill(host)?;
        grid.restart()?;
    }
    Ok(upgraded)
}

/// Four of eight daemons are upgraded, so of five shards and witnesses at least one is on each kind.
#[test]
#[ignore = "needs an earlier program: tests/ecosystem/mixed-grid.sh"]
fn a_job_key_saves_after_a_version_in_a_grid_that_is_half_upgraded() -> Result<()> {
    let old = older()?;
    let new = ckpt()?;
    let grid = Grid::up_of(&old, 8, &QUICK_REPAIR)?;
    upgrade(&grid)?;
    for (maker, job) in [(new.as_path(), "by-new"), (&*old, "by-old")] {
        let key = format!("{job}.key");
        let make = ["key", "for-job", "--job", job, "-o", key.as_str()];
        grid.run_as(maker, make)?.expect(0)?;
        let with_key = |program: &Path, args: &[&str]| {
            let mut command = grid.command_as(program, args)?;
            command.env("CKPT_KEY_FILE", grid.path(&key));
            tests::program::run(&mut command)
        };
        let mut after = "none".to_owned();
        for (seed, client) in [(1, new.as_path()), (2, &*old), (3, new)] {
            let bytes = image::memory(2 << 20, seed);
            fs::write(grid.path("image"), &bytes)?;
            let save = ["--json", "save", "--job", job, "--after", &after, "image"];
            let saved = with_key(client, &save)?.expect(0)?.json()?;
            after = saved["version"].to_string();
            for reader in [new, &old] {
                let restore = ["restore", "--job", job, "-o", "-"];
                ensure!(with_key(reader, &restore)?.expect(0)?.stdout == bytes);
            }
        }
        // Version 1 has its successor, whichever program asks.
        for client in [new, &old] {
            let save = ["save", "--job", job, "--after", "1", "image"];
            with_key(client, &save)?.expect(10)?;
        }
    }
    Ok(())
}

/// Four of eight daemons are upgraded, so of five shards at least one is on each kind.
#[test]
#[ignore = "needs an earlier program: tests/ecosystem/mixed-grid.sh"]
fn in_a_grid_that_is_half_upgraded_both_programs_serve_both() -> Result<()> {
    let old = older()?;
    let new = ckpt()?;
    let grid = Grid::up_of(&old, 8, &QUICK_REPAIR)?;
    let (before, _) = save(&grid, &old, "before", 9)?;
    let upgraded = upgrade(&grid)?;
    ensure!(restored(&grid, new, "before", 1)? == before);
    ensure!(restored(&grid, &old, "before", 1)? == before);
    let mut images = Vec::new();
    for (client, job) in [(new.as_path(), "by-new"), (&*old, "by-old")] {
        images.push((job, use_as_usual(&grid, client, job)?));
    }
    // Each kind of host rebuilds what the other lost.
    let is_new = |host: &str| upgraded.contains(&host);
    let mut back = Vec::new();
    for (client, lost) in [(new.as_path(), true), (&*old, false)] {
        back.push(check_repair(&grid, client, "by-new", |host| {
            is_new(host) == lost
        })?);
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
    let is_old = |host: &String| !is_new(host) && !back.contains(host);
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

/// Programs of both kinds use the list of the grid that the authority signs.
#[test]
#[ignore = "needs an earlier program: tests/ecosystem/mixed-grid.sh"]
fn earlier_programs_take_the_list_of_todays_authority() -> Result<()> {
    let old = older()?;
    let grid = Grid::up(3)?;
    grid.kill("h02")?;
    grid.restart_as(&old)?;
    let dir = grid.file().parent().context("no directory")?.to_owned();
    let mut revoke = grid.command(["grid", "revoke", "h01", "--json", "--dir"])?;
    let revoked = tests::program::run(revoke.arg(&dir))?.expect(0)?.json()?;
    let heard = revoked["sent"]["heard"].to_string();
    ensure!(heard.contains("h02") && heard.contains("h03"), "{revoked}");
    let hosts = grid.run_as(&old, ["--json", "hosts"])?.json()?;
    ensure!(!hosts["hosts"].to_string().contains("\"h01\""), "{hosts}");
    Ok(())
}

/// Files of promises of the first format, which the earlier program writes, stay readable, and come back in
/// the second.
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
