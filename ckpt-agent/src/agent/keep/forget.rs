//! Removes checkpoints of a job.

use std::collections::BTreeMap;

use codec::grant::Rights;
use codec::notice::Stamp;
use codec::{CheckpointId, JobId, Version};

use crate::agent::ask::gather::Gathered;
use crate::agent::keep::notices::Removal;
use crate::agent::{Agent, ForgetWhich};
use crate::core::gather::Wait;
use crate::core::gather::WaitUntil;
use crate::core::sought::Sought;
use crate::inventory::KnownCheckpoint;
use crate::knowledge::{Observation, Sighting};
use crate::report::{ExitStatus, Failure, ForgetReport};
use crate::unix_time::unix_seconds;

impl Agent {
    /// Removes checkpoints of a job.
    ///
    /// # Errors
    /// When no checkpoint is selected.
    pub async fn forget(
        &self,
        job: &JobId,
        which: ForgetWhich,
        sought: &Sought,
    ) -> Result<ForgetReport, Failure> {
        self.forget_within(job, which, sought, Wait::ForAll).await
    }

    /// Like [`Self::forget`], but does not wait for silent hosts when others have answered.
    ///
    /// # Errors
    /// As [`Self::forget`].
    pub async fn forget_hurriedly(
        &self,
        job: &JobId,
        which: ForgetWhich,
        sought: &Sought,
    ) -> Result<ForgetReport, Failure> {
        self.forget_within(job, which, sought, Wait::NotForSilent)
            .await
    }

    async fn forget_within(
        &self,
        job: &JobId,
        which: ForgetWhich,
        sought: &Sought,
        wait: Wait,
    ) -> Result<ForgetReport, Failure> {
        let doing = format!("cannot forget job {job}");
        let named = self.named_job(job)?;
        self.needs(Rights::REMOVE, &doing)?;
        let mut gathered = self.gather(Some(named.tag), WaitUntil::Answers(wait)).await;
        self.require_answers(&gathered, &doing)?;
        let is_keeping = matches!(which, ForgetWhich::Keep(_) | ForgetWhich::KeepWithin(_));
        let mut newest = gathered.inventory.newest_first();
        if !is_keeping {
            newest.extend(gathered.inventory.void());
        }
        let chosen = self.chosen(&gathered, &newest, which, sought, &doing)?;
        let is_all = which == ForgetWhich::All && sought.is_all();
        let unfound = is_all.then(|| self.unfound(named.tag, &gathered)).flatten();
        if chosen.is_empty() && !is_keeping && unfound.is_none() {
            return Err(self.not_found(&doing, which.wanted(), sought, &gathered));
        }
        let hosts = gathered.hosts().collect();
        let (mut removed, mut gone): (Vec<Version>, Vec<Stamp>) = chosen
            .iter()
            .map(|one| (one.version(), one.stamp()))
            .unzip();
        // A host takes no notice on a job of which it has nothing.
        let place = unfound.as_ref().and_then(Sighting::place);
        if let Some((version, stamp)) = place.filter(|_| !chosen.is_empty()) {
            removed.insert(0, version);
            gone.insert(0, stamp);
        }
        let left = newest.iter().filter(|known| !gone.contains(&known.stamp()));
        let left: Vec<&KnownCheckpoint> = left.copied().collect();
        let kept: Vec<Stamp> = left.iter().map(|known| known.stamp()).collect();
        let removal = removal_of(which, sought, &kept, &gone);
        let mut unheard = unfound
            .as_ref()
            .map_or(Vec::new(), |_| self.silent_notes(&gathered));
        if !removal.is_empty() {
            let last = gathered.said.as_ref();
            let lease = last.and_then(|last| last.lease);
            let announcing = self.announce_to(hosts, &named, last, lease, &removal, wait);
            let failed = announcing.await;
            self.require_heard(&gathered, &failed, &doing)?;
            if unfound.is_none() {
                unheard = self.unheard(&gathered, &failed, &chosen);
            }
            gathered.silent.extend(failed);
        }
        let left = left.first().map(|known| {
            let lease = gathered.leases.get(&named.tag);
            self.sighting(job, known.version(), known.stamp(), lease)
        });
        self.notebook.note(Observation::Removed(named.tag, left));
        let only_here = unfound.filter(|seen| !removed.contains(&seen.version));
        let notes = only_here.map(|seen| forgotten_here(&seen));
        Ok(ForgetReport {
            job: job.clone(),
            removed,
            notes: Vec::from_iter(notes),
            silent: self.silent_notes(&gathered),
            unheard,
        })
    }

    /// The checkpoints that are to be removed: those selected, without bases of those that stay.
    fn chosen<'a>(
        &self,
        gathered: &Gathered,
        newest: &[&'a KnownCheckpoint],
        which: ForgetWhich,
        sought: &Sought,
        doing: &str,
    ) -> Result<Vec<&'a KnownCheckpoint>, Failure> {
        let (kept, others) = self.divided(gathered, newest, which, sought, unix_seconds());
        let bases: BTreeMap<CheckpointId, Version> = kept
            .iter()
            .filter_map(|known| Some((self.base_of(known)?, known.version())))
            .collect();
        if let ForgetWhich::Version(version) = which {
            refuse_base(doing, version, newest, &bases)?;
        }
        let is_base =
            |known: &KnownCheckpoint| bases.contains_key(&known.manifest.public().checkpoint);
        let chosen = others.into_iter().filter(|known| !is_base(known));
        Ok(chosen.collect())
    }
}

/// A note on a version that no host shows, and of whose deletion no host can hear.
fn forgotten_here(seen: &Sighting) -> String {
    let version = seen.version;
    format!(
        "version {version}, which no host that answers shows, is forgotten on this machine alone: when its \
         hosts are back, so is the version"
    )
}

/// Fails when a kept version builds on the one that is to be forgotten. `bases` maps the bases of kept
/// versions to these versions.
fn refuse_base(
    doing: &str,
    version: Version,
    all: &[&KnownCheckpoint],
    bases: &BTreeMap<CheckpointId, Version>,
) -> Result<(), Failure> {
    let wanted = all.iter().find(|known| known.version() == version);
    let needed = wanted.and_then(|known| bases.get(&known.manifest.public().checkpoint));
    let Some(by) = needed else {
        return Ok(());
    };
    let why = format!("{doing}: version {by} builds on version {version}");
    let failure = Failure::new(ExitStatus::Failed, why);
    Err(failure.next("ckpt save --full, then forget both"))
}

/// What a notice declares gone, so that the versions `kept` stay.
fn removal_of(which: ForgetWhich, sought: &Sought, kept: &[Stamp], gone: &[Stamp]) -> Removal {
    match which {
        ForgetWhich::Version(_) => Removal::of(gone),
        // A checkpoint that turns up later need not meet the conditions of `sought`.
        _ if !sought.is_all() => Removal::of(gone),
        ForgetWhich::All if kept.is_empty() => Removal::all_until(gone),
        _ => Removal::all_but(kept, gone),
    }
}
