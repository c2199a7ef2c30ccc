//! A job that begins from a version takes its place at its start: it saves the version's state as the successor of
//! that version. An earlier incarnation on a machine that sleeps, or can't be reached, then ends at its next save,
//! however far it got. Where the earlier incarnation is known to have left, there is nobody to come after.

use std::sync::Arc;
use std::time::Duration;

use supervision::{Ending, SaveNumber, SaveOutcome};

use super::begin::Begun;
use super::job_dir::JobDir;
use super::journal::JournalEvent;
use super::orders::Orders;
use super::reach::Reach;
use super::run_log::RunLog;
use super::saver::{Follows, Release, SaveJob};
use super::signals::Signals;
use ckpt_agent::cancel::canceller;
use ckpt_agent::report::{Failure, SaveReport, Silent};

/// Longest wait for this save. The job starts without it.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Whether a job has taken the place of its earlier incarnation.
#[derive(Debug)]
pub(super) enum Place {
    /// It has, or there is nobody whose place it could take, or that could not be found out.
    Taken,
    /// A version follows the one that the job began from.
    Lost(Failure),
}

/// Takes the place of the job's earlier incarnation, if there may be one.
///
/// # Errors
/// When a signal came.
pub(super) async fn take_place(
    orders: &Orders,
    place: &JobDir,
    begun: &mut Begun,
    reach: &dyn Reach,
    log: &mut RunLog,
    signals: &mut Signals,
) -> Result<Place, Failure> {
    let is_whole = begun.report.is_some() || begun.is_newer_here;
    // A version without a record was saved by hand.
    let Some(record) = begun.record.clone() else {
        return Ok(Place::Taken);
    };
    if begun.version.is_none() || begun.was_left || !is_whole {
        return Ok(Place::Taken);
    }
    let mut follows = Follows::restored(begun.newest.or(begun.version));
    let save = SaveJob {
        number: SaveNumber(0),
        paths: orders.paths(place),
        deadline: Some(
            orders
                .save
                .options
                .deadline
                .unwrap_or(TIME_MAX)
                .min(TIME_MAX),
        ),
        is_last: false,
        allow_degraded: orders.save.options.allow_degraded,
        after: follows.after(),
        release: Release::AtTheEnd,
        record: Some(record),
        result: None,
        is_torn: false,
    };
    let (canceller, cancel) = canceller();
    let saving = orders.save.save(reach, &save, Arc::new(Silent), cancel);
    let saved = signals.cancelling(&canceller, saving).await;
    let saved = saved.map_err(|asked| asked.not_started(&orders.job, orders.evict_exit))?;
    match (follows.outcome(&saved), saved) {
        (SaveOutcome::OtherSuccessor, Err(mut failure)) => {
            failure.exit_code = Some(Ending::OTHER);
            Ok(Place::Lost(failure))
        }
        (_, Err(failure)) => {
            log.warn(format!(
                "an earlier incarnation of the job, if one is alive, is not shut out yet: {failure}"
            ));
            Ok(Place::Taken)
        }
        (_, Ok(report)) => {
            log.enter(saved_entry(&report));
            begun.newest = Some(report.version);
            begun.is_saved_here = true;
            Ok(Place::Taken)
        }
    }
}

/// The entry of the journal for a save that was committed.
pub(super) fn saved_entry(report: &SaveReport) -> JournalEvent {
    JournalEvent::Saved {
        version: report.version.number(),
        seconds: report.seconds,
        image_bytes: report.image_bytes,
        stored_bytes: report.stored_bytes,
        can_lose: report.can_lose,
    }
}
