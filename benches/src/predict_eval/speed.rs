//! The work of one prediction over ten hours at the monitor's step, for the criterion bench and the
//! report.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use crate::rivals::semi_markov::kernel::{Jump, Kernel};
use placement::SurvivalCurve;
use placement::calibration::Calibration;
use placement::hazard::{HazardModel, HostSummary};
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
    let mut random = StdRng::seed_from_u64(SEED);
    let mut summary = HostSummary::new(0);
    let mut time = 0;
    while time < 28 * 86_400 {
        let state = [Idle, Idle, Busy, CpuTaken][random.random_range(0..4)];
        let length = random.random_range(60..20_000);
        summary.observe(time..time + length, Some(state), Some(random.random()));
        time += length;
    }
    summary.observe(time..time + 600, Some(Idle), Some(0.1));
    summary
}

/// A calibrated model.
#[must_use]
pub fn model() -> HazardModel {
    HazardModel::default().calibrated(Calibration::new(0.1, 0.9).unwrap_or_default())
}

/// The prediction in use, from the summary to the curve.
#[must_use]
pub fn predict(summary: &HostSummary<AvailabilityState>, model: &HazardModel) -> SurvivalCurve {
    model.curve(&summary.covariates(model.pool()), STEP, STEPS)
}

/// Time of one call, best of several.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Equation (3), dense.
    pub dense: Duration,
    /// The same numbers over the holding times that have mass.
    pub sparse: Duration,
    /// The hazard regression, covariates and curve.
    pub hazard: Duration,
}

/// Measures all three in this process.
#[must_use]
pub fn measure() -> Speed {
    let kernel = kernel();
    let (summary, model) = (summary(), model());
    Speed {
        dense: best_of(3, || black_box(kernel.survival_dense(Idle, STEPS)).len()),
        sparse: best_of(10, || black_box(kernel.survival(Idle, STEPS)).len()),
        hazard: best_of(2000, || black_box(predict(&summary, &model)).steps()),
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
