//! The dedicated checkpoint server.

use crate::draw::{Purpose, draws, exponential};

/// Mean time for which the server is up. It is up for 99.4% of the time, more than any host of the traces.
const UP_SECONDS: f64 = 30.0 * 86_400.0;
/// Mean time for which the server is down.
const DOWN_SECONDS: f64 = 4.0 * 3600.0;

/// The times in which the server is down, seconds since the start of the grid.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    outages: Vec<(f64, f64)>,
}

impl Server {
    pub(crate) fn new(seed: u64, until: f64) -> Self {
        let mut rng = draws(seed, Purpose::Server, [0; 3]);
        let mut outages = Vec::new();
        let mut now = exponential(&mut rng, UP_SECONDS);
        while now < until {
            let back = now + exponential(&mut rng, DOWN_SECONDS);
            outages.push((now, back));
            now = back + exponential(&mut rng, UP_SECONDS);
        }
        Self { outages }
    }

    pub(crate) fn is_up(&self, at: f64) -> bool {
        !self
            .outages
            .iter()
            .any(|(from, to)| (*from..*to).contains(&at))
    }

    /// The first moment from `at` on at which the server is down; infinite if there is none.
    pub(crate) fn leaves(&self, at: f64) -> f64 {
        let later = self.outages.iter().find(|(_, to)| *to > at);
        later.map_or(f64::INFINITY, |(from, _)| from.max(at))
    }
}
