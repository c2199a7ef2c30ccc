//! Notes and labels of checkpoints, choosing checkpoints by label, age and host, and how leases are shown.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::cluster::Cluster;
use tests::skip::not_checked;
use tests::{Grid, Outcome};

const DAY: i64 = 86_400;

/// Saves a text as the next version of job 42.
fn save(grid: &Grid, text: &str, options: &[&str]) -> Result<Outcome> {
    fs::write(grid.path("img"), text)?;
    let mut args = vec!["save", "--job", "42", "--keep", "9", "img"];
    args.extend(options);
    grid.run(args)?.expect(0)
}

fn versions(listed: &Value) -> Result<Vec<u64>> {
    let all = listed["checkpoints"].as_array().context("checkpoints")?;
    Ok(all
        .iter()
        .filter_map(|one| one["version"].as_u64())
        .collect())
}

fn three_versions(grid: &Grid) -> Result<()> {
    let note = "before the fix of the boundary";
    save(grid, "one", &["--label", "kind=test", "--note", note])?;
    save(
        grid,
        "two",
        &["--label", "kind=real", "--label", "step=900"],
    )?;
    save(grid, "three", &[])?;
    Ok(())
}

#[test]
fn notes_and_labels_are_shown_and_not_readable_in_manifests() -> Result<()> {
    let grid = Grid::up(5)?;
    three_versions(&grid)?;
    let listed = grid.run(["list", "--job", "42"])?.expect(0)?;
    let listed = String::from_utf8(listed.stdout)?;
    for text in [
        "LABELS",
        "NOTE",
        "kind=real step=900",
        "before the fix of the boundary",
    ] {
        ensure!(listed.contains(text), "{text}: {listed}");
    }
    let shown = grid.run(["show", "--job", "42", "--version", "1"])?;
    let shown = String::from_utf8(shown.expect(0)?.stdout)?;
    ensure!(
        shown.contains("note: before the fix of the boundary"),
        "{shown}"
    );
    ensure!(shown.contains("labels: kind=test"), "{shown}");
    let show = ["--json", "show", "--job", "42", "--version", "2"];
    let shown = grid.run(show)?.expect(0)?.json()?;
    ensure!(
        shown["labels"] == json!({"kind": "real", "step": "900"}),
        "{shown}"
    );
    ensure!(shown["note"].is_null(), "{shown}");
    for manifest in grid.manifest_files("h01")? {
        let bytes = fs::read(manifest)?;
        let text = String::from_utf8_lossy(&bytes);
        ensure!(!text.contains("kind") && !text.contains("boundary"));
    }
    Ok(())
}

#[test]
fn invalid_labels_and_notes_are_wrong_usage() -> Result<()> {
    let grid = Grid::up(1)?;
    fs::write(grid.path("img"), "x")?;
    let wrong = [
        ["--label", "kind"],
        ["--label", "Kind=x"],
        ["--label", "ckpt.note=x"],
        ["--note", "two\nlines"],
    ];
    for options in wrong {
        let mut args = vec!["save", "--job", "42", "--data", "1", "--parity", "0", "img"];
        args.extend(options);
        grid.run(args)?.expect(2)?;
    }
    grid.run(["restore", "--job", "42", "-o", "x"])?.expect(4)?;
    Ok(())
}

#[test]
fn labels_choose_what_is_listed_restored_and_forgotten() -> Result<()> {
    let grid = Grid::up(5)?;
    three_versions(&grid)?;
    let list = |label: &str| -> Result<Vec<u64>> {
        versions(
            &grid
                .run(["--json", "list", "--label", label])?
                .expect(0)?
                .json()?,
        )
    };
    ensure!(list("kind=test")? == [1] && list("kind")? == [1, 2] && list("loss")?.is_empty());
    let restore = |label: &str| grid.run(["restore", "--job", "42", "--label", label, "-o", "-"]);
    ensure!(restore("kind=test")?.expect(0)?.stdout == b"one");
    ensure!(restore("kind")?.expect(0)?.stdout == b"two");
    let missing = restore("kind=other")?.expect(4)?;
    ensure!(
        missing.stderr.contains("with label kind=other"),
        "{missing}"
    );
    let maybe = [
        "restore",
        "--job",
        "42",
        "--if-exists",
        "--label",
        "loss",
        "-o",
        "none",
    ];
    grid.run(maybe)?.expect(0)?;
    ensure!(!grid.path("none").exists());

    let forget = ["forget", "--job", "42", "--all", "--label", "kind=test"];
    grid.run(forget)?.expect(0)?;
    ensure!(grid.versions("42")? == [2, 3]);
    grid.run(forget)?.expect(4)?;
    // With `--label`, `--keep 1` keeps the newest version that has the label.
    let keep = ["forget", "--job", "42", "--keep", "1", "--label", "kind"];
    grid.run(keep)?.expect(0)?;
    ensure!(grid.versions("42")? == [2, 3]);
    // The version that was removed by its label does not come back.
    grid.run(["gc"])?.expect(0)?;
    ensure!(grid.versions("42")? == [2, 3]);
    Ok(())
}

#[test]
fn list_by_host_shows_what_the_host_holds() -> Result<()> {
    let grid = Grid::up(3)?;
    fs::write(grid.path("img"), "x")?;
    let save = ["save", "--job", "42", "--data", "1", "--parity", "0", "img"];
    grid.run(save)?.expect(0)?;
    let holders = grid.holders("42")?;
    let holder = holders.first().context("no holder")?;
    for host in ["h01", "h02", "h03"] {
        let listed = grid
            .run(["--json", "list", "--host", host])?
            .expect(0)?
            .json()?;
        let expected: &[u64] = if host == holder { &[1] } else { &[] };
        ensure!(versions(&listed)? == expected, "{host}: {listed}");
    }
    Ok(())
}

#[test]
fn a_lease_is_shown_without_being_renewed() -> Result<()> {
    let grid = Grid::up(5)?;
    save(&grid, "one", &[])?;
    let kept_until = |args: &[&str]| -> Result<Option<u64>> {
        let said = grid.run(args)?.expect(0)?.json()?;
        let one = said["checkpoints"].get(0).unwrap_or(&said).clone();
        Ok(one.get("kept_until").context("no kept_until")?.as_u64())
    };
    let list_all = ["--json", "list"];
    let list_job = ["--json", "list", "--job", "42"];
    let show = ["--json", "show", "--job", "42"];
    ensure!(kept_until(&list_all)?.is_none());
    let touched = grid.run(["--json", "touch", "--job", "42", "--ttl", "7d"])?;
    let until = touched.expect(0)?.json()?["kept_until"].as_u64();
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    ensure!(
        until.is_some_and(|until| until > now + 6 * 86_400),
        "{until:?}"
    );
    for args in [&list_all[..], &list_job, &show] {
        ensure!(kept_until(args)? == until, "{args:?}");
    }
    let listed = grid.run(["list"])?.expect(0)?;
    let listed = String::from_utf8(listed.stdout)?;
    ensure!(listed.contains("KEPT UNTIL"), "{listed}");
    Ok(())
}

#[test]
fn keep_within_counts_back_from_the_newest_version() -> Result<()> {
    let cluster = Cluster::start(5, 0, &[])?;
    if !cluster.powers.clocks {
        return not_checked(
            "checkpoints of several days",
            "libfaketime is not installed",
        );
    }
    fs::write(cluster.path("img"), "x")?;
    // Version 1 is 12 days old, 2 is 9, 3 is 6, 4 is 3.
    for age in [12, 9, 6, 3] {
        let save = ["save", "--job", "42", "--keep", "9", "--full", "img"];
        cluster.run_on("m", -age * DAY, save)?.expect(0)?;
    }
    let list = |options: &[&str]| -> Result<Vec<u64>> {
        let mut args = vec!["--json", "list", "--job", "42"];
        args.extend(options);
        versions(&cluster.run(args)?.expect(0)?.json()?)
    };
    ensure!(list(&["--older-than", "7d"])? == [1, 2]);
    // Versions stay that were saved within a week before the newest one, which is three days old.
    let forget = ["forget", "--job", "42", "--keep-within", "7d"];
    cluster.run(forget)?.expect(0)?;
    ensure!(list(&[])? == [2, 3, 4], "{:?}", list(&[])?);
    cluster.run(forget)?.expect(0)?;
    let forget = ["forget", "--job", "42", "--all", "--older-than", "5d"];
    cluster.run(forget)?.expect(0)?;
    ensure!(list(&[])? == [4], "{:?}", list(&[])?);
    Ok(())
}
