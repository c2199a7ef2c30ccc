//! `ckpt doctor`: finds problems on this machine, and names a remedy for each.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use command_line::time::since;
use protocol::grid::Grid;
use protocol::identity::{Identity, Role};
use rustix::process::{Resource, getrlimit};

use crate::commands::Answer;
use crate::commands::args::options::Global;
use crate::commands::connect::{agent_for, grid_file, no_grid_file};
use crate::commands::health::doctor_report::{Check, DoctorReport, Verdict};
use crate::commands::key::identity;
use crate::commands::render::{Report, bytes, json_of_self, one_line};
use crate::commands::state_dir::state_dir;
use ::health::{ahead, expiry, middle_offset, span};
use ckpt_agent::agent::{MTU_USUAL, Reached, Way, keys_health};
use ckpt_agent::connection::{list_files, load_grid};
use ckpt_agent::report::{ExitStatus, Failure};
use ckpt_agent::unix_time::unix_seconds;

/// Certificates that end within this time are reported as bad, seconds.
const ENDS_SOON_S: u64 = 30 * 86_400;

/// Clocks that differ by more than this are reported as bad, seconds.
const CLOCK_SLACK_S: u64 = 60;

/// Free space below which a disk counts as full, bytes.
const FREE_BYTES_MIN: u64 = 64 << 20;

/// Most files that a command has open at once, apart from one for each host.
const FILES_NEEDED: u64 = 24;

/// Address space that a command needs apart from the memory for data in flight, bytes.
const ADDRESS_SPACE_NEEDED: u64 = 512 << 20;

/// Checks everything that a command needs. Problems are not errors, but findings in the report.
pub(crate) async fn run(global: &Global) -> Result<Answer, Failure> {
    let mut report = DoctorReport {
        findings: Vec::new(),
    };
    check_machine(global, &mut report);
    if let Some((path, grid)) = check_grid(global, &mut report)
        && let Some(identity) = check_identity(global, &grid, &mut report)
    {
        check_ways(global, &path, grid, &identity, &mut report).await;
    }
    let status = status(&report);
    Ok((Box::new(report), status))
}

fn status(report: &DoctorReport) -> ExitStatus {
    let mut bad = report
        .findings
        .iter()
        .filter(|one| one.verdict == Verdict::Bad);
    match bad.clone().next() {
        None => ExitStatus::Done,
        Some(_) if bad.any(|one| one.check == Check::Identity) => ExitStatus::Denied,
        Some(_) => ExitStatus::Degraded,
    }
}

/// Checks the grid file. Returns its path and contents.
fn check_grid(global: &Global, report: &mut DoctorReport) -> Option<(PathBuf, Grid)> {
    let Some(path) = grid_file(global) else {
        let remedy = no_grid_file(global).next.unwrap_or_default();
        report.bad(Check::GridFile, "no grid file is named", remedy);
        return None;
    };
    match load_grid(&path) {
        Ok(grid) => {
            let hosts = grid.hosts.len();
            let registries = grid.registries.len();
            report.good(
                Check::GridFile,
                format!(
                    "{}: grid {}, {hosts} hosts, {registries} registries",
                    path.display(),
                    grid.name
                ),
            );
            Some((path, grid))
        }
        Err(failure) => {
            let remedy = "ask the grid's admin for a copy of the grid file";
            report.bad(Check::GridFile, failure.message, remedy);
            None
        }
    }
}

fn check_identity(global: &Global, grid: &Grid, report: &mut DoctorReport) -> Option<Identity> {
    let files = identity::files(global, Some(grid));
    let loaded = files.and_then(|files| identity::load(global, &files));
    let identity = match loaded {
        Ok(identity) => identity,
        Err(failure) => {
            let remedy = failure
                .next
                .unwrap_or_else(|| "ckpt init --help".to_owned());
            report.bad(Check::Identity, failure.message, remedy);
            return None;
        }
    };
    let peer = match identity.peer() {
        Ok(peer) => peer,
        Err(cause) => {
            report.bad(
                Check::Identity,
                cause.to_string(),
                "ask the grid's admin for a new certificate",
            );
            return None;
        }
    };
    if !peer.has(Role::Submitter) {
        let roles: Vec<&str> = peer.roles.iter().map(|role| role.name()).collect();
        let what = format!(
            "{} is certified as {}, not as submitter",
            peer.name,
            roles.join(", ")
        );
        report.bad(Check::Identity, what, "ckpt grid sign --role submitter");
        return None;
    }
    let mut is_good = true;
    for key in keys_health(&identity, grid, unix_seconds()) {
        let what = format!("{} {}", key.what, expiry(key.left_s));
        match key.left_s {
            0 => {
                is_good = false;
                report.bad(Check::Identity, what, key.remedy());
            }
            left if left < ENDS_SOON_S => report.bad(Check::Certificate, what, key.remedy()),
            _ => report.good(Check::Certificate, what),
        }
    }
    if grid.revoked.contains(&peer.account()) {
        is_good = false;
        let what = format!("the key of {} was revoked", peer.name);
        report.bad(
            Check::Identity,
            what,
            "a new key: ckpt init, ckpt grid sign",
        );
    }
    if is_good {
        report.good(
            Check::Identity,
            format!("{}, key {}", peer.name, identity.secret.id()),
        );
    }
    is_good.then_some(identity)
}

fn check_machine(global: &Global, report: &mut DoctorReport) {
    check_state_dir(report);
    if let Ok(here) = std::env::current_dir() {
        check_room(&here, report);
    }
    let limit = |resource| getrlimit(resource).current;
    match limit(Resource::Nofile) {
        Some(files) if files < FILES_NEEDED => report.bad(
            Check::Limits,
            format!("{files} files may be open at once (ulimit -n)"),
            format!("ulimit -n {}", 1024),
        ),
        _ => report.good(Check::Limits, "open files (ulimit -n)"),
    }
    let memory = global.memory.unwrap_or(ckpt_agent::agent::MEMORY_USUAL);
    let needed = memory.saturating_add(ADDRESS_SPACE_NEEDED);
    match limit(Resource::As) {
        Some(space) if space < needed => report.bad(
            Check::Limits,
            format!(
                "{} of address space (ulimit -v), {} are needed",
                bytes(space),
                bytes(needed)
            ),
            "ulimit -v unlimited, or a smaller --memory",
        ),
        _ => report.good(Check::Limits, "address space (ulimit -v)"),
    }
    match limit(Resource::Fsize) {
        Some(size) => report.bad(
            Check::Limits,
            format!(
                "files may have {} at most (ulimit -f): a restore of more fails",
                bytes(size)
            ),
            "ulimit -f unlimited",
        ),
        None => report.good(Check::Limits, "size of files (ulimit -f)"),
    }
}

fn check_state_dir(report: &mut DoctorReport) {
    let Some(dir) = state_dir() else {
        let what = "no state directory for what is learned of hosts: HOME is not set";
        return report.bad(Check::StateDirectory, what, "CKPT_STATE_DIR=DIR");
    };
    let written = fs::create_dir_all(&dir).and_then(|()| tempfile::tempfile_in(&dir));
    match written {
        Ok(_) => {
            report.good(
                Check::StateDirectory,
                format!("{} can be written", dir.display()),
            );
            check_room(&dir, report);
        }
        Err(cause) => report.bad(
            Check::StateDirectory,
            format!(
                "{}: {cause}: what is learned of hosts can't be kept",
                dir.display()
            ),
            "CKPT_STATE_DIR=DIR, of a directory that can be written",
        ),
    }
}

fn check_room(dir: &Path, report: &mut DoctorReport) {
    let free = match rustix::fs::statvfs(dir) {
        Ok(found) => machine::disk::free_bytes(&found),
        Err(cause) => {
            let what = format!("{}: {cause}", dir.display());
            return report.bad(Check::Disk, what, "run ckpt in a directory that exists");
        }
    };
    let Some(free) = free else {
        let what = format!("the free space at {} is not known", dir.display());
        return report.good(Check::Disk, what);
    };
    let what = format!("{} free at {}", bytes(free), dir.display());
    if free < FREE_BYTES_MIN {
        report.bad(Check::Disk, what, "free disk space");
    } else {
        report.good(Check::Disk, what);
    }
}

async fn check_ways(
    global: &Global,
    path: &Path,
    mut grid: Grid,
    identity: &Identity,
    report: &mut DoctorReport,
) {
    let lists = list_files(path, &grid);
    let agent = match agent_for(global, &mut grid, &lists, identity).await {
        Ok(agent) => agent,
        Err(failure) => return report.bad(Check::Network, failure.message, "ip link; ip address"),
    };
    let ways = agent.ways().await;
    agent.close().await;
    if ways.is_empty() {
        let remedy = "a grid file with hosts, or with a registry that answers";
        report.bad(Check::Network, "no hosts are known", remedy);
    }
    for way in &ways {
        check_way(way, path, report);
    }
    check_clocks(&ways, report);
}

fn check_way(way: &Way, grid_file: &Path, report: &mut DoctorReport) {
    let name = one_line(&way.host);
    let silent = way.silent_since.map_or_else(String::new, |at| {
        format!(", silent since {}", since(at, unix_seconds()))
    });
    let host = format!("{name} ({}{silent})", place(way));
    match &way.found {
        Ok(Reached { mtu, rtt, .. }) => {
            let ms = rtt.as_secs_f64() * 1e3;
            let what = format!("{host}: answers in {ms:.1} ms, datagrams of {mtu} bytes pass");
            if *mtu < MTU_USUAL {
                let remedy = "a tunnel or VPN on the way allows only small datagrams, which is slow: raise its MTU";
                report.bad(Check::Network, what, remedy);
            } else {
                report.good(Check::Network, what);
            }
        }
        Err(unreached) if unreached.fault.is_forbidden() => {
            let what = format!("{host}: {}", unreached.fault);
            report.bad(
                Check::Identity,
                what,
                "ask the grid's admin: ckpt grid show",
            );
        }
        Err(unreached) => {
            if let Err(cause) = &way.resolved {
                let what = format!("{}, host {host}: {cause}", grid_file.display());
                let remedy = format!(
                    "correct the name in DNS or /etc/hosts, or addr of {name} in the list of the grid"
                );
                return report.bad(Check::Network, what, remedy);
            }
            let (what, remedy) = match unreached.is_refused {
                _ if way.is_unreached => (
                    format!(
                        "{}; a registry hears it and does not reach it either",
                        unreached.fault
                    ),
                    "on its machine: ckpt-store status; let its UDP port through the firewall, or forward it",
                ),
                true => (
                    "refused: its machine is up, but no program listens at that port".to_owned(),
                    "start ckpt-store there, or correct the address in the grid file",
                ),
                false => (
                    unreached.fault.to_string(),
                    "is the machine up? does a firewall let UDP through to this port and back?",
                ),
            };
            report.bad(Check::Network, format!("{host}: {what}"), remedy);
        }
    }
}

/// The address of a host in the list and, if it is a name, the addresses to which it resolves.
fn place(way: &Way) -> String {
    let listed = &way.addr;
    match &way.resolved {
        Ok(found) if listed.ip().is_none() || found.first().copied() != listed.ip() => {
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            format!("{listed}: {}", found.join(", "))
        }
        _ => listed.to_string(),
    }
}

fn check_clocks(ways: &[Way], report: &mut DoctorReport) {
    let reached = ways.iter().filter_map(|way| way.found.as_ref().ok());
    let clocks: Vec<(u64, u64)> = reached.filter_map(|reached| reached.clock).collect();
    let Some(middle) = middle_offset(&clocks) else {
        return;
    };
    let off = middle.unsigned_abs();
    if off > CLOCK_SLACK_S {
        let side = if middle < 0 { "ahead of" } else { "behind" };
        let what = format!("this machine's clock is {} {side} most hosts'", span(off));
        report.bad(Check::Clock, what, "set the clock (NTP)");
    } else {
        report.good(
            Check::Clock,
            format!("within {off} s of most hosts' clocks"),
        );
    }
    for way in ways {
        let clock = way.found.as_ref().ok().and_then(|reached| reached.clock);
        let Some((host, own)) = clock else { continue };
        let off = ahead(host, own).saturating_sub(middle);
        if off.unsigned_abs() > CLOCK_SLACK_S {
            let by = span(off.unsigned_abs());
            let what = format!("the clock of {} is {by} off", one_line(&way.host));
            report.bad(Check::Clock, what, "ask its owner to set the clock (NTP)");
        }
    }
}

impl Report for DoctorReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        for one in &self.findings {
            let mark = match one.verdict {
                Verdict::Good => "ok   ",
                Verdict::Bad => "BAD  ",
            };
            writeln!(
                out,
                "{mark}{:<16} {}",
                one.check.name(),
                one_line(&one.what)
            )?;
            if let Some(remedy) = &one.remedy {
                writeln!(out, "     try: {}", one_line(remedy))?;
            }
        }
        Ok(())
    }

    json_of_self!();
}
