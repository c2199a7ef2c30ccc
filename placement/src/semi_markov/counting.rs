//! The paper's estimator: relative frequencies of the completed stays.

use std::num::NonZeroU32;
use std::ops::Range;

use super::kernel::{Jump, Kernel};
use super::visits::{Visit, visits};
use crate::history::{Timeline, earlier_windows};
use crate::state::ModelState;

/// How to count a stay whose end was not observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutStays {
    /// Not at all. The papers say nothing of cut stays; this reading is ours. Short stays are
    /// over-represented, and failure becomes certain in a state that is only left by failure.
    LeftOut,
    /// As a stay that never ends, so that the probabilities of leaving the state sum to less than one. The
    /// result is too optimistic, but never absurd. [`SemiMarkov`](super::SemiMarkov) reads the papers so.
    NeverLeft,
}

/// The kernel `q_ij(l) = Q_i(j) * H_ij(l)` by counting: of the stays in `i`, the share that ended with a jump
/// to `j` after `l` steps. A state whose end was never observed is never left.
#[must_use]
pub fn kernel<S: ModelState>(visits: &[Visit<S>], cut: CutStays) -> Kernel<S> {
    let counts = |visit: &&Visit<S>| visit.next.is_some() || cut == CutStays::NeverLeft;
    let mut totals = vec![0u32; S::ALL.len()];
    for visit in visits.iter().filter(counts) {
        totals[visit.state.index()] += 1;
    }
    let jumps = visits.iter().filter_map(|visit| {
        Some(Jump {
            from: visit.state,
            to: visit.next?,
            steps: visit.steps.max(1),
            mass: 1.0 / f64::from(totals[visit.state.index()]),
        })
    });
    // Stays end in another state by construction and the masses of a state sum to at most one.
    Kernel::new(jumps.filter(|jump| jump.from != jump.to)).unwrap_or_else(|_| Kernel::empty())
}

/// The paper's kernel for a future `window`: counted over the same clock window of the latest
/// `days` days of the same kind (weekday or weekend).
#[must_use]
pub fn kernel_for_window<S: ModelState>(
    timeline: &Timeline<S>,
    window: Range<u64>,
    days: usize,
    cut: CutStays,
    step_seconds: NonZeroU32,
) -> Kernel<S> {
    let stays: Vec<Visit<S>> = earlier_windows(window, days)
        .take_while(|earlier| earlier.end > timeline.start())
        .flat_map(|earlier| visits(timeline, earlier, step_seconds))
        .collect();
    kernel(&stays, cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::DAY_SECONDS;
    use crate::state::AvailabilityState::{Busy, CpuTaken, Idle};

    const STEP: NonZeroU32 = NonZeroU32::new(60).unwrap();

    #[test]
    fn stays_cut_off_are_left_out_or_never_left() {
        let stay = |steps, next| Visit {
            state: Idle,
            age_at_start: 0,
            steps,
            next,
        };
        let stays = [
            stay(2, Some(CpuTaken)),
            stay(4, Some(Busy)),
            stay(9, None),
            stay(9, None),
        ];
        let survival = |cut| kernel(&stays, cut).survival(Idle, 3);
        assert_eq!(survival(CutStays::LeftOut), [1.0, 1.0, 0.5, 0.5]);
        assert_eq!(survival(CutStays::NeverLeft), [1.0, 1.0, 0.75, 0.75]);
    }

    #[test]
    fn only_the_same_hours_of_days_of_the_same_kind_count() {
        let mut t = Timeline::new(0);
        // Days 0 and 1 are weekdays, 2 and 3 a weekend; each day the CPU is taken at 9 h.
        for day in 0..4 {
            let start = day * DAY_SECONDS;
            t.push(start..start + 9 * 3600, Some(Idle));
            t.push(start + 9 * 3600..start + 10 * 3600, Some(CpuTaken));
            t.push(start + 10 * 3600..start + DAY_SECONDS, Some(Idle));
        }
        let monday = 4 * DAY_SECONDS;
        let at_eight = monday + 8 * 3600..monday + 11 * 3600;
        let kernel = kernel_for_window(&t, at_eight, 10, CutStays::LeftOut, STEP);
        assert_eq!(kernel.survival(Idle, 60).last(), Some(&0.0));
        let at_noon = monday + 12 * 3600..monday + 15 * 3600;
        let kernel = kernel_for_window(&t, at_noon, 10, CutStays::LeftOut, STEP);
        assert_eq!(kernel.support(), 0);
    }
}
