//! Wipes: storage hosts that lose all their shards.

use crate::draw::{Purpose, draws, exponential};
use crate::keeper::Keeper;
use crate::world::Grid;

/// When each host's disk is wiped, seconds since the start.
#[derive(Clone, Debug)]
pub(crate) struct Wipes {
    hosts: Vec<Vec<f64>>,
}

impl Wipes {
    /// Random wipes until `end`, of each host every `mean` seconds on average; no wipes if `mean` is
    /// infinite. The dedicated server is never wiped.
    pub(crate) fn new(grid: &Grid, mean: f64, end: f64) -> Self {
        let of = |host: &usize| {
            let mut rng = draws(grid.seed, Purpose::Wipe, [*host as u64, 0, 0]);
            let mut times = Vec::new();
            let mut now = 0.0;
            while mean.is_finite() && now < end {
                now += exponential(&mut rng, mean);
                times.push(now);
            }
            times
        };
        Self {
            hosts: grid.hosts.iter().map(of).collect(),
        }
    }

    /// Whether a keeper was wiped between `from` and `to`.
    pub(crate) fn between(&self, keeper: Keeper, from: f64, to: f64) -> bool {
        match keeper {
            Keeper::Host(host) => self.hosts[host].iter().any(|at| (from..=to).contains(at)),
            Keeper::Server => false,
        }
    }
}
