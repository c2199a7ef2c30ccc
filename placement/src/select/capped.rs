//! The most reliable hosts of those offered so far, under the caps.

use super::Caps;
use crate::objective::Candidate;

/// At most `size` hosts, and no more of a domain than its level's cap allows.
///
/// Sets of this kind are the independent sets of a matroid when one level is capped. There, a new
/// element takes the place of the worst one on the circuit that it closes, if it is better, and the
/// set is always the most reliable that can be had.
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

    /// Takes `host` in if that makes the set larger or more reliable; says whether it did.
    pub(super) fn offer(&mut self, host: usize, candidates: &[Candidate]) -> bool {
        let full_levels: Vec<usize> = (0..self.caps.len())
            .filter(|level| self.is_full(*level, host, candidates))
            .collect();
        if full_levels.is_empty() && self.hosts.len() < self.size {
            self.hosts.push(host);
            return true;
        }
        // Whoever leaves has to make room at every level that is full.
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

    fn is_full(&self, level: usize, host: usize, candidates: &[Candidate]) -> bool {
        let (Some(cap), Some(domain)) = (self.caps[level], candidates[host].domains[level]) else {
            return false;
        };
        let of_domain = |other: &&usize| candidates[**other].domains[level] == Some(domain);
        self.hosts.iter().filter(of_domain).count() >= cap
    }
}
