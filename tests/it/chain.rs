//! Chains of versions: each stores what changed, and uses rows of older checkpoints for the rest.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::cluster::faketime;
use tests::liar::Lie;
use tests::mixed::MixedGrid;
use tests::program::{Outcome, run};
use tests::skip::not_checked;
use tests::{Grid, image};

const MIB: usize = 1 << 20;

/// Changes this many blocks of 16 KiB, anywhere.
fn change(bytes: &mut [u8], blocks: usize, seed: u64) {
    let len = bytes.len() / (16 << 10);
    let mut at = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for number in 0..blocks {
        at = at
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let block = (at >> 33) as usize % len * (16 << 10);
        let noise = image::noise(16 << 10, at ^ number as u64);
        bytes[block..block + (16 << 10)].copy_from_slice(&noise);
    }
}

fn number(report: &Value, key: &str) -> Result<u64> {
    report[key]
        .as_u64()
        .with_context(|| format!("{key}: {report}"))
}

#[test]
fn a_hundred_versions_store_little_more_than_what_changed() -> Result<()> {
    let grid = Grid::up(6)?;
    let mut bytes = image::noise(8 * MIB, 1);
    let save = ["--json", "save", "--job", "42", "--keep", "1", "image"];
    let mut stored = Vec::new();
    for version in 0..100 {
        fs::write(grid.path("image"), &bytes)?;
        let saved = grid.run(save)?.expect(0)?.json()?;
        stored.push(number(&saved, "stored_bytes")?);
        ensure!(saved["base"].is_null() == (version == 0), "{saved}");
        change(&mut bytes, 10, version);
    }
    fs::write(grid.path("image"), &bytes)?;
    let last = grid.run(save)?.expect(0)?.json()?;
    ensure!(last["can_lose"] == 2, "{last}");
    let whole = stored[0];
    let later: u64 = stored.iter().skip(1).sum();
    // 2% changed each time.
    ensure!(later < 99 * whole * 8 / 100, "{later} of {whole}");
    let largest = stored.iter().skip(1).max().context("no version")?;
    ensure!(largest * 6 < whole, "{largest} of {whole}: {stored:?}");
    let list = grid.run(["--json", "list", "--job", "42"])?;
    let list = list.expect(0)?.json()?;
    let all = list["checkpoints"].as_array().context("no list")?;
    ensure!(all.len() <= 25, "{} checkpoints", all.len());
    let held: u64 = all
        .iter()
        .map(|one| number(one, "stored_bytes"))
        .sum::<Result<u64>>()?;
    ensure!(held * 100 < whole * 230, "{held} of {whole}");
    // Not one of its hosts alone is needed.
    let holders = grid.holders("42")?;
    for host in holders.iter().take(2) {
        grid.kill(host)?;
    }
    let restore = ["restore", "--job", "42", "--memory", "64MiB", "-o"];
    grid.run(restore.iter().chain(&["out"]))?.expect(0)?;
    ensure!(fs::read(grid.path("out"))? == bytes);
    let piped = grid.run(restore.iter().chain(&["-"]))?.expect(0)?;
    ensure!(piped.stdout == bytes);
    let part = ["cat", "--job", "42", "--range", "1000000:1000", "image"];
    let part = grid.run(part)?.expect(0)?;
    ensure!(part.stdout == bytes[1_000_000..1_001_000]);
    Ok(())
}

#[test]
fn all_versions_of_a_chain_are_on_the_same_hosts() -> Result<()> {
    let grid = Grid::up(9)?;
    let mut bytes = image::noise(6 * MIB, 2);
    let mut hosts: BTreeSet<String> = BTreeSet::new();
    for version in 0..6 {
        fs::write(grid.path("image"), &bytes)?;
        let save = ["--json", "save", "--job", "42", "image"];
        let saved = grid.run(save)?.expect(0)?.json()?;
        let holders = saved["holders"].as_array().context("no holders")?;
        hosts.extend(holders.iter().map(|one| one["host"].to_string()));
        change(&mut bytes, 3, version);
    }
    ensure!(hosts.len() == 5, "{hosts:?}");
    Ok(())
}

/// Saves two versions of a job, kills two hosts that have them, and saves the next one by `third`. Returns the report of
/// that.
fn next_version_after_two_hosts_died(
    grid: &Grid,
    job: &str,
    third: impl Fn(&[&str]) -> Result<Outcome>,
) -> Result<Value> {
    let mut bytes = image::noise(24 * MIB, 4);
    fs::write(grid.path("image"), &bytes)?;
    let save = ["--json", "save", "--job", job, "image"];
    grid.run(save)?.expect(0)?;
    change(&mut bytes, 5, 2);
    fs::write(grid.path("image"), &bytes)?;
    grid.run(save)?.expect(0)?;
    for host in grid.holders(job)?.iter().take(2) {
        grid.kill(host)?;
    }
    change(&mut bytes, 5, 1);
    fs::write(grid.path("image"), &bytes)?;
    let report = third(&save)?.json()?;
    grid.run(["restore", "--job", job, "-o", job])?.expect(0)?;
    ensure!(fs::read(grid.path(job))? == bytes);
    Ok(report)
}

#[test]
fn what_hours_of_work_rest_on_is_stored_again_when_its_hosts_have_no_spare() -> Result<()> {
    let Some(library) = faketime() else {
        return not_checked("hours of work", "needs faketime");
    };
    let grid = Grid::up(9)?;
    let fresh = next_version_after_two_hosts_died(&grid, "43", |save| grid.run(save))?;
    // Two seconds of work are not worth it; what the two hosts have may come back.
    ensure!(number(&fresh, "stored_bytes")? < 3 * MIB as u64, "{fresh}");
    ensure!(fresh["can_lose"] == 0, "{fresh}");
    let late = next_version_after_two_hosts_died(&grid, "42", |save| {
        let mut command = grid.command(save)?;
        command.env("LD_PRELOAD", library).env("FAKETIME", "+12h");
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command.env("DONT_FAKE_MONOTONIC", "1");
        run(&mut command)
    })?;
    ensure!(number(&late, "stored_bytes")? > 23 * MIB as u64, "{late}");
    ensure!(late["can_lose"] == 2, "{late}");
    let notes = late["notes"].to_string();
    ensure!(notes.contains("were stored again"), "{late}");
    Ok(())
}

/// Saves five versions of an image of so many MiB, and returns the last one.
fn five_versions(grid: &MixedGrid, mib: usize) -> Result<Vec<u8>> {
    let mut bytes = image::noise(mib * MIB, 3);
    for version in 0..5 {
        if version > 0 {
            change(&mut bytes, 5, version - 1);
        }
        fs::write(grid.path("image"), &bytes)?;
        grid.run(["save", "--job", "42", "image"])?.expect(0)?;
    }
    Ok(bytes)
}

#[test]
fn a_chain_is_read_from_hosts_whose_program_is_older_than_the_request_for_runs() -> Result<()> {
    let mut grid = MixedGrid::up(3, 2)?;
    let bytes = five_versions(&grid, 24)?;
    grid.stop("h01");
    grid.stop("h02");
    grid.lie(Lie::KnowsNoRuns);
    let restore = ["--json", "restore", "--job", "42", "-o", "out"];
    let restored = grid.run(restore)?.expect(0)?.json()?;
    ensure!(fs::read(grid.path("out"))? == bytes);
    let sources = restored["sources"].as_array().context("no sources")?;
    ensure!(sources.len() == 3, "{restored}");
    Ok(())
}

#[test]
fn a_host_that_lies_about_an_origin_is_passed_over() -> Result<()> {
    let grid = MixedGrid::up(4, 1)?;
    let bytes = five_versions(&grid, 6)?;
    for lie in [
        Lie::FlipsBits,
        Lie::SwapsBlocks,
        Lie::Truncates,
        Lie::ServesAnotherShard,
        Lie::HidesEverything,
    ] {
        grid.lie(lie);
        grid.run(["restore", "--job", "42", "--force", "-o", "out"])?
            .expect(0)?;
        ensure!(fs::read(grid.path("out"))? == bytes, "{lie:?}");
        fs::remove_file(grid.path("out"))?;
    }
    Ok(())
}
