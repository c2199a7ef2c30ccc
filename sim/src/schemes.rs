//! Ways to choose hosts, for comparisons: the schemes of FALCON's evaluation, single criteria, and what
//! `ckpt` does.
//!
//! FALCON's "dedicated" scheme stores everything on one server and chooses no hosts, so it is not here.

use placement::joint::Joint;
use placement::objective::{Candidate, Stake, Width};
use placement::probability::Probability;
use placement::select::{TooFewHosts, choose, choose_independent};

/// Parity shards that [`Scheme::PessimisticWide`] adds to the code asked for.
const WIDER_BY: usize = 2;

/// A way to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Random hosts, all equally likely.
    Random,
    /// The hosts that were available most in the past, whatever their bandwidth: the first reading of
    /// FALCON's "pessimistic".
    PessimisticReliable,
    /// Random hosts and two more shards, in the expectation that hosts fail: the second reading.
    PessimisticWide,
    /// The hosts that are predicted to be readable with the highest probability.
    MostReliable,
    /// The hosts with the shortest expected time for a shard.
    Fastest,
    /// The hosts with the least objective, taken as independent.
    Independent,
    /// The hosts with the least objective, correlation included: what `ckpt` does.
    Correlated,
}

impl Scheme {
    /// All schemes, in the order of this definition.
    pub const ALL: [Self; 7] = [
        Self::Random,
        Self::PessimisticReliable,
        Self::PessimisticWide,
        Self::MostReliable,
        Self::Fastest,
        Self::Independent,
        Self::Correlated,
    ];

    /// The scheme's name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::PessimisticReliable => "pessimistic (reliable)",
            Self::PessimisticWide => "pessimistic (wide)",
            Self::MostReliable => "most reliable",
            Self::Fastest => "fastest",
            Self::Independent => "ckpt, independent",
            Self::Correlated => "ckpt",
        }
    }

    /// The code that the scheme uses when the code `asked` is asked for.
    #[must_use]
    pub fn width(self, asked: Width) -> Width {
        match self {
            Self::PessimisticWide => {
                Width::new(asked.data(), asked.parity() + WIDER_BY).unwrap_or(asked)
            }
            _ => asked,
        }
    }

    /// Chooses `stake.width.total()` of the `candidates` and returns their indices. `long_run[i]` is the
    /// share of all time, 0 to 1, in which candidate `i` was available.
    ///
    /// # Errors
    /// When there are too few candidates.
    pub fn choose(
        self,
        candidates: &[Candidate],
        long_run: &[Probability],
        stake: &Stake,
        joint: &impl Joint,
    ) -> Result<Vec<usize>, TooFewHosts> {
        match self {
            Self::Independent => return Ok(choose_independent(candidates, stake)?.hosts),
            Self::Correlated => return Ok(choose(candidates, stake, joint)?.hosts),
            _ => {}
        }
        let found = candidates.len();
        let needed = stake.width.total();
        if found < needed {
            return Err(TooFewHosts { found, needed });
        }
        let mut order: Vec<usize> = (0..found).collect();
        let past = |host: &usize| long_run.get(*host).copied().unwrap_or_default();
        match self {
            Self::PessimisticReliable => {
                order.sort_by_key(|host| (std::cmp::Reverse(past(host)), candidates[*host].draw));
            }
            Self::MostReliable => order.sort_by_key(|host| {
                let candidate = &candidates[*host];
                (std::cmp::Reverse(candidate.readable), candidate.draw)
            }),
            Self::Fastest => order.sort_by(|a, b| {
                let a = &candidates[*a];
                let b = &candidates[*b];
                a.shard_seconds(stake)
                    .total_cmp(&b.shard_seconds(stake))
                    .then(a.draw.cmp(&b.draw))
            }),
            _ => order.sort_by_key(|host| candidates[*host].draw),
        }
        order.truncate(needed);
        Ok(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::bandwidth::RateForecast;
    use placement::joint::Independent;

    #[test]
    fn each_scheme_follows_its_criterion() {
        let candidates: Vec<Candidate> = (0..20_u32)
            .map(|i| Candidate {
                rate: RateForecast::new(1e6 * f64::from(i + 1), 0.0).unwrap(),
                rtt_seconds: 0.0,
                readable: Probability::new(1.0 - f64::from(i) / 25.0).unwrap(),
                free_bytes: u64::MAX,
                domains: [None; 2],
                draw: u64::from(i * 7 % 20),
            })
            .collect();
        let readable: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
        let past: Vec<Probability> = (0..20)
            .map(|i| Probability::saturating(if (5..10).contains(&i) { 0.99 } else { 0.5 }))
            .collect();
        let stake = Stake {
            stored_bytes: 1 << 30,
            width: Width::FALCON,
            lead_seconds: 0.0,
            uplink_bytes_per_second: None,
            need: Probability::new(0.2).unwrap(),
            work_seconds: 3600.0,
        };
        let chosen = |scheme: Scheme| {
            let stake = Stake {
                width: scheme.width(stake.width),
                ..stake
            };
            let mut hosts = scheme
                .choose(&candidates, &past, &stake, &Independent(&readable))
                .unwrap();
            hosts.sort_unstable();
            hosts
        };
        assert_eq!(chosen(Scheme::MostReliable), [0, 1, 2, 3, 4]);
        assert_eq!(chosen(Scheme::Fastest), [15, 16, 17, 18, 19]);
        assert_eq!(chosen(Scheme::PessimisticReliable), [5, 6, 7, 8, 9]);
        assert_eq!(chosen(Scheme::PessimisticWide).len(), 7);
        let random = chosen(Scheme::Random);
        assert!(random.iter().all(|host| candidates[*host].draw < 5));
        for scheme in Scheme::ALL {
            assert!(
                scheme
                    .choose(&candidates[..4], &past, &stake, &Independent(&readable))
                    .is_err()
            );
        }
    }
}
