//! How likely it is that enough hosts of a set can be read: the correlated temporal reliability of
//! FALCON, given that the compute host fails.
//!
//! The papers name the quantity and give no equation, so the one here is our own. A model says what
//! to expect: every host has a probability of its own, and hosts of one failure domain share
//! shocks (common-shock model of Marshall and Olkin). What really happened, counted on the hosts'
//! bitmaps at the moments when the compute host failed, corrects the model as far as there are
//! events to count. Without data the domains have no shocks, which is independence.

use crate::bitmap::{AvailabilityBitmap, SLOT_SECONDS, Slot, SlotSet, WORDS};
use crate::probability::Probability;

/// Kinds of failure domain that a host can be in at once.
pub const LEVELS: usize = 2;

/// Names a failure domain within its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainId(pub u32);

/// The failure domains of a host: its site (or, if that is not known, its network) and its owner.
pub type Domains = [Option<DomainId>; LEVELS];

/// Shared domains whose shocks are followed in all combinations; weaker ones are left out.
const SHOCKS_MAX: usize = 8;

/// Hosts of one domain that are compared pair by pair.
const PAIRED_MAX: usize = 24;

/// Slots of common outage that the prior of no correlation weighs as much as.
const PRIOR_OUTAGE_SLOTS: f64 = 40.0;

/// Largest correlation that is believed: domains that always fail together are one host.
const CORRELATION_MAX: f64 = 0.95;

/// Worth of the model against counted failures, as a number of expected failures.
const PRIOR_FAILURES: f64 = 2.0;

/// Slots in a row that tell as much as one, when all slots are counted.
const SLOTS_PER_OBSERVATION: f64 = 12.0;

/// Fewest failures of the compute host for which only these moments are counted.
const OWN_FAILURES_MIN: u32 = 20;

/// Probability that at least `needed` of independent events with these probabilities happen
/// (Poisson binomial). Time `O(n * needed)`.
#[must_use]
pub fn at_least(
    probabilities: impl IntoIterator<Item = Probability>,
    needed: usize,
) -> Probability {
    if needed == 0 {
        return Probability::ONE;
    }
    // below[j]: probability of exactly j so far, for j < needed.
    let mut below = vec![0.0; needed];
    if let Some(none) = below.first_mut() {
        *none = 1.0;
    }
    for p in probabilities {
        let (p, q) = (p.value(), p.complement().value());
        let mut carried = 0.0;
        for exactly in &mut below {
            let stays = *exactly * q;
            let moves = *exactly * p;
            *exactly = stays + carried;
            carried = moves;
        }
    }
    Probability::saturating(1.0 - below.iter().sum::<f64>())
}

/// Says how likely enough of a set can be read.
pub trait Joint {
    /// Probability that at least `needed` of `hosts` can be read when they have to be.
    fn at_least(&self, hosts: &[usize], needed: usize) -> Probability;
}

/// Hosts that fail independently of each other and of the compute host.
#[derive(Clone, Copy, Debug)]
pub struct Independent<'a>(pub &'a [Probability]);

impl Joint for Independent<'_> {
    fn at_least(&self, hosts: &[usize], needed: usize) -> Probability {
        let of = |host: &usize| self.0.get(*host).copied().unwrap_or_default();
        at_least(hosts.iter().map(of), needed)
    }
}

/// A host of the pool, as far as its company matters.
#[derive(Clone, Debug)]
pub struct Member {
    /// Probability that it can be read when it has to be, taken for itself.
    pub readable: Probability,
    /// Its domains.
    pub domains: Domains,
    /// Its past; `None` when it told nothing.
    pub past: Option<AvailabilityBitmap>,
}

/// The compute host, given whose failure the others are needed.
#[derive(Clone, Debug)]
pub struct Compute {
    /// Probability that it does not fail before the next checkpoint.
    pub survives: Probability,
    /// Its domains.
    pub domains: Domains,
    /// When it failed in the past; `None` when that is not known.
    pub failures: Option<SlotSet>,
    /// Seconds from its failure until the image is read.
    pub restart_seconds: u64,
}

/// Members with their bitmaps laid side by side, and what they have in common.
#[derive(Clone, Debug)]
pub struct Correlated {
    members: Vec<Aligned>,
    compute: Option<Compute>,
    /// Slots at which the compute host's job would have been read back, when enough are known.
    moments: Option<SlotSet>,
    levels: [Level; LEVELS],
    everywhere: f64,
}

#[derive(Clone, Debug)]
struct Aligned {
    readable: Probability,
    domains: Domains,
    past: Option<Past>,
}

#[derive(Clone, Debug)]
struct Past {
    known: SlotSet,
    usable: SlotSet,
}

/// Correlations of the domains of one level.
#[derive(Clone, Debug, Default)]
struct Level {
    /// Sorted by domain.
    domains: Vec<(DomainId, f64)>,
    pool: f64,
}

impl Level {
    fn correlation(&self, domain: DomainId) -> f64 {
        match self.domains.binary_search_by_key(&domain, |(id, _)| *id) {
            Ok(at) => self.domains.get(at).map_or(self.pool, |(_, r)| *r),
            Err(_) => self.pool,
        }
    }
}

/// Sums over pairs of hosts, from which a correlation is estimated.
#[derive(Clone, Copy, Debug, Default)]
struct PairSums {
    covariance: f64,
    deviation: f64,
}

impl PairSums {
    fn add(&mut self, a: &Past, b: &Past) {
        let known = f64::from(a.known.count_and(&b.known));
        if known == 0.0 {
            return;
        }
        let up_a = f64::from(a.usable.count_and(&b.known)) / known;
        let up_b = f64::from(b.usable.count_and(&a.known)) / known;
        let both = f64::from(a.usable.count_and(&b.usable)) / known;
        self.covariance += known * (both - up_a * up_b);
        self.deviation += known * (up_a * (1.0 - up_a) * up_b * (1.0 - up_b)).sqrt();
    }

    fn merge(&mut self, other: &Self) {
        self.covariance += other.covariance;
        self.deviation += other.deviation;
    }

    /// The correlation, shrunk towards `prior`.
    fn correlation(&self, prior: f64) -> f64 {
        let shrunk =
            (self.covariance + PRIOR_OUTAGE_SLOTS * prior) / (self.deviation + PRIOR_OUTAGE_SLOTS);
        shrunk.clamp(0.0, CORRELATION_MAX)
    }
}

impl Correlated {
    /// Learns from the pasts of `members` what they have in common; their indices are the hosts'.
    #[must_use]
    pub fn learn(members: Vec<Member>, compute: Option<Compute>) -> Self {
        let newest = members
            .iter()
            .filter_map(|member| member.past.as_ref())
            .map(AvailabilityBitmap::newest)
            .chain(
                compute
                    .iter()
                    .filter_map(|c| c.failures.as_ref().map(SlotSet::newest)),
            )
            .max()
            .unwrap_or(Slot(0));
        let members: Vec<Aligned> = members
            .into_iter()
            .map(|member| Aligned {
                readable: member.readable,
                domains: member.domains,
                past: member.past.map(|past| Past {
                    known: past.known().ending_at(newest),
                    usable: past.usable().ending_at(newest),
                }),
            })
            .collect();
        let moments = compute.as_ref().and_then(|compute| {
            let delay = compute.restart_seconds.div_ceil(SLOT_SECONDS);
            let failures = compute.failures.as_ref()?.ending_at(newest);
            let moments = failures.later_by(u32::try_from(delay).unwrap_or(u32::MAX));
            (moments.count() >= OWN_FAILURES_MIN).then_some(moments)
        });
        Self {
            everywhere: everywhere(&members),
            levels: std::array::from_fn(|level| learn_level(&members, level)),
            members,
            compute,
            moments,
        }
    }

    /// Correlation of the availability of two hosts: the strongest of the domains they share.
    #[must_use]
    pub fn correlation(&self, a: usize, b: usize) -> f64 {
        let (Some(a), Some(b)) = (self.members.get(a), self.members.get(b)) else {
            return 0.0;
        };
        let shared = self
            .levels
            .iter()
            .enumerate()
            .filter_map(|(level, learnt)| {
                let domain = a.domains[level].filter(|domain| b.domains[level] == Some(*domain))?;
                Some(learnt.correlation(domain))
            });
        shared.fold(self.everywhere, f64::max)
    }

    /// Events in the past on which the correction for these hosts rests: failures of the compute
    /// host, or hours, at which all of them were known.
    #[must_use]
    pub fn observations(&self, hosts: &[usize]) -> f64 {
        self.counted(hosts, 0)
            .map_or(0.0, |counted| counted.observations)
    }

    /// What the common-shock model says for hosts with these probabilities of their own.
    fn model(&self, hosts: &[usize], own: &[Probability], needed: usize, given: bool) -> f64 {
        let shocks = self.shocks(hosts, own, given);
        let mut base: Vec<f64> = own.iter().map(|p| p.value()).collect();
        for (i, p) in base.iter_mut().enumerate() {
            for shock in shocks.iter().filter(|shock| shock.hits[i]) {
                *p = (*p / (1.0 - shock.always)).min(1.0);
            }
        }
        let mut sum = 0.0;
        for combination in 0..1_u32 << shocks.len() {
            let mut weight = 1.0;
            let mut left = base.clone();
            for (bit, shock) in shocks.iter().enumerate() {
                if combination >> bit & 1 == 1 {
                    weight *= shock.given;
                    for (p, hit) in left.iter_mut().zip(&shock.hits) {
                        if *hit {
                            *p = 0.0;
                        }
                    }
                } else {
                    weight *= 1.0 - shock.given;
                }
            }
            if weight > 0.0 {
                let tail = at_least(left.into_iter().map(Probability::saturating), needed);
                sum += weight * tail.value();
            }
        }
        sum
    }

    /// The shocks that hit at least two of `hosts`, or one and the compute host; strongest first.
    fn shocks(&self, hosts: &[usize], own: &[Probability], given: bool) -> Vec<Shock> {
        let compute = self.compute.as_ref().filter(|_| given);
        let mut shocks = Vec::new();
        for (level, learnt) in self.levels.iter().enumerate() {
            let domain_of = |host: &usize| self.members.get(*host)?.domains[level];
            let mut domains: Vec<DomainId> = hosts.iter().filter_map(domain_of).collect();
            domains.sort_unstable();
            domains.dedup();
            for domain in domains {
                let hits: Vec<bool> = hosts.iter().map(|h| domain_of(h) == Some(domain)).collect();
                let with_compute = compute.filter(|c| c.domains[level] == Some(domain));
                let excess = learnt.correlation(domain) - self.everywhere;
                shocks.extend(Shock::new(excess, hits, own, with_compute));
            }
        }
        let all = vec![true; hosts.len()];
        shocks.extend(Shock::new(self.everywhere, all, own, compute));
        shocks.sort_by(|a, b| b.given.total_cmp(&a.given));
        shocks.truncate(SHOCKS_MAX);
        shocks
    }

    /// What happened to `hosts` in the past; `None` when one of them has none.
    fn counted(&self, hosts: &[usize], needed: usize) -> Option<Counted> {
        let mut pasts = Vec::with_capacity(hosts.len());
        for host in hosts {
            pasts.push(self.members.get(*host)?.past.as_ref()?);
        }
        let (first, rest) = pasts.split_first()?;
        let known = rest
            .iter()
            .fold(first.known.clone(), |all, past| all.and(&past.known));
        let known_count = known.count();
        if known_count == 0 {
            return None;
        }
        let usable: Vec<&[u64; WORDS]> = pasts.iter().map(|past| past.usable.words()).collect();
        let failed_share = |slots: &SlotSet, total: u32| {
            let enough = count_at_least(&usable, slots.words(), needed);
            f64::from(total - enough) / f64::from(total)
        };
        let shares = pasts.iter().map(|past| {
            let up = past.usable.count_and(&known);
            Probability::saturating(f64::from(up) / f64::from(known_count))
        });
        let own = self.moments.as_ref().map(|moments| known.and(moments));
        let (observations, failed_share, given) = match own.map(|own| (own.count(), own)) {
            Some((count, own)) if count >= OWN_FAILURES_MIN => {
                (f64::from(count), failed_share(&own, count), true)
            }
            _ => {
                let hours = f64::from(known_count) / SLOTS_PER_OBSERVATION;
                (hours, failed_share(&known, known_count), false)
            }
        };
        Some(Counted {
            shares: shares.collect(),
            observations,
            failed_share,
            given,
        })
    }
}

impl Joint for Correlated {
    fn at_least(&self, hosts: &[usize], needed: usize) -> Probability {
        let readable = |host: &usize| {
            self.members
                .get(*host)
                .map_or(Probability::ZERO, |m| m.readable)
        };
        let own: Vec<Probability> = hosts.iter().map(readable).collect();
        let fails = 1.0 - self.model(hosts, &own, needed, true);
        let correction = self.counted(hosts, needed).map_or(1.0, |counted| {
            // Had the model been asked about the past, it would have expected so many failures.
            let expected = 1.0 - self.model(hosts, &counted.shares, needed, counted.given);
            (PRIOR_FAILURES + counted.observations * counted.failed_share)
                / (PRIOR_FAILURES + counted.observations * expected.max(0.0))
        });
        Probability::saturating(1.0 - fails * correction)
    }
}

/// The past of a set of hosts.
struct Counted {
    /// Share of all the time in which each could be read.
    shares: Vec<Probability>,
    /// Independent looks at the set.
    observations: f64,
    /// Share of the looks at which too few could be read.
    failed_share: f64,
    /// Whether these were the moments after failures of the compute host.
    given: bool,
}

/// An event that takes down all hosts of a domain at once.
struct Shock {
    hits: Vec<bool>,
    /// Its probability at any moment.
    always: f64,
    /// Its probability when the compute host has failed.
    given: f64,
}

impl Shock {
    /// From the correlation `r` of the hosts that it `hits`: with mean availability `p` the
    /// probability that no shock holds is `p / (p + r (1 - p))`.
    fn new(
        r: f64,
        hits: Vec<bool>,
        own: &[Probability],
        compute: Option<&Compute>,
    ) -> Option<Self> {
        let members = hits.iter().filter(|hit| **hit).count();
        if r <= 0.0 || members == 0 || (members == 1 && compute.is_none()) {
            return None;
        }
        let pairs = own.iter().zip(&hits).filter(|(_, hit)| **hit);
        let p = pairs.map(|(p, _)| p.value()).sum::<f64>() / members as f64;
        let always = (r * (1.0 - p) / (p + r * (1.0 - p))).clamp(0.0, CORRELATION_MAX);
        let given = compute.map_or(always, |compute| {
            // The shock takes the compute host down, too; its failure makes the shock likelier.
            let fails = compute.survives.complement().value();
            always / fails.max(always).max(f64::MIN_POSITIVE)
        });
        (always > 0.0).then_some(Self {
            hits,
            always,
            given: given.clamp(0.0, 1.0),
        })
    }
}

/// Number of slots of `among` in which at least `needed` of the sets are there. Counts all slots of
/// a word at once, in binary, one bit plane for each digit.
fn count_at_least(sets: &[&[u64; WORDS]], among: &[u64; WORDS], needed: usize) -> u32 {
    const DIGITS: usize = 8;
    let mut total = 0;
    for (word, among) in among.iter().enumerate() {
        if *among == 0 {
            continue;
        }
        let mut digits = [0_u64; DIGITS];
        for set in sets {
            let mut carry = set[word];
            for digit in &mut digits {
                (*digit, carry) = (*digit ^ carry, *digit & carry);
            }
        }
        // From the highest digit down: where the counts are still equal to `needed`.
        let (mut more, mut equal) = (0, u64::MAX);
        for (place, digit) in digits.iter().enumerate().rev() {
            if needed >> place & 1 == 1 {
                equal &= digit;
            } else {
                more |= equal & digit;
                equal &= !digit;
            }
        }
        total += ((more | equal) & among).count_ones();
    }
    total
}

fn learn_level(members: &[Aligned], level: usize) -> Level {
    let mut with_past: Vec<(DomainId, &Past)> = members
        .iter()
        .filter_map(|member| Some((member.domains[level]?, member.past.as_ref()?)))
        .collect();
    with_past.sort_by_key(|(domain, _)| *domain);
    let mut pool = PairSums::default();
    let mut sums = Vec::new();
    for group in with_past.chunk_by(|a, b| a.0 == b.0) {
        let group = group.get(..PAIRED_MAX).unwrap_or(group);
        let mut sum = PairSums::default();
        for (i, (_, a)) in group.iter().enumerate() {
            for (_, b) in group.iter().skip(i + 1) {
                sum.add(a, b);
            }
        }
        pool.merge(&sum);
        sums.extend(group.first().map(|(domain, _)| (*domain, sum)));
    }
    let pool = pool.correlation(0.0);
    Level {
        domains: sums
            .into_iter()
            .map(|(domain, sum)| (domain, sum.correlation(pool)))
            .collect(),
        pool,
    }
}

/// Correlation of hosts that share no domain, from a sample.
fn everywhere(members: &[Aligned]) -> f64 {
    let with_past: Vec<&Aligned> = members.iter().filter(|m| m.past.is_some()).collect();
    let stride = with_past.len().div_ceil(PAIRED_MAX).max(1);
    let sample: Vec<&Aligned> = with_past.into_iter().step_by(stride).collect();
    let mut sum = PairSums::default();
    for (i, a) in sample.iter().enumerate() {
        for b in sample.iter().skip(i + 1) {
            let strangers = a
                .domains
                .iter()
                .zip(&b.domains)
                .all(|(a, b)| a.is_none() || a != b);
            if let (true, Some(a), Some(b)) = (strangers, &a.past, &b.past) {
                sum.add(a, b);
            }
        }
    }
    sum.correlation(0.0)
}

#[cfg(test)]
mod tests;
