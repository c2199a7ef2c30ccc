//! The notices of owners about their jobs: leases, and which checkpoints are gone.

use std::collections::BTreeMap;

use codec::notice::{Lease, Words};
use codec::{CheckpointId, JobTag, OwnerId};

use super::places::{Stock, Who};

/// Most notices that a host keeps. Each is about a job of which the host holds something, or recently
/// held something. [`Stock`] keeps one owner from taking the room of the others.
pub const NOTICES_MAX: usize = 1 << 14;

/// Most checkpoint ids that all notices together list as gone: 4 MiB of memory. An interval counts as
/// `INTERVAL_WEIGHT` ids. [`Stock`] keeps one owner from taking the room of the others.
pub const GONE_TOTAL_MAX: usize = 1 << 18;

/// How many ids an interval counts as.
const INTERVAL_WEIGHT: usize = 3;

/// How far the number of a notice, which is a time in milliseconds, may be ahead of the host's clock. Two
/// days are more than the error of a clock whose date is wrong by one day. A notice from next year could
/// not be replaced before next year, because only a higher number replaces it.
pub const AHEAD_MS: u64 = 2 * 86_400_000;

/// How long a notice is kept after the last checkpoint of its job has left this host, in milliseconds. A
/// host that comes back within this time learns from the notice what it has to delete.
pub const KEPT_MS: u64 = 90 * 86_400_000;

/// A job of an owner.
pub type OwnedJob = (OwnerId, JobTag);

/// The last notice of each job.
#[derive(Debug)]
pub struct Notices {
    by_job: BTreeMap<OwnedJob, Words>,
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
    /// Whether this notice is newer than the known notice of its job.
    pub fn is_news(&self, words: &Words) -> bool {
        let known = self.by_job.get(&(words.owner, words.job_tag));
        known.is_none_or(|known| known.number < words.number)
    }

    /// Whether a notice fits into its owner's room. A notice that takes no more room than the one that it
    /// replaces always fits.
    pub fn has_room_for(&self, words: &Words) -> bool {
        let who = Who::itself(words.owner);
        let known = self.by_job.get(&(words.owner, words.job_tag));
        let more = weight(words).saturating_sub(known.map_or(0, weight));
        (known.is_some() || self.jobs.has_room(who, 1))
            && (more == 0 || self.gone.has_room(who, more))
    }

    /// Enters a notice. It replaces the known notice of its job.
    pub fn enter(&mut self, words: Words) {
        self.remove((words.owner, words.job_tag));
        let who = Who::itself(words.owner);
        self.jobs.add(who, 1);
        self.gone.add(who, weight(&words));
        self.by_job.insert((words.owner, words.job_tag), words);
    }

    /// Removes the notice of a job.
    pub fn remove(&mut self, job: OwnedJob) {
        if let Some(old) = self.by_job.remove(&job) {
            let who = Who::itself(job.0);
            self.jobs.take(who, 1);
            self.gone.take(who, weight(&old));
        }
    }

    /// The last notice of a job.
    pub fn get(&self, job: OwnedJob) -> Option<&Words> {
        self.by_job.get(&job)
    }

    /// The lease of a job's checkpoints. `None` if they are kept without limit of time.
    pub fn lease(&self, job: OwnedJob) -> Option<Lease> {
        self.by_job.get(&job)?.lease
    }

    /// Whether the owner declared this checkpoint gone.
    pub fn is_gone(&self, job: OwnedJob, checkpoint: CheckpointId) -> bool {
        let words = self.by_job.get(&job);
        words.is_some_and(|words| words.gone.contains(&checkpoint))
    }

    /// All notices, by job.
    pub fn iter(&self) -> impl Iterator<Item = (&OwnedJob, &Words)> {
        self.by_job.iter()
    }
}

/// How many ids a notice counts as.
fn weight(words: &Words) -> u64 {
    (words.gone.len() + INTERVAL_WEIGHT * words.intervals.len()) as u64
}
