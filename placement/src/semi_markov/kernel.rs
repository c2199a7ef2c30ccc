//! The kernel of a semi-Markov process, and the survival and availability that follow from it.

use std::marker::PhantomData;

use crate::state::ModelState;

/// Masses by holding time for each pair of states: `q_ij(l)`, the probability that a host that has
/// entered `i` leaves it after exactly `l` steps and goes to `j`.
///
/// The masses of a state sum to at most one; the rest is the probability that the state is never left.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel<S> {
    /// `masses[i * states + j]`: (holding time in steps, mass), by ascending time, zeros left out.
    masses: Vec<Vec<(u32, f64)>>,
    state: PhantomData<S>,
}

/// Error of rounding that is allowed in the sum of a state's masses.
const MASS_TOLERANCE: f64 = 1e-9;

/// The masses offered are not a kernel.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum KernelError {
    /// A mass is negative or not a number, a holding time is zero, or a state jumps to itself.
    #[error("jump from state {from} to {to} after {steps} steps with mass {mass}: impossible")]
    Jump {
        /// Index of the state left.
        from: usize,
        /// Index of the state entered.
        to: usize,
        /// Holding time in steps.
        steps: u32,
        /// Mass offered.
        mass: f64,
    },
    /// The masses of a state sum to more than one.
    #[error("state {from} is left with probability {total}: more than 1")]
    Total {
        /// Index of the state.
        from: usize,
        /// Sum of its masses.
        total: f64,
    },
}

/// A jump with its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jump<S> {
    /// The state left.
    pub from: S,
    /// The state entered.
    pub to: S,
    /// Holding time before the jump, at least one step.
    pub steps: u32,
    /// Probability of leaving in this way, given that `from` was entered.
    pub mass: f64,
}

impl<S: ModelState> Kernel<S> {
    /// A kernel from its jumps, in any order; equal jumps add up.
    ///
    /// # Errors
    /// [`KernelError`] if a jump is impossible or a state is left with probability above one.
    pub fn new(jumps: impl IntoIterator<Item = Jump<S>>) -> Result<Self, KernelError> {
        let states = S::ALL.len();
        let mut masses = vec![Vec::new(); states * states];
        for jump in jumps {
            let from = jump.from.index();
            let to = jump.to.index();
            if jump.steps == 0 || from == to || !(0.0..=1.0 + MASS_TOLERANCE).contains(&jump.mass) {
                return Err(KernelError::Jump {
                    from,
                    to,
                    steps: jump.steps,
                    mass: jump.mass,
                });
            }
            if jump.mass > 0.0 {
                masses[from * states + to].push((jump.steps, jump.mass));
            }
        }
        for list in &mut masses {
            list.sort_unstable_by_key(|&(steps, _)| steps);
            list.dedup_by(|later, earlier| {
                let same = later.0 == earlier.0;
                if same {
                    earlier.1 += later.1;
                }
                same
            });
        }
        for (from, row) in masses.chunks(states).enumerate() {
            let total: f64 = row.iter().flatten().map(|&(_, mass)| mass).sum();
            if total > 1.0 + MASS_TOLERANCE {
                return Err(KernelError::Total { from, total });
            }
        }
        Ok(Self {
            masses,
            state: PhantomData,
        })
    }

    /// The kernel of a host that never leaves the state it is in.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            masses: vec![Vec::new(); S::ALL.len() * S::ALL.len()],
            state: PhantomData,
        }
    }

    /// Number of (pair, holding time) combinations that have any mass.
    #[must_use]
    pub fn support(&self) -> usize {
        self.masses.iter().map(Vec::len).sum()
    }

    fn jumps(&self, from: S, to: S) -> &[(u32, f64)] {
        &self.masses[from.index() * S::ALL.len() + to.index()]
    }

    /// TR after 0..=`steps` steps for a host that has just entered `init`: equation (3) of the
    /// paper as it stands, one dense convolution for every pair of a usable and a failure state,
    /// O(`steps`^2). This slow way is the baseline of measurements, and checks
    /// [`survival`](Self::survival) in tests.
    #[must_use]
    pub fn survival_dense(&self, init: S, steps: usize) -> Vec<f64> {
        if init.is_failure() {
            return certain_failure(steps);
        }
        let usable = usable_states::<S>();
        let pair = |from: S, to: S| dense(self.jumps(from, to), steps);
        let row = |from: S| usable.iter().map(|&to| pair(from, to)).collect();
        let hops: Vec<Vec<Vec<f64>>> = usable.iter().map(|&from| row(from)).collect();
        let mut survival = vec![1.0; steps + 1];
        for &failure in S::ALL.iter().filter(|state| state.is_failure()) {
            // absorbed[i][n] is P_ij(n), j being this failure state; it starts as the probability
            // of going there directly.
            let mut absorbed: Vec<Vec<f64>> = usable
                .iter()
                .map(|&from| cumulated(pair(from, failure)))
                .collect();
            for n in 1..=steps {
                for (i, hops) in hops.iter().enumerate() {
                    let through = hops
                        .iter()
                        .zip(&absorbed)
                        .enumerate()
                        .filter(|&(k, _)| k != i);
                    let sum: f64 = through.map(|(_, (hop, p))| convolved_at(hop, p, n)).sum();
                    absorbed[i][n] += sum;
                }
            }
            for (&state, absorbed) in usable.iter().zip(&absorbed) {
                if state == init {
                    survival
                        .iter_mut()
                        .zip(absorbed)
                        .for_each(|(value, failed)| *value -= failed);
                }
            }
        }
        survival
    }

    /// TR after 0..=`steps` steps for a host that has just entered `init`. The same numbers as
    /// [`survival_dense`](Self::survival_dense) in O(`steps` * [`support`](Self::support)).
    #[must_use]
    pub fn survival(&self, init: S, steps: usize) -> Vec<f64> {
        self.survival_at_age(init, 0, steps)
    }

    /// TR after 0..=`steps` steps for a host that has been in `init` for `age` steps.
    ///
    /// If the kernel gives a stay of this length the probability zero, the age is ignored.
    #[must_use]
    pub fn survival_at_age(&self, init: S, age: u32, steps: usize) -> Vec<f64> {
        if init.is_failure() {
            return certain_failure(steps);
        }
        // A host fails within n steps either directly, or after a jump to another usable state.
        let through = usable_states::<S>();
        let direct = |row: &Row| {
            let failures = S::ALL.iter().filter(|state| state.is_failure());
            cumulated_sum(failures.map(|to| row[to.index()].as_slice()), steps)
        };
        let failed = self.renewal(init, age, &through, steps, |_, row| direct(row));
        failed
            .into_iter()
            .map(|failed| (1.0 - failed).clamp(0.0, 1.0))
            .collect()
    }

    /// Probability of being in a state for which `good` holds, after 0..=`steps` steps, for a
    /// host that has been in `init` for `age` steps. Failure states can be left again.
    #[must_use]
    pub fn point_availability(
        &self,
        init: S,
        age: u32,
        steps: usize,
        good: impl Fn(S) -> bool,
    ) -> Vec<f64> {
        let still_there = |state: S, row: &Row| {
            if !good(state) {
                return vec![0.0; steps + 1];
            }
            let left = cumulated_sum(row.iter().map(Vec::as_slice), steps);
            left.into_iter().map(|left| 1.0 - left).collect()
        };
        let available = self.renewal(init, age, S::ALL, steps, still_there);
        available
            .into_iter()
            .map(|value| value.clamp(0.0, 1.0))
            .collect()
    }

    /// Solves the renewal equation `v_i(n) = base_i(n) + SUM_k SUM_l q_ik(l) v_k(n - l)`, with k over
    /// `through`, for all n, and returns `v` for a host that has been in `init` for `age` steps.
    fn renewal(
        &self,
        init: S,
        age: u32,
        through: &[S],
        steps: usize,
        base: impl Fn(S, &Row) -> Vec<f64>,
    ) -> Vec<f64> {
        let states = S::ALL.len();
        let row = |state: S| {
            let start = state.index() * states;
            self.masses[start..start + states].to_vec()
        };
        let mut values: Vec<Vec<f64>> = S::ALL.iter().map(|&s| base(s, &row(s))).collect();
        for n in 1..=steps {
            for &from in through {
                let sum: f64 = through
                    .iter()
                    .map(|&to| sparse_at(self.jumps(from, to), &values[to.index()], n))
                    .sum();
                values[from.index()][n] += sum;
            }
        }
        let Some(first) = self.aged_row(init, age) else {
            return values.swap_remove(init.index());
        };
        let mut result = base(init, &first);
        for (n, result) in result.iter_mut().enumerate() {
            let later = |to: &S| sparse_at(&first[to.index()], &values[to.index()], n);
            *result += through.iter().map(later).sum::<f64>();
        }
        result
    }

    /// The masses of `state` by the remaining holding time, for a host that has been in it for `age` steps:
    /// `q(age + l) / (1 - SUM_{l <= age} q(l))`. `None` if the age is zero, or has the probability zero.
    fn aged_row(&self, state: S, age: u32) -> Option<Row> {
        if age == 0 {
            return None;
        }
        let start = state.index() * S::ALL.len();
        let row = &self.masses[start..start + S::ALL.len()];
        let earlier = row.iter().flatten().filter(|&&(steps, _)| steps <= age);
        let left = 1.0 - earlier.map(|&(_, mass)| mass).sum::<f64>();
        if left <= MASS_TOLERANCE {
            return None;
        }
        let aged = |list: &Vec<(u32, f64)>| {
            let later = list.iter().filter(|&&(steps, _)| steps > age);
            later
                .map(|&(steps, mass)| (steps - age, mass / left))
                .collect()
        };
        Some(row.iter().map(aged).collect())
    }
}

/// Jumps from one state, by the index of the state entered.
type Row = Vec<Vec<(u32, f64)>>;

fn usable_states<S: ModelState>() -> Vec<S> {
    S::ALL
        .iter()
        .copied()
        .filter(|state| !state.is_failure())
        .collect()
}

/// The curve of a host that is in a failure state already: one at the start, zero after it.
fn certain_failure(steps: usize) -> Vec<f64> {
    let mut curve = vec![0.0; steps + 1];
    curve[0] = 1.0;
    curve
}

/// The masses at holding times 0..=`steps`; longer ones are left out.
fn dense(jumps: &[(u32, f64)], steps: usize) -> Vec<f64> {
    let mut masses = vec![0.0; steps + 1];
    for &(holding, mass) in jumps {
        if let Some(slot) = masses.get_mut(holding as usize) {
            *slot += mass;
        }
    }
    masses
}

/// Running sums.
fn cumulated(mut values: Vec<f64>) -> Vec<f64> {
    let mut sum = 0.0;
    for value in &mut values {
        sum += *value;
        *value = sum;
    }
    values
}

/// Probability of any of the jumps within 0..=`steps` steps.
fn cumulated_sum<'a>(lists: impl Iterator<Item = &'a [(u32, f64)]>, steps: usize) -> Vec<f64> {
    let mut sum = vec![0.0; steps + 1];
    for list in lists {
        for &(holding, mass) in list {
            if let Some(slot) = sum.get_mut(holding as usize) {
                *slot += mass;
            }
        }
    }
    cumulated(sum)
}

/// `SUM_{l=1..n-1} masses(l) * values(n - l)`.
fn convolved_at(masses: &[f64], values: &[f64], n: usize) -> f64 {
    masses[1..n]
        .iter()
        .zip(values[1..n].iter().rev())
        .map(|(mass, value)| mass * value)
        .sum()
}

/// `SUM_l masses(l) * values(n - l)` over the holding times that have mass, up to n.
fn sparse_at(jumps: &[(u32, f64)], values: &[f64], n: usize) -> f64 {
    let within = jumps
        .iter()
        .take_while(|&&(holding, _)| holding as usize <= n);
    within
        .map(|&(holding, mass)| mass * values[n - holding as usize])
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::AvailabilityState::{self, Busy, CpuTaken, Gone, Idle, Thrashing};
    use proptest::prelude::*;

    fn jump(
        from: AvailabilityState,
        to: AvailabilityState,
        steps: u32,
        mass: f64,
    ) -> Jump<AvailabilityState> {
        Jump {
            from,
            to,
            steps,
            mass,
        }
    }

    /// q_12(1) = .5, q_13(2) = .5, q_21(1) = 1.
    fn small() -> Kernel<AvailabilityState> {
        let jumps = [
            jump(Idle, Busy, 1, 0.5),
            jump(Idle, CpuTaken, 2, 0.5),
            jump(Busy, Idle, 1, 1.0),
        ];
        Kernel::new(jumps).unwrap()
    }

    #[test]
    fn the_small_kernel_fails_as_computed_by_hand() {
        let expected = [1.0, 1.0, 0.5, 0.5, 0.25];
        assert_eq!(small().survival_dense(Idle, 4), expected);
        assert_eq!(small().survival(Idle, 4), expected);
    }

    #[test]
    fn a_direct_jump_at_the_last_step_counts() {
        // Equation (2) of the paper drops it; equation (3) does not.
        let kernel = Kernel::new([jump(Idle, Gone, 3, 1.0)]).unwrap();
        assert_eq!(kernel.survival_dense(Idle, 3), [1.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn the_first_stay_is_conditioned_on_its_age() {
        let kernel = Kernel::new([jump(Idle, Gone, 1, 0.5), jump(Idle, Gone, 4, 0.25)]).unwrap();
        assert_eq!(kernel.survival_at_age(Idle, 2, 3), [1.0, 1.0, 0.5, 0.5]);
        // An age beyond every stay that ends: this stay never ends.
        assert_eq!(kernel.survival_at_age(Idle, 5, 3), [1.0; 4]);
    }

    #[test]
    fn an_age_thought_impossible_is_disregarded() {
        assert_eq!(
            small().survival_at_age(Idle, 100, 4),
            small().survival(Idle, 4)
        );
    }

    #[test]
    fn a_host_that_recovers_is_available_again() {
        let kernel = Kernel::new([jump(Idle, Gone, 2, 1.0), jump(Gone, Idle, 1, 1.0)]).unwrap();
        let up = |state: AvailabilityState| state != Gone;
        assert_eq!(
            kernel.point_availability(Idle, 0, 5, up),
            [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
        );
        assert_eq!(kernel.point_availability(Gone, 0, 2, up), [0.0, 1.0, 1.0]);
        assert_eq!(kernel.point_availability(Idle, 1, 2, up), [1.0, 0.0, 1.0]);
    }

    #[test]
    fn a_host_in_a_failure_state_does_not_survive() {
        assert_eq!(small().survival(CpuTaken, 2), [1.0, 0.0, 0.0]);
        assert_eq!(small().survival_dense(CpuTaken, 2), [1.0, 0.0, 0.0]);
    }

    #[test]
    fn impossible_jumps_are_refused() {
        assert!(Kernel::new([jump(Idle, Idle, 1, 0.1)]).is_err());
        assert!(Kernel::new([jump(Idle, Busy, 0, 0.1)]).is_err());
        assert!(Kernel::new([jump(Idle, Busy, 1, f64::NAN)]).is_err());
        let twice = [jump(Idle, Busy, 1, 0.6), jump(Idle, Gone, 2, 0.6)];
        assert!(matches!(
            Kernel::new(twice),
            Err(KernelError::Total { from: 0, .. })
        ));
    }

    fn kernels() -> impl Strategy<Value = Kernel<AvailabilityState>> {
        let states = [Idle, Busy, CpuTaken, Thrashing, Gone];
        prop::collection::vec((0usize..5, 0usize..5, 1u32..40, 0.0f64..1.0), 1..60).prop_map(
            move |raw| {
                let allowed = raw.into_iter().filter(|&(from, to, ..)| from != to);
                let raw: Vec<_> = allowed.collect();
                let total = |i| {
                    raw.iter()
                        .filter(|r| r.0 == i)
                        .map(|r| r.3)
                        .sum::<f64>()
                        .max(1.0)
                };
                let jumps = raw.iter().map(|&(from, to, steps, mass)| {
                    jump(states[from], states[to], steps, mass / total(from))
                });
                Kernel::new(jumps).unwrap()
            },
        )
    }

    proptest! {
        #[test]
        fn sparse_equals_dense(kernel in kernels(), init in 0usize..5, steps in 0usize..80) {
            let init = AvailabilityState::ALL[init];
            let dense = kernel.survival_dense(init, steps);
            let sparse = kernel.survival(init, steps);
            prop_assert_eq!(dense.len(), steps + 1);
            for (dense, sparse) in dense.iter().zip(&sparse) {
                prop_assert!((dense - sparse).abs() < 1e-12, "{} {}", dense, sparse);
            }
        }

        #[test]
        fn curves_start_at_one_and_never_rise(
            kernel in kernels(), init in 0usize..5, age in 0u32..60, steps in 0usize..80,
        ) {
            let init = AvailabilityState::ALL[init];
            let curve = kernel.survival_at_age(init, age, steps);
            prop_assert_eq!(curve[0], 1.0);
            prop_assert!(curve.windows(2).all(|pair| pair[1] <= pair[0] + 1e-12 && pair[1] >= 0.0));
        }

        #[test]
        fn being_in_any_state_is_certain(
            kernel in kernels(), init in 0usize..5, age in 0u32..60, steps in 0usize..80,
        ) {
            let init = AvailabilityState::ALL[init];
            for value in kernel.point_availability(init, age, steps, |_| true) {
                prop_assert!((value - 1.0).abs() < 1e-9);
            }
        }

        #[test]
        fn staying_out_of_failure_is_no_likelier_than_being_out_of_it(
            kernel in kernels(), init in 0usize..2, age in 0u32..60, steps in 0usize..80,
        ) {
            let init = AvailabilityState::ALL[init];
            let survival = kernel.survival_at_age(init, age, steps);
            let available = kernel.point_availability(init, age, steps, |s| !s.is_failure());
            for (survival, available) in survival.iter().zip(&available) {
                prop_assert!(*survival <= available + 1e-12);
            }
        }
    }
}
