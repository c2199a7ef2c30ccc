//! `ckpt run --on`: a job on the machines of the grid, without a batch system. Its working directory is saved,
//! `ckpt run` is started on the best host through a launcher such as `ssh`, and the result comes back.
//!
//! Where the job goes is decided by [`supervision::away`]; this is its shell. `there` is the other end.

mod begin;
mod directory;
mod end;
mod front;
mod kept;
mod link;
mod printer;
pub mod report;
mod there;
pub(super) mod words;

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use codec::JobId;
use supervision::away::{Candidate, Settings};

use super::journal::Journal;
use super::orders::{AfterSuccess, Reach};
use super::place::Place;
use super::record::RecordOrders;
use super::run_log::{RunLog, Says};
use super::saver::SavePlan;
use super::signals::Signals;
use super::{JOURNAL, not_started, place_failure};
use crate::report::{ExitStatus, Failure};

pub use link::{Launcher, LauncherError};
pub use report::AwayReport;
pub use there::serve;

/// Directory of the jobs that run on other machines, in the state directory.
const AWAY: &str = "away";

/// What is to be done.
#[derive(Clone, Debug)]
pub struct AwayOrders {
    /// The job.
    pub job: JobId,
    /// The command.
    pub command: Vec<OsString>,
    /// Where it is started, and where its result goes.
    pub dir: PathBuf,
    /// How processes are started on hosts.
    pub launcher: Launcher,
    /// Options of `ckpt run` on the hosts.
    pub options: Vec<OsString>,
    /// How the working directory is saved.
    pub save: SavePlan,
    /// Begin from what lies in the working directory.
    pub local: bool,
    /// What becomes of the job's checkpoints when it has ended with 0.
    pub after_success: AfterSuccess,
    /// Exit status in place of 75.
    pub evict_exit: Option<u8>,
    /// The job's work in seconds at speed 1, as the user says.
    pub work_seconds: Option<f64>,
    /// When the job goes elsewhere.
    pub settings: Settings,
    /// What is noted of the job.
    pub record: RecordOrders,
    /// Where this program keeps what it knows.
    pub state_dir: Option<PathBuf>,
    /// How much is said.
    pub says: Says,
}

/// Hosts for a job, and those that were left out with the reason.
#[derive(Clone, Debug, Default)]
pub struct Ranking {
    /// The best first.
    pub candidates: Vec<Candidate>,
    /// A sentence for each that can't take it.
    pub unfit: Vec<String>,
}

/// What a host needs to reach the grid as this job.
#[derive(Clone)]
pub struct Letter {
    /// The grid file.
    pub grid: String,
    /// A key for the job alone.
    pub key: String,
}

/// A ranking that is made.
pub type RankFuture<'a> = Pin<Box<dyn Future<Output = Result<Ranking, Failure>> + Send + 'a>>;

/// How hosts are reached and chosen.
pub trait Away: Reach {
    /// Hosts for so much work, in seconds at speed 1.
    fn rank(&self, work_seconds: f64) -> RankFuture<'_>;

    /// What a host needs to reach the grid as this job.
    ///
    /// # Errors
    /// When there can be none.
    fn letter(&self, job: &JobId) -> Result<Letter, Failure>;
}

/// Runs a job on other machines to its end.
///
/// # Errors
/// When it was started nowhere, or its result can't be had.
pub async fn run(orders: AwayOrders, away: Arc<dyn Away>) -> Result<AwayReport, Failure> {
    let state = orders.state_dir.clone().map(|state| state.join(AWAY));
    let place = Place::take(state, &orders.job).map_err(place_failure)?;
    let mut signals = Signals::new().map_err(|cause| {
        let message = format!("signals: {cause}");
        not_started(Failure::new(ExitStatus::Failed, message))
    })?;
    let (journal, refused) = Journal::open(place.path(JOURNAL));
    let mut log = RunLog::new(journal, orders.says);
    if let Some(cause) = refused {
        let journal = log.journal_path().display().to_string();
        log.warn(format!("no journal in {journal}: {cause}"));
    }
    let kept = begin::begin(&orders, &place, away.as_ref(), &mut log, &mut signals).await?;
    let front = front::Front::new(&orders, &place, Arc::clone(&away), kept, log);
    let ended = front.run(&mut signals).await;
    end::end(&orders, &place, away.as_ref(), ended).await
}
