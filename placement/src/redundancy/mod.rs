//! How many shards: which code, for which hosts.

mod search;
#[cfg(test)]
mod tests;

use crate::objective::Width;
use crate::probability::Probability;

pub use search::{Chosen, choose_with_code};

/// Most data shards that are considered: more of them use more hosts and save few bytes.
const DATA_MAX: usize = 16;

/// Most parity shards that are considered.
const PARITY_MAX: usize = 8;

/// Cost of one more host, in images sent: a connection, an entry in the host's catalog, work for its disk.
const HOST_COST: f64 = 0.02;

/// What a code costs, in images: the bytes that are sent and stored, `(data + parity) / data`, and 0.02
/// for each host.
#[must_use]
pub fn cost(width: Width) -> f64 {
    width.expansion() + HOST_COST * width.total() as f64
}

/// How many of `hosts` hosts a code uses if others are to be left to take the place of hosts that fail: two thirds, or
/// five.
fn most_but_spares(hosts: usize) -> usize {
    (hosts * 2 / 3).max(Width::FALCON.total())
}

/// What a code is chosen for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// The least time that the job is expected to lose ([`Score::loss`](crate::objective::Score::loss)): by storing
    /// and reading back, and by work done again where too few hosts can be read, six hours at least.
    LeastLoss,
    /// The least time for storing and reading back with which enough hosts can be read with this probability.
    /// A forecast of a little more is asked for: see [`forecast_for`].
    Reliability(Probability),
}

/// How many times as many restores fail as are forecast to, of codes and hosts that were chosen by that forecast:
/// the choice favours forecasts that are too good.
const CHOSEN_FAIL_MORE: f64 = 1.5;

/// The forecast at which restores succeed with the probability `target`, for what is chosen by it.
#[must_use]
pub fn forecast_for(target: Probability) -> Probability {
    Probability::saturating(1.0 - target.complement().value() / CHOSEN_FAIL_MORE)
}

/// Which codes may be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Codes with fewer parity shards are not considered, unless there are too few hosts for others.
    pub least_parity: usize,
    /// Most bytes on all hosts for each byte stored.
    pub most_expansion: f64,
    /// Most shards, each of which needs a host of its own.
    pub most_hosts: usize,
}

impl Bounds {
    /// The bounds of a code for a probability that somebody asked for. Any host can be lost: hosts also fail in
    /// ways that no forecast knows of.
    pub const ASKED: Self = Self {
        least_parity: 1,
        most_expansion: f64::INFINITY,
        most_hosts: usize::MAX,
    };

    /// The bounds of a code that nobody asked for, with this many hosts. Any two hosts can be lost, as with 3+2.
    /// No more is stored than with 1+2. Of more than five hosts a third is left to take the place of hosts that
    /// fail.
    #[must_use]
    pub fn usual(hosts: usize) -> Self {
        Self {
            least_parity: Width::FALCON.parity(),
            most_expansion: 3.0,
            most_hosts: most_but_spares(hosts),
        }
    }

    fn allow(self, width: Width) -> bool {
        width.parity() >= self.least_parity
            && width.expansion() <= self.most_expansion
            && width.total() <= self.most_hosts
    }

    /// The codes within these bounds for which `hosts` hosts are enough. With fewer hosts than the narrowest of them
    /// needs, as much parity as there can be.
    fn codes(self, hosts: usize) -> impl Iterator<Item = Width> {
        let bounds = Self {
            least_parity: self.least_parity.min(hosts.saturating_sub(1)),
            ..self
        };
        (1..=DATA_MAX)
            .flat_map(|data| (0..=PARITY_MAX).filter_map(move |parity| Width::new(data, parity)))
            .filter(move |width| width.total() <= hosts && bounds.allow(*width))
    }
}

/// The code nearest to `usual` for which there are enough hosts: as many data shards as possible, and the
/// same parity, so that as many hosts can be lost as with `usual`. `hosts` returns how many hosts take a shard
/// of a code; it depends on the code, because fewer data shards make larger shards. `None` when even one data
/// shard has too few hosts.
#[must_use]
pub fn narrowed(usual: Width, hosts: impl Fn(Width) -> usize) -> Option<Width> {
    let mut codes = (1..=usual.data()).rev();
    codes.find_map(|data| {
        Width::new(data, usual.parity()).filter(|width| hosts(*width) >= width.total())
    })
}
