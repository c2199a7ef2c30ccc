//! Checkpoints that are inside of a stretch of their job's history that the owner deleted.

use std::collections::BTreeMap;

use codec::notice::{Stamp, Words};

use super::{Catalog, Denied, Key};
use crate::core::notices::OwnedJob;

/// A checkpoint inside of a deleted stretch is kept for this long, in seconds. It was saved by a machine
/// that had not heard of the deletion, and its owner may want it.
pub const INSIDE_KEPT_S: u64 = 7 * 86_400;

/// When each checkpoint was first found to be inside of a deleted stretch, in Unix seconds.
pub(super) type Since = BTreeMap<Key, u64>;

impl Catalog {
    /// Notes when the save of a checkpoint began, as its manifest states it.
    pub fn dated(&mut self, key: Key, created: u64) {
        if let Some(checkpoint) = self.checkpoints.get_mut(&key) {
            checkpoint.created = created;
        }
    }

    /// Whether a notice is to be kept besides the last one of its job. It has to declare a stretch gone
    /// that no known notice of the job does, and its job must have something committed here, or have had
    /// it.
    ///
    /// # Errors
    /// When the owner has its share of intervals.
    pub fn check_history(&self, words: &Words) -> Result<bool, Denied> {
        let job = (words.owner, words.job_tag);
        let concerns = self.has_committed(job) || self.notices.get(job).is_some();
        if !concerns || !self.histories.is_news(words) {
            return Ok(false);
        }
        if !self.histories.has_room_for(words) {
            return Err(Denied::TooManyNotices);
        }
        Ok(true)
    }

    /// Numbers of the notices of a job that are kept besides the last one.
    pub fn older_notices(&self, job: OwnedJob) -> Vec<u64> {
        let last = self.notices.get(job);
        last.map_or_else(Vec::new, |last| self.histories.others(job, last.number))
    }

    /// Whether a checkpoint is inside of a stretch that its owner deleted.
    pub fn is_inside(&self, job: OwnedJob, stamp: Stamp) -> bool {
        self.histories.has(job, stamp)
    }

    /// Checkpoints that have been inside of a deleted stretch for [`INSIDE_KEPT_S`] at `clock`, in Unix
    /// seconds. The time of a checkpoint begins with the first call that finds it there.
    pub fn inside_keys(&mut self, clock: u64) -> Vec<Key> {
        let inside = self.all_committed().filter(|(key, one)| {
            let stamp = Stamp {
                created: one.created,
                checkpoint: key.checkpoint,
            };
            self.histories.has((key.owner, one.job_tag), stamp)
        });
        let since = |(key, _): (Key, _)| (key, self.inside.get(&key).copied().unwrap_or(clock));
        let inside: Since = inside.map(since).collect();
        self.inside = inside;
        let over = self.inside.iter();
        let over = over.filter(|(_, since)| since.saturating_add(INSIDE_KEPT_S) <= clock);
        over.map(|(key, _)| *key).collect()
    }
}

#[cfg(test)]
mod tests {
    use codec::notice::Intervals;
    use codec::{CheckpointId, JobTag, OwnerId, Version};
    use protocol::wire::message::Claim;

    use super::*;
    use crate::core::release::Use;

    const OWNER: OwnerId = OwnerId([1; 32]);
    const TAG: JobTag = JobTag([2; 32]);

    fn stamp(created: u64) -> Stamp {
        Stamp {
            created,
            checkpoint: CheckpointId([created as u8; 16]),
        }
    }

    fn key(created: u64) -> Key {
        Key {
            owner: OWNER,
            checkpoint: stamp(created).checkpoint,
        }
    }

    fn commit(catalog: &mut Catalog, created: u64) {
        let claim = Claim {
            job_tag: TAG,
            version: Version::new(created).unwrap(),
            checkpoint: stamp(created).checkpoint,
        };
        catalog.load_manifest(&claim, OWNER);
        catalog.dated(key(created), created);
    }

    fn words(number: u64, gone: &[u64]) -> Words {
        let gone: Vec<Stamp> = gone.iter().map(|created| stamp(*created)).collect();
        Words {
            owner: OWNER,
            job_tag: TAG,
            number,
            lease: None,
            gone: Vec::new(),
            intervals: Intervals::default().with(&gone),
        }
    }

    #[test]
    fn checkpoints_inside_a_deleted_history_stay_for_a_week_more() {
        let mut catalog = Catalog::default();
        for created in [10, 20, 30] {
            commit(&mut catalog, created);
        }
        let said = words(1, &[10, 20]);
        assert_eq!(catalog.check_history(&said), Ok(true));
        assert_eq!(catalog.noted(said.clone()), [] as [u64; 0]);
        assert_eq!(catalog.check_history(&said), Ok(false), "no news");
        assert!(catalog.is_inside((OWNER, TAG), stamp(10)));
        assert!(!catalog.is_inside((OWNER, TAG), stamp(30)));
        assert_eq!(catalog.inside_keys(1_000), []);
        assert_eq!(catalog.inside_keys(1_000 + INSIDE_KEPT_S - 1), []);
        // A checkpoint that is found inside later has a week of its own.
        assert!(catalog.noted(words(2, &[30])).is_empty());
        let over = catalog.inside_keys(1_000 + INSIDE_KEPT_S);
        assert_eq!(over, [key(10), key(20)]);
        assert_eq!(catalog.older_notices((OWNER, TAG)), [1]);
    }

    #[test]
    fn a_kept_checkpoint_may_serve_each_later_one_that_is_kept() {
        let mut catalog = Catalog::default();
        for created in [10, 20, 30, 40] {
            commit(&mut catalog, created);
        }
        catalog.noted(words(1, &[20]));
        let uses = catalog.uses();
        let kept = |later| Some(Use::Kept { later });
        assert_eq!(uses.get(&key(10)).copied(), kept(2));
        assert_eq!(uses.get(&key(20)).copied(), Some(Use::Deleted));
        assert_eq!(uses.get(&key(30)).copied(), kept(1));
        assert_eq!(uses.get(&key(40)).copied(), kept(0));
    }

    #[test]
    fn a_notice_that_protects_a_history_is_kept_without_limit_of_time() {
        let mut catalog = Catalog::default();
        let far = u64::MAX / 2000;
        assert!(catalog.noted(words(1, &[])).is_empty());
        assert_eq!(catalog.old_notices(far), [(OWNER, TAG)]);
        assert_eq!(catalog.noted(words(2, &[10])), [1]);
        assert_eq!(catalog.old_notices(far), []);
        // A notice is of no concern to a host that never held anything of its job.
        let other = Words {
            job_tag: JobTag([9; 32]),
            ..words(3, &[10])
        };
        assert_eq!(catalog.check_history(&other), Ok(false));
    }
}
