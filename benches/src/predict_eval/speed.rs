//! The work of one prediction over ten hours at the monitor's step, for the criterion bench and the
//! report.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::{Duration, Instant};

use placement::SurvivalCurve;
use placement::hazard::{HazardModel, HostSummary};
use placement::history::{DAY_SECONDS, Timeline};
use placement::semi_markov::counting::{self, CutStays};
use placement::semi_markov::kernel::{Jump, Kernel};
use placement::state::AvailabilityState::{self, Busy, CpuTaken, Gone, Idle, Thrashing};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Step of the monitor.
pub const STEP: NonZeroU32 = NonZeroU32::new(6).unwrap();
/// Steps in ten hours.
pub const STEPS: usize = 6000;
const HOLDING_TIMES: usize = 280;
const SEED: u64 = 6;

/// A kernel as several weeks of one host leave it: a few hundred different holding times in each of
/// the usable states, and all three failures.
#[must_use]
pub fn kernel() -> Kernel<AvailabilityState> {
    let mut random = StdRng::seed_from_u64(SEED);
    let mass = 1.0 / HOLDING_TIMES as f64;
    let mut jumps = Vec::new();
    for (from, other) in [(Idle, Busy), (Busy, Idle)] {
        for i in 0..HOLDING_TIMES {
            // Log-uniform from one step to ten hours.
            let steps = (STEPS as f64).powf(random.random::<f64>()).ceil() as u32;
            let to = [CpuTaken, Thrashing, Gone]
                .get(i % 10)
                .copied()
                .unwrap_or(other);
            jumps.push(Jump {
                from,
                to,
                steps,
                mass,
            });
        }
    }
    Kernel::new(jumps).unwrap_or_else(|_| Kernel::empty())
}

/// Four weeks of a host as the monitor sees it.
#[must_use]
pub fn summary() -> HostSummary<AvailabilityState> {
    let mut summary = HostSummary::new(0);
    let mut end = 0;
    for (span, state, load) in four_weeks() {
        end = span.end;
        summary.observe(span, Some(state), Some(load));
    }
    summary.observe(end..end + 600, Some(Idle), Some(0.1));
    summary
}

/// The states of the same four weeks.
fn timeline() -> Timeline<AvailabilityState> {
    let mut timeline = Timeline::new(0);
    for (span, state, _) in four_weeks() {
        timeline.push(span, Some(state));
    }
    timeline
}

/// Stays, one after the other, and the owner's load in them.
fn four_weeks() -> Vec<(Range<u64>, AvailabilityState, f64)> {
    let mut random = StdRng::seed_from_u64(SEED);
    let mut stays = Vec::new();
    let mut time = 0;
    while time < 28 * DAY_SECONDS {
        let state = [Idle, Idle, Busy, CpuTaken][random.random_range(0..4)];
        let length = random.random_range(60..20_000);
        stays.push((time..time + length, state, random.random()));
        time += length;
    }
    stays
}

/// The shipped model.
#[must_use]
pub fn model() -> HazardModel {
    HazardModel::pretrained()
}

/// The prediction in use, from the summary to the curve.
#[must_use]
pub fn predict(summary: &HostSummary<AvailabilityState>, model: &HazardModel) -> SurvivalCurve {
    model.curve(&summary.covariates(model.pool()), STEP, STEPS)
}

/// Time of one call over a window, best of several.
#[derive(Clone, Copy, Debug)]
pub struct WindowSpeed {
    /// Equation (3), dense.
    pub dense: Duration,
    /// The same numbers over the holding times that have mass.
    pub sparse: Duration,
    /// The hazard regression, covariates and curve.
    pub hazard: Duration,
}

/// Time of predictions.
#[derive(Clone, Debug)]
pub struct Speed {
    /// By length of the window in hours; the last one is ten hours.
    pub by_window: Vec<(u64, WindowSpeed)>,
    /// Counting the paper's kernel over ten hours, from a month of stays.
    pub counting: Duration,
}

impl Speed {
    /// Times over ten hours.
    #[must_use]
    pub fn longest(&self) -> Option<WindowSpeed> {
        self.by_window.last().map(|(_, speed)| *speed)
    }
}

/// Lengths of windows in hours, figure 4 of the paper.
const WINDOW_HOURS: [u64; 6] = [1, 2, 4, 6, 8, 10];

/// Measures all three predictors in this process.
#[must_use]
pub fn measure() -> Speed {
    let kernel = kernel();
    let summary = summary();
    let model = model();
    let over = |steps: usize| WindowSpeed {
        dense: best_of(3, || black_box(kernel.survival_dense(Idle, steps)).len()),
        sparse: best_of(10, || black_box(kernel.survival(Idle, steps)).len()),
        hazard: best_of(2000, || {
            let covariates = summary.covariates(model.pool());
            black_box(model.curve(&covariates, STEP, steps)).steps()
        }),
    };
    let timeline = timeline();
    Speed {
        by_window: WINDOW_HOURS
            .map(|hours| (hours, over(hours as usize * STEPS / 10)))
            .into(),
        counting: best_of(10, || {
            let kernel = counting::kernel_for_window(
                &timeline,
                timeline.end()..timeline.end() + 36_000,
                usize::MAX,
                CutStays::LeftOut,
                STEP,
            );
            black_box(kernel).support()
        }),
    }
}

fn best_of(times: usize, mut work: impl FnMut() -> usize) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..times {
        let start = Instant::now();
        black_box(work());
        best = best.min(start.elapsed());
    }
    best
}
