//! Whether the aims were reached, case by case, and FALCON's figure.

use std::fmt::Write;

use placement::objective::Width;
use sim::schemes::Scheme;
use sim::{Policy, Target};

use super::figures::{best_redundancy, estimate, makespan, overhead, percent};
use super::score::{Estimate, INCIDENTS_MIN, Sums, incidents, over_days, ratio, single};
use super::trial::{OURS, Study};

const RANDOM: Policy = Policy::Hosts(Scheme::Random);

/// Restores that fail, at most, for one of Random's.
const FAILED_SHARE: f64 = 0.2;

/// The number of distinct incidents in which restores failed under some of `policies`; `failed_at` is when they did.
pub(super) fn incidents_of(failed_at: &[(Policy, Vec<u64>)], policies: &[Policy]) -> usize {
    let wanted = failed_at.iter();
    let wanted = wanted.filter(|(policy, _)| policies.contains(policy));
    incidents(wanted.flat_map(|(_, times)| times.iter().copied()))
}

/// The sums of a policy in the main table.
pub(super) fn sums(study: &Study, policy: Policy) -> &[Sums] {
    sums_of(&study.main.outcomes, policy)
}

/// The sums of a policy.
pub(super) fn sums_of(outcomes: &[(Policy, Vec<Sums>)], policy: Policy) -> &[Sums] {
    let found = outcomes.iter().find(|(one, _)| *one == policy);
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
        let random = sums(study, RANDOM);
        let ours = sums(study, OURS);
        let times = over_days([ours, random], |[a, b]| overhead(a) / overhead(b));
        let (width, wide) = best_redundancy(study, overhead(random));
        let seen = incidents_of(&study.main.failed_at, &[RANDOM, OURS]);
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
    let share = over_days([ours, random], |[a, b]| failed(a) / failed(b));
    let so = match share.value {
        _ if seen < INCIDENTS_MIN => "no verdict",
        value if value <= FAILED_SHARE => "met",
        _ => "missed",
    };
    format!("{}: {so}", estimate(share, 1.0, 2))
}

/// Codes that are part of the choice, against Random's 3+2 and the best given code.
pub(super) fn codes(studies: &[Study]) -> String {
    let mut table = String::from(
        "| trace | policy | incidents | failed | no host with data is there | of what can be avoided (aim ≤ 0.2) | overhead / random's (aim ≤ 1) | makespan |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for study in studies {
        let random = sums(study, RANDOM);
        let named = |policy: Policy| (policy.name().to_owned(), sums(study, policy), Some(policy));
        let judged = [OURS, Policy::Usual, Policy::Hosts(Scheme::Correlated)].into_iter();
        let judged = judged.chain(Target::ALL.into_iter().map(Policy::Auto));
        let fixed = best_fixed(study).map(|(width, sums)| {
            let code = format!("{}+{}", width.data(), width.parity());
            (format!("{code} (best fixed by hindsight)"), sums, None)
        });
        let rows = std::iter::once(named(RANDOM)).chain(fixed);
        for (name, s, policy) in rows.chain(judged.map(named)) {
            let seen = policy.map(|policy| incidents_of(&study.main.failed_at, &[policy, RANDOM]));
            let times = over_days([s, random], |[a, b]| overhead(a) / overhead(b));
            let left = match policy {
                Some(RANDOM) => String::from("-"),
                _ => left(s, random, seen, times.value),
            };
            let nobody = |s: &[Sums]| ratio(s, |s| s.unavoidable, |s| s.restores);
            let _ = writeln!(
                table,
                "| {} | {name} | {} | {} | {} | {left} | {} | {} |",
                study.case.name,
                seen.map_or_else(|| String::from("-"), |seen| seen.to_string()),
                estimate_percent(single(s, failed)),
                estimate_percent(single(s, nobody)),
                estimate(times, 1.0, 2),
                estimate(single(s, makespan), 1.0, 4),
            );
        }
    }
    table
}

/// The given code with which the fewest restores failed, the one of least overhead among equals.
fn best_fixed(study: &Study) -> Option<(Width, &[Sums])> {
    let codes = study.redundancy.iter().chain(&study.codes);
    let best = codes.min_by(|a, b| {
        let fails = failed(&a.1).total_cmp(&failed(&b.1));
        fails.then(overhead(&a.1).total_cmp(&overhead(&b.1)))
    });
    best.map(|(width, sums)| (*width, &sums[..]))
}

/// The failures that can be avoided, over those of random's, and whether that is the aim at `times` the overhead
/// of random's; no verdict without the number of incidents that were `seen`.
fn left(s: &[Sums], random: &[Sums], seen: Option<usize>, times: f64) -> String {
    let avoidable = |s: &[Sums]| ratio(s, |s| s.failed - s.unavoidable, |s| s.restores);
    if avoidable(random) == 0.0 {
        return "nothing can: no verdict".to_owned();
    }
    let share = over_days([s, random], |[s, random]| avoidable(s) / avoidable(random));
    let so = match share.value {
        _ if seen.is_none_or(|seen| seen < INCIDENTS_MIN) => "no verdict",
        value if value <= FAILED_SHARE && times <= 1.0 => "met",
        _ => "missed",
    };
    format!("{}: {so}", estimate(share, 1.0, 2))
}

/// What `auto` reaches of its targets, against the fixed code of least overhead that reaches them.
pub(super) fn targets(studies: &[Study]) -> String {
    let reached = |s: &[Sums]| single(s, |s| 1.0 - failed(s));
    let mut table = String::from(
        "| trace | target | incidents | auto reached | overhead | cheapest fixed code that reaches it | reached | overhead | auto |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for study in studies {
        for target in Target::ALL {
            let auto = Policy::Auto(target);
            let s = sums(study, auto);
            let seen = incidents_of(&study.main.failed_at, &[auto, RANDOM]);
            let ours = reached(s);
            let least = target.share();
            // If all grids began on one day there is no interval, and no target counts as reached.
            let of_fixed = study.redundancy.iter().chain(&study.codes);
            let enough = of_fixed.filter(|(_, sums)| reached(sums).low >= least);
            let cheapest = enough.min_by(|a, b| overhead(&a.1).total_cmp(&overhead(&b.1)));
            let so = match cheapest {
                _ if seen < INCIDENTS_MIN => "no verdict",
                None => "no code reaches it",
                Some((_, fixed)) if ours.low >= least && overhead(s) <= overhead(fixed) => "met",
                Some(_) if ours.low >= least => "missed: costs more",
                Some(_) => "missed",
            };
            let [code, of_code, costs] = match cheapest {
                Some((width, fixed)) => [
                    format!("{}+{}", width.data(), width.parity()),
                    estimate_percent(reached(fixed)),
                    percent(overhead(fixed)),
                ],
                None => ["none", "-", "-"].map(str::to_owned),
            };
            let _ = writeln!(
                table,
                "| {} | {least:.2} | {seen} | {} | {} | {code} | {of_code} | {costs} | {so} |",
                study.case.name,
                estimate_percent(ours),
                percent(overhead(s)),
            );
        }
    }
    table
}

/// A share with its interval, in percent.
fn estimate_percent(of: Estimate) -> String {
    estimate(of, 100.0, 2)
}

/// Makespan of every scheme over ours, percent longer.
pub(super) fn makespans(studies: &[Study]) -> String {
    let others = || {
        let main = studies
            .first()
            .map_or(&[][..], |study| &study.main.outcomes);
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
            let longer = over_days([theirs, ours], |[a, b]| makespan(a) / makespan(b) - 1.0);
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
