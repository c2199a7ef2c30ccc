//! Hosts whose differences are below the error of measurement are made equal. Then the differences that are
//! known decide between hosts, and hosts that are equal take turns.

use crate::bandwidth::RateForecast;
use crate::objective::{Candidate, Width};
use crate::probability::Probability;

/// Rates are rounded to powers of this factor: measurements are no more exact.
const RATE_STEP: f64 = 1.25;

/// Spreads (see [`RateForecast::spread`]) are rounded up to multiples of this.
const SPREAD_STEP: f64 = 0.5;

/// Odds of being readable, `p / (1 - p)`, are rounded to powers of this factor.
const ODDS_STEP: f64 = 1.25;

/// `(a, b)`: a host counts as one of the fastest if its transfer takes at most `a t + b` seconds, where `t`
/// is the time of the slowest host that is needed. Among the fastest, reliability decides.
const SAME_TIME: (f64, f64) = (1.1, 0.1);

/// Largest probability of being readable that is believed of any host: one host in two hundred fails in a
/// way that its past does not show.
const MOST_READABLE: f64 = 0.995;

/// The candidates for an image of `stored_bytes` coded with `width`, without differences below the error of
/// measurement. [`select`](crate::select) chooses among them.
#[must_use]
pub fn level(candidates: Vec<Candidate>, stored_bytes: u64, width: Width) -> Vec<Candidate> {
    let stepped = candidates.into_iter().map(step).collect();
    same_time(
        stepped,
        stored_bytes.max(1).div_ceil(width.data() as u64),
        width.total(),
    )
}

/// The host with its rate, spread and odds rounded.
fn step(host: Candidate) -> Candidate {
    let readable = host.readable;
    let odds = readable.value() / readable.complement().value().max(1e-6);
    let odds = nearest_power(odds, ODDS_STEP);
    Candidate {
        rate: RateForecast::saturating(
            nearest_power(host.rate.median(), RATE_STEP),
            (host.rate.spread() / SPREAD_STEP).ceil() * SPREAD_STEP,
        ),
        readable: Probability::saturating((odds / (1.0 + odds)).min(MOST_READABLE)),
        ..host
    }
}

/// Gives all hosts that are about as fast as the `needed`-th fastest, or faster, its time for a shard.
fn same_time(mut candidates: Vec<Candidate>, shard_bytes: u64, needed: usize) -> Vec<Candidate> {
    let seconds = |host: &Candidate| host.rate.expected_seconds(shard_bytes) + host.rtt_seconds;
    let mut times: Vec<f64> = candidates.iter().map(seconds).collect();
    times.sort_by(f64::total_cmp);
    let needed = needed.min(times.len());
    let Some(&slowest) = needed.checked_sub(1).and_then(|last| times.get(last)) else {
        return candidates;
    };
    let same = slowest * SAME_TIME.0 + SAME_TIME.1;
    for host in &mut candidates {
        if seconds(host) <= same {
            host.rate = RateForecast::saturating(shard_bytes as f64 / slowest.max(1e-6), 0.0);
            host.rtt_seconds = 0.0;
        }
    }
    candidates
}

/// The power of `step` that is nearest to `value` on a log scale. Values below 1e-9 count as 1e-9.
fn nearest_power(value: f64, step: f64) -> f64 {
    let steps = (value.max(1e-9).ln() / step.ln()).round();
    step.powf(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(rate: f64, readable: f64) -> Candidate {
        Candidate {
            rate: RateForecast::saturating(rate, 0.2),
            rtt_seconds: 0.01,
            readable: Probability::saturating(readable),
            domains: [None; 2],
            draw: 0,
        }
    }

    #[test]
    fn hosts_within_the_errors_of_measurement_become_equal() {
        let mut hosts = vec![host(100e6, 0.9); 5];
        hosts.extend([host(108e6, 0.905), host(20e6, 0.5)]);
        let level = level(hosts, 300_000_000, Width::FALCON);
        assert!(level[..6].iter().all(|host| *host == level[0]), "{level:?}");
        assert!(level[6].rate.median() < 25e6 && level[6].readable < level[0].readable);
    }

    #[test]
    fn no_claim_is_believed_without_bounds() {
        let level = level(vec![host(1e6, 1.0), host(0.0, 0.0)], 0, Width::FALCON);
        assert!((level[0].readable.value() - MOST_READABLE).abs() < 1e-12);
        assert!(level[1].readable.value() > 0.0);
        assert!(super::level(Vec::new(), 1, Width::FALCON).is_empty());
    }
}
