//! `ckpt run`: saves a job in time, lets it give way to the machine's owner, and restarts it elsewhere.
//!
//! The crate `supervision` decides; this module is its shell. It starts the job, observes its files and
//! the machine, reports both as events, and carries out the actions that it gets back.

#![cfg_attr(
    not(test),
    deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)
)]

mod arrivals;
mod ask;
pub mod away;
mod batch;
mod beat;
mod begin;
pub mod channel;
mod check;
mod clock;
pub mod completeness;
pub mod criu;
mod daemon;
mod files;
pub mod history;
mod host;
mod incarnation;
mod job;
mod job_dir;
pub mod jobs;
mod journal;
mod json_file;
mod kept_state;
pub mod kind;
pub mod ledger;
pub mod notice;
mod orders;
mod owner;
pub mod past_report;
mod reach;
mod record;
pub mod report;
mod run_log;
mod saver;
pub mod set_aside;
mod shell;
mod signals;
mod stage;
mod staged;
pub mod standing;
mod succession;
mod tree;
mod usage;
mod watch;
pub mod watching;

use std::sync::Arc;

use codec::Version;
use supervision::{EndedBy, Ending, JobStatus};

use ckpt_agent::agent::MachineOutlook;
use ckpt_agent::blocks_ahead::BlocksAhead;
use ckpt_agent::cancel::canceller;
use ckpt_agent::report::{ExitStatus, Failure, Observer};

pub use ask::Ask;
pub use batch::{Batch, end_of_time_limit};
pub use channel::CKPT_NOTIFY;
pub use check::check;
pub use orders::{AfterSuccess, Orders, Script, Suspend, Way};
pub use owner::OwnerWish;
pub use reach::{AgentFuture, Reach};
pub use record::RecordOrders;
pub use report::{FinalReport, RunCheckReport, RunReport};
pub use run_log::Says;
pub use saver::SavePlan;
pub use signals::{Asked, Signals};

use away::words::EndReport;
use beat::Beat;
use begin::Begun;
use job::StartError;
use job_dir::{AHEAD, JobDir, JobDirError};
use journal::{Journal, JournalEvent};
use ledger::{LedgerLine, Loss};
use run_log::RunLog;
use shell::{FinishedRun, RunShell};
use standing::{JobStanding, StandingNote};
use succession::Place;

/// Exit status if the job was not started.
const NOT_STARTED: u8 = 125;

/// How often a job begins at a start, where a version turns up that the beginning did not see: the last save of an
/// incarnation that was killed in its commit, or one of an incarnation that is alive elsewhere.
const BEGINNINGS_MAX: u32 = 3;

/// Name of the journal in the job's directory.
const JOURNAL: &str = "journal.jsonl";

/// Name of the file in the job's directory that records how all processes of the job can be ended.
const END_ORDERS: &str = "running";

/// Runs a job under supervision on this machine until it has ended or left. `signals` were handled since
/// before the connection to the grid, so that none of them has ended this process.
///
/// # Errors
/// When the job was not started.
pub async fn run(
    orders: Orders,
    reach: Arc<dyn Reach>,
    observer: Arc<dyn Observer>,
    mut signals: Signals,
) -> Result<RunReport, Failure> {
    let place = JobDir::take(orders.state_dir.clone(), &orders.job).map_err(job_dir_failure)?;
    job::end_what_was_left(&place.path(END_ORDERS));
    if !orders.staged {
        return supervise(&orders, &place, reach, observer, None, &mut signals).await;
    }
    let beat = Beat::begin(&place);
    staged::clear(&place)
        .map_err(|cause| not_started(Failure::local("cleaning up after an earlier run", &cause)))?;
    let beat = Some(beat);
    let done = supervise(&orders, &place, reach, observer, beat, &mut signals).await;
    staged::end(&place, &end_report(&done))
        .map_err(|cause| Failure::local("the end of the job", &cause))?;
    done
}

/// Runs the job in its directory, which no other process uses.
async fn supervise(
    orders: &Orders,
    place: &JobDir,
    reach: Arc<dyn Reach>,
    observer: Arc<dyn Observer>,
    beat: Option<Beat>,
    signals: &mut Signals,
) -> Result<RunReport, Failure> {
    let (journal, refused) = Journal::open(place.path(JOURNAL));
    let mut log = RunLog::new(journal, orders.says);
    if let Some(cause) = refused {
        let journal = log.journal_path().display().to_string();
        log.warn(format!("no journal in {journal}: {cause}"));
    }
    let (note, left) = StandingNote::begin(place, &orders.job.to_string());
    let beginning = take_up(orders, place, reach.as_ref(), &observer, &mut log, signals);
    let (begun, outlook) = match beginning.await {
        Ok(begun) => begun,
        Err(failure) => {
            note.give_back(left);
            return Err(failure);
        }
    };
    if let Some(left) = left {
        enter_killed(orders, &left, &begun, &mut log);
    }
    let version = begun.version;
    let shell = RunShell::start(orders, place, begun, outlook, reach.clone(), observer, log);
    let mut shell = shell.map_err(|cause| start_failure(&cause))?;
    shell.note_with(note);
    shell.beat_with(beat);
    let ending = shell.run(signals).await;
    let mut ended = shell.end(ending).await;
    if orders.staged {
        staged::save_result(orders, place, &mut ended, reach.as_ref(), signals).await;
    }
    // The host counts as alive until the result of its job is saved.
    drop(ended.beat.take());
    enter_left(orders, &mut ended);
    Ok(report(orders, version, ended, reach.as_ref()).await)
}

/// Begins the job, again where a version turns up that the beginning did not see.
async fn take_up(
    orders: &Orders,
    place: &JobDir,
    reach: &dyn Reach,
    observer: &Arc<dyn Observer>,
    log: &mut RunLog,
    signals: &mut Signals,
) -> Result<(Begun, MachineOutlook), Failure> {
    let mut beginnings = BEGINNINGS_MAX;
    loop {
        beginnings -= 1;
        let (mut begun, outlook) = begin(orders, place, reach, observer, log, signals).await?;
        for note in &begun.notes {
            log.warn(note.clone());
        }
        let taking = succession::take_place(orders, place, &mut begun, reach, log, signals);
        match taking.await? {
            Place::Taken => return Ok((begun, outlook)),
            Place::Lost(failure) if beginnings == 0 => return Err(failure),
            Place::Lost(failure) => log.warn(format!("begins again: {failure}")),
        }
    }
}

/// Enters into the ledger that an earlier supervisor of the job was killed here, or its machine failed.
fn enter_killed(orders: &Orders, left: &JobStanding, begun: &Begun, log: &mut RunLog) {
    if left.work_s <= 0.0 {
        return;
    }
    // The files here have the work that no version holds.
    let lost_s = if begun.is_newer_here {
        0.0
    } else {
        left.unsaved_s
    };
    let goes_on = begun.version.is_some() || begun.is_newer_here;
    let job = orders.job.to_string();
    let line = LedgerLine {
        why: left.not_saved.clone(),
        ..LedgerLine::now(&job, Loss::Killed, goes_on, left.work_s, lost_s)
    };
    enter(orders, &line, log);
}

/// Enters into the ledger that the job has left, if it has, and ends the note of how it stands.
fn enter_left(orders: &Orders, ended: &mut FinishedRun) {
    let found = match ended.ending.ended_by {
        EndedBy::Job(_) => None,
        EndedBy::LeftSaved { .. } => Some((Loss::Evicted, true)),
        EndedBy::LeftOlder { version, .. } => Some((Loss::Evicted, version.is_some())),
        EndedBy::LeftStateless { .. } => Some((Loss::Evicted, false)),
        EndedBy::OtherIncarnation => Some((Loss::Superseded, true)),
        EndedBy::Hung => Some((Loss::Hung, ended.version.is_some())),
    };
    if let Some((loss, goes_on)) = found {
        let seconds = |ms: u64| ms as f64 / 1000.0;
        let accounts = &ended.accounts;
        let work_s = seconds(accounts.work_ms);
        let lost_s = seconds(accounts.lost_ms);
        let job = orders.job.to_string();
        let line = LedgerLine {
            why: ended.not_saved.clone().or_else(|| ended.obstacle.clone()),
            ..LedgerLine::now(&job, loss, goes_on, work_s, lost_s)
        };
        enter(orders, &line, &mut ended.log);
    }
    if let Some(note) = ended.note.take() {
        note.end();
    }
}

/// Adds a line to the ledger. The machine that has sent a job here has a ledger of its own.
fn enter(orders: &Orders, line: &LedgerLine, log: &mut RunLog) {
    let state = orders.state_dir.as_deref().filter(|_| !orders.staged);
    if let Err(cause) = line.append(state) {
        log.warn(format!("the ledger: {cause}"));
    }
}

/// The record of the end, for a mover on another machine.
fn end_report(done: &Result<RunReport, Failure>) -> EndReport {
    match done {
        Ok(report) => EndReport {
            exit_code: report.exit_code,
            by_job: report.ended_by == "job",
            why: report.why.clone(),
            version: report.version,
            work_seconds: report.work_seconds,
            lost_seconds: report.lost_seconds,
        },
        Err(failure) => EndReport {
            exit_code: failure.exit_code(),
            by_job: false,
            why: failure.message.clone(),
            version: None,
            work_seconds: 0.0,
            lost_seconds: 0.0,
        },
    }
}

/// Brings the job's state to its place, and asks what is to be expected of this machine. A signal that ends
/// this process or asks the job to leave cancels that.
async fn begin(
    orders: &Orders,
    place: &JobDir,
    reach: &dyn Reach,
    observer: &Arc<dyn Observer>,
    log: &mut RunLog,
    signals: &mut Signals,
) -> Result<(Begun, MachineOutlook), Failure> {
    let stopped = |asked: Asked| asked.not_started(&orders.job, orders.evict_exit);
    let (canceller, cancel) = canceller();
    let beginning = orders.beginning(place);
    let making = async {
        let mut agent = reach.agent().await?;
        if orders.staged {
            agent = agent.with_blocks_ahead(BlocksAhead::in_dir(place.path(AHEAD)));
        }
        beginning.make(&agent, observer, log, cancel).await
    };
    let made = signals.cancelling(&canceller, making).await;
    let made = made.map_err(stopped)?;
    let begun = made.and_then(|begun| match begun.version {
        None if orders.staged => {
            let message = format!("job {}: no version has its working directory", orders.job);
            Err(Failure::new(ExitStatus::TooFewHosts, message)
                .next("again when more hosts are up: ckpt hosts"))
        }
        _ => Ok(begun),
    });
    let begun = begun.map_err(not_started)?;
    staged::clear_ahead(place).map_err(|cause| Failure::local("blocks fetched ahead", &cause))?;
    let outlook = signals.unless_asked(orders.outlook(reach)).await;
    Ok((begun, outlook.map_err(stopped)?))
}

/// Sets the exit status of a failure before the job was started: 125. Too few hosts keep their own
/// status, since another machine or another hour may have enough.
pub fn not_started(mut failure: Failure) -> Failure {
    if failure.status != ExitStatus::TooFewHosts {
        failure.exit_code = Some(NOT_STARTED);
    }
    failure
}

fn job_dir_failure(cause: JobDirError) -> Failure {
    let failure = Failure::new(ExitStatus::LocalIo, cause.to_string());
    not_started(match &cause {
        JobDirError::Taken { .. } => {
            failure.next("wait until it ends, or end it with SIGTERM; ckpt jobs")
        }
        JobDirError::NoStateDirectory => failure.next("CKPT_STATE_DIR=DIR"),
        JobDirError::Io { cause, .. } => failure.next_for(cause),
    })
}

fn start_failure(cause: &StartError) -> Failure {
    let mut failure = Failure::new(
        ExitStatus::LocalIo,
        format!("the job was not started: {cause}"),
    )
    .next("-- COMMAND, with a program that this user can start here");
    failure.exit_code = Some(cause.exit_code());
    failure
}

/// Does what is to be done after the end of the job, and makes the report.
async fn report(
    orders: &Orders,
    began_from: Option<Version>,
    mut ended: FinishedRun,
    reach: &dyn Reach,
) -> RunReport {
    let exit_code = ended.ending.status(orders.evict_exit);
    let why = why(ended.ending);
    let succeeded = ended.ending.ended_by == EndedBy::Job(JobStatus::Exited(0));
    if succeeded && ended.version.is_some() {
        let done = orders.after_success.carry_out(&orders.job, reach).await;
        if let Err(message) = done {
            ended.log.warn(message);
        }
    }
    if succeeded && let Err(cause) = ended.recorder.keep() {
        ended
            .log
            .warn(format!("the run can't be added to the history: {cause}"));
    }
    let summary = ended.recorder.summary();
    let who = ended.ending.who();
    ended.log.enter(JournalEvent::Ended {
        exit_code,
        ended_by: who,
        why: why.clone(),
        version: ended.version,
    });
    let accounts = &ended.accounts;
    let seconds = |ms: u64| ms as f64 / 1000.0;
    RunReport {
        job: orders.job.clone(),
        exit_code,
        ended_by: who,
        why,
        began_from: began_from.map(|version| version.number()),
        version: ended.version,
        work_seconds: seconds(accounts.work_ms),
        suspended_seconds: seconds(accounts.suspended_ms),
        checkpoint_seconds: seconds(accounts.checkpoint_ms),
        lost_seconds: seconds(accounts.lost_ms),
        suspensions: accounts.suspensions,
        checkpoints: accounts.committed,
        failed_saves: accounts.failed,
        last: accounts.last.map(|last| FinalReport {
            grace_seconds: seconds(last.grace_ms),
            expected_seconds: seconds(last.expected_ms),
            chance: last.chance,
            took_seconds: last.took_ms.map(seconds),
        }),
        cpu_seconds: summary.cpu_seconds,
        speed: summary.speed,
        starts: summary.starts,
        forecast_cpu_seconds: summary.forecast.map(|forecast| forecast.cpu_s),
        in_time: summary.is_in_time,
        obstacle: ended.obstacle,
        journal: ended.log.journal_path().display().to_string(),
        warnings: ended.log.into_warnings(),
    }
}

fn why(ending: Ending) -> String {
    match ending.ended_by {
        EndedBy::Job(JobStatus::Exited(code)) => format!("exit status {code}"),
        EndedBy::Job(JobStatus::Signalled(signal)) => format!("signal {signal}"),
        EndedBy::LeftSaved { why, .. }
        | EndedBy::LeftOlder { why, .. }
        | EndedBy::LeftStateless { why } => run_log::reason(why),
        EndedBy::OtherIncarnation => {
            "another incarnation of the job has continued, and saved".to_owned()
        }
        EndedBy::Hung => "it showed no sign of life".to_owned(),
    }
}
