//! Lines of versions. Each version names the one that it follows. A job that was begun anew while its versions
//! were away has two lines once they are back, and neither follows from the other.

use std::collections::{BTreeMap, BTreeSet};

use codec::ManifestHash;

/// A version, and the version that it follows, by their manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The manifest of the version.
    pub version: ManifestHash,
    /// The manifest of the version that was the newest when this one was saved.
    pub follows: Option<ManifestHash>,
}

/// The versions of the line that `last` belongs to: those that are connected with it through the versions that
/// they follow. A version that is not there any more still connects those that name it.
pub fn line_of(last: ManifestHash, all: &[Link]) -> BTreeSet<ManifestHash> {
    let mut neighbours: BTreeMap<ManifestHash, Vec<ManifestHash>> = BTreeMap::new();
    for link in all {
        if let Some(follows) = link.follows {
            neighbours.entry(link.version).or_default().push(follows);
            neighbours.entry(follows).or_default().push(link.version);
        }
    }
    let mut line = BTreeSet::from([last]);
    let mut next = vec![last];
    while let Some(one) = next.pop() {
        for neighbour in neighbours.get(&one).into_iter().flatten() {
            if line.insert(*neighbour) {
                next.push(*neighbour);
            }
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u8) -> ManifestHash {
        ManifestHash([number; 32])
    }

    fn link(version: u8, follows: Option<u8>) -> Link {
        Link {
            version: hash(version),
            follows: follows.map(hash),
        }
    }

    fn line(last: u8, all: &[Link]) -> Vec<u8> {
        let line = line_of(hash(last), all);
        line.into_iter().map(|hash| hash.0[0]).collect()
    }

    #[test]
    fn a_job_that_was_begun_anew_has_two_lines() {
        let all = [
            link(3, Some(2)),
            link(4, Some(3)),
            link(10, None),
            link(11, Some(10)),
        ];
        assert_eq!(line(4, &all), [2, 3, 4]);
        assert_eq!(line(11, &all), [10, 11]);
    }

    #[test]
    fn versions_that_follow_one_that_was_removed_are_of_one_line() {
        // Two saves at once followed version 2, which was removed.
        let all = [link(3, Some(2)), link(4, Some(2)), link(5, Some(4))];
        assert_eq!(line(5, &all), [2, 3, 4, 5]);
        // Where the version between was lost, what is older may be of another line.
        let all = [link(2, Some(1)), link(4, Some(3)), link(5, Some(4))];
        assert_eq!(line(5, &all), [3, 4, 5]);
    }
}
