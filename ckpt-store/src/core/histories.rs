//! Which stretches of their jobs' histories owners have declared gone.
//!
//! Two notices of a job that were made at the same time on two machines say different things. The one
//! with the higher number replaces the other, with one exception: a checkpoint that either of them
//! declares gone stays gone. So a host keeps, besides the last notice of a job, the earlier ones whose
//! intervals the last one does not cover.

use std::collections::BTreeMap;

use codec::OwnerId;
use codec::notice::{Intervals, Stamp, Words};
use protocol::wire::limits::NOTICES_PER_JOB_MAX;

use super::notices::OwnedJob;

/// Most intervals of all jobs together: 6 MiB of memory. An owner can add intervals only while it then
/// has no more than the room that is left for others.
pub const INTERVALS_TOTAL_MAX: usize = 1 << 17;

/// The intervals of each job, by the numbers of the notices that carry them.
#[derive(Debug, Default)]
pub struct Histories {
    by_job: BTreeMap<OwnedJob, BTreeMap<u64, Intervals>>,
    of_owner: BTreeMap<OwnerId, usize>,
    total: usize,
}

impl Histories {
    /// Whether a notice declares a stretch gone that none of the known notices of its job declares gone.
    pub fn is_news(&self, words: &Words) -> bool {
        let known = self.by_job.get(&(words.owner, words.job_tag));
        let all = known.into_iter().flat_map(BTreeMap::values);
        let all = all.fold(Intervals::default(), |all, one| all.union(one));
        !all.cover(&words.intervals)
    }

    /// Whether the intervals of another notice fit into its owner's room.
    pub fn has_room_for(&self, words: &Words) -> bool {
        let more = words.intervals.len();
        let own = self.of_owner.get(&words.owner).copied().unwrap_or_default();
        more == 0 || own + more <= INTERVALS_TOTAL_MAX.saturating_sub(self.total + more)
    }

    /// Enters a notice. Returns the numbers of the job's notices that need not be kept any more.
    pub fn enter(&mut self, words: &Words) -> Vec<u64> {
        let job = (words.owner, words.job_tag);
        let mut all = self.take(job);
        all.insert(words.number, words.intervals.clone());
        let mut dropped = Vec::new();
        if let Some((newest, said)) = all.pop_last() {
            all.retain(|number, one| {
                let is_covered = said.cover(one);
                if is_covered {
                    dropped.push(*number);
                }
                !is_covered
            });
            while all.len() >= NOTICES_PER_JOB_MAX {
                dropped.extend(all.pop_first().map(|(number, _)| number));
            }
            all.insert(newest, said);
        }
        self.put(job, all);
        dropped
    }

    /// Removes all notices of a job.
    pub fn remove(&mut self, job: OwnedJob) {
        self.take(job);
    }

    /// Whether a checkpoint lies in a stretch that is gone.
    pub fn has(&self, job: OwnedJob, stamp: Stamp) -> bool {
        let known = self.by_job.get(&job);
        known.is_some_and(|known| known.values().any(|one| one.has(stamp)))
    }

    /// Whether any stretch of a job is gone.
    pub fn is_about(&self, job: OwnedJob) -> bool {
        let known = self.by_job.get(&job);
        known.is_some_and(|known| known.values().any(|one| !one.is_empty()))
    }

    /// The numbers of a job's notices, except `number`.
    pub fn others(&self, job: OwnedJob, number: u64) -> Vec<u64> {
        let known = self.by_job.get(&job).into_iter().flat_map(BTreeMap::keys);
        known.copied().filter(|one| *one != number).collect()
    }

    fn take(&mut self, job: OwnedJob) -> BTreeMap<u64, Intervals> {
        let all = self.by_job.remove(&job).unwrap_or_default();
        let count = count(&all);
        self.total -= count;
        if let Some(own) = self.of_owner.get_mut(&job.0) {
            *own -= count;
        }
        self.of_owner.retain(|_, own| *own > 0);
        all
    }

    fn put(&mut self, job: OwnedJob, all: BTreeMap<u64, Intervals>) {
        let count = count(&all);
        self.total += count;
        if count > 0 {
            *self.of_owner.entry(job.0).or_default() += count;
        }
        self.by_job.insert(job, all);
    }
}

fn count(all: &BTreeMap<u64, Intervals>) -> usize {
    all.values().map(Intervals::len).sum()
}

#[cfg(test)]
mod tests {
    use codec::{CheckpointId, JobTag};

    use super::*;

    const JOB: OwnedJob = (OwnerId([1; 32]), JobTag([2; 32]));

    fn stamp(created: u64) -> Stamp {
        Stamp {
            created,
            checkpoint: CheckpointId([7; 16]),
        }
    }

    fn words(number: u64, gone: &[u64]) -> Words {
        let gone: Vec<Stamp> = gone.iter().map(|created| stamp(*created)).collect();
        Words {
            owner: JOB.0,
            job_tag: JOB.1,
            number,
            lease: None,
            gone: Vec::new(),
            intervals: Intervals::default().with(&gone),
        }
    }

    #[test]
    fn two_notices_together_delete_the_checkpoints_of_either_in_any_order() {
        for order in [[5, 6], [6, 5]] {
            let mut all = Histories::default();
            for number in order {
                let said = words(number, &[number * 10]);
                assert!(all.is_news(&said) && all.has_room_for(&said));
                assert!(all.enter(&said).is_empty());
                assert!(!all.is_news(&said));
            }
            assert!(all.has(JOB, stamp(50)) && all.has(JOB, stamp(60)));
            assert_eq!(all.others(JOB, 6), [5]);
            // A notice that covers both replaces both.
            assert_eq!(all.enter(&words(7, &[50, 60])), [5, 6]);
            assert!(all.others(JOB, 7).is_empty());
            // A notice without intervals replaces no other.
            assert!(all.enter(&words(8, &[])).is_empty());
            assert!(all.has(JOB, stamp(50)) && !all.has(JOB, stamp(55)));
        }
    }

    #[test]
    fn there_is_an_end_to_what_one_owner_can_have_remembered() {
        let mut all = Histories::default();
        for number in 1..100 {
            all.enter(&words(number, &[number]));
        }
        assert_eq!(all.others(JOB, 99).len(), NOTICES_PER_JOB_MAX - 1);
        let gone: Vec<u64> = (0..256).map(|number| number * 2).collect();
        let mut jobs = 0_u16;
        loop {
            let mut tag = [0; 32];
            tag[..2].copy_from_slice(&jobs.to_le_bytes());
            let said = Words {
                job_tag: JobTag(tag),
                ..words(1, &gone)
            };
            if !all.has_room_for(&said) {
                break;
            }
            all.enter(&said);
            jobs += 1;
        }
        assert!(usize::from(jobs) * 256 <= INTERVALS_TOTAL_MAX / 2);
        let other = Words {
            owner: OwnerId([9; 32]),
            ..words(1, &gone)
        };
        assert!(all.has_room_for(&other));
        all.remove(JOB);
        assert!(!all.is_about(JOB));
    }
}
