//! Where a job should run, by what hosts say of their machines.

use anyhow::{Result, ensure};
use serde_json::Value;
use tests::Grid;
use tests::program::wait_until;
use tests::supervised::PATIENCE;

fn ranked(grid: &Grid, args: &[&str], status: i32) -> Result<Value> {
    let args = [&["--json", "rank", "--work", "6h"][..], args].concat();
    Ok(serde_json::from_slice(
        &grid.run(args)?.expect(status)?.stdout,
    )?)
}

#[test]
fn hosts_announce_their_machines_and_are_ranked_by_them() -> Result<()> {
    let grid = Grid::up(3)?;
    let hosts = |report: &Value| report["hosts"].as_array().cloned().unwrap_or_default();
    // A host that has just started has seen nothing of its owner, and counts as average.
    ensure!(hosts(&ranked(&grid, &[], 0)?).len() == 3);
    wait_until("all machines are announced", PATIENCE, || {
        let hosts = hosts(&ranked(&grid, &[], 0)?);
        Ok(hosts.len() == 3 && hosts.iter().all(|host| host["assumed"] == false))
    })?;
    let report = ranked(&grid, &["--memory", "1MiB"], 0)?;
    ensure!(
        report["rule"] == "expected" && report["checkpoints"] == true,
        "{report}"
    );
    let mut before = 0.0;
    for host in hosts(&report) {
        let number = |key: &str| host[key].as_f64().unwrap_or_default();
        ensure!(number("cores") >= 1.0 && number("speed") > 0.0, "{host}");
        ensure!(number("memory_bytes") >= 1_048_576.0, "{host}");
        ensure!(number("expected_seconds") >= before, "{report}");
        before = number("expected_seconds");
    }
    ensure!(before > 0.0, "{report}");
    let alone = ranked(&grid, &["--no-checkpoints"], 0)?;
    ensure!(alone["rule"] == "falcon", "{alone}");
    let large = ranked(&grid, &["--memory", "1000TiB"], 5)?;
    let notes = large["error"]["hosts"].as_array().map_or(0, Vec::len);
    ensure!(notes == 3, "{large}");
    Ok(())
}
