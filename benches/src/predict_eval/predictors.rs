//! The predictors that are compared, and what has to be learnt before they speak.

use std::num::NonZeroU32;

use crate::rivals::competing_risks::CompetingRisks;
use crate::rivals::reference::{LoadModel, window_frequency};
use placement::hazard::{Example, HazardModel};
use placement::history::DAY_SECONDS;
use placement::semi_markov::counting::CutStays;
use placement::semi_markov::visits::{visits, whole_steps};
use placement::semi_markov::{Kernel, counting};
use placement::state::{AvailabilityState, ModelState, Thresholds};
use placement::{Probability, SurvivalCurve};

use super::calibration::Calibration;
use super::score::{Raw, Record};
use super::split::{self, Split};
use super::walk::{Walk, walk};
use super::{HORIZON_HOURS, HORIZONS, HOUR, LONGEST_SECONDS, Limits};
use crate::traces::Trace;

/// The paper's estimator: days of the same kind that it looks back on, and what becomes of cut
/// stays. The paper leaves both open in part.
const PAPER_SMP: [(usize, CutStays); 3] = [
    (10, CutStays::LeftOut),
    (30, CutStays::LeftOut),
    (30, CutStays::NeverLeft),
];
/// Days of the same kind that the window frequency looks back on.
const WINDOW_DAYS: usize = 30;
/// Strength of the pool in the competing risks of a host, in events per bin of age.
const POOL_EVENTS: f64 = 3.0;
/// Ages beyond this many steps are treated alike.
const LONGEST_AGE_STEPS: u32 = 1024;
/// Time series are fitted on at least this much of the past.
const SERIES_SECONDS: u64 = DAY_SECONDS;

/// The time series models compared; which of them the paper used is not known.
const LOAD_MODELS: [LoadModel; 9] = [
    LoadModel::Autoregressive(8),
    LoadModel::Autoregressive(16),
    LoadModel::Autoregressive(32),
    LoadModel::BestMean(8),
    LoadModel::BestMean(32),
    LoadModel::MovingAverage(8),
    LoadModel::AutoregressiveMovingAverage(4, 4),
    LoadModel::AutoregressiveMovingAverage(8, 8),
    LoadModel::Last,
];

/// Predictors that need no more than the walk and the weights.
const RAW: usize = FIRST_LOAD_MODEL + LOAD_MODELS.len();
const COMPETING_RISKS: usize = 3;
const HAZARD: usize = 4;
const FOREIGN_HAZARD: usize = 5;
const LEVELED_HAZARD: usize = 6;
const WINDOW_FREQUENCY: usize = 7;
const HOST_FREQUENCY: usize = 8;
const HISTORY: usize = 9;
const FIRST_LOAD_MODEL: usize = 10;

/// Names of the finished predictors, in the order of their columns.
#[must_use]
pub fn names() -> Vec<String> {
    let mut names = vec![
        "SMP of the paper, N=10".to_owned(),
        "SMP of the paper, N=30".to_owned(),
        "SMP of the paper, N=30, cut stays kept".to_owned(),
        "SMP, competing risks, uncalibrated".to_owned(),
        "hazard regression, uncalibrated".to_owned(),
        FOREIGN.to_owned(),
        LEVELED.to_owned(),
        "same window of earlier days, Jeffreys".to_owned(),
        "host's frequency, Jeffreys".to_owned(),
        "History-8".to_owned(),
    ];
    names.extend(
        LOAD_MODELS
            .iter()
            .map(|model| format!("{model}, yes or no")),
    );
    names.extend(
        LOAD_MODELS
            .iter()
            .map(|model| format!("{model}, as frequency")),
    );
    names.push(CLIMATOLOGY.to_owned());
    names.push("SMP, competing risks".to_owned());
    names.push(BEST.to_owned());
    names
}

/// The name of the predictor in use.
pub const BEST: &str = "hazard regression";
/// The name of the same with weights from other traces only.
pub const FOREIGN: &str = "hazard regression, weights from elsewhere";
/// The name of that one with the level of the host's own past: what hosts announce.
pub const LEVELED: &str = "hazard regression, weights from elsewhere, level of the host";
/// The name of the forecast that is the same for all: the reference of the skill.
pub const CLIMATOLOGY: &str = "climatology";

/// Whether a name belongs to the paper's predictor or to a time series model: those that the best
/// one has to beat.
#[must_use]
pub fn is_baseline(name: &str) -> bool {
    name.starts_with("SMP of the paper")
        || name.ends_with("yes or no")
        || name.ends_with("as frequency")
}

/// What is learnt from the past of all hosts.
#[derive(Debug, Default)]
pub struct Fitted {
    hazard: HazardModel,
    foreign: HazardModel,
    pool: CompetingRisks<AvailabilityState>,
    hazard_calibration: Calibration,
    smp_calibration: Calibration,
    climatology: [f64; HORIZONS],
    /// Survival by what each time series model had said, for each horizon.
    load_tables: Vec<[[f64; 2]; HORIZONS]>,
}

/// Predictions at one landmark for all horizons.
#[derive(Debug)]
pub struct Predicted([[f32; HORIZONS]; RAW]);

impl Predicted {
    /// The predictions for one horizon.
    #[must_use]
    pub fn at(&self, horizon: usize) -> Raw {
        self.0.iter().map(|row| row[horizon]).collect()
    }

    /// What the hazard regression of a host announces for one horizon.
    #[must_use]
    pub const fn leveled(&self, horizon: usize) -> f32 {
        self.0[LEVELED_HAZARD][horizon]
    }
}

impl Fitted {
    /// Learns pooled rates and weights from the days for that. `foreign` is a model that knows nothing
    /// of this trace.
    #[must_use]
    pub fn learn(trace: &Trace, split: &Split, foreign: &HazardModel, limits: Limits) -> Self {
        let mut fitted = Self {
            foreign: foreign.clone(),
            ..Self::default()
        };
        let end = split.fit_end();
        let stride = split::stride(trace, &split.fit, limits.fit);
        let mut follow_ups = Vec::new();
        for (index, host) in trace.hosts.iter().enumerate() {
            if let Some(step) = NonZeroU32::new(trace.sample_seconds) {
                for visit in visits(&host.timeline, 0..end, step) {
                    fitted.pool.observe(&visit);
                }
            }
            let last = host.timeline.end().min(end) / HOUR;
            let hours = host.timeline.start() / HOUR + 1..=last;
            let chosen = hours.filter(|hour| (hour + index as u64).is_multiple_of(stride));
            follow_ups.extend(chosen.map(|hour| follow_up(host, hour * HOUR, end)));
        }
        fitted.hazard = HazardModel::of_pool(follow_ups);
        fitted.hazard = fitted
            .hazard
            .fit(&examples(trace, &fitted.hazard, end, stride));
        fitted
    }

    /// Learns the corrections of the forecasts from the records of the calibration days.
    pub fn calibrate(&mut self, records: &[Record<Raw>]) {
        self.hazard_calibration = calibration(records, HAZARD);
        self.smp_calibration = calibration(records, COMPETING_RISKS);
        let frequency = |wanted: &dyn Fn(&Record<Raw>) -> bool| {
            let mut survived = 0;
            let mut seen = 0;
            for record in records.iter().filter(|record| wanted(record)) {
                survived += u64::from(record.survived);
                seen += 1;
            }
            Probability::jeffreys(survived, seen).value()
        };
        self.climatology = std::array::from_fn(|h| frequency(&|r| r.horizon == h));
        let table = |model: usize| {
            std::array::from_fn(|horizon| {
                [0.0, 1.0].map(|said| {
                    let column = FIRST_LOAD_MODEL + model;
                    frequency(&|r| r.horizon == horizon && r.predicted[column] == said)
                })
            })
        };
        self.load_tables = (0..LOAD_MODELS.len()).map(table).collect();
    }

    /// Adds the columns that need what was learnt on the calibration days.
    #[must_use]
    pub fn finish(&self, record: Record<Raw>) -> Record {
        let horizon = record.horizon;
        let mut columns = record.predicted.clone();
        for (model, table) in self.load_tables.iter().enumerate() {
            let said = record.predicted[FIRST_LOAD_MODEL + model] as usize;
            columns.push(table[horizon][said.min(1)] as f32);
        }
        columns.push(self.climatology[horizon] as f32);
        let corrected = |calibration: &Calibration, column: usize| {
            let predicted = Probability::saturating(f64::from(record.predicted[column]));
            calibration.apply(predicted).value() as f32
        };
        columns.push(corrected(&self.smp_calibration, COMPETING_RISKS));
        columns.push(corrected(&self.hazard_calibration, HAZARD));
        Record {
            predicted: columns,
            ..record
        }
    }

    /// The one that was fitted elsewhere.
    #[must_use]
    pub const fn foreign(&self) -> &HazardModel {
        &self.foreign
    }

    /// The hazard regression as it was fitted.
    #[must_use]
    pub const fn hazard(&self) -> &HazardModel {
        &self.hazard
    }
}

/// The usable hosts before `end`, every `stride` hours, with what became of them. The covariates
/// refer to the pool of `model`.
#[must_use]
pub fn examples(trace: &Trace, model: &HazardModel, end: u64, stride: u64) -> Vec<Example> {
    let mut examples = Vec::new();
    for (index, host) in trace.hosts.iter().enumerate() {
        walk(trace, host, None, |walk| {
            let now = walk.now();
            let chosen = (now / HOUR + index as u64).is_multiple_of(stride);
            if chosen && now < end && walk.usable() {
                examples.push(Example {
                    covariates: walk.summary.covariates(model.pool()),
                    follow_up: follow_up(host, now, end),
                });
            }
        });
    }
    examples
}

fn follow_up(
    host: &crate::traces::TracedHost,
    time: u64,
    end: u64,
) -> placement::history::FollowUp {
    let before = host.timeline.state_at(time.saturating_sub(1));
    let usable = before.is_some_and(|state| !state.is_failure());
    let limit = if usable {
        (time + LONGEST_SECONDS).min(end)
    } else {
        time
    };
    host.timeline.follow_up(time, limit.max(time))
}

fn calibration(records: &[Record<Raw>], column: usize) -> Calibration {
    let forecast = |record: &Record<Raw>| {
        (
            Probability::saturating(f64::from(record.predicted[column])),
            record.survived,
        )
    };
    Calibration::fit(&records.iter().map(forecast).collect::<Vec<_>>())
}

impl Walk<'_> {
    /// What every raw predictor says now. The host is usable.
    #[must_use]
    pub fn predict(&mut self, fitted: &Fitted) -> Predicted {
        let init = self.state().unwrap_or(AvailabilityState::Idle);
        let windows = HORIZON_HOURS.map(|hours| self.now()..self.now() + hours * HOUR);
        let mut predicted = [[0.0; HORIZONS]; RAW];
        let smp = self.competing_risks_curve(fitted, init);
        let hazard = self.hazard_curve(&fitted.hazard);
        let foreign = self.hazard_curve(&fitted.foreign);
        let leveled = self.leveled_curve();
        let loads = self.load_forecasts();
        for (horizon, window) in windows.into_iter().enumerate() {
            let seconds = (window.end - window.start) as f64;
            let mut put = |row: usize, value: Probability| {
                predicted[row][horizon] = value.value() as f32;
            };
            for (row, (days, cut)) in PAPER_SMP.into_iter().enumerate() {
                let timeline = &self.host.timeline;
                let kernel =
                    counting::kernel_for_window(timeline, window.clone(), days, cut, self.step);
                let steps = (seconds / f64::from(self.step.get())).ceil() as usize;
                let values = kernel.survival(init, steps);
                let curve = SurvivalCurve::from_estimates(self.step, values.into_iter().skip(1));
                put(row, curve.at(seconds));
            }
            put(COMPETING_RISKS, smp.at(seconds));
            put(HAZARD, hazard.at(seconds));
            put(FOREIGN_HAZARD, foreign.at(seconds));
            put(
                LEVELED_HAZARD,
                leveled
                    .as_ref()
                    .map_or(Probability::ZERO, |curve| curve.at(seconds)),
            );
            put(
                WINDOW_FREQUENCY,
                window_frequency(&self.host.timeline, window, WINDOW_DAYS),
            );
            let (survived, seen) = self.frequency[horizon];
            put(HOST_FREQUENCY, Probability::jeffreys(survived, seen));
            put(HISTORY, self.counters[horizon].predict());
            let samples = (seconds / f64::from(self.step.get())).round() as usize;
            for (model, loads) in loads.iter().enumerate() {
                let fails = loads
                    .iter()
                    .take(samples.max(1))
                    .any(|&x| x > Thresholds::LINUX.second());
                put(
                    FIRST_LOAD_MODEL + model,
                    if fails {
                        Probability::ZERO
                    } else {
                        Probability::ONE
                    },
                );
            }
        }
        Predicted(predicted)
    }

    /// TR with the level of the host's own past.
    fn leveled_curve(&self) -> Option<SurvivalCurve> {
        let (model, forecaster) = self.leveled.as_ref()?;
        Some(forecaster.curve(model, self.step, self.longest_steps() as usize))
    }

    /// TR by a hazard regression.
    #[must_use]
    pub fn hazard_curve(&self, model: &HazardModel) -> SurvivalCurve {
        let covariates = self.summary.covariates(model.pool());
        model.curve(&covariates, self.step, self.longest_steps() as usize)
    }

    fn competing_risks_curve(&mut self, fitted: &Fitted, init: AvailabilityState) -> SurvivalCurve {
        let steps = self.longest_steps() as usize;
        let age = self.age(self.step);
        let values = self.kernel(fitted).survival_at_age(init, age, steps);
        SurvivalCurve::from_estimates(self.step, values.into_iter().skip(1))
    }

    /// Probability of being usable at each horizon, from any state, by competing risks.
    #[must_use]
    pub fn availability(&mut self, fitted: &Fitted, init: AvailabilityState) -> [f64; HORIZONS] {
        let steps = self.longest_steps() as usize;
        let age = self.age(self.step);
        let kernel = self.kernel(fitted);
        let usable = |state: AvailabilityState| !state.is_failure();
        let values = kernel.point_availability(init, age, steps, usable);
        HORIZON_HOURS.map(|hours| {
            let step = whole_steps(hours * HOUR, self.step) as usize;
            values.get(step.min(steps)).copied().unwrap_or(f64::NAN)
        })
    }

    fn kernel(&mut self, fitted: &Fitted) -> &Kernel<AvailabilityState> {
        let steps = self.longest_steps() + LONGEST_AGE_STEPS;
        self.kernel
            .get_or_insert_with(|| self.risks.kernel(&fitted.pool, POOL_EVENTS, steps))
    }

    fn longest_steps(&self) -> u32 {
        LONGEST_SECONDS.div_ceil(u64::from(self.step.get())) as u32
    }

    /// Steps that the host has been in its present state.
    fn age(&self, step: NonZeroU32) -> u32 {
        let run = self.host.timeline.run_at(self.now() - 1);
        let since = run.map_or(self.now(), |run| run.span.start);
        whole_steps(self.now() - since, step).min(LONGEST_AGE_STEPS)
    }

    fn load_forecasts(&self) -> [Vec<f64>; LOAD_MODELS.len()] {
        let step = u64::from(self.step.get());
        let samples = self.samples((SERIES_SECONDS.max(LONGEST_SECONDS) / step) as usize);
        let steps = LONGEST_SECONDS.div_ceil(step) as usize;
        LOAD_MODELS.map(|model| model.forecast(&samples, steps))
    }
}
