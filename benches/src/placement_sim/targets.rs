//! Whether the aims were reached, case by case, and FALCON's figure.

use std::fmt::Write;

use placement::schemes::Scheme;
use sim::{Policy, Target};

use super::report::{best_redundancy, estimate, makespan, overhead, percent};
use super::score::{Sums, incidents, paired_over_days, ratio};
use super::trial::{OURS, Study};

/// Restores that fail, at most, for one of Random's.
const FAILED_SHARE: f64 = 0.2;

/// Fewest distinct incidents for a verdict: below, a ratio rests on a handful of accidents.
const INCIDENTS_MIN: usize = 20;

/// The number of distinct incidents in which restores failed under some of `policies`.
pub(super) fn incidents_of(study: &Study, policies: &[Policy]) -> usize {
    let wanted = study.failed_at.iter();
    let wanted = wanted.filter(|(policy, _)| policies.contains(policy));
    incidents(wanted.flat_map(|(_, times)| times.iter().copied()))
}

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
        "| trace | restores | failed: random | ckpt | incidents | ratio (aim ≤ 0.2) | overhead of ckpt / random's (aim ≤ 1) | most parity at no more overhead | failed with it | ratio |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for study in studies {
        let random = sums(study, Policy::Hosts(Scheme::Random));
        let ours = sums(study, OURS);
        let times = paired_over_days(ours, random, |a, b| overhead(a) / overhead(b));
        let (width, wide) = best_redundancy(study, overhead(random));
        let seen = incidents_of(study, &[Policy::Hosts(Scheme::Random), OURS]);
        let restores: f64 = random.iter().map(|s| s.restores).sum();
        let _ = writeln!(
            table,
            "| {} | {restores} | {} | {} | {seen} | {} | {} | {}+{} | {} | {} |",
            study.case.name,
            percent(failed(random)),
            percent(failed(ours)),
            verdict(ours, random, seen),
            estimate(times, 1.0, 2),
            width.data(),
            width.parity(),
            percent(failed(wide)),
            verdict(wide, random, seen),
        );
    }
    table
}

fn verdict(ours: &[Sums], random: &[Sums], seen: usize) -> String {
    if failed(random) == 0.0 {
        let none = if failed(ours) == 0.0 {
            "nor of ckpt's"
        } else {
            "but of ckpt's"
        };
        return format!("none failed of random's {none}: no verdict");
    }
    let share = paired_over_days(ours, random, |a, b| failed(a) / failed(b));
    let so = match share.value {
        _ if seen < INCIDENTS_MIN => "no verdict",
        value if value <= FAILED_SHARE => "met",
        _ => "missed",
    };
    format!("{}: {so}", estimate(share, 1.0, 2))
}

/// Codes that are part of the choice, against Random's 3+2 and a clairvoyant.
pub(super) fn codes(studies: &[Study]) -> String {
    const OF_CODES: [Policy; 5] = [
        OURS,
        Policy::Narrow,
        Policy::Auto(Target::P90),
        Policy::Auto(Target::P97),
        Policy::Auto(Target::P99),
    ];
    let random = Policy::Hosts(Scheme::Random);
    let mut table = String::from(
        "| trace | policy | incidents | failed | of what can be avoided | overhead / random's | makespan |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for study in studies {
        let all = [random, Policy::Clairvoyant].into_iter().chain(OF_CODES);
        let theirs = sums(study, random);
        let least = failed(sums(study, Policy::Clairvoyant));
        for policy in all {
            let s = sums(study, policy);
            let seen = incidents_of(study, &[policy, random]);
            let avoidable = failed(theirs) - least;
            let left = match avoidable > 0.0 {
                _ if seen < INCIDENTS_MIN => "no verdict".to_owned(),
                true => format!("{:.2}", (failed(s) - least) / avoidable),
                false => "nothing".to_owned(),
            };
            let times = paired_over_days(s, theirs, |a, b| overhead(a) / overhead(b));
            let _ = writeln!(
                table,
                "| {} | {} | {seen} | {} | {left} | {} | {:.4} |",
                study.case.name,
                policy.name(),
                percent(failed(s)),
                estimate(times, 1.0, 2),
                makespan(s),
            );
        }
    }
    table
}

/// Makespan of every scheme over ours, percent longer.
pub(super) fn makespans(studies: &[Study]) -> String {
    let others = || {
        let main = studies.first().map_or(&[][..], |study| &study.main);
        let others = main.iter().map(|(policy, _)| *policy);
        others.filter(|policy| {
            matches!(policy, Policy::Dedicated | Policy::Hosts(_)) && *policy != OURS
        })
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
            let longer = paired_over_days(theirs, ours, |a, b| makespan(a) / makespan(b) - 1.0);
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
