//! Sums of the CPU time and disk bytes of guests that never fall when a process ends.
//!
//! The system counts for a process what the process did, and what its children did that have ended and that
//! it has waited for. A sum of these counts over the present processes would fall when a process ends, so
//! the increases from one reading to the next are added up.
//!
//! For example, a guest with 10 ticks has a child with 80, and 90 are counted. The child does 20 more, ends,
//! and is waited for: the guest's count of waited-for children rises by 100. Of these, 80 were counted
//! before, so 20 are added.

use std::collections::BTreeMap;

use crate::processes::{Process, ProcessId, Processes};

/// What guests have done since they were first seen. The sums never fall.
#[derive(Debug, Default)]
pub struct Accounts {
    /// The guests' processes at the last reading.
    seen: BTreeMap<ProcessId, ProcessReading>,
    /// CPU time so far, clock ticks.
    ticks: u64,
    /// Bytes moved to and from disks so far.
    disk_bytes: u64,
}

/// A process at the last reading.
#[derive(Clone, Copy, Debug)]
struct ProcessReading {
    parent: i32,
    own_ticks: u64,
    waited_ticks: u64,
    /// Bytes of the process and of its children that it has waited for; `None` if the system does not report
    /// them.
    disk_bytes: Option<u64>,
}

impl Accounts {
    /// CPU time, clock ticks.
    #[must_use]
    pub const fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Bytes moved to and from disks, as far as the system reports them.
    #[must_use]
    pub const fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// The guests' processes at the last reading.
    pub fn seen(&self) -> impl Iterator<Item = ProcessId> {
        self.seen.keys().copied()
    }

    /// Adds what guests have done since the reading before, and returns the guests. The present processes for
    /// which `is_one` holds are guests, and so are their descendants, and processes that were guests at the
    /// reading before, even if their parent has ended.
    ///
    /// `earlier` is the time of the reading before, in ticks since the machine started. A process that is
    /// seen for the first time counts from its start if it started at `earlier` or after, and from now on
    /// otherwise. `disk_bytes` returns a process's [`Process::disk_bytes`].
    pub fn look<'a>(
        &mut self,
        processes: &'a Processes,
        earlier: u64,
        is_one: impl Fn(&Process) -> bool,
        disk_bytes: impl Fn(&Process) -> Option<u64>,
    ) -> Vec<&'a Process> {
        let guests = processes
            .with_descendants(|process| self.seen.contains_key(&process.id) || is_one(process));
        let now: BTreeMap<ProcessId, ProcessReading> = guests
            .iter()
            .map(|process| {
                let seen = ProcessReading {
                    parent: process.parent,
                    own_ticks: process.own_ticks,
                    waited_ticks: process.waited_ticks,
                    disk_bytes: disk_bytes(process),
                };
                (process.id, seen)
            })
            .collect();
        let ended = self.ended(&now);
        for (id, seen) in &now {
            let before = self.seen.get(id).copied().or_else(|| {
                let is_new = id.started >= earlier;
                is_new.then_some(ProcessReading {
                    parent: 0,
                    own_ticks: 0,
                    waited_ticks: 0,
                    disk_bytes: Some(0),
                })
            });
            let Some(before) = before else {
                continue;
            };
            let counted = ended.get(id).copied().unwrap_or_default();
            let own = seen.own_ticks.saturating_sub(before.own_ticks);
            let waited = seen.waited_ticks.saturating_sub(before.waited_ticks);
            let ticks = own.saturating_add(waited.saturating_sub(counted.ticks));
            self.ticks = self.ticks.saturating_add(ticks);
            if let (Some(now), Some(before)) = (seen.disk_bytes, before.disk_bytes) {
                let moved = now
                    .saturating_sub(before)
                    .saturating_sub(counted.disk_bytes);
                self.disk_bytes = self.disk_bytes.saturating_add(moved);
            }
        }
        self.seen = now;
        guests
    }

    /// What was already counted of processes that have ended, by the nearest ancestor of each that still
    /// exists: the ancestor's counts contain it once more if the process was waited for.
    fn ended(&self, now: &BTreeMap<ProcessId, ProcessReading>) -> BTreeMap<ProcessId, Counted> {
        let ids: BTreeMap<i32, ProcessId> = self.seen.keys().map(|id| (id.pid, *id)).collect();
        let mut counted: BTreeMap<ProcessId, Counted> = BTreeMap::new();
        for (id, seen) in &self.seen {
            if now.contains_key(id) {
                continue;
            }
            let mut parent = ids.get(&seen.parent);
            // A bound, in case that the parents form a circle.
            for _ in 0..self.seen.len() {
                let Some(one) = parent else { break };
                if now.contains_key(one) {
                    let entry = counted.entry(*one).or_default();
                    let ticks = seen.own_ticks.saturating_add(seen.waited_ticks);
                    entry.ticks = entry.ticks.saturating_add(ticks);
                    let bytes = seen.disk_bytes.unwrap_or(0);
                    entry.disk_bytes = entry.disk_bytes.saturating_add(bytes);
                    break;
                }
                parent = self.seen.get(one).and_then(|seen| ids.get(&seen.parent));
            }
        }
        counted
    }
}

/// What was already counted of processes that have ended.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    ticks: u64,
    disk_bytes: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `(pid, parent, own ticks, ticks of children that were waited for)`; all start at their pid.
    fn processes(of: &[(i32, i32, u64, u64)]) -> Processes {
        of.iter()
            .map(|&(pid, parent, own_ticks, waited_ticks)| Process {
                id: ProcessId {
                    pid,
                    started: pid.unsigned_abs().into(),
                },
                parent,
                group: pid,
                session: pid,
                state: 'R',
                command: String::new(),
                own_ticks,
                waited_ticks,
            })
            .collect()
    }

    fn look(accounts: &mut Accounts, earlier: u64, of: &[(i32, i32, u64, u64)]) -> u64 {
        accounts.look(&processes(of), earlier, |one| one.id.pid == 10, |_| None);
        accounts.ticks()
    }

    #[test]
    fn children_that_have_ended_count() {
        let mut accounts = Accounts::default();
        // What a process did before it became a guest is not counted.
        assert_eq!(
            look(&mut accounts, 50, &[(10, 1, 500, 7), (99, 1, 3, 0)]),
            0
        );
        assert_eq!(
            look(&mut accounts, 60, &[(10, 1, 510, 7), (61, 10, 80, 0)]),
            90
        );
        // The child ends with 100 ticks, of which 80 were counted; another with 5 came and went meanwhile.
        assert_eq!(look(&mut accounts, 70, &[(10, 1, 510, 7 + 100 + 5)]), 115);
    }

    #[test]
    fn children_without_a_waiting_parent_are_not_subtracted_again() {
        let mut accounts = Accounts::default();
        look(&mut accounts, 50, &[(10, 1, 0, 0)]);
        assert_eq!(
            look(&mut accounts, 60, &[(10, 1, 0, 0), (61, 10, 80, 0)]),
            80
        );
        assert_eq!(look(&mut accounts, 70, &[(10, 1, 4, 0)]), 84);
    }

    #[test]
    fn grandchildren_count_with_the_process_that_waited_for_their_parents() {
        let mut accounts = Accounts::default();
        look(&mut accounts, 50, &[(10, 1, 0, 0)]);
        let family = [(10, 1, 0, 0), (61, 10, 20, 0), (62, 61, 30, 0)];
        assert_eq!(look(&mut accounts, 60, &family), 50);
        assert_eq!(look(&mut accounts, 70, &[(10, 1, 0, 55)]), 55);
    }

    #[test]
    fn a_guest_stays_one_when_its_parent_has_ended() {
        let mut accounts = Accounts::default();
        look(&mut accounts, 50, &[(10, 1, 0, 0)]);
        look(&mut accounts, 60, &[(10, 1, 0, 0), (61, 10, 20, 0)]);
        assert_eq!(
            look(&mut accounts, 70, &[(61, 1, 50, 0), (71, 61, 5, 0)]),
            55
        );
        assert_eq!(look(&mut accounts, 80, &[(61, 1, 60, 0)]), 65);
    }

    proptest! {
        #[test]
        fn sums_never_fall(
            looks in prop::collection::vec(
                prop::collection::vec((10_i32..18, 9_i32..18, 0_u64..99, 0_u64..99), 0..8), 0..12),
        ) {
            let mut accounts = Accounts::default();
            let mut before = 0;
            for (i, of) in looks.iter().enumerate() {
                let now = look(&mut accounts, i as u64, of);
                prop_assert!(now >= before);
                before = now;
            }
        }
    }
}
