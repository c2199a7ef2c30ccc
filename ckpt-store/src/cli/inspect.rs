//! Commands that read a data directory and change nothing. A daemon may be using the directory.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use placement::bitmap::SLOT_SECONDS;
use placement::history::DAY_SECONDS;
use serde::Serialize;

use super::owner::{self, LentTo, MovedText};
use super::refusal::Refusal;
use super::running::{daemon, now};
use super::settings::OwnerSettings;
use crate::audit_file::{self, FailureText};
use crate::checking::{self, CheckingCosts};
use crate::core::Key;
use crate::disk::RealDisk;
use crate::monitor::history::{self, States};
use crate::monitor::outlook::{Outlook, Predictor};
use crate::monitor::pause::Pause;
use crate::shards::{self, FoundFile, layout};
use crate::status_file::{self, StatusFile};
use command_line::size;

/// Most failed checks that are printed. `--json` has all of them.
const FAILURES_SHOWN: usize = 5;

/// What the directory holds of one checkpoint.
#[derive(Debug, Default, Serialize)]
struct Held {
    owner: String,
    checkpoint: String,
    version: u64,
    /// Whether there is a manifest. A checkpoint without one is removed an hour after it was written.
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
    /// The process id of the daemon that uses the directory.
    daemon: Option<u32>,
    /// What the monitor saw. `None` if there is no history.
    monitor: Option<MachineReport>,
    /// The owner's preferences as they are now.
    owner: OwnerSettings,
    /// What submitters found when they checked shards here.
    audits: Checked,
    /// What proofs of and for other hosts have cost.
    checking: CheckingCosts,
    /// What the daemon did for others when it last wrote that down. `None` if it never did.
    #[serde(rename = "standing")]
    status: Option<StatusFile>,
    /// Which submitter has how many bytes, those with the most first.
    lent: Vec<LentTo>,
    /// Bytes that were moved.
    moved: MovedText,
    checkpoints: Vec<Held>,
    shards: u64,
    bytes: u64,
    bad: Vec<BadFile>,
}

/// What submitters found when they checked shards.
#[derive(Debug, Default, Serialize)]
struct Checked {
    passed: u64,
    failed: u64,
    /// The latest failures, newest first.
    failures: Vec<FailureText>,
}

impl Checked {
    fn read(data: &Path) -> Result<Self> {
        let audits = audit_file::load(data).context("audits.json")?;
        let counts = audits.counts();
        Ok(Self {
            passed: counts.passed,
            failed: counts.failed,
            failures: audits.failures().rev().map(FailureText::from).collect(),
        })
    }

    fn print(&self, out: &mut impl Write) -> Result<()> {
        if self.passed + self.failed == 0 {
            return Ok(());
        }
        writeln!(
            out,
            "checks by submitters: {} passed, {} failed",
            self.passed, self.failed
        )?;
        for failure in self.failures.iter().take(FAILURES_SHOWN) {
            writeln!(
                out,
                "  {} s ago: shard {} of {} {}, reported by {}",
                now().saturating_sub(failure.at),
                failure.shard,
                &failure.checkpoint[..8],
                failure.fault.replace('_', " "),
                &failure.by[..8],
            )?;
        }
        Ok(())
    }
}

fn print_checking(costs: &CheckingCosts, out: &mut impl Write) -> Result<()> {
    if costs.since == 0 {
        return Ok(());
    }
    let days = now().saturating_sub(costs.since) as f64 / DAY_SECONDS as f64;
    writeln!(
        out,
        "checking of other hosts, in {days:.1} days: {} proofs passed, {} failed, {} received; {} proofs given, {} sent",
        costs.passed,
        costs.failed,
        size::format(costs.received_bytes),
        costs.given,
        size::format(costs.sent_bytes),
    )?;
    Ok(())
}

/// What the monitor has seen of the machine, up to its last heartbeat.
#[derive(Debug, Serialize)]
struct MachineReport {
    /// The state of the machine that matters to a guest job.
    machine: String,
    /// The state of the disk that matters to a shard.
    disk: String,
    /// Since when both states have been the same, in Unix seconds.
    since: u64,
    /// The last heartbeat, in Unix seconds. A running daemon writes one every minute.
    until: u64,
    /// Mean load of the owner since `since`, from 0 to 1.
    cpu_load: f64,
    /// Mean load of the owner on the disk, in the same unit.
    disk_load: f64,
    /// For how many of the last 28 days something is known.
    known_days: f64,
    /// In which share of this time the host was available.
    availability: f64,
    /// The probability that the host stays available for ten hours.
    stays_10h: f64,
}

impl MachineReport {
    fn read(data: &Path) -> Result<Option<Self>> {
        let mut runs = history::runs(data)?.peekable();
        let Some(first) = runs.peek() else {
            return Ok(None);
        };
        let mut outlook = Outlook::new(first.span.start, Predictor::Hazard);
        let mut last = first.clone();
        for run in runs {
            outlook.observe(&run);
            last = run;
        }
        let states = last.states.unwrap_or(States::GONE);
        let (_, presence) = outlook.bitmaps();
        let known = f64::from(presence.known().count());
        Ok(Some(Self {
            machine: states.guest.to_string(),
            disk: states.storage.to_string(),
            since: last.span.start,
            until: last.span.end,
            cpu_load: last.cpu,
            disk_load: last.disk,
            known_days: known * SLOT_SECONDS as f64 / DAY_SECONDS as f64,
            availability: f64::from(presence.usable().count()) / known.max(1.0),
            stays_10h: outlook.curves().1.at(10.0 * 3600.0).value(),
        }))
    }

    fn print(&self, owner: &OwnerSettings, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "machine: {}, owner's CPU load {:.0}%{}; disk: {}, owner's disk load {:.0}%; for {} s",
            self.machine,
            self.cpu_load * 100.0,
            owner.note_of_idle(&self.machine, self.cpu_load),
            self.disk,
            self.disk_load * 100.0,
            self.until - self.since,
        )?;
        writeln!(
            out,
            "available {:.1}% of {:.1} days seen; stays for 10 h with probability {:.2}",
            self.availability * 100.0,
            self.known_days,
            self.stays_10h,
        )?;
        Ok(())
    }
}

/// Prints what the directory holds.
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
    let status = report.status.as_ref();
    let runs = report.daemon.is_some();
    owner::print_status(status, Pause::read(data), runs, now(), &mut out)?;
    if let Some(seen) = &report.monitor {
        seen.print(&report.owner, &mut out)?;
    }
    report.owner.print(&mut out)?;
    owner::print_lent(status, &report.lent, report.bytes, &mut out)?;
    report.moved.print(&mut out)?;
    report.audits.print(&mut out)?;
    print_checking(&report.checking, &mut out)?;
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

/// Reads all blocks and prints what is damaged.
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

/// A way to read a data directory: headers only, or all blocks.
type Scan = fn(&dyn crate::disk::Disk, &mut dyn FnMut(FoundFile)) -> std::io::Result<()>;

impl Report {
    fn read(data: &Path, scan: Scan) -> Result<Self> {
        if !data.join(layout::SHARDS).is_dir() {
            let message = format!(
                "{} is not the data directory of a daemon: it has no {}",
                data.display(),
                layout::SHARDS
            );
            bail!(Refusal::new(message, "--data DIR"));
        }
        let mut report = Self {
            daemon: daemon(data),
            owner: OwnerSettings::read(data),
            monitor: MachineReport::read(data)?,
            audits: Checked::read(data)?,
            checking: checking::load(data).context("checking.json")?,
            status: status_file::load(data).context("standing.json")?,
            moved: MovedText::read(data, now())?,
            ..Self::default()
        };
        let mut held = BTreeMap::new();
        let disk = RealDisk::new(data.to_owned(), 0);
        scan(&disk, &mut |found| report.add(&mut held, found))
            .with_context(|| format!("data directory {}", data.display()))?;
        let mut bytes = BTreeMap::new();
        for (key, held) in &held {
            *bytes.entry(key.owner).or_default() += held.bytes;
        }
        report.lent = LentTo::all(data, &bytes)?;
        report.checkpoints = held.into_values().collect();
        Ok(report)
    }

    fn add(&mut self, held: &mut BTreeMap<Key, Held>, found: FoundFile) {
        let (owner, claim) = match &found {
            FoundFile::Manifest { whose, claim, .. } => (whose.member, *claim),
            FoundFile::Shard { owner, claim, .. } => (*owner, *claim),
            FoundFile::Notice(_) => return,
            FoundFile::Damaged { path, why } | FoundFile::Unreadable { path, why } => {
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
                version: claim.version.number(),
                ..Held::default()
            });
        match found {
            FoundFile::Shard { shard, .. } => {
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
