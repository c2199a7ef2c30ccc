//! What the past of the whole pool says about its hosts.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ckpt_store::monitor::history::{self, Run, States};
use serde_json::Value;
use tests::Grid;

use crate::placement::run;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// Every machine of this grid is taken back 12 hours after it was given, and given again after an hour. The
/// shipped model has seen no such machines: it takes a machine that has been there for long for a safe one.
const LIFETIME: u64 = 12 * HOUR;
const AWAY: u64 = HOUR;

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
fn a_pool_whose_machines_are_taken_back_after_a_time_trusts_the_young_ones() -> Result<()> {
    let (grid, old) = grid_of_lifetimes()?;
    let (of_old, of_young) = stays(&grid, &old)?;
    assert!(of_young > of_old, "{of_old} {of_young}");
    let models = grid
        .run(["--json", "hosts", "--model"])?
        .expect(0)?
        .json()?;
    assert_eq!(models["hosts_of_blend"], 12, "{models:#}");
    let of = |model: &str| models["judged"][1][model].as_f64().context("not judged");
    assert!(of("blend_brier")? < of("hazard_brier")?, "{models:#}");
    let text = grid.run(["hosts", "--model"])?.expect(0)?;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(
        text.contains("blend") && text.contains("BRIER 3 H"),
        "{text}"
    );
    Ok(())
}

#[test]
fn every_command_takes_the_forecast_mixed_with_the_pool() -> Result<()> {
    let (grid, _) = grid_of_lifetimes()?;
    let json = |args: &[&str]| grid.run([&["--json"][..], args].concat())?.json();
    let stays = |host: &Value| host["stays_10h"].as_f64().context("no stays_10h");
    let hosts = json(&["hosts"])?;
    let health = json(&["health"])?;
    for host in hosts["hosts"].as_array().context("no hosts")? {
        let name = host["name"].as_str().context("no name")?;
        let advise = ["advise", "--job-length", "10h", "--compute-host", name];
        let advice = json(&advise)?;
        let of_advice = advice["survives_job"].as_f64().context("no survives")?;
        let of_health = health["hosts"]["each"].as_array().context("no health")?;
        let of_health = of_health.iter().find(|one| one["name"] == name);
        let of_health = stays(of_health.context("not in the health")?)?;
        // What the machine's own forecast alone says differs from this by a fifth.
        assert!((of_advice - stays(host)?).abs() < 0.05, "{host} {advice}");
        assert!((of_health - stays(host)?).abs() < 0.05, "{host} {health}");
    }
    Ok(())
}

/// Three weeks of a machine that is there from 8:00 to 18:00 UTC each day.
fn office(now: u64) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut at = now - now % DAY - 21 * DAY;
    while at < now {
        let [opens, closes] = [at + 8 * HOUR, at + 18 * HOUR];
        let parts = [
            (at, opens, States::GONE),
            (opens, closes, States::CALM),
            (closes, at + DAY, States::GONE),
        ];
        for (from, to, states) in parts {
            if from < now {
                runs.push(run(from..to.min(now), states));
            }
        }
        at += DAY;
    }
    runs
}

#[test]
fn the_week_of_a_pool_shows_who_goes_home_and_when_a_job_had_best_begin() -> Result<()> {
    let grid = Grid::up(5)?;
    let hosts = grid.running()?;
    grid.stop()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    for (number, (host, _)) in hosts.iter().enumerate() {
        let past = match number {
            0 => vec![run(now - 21 * DAY..now, States::CALM)],
            _ => office(now),
        };
        history::write(&grid.data_dir(host), &past)?;
    }
    grid.restart()?;
    let pool = grid.run(["--json", "plan", "pool", "--job-length", "9h"])?;
    let pool = pool.expect(0)?.json()?;
    assert_eq!(pool["hosts"], 5, "{pool}");
    let hours = pool["hours"].as_array().context("no hours")?;
    assert_eq!(hours.len(), 168);
    let present = pool["now"].as_u64().context("no hour")?;
    for (at, hour) in (0..).zip(hours) {
        let of = |what: &str| hour[what].as_f64().context("no number");
        // The present hour has been seen in part, by daemons of this test.
        if at == present {
            continue;
        }
        let is_open = (8..18).contains(&(at % 24));
        let expected = if is_open { 5.0 } else { 1.0 };
        assert!((of("hosts")? - expected).abs() < 0.3, "{at}: {hour}");
        assert!((of("free")? - expected).abs() < 0.3, "{at}: {hour}");
        // Nine hours fit into the day of the office if they begin at 8:00 or 9:00.
        let stays = of("stayed")? / of("starts")?;
        let fits = !is_open || matches!(at % 24, 8 | 9);
        assert_eq!(stays > 0.9, fits, "{at}: {hour}");
    }
    let text = grid
        .run(["plan", "pool", "--job-length", "9h"])?
        .expect(0)?;
    let text = String::from_utf8(text.stdout)?;
    assert!(text.contains("a job of 9 h"), "{text}");
    Ok(())
}

#[test]
fn hours_of_which_nothing_is_known_are_not_shown_as_empty_ones() -> Result<()> {
    let grid = Grid::up(3)?;
    let text = grid.run(["pool"])?.expect(0)?;
    let text = String::from_utf8(text.stdout)?;
    let days = text
        .lines()
        .filter(|line| line.starts_with("Mon") || line.starts_with("Sun"));
    for day in days {
        let unknown = day.split_whitespace().filter(|cell| *cell == ".").count();
        // A test may run at the change of an hour.
        assert!(unknown >= 22, "{text}");
    }
    Ok(())
}
