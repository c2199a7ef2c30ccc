//! Traces of a pool: `ckpt-store history` writes those of real daemons, and `ckpt trace describe` reads them.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::Grid;
use tests::program::{command, run, wait_until};
use tests::supervised::PATIENCE;

/// When the trace begins, in Unix seconds: 2026-01-01, 0:00 UTC.
const BEGIN: u64 = 1_767_225_600;
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
const DAYS: u64 = 20;

/// Writes a trace of two machines in two sites. Each machine is gone from noon to 13:00 every day; the second
/// machine goes 30 s after the first.
fn fails_at_noon(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let settings = "key,value\nname,noon\ndescription,fails at noon\nsample_seconds,1\n";
    fs::write(dir.join("trace.csv"), settings)?;
    fs::write(
        dir.join("hosts.csv"),
        "host,site,owner\na,north,x\nb,south,y\n",
    )?;
    let mut lines = "host,from,to,state\n".to_owned();
    for (host, late) in [("a", 0), ("b", 30)] {
        let mut at = BEGIN;
        for day in 0..DAYS {
            let noon = BEGIN + day * DAY + 12 * HOUR + late;
            writeln!(
                lines,
                "{host},{at},{noon},up\n{host},{noon},{},down",
                noon + HOUR
            )?;
            at = noon + HOUR;
        }
        writeln!(lines, "{host},{at},{},up", BEGIN + DAYS * DAY)?;
    }
    Ok(fs::write(dir.join("intervals.csv"), lines)?)
}

fn described(words: &[&str]) -> Result<Value> {
    let words = [&["--json", "trace", "describe"], words].concat();
    Ok(serde_json::from_slice(
        &run(&mut command(words)?)?.expect(0)?.stdout,
    )?)
}

fn number(value: &Value, pointer: &str) -> Result<f64> {
    let found = value.pointer(pointer).and_then(Value::as_f64);
    found.with_context(|| format!("{pointer}: {value}"))
}

#[test]
fn a_trace_is_described_without_a_grid_as_it_was_made() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let trace = dir.path().join("noon");
    fails_at_noon(&trace)?;
    let trace = trace.display().to_string();
    let found = described(&[&trace])?;
    for (pointer, expected) in [
        ("/hosts", 2.0),
        ("/failures", 2.0 * DAYS as f64),
        ("/levels/0/availability/mean", 23.0 / 24.0),
        ("/levels/2/between_failures/mean", DAY as f64),
        ("/up/median", 23.0 * HOUR as f64),
        ("/down/max", HOUR as f64),
    ] {
        let seen = number(&found, pointer)?;
        ensure!(
            (seen - expected).abs() < 1e-6,
            "{pointer}: {seen}, not {expected}"
        );
    }
    // The second machine fails 30 s after the first: their failures count as correlated within 60 s, but
    // not within 10 s.
    let groups = found["groups"].as_array().context("no groups")?;
    let of = |within: u64| groups.iter().find(|group| group["within"] == within);
    ensure!(of(10).context("10 s")?["correlated"] == 0, "{groups:?}");
    ensure!(of(60).context("60 s")?["correlated"] == DAYS, "{groups:?}");
    Ok(())
}

#[test]
fn a_trace_is_shown_to_people_and_plotted() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let trace = dir.path().join("noon");
    fails_at_noon(&trace)?;
    let plots = dir.path().join("plots");
    let words = ["trace", "describe", "--plots"].map(std::ffi::OsStr::new);
    let paths = [plots.as_os_str(), trace.as_os_str()];
    let shown = run(&mut command([words.as_slice(), &paths].concat())?)?.expect(0)?;
    let text = String::from_utf8(shown.stdout)?;
    for said in [
        "failures: 40",
        "S5 gone",
        "Periods down: no distribution is fitted, all 40 values",
    ] {
        ensure!(text.contains(said), "{said} is missing: {text}");
    }
    for file in fs::read_dir(&plots)? {
        let text = fs::read_to_string(file?.path())?;
        ensure!(
            text.starts_with("<svg") && text.trim_end().ends_with("</svg>"),
            "{text}"
        );
    }
    ensure!(fs::read_dir(&plots)?.count() >= 5, "too few plots");
    ensure!(plots.join("pool-mtbf.svg").exists(), "no figure 3");
    Ok(())
}

#[test]
fn a_file_that_is_no_trace_is_named() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let describe = |path: &Path, status: i32| -> Result<String> {
        let words = ["trace".as_ref(), "describe".as_ref(), path.as_os_str()];
        let done = run(&mut command(words)?)?.expect(status)?;
        Ok(done.stderr)
    };
    let nowhere = describe(&dir.path().join("nowhere"), 4)?;
    ensure!(nowhere.contains("nowhere is not a folder"), "{nowhere}");
    let empty = describe(dir.path(), 4)?;
    ensure!(empty.contains("no trace in"), "{empty}");
    let trace = dir.path().join("noon");
    fails_at_noon(&trace)?;
    let intervals = trace.join("intervals.csv");
    let text = fs::read_to_string(&intervals)?;
    fs::write(&intervals, text.replacen(",down", ",sideways", 1))?;
    let wrong = describe(&trace, 8)?;
    ensure!(
        wrong.contains("intervals.csv:3") && wrong.contains("sideways"),
        "{wrong}"
    );
    Ok(())
}

#[test]
fn the_histories_of_real_daemons_are_one_pool() -> Result<()> {
    let grid = Grid::up(2)?;
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("pool").display().to_string();
    let data = ["h01", "h02"].map(|host| grid.data_dir(host).display().to_string());
    let export = || -> Result<bool> {
        let words = [
            "history", "--data", &data[0], "--data", &data[1], "-o", &out,
        ];
        let done = run(command(words)?.arg0("ckpt-store"))?;
        Ok(done.code == Some(0))
    };
    wait_until(
        "both daemons have looked at their machine",
        PATIENCE,
        export,
    )?;
    let found = described(&[&out])?;
    ensure!(found["hosts"] == 2 && found["failures"].is_u64(), "{found}");
    let from = number(&found, "/from")?;
    let to = number(&found, "/to")?;
    ensure!(from > 1.7e9 && to > from, "{from} to {to}");
    Ok(())
}
