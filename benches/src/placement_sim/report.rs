//! The tables: `benches/tables/placement.md`, or those of one trace.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use sim::schemes::Scheme;
use sim::{Policy, Settings};

use super::figures::{estimate, makespan, overhead, percent};
use super::score::{Sums, ratio, single};
use super::targets::{against_random, codes, failed, incidents_of, makespans, targets};
use super::trial::{ByCode, Compared, Outcomes, Study};
use super::{calibration, intervals, versions};

const HOUR: f64 = 3600.0;
const MIB: f64 = (1 << 20) as f64;

/// Writes the tables into `file`. `command` is the one that made them.
///
/// # Errors
/// When the file can't be written.
pub fn write(studies: &[Study], file: &Path, command: &str) -> Result<()> {
    let page = document(studies).replace("{command}", command);
    std::fs::write(file, page).with_context(|| format!("writing {}", file.display()))
}

/// Writes the table of versions that store what changed alone: `grids` grids of the case `name`.
///
/// # Errors
/// When the file can't be written.
pub fn write_versions(
    name: &str,
    grids: usize,
    versions: &[Compared; 2],
    file: &Path,
    command: &str,
) -> Result<()> {
    let table = versions::table([(name, versions)]);
    let page = format!(
        "# Versions that store what changed: {name}\n\n{grids} grids of five jobs. `{command}` writes this page; the \
         other tables say what is simulated.\n\n{VERSIONS}{table}"
    );
    std::fs::write(file, page).with_context(|| format!("writing {}", file.display()))
}

fn document(studies: &[Study]) -> String {
    let mut text = introduction();
    text += "## The cases\n\n";
    text += &cases(studies);
    text += AIMS;
    text += "### Restores that fail\n\n";
    text += &against_random(studies);
    text += "\n### Codes that fit\n\n";
    text += CODES;
    text += &codes(studies);
    text += "\n### What auto reaches\n\n";
    text += AUTO;
    text += &targets(studies);
    text += "\n### Failures that were forecast\n\n";
    text += FORECASTS;
    text += &calibration::table(studies);
    text += "\n### Versions that store what changed\n\n";
    text += &of_versions(studies);
    text += "\n### Makespan\n\nPercent by which makespans are longer than those of `ckpt`, with 95% intervals. *Missed* names the schemes whose interval is wholly below zero.\n\n";
    text += &makespans(studies);
    text += "\n## Everything, by trace\n\n";
    text += COLUMNS;
    for study in studies {
        let _ = write!(text, "### {}\n\n{}\n", study.case.name, main_table(study));
    }
    text += "## More or less parity\n\n`ckpt` with codes that are given, and less parity where hosts are too few: failed restores, and the overhead of checkpoints.\n\n";
    text += &redundancy(studies, |study| &study.redundancy);
    text += "\nWith fewer data shards:\n\n";
    text += &redundancy(studies, |study| &study.codes);
    text += "\n## Jobs at the same time\n\nSeconds for one checkpoint, and makespan over work, for 1 to 20 jobs that share the links.\n\n";
    text += &by_variant(
        studies,
        |study| &study.clients,
        |jobs| format!("{jobs}"),
        "jobs",
        |s| {
            let seconds = ratio(s, |s| s.stored_seconds, |s| s.stored);
            format!("{seconds:.1} s, {:.4}", makespan(s))
        },
    );
    text += "\n## Storage hosts that fail\n\nFailed restores, and overhead of checkpoints, when storage hosts fail in more ways than their traces say.\n\n";
    text += &by_variant(
        studies,
        |study| &study.failures,
        |name| (*name).into(),
        "failures",
        |s| {
            format!(
                "{} failed, {} overhead",
                percent(failed(s)),
                percent(overhead(s))
            )
        },
    );
    text += "\n## When to take a checkpoint\n\n";
    text += INTERVALS;
    text += &intervals::table();
    text += "\nOn the traces, makespan over work of `ckpt` with both rules (Daly's with the mean time between failures of the host's last 28 days, the accumulator with its predicted hazard):\n\n";
    text += &rules(studies);
    text
}

fn introduction() -> String {
    let settings = Settings::default();
    let network = settings.network;
    let megabits = |rate: f64| format!("{:.0}", rate * 8.0 / 1e6);
    include_str!("introduction.md")
        .replace("{jobs}", &settings.jobs.to_string())
        .replace("{restart}", &format!("{:.0}", settings.restart_seconds))
        .replace(
            "{image}",
            &format!("{:.0}", settings.image_bytes as f64 / MIB),
        )
        .replace("{data}", &settings.width.data().to_string())
        .replace("{parity}", &settings.width.parity().to_string())
        .replace("{path}", &megabits(network.path_median))
        .replace("{slow}", &megabits(network.slow_median))
}

const AIMS: &str = "\n## The aims\n\n\
    Set before: restores that fail at most a fifth as often as Random's at no more overhead, on every\n\
    trace; a makespan no worse than that of any scheme on any trace.\n\n";

const CODES: &str = "*ckpt*: 3+2 and, where hosts are too few for it, fewer data shards and as much parity. *ckpt --data 3*: less\n\
    parity there. *ckpt by forecast*: as *ckpt* and, once 27 days or three incidents of the pool are known, the code\n\
    within bounds with which the job is expected to lose the least time: `ckpt save` without options.\n\
    *auto*: the code that is stored in the least time and is forecast to reach the\n\
    target, and hosts for it.\n\
    *Best fixed by hindsight*: the given code, of all in [More or less parity](#more-or-less-parity), with which\n\
    the fewest restores failed in these grids. *Failed*: percent. *No host with data is there*: restores, percent,\n\
    that fail and that nobody could have made: of the hosts that took shards when the checkpoint was stored, none\n\
    is there. *Of what can be avoided*: the other failures, over those of random. *Incidents* are those in\n\
    which restores failed with the policy or with random's; with fewer than 20 there is no verdict.\n\n";

const AUTO: &str = "*Reached*: restores that did not fail, percent. A code reaches the target if the lower end of its\n\
    interval does. *Fixed* codes: those of the tables in [More or less parity](#more-or-less-parity).\n\n";

const FORECASTS: &str = "When a policy chooses hosts, it forecasts with which probability too few of them can be read when the job's\n\
    machine has failed. *Expected*: the sum of these probabilities over the restores; *seen*: restores that failed.\n\
    *Incidents* are those of this policy. With fewer than 20 of them on the trace, or 10 in the bin, there is no\n\
    verdict.\n\n";

const VERSIONS: &str = "*Whole*: each version stores the whole image, as in all other tables. *Changed*: the first does. A later one\n\
    stores the share of the image that changed, however long that took, and some of the rest again. It goes to the hosts\n\
    of the version before as far as they take shards, and it is read only if its origins are. *Repaired*:\n\
    hosts rebuild shards that are missing, which all other tables leave out; what they send for that is not counted.\n\
    *Bytes* are those sent to store, parity and failed attempts included. A version that is stored in less time is\n\
    stored more often. *Incidents* are those of the row.\n\n";

const COLUMNS: &str = "*failed*: restores that failed, of all; *unreadable*: share of the life of checkpoints in which they\n\
    could not be read; *seconds*: time to store one; *overhead*, *lost*, *waiting*, *reading*: time held up\n\
    by checkpoints, work done twice, time waiting for storage hosts, time reading back, all as shares\n\
    of the work; *makespan*: over work, with its interval. *(foresight)* chooses the hosts that will be\n\
    readable longest, knowing the future: what no choice of hosts can avoid.\n\n";

const INTERVALS: &str = "`ckpt plan when` and the simulator use one function. For a constant hazard it gives Young's interval,\n\
    stretched to Daly's; Daly's abstract gives 117, 57 and 9.1 minutes for the first three rows, which\n\
    the exact optimum confirms. *Makespan* is what a job of 24 h is expected to take with checkpoints as\n\
    often as Daly says, restores as long as checkpoints, and five minutes to restart.\n\n";

fn of_versions(studies: &[Study]) -> String {
    let mut text = String::from(VERSIONS);
    for study in studies.iter().filter(|s| s.version_grids < s.grids) {
        let name = &study.case.name;
        let grids = study.version_grids;
        let _ = write!(text, "Of {name}, the first {grids} grids alone.\n\n");
    }
    let named = studies.iter();
    let named = named.map(|study| (study.case.name.as_str(), &study.versions));
    text + &versions::table(named)
}

fn cases(studies: &[Study]) -> String {
    let mut table = String::from(
        "| case | what | grids | hosts in a grid | work of a job |\n|---|---|---|---|---|\n",
    );
    for study in studies {
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {:.0} h |",
            study.case.name,
            study.case.description,
            study.grids,
            study.hosts,
            study.case.settings.work_seconds / HOUR,
        );
    }
    table
}

fn main_table(study: &Study) -> String {
    let mut table = String::from(
        "| scheme | restores | failed | incidents | unreadable | seconds | overhead | lost | waiting | reading | makespan |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (policy, s) in &study.main.outcomes {
        let of_work = |of: fn(&Sums) -> f64| percent(ratio(s, of, |s| s.work));
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {:.1} | {} | {} | {} | {} | {} |",
            policy.name(),
            s.iter().map(|s| s.restores).sum::<f64>(),
            percent(failed(s)),
            incidents_of(&study.main.failed_at, &[*policy]),
            percent(ratio(s, |s| s.looks_failed, |s| s.looks)),
            ratio(s, |s| s.stored_seconds, |s| s.stored),
            of_work(|s| s.storing),
            of_work(|s| s.lost),
            of_work(|s| s.waiting),
            of_work(|s| s.restoring),
            estimate(single(s, makespan), 1.0, 4),
        );
    }
    table
}

fn redundancy(studies: &[Study], of: fn(&Study) -> &ByCode) -> String {
    let mut table = String::from("| trace |");
    let mut rule = String::from("|---|");
    for (width, _) in studies.first().into_iter().flat_map(of) {
        let _ = write!(table, " {}+{} |", width.data(), width.parity());
        rule += "---|";
    }
    table = table + "\n" + &rule + "\n";
    for study in studies {
        let _ = write!(table, "| {} |", study.case.name);
        for (_, s) in of(study) {
            let _ = write!(
                table,
                " {} failed, {} |",
                percent(failed(s)),
                percent(overhead(s))
            );
        }
        table.push('\n');
    }
    table
}

/// A table with a line per case and variant and a column per policy.
fn by_variant<V>(
    studies: &[Study],
    variants: impl Fn(&Study) -> &[(V, Outcomes)],
    name: impl Fn(&V) -> String,
    what: &str,
    cell: impl Fn(&[Sums]) -> String,
) -> String {
    let mut table = format!("| trace | {what} |");
    let mut rule = String::from("|---|---|");
    for policy in super::trial::FEW {
        let _ = write!(table, " {} |", policy.name());
        rule += "---|";
    }
    table = table + "\n" + &rule + "\n";
    for study in studies {
        for (variant, outcomes) in variants(study) {
            let _ = write!(table, "| {} | {} |", study.case.name, name(variant));
            for (_, sums) in outcomes {
                let _ = write!(table, " {} |", cell(sums));
            }
            table.push('\n');
        }
    }
    table
}

fn rules(studies: &[Study]) -> String {
    let mut table = String::from("| trace | Daly | accumulator |\n|---|---|---|\n");
    for study in studies {
        let [daly, accumulator] = &study.rules;
        let of = |sums| estimate(single(sums, makespan), 1.0, 4);
        let name = &study.case.name;
        let _ = writeln!(table, "| {name} | {} | {} |", of(daly), of(accumulator));
    }
    table
}

/// A few figures of a case, printed while the others are computed.
#[must_use]
pub fn summary(study: &Study) -> String {
    let of = |policy| super::targets::sums(study, policy);
    let random = of(Policy::Hosts(Scheme::Random));
    let ours = of(super::trial::OURS);
    format!(
        "{}: {} grids; restores failed {} (random {}), overhead {} (random {}), makespan {:.4} (random {:.4})",
        study.case.name,
        study.grids,
        percent(failed(ours)),
        percent(failed(random)),
        percent(overhead(ours)),
        percent(overhead(random)),
        makespan(ours),
        makespan(random),
    )
}
