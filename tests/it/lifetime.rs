//! How long checkpoints are kept: leases, deletion, garbage collection, and hosts that give shards back.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tests::program::wait_until;
use tests::{Grid, image};

const LIMIT: Duration = Duration::from_secs(180);

/// A grid whose hosts ask each other for notices every 300 ms.
fn grid(hosts: usize) -> Result<Grid> {
    Grid::up_in(hosts, &[("CKPT_REPAIR_PERIOD", "300ms")])
}

fn save(grid: &Grid, job: &str, seed: u64, more: &[&str]) -> Result<Value> {
    fs::write(grid.path("image"), image::memory(3 << 20, seed))?;
    let save = ["--json", "save", "--job", job, "image"];
    let saved = grid.run(save.iter().chain(more))?;
    saved.expect(0)?.json()
}

fn files(grid: &Grid, hosts: usize) -> Result<usize> {
    let mut count = 0;
    for number in 1..=hosts {
        count += grid.shard_files(&format!("h{number:02}"))?.len();
    }
    Ok(count)
}

#[test]
fn leases_end_unless_they_are_renewed() -> Result<()> {
    let grid = grid(6)?;
    let short = save(&grid, "short", 1, &["--ttl", "3s"])?;
    ensure!(short["kept_until"].is_u64(), "{short}");
    let long = save(&grid, "long", 2, &["--ttl", "1h"])?;
    let plain = save(&grid, "plain", 3, &[])?;
    ensure!(plain["kept_until"].is_null(), "{plain}");
    wait_until("the short lease has ended", LIMIT, || {
        Ok(grid.versions("short")?.is_empty())
    })?;
    wait_until("its shards are gone", LIMIT, || Ok(files(&grid, 6)? == 10))?;
    ensure!(grid.versions("long")? == [1] && grid.versions("plain")? == [1]);
    // A save without --ttl renews the lease for the time that an earlier save gave.
    let again = save(&grid, "long", 4, &[])?;
    ensure!(
        again["kept_until"].as_u64() >= long["kept_until"].as_u64(),
        "{again}"
    );
    let touch = |more: &[&str]| -> Result<Value> {
        let touch = ["--json", "touch", "--job", "long"];
        grid.run(touch.iter().chain(more))?.expect(0)?.json()
    };
    let day = touch(&["--ttl", "1d"])?["kept_until"].as_u64();
    ensure!(day > again["kept_until"].as_u64().map(|until| until + 3600));
    ensure!(touch(&["--ttl", "forever"])?["kept_until"].is_null());
    ensure!(touch(&[])?["kept_until"].is_null());
    grid.run(["touch", "--job", "nothing"])?.expect(4)?;
    Ok(())
}

#[test]
fn a_checkpoint_deleted_while_a_host_was_away_is_not_brought_back() -> Result<()> {
    let grid = grid(7)?;
    save(&grid, "42", 1, &[])?;
    save(&grid, "kept", 2, &[])?;
    let away = grid.holders("42")?;
    // Three shards suffice to restore the checkpoint.
    for host in away.iter().take(3) {
        grid.kill(host)?;
    }
    let forgotten = grid.run(["--json", "forget", "--job", "42", "--all"])?;
    // The job is deleted, but three hosts have not heard of that.
    let forgotten = forgotten.expect(3)?.json()?;
    ensure!(
        forgotten["unheard"].as_array().map(Vec::len) == Some(3),
        "{forgotten}"
    );
    grid.restart()?;
    ensure!(grid.versions("42")?.is_empty(), "shown at once");
    grid.run(["restore", "--job", "42", "-o", "back"])?
        .expect(4)?;
    wait_until("the shards are gone", LIMIT, || Ok(files(&grid, 7)? == 5))?;
    ensure!(grid.versions("kept")? == [1]);
    // The next version of the job is not taken for a deleted one.
    save(&grid, "42", 3, &[])?;
    ensure!(files(&grid, 7)? == 10);
    Ok(())
}

#[test]
fn a_silent_host_without_shards_of_the_job_does_not_change_the_status_of_forget() -> Result<()> {
    let grid = grid(7)?;
    save(&grid, "42", 1, &[])?;
    let holders = grid.holders("42")?;
    let names = (1..=7).map(|host| format!("h{host:02}"));
    let other = names.into_iter().find(|name| !holders.contains(name));
    grid.kill(&other.context("every host holds a shard")?)?;
    let forgotten = grid.run(["--json", "forget", "--job", "42", "--all"])?;
    let forgotten = forgotten.expect(0)?.json()?;
    let count = |field: &str| forgotten[field].as_array().map(Vec::len);
    ensure!(count("silent") == Some(1), "{forgotten}");
    ensure!(count("unheard") == Some(0), "{forgotten}");
    Ok(())
}

/// Holders that were stopped, not killed, may find the other hosts without their shards before they hear
/// of the deletion. They must not take these shards for lost and rebuild them.
#[test]
fn a_checkpoint_deleted_while_most_holders_slept_is_not_rebuilt_by_them() -> Result<()> {
    let grid = grid(7)?;
    save(&grid, "42", 1, &[])?;
    let asleep = grid.holders("42")?;
    for host in asleep.iter().take(3) {
        grid.signal(host, Signal::STOP)?;
    }
    grid.run(["forget", "--job", "42", "--all"])?.expect(3)?;
    for host in asleep.iter().take(3) {
        grid.signal(host, Signal::CONT)?;
    }
    wait_until("the shards are gone", LIMIT, || Ok(files(&grid, 7)? == 0))?;
    for host in 1..=7 {
        let log = fs::read_to_string(grid.data_dir(&format!("h{host:02}")).join("log"))?;
        ensure!(!log.contains("shard rebuilt"), "{log}");
    }
    Ok(())
}

/// One notice can't name the ids of all 300 versions, and a host with shards of them hears of it late.
#[test]
fn three_hundred_versions_are_forgotten_and_a_host_that_was_away_brings_none_back() -> Result<()> {
    const VERSIONS: usize = 300;
    let grid = grid(3)?;
    fs::write(grid.path("image"), "a small image")?;
    let save = "save --job 42 --data 1 --parity 1 --keep 1000 image";
    for _ in 0..VERSIONS {
        grid.run(save.split(' '))?.expect(0)?;
    }
    let away = "h01";
    let kept = grid.shard_files(away)?.len();
    ensure!(kept > VERSIONS / 4, "{kept}");
    grid.kill(away)?;
    let forgotten = grid
        .run(["--json", "forget", "--job", "42", "--all"])?
        .json()?;
    let removed = forgotten["removed"].as_array().context("removed")?.len();
    ensure!(removed == VERSIONS, "{removed}");
    ensure!(
        files(&grid, 3)? == kept,
        "what is reported as removed is removed"
    );

    grid.restart()?;
    ensure!(grid.versions("42")?.is_empty(), "nothing is shown");
    let listed = grid.run(["--json", "list"])?.expect(0)?.json()?;
    ensure!(listed["checkpoints"] == serde_json::json!([]), "{listed}");
    let restored = grid
        .run(["restore", "--job", "42", "-o", "back"])?
        .expect(4)?;
    ensure!(
        restored
            .stderr
            .contains("a deleted part of the job's history"),
        "{}",
        restored.stderr
    );
    // A new version of the job is not taken for a deleted one.
    grid.run(save.split(' '))?.expect(0)?;
    grid.run(["restore", "--job", "42", "-o", "back"])?
        .expect(0)?;
    let gc = |more: &[&str]| -> Result<usize> {
        let gc = ["--json", "gc"];
        let found = grid.run(gc.iter().chain(more))?.expect(0)?.json()?;
        Ok(found["garbage"].as_array().context("garbage")?.len())
    };
    ensure!(gc(&["--dry-run"])? > 0);
    gc(&[])?;
    ensure!(gc(&["--dry-run"])? == 0);
    ensure!(files(&grid, 3)? == 2, "the new version alone");
    Ok(())
}

/// `gc --keep` and `save --keep` each remove more versions at once than one notice can name by their ids.
#[test]
fn gc_and_save_with_keep_remove_more_versions_than_one_notice_names() -> Result<()> {
    const VERSIONS: usize = 280;
    const LEFT: usize = 140;
    let grid = grid(2)?;
    fs::write(grid.path("image"), "a small image")?;
    let save = "--json save --job 42 --data 1 --parity 1 --keep 1000 image";
    for _ in 0..VERSIONS {
        grid.run(save.split(' '))?.expect(0)?;
    }
    ensure!(files(&grid, 2)? == 2 * VERSIONS);
    let keep = LEFT.to_string();
    let gc = grid
        .run(["--json", "gc", "--keep", &keep])?
        .expect(0)?
        .json()?;
    let removed = gc["garbage"].as_array().context("garbage")?.len();
    ensure!(removed == VERSIONS - LEFT, "{removed}");
    ensure!(
        files(&grid, 2)? == 2 * LEFT,
        "what gc reports as removed is removed"
    );
    let save = save.replace("--keep 1000", "--keep 2");
    let saved = grid.run(save.split(' '))?.expect(0)?.json()?;
    let removed = saved["removed"].as_array().context("removed")?.len();
    ensure!(removed >= LEFT - 2, "{removed}");
    let left = grid.versions("42")?;
    ensure!(left.len() == LEFT + 1 - removed, "{left:?}");
    ensure!(
        files(&grid, 2)? == 2 * left.len(),
        "what save reports as removed is removed"
    );
    Ok(())
}

#[test]
fn garbage_is_shown_and_then_removed() -> Result<()> {
    let grid = grid(6)?;
    for seed in 0..3 {
        save(&grid, "42", seed, &["--keep", "9"])?;
    }
    let gc = |more: &[&str]| -> Result<Value> {
        let gc = ["--json", "gc"];
        grid.run(gc.iter().chain(more))?.expect(0)?.json()
    };
    ensure!(gc(&["--dry-run"])?["garbage"] == serde_json::json!([]));
    let found = gc(&["--dry-run", "--keep", "2"])?;
    ensure!(found["garbage"][0]["version"] == 1 && found["garbage"][0]["why"] == "superseded");
    ensure!(grid.versions("42")? == [1, 2, 3], "only shown");
    let young = gc(&["--keep", "2", "--older-than", "1h"])?;
    ensure!(young["garbage"] == serde_json::json!([]), "{young}");
    ensure!(grid.versions("42")? == [1, 2, 3], "all are younger");
    gc(&["--keep", "2", "--older-than", "0s"])?;
    ensure!(grid.versions("42")? == [2, 3]);
    ensure!(files(&grid, 6)? == 10);
    Ok(())
}

#[test]
fn a_host_that_lends_less_gives_back_old_versions_then_hands_shards_over() -> Result<()> {
    let grid = grid(8)?;
    for seed in 0..2 {
        save(&grid, "42", seed, &[])?;
    }
    save(&grid, "43", 7, &[])?;
    let held = |host: &str| grid.shard_files(host);
    let mut victim = None;
    for number in 1..=8 {
        let host = format!("h{number:02}");
        if held(&host)?.len() >= 2 {
            victim = Some(host);
        }
    }
    let victim = victim.context("no host with two shards")?;
    // 100 KB is less than one shard.
    let preferences = grid.data_dir(&victim).join("preferences.toml");
    fs::write(preferences, "disk_max_used_gb = 0.0001\n")?;
    wait_until("it holds no shard", LIMIT, || Ok(held(&victim)?.is_empty()))?;
    for job in ["42", "43"] {
        let verify = ["--json", "verify", "--read-data", "--job", job];
        let verified = grid.run(verify)?.json()?;
        let all = verified["checkpoints"]
            .as_array()
            .context("verify")?
            .clone();
        let newest = all.iter().max_by_key(|one| one["version"].as_u64());
        let newest = newest.context("no version")?;
        ensure!(newest["can_lose"] == 2, "{verified}");
    }
    let log = fs::read_to_string(grid.data_dir(&victim).join("log"))?;
    ensure!(log.contains("shard given back"), "{log}");
    Ok(())
}

#[test]
fn a_dry_run_of_forget_says_what_would_go_and_removes_nothing() -> Result<()> {
    let grid = grid(6)?;
    for seed in 0..3 {
        save(&grid, "42", seed, &["--keep", "9"])?;
    }
    let forget = |more: &[&str]| -> Result<Value> {
        let forget = ["--json", "forget", "42"];
        grid.run(forget.iter().chain(more))?.expect(0)?.json()
    };
    let shown = forget(&["--keep", "1", "--dry-run"])?;
    ensure!(shown["dry_run"] == true && shown["removed"] == serde_json::json!([2, 1]));
    ensure!(grid.versions("42")? == [1, 2, 3], "only shown");
    let removed = forget(&["--keep", "1"])?;
    ensure!(removed["dry_run"] == false && removed["removed"] == shown["removed"]);
    ensure!(grid.versions("42")? == [3]);
    grid.run(["forget", "42", "--version", "7", "--dry-run"])?
        .expect(4)?;
    Ok(())
}
