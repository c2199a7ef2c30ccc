//! Failures that follow one another closely.

/// A failure: a host that was up became unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failure {
    /// Time of the failure, Unix seconds.
    pub at: u64,
    /// Number of the host's site; a host without a site has a number of its own.
    pub site: u32,
    /// Number of the host.
    pub host: u32,
}

/// A chain of failures of any hosts, each of which comes soon after the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Time of the first failure, Unix seconds.
    pub begins: u64,
    /// Number of failures.
    pub size: u64,
    /// Number of sites of their hosts.
    pub sites: u64,
}

/// Cuts `failures`, which are in order of time, into groups: each failure of a group comes at most `within`
/// seconds after the one before.
#[must_use]
pub fn groups(failures: &[Failure], within: u64) -> Vec<Group> {
    let chains = failures.chunk_by(|a, b| b.at - a.at <= within);
    let groups = chains.filter_map(|chain| {
        let mut sites: Vec<u32> = chain.iter().map(|failure| failure.site).collect();
        sites.sort_unstable();
        sites.dedup();
        Some(Group {
            begins: chain.first()?.at,
            size: chain.len() as u64,
            sites: sites.len() as u64,
        })
    });
    groups.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_test_vector() {
        let times = [0, 10, 65, 200, 250, 310, 1000];
        let failures = times.map(|at| Failure {
            at,
            site: u32::from(at == 250),
            host: 0,
        });
        let found = groups(&failures, 60);
        let sizes: Vec<u64> = found.iter().map(|group| group.size).collect();
        assert_eq!(sizes, [3, 3, 1]);
        assert_eq!(
            (found[0].sites, found[1].sites, found[1].begins),
            (1, 2, 200)
        );
        assert!(groups(&[], 60).is_empty());
    }
}
