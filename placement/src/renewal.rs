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

/// Rows of an older checkpoint that a new version can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OlderRows {
    /// A host for each shard of them that is there, as an index into the candidates.
    pub hosts: Vec<usize>,
    /// How many shards a restore needs.
    pub data: usize,
    /// Bytes that the new version would store again, before coding.
    pub stored_bytes: u64,
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
    // The part of J that depends on what is stored again.
    let loss = |again: &[bool], seconds: f64| {
        let kept = readable.iter().zip(again).filter(|(_, again)| !**again);
        let least = kept
            .map(|(readable, _)| *readable)
            .fold(new, Probability::min);
        seconds + stake.need.value() * least.complement().value() * stake.work_seconds
    };
    let mut weakest_first: Vec<usize> = (0..rows.len()).collect();
    weakest_first.sort_by_key(|at| readable[*at]);
    let mut again = vec![false; rows.len()];
    let mut best = again.clone();
    let mut least = loss(&again, 0.0);
    let mut seconds = 0.0;
    for at in weakest_first {
        again[at] = true;
        seconds += store_seconds(&rows[at]);
        let lost = loss(&again, seconds);
        if lost < least {
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
        // Four hosts at 0.6 can be read with 0.475, five with 0.683.
        let spare = [rows(&[0, 1, 2, 3], 300_000_000)];
        assert_eq!(again(&spare, &[0.6; 5], 0.1, HOUR), [true]);
        assert_eq!(again(&spare, &[0.99; 5], 0.1, HOUR), [false]);
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
