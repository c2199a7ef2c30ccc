//! Which hosts are believed when they answer that a version of a job is taken already. A lying host could
//! repeat that answer for ever, to keep the job from saving.

use std::collections::BTreeMap;

use codec::Version;

use super::HostIndex;

/// Versions that other saves can have taken since the newest checkpoint that this save knows of. A host
/// that names a higher one is not believed.
const JUMP_MAX: u64 = 10_000;

/// How many times a host may say that a version is taken while most others grant it. After that, this
/// save does not believe the host any more.
const MINORITY_DENIALS_MAX: u32 = 2;

/// Reasons to doubt some hosts, collected over the claims of one save.
#[derive(Debug, Default)]
pub struct ClaimDoubts {
    /// For each host, how many times it denied a version that most hosts granted.
    minority_denials: BTreeMap<HostIndex, u32>,
}

impl ClaimDoubts {
    /// The version to claim next: the highest that a believed host named as free. `None` when no believed
    /// host denied the version that was `asked` for. `granted` hosts reserved the asked version; each of
    /// `denied` answered that it is taken, and named one that is free.
    ///
    /// If an honest host is not believed although another save took the version there, that host refuses
    /// the shard, and a spare gets it.
    pub fn believed(
        &mut self,
        asked: Version,
        granted: usize,
        denied: Vec<(HostIndex, Version)>,
    ) -> Option<Version> {
        let are_few = denied.len() < granted;
        let believed = denied.into_iter().filter(|(host, next)| {
            let minority_denials = self.minority_denials.entry(*host).or_default();
            *minority_denials += u32::from(are_few);
            *minority_denials <= MINORITY_DENIALS_MAX
                && next.number() <= asked.number().saturating_add(JUMP_MAX)
        });
        believed.map(|(_, next)| next).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(host: usize, next: u64) -> (HostIndex, Version) {
        (HostIndex(host), Version::new(next).unwrap())
    }

    #[test]
    fn a_version_that_is_taken_is_given_up() {
        let mut doubts = ClaimDoubts::default();
        let next = doubts.believed(Version::new(3).unwrap(), 0, vec![says(0, 4), says(1, 6)]);
        assert_eq!(next, Some(Version::new(6).unwrap()));
        assert_eq!(
            doubts.believed(Version::new(6).unwrap(), 2, Vec::new()),
            None
        );
        // Two saves may race for many rounds.
        for _ in 0..20 {
            let next = doubts.believed(Version::new(6).unwrap(), 1, vec![says(0, 7), says(1, 7)]);
            assert_eq!(next, Some(Version::new(7).unwrap()));
        }
    }

    #[test]
    fn a_few_that_always_say_no_are_not_believed_for_ever() {
        let mut doubts = ClaimDoubts::default();
        let mut version = Version::FIRST;
        let mut rounds = 0;
        while let Some(next) = doubts.believed(version, 3, vec![says(3, version.number() + 1)]) {
            version = next;
            rounds += 1;
        }
        assert_eq!(rounds, MINORITY_DENIALS_MAX);
    }

    #[test]
    fn the_last_version_there_is_is_not_believed() {
        let mut doubts = ClaimDoubts::default();
        let lie = says(3, u64::MAX);
        assert_eq!(doubts.believed(Version::FIRST, 3, vec![lie]), None);
        assert_eq!(
            doubts.believed(Version::FIRST, 0, vec![lie, says(1, 2)]),
            Some(Version::new(2).unwrap())
        );
    }
}
