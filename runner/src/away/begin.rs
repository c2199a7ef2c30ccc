//! The beginning of `ckpt run --on`: saves the working directory as a version, or continues an earlier
//! start.

use std::fmt::Display;
use std::io;
use std::sync::Arc;

use codec::Version;
use supervision::SaveNumber;

use super::directory::Listing;
use super::kept::{KEPT, Kept, LISTING};
use super::words::{Shown, Word};
use super::{Away, AwayOrders};
use crate::begin::newest;
use crate::files::remove;
use crate::incarnation::mark;
use crate::job_dir::JobDir;
use crate::job_dir::RESULT;
use crate::journal::JournalEvent;
use crate::not_started;
use crate::run_log::RunLog;
use crate::saver::{Release, SaveJob};
use crate::signals::Signals;
use crate::stage::PREFIX;
use ckpt_agent::agent::{After, AfterWhich, Strength};
use ckpt_agent::cancel::canceller;
use ckpt_agent::report::{ExitStatus, Failure, ListedCheckpoint, SaveReport, Silent};

/// The exit status of the job, if this version is its result.
pub(super) fn result_of(version: &ListedCheckpoint) -> Option<u8> {
    version.own_labels.get(RESULT)?.parse().ok()
}

/// Returns what an earlier process has kept of the job. If there is none, saves the working directory and
/// keeps a new one.
pub(super) async fn begin(
    orders: &AwayOrders,
    place: &JobDir,
    away: &dyn Away,
    log: &mut RunLog,
    signals: &mut Signals,
) -> Result<Kept, Failure> {
    let local_io = |what: &dyn Display, cause: &io::Error| not_started(Failure::local(what, cause));
    let path = place.path(KEPT);
    let kept = Kept::read(&path).map_err(|cause| local_io(&path.display(), &cause))?;
    if let Some(kept) = kept
        && is_gone_on_with(&kept, orders)?
    {
        return Ok(kept);
    }
    let looking = async { newest(&away.agent().await?, &orders.job).await };
    let newest = signals.unless_asked(looking).await;
    let newest = newest.map_err(|asked| orders.not_begun(asked))?;
    let newest = newest.map_err(not_started)?;
    let (staged, listing) = match newest {
        Some(version) if !orders.local && result_of(&version).is_none() => {
            let version = version.version.number();
            log.warn(format!(
                "job {} continues from its version {version}; use --local to start from the files here",
                orders.job
            ));
            // The files here are unknown, so whatever differs from the result is kept beside it.
            (version, Listing::default())
        }
        newest => {
            let after = newest.map(|version| version.version);
            let (report, listing) = save(orders, away, after, signals).await?;
            log.enter(JournalEvent::Staged {
                version: report.version.number(),
                files: listing.count(),
                seconds: report.seconds,
                image_bytes: report.image_bytes,
            });
            for warning in &report.warnings {
                log.warn(warning.clone());
            }
            (report.version.number(), listing)
        }
    };
    let listed = listing.write(&place.path(LISTING));
    listed.map_err(|cause| local_io(&"the list of files", &cause))?;
    let kept = Kept {
        run: mark().map_err(|cause| local_io(&"random numbers", &cause))?,
        dir: Word::from(orders.dir.as_os_str()),
        command: words(orders),
        staged,
        now: None,
        number: 0,
        abandoned: Vec::new(),
        shown: Shown::default(),
    };
    let written = kept.write(&path);
    written.map_err(|cause| local_io(&path.display(), &cause))?;
    Ok(kept)
}

fn words(orders: &AwayOrders) -> Vec<Word> {
    let words = orders.command.iter();
    words.map(|word| Word::from(word.as_os_str())).collect()
}

/// Whether to continue what an earlier process has kept. If not, it is replaced.
fn is_gone_on_with(kept: &Kept, orders: &AwayOrders) -> Result<bool, Failure> {
    let refuse = |message: String| {
        let next = "end that job with SIGTERM to its command there; or use another --job";
        Err(not_started(
            Failure::new(ExitStatus::Usage, message).next(next),
        ))
    };
    let dir = std::ffi::OsString::from(kept.dir.clone());
    let job = &orders.job;
    if orders.local {
        return match &kept.now {
            None => Ok(false),
            Some(now) => refuse(format!("--local: job {job} may still run on {}", now.host)),
        };
    }
    if dir != orders.dir.as_os_str() {
        let dir = dir.to_string_lossy();
        return refuse(format!("job {job} was started in {dir}, not here"));
    }
    if kept.command != words(orders) {
        return refuse(format!("job {job} was started here with another command"));
    }
    Ok(true)
}

/// Saves the working directory, as the successor of a version if there is one.
async fn save(
    orders: &AwayOrders,
    away: &dyn Away,
    after: Option<Version>,
    signals: &mut Signals,
) -> Result<(SaveReport, Listing), Failure> {
    let failed = |cause: &io::Error| not_started(Failure::local(orders.dir.display(), cause));
    // Left by a restore that was killed.
    let left = orders
        .dir
        .join(format!("{PREFIX}{}", orders.job.file_name()));
    remove(&left).map_err(|cause| failed(&cause))?;
    let listing = Listing::of(&orders.dir, &orders.save.options.exclude);
    let listing = listing.map_err(|cause| failed(&cause))?;
    let save = SaveJob {
        number: SaveNumber(0),
        paths: vec![orders.dir.clone()],
        deadline: orders.save.options.deadline,
        is_last: false,
        allow_degraded: orders.save.options.allow_degraded,
        after: after.map(|version| After {
            which: AfterWhich::Version(version),
            strength: Strength::Majority,
            is_unfenced: false,
        }),
        release: Release::AtTheEnd,
        record: None,
        result: None,
        is_torn: false,
    };
    let (canceller, cancel) = canceller();
    let saving = orders.save.save(away, &save, Arc::new(Silent), cancel);
    let saved = signals.cancelling(&canceller, saving).await;
    let saved = saved.map_err(|asked| orders.not_begun(asked))?;
    Ok((saved.map_err(not_started)?, listing))
}
