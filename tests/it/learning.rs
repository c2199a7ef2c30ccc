//! A grid learns what its machines are like, and chooses other hosts then.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ckpt_store::monitor::history::{self, Run, States};
use placement::AvailabilityBitmap;
use placement::bitmap::{SLOTS, Slot};
use rustix::process::Signal;
use serde_json::Value;
use tests::program::wait_until;
use tests::{Grid, image};

use crate::restore_bytes;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// Every machine of this grid is taken back 12 hours after it was given, and given again after an hour. The
/// shipped model has seen no such machines: it takes a machine that has been there for long for a safe one.
const LIFETIME: u64 = 12 * HOUR;
const AWAY: u64 = HOUR;

fn run(span: Range<u64>, states: States) -> Run {
    Run {
        span,
        states: Some(states),
        cpu: 0.1,
        disk: 0.0,
    }
}

/// Twenty days of a machine that was given `age` seconds ago.
fn machine(now: u64, age: u64) -> Vec<Run> {
    let mut runs = vec![run(now - age..now, States::CALM)];
    let mut given = now - age;
    while given > now - 20 * DAY {
        runs.push(run(given - AWAY..given, States::GONE));
        runs.push(run(given - AWAY - LIFETIME..given - AWAY, States::CALM));
        given -= AWAY + LIFETIME;
    }
    runs.reverse();
    runs
}

/// A grid of twelve machines: half of them were given one to four hours ago. The other half, which is
/// returned, has less than an hour left.
fn grid_of_lifetimes() -> Result<(Grid, BTreeSet<String>)> {
    let grid = Grid::up(12)?;
    let hosts = grid.running()?;
    for (host, _) in &hosts {
        grid.signal(host, Signal::TERM)?;
    }
    wait_until(
        "all hosts are down",
        tests::program::COMMAND_TIMEOUT,
        || Ok(grid.running()?.is_empty()),
    )?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut old = BTreeSet::new();
    for (number, (host, _)) in (0..).zip(&hosts) {
        let age = if number % 2 == 0 {
            HOUR + number * HOUR / 4
        } else {
            old.insert(host.clone());
            LIFETIME - HOUR + number * 240
        };
        history::write(&grid.data_dir(host), &machine(now, age))?;
    }
    grid.restart()?;
    Ok((grid, old))
}

/// The one file below `dir` whose name ends with `end`.
fn file(dir: &Path, end: &str) -> Result<PathBuf> {
    let mut files = fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path()));
    let found = files.find(|path| path.to_string_lossy().ends_with(end));
    found.with_context(|| format!("no file *{end} in {}", dir.display()))
}

fn change(path: &Path, change: impl FnOnce(&mut Value) -> Result<()>) -> Result<()> {
    let mut content = serde_json::from_slice(&fs::read(path)?)?;
    change(&mut content)?;
    Ok(fs::write(path, serde_json::to_vec(&content)?)?)
}

/// Makes what the client collected a day older: it heard of the hosts a month ago, and has not seen their last
/// day.
fn a_day_passes(state: &Path) -> Result<()> {
    change(&file(state, ".model.json")?, |models| {
        let collected = models["collected"].as_u64().context("never collected")?;
        models["collected"] = (collected - DAY).into();
        Ok(())
    })?;
    change(&file(state, ".sums.json")?, |sources| {
        for host in sources["hosts"].as_array_mut().context("no hosts")? {
            let heard = host["last_heard"].as_u64().context("never heard of")?;
            host["first_heard"] = (heard - 30 * DAY).into();
            for bitmap in host["bitmaps"].as_array_mut().context("no bitmaps")? {
                *bitmap = a_day_before(bitmap.as_str().context("no text")?)?.into();
            }
        }
        Ok(())
    })
}

/// What a bitmap was a day before its end, in hexadecimal.
fn a_day_before(hex: &str) -> Result<String> {
    let byte = |at: usize| Ok(u8::from_str_radix(&hex[at..at + 2], 16)?);
    let bytes = (0..hex.len()).step_by(2).map(byte);
    let bitmap = AvailabilityBitmap::from_bytes(&bytes.collect::<Result<Vec<u8>>>()?)?;
    let newest = Slot(bitmap.newest().0 - 288);
    let mut before = AvailabilityBitmap::unknown(newest);
    for slot in newest.0 - SLOTS as u64 + 1 + 288..=newest.0 {
        before.record(Slot(slot), bitmap.get(Slot(slot)));
    }
    let bytes = before.to_bytes();
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Saves `image`, and returns how many of the machines that it went to are `old`.
fn old_ones_chosen(grid: &Grid, old: &BTreeSet<String>, job: &str) -> Result<usize> {
    let saved = grid.run(["--json", "save", "--full", "--job", job, "image"])?;
    let saved = saved.expect(0)?.json()?;
    let holders = saved["holders"].as_array().context("no holders")?;
    let names = holders.iter().filter_map(|holder| holder["host"].as_str());
    Ok(names.filter(|name| old.contains(*name)).count())
}

#[test]
fn a_grid_whose_machines_are_taken_back_after_a_time_learns_to_choose_the_young_ones() -> Result<()>
{
    let (grid, old) = grid_of_lifetimes()?;
    let bytes = image::memory(1 << 20, 3);
    fs::write(grid.path("image"), &bytes)?;
    let model = || grid.run(["--json", "hosts", "--model"])?.expect(0)?.json();
    assert_eq!(model()?["presence"]["refitted"], false);
    let before = old_ones_chosen(&grid, &old, "before")?;

    let state = grid.path("state");
    for _ in 0..2 {
        a_day_passes(&state)?;
        grid.run(["hosts"])?.expect(0)?;
    }
    let learnt = model()?;
    assert_eq!(learnt["presence"]["refitted"], true, "{learnt:#}");
    assert_eq!(learnt["presence"]["hosts"], 12, "{learnt:#}");
    let text = grid.run(["hosts", "--model"])?.expect(0)?;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("refit ") && text.contains("1 of 1"), "{text}");
    let after = old_ones_chosen(&grid, &old, "after")?;
    assert!(
        before >= 3 && after == 0,
        "old machines chosen: {before}, then {after}"
    );

    // The time of the old machines is over.
    for host in &old {
        grid.kill(host)?;
    }
    grid.run(["restore", "--job", "before", "-o", "copy"])?
        .expect(5)?;
    assert!(restore_bytes(&grid, "after")? == bytes);
    Ok(())
}
