//! Judges checkpoints of which not every shard was found whole: a host that is away may come back with the
//! missing shards.

use std::collections::{BTreeMap, HashSet};

use codec::hash::ManifestHash;
use codec::notice::{Intervals, Words};
use codec::{CheckpointId, JobTag};
use protocol::wire::Code;

use crate::core::Fault;
use crate::inventory::OpenedCheckpoint;
use crate::report::VerifiedCheckpoint;

/// Whether a host with this fault may still have the whole shard, because the shard could not be examined.
pub(crate) const fn may_come_back(fault: &Fault) -> bool {
    match fault {
        Fault::Gone(_)
        | Fault::Silent(_)
        | Fault::Stalled(_)
        | Fault::Slow { .. }
        | Fault::Starved => true,
        Fault::Lied(_) => false,
        Fault::Refused { code, .. } => !matches!(
            code,
            Code::NotFound | Code::DiskFailed | Code::Mismatch | Code::Internal
        ),
    }
}

/// Corrects verdicts by those of what versions build on: none can lose more shards than the weakest of these. `found` has
/// how many shards each checkpoint that was verified can lose itself, and whether it is lost; `said`
/// holds how many shards each checkpoint can lose according to the hosts, for those that were not verified now.
pub(crate) fn count_needs(
    found: &BTreeMap<CheckpointId, (Option<usize>, bool)>,
    versions: Vec<(&OpenedCheckpoint, &mut VerifiedCheckpoint)>,
    said: &BTreeMap<CheckpointId, Option<usize>>,
    silent: usize,
) {
    for (one, verified) in versions {
        verified.can_lose = one.weakest(verified.can_lose, |need| match found.get(&need) {
            Some((can_lose, _)) => *can_lose,
            // For one that was not verified now, the hosts' statements count.
            None => said.get(&need).copied().flatten(),
        });
        for need in one.brief.needs() {
            let is_there = said.get(&need.checkpoint).is_some_and(Option::is_some);
            let seems_lost = !is_there && silent == 0;
            let need = found.get(&need.checkpoint);
            verified.lost |= need.map_or(seems_lost, |(_, lost)| *lost);
        }
    }
}

/// Gaps in the history of jobs: a checkpoint names a previous one that no host shows any more, although an
/// older one is there and the owner deleted nothing in between. The previous one was lost or is hidden.
/// `opened` is ordered by job and version; `words` are the owner's words on each job.
pub(crate) fn gaps(opened: &[OpenedCheckpoint], words: &BTreeMap<JobTag, Words>) -> Vec<String> {
    let all: HashSet<ManifestHash> = opened.iter().map(|one| one.known.manifest.hash()).collect();
    let pairs = opened.iter().zip(opened.iter().skip(1));
    let of_job = pairs.filter(|(older, newer)| older.brief.job == newer.brief.job);
    let gap = of_job.filter(|(older, newer)| {
        let public = newer.known.manifest.public();
        let is_torn = public
            .previous
            .is_some_and(|previous| !all.contains(&previous));
        let words = words.get(&public.job_tag);
        is_torn && !words.is_some_and(|words| was_deleted(&words.intervals, older, newer))
    });
    let notes = gap.map(|(older, newer)| {
        format!(
            "job {}: between version {} and {} there was another, which no host shows",
            newer.brief.job,
            older.known.version(),
            newer.known.version()
        )
    });
    notes.collect()
}

/// Whether the owner deleted any checkpoint between these two.
fn was_deleted(intervals: &Intervals, older: &OpenedCheckpoint, newer: &OpenedCheckpoint) -> bool {
    let older = older.known.stamp();
    let newer = newer.known.stamp();
    let mut all = intervals.iter();
    all.any(|one| one.from < newer && one.to > older)
}
