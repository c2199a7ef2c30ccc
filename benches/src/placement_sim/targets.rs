//! Whether the aims were reached, case by case, and FALCON's figure.

use std::fmt::Write;

use placement::schemes::Scheme;
use sim::Policy;

use super::report::{best_redundancy, estimate, makespan, overhead, percent};
use super::score::{Sums, paired, ratio};
use super::trial::{OURS, Study};

/// Restores that fail, at most, for one of Random's.
const FAILED_SHARE: f64 = 0.2;

/// The sums of a policy in the main table.
pub(super) fn sums(study: &Study, policy: Policy) -> &[Sums] {
    let found = study.main.iter().find(|(one, _)| *one == policy);
    found.map_or(&[], |(_, sums)| sums)
}

/// Share of the restores that failed.
pub(super) fn failed(sums: &[Sums]) -> f64 {
    ratio(sums, |s| s.failed, |s| s.restores)
}

/// Failed restores and overhead against Random's.
pub(super) fn against_random(studies: &[Study]) -> String {
    let mut table = String::from(
        "| trace | restores | failed: random | ckpt | ratio (aim ≤ 0.2) | overhead of ckpt / random's (aim ≤ 1) | most parity at no more overhead | failed with it | ratio |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for study in studies {
        let random = sums(study, Policy::Hosts(Scheme::Random));
        let ours = sums(study, OURS);
        let times = paired(ours, random, |a, b| overhead(a) / overhead(b));
        let (width, wide) = best_redundancy(study, overhead(random));
        let restores: f64 = random.iter().map(|s| s.restores).sum();
        let _ = writeln!(
            table,
            "| {} | {restores} | {} | {} | {} | {} | {}+{} | {} | {} |",
            study.case.name,
            percent(failed(random)),
            percent(failed(ours)),
            verdict(ours, random),
            estimate(times, 1.0, 2),
            width.data(),
            width.parity(),
            percent(failed(wide)),
            verdict(wide, random),
        );
    }
    table
}

fn verdict(ours: &[Sums], random: &[Sums]) -> String {
    if failed(random) == 0.0 {
        let so = if failed(ours) == 0.0 { "met" } else { "missed" };
        return format!("none failed of random's: {so}");
    }
    let share = paired(ours, random, |a, b| failed(a) / failed(b));
    let so = if share.value <= FAILED_SHARE {
        "met"
    } else {
        "missed"
    };
    format!("{}: {so}", estimate(share, 1.0, 2))
}

/// Makespan of every scheme over ours, percent longer.
pub(super) fn makespans(studies: &[Study]) -> String {
    let others = || {
        let main = studies.first().map_or(&[][..], |study| &study.main);
        let others = main.iter().map(|(policy, _)| *policy);
        others.filter(|policy| !matches!(policy, Policy::Foresight) && *policy != OURS)
    };
    let mut table = String::from("| trace |");
    let mut rule = String::from("|---|");
    for policy in others() {
        let _ = write!(table, " {} |", policy.name());
        rule += "---|";
    }
    table = table + " none does better |\n" + &rule + "---|\n";
    for study in studies {
        let ours = sums(study, OURS);
        let _ = write!(table, "| {} |", study.case.name);
        let mut behind = Vec::new();
        for policy in others() {
            let theirs = sums(study, policy);
            let longer = paired(theirs, ours, |a, b| makespan(a) / makespan(b) - 1.0);
            if longer.high < 0.0 {
                behind.push(policy.name());
            }
            let _ = write!(table, " {} |", estimate(longer, 100.0, 2));
        }
        let so = if behind.is_empty() {
            "met".into()
        } else {
            format!("missed: {}", behind.join(", "))
        };
        let _ = writeln!(table, " {so} |");
    }
    table
}
