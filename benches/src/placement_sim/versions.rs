//! The table of versions that store what changed.

use std::fmt::Write;

use super::figures::{estimate, makespan, overhead};
use super::score::{Sums, over_days, ratio, single};
use super::targets::{failed, incidents_of, sums, sums_of};
use super::trial::{LAYERED_CHANGED, LAYERED_POLICIES, Study};

/// Restores that fail, bytes, overhead and makespan of layered versions against whole ones, in the same grids.
pub(super) fn table(studies: &[Study]) -> String {
    let mut table = String::from(
        "| trace | policy | versions | restores | failed (%) | incidents | more fail than of whole ones (points) | bytes of a version / whole one's | bytes of all / whole ones' | overhead / whole ones' | makespan |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for study in studies {
        for policy in LAYERED_POLICIES {
            let whole = sums(study, policy);
            let layered = sums_of(&study.layered, policy);
            let seen = incidents_of(&study.failed_at, &[policy]);
            let start = format!("| {} | {} |", study.case.name, policy.name());
            let _ = writeln!(
                table,
                "{start} whole | {} | {} | {seen} | - | 1.00 | 1.00 | 1.00 | {} |",
                restores(whole),
                estimate(single(whole, failed), 100.0, 2),
                estimate(single(whole, makespan), 1.0, 4),
            );
            let more = over_days([layered, whole], |[a, b]| failed(a) - failed(b));
            let times = |of: fn(&[Sums]) -> f64| {
                let times = over_days([layered, whole], |[a, b]| of(a) / of(b));
                estimate(times, 1.0, 2)
            };
            let _ = writeln!(
                table,
                "{start} {:.0}% changed | {} | {} | {} | {} | {} | {} | {} | {} |",
                100.0 * LAYERED_CHANGED,
                restores(layered),
                estimate(single(layered, failed), 100.0, 2),
                incidents_of(&study.layered_failed_at, &[policy]),
                estimate(more, 100.0, 2),
                times(bytes_of_a_version),
                times(bytes),
                times(overhead),
                estimate(single(layered, makespan), 1.0, 4),
            );
        }
    }
    table
}

fn restores(sums: &[Sums]) -> f64 {
    sums.iter().map(|s| s.restores).sum()
}

/// Bytes sent for each checkpoint that was stored.
fn bytes_of_a_version(sums: &[Sums]) -> f64 {
    ratio(sums, |s| s.sent, |s| s.stored)
}

/// Bytes sent for each second of work.
fn bytes(sums: &[Sums]) -> f64 {
    ratio(sums, |s| s.sent, |s| s.work)
}
