//! How well forecasts came true.

use std::collections::BTreeMap;

use placement::history::DayKind;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::HORIZONS;

/// Predictions of TR by predictor at one horizon.
pub type Raw = Vec<f32>;

/// Forecasts are cut to this distance from 0 and 1 for the log loss only: a certain forecast that
/// fails would make it infinite.
const LOG_LOSS_MARGIN: f64 = 0.001;
const CALIBRATION_BINS: usize = 10;
/// A clock window needs this many landmarks to have an empirical TR, which has to be at least so
/// large ("not near zero").
const LEAST_WINDOWS: u32 = 10;
const LEAST_RELIABILITY: f64 = 0.1;
const RESAMPLES: usize = 200;
const SIMULATIONS: usize = 5;
const SEED: u64 = 20_050_801;
const INTERVAL: (f64, f64) = (0.025, 0.975);

/// One landmark and horizon: what was predicted, what happened.
#[derive(Clone, Debug)]
pub struct Record<P = Vec<f32>> {
    /// Index of the host.
    pub host: usize,
    /// Day since the epoch.
    pub day: u64,
    /// Hour of the day at which the window begins.
    pub hour: u64,
    /// Weekday or weekend.
    pub kind: DayKind,
    /// Index of the horizon.
    pub horizon: usize,
    /// Whether the window was survived.
    pub survived: bool,
    /// TR by predictor.
    pub predicted: P,
}

/// The measures of one predictor at one horizon.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measures {
    /// Mean squared error of the forecast.
    pub brier: f64,
    /// 95% interval of `brier` over host-days.
    pub brier_interval: (f64, f64),
    /// 1 - Brier / Brier of the climatology.
    pub skill: f64,
    /// Mean negative log likelihood.
    pub log_loss: f64,
    /// Expected calibration error over ten bins of equal count.
    pub calibration_error: f64,
    /// Relative error of TR, averaged over (host, kind of day, start hour), the paper's measure.
    /// `None` if no such cell has enough landmarks.
    pub relative_error: Option<f64>,
    /// The same over (host, kind of day).
    pub host_relative_error: Option<f64>,
    /// What `relative_error` would be on average if the outcomes were drawn with the very
    /// probabilities that were forecast: the part that no forecast can avoid.
    pub unavoidable_relative_error: Option<f64>,
    /// 95% interval of Brier minus the best predictor's Brier, on the same host-days.
    pub behind_best: (f64, f64),
}

/// Everything measured on one trace.
#[derive(Debug)]
pub struct Scores {
    /// Names of the predictors.
    pub names: Vec<String>,
    /// Measures by predictor and horizon.
    pub measures: Vec<[Measures; HORIZONS]>,
    /// Landmarks judged at each horizon.
    pub landmarks: [usize; HORIZONS],
    /// Share of them that was survived.
    pub survived: [f64; HORIZONS],
    /// For the best predictor at each horizon: mean forecast and frequency by bin.
    pub reliability: [Vec<(f64, f64)>; HORIZONS],
}

impl Scores {
    /// Scores of all columns, compared with the column named `best` and, for the skill, with
    /// `climatology`.
    #[must_use]
    pub fn of(names: &[String], [best, climatology]: [&str; 2], records: &[Record<Raw>]) -> Self {
        let column = |name: &str| names.iter().position(|n| n == name).unwrap_or(0);
        let best = column(best);
        let climatology = column(climatology);
        let mut scores = Self {
            names: names.to_vec(),
            measures: vec![[Measures::default(); HORIZONS]; names.len()],
            landmarks: [0; HORIZONS],
            survived: [0.0; HORIZONS],
            reliability: std::array::from_fn(|_| Vec::new()),
        };
        for horizon in 0..HORIZONS {
            let records: Vec<&Record<Raw>> = records
                .iter()
                .filter(|record| record.horizon == horizon)
                .collect();
            if records.is_empty() {
                continue;
            }
            scores.landmarks[horizon] = records.len();
            scores.survived[horizon] =
                records.iter().filter(|r| r.survived).count() as f64 / records.len() as f64;
            let intervals = bootstrap(&records, names.len(), best);
            let reference = brier(&records, climatology);
            for (column, intervals) in intervals.into_iter().enumerate() {
                let brier = brier(&records, column);
                scores.measures[column][horizon] = Measures {
                    brier,
                    brier_interval: intervals.0,
                    skill: 1.0 - brier / reference,
                    log_loss: log_loss(&records, column),
                    calibration_error: calibration_error(&bins(&records, column)),
                    relative_error: relative_error(&records, column, clock_window, outcome),
                    host_relative_error: relative_error(&records, column, |_| None, outcome),
                    unavoidable_relative_error: unavoidable_relative_error(&records, column),
                    behind_best: intervals.1,
                };
            }
            let bins = bins(&records, best);
            scores.reliability[horizon] = bins
                .iter()
                .map(|bin| (bin.forecast, bin.frequency))
                .collect();
        }
        scores
    }

    /// Measures of a predictor by name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&[Measures; HORIZONS]> {
        let column = self.names.iter().position(|n| n == name)?;
        self.measures.get(column)
    }
}

pub(super) fn outcome(record: &Record<Raw>) -> f64 {
    f64::from(u8::from(record.survived))
}

fn forecast(record: &Record<Raw>, column: usize) -> f64 {
    f64::from(record.predicted[column])
}

fn brier(records: &[&Record<Raw>], column: usize) -> f64 {
    let squared = |r: &&Record<Raw>| (forecast(r, column) - outcome(r)).powi(2);
    records.iter().map(squared).sum::<f64>() / records.len() as f64
}

fn log_loss(records: &[&Record<Raw>], column: usize) -> f64 {
    let loss = |r: &&Record<Raw>| log_loss_of(forecast(r, column), r.survived);
    records.iter().map(loss).sum::<f64>() / records.len() as f64
}

/// Minus the logarithm of the probability that a forecast gave to what happened.
#[must_use]
pub fn log_loss_of(forecast: f64, survived: bool) -> f64 {
    let p = forecast.clamp(LOG_LOSS_MARGIN, 1.0 - LOG_LOSS_MARGIN);
    -(if survived { p } else { 1.0 - p }).ln()
}

struct Bin {
    share: f64,
    forecast: f64,
    frequency: f64,
}

/// Ten bins of equal count by forecast.
fn bins(records: &[&Record<Raw>], column: usize) -> Vec<Bin> {
    let mut sorted: Vec<(f64, f64)> = records
        .iter()
        .map(|r| (forecast(r, column), outcome(r)))
        .collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let n = sorted.len();
    (0..CALIBRATION_BINS)
        .map(|i| &sorted[i * n / CALIBRATION_BINS..(i + 1) * n / CALIBRATION_BINS])
        .filter(|bin| !bin.is_empty())
        .map(|bin| {
            let count = bin.len() as f64;
            Bin {
                share: count / n as f64,
                forecast: bin.iter().map(|x| x.0).sum::<f64>() / count,
                frequency: bin.iter().map(|x| x.1).sum::<f64>() / count,
            }
        })
        .collect()
}

fn calibration_error(bins: &[Bin]) -> f64 {
    bins.iter()
        .map(|bin| bin.share * (bin.forecast - bin.frequency).abs())
        .sum()
}

pub(super) const fn clock_window(record: &Record<Raw>) -> Option<u64> {
    Some(record.hour)
}

/// Mean relative error over simulated outcomes. Windows of a cell are a day or more apart, so they
/// are drawn independently.
fn unavoidable_relative_error(records: &[&Record<Raw>], column: usize) -> Option<f64> {
    let mut random = StdRng::seed_from_u64(SEED);
    let mut drawn = |record: &Record<Raw>| {
        f64::from(u8::from(random.random::<f64>() < forecast(record, column)))
    };
    let draws: Option<Vec<f64>> = (0..SIMULATIONS)
        .map(|_| relative_error(records, column, clock_window, &mut drawn))
        .collect();
    draws.map(|draws| draws.iter().sum::<f64>() / draws.len() as f64)
}

/// Mean over cells of |mean forecast - TR| / TR, TR being the cell's empirical one.
fn relative_error(
    records: &[&Record<Raw>],
    column: usize,
    hour: fn(&Record<Raw>) -> Option<u64>,
    outcome: impl FnMut(&Record<Raw>) -> f64,
) -> Option<f64> {
    let errors = cell_errors(records, column, hour, outcome);
    (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
}

/// |mean forecast - TR| / TR of each cell (a host, a kind of day, and what `hour` returns) that has enough
/// windows and whose TR is not near zero.
pub(super) fn cell_errors(
    records: &[&Record<Raw>],
    column: usize,
    hour: fn(&Record<Raw>) -> Option<u64>,
    mut outcome: impl FnMut(&Record<Raw>) -> f64,
) -> Vec<f64> {
    let mut cells: BTreeMap<_, Cell> = BTreeMap::new();
    for record in records {
        let cell = cells
            .entry((record.host, record.kind, hour(record)))
            .or_default();
        cell.add(forecast(record, column), outcome(record));
    }
    cells.values().filter_map(Cell::relative_error).collect()
}

/// Windows of a host that the paper's measure takes together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    windows: u32,
    /// Sum of the forecasts.
    predicted: f64,
    survived: f64,
}

impl Cell {
    /// Adds a window: its forecast, and 1 if it was survived, otherwise 0.
    pub(super) fn add(&mut self, forecast: f64, outcome: f64) {
        self.windows += 1;
        self.predicted += forecast;
        self.survived += outcome;
    }

    /// |mean forecast - TR| / TR; `None` with too few windows or a TR near zero.
    pub(super) fn relative_error(&self) -> Option<f64> {
        let is_judged = self.windows >= LEAST_WINDOWS
            && self.survived / f64::from(self.windows) >= LEAST_RELIABILITY;
        is_judged.then(|| (self.predicted - self.survived).abs() / self.survived)
    }
}

/// Interval of the Brier score, and of the Brier score minus the best predictor's.
type Intervals = ((f64, f64), (f64, f64));

/// Resamples host-days, since the windows of a day overlap.
fn bootstrap(records: &[&Record<Raw>], columns: usize, best: usize) -> Vec<Intervals> {
    let mut days: BTreeMap<(usize, u64), (f64, Vec<f64>)> = BTreeMap::new();
    for record in records {
        let (count, sums) = days
            .entry((record.host, record.day))
            .or_insert_with(|| (0.0, vec![0.0; columns]));
        *count += 1.0;
        for (column, sum) in sums.iter_mut().enumerate() {
            *sum += (forecast(record, column) - outcome(record)).powi(2);
        }
    }
    let days: Vec<(f64, Vec<f64>)> = days.into_values().collect();
    let mut random = StdRng::seed_from_u64(SEED);
    let mut draws: Vec<Vec<f64>> = vec![Vec::with_capacity(RESAMPLES); columns];
    for _ in 0..RESAMPLES {
        let mut count = 0.0;
        let mut totals = vec![0.0; columns];
        for _ in 0..days.len() {
            let (n, sums) = &days[random.random_range(0..days.len())];
            count += n;
            totals
                .iter_mut()
                .zip(sums)
                .for_each(|(total, sum)| *total += sum);
        }
        for (draws, total) in draws.iter_mut().zip(totals) {
            draws.push(total / count);
        }
    }
    let of_best = draws[best].clone();
    let behind = |draws: &[f64]| draws.iter().zip(&of_best).map(|(a, b)| a - b).collect();
    draws
        .iter()
        .map(|draws| (interval(draws.clone()), interval(behind(draws))))
        .collect()
}

fn interval(mut draws: Vec<f64>) -> (f64, f64) {
    draws.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let index = (share * draws.len() as f64) as usize;
        draws
            .get(index.min(draws.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0.0)
    };
    (at(INTERVAL.0), at(INTERVAL.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(host: usize, predicted: f32, survived: bool) -> Record<Raw> {
        Record {
            host,
            day: host as u64,
            hour: 3,
            kind: DayKind::Weekday,
            horizon: 0,
            survived,
            predicted: vec![predicted, 0.5],
        }
    }

    #[test]
    fn measures_are_as_computed_by_hand() {
        let records: Vec<_> = (0..20).map(|i| record(0, 0.8, i % 4 != 0)).collect();
        let names = ["ours".to_owned(), "reference".to_owned()];
        let scores = Scores::of(&names, ["ours", "reference"], &records);
        let best = scores.named("ours").unwrap()[0];
        // Three of four survive, 0.8 was predicted.
        assert!((best.brier - (0.75 * 0.04 + 0.25 * 0.64)).abs() < 1e-6);
        assert!((best.skill - (1.0 - 0.19 / 0.25)).abs() < 1e-6);
        let loss = -(0.75 * f64::ln(0.8) + 0.25 * f64::ln(0.2));
        assert!((best.log_loss - loss).abs() < 1e-6);
        assert!((best.relative_error.unwrap() - 0.05 / 0.75).abs() < 1e-6);
        assert_eq!(scores.landmarks, [20, 0, 0, 0]);
    }

    #[test]
    fn certain_and_right_forecasts_are_perfect() {
        let records: Vec<_> = (0..40)
            .map(|i| record(i, (i % 2) as f32, i % 2 == 1))
            .collect();
        let names = ["ours".to_owned(), "reference".to_owned()];
        let best = Scores::of(&names, ["ours", "reference"], &records)
            .named("ours")
            .unwrap()[0];
        assert_eq!((best.brier, best.calibration_error), (0.0, 0.0));
        assert_eq!(best.behind_best, (0.0, 0.0));
        assert_eq!(best.relative_error, None);
    }
}
