//! What follows from the notices of owners: which checkpoints are gone or outlived their lease, and on which
//! ones others may build.

use std::collections::{BTreeMap, BTreeSet};

use codec::notice::{Stamp, Words};
use codec::{OwnerId, Version};
use protocol::wire::message::Claim;

use super::{Catalog, Checkpoint, Denied, Key};
use crate::core::notices::{AHEAD_MS, KEPT_MS, Notices, OwnedJob};
use crate::core::release::Use;

impl Catalog {
    /// The last notice of each job.
    pub const fn notices(&self) -> &Notices {
        &self.notices
    }

    /// Whether a notice is to be kept when the clock is `clock`, in Unix seconds. It has to be newer than
    /// the known one, and its job must have something committed here, or have had it.
    ///
    /// # Errors
    /// When the owner has its share of notices, or the number of the notice is a time too far ahead.
    pub fn check_notice(&self, words: &Words, clock: u64) -> Result<bool, Denied> {
        let job = (words.owner, words.job_tag);
        let known = self.notices.get(job);
        let concerns = known.is_some() || self.has_committed(job);
        if !concerns || !self.notices.is_news(words) {
            return Ok(false);
        }
        // A notice with such a number may have been kept by an earlier version of the program, which
        // refused none. The owner can still replace it.
        let latest = known.map_or(0, |known| known.number);
        let latest = latest
            .max(clock.saturating_mul(1000))
            .saturating_add(AHEAD_MS);
        if words.number > latest {
            return Err(Denied::FromTheFuture);
        }
        if !self.notices.has_room_for(words) {
            return Err(Denied::TooManyNotices);
        }
        Ok(true)
    }

    /// Enters a notice that is on the disk. Returns the numbers of the job's notices that need not be
    /// kept any more.
    pub fn noted(&mut self, words: Words) -> Vec<u64> {
        let unneeded = self.histories.enter(&words);
        if self.notices.is_news(&words) {
            self.notices.enter(words);
        }
        unneeded
    }

    /// Removes the notice of a job after its file is gone from the disk.
    pub fn notice_removed(&mut self, job: OwnedJob) {
        self.notices.remove(job);
        self.histories.remove(job);
    }

    /// Checkpoints that are here although the last notice of their job lists them as gone.
    pub fn gone_keys(&self) -> Vec<Key> {
        let is_gone = |(key, one): &(Key, &Checkpoint)| {
            let job = (key.owner, one.job_tag);
            self.notices.is_gone(job, key.checkpoint)
        };
        let gone = self.checkpoints.iter().filter(is_gone);
        gone.map(|(key, _)| key).collect()
    }

    /// Checkpoints that are here although this notice lists them as gone.
    pub fn gone_keys_of(&self, words: &Words) -> Vec<Key> {
        let owner = words.owner;
        let keys = words.gone.iter().map(|checkpoint| Key {
            owner,
            checkpoint: *checkpoint,
        });
        let is_here = |key: &Key| {
            let here = self.checkpoints.get(key);
            here.is_some_and(|one| one.job_tag == words.job_tag)
        };
        keys.filter(is_here).collect()
    }

    /// Checkpoints whose lease has ended at `clock`, in Unix seconds.
    pub fn outlived_keys(&self, clock: u64) -> Vec<Key> {
        let is_over = |(key, one): &(Key, &Checkpoint)| {
            let lease = self.notices.lease((key.owner, one.job_tag));
            lease.is_some_and(|lease| lease.until <= clock)
        };
        let outlived = self.all_committed().filter(is_over);
        outlived.map(|(key, _)| key).collect()
    }

    /// Jobs whose notice is no longer needed at `clock`, in Unix seconds: nothing of the job is here, and
    /// the notice is older than [`KEPT_MS`].
    pub fn old_notices(&self, clock: u64) -> Vec<OwnedJob> {
        let before = clock.saturating_mul(1000).saturating_sub(KEPT_MS);
        let old = self.notices.iter();
        // A notice that declares stretches of the history gone is kept without limit of time.
        let is_bare = |job: &OwnedJob| !self.has_job(*job) && !self.histories.is_about(*job);
        let old = old.filter(|(job, words)| words.number < before && is_bare(job));
        old.map(|(job, _)| *job).collect()
    }

    fn has_job(&self, (owner, tag): OwnedJob) -> bool {
        self.versions_of(owner, tag).next().is_some()
    }

    pub(super) fn has_committed(&self, (owner, tag): OwnedJob) -> bool {
        let mut all = self.entries_of(owner, tag);
        all.any(|(_, checkpoint)| self.is_committed(Key { owner, checkpoint }))
    }

    pub(super) fn check_not_gone(&self, owner: OwnerId, claim: &Claim) -> Result<(), Denied> {
        let job = (owner, claim.job_tag);
        if self.notices.is_gone(job, claim.checkpoint) {
            return Err(Denied::Gone);
        }
        Ok(())
    }

    /// Jobs of which a committed checkpoint is here.
    pub fn committed_jobs(&self) -> BTreeSet<OwnedJob> {
        let committed = self.all_committed();
        committed
            .map(|(key, one)| (key.owner, one.job_tag))
            .collect()
    }

    /// What is known here of the use of each committed checkpoint.
    pub fn uses(&self) -> BTreeMap<Key, Use> {
        let mut versions: BTreeMap<OwnedJob, Vec<Version>> = BTreeMap::new();
        let mut deleted = BTreeSet::new();
        for (key, one) in self.all_committed() {
            let job = (key.owner, one.job_tag);
            let stamp = Stamp {
                created: one.created,
                checkpoint: key.checkpoint,
            };
            if self.is_inside(job, stamp) {
                deleted.insert(key);
            } else {
                versions.entry(job).or_default().push(one.version);
            }
        }
        for of_job in versions.values_mut() {
            of_job.sort_unstable();
        }
        let use_of = |(key, one): (Key, &Checkpoint)| {
            let of_job = versions.get(&(key.owner, one.job_tag));
            let later = of_job.map_or(0, |all| {
                all.len() - all.partition_point(|version| *version <= one.version)
            });
            let known = match deleted.contains(&key) {
                true => Use::Deleted,
                false => Use::Kept { later },
            };
            (key, known)
        };
        self.all_committed().map(use_of).collect()
    }
}
