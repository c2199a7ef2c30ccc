//! A save from beginning to end: gather what hosts know, claim a version, choose hosts, run the session, and
//! remove what the new checkpoint supersedes.

use std::sync::Arc;

use codec::encode::CheckpointPlan;
use codec::grant::Rights;
use codec::notice::Stamp;
use codec::seal::{Cipher, DataKey};
use codec::{CheckpointId, JobTag, Redundancy, Version};
use protocol::wire::message::Claim;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant};

use super::gather::Gathered;
use super::saving::{Candidates, Input, RETRACT_TIMEOUT, Shell, least_parity};
use super::shortage::too_small;
use super::superseded::created_after;
use super::{Agent, SaveInput, SaveRequest, chain, random};
use crate::cancel::Cancel;
use crate::core::HostIndex;
use crate::core::claims::ClaimDoubts;
use crate::core::place::Placed;
use crate::image::{Source, SourceError, SourceOptions};
use crate::knowledge::{Observation, SaveTimes};
use crate::report::{ExitStatus, Failure, Observer, SaveReport};
use crate::transfer::hosts::Claimed;
use crate::unix_time::unix_seconds;

/// How many versions are tried when others save the same job at the same time.
const CLAIMS_MAX: u32 = 16;

/// Fewest bytes, on all hosts together, with which a save shows how fast this machine can send.
const UPLINK_BYTES_MIN: u64 = 16 << 20;

impl Agent {
    /// Saves an image as the next version of a job.
    ///
    /// # Errors
    /// When no checkpoint was committed; the older versions stay as they were.
    pub async fn save(
        &self,
        request: SaveRequest,
        observer: Arc<dyn Observer>,
        cancel: Cancel,
    ) -> Result<SaveReport, Failure> {
        let started = Instant::now();
        let doing = format!("cannot save job {}", request.job);
        self.is_large_enough(&request, &doing)?;
        let source = open_source(&request)
            .await
            .map_err(|cause| source_failure(&doing, &cause))?;
        let job_tag = self.job_tag(&request.job)?;
        self.needs(Rights::SAVE, &doing)?;
        let gathered = self
            .gather_to_save(job_tag, &request, started, cancel.clone())
            .await?;
        self.require_answers(&gathered, &doing)?;
        let checkpoint = CheckpointId(random()?);
        let newest = gathered.inventory.newest_first().first().copied().cloned();
        let following = self.following(&gathered, &request, checkpoint, started, &doing)?;
        // Hosts may hide the newest checkpoint. The notebook keeps its number from being used again.
        let seen = self.notebook.read(unix_seconds()).newest(job_tag);
        let newest_seen = newest.as_ref().map(|newest| newest.version()).max(seen);
        let first = newest_seen.map_or(Version::FIRST, Version::next);
        let version = self.claim(&gathered, job_tag, checkpoint, first).await?;
        let placed = self
            .place(
                &gathered,
                newest.as_ref(),
                source.planned_bytes(),
                request.redundancy,
                &request.placement,
                checkpoint.0,
            )
            .await?;
        let redundancy = redundancy_of(&request, placed.as_ref());
        let created = created_after(&gathered);
        let mut plan = CheckpointPlan {
            base: None,
            labels: request.labels.clone(),
            checkpoint,
            job: request.job.clone(),
            job_tag,
            version,
            created,
            previous: newest.as_ref().map(|newest| newest.manifest.hash()),
            redundancy,
            cipher: request.cipher,
            data_key: DataKey::new(match request.cipher {
                Cipher::None => [0; 32],
                Cipher::Aes256Gcm => random()?,
            }),
        };
        let base = self.base_for(&gathered, &request).await;
        plan.base = base.as_ref().map(|base| base.reference);
        let silent: Vec<HostIndex> = gathered.late().collect();
        let chosen = placed
            .iter()
            .flat_map(|placed| placed.order.iter().copied());
        let candidates = Candidates {
            order: chosen.chain(silent.iter().copied()).collect(),
            silent,
            answering: gathered.hosts().collect(),
        };
        let input = Input {
            source,
            base: base.as_ref().map(|base| Arc::clone(&base.pieces)),
            fencing: following.fencing,
        };
        let shell = Shell::start(self, &request, plan, candidates, input, observer, started);
        let mut saved = shell.run(cancel).await;
        if let Ok(report) = &mut saved {
            report.base = base.as_ref().map(|base| base.version);
            report.notes.extend(following.notes);
            report.fence = report.fence.or(following.unfenced);
            self.learn(job_tag, report);
            if let Some(placed) = &placed {
                self.add_placement(report, placed, &request, &gathered);
            }
            let is_holder = |name: &str| {
                let mut holders = report.holders.iter();
                holders.any(|holder| holder.host.as_deref() == Some(name))
            };
            let older = self.note_of_older(&gathered, is_holder);
            report.notes.extend(older);
            let base = base.map(|base| base.reference.checkpoint);
            let kept = self.note_of_kept();
            if kept.is_none() {
                let new = Stamp {
                    created,
                    checkpoint,
                };
                self.remove_old(&gathered, report, &request, base, new)
                    .await;
            }
            report.notes.extend(kept);
        } else if let Err(failure) = &saved
            && failure
                .successor
                .as_ref()
                .is_none_or(|own| own.checkpoint != checkpoint)
        {
            self.retract_claims(&gathered, checkpoint).await;
        }
        saved.map_err(|mut failure| {
            if failure.status == ExitStatus::TooFewHosts {
                failure.hosts = self.with_silent(failure.hosts, &gathered);
            }
            failure.state = Some(match &newest {
                _ if failure.successor.is_some() => state_of(&failure, checkpoint),
                Some(newest) => format!(
                    "nothing was committed; version {} is still the newest",
                    newest.version()
                ),
                None => "nothing was committed; the job has no checkpoint".into(),
            });
            failure
        })
    }

    /// Fails when the grid has fewer hosts than the new checkpoint needs, even if all of them answered.
    fn is_large_enough(&self, request: &SaveRequest, doing: &str) -> Result<(), Failure> {
        if request.placement.target.is_some() {
            return Ok(());
        }
        let redundancy = request.redundancy.unwrap_or(Redundancy::NARROWEST);
        let needed = redundancy.data() + usize::from(least_parity(request, redundancy));
        let failure = too_small(self.hosts.count(), needed, redundancy, doing);
        failure.map_or(Ok(()), Err)
    }

    /// Records in the notebook what a save shows of the job and of this machine.
    fn learn(&self, job_tag: JobTag, report: &SaveReport) {
        let times = SaveTimes {
            seconds: report.seconds,
            held_seconds: Some(report.held_seconds),
        };
        self.notebook.note(Observation::Save(job_tag, times));
        self.notebook
            .note(Observation::Version(job_tag, report.version));
        // A small save takes as long as its round trips, and a save that one host held up does not show what
        // this machine can send.
        let is_limited = self.resources.bytes_per_second.is_some() || !report.replaced.is_empty();
        if report.shard_bytes >= UPLINK_BYTES_MIN && !is_limited {
            let rate = report.shard_bytes as f64 / report.seconds.max(1e-3);
            self.notebook.note(Observation::Uplink(rate));
        }
    }

    fn add_placement(
        &self,
        report: &mut SaveReport,
        placed: &Placed,
        request: &SaveRequest,
        gathered: &Gathered,
    ) {
        report.notes.extend(self.placement_notes(placed));
        if let Some(target) = request.placement.target.filter(|_| !placed.reaches_target) {
            let reached = placed.score.reliability.value();
            let warning = format!(
                "restart probability {reached:.5} instead of {target}: there are too few hosts for more"
            );
            report.warnings.push(warning);
        }
        if request.placement.explain {
            report.placement = Some(self.report(placed, &request.job, gathered));
        }
    }

    /// Reserves a version at every host that answered.
    async fn claim(
        &self,
        gathered: &Gathered,
        job_tag: JobTag,
        checkpoint: CheckpointId,
        first: Version,
    ) -> Result<Version, Failure> {
        let mut version = first;
        let mut doubts = ClaimDoubts::default();
        for round in 0..CLAIMS_MAX {
            let mut asking = JoinSet::new();
            for host in gathered.hosts() {
                let hosts = self.hosts.clone();
                let claim = Claim {
                    job_tag,
                    version,
                    checkpoint,
                };
                asking.spawn(async move { (host, hosts.claim(host, claim).await) });
            }
            let (mut granted, mut denied) = (0, Vec::new());
            while let Some(answer) = asking.join_next().await {
                match answer {
                    Ok((_, Ok(Claimed::Yes))) => granted += 1,
                    Ok((host, Ok(Claimed::Taken { next }))) => denied.push((host, next)),
                    // A host that fails now is replaced during the session, if it is needed at all.
                    Ok((_, Err(_))) | Err(_) => {}
                }
            }
            let taken = doubts.believed(version, granted, denied);
            let Some(next) = taken else {
                return Ok(version);
            };
            version = next.max(version.next());
            // Two saves that race each other get out of step, since they wait for different times.
            let [jitter] = random()?;
            let wait = u64::from(jitter) * u64::from(round + 1) / 16;
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
        Err(Failure::new(
            ExitStatus::Failed,
            "too many saves of this job at once: no free version found",
        ))
    }

    async fn retract_claims(&self, gathered: &Gathered, checkpoint: CheckpointId) {
        let mut asking = JoinSet::new();
        // Hosts that fell silent are left out: they were asked already to remove their shards, if any.
        for host in gathered.hosts().filter(|host| !self.hosts.is_silent(*host)) {
            let hosts = self.hosts.clone();
            asking.spawn(async move { hosts.forget(host, checkpoint).await.is_ok() });
        }
        // Claims and shards that can't be removed now expire by themselves.
        let _ = tokio::time::timeout(RETRACT_TIMEOUT, asking.join_all()).await;
    }
}

/// How many data and parity shards: those for which hosts were chosen.
fn redundancy_of(request: &SaveRequest, placed: Option<&Placed>) -> Redundancy {
    let chosen = placed.and_then(|placed| {
        let (data, parity) = (placed.code.data(), placed.code.parity());
        Redundancy::new(u8::try_from(data).ok()?, u8::try_from(parity).ok()?).ok()
    });
    chosen.or(request.redundancy).unwrap_or_default()
}

/// What is stored after a save that failed to follow another version, or that is half done.
fn state_of(failure: &Failure, own: CheckpointId) -> String {
    match failure.successor.as_deref() {
        Some(it) if it.checkpoint == own => format!(
            "version {} (checkpoint {own}) is stored, and may have been chosen: the next save after the \
             same version finishes it",
            it.version
        ),
        _ => "nothing of this save was committed".into(),
    }
}

async fn open_source(request: &SaveRequest) -> Result<Source, SourceError> {
    let options = SourceOptions {
        skip_unreadable: request.skip_unreadable,
        accept_changed: request.accept_changed,
    };
    let (input, exclude) = (request.input.clone(), request.exclude.clone());
    let opened = tokio::task::spawn_blocking(move || match input {
        SaveInput::Paths(paths) => Source::from_paths_without(&paths, options, exclude),
        SaveInput::Named(named) => Source::from_named(&named, options, exclude),
        SaveInput::Stdin => Ok(Source::from_stdin()),
        SaveInput::Reader(reader) => Ok(Source::from_reader(reader)),
        SaveInput::Command(command, keeper) => Source::from_kept_command(&command, keeper.as_ref()),
    });
    opened
        .await
        .map_err(|cause| SourceError::Stdin(std::io::Error::other(cause)))?
}

pub(super) fn source_failure(doing: &str, cause: &SourceError) -> Failure {
    let failure = Failure::new(ExitStatus::LocalIo, format!("{doing}: {}", chain(cause)));
    match cause {
        SourceError::Changed { .. } => {
            failure.next("save while no program writes to it, or use --accept-changed")
        }
        // A path that the user named and that does not exist was probably mistyped.
        SourceError::Io { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => {
            failure.next("a path that exists")
        }
        SourceError::Io { .. } => failure.next("leave out what can't be read: --skip-unreadable"),
        SourceError::TooLong { pattern, .. } => Failure {
            status: ExitStatus::Usage,
            ..failure.next(format!("leave it out: --exclude {pattern:?}"))
        },
        SourceError::SameName(_)
        | SourceError::NameTaken { .. }
        | SourceError::NamedLink(_)
        | SourceError::NotAFile { .. }
        | SourceError::Name(_) => Failure {
            status: ExitStatus::Usage,
            ..failure
        },
        _ => failure,
    }
}
