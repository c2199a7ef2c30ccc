//! What a save does before its session: gather what hosts know, claim a version, choose hosts, and find the
//! base.

use std::sync::Arc;

use codec::encode::CheckpointPlan;
use codec::grant::Rights;
use codec::journal::JournalHead;
use codec::labels::Labels;
use codec::pieces::BaseRef;
use codec::seal::{Cipher, DataKey};
use codec::segment::Cleaning;
use codec::{CheckpointId, JobTag, Redundancy, Version};
use protocol::wire::message::Claim;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant};

use super::run::{Candidates, Input};
use super::source_failure::source_failure;
use crate::agent::ask::gather::Gathered;
use crate::agent::handle::random;
use crate::agent::keep::line::with_line;
use crate::agent::save::base::ChosenBase;
use crate::agent::save::follow::Following;
use crate::agent::save::journal::{JOURNAL_FROM, SaveJournal};
use crate::agent::save::older_versions::created_after;
use crate::agent::save::remnants::{Asking, Left};
use crate::agent::save::too_few_hosts::{least_parity, too_small};
use crate::agent::{Agent, Choose, SaveInput, SaveRequest};
use crate::cancel::Cancel;
use crate::core::HostIndex;
use crate::core::claims::ClaimDoubts;
use crate::core::gather::silence::Line;
use crate::core::place::Placed;
use crate::image::{Source, SourceError, SourceOptions};
use crate::inventory::KnownCheckpoint;
use crate::report::{ExitStatus, Failure};
use crate::unix_time::unix_seconds;
use transfer::hosts::Claimed;

/// How many versions are tried when others save the same job at the same time.
const CLAIMS_MAX: u32 = 16;

/// What a save decided before its session.
pub(super) struct Prepared {
    pub(super) gathered: Gathered,
    /// The newest checkpoint of the job before this save.
    pub(super) newest: Option<KnownCheckpoint>,
    /// The checkpoint that is saved.
    pub(super) checkpoint: CheckpointId,
    pub(super) job_tag: JobTag,
    version: Version,
    /// Whether silent members may hold versions that this one does not continue.
    pub(super) begins_line: bool,
    /// The line that it belongs to.
    pub(super) line: Line,
    /// When it was created, by the clocks of the job's checkpoints, seconds since 1970.
    pub(super) created: u64,
    pub(super) following: Following,
    /// `None` if every answering host is taken, in any order.
    pub(super) placed: Option<Placed>,
    pub(super) base: Option<ChosenBase>,
    /// What interrupted saves left.
    pub(super) left: Left,
    /// The checkpoints of which the new one uses rows, once it is committed.
    pub(super) needs: Vec<BaseRef>,
    /// The labels of the version, with those that the program adds.
    labels: Labels,
}

impl Agent {
    /// Prepares a save of an image that probably has this many bytes.
    ///
    /// # Errors
    /// When too few hosts answer, the checkpoint to follow can't be followed, or no version is free.
    pub(super) async fn prepare(
        &self,
        request: &SaveRequest,
        planned_bytes: Option<u64>,
        started: Instant,
        cancel: Cancel,
    ) -> Result<Prepared, Failure> {
        let doing = doing(request);
        let job_tag = self.job_tag(&request.job)?;
        self.needs(Rights::SAVE, &doing)?;
        let gathered = self
            .gather_to_save(job_tag, request, started, cancel)
            .await?;
        self.require_answers(&gathered, &doing)?;
        let checkpoint = CheckpointId(random()?);
        let newest = gathered.inventory.newest_first().first().copied().cloned();
        let following = self.following(&gathered, request, checkpoint, started, &doing)?;
        // Hosts may hide the newest checkpoint. The notebook keeps its number from being used again.
        let known_versions = self.notebook.read(unix_seconds());
        let seen = known_versions.newest(job_tag).map(|seen| seen.version);
        let shown = newest.as_ref().map(KnownCheckpoint::version);
        let goes_on = known_versions.goes_on(job_tag);
        let silence = gathered.silence();
        let next = silence.next_number(shown, seen, goes_on, unix_seconds());
        let version = self
            .claim(&gathered, job_tag, checkpoint, next.number)
            .await?;
        // What can't be opened here is not removed by this save.
        let line_of = |newest| self.line_of(newest).unwrap_or(Some(version));
        let line = next.line(version, goes_on, newest.as_ref().and_then(line_of));
        let asking = Asking {
            gathered: &gathered,
            request,
            job_tag,
            line,
            created: created_after(&gathered),
        };
        let (mut base, left) = self.compare_with(asking, version, started).await;
        let mut placing = self
            .place(
                &gathered,
                newest.as_ref(),
                planned_bytes,
                request.options.redundancy,
                &request.options.placement,
                checkpoint.0,
            )
            .await?;
        if matches!(request.options.placement.choose, Choose::Forecast) {
            placing.fit_to(base.as_mut(), &gathered);
        }
        let created = left.after(asking.created);
        let labels = with_line(&request.options.labels, line);
        Ok(Prepared {
            gathered,
            newest,
            checkpoint,
            job_tag,
            version,
            begins_line: next.begins_line,
            line,
            created,
            following,
            placed: placing.placed,
            base,
            left,
            needs: Vec::new(),
            labels,
        })
    }

    /// What a new version is compared with, and what interrupted saves left.
    async fn compare_with(
        &self,
        asking: Asking<'_>,
        version: Version,
        started: Instant,
    ) -> (Option<ChosenBase>, Left) {
        let (mut base, left) = self.base_for(asking, started).await;
        if let Some(base) = &mut base {
            let new = (version, asking.line);
            let versions = self.versions_after(asking.gathered, asking.request, new, base);
            base.note_versions(&versions);
        }
        (base, left)
    }

    /// Fails when the grid has fewer hosts than the new checkpoint needs, even if all of them answered.
    pub(super) fn is_large_enough(&self, request: &SaveRequest) -> Result<(), Failure> {
        if request.options.placement.target.is_some() {
            return Ok(());
        }
        let redundancy = request.options.redundancy.unwrap_or(Redundancy::NARROWEST);
        let needed = redundancy.data() + usize::from(least_parity(request, redundancy));
        let failure = too_small(self.hosts.count(), needed, redundancy, &doing(request));
        failure.map_or(Ok(()), Err)
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
            let mut granted = 0;
            let mut denied = Vec::new();
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
        )
        .next("the same command again, when the others have ended"))
    }
}

impl Prepared {
    /// What the encoder is given.
    ///
    /// # Errors
    /// When the system has no random bytes, or hosts were chosen for more shards than a checkpoint can have.
    pub(super) fn plan(&self, request: &SaveRequest) -> Result<CheckpointPlan, Failure> {
        Ok(CheckpointPlan {
            link: self.base.as_ref().map(ChosenBase::link),
            labels: self.labels.clone(),
            checkpoint: self.checkpoint,
            job: request.job.clone(),
            job_tag: self.job_tag,
            version: self.version,
            created: self.created,
            previous: self.newest.as_ref().map(|newest| newest.manifest.hash()),
            redundancy: redundancy_of(request, self.placed.as_ref())?,
            cipher: request.options.cipher,
            data_key: DataKey::new(match request.options.cipher {
                Cipher::None => [0; 32],
                Cipher::Aes256Gcm => random()?,
            }),
        })
    }

    /// The hosts that may get shards: the chosen ones in their order, then those that have not answered yet.
    pub(super) fn candidates(&self) -> Candidates {
        let silent: Vec<HostIndex> = self.gathered.late().collect();
        let placed = self.placed.iter();
        let chosen = placed.flat_map(|placed| placed.order.iter().copied());
        Candidates {
            order: chosen.chain(silent.iter().copied()).collect(),
            silent,
            answering: self.gathered.hosts().collect(),
        }
    }

    /// What the session works on. Only its first call has the task that asks the witnesses.
    pub(super) fn input(&mut self, source: Source, journal: Option<SaveJournal>) -> Input {
        Input {
            source,
            journal,
            pending: self.left.pending(),
            remnants: self.base.as_ref().map_or(0, |base| base.remnants),
            base: self.base.as_ref().map(|base| Arc::clone(&base.pieces)),
            cleaning: match &self.base {
                Some(base) => base.cleaning(),
                None => Cleaning::default(),
            },
            fencing: self.following.fencing.take(),
        }
    }
}

impl Agent {
    /// Begins the journal of a save of an image that probably has so many bytes, if it is worth one.
    pub(super) fn journal(
        &self,
        plan: &CheckpointPlan,
        planned_bytes: Option<u64>,
    ) -> Option<SaveJournal> {
        let dir = self.notebook.dir()?;
        let is_large = planned_bytes.is_some_and(|bytes| bytes >= JOURNAL_FROM);
        if planned_bytes.is_some() && !is_large {
            return None;
        }
        let link = plan.link.iter().flat_map(|link| &link.origins);
        let head = JournalHead {
            checkpoint: plan.checkpoint,
            version: plan.version,
            redundancy: plan.redundancy,
            cipher: plan.cipher,
            data_key: plan.data_key.clone(),
            origins: link.map(|origin| origin.reference.checkpoint).collect(),
        };
        SaveJournal::begin(&dir, &self.keys, &plan.job, &head, is_large)
    }
}

/// What the errors of a save begin with.
pub(super) fn doing(request: &SaveRequest) -> String {
    format!("cannot save job {}", request.job)
}

/// How many data and parity shards: those for which hosts were chosen, else those that are asked for.
///
/// # Errors
/// When hosts were chosen for more shards than a checkpoint can have.
fn redundancy_of(request: &SaveRequest, placed: Option<&Placed>) -> Result<Redundancy, Failure> {
    let Some(placed) = placed else {
        return Ok(request.options.redundancy.unwrap_or_default());
    };
    placed.redundancy().map_err(|cause| {
        let message = format!("{}: {cause}", doing(request));
        Failure::new(ExitStatus::Failed, message).next("--data 3 --parity 2")
    })
}

/// Opens what is saved.
///
/// # Errors
/// When it can't be read, or its names can't be stored.
pub(super) async fn open_source(request: &SaveRequest) -> Result<Source, Failure> {
    let options = SourceOptions {
        skip_unreadable: request.options.skip_unreadable,
        accept_changed: request.options.accept_changed,
        allow_empty: request.options.allow_empty,
        extended_attributes: request.options.extended_attributes,
        owners: request.options.owners,
    };
    let input = request.input.clone();
    let exclude = request.options.exclude.clone();
    let opened = tokio::task::spawn_blocking(move || match input {
        SaveInput::Paths(paths) => Source::from_paths_without(&paths, options, exclude),
        SaveInput::Named(named) => Source::from_named(&named, options, exclude),
        SaveInput::Stdin => Ok(Source::from_stdin(options)),
        SaveInput::Reader(reader) => Ok(Source::from_reader(reader, options)),
        SaveInput::Command(command, keeper) => {
            Source::from_kept_command(&command, keeper.as_ref(), options)
        }
    });
    opened
        .await
        .map_err(|cause| SourceError::Stdin(std::io::Error::other(cause)))
        .flatten()
        .map_err(|cause| source_failure(&doing(request), &cause))
}
