//! Point availability: the probability of being usable at a moment, whatever happens before.

use placement::Probability;
use placement::history::{DAY_SECONDS, DayKind};
use placement::state::{AvailabilityState, ModelState};

use super::predictors::Fitted;
use super::score::Raw;
use super::score::{Record, Scores};
use super::split::{self, Split, Thinning};
use super::walk::{Walk, walk};
use super::{HORIZON_HOURS, HORIZONS, HOUR, Limits};
use crate::traces::Trace;

const SMP: &str = "SMP, competing risks, states that recover";
const CLIMATOLOGY: &str = "climatology";
const NAMES: [&str; 4] = [
    SMP,
    "frequency after the present state",
    "host's frequency",
    CLIMATOLOGY,
];

/// Usable at the horizon and seen, on the calibration days, by whether usable at the landmark.
type Table = [[(u64, u64); 2]; HORIZONS];

/// Scores of the point availability on the judged days.
#[must_use]
pub fn evaluate(trace: &Trace, split: &Split, fitted: &Fitted, limits: Limits) -> Scores {
    let table = table(trace, split, limits);
    let thinning = Thinning::to(trace, &split.judge, limits.point);
    let mut records: Vec<Record<Raw>> = Vec::new();
    for_each_landmark(trace, &split.judge, thinning, |host, walk, state| {
        let now = walk.now();
        let smp = walk.availability(fitted, state);
        for (horizon, hours) in HORIZON_HOURS.into_iter().enumerate() {
            let after = now + hours * HOUR;
            let Some(later) = walk.host.timeline.state_at(after) else {
                continue;
            };
            let column = usize::from(!state.is_failure());
            let up = table[horizon][1];
            let down = table[horizon][0];
            let (usable, seen) = walk.usable_hours;
            let columns = [
                Probability::saturating(smp.get(horizon).copied().unwrap_or(f64::NAN)),
                jeffreys(table[horizon][column]),
                Probability::jeffreys(usable, seen),
                jeffreys((up.0 + down.0, up.1 + down.1)),
            ];
            records.push(Record {
                host,
                day: now / DAY_SECONDS,
                hour: now / HOUR % 24,
                kind: DayKind::at(now),
                horizon,
                survived: !later.is_failure(),
                predicted: columns.map(|p| p.value() as f32).into(),
            });
        }
    });
    Scores::of(&NAMES.map(str::to_owned), [SMP, CLIMATOLOGY], &records)
}

fn jeffreys((usable, seen): (u64, u64)) -> Probability {
    Probability::jeffreys(usable, seen)
}

fn table(trace: &Trace, split: &Split, limits: Limits) -> Table {
    let hours = split::stride(trace, &split.calibration, limits.calibration);
    let thinning = Thinning { hours, hosts: 1 };
    let mut table: Table = [[(0, 0); 2]; HORIZONS];
    for_each_landmark(trace, &split.calibration, thinning, |_, walk, state| {
        for (row, hours) in table.iter_mut().zip(HORIZON_HOURS) {
            if let Some(later) = walk.host.timeline.state_at(walk.now() + hours * HOUR) {
                let cell = &mut row[usize::from(!state.is_failure())];
                cell.0 += u64::from(!later.is_failure());
                cell.1 += 1;
            }
        }
    });
    table
}

/// Calls `visit` with the host's index, the walk and the present state at every landmark at which
/// that is known.
fn for_each_landmark(
    trace: &Trace,
    days: &[u64],
    thinning: Thinning,
    mut visit: impl FnMut(usize, &mut Walk<'_>, AvailabilityState),
) {
    for (index, host) in trace.hosts.iter().enumerate() {
        walk(trace, host, None, |walk| {
            let time = walk.now();
            let day = days.binary_search(&(time / DAY_SECONDS)).is_ok();
            if let Some(state) = walk.state()
                && day
                && thinning.keeps(index, time)
            {
                visit(index, walk, state);
            }
        });
    }
}
