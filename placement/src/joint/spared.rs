//! Hosts that stay when the others of their domain go: a shock of the domain does not hit them. The correlation of a
//! domain is that of most of its hosts, and says nothing of one that is never down.

use super::{Aligned, Groups, LEVELS, Level, PRIOR_OUTAGE_SLOTS, Pair, Past, are_strangers};

/// A host is spared if it is down together with others less than this share as often as a host that each shock hits.
const SPARED_BELOW: f64 = 0.2;

/// Which shocks do not hit a host. None without a past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spared {
    /// Whether that of the whole pool.
    pub pool: bool,
    /// Whether that of the host's domain, at each level.
    pub domains: [bool; LEVELS],
}

/// Sums over pairs of one host and others of its domain, all numbers of slots.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// `SUM n (p_ab - p_a p_b)`: how much more often both were down than if they were independent.
    seen: f64,
    /// The same for a host that every shock hits: `SUM n p_a r (1 - p_b)`.
    expected: f64,
}

impl Sums {
    fn add(&mut self, host: &Past, other: &Past, correlation: f64) {
        if let Some(pair) = Pair::of(host, other) {
            self.seen += pair.covariance();
            self.expected += pair.known * pair.up_a * correlation * (1.0 - pair.up_b);
        }
    }

    /// Whether the host is spared: `(seen + W) / (expected + W) < SPARED_BELOW` with `W = PRIOR_OUTAGE_SLOTS`, so
    /// that it counts as hit until the past shows otherwise.
    fn is_spared(&self) -> bool {
        self.seen + PRIOR_OUTAGE_SLOTS < SPARED_BELOW * (self.expected + PRIOR_OUTAGE_SLOTS)
    }
}

/// Which shocks spare each of the members; the correlation of the pool is `everywhere`.
pub(super) fn learn(
    members: &[Aligned],
    groups: &Groups<'_>,
    everywhere: f64,
    levels: &[Level; LEVELS],
) -> Vec<Spared> {
    let learnt = members.iter().enumerate().map(|(index, member)| {
        let Some(past) = &member.past else {
            return Spared::default();
        };
        let others = |(other, _): &&(usize, _)| *other != index;
        let mut of_pool = Sums::default();
        for (other, their_past) in groups.sample.iter().filter(others) {
            if are_strangers(member, &members[*other]) {
                of_pool.add(past, their_past, everywhere);
            }
        }
        let of_domain = |level: usize| {
            let domain = member.domains[level]?;
            let correlation = levels[level].correlation(domain);
            let mut sums = Sums::default();
            let group = groups.domains[level].get(&domain)?;
            for (_, their_past) in group.iter().filter(others) {
                sums.add(past, their_past, correlation);
            }
            Some(sums.is_spared())
        };
        Spared {
            pool: of_pool.is_spared(),
            domains: std::array::from_fn(|level| of_domain(level).unwrap_or_default()),
        }
    });
    learnt.collect()
}
