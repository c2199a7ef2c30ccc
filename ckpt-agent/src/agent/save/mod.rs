//! A save in three steps: prepare it, run its session, and complete its report. A session that lost its hosts only
//! because they have too many transfers is followed by another one, with a new checkpoint.

mod aftermath;
pub(crate) mod base;
pub(crate) mod fencing;
pub(crate) mod follow;
mod journal;
mod kept;
pub(crate) mod older_versions;
mod pending;
pub(crate) mod place;
mod prepare;
mod remnants;
mod restart;
mod run;
mod sample;
mod source_failure;
pub(crate) mod too_few_hosts;

use std::sync::Arc;

use health::span;
use tokio::time::Instant;
use tracing::Instrument;

use self::kept::Found;
use self::prepare::Prepared;
use self::restart::Restarts;
use self::run::{CommittedSave, SaveShell, Unsaved};
use crate::agent::{Agent, SaveRequest};
use crate::cancel::Cancel;
use crate::report::{Failure, Observer, ProgressEvent, SaveReport};

impl Agent {
    /// Saves an image as the next version of a job.
    ///
    /// # Errors
    /// When no checkpoint was committed; the older versions stay as they were.
    pub async fn save(
        &self,
        request: SaveRequest,
        observer: Arc<dyn Observer>,
        mut cancel: Cancel,
    ) -> Result<SaveReport, Failure> {
        let started = Instant::now();
        let mut request = request;
        let mut restarts = Restarts::of(&request)?;
        loop {
            let (unsaved, prepared) = match self
                .save_once(&request, &observer, cancel.clone(), started)
                .await?
            {
                Ended::Committed(report, prepared) => {
                    let may_repeat = restarts.may_repeat() && !request.options.full;
                    let looking = self.look_again(&prepared, &request, &report, may_repeat);
                    let why = match looking.await {
                        Found::Kept(again) => {
                            return Ok(self.finish(*report, *prepared, &request, &again).await);
                        }
                        Found::Lost(why) => why,
                    };
                    self.remove_own(&prepared, &request, &report).await;
                    if !may_repeat {
                        return Err(kept::failure(&request, &why));
                    }
                    save_whole(&mut request, &why, &*observer);
                    continue;
                }
                Ended::Failed(unsaved, prepared) => (unsaved, prepared),
            };
            let again = match unsaved.slept {
                Some(_) => restarts.after_sleep(started.elapsed()),
                None => restarts.next(unsaved.crowded_for, started.elapsed()),
            };
            let mut failure = self
                .give_up(*unsaved.failure, &prepared, unsaved.leaves_rows)
                .await;
            let may_repeat = restarts.may_repeat() && !request.options.full;
            if unsaved.is_remnant_lost && may_repeat {
                save_whole(&mut request, &failure.message, &*observer);
                continue;
            }
            if let Some(slept) = unsaved.slept {
                failure.message = format!(
                    "{} (this machine slept for {} meanwhile)",
                    failure.message,
                    span(slept.as_secs())
                );
                failure.hosts.clear();
            }
            let Some(wait) = again else {
                return Err(failure);
            };
            let failed = &failure.message;
            let message = match unsaved.slept {
                Some(_) => format!("{failed}: the save begins again"),
                None => format!(
                    "{failed}; hosts have too many transfers: the save begins again in {} s",
                    wait.as_secs().max(1)
                ),
            };
            observer.event(ProgressEvent::Warning { message });
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = cancel.cancelled() => return Err(failure),
            }
        }
    }

    async fn save_once(
        &self,
        request: &SaveRequest,
        observer: &Arc<dyn Observer>,
        cancel: Cancel,
        started: Instant,
    ) -> Result<Ended, Failure> {
        self.is_large_enough(request)?;
        let source = prepare::open_source(request).await?;
        let bytes = source.planned_bytes();
        let mut prepared = self
            .prepare(request, bytes, started, cancel.clone())
            .await?;
        let plan = prepared.plan(request)?;
        let candidates = prepared.candidates();
        let journal = self.journal(&plan, bytes);
        let input = prepared.input(source, journal);
        let observer = Arc::clone(observer);
        let span = tracing::info_span!("save", checkpoint = %prepared.checkpoint);
        span.in_scope(|| tracing::info!(job = %request.job, "begins"));
        let session = span.in_scope(|| {
            SaveShell::start(self, request, plan, candidates, input, observer, started)
        });
        Ok(match session.run(cancel).instrument(span).await {
            Ok(CommittedSave { report, needs }) => {
                prepared.needs = needs;
                Ended::Committed(Box::new(report), Box::new(prepared))
            }
            Err(unsaved) => Ended::Failed(unsaved, Box::new(prepared)),
        })
    }
}

/// Has the next session store the image whole.
fn save_whole(request: &mut SaveRequest, why: &str, observer: &dyn Observer) {
    let message = format!("{why}: the image is saved again, whole");
    observer.event(ProgressEvent::Warning { message });
    request.options.full = true;
}

/// How a session ended.
enum Ended {
    Committed(Box<SaveReport>, Box<Prepared>),
    Failed(Unsaved, Box<Prepared>),
}
