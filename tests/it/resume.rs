//! Saves that are killed, and the saves after them, which send only what the killed ones had not.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::program::wait_until;
use tests::{Grid, image};

const MIB: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);

/// How much of the image a killed save is to have sent.
const SENT: usize = 80;

/// Bytes that are being received by a host.
fn incoming(grid: &Grid, host: &str) -> u64 {
    let entries = fs::read_dir(grid.data_dir(host).join("incoming"));
    let sizes = entries.into_iter().flatten().flatten();
    let sizes = sizes.filter_map(|entry| Some(entry.metadata().ok()?.len()));
    sizes.sum()
}

/// Begins a slow save of job 42 and kills it when each host that takes part has `percent` of its shard of an image of so
/// many bytes.
fn killed_at(grid: &Grid, args: &[&str], bytes: usize, percent: usize) -> Result<()> {
    let slow = ["--bandwidth", "40MiB", "save", "--job", "42"];
    let mut command = grid.command(slow.iter().chain(args))?;
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child: Child = command.spawn()?;
    let wanted = (bytes * percent / 300) as u64;
    let sent = wait_until("a part is sent", LIMIT, || {
        ensure!(child.try_wait()?.is_none(), "it is whole already");
        let has = |(host, _): &(String, _)| incoming(grid, host) >= wanted;
        Ok(grid.running()?.iter().filter(|host| has(host)).count() >= 5)
    });
    child.kill()?;
    child.wait()?;
    sent
}

/// Saves job 42 and returns the report.
fn save(grid: &Grid, args: &[&str]) -> Result<Value> {
    let all = ["--json", "save", "--job", "42"];
    grid.run(all.iter().chain(args))?.expect(0)?.json()
}

fn restored(grid: &Grid, version: &Value) -> Result<Vec<u8>> {
    let version = version.to_string();
    let args = ["restore", "--job", "42", "--version", &version, "--force"];
    grid.run(args.iter().chain(&["-o", "out"]))?.expect(0)?;
    Ok(fs::read(grid.path("out"))?)
}

fn number(report: &Value, field: &str) -> Result<u64> {
    report[field].as_u64().with_context(|| format!("{report}"))
}

/// Checks that a save sent at most `percent` of an image of so many bytes.
fn sent_at_most(report: &Value, percent: u64, bytes: usize) -> Result<()> {
    let stored = number(report, "stored_bytes")?;
    ensure!(stored * 100 <= bytes as u64 * percent, "{report}");
    let resumed = number(report, "resumed_bytes")?;
    ensure!(resumed * 100 >= bytes as u64 * (100 - percent), "{report}");
    Ok(())
}

/// What this machine keeps of saves.
fn journals(grid: &Grid) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut dirs = vec![grid.path("")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)?.flatten() {
            let path = entry.path();
            match path.extension().and_then(|one| one.to_str()) {
                _ if path.is_dir() => dirs.push(path),
                Some("journal" | "remnant") => found.push(path),
                _ => {}
            }
        }
    }
    Ok(found)
}

#[test]
fn a_killed_save_serves_the_next_one() -> Result<()> {
    let grid = Grid::up(5)?;
    let file = image::noise(128 * MIB, 1);
    fs::write(grid.path("image"), &file)?;
    killed_at(&grid, &["image"], file.len(), SENT)?;
    ensure!(grid.versions("42")?.is_empty());
    let resumed = save(&grid, &["image"])?;
    sent_at_most(&resumed, 25, file.len())?;
    ensure!(number(&resumed, "can_lose")? == 2, "{resumed}");
    ensure!(restored(&grid, &resumed["version"])? == file);
    ensure!(journals(&grid)?.is_empty(), "{:?}", journals(&grid)?);
    // Nothing of it is a version, and the next version builds on both.
    let first = number(&resumed, "version")?;
    ensure!(grid.versions("42")? == [first]);
    let mut newer = file.clone();
    newer[..MIB].fill(7);
    fs::write(grid.path("image"), &newer)?;
    let next = save(&grid, &["image"])?;
    ensure!(next["base"] == first, "{next}");
    ensure!(number(&next, "stored_bytes")? < 3 * MIB as u64, "{next}");
    ensure!(restored(&grid, &next["version"])? == newer);
    ensure!(restored(&grid, &resumed["version"])? == file);
    grid.run(["verify", "--job", "42", "--read-data"])?
        .expect(0)?;
    Ok(())
}
