//! Compares rules for choosing a job's host on real traces, and repeats AVAM's experiments on simulated
//! machines: the tables of `benches/tables/scheduling.md`.

mod avam;

use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use sim::{
    Choice, Grid, JobOutcome, Keeping, Knowledge, Scheduled, ScheduledJobs, Waiting, run_scheduled,
};

pub use avam::{avam_table, idle_table, sensitivity_tables};

use crate::placement_sim::Case;
use crate::placement_sim::figures::estimate;
use crate::placement_sim::score::{Estimate, Sums, paired, ratio};
use crate::supervision_sim::{CHECKPOINT_SECONDS, JOBS, SAVE};

/// The rules that are compared.
pub const CHOICES: [(Choice, &str); 5] = [
    (Choice::Random, "random"),
    (Choice::LeastLoad, "least load"),
    (Choice::Falcon, "FALCON's rule"),
    (Choice::Expected, "expected completion"),
    (Choice::Foresight, "(foresight)"),
];
const RANDOM: usize = 0;
const LEAST_LOAD: usize = 1;
const FALCON: usize = 2;
const EXPECTED: usize = 3;

/// What is kept of a job when it is evicted.
pub const KEEPINGS: [(Keeping, &str); 4] = [
    (Keeping::Nothing, "nothing"),
    (Keeping::Checkpoints, "checkpoints"),
    (
        Keeping::Leaving(Waiting::Minute),
        "a last one, after a minute",
    ),
    (Keeping::Leaving(Waiting::Auto), "a last one, when it pays"),
];

/// Lengths of the jobs in FALCON's experiment, hours.
const PAPER_HOURS: [f64; 7] = [0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0];

/// The results of one grid with one choice.
#[derive(Clone, Debug)]
struct OfChoice {
    sums: Sums,
    /// How often jobs were started.
    starts: f64,
    /// Number of jobs that never were.
    never: f64,
    /// Makespan of each job, seconds; `None` if it never started.
    makespans: Vec<Option<f64>>,
}

/// The results of one grid for each choice.
type OfGrid = Vec<OfChoice>;

/// The results of one case with one way of keeping.
#[derive(Debug)]
pub struct Found {
    name: String,
    keeping: &'static str,
    work_hours: f64,
    /// Results of each grid.
    grids: Vec<OfGrid>,
}

/// The jobs of a case; `hours` replaces the work of a job in FALCON's experiment.
fn jobs_of(case: &Case, hours: Option<f64>) -> ScheduledJobs {
    ScheduledJobs {
        jobs: JOBS,
        work_seconds: hours.map_or(case.settings.work_seconds, |hours| hours * 3600.0),
        checkpoint_seconds: CHECKPOINT_SECONDS,
        save: SAVE,
        restart_seconds: case.settings.restart_seconds,
        as_in_the_paper: hours.is_some(),
    }
}

fn of_grid(case: &Case, grid: &Grid, jobs: &ScheduledJobs, keeping: Keeping) -> OfGrid {
    let knowledge = Knowledge::at(&case.world, grid, &case.model);
    let one = |choice: Choice| {
        let ran = run_scheduled(&knowledge, jobs, keeping, choice);
        let started = ran.iter().filter(|one: &&Scheduled| !one.unscheduled);
        let outcomes: Vec<JobOutcome> = started.map(|one| one.outcome.clone()).collect();
        let makespan = |one: &Scheduled| (!one.unscheduled).then_some(one.outcome.makespan_seconds);
        OfChoice {
            sums: Sums::of(&outcomes),
            starts: ran.iter().map(|one| one.starts as f64).sum(),
            never: (ran.len() - outcomes.len()) as f64,
            makespans: ran.iter().map(makespan).collect(),
        }
    };
    CHOICES.iter().map(|(choice, _)| one(*choice)).collect()
}

/// Runs the jobs of a case in `grids` grids. `hours` is the length of the jobs in FALCON's experiment.
#[must_use]
pub fn study(
    case: &Case,
    grids: usize,
    keeping: (Keeping, &'static str),
    hours: Option<f64>,
    threads: usize,
) -> Found {
    let grids = case.grids(grids);
    let jobs = jobs_of(case, hours);
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, OfGrid)>> = Mutex::new(Vec::new());
    let work = || {
        while let Some((index, grid)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            grids.get(index).map(|grid| (index, grid))
        } {
            let found = of_grid(case, grid, &jobs, keeping.0);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((index, found));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    Found {
        name: case.name.clone(),
        keeping: keeping.1,
        work_hours: jobs.work_seconds / 3600.0,
        grids: done.into_iter().map(|(_, found)| found).collect(),
    }
}

impl Found {
    fn sums(&self, choice: usize) -> Vec<Sums> {
        let of = |grid: &OfGrid| grid.get(choice).map(|one| one.sums);
        self.grids.iter().filter_map(of).collect()
    }

    /// Makespan with expected completion over that with another choice, in the same grids.
    fn against(&self, other: usize) -> Estimate {
        let makespan = |sums: &[Sums]| sums.iter().map(|sums| sums.makespan).sum::<f64>();
        paired(
            &self.sums(EXPECTED),
            &self.sums(other),
            |ours: &[Sums], theirs: &[Sums]| makespan(ours) / makespan(theirs),
        )
    }
}

/// A Markdown table of makespan over work for each choice, and of expected completion against two choices.
#[must_use]
pub fn table(found: &[Found]) -> String {
    let mut text = String::from("| trace | work | kept |");
    for (_, name) in CHOICES {
        let _ = write!(text, " {name} |");
    }
    text.push_str(" expected / least load | expected / FALCON |\n|---|---|---|");
    text.push_str(&"---|".repeat(CHOICES.len() + 2));
    text.push('\n');
    for one in found {
        let _ = write!(
            text,
            "| {} | {:.0} h | {} |",
            one.name, one.work_hours, one.keeping
        );
        for choice in 0..CHOICES.len() {
            let sums = one.sums(choice);
            let _ = write!(text, " {:.3} |", ratio(&sums, |s| s.makespan, |s| s.work));
        }
        let load = one.against(LEAST_LOAD);
        let falcon = one.against(FALCON);
        let _ = writeln!(
            text,
            " {} | {} |",
            estimate(load, 1.0, 3),
            estimate(falcon, 1.0, 3)
        );
    }
    text
}

/// Counts and sums over jobs under one rule.
#[derive(Default)]
struct Counted {
    jobs: f64,
    starts: f64,
    failed: f64,
    never: f64,
    done: f64,
    makespan: f64,
    work: f64,
}

impl Counted {
    fn of<'a>(found: impl IntoIterator<Item = &'a Found>, choice: usize) -> Self {
        let mut all = Self::default();
        let grids = found.into_iter().flat_map(|one| &one.grids);
        for one in grids.filter_map(|grid| grid.get(choice)) {
            all.jobs += one.sums.jobs + one.never;
            all.starts += one.starts;
            all.failed += one.sums.evictions;
            all.never += one.never;
            all.done += one.sums.finished;
            all.makespan += one.sums.makespan;
            all.work += one.sums.work;
        }
        all
    }

    fn failed_starts(&self) -> f64 {
        100.0 * self.failed / self.starts.max(1.0)
    }

    fn makespan_over_work(&self) -> f64 {
        self.makespan / self.work.max(1.0)
    }
}

/// Rows of FALCON's experiment, one for each rule, with all lengths of jobs together.
#[must_use]
pub fn paper_table(name: &str, found: &[Found]) -> String {
    let mut text = String::new();
    for (choice, (_, rule)) in CHOICES.iter().enumerate() {
        let all = Counted::of(found, choice);
        let share = |part: f64| 100.0 * part / all.jobs.max(1.0);
        let _ = writeln!(
            text,
            "| {name} | {rule} | {:.0} | {:.1}% | {:.1}% | {:.1}% | {:.3} |",
            all.jobs,
            share(all.never),
            all.failed_starts(),
            share(all.done),
            all.makespan_over_work(),
        );
    }
    text
}

/// A Markdown table of FALCON's experiment by length of jobs: starts that failed, and makespan over work, for each
/// case and rule.
#[must_use]
pub fn by_length(cases: &[(String, Vec<Found>)]) -> String {
    let mut text = String::from("| trace | rule |");
    for hours in PAPER_HOURS {
        let _ = write!(text, " {hours} h |");
    }
    text = text + "\n|---|---|" + &"---|".repeat(PAPER_HOURS.len()) + "\n";
    for (name, found) in cases {
        for (choice, (_, rule)) in CHOICES.iter().enumerate() {
            let _ = write!(text, "| {name} | {rule} |");
            for one in found {
                let all = Counted::of([one], choice);
                let failed = all.failed_starts();
                let _ = write!(text, " {failed:.1}%, {:.3} |", all.makespan_over_work());
            }
            text.push('\n');
        }
    }
    text
}

/// A Markdown table of makespans by each rule that forecasts, over those of the same jobs by a random choice: both as
/// the ratio of the means and as the mean of the ratios, with 95% intervals of a bootstrap over grids.
#[must_use]
pub fn shorter(cases: &[(String, Vec<Found>)]) -> String {
    let mut text = String::from(
        "| trace | rule | jobs | ratio of means | mean of ratios |\n|---|---|---|---|---|\n",
    );
    for (name, found) in cases {
        for choice in [FALCON, EXPECTED] {
            let of = |choice: usize| -> Vec<Vec<Option<f64>>> {
                let grids = found.iter().flat_map(|one| &one.grids);
                let of_choice = grids.filter_map(|grid| grid.get(choice));
                of_choice.map(|one| one.makespans.clone()).collect()
            };
            let ours = of(choice);
            let random = of(RANDOM);
            let _ = writeln!(
                text,
                "| {name} | {} | {} | {} | {} |",
                CHOICES[choice].1,
                pairs(&ours, &random).count(),
                estimate(paired(&ours, &random, ratio_of_means), 1.0, 3),
                estimate(paired(&ours, &random, mean_of_ratios), 1.0, 3),
            );
        }
    }
    text
}

/// The makespans of the jobs that began under both of two rules, by grid and job.
fn pairs<'a>(
    a: &'a [Vec<Option<f64>>],
    b: &'a [Vec<Option<f64>>],
) -> impl Iterator<Item = (f64, f64)> + 'a {
    let jobs = a.iter().flatten().zip(b.iter().flatten());
    jobs.filter_map(|(a, b)| Some(((*a)?, (*b)?)))
}

/// The mean of what jobs took, in groups of jobs, over that of the same jobs in `b`; of jobs that ended in both.
pub(crate) fn ratio_of_means(a: &[Vec<Option<f64>>], b: &[Vec<Option<f64>>]) -> f64 {
    let add = |sums: (f64, f64), pair: (f64, f64)| (sums.0 + pair.0, sums.1 + pair.1);
    let sums = pairs(a, b).fold((0.0, 0.0), add);
    sums.0 / sums.1
}

/// As [`ratio_of_means`], but the mean of the ratio of each job.
pub(crate) fn mean_of_ratios(a: &[Vec<Option<f64>>], b: &[Vec<Option<f64>>]) -> f64 {
    let count = pairs(a, b).count() as f64;
    pairs(a, b).map(|(a, b)| a / b).sum::<f64>() / count
}

/// FALCON's experiment on one case: a job of each length, without checkpoints.
#[must_use]
pub fn paper(case: &Case, grids: usize, threads: usize) -> Vec<Found> {
    let kept = KEEPINGS[0];
    let of = |hours: &f64| study(case, grids, kept, Some(*hours), threads);
    PAPER_HOURS.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(makespans: [[Option<f64>; 2]; 2]) -> Found {
        let of_choice = |makespans: [Option<f64>; 2], failed| OfChoice {
            sums: Sums {
                jobs: 2.0,
                finished: 2.0,
                evictions: failed,
                makespan: makespans.iter().flatten().sum(),
                work: 20.0,
                ..Sums::default()
            },
            starts: 2.0 + failed,
            never: 0.0,
            makespans: makespans.to_vec(),
        };
        let [random, ours] = makespans;
        let grid = vec![
            of_choice(random, 2.0),
            of_choice(random, 2.0),
            of_choice(ours, 0.0),
            of_choice(ours, 0.0),
            of_choice(ours, 0.0),
        ];
        Found {
            name: String::new(),
            keeping: "nothing",
            work_hours: 1.0,
            grids: vec![grid; 3],
        }
    }

    #[test]
    fn a_ratio_of_means_is_not_a_mean_of_ratios() {
        // A long job that gets shorter, and a short one that gets longer; a job that never began under one rule
        // counts under none.
        let cases = [(
            "t".to_owned(),
            vec![
                found([[Some(100.0), Some(10.0)], [Some(50.0), Some(20.0)]]),
                found([[Some(10.0), None], [Some(10.0), Some(90.0)]]),
            ],
        )];
        let text = shorter(&cases);
        let row = text.lines().find(|line| line.contains("FALCON")).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[3], "9", "{text}");
        assert!(cells[4].starts_with("0.667 ("), "{text}");
        assert!(cells[5].starts_with("1.167 ("), "{text}");
    }

    #[test]
    fn lengths_of_jobs_stand_apart() {
        let short = found([[Some(10.0), Some(10.0)], [Some(10.0), Some(10.0)]]);
        let long = found([[Some(30.0), Some(30.0)], [Some(20.0), Some(20.0)]]);
        let text = by_length(&[("t".to_owned(), vec![short, long])]);
        assert!(
            text.contains("| t | random | 50.0%, 1.000 | 50.0%, 3.000 |"),
            "{text}"
        );
        assert!(
            text.contains("| t | FALCON's rule | 0.0%, 1.000 | 0.0%, 2.000 |"),
            "{text}"
        );
    }
}
