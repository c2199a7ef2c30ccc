//! How many shards: the cheapest code that reaches a target.

use std::collections::{BTreeMap, BTreeSet};

use crate::joint::Joint;
use crate::objective::{Candidate, Stake, Width};
use crate::probability::Probability;
use crate::select::{Choice, choose, choose_independent};

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

/// Hosts among which the code is chosen. With the code, the hosts are then chosen among all.
const SHORTLIST: usize = 64;

/// Most hosts of one site, or one network, among these, as many as there are parity shards at most: else the
/// best site could be all of them.
const OF_ONE_SITE_MAX: usize = PARITY_MAX;

/// A code is searched for hosts if a first set of hosts fails at most this many times as often as allowed: the
/// search seldom gains more.
const SEARCH_WORTH: f64 = 4.0;

/// Most codes for which hosts are searched.
const SEARCHES_MAX: usize = 12;

/// Codes that fail at most this many times as often as the most reliable one count as equally reliable.
const AS_RELIABLE: f64 = 1.1;

/// The probability of being able to restart that a code reaches which nobody asked for.
pub const TARGET_USUAL: f64 = 0.999;

/// Which codes may be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Codes with fewer parity shards are not considered.
    pub least_parity: usize,
    /// Most bytes on all hosts for each byte stored.
    pub most_expansion: f64,
    /// Most shards, each of which needs a host of its own.
    pub most_hosts: usize,
}

impl Bounds {
    /// Bounds that allow every code.
    pub const FREE: Self = Self {
        least_parity: 0,
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
            most_hosts: (hosts * 2 / 3).max(Width::FALCON.total()),
        }
    }

    fn allow(self, width: Width) -> bool {
        width.parity() >= self.least_parity
            && width.expansion() <= self.most_expansion
            && width.total() <= self.most_hosts
    }
}

/// A code, the hosts for it, and what was reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The numbers of data and parity shards.
    pub width: Width,
    /// The hosts, as indices into the candidates, and their score.
    pub choice: Choice,
    /// Whether the target is reached.
    pub reaches_target: bool,
}

/// The cheapest code within `bounds` with which enough hosts can be read with probability `target`, and hosts
/// for it. If there is none: the cheapest with which they can be as long as no incident takes down the whole
/// pool, against which no code helps. If there is none either: the cheapest of those that fail at most 1.1
/// times as often as the most reliable one. `stake.width` is ignored. `None` if there are too few candidates for
/// any code.
///
/// The code is chosen with 64 of the candidates, half of them the most reliable ones, half the fastest.
#[must_use]
pub fn cheapest(
    candidates: &[Candidate],
    stake: &Stake,
    joint: &impl Joint,
    target: Probability,
    bounds: Bounds,
) -> Option<Chosen> {
    let listed = shortlist(candidates, stake);
    let few: Vec<Candidate> = listed.iter().map(|host| candidates[*host]).collect();
    let among = Among {
        joint,
        hosts: &listed,
    };
    let (width, aim) = code(&few, stake, &among, target, bounds)?;
    let all = for_code(candidates, stake, joint, width, aim)?;
    // The search among all hosts ends elsewhere than that among few, seldom with a worse set.
    let choice = if all.score.reliability >= aim {
        all
    } else {
        let mut choice = for_code(&few, stake, &among, width, aim)?;
        choice.hosts = choice.hosts.iter().map(|host| listed[*host]).collect();
        if choice.score.reliability > all.score.reliability {
            choice
        } else {
            all
        }
    };
    Some(Chosen {
        width,
        reaches_target: choice.score.reliability >= target,
        choice,
    })
}

/// The one of both that costs a job less time ([`Score::total`](crate::objective::Score::total)): `forecast`, or
/// hosts for the code `usual`, where there are enough. A code that reaches a target may cost more in every
/// checkpoint than the restores that it saves.
#[must_use]
pub fn less_costly(
    forecast: Chosen,
    usual: Option<Width>,
    candidates: &[Candidate],
    stake: &Stake,
    joint: &impl Joint,
) -> Chosen {
    let usual = usual.and_then(|width| {
        let choice = choose(candidates, &Stake { width, ..*stake }, joint).ok()?;
        Some(Chosen {
            width,
            choice,
            reaches_target: true,
        })
    });
    match usual {
        Some(usual) if usual.choice.score.total() < forecast.choice.score.total() => usual,
        _ => forecast,
    }
}

/// The code, and the probability for which hosts are to be chosen for it.
fn code(
    candidates: &[Candidate],
    stake: &Stake,
    joint: &impl Joint,
    target: Probability,
    bounds: Bounds,
) -> Option<(Width, Probability)> {
    let at_best = joint.at_best().value();
    // What no code can prevent is left out of this aim.
    let lower_aim = Probability::saturating(target.value() * at_best);
    let (mut of_lower_aim, mut most_reliable) = (None, Vec::new());
    let mut searches = 0;
    for width in by_cost(candidates.len(), bounds) {
        let Some(first) = most_reliable_hosts(candidates, stake, joint, width) else {
            continue;
        };
        let fails = |reliability: Probability| 1.0 - reliability.value() / at_best.max(1e-9);
        let expected = fails(first.score.reliability);
        most_reliable.push((width, expected));
        let aim = if of_lower_aim.is_none() {
            lower_aim
        } else {
            target
        };
        let mut reached = first.score.reliability;
        let is_worth = expected <= SEARCH_WORTH * fails(aim).max(0.0);
        if reached < target && is_worth && searches < SEARCHES_MAX {
            searches += 1;
            let found = for_code(candidates, stake, joint, width, target);
            reached = found.map_or(reached, |choice| choice.score.reliability.max(reached));
        }
        if reached >= target {
            return Some((width, target));
        }
        if of_lower_aim.is_none() && reached >= lower_aim {
            of_lower_aim = Some((width, lower_aim));
            if target.value() > at_best {
                break;
            }
        }
    }
    let least = most_reliable.iter().map(|(_, fails)| *fails);
    let least = least.fold(f64::INFINITY, f64::min).max(0.0);
    let best = most_reliable
        .iter()
        .find(|(_, fails)| *fails <= AS_RELIABLE * least + f64::EPSILON);
    of_lower_aim.or_else(|| best.map(|(width, _)| (*width, Probability::ONE)))
}

/// Some of the hosts of a joint distribution.
struct Among<'a, J> {
    joint: &'a J,
    hosts: &'a [usize],
}

impl<J: Joint> Joint for Among<'_, J> {
    fn at_least(&self, hosts: &[usize], needed: usize) -> Probability {
        let hosts: Vec<usize> = hosts.iter().map(|host| self.hosts[*host]).collect();
        self.joint.at_least(&hosts, needed)
    }

    fn at_best(&self) -> Probability {
        self.joint.at_best()
    }
}

/// The hosts for one code: those of the best score if enough of them can be read with probability `aim`, else
/// the most reliable ones.
fn for_code(
    candidates: &[Candidate],
    stake: &Stake,
    joint: &impl Joint,
    width: Width,
    aim: Probability,
) -> Option<Choice> {
    let stake = Stake { width, ..*stake };
    let choice = choose(candidates, &stake, joint).ok()?;
    if choice.score.reliability >= aim {
        return Some(choice);
    }
    let careful = careful(&stake);
    let mut choice = choose(candidates, &careful, joint).ok()?;
    choice.score = crate::objective::score(candidates, &choice.hosts, &stake, joint);
    Some(choice)
}

/// The hosts that are the most reliable if they are independent, and how reliable they are by `joint`.
fn most_reliable_hosts(
    candidates: &[Candidate],
    stake: &Stake,
    joint: &impl Joint,
    width: Width,
) -> Option<Choice> {
    let stake = Stake { width, ..*stake };
    let mut choice = choose_independent(candidates, &careful(&stake)).ok()?;
    choice.score = crate::objective::score(candidates, &choice.hosts, &stake, joint);
    Some(choice)
}

/// The stake with which the objective looks for reliability alone.
const fn careful(stake: &Stake) -> Stake {
    Stake {
        work_seconds: ALL_FOR_RELIABILITY,
        need: Probability::ONE,
        ..*stake
    }
}

/// At most [`SHORTLIST`] of the candidates: half of them the most reliable ones, half the fastest. As long as
/// there are others, at most [`OF_ONE_SITE_MAX`] of a site.
fn shortlist(candidates: &[Candidate], stake: &Stake) -> Vec<usize> {
    if candidates.len() <= SHORTLIST {
        return (0..candidates.len()).collect();
    }
    let seconds: Vec<f64> = candidates.iter().map(|c| c.shard_seconds(stake)).collect();
    let draw = |a: usize, b: usize| candidates[a].draw.cmp(&candidates[b].draw).then(a.cmp(&b));
    let readable = |a: usize, b: usize| candidates[b].readable.cmp(&candidates[a].readable);
    let fast = |a: usize, b: usize| seconds[a].total_cmp(&seconds[b]);
    let mut listed = BTreeSet::new();
    let mut of_sites = BTreeMap::new();
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    let mut take = |order: &[usize], total: usize| {
        for host in order {
            if listed.len() == total {
                break;
            }
            let site = candidates[*host].domains[0];
            let others = site.map_or(0, |site| of_sites.get(&site).copied().unwrap_or(0));
            if others < OF_ONE_SITE_MAX && listed.insert(*host) {
                site.map(|site| of_sites.insert(site, others + 1));
            }
        }
    };
    order.sort_unstable_by(|a, b| readable(*a, *b).then(fast(*a, *b)).then(draw(*a, *b)));
    take(&order, SHORTLIST / 2);
    order.sort_unstable_by(|a, b| fast(*a, *b).then(readable(*a, *b)).then(draw(*a, *b)));
    take(&order, SHORTLIST);
    for host in order {
        if listed.len() < SHORTLIST {
            listed.insert(host);
        }
    }
    listed.into_iter().collect()
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

/// The codes within `bounds` that need at most `hosts` hosts, cheapest first.
fn by_cost(hosts: usize, bounds: Bounds) -> Vec<Width> {
    let mut widths: Vec<Width> = (1..=DATA_MAX)
        .flat_map(|data| (0..=PARITY_MAX).filter_map(move |parity| Width::new(data, parity)))
        .filter(|width| width.total() <= hosts && bounds.allow(*width))
        .collect();
    widths.sort_by(|a, b| cost(*a).total_cmp(&cost(*b)));
    widths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bandwidth::RateForecast;
    use crate::joint::{Independent, at_least};

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

    fn stake_of(stored_bytes: u64) -> Stake {
        Stake {
            stored_bytes,
            width: Width::FALCON,
            lead_seconds: 0.0,
            uplink_bytes_per_second: None,
            need: Probability::new(0.1).unwrap(),
            work_seconds: 600.0,
        }
    }

    fn cheapest_of(readable: &[f64], target: f64) -> Chosen {
        cheapest_within(Bounds::FREE, readable, target)
    }

    fn cheapest_within(bounds: Bounds, readable: &[f64], target: f64) -> Chosen {
        let candidates = pool(readable);
        let stake = stake_of(1 << 30);
        let readable: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
        let target = Probability::new(target).unwrap();
        let joint = Independent(&readable);
        cheapest(&candidates, &stake, &joint, target, bounds).unwrap()
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
        for width in by_cost(10, Bounds::FREE) {
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
        let none = cheapest(
            &[],
            &stake,
            &Independent(&[]),
            Probability::ONE,
            Bounds::FREE,
        );
        assert!(none.is_none());
    }
    #[test]
    fn a_code_that_nobody_asked_for_can_lose_two_hosts_stores_three_times_and_leaves_spares() {
        let good = cheapest_within(Bounds::usual(12), &[0.995; 12], 0.9);
        assert!(good.reaches_target && good.width.parity() == 2, "{good:?}");
        assert_eq!(good.width, Width::new(6, 2).unwrap());
        // 1+8 would fail least.
        let poor = cheapest_within(Bounds::usual(9), &[0.6; 9], 0.999);
        assert!(!poor.reaches_target);
        assert_eq!(poor.width, Width::new(2, 4).unwrap());
    }

    /// Independent hosts in a pool that is gone as a whole for a share of the time.
    struct Gone<'a>(Independent<'a>, f64);

    impl Joint for Gone<'_> {
        fn at_least(&self, hosts: &[usize], needed: usize) -> Probability {
            let there = self.0.at_least(hosts, needed).value();
            Probability::saturating(there * (1.0 - self.1))
        }

        fn at_best(&self) -> Probability {
            Probability::saturating(1.0 - self.1)
        }
    }

    #[test]
    fn what_no_code_prevents_does_not_drive_the_code() {
        let candidates = pool(&[0.95; 20]);
        let readable = [Probability::new(0.95).unwrap(); 20];
        let stake = stake_of(1 << 30);
        let target = Probability::new(0.999).unwrap();
        let of = |gone| {
            let joint = Gone(Independent(&readable), gone);
            cheapest(&candidates, &stake, &joint, target, Bounds::FREE).unwrap()
        };
        let (safe, unsafe_pool) = (of(0.0), of(0.002));
        assert!(safe.reaches_target && !unsafe_pool.reaches_target);
        assert_eq!(safe.width, unsafe_pool.width);
        // As long as the target can be reached, the code makes up for the pool.
        let half = of(0.000_9);
        assert!(half.reaches_target && cost(half.width) > cost(safe.width));
    }

    #[test]
    fn of_many_hosts_the_good_ones_are_found_in_small_sites() {
        let mut candidates = pool(&[0.97; 500]);
        for (host, candidate) in candidates.iter_mut().enumerate() {
            candidate.domains[0] = Some(crate::joint::DomainId(u32::from(host >= 480)));
            candidate.draw = host as u64;
        }
        let readable: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
        let listed = shortlist(&candidates, &careful(&stake_of(1 << 30)));
        assert_eq!(listed.len(), SHORTLIST);
        assert!(listed.iter().filter(|host| **host >= 480).count() >= OF_ONE_SITE_MAX);
        let target = Probability::new(0.999).unwrap();
        let joint = Independent(&readable);
        let chosen = cheapest(
            &candidates,
            &stake_of(1 << 30),
            &joint,
            target,
            Bounds::FREE,
        );
        assert!(chosen.unwrap().reaches_target);
    }
}
