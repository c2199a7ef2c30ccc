//! How many shards: the cheapest code that reaches a target.

use crate::joint::{Joint, at_least};
use crate::objective::{Candidate, Stake, Width};
use crate::probability::Probability;
use crate::select::{Choice, choose};

/// Most data shards that are considered: more of them use more hosts and save few bytes.
const DATA_MAX: usize = 16;

/// Most parity shards that are considered.
const PARITY_MAX: usize = 8;

/// Cost of one more host, in images sent: a connection, an entry in the host's catalog, work for its disk.
const HOST_COST: f64 = 0.02;

/// Work at stake, in seconds, that outweighs the time of any transfer: with it the objective looks for
/// reliability alone.
const ALL_FOR_RELIABILITY: f64 = 1e12;

/// What a code costs, in images: the bytes that are sent and stored, `(data + parity) / data`, and 0.02
/// for each host.
#[must_use]
pub fn cost(width: Width) -> f64 {
    width.expansion() + HOST_COST * width.total() as f64
}

/// A code, the hosts for it, and what was reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The code.
    pub width: Width,
    /// The hosts, as indices into the candidates, and their score.
    pub choice: Choice,
    /// Whether the target is reached. If not, this is the most reliable code.
    pub reaches_target: bool,
}

/// The cheapest code with which enough hosts can be read with probability `target`; the most
/// reliable one if none reaches it. `stake.width` is ignored. `None` without candidates.
#[must_use]
pub fn cheapest(
    candidates: &[Candidate],
    stake: &Stake,
    joint: &impl Joint,
    target: Probability,
) -> Option<Chosen> {
    let mut readable: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
    readable.sort_unstable_by(|a, b| b.cmp(a));
    let try_width = |width: &Width| reliable_enough(candidates, stake, joint, *width, target);
    let widths = by_cost(candidates.len());
    // A code needs no search for hosts if even the most reliable ones, taken as independent, miss the target.
    let possible = |width: &&Width| {
        let top = readable.iter().take(width.total()).copied();
        at_least(top, width.data()) >= target
    };
    let mut reaching = widths.iter().filter(possible).filter_map(try_width);
    if let Some(chosen) = reaching.find(|chosen| chosen.reaches_target) {
        return Some(chosen);
    }
    let all = widths.iter().filter_map(try_width);
    // Of several codes that are equally reliable, the first one is the cheapest.
    all.reduce(|best, next| {
        if next.choice.score.reliability > best.choice.score.reliability {
            next
        } else {
            best
        }
    })
}

/// The best hosts for one code; if they miss the target, the most reliable ones.
fn reliable_enough(
    candidates: &[Candidate],
    stake: &Stake,
    joint: &impl Joint,
    width: Width,
    target: Probability,
) -> Option<Chosen> {
    let stake = Stake { width, ..*stake };
    let choice = choose(candidates, &stake, joint).ok()?;
    let reaches = |choice: &Choice| choice.score.reliability >= target;
    if reaches(&choice) {
        return Some(Chosen {
            width,
            choice,
            reaches_target: true,
        });
    }
    let careful = Stake {
        work_seconds: ALL_FOR_RELIABILITY,
        need: Probability::ONE,
        ..stake
    };
    let mut choice = choose(candidates, &careful, joint).ok()?;
    choice.score = crate::objective::score(candidates, &choice.hosts, &stake, joint);
    let reaches_target = reaches(&choice);
    Some(Chosen {
        width,
        choice,
        reaches_target,
    })
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

/// The codes that need at most `hosts` hosts, cheapest first.
fn by_cost(hosts: usize) -> Vec<Width> {
    let mut widths: Vec<Width> = (1..=DATA_MAX)
        .flat_map(|data| (0..=PARITY_MAX).filter_map(move |parity| Width::new(data, parity)))
        .filter(|width| width.total() <= hosts)
        .collect();
    widths.sort_by(|a, b| cost(*a).total_cmp(&cost(*b)));
    widths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bandwidth::RateForecast;
    use crate::joint::Independent;

    fn pool(readable: &[f64]) -> Vec<Candidate> {
        let host = |readable: &f64| Candidate {
            rate: RateForecast::new(1e8, 0.0).unwrap(),
            rtt_seconds: 0.0,
            readable: Probability::new(*readable).unwrap(),
            domains: [None; 2],
            draw: 0,
        };
        readable.iter().map(host).collect()
    }

    fn cheapest_of(readable: &[f64], target: f64) -> Chosen {
        let candidates = pool(readable);
        let stake = Stake {
            stored_bytes: 1 << 30,
            width: Width::FALCON,
            lead_seconds: 0.0,
            uplink_bytes_per_second: None,
            need: Probability::new(0.1).unwrap(),
            work_seconds: 600.0,
        };
        let readable: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
        let target = Probability::new(target).unwrap();
        cheapest(&candidates, &stake, &Independent(&readable), target).unwrap()
    }

    #[test]
    fn too_few_hosts_cost_data_shards_and_no_parity() {
        let of = |hosts: usize| narrowed(Width::FALCON, |_| hosts);
        let code = |data| Width::new(data, 2);
        assert_eq!([of(100), of(5)], [code(3), code(3)]);
        assert_eq!([of(4), of(3)], [code(2), code(1)]);
        assert_eq!([of(2), of(0)], [None, None]);
        // Four hosts have room for a third of the image, three of them for half of it, and none for all.
        let by_room = |width: Width| [0, 3, 4][width.data() - 1];
        assert_eq!(narrowed(Width::FALCON, by_room), None);
        let by_room = |width: Width| [3, 3, 4][width.data() - 1];
        assert_eq!(narrowed(Width::FALCON, by_room), code(1));
    }

    #[test]
    fn better_hosts_need_less_redundancy() {
        let good = cheapest_of(&[0.9999; 12], 0.999);
        let fair = cheapest_of(&[0.97; 12], 0.999);
        let poor = cheapest_of(&[0.8; 12], 0.999);
        for chosen in [&good, &fair, &poor] {
            assert!(chosen.reaches_target, "{chosen:?}");
            assert!(chosen.choice.score.reliability.value() >= 0.999);
        }
        assert!(cost(good.width) < cost(fair.width) && cost(fair.width) < cost(poor.width));
    }

    #[test]
    fn no_cheaper_code_reaches_the_target() {
        let chosen = cheapest_of(&[0.95; 10], 0.999);
        let hosts = [Probability::new(0.95).unwrap(); 10];
        for width in by_cost(10) {
            if cost(width) < cost(chosen.width) {
                let reached = at_least(hosts.iter().take(width.total()).copied(), width.data());
                assert!(reached.value() < 0.999, "{width:?}");
            }
        }
    }

    #[test]
    fn a_target_out_of_reach_gives_the_most_reliable_code_and_says_so() {
        let chosen = cheapest_of(&[0.5; 4], 0.999_999);
        assert!(!chosen.reaches_target);
        assert_eq!(chosen.width, Width::new(1, 3).unwrap());
    }

    #[test]
    fn bad_hosts_are_passed_over_to_reach_the_target() {
        let mut readable = vec![0.5; 10];
        readable.extend([0.999; 6]);
        let chosen = cheapest_of(&readable, 0.9999);
        assert!(chosen.reaches_target);
        assert!(chosen.choice.hosts.iter().all(|host| *host >= 10));
    }

    #[test]
    fn without_hosts_there_is_no_code() {
        let stake = Stake {
            stored_bytes: 1,
            width: Width::FALCON,
            lead_seconds: 0.0,
            uplink_bytes_per_second: None,
            need: Probability::ONE,
            work_seconds: 1.0,
        };
        assert!(cheapest(&[], &stake, &Independent(&[]), Probability::ONE).is_none());
    }
}
