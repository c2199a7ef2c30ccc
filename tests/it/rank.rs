//! `ckpt plan where` orders hosts by what they announce of their machines, and `ckpt-store` writes ads for
//! HTCondor.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result, ensure};
use condor::classad::{Value as Attribute, parse_lines};
use serde_json::Value;
use tests::Grid;
use tests::program::{command, run, wait_until};
use tests::supervised::PATIENCE;

fn ranked(grid: &Grid, args: &[&str], status: i32) -> Result<Value> {
    let args = [&["--json", "plan", "where", "--work", "6h"][..], args].concat();
    Ok(serde_json::from_slice(
        &grid.run(args)?.expect(status)?.stdout,
    )?)
}

#[test]
fn hosts_announce_their_machines_and_are_ranked_by_them() -> Result<()> {
    let grid = Grid::up(3)?;
    let hosts = |report: &Value| report["hosts"].as_array().cloned().unwrap_or_default();
    // A host that has just started knows nothing of its owner's habits, and counts as average.
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

#[test]
fn an_ad_for_htcondor_is_read_by_our_parser_and_documented() -> Result<()> {
    let grid = Grid::up(1)?;
    let data = grid.data_dir("h01").display().to_string();
    let ad = || -> Result<String> {
        let mut status = command(["status", "--classad", "--data", &data])?;
        let said = run(status.arg0("ckpt-store"))?.expect(0)?;
        Ok(String::from_utf8(said.stdout)?)
    };
    wait_until("the machine was looked at", PATIENCE, || {
        Ok(ad()?.contains("CkptLoad24h"))
    })?;
    let text = ad()?;
    // HTCondor reads the attributes up to the dash as those of one machine.
    let read = parse_lines(text.strip_suffix("-\n").context("no dash")?.as_bytes())?;
    ensure!(
        read.get("CkptRuns") == Some(&Attribute::Boolean(true)),
        "{text}"
    );
    for name in ["CkptMttfSeconds", "CkptSeenUntil"] {
        let is_number = matches!(read.get(name), Some(Attribute::Integer(1..)));
        ensure!(is_number, "{name}: {text}");
    }
    let names: Vec<&str> = read.iter().map(|(name, _)| name).collect();
    let page = include_str!("../../docs/use/recipes/htcondor.md").to_ascii_lowercase();
    for name in &names {
        ensure!(
            page.contains(&format!("`{name}`")),
            "{name} is not documented"
        );
    }
    ensure!(names.len() == 14, "{names:?}");
    let mut both = command(["status", "--classad", "--json", "--data", &data])?;
    run(both.arg0("ckpt-store"))?.expect(2)?;
    Ok(())
}
