//! The end of `ckpt run --on`: moves the result of the job into the working directory.

use std::fs;
use std::sync::Arc;

use supervision::Ending;
use supervision::away::End;

use super::directory::{Listing, Merged, merge};
use super::front::FinishedMoves;
use super::kept::{KEPT, Kept, LISTING};
use super::report::AwayReport;
use super::words::EndReport;
use super::{Away, AwayOrders};
use crate::files::{clear, remove, restored};
use crate::history::PastLine;
use crate::job_dir::JobDir;
use crate::journal::JournalEvent;
use crate::signals::Signals;
use crate::stage::PREFIX;
use ckpt_agent::agent::{RestoreRequest, RestoreTarget, Which};
use ckpt_agent::cancel::canceller;
use ckpt_agent::report::{ExitStatus, Failure, RestoreReport, Silent};

/// What is added to the name of a job for the directory with the files that are not put in their places.
const HELD_BACK_SUFFIX: &str = ".held-back";

/// Does what is to be done at the end, and makes the report.
pub(super) async fn end(
    orders: &AwayOrders,
    place: &JobDir,
    away: &dyn Away,
    mut ended: FinishedMoves,
    signals: &mut Signals,
) -> Result<AwayReport, Failure> {
    let job = &orders.job;
    let (status, by_job, host) = match ended.end.clone() {
        End::Job { status, host } => (status, true, host),
        End::Left { status } => (status, false, None),
        End::GivenUp { status, host } => (status, false, Some(host)),
        End::NotStarted { status } => {
            // The next start is a new one.
            forget(place);
            let message = format!("job {job}: no host could start it");
            let mut failure = Failure::new(ExitStatus::Failed, message);
            failure.exit_code = Some(status);
            let next = "see the answers of the hosts above; check that ckpt is installed there (--program)";
            return Err(failure.next(next));
        }
    };
    let mut restored = None;
    if by_job {
        let (report, merged) = bring_back(orders, place, away, signals).await?;
        for path in &merged.kept {
            let path = path.display();
            ended.log.warn(format!(
                "changed here and by the job: {path} is as it was here"
            ));
        }
        if let Some(dir) = &merged.held_back {
            let dir = dir.display();
            ended.log.warn(format!(
                "hidden files, programs and links to elsewhere that the job made or changed are not put in their places; look at \
                 them in {dir}"
            ));
        }
        ended.log.enter(JournalEvent::BroughtBack {
            version: report.version.map(|version| version.number()),
            files: merged.files,
            seconds: report.seconds,
        });
        note(orders, &mut ended);
        if status == 0 {
            let done = orders.after_success.carry_out(job, away).await;
            if let Err(message) = done {
                ended.log.warn(message);
            }
        }
        forget(place);
        restored = Some((report, merged));
    }
    let exit_code = match (by_job, status, orders.evict_exit) {
        (false, Ending::SAVED, Some(other)) => other,
        _ => status,
    };
    Ok(report(orders, ended, exit_code, by_job, host, restored))
}

/// Removes what is kept of the job, so that the next start does not continue it.
fn forget(place: &JobDir) {
    // If it stays, the next start finds the result and ends with it.
    let _ = Kept::remove(&place.path(KEPT));
    let _ = remove(&place.path(LISTING));
}

fn report(
    orders: &AwayOrders,
    mut ended: FinishedMoves,
    exit_code: u8,
    by_job: bool,
    host: Option<String>,
    restored: Option<(RestoreReport, Merged)>,
) -> AwayReport {
    let end = ended.reported_end.take();
    let version = match &restored {
        Some((report, _)) => report.version.map(|version| version.number()),
        None => end.as_ref().and_then(|end: &EndReport| end.version),
    };
    let why = match end {
        Some(end) => end.why,
        None if by_job => format!("exit status {exit_code}, as recorded in its newest version"),
        None => "it runs on no host".to_owned(),
    };
    let ended_by = if by_job { "job" } else { "supervisor" };
    ended.log.enter(JournalEvent::Ended {
        exit_code,
        ended_by,
        why: why.clone(),
        version,
    });
    let merged = restored.map(|(_, merged)| merged);
    let aside = merged.iter().flat_map(|merged| &merged.kept);
    let held_back = merged.as_ref().and_then(|merged| merged.held_back.as_ref());
    AwayReport {
        job: orders.job.clone(),
        exit_code,
        ended_by,
        why,
        host,
        version,
        hosts: ended.hosts,
        starts: ended.starts,
        moves_seconds: ended.moves_seconds,
        aside: aside.map(|path| path.display().to_string()).collect(),
        held_back: held_back.map(|path| path.display().to_string()),
        changed_files: merged.map(|merged| merged.files),
        journal: ended.log.journal_path().display().to_string(),
        warnings: ended.log.into_warnings(),
    }
}

/// Adds the run to the history of this machine. The history on the host was only for this job.
fn note(orders: &AwayOrders, ended: &mut FinishedMoves) {
    let (Some(history), Some(line)) = (&orders.record.history, &ended.noted) else {
        return;
    };
    let read = serde_json::from_str::<PastLine>(line);
    // A host that recorded nothing returns the last of the lines that it was sent.
    let Some(line) = read
        .ok()
        .filter(|line| line.job == orders.job.to_string() && line.ended_at >= ended.began_at)
    else {
        return;
    };
    if let Err(cause) = line.append(history) {
        ended
            .log
            .warn(format!("the run can't be added to the history: {cause}"));
    }
}

/// Restores the newest version into a directory below the working directory, and merges it from there. A
/// signal ends the restore; the next start brings the result back.
async fn bring_back(
    orders: &AwayOrders,
    place: &JobDir,
    away: &dyn Away,
    signals: &mut Signals,
) -> Result<(RestoreReport, Merged), Failure> {
    let local_io = |message: String| {
        Failure::new(ExitStatus::LocalIo, message).next("run the same command again to fetch it")
    };
    let stage = orders
        .dir
        .join(format!("{PREFIX}{}", orders.job.file_name()));
    let made = clear(&stage).and_then(|()| fs::create_dir_all(&stage));
    made.map_err(|cause| local_io(format!("{}: {cause}", stage.display())))?;
    let (canceller, cancel) = canceller();
    let request = RestoreRequest {
        at_hand: vec![orders.dir.clone()],
        least_data: orders.save.least_data(),
        force: true,
        ..RestoreRequest::new(
            orders.job.clone(),
            Which::Newest,
            RestoreTarget::Path(stage.join("")),
        )
    };
    let restoring = async {
        let agent = away.agent().await?;
        agent.restore(request, Arc::new(Silent), cancel).await
    };
    let fetched = signals.cancelling(&canceller, restoring).await;
    let fetched = fetched.unwrap_or_else(|asked| {
        let what = format!("the result of job {} is not fetched", orders.job);
        Err(asked.failure(&what, orders.evict_exit))
    });
    let report = fetched
        .map_err(|failure| failure.next("run the same command again to fetch the result"))?;
    let dir = orders.dir.clone();
    let held_back = dir.join(format!("{}{HELD_BACK_SUFFIX}", orders.job.file_name()));
    let list = place.path(LISTING);
    let moving = tokio::task::spawn_blocking(move || {
        let staged = Listing::read(&list)?;
        let Some(result) = restored(&stage)?.into_iter().next() else {
            return Ok(Merged::default());
        };
        let merged = merge(&result, &dir, &staged, &held_back)?;
        remove(&stage)?;
        Ok::<_, std::io::Error>(merged)
    });
    let merged = moving.await.map_err(|cause| local_io(cause.to_string()))?;
    let merged = merged.map_err(|cause| local_io(format!("the result: {cause}")))?;
    Ok((report, merged))
}
