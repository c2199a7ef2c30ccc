//! Placement: shards go to hosts that stay and that have fast links.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ckpt_store::monitor::history::{self, Run, States};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tests::net::{self, NetGrid};
use tests::{Grid, image, skip};

use crate::{restore_bytes, save_file};

const DAY: u64 = 86_400;

/// A part of the past of a host.
pub(crate) fn run(span: Range<u64>, states: States) -> Run {
    Run {
        span,
        states: Some(states),
        cpu: 0.1,
        disk: 0.0,
    }
}

/// Twenty days of a host that is away about once in two hours, for 5 minutes up to an hour.
fn flaky(now: u64, rng: &mut SmallRng) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut at = now - 20 * DAY;
    while at < now - 7200 {
        let leaves = at + rng.random_range(1200..10_000);
        let back = leaves + rng.random_range(300..3600);
        runs.push(run(at..leaves, States::CALM));
        runs.push(run(leaves..back, States::GONE));
        at = back;
    }
    runs.push(run(at..now.max(at + 60), States::CALM));
    runs
}

/// Twenty days of a host that was rebooted once.
fn steady(now: u64, rng: &mut SmallRng) -> Vec<Run> {
    let reboot = now - rng.random_range(2 * DAY..18 * DAY);
    vec![
        run(now - 20 * DAY..reboot, States::CALM),
        run(reboot..reboot + 300, States::GONE),
        run(reboot + 300..now, States::CALM),
    ]
}

/// A grid in which every second host is flaky, and the names of the steady hosts.
fn grid_with_histories(seed: u64) -> Result<(Grid, BTreeSet<String>)> {
    let grid = Grid::up(10)?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut steady_hosts = BTreeSet::new();
    let hosts = grid.running()?;
    grid.stop()?;
    for (number, (host, _)) in hosts.iter().enumerate() {
        let runs = if number % 2 == 0 {
            flaky(now, &mut rng)
        } else {
            steady_hosts.insert(host.clone());
            steady(now, &mut rng)
        };
        history::write(&grid.data_dir(host), &runs)?;
    }
    grid.restart()?;
    Ok((grid, steady_hosts))
}

#[test]
fn steady_hosts_are_chosen_before_flaky_ones() -> Result<()> {
    let (grid, steady) = grid_with_histories(1)?;
    let bytes = image::memory(3 << 20, 1);
    std::fs::write(grid.path("image"), &bytes)?;
    for job in ["a", "b", "c"] {
        assert_eq!(passed_over(&grid, &steady, job)?, [""; 0]);
        assert!(restore_bytes(&grid, job)? == bytes);
    }
    // With three of five steady hosts gone, a save uses flaky ones as well.
    let gone: Vec<&String> = steady.iter().take(3).collect();
    for host in &gone {
        grid.kill(host)?;
    }
    let alive = steady.iter().filter(|host| !gone.contains(host));
    assert_eq!(passed_over(&grid, &alive.cloned().collect(), "d")?, [""; 0]);
    Ok(())
}

/// Saves an image without any option that says how, and returns the report.
fn save_by_default(grid: &Grid) -> Result<Value> {
    std::fs::write(grid.path("image"), image::memory(1 << 20, 4))?;
    let save = ["--json", "save", "--job", "42", "image"];
    grid.run(save)?.expect(0)?.json()
}

#[test]
fn without_history_a_save_makes_three_data_and_two_parity_shards() -> Result<()> {
    let grid = Grid::up(9)?;
    let saved = save_by_default(&grid)?;
    assert_eq!(saved["redundancy"], "3+2", "{saved:#}");
    Ok(())
}

#[test]
fn a_grid_of_the_first_hour_promises_little_and_not_nothing() -> Result<()> {
    let grid = Grid::up(6)?;
    let hosts = grid.running()?;
    grid.stop()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    for (host, _) in &hosts {
        let hour = run(now - 3600..now, States::CALM);
        history::write(&grid.data_dir(host), &[hour])?;
    }
    grid.restart()?;
    std::fs::write(grid.path("image"), image::memory(1 << 20, 4))?;
    let target = |target| grid.run(["save", "--job", "42", "--target", target, "image"]);
    target("0.9")?.expect(0)?;
    let missed = target("0.99")?.expect(3)?;
    let said = String::from_utf8_lossy(&missed.stdout);
    assert!(said.contains("probability 0.97"), "{missed}");
    Ok(())
}

#[test]
fn with_a_history_of_thirty_days_the_code_is_chosen_by_forecast() -> Result<()> {
    let grid = Grid::up(9)?;
    let hosts = grid.running()?;
    grid.stop()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    for (number, (host, _)) in (1..).zip(&hosts) {
        // Each machine was rebooted once, on a day of its own.
        let reboot = now - number * 2 * DAY;
        let runs = [
            run(now - 30 * DAY..reboot, States::CALM),
            run(reboot..reboot + 300, States::GONE),
            run(reboot + 300..now, States::CALM),
        ];
        history::write(&grid.data_dir(host), &runs)?;
    }
    grid.restart()?;
    // Nine machines that hardly ever fail need fewer bytes for the same safety. Three of them are spares.
    let saved = save_by_default(&grid)?;
    assert_eq!(saved["redundancy"], "4+2", "{saved:#}");
    assert_eq!(
        (&saved["can_lose"], &saved["stored_times"]),
        (&2.into(), &1.5.into())
    );
    let notes = saved["notes"].to_string();
    assert!(
        notes.contains("by forecast") && notes.contains("1.5 times"),
        "{notes}"
    );
    // A code that is given is kept to.
    let given = ["--json", "save", "--job", "42", "--parity", "2", "image"];
    assert_eq!(grid.run(given)?.expect(0)?.json()?["redundancy"], "3+2");
    // The report and the exit status say whether a target holds.
    let target = |target| grid.run(["save", "--job", "42", "--target", target, "image"]);
    target("0.9")?.expect(0)?;
    let missed = target("0.9999999")?.expect(3)?;
    let said = String::from_utf8_lossy(&missed.stdout);
    assert!(said.contains("instead of 0.9999999"), "{missed}");
    assert!(restore_bytes(&grid, "42")? == image::memory(1 << 20, 4));
    Ok(())
}

#[test]
fn hosts_can_be_named_or_drawn_at_random() -> Result<()> {
    let grid = Grid::up(9)?;
    std::fs::write(grid.path("image"), image::memory(1 << 20, 2))?;
    let save = |choose: &str| -> Result<BTreeSet<String>> {
        let words = [
            "--json", "save", "--full", "--job", "42", "--choose", choose, "image",
        ];
        let saved = grid.run(words)?.expect(0)?.json()?;
        let holders = saved["holders"].as_array().context("no holders")?;
        let names = holders.iter().filter_map(|holder| holder["host"].as_str());
        Ok(names.map(str::to_owned).collect())
    };
    let named = ["h02", "h04", "h05", "h07", "h09"];
    let holders = save(&named.join(","))?;
    assert_eq!(holders, named.map(str::to_owned).into());
    // There are 126 sets of five hosts, so six draws of the same set are no accident.
    let drawn: BTreeSet<_> = (0..6).map(|_| save("random")).collect::<Result<_>>()?;
    assert!(drawn.len() > 1, "{drawn:?}");
    let too_few = ["save", "--job", "42", "--choose", "h01,h02", "image"];
    grid.run(too_few)?.expect(5)?;
    let unknown = ["save", "--job", "42", "--choose", "h01,h99", "image"];
    let said = grid.run(unknown)?.expect(2)?;
    assert!(said.stderr.contains("h99"), "{said}");
    grid.run(["save", "--job", "42", "--choose", "h01,,h02", "image"])?
        .expect(2)?;
    Ok(())
}

/// Whether the host costs more time than the chosen ones, as a busy one does. Being less reliable than another one
/// costs less here.
fn answers_late(row: &Value, table: &[Value]) -> bool {
    let chosen = table.iter().find(|row| row["chosen"] == true);
    let best = chosen.and_then(|row| row["objective_with"].as_f64());
    let with = row["objective_with"].as_f64();
    best.zip(with).is_some_and(|(best, with)| with > best + 0.1)
}

/// Saves `image` and returns the steady hosts that hold no shard without a good reason. Good reasons are a
/// late answer, a failure during the save, and a lower rate than the fastest chosen host, all of which happen
/// on a busy machine.
fn passed_over(grid: &Grid, steady: &BTreeSet<String>, job: &str) -> Result<Vec<String>> {
    let save = ["--json", "save", "--explain", "--job", job, "image"];
    let saved = grid.run(save)?.expect(0)?.json()?;
    let names = |list: &Value, field: &str| -> BTreeSet<String> {
        let entries = list.as_array().into_iter().flatten();
        let names = entries.filter_map(|entry| entry[field].as_str());
        names.map(str::to_owned).collect()
    };
    let table = saved["placement"]["hosts"].as_array().context("no table")?;
    let rate = |row: &Value| row["bytes_per_second"].as_f64().unwrap_or(0.0);
    let chosen = table.iter().filter(|row| row["chosen"] == true);
    let fastest = chosen.map(rate).fold(0.0, f64::max);
    let slow = table
        .iter()
        .filter(|row| rate(row) < fastest || answers_late(row, table));
    let mut used = names(&saved["holders"], "host");
    used.extend(names(&saved["replaced"], "host"));
    used.extend(names(&saved["placement"]["silent"], "host"));
    used.extend(slow.filter_map(|row| Some(row["name"].as_str()?.to_owned())));
    let passed_over: Vec<String> = steady.difference(&used).cloned().collect();
    if !passed_over.is_empty() {
        eprintln!("{saved:#}");
    }
    Ok(passed_over)
}

#[test]
fn the_table_behind_a_choice_says_what_hosts_are_worth() -> Result<()> {
    let (grid, steady) = grid_with_histories(2)?;
    let explain = ["--json", "hosts", "--for-job", "42"];
    let table = grid.run(explain)?.expect(0)?.json()?;
    let rows = table["hosts"].as_array().context("no hosts")?;
    assert_eq!(rows.len(), 10);
    // A flaky host is only chosen in the place of a steady one that answers late.
    let late = rows.iter().filter(|row| answers_late(row, rows)).count();
    let chosen_though_flaky = |row: &&Value| {
        row["chosen"] == true
            && !row["name"]
                .as_str()
                .is_some_and(|name| steady.contains(name))
    };
    assert!(
        rows.iter().filter(chosen_though_flaky).count() <= late,
        "{table:#}"
    );
    for row in rows {
        let name = row["name"].as_str().context("no name")?;
        let is_fit = steady.contains(name) && !answers_late(row, rows);
        assert!(row["chosen"] == true || !is_fit, "{row}");
        let stays = row["stays"].as_f64().context("no stays")?;
        assert_eq!(stays > 0.9, steady.contains(name), "{row}");
        assert!(row["objective_without"].is_number(), "{row}");
    }
    let text = grid.run(["hosts", "--for-job", "42"])?.expect(0)?;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(steady.iter().all(|host| text.contains(host)), "{text}");

    // A low target needs few bytes, and a target near 1 needs more.
    std::fs::write(grid.path("x.img"), image::memory(1 << 20, 1))?;
    let auto = [
        "--json",
        "save",
        "--job",
        "x",
        "--redundancy",
        "auto",
        "--target",
        "0.9",
        "x.img",
    ];
    let saved = grid.run(auto)?.expect(0)?.json()?;
    let few = saved["stored_times"].as_f64().context("no factor")?;
    let auto = [
        "--json",
        "save",
        "--job",
        "x",
        "--redundancy",
        "auto",
        "--target",
        "0.99999",
        "x.img",
    ];
    // If all hosts together do not reach the target, the exit status is 3.
    let saved = grid.run(auto)?;
    assert!(matches!(saved.code, Some(0 | 3)), "{saved}");
    let saved = saved.json()?;
    let many = saved["stored_times"].as_f64().context("no factor")?;
    assert!(few < many, "{few} times for 0.9, {many} for 0.99999");
    Ok(())
}

#[test]
fn advice_follows_from_the_figures_given() -> Result<()> {
    let advise = |args: &[&str]| {
        let mut command = tests::program::command(["--json", "advise", "--job-length", "12h"])?;
        tests::program::run(command.args(args))?.expect(0)?.json()
    };
    let often = advise(&["--mtbf", "2h", "--cost", "30s"])?;
    let seldom = advise(&["--mtbf", "20h", "--cost", "30s"])?;
    let young = |report: &Value| report["young_seconds"].as_f64().context("no interval");
    // sqrt(2 * 30 * 7200) = 657 s.
    assert!((young(&often)? - 657.3).abs() < 1.0, "{often}");
    assert!((young(&seldom)? / young(&often)? - 10_f64.sqrt()).abs() < 0.01);
    let count = |report: &Value| report["checkpoints"].as_array().map(Vec::len);
    assert!(count(&often) > count(&seldom));
    Ok(())
}

#[test]
fn saves_leave_a_host_whose_link_was_cut() -> Result<()> {
    if let Err(why) = net::available() {
        return skip::not_checked("saves leave a host whose link was cut", &why);
    }
    let grid = NetGrid::up(6)?;
    let mut bytes = vec![0; 12 << 20];
    SmallRng::seed_from_u64(3).fill(&mut bytes[..]);
    std::fs::write(grid.path("image"), &bytes)?;
    let save = || -> Result<BTreeSet<String>> {
        let saved = grid.run(["--json", "save", "--full", "--job", "42", "image"])?;
        let saved = saved.expect(0)?.json()?;
        let holders = saved["holders"].as_array().context("no holders")?;
        let names = holders.iter().filter_map(|holder| holder["host"].as_str());
        Ok(names.map(str::to_owned).collect())
    };
    // All six hosts are alike, and five of them are used.
    let used = save()?.into_iter().next().context("no holders")?;
    let cut = used.as_str();
    grid.limit(cut.trim_start_matches('h').parse()?, 4)?;
    // The client learns of the slow link only by using it, so a save or two still do.
    let mut met = Vec::new();
    while met
        .last()
        .is_none_or(|holders: &BTreeSet<String>| holders.contains(cut))
    {
        assert!(met.len() < 4, "{met:?}");
        met.push(save()?);
    }
    for _ in 0..5 {
        let holders = save()?;
        assert!(!holders.contains(cut), "{holders:?}");
    }
    let restored = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    assert!(restored.stdout == bytes);
    Ok(())
}

#[test]
fn a_restore_learns_the_rates_of_its_sources() -> Result<()> {
    let grid = Grid::up(5)?;
    let mut bytes = vec![0; 24 << 20];
    SmallRng::seed_from_u64(4).fill(&mut bytes[..]);
    save_file(&grid, "42", &bytes)?;
    let elsewhere = |args: &[&str]| {
        let mut command = grid.command(args)?;
        command.env("CKPT_STATE_DIR", grid.path("state of another machine"));
        tests::program::run(&mut command)?.expect(0)
    };
    let measured = || -> Result<usize> {
        let table = elsewhere(&["--json", "hosts", "--for-job", "42"])?.json()?;
        let rows = table["hosts"].as_array().context("no hosts")?;
        Ok(rows.iter().filter(|row| row["measured"] == true).count())
    };
    assert_eq!(measured()?, 0);
    elsewhere(&["restore", "--job", "42", "-o", "out"])?;
    assert!(measured()? >= 3);
    Ok(())
}

/// The file of what the client observed of hosts.
fn notebook(grid: &Grid) -> Result<PathBuf> {
    let files = std::fs::read_dir(grid.path("state"))?;
    let mut paths = files.filter_map(|file| Some(file.ok()?.path()));
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".json") && name.matches('.').count() == 1
    };
    paths.find(is_it).context("the client keeps no notebook")
}

#[test]
fn the_client_notes_when_most_hosts_are_away_unless_all_are() -> Result<()> {
    let grid = Grid::up(6)?;
    save_file(&grid, "job", &image::memory(100_000, 3))?;
    // Five contacts with each host, as after some hours.
    let path = notebook(&grid)?;
    let mut known: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    for host in known["hosts"].as_array_mut().context("no hosts")? {
        host["good"] = 5.0.into();
    }
    std::fs::write(&path, known.to_string())?;
    let incidents = || -> Result<usize> {
        grid.run(["list"])?;
        let known: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        let incidents = known["pool"]["incidents"].as_array();
        Ok(incidents.context("no look at the pool")?.len())
    };
    assert_eq!(incidents()?, 0);
    let hosts = grid.running()?;
    for (host, _) in &hosts[..4] {
        grid.kill(host)?;
    }
    assert_eq!(incidents()?, 1);
    let seen: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    for (host, _) in &hosts[4..] {
        grid.kill(host)?;
    }
    assert_eq!(incidents()?, 1);
    let later: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    assert_eq!(later["pool"], seen["pool"], "the machine may be cut off");
    Ok(())
}
