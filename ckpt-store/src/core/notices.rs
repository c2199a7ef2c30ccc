//! What owners said of their jobs: leases, and checkpoints that are gone.

use std::collections::BTreeMap;

use codec::notice::{Lease, Words};
use codec::{CheckpointId, JobTag, OwnerId};

/// Most notices that a host keeps. Each is of a job of which it holds something, or held it lately.
pub const NOTICES_MAX: usize = 1 << 14;

/// Most checkpoints that all of them together say are gone: 4 MiB of memory.
pub const GONE_TOTAL_MAX: usize = 1 << 18;

/// For how long a notice is kept when nothing of its job is here any more, in milliseconds: a host
/// that comes back within this time learns from it what it has to delete.
pub const KEPT_MS: u64 = 90 * 86_400_000;

/// A job of an owner.
pub type Job = (OwnerId, JobTag);

/// The last notice of each job.
#[derive(Debug, Default)]
pub struct Notices {
    by_job: BTreeMap<Job, Words>,
    gone: usize,
}

impl Notices {
    /// Whether this is newer than what is known of the job.
    pub fn is_news(&self, words: &Words) -> bool {
        let known = self.by_job.get(&(words.owner, words.job_tag));
        known.is_none_or(|known| known.number < words.number)
    }

    /// Whether another notice finds room.
    pub fn has_room_for(&self, words: &Words) -> bool {
        let known = self.by_job.get(&(words.owner, words.job_tag));
        let before = known.map_or(0, |known| known.gone.len());
        self.by_job.len() + usize::from(known.is_none()) <= NOTICES_MAX
            && self.gone - before + words.gone.len() <= GONE_TOTAL_MAX
    }

    /// Enters a notice in the place of an older one.
    pub fn enter(&mut self, words: Words) {
        self.gone += words.gone.len();
        if let Some(old) = self.by_job.insert((words.owner, words.job_tag), words) {
            self.gone -= old.gone.len();
        }
    }

    /// Strikes a notice.
    pub fn remove(&mut self, job: Job) {
        if let Some(old) = self.by_job.remove(&job) {
            self.gone -= old.gone.len();
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
