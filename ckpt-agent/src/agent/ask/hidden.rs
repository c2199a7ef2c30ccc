//! When a command may conclude that a job has no checkpoint, given that silent hosts could hold one.

use tokio::time::Instant;

use crate::agent::ask::gather::Gathered;
use crate::agent::read::choose::Wish;
use crate::agent::{Agent, DATA_USUAL, PARITY_USUAL, RestoreRequest, Which};
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
        let silent = gathered.silent.len();
        let is_known = self.kept_sighting(wish.job_tag, gathered).is_some();
        let unfound = self.unfound(wish.job_tag, gathered);
        let least_data = self.least_hiding(request.least_data);
        let is_hidden = unfound.is_some() || may_be_hidden(silent, least_data, is_known);
        if request.if_exists && !is_hidden {
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
        if unfound.is_some() && request.if_exists {
            if failure.status == ExitStatus::NotFound {
                failure.status = ExitStatus::Damaged;
            }
            let job = &request.job;
            let begin_anew = format!("to begin anew without it: ckpt forget --job {job} --all");
            failure.next = Some(match gathered.away() {
                0 => begin_anew,
                _ => format!("again when more hosts are up; {begin_anew}"),
            });
        } else if !gathered.silent.is_empty() && request.if_exists && !is_known {
            failure.next = Some(format!(
                "again when fewer than {least_data} hosts are silent (ckpt hosts); for jobs \
                 saved with at least N data shards: --data N"
            ));
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
        // Hosts that are away may hold what the others do not show.
        if gathered.away() > 0 {
            failure.status = ExitStatus::TooFewHosts;
            failure.next = Some("again when more hosts are up: ckpt hosts".into());
        }
        failure
    }

    /// How many silent hosts may hold a checkpoint that no answering host shows, if its owner saves with at
    /// least `said` data shards.
    pub(crate) fn least_hiding(&self, said: Option<u8>) -> usize {
        least_data(said, self.hosts.count())
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

/// The fewest data shards that a checkpoint may have which no answering host shows: as the user states, or
/// else the default of `save`. In a grid that is too small for the default, it can be 1.
fn least_data(said: Option<u8>, hosts: usize) -> usize {
    let usual = hosts >= usize::from(DATA_USUAL + PARITY_USUAL);
    let assumed = if usual { DATA_USUAL } else { 1 };
    usize::from(said.unwrap_or(assumed)).max(1)
}

/// Whether the `silent` hosts could hold all shards that a restorable checkpoint needs. That takes at least
/// as many hosts as data shards, since each host holds one shard. If this machine has seen a version of the
/// job, one silent host is enough for doubt.
pub(crate) const fn may_be_hidden(silent: usize, least_data: usize, is_known: bool) -> bool {
    silent >= least_data || (is_known && silent > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_silent_hosts_than_data_shards_hide_nothing() {
        let data = least_data(None, 7);
        assert_eq!(data, 3);
        assert!(!may_be_hidden(0, data, true) && !may_be_hidden(2, data, false));
        assert!(may_be_hidden(3, data, false));
        assert!(
            may_be_hidden(1, data, true),
            "this machine knows that there was one"
        );
        // Two mirrors, as the user states; and a grid that is too small for the default redundancy.
        assert!(may_be_hidden(1, least_data(Some(1), 7), false));
        assert!(may_be_hidden(1, least_data(None, 4), false));
        assert!(!may_be_hidden(1, least_data(Some(2), 4), false));
    }
}
