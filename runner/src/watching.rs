//! `ckpt watch`: saves the directories that a program puts in place below a directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use codec::labels::Labels;
use codec::{JobId, Version};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::arrivals::{Arrivals, FoundDir, Whole, find_directories};
use super::clock::Clock;
use super::completeness::Completeness;
use super::files::{resolved, written_by};
use super::reach::Reach;
use super::saver::SavePlan;
use ckpt_agent::agent::{SaveInput, SaveRequest};
use ckpt_agent::cancel::Cancel;
use ckpt_agent::core::sought::Sought;
use ckpt_agent::report::{ExitStatus, Failure, Observer, SaveReport};
use machine::open_files::all_processes;

/// Label with the hash of the files that were saved.
const WATCHED: &str = "ckpt.watched";

/// Time between two looks at the directory.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// First wait after a save that failed; each further failure doubles it up to [`RETRY_WAIT_MAX`].
const RETRY_WAIT: Duration = Duration::from_secs(5);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(60);

/// What to watch, and how it is saved.
#[derive(Clone, Debug)]
pub struct WatchOrders {
    /// The directory whose directories are saved.
    pub dir: PathBuf,
    /// Which directories count as checkpoints.
    pub completeness: Completeness,
    /// Whether to end when everything that counts has been saved.
    pub once: bool,
    /// How they are saved.
    pub save: SavePlan,
}

/// What happens while a directory is watched.
#[derive(Debug)]
pub enum WatchEvent {
    /// A directory has been saved.
    Saved(Box<WatchedSave>),
    /// A directory does not count as a checkpoint, and has not changed for a while.
    PassedOver {
        /// Name of the directory.
        name: String,
    },
    /// A directory was not saved, and will be tried again.
    Failed {
        /// Name of the directory.
        name: String,
        /// Why it was not saved.
        failure: Box<Failure>,
        /// Time until it is tried again.
        wait: Duration,
    },
}

/// A directory that `ckpt watch` saved: with `--json`, one line for each.
#[derive(Clone, Debug, Serialize)]
pub struct WatchedSave {
    /// Name of the directory.
    pub name: String,
    /// The report of the save.
    pub saved: SaveReport,
}

/// Answer of `ckpt watch --once`.
#[derive(Clone, Debug, Serialize)]
pub struct WatchReport {
    /// Name of the job.
    pub job: JobId,
    /// The directory that was watched.
    pub directory: String,
    /// How many directories were saved.
    pub saves: u64,
    /// How many saves failed and were tried again.
    pub failed_saves: u64,
    /// The version that was saved last; `None` if there was none to save.
    pub version: Option<Version>,
    /// Directories that were not saved, because nothing shows that they are whole.
    pub passed_over: Vec<String>,
}

/// Watches a directory until it is cancelled or, with `once`, until everything is saved.
///
/// # Errors
/// When it is cancelled, when the directory can't be read, or when no save can succeed.
pub async fn watch(
    orders: &WatchOrders,
    reach: &dyn Reach,
    observer: &Arc<dyn Observer>,
    mut cancel: Cancel,
    mut report: impl FnMut(WatchEvent),
) -> Result<WatchReport, Failure> {
    let dir = directory(&orders.dir)?;
    let saved = tokio::select! {
        saved = saved_before(orders, reach) => saved?,
        () = cancel.cancelled() => return Err(interrupted(orders, None)),
    };
    let mut watcher = Watcher {
        arrivals: Arrivals::new(dir.clone(), saved),
        clock: Clock::new(),
        report: WatchReport {
            job: orders.save.job.clone(),
            directory: dir.display().to_string(),
            saves: 0,
            failed_saves: 0,
            version: None,
            passed_over: Vec::new(),
        },
        last: None,
        wait: RETRY_WAIT,
        not_before: Instant::now(),
        dir,
    };
    loop {
        watcher.look(orders).await?;
        for name in watcher.passed_over(orders.once) {
            report(WatchEvent::PassedOver { name });
        }
        if Instant::now() >= watcher.not_before
            && let Some(whole) = watcher.arrivals.next(orders.save.options.keep)
        {
            let save = watcher.save(orders, reach, observer, &cancel, &whole);
            let event = save.await?;
            report(event);
            continue;
        }
        if orders.once && watcher.arrivals.is_quiet() {
            let names = watcher.arrivals.passed_over();
            let names = names.iter().map(|name| name.to_string_lossy().into_owned());
            watcher.report.passed_over = names.collect();
            return Ok(watcher.report);
        }
        reach.hang_up_if_idle();
        tokio::select! {
            () = sleep(LOOK_PERIOD) => {}
            () = cancel.cancelled() => return Err(interrupted(orders, watcher.last.as_ref())),
        }
    }
}

/// The absolute path of the directory to watch.
fn directory(given: &Path) -> Result<PathBuf, Failure> {
    let found = resolved(&[given.to_owned()]).pop().unwrap_or_default();
    if found.is_dir() {
        return Ok(found);
    }
    let message = format!("cannot watch {}: it is not a directory", given.display());
    Err(Failure::new(ExitStatus::LocalIo, message)
        .next("mkdir, and let the program write its checkpoints into it"))
}

/// Digests of the directories that hosts have already.
async fn saved_before(
    orders: &WatchOrders,
    reach: &dyn Reach,
) -> Result<BTreeSet<String>, Failure> {
    let agent = reach.agent().await?;
    let job = Some(&orders.save.job);
    let listed = agent.list(job, &Sought::default(), None).await?;
    let mut found = listed.checkpoints;
    found.retain(|one| one.can_lose.is_some() && one.kept_for.is_none());
    let labels = found
        .iter_mut()
        .filter_map(|one| one.own_labels.remove(WATCHED));
    Ok(labels.collect())
}

fn interrupted(orders: &WatchOrders, last: Option<&WatchedSave>) -> Failure {
    let job = &orders.save.job;
    let dir = orders.dir.display();
    let message = format!("stopped watching {dir} for job {job}: interrupted");
    Failure {
        state: Some(match last {
            Some(last) => format!("version {} is {}", last.saved.version, last.name),
            None => "nothing was saved since the start".to_owned(),
        }),
        ..Failure::new(ExitStatus::Interrupted, message)
    }
}

struct Watcher {
    dir: PathBuf,
    arrivals: Arrivals,
    clock: Clock,
    report: WatchReport,
    last: Option<WatchedSave>,
    wait: Duration,
    not_before: Instant,
}

impl Watcher {
    /// Looks at all directories.
    async fn look(&mut self, orders: &WatchOrders) -> Result<(), Failure> {
        let exclude = &orders.save.options.exclude;
        let dir = self.dir.clone();
        let excluded = exclude.clone();
        let completeness = orders.completeness.clone();
        let looked =
            tokio::task::spawn_blocking(move || find_directories(&dir, &excluded, &completeness));
        let looked = looked.await;
        let found: Vec<FoundDir> = looked.unwrap_or_else(|_| Ok(Vec::new())).map_err(|cause| {
            Failure::local(format!("cannot watch {}", self.dir.display()), &cause)
        })?;
        let now = self.clock.now();
        self.arrivals.take(now, found, |path, print| {
            let roots = [path.to_owned()];
            // Of all processes of a machine there are always some that this user can't look at, such as
            // those of other users and the user's own `sshd`. If they counted, nothing would ever be saved.
            written_by(&all_processes(), &roots, exclude, print).is_seen()
        });
        Ok(())
    }

    /// Names of directories that do not count, each once. With `once` they stand in the report.
    fn passed_over(&mut self, once: bool) -> Vec<String> {
        if once {
            return Vec::new();
        }
        let names = self.arrivals.newly_passed_over(self.clock.now());
        let names = names.iter().map(|name| name.to_string_lossy().into_owned());
        names.collect()
    }

    async fn save(
        &mut self,
        orders: &WatchOrders,
        reach: &dyn Reach,
        observer: &Arc<dyn Observer>,
        cancel: &Cancel,
        whole: &Whole,
    ) -> Result<WatchEvent, Failure> {
        let name = whole.path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let mut options = orders.save.options.clone();
        let mut labels: Vec<(String, String)> = options.labels.into();
        labels.push((WATCHED.to_owned(), whole.digest.clone()));
        options.labels = Labels::new(labels).map_err(|cause| {
            Failure::new(ExitStatus::Usage, cause.to_string()).next("fewer or shorter --label")
        })?;
        let request = SaveRequest {
            job: orders.save.job.clone(),
            input: SaveInput::Paths(vec![whole.path.clone()]),
            options,
        };
        let saved = match reach.agent().await {
            Ok(agent) => {
                let observer = Arc::clone(observer);
                agent.save(request, observer, cancel.clone()).await
            }
            Err(failure) => Err(failure),
        };
        match saved {
            Ok(saved) => {
                self.arrivals.is_done(whole);
                self.wait = RETRY_WAIT;
                self.report.saves += 1;
                self.report.version = Some(saved.version);
                let save = WatchedSave { name, saved };
                self.last = Some(save.clone());
                Ok(WatchEvent::Saved(Box::new(save)))
            }
            Err(_) if cancel.is_cancelled() => Err(interrupted(orders, self.last.as_ref())),
            // Neither time nor another directory helps.
            Err(failure) if matches!(failure.status, ExitStatus::Usage | ExitStatus::Denied) => {
                Err(failure)
            }
            Err(failure) => {
                self.report.failed_saves += 1;
                let wait = self.wait;
                self.not_before = Instant::now() + wait;
                self.wait = (2 * wait).min(RETRY_WAIT_MAX);
                Ok(WatchEvent::Failed {
                    name,
                    failure: Box::new(failure),
                    wait,
                })
            }
        }
    }
}
