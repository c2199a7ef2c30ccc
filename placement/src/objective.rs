//! What a choice of hosts is worth: FALCON's objective, "checkpoint storing overhead minus the
//! benefit that the job can restart from the saved state", in seconds.
//!
//! ```text
//! J(A) = store(A) + need * restore(A) - need * CTR(A) * work
//! ```
//!
//! | term | unit | meaning |
//! |---|---|---|
//! | `store(A)` | seconds | time to store the checkpoint on the hosts A |
//! | `restore(A)` | seconds | time to read it back |
//! | `need` | 0 to 1 | probability that the job is ended before the next checkpoint |
//! | `CTR(A)` | 0 to 1 | probability that enough of the hosts in A can be read then |
//! | `work` | seconds | work that would have to be done again without this checkpoint |
//!
//! A job is ended when its machine goes away, and also when the machine's owner needs it, if jobs are
//! evicted for owners. The set A with the smallest J is the best.

use crate::bandwidth::RateForecast;
use crate::joint::{Domains, Joint};
use crate::probability::Probability;
use crate::survival::SurvivalCurve;

/// Most shards of a code.
pub const SHARDS_MAX: usize = 64;

/// How many shards carry data (FALCON's m) and how many can be lost (FALCON's k).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Width {
    data: usize,
    parity: usize,
}

impl Width {
    /// FALCON's code: three data shards and two parity shards. It is also the default of a save, so it has to
    /// agree with `codec::Redundancy::DEFAULT`; `ckpt-agent` does not compile otherwise.
    pub const FALCON: Self = Self { data: 3, parity: 2 };

    /// A width; `None` without data shards or with more than [`SHARDS_MAX`] in all.
    #[must_use]
    pub const fn new(data: usize, parity: usize) -> Option<Self> {
        if data == 0 || data > SHARDS_MAX || parity > SHARDS_MAX - data {
            return None;
        }
        Some(Self { data, parity })
    }

    /// Number of data shards: to restore, any `data()` of all shards suffice.
    #[must_use]
    pub const fn data(self) -> usize {
        self.data
    }

    /// Parity shards: how many shards can be lost.
    #[must_use]
    pub const fn parity(self) -> usize {
        self.parity
    }

    /// Number of all shards, each of which needs a host of its own.
    #[must_use]
    pub const fn total(self) -> usize {
        self.data + self.parity
    }

    /// Bytes on all hosts for each byte stored.
    #[must_use]
    pub fn expansion(self) -> f64 {
        self.total() as f64 / self.data as f64
    }
}

/// What is to be stored, and what the checkpoint is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stake {
    /// Bytes after compression, before coding.
    pub stored_bytes: u64,
    /// How they are coded.
    pub width: Width,
    /// Seconds before the first byte can be sent, such as for connecting.
    pub lead_seconds: f64,
    /// What the compute host can send, bytes per second; `None` when the storage hosts are the bottleneck.
    pub uplink_bytes_per_second: Option<f64>,
    /// Probability that the job is ended before the next checkpoint. It comes from the curve of presence
    /// that the compute host announces or, where jobs are evicted for owners, from the curve for guests.
    pub need: Probability,
    /// Work that would be lost without this checkpoint, seconds.
    pub work_seconds: f64,
}

impl Stake {
    /// Bytes of one shard.
    #[must_use]
    pub const fn shard_bytes(&self) -> u64 {
        self.stored_bytes.div_ceil(self.width.data as u64)
    }
}

/// A host that could take a shard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Forecast of the rate at which it can be reached.
    pub rate: RateForecast,
    /// Round-trip time of one request, seconds.
    pub rtt_seconds: f64,
    /// Probability that it can be read when it has to be, whatever the other hosts do.
    pub readable: Probability,
    /// Bytes that it has free. Where the code is chosen, hosts without room for its shards are left out
    /// ([`choose_with_code`](crate::redundancy::choose_with_code)); where it is given, the caller leaves them out.
    pub free_bytes: u64,
    /// Its failure domain at each level, if that is known.
    pub domains: Domains,
    /// Decides between hosts that are equal otherwise, the lowest first. It is drawn anew for every
    /// checkpoint, so that such hosts take turns.
    pub draw: u64,
}

impl Candidate {
    /// Whether it has room for a shard.
    #[must_use]
    pub const fn has_room(&self, stake: &Stake) -> bool {
        self.free_bytes >= stake.shard_bytes()
    }

    /// Expected time to send it a shard, seconds.
    #[must_use]
    pub fn shard_seconds(&self, stake: &Stake) -> f64 {
        self.rate.expected_seconds(stake.shard_bytes()) + self.rtt_seconds
    }
}

/// The parts of J, seconds; [`Score::total`] is what is minimised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Time to store the checkpoint.
    pub store_seconds: f64,
    /// Time to read the checkpoint back if all hosts can be read.
    pub restore_seconds: f64,
    /// Probability that enough hosts can be read: the correlated temporal reliability.
    pub reliability: Probability,
    need: Probability,
    work_seconds: f64,
}

impl Score {
    /// The score of hosts of which the slowest takes `slowest_seconds` for its shard and of which
    /// enough can be read with probability `reliability`: with the uplink's rate `u`,
    /// `store = lead + max(slowest, stored_bytes * expansion / u)` and
    /// `restore = lead + max(slowest, stored_bytes / u)`.
    pub(crate) fn new(stake: &Stake, slowest_seconds: f64, reliability: Probability) -> Self {
        let up = |bytes: f64| {
            stake
                .uplink_bytes_per_second
                .map_or(0.0, |rate| bytes / rate)
        };
        let stored = stake.stored_bytes as f64;
        Self {
            store_seconds: stake.lead_seconds
                + slowest_seconds.max(up(stored * stake.width.expansion())),
            // It is not known where the job will be restored, so the same links are assumed. A restore
            // reads from the fastest hosts only, so the time of the slowest is an upper bound. With this
            // bound a more reliable host never makes a choice worse, which the search relies on.
            restore_seconds: stake.lead_seconds + slowest_seconds.max(up(stored)),
            reliability,
            need: stake.need,
            work_seconds: stake.work_seconds,
        }
    }

    /// The seconds that the job is expected to lose with this checkpoint: J without the constant
    /// `need * work`, so that it is never below zero. It compares codes, too.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let need = self.need.value();
        self.store_seconds
            + need * self.restore_seconds
            + need * self.reliability.complement().value() * self.work_seconds
    }

    /// The objective J in seconds: the lower, the better.
    #[must_use]
    pub fn total(&self) -> f64 {
        let need = self.need.value();
        self.store_seconds + need * self.restore_seconds
            - need * self.reliability.value() * self.work_seconds
    }
}

/// The score of `hosts`, indices into `candidates`.
#[must_use]
pub fn score(
    candidates: &[Candidate],
    hosts: &[usize],
    stake: &Stake,
    joint: &impl Joint,
) -> Score {
    let slowest = slowest_seconds(candidates, hosts, stake);
    Score::new(stake, slowest, joint.at_least(hosts, stake.width.data()))
}

/// Expected time until the slowest of `hosts` has its shard, seconds.
pub(crate) fn slowest_seconds(candidates: &[Candidate], hosts: &[usize], stake: &Stake) -> f64 {
    let seconds = |host: &usize| candidates.get(*host).map(|c| c.shard_seconds(stake));
    hosts.iter().filter_map(seconds).fold(0.0, f64::max)
}

/// Probability that a host is present `seconds` from now, after any number of absences in between.
///
/// A Markov chain of two states: the host goes at the rate of the curve `presence`, and comes back at the
/// rate that makes it present for the share `long_run` of all time. For a host that is present now, with
/// `H = -ln TR(seconds)`, `u = long_run` and `d = 1 - u`, that is `u + d exp(-H / d)`, and at least
/// `TR(seconds)`. For a host whose curve is zero it is `u`.
#[must_use]
pub fn point_availability(
    presence: &SurvivalCurve,
    long_run: Probability,
    seconds: f64,
) -> Probability {
    let stays = presence.at(seconds).value();
    if stays <= 0.0 || seconds <= 0.0 {
        return Probability::saturating(if seconds <= 0.0 {
            1.0
        } else {
            long_run.value()
        });
    }
    let failures = -stays.ln();
    let up = long_run.value();
    let down = long_run.complement().value();
    if down == 0.0 {
        return Probability::ONE;
    }
    Probability::saturating((up + down * (-failures / down).exp()).max(stays))
}

/// The mean of [`point_availability`] over the time until `horizon_seconds`: the checkpoint is equally likely
/// to be needed at any moment of this time.
#[must_use]
pub fn readable_within(
    presence: &SurvivalCurve,
    long_run: Probability,
    horizon_seconds: f64,
) -> Probability {
    const POINTS: u32 = 8;
    let at = |i: u32| {
        let share = (f64::from(i) + 0.5) / f64::from(POINTS);
        point_availability(presence, long_run, share * horizon_seconds).value()
    };
    Probability::saturating((0..POINTS).map(at).sum::<f64>() / f64::from(POINTS))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::joint::Independent;
    use proptest::prelude::*;

    fn stake() -> Stake {
        Stake {
            stored_bytes: 300_000_000,
            width: Width::FALCON,
            lead_seconds: 1.0,
            uplink_bytes_per_second: Some(125e6),
            need: Probability::new(0.2).unwrap(),
            work_seconds: 3600.0,
        }
    }

    fn candidate(rate: f64, readable: f64) -> Candidate {
        Candidate {
            rate: RateForecast::new(rate, 0.0).unwrap(),
            rtt_seconds: 0.0,
            readable: Probability::new(readable).unwrap(),
            free_bytes: u64::MAX,
            domains: [None; 2],
            draw: 0,
        }
    }

    #[test]
    fn the_objective_is_that_of_the_formula() {
        let mut candidates = vec![candidate(100e6, 1.0); 5];
        candidates[4] = candidate(20e6, 1.0);
        let readable = vec![Probability::ONE; 5];
        let score = score(
            &candidates,
            &[0, 1, 2, 3, 4],
            &stake(),
            &Independent(&readable),
        );
        // 100 MB at 20 MB/s; 500 MB and 300 MB at 125 MB/s are faster.
        assert_eq!(score.store_seconds, 6.0);
        assert_eq!(score.restore_seconds, 6.0);
        assert_eq!(score.total(), 6.0 + 0.2 * 6.0 - 0.2 * 3600.0);
    }

    #[test]
    fn the_uplink_can_be_the_bottleneck() {
        let candidates = vec![candidate(1e12, 1.0); 5];
        let readable = vec![Probability::ONE; 5];
        let score = score(
            &candidates,
            &[0, 1, 2, 3, 4],
            &stake(),
            &Independent(&readable),
        );
        assert!((score.store_seconds - 5.0).abs() < 1e-3);
        assert!((score.restore_seconds - 3.4).abs() < 1e-3);
    }

    #[test]
    fn widths_are_bounded() {
        assert!(Width::new(0, 2).is_none());
        assert!(Width::new(40, 25).is_none());
        assert!(Width::new(usize::MAX, 1).is_none());
        assert_eq!(Width::new(3, 2), Some(Width::FALCON));
        assert!((Width::FALCON.expansion() - 5.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_host_that_goes_often_and_comes_back_is_there_as_often_as_ever() {
        let minute = NonZeroU32::new(60).unwrap();
        let restless = SurvivalCurve::exponential(minute, 600, 1.0 / 1800.0);
        let mostly = Probability::new(0.9).unwrap();
        let soon = point_availability(&restless, mostly, 60.0).value();
        let late = point_availability(&restless, mostly, 36_000.0).value();
        assert!(soon > 0.96 && (late - 0.9).abs() < 1e-6, "{soon} {late}");
        let within = readable_within(&restless, mostly, 36_000.0).value();
        assert!(within >= late && within < soon, "{within}");
    }

    #[test]
    fn a_host_that_is_gone_now_is_there_as_often_as_ever_later() {
        let minute = NonZeroU32::new(60).unwrap();
        let gone = SurvivalCurve::from_estimates(minute, [0.0, 0.0]);
        let mostly = Probability::new(0.7).unwrap();
        assert_eq!(point_availability(&gone, mostly, 600.0), mostly);
    }

    proptest! {
        #[test]
        fn point_availability_lies_between_survival_and_certainty(
            rate in 0.0f64..1e-2,
            long_run in 0.0f64..=1.0,
            seconds in 0.0f64..1e6,
        ) {
            let curve = SurvivalCurve::exponential(NonZeroU32::new(60).unwrap(), 600, rate);
            let long_run = Probability::new(long_run).unwrap();
            let there = point_availability(&curve, long_run, seconds);
            prop_assert!(there >= curve.at(seconds));
            prop_assert!(there <= Probability::ONE);
        }
    }
}
