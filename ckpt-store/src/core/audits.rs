//! What submitters found when they checked shards on this host. The owner of the machine is shown the
//! counts, to see why submitters stop using the host. Nothing is decided by them, because a submitter can
//! report anything.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use codec::OwnerId;
use protocol::wire::message::{Audit, AuditFault};

/// Most failures that are kept. When there are more, the oldest one of the submitter with the most is
/// dropped, so a submitter that reports many only displaces its own.
pub const FAILURES_MAX: usize = 50;

/// Most submitters with counts of their own. When there are more, the one with the smallest key is
/// dropped.
const AUDITORS_MAX: usize = 1000;

/// A check that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When it was reported, in Unix seconds.
    pub at: u64,
    /// The submitter that reported it.
    pub by: OwnerId,
    /// The shard that was checked.
    pub audit: Audit,
    /// What the submitter found wrong.
    pub fault: AuditFault,
}

/// How many checks of shards of this host passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditCounts {
    /// Checks that found nothing wrong.
    pub passed: u64,
    /// Checks that found something wrong.
    pub failed: u64,
}

/// All checks that submitters reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audits {
    by: BTreeMap<OwnerId, AuditCounts>,
    failures: VecDeque<Failure>,
}

impl Audits {
    /// The record of what was read from the file.
    pub fn new(by: BTreeMap<OwnerId, AuditCounts>, failures: Vec<Failure>) -> Self {
        let failures = VecDeque::from(failures);
        let mut all = Self { by, failures };
        all.shorten();
        all
    }

    /// Enters a report of a submitter; `now` is in Unix seconds.
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

    /// Drops failures until there are at most [`FAILURES_MAX`].
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

    /// Counts of checks, by the submitter that reported them.
    pub const fn by(&self) -> &BTreeMap<OwnerId, AuditCounts> {
        &self.by
    }

    /// The counts of all submitters together.
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
    fn a_member_with_many_reports_pushes_out_its_own() {
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
        // The ones that are left are its latest.
        assert_eq!(said(&audits, greedy).first(), Some(&953));
        // A submitter that reports its first failure when the list is full finds room.
        audits.enter(modest, damaged, 2000);
        assert_eq!(said(&audits, modest), [0, 1, 2, 2000]);
        // A list that an earlier version of the program wrote may be too long. It is shortened in the
        // same way.
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
