//! The table of checkpoint intervals.

use std::fmt::Write;
use std::num::NonZeroU32;

use placement::SurvivalCurve;
use placement::interval::{
    Costs, daly, expected_makespan, exponential_optimum, first_after, young,
};

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;

/// Checkpoint cost and mean time between failures, minutes; the first three are those for which
/// Daly's abstract gives 117, 57 and 9.1 minutes.
const CASES: [(f64, f64); 6] = [
    (5.0, 24.0 * 60.0),
    (5.0, 6.0 * 60.0),
    (5.0, 15.0),
    (1.0, 24.0 * 60.0),
    (1.0, 6.0 * 60.0),
    (0.1, 60.0),
];

/// Work of the job whose makespan is given.
const WORK_HOURS: f64 = 24.0;

/// Time to read back and to restart, as shares of the checkpoint's and in seconds.
const DOWNTIME_SECONDS: f64 = 300.0;

/// Steps of the hazard that the accumulator rule is given.
const STEP: NonZeroU32 = NonZeroU32::new(6).unwrap();
const STEPS: usize = 6 * 3600 / 6;

/// The table, in minutes and hours.
pub(super) fn table() -> String {
    let mut table = String::from(
        "| checkpoint | MTBF | Young | Daly | exact optimum | accumulator | makespan of 24 h, Daly | without checkpoints |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for (cost, mtbf) in CASES {
        let cost = cost * MINUTE;
        let mtbf = mtbf * MINUTE;
        let costs = Costs {
            checkpoint_seconds: cost,
            restore_seconds: cost,
            downtime_seconds: DOWNTIME_SECONDS,
        };
        let hazard = SurvivalCurve::exponential(STEP, STEPS, 1.0 / mtbf);
        let accumulated = first_after(&hazard, cost, f64::INFINITY);
        let minutes = |seconds: f64| format!("{:.2} min", seconds / MINUTE);
        let work = WORK_HOURS * HOUR;
        let makespan = |interval| expected_makespan(work, interval, mtbf, &costs) / HOUR;
        let unprotected = makespan(work);
        let _ = writeln!(
            table,
            "| {:.1} min | {:.2} h | {} | {} | {} | {} | {:.2} h | {} |",
            cost / MINUTE,
            mtbf / HOUR,
            minutes(young(cost, mtbf)),
            minutes(daly(cost, mtbf)),
            minutes(exponential_optimum(cost, mtbf)),
            accumulated.map_or_else(|| "none".into(), minutes),
            makespan(daly(cost, mtbf)),
            if unprotected < 1e5 {
                format!("{unprotected:.1} h")
            } else {
                "never".into()
            },
        );
    }
    table
}
