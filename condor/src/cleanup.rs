//! Removes versions whose number HTCondor does not need any more.

use std::path::Path;

use codec::JobId;

use super::address::{Address, CheckpointAddress, NUMBER_LABEL};
use super::log::Log;
use super::settings::{Surroundings, usage};
use super::transfer::said;
use super::{CLEANUP, complain};
use ckpt_agent::client::{Cancel, Client, ForgetWhich};
use ckpt_agent::core::sought::{Sought, SoughtLabel};
use ckpt_agent::report::{ExitStatus, Failure, HostNote};

/// Removes the checkpoint that a file belongs to; succeeds if it is gone already. Returns `Degraded` if
/// hosts that hold some of it could not be reached, and other hosts will not pass the removal on to them.
///
/// HTCondor removes the numbers that it does not need any more from the lowest to the highest. The
/// version with a number may have to stay for a while, because a later version builds on it. So a removal
/// also removes all lower numbers that had to stay. The number of a failed upload (`may_be_missing`) is
/// an exception, because the lower numbers are still needed then.
pub(super) async fn remove(
    from: &[u8],
    file: &[u8],
    job_ad: Option<&Path>,
    may_be_missing: bool,
    mut cancel: Cancel,
) -> Result<ExitStatus, Failure> {
    let surroundings = Surroundings::of_cleanup(job_ad).inspect_err(|failure| {
        complain(CLEANUP, &said(failure));
    })?;
    let mut log = Log::new(CLEANUP, &surroundings);
    let url = [from, b"/", file].concat();
    let address = Address::parse(&url).map_err(|cause| usage(cause.to_string()));
    let address = address.inspect_err(|failure| log.warn(&said(failure)))?;
    let CheckpointAddress { grid, job, number } = address.checkpoint;
    let label = if may_be_missing {
        SoughtLabel::is(NUMBER_LABEL, number.to_string())
    } else {
        SoughtLabel::at_most(NUMBER_LABEL, number)
    };
    let sought = Sought {
        labels: vec![label],
        older_than: None,
    };
    let ended = forget(&surroundings, &grid, &job, &sought, &mut cancel).await;
    let of_job = format!("checkpoint {number} of job {job}");
    match &ended {
        Ok(forgotten) => forgotten.log(&mut log, &of_job),
        Err(failure) => log.warn(&format!("{of_job}: {}", said(failure))),
    }
    ended.map(|forgotten| forgotten.status())
}

/// The result of a removal.
struct Forgotten {
    removed: Vec<String>,
    /// Hosts that hold some of it, and will not learn of the removal from other hosts.
    unheard: Vec<HostNote>,
}

impl Forgotten {
    fn log(&self, log: &mut Log, of_job: &str) {
        if !self.removed.is_empty() {
            log.inform(&format!(
                "{of_job}: versions {} removed",
                self.removed.join(" ")
            ));
        }
        for HostNote { host, what } in &self.unheard {
            log.warn(&format!(
                "{of_job}: {host} was not informed that it is removed: {what}"
            ));
        }
    }

    const fn status(&self) -> ExitStatus {
        if self.unheard.is_empty() {
            ExitStatus::Done
        } else {
            ExitStatus::Degraded
        }
    }
}

async fn forget(
    surroundings: &Surroundings,
    grid: &str,
    job: &JobId,
    sought: &Sought,
    cancel: &mut Cancel,
) -> Result<Forgotten, Failure> {
    let client = Client::connect(&surroundings.settings(grid)?).await?;
    let forgotten = tokio::select! {
        () = cancel.cancelled() => Err(Failure::new(ExitStatus::Interrupted, "interrupted")),
        forgotten = client.forget_hurriedly(job, ForgetWhich::All, sought) => forgotten,
    };
    // Hosts pass on the notices of an owner, but not those of a job key.
    let is_passed_on = client.is_owner();
    client.close().await;
    match forgotten {
        Ok(report) => Ok(Forgotten {
            removed: report.removed.iter().map(ToString::to_string).collect(),
            unheard: if is_passed_on {
                Vec::new()
            } else {
                report.unheard
            },
        }),
        Err(failure) if failure.status == ExitStatus::NotFound => {
            if !is_passed_on && !failure.hosts.is_empty() {
                return Err(Failure {
                    status: ExitStatus::TooFewHosts,
                    ..failure
                });
            }
            Ok(Forgotten {
                removed: Vec::new(),
                unheard: Vec::new(),
            })
        }
        Err(failure) => Err(failure),
    }
}
