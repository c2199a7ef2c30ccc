//! What submitters found when they checked shards here: shown to the owner of the machine, who can
//! see why a host loses its place. Nothing is decided by it: anybody can say anything.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use codec::OwnerId;
use protocol::wire::message::{Audit, AuditFault};

/// Failures that are kept. One more takes the place of the oldest of those of whom most are kept, so
/// that whoever says much pushes out its own.
pub const FAILURES_MAX: usize = 50;

/// Submitters that are counted one by one; beyond, the first one that is heard of again goes.
const AUDITORS_MAX: usize = 1000;

/// A check that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Unix seconds.
    pub at: u64,
    /// Who says so.
    pub by: OwnerId,
    /// About which shard.
    pub audit: Audit,
    /// What was wrong.
    pub fault: AuditFault,
}

/// Counts of checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditCounts {
    /// Shards of which all was right that was looked at.
    pub passed: u64,
    /// Others.
    pub failed: u64,
}

/// All that submitters said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audits {
    by: BTreeMap<OwnerId, AuditCounts>,
    failures: VecDeque<Failure>,
}

impl Audits {
    /// Puts together what was kept.
    pub fn new(by: BTreeMap<OwnerId, AuditCounts>, failures: Vec<Failure>) -> Self {
        let failures = VecDeque::from(failures);
        let mut all = Self { by, failures };
        all.shorten();
        all
    }

    /// Enters what a submitter found.
    pub fn enter(&mut self, by: OwnerId, audit: Audit, now: u64) {
        if !self.by.contains_key(&by) && self.by.len() >= AUDITORS_MAX {
            self.by.pop_first();
        }
        let counts = self.by.entry(by).or_default();
        let Some(fault) = audit.fault else {
            counts.passed = counts.passed.saturating_add(1);
            return;
        };
        counts.failed = counts.failed.saturating_add(1);
        self.failures.push_back(Failure {
            at: now,
            by,
            audit,
            fault,
        });
        self.shorten();
    }

    /// Drops what is too much.
    fn shorten(&mut self) {
        while self.failures.len() > FAILURES_MAX {
            let mut count: BTreeMap<OwnerId, usize> = BTreeMap::new();
            for failure in &self.failures {
                *count.entry(failure.by).or_default() += 1;
            }
            let places = self.failures.iter().enumerate();
            let of_most = places.max_by_key(|(place, one)| (count.get(&one.by), Reverse(*place)));
            let Some((place, _)) = of_most else { return };
            self.failures.remove(place);
        }
    }

    /// Counts by submitter.
    pub const fn by(&self) -> &BTreeMap<OwnerId, AuditCounts> {
        &self.by
    }

    /// All counts together.
    pub fn counts(&self) -> AuditCounts {
        self.by
            .values()
            .fold(AuditCounts::default(), |sum, one| AuditCounts {
                passed: sum.passed.saturating_add(one.passed),
                failed: sum.failed.saturating_add(one.failed),
            })
    }

    /// The latest failures, oldest first.
    pub fn failures(&self) -> impl DoubleEndedIterator<Item = &Failure> {
        self.failures.iter()
    }
}

#[cfg(test)]
mod tests {
    use codec::CheckpointId;

    use super::*;

    fn audit(fault: Option<AuditFault>) -> Audit {
        Audit {
            checkpoint: CheckpointId([3; 16]),
            shard: 2,
            blocks: 4,
            fault,
        }
    }

    #[test]
    fn counts_and_reasons_are_kept_within_bounds() {
        let mut audits = Audits::default();
        for number in 0..AUDITORS_MAX as u32 + 5 {
            let mut id = [0; 32];
            id[..4].copy_from_slice(&number.to_le_bytes());
            audits.enter(OwnerId(id), audit(None), 1);
        }
        assert_eq!(audits.by().len(), AUDITORS_MAX);
        for now in 0..FAILURES_MAX as u64 + 5 {
            audits.enter(OwnerId([9; 32]), audit(Some(AuditFault::Damaged)), now);
        }
        assert_eq!(audits.failures().count(), FAILURES_MAX);
        assert_eq!(audits.failures().next().map(|first| first.at), Some(5));
        assert_eq!(audits.counts().failed, FAILURES_MAX as u64 + 5);
    }

    #[test]
    fn whoever_says_much_pushes_out_what_it_said_itself() {
        let [greedy, modest] = [1, 2].map(|id| OwnerId([id; 32]));
        let damaged = audit(Some(AuditFault::Damaged));
        let mut audits = Audits::default();
        for now in 0..3 {
            audits.enter(modest, damaged, now);
        }
        for now in 3..1000 {
            audits.enter(greedy, damaged, now);
        }
        let said = |audits: &Audits, by| -> Vec<u64> {
            let of = audits.failures().filter(|one| one.by == by);
            of.map(|one| one.at).collect()
        };
        assert_eq!(said(&audits, modest), [0, 1, 2]);
        assert_eq!(audits.failures().count(), FAILURES_MAX);
        // Its own are the latest.
        assert_eq!(said(&audits, greedy).first(), Some(&953));
        // Who comes when the list is full finds a place.
        audits.enter(modest, damaged, 2000);
        assert_eq!(said(&audits, modest), [0, 1, 2, 2000]);
        // Also when a list of an earlier program is read that is too long.
        let long = said(&audits, greedy).into_iter().chain(3000..3010);
        let failure = |at| Failure {
            at,
            by: if at < 3005 { greedy } else { modest },
            audit: damaged,
            fault: AuditFault::Damaged,
        };
        let read = Audits::new(BTreeMap::new(), long.map(failure).collect());
        assert_eq!(read.failures().count(), FAILURES_MAX);
        assert_eq!(said(&read, modest).len(), 5);
    }
}
