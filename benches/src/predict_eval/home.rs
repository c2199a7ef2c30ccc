//! Learning at home: the model that a grid uses after its first days.
//!
//! A trace is taken for a grid that begins on its first day, with weights fitted on other traces. The programs
//! do this: hosts add up their sums; each day a refit is made from them, and tried on bitmaps of the next day; the
//! last refit is used if refits won the trials of the last seven days together. The days after that, at most three
//! weeks, are judged.

use std::fmt::Write;

use placement::AvailabilityBitmap;
use placement::hazard::{Contribution, HazardModel, Refit, Sums, TRIALS_TOGETHER, Trial, refit};
use placement::history::{DAY_SECONDS, Timeline};
use placement::state::ModelState;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::predictors::{self, CLIMATOLOGY, Fitted, LEVELED, is_baseline};
use super::score::{Raw, Record, Scores, log_loss_of};
use super::split::{Split, Thinning};
use super::walk::walk;
use super::{HORIZON_HOURS, HORIZONS, HOUR, LONGEST_SECONDS, Limits, for_each_record};
use crate::traces::{Trace, TracedHost};

/// Days after which the model is judged.
pub const AGES: [usize; 2] = [3, 28];
/// Most days that are judged.
const JUDGED_DAYS: usize = 21;
/// Most landmarks that are judged.
const JUDGED_MAX: u64 = 20_000;
/// Most landmarks on which the time series and the climatology are calibrated.
const CALIBRATED_MAX: u64 = 8_000;
/// As in the programs: most hosts whose sums count, and on which a refit is tried.
const HOSTS: usize = 1000;
const TRIED: usize = 200;

/// The model in use: the refit if refits won their trials, the shipped model otherwise.
const IN_USE: &str = "as in use";
/// The refit, whether it won or not: one damped step.
const STEP: &str = "one damped step";
/// The weights fitted to the same days without bounds.
const FULL: &str = "full refit";

const RESAMPLES: usize = 1000;
const SEED: u64 = 20_261_123;

/// What a model learnt at home is worth on a trace.
#[derive(Debug)]
pub struct Home {
    trace: String,
    age: usize,
    judged_days: usize,
    hosts: usize,
    trials: Vec<Trial>,
    names: Vec<String>,
    scores: Scores,
    records: Vec<Record>,
}

/// Judges the model of a grid that is `age` days old. `None` if the trace is too short.
#[must_use]
pub fn evaluate(trace: &Trace, foreign: &HazardModel, age: usize, limits: Limits) -> Option<Home> {
    let days: Vec<u64> = Split::of(trace).all_days().collect();
    let (past, future) = days.split_at_checked(age)?;
    let judge: Vec<u64> = future.iter().copied().take(JUDGED_DAYS).collect();
    if past.is_empty() {
        return None;
    }
    let end = judge.last()? * DAY_SECONDS + DAY_SECONDS + LONGEST_SECONDS;
    let trace = &until(trace, end);
    let split = Split {
        fit: past.to_vec(),
        calibration: past.to_vec(),
        judge,
    };
    let first = past.len().saturating_sub(TRIALS_TOGETHER).max(1);
    let mornings: Vec<u64> = past[first..].iter().map(|day| day * DAY_SECONDS).collect();
    let (refit, trials) = learnt(trace, foreign, &mornings, first);
    let is_won = Trial::of_all(trials.iter().copied()).is_won();
    let mut fitted = Fitted::learn(trace, &split, foreign, limits);
    fitted.calibrate(&calibration_records(trace, &fitted, &split, limits));
    let model = refit.as_ref().map(|refit| &refit.model);
    let records = records(trace, &fitted, &split, model, is_won);
    let mut names = predictors::names();
    names.extend([IN_USE, STEP, FULL].map(str::to_owned));
    Some(Home {
        trace: trace.name.clone(),
        age,
        judged_days: split.judge.len(),
        hosts: trace.hosts.len(),
        trials,
        scores: Scores::of(&names, [IN_USE, CLIMATOLOGY], &records),
        names,
        records,
    })
}

/// The refit of the last of these mornings, which are days `first` and on of the grid, and the trial of each
/// morning's refit on the day that begins then.
fn learnt(
    trace: &Trace,
    foreign: &HazardModel,
    mornings: &[u64],
    first: usize,
) -> (Option<Refit>, Vec<Trial>) {
    let sums = sums(trace, foreign, mornings);
    let mut newest = None;
    let mut trials = Vec::new();
    for (number, made) in mornings.iter().enumerate() {
        let contributions = sums.iter().map(|of_host| Contribution {
            sums: &of_host[number],
            days_known: (first + number) as f64,
        });
        newest = refit::refit(foreign, &contributions.collect::<Vec<_>>());
        if let Some(refit) = &newest {
            trials.push(tried(trace, foreign, refit, *made));
        }
    }
    (newest, trials)
}

/// The sums of each host on each of these mornings.
fn sums(trace: &Trace, foreign: &HazardModel, mornings: &[u64]) -> Vec<Vec<Sums>> {
    let of = |host: &TracedHost| {
        let mut found: Vec<Option<Sums>> = vec![None; mornings.len()];
        walk(trace, host, Some(foreign), |walk| {
            let next = mornings.partition_point(|morning| *morning < walk.now());
            if let Some(found) = found.get_mut(next)
                && let Some((_, host)) = &walk.leveled
            {
                *found = host.sums().cloned();
            }
        });
        // A host that was not there on the day before a morning has the sums of an earlier one.
        let mut latest = Sums::default();
        found
            .into_iter()
            .map(|sums| {
                latest = sums.unwrap_or_else(|| latest.clone());
                latest.clone()
            })
            .collect()
    };
    trace.hosts.iter().take(HOSTS).map(of).collect()
}

/// The trial on the day that begins at `from`.
fn tried(trace: &Trace, foreign: &HazardModel, refit: &Refit, from: u64) -> Trial {
    let mut trial = Trial::default();
    for host in trace.hosts.iter().take(TRIED) {
        let before = bitmap(host, from);
        let after = bitmap(host, from + DAY_SECONDS);
        trial.add(foreign, &refit.model, &before, &after);
    }
    trial
}

fn bitmap(host: &TracedHost, until: u64) -> AvailabilityBitmap {
    host.timeline.bitmap(until, |state| !state.is_failure())
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

fn records(
    trace: &Trace,
    fitted: &Fitted,
    split: &Split,
    refit: Option<&HazardModel>,
    won: bool,
) -> Vec<Record> {
    let thinning = Thinning::to(trace, &split.judge, JUDGED_MAX);
    let mut records = Vec::new();
    for_each_record(
        trace,
        fitted,
        &split.judge,
        thinning,
        |record, walk, predicted| {
            let hours = HORIZON_HOURS[record.horizon];
            let at = |model: &HazardModel| {
                let curve = walk.hazard_curve(model);
                curve.at((hours * HOUR) as f64).value() as f32
            };
            let shipped = predicted.leveled(record.horizon);
            let step = refit.map_or(shipped, at);
            let full = at(&fitted.refitted_here);
            let mut record = fitted.finish(record);
            let in_use = if won { step } else { shipped };
            record.predicted.extend([in_use, step, full]);
            records.push(record);
        },
    );
    records
}

/// A loss of one forecast.
type Loss = fn(forecast: f64, survived: bool) -> f64;

fn brier(forecast: f64, survived: bool) -> f64 {
    (forecast - f64::from(u8::from(survived))).powi(2)
}

/// The mean difference of the loss of two predictors, and its 95% interval over days.
fn over_days(records: &[&Record], a: usize, b: usize, loss: Loss) -> (f64, (f64, f64)) {
    let mut days = std::collections::BTreeMap::<u64, (f64, f64)>::new();
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
const OTHERS: [(&str, Role); 6] = [
    ("as shipped", |name| name == LEVELED),
    (STEP, |name| name == STEP),
    (FULL, |name| name == FULL),
    ("SMP of the paper", |name| {
        name.starts_with("SMP of the paper")
    }),
    ("best time series", |name| {
        is_baseline(name) && !name.starts_with("SMP")
    }),
    ("host's frequency", |name| {
        name.starts_with("host's frequency")
    }),
];

/// The section on learning at home.
#[must_use]
pub fn section(homes: &[Home]) -> String {
    let mut text = String::from(
        "Brier / log loss. In brackets: the model in use minus the other, Brier, with its 95% interval over \
         days; below zero, the model in use is better. *worse*: the interval lies above zero.\n\n\
         | trace | days at home | horizon | landmarks, days | trial | as in use | ECE | skill |",
    );
    for (name, _) in OTHERS {
        let _ = write!(text, " {name} |");
    }
    text += "\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
    for home in homes {
        for horizon in 0..HORIZONS {
            text += &home.row(horizon);
        }
    }
    text
}

impl Home {
    fn row(&self, horizon: usize) -> String {
        let records: Vec<&Record> = self
            .records
            .iter()
            .filter(|record| record.horizon == horizon)
            .collect();
        let column = |name: &str| self.names.iter().position(|n| n == name).unwrap_or(0);
        let in_use = column(IN_USE);
        let own = self.scores.measures[in_use][horizon];
        let won = self.trials.iter().filter(|trial| trial.is_won()).count();
        let verdict = if Trial::of_all(self.trials.iter().copied()).is_won() {
            "won"
        } else {
            "lost"
        };
        let verdict = format!("{verdict} ({won} of {})", self.trials.len());
        let mut row = format!(
            "| {}, {} hosts | {} | {} h | {}, {} | {verdict} | {:.4} / {:.4} | {:.3} | {:.3} |",
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
