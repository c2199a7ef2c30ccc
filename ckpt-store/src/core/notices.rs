//! What owners said of their jobs: leases, and checkpoints that are gone.

use std::collections::BTreeMap;

use codec::notice::{Lease, Words};
use codec::{CheckpointId, JobTag, OwnerId};

use super::places::{Stock, Who};

/// Most notices that a host keeps. Each is of a job of which it holds something, or held it lately.
/// An owner adds no more than it leaves for others.
pub const NOTICES_MAX: usize = 1 << 14;

/// Most checkpoints that all of them together say are gone: 4 MiB of memory. An owner adds no more
/// than it leaves for others. An interval counts as `INTERVAL_WEIGHT`.
pub const GONE_TOTAL_MAX: usize = 1 << 18;

/// An interval has the size of so many ids.
const INTERVAL_WEIGHT: usize = 3;

/// How far ahead of the host's clock the number of a notice may be, in milliseconds: more than a clock
/// is wrong whose date was set one day off. One from a year to come could not be replaced, and would be
/// kept, until then.
pub const AHEAD_MS: u64 = 2 * 86_400_000;

/// For how long a notice is kept when nothing of its job is here any more, in milliseconds: a host
/// that comes back within this time learns from it what it has to delete.
pub const KEPT_MS: u64 = 90 * 86_400_000;

/// A job of an owner.
pub type Job = (OwnerId, JobTag);

/// The last notice of each job.
#[derive(Debug)]
pub struct Notices {
    by_job: BTreeMap<Job, Words>,
    jobs: Stock<OwnerId>,
    gone: Stock<OwnerId>,
}

impl Default for Notices {
    fn default() -> Self {
        Self {
            by_job: BTreeMap::new(),
            jobs: Stock::new(NOTICES_MAX as u64),
            gone: Stock::new(GONE_TOTAL_MAX as u64),
        }
    }
}

impl Notices {
    /// Whether this is newer than what is known of the job.
    pub fn is_news(&self, words: &Words) -> bool {
        let known = self.by_job.get(&(words.owner, words.job_tag));
        known.is_none_or(|known| known.number < words.number)
    }

    /// Whether another notice finds room among those of its owner. One that takes no more than the
    /// one that it replaces always does.
    pub fn has_room_for(&self, words: &Words) -> bool {
        let who = Who::itself(words.owner);
        let known = self.by_job.get(&(words.owner, words.job_tag));
        let more = weight(words).saturating_sub(known.map_or(0, weight));
        (known.is_some() || self.jobs.has_room(who, 1))
            && (more == 0 || self.gone.has_room(who, more))
    }

    /// Enters a notice in the place of an older one.
    pub fn enter(&mut self, words: Words) {
        self.remove((words.owner, words.job_tag));
        let who = Who::itself(words.owner);
        self.jobs.add(who, 1);
        self.gone.add(who, weight(&words));
        self.by_job.insert((words.owner, words.job_tag), words);
    }

    /// Strikes a notice.
    pub fn remove(&mut self, job: Job) {
        if let Some(old) = self.by_job.remove(&job) {
            let who = Who::itself(job.0);
            self.jobs.take(who, 1);
            self.gone.take(who, weight(&old));
        }
    }

    /// What was said last of a job.
    pub fn get(&self, job: Job) -> Option<&Words> {
        self.by_job.get(&job)
    }

    /// The lease of a job's checkpoints; none when they are kept for ever.
    pub fn lease(&self, job: Job) -> Option<Lease> {
        self.by_job.get(&job)?.lease
    }

    /// Whether the owner said that this checkpoint is gone.
    pub fn is_gone(&self, job: Job, checkpoint: CheckpointId) -> bool {
        let words = self.by_job.get(&job);
        words.is_some_and(|words| words.gone.contains(&checkpoint))
    }

    /// All notices, by job.
    pub fn iter(&self) -> impl Iterator<Item = (&Job, &Words)> {
        self.by_job.iter()
    }
}

/// What a notice takes, in ids.
fn weight(words: &Words) -> u64 {
    (words.gone.len() + INTERVAL_WEIGHT * words.intervals.len()) as u64
}
