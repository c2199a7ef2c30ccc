//! Donors that lie to other donors: no word of theirs is a copy of anything.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ckpt_store::core::repair::Patience;
use ckpt_store::repair::RepairSettings;
use serde_json::Value;
use tests::image;
use tests::liar::Lie;
use tests::mixed::MixedGrid;
use tests::program::wait_until;

const LIMIT: Duration = Duration::from_secs(180);

/// Repair of what is missing for a second.
fn soon() -> RepairSettings {
    let second = Duration::from_secs(1);
    RepairSettings {
        period: Duration::from_millis(300),
        patience: Patience {
            least: second,
            usual: second,
            most: second,
        },
        ..RepairSettings::default()
    }
}

fn save(grid: &MixedGrid, job: &str) -> Result<()> {
    fs::write(grid.path("image"), image::memory(2 << 20, 1))?;
    grid.run(["save", "--job", job, "image"])?.expect(0)?;
    Ok(())
}

/// Who has each shard of a job whose bytes were all read and are right.
fn good(grid: &MixedGrid, job: &str) -> Result<BTreeMap<u64, Vec<String>>> {
    let verify = ["--json", "verify", "--read-data", "--job", job];
    let verified = grid.run(verify)?.json()?;
    let good = verified["checkpoints"][0]["good"].as_array();
    let mut holders: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for one in good.context("good")? {
        let shard = one["shard"].as_u64().context("shard")?;
        let host = Value::as_str(&one["host"]).context("host")?;
        holders.entry(shard).or_default().push(host.to_owned());
    }
    Ok(holders)
}

fn first_holder(grid: &MixedGrid, job: &str) -> Result<String> {
    let good = good(grid, job)?;
    let (_, hosts) = good.first_key_value().context("no shard")?;
    hosts.first().cloned().context("no holder")
}

#[test]
fn a_shard_is_rebuilt_whoever_claims_to_hold_it() -> Result<()> {
    let mut grid = MixedGrid::up_with(6, 2, |_| soon())?;
    grid.lie(Lie::ClaimsToHoldAll);
    save(&grid, "42")?;
    let victim = first_holder(&grid, "42")?;
    grid.stop(&victim);
    wait_until("all shards are there again", LIMIT, || {
        Ok(good(&grid, "42")?.len() == 5)
    })
}

#[test]
fn nothing_is_given_back_on_the_word_of_a_host() -> Result<()> {
    let grid = MixedGrid::up_with(6, 2, |_| soon())?;
    grid.lie(Lie::ClaimsToHoldAll);
    save(&grid, "42")?;
    let host = first_holder(&grid, "42")?;
    // 100 KB: not one shard.
    let preferences = grid.path(&host).join("preferences.toml");
    fs::write(preferences, "disk_max_used_gb = 0.0001\n")?;
    wait_until("it holds no shard", LIMIT, || {
        Ok(grid.shard_files(&host)?.is_empty())
    })?;
    let good = good(&grid, "42")?;
    ensure!(good.len() == 5, "{good:?}");
    Ok(())
}

#[test]
fn a_host_that_leaves_does_not_take_claims_for_copies() -> Result<()> {
    let grid = MixedGrid::up_with(6, 1, |_| soon())?;
    grid.lie(Lie::ClaimsToHoldAll);
    save(&grid, "42")?;
    let leaving = first_holder(&grid, "42")?;
    ensure!(grid.drain(&leaving, LIMIT)? == (1, 0));
    let good = good(&grid, "42")?;
    let elsewhere = |hosts: &Vec<String>| hosts.iter().any(|host| *host != leaving);
    ensure!(good.len() == 5 && good.values().all(elsewhere), "{good:?}");
    Ok(())
}

#[test]
fn a_host_that_stores_other_bytes_is_no_place_to_hand_shards_to() -> Result<()> {
    let grid = MixedGrid::up_with(5, 1, |_| soon())?;
    // At first it has no room, so that the honest ones hold the shards.
    grid.lie(Lie::ClaimsToHoldAll);
    save(&grid, "42")?;
    grid.lie(Lie::StoresOther);
    let leaving = first_holder(&grid, "42")?;
    // It takes the shard, acknowledges its root, and has other bytes: nobody else is left.
    ensure!(grid.drain(&leaving, LIMIT)? == (0, 1));
    Ok(())
}

#[test]
fn holders_that_repair_nothing_are_followed_by_the_others() -> Result<()> {
    let mut grid = MixedGrid::up_with(7, 0, |name| RepairSettings {
        rebuilds: !matches!(name, "h01" | "h02" | "h03"),
        ..soon()
    })?;
    let jobs = ["a", "b", "c", "d"];
    for job in jobs {
        save(&grid, job)?;
    }
    grid.stop("h07");
    for job in jobs {
        wait_until("all shards are there again", LIMIT, || {
            Ok(good(&grid, job)?.len() == 5)
        })?;
    }
    Ok(())
}
