//! What a command reports when no host that answers shows what it seeks, although silent members could hold it.

use tokio::time::Instant;

use crate::agent::ask::gather::Gathered;
use crate::agent::read::choose::Wish;
use crate::agent::{Agent, RestoreRequest, Which};
use crate::core::gather::silence::{Remembered, Silence, Unshown};
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
                files: 0,
                seconds: started.elapsed().as_secs_f64(),
                sources: Vec::new(),
                skipped: Vec::new(),
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
        let sought = wish.sought;
        let what = match wish.which {
            Which::Newest => format!("no checkpoint{sought}"),
            Which::Version(version) => format!("no version {version}{sought}"),
        };
        let message = format!(
            "{}: {what} found at the {} hosts that answer",
            wish.doing,
            gathered.answered.len()
        );
        let mut failure = Failure::new(ExitStatus::NotFound, message).next("ckpt list");
        let void = self.note_of_void(gathered, wish.which);
        let unfound = self.unfound(wish.job_tag, gathered);
        let unfound = unfound.map(|seen| self.unfound_note(&seen, gathered));
        failure.state = unfound.or_else(|| gathered.passed_over_note(None)).or(void);
        failure.hosts = self.silent_notes(gathered);
        let remembered = self.remembered(wish.job_tag, gathered);
        if gathered.silence().of_unshown(remembered, None, false) == Unshown::MayBeAway {
            failure.status = ExitStatus::TooFewHosts;
            failure.next = Some("again when more hosts are up: ckpt hosts".into());
        }
        failure
    }

    /// How many silent members may hold a checkpoint that no answering host shows, if its owner saves with at
    /// least `said` data shards.
    pub(crate) fn least_hiding(&self, said: Option<u8>) -> usize {
        let members = self.hosts.count() + self.hosts.absent().count();
        Silence { members, silent: 0 }.least_holders(said)
    }
}

/// Changes a failure "not found" into "too few hosts" when silent hosts may hold what was not found.
pub fn unless_hidden(failure: Failure) -> Failure {
    if failure.status != ExitStatus::NotFound || failure.hosts.is_empty() {
        return failure;
    }
    Failure {
        status: ExitStatus::TooFewHosts,
        message: format!("{} found at the hosts that answer", failure.message),
        next: Some("again when more hosts are up: ckpt hosts".into()),
        ..failure
    }
}
