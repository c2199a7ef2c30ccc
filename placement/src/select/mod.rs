//! The choice of hosts: the set that minimises the objective.
//!
//! For independent hosts the best set is found exactly, in one pass over the hosts in order of speed. The
//! slowest host of a set fixes the time of the set. Among the hosts that are not slower, the most reliable
//! ones make the best set, since the objective falls with the reliability of each. A cap on the hosts of one
//! failure domain makes the sets a matroid, in which the greedy choice is still the best. For correlated
//! hosts a local search starts from that set.

mod capped;

use crate::joint::{Domains, Independent, Joint, LEVELS};
use crate::objective::{Candidate, Score, Stake, score, slowest_seconds};
use crate::probability::Probability;
use capped::CappedSet;

/// Most candidates that the local search tries in place of a chosen one.
const SHORTLIST: usize = 32;

/// Most other candidates with which exchanges of two hosts at once are tried: with more candidates, an
/// exchange of one host nearly always gains as much.
const PAIRS_MAX: usize = 12;

/// Most exchanges of the local search.
const EXCHANGES_MAX: usize = 64;

/// Smallest gain in the objective, in seconds, for which a host is exchanged.
const GAIN_MIN: f64 = 1e-9;

/// Most hosts of one failure domain in a set; `None` for any number.
pub type Caps = [Option<usize>; LEVELS];

/// Chosen hosts, as indices into the candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The hosts, fastest first.
    pub hosts: Vec<usize>,
    /// Their objective and its parts.
    pub score: Score,
    /// The cap that was kept at each level. It is larger than the parity, or `None`, where the candidates
    /// allow no smaller one.
    pub caps: Caps,
}

/// There are fewer candidates than shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} hosts for {needed} shards")]
pub struct TooFewHosts {
    /// How many candidates there are.
    pub found: usize,
    /// How many shards are to be placed, each on another host.
    pub needed: usize,
}

/// The best hosts if they are independent, with at most `parity` of them in one failure domain if the
/// candidates allow that. Exact if one level is capped; a greedy approximation if both levels are.
/// `O(N log N)` for N candidates.
///
/// # Errors
/// When there are too few candidates.
pub fn choose_independent(candidates: &[Candidate], stake: &Stake) -> Result<Choice, TooFewHosts> {
    let needed = stake.width.total();
    if candidates.len() < needed {
        let found = candidates.len();
        return Err(TooFewHosts { found, needed });
    }
    let order = by_speed(candidates, stake);
    let mut last = None;
    for caps in relaxations(stake.width.parity(), needed) {
        last = best_prefix(candidates, &order, stake, caps);
        if last.is_some() {
            break;
        }
    }
    // Without any cap there always is a set.
    last.ok_or(TooFewHosts {
        found: candidates.len(),
        needed,
    })
}

/// The best hosts that a local search finds, with `joint` as the distribution of their failures.
///
/// # Errors
/// When there are too few candidates.
pub fn choose(
    candidates: &[Candidate],
    stake: &Stake,
    joint: &impl Joint,
) -> Result<Choice, TooFewHosts> {
    let start = choose_independent(candidates, stake)?;
    Ok(improve(start, candidates, stake, joint))
}

/// Exchanges hosts as long as that lowers the objective: one at a time and, among few candidates, two.
fn improve(start: Choice, candidates: &[Candidate], stake: &Stake, joint: &impl Joint) -> Choice {
    let caps = start.caps;
    let started = score(candidates, &start.hosts, stake, joint);
    let start = Choice {
        score: started,
        ..start
    };
    let shortlist = shortlist(&start, candidates, stake);
    // The distribution is asked only about sets that can be better.
    let better_than = |hosts: &[usize], bar: f64| {
        let slowest = slowest_seconds(candidates, hosts, stake);
        let with = |reliability| Some(Score::new(stake, slowest, reliability));
        let is_better = |score: &Score| score.total() < bar - GAIN_MIN;
        with(joint.at_best()).filter(is_better)?;
        if !keeps(hosts, candidates, caps) {
            return None;
        }
        with(joint.at_least(hosts, stake.width.data())).filter(is_better)
    };
    let mut best = (start.hosts, started);
    for _ in 0..EXCHANGES_MAX {
        let others: Vec<usize> = shortlist
            .iter()
            .copied()
            .filter(|other| !best.0.contains(other))
            .collect();
        let present = best.1.total();
        let found = match best_of(singles(&best.0, &others), present, better_than) {
            None if others.len() <= PAIRS_MAX => {
                best_of(pairs(&best.0, &others), present, better_than)
            }
            found => found,
        };
        match found {
            Some(better) => best = better,
            None => break,
        }
    }
    let (mut hosts, score) = best;
    hosts.sort_by(|a, b| faster(candidates, stake, *a, *b));
    Choice { hosts, score, caps }
}

/// The best of the sets `tried`, if its objective is less than `present`. `better_than` is the score of a set whose
/// objective is less than a number, else `None`.
fn best_of(
    tried: impl Iterator<Item = Vec<usize>>,
    present: f64,
    better_than: impl Fn(&[usize], f64) -> Option<Score>,
) -> Option<(Vec<usize>, Score)> {
    let mut best: Option<(Vec<usize>, Score)> = None;
    for hosts in tried {
        let bar = best.as_ref().map_or(present, |(_, best)| best.total());
        if let Some(score) = better_than(&hosts, bar) {
            best = Some((hosts, score));
        }
    }
    best
}

/// The sets that differ from `hosts` in one host, taken from `others`.
fn singles(hosts: &[usize], others: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    (0..hosts.len()).flat_map(move |place| {
        others.iter().map(move |other| {
            let mut tried = hosts.to_vec();
            tried[place] = *other;
            tried
        })
    })
}

/// The sets that differ from `hosts` in two hosts, taken from `others`.
fn pairs(hosts: &[usize], others: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let ordered = |n: usize| (0..n).flat_map(move |a| (a + 1..n).map(move |b| (a, b)));
    ordered(hosts.len()).flat_map(move |(first, second)| {
        ordered(others.len()).map(move |(a, b)| {
            let mut tried = hosts.to_vec();
            (tried[first], tried[second]) = (others[a], others[b]);
            tried
        })
    })
}

/// The hosts that were not chosen, best first. The shortlisted ones come first, by the score of the chosen
/// set with them in it ([`with`]); the others follow in order of reliability.
#[must_use]
pub fn spares(
    choice: &Choice,
    candidates: &[Candidate],
    stake: &Stake,
    joint: &impl Joint,
) -> Vec<usize> {
    let mut near = shortlist(choice, candidates, stake);
    near.retain(|host| !choice.hosts.contains(host));
    let mut valued: Vec<(f64, usize)> = near
        .iter()
        .map(|host| (with(choice, candidates, stake, joint, *host).total(), *host))
        .collect();
    valued.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut rest: Vec<usize> = (0..candidates.len())
        .filter(|host| !choice.hosts.contains(host) && !near.contains(host))
        .collect();
    rest.sort_by(|a, b| more_reliable(candidates, stake, *a, *b));
    valued
        .into_iter()
        .map(|(_, host)| host)
        .chain(rest)
        .collect()
}

/// The score of the best set in which `host`, which was not chosen, takes the place of one that was.
#[must_use]
pub fn with(
    choice: &Choice,
    candidates: &[Candidate],
    stake: &Stake,
    joint: &impl Joint,
    host: usize,
) -> Score {
    let tried = (0..choice.hosts.len()).map(|place| {
        let mut tried = choice.hosts.clone();
        tried[place] = host;
        score(candidates, &tried, stake, joint)
    });
    tried
        .min_by(|a, b| a.total().total_cmp(&b.total()))
        .unwrap_or(choice.score)
}

/// The score of the best set in which another host takes the place of `host`, which was chosen; `None` when
/// there is no other host.
#[must_use]
pub fn without(
    choice: &Choice,
    candidates: &[Candidate],
    stake: &Stake,
    joint: &impl Joint,
    host: usize,
) -> Option<Score> {
    let place = choice.hosts.iter().position(|chosen| *chosen == host)?;
    let others = if candidates.len() <= SHORTLIST {
        (0..candidates.len()).collect()
    } else {
        shortlist(choice, candidates, stake)
    };
    let tried = others
        .into_iter()
        .filter(|other| !choice.hosts.contains(other))
        .map(|other| {
            let mut tried = choice.hosts.clone();
            tried[place] = other;
            score(candidates, &tried, stake, joint)
        });
    tried.min_by(|a, b| a.total().total_cmp(&b.total()))
}

/// Caps to try, strictest first: `parity` hosts of a site and of an owner; then any number of an owner;
/// then more and more of a site; then any number of both.
fn relaxations(parity: usize, total: usize) -> impl Iterator<Item = Caps> {
    let strict = parity.max(1);
    let sites = (strict..total).map(|cap| [Some(cap), None]);
    std::iter::once([Some(strict), Some(strict)])
        .chain(sites)
        .chain(std::iter::once([None, None]))
}

/// Takes the most reliable set among the fastest 1, 2, 3, ... hosts and returns the best of these sets;
/// `None` when no set keeps the caps. `order` is that of [`by_speed`].
fn best_prefix(
    candidates: &[Candidate],
    order: &[(f64, usize)],
    stake: &Stake,
    caps: Caps,
) -> Option<Choice> {
    let needed = stake.width.total();
    let mut set = CappedSet::new(needed, caps);
    let mut best: Option<(f64, Vec<usize>, Score)> = None;
    for (seconds, host) in order {
        // No set with this host or a slower one is better than if all its hosts were certain to be readable.
        let bound = Score::new(stake, *seconds, Probability::ONE).total();
        if best.as_ref().is_some_and(|(total, ..)| bound >= *total) {
            break;
        }
        if !set.offer(*host, candidates) || set.hosts().len() < needed {
            continue;
        }
        let probabilities = set.hosts().iter().map(|h| candidates[*h].readable);
        let reliability = crate::joint::at_least(probabilities, stake.width.data());
        let value = Score::new(stake, *seconds, reliability);
        if best
            .as_ref()
            .is_none_or(|(total, ..)| value.total() < *total)
        {
            best = Some((value.total(), set.hosts().to_vec(), value));
        }
    }
    let (_, mut hosts, _) = best?;
    hosts.sort_by(|a, b| faster(candidates, stake, *a, *b));
    let readable: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
    let score = score(candidates, &hosts, stake, &Independent(&readable));
    Some(Choice { hosts, score, caps })
}

/// The candidates as (time for a shard in seconds, index), fastest first.
fn by_speed(candidates: &[Candidate], stake: &Stake) -> Vec<(f64, usize)> {
    let mut order: Vec<(f64, usize)> = candidates
        .iter()
        .enumerate()
        .map(|(host, candidate)| (candidate.shard_seconds(stake), host))
        .collect();
    order.sort_unstable_by(|a, b| {
        a.0.total_cmp(&b.0)
            .then_with(|| candidates[b.1].readable.cmp(&candidates[a.1].readable))
            .then_with(|| candidates[a.1].draw.cmp(&candidates[b.1].draw))
            .then(a.1.cmp(&b.1))
    });
    order
}

fn faster(candidates: &[Candidate], stake: &Stake, a: usize, b: usize) -> std::cmp::Ordering {
    let first = &candidates[a];
    let second = &candidates[b];
    first
        .shard_seconds(stake)
        .total_cmp(&second.shard_seconds(stake))
        .then(first.draw.cmp(&second.draw))
        .then(a.cmp(&b))
}

fn more_reliable(
    candidates: &[Candidate],
    stake: &Stake,
    a: usize,
    b: usize,
) -> std::cmp::Ordering {
    candidates[b]
        .readable
        .cmp(&candidates[a].readable)
        .then_with(|| faster(candidates, stake, a, b))
}

/// At most [`SHORTLIST`] hosts that could improve the choice: half of them the most reliable ones, half the
/// fastest. A host can't improve the choice if even a perfectly reliable set with it would be no better.
fn shortlist(choice: &Choice, candidates: &[Candidate], stake: &Stake) -> Vec<usize> {
    let present = choice.score.total();
    let promising = |host: &usize| {
        let seconds = candidates[*host].shard_seconds(stake);
        Score::new(stake, seconds, Probability::ONE).total() < present
    };
    let mut listed: Vec<usize> = (0..candidates.len()).filter(promising).collect();
    let half = SHORTLIST / 2;
    if listed.len() > SHORTLIST {
        listed.select_nth_unstable_by(half, |a, b| more_reliable(candidates, stake, *a, *b));
        let (_, rest) = listed.split_at_mut(half);
        rest.select_nth_unstable_by(half - 1, |a, b| faster(candidates, stake, *a, *b));
        listed.truncate(SHORTLIST);
    }
    listed.sort_unstable();
    listed
}

/// Whether no domain has more of `hosts` than the cap of its level.
fn keeps(hosts: &[usize], candidates: &[Candidate], caps: Caps) -> bool {
    let domains: Vec<&Domains> = hosts
        .iter()
        .map(|host| &candidates[*host].domains)
        .collect();
    caps.iter().enumerate().all(|(level, cap)| {
        let Some(cap) = cap else { return true };
        domains.iter().all(|domain| {
            let Some(domain) = domain[level] else {
                return true;
            };
            domains
                .iter()
                .filter(|other| other[level] == Some(domain))
                .count()
                <= *cap
        })
    })
}

#[cfg(test)]
mod tests;
