//! The names that a shell can complete: of jobs and hosts that this machine knows, and of files.
//!
//! Nothing here uses the network. What can't be read has no names.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ckpt_agent::connection::{load_grid, notebook};
use ckpt_agent::knowledge::Knowledge;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use protocol::grid::Grid;

use super::state_dir::usual_grid_file;

/// Completes the name of a job that was saved or restored from this machine.
pub(super) fn jobs() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(known_jobs))
}

/// Completes the name of a job, or a path. A job may stand before the first path of a save.
pub(super) fn jobs_or_paths() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let mut all = candidates(known_jobs);
        all.retain(|job| {
            let name = job.get_value().to_string_lossy();
            name.starts_with(&*typed.to_string_lossy())
        });
        all.extend(PathCompleter::any().complete(typed));
        all
    })
}

/// Completes a word of a command.
pub(super) fn paths() -> ArgValueCompleter {
    ArgValueCompleter::new(PathCompleter::any())
}

/// Completes the name of a host of the grid.
pub(super) fn hosts() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(known_hosts))
}

/// The grid that the environment names, or the usual one, and what this machine has seen of it.
fn known() -> Option<(Grid, Arc<Knowledge>, u64)> {
    let named = std::env::var_os("CKPT_GRID").filter(|path| !path.is_empty());
    let path = named.map(PathBuf::from).or_else(usual_grid_file)?;
    let grid = load_grid(&path).ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    let seen = notebook(&grid).read(now);
    Some((grid, seen, now))
}

fn known_jobs(_: &Grid, seen: &Knowledge, _: u64) -> BTreeSet<String> {
    seen.jobs().map(ToString::to_string).collect()
}

fn known_hosts(grid: &Grid, seen: &Knowledge, now: u64) -> BTreeSet<String> {
    let missed = seen.missed(now).map(|missed| &missed.host);
    let hosts = grid.hosts.iter().chain(seen.roster()).chain(missed);
    hosts.map(|host| host.name.clone()).collect()
}

fn candidates(
    names: impl Fn(&Grid, &Knowledge, u64) -> BTreeSet<String>,
) -> Vec<CompletionCandidate> {
    let known = known();
    let names = known.map(|(grid, seen, now)| names(&grid, &seen, now));
    let names = names.unwrap_or_default().into_iter();
    names.map(CompletionCandidate::new).collect()
}
