//! How far a few false failures in the history move a prediction, as in the paper: failures of 60
//! to 1800 s are put into earlier weekdays around 8:00, and TR from 8:00 is predicted with and
//! without them.

use std::num::NonZeroU32;
use std::ops::Range;

use placement::SurvivalCurve;
use placement::history::{DAY_SECONDS, DayKind};
use placement::semi_markov::counting::{self, CutStays};
use placement::state::AvailabilityState;
use rand::rngs::StdRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};

use super::HOUR;
use super::predictors::Fitted;
use super::split::Split;
use super::walk::walk;
use crate::traces::{Trace, TracedHost, overlay};

/// Lengths of the predicted window in hours.
pub const WINDOW_HOURS: [u64; 5] = [1, 2, 3, 5, 10];
/// Numbers of injected failures.
pub const INJECTIONS: [usize; 5] = [1, 2, 4, 7, 10];
const MOST_HOSTS: usize = 20;
const LOOK_BACK_DAYS: usize = 30;
const HOLDING_SECONDS: Range<u64> = 60..1801;
/// Around 8:00: up to this long before or after.
const SPREAD_SECONDS: u64 = 1800;
const START_HOUR: u64 = 8;
/// Where TR is near zero a relative change says nothing.
const LEAST_RELIABILITY: f64 = 0.1;
/// Step of the paper's model here: failures last minutes, whatever the trace's own step is.
const STEP: NonZeroU32 = NonZeroU32::new(60).unwrap();
const SEED: u64 = 800;

/// Mean relative change of TR by injections (rows) and window (columns).
pub type Table = [[f64; WINDOW_HOURS.len()]; INJECTIONS.len()];

/// The changes of the paper's predictor and of the hazard regression.
#[derive(Clone, Copy, Debug, Default)]
pub struct Robustness {
    /// Hosts that were tried.
    pub hosts: usize,
    /// The paper's semi-Markov predictor.
    pub paper: Table,
    /// The hazard regression.
    pub hazard: Table,
}

/// Runs the injections on hosts that were usable at 8:00 on the first weekday judged. `None` if the
/// trace has too few earlier weekdays or no such host.
#[must_use]
pub fn run(trace: &Trace, split: &Split, fitted: &Fitted) -> Option<Robustness> {
    let kind = |day: &u64| DayKind::at(day * DAY_SECONDS);
    let day = *split
        .judge
        .iter()
        .find(|day| kind(day) == DayKind::Weekday)?;
    let start = day * DAY_SECONDS + START_HOUR * HOUR;
    let past = split.fit.iter().chain(&split.calibration).copied();
    let mut weekdays: Vec<u64> = past.filter(|day| kind(day) == DayKind::Weekday).collect();
    let weekdays = weekdays.split_off(weekdays.len().saturating_sub(LOOK_BACK_DAYS));
    let mut sums = Sums::default();
    let mut random = StdRng::seed_from_u64(SEED);
    let known = |host| Some((host, known_days(host, start, &weekdays)?));
    for (host, weekdays) in trace.hosts.iter().filter_map(known).take(MOST_HOSTS) {
        let Some(before) = predictions(trace, host, start, fitted) else {
            continue;
        };
        sums.hosts += 1;
        for (row, &count) in INJECTIONS.iter().enumerate() {
            let noisy = with_failures(host, &weekdays, count, &mut random);
            if let Some(after) = predictions(trace, &noisy, start, fitted) {
                sums.add(row, &before, &after);
            }
        }
    }
    (sums.hosts > 0).then(|| sums.means())
}

/// The weekdays on which the host was known at 8:00, if it was usable at the start and they are
/// enough.
fn known_days(host: &TracedHost, start: u64, weekdays: &[u64]) -> Option<Vec<u64>> {
    let at = |time: u64| host.timeline.state_at(time);
    let usable = matches!(
        at(start - 1),
        Some(AvailabilityState::Idle | AvailabilityState::Busy)
    );
    let known = |day: &&u64| at(**day * DAY_SECONDS + START_HOUR * HOUR).is_some();
    let days: Vec<u64> = weekdays.iter().filter(known).copied().collect();
    (usable && days.len() >= INJECTIONS[INJECTIONS.len() - 1]).then_some(days)
}

fn with_failures(
    host: &TracedHost,
    weekdays: &[u64],
    count: usize,
    random: &mut StdRng,
) -> TracedHost {
    let days = sample(random, weekdays.len(), count.min(weekdays.len()));
    let failure = |index: usize| {
        let eight = weekdays[index] * DAY_SECONDS + START_HOUR * HOUR;
        let from = eight - SPREAD_SECONDS + random.random_range(0..2 * SPREAD_SECONDS);
        from..from + random.random_range(HOLDING_SECONDS)
    };
    let failures = days.into_iter().map(failure).collect();
    let runs = host.timeline.runs(0..u64::MAX);
    let known = runs.filter_map(|run| run.state.map(|state| (run.span, state)));
    TracedHost {
        name: host.name.clone(),
        site: host.site.clone(),
        owner: host.owner.clone(),
        timeline: overlay(known.collect(), failures),
        loads: host.loads.clone(),
    }
}

/// TR for each window length by the paper's model and by the hazard regression.
type Predictions = [[f64; WINDOW_HOURS.len()]; 2];

fn predictions(
    trace: &Trace,
    host: &TracedHost,
    start: u64,
    fitted: &Fitted,
) -> Option<Predictions> {
    let init = host.timeline.state_at(start - 1)?;
    let paper = WINDOW_HOURS.map(|hours| {
        let window = start..start + hours * HOUR;
        let kernel = counting::kernel_for_window(
            &host.timeline,
            window,
            LOOK_BACK_DAYS,
            CutStays::LeftOut,
            STEP,
        );
        let steps = hours * HOUR / u64::from(STEP.get());
        let values = kernel.survival(init, steps as usize);
        SurvivalCurve::from_estimates(STEP, values.into_iter().skip(1))
            .at((hours * HOUR) as f64)
            .value()
    });
    let mut hazard = None;
    walk(trace, host, None, |walk| {
        if walk.now() == start {
            let curve = walk.hazard_curve(fitted.hazard());
            hazard = Some(WINDOW_HOURS.map(|hours| curve.at((hours * HOUR) as f64).value()));
        }
    });
    Some([paper, hazard?])
}

#[derive(Default)]
struct Sums {
    hosts: usize,
    /// Sum of the changes and their number, by predictor, injections and window.
    cells: [[[(f64, u32); WINDOW_HOURS.len()]; INJECTIONS.len()]; 2],
}

impl Sums {
    fn add(&mut self, row: usize, before: &Predictions, after: &Predictions) {
        for (cells, (before, after)) in self.cells.iter_mut().zip(before.iter().zip(after)) {
            for (cell, (before, after)) in cells[row].iter_mut().zip(before.iter().zip(after)) {
                if *before >= LEAST_RELIABILITY {
                    cell.0 += (after - before).abs() / before;
                    cell.1 += 1;
                }
            }
        }
    }

    fn means(&self) -> Robustness {
        let mean = |cell: (f64, u32)| cell.0 / f64::from(cell.1.max(1));
        let [paper, hazard] = self.cells.map(|rows| rows.map(|row| row.map(mean)));
        Robustness {
            hosts: self.hosts,
            paper,
            hazard,
        }
    }
}
