//! An estimator of the kernel that also uses the stays whose end was not observed.
//!
//! Each other state is a competing risk of leaving a state, with a hazard of its own (Aalen and Johansen):
//! the events at an age, divided by the stays at risk at that age. A stay whose end was not observed was at
//! risk until the observation ended; a stay that began before the window was at risk from the age that it
//! had when the window began. Ages are binned on a geometric grid, and the rate of each bin is shrunk
//! towards that of a pool of hosts, since a few weeks of one host show only noise at single ages.

use placement::semi_markov::kernel::{Jump, Kernel};
use placement::semi_markov::visits::Visit;
use placement::state::ModelState;

/// First age of each bin, in steps; the last bin has no end.
const BIN_STARTS: [u32; 26] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 4096, 8192, 16384,
];

/// Steps at risk and events by state, next state and age.
#[derive(Clone, Debug, PartialEq)]
pub struct CompetingRisks<S> {
    states: Vec<StateRisks>,
    model: std::marker::PhantomData<S>,
}

/// The risks of leaving one state.
#[derive(Clone, Debug, PartialEq)]
struct StateRisks {
    /// Steps at risk, by bin of age.
    exposure: [f64; BIN_STARTS.len()],
    /// Jumps, by index of the state entered and by bin of age.
    events: Vec<[f64; BIN_STARTS.len()]>,
}

impl<S: ModelState> Default for CompetingRisks<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: ModelState> CompetingRisks<S> {
    /// An estimator without observations.
    #[must_use]
    pub fn new() -> Self {
        let none = [0.0; BIN_STARTS.len()];
        let state = StateRisks {
            exposure: none,
            events: vec![none; S::ALL.len()],
        };
        Self {
            states: vec![state; S::ALL.len()],
            model: std::marker::PhantomData,
        }
    }

    /// Adds a stay.
    pub fn observe(&mut self, visit: &Visit<S>) {
        let risks = &mut self.states[visit.state.index()];
        let end = visit.age_at_start.saturating_add(visit.steps.max(1));
        for (bin, exposure) in risks.exposure.iter_mut().enumerate() {
            let (from, to) = bin_range(bin);
            let overlap = end.min(to).saturating_sub(visit.age_at_start.max(from));
            *exposure += f64::from(overlap);
        }
        if let Some(next) = visit.next {
            // The jump happens in the last step at risk, whose age is that of the end less one.
            risks.events[next.index()][bin_of(end - 1)] += 1.0;
        }
    }

    /// Adds the observations of another host, or of the same host at another time.
    pub fn add(&mut self, other: &Self) {
        for (own, other) in self.states.iter_mut().zip(&other.states) {
            add_all(&mut own.exposure, &other.exposure);
            for (own, other) in own.events.iter_mut().zip(&other.events) {
                add_all(own, other);
            }
        }
    }

    /// The kernel for holding times up to `steps`, shrunk towards `pool`: in each bin the pool's rates weigh
    /// as much as `strength` observed events (a Gamma prior on each rate).
    #[must_use]
    pub fn kernel(&self, pool: &Self, strength: f64, steps: u32) -> Kernel<S> {
        let mut jumps = Vec::new();
        for (&from, (own, pool)) in S::ALL.iter().zip(self.states.iter().zip(&pool.states)) {
            let mut staying = 1.0;
            for (bin, &start) in BIN_STARTS.iter().enumerate() {
                let (hazards, total) = own.hazards(pool, strength, bin);
                for age in start..bin_range(bin).1.min(steps) {
                    for (&to, &hazard) in S::ALL.iter().zip(&hazards) {
                        if hazard > 0.0 && to != from {
                            jumps.push(Jump {
                                from,
                                to,
                                steps: age + 1,
                                mass: staying * hazard,
                            });
                        }
                    }
                    staying *= 1.0 - total;
                }
            }
        }
        // The hazards of a step sum to at most one, and so do the masses of a state.
        Kernel::new(jumps).unwrap_or_else(|_| Kernel::empty())
    }
}

impl StateRisks {
    /// Probability per step of going to each state at ages in `bin`, and their sum, at most one.
    fn hazards(&self, pool: &Self, strength: f64, bin: usize) -> (Vec<f64>, f64) {
        let pooled: f64 = pool.events.iter().map(|events| events[bin]).sum();
        let (prior_exposure, prior_share) = if pooled > 0.0 && strength > 0.0 {
            (strength * pool.exposure[bin] / pooled, strength / pooled)
        } else {
            (0.0, 0.0)
        };
        let exposure = self.exposure[bin] + prior_exposure;
        if exposure <= 0.0 {
            return (vec![0.0; self.events.len()], 0.0);
        }
        let rate = |(own, pool): (&[f64; BIN_STARTS.len()], &[f64; BIN_STARTS.len()])| {
            (own[bin] + prior_share * pool[bin]) / exposure
        };
        let hazards: Vec<f64> = self.events.iter().zip(&pool.events).map(rate).collect();
        let total = hazards.iter().sum::<f64>().min(1.0);
        (hazards, total)
    }
}

/// The bin of an age in steps.
fn bin_of(age: u32) -> usize {
    BIN_STARTS
        .partition_point(|&start| start <= age)
        .saturating_sub(1)
}

/// First age of the bin, and the age after its last one.
fn bin_range(bin: usize) -> (u32, u32) {
    let start = BIN_STARTS.get(bin).copied().unwrap_or(u32::MAX);
    (start, BIN_STARTS.get(bin + 1).copied().unwrap_or(u32::MAX))
}

fn add_all(own: &mut [f64], other: &[f64]) {
    for (own, other) in own.iter_mut().zip(other) {
        *own += other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::state::AvailabilityState::{self, Busy, CpuTaken, Idle};
    use proptest::prelude::*;

    fn stay(
        age_at_start: u32,
        steps: u32,
        next: Option<AvailabilityState>,
    ) -> Visit<AvailabilityState> {
        Visit {
            state: Idle,
            age_at_start,
            steps,
            next,
        }
    }

    fn risks(stays: &[Visit<AvailabilityState>]) -> CompetingRisks<AvailabilityState> {
        let mut risks = CompetingRisks::new();
        for stay in stays {
            risks.observe(stay);
        }
        risks
    }

    #[test]
    fn stays_cut_off_count_as_survivors() {
        // Four hosts enter; one fails in the first step, one in the second, one is observed for one step.
        let stays = [
            stay(0, 1, Some(CpuTaken)),
            stay(0, 2, Some(CpuTaken)),
            stay(0, 1, None),
            stay(0, 3, None),
        ];
        let kernel = risks(&stays).kernel(&CompetingRisks::new(), 0.0, 10);
        // Kaplan-Meier: 3/4, then half of the two still at risk.
        assert_eq!(kernel.survival(Idle, 2), [1.0, 0.75, 0.375]);
    }

    #[test]
    fn a_stay_that_began_earlier_is_at_risk_only_from_then_on() {
        let stays = [stay(1, 1, None), stay(0, 1, Some(CpuTaken))];
        let kernel = risks(&stays).kernel(&CompetingRisks::new(), 0.0, 10);
        assert_eq!(kernel.survival(Idle, 1), [1.0, 0.0]);
    }

    #[test]
    fn a_host_without_history_has_the_rates_of_the_pool() {
        let pool = risks(&[stay(0, 1, Some(CpuTaken)), stay(0, 1, None)]);
        let kernel = CompetingRisks::new().kernel(&pool, 3.0, 10);
        assert_eq!(kernel.survival(Idle, 1), [1.0, 0.5]);
    }

    #[test]
    fn a_long_history_outweighs_the_pool() {
        let pool = risks(&[stay(0, 1, Some(CpuTaken)), stay(0, 1, None)]);
        let own = risks(&vec![stay(0, 1, None); 1000]);
        let survival = own.kernel(&pool, 3.0, 10).survival(Idle, 1)[1];
        assert!((0.99..1.0).contains(&survival), "{survival}");
    }

    proptest! {
        #[test]
        fn any_stays_make_a_kernel(
            raw in prop::collection::vec(
                (0u32..40_000, 0u32..40_000, 0usize..5, prop::option::of(0usize..5)),
                0..40,
            ),
            strength in 0.0f64..10.0,
        ) {
            let stays: Vec<_> = raw.into_iter().map(|(age_at_start, steps, state, next)| Visit {
                state: AvailabilityState::ALL[state], age_at_start, steps,
                next: next.map(|i| AvailabilityState::ALL[i]).filter(|next| next.index() != state),
            }).collect();
            let (own, pool) = stays.split_at(stays.len() / 2);
            let kernel = risks(own).kernel(&risks(pool), strength, 50);
            for init in [Idle, Busy] {
                let curve = kernel.survival_at_age(init, 7, 60);
                let falls = |pair: &[f64]| pair[1] <= pair[0] + 1e-12 && pair[1] >= 0.0;
                prop_assert!(curve.windows(2).all(falls));
            }
        }
    }
}
