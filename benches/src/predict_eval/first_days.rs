//! The forecasts of a grid in its first days.
//!
//! A trace is taken for a grid that begins on its first day, with weights fitted on other traces. What the
//! programs forecast after some days is judged on the days after, at most three weeks.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::num::NonZeroU32;

use placement::hazard::HazardModel;
use placement::history::{DAY_SECONDS, Timeline};
use placement::pool_model::{PoolModel, mean_of_logits};
use placement::state::ModelState;
use placement::{AvailabilityBitmap, SurvivalCurve};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::predictors::{self, CLIMATOLOGY, Fitted, LEVELED, is_baseline};
use super::score::{Raw, Record, Scores, log_loss_of};
use super::split::{Split, Thinning};
use super::{HORIZON_HOURS, HORIZONS, HOUR, LONGEST_SECONDS, Limits, for_each_record};
use crate::traces::{Trace, TracedHost};

/// Days after which forecasts are judged.
pub const AGES: [usize; 3] = [1, 3, 28];
/// Most days that are judged.
const JUDGED_DAYS: usize = 21;
/// Most landmarks that are judged.
const JUDGED_MAX: u64 = 20_000;
/// Most landmarks on which the time series and the climatology are calibrated.
const CALIBRATED_MAX: u64 = 8_000;
/// The model that makes the forecasts of hosts.
const IN_USE: &str = "as in use";
/// The mean, of the logits, of the hazard regression and the model of the pool.
const BLEND: &str = "mean of both";
/// The model of the pool's bitmaps alone.
const POOL: &str = "pool alone";
/// Most hosts whose bitmaps make that model.
const POOL_HOSTS: usize = 500;
/// The curves are those of announcements.
const STEP: NonZeroU32 = NonZeroU32::new(300).unwrap();
const STEPS: usize = 120;

const RESAMPLES: usize = 1000;
const SEED: u64 = 20_261_123;

/// What the forecasts are worth in a grid of some days.
#[derive(Debug)]
pub struct FirstDays {
    trace: String,
    age: usize,
    judged_days: usize,
    hosts: usize,
    names: Vec<String>,
    scores: Scores,
    records: Vec<Record>,
}

/// Judges the forecasts of a grid that is `age` days old. `None` if the trace is too short.
#[must_use]
pub fn evaluate(
    trace: &Trace,
    foreign: &HazardModel,
    age: usize,
    limits: Limits,
) -> Option<FirstDays> {
    let days: Vec<u64> = Split::of(trace).all_days().collect();
    let (past, future) = days.split_at_checked(age)?;
    let judge: Vec<u64> = future.iter().copied().take(JUDGED_DAYS).collect();
    let end = judge.last()? * DAY_SECONDS + DAY_SECONDS + LONGEST_SECONDS;
    let trace = &until(trace, end);
    let split = Split {
        fit: past.to_vec(),
        calibration: past.to_vec(),
        judge,
    };
    let mut fitted = Fitted::learn(trace, &split, foreign, limits);
    fitted.calibrate(&calibration_records(trace, &fitted, &split, limits));
    let records = records(trace, &fitted, &split);
    let mut names = predictors::names();
    names.extend([POOL, BLEND, IN_USE].map(str::to_owned));
    Some(FirstDays {
        trace: trace.name.clone(),
        age,
        judged_days: split.judge.len(),
        hosts: trace.hosts.len(),
        scores: Scores::of(&names, [IN_USE, CLIMATOLOGY], &records),
        names,
        records,
    })
}

/// The trace up to a time: walking on from there would cost much and change nothing.
fn until(trace: &Trace, end: u64) -> Trace {
    let cut = |host: &TracedHost| {
        let mut timeline = Timeline::new(host.timeline.start().min(end));
        for run in host.timeline.runs(0..end) {
            timeline.push(run.span.start..run.span.end.min(end), run.state);
        }
        let loads = host.loads.partition_point(|(at, _)| *at < end);
        TracedHost {
            name: host.name.clone(),
            site: host.site.clone(),
            owner: host.owner.clone(),
            timeline,
            loads: host.loads[..loads].to_vec(),
        }
    };
    Trace {
        name: trace.name.clone(),
        description: trace.description.clone(),
        hosts: trace.hosts.iter().map(cut).collect(),
        ..*trace
    }
}

fn calibration_records(
    trace: &Trace,
    fitted: &Fitted,
    split: &Split,
    limits: Limits,
) -> Vec<Record<Raw>> {
    let thinning = Thinning::to(
        trace,
        &split.calibration,
        limits.calibration.min(CALIBRATED_MAX),
    );
    let mut records = Vec::new();
    for_each_record(
        trace,
        fitted,
        &split.calibration,
        thinning,
        |record, _, _| records.push(record),
    );
    records
}

fn records(trace: &Trace, fitted: &Fitted, split: &Split) -> Vec<Record> {
    let thinning = Thinning::to(trace, &split.judge, JUDGED_MAX);
    let morning = |day: &u64| (*day, pool_at(trace, day * DAY_SECONDS));
    let pools: BTreeMap<u64, PoolModel> = split.judge.iter().map(morning).collect();
    // Such a trace has the states that a guest meets, which no client mixes.
    let is_of_load = trace.hosts.iter().any(|host| !host.loads.is_empty());
    let mut last: Option<(usize, u64, SurvivalCurve)> = None;
    let mut records = Vec::new();
    for_each_record(
        trace,
        fitted,
        &split.judge,
        thinning,
        |record, walk, predicted| {
            let host = record.host;
            let now = walk.now();
            let known = last.take().filter(|(of, at, _)| (*of, *at) == (host, now));
            let curve = known.map_or_else(
                || pools[&record.day].curve(&bitmap(walk.host, now), STEP, STEPS),
                |(_, _, curve)| curve,
            );
            let hours = HORIZON_HOURS[record.horizon];
            let of_pool = curve.at((hours * HOUR) as f64).value();
            let leveled = predicted.leveled(record.horizon);
            let blend = mean_of_logits(of_pool, f64::from(leveled)) as f32;
            let in_use = if is_of_load { leveled } else { blend };
            last = Some((host, now, curve));
            let mut record = fitted.finish(record);
            record.predicted.extend([of_pool as f32, blend, in_use]);
            records.push(record);
        },
    );
    records
}

/// What the bitmaps of the trace's hosts say at this time.
fn pool_at(trace: &Trace, time: u64) -> PoolModel {
    let seen = trace.hosts.iter().take(POOL_HOSTS);
    let bitmaps: Vec<AvailabilityBitmap> = seen
        .filter(|host| host.timeline.start() < time)
        .map(|host| bitmap(host, time))
        .collect();
    PoolModel::of(&bitmaps.iter().collect::<Vec<_>>())
}

fn bitmap(host: &TracedHost, until: u64) -> AvailabilityBitmap {
    host.timeline.bitmap(until, |state| !state.is_failure())
}

/// A loss of one forecast.
type Loss = fn(forecast: f64, survived: bool) -> f64;

fn brier(forecast: f64, survived: bool) -> f64 {
    (forecast - f64::from(u8::from(survived))).powi(2)
}

/// The mean difference of the loss of two predictors, and its 95% interval over days.
fn over_days(records: &[&Record], a: usize, b: usize, loss: Loss) -> (f64, (f64, f64)) {
    let mut days = BTreeMap::<u64, (f64, f64)>::new();
    for record in records {
        let of = |column: usize| loss(f64::from(record.predicted[column]), record.survived);
        let day = days.entry(record.day).or_default();
        day.0 += of(a) - of(b);
        day.1 += 1.0;
    }
    let days: Vec<(f64, f64)> = days.into_values().collect();
    let mean = |drawn: &mut dyn Iterator<Item = (f64, f64)>| {
        let (sum, count) = drawn.fold((0.0, 0.0), |all, day| (all.0 + day.0, all.1 + day.1));
        sum / f64::max(count, 1.0)
    };
    let mut random = StdRng::seed_from_u64(SEED);
    let mut draws: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let mut drawn = (0..days.len()).map(|_| days[random.random_range(0..days.len())]);
            mean(&mut drawn)
        })
        .collect();
    draws.sort_by(f64::total_cmp);
    let at = |share: f64| draws[((RESAMPLES - 1) as f64 * share) as usize];
    (mean(&mut days.iter().copied()), (at(0.025), at(0.975)))
}

/// Whether a predictor's name has some role.
type Role = fn(&str) -> bool;

/// What the model in use is compared with: a name, and which predictors have the role.
const OTHERS: [(&str, Role); 7] = [
    ("hazard regression", |name| name == LEVELED),
    (POOL, |name| name == POOL),
    (BLEND, |name| name == BLEND),
    ("SMP of the paper", |name| {
        name.starts_with("SMP of the paper")
    }),
    ("best time series", |name| {
        is_baseline(name) && !name.starts_with("SMP")
    }),
    ("host's frequency", |name| {
        name.starts_with("host's frequency")
    }),
    (CLIMATOLOGY, |name| name == CLIMATOLOGY),
];

/// The section on the first days of a grid.
#[must_use]
pub fn section(all: &[FirstDays]) -> String {
    let mut text = String::from(
        "Brier / log loss. In brackets: the model in use minus the other, Brier, with its 95% interval over \
         days; below zero, the model in use is better. *worse*: the interval of one of the two lies above zero.\n\n\
         | trace | days known | horizon | landmarks, days | as in use | ECE | skill |",
    );
    for (name, _) in OTHERS {
        let _ = write!(text, " {name} |");
    }
    text += "\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
    for one in all {
        for horizon in 0..HORIZONS {
            text += &one.row(horizon);
        }
    }
    text
}

impl FirstDays {
    fn row(&self, horizon: usize) -> String {
        let records: Vec<&Record> = self
            .records
            .iter()
            .filter(|record| record.horizon == horizon)
            .collect();
        let column = |name: &str| self.names.iter().position(|n| n == name).unwrap_or(0);
        let in_use = column(IN_USE);
        let own = self.scores.measures[in_use][horizon];
        let mut row = format!(
            "| {}, {} hosts | {} | {} h | {}, {} | {:.4} / {:.4} | {:.3} | {:.3} |",
            self.trace,
            self.hosts,
            self.age,
            HORIZON_HOURS[horizon],
            records.len(),
            self.judged_days,
            own.brier,
            own.log_loss,
            own.calibration_error,
            own.skill,
        );
        for (_, role) in OTHERS {
            let columns = (0..self.names.len()).filter(|i| role(&self.names[*i]));
            let of = |i: &usize| self.scores.measures[*i][horizon];
            let Some(best) = columns.min_by(|a, b| of(a).brier.total_cmp(&of(b).brier)) else {
                continue;
            };
            let (difference, (low, high)) = over_days(&records, in_use, best, brier);
            let log_loss = over_days(&records, in_use, best, log_loss_of).1;
            let worse = if low > 0.0 || log_loss.0 > 0.0 {
                ", *worse*"
            } else {
                ""
            };
            let other = of(&best);
            let _ = write!(
                row,
                " {:.4} / {:.4} ({difference:+.4}: {low:+.4} to {high:+.4}{worse}) |",
                other.brier, other.log_loss,
            );
        }
        row + "\n"
    }
}
