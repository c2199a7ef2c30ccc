//! Donors that lie to other donors: a claim to hold a shard does not count as a copy of it.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ckpt_store::repair::RepairSettings;
use placement::absence::RepairWaits;
use serde_json::Value;
use tests::image;
use tests::liar::Lie;
use tests::mixed::MixedGrid;
use tests::program::wait_until;

const LIMIT: Duration = Duration::from_secs(180);

/// Time for a drain that can't succeed: the host tries until the time is over.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of a daemon that rebuilds a shard which was missing for one second.
fn quick_repair() -> RepairSettings {
    let second = Duration::from_secs(1);
    RepairSettings {
        period: Duration::from_millis(300),
        patience: RepairWaits {
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

/// For each shard of a job, the hosts that have a good copy. All bytes are read to find out.
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
fn a_shard_is_rebuilt_although_liars_claim_to_hold_it() -> Result<()> {
    let mut grid = MixedGrid::up_with(6, 2, |_| quick_repair())?;
    grid.lie(Lie::ClaimsToHoldAll);
    save(&grid, "42")?;
    let victim = first_holder(&grid, "42")?;
    grid.stop(&victim);
    wait_until("all shards are there again", LIMIT, || {
        Ok(good(&grid, "42")?.len() == 5)
    })
}

#[test]
fn no_shard_is_given_back_on_the_word_of_a_host() -> Result<()> {
    let grid = MixedGrid::up_with(6, 2, |_| quick_repair())?;
    grid.lie(Lie::ClaimsToHoldAll);
    save(&grid, "42")?;
    let host = first_holder(&grid, "42")?;
    // 100 KB is less than one shard.
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
    let grid = MixedGrid::up_with(6, 1, |_| quick_repair())?;
    grid.lie(Lie::ClaimsToHoldAll);
    save(&grid, "42")?;
    let leaving = first_holder(&grid, "42")?;
    let drained = grid.drain(&leaving, LIMIT)?;
    let good = good(&grid, "42")?;
    ensure!(drained == (1, 0), "{drained:?}, {leaving} leaves: {good:?}");
    let elsewhere = |hosts: &Vec<String>| hosts.iter().any(|host| *host != leaving);
    ensure!(good.len() == 5 && good.values().all(elsewhere), "{good:?}");
    Ok(())
}

#[test]
fn a_host_that_passes_questions_on_lets_no_other_host_leave() -> Result<()> {
    let grid = MixedGrid::up_with(5, 1, |_| quick_repair())?;
    grid.pass_questions_on()?;
    save(&grid, "42")?;
    let before = good(&grid, "42")?;
    ensure!(before.len() == 5, "{before:?}");
    // The liar refused its shard, so each of the five honest hosts has one; and it proves all of them.
    let leaving = first_holder(&grid, "42")?;
    ensure!(grid.drain(&leaving, DRAIN_TIMEOUT)? == (0, 1));
    Ok(())
}

#[test]
fn a_host_that_stores_other_bytes_is_no_place_to_hand_shards_to() -> Result<()> {
    let grid = MixedGrid::up_with(5, 1, |_| quick_repair())?;
    // At first the liar refuses shards for lack of room, so that the honest hosts hold all of them.
    grid.lie(Lie::ClaimsToHoldAll);
    save(&grid, "42")?;
    grid.lie(Lie::StoresOther);
    let leaving = first_holder(&grid, "42")?;
    // The liar is the only host without a shard. It takes one and acknowledges its root, but keeps other
    // bytes.
    ensure!(grid.drain(&leaving, DRAIN_TIMEOUT)? == (0, 1));
    Ok(())
}

#[test]
fn holders_that_repair_nothing_are_followed_by_the_others() -> Result<()> {
    let mut grid = MixedGrid::up_with(7, 0, |name| RepairSettings {
        rebuilds: !matches!(name, "h01" | "h02" | "h03"),
        ..quick_repair()
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

/// There are more liars than honest hosts, so the median of all clocks is years ahead. A host ends a lease
/// by that median, but not before the lease has ended by the host's own clock, too.
#[test]
fn clocks_that_are_years_ahead_end_no_lease() -> Result<()> {
    const ROUNDS: u64 = 20;
    let grid = MixedGrid::up_with(5, 6, |_| quick_repair())?;
    grid.lie(Lie::ClockAhead);
    fs::write(grid.path("image"), image::memory(2 << 20, 1))?;
    let save = ["save", "--job", "42", "--ttl", "30d", "image"];
    grid.run(save)?.expect(0)?;
    let before = grid.clock_asked();
    wait_until("every host has heard the liars often", LIMIT, || {
        let asked = grid.clock_asked();
        let all = asked.iter().zip(&before);
        Ok(all.into_iter().all(|(now, then)| now - then >= 5 * ROUNDS))
    })?;
    for number in 1..=5 {
        let name = format!("h{number:02}");
        ensure!(grid.shard_files(&name)?.len() == 1, "{name} let go");
    }
    let restored = grid.run(["restore", "--job", "42", "-o", "out"])?;
    restored.expect(0)?;
    ensure!(fs::read(grid.path("out"))? == image::memory(2 << 20, 1));
    Ok(())
}

/// One notice can't name the ids of all versions, and a donor kept a shard of each.
#[test]
fn a_deleted_checkpoint_is_not_brought_back_by_a_donor_that_kept_it() -> Result<()> {
    const VERSIONS: usize = 136;
    let grid = MixedGrid::up_with(3, 1, |_| quick_repair())?;
    grid.lie(Lie::ReplaysDeleted);
    fs::write(grid.path("image"), "a small image")?;
    let save = |job: &str| -> Result<()> {
        let save = ["save", "--job", job, "--data", "1", "--parity", "3"];
        let more = ["--keep", "1", "image"];
        grid.run(save.iter().chain(&more))?.expect(0)?;
        Ok(())
    };
    save("kept")?;
    let alive = grid.bring_back()?;
    ensure!(alive.len() == 1, "what is wanted can be brought back");

    for _ in 0..VERSIONS {
        save("42")?;
    }
    grid.run(["forget", "--job", "42", "--all"])?.expect(0)?;
    let back = grid.bring_back()?;
    ensure!(back.is_subset(&alive), "hosts took {back:?}");
    // The same holds on a machine that has seen the job, and on one that has not.
    for machine in ["state", "another"] {
        let run = |args: &[&str]| {
            let mut program = grid.command(args)?;
            program.env("CKPT_STATE_DIR", grid.path(machine));
            tests::program::run(&mut program)
        };
        run(&["restore", "--job", "42", "-o", "back"])?.expect(4)?;
        ensure!(!grid.path("back").exists());
        let listed = run(&["--json", "list"])?.expect(0)?.json()?;
        let listed = listed["checkpoints"].as_array().context("list")?;
        ensure!(
            listed.len() == 1 && listed[0]["job"] == "kept",
            "{listed:?}"
        );
    }
    Ok(())
}
