//! The most reliable set of the hosts offered so far, under the caps on failure domains.

use super::Caps;
use crate::objective::Candidate;

/// At most `size` hosts, and of each domain no more than its level's cap allows.
///
/// When one level is capped, such sets are the independent sets of a matroid. A new element that closes a
/// circuit replaces the worst element of the circuit if it is better, and then the set stays the most
/// reliable one of all elements offered.
pub(super) struct CappedSet {
    size: usize,
    caps: Caps,
    hosts: Vec<usize>,
}

impl CappedSet {
    pub(super) const fn new(size: usize, caps: Caps) -> Self {
        Self {
            size,
            caps,
            hosts: Vec::new(),
        }
    }

    pub(super) fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// Adds `host` if that makes the set larger or more reliable, and returns whether it did.
    pub(super) fn offer(&mut self, host: usize, candidates: &[Candidate]) -> bool {
        let full_levels: Vec<usize> = (0..self.caps.len())
            .filter(|level| self.is_full(*level, host, candidates))
            .collect();
        if full_levels.is_empty() && self.hosts.len() < self.size {
            self.hosts.push(host);
            return true;
        }
        // The host that is replaced has to be of the same domain at every level whose cap is reached.
        let same = |other: usize, level: usize| {
            candidates[other].domains[level] == candidates[host].domains[level]
        };
        let worst = (0..self.hosts.len())
            .filter(|at| {
                full_levels
                    .iter()
                    .all(|level| same(self.hosts[*at], *level))
            })
            .min_by_key(|at| candidates[self.hosts[*at]].readable);
        match worst {
            Some(at) if candidates[self.hosts[at]].readable < candidates[host].readable => {
                self.hosts[at] = host;
                true
            }
            _ => false,
        }
    }

    /// Whether the domain of `host` at `level` has as many hosts in the set as the cap allows.
    fn is_full(&self, level: usize, host: usize, candidates: &[Candidate]) -> bool {
        let (Some(cap), Some(domain)) = (self.caps[level], candidates[host].domains[level]) else {
            return false;
        };
        let of_domain = |other: &&usize| candidates[**other].domains[level] == Some(domain);
        self.hosts.iter().filter(of_domain).count() >= cap
    }
}
