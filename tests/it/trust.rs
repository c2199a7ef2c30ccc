//! Shards that hosts lost, damaged or hide are found, reported and remembered.

use std::fs;

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tests::liar::Lie;
use tests::mixed::MixedGrid;
use tests::{Grid, damage, image};

fn save(grid: &Grid, job: &str, bytes: usize) -> Result<()> {
    fs::write(grid.path("image"), image::memory(bytes, 1))?;
    grid.run(["save", "--job", job, "image"])?.expect(0)?;
    Ok(())
}

/// The report of `ckpt-store status` about the daemon of a host.
fn host_status(grid: &Grid, host: &str) -> Result<serde_json::Value> {
    grid.store(host, &["status", "--json"])?.expect(0)?.json()
}

#[test]
fn a_sample_finds_damaged_shards_and_the_hosts_record_it() -> Result<()> {
    let grid = Grid::up(5)?;
    save(&grid, "42", 4 << 20)?;
    let sample = ["--json", "verify", "--sample", "1"];
    let fine = grid.run(sample)?.expect(0)?.json()?;
    ensure!(fine["sampled_blocks"] == 1, "{fine}");
    ensure!(fine["read_bytes"].as_u64() > Some(1000), "{fine}");

    let holders = grid.holders("42")?;
    let damaged = &holders[0];
    let lost = &holders[1];
    // Every block is damaged, so any sample finds damage.
    for file in grid.shard_files(damaged)? {
        let len = fs::metadata(&file)?.len();
        for offset in (4096..len / 2).step_by(512) {
            damage::flip(&file, offset)?;
        }
    }
    for file in grid.shard_files(lost)? {
        fs::remove_file(file)?;
    }
    let found = grid
        .run(["--json", "verify", "--sample", "8"])?
        .expect(3)?
        .json()?;
    let bad = found["checkpoints"][0]["bad"].as_array().context("bad")?;
    let named: Vec<_> = bad.iter().filter_map(|one| one["host"].as_str()).collect();
    ensure!(
        named.contains(&damaged.as_str()) && named.contains(&lost.as_str()),
        "{found}"
    );

    // The daemon that lost the file still lists the shard. It can't open the file, which counts as damage.
    for (host, fault) in [(damaged, "damaged"), (lost, "damaged")] {
        tests::program::wait_until(
            "the daemon has written it down",
            std::time::Duration::from_secs(120),
            || Ok(host_status(&grid, host)?["audits"]["failed"] == 1),
        )?;
        let audits = &host_status(&grid, host)?["audits"];
        ensure!(audits["failures"][0]["fault"] == fault, "{audits}");
        ensure!(audits["passed"] == 1, "{audits}");
    }
    // The others passed twice, and keep what they know over a restart.
    tests::program::wait_until(
        "the others have written it down",
        std::time::Duration::from_secs(120),
        || Ok(host_status(&grid, &holders[2])?["audits"]["passed"] == 2),
    )?;
    grid.restart()?;
    let fine = host_status(&grid, &holders[2])?;
    ensure!(
        fine["audits"]["passed"] == 2 && fine["audits"]["failed"] == 0,
        "{fine}"
    );
    Ok(())
}

#[test]
fn a_host_that_failed_a_check_is_chosen_only_if_others_are_missing() -> Result<()> {
    let grid = Grid::up(8)?;
    save(&grid, "42", 1 << 20)?;
    let holders = grid.holders("42")?;
    for file in grid.shard_files(&holders[0])? {
        fs::remove_file(file)?;
    }
    grid.run(["verify"])?.expect(3)?;
    for number in 0..6 {
        let job = format!("later-{number}");
        save(&grid, &job, 1 << 20)?;
        let chosen = grid.holders(&job)?;
        ensure!(!chosen.contains(&holders[0]), "{job}: {chosen:?}");
    }
    // A host that failed a check is still used when there are too few others.
    for host in ["h01", "h02", "h03", "h04"]
        .iter()
        .filter(|host| **host != holders[0])
        .take(3)
    {
        grid.kill(host)?;
    }
    save(&grid, "needed", 1 << 20)?;
    ensure!(grid.holders("needed")?.contains(&holders[0]));
    Ok(())
}

#[test]
fn a_version_that_all_hosts_hide_is_missed_by_the_machine_that_saved_it() -> Result<()> {
    let grid = MixedGrid::up(0, 5)?;
    for number in 1..=2 {
        fs::write(grid.path("image"), image::memory(100_000, number))?;
        grid.run(["save", "--job", "42", "image"])?.expect(0)?;
    }
    grid.lie(Lie::HidesNewVersions);
    let restored = grid
        .run(["--json", "restore", "--job", "42", "-o", "out"])?
        .expect(3)?
        .json()?;
    ensure!(
        restored["version"] == 1 && restored["skipped"][0]["version"] == 2,
        "{restored}"
    );
    ensure!(fs::read(grid.path("out"))? == image::memory(100_000, 1));
    // A save that its hosts hide at once is no success. The number of the hidden version is not used again.
    let save = ["--json", "save", "--job", "42", "image"];
    let failed = grid.run(save)?.expect(1)?;
    ensure!(failed.stderr.contains("version 3 "), "{failed}");
    grid.lie(Lie::None);
    let saved = grid.run(save)?.expect(0)?.json()?;
    let saved = saved["version"].as_u64().context("no version")?;
    ensure!(saved > 2, "{saved}");

    grid.lie(Lie::HidesEverything);
    let nothing = [
        "--json",
        "restore",
        "--job",
        "42",
        "--if-exists",
        "-o",
        "out",
    ];
    // A job must not begin anew while a version that this machine has seen is not found.
    let refused = grid.run(nothing)?.expect(7)?.json()?;
    let state = refused["error"]["state"].as_str().context("no state")?;
    ensure!(state.contains(&format!("version {saved}")), "{refused}");
    // Once hosts are honest again, a version that is removed on purpose is not missed.
    grid.lie(Lie::None);
    grid.run(["forget", "--job", "42", "--all"])?.expect(0)?;
    let nothing = [
        "--json",
        "restore",
        "--job",
        "42",
        "--if-exists",
        "-o",
        "out",
    ];
    let nothing = grid.run(nothing)?.expect(0)?.json()?;
    ensure!(
        nothing["warnings"].as_array().is_some_and(Vec::is_empty),
        "{nothing}"
    );
    Ok(())
}

/// Gaps that `verify` names.
fn gaps(grid: &Grid) -> Result<Vec<String>> {
    let verified = grid.run(["--json", "verify"])?.json()?;
    let gaps = verified["gaps"].as_array().context("gaps")?;
    Ok(gaps.iter().map(ToString::to_string).collect())
}

#[test]
fn a_gap_in_the_chain_of_versions_is_reported() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("image"), b"image")?;
    let mut lost = String::new();
    for version in 1..=4 {
        let save = ["--json", "save", "--job", "42", "--keep", "9", "image"];
        let saved = grid.run(save)?.expect(0)?.json()?;
        if version == 3 {
            lost = saved["checkpoint"].as_str().context("id")?.to_owned();
        }
    }
    ensure!(gaps(&grid)?.is_empty());
    // All hosts lose a version that nobody deleted.
    for (host, _) in grid.running()? {
        grid.kill(&host)?;
        for file in [grid.shard_files(&host)?, grid.manifest_files(&host)?].concat() {
            if file.to_string_lossy().contains(&lost) {
                fs::remove_file(file)?;
            }
        }
    }
    grid.restart()?;
    let gaps = gaps(&grid)?;
    ensure!(gaps.len() == 1, "{gaps:?}");
    ensure!(gaps[0].contains("between version 2 and 4"), "{gaps:?}");
    Ok(())
}

#[test]
fn a_deleted_version_is_no_gap() -> Result<()> {
    let grid = Grid::up(5)?;
    let mut bytes = vec![0; 6 << 20];
    SmallRng::seed_from_u64(1).fill(bytes.as_mut_slice());
    // The usual case: later versions build on the first one, and the versions between them are removed.
    for number in 0..6 {
        bytes[number] ^= 1;
        fs::write(grid.path("image"), &bytes)?;
        grid.run(["save", "--job", "42", "image"])?.expect(0)?;
    }
    let listed = grid.versions("42")?;
    ensure!(listed.len() == 3 && listed[0] < 4, "{listed:?}");
    ensure!(gaps(&grid)?.is_empty());
    let one = grid
        .run(["--json", "verify", "--job", "42"])?
        .expect(0)?
        .json()?;
    ensure!(one["gaps"] == serde_json::json!([]), "{one}");
    for number in 1..=3 {
        let job = "43";
        fs::write(grid.path("image"), format!("{number}"))?;
        grid.run(["save", "--job", job, "--keep", "9", "--full", "image"])?
            .expect(0)?;
    }
    grid.run(["forget", "--job", "43", "--version", "2"])?
        .expect(0)?;
    ensure!(gaps(&grid)?.is_empty());
    Ok(())
}

/// Exit statuses distinguish an outage (5) from a loss (7), so that a cron job can distinguish them.
#[test]
fn shards_on_silent_hosts_are_not_called_lost() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("image"), image::memory(100_000, 1))?;
    grid.run(["save", "--job", "42", "image"])?.expect(0)?;
    let holders = grid.holders("42")?;
    for host in &holders[..3] {
        grid.kill(host)?;
    }
    let away = grid.run(["--json", "verify"])?.expect(5)?.json()?;
    let one = &away["checkpoints"][0];
    ensure!(one["away"] == 3 && one["lost"] == false, "{away}");
    ensure!(one["can_lose"].is_null(), "{away}");
    grid.run(["show", "--job", "42"])?.expect(5)?;
    grid.run(["restore", "--job", "42", "-o", "out"])?
        .expect(5)?;
    grid.restart()?;
    grid.run(["verify"])?.expect(0)?;

    // Three hosts that answer have lost their shards. A fourth host is away, but it could not help.
    for host in &holders[..3] {
        grid.kill(host)?;
        for shard in grid.shard_files(host)? {
            fs::remove_file(shard)?;
        }
    }
    grid.restart()?;
    grid.kill(&holders[3])?;
    let lost = grid.run(["--json", "verify"])?.expect(7)?.json()?;
    let one = &lost["checkpoints"][0];
    ensure!(one["away"] == 1 && one["lost"] == true, "{lost}");
    Ok(())
}
