//! Hosts that die, stand still or are slow while a save runs: how long the save takes.

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use tests::cluster::Cluster;
use tests::program::wait;
use tests::{Grid, Outcome, image};

use crate::faults::{busy_host, half_a_save};
use crate::restore_bytes;

/// Longest time of the rest of a save in which a host dies: three seconds until the death is noticed, one
/// for another try, and the rest for a busy machine. QUIC would notice after 20 s.
const DEATH_COST_MAX: Duration = Duration::from_secs(9);

/// An image so small that its shards fit into send buffers: no write blocks because a host is dead.
const IMAGE_BYTES: usize = 8 << 20;

/// Runs a save, and `harm` on a host that gets a shard in the middle of it. Returns the outcome, and how
/// long the rest of the save took.
fn save_through(
    grid: &Grid,
    args: &[&str],
    bytes: &[u8],
    harm: impl FnOnce(&str) -> Result<()>,
) -> Result<(Outcome, Duration)> {
    let (child, mut stdin) = half_a_save(grid, args, bytes)?;
    harm(&busy_host(grid)?)?;
    let begun = Instant::now();
    // The save may end before it has read everything.
    let _ = stdin.write_all(&bytes[bytes.len() / 2..]);
    drop(stdin);
    let ended = wait(child)?;
    Ok((ended, begun.elapsed()))
}

fn is_quick(outcome: &Outcome, took: Duration) -> Result<()> {
    ensure!(took < DEATH_COST_MAX, "{took:?}: {outcome}");
    Ok(())
}

#[test]
fn a_host_that_is_killed_during_a_save_costs_seconds() -> Result<()> {
    let grid = Grid::up(6)?;
    let bytes = image::memory(IMAGE_BYTES, 1);
    let args = ["--json", "save", "--job", "42", "-"];
    let (saved, took) = save_through(&grid, &args, &bytes, |host| grid.kill(host))?;
    let saved = saved.expect(0)?;
    let report = saved.json()?;
    ensure!(report["can_lose"] == 2, "{saved}");
    ensure!(
        report["replaced"][0]["what"] == "no packet for 3 s: host or network down",
        "{saved}"
    );
    is_quick(&saved, took)?;
    ensure!(restore_bytes(&grid, "42")? == bytes);
    Ok(())
}

#[test]
fn a_host_that_stops_for_good_during_a_save_costs_seconds() -> Result<()> {
    let grid = Grid::up(6)?;
    let bytes = image::memory(IMAGE_BYTES, 2);
    let args = ["--json", "save", "--job", "42", "-"];
    let mut stopped = None;
    let (saved, took) = save_through(&grid, &args, &bytes, |host| {
        stopped = Some(grid.signal(host, Signal::STOP)?);
        Ok(())
    })?;
    kill_process(stopped.context("no host was stopped")?, Signal::CONT)?;
    let saved = saved.expect(0)?;
    let report = saved.json()?;
    ensure!(report["can_lose"] == 2, "{saved}");
    ensure!(
        report["replaced"]
            .as_array()
            .is_some_and(|all| all.len() == 1),
        "{saved}"
    );
    is_quick(&saved, took)?;
    ensure!(restore_bytes(&grid, "42")? == bytes);
    Ok(())
}

#[test]
fn without_a_spare_a_death_ends_the_save_within_seconds() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = image::memory(IMAGE_BYTES, 3);
    let args = ["--json", "save", "--job", "42", "-"];
    let (failed, took) = save_through(&grid, &args, &bytes, |host| grid.kill(host))?;
    let failed = failed.expect(5)?;
    is_quick(&failed, took)
}

#[test]
fn a_host_that_stands_still_for_two_seconds_keeps_its_shard() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = image::memory(IMAGE_BYTES, 4);
    let args = ["--json", "save", "--job", "42", "-"];
    let (saved, took) = save_through(&grid, &args, &bytes, |host| {
        let pid = grid.signal(host, Signal::STOP)?;
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(2));
            kill_process(pid, Signal::CONT)
        });
        Ok(())
    })?;
    let saved = saved.expect(0)?;
    let report = saved.json()?;
    ensure!(took >= Duration::from_secs(1), "it was not waited for");
    ensure!(report["replaced"].as_array().is_none_or(Vec::is_empty));
    ensure!(report["can_lose"] == 2, "{saved}");
    Ok(())
}

#[test]
fn a_host_behind_a_megabit_per_second_keeps_its_shard() -> Result<()> {
    let cluster = Cluster::start(5, 0, &[])?;
    fs::write(cluster.path("img"), image::memory(3 << 20, 5))?;
    cluster.hosts[0].relay.weather(0, 20, 125_000);
    let begun = Instant::now();
    let args = ["--json", "save", "--job", "42", "img"];
    let saved = cluster.run(args)?.expect(0)?;
    let report = saved.json()?;
    ensure!(
        begun.elapsed() > Duration::from_secs(3),
        "the way is not slow"
    );
    ensure!(report["can_lose"] == 2, "{saved}");
    ensure!(report["replaced"].as_array().is_none_or(Vec::is_empty));
    Ok(())
}
