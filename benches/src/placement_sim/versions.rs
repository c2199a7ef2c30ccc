//! The table of versions that store what changed.

use sim::Policy;

use super::figures::{estimate, makespan, overhead};
use super::score::{Sums, over_days, ratio, single};
use super::targets::{failed, incidents_of, sums_of};
use super::trial::{Compared, LAYERED_CHANGED, LAYERED_POLICIES};

/// Restores that fail, bytes, overhead and makespan of layered versions against whole ones, in the same grids.
pub(super) fn table<'a>(studies: impl IntoIterator<Item = (&'a str, &'a [Compared; 2])>) -> String {
    let mut table = String::from(
        "| trace | policy | versions | restores | failed (%) | incidents | more fail than of whole ones (points) | bytes of a version / whole one's | bytes of all / whole ones' | overhead / whole ones' | makespan |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (name, versions) in studies {
        for policy in LAYERED_POLICIES {
            for compared in versions {
                table += &rows(name, policy, compared);
            }
        }
    }
    table
}

fn rows(name: &str, policy: Policy, compared: &Compared) -> String {
    let whole = sums_of(&compared.whole.outcomes, policy);
    let changed = sums_of(&compared.changed.outcomes, policy);
    let start = format!("| {name} | {} |", policy.name());
    let repaired = match compared.repairs {
        true => ", repaired",
        false => "",
    };
    let more = over_days([changed, whole], |[a, b]| failed(a) - failed(b));
    let times = |of: fn(&[Sums]) -> f64| {
        let times = over_days([changed, whole], |[a, b]| of(a) / of(b));
        estimate(times, 1.0, 2)
    };
    format!(
        "{start} whole{repaired} | {} | {} | {} | - | 1.00 | 1.00 | 1.00 | {} |\n\
         {start} {:.0}% changed{repaired} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
        restores(whole),
        estimate(single(whole, failed), 100.0, 2),
        incidents_of(&compared.whole.failed_at, &[policy]),
        estimate(single(whole, makespan), 1.0, 4),
        100.0 * LAYERED_CHANGED,
        restores(changed),
        estimate(single(changed, failed), 100.0, 2),
        incidents_of(&compared.changed.failed_at, &[policy]),
        estimate(more, 100.0, 2),
        times(bytes_of_a_version),
        times(bytes),
        times(overhead),
        estimate(single(changed, makespan), 1.0, 4),
    )
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
