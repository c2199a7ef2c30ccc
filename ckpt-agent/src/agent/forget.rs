//! Removes checkpoints of a job.

use std::collections::BTreeMap;

use codec::grant::Rights;
use codec::notice::Stamp;
use codec::{CheckpointId, JobId, Version};

use super::gather::WaitUntil;
use super::notices::Removal;
use super::waiting::Wait;
use super::{Agent, ForgetWhich};
use crate::core::HostIndex;
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
        let mut newest = gathered.inventory.newest_first();
        let is_keeping = matches!(which, ForgetWhich::Keep(_) | ForgetWhich::KeepWithin(_));
        if !is_keeping {
            newest.extend(gathered.inventory.void());
        }
        let (kept, others) = self.divided(&gathered, &newest, which, sought, unix_seconds());
        let bases: BTreeMap<CheckpointId, Version> = kept
            .iter()
            .filter_map(|known| Some((self.base_of(known)?, known.version())))
            .collect();
        if let ForgetWhich::Version(version) = which {
            refuse_base(&doing, version, &newest, &bases)?;
        }
        let chosen: Vec<_> = others
            .into_iter()
            .filter(|known| !bases.contains_key(&known.manifest.public().checkpoint))
            .collect();
        let is_all = which == ForgetWhich::All && sought.is_all();
        let unfound = is_all.then(|| self.unfound(named.tag, &gathered)).flatten();
        if chosen.is_empty() && !is_keeping && unfound.is_none() {
            return Err(self.not_found(&doing, which.wanted(), sought, &gathered));
        }
        let hosts: Vec<HostIndex> = gathered.hosts().collect();
        let mut gone: Vec<Stamp> = chosen.iter().map(|known| known.stamp()).collect();
        let mut removed: Vec<Version> = chosen.iter().map(|known| known.version()).collect();
        if let Some((version, stamp)) = unfound.as_ref().and_then(Sighting::place) {
            removed.insert(0, version);
            gone.insert(0, stamp);
        }
        let left = newest.iter().filter(|known| !gone.contains(&known.stamp()));
        let left: Vec<&KnownCheckpoint> = left.copied().collect();
        let kept: Vec<Stamp> = left.iter().map(|known| known.stamp()).collect();
        let removal = match which {
            ForgetWhich::Version(_) => Removal::of(&gone),
            // A checkpoint that turns up later need not meet the conditions of `sought`.
            _ if !sought.is_all() => Removal::of(&gone),
            _ => Removal::all_but(&kept, &gone),
        };
        let mut unheard = Vec::new();
        if !removal.is_empty() {
            let last = gathered.said.as_ref();
            let lease = last.and_then(|last| last.lease);
            let hosts = hosts.into_iter().collect();
            let failed = self
                .announce_to(hosts, &named, last, lease, &removal, wait)
                .await;
            self.require_heard(&gathered, &failed, &doing)?;
            unheard = match unfound {
                Some(_) => self.silent_notes(&gathered),
                None => self.unheard(&gathered, &failed, &chosen),
            };
            gathered.silent.extend(failed);
        }
        let left = left.first().map(|known| {
            let lease = gathered.leases.get(&named.tag);
            self.sighting(job, known.version(), known.stamp(), lease)
        });
        self.notebook.note(Observation::Removed(named.tag, left));
        let mut notes = Vec::from_iter(self.note_of_older(&gathered, |_| true));
        notes.extend(unfound.and_then(|seen| only_here(&seen)));
        Ok(ForgetReport {
            job: job.clone(),
            removed,
            notes,
            silent: self.silent_notes(&gathered),
            unheard,
        })
    }
}

/// A note on a version that no host shows, and of which too little is known to delete it on hosts.
fn only_here(seen: &Sighting) -> Option<String> {
    let version = seen.version;
    seen.more.is_none().then(|| {
        format!(
            "version {version}, which no host shows, is forgotten on this machine alone: it is there again \
             when its hosts are back"
        )
    })
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
