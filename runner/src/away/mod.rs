//! `ckpt run --on`: a job on the machines of the grid, without a batch system. Its working directory is
//! saved, `ckpt run` is started on the best host through a launcher such as `ssh`, and the result comes
//! back.
//!
//! [`supervision::away`] decides where the job runs; this module is its shell. `front` is the end of the
//! launcher on the user's machine, `there` the end on the job's machine.

mod begin;
mod directory;
mod end;
mod front;
mod kept;
mod link;
mod marks;
mod next;
mod own;
mod printer;
pub mod report;
mod stand_by;
mod there;
pub(super) mod words;

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use codec::JobId;
use supervision::away::{Candidate, MoveTimes};

use super::job_dir::JobDir;
use super::journal::Journal;
use super::orders::AfterSuccess;
use super::reach::Reach;
use super::record::RecordOrders;
use super::run_log::{RunLog, Says};
use super::saver::SavePlan;
use super::signals::{Asked, Signals};
use super::standing::StandingNote;
use super::{JOURNAL, job_dir_failure};
use ckpt_agent::report::Failure;

pub use link::{Launcher, LauncherError};
pub use report::AwayReport;
pub(super) use there::THERE;
pub use there::serve;

/// Directory of the jobs that run on other machines, in the state directory.
pub(super) const AWAY: &str = "away";

/// The orders for `ckpt run --on`.
#[derive(Clone, Debug)]
pub struct AwayOrders {
    /// Name of the job.
    pub job: JobId,
    /// The job's program and its arguments.
    pub command: Vec<OsString>,
    /// The working directory: the job starts with its files, and its result goes there.
    pub dir: PathBuf,
    /// How processes are started on hosts.
    pub launcher: Launcher,
    /// Options of `ckpt run` on the hosts.
    pub options: Vec<OsString>,
    /// How the working directory is saved.
    pub save: SavePlan,
    /// Whether to begin from the files in the working directory, not from the newest version.
    pub local: bool,
    /// What happens to the checkpoints after the job has ended with exit status 0.
    pub after_success: AfterSuccess,
    /// The exit status that replaces 75, if the user gave one.
    pub evict_exit: Option<u8>,
    /// The job's work, if the user gave it, seconds at speed 1.
    pub work_seconds: Option<f64>,
    /// When the job is given up on a host, and when it moves.
    pub settings: MoveTimes,
    /// What is recorded of the job.
    pub record: RecordOrders,
    /// The directory in which the program keeps the state of jobs.
    pub state_dir: Option<PathBuf>,
    /// Whether the next host fetches each version ahead.
    pub stands_by: bool,
    /// How much is printed.
    pub says: Says,
}

impl AwayOrders {
    /// The directory of the jobs that run on other machines.
    fn jobs_dir(&self) -> Option<PathBuf> {
        self.state_dir.as_ref().map(|state| state.join(AWAY))
    }

    /// The failure of this command if the signal came before it had started or found the job.
    pub fn not_begun(&self, asked: Asked) -> Failure {
        let what = format!("job {} was not started", self.job);
        let failure = asked.failure(&what, self.evict_exit);
        failure.next("run the same command again")
    }
}

/// The hosts that can take a job, and the others with the reason.
#[derive(Clone, Debug, Default)]
pub struct Ranking {
    /// The hosts that can take it, the best first.
    pub candidates: Vec<Candidate>,
    /// A sentence for each host that can't take it.
    pub unfit: Vec<String>,
}

/// What a host needs to use the grid for this job.
#[derive(Clone)]
pub struct Letter {
    /// The text of the grid file.
    pub grid: String,
    /// A job key for this job alone.
    pub key: String,
}

/// The future of a ranking.
pub type RankFuture<'a> = Pin<Box<dyn Future<Output = Result<Ranking, Failure>> + Send + 'a>>;

/// Reaches and ranks hosts.
pub trait Away: Reach {
    /// Ranks the hosts for this much work, in seconds at speed 1.
    fn rank(&self, work_seconds: f64) -> RankFuture<'_>;

    /// Makes what a host needs to use the grid for this job: with a new job key, or with the one of the letter before,
    /// if it is good for long enough, so that the host's saves build on those of the host before.
    ///
    /// # Errors
    /// When the user's key can't make a job key.
    fn letter(&self, job: &JobId, has_new_key: bool) -> Result<Letter, Failure>;

    /// As [`Self::letter`], with a key that can fetch the job's versions and open none.
    ///
    /// # Errors
    /// When the user's key can't make such a key.
    fn sealed_letter(&self, job: &JobId) -> Result<Letter, Failure>;
}

/// Runs a job on other machines until it has ended or left. `signals` are handled as in [`super::run`].
///
/// # Errors
/// When the job was started nowhere, or when its result can't be restored.
pub async fn run(
    orders: AwayOrders,
    away: Arc<dyn Away>,
    mut signals: Signals,
) -> Result<AwayReport, Failure> {
    let place = JobDir::take(orders.jobs_dir(), &orders.job).map_err(job_dir_failure)?;
    let (journal, refused) = Journal::open(place.path(JOURNAL));
    let mut log = RunLog::new(journal, orders.says);
    if let Some(cause) = refused {
        let journal = log.journal_path().display().to_string();
        log.warn(format!("no journal in {journal}: {cause}"));
    }
    // A front that was killed has left its job running, or the next one finds out.
    let (note, _) = StandingNote::begin(&place, &orders.job.to_string());
    let kept = begin::begin(&orders, &place, away.as_ref(), &mut log, &mut signals).await?;
    let front = front::Front::new(&orders, &place, Arc::clone(&away), kept, log, note);
    let ended = front.run(&mut signals).await;
    end::end(&orders, &place, away.as_ref(), ended, &mut signals).await
}
