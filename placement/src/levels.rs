//! Hosts whose differences are below the error of measurement are made equal. Then the differences that are
//! known decide between hosts, and hosts that are equal take turns.

use crate::bandwidth::RateForecast;
use crate::objective::{Candidate, Stake};
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

/// The candidates without differences of rates and odds below the error of measurement, whatever the code.
#[must_use]
pub fn rounded(candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.into_iter().map(step).collect()
}

/// [`rounded`] candidates for the code of `stake`, among which [`select`](crate::select) chooses: hosts that are
/// about as fast as the slowest one that this code needs, or faster, are equally fast. The next code needs other
/// hosts, so it has to be levelled anew.
#[must_use]
pub fn level(rounded: &[Candidate], stake: &Stake) -> Vec<Candidate> {
    let total = stake.width.total();
    // A host's rate makes no difference beyond the host's share of what this machine can send.
    let share = stake.uplink_bytes_per_second.map(|up| up / total as f64);
    let limited = |host: &Candidate| Candidate {
        rate: share.map_or(host.rate, |share| host.rate.limited_to(share)),
        ..*host
    };
    same_time(rounded.iter().map(limited).collect(), stake)
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

/// Gives all hosts that are about as fast as the slowest one that is needed, or faster, its time for a shard. Hosts
/// without room for a shard are not needed.
fn same_time(mut candidates: Vec<Candidate>, stake: &Stake) -> Vec<Candidate> {
    let shard_bytes = stake.shard_bytes().max(1);
    let seconds = |host: &Candidate| host.rate.expected_seconds(shard_bytes) + host.rtt_seconds;
    let with_room = candidates.iter().filter(|host| host.has_room(stake));
    let mut times: Vec<f64> = with_room.map(seconds).collect();
    let needed = stake.width.total().min(times.len());
    let Some(last) = needed.checked_sub(1) else {
        return candidates;
    };
    let (_, &mut slowest, _) = times.select_nth_unstable_by(last, f64::total_cmp);
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
    use crate::objective::Width;

    fn stake(width: Width, uplink: Option<f64>) -> Stake {
        Stake {
            stored_bytes: 300_000_000,
            width,
            lead_seconds: 0.0,
            uplink_bytes_per_second: uplink,
            need: Probability::ONE,
            work_seconds: 1.0,
        }
    }

    fn host(rate: f64, readable: f64) -> Candidate {
        Candidate {
            rate: RateForecast::saturating(rate, 0.2),
            rtt_seconds: 0.01,
            readable: Probability::saturating(readable),
            free_bytes: u64::MAX,
            domains: [None; 2],
            draw: 0,
        }
    }

    #[test]
    fn hosts_within_the_errors_of_measurement_become_equal() {
        let mut hosts = vec![host(100e6, 0.9); 5];
        hosts.extend([host(108e6, 0.905), host(20e6, 0.5)]);
        let level = level(&rounded(hosts), &stake(Width::FALCON, None));
        assert!(level[..6].iter().all(|host| *host == level[0]), "{level:?}");
        assert!(level[6].rate.median() < 25e6 && level[6].readable < level[0].readable);
    }

    #[test]
    fn no_claim_is_believed_without_bounds() {
        let level = rounded(vec![host(1e6, 1.0), host(0.0, 0.0)]);
        assert!((level[0].readable.value() - MOST_READABLE).abs() < 1e-12);
        assert!(level[1].readable.value() > 0.0);
        assert!(super::level(&[], &stake(Width::FALCON, None)).is_empty());
    }

    #[test]
    fn a_code_of_few_hosts_sees_which_of_the_fast_ones_are_the_fastest() {
        let hosts = rounded(
            [200e6, 200e6, 50e6, 50e6, 50e6]
                .map(|rate| host(rate, 0.9))
                .to_vec(),
        );
        let of = |data, parity| level(&hosts, &stake(Width::new(data, parity).unwrap(), None));
        let five = of(3, 2);
        let two = of(1, 1);
        assert_eq!(five[0].rate, five[4].rate);
        assert!(two[0].rate == two[1].rate && two[0].rate.median() > 2.0 * two[4].rate.median());
    }

    #[test]
    fn a_host_without_room_is_not_the_slowest_that_is_needed() {
        let full = Candidate {
            free_bytes: 0,
            ..host(200e6, 0.9)
        };
        let hosts = rounded(vec![full, host(200e6, 0.9), host(50e6, 0.9)]);
        let level = level(&hosts, &stake(Width::new(1, 1).unwrap(), None));
        assert_eq!(level[1].rate, level[2].rate, "both are needed");
    }

    #[test]
    fn no_host_is_faster_than_its_share_of_the_uplink() {
        let hosts = rounded(
            [200e6, 100e6, 90e6, 5e6]
                .map(|rate| host(rate, 0.9))
                .to_vec(),
        );
        let level = level(&hosts, &stake(Width::new(1, 1).unwrap(), Some(100e6)));
        assert!(
            level[..3].iter().all(|host| host.rate == level[0].rate),
            "{level:?}"
        );
        assert!(level[0].rate.median() <= 50e6 && level[3].rate.median() < 6e6);
    }
}
