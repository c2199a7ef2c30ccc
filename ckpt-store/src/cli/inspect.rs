//! Commands that look at a data directory and change nothing; a daemon may be running on it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;

use super::size;
use crate::core::Key;
use crate::disk::RealDisk;
use crate::shards::{self, Found, layout};

/// What is held of one checkpoint.
#[derive(Debug, Default, Serialize)]
struct Held {
    owner: String,
    checkpoint: String,
    version: u64,
    /// Whether there is a manifest; what has none goes an hour after it was written.
    committed: bool,
    shards: Vec<u8>,
    bytes: u64,
}

/// A file that is not used.
#[derive(Debug, Serialize)]
struct BadFile {
    path: String,
    why: String,
}

/// What a data directory holds.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Process id of the daemon that runs on it.
    daemon: Option<u32>,
    checkpoints: Vec<Held>,
    shards: u64,
    bytes: u64,
    bad: Vec<BadFile>,
}

/// Says what is held.
pub(super) fn status(data: &Path, json: bool) -> Result<ExitCode> {
    let report = Report::read(data, shards::scan)?;
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    match report.daemon {
        Some(pid) => writeln!(out, "daemon: running, process {pid}")?,
        None => writeln!(out, "daemon: not running")?,
    }
    let committed = report.checkpoints.iter().filter(|c| c.committed).count();
    writeln!(
        out,
        "{} shards, {}; {committed} committed checkpoints, {} not committed",
        report.shards,
        size::format(report.bytes),
        report.checkpoints.len() - committed,
    )?;
    for held in &report.checkpoints {
        let numbers: Vec<String> = held.shards.iter().map(u8::to_string).collect();
        writeln!(
            out,
            "{}  owner {}  version {}  shards {}  {}{}",
            held.checkpoint,
            &held.owner[..8],
            held.version,
            numbers.join(","),
            size::format(held.bytes),
            if held.committed {
                ""
            } else {
                "  not committed"
            },
        )?;
    }
    report.print_bad(&mut out)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads all blocks.
pub(super) fn check(data: &Path, json: bool) -> Result<ExitCode> {
    let report = Report::read(data, shards::check)?;
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        report.print_bad(&mut out)?;
        writeln!(
            out,
            "{} shards good, {}; {} files bad",
            report.shards,
            size::format(report.bytes),
            report.bad.len()
        )?;
    }
    Ok(ExitCode::from(u8::from(!report.bad.is_empty())))
}

/// Reads a data directory one way or the other.
type Scan = fn(&dyn crate::disk::Disk, &mut dyn FnMut(Found)) -> std::io::Result<()>;

impl Report {
    fn read(data: &Path, scan: Scan) -> Result<Self> {
        if !data.join(layout::SHARDS).is_dir() {
            bail!(
                "{} is not the data directory of a daemon: it has no {}",
                data.display(),
                layout::SHARDS
            );
        }
        let mut report = Self {
            daemon: daemon(data),
            ..Self::default()
        };
        let mut held = BTreeMap::new();
        let disk = RealDisk::new(data.to_owned(), 0);
        scan(&disk, &mut |found| report.add(&mut held, found))
            .with_context(|| format!("data directory {}", data.display()))?;
        report.checkpoints = held.into_values().collect();
        Ok(report)
    }

    fn add(&mut self, held: &mut BTreeMap<Key, Held>, found: Found) {
        let (owner, claim) = match &found {
            Found::Manifest { owner, claim, .. } | Found::Shard { owner, claim, .. } => {
                (*owner, *claim)
            }
            Found::Damaged { path, why } | Found::Unreadable { path, why } => {
                let path = path.display().to_string();
                let why = why.clone();
                return self.bad.push(BadFile { path, why });
            }
        };
        let checkpoint = claim.checkpoint;
        let held = held
            .entry(Key { owner, checkpoint })
            .or_insert_with(|| Held {
                owner: owner.hex(),
                checkpoint: checkpoint.hex(),
                version: claim.version.0,
                ..Held::default()
            });
        match found {
            Found::Shard { shard, .. } => {
                held.shards.push(shard.identity.shard.number());
                held.shards.sort_unstable();
                held.bytes += shard.file_bytes;
                self.shards += 1;
                self.bytes += shard.file_bytes;
            }
            _ => held.committed = true,
        }
    }

    fn print_bad(&self, out: &mut impl Write) -> Result<()> {
        for bad in &self.bad {
            writeln!(out, "BAD {}: {}", bad.path, bad.why)?;
        }
        Ok(())
    }
}

/// The process that holds the data directory's lock.
fn daemon(data: &Path) -> Option<u32> {
    let path = data.join("lock");
    let lock = fs::File::open(&path).ok()?;
    if flock(&lock, FlockOperation::NonBlockingLockShared).is_ok() {
        return None;
    }
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
