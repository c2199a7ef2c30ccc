//! The search for the code and its hosts.
//!
//! For each code a first set of hosts is found as if hosts failed independently, which is fast. Only the codes that
//! may be the best one are then searched for hosts with the joint distribution.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::{Aim, Bounds, PARITY_MAX, cost, forecast_for, most_but_spares};
use crate::joint::Joint;
use crate::levels::level;
use crate::objective::{Candidate, Score, Stake, Width, score};
use crate::probability::Probability;
use crate::select::{Choice, TooFewHosts, choose, choose_independent};

/// Work at stake, in seconds, that outweighs the time of any transfer: with it the objective looks for
/// reliability alone.
const ALL_FOR_RELIABILITY: f64 = 1e12;

/// Work at stake, in seconds, with which codes are compared if the job has done less: six hours. A failed restore
/// costs more than the work, such as the time until somebody sees to the job; and a job that has just begun should
/// not get a code that is hardly better than none.
const LEAST_AT_STAKE: f64 = 6.0 * 3600.0;

/// Hosts among which the code is chosen. With the code, the hosts are then chosen among all.
pub(super) const SHORTLIST: usize = 64;

/// Most hosts of one site, or one network, among these, as many as there are parity shards at most: else the
/// best site could be all of them.
pub(super) const OF_ONE_SITE_MAX: usize = PARITY_MAX;

/// A code that does not reach a probability is searched for better hosts if its first ones fail at most this many
/// times as often as allowed: the search seldom gains more.
const SEARCH_WORTH: f64 = 4.0;

/// Most codes for which hosts are searched.
const SEARCHES_MAX: usize = 4;

/// `(a, b)`: a code is as good as the best one if the job loses at most `a t + b` seconds with it, where `t` is what
/// it loses with the best one. Among such codes, the cheapest is taken: rates are not known better.
const AS_GOOD: (f64, f64) = (1.1, 0.1);

/// Codes that fail at most this many times as often as the most reliable one count as equally reliable.
const AS_RELIABLE: f64 = 1.1;

/// A code, the hosts for it, and what was reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The numbers of data and parity shards.
    pub width: Width,
    /// The hosts, as indices into the candidates, and their score.
    pub choice: Choice,
    /// Whether the probability that was aimed at is reached; true if none was.
    pub reaches_target: bool,
}

/// The code within `bounds` that is best for `aim`, and hosts for it, among [`rounded`](crate::levels::rounded)
/// candidates, each of which gets a shard only if it has room for it. Of codes that are about as good, the one that
/// stores the fewest bytes ([`cost`]). With [`Aim::Reliability`], of codes that leave a third of more than five
/// candidates as spares, unless none of them reaches the probability.
///
/// If no code reaches the probability that is aimed at: the best of those that do as long as no incident takes down
/// the whole pool, against which no code helps. If there is none either: the cheapest of those that fail at most 1.1
/// times as often as the most reliable one. `stake.width` is ignored. `None` if too few candidates have room for a shard
/// of any code.
///
/// The code is chosen with 64 of the candidates, half of them the most reliable ones, half the fastest.
#[must_use]
pub fn choose_with_code(
    candidates: &[Candidate],
    stake: &Stake,
    joint: &impl Joint,
    aim: Aim,
    bounds: Bounds,
) -> Option<Chosen> {
    let aim = match aim {
        Aim::Reliability(target) => Aim::Reliability(forecast_for(target)),
        Aim::LeastLoss => aim,
    };
    let listed = shortlist(candidates, stake);
    let few: Vec<Candidate> = listed.iter().map(|host| candidates[*host]).collect();
    let among = Among {
        joint,
        hosts: listed.clone(),
    };
    let search = Search::new(&few, stake, &among, aim);
    let (width, required) = search.code(bounds)?;
    let (number, choice) = search.hosts(width, required)?;
    let mut choice = among.named(choice);
    if listed.len() < candidates.len() {
        let found = Search::new(candidates, stake, joint, aim).hosts_with(number, width);
        // The search among all hosts ends elsewhere than that among few, seldom with a worse set.
        choice = match found {
            Some(all)
                if all.score.reliability >= required
                    || all.score.reliability >= choice.score.reliability =>
            {
                all
            }
            _ => choice,
        };
    }
    let stake = Stake { width, ..*stake };
    choice.score = score(&level(candidates, &stake), &choice.hosts, &stake, joint);
    let reaches_target = match aim {
        Aim::LeastLoss => true,
        Aim::Reliability(target) => choice.score.reliability >= target,
    };
    Some(Chosen {
        width,
        choice,
        reaches_target,
    })
}

/// What a search depends on.
struct Search<'a, J> {
    candidates: &'a [Candidate],
    joint: &'a J,
    aim: Aim,
    /// The stake by which codes are compared.
    compared: Stake,
    /// Stakes with which hosts are looked for until enough of them can be read.
    stakes: Vec<Stake>,
}

/// A code, and the hosts found for it so far.
struct Plan {
    width: Width,
    choice: Choice,
    /// Number of the stake with which these hosts were found.
    stake: usize,
    /// What the job would lose with the fastest hosts if they were certain.
    least_loss: f64,
}

impl Plan {
    fn loss(&self) -> f64 {
        self.choice.score.loss()
    }

    fn reaches(&self, required: Probability) -> bool {
        self.choice.score.reliability >= required
    }
}

impl<'a, J: Joint> Search<'a, J> {
    fn new(candidates: &'a [Candidate], stake: &Stake, joint: &'a J, aim: Aim) -> Self {
        let with = |work_seconds| Stake {
            work_seconds,
            ..*stake
        };
        let careful = Stake {
            need: Probability::ONE,
            ..with(ALL_FOR_RELIABILITY)
        };
        let (compared, stakes) = match aim {
            Aim::LeastLoss => {
                let stake = with(stake.work_seconds.max(LEAST_AT_STAKE));
                (stake, vec![stake])
            }
            Aim::Reliability(_) => (with(0.0), vec![with(0.0), *stake, careful]),
        };
        Self {
            candidates,
            joint,
            aim,
            compared,
            stakes,
        }
    }

    /// The code, and the probability for which hosts are to be chosen for it.
    fn code(&self, bounds: Bounds) -> Option<(Width, Probability)> {
        let widths: Vec<Width> = bounds.codes(self.candidates.len()).collect();
        let Aim::Reliability(target) = self.aim else {
            let best = self.best(&widths, Probability::ZERO)?;
            return Some((best, Probability::ZERO));
        };
        let at_best = self.joint.at_best();
        let found = if target <= at_best {
            self.best_with_spares(&widths, target)
                .map(|width| (width, target))
        } else {
            None
        };
        // What no code can prevent is left out of this probability.
        let lower = Probability::saturating(target.value() * at_best.value());
        found
            .or_else(|| Some((self.best_with_spares(&widths, lower)?, lower)))
            .or_else(|| Some((self.most_reliable(&widths)?, Probability::ONE)))
    }

    /// The best of the codes with which enough hosts can be read with the probability `required`: of those that leave
    /// hosts to take the place of others, if there is one.
    fn best_with_spares(&self, widths: &[Width], required: Probability) -> Option<Width> {
        let most = most_but_spares(self.candidates.len());
        let narrow = |width: &&Width| width.total() <= most;
        let sparing: Vec<Width> = widths.iter().filter(narrow).copied().collect();
        let found = self.best(&sparing, required);
        match found {
            None if sparing.len() < widths.len() => self.best(widths, required),
            found => found,
        }
    }

    /// The best of the codes with which enough hosts can be read with the probability `required`.
    fn best(&self, widths: &[Width], required: Probability) -> Option<Width> {
        let mut plans = self.first_plans(widths, required);
        let mut least = least_loss(&plans, required);
        plans.sort_by(|a, b| a.loss().total_cmp(&b.loss()));
        let mut searches = 0;
        for plan in &mut plans {
            // A search that gains no more than what counts as equal is not worth its time.
            let can_gain = as_good(plan.least_loss) < least;
            if searches == SEARCHES_MAX || !can_gain || !self.is_near(plan, required) {
                continue;
            }
            searches += 1;
            self.search(plan, required);
            if plan.reaches(required) {
                least = least.min(plan.loss());
            }
        }
        cheapest(
            plans
                .iter()
                .filter(|plan| plan.reaches(required) && plan.loss() <= as_good(least)),
        )
    }

    /// The codes with first hosts, without those that can't be as good as the best of them.
    fn first_plans(&self, widths: &[Width], required: Probability) -> Vec<Plan> {
        let mut bounds: Vec<(f64, Width)> = widths
            .iter()
            .filter_map(|width| Some((self.least_loss(*width)?, *width)))
            .collect();
        bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut plans = Vec::new();
        let mut least = f64::INFINITY;
        for (bound, width) in bounds {
            if bound > as_good(least) {
                break;
            }
            let Some((stake, choice)) = self.hosts_by(width, required, |candidates, stake, _| {
                choose_independent(candidates, stake)
            }) else {
                continue;
            };
            let plan = Plan {
                width,
                choice,
                stake,
                least_loss: bound,
            };
            if plan.reaches(required) {
                least = least.min(plan.loss());
            }
            plans.push(plan);
        }
        plans
    }

    /// The cheapest of the codes that fail at most 1.1 times as often as the most reliable one.
    fn most_reliable(&self, widths: &[Width]) -> Option<Width> {
        let plans = self.first_plans(widths, Probability::ONE);
        let fails = |plan: &Plan| self.fails(plan.choice.score.reliability);
        let least = plans.iter().map(fails).fold(f64::INFINITY, f64::min);
        let most = AS_RELIABLE * least.max(0.0) + f64::EPSILON;
        cheapest(plans.iter().filter(|plan| fails(plan) <= most))
    }

    /// Whether the hosts of `plan` can be read with nearly the probability `required`.
    fn is_near(&self, plan: &Plan, required: Probability) -> bool {
        let found = plan.choice.score.reliability;
        found >= required || self.fails(found) <= SEARCH_WORTH * self.fails(required).max(0.0)
    }

    /// How often a set of hosts fails for reasons that a code can prevent, where it is readable with this
    /// probability.
    fn fails(&self, readable: Probability) -> f64 {
        1.0 - readable.value() / self.joint.at_best().value().max(1e-9)
    }

    /// What the job loses with a code if the fastest hosts store it and are certain to be readable.
    fn least_loss(&self, width: Width) -> Option<f64> {
        let stake = self.stake(width);
        let (levelled, _) = self.with_room(&stake);
        let mut seconds: Vec<f64> = levelled
            .iter()
            .map(|host| host.shard_seconds(&stake))
            .collect();
        let last = width.total().checked_sub(1)?;
        if last >= seconds.len() {
            return None;
        }
        let (_, slowest, _) = seconds.select_nth_unstable_by(last, f64::total_cmp);
        Some(Score::new(&stake, *slowest, self.joint.at_best()).loss())
    }

    /// Searches hosts for the plan's code, with one stake: if its first hosts can be read with the probability
    /// `required`, faster ones, else more reliable ones.
    fn search(&self, plan: &mut Plan, required: Probability) {
        let number = if plan.reaches(required) {
            plan.stake.saturating_sub(1)
        } else {
            plan.stake
        };
        let Some(found) = self.hosts_with(number, plan.width) else {
            return;
        };
        let reaches = found.score.reliability >= required;
        let is_better = match plan.reaches(required) {
            true => reaches && found.score.loss() < plan.loss(),
            false => found.score.reliability > plan.choice.score.reliability,
        };
        if is_better {
            plan.choice = found;
        }
    }

    /// The hosts for a code that are found with the stake of this number.
    fn hosts_with(&self, number: usize, width: Width) -> Option<Choice> {
        let own = self.stake(width);
        let (levelled, among) = self.with_room(&own);
        let stake = *self.stakes.get(number)?;
        let mut choice = choose(&levelled, &Stake { width, ..stake }, &among).ok()?;
        choice.score = score(&levelled, &choice.hosts, &own, &among);
        Some(among.named(choice))
    }

    /// The hosts for a code, and the number of the stake with which they were found.
    fn hosts(&self, width: Width, required: Probability) -> Option<(usize, Choice)> {
        self.hosts_by(width, required, |candidates, stake, among| {
            choose(candidates, stake, among)
        })
    }

    /// The hosts that `find` finds for a code with the first stake with which they can be read with the probability
    /// `required`, and the number of this stake; if they never can be, the most reliable ones.
    fn hosts_by(
        &self,
        width: Width,
        required: Probability,
        find: impl Fn(&[Candidate], &Stake, &Among<'_, J>) -> Result<Choice, TooFewHosts>,
    ) -> Option<(usize, Choice)> {
        let own = self.stake(width);
        let (levelled, among) = self.with_room(&own);
        let mut best: Option<(usize, Choice)> = None;
        for (number, stake) in self.stakes.iter().enumerate() {
            let mut choice = find(&levelled, &Stake { width, ..*stake }, &among).ok()?;
            choice.score = score(&levelled, &choice.hosts, &own, &among);
            let reliability = choice.score.reliability;
            if reliability >= required {
                return Some((number, among.named(choice)));
            }
            if best
                .as_ref()
                .is_none_or(|(_, best)| reliability > best.score.reliability)
            {
                best = Some((number, among.named(choice)));
            }
        }
        best
    }

    /// The candidates that have room for a shard, levelled for this stake, and which ones these are.
    fn with_room(&self, stake: &Stake) -> (Vec<Candidate>, Among<'a, J>) {
        let levelled = level(self.candidates, stake);
        let all = levelled.into_iter().enumerate();
        let (hosts, with_room) = all.filter(|(_, host)| host.has_room(stake)).unzip();
        let among = Among {
            joint: self.joint,
            hosts,
        };
        (with_room, among)
    }

    /// The stake by which codes are compared, with this code.
    fn stake(&self, width: Width) -> Stake {
        Stake {
            width,
            ..self.compared
        }
    }
}

/// The least loss of the plans that reach the probability `required`; infinite if none does.
fn least_loss(plans: &[Plan], required: Probability) -> f64 {
    let reaching = plans.iter().filter(|plan| plan.reaches(required));
    reaching.map(Plan::loss).fold(f64::INFINITY, f64::min)
}

/// The code of these plans that costs least ([`cost`]).
fn cheapest<'p>(plans: impl Iterator<Item = &'p Plan>) -> Option<Width> {
    plans
        .map(|plan| plan.width)
        .min_by(|a, b| cost(*a).total_cmp(&cost(*b)))
}

/// The most that the job loses with a code that is as good as one with which it loses `least` seconds.
fn as_good(least: f64) -> f64 {
    AS_GOOD.0 * least + AS_GOOD.1
}

/// Some of the hosts of a joint distribution.
struct Among<'a, J> {
    joint: &'a J,
    hosts: Vec<usize>,
}

impl<J> Among<'_, J> {
    /// The same choice with the hosts' indices in the whole distribution.
    fn named(&self, choice: Choice) -> Choice {
        Choice {
            hosts: choice.hosts.iter().map(|host| self.hosts[*host]).collect(),
            ..choice
        }
    }
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

/// At most [`SHORTLIST`] of the candidates: half of them the most reliable ones, half the fastest. As long as
/// there are others, at most [`OF_ONE_SITE_MAX`] of a site.
pub(super) fn shortlist(candidates: &[Candidate], stake: &Stake) -> Vec<usize> {
    if candidates.len() <= SHORTLIST {
        return (0..candidates.len()).collect();
    }
    let seconds: Vec<f64> = candidates.iter().map(|c| c.shard_seconds(stake)).collect();
    let draw = |a: usize, b: usize| candidates[a].draw.cmp(&candidates[b].draw).then(a.cmp(&b));
    let readable = |a: usize, b: usize| candidates[b].readable.cmp(&candidates[a].readable);
    let fast = |a: usize, b: usize| seconds[a].total_cmp(&seconds[b]);
    let mut listed = BTreeSet::new();
    let mut of_sites = BTreeMap::new();
    let mut take = |host: usize, total: usize| {
        let site = candidates[host].domains[0];
        let others = site.map_or(0, |site| of_sites.get(&site).copied().unwrap_or(0));
        if others < OF_ONE_SITE_MAX && listed.insert(host) {
            site.map(|site| of_sites.insert(site, others + 1));
        }
        listed.len() < total
    };
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    first_by(
        &mut order,
        |a, b| readable(*a, *b).then(fast(*a, *b)).then(draw(*a, *b)),
        |host| take(host, SHORTLIST / 2),
    );
    first_by(
        &mut order,
        |a, b| fast(*a, *b).then(readable(*a, *b)).then(draw(*a, *b)),
        |host| take(host, SHORTLIST),
    );
    for host in order {
        if listed.len() < SHORTLIST {
            listed.insert(host);
        }
    }
    listed.into_iter().collect()
}

/// Gives the hosts to `take` in this order until it returns false. Sorts few more of them than it gives, since sorting
/// 100,000 hosts takes longer than all else. The order has no equal hosts.
pub(super) fn first_by(
    hosts: &mut [usize],
    order: impl Fn(&usize, &usize) -> Ordering,
    mut take: impl FnMut(usize) -> bool,
) {
    let mut rest = hosts;
    let mut chunk = 4 * SHORTLIST;
    while !rest.is_empty() {
        let (first, later) = if chunk < rest.len() {
            rest.select_nth_unstable_by(chunk, &order);
            rest.split_at_mut(chunk)
        } else {
            (rest, Default::default())
        };
        first.sort_unstable_by(&order);
        if !first.iter().all(|host| take(*host)) {
            return;
        }
        (rest, chunk) = (later, 4 * chunk);
    }
}
