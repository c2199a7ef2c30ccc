//! Which hosts are believed that say that a version is taken. A host could say so for ever, to keep
//! a job from saving.

use std::collections::BTreeMap;

use codec::Version;

use super::HostIndex;

/// Versions that others can have taken since the newest checkpoint that is known.
const JUMP_MAX: u64 = 10_000;

/// How often a host may be in the minority.
const ALONE_MAX: u32 = 2;

/// What speaks against some hosts.
#[derive(Debug, Default)]
pub struct ClaimDoubts {
    /// How often each said no when most said yes.
    alone: BTreeMap<HostIndex, u32>,
}

impl ClaimDoubts {
    /// The lowest version that is free by what the hosts say that are believed; `None` when the
    /// asked one is. `granted` hosts gave it, `denied` said that it is taken, and which is free.
    ///
    /// If an honest host is not believed and another save has the version there, that host refuses
    /// the shard, and a spare gets it.
    pub fn believed(
        &mut self,
        asked: Version,
        granted: usize,
        denied: Vec<(HostIndex, Version)>,
    ) -> Option<Version> {
        let are_few = denied.len() < granted;
        let believed = denied.into_iter().filter(|(host, next)| {
            let alone = self.alone.entry(*host).or_default();
            *alone += u32::from(are_few);
            *alone <= ALONE_MAX && next.0 <= asked.0.saturating_add(JUMP_MAX)
        });
        believed.map(|(_, next)| next).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(host: usize, next: u64) -> (HostIndex, Version) {
        (HostIndex(host), Version(next))
    }

    #[test]
    fn a_version_that_is_taken_is_given_up() {
        let mut doubts = ClaimDoubts::default();
        let next = doubts.believed(Version(3), 0, vec![says(0, 4), says(1, 6)]);
        assert_eq!(next, Some(Version(6)));
        assert_eq!(doubts.believed(Version(6), 2, Vec::new()), None);
        // Races can go on for long.
        for _ in 0..20 {
            let next = doubts.believed(Version(6), 1, vec![says(0, 7), says(1, 7)]);
            assert_eq!(next, Some(Version(7)));
        }
    }

    #[test]
    fn a_few_that_always_say_no_are_not_believed_for_ever() {
        let mut doubts = ClaimDoubts::default();
        let mut version = Version(1);
        let mut rounds = 0;
        while let Some(next) = doubts.believed(version, 3, vec![says(3, version.0 + 1)]) {
            version = next;
            rounds += 1;
        }
        assert_eq!(rounds, ALONE_MAX);
    }

    #[test]
    fn the_last_version_there_is_is_not_believed() {
        let mut doubts = ClaimDoubts::default();
        let lie = says(3, u64::MAX);
        assert_eq!(doubts.believed(Version(1), 3, vec![lie]), None);
        assert_eq!(
            doubts.believed(Version(1), 0, vec![lie, says(1, 2)]),
            Some(Version(2))
        );
    }
}
