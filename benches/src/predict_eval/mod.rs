//! How good the predictors are on a trace: fitted on its past, judged on its future.
//!
//! [`evaluate`] walks each host hour by hour ([`walk`]), asks every predictor at every landmark of
//! the later part for the probability of surviving the next hours ([`predictors`]), and scores the
//! answers ([`score`]). [`report`] turns the scores into tables and plots.

pub mod calibration;
pub mod first_days;
pub mod paper;
pub mod point;
pub mod predictors;
pub mod report;
pub mod robustness;
pub mod score;
pub mod speed;
pub mod split;
pub mod walk;

use placement::hazard::{Example, HazardModel};
use placement::history::{DAY_SECONDS, DayKind, WindowOutcome};

use self::paper::PaperFigures;
use self::predictors::{BEST, CLIMATOLOGY, Fitted, Predicted};
use self::robustness::Robustness;
use self::score::{Raw, Record, Scores};
use self::split::{Split, Thinning};
use self::walk::Walk;
use crate::traces::Trace;

/// The horizons that are judged, in hours.
pub const HORIZON_HOURS: [u64; 4] = [1, 3, 5, 10];
/// Number of horizons.
pub const HORIZONS: usize = HORIZON_HOURS.len();
/// Seconds in an hour.
pub const HOUR: u64 = 3600;
/// The last horizon in seconds.
pub const LONGEST_SECONDS: u64 = 36_000;

/// Bounds on the work; the landmarks are thinned evenly to stay within them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most landmarks to fit the hazard regression on.
    pub fit: u64,
    /// Most landmarks to calibrate on.
    pub calibration: u64,
    /// Most landmarks to judge on.
    pub judge: u64,
    /// Most landmarks that a trace contributes to weights for elsewhere.
    pub travelling: u64,
    /// Most landmarks to judge point availability on.
    pub point: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fit: 60_000,
            calibration: 20_000,
            judge: 110_000,
            travelling: 15_000,
            point: 30_000,
        }
    }
}

/// Everything found out about one trace.
#[derive(Debug)]
pub struct Evaluation {
    /// Name of the trace.
    pub trace: String,
    /// Its description.
    pub description: String,
    /// Number of hosts.
    pub hosts: usize,
    /// How its days were split.
    pub split: Split,
    /// Scores of every predictor at every horizon.
    pub scores: Scores,
    /// What injected failures do, where the trace is long enough for that.
    pub robustness: Option<Robustness>,
    /// The measures of the paper's own figures.
    pub paper: PaperFigures,
    /// Scores of the forecasts of being usable at a moment, for reading back.
    pub availability: Scores,
}

/// Fits on the first part of the trace's days and judges on the rest. `foreign` is a model that was
/// fitted elsewhere, to see how well weights travel.
#[must_use]
pub fn evaluate(trace: &Trace, foreign: &HazardModel, limits: Limits) -> Evaluation {
    let split = Split::of(trace);
    let mut fitted = Fitted::learn(trace, &split, foreign, limits);
    let hours = split::stride(trace, &split.calibration, limits.calibration);
    let thinning = Thinning { hours, hosts: 1 };
    let calibration = records(trace, &fitted, &split.calibration, thinning);
    fitted.calibrate(&calibration);
    let thinning = Thinning::to(trace, &split.judge, limits.judge);
    let judged = records(trace, &fitted, &split.judge, thinning);
    let columns: Vec<Record> = judged
        .into_iter()
        .map(|record| fitted.finish(record))
        .collect();
    let robustness = robustness::run(trace, &split, &fitted);
    let names = predictors::names();
    let paper = PaperFigures::of(trace, &names, &columns, limits);
    let availability = point::evaluate(trace, &split, &fitted, limits);
    Evaluation {
        trace: trace.name.clone(),
        description: trace.description.clone(),
        hosts: trace.hosts.len(),
        split,
        scores: Scores::of(&names, [BEST, CLIMATOLOGY], &columns),
        robustness,
        paper,
        availability,
    }
}

/// Examples over all of a trace for weights that are to serve elsewhere, in terms of the default
/// model. Every trace contributes about as many, however large it is.
#[must_use]
pub fn travelling_examples(trace: &Trace, limits: Limits) -> Vec<Example> {
    let days: Vec<u64> = Split::of(trace).all_days().collect();
    let stride = split::stride(trace, &days, limits.travelling);
    predictors::examples(trace, &HazardModel::default(), u64::MAX, stride)
}

/// A model fitted on the examples of all traces but the one with this index, of which it knows nothing.
#[must_use]
pub fn model_from_others(examples: &[Vec<Example>], index: usize) -> HazardModel {
    let others = examples
        .iter()
        .enumerate()
        .filter(|&(other, _)| other != index);
    let others: Vec<Example> = others.flat_map(|(_, examples)| examples).cloned().collect();
    if others.is_empty() {
        return HazardModel::pretrained();
    }
    HazardModel::default().fit(&others)
}

/// Raw predictions at the landmarks of the given days, with what happened.
fn records(trace: &Trace, fitted: &Fitted, days: &[u64], thinning: Thinning) -> Vec<Record<Raw>> {
    let mut records = Vec::new();
    for_each_record(trace, fitted, days, thinning, |record, _, _| {
        records.push(record);
    });
    records
}

/// Calls `visit` with the raw predictions at each landmark and horizon, and what happened.
fn for_each_record(
    trace: &Trace,
    fitted: &Fitted,
    days: &[u64],
    thinning: Thinning,
    mut visit: impl FnMut(Record<Raw>, &Walk<'_>, &Predicted),
) {
    for (index, host) in trace.hosts.iter().enumerate() {
        walk::walk(trace, host, Some(fitted.foreign()), |walk| {
            let time = walk.now();
            let chosen =
                thinning.keeps(index, time) && days.binary_search(&(time / DAY_SECONDS)).is_ok();
            if !chosen || !walk.usable() {
                return;
            }
            let outcomes = HORIZON_HOURS.map(|h| host.timeline.outcome(time..time + h * HOUR));
            if outcomes
                .iter()
                .all(|outcome| *outcome == WindowOutcome::Unknown)
            {
                return;
            }
            let predicted = walk.predict(fitted);
            for (horizon, outcome) in outcomes.into_iter().enumerate() {
                if outcome != WindowOutcome::Unknown {
                    let record = Record {
                        host: index,
                        day: time / DAY_SECONDS,
                        hour: time / HOUR % 24,
                        kind: DayKind::at(time),
                        horizon,
                        survived: outcome == WindowOutcome::Survived,
                        predicted: predicted.at(horizon),
                    };
                    visit(record, walk, &predicted);
                }
            }
        });
    }
}
