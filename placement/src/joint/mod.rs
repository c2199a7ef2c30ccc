//! How likely it is that enough hosts of a set can be read: the correlated temporal reliability of
//! FALCON, given that the compute host fails.
//!
//! The papers name the quantity and give no equation, so the one here is our own. It has two parts:
//!
//! 1. A model (the common-shock model of Marshall and Olkin): each host can be read with a probability of
//!    its own, and a shock takes down the hosts of a failure domain at once. How likely a domain's shock is
//!    follows from the correlation of its hosts' bitmaps. A host whose bitmap shows that it stays when the others go
//!    is spared, such as a server among desktops. Without bitmaps the correlation is 0, there are no shocks, and
//!    the hosts are independent.
//! 2. A correction: the bitmaps show how often too few of these hosts could be read in the past, at the
//!    moments when the compute host had failed. The predicted probability of failure is multiplied by the
//!    ratio of the failures counted there to those that the model expects there.
//!
//! ```text
//! P(at least m of A can be read) = 1 - (1 - M(q)) * (K + n f) / (K + n (1 - M(s)))
//!
//! M(q)   the model for hosts that can be read with probabilities q, all numbers from 0 to 1
//! q      each host's probability of being readable, as predicted for the time ahead
//! s      each host's share of the past in which it was usable
//! n      how many independent observations the past holds: failures of the compute host, or hours
//! f      share of these observations in which fewer than m hosts of A were usable
//! K      PRIOR_FAILURES: expected failures after which the counts weigh as much as the model
//! ```
//!
//! 3. A floor: the bitmaps do not hold every incident that takes down the whole pool. No set of hosts can be
//!    read with a higher probability than that of no such incident ([`PoolPast::unseen`]), which multiplies the
//!    result.

mod pool;
mod shocks;
mod spared;

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::bitmap::{AvailabilityBitmap, SLOT_SECONDS, Slot, SlotSet, WORDS};
use crate::probability::Probability;
pub use pool::{PoolPast, Watched};
use spared::Spared;

/// Kinds of failure domain that a host can be in at once: level 0 is the site, level 1 the owner.
pub const LEVELS: usize = 2;

/// Names a failure domain within its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainId(pub u32);

/// The failure domains of a host: its site (or, if that is not known, its network) and its owner.
pub type Domains = [Option<DomainId>; LEVELS];

/// Most hosts of one domain that are compared pair by pair; also the size of the sample of the whole pool.
const PAIRED_MAX: usize = 24;

/// Weight of the prior when a correlation is estimated, in slots of outage: once a pair of hosts has been
/// down for about this many slots each, its bitmaps weigh as much as the prior.
const PRIOR_OUTAGE_SLOTS: f64 = 40.0;

/// Upper bound of every correlation and shock probability, so that no division by `1 - 1` occurs: hosts
/// with a correlation of 1 would be one host.
const CORRELATION_MAX: f64 = 0.95;

/// Weight of the model against the counted failures: a number of expected failures, `K` in the formula.
const PRIOR_FAILURES: f64 = 2.0;

/// Slots that count as one independent observation when all slots of the past are counted: an outage lasts
/// for many slots, so neighbouring slots repeat each other. Twelve slots are an hour.
const SLOTS_PER_OBSERVATION: f64 = 12.0;

/// With at least this many failures of the compute host in the past, only the moments after them are
/// counted; with fewer, all slots.
const OWN_FAILURES_MIN: u32 = 20;

/// Probability that at least `needed` of `n` independent events with these probabilities happen: the upper
/// tail of the Poisson binomial distribution, `1 - SUM_{j < needed} Pr{exactly j}`. Time `O(n * needed)`.
#[must_use]
pub fn at_least(
    probabilities: impl IntoIterator<Item = Probability>,
    needed: usize,
) -> Probability {
    let mut below = Below::default();
    below.reset(needed);
    for p in probabilities {
        below.add(p.value());
    }
    Probability::saturating(below.or_more())
}

/// How likely it is that exactly `j` of some independent events happen, for each `j` below a number.
#[derive(Clone, Debug, Default)]
struct Below {
    /// By `j`.
    exactly: Vec<f64>,
}

impl Below {
    /// No events, for each `j` below `needed`.
    fn reset(&mut self, needed: usize) {
        self.exactly.clear();
        self.exactly.resize(needed, 0.0);
        if let Some(none) = self.exactly.first_mut() {
            *none = 1.0;
        }
    }

    /// Adds an event that happens with this probability, 0 to 1.
    fn add(&mut self, p: f64) {
        let mut carried = 0.0;
        for exactly in &mut self.exactly {
            let stays = *exactly * (1.0 - p);
            let moves = *exactly * p;
            *exactly = stays + carried;
            carried = moves;
        }
    }

    /// Becomes equal to `other`.
    fn copy(&mut self, other: &Self) {
        self.exactly.clone_from(&other.exactly);
    }

    /// Stays as it is with probability `stays`, 0 to 1, and is `other` else.
    fn mix(&mut self, stays: f64, other: &Self) {
        for (own, other) in self.exactly.iter_mut().zip(&other.exactly) {
            *own = stays * *own + (1.0 - stays) * other;
        }
    }

    /// Probability of as many events as the number, or more.
    fn or_more(&self) -> f64 {
        (1.0 - self.exactly.iter().sum::<f64>()).clamp(0.0, 1.0)
    }
}

/// A joint distribution of which hosts of a pool can be read.
pub trait Joint {
    /// Probability that at least `needed` of `hosts` (indices into the pool) can be read when the compute
    /// host has failed.
    fn at_least(&self, hosts: &[usize], needed: usize) -> Probability;

    /// Upper bound of that probability for any hosts: there is no incident of the whole pool that the past does
    /// not hold.
    fn at_best(&self) -> Probability {
        Probability::ONE
    }
}

/// Hosts that fail independently of each other and of the compute host, each with its probability of being
/// readable.
#[derive(Clone, Copy, Debug)]
pub struct Independent<'a>(pub &'a [Probability]);

impl Joint for Independent<'_> {
    fn at_least(&self, hosts: &[usize], needed: usize) -> Probability {
        let of = |host: &usize| self.0.get(*host).copied().unwrap_or_default();
        at_least(hosts.iter().map(of), needed)
    }
}

/// What the joint distribution depends on for one host of the pool.
#[derive(Clone, Debug)]
pub struct Member {
    /// Probability that it can be read when it has to be, whatever the other hosts do.
    pub readable: Probability,
    /// The failure domains that it is in.
    pub domains: Domains,
    /// Its past; `None` when it announced no bitmap.
    pub past: Option<AvailabilityBitmap>,
}

/// The compute host. The other hosts are needed only when it has failed, so all probabilities are given that.
#[derive(Clone, Debug)]
pub struct Compute {
    /// Probability that it does not fail before the next checkpoint.
    pub survives: Probability,
    /// The failure domains that it is in.
    pub domains: Domains,
    /// When it failed in the past; `None` when that is not known.
    pub failures: Option<SlotSet>,
    /// Seconds from its failure until the image is read back.
    pub restart_seconds: u64,
}

/// The joint distribution learnt from the hosts' domains and bitmaps.
#[derive(Clone, Debug)]
pub struct Correlated {
    members: Vec<Aligned>,
    compute: Option<Compute>,
    /// Slots at which the compute host's job would have been read back; `None` for fewer than
    /// [`OWN_FAILURES_MIN`], or when its failures are not known.
    moments: Option<SlotSet>,
    levels: [Level; LEVELS],
    /// Correlation of hosts that share no domain, from 0 to [`CORRELATION_MAX`].
    everywhere: f64,
    pool: PoolPast,
}

/// A [`Member`] whose bitmap ends at the same slot as all others.
#[derive(Clone, Debug)]
struct Aligned {
    readable: Probability,
    domains: Domains,
    past: Option<Past>,
    spared: Spared,
}

/// A host's bitmap, of which `usable` is a subset of `known`.
#[derive(Clone, Debug)]
struct Past {
    known: SlotSet,
    usable: SlotSet,
    /// Number of slots in `known`, and in `usable`: counting them is a good part of a search.
    counts: (u32, u32),
}

impl Past {
    fn ending_at(bitmap: &AvailabilityBitmap, newest: Slot) -> Self {
        Self::new(
            bitmap.known().ending_at(newest),
            bitmap.usable().ending_at(newest),
        )
    }

    fn new(known: SlotSet, usable: SlotSet) -> Self {
        Self {
            counts: (known.count(), usable.count()),
            known,
            usable,
        }
    }

    /// Number of slots of `known` in which the host was usable; `count` is that of all slots in `known`, which are
    /// slots in which this host is known, too.
    fn usable_in(&self, known: &SlotSet, count: u32) -> u32 {
        if count == self.counts.0 {
            self.counts.1
        } else {
            self.usable.count_and(known)
        }
    }
}

/// How strongly the hosts of a domain fail together, for the domains of one level. Every number is a
/// correlation coefficient of the availability of two hosts of a domain, from 0 (independent) to
/// [`CORRELATION_MAX`].
#[derive(Clone, Debug, Default)]
struct Level {
    /// Each domain that has hosts with bitmaps, and its correlation; sorted by domain.
    domains: Vec<(DomainId, f64)>,
    /// The correlation over the pairs of all domains of the level; used for domains without bitmaps.
    pool: f64,
}

impl Level {
    /// The correlation coefficient of two hosts of `domain`.
    fn correlation(&self, domain: DomainId) -> f64 {
        match self.domains.binary_search_by_key(&domain, |(id, _)| *id) {
            Ok(at) => self.domains.get(at).map_or(self.pool, |(_, r)| *r),
            Err(_) => self.pool,
        }
    }
}

/// The pasts of two hosts `a` and `b` side by side: `n` is the number of slots in which both are known, and `p_a`,
/// `p_b`, `p_ab` are the shares of these slots in which `a`, `b` or both are usable.
#[derive(Clone, Copy, Debug)]
struct Pair {
    known: f64,
    up_a: f64,
    up_b: f64,
    both: f64,
}

impl Pair {
    /// `None` without a slot in which both are known.
    fn of(a: &Past, b: &Past) -> Option<Self> {
        let known = f64::from(a.known.count_and(&b.known));
        (known > 0.0).then(|| Self {
            known,
            up_a: f64::from(a.usable.count_and(&b.known)) / known,
            up_b: f64::from(b.usable.count_and(&a.known)) / known,
            both: f64::from(a.usable.count_and(&b.usable)) / known,
        })
    }

    /// `n (p_ab - p_a p_b)`, in slots.
    fn covariance(&self) -> f64 {
        self.known * (self.both - self.up_a * self.up_b)
    }
}

/// Sums over pairs of hosts, from which a correlation is estimated.
#[derive(Clone, Copy, Debug, Default)]
struct PairSums {
    /// `SUM n (p_ab - p_a p_b)`, in slots.
    covariance: f64,
    /// `SUM n sqrt(p_a (1 - p_a) p_b (1 - p_b))`, in slots.
    deviation: f64,
}

impl PairSums {
    fn add(&mut self, a: &Past, b: &Past) {
        let Some(pair) = Pair::of(a, b) else {
            return;
        };
        let Pair {
            known, up_a, up_b, ..
        } = pair;
        self.covariance += pair.covariance();
        self.deviation += known * (up_a * (1.0 - up_a) * up_b * (1.0 - up_b)).sqrt();
    }

    fn merge(&mut self, other: &Self) {
        self.covariance += other.covariance;
        self.deviation += other.deviation;
    }

    /// The correlation, shrunk towards `prior`: `(covariance + W prior) / (deviation + W)` with
    /// `W = PRIOR_OUTAGE_SLOTS`, clamped to what is believed.
    fn correlation(&self, prior: f64) -> f64 {
        let shrunk =
            (self.covariance + PRIOR_OUTAGE_SLOTS * prior) / (self.deviation + PRIOR_OUTAGE_SLOTS);
        shrunk.clamp(0.0, CORRELATION_MAX)
    }
}

impl Correlated {
    /// Learns the correlations from the pasts of `members`, which are the whole pool. Host `i` of the other
    /// methods is `members[i]`.
    #[must_use]
    pub fn learn(members: Vec<Member>, compute: Option<Compute>) -> Self {
        let bitmaps = members.iter().filter_map(|member| member.past.as_ref());
        let pool = PoolPast::seen(&bitmaps.collect::<Vec<_>>());
        Self::learn_in(pool, members, compute)
    }

    /// The same for `members` that are some hosts of a pool with this past.
    #[must_use]
    pub fn learn_in(pool: PoolPast, members: Vec<Member>, compute: Option<Compute>) -> Self {
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
        let mut members: Vec<Aligned> = members
            .into_iter()
            .map(|member| Aligned {
                readable: member.readable,
                domains: member.domains,
                past: member.past.map(|past| Past::ending_at(&past, newest)),
                spared: Spared::default(),
            })
            .collect();
        let groups = Groups::of(&members);
        let everywhere = everywhere(&members, &groups);
        let levels = std::array::from_fn(|level| learn_level(&groups.domains[level]));
        let spared = spared::learn(&members, &groups, everywhere, &levels);
        for (member, spared) in members.iter_mut().zip(spared) {
            member.spared = spared;
        }
        let moments = compute.as_ref().and_then(|compute| {
            let delay = compute.restart_seconds.div_ceil(SLOT_SECONDS);
            let failures = compute.failures.as_ref()?.ending_at(newest);
            let moments = failures.later_by(u32::try_from(delay).unwrap_or(u32::MAX));
            (moments.count() >= OWN_FAILURES_MIN).then_some(moments)
        });
        Self {
            everywhere,
            pool,
            levels,
            members,
            compute,
            moments,
        }
    }

    /// Correlation coefficient of the availability of two hosts, from 0 to 0.95: the largest one of the
    /// domains that they share.
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

    /// How many observations of the past the correction for these hosts rests on (`n` in the formula):
    /// failures of the compute host, or hours, at which all these hosts were known. 0 without a past.
    #[must_use]
    pub fn observations(&self, hosts: &[usize]) -> f64 {
        self.counted(hosts, 0)
            .map_or(0.0, |counted| counted.observations)
    }

    /// How often at least `needed` of `hosts` were usable in the past; `None` when one of the hosts has no
    /// past, or there is no slot in which all of them are known.
    fn counted(&self, hosts: &[usize], needed: usize) -> Option<Counted> {
        let mut pasts = Vec::with_capacity(hosts.len());
        for host in hosts {
            pasts.push(self.members.get(*host)?.past.as_ref()?);
        }
        let (first, rest) = pasts.split_first()?;
        // Most hosts of a set are known in the same slots.
        let (known, known_count) = if rest.iter().all(|past| past.known == first.known) {
            (Cow::Borrowed(&first.known), first.counts.0)
        } else {
            let mut all = first.known.clone();
            rest.iter().for_each(|past| all.intersect(&past.known));
            let count = all.count();
            (Cow::Owned(all), count)
        };
        if known_count == 0 {
            return None;
        }
        let usable: Vec<&[u64; WORDS]> = pasts.iter().map(|past| past.usable.words()).collect();
        let failed_share = |slots: &SlotSet, total: u32| {
            let enough = count_at_least(&usable, slots.words(), needed);
            f64::from(total - enough) / f64::from(total)
        };
        let shares = pasts.iter().map(|past| {
            let up = past.usable_in(&known, known_count);
            f64::from(up) / f64::from(known_count)
        });
        let own = self.moments.as_ref();
        let own = own.map(|moments| (known.count_and(moments), moments));
        let (observations, failed_share, compute_failed) = match own {
            Some((count, moments)) if count >= OWN_FAILURES_MIN => {
                let failed_share = failed_share(&known.and(moments), count);
                (f64::from(count), failed_share, true)
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
            compute_failed,
        })
    }
}

impl Joint for Correlated {
    fn at_least(&self, hosts: &[usize], needed: usize) -> Probability {
        if needed == 0 {
            return Probability::ONE;
        }
        let readable = |host: &usize| self.members.get(*host).map_or(0.0, |m| m.readable.value());
        let own: Vec<f64> = hosts.iter().map(readable).collect();
        let reaches = self.reaches(hosts);
        let fails = 1.0 - self.model(&reaches, &own, needed, true);
        let correction = self.counted(hosts, needed).map_or(1.0, |counted| {
            // The share of the past in which the model, given the hosts' past availability, expects failure.
            let expected =
                1.0 - self.model(&reaches, &counted.shares, needed, counted.compute_failed);
            (PRIOR_FAILURES + counted.observations * counted.failed_share)
                / (PRIOR_FAILURES + counted.observations * expected.max(0.0))
        });
        let without_floor = (1.0 - fails * correction).clamp(0.0, 1.0);
        Probability::saturating(without_floor * self.at_best().value())
    }

    fn at_best(&self) -> Probability {
        self.pool.unseen().complement()
    }
}

/// The past of a set of hosts, in the slots in which all of them are known.
struct Counted {
    /// Share of these slots in which each host was usable; `s` in the formula.
    shares: Vec<f64>,
    /// Number of independent observations, `n`: failures of the compute host, or hours.
    observations: f64,
    /// Share of the observations in which too few hosts were usable, `f`.
    failed_share: f64,
    /// Whether the observations are the moments after failures of the compute host.
    compute_failed: bool,
}

/// Number of slots of `among` that are in at least `needed` of the `sets`, at most 255 sets.
fn count_at_least(sets: &[&[u64; WORDS]], among: &[u64; WORDS], needed: usize) -> u32 {
    if needed > sets.len() {
        return 0;
    }
    match sets.len() {
        0..=7 => count_by_digits::<3>(sets, among, needed),
        8..=15 => count_by_digits::<4>(sets, among, needed),
        16..=31 => count_by_digits::<5>(sets, among, needed),
        _ => count_by_digits::<8>(sets, among, needed),
    }
}

/// Words of a set that are counted at once. They divide [`WORDS`], and make full vectors of 128 bits.
const WORDS_AT_ONCE: usize = 6;

/// [`count_at_least`] for fewer than `2^DIGITS` sets. Counts all slots of some words at once: `digits[d]` holds binary
/// digit `d` of each slot's count.
fn count_by_digits<const DIGITS: usize>(
    sets: &[&[u64; WORDS]],
    among: &[u64; WORDS],
    needed: usize,
) -> u32 {
    const { assert!(WORDS.is_multiple_of(WORDS_AT_ONCE)) };
    let mut total = 0;
    let (among, _) = among.as_chunks::<WORDS_AT_ONCE>();
    for (at, among) in among.iter().enumerate() {
        if among.iter().all(|word| *word == 0) {
            continue;
        }
        let mut digits = [[0_u64; WORDS_AT_ONCE]; DIGITS];
        for set in sets {
            let mut carry = set.as_chunks::<WORDS_AT_ONCE>().0[at];
            for digit in &mut digits {
                for (digit, carry) in digit.iter_mut().zip(&mut carry) {
                    (*digit, *carry) = (*digit ^ *carry, *digit & *carry);
                }
            }
        }
        // From the highest digit down: the slots whose count is already more than `needed`, and those whose
        // digits are equal to its digits so far.
        let mut more = [0; WORDS_AT_ONCE];
        let mut equal = [u64::MAX; WORDS_AT_ONCE];
        for (place, digit) in digits.iter().enumerate().rev() {
            let is_set = needed >> place & 1 == 1;
            for ((more, equal), digit) in more.iter_mut().zip(&mut equal).zip(digit) {
                if is_set {
                    *equal &= digit;
                } else {
                    *more |= *equal & digit;
                    *equal &= !digit;
                }
            }
        }
        let enough = more.iter().zip(&equal).zip(among);
        let enough = enough.map(|((more, equal), among)| (more | equal) & among);
        total += enough.map(u64::count_ones).sum::<u32>();
    }
    total
}

/// Members with a past that are compared with each other, and their indices.
struct Groups<'a> {
    /// At most [`PAIRED_MAX`] of all, evenly spaced.
    sample: Vec<(usize, &'a Past)>,
    /// The first [`PAIRED_MAX`] of each domain, at each level.
    domains: [BTreeMap<DomainId, Vec<(usize, &'a Past)>>; LEVELS],
}

impl<'a> Groups<'a> {
    fn of(members: &'a [Aligned]) -> Self {
        let with_past = members.iter().enumerate();
        let with_past: Vec<(usize, &Past)> = with_past
            .filter_map(|(index, member)| Some((index, member.past.as_ref()?)))
            .collect();
        let stride = with_past.len().div_ceil(PAIRED_MAX).max(1);
        let of_level = |level: usize| {
            let mut domains = BTreeMap::<DomainId, Vec<(usize, &Past)>>::new();
            for (index, past) in &with_past {
                if let Some(domain) = members[*index].domains[level] {
                    let hosts = domains.entry(domain).or_default();
                    if hosts.len() < PAIRED_MAX {
                        hosts.push((*index, *past));
                    }
                }
            }
            domains
        };
        Self {
            domains: std::array::from_fn(of_level),
            sample: with_past.into_iter().step_by(stride).collect(),
        }
    }
}

/// The correlations of the domains of a level. A domain's is shrunk towards that of all pairs of the level,
/// which is shrunk towards 0.
fn learn_level(domains: &BTreeMap<DomainId, Vec<(usize, &Past)>>) -> Level {
    let mut pool = PairSums::default();
    let mut sums = Vec::new();
    for (domain, group) in domains {
        let mut sum = PairSums::default();
        for (i, (_, a)) in group.iter().enumerate() {
            for (_, b) in group.iter().skip(i + 1) {
                sum.add(a, b);
            }
        }
        pool.merge(&sum);
        sums.push((*domain, sum));
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

/// Correlation of hosts that share no domain, from the pairs of a sample of the members.
fn everywhere(members: &[Aligned], groups: &Groups<'_>) -> f64 {
    let mut sum = PairSums::default();
    for (i, (a, past_a)) in groups.sample.iter().enumerate() {
        for (b, past_b) in groups.sample.iter().skip(i + 1) {
            if are_strangers(&members[*a], &members[*b]) {
                sum.add(past_a, past_b);
            }
        }
    }
    sum.correlation(0.0)
}

/// Whether the two hosts share no domain.
fn are_strangers(a: &Aligned, b: &Aligned) -> bool {
    let mut levels = a.domains.iter().zip(&b.domains);
    levels.all(|(a, b)| a.is_none() || a != b)
}

#[cfg(test)]
mod tests;
