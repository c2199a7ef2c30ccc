//! What a command reports when no host that answers shows what it seeks, although silent members could hold it.

use codec::JobTag;
use tokio::time::Instant;

use crate::agent::ask::gather::Gathered;
use crate::agent::read::choose::Wish;
use crate::agent::{Agent, RestoreRequest, Which};
use crate::core::gather::silence::{Remembered, Unshown};
use crate::core::sought::Sought;
use crate::report::{ExitStatus, Failure, RestoreReport};

impl Agent {
    /// The result of a restore when no host that answers shows the wanted checkpoint.
    pub(crate) fn nothing_to_restore(
        &self,
        request: &RestoreRequest,
        gathered: &Gathered,
        wish: &Wish<'_>,
        started: Instant,
    ) -> Result<RestoreReport, Failure> {
        let remembered = self.remembered(wish.job_tag, gathered);
        let silence = gathered.silence();
        let unshown = silence.of_unshown(remembered, request.least_data, request.is_new);
        if request.if_exists && unshown == Unshown::None {
            return Ok(RestoreReport {
                job: request.job.clone(),
                version: None,
                dry_run: request.dry_run,
                target: String::new(),
                image_bytes: 0,
                fetched_bytes: 0,
                at_hand_bytes: 0,
                files: 0,
                seconds: started.elapsed().as_secs_f64(),
                sources: Vec::new(),
                skipped: Vec::new(),
                marked: None,
                warnings: gathered.passed_over_note(None).into_iter().collect(),
            });
        }
        let mut failure = self.no_checkpoint(gathered, wish);
        let begin_anew = "to begin the job anew: --new";
        match unshown {
            Unshown::None => {}
            Unshown::Lost => {
                failure.status = ExitStatus::Damaged;
                if request.if_exists {
                    failure.next = Some(begin_anew.into());
                }
            }
            Unshown::MayBeAway => {
                failure.status = ExitStatus::TooFewHosts;
                let when = if remembered != Remembered::Nothing {
                    "again when more hosts are up".to_owned()
                } else {
                    let least = silence.least_holders(request.least_data);
                    format!(
                        "again when fewer than {least} members are silent (ckpt hosts); for jobs \
                         saved with at least N data shards: --data N"
                    )
                };
                failure.next = Some(if request.if_exists {
                    format!("{when}; {begin_anew}")
                } else {
                    when
                });
            }
        }
        Err(failure)
    }

    /// The failure of a read when no host that answers shows the wanted checkpoint.
    pub(crate) fn no_checkpoint(&self, gathered: &Gathered, wish: &Wish<'_>) -> Failure {
        let mut failure = self.not_found(
            wish.doing,
            wish.which,
            wish.sought,
            Some(wish.job_tag),
            gathered,
        );
        let void = self.note_of_void(gathered, wish.which);
        let unfound = self.unfound(wish.job_tag, gathered);
        let unfound = unfound.map(|seen| self.unfound_note(&seen, gathered));
        failure.state = unfound.or_else(|| gathered.passed_over_note(None)).or(void);
        failure
    }

    /// The failure when no host that answers shows such a checkpoint, of a job if one is named. Silent members
    /// may hold it, or not.
    pub(crate) fn not_found(
        &self,
        doing: &str,
        which: Which,
        sought: &Sought,
        job_tag: Option<JobTag>,
        gathered: &Gathered,
    ) -> Failure {
        let what = match which {
            Which::Newest => format!("no checkpoint{sought}"),
            Which::Version(version) => format!("no version {version}{sought}"),
        };
        let message = format!(
            "{doing}: {what} found at the {} hosts that answer",
            gathered.answered.len()
        );
        let may_be_away = self.may_be_away(job_tag, gathered);
        let is_remembered = job_tag
            .is_some_and(|job_tag| self.remembered(job_tag, gathered) == Remembered::Version);
        Failure {
            nothing_known: !is_remembered,
            ..Failure::nothing_shown(message, may_be_away, self.silent_notes(gathered))
        }
    }

    /// Whether silent members may hold a version, of a job if one is named, of which no host that answers shows
    /// any.
    pub(crate) fn may_be_away(&self, job_tag: Option<JobTag>, gathered: &Gathered) -> bool {
        let remembered = job_tag.map_or(Remembered::Nothing, |job_tag| {
            self.remembered(job_tag, gathered)
        });
        let silence = gathered.silence();
        silence.of_unshown(remembered, None, false) == Unshown::MayBeAway
    }
}
