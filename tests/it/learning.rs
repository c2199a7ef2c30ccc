//! A grid learns what its machines are like, and forecasts otherwise then.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ckpt_store::monitor::history::{self, Run, States};
use placement::AvailabilityBitmap;
use placement::bitmap::{SLOTS, Slot};
use serde_json::Value;
use tests::Grid;

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
    grid.stop()?;
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
    let bytes = codec::hex::decode(hex).context("not hexadecimal")?;
    let bitmap = AvailabilityBitmap::from_bytes(&bytes)?;
    let newest = Slot(bitmap.newest().0 - 288);
    let mut before = AvailabilityBitmap::unknown(newest);
    for slot in newest.0 - SLOTS as u64 + 1 + 288..=newest.0 {
        before.record(Slot(slot), bitmap.get(Slot(slot)));
    }
    Ok(codec::hex::encode(&before.to_bytes()))
}

/// How likely the old machines, and the young ones, are to stay until the next checkpoint: means over them.
fn stays(grid: &Grid, old: &BTreeSet<String>) -> Result<(f64, f64)> {
    let table = grid.run(["--json", "hosts", "--for-job", "42"])?;
    let table = table.expect(0)?.json()?;
    let mut of_old = 0.0;
    let mut of_young = 0.0;
    for row in table["hosts"].as_array().context("no hosts")? {
        let stays = row["stays"].as_f64().context("no stays")?;
        let is_old = old.contains(row["name"].as_str().context("no name")?);
        *(if is_old { &mut of_old } else { &mut of_young }) += stays / 6.0;
    }
    Ok((of_old, of_young))
}

#[test]
fn a_grid_whose_machines_are_taken_back_after_a_time_learns_to_trust_the_young_ones() -> Result<()>
{
    let (grid, old) = grid_of_lifetimes()?;
    let model = || grid.run(["--json", "hosts", "--model"])?.expect(0)?.json();
    assert_eq!(model()?["presence"]["refitted"], false);
    let (of_old, of_young) = stays(&grid, &old)?;
    assert!(of_old > of_young, "as shipped: {of_old} {of_young}");
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
    let (of_old, of_young) = stays(&grid, &old)?;
    assert!(of_young > of_old, "refitted: {of_old} {of_young}");
    Ok(())
}
