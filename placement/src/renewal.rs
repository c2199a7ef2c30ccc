//! Which rows of older checkpoints a version stores again because of the hosts that have them.
//!
//! A version that uses rows of older checkpoints, its origins, can be restored only if those of each can be read. Their
//! hosts were chosen when the rows were stored; since then some may have left, and the others may be less likely to
//! stay. Storing rows again takes time, and gives them the hosts that are chosen now. By the objective J
//! ([`objective`](crate::objective)) it pays when
//!
//! ```text
//! need * (CTR(after) - CTR(before)) * work > store
//! ```
//!
//! The `CTR` of a version is taken as that of the rows which are least likely to be read: rows of one job are on the same
//! hosts as far as possible, so that they are lost together.

use crate::joint::Joint;
use crate::objective::{Candidate, Stake, score};
use crate::probability::Probability;

/// Rows are at risk only if a version that uses them is at least this many times as likely to be unreadable as one that
/// stores them again. Forecasts are no more exact: the odds of a host are known to a factor of 1.25
/// ([`levels`](crate::levels)), and FALCON's code is lost with its third host. Otherwise small images, which take hardly
/// any time, would be stored whole each time.
const RISK_RATIO_MIN: f64 = 2.0;

/// Rows with more spare shards than these are left where they are. What the forecast fears for them is that many hosts
/// leave together, and that is known less well: with a limit of two, desktops that go home each night had all stored
/// again each morning.
const SPARE_SHARDS_MAX: usize = 1;

/// Rows of an older checkpoint that a new version can use. `H` names a host; by default it is an index into candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OlderRows<H = usize> {
    /// A host for each shard of them that is there.
    pub hosts: Vec<H>,
    /// How many shards a restore needs.
    pub data: usize,
    /// Bytes that the new version would store again, before coding.
    pub stored_bytes: u64,
}

impl<H> OlderRows<H> {
    /// The same rows, with other names of their hosts.
    pub fn renamed<N>(&self, names: impl Fn(&[H]) -> Vec<N>) -> OlderRows<N> {
        OlderRows {
            hosts: names(&self.hosts),
            data: self.data,
            stored_bytes: self.stored_bytes,
        }
    }
}

impl OlderRows {
    /// How many hosts can be lost before a restore can't read them.
    const fn spare_shards(&self) -> usize {
        self.hosts.len().saturating_sub(self.data)
    }
}

/// Which of these `rows` to store again, so that J is least, if the rest of the version goes to the hosts `chosen`
/// (indices into `candidates`).
#[must_use]
pub fn worth_storing_again(
    rows: &[OlderRows],
    candidates: &[Candidate],
    chosen: &[usize],
    stake: &Stake,
    joint: &impl Joint,
) -> Vec<bool> {
    let readable: Vec<Probability> = rows
        .iter()
        .map(|rows| joint.at_least(&rows.hosts, rows.data))
        .collect();
    let store_seconds = |rows: &OlderRows| {
        let alone = Stake {
            stored_bytes: rows.stored_bytes,
            lead_seconds: 0.0,
            ..*stake
        };
        score(candidates, chosen, &alone, joint).store_seconds
    };
    let new = joint.at_least(chosen, stake.width.data());
    let unreadable = |again: &[bool]| {
        let kept = readable.iter().zip(again).filter(|(_, again)| !**again);
        let least = kept.map(|(readable, _)| *readable);
        least.fold(new, Probability::min).complement().value()
    };
    // The part of J that depends on what is stored again.
    let loss = |unreadable: f64, seconds: f64| {
        seconds + stake.need.value() * unreadable * stake.work_seconds
    };
    let is_weak = |at: &usize| rows[*at].spare_shards() <= SPARE_SHARDS_MAX;
    let mut weakest_first: Vec<usize> = (0..rows.len()).filter(is_weak).collect();
    weakest_first.sort_by_key(|at| readable[*at]);
    let mut again = vec![false; rows.len()];
    let mut best = again.clone();
    let now = unreadable(&again);
    let mut least = loss(now, 0.0);
    let mut seconds = 0.0;
    for at in weakest_first {
        again[at] = true;
        seconds += store_seconds(&rows[at]);
        let after = unreadable(&again);
        let lost = loss(after, seconds);
        if lost < least && now >= RISK_RATIO_MIN * after {
            least = lost;
            best.clone_from(&again);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bandwidth::RateForecast;
    use crate::joint::{Independent, LEVELS};
    use crate::objective::Width;

    const HOUR: f64 = 3600.0;

    /// Hosts at 10 MB/s that can be read with these probabilities.
    fn candidates(readable: &[f64]) -> Vec<Candidate> {
        let of = |readable: &f64| Candidate {
            rate: RateForecast::saturating(10e6, 1.0),
            rtt_seconds: 0.0,
            readable: Probability::saturating(*readable),
            free_bytes: u64::MAX,
            domains: [None; LEVELS],
            draw: 0,
        };
        readable.iter().map(of).collect()
    }

    /// What of `rows` is stored again for new rows on the first five hosts.
    fn again(rows: &[OlderRows], readable: &[f64], need: f64, work_seconds: f64) -> Vec<bool> {
        let stake = Stake {
            stored_bytes: 0,
            width: Width::FALCON,
            lead_seconds: 0.1,
            uplink_bytes_per_second: None,
            need: Probability::saturating(need),
            work_seconds,
        };
        let candidates = candidates(readable);
        let each: Vec<Probability> = candidates.iter().map(|one| one.readable).collect();
        let chosen = [0, 1, 2, 3, 4];
        worth_storing_again(rows, &candidates, &chosen, &stake, &Independent(&each))
    }

    fn rows(hosts: &[usize], stored_bytes: u64) -> OlderRows {
        OlderRows {
            hosts: hosts.to_vec(),
            data: 3,
            stored_bytes,
        }
    }

    #[test]
    fn bare_rows_are_stored_again_if_the_work_at_stake_is_worth_it() {
        // 300 MB take 10 s or more on the slowest host. Three hosts at 0.9 can be read with 0.729, the new ones with
        // 0.9914: the loss of all work is less likely by 0.26 * need.
        let bare = [rows(&[0, 1, 2], 300_000_000)];
        assert_eq!(again(&bare, &[0.9; 5], 0.1, HOUR), [true]);
        assert_eq!(
            again(&bare, &[0.9; 5], 0.001, HOUR),
            [false],
            "it is hardly needed"
        );
        assert_eq!(
            again(&bare, &[0.9; 5], 0.1, 60.0),
            [false],
            "little work is at stake"
        );
        assert_eq!(
            again(&bare, &[0.9999; 5], 0.1, HOUR),
            [false],
            "its hosts stay"
        );
    }

    #[test]
    fn new_hosts_that_are_no_better_change_nothing() {
        let bare = [rows(&[5, 6, 7], 1)];
        let readable = [0.5, 0.5, 0.5, 0.5, 0.5, 0.9, 0.9, 0.9];
        assert_eq!(again(&bare, &readable, 0.5, 100.0 * HOUR), [false]);
    }

    #[test]
    fn rows_that_can_lose_a_host_are_at_risk_if_their_hosts_often_fail() {
        // Four hosts at 0.8 can be read with 0.819, five with 0.942.
        let spare = [rows(&[0, 1, 2, 3], 300_000_000)];
        assert_eq!(again(&spare, &[0.8; 5], 0.1, HOUR), [true]);
        assert_eq!(again(&spare, &[0.99; 5], 0.1, HOUR), [false]);
    }

    #[test]
    fn rows_that_can_lose_two_hosts_are_left_where_they_are() {
        let spare = OlderRows {
            data: 1,
            ..rows(&[5, 6, 7], 1)
        };
        let readable = [[0.999; 5].as_slice(), &[0.5; 3]].concat();
        assert_eq!(again(&[spare], &readable, 0.5, 1000.0 * HOUR), [false]);
    }

    #[test]
    fn hosts_that_are_hardly_better_are_not_worth_it_however_small_the_rows_are() {
        let small = [rows(&[5, 6, 7, 8], 1)];
        let readable = |old: f64| -> Vec<f64> { [[0.98; 5], [old; 5]].concat() };
        assert_eq!(again(&small, &readable(0.995), 0.5, 1000.0 * HOUR), [false]);
        assert_eq!(again(&small, &readable(0.98), 0.5, 1000.0 * HOUR), [true]);
    }

    #[test]
    fn several_weak_rows_are_stored_again_together_or_not_at_all() {
        // One of them alone gains nothing, as a restore needs the other one, too.
        let both = |bytes| [rows(&[0, 1, 2], bytes), rows(&[0, 1, 2], bytes)];
        assert_eq!(
            again(&both(300_000_000), &[0.9; 5], 0.1, HOUR),
            [true, true]
        );
        assert_eq!(
            again(&both(3_000_000_000), &[0.9; 5], 0.1, HOUR),
            [false, false]
        );
    }

    #[test]
    fn rows_that_are_worse_than_the_others_go_alone() {
        let rows = [rows(&[0, 1, 2], 1 << 40), rows(&[0, 1, 5], 1 << 20)];
        let readable = [0.99, 0.99, 0.99, 0.99, 0.99, 0.3];
        assert_eq!(again(&rows, &readable, 0.3, HOUR), [false, true]);
    }
}
