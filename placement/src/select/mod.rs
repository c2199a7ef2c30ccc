//! The choice of hosts: the set that minimises the objective.
//!
//! For independent hosts the best set is found exactly, in one pass: with the hosts in order of
//! speed, the slowest of the set fixes the time, and among all that are not slower the most reliable
//! ones are best, since the objective falls with the reliability of each. A cap on the hosts of one
//! failure domain makes the sets a matroid, in which the greedy choice is still best. With
//! correlated hosts a local search goes on from there.

mod capped;

use crate::joint::{Domains, Independent, Joint, LEVELS};
use crate::objective::{Candidate, Score, Stake, score};
use crate::probability::Probability;
use capped::CappedSet;

/// Candidates that the local search tries in place of a chosen one.
const SHORTLIST: usize = 32;

/// Fewest other candidates with which exchanges of two hosts are not tried any more: among many
/// hosts there is nearly always one that is as good.
const PAIRS_MAX: usize = 12;

/// Most exchanges of the local search; each makes the objective smaller.
const EXCHANGES_MAX: usize = 64;

/// Smallest gain, in seconds, for which a host is exchanged.
const GAIN_MIN: f64 = 1e-9;

/// Most hosts of one failure domain in a set; `None` for any number.
pub type Caps = [Option<usize>; LEVELS];

/// Chosen hosts, as indices into the candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The hosts, fastest first.
    pub hosts: Vec<usize>,
    /// What they are worth.
    pub score: Score,
    /// The cap that could be kept at each level; where it is larger than asked for, or none, there
    /// was no other way.
    pub caps: Caps,
}

/// There are fewer candidates than shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} hosts for {needed} shards")]
pub struct TooFewHosts {
    /// Candidates offered.
    pub found: usize,
    /// Shards to place.
    pub needed: usize,
}

/// The best hosts if they are independent, with at most `parity` of them in one failure domain if
/// that can be had. Exact where the domains of one level are capped and as good as a greedy choice
/// where levels overlap. `O(N log N)`.
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

/// The best hosts that can be found when `joint` says how they fail together.
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

/// Exchanges hosts as long as that helps: one at a time and, in a small pool, two.
fn improve(start: Choice, candidates: &[Candidate], stake: &Stake, joint: &impl Joint) -> Choice {
    let caps = start.caps;
    let started = score(candidates, &start.hosts, stake, joint);
    let start = Choice {
        score: started,
        ..start
    };
    let shortlist = shortlist(&start, candidates, stake);
    let mut best = (start.hosts, started);
    for _ in 0..EXCHANGES_MAX {
        let others: Vec<usize> = shortlist
            .iter()
            .copied()
            .filter(|other| !best.0.contains(other))
            .collect();
        let found = best_of(singles(&best.0, &others), &best, |hosts| {
            keeps(hosts, candidates, caps).then(|| score(candidates, hosts, stake, joint))
        });
        let found = match found {
            None if others.len() <= PAIRS_MAX => best_of(pairs(&best.0, &others), &best, |hosts| {
                keeps(hosts, candidates, caps).then(|| score(candidates, hosts, stake, joint))
            }),
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

/// The best of the sets `tried` that is better than `present`, if any is.
fn best_of(
    tried: impl Iterator<Item = Vec<usize>>,
    present: &(Vec<usize>, Score),
    mut value: impl FnMut(&[usize]) -> Option<Score>,
) -> Option<(Vec<usize>, Score)> {
    let mut best: Option<(Vec<usize>, Score)> = None;
    for hosts in tried {
        let Some(score) = value(&hosts) else { continue };
        let bar = best
            .as_ref()
            .map_or(present.1.total(), |(_, best)| best.total());
        if score.total() < bar - GAIN_MIN {
            best = Some((hosts, score));
        }
    }
    best
}

/// The sets that differ from `hosts` in one.
fn singles(hosts: &[usize], others: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    (0..hosts.len()).flat_map(move |place| {
        others.iter().map(move |other| {
            let mut tried = hosts.to_vec();
            tried[place] = *other;
            tried
        })
    })
}

/// The sets that differ from `hosts` in two.
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

/// The hosts that are left, best first: the one that would make the chosen set best in place of its
/// worst host comes first. Hosts beyond the first few are in order of reliability.
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

/// The score of the best set that differs from the choice in that `host`, which is not in it, takes
/// the place of one that is.
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

/// The score of the best set that differs from the choice in that another takes the place of
/// `host`, which is in it; `None` when there is no other.
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

/// Caps to try, strictest first: `parity` at every level; then any number of one owner's hosts; then
/// more and more hosts of a site.
fn relaxations(parity: usize, total: usize) -> impl Iterator<Item = Caps> {
    let strict = parity.max(1);
    let sites = (strict..total).map(|cap| [Some(cap), None]);
    std::iter::once([Some(strict), Some(strict)])
        .chain(sites)
        .chain(std::iter::once([None, None]))
}

/// The best of the sets that are most reliable among the fastest 1, 2, 3, ... hosts; `None` when no
/// set keeps the caps.
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
        // Should all others be certain to be readable, this is what could be reached.
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

/// Time for a shard and index, fastest first.
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
    let (first, second) = (&candidates[a], &candidates[b]);
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

/// Hosts that could improve the choice: of those with which a set that is certain to be readable
/// would be better, the most reliable and the fastest.
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
