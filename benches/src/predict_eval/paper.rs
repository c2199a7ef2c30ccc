//! The measures of figures 5 to 7 of the paper: the relative error of TR by length of the window and kind of
//! day, with its worst cell; by the share of days to learn from; and its largest value over machines for
//! windows from 8:00 of weekdays.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use placement::hazard::HazardModel;
use placement::history::{DAY_SECONDS, DayKind, WindowOutcome};
use placement::state::AvailabilityState;

use super::predictors::{self, BEST, is_baseline};
use super::score::{Cell, Raw, Record, cell_errors, clock_window, outcome};
use super::split::{self, Split};
use super::walk::walk;
use super::{HORIZON_HOURS, HORIZONS, HOUR, Limits};
use crate::traces::{Trace, TracedHost};
use placement::semi_markov::counting::{self, CutStays};

/// The hour at which the windows of figure 7 begin.
const EIGHT: u64 = 8;

/// Predictors of figure 5.
const BY_KIND: [&str; 3] = [
    BEST,
    "SMP of the paper, N=30",
    "SMP of the paper, N=30, cut stays kept",
];

/// Tenths of the days to learn from, in figure 6.
const TENTHS: [usize; 7] = [2, 3, 4, 5, 6, 7, 8];

/// Predictors of figure 6.
pub const BY_SHARE: [&str; 3] = [
    "SMP of the paper, all days",
    "the same, cut stays kept",
    "hazard regression",
];

/// Hours at which the windows of figure 6 begin.
const START_HOURS: [u64; 8] = [0, 3, 6, 9, 12, 15, 18, 21];
const HOSTS_MAX: usize = 50;

/// Relative errors of TR, over cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Number of cells.
    pub cells: usize,
    /// Their mean.
    pub mean: f64,
    /// The error of the worst cell.
    pub largest: f64,
}

impl Errors {
    fn of(errors: &[f64]) -> Option<Self> {
        (!errors.is_empty()).then(|| Self {
            cells: errors.len(),
            mean: errors.iter().sum::<f64>() / errors.len() as f64,
            largest: errors.iter().copied().fold(0.0, f64::max),
        })
    }
}

/// Errors at each horizon; `None` where no cell can be judged.
pub type ByHorizon = [Option<Errors>; HORIZONS];

/// What the figures show, of one trace.
#[derive(Clone, Debug, Default)]
pub struct PaperFigures {
    /// Figure 5: predictor, kind of day, errors over clock windows.
    pub by_kind: Vec<(&'static str, DayKind, ByHorizon)>,
    /// Figure 6: tenths of the days to learn from, and errors over clock windows of the later days by
    /// predictor, as in [`BY_SHARE`].
    pub by_share: Vec<(usize, [ByHorizon; BY_SHARE.len()])>,
    /// Figure 7: predictor, errors over machines.
    pub from_eight: Vec<(String, ByHorizon)>,
}

impl PaperFigures {
    /// The figures of a trace whose judged days have these records.
    #[must_use]
    pub fn of(trace: &Trace, names: &[String], records: &[Record<Raw>], limits: Limits) -> Self {
        Self {
            by_kind: by_kind(names, records),
            by_share: TENTHS
                .map(|tenths| (tenths, errors_by_share(trace, tenths, limits)))
                .into(),
            from_eight: from_eight(names, records),
        }
    }
}

fn by_horizon(
    records: &[Record<Raw>],
    column: usize,
    is_wanted: impl Fn(&Record<Raw>) -> bool,
) -> ByHorizon {
    std::array::from_fn(|horizon| {
        let wanted = |record: &&Record<Raw>| record.horizon == horizon && is_wanted(record);
        let records: Vec<_> = records.iter().filter(wanted).collect();
        Errors::of(&cell_errors(&records, column, clock_window, outcome))
    })
}

fn by_kind(names: &[String], records: &[Record<Raw>]) -> Vec<(&'static str, DayKind, ByHorizon)> {
    let mut rows = Vec::new();
    for name in BY_KIND {
        let Some(column) = names.iter().position(|one| one == name) else {
            continue;
        };
        for kind in [DayKind::Weekday, DayKind::Weekend] {
            let errors = by_horizon(records, column, |record| record.kind == kind);
            rows.push((name, kind, errors));
        }
    }
    rows
}

fn from_eight(names: &[String], records: &[Record<Raw>]) -> Vec<(String, ByHorizon)> {
    let is_wanted = |record: &Record<Raw>| record.hour == EIGHT && record.kind == DayKind::Weekday;
    let is_shown =
        |name: &str| name == BEST || is_baseline(name) && !name.ends_with("as frequency");
    let columns = names.iter().enumerate().filter(|(_, name)| is_shown(name));
    columns
        .map(|(column, name)| (name.clone(), by_horizon(records, column, is_wanted)))
        .collect()
}

/// Windows by kind of day, hour at which they begin, and horizon; a cell for each predictor.
type Cells = BTreeMap<(DayKind, u64, usize), [Cell; BY_SHARE.len()]>;

fn errors_by_share(trace: &Trace, tenths: usize, limits: Limits) -> [ByHorizon; BY_SHARE.len()] {
    let days: Vec<u64> = Split::of(trace).all_days().collect();
    let Some(&first_judged) = days.get(days.len() * tenths / 10) else {
        return [[None; HORIZONS]; BY_SHARE.len()];
    };
    let begin = first_judged * DAY_SECONDS;
    let stride = split::stride(trace, &days, limits.travelling);
    let default = HazardModel::default();
    let model = default.fit(&predictors::examples(trace, &default, begin, stride));
    let mut errors: [[Vec<f64>; HORIZONS]; BY_SHARE.len()] = Default::default();
    let each = trace.hosts.len().div_ceil(HOSTS_MAX).max(1);
    for host in trace.hosts.iter().step_by(each) {
        for ((_, _, horizon), cells) in cells(trace, host, begin, &model) {
            for (errors, cell) in errors.iter_mut().zip(cells) {
                errors[horizon].extend(cell.relative_error());
            }
        }
    }
    errors.map(|by_horizon| by_horizon.map(|errors| Errors::of(&errors)))
}

fn cells(trace: &Trace, host: &TracedHost, begin: u64, model: &HazardModel) -> Cells {
    let mut cells = Cells::new();
    let mut counted = BTreeMap::new();
    walk(trace, host, None, |walk| {
        let now = walk.now();
        let hour = now / HOUR % 24;
        let state = walk.state().filter(|_| walk.usable());
        let Some(state) = state.filter(|_| now >= begin && START_HOURS.contains(&hour)) else {
            return;
        };
        let curve = walk.hazard_curve(model);
        for (horizon, hours) in HORIZON_HOURS.into_iter().enumerate() {
            let outcome = match host.timeline.outcome(now..now + hours * HOUR) {
                WindowOutcome::Survived => 1.0,
                WindowOutcome::Unknown => continue,
                _ => 0.0,
            };
            let key = (DayKind::at(now), hour, horizon);
            // What was counted on the days before the first one judged holds for all of them.
            let [left_out, kept] = *counted
                .entry((key, state))
                .or_insert_with(|| counted_survival(host, walk.step, now, hours, state, begin));
            let hazard = curve.at((hours * HOUR) as f64).value();
            let cell = cells.entry(key).or_default();
            for (cell, forecast) in cell.iter_mut().zip([left_out, kept, hazard]) {
                cell.add(forecast, outcome);
            }
        }
    });
    cells
}

/// TR by the paper's equation, counted over the same clock window of all days of the same kind that end
/// before `begin`, once without stays that the window cut off and once with them.
fn counted_survival(
    host: &TracedHost,
    step: NonZeroU32,
    now: u64,
    hours: u64,
    state: AvailabilityState,
    begin: u64,
) -> [f64; 2] {
    let length = hours * HOUR;
    // The same clock window of the first day of its kind from `begin` on: all windows before it are over.
    let days =
        (begin / DAY_SECONDS..=now / DAY_SECONDS).map(|day| day * DAY_SECONDS + now % DAY_SECONDS);
    let of_kind = |start: &u64| DayKind::at(*start) == DayKind::at(now);
    let start = days.into_iter().find(of_kind).unwrap_or(now);
    [CutStays::LeftOut, CutStays::NeverLeft].map(|cut| {
        let window = start..start + length;
        let kernel = counting::kernel_for_window(&host.timeline, window, usize::MAX, cut, step);
        let steps = (length / u64::from(step.get())) as usize;
        kernel.survival(state, steps).last().copied().unwrap_or(1.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::{RawHost, RawTrace};

    fn record(
        host: usize,
        hour: u64,
        kind: DayKind,
        predicted: f32,
        survived: bool,
    ) -> Record<Raw> {
        Record {
            host,
            day: 0,
            hour,
            kind,
            horizon: 0,
            survived,
            predicted: vec![predicted],
        }
    }

    #[test]
    fn errors_are_apart_by_kind_of_day_and_the_worst_cell_is_beside_the_mean() {
        let names = [BEST.to_owned()];
        let mut records = Vec::new();
        for n in 0..10 {
            // Weekdays: 0.8 was forecast; of one host all windows are survived, of the other half.
            records.push(record(0, 8, DayKind::Weekday, 0.8, true));
            records.push(record(1, 8, DayKind::Weekday, 0.8, n % 2 == 0));
            records.push(record(0, 8, DayKind::Weekend, 1.0, true));
        }
        let rows = by_kind(&names, &records);
        let errors = |kind| rows.iter().find(|row| row.1 == kind).unwrap().2[0].unwrap();
        let weekdays = errors(DayKind::Weekday);
        assert_eq!(weekdays.cells, 2);
        assert!((weekdays.mean - f64::midpoint(0.2, 0.6)).abs() < 1e-6);
        assert!((weekdays.largest - 0.6).abs() < 1e-6);
        assert_eq!(errors(DayKind::Weekend).largest, 0.0);
        let eight = from_eight(&names, &records);
        assert!((eight[0].1[0].unwrap().largest - 0.6).abs() < 1e-6);
    }

    #[test]
    fn what_is_learnt_from_the_first_days_is_judged_on_the_later_ones() {
        // The host fails at 9:30 of each day, for an hour.
        let day = |day: u64| {
            let at = day * DAY_SECONDS + 19 * HOUR / 2;
            at..at + HOUR
        };
        let raw = RawHost {
            up: std::iter::once(0..80 * DAY_SECONDS).collect(),
            down: (0..80).map(day).collect(),
            ..RawHost::default()
        };
        let trace = Trace::new(RawTrace {
            sample_seconds: 300,
            hosts: [("h".to_owned(), raw)].into(),
            ..RawTrace::default()
        });
        let [left_out, kept, _] = errors_by_share(&trace, 5, Limits::default());
        // Windows of one hour from 9:00 always fail, so that their TR is zero and they are not judged. Those
        // from the seven other hours never fail, neither on weekdays nor at weekends: 14 cells.
        for one in [left_out, kept] {
            let hour = one[0].unwrap();
            assert_eq!((hour.cells, hour.mean), (14, 0.0), "{hour:?}");
        }
    }
}
