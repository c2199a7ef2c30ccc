//! `ckpt health`: the state of checkpoints, leases, keys and hosts.

pub mod doctor;
pub mod doctor_report;
pub mod page;

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;

use super::args::options::Global;
use super::args::{HealthArgs, HealthCommand};
use super::connect::{connect, named_grid};
use super::key::any::AnyKey;
use super::key::identity;
use super::output::write_report;
use super::render::{Text, one_line};
use super::run::past::ledger;
use super::{Answer, done};
use crate::commands::state_dir::state_dir;
use ckpt_agent::agent::{grid_health, health_status, keys_health, registries_health, with_retired};
use ckpt_agent::cancel::{Cancel, canceller};
use ckpt_agent::connection::{list_files, notebook, roster};
use ckpt_agent::report::{ExitStatus, Failure, Silent};
use ckpt_agent::unix_time::unix_seconds;
use health::{Health, WorkHealth};
use runner::jobs::jobs;
use runner::ledger::LedgerSum;

/// Shows the state of things, for a submitter or for the grid's admin.
pub(super) async fn run(
    global: &Global,
    args: HealthCommand,
    cancel: Cancel,
) -> Result<Answer, Failure> {
    if args.watch {
        return watch(global, &args, cancel).await;
    }
    let health = find(global, &args.health).await?;
    let status = health_status(&health);
    Ok((Box::new(health), status))
}

/// Clears the screen of a terminal, and what was scrolled off it (ECMA-48, and xterm's ED 3).
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

/// Shows the report again and again, until it is cancelled. What is wrong at the first look ends it: it
/// stays wrong. What is wrong later is said below the last report.
async fn watch(
    global: &Global,
    args: &HealthCommand,
    mut cancel: Cancel,
) -> Result<Answer, Failure> {
    let is_terminal = io::stdout().is_terminal() && !global.json;
    let mut shown: Option<Health> = None;
    loop {
        let stale = tokio::select! {
            found = find(global, &args.health) => match found {
                Ok(health) => {
                    shown = Some(health);
                    None
                }
                Err(failure) if shown.is_none() => return Err(failure),
                Err(failure) => Some(failure.message),
            },
            () = cancel.cancelled() => break,
        };
        let written = show(shown.as_ref(), stale.as_deref(), is_terminal, global.json);
        match written {
            Ok(()) => {}
            // The reader has enough.
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => break,
            Err(cause) => return Err(Failure::local("writing the report", &cause)),
        }
        tokio::select! {
            () = tokio::time::sleep(args.period.every()) => {}
            () = cancel.cancelled() => break,
        }
    }
    done(Text(Vec::new()))
}

fn show(
    health: Option<&Health>,
    stale: Option<&str>,
    is_terminal: bool,
    json: bool,
) -> io::Result<()> {
    if is_terminal {
        write!(io::stdout(), "{CLEAR}")?;
    }
    // A line of JSON is a new report; an old one is not written again.
    if let Some(health) = health.filter(|_| stale.is_none() || is_terminal) {
        write_report(health, json)?;
    }
    match stale {
        Some(why) => writeln!(io::stderr(), "ckpt: not refreshed: {}", one_line(why)),
        // Reports in a file stay apart.
        None if !is_terminal && !json => writeln!(io::stdout()),
        None => Ok(()),
    }
}

/// The state of things, as `args` ask for it. Each call connects anew, so that hosts and certificates may
/// change in between.
pub(super) async fn find(global: &Global, args: &HealthArgs) -> Result<Health, Failure> {
    if args.admin {
        return of_grid(global, args).await;
    }
    let connected = connect(global).await?;
    let keys = keys_health(&connected.identity, &connected.grid, unix_seconds());
    let registries = registries_health(&connected.grid, &connected.identity);
    let request = args.request();
    let (_canceller, cancel) = canceller();
    let keys_before = AnyKey::of(global, &connected, Arc::new(Silent), cancel).await;
    let (found, retired) = tokio::join!(
        connected.agent.health(&request, keys, registries),
        keys_before.jobs_of_retired(&request)
    );
    keys_before.close().await;
    connected.agent.close().await;
    let work = work_here()?;
    Ok(Health {
        work,
        ..with_retired(found?, retired, request.limits)
    })
}

/// The work of jobs on this machine, by its own notes.
fn work_here() -> Result<Option<WorkHealth>, Failure> {
    let Some(state) = state_dir() else {
        return Ok(None);
    };
    let found = jobs(&state);
    let found = found.map_err(|cause| Failure::new(ExitStatus::LocalIo, cause.to_string()))?;
    let ledger = ledger()?;
    let sum = ledger.all;
    let is_known = !found.jobs.is_empty() || sum != LedgerSum::default();
    Ok(is_known.then_some(WorkHealth {
        running: found.jobs.len(),
        at_risk_seconds: found.at_risk_seconds,
        evictions: sum.evictions,
        survived: sum.survived,
        rescued_seconds: sum.rescued_seconds,
        lost_seconds: sum.lost_seconds,
        why: ledger.newest_why,
    }))
}

async fn of_grid(global: &Global, args: &HealthArgs) -> Result<Health, Failure> {
    let (path, mut grid) = named_grid(global)?;
    let lists = list_files(&path, &grid);
    let files = identity::files(global, Some(&grid))?;
    let identity = identity::load(global, &files)?;
    let notebook = notebook(&grid);
    let roster = roster(&mut grid, &lists, &identity, &notebook).await;
    let limits = args.request().limits;
    let keys = keys_health(&identity, &grid, unix_seconds());
    grid_health(&grid, roster, &identity, &limits, keys).await
}
