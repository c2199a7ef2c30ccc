//! A job whose working directory comes from the hosts of the grid and goes back to them: the part of
//! `ckpt run --on` that runs on the job's machine.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use supervision::signals::Phase;
use supervision::{EndedBy, SaveNumber, SaveOutcome, Why};

use super::away::words::EndReport;
use super::files::remove;
use super::job_dir::{AHEAD, JobDir, WORK};
use super::json_file::write_json;
use super::orders::Orders;
use super::reach::Reach;
use super::saver::{Release, SaveJob};
use super::shell::FinishedRun;
use super::signals::Signals;
use ckpt_agent::cancel::canceller;
use ckpt_agent::report::Silent;

/// Name to which the working directory is moved if the job has ended and its result could not be saved.
const UNSAVED: &str = "unsaved";

/// Name of the file in the job's directory that records how the job ended.
pub(super) const END: &str = "end.json";

/// Shortest and longest pause before a result is saved again after a failure.
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_LONGEST: Duration = Duration::from_secs(60);

/// Number of the save of a result. No other save is under way at that time.
const LAST_SAVE: SaveNumber = SaveNumber(u32::MAX);

/// Before a start: removes what an earlier incarnation has left here. Only its saved versions count.
pub(super) fn clear(place: &JobDir) -> io::Result<()> {
    remove(&place.path(WORK))?;
    remove(&place.path(END))
}

/// After the beginning: removes what was fetched ahead for it.
pub(super) fn clear_ahead(place: &JobDir) -> io::Result<()> {
    remove(&place.path(AHEAD))
}

/// After a job has ended by itself: saves its working directory as a version with its exit status.
/// Retries for as long as it takes, unless a signal asks this process to leave.
pub(super) async fn save_result(
    orders: &Orders,
    place: &JobDir,
    ended: &mut FinishedRun,
    reach: &dyn Reach,
    signals: &mut Signals,
) {
    let EndedBy::Job(status) = ended.ending.ended_by else {
        return;
    };
    let mut pause = RETRY_FIRST;
    loop {
        let save = SaveJob {
            number: LAST_SAVE,
            paths: orders.paths(place),
            deadline: orders.save.options.deadline,
            // The machine may be taken at any time, and the result exists nowhere else.
            is_last: true,
            allow_degraded: orders.save.options.allow_degraded,
            after: ended.follows.after(),
            release: Release::AtTheEnd,
            record: Some(ended.recorder.label()),
            result: Some(status.code()),
            is_torn: false,
        };
        let (canceller, cancel) = canceller();
        let saving = orders.save.save(reach, &save, Arc::new(Silent), cancel);
        let saved = tokio::select! {
            saved = saving => saved,
            (_, signal) = signals.meant(Phase::Result) => {
                canceller.cancel();
                return left(place, ended, signal);
            }
        };
        match (ended.follows.outcome(&saved), saved) {
            (SaveOutcome::Committed { version, .. }, _) => {
                ended.version = Some(version);
                return;
            }
            (SaveOutcome::OtherSuccessor, _) => {
                ended.ending.ended_by = EndedBy::OtherIncarnation;
                return;
            }
            (SaveOutcome::Failed, Err(failure)) => {
                let seconds = pause.as_secs();
                let message =
                    format!("the result is not saved: {failure}; trying again in {seconds} s");
                ended.log.warn(message);
            }
            (SaveOutcome::Failed, Ok(_)) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            (_, signal) = signals.meant(Phase::Result) => return left(place, ended, signal),
        }
        pause = (pause * 2).min(RETRY_LONGEST);
    }
}

/// Keeps a result that was not saved, since no other copy of it exists.
fn left(place: &JobDir, ended: &mut FinishedRun, signal: u8) {
    let unsaved = place.path(UNSAVED);
    let moved = remove(&unsaved).and_then(|()| fs::rename(place.path(WORK), &unsaved));
    let path = unsaved.display();
    ended.log.warn(match moved {
        Ok(()) => format!("the result was not saved: it is on this host, in {path}"),
        Err(cause) => format!("the result was not saved, and could not be kept in {path}: {cause}"),
    });
    ended.ending.ended_by = EndedBy::LeftOlder {
        why: Why::Signal(signal),
        version: ended.version,
    };
}

/// Records how the job ended, and removes its working directory: what counts of it is saved.
pub(super) fn end(place: &JobDir, end: &EndReport) -> io::Result<()> {
    let removed = remove(&place.path(WORK));
    write_json(&place.path(END), end)?;
    removed
}
