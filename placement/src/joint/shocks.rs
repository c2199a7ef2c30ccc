//! The model of shocks that take down the hosts of a failure domain at once.

use super::{Below, CORRELATION_MAX, Compute, Correlated, DomainId, LEVELS};
use crate::objective::SHARDS_MAX;

/// Most shocks that the model takes into account, the likeliest ones: it sums over the combinations of those that can
/// hit the same hosts.
const SHOCKS_MAX: usize = 8;

/// Some of the hosts asked about: bit `i` is the `i`th of them. No shock hits a host after the [`SHARDS_MAX`]th.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HostSet(u64);

const _: () = assert!(SHARDS_MAX <= u64::BITS as usize);

impl HostSet {
    /// The hosts for which `holds` is true.
    fn of(hosts: &[usize], holds: impl Fn(usize) -> bool) -> Self {
        let first = hosts.iter().take(SHARDS_MAX).enumerate();
        let bits = first.map(|(at, host)| u64::from(holds(*host)) << at);
        Self(bits.fold(0, |all, bit| all | bit))
    }

    const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    const fn has(self, at: usize) -> bool {
        at < SHARDS_MAX && self.0 >> at & 1 == 1
    }

    const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// What `values` has for these hosts.
    fn of_values(self, values: &[f64]) -> impl Iterator<Item = f64> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let value = *values.get(left.trailing_zeros() as usize)?;
            left = left.checked_sub(1).map(|below| left & below)?;
            Some(value)
        })
    }
}

/// What one shock can do: that of a domain, or of the whole pool.
pub(super) struct Reach {
    /// The level of the domain; `None` for the whole pool.
    level: Option<usize>,
    /// Correlation that the shock gives to the hosts that it hits, above 0.
    correlation: f64,
    /// Which of the hosts asked about it takes down.
    hits: HostSet,
    /// Whether it takes down the compute host, too.
    with_compute: bool,
}

/// An event that takes down the hosts of a domain at once.
struct Shock {
    /// The level of the domain; `None` for the whole pool.
    level: Option<usize>,
    /// Which of the hosts it takes down.
    hits: HostSet,
    /// Its probability at any moment.
    unconditional: f64,
    /// Its probability in the case asked for: if that is a failure of the compute host, given this failure.
    conditional: f64,
}

impl Shock {
    /// The shock of this reach; `None` if it makes no difference. `compute` is the compute host, if it has failed.
    ///
    /// Two hosts of availability `p` that share a shock of probability `a` have the correlation
    /// `r = a p / ((1 - a) (1 - p))`; hence `a = r (1 - p) / (p + r (1 - p))`, with the mean of the hosts'
    /// probabilities `own` for `p`. A shock that takes the compute host down, too, has the probability
    /// `a / Pr{compute host fails}` given that failure. A compute host that fails more rarely than these hosts can't
    /// be read is taken to fail as often as they: it is then as correlated with them as they are with each other.
    /// Else the failure of one that hardly ever fails would be certain to be the shock.
    fn new(reach: &Reach, own: &[f64], compute: Option<&Compute>) -> Option<Self> {
        let compute = compute.filter(|_| reach.with_compute);
        let members = reach.hits.len();
        if members == 1 && compute.is_none() {
            return None;
        }
        let r = reach.correlation;
        let p = reach.hits.of_values(own).sum::<f64>() / members as f64;
        let unconditional = (r * (1.0 - p) / (p + r * (1.0 - p))).clamp(0.0, CORRELATION_MAX);
        let conditional = compute.map_or(unconditional, |compute| {
            let fails = compute.survives.complement().value();
            unconditional / fails.max(1.0 - p).max(f64::MIN_POSITIVE)
        });
        (unconditional > 0.0).then_some(Self {
            level: reach.level,
            hits: reach.hits,
            unconditional,
            conditional: conditional.clamp(0.0, 1.0),
        })
    }
}

/// Probability that of these shocks exactly those happen whose bits are set in `combination`, and which hosts they
/// take down.
fn happening(shocks: &[Shock], combination: u32) -> (f64, HostSet) {
    let mut weight = 1.0;
    let mut hit = HostSet::default();
    for (bit, shock) in shocks.iter().enumerate() {
        if combination >> bit & 1 == 1 {
            weight *= shock.conditional;
            hit = hit.or(shock.hits);
        } else {
            weight *= 1.0 - shock.conditional;
        }
    }
    (weight, hit)
}

/// The probabilities `own` of hosts, each without the shocks that hit it.
fn undisturbed(own: &[f64], shocks: &[Shock]) -> Vec<f64> {
    let without = |(at, p): (usize, &f64)| {
        let hitting = shocks.iter().filter(|shock| shock.hits.has(at));
        hitting.fold(*p, |p, shock| (p / (1.0 - shock.unconditional)).min(1.0))
    };
    own.iter().enumerate().map(without).collect()
}

impl Correlated {
    /// Probability, by the common-shock model, that at least `needed` of some hosts can be read, where host `i`
    /// taken alone can be read with probability `own[i]`; `M(own)` in the formula. `reaches` are those of the hosts'
    /// shocks. With `compute_failed` it is the probability after a failure of the compute host, else that at any
    /// moment.
    ///
    /// ```text
    /// M(own) = SUM over sets C of shocks:  PROD_{s in C} g_s * PROD_{s not in C} (1 - g_s) * T(C)
    ///
    /// T(C)   probability that at least `needed` hosts can be read when exactly the shocks in C happen:
    ///        host i with probability 0 if a shock in C hits it, else own[i] / PROD_{s hits i} (1 - a_s)
    /// a_s    probability of shock s at any moment
    /// g_s    probability of shock s in the case asked for
    /// ```
    ///
    /// A host's own probability contains the shocks that hit it. The division takes them out, so that
    /// without a failure of the compute host each host alone keeps `own[i]`.
    ///
    /// The domains of one level share no host, so the shocks of the level that has most of them are summed over one
    /// domain after the other; only those of the other level and that of the pool are combined.
    pub(super) fn model(
        &self,
        reaches: &[Reach],
        own: &[f64],
        needed: usize,
        compute_failed: bool,
    ) -> f64 {
        let shocks = self.shocks(reaches, own, compute_failed);
        let undisturbed = undisturbed(own, &shocks);
        let of_level = |level: &usize| shocks.iter().filter(|s| s.level == Some(*level)).count();
        let apart = (0..LEVELS).max_by_key(of_level);
        let (apart, combined): (Vec<Shock>, Vec<Shock>) =
            shocks.into_iter().partition(|shock| shock.level == apart);
        let all = HostSet(u64::MAX);
        let in_a_domain = apart
            .iter()
            .fold(HostSet::default(), |all, shock| all.or(shock.hits));
        let beyond = undisturbed.get(SHARDS_MAX..).unwrap_or_default();
        let mut sum = 0.0;
        let mut below = Below::default();
        let mut if_undisturbed = Below::default();
        for combination in 0..1_u32 << combined.len() {
            let (weight, hit) = happening(&combined, combination);
            if weight <= 0.0 || own.len() - hit.len() < needed {
                continue;
            }
            below.reset(needed);
            let alone = all.without(hit).without(in_a_domain);
            for p in alone.of_values(&undisturbed).chain(beyond.iter().copied()) {
                below.add(p);
            }
            for shock in &apart {
                if_undisturbed.copy(&below);
                for p in shock.hits.without(hit).of_values(&undisturbed) {
                    if_undisturbed.add(p);
                }
                below.mix(shock.conditional, &if_undisturbed);
            }
            sum += weight * below.or_more();
        }
        sum
    }

    /// The shocks of these reaches that make a difference, likeliest first, at most [`SHOCKS_MAX`].
    fn shocks(&self, reaches: &[Reach], own: &[f64], compute_failed: bool) -> Vec<Shock> {
        let compute = self.compute.as_ref().filter(|_| compute_failed);
        let shocks = reaches.iter();
        let mut shocks: Vec<Shock> = shocks
            .filter_map(|reach| Shock::new(reach, own, compute))
            .collect();
        shocks.sort_by(|a, b| b.conditional.total_cmp(&a.conditional));
        shocks.truncate(SHOCKS_MAX);
        shocks
    }

    /// The shocks that can hit at least two of `hosts`, or one and the compute host: one for each domain, and one for
    /// the whole pool.
    pub(super) fn reaches(&self, hosts: &[usize]) -> Vec<Reach> {
        let mut reaches = Vec::new();
        let mut add = |reach: Reach| {
            let together = reach.hits.len() + usize::from(reach.with_compute);
            if reach.correlation > 0.0 && reach.hits.len() > 0 && together > 1 {
                reaches.push(reach);
            }
        };
        let mut domains: Vec<DomainId> = Vec::with_capacity(hosts.len());
        for (level, learnt) in self.levels.iter().enumerate() {
            let domain_of = |host: &usize| self.members.get(*host)?.domains[level];
            domains.clear();
            domains.extend(hosts.iter().filter_map(domain_of));
            domains.sort_unstable();
            domains.dedup();
            for domain in &domains {
                let is_hit = |host: usize| match self.members.get(host) {
                    Some(one) => one.domains[level] == Some(*domain) && !one.spared.domains[level],
                    None => false,
                };
                let compute = self.compute.as_ref();
                add(Reach {
                    level: Some(level),
                    correlation: learnt.correlation(*domain) - self.everywhere,
                    hits: HostSet::of(hosts, is_hit),
                    with_compute: compute.is_some_and(|c| c.domains[level] == Some(*domain)),
                });
            }
        }
        add(Reach {
            level: None,
            correlation: self.everywhere,
            hits: HostSet::of(hosts, |host| {
                self.members.get(host).is_none_or(|m| !m.spared.pool)
            }),
            with_compute: self.compute.is_some(),
        });
        reaches
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::joint::{Member, at_least};
    use crate::probability::Probability;

    /// The sum over all combinations of shocks, as the formula has it.
    fn summed(correlated: &Correlated, own: &[f64], needed: usize, compute_failed: bool) -> f64 {
        let hosts: Vec<usize> = (0..own.len()).collect();
        let shocks = correlated.shocks(&correlated.reaches(&hosts), own, compute_failed);
        let of = |combination: u32| {
            let (weight, hit) = happening(&shocks, combination);
            let readable = own.iter().enumerate().map(|(at, p)| {
                let of_host = shocks.iter().filter(|shock| shock.hits.has(at));
                let never_hit = of_host
                    .map(|shock| 1.0 - shock.unconditional)
                    .product::<f64>();
                match hit.has(at) {
                    true => Probability::ZERO,
                    false => Probability::saturating(p / never_hit),
                }
            });
            weight * at_least(readable, needed).value()
        };
        (0..1 << shocks.len()).map(of).sum()
    }

    proptest! {
        #[test]
        fn the_model_is_the_sum_over_all_combinations_of_shocks(
            own in prop::collection::vec(0.01f64..=1.0, 1..9),
            domains in prop::collection::vec(
                (prop::option::of(0u32..3), prop::option::of(0u32..3)), 9),
            spares in prop::collection::vec(any::<[bool; 3]>(), 9),
            everywhere in 0.0f64..0.4,
            of_levels in (0.0f64..0.9, 0.0f64..0.9),
            needed in 1usize..6,
            compute_failed in any::<bool>(),
        ) {
            let members = own.iter().zip(&domains).map(|(readable, (site, owner))| Member {
                readable: Probability::saturating(*readable),
                domains: [site.map(DomainId), owner.map(DomainId)],
                past: None,
            });
            let compute = Compute {
                survives: Probability::saturating(0.7),
                domains: [Some(DomainId(0)), Some(DomainId(1))],
                failures: None,
                restart_seconds: 0,
            };
            let mut correlated = Correlated::learn(members.collect(), Some(compute));
            correlated.everywhere = everywhere;
            (correlated.levels[0].pool, correlated.levels[1].pool) = of_levels;
            for (member, [pool, site, owner]) in correlated.members.iter_mut().zip(spares) {
                member.spared.pool = pool;
                member.spared.domains = [site, owner];
            }
            let hosts: Vec<usize> = (0..own.len()).collect();
            let model = correlated.model(&correlated.reaches(&hosts), &own, needed, compute_failed);
            let summed = summed(&correlated, &own, needed, compute_failed);
            prop_assert!((model - summed).abs() < 1e-9, "{} {}", model, summed);
        }
    }
}
