//! `ckpt run --check`: finds out what `ckpt run` would do on this machine, without starting the job.

use std::path::PathBuf;

use codec::grant::{Grant, GrantScope};
use supervision::leaving::{FinalSave, Hazards, best_interval};
use supervision::{Event, Millis, SaveAhead, Supervisor};

use super::files::{Fingerprint, resolved, written_by};
use super::job_dir::dir_of;
use super::orders::{AfterSuccess, Orders, Way};
use super::reach::Reach;
use super::report::{ControlFound, RunCheckReport};
use super::{JOURNAL, not_started};
use ckpt_agent::agent::{MachineOutlook, RestoreRequest, RestoreTarget, Which};
use ckpt_agent::cancel::canceller;
use ckpt_agent::report::{ExitStatus, Failure, Silent};
use ckpt_agent::unix_time::unix_seconds;
use machine::open_files::all_processes;

/// Interval from which on no checkpoint is worth its cost, seconds: a month.
const LONGEST_INTERVAL: f64 = 30.0 * 86_400.0;

/// Finds out what `ckpt run` would do.
///
/// # Errors
/// When the job could not be started.
pub async fn check(orders: &Orders, reach: &dyn Reach) -> Result<RunCheckReport, Failure> {
    let place = dir_of(orders.state_dir.clone(), &orders.job);
    let place = place.map_err(super::job_dir_failure)?;
    let agent = reach.agent().await.map_err(not_started)?;
    let mut notes = Vec::new();
    let (_canceller, cancel) = canceller();
    let request = RestoreRequest {
        if_exists: true,
        least_data: orders.save.least_data(),
        is_new: orders.is_new,
        force: true,
        dry_run: true,
        ..RestoreRequest::new(
            orders.job.clone(),
            Which::Newest,
            RestoreTarget::Path(place.join("check")),
        )
    };
    let found = agent
        .restore(request, std::sync::Arc::new(Silent), cancel)
        .await;
    let version = match found {
        Ok(report) => {
            let skipped = report.skipped.iter().map(ToString::to_string);
            notes.extend(skipped);
            report.version
        }
        Err(failure) if failure.status == ExitStatus::NotFound => None,
        Err(failure) => return Err(not_started(failure)),
    };
    let mut outlook = orders.outlook(reach).await;
    if orders.batch.is_some() {
        // The batch system deals with the owner, whatever the machine's daemon expects of guests.
        outlook.guest = outlook.presence.clone();
    }
    let settings = orders.settings(None, 0, Millis(0), unix_seconds());
    let mut supervisor = Supervisor::new(settings, Millis(0));
    let files = Fingerprint::of(&files_of(orders), &orders.save.options.exclude);
    let ahead = SaveAhead {
        image_bytes: files.bytes(),
        bytes_per_second: outlook.stores_bytes_per_second,
    };
    supervisor.handle(Millis(0), Event::SaveAhead(ahead));
    notes.extend(notes_of_files(orders));
    let cost = supervisor.standstill_seconds();
    let interval = interval(&outlook, cost, &supervisor.final_save());
    let is_leased = matches!(orders.after_success, AfterSuccess::Lease(_));
    if is_leased && agent.grant().is_some() {
        notes.push("with a job key the lease of --after-success can't be set".to_owned());
    }
    Ok(RunCheckReport {
        job: orders.job.clone(),
        version: version.map(|version| version.number()),
        owner: match orders.batch {
            Some(batch) => format!("managed by {}: only its signals count", batch.name()),
            None => "watched by this program".to_owned(),
        },
        control: controls(orders),
        interval_seconds: (interval < LONGEST_INTERVAL).then_some(interval),
        cost_seconds: cost,
        outlook: outlook.source,
        grace_seconds: orders.grace().as_secs_f64(),
        key: scope(agent.grant()),
        journal: place.join(JOURNAL).display().to_string(),
        notes,
    })
}

/// What would happen with each of the job's paths, as they are now.
fn notes_of_files(orders: &Orders) -> Vec<String> {
    let exclude = &orders.save.options.exclude;
    let note = |path: PathBuf| {
        let roots = [path];
        let [path] = &roots;
        let print = Fingerprint::of(&roots, exclude);
        let shown = path.display();
        if print.is_empty() {
            return format!(
                "{shown}: nothing is there yet; it is saved once the job has written it"
            );
        }
        let open = written_by(&all_processes(), &resolved(&roots), exclude, &print);
        if let Some(open) = open.files.first() {
            let way = match open.appends {
                true => {
                    "is open for appending now: it keeps no checkpoint away where the job renames its state into \
                         place, or with --append"
                }
                false => "is open for writing now: no checkpoint is taken until it is closed",
            };
            return format!("{shown}: {} {way}", open.path.display());
        }
        let files = print.files().count();
        let bytes = print.bytes();
        format!(
            "{shown}: {files} files of {bytes} bytes, which no process has open; they are saved when they have not \
             changed for a second, or were renamed into place"
        )
    };
    files_of(orders).into_iter().map(note).collect()
}

/// The files that the job writes. None for an image of processes, which exists only during a save.
fn files_of(orders: &Orders) -> Vec<PathBuf> {
    match &orders.way {
        Way::Files { paths, .. } => paths.clone(),
        Way::Command { .. } => Vec::new(),
    }
}

fn interval(outlook: &MachineOutlook, cost: f64, last: &FinalSave) -> f64 {
    let hazards = Hazards::new(
        outlook.presence.hazard_per_second(0.0),
        outlook.guest.hazard_per_second(0.0),
    );
    best_interval(cost, hazards, Some(last))
}

fn scope(grant: Option<&Grant>) -> String {
    let Some(terms) = grant.map(Grant::terms) else {
        return "all jobs of its owner".to_owned();
    };
    match terms.scope {
        GrantScope::Below(_) => "a job key, for all jobs below a prefix".to_owned(),
        _ => "a job key, for one job".to_owned(),
    }
}

/// The ways to hold a job back on this machine, as they were tried: first the chosen one, then all.
fn controls(orders: &Orders) -> Vec<ControlFound> {
    let Some(control) = orders.control() else {
        return Vec::new();
    };
    let check = control.check();
    let chosen = check.to_string();
    let mut found = vec![ControlFound {
        name: "chosen".to_owned(),
        works: true,
        what: chosen.lines().next().unwrap_or_default().to_owned(),
    }];
    found.extend(check.tried.iter().map(|tried| {
        ControlFound {
            name: tried.what.to_owned(),
            works: tried.fails.is_none(),
            what: tried
                .fails
                .clone()
                .unwrap_or_else(|| "tried here".to_owned()),
        }
    }));
    found
}
