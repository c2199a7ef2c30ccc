//! Compares rules for choosing a job's host on real traces, and repeats AVAM's experiments on simulated
//! machines: the tables of `docs/research/studies.md`.

use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use sim::{
    Background, Choice, Grid, JobOutcome, Keeping, Knowledge, Scheduled, ScheduledJobs, ShortJobs,
    Strategy, Waiting, run_scheduled, run_stuttering,
};

use crate::placement_sim::Case;
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

/// Jobs in a series of one of AVAM's experiments, and the number of series.
const AVAM_JOBS: u32 = 50;
const AVAM_SERIES: u64 = 200;

/// The results of one grid for each choice: sums, the number of starts, and of jobs that never started.
type OfGrid = Vec<(Sums, f64, f64)>;

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
        let starts = ran.iter().map(|one| one.starts as f64).sum();
        let never = (ran.len() - outcomes.len()) as f64;
        (Sums::of(&outcomes), starts, never)
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
        let of = |grid: &OfGrid| grid.get(choice).map(|one| one.0);
        self.grids.iter().filter_map(of).collect()
    }

    /// Makespan with expected completion over that with another choice, in the same grids.
    fn against(&self, other: usize) -> Estimate {
        let makespan = |sums: &[Sums]| sums.iter().map(|sums| sums.makespan).sum::<f64>();
        paired(&self.sums(EXPECTED), &self.sums(other), |ours, theirs| {
            makespan(ours) / makespan(theirs)
        })
    }
}

fn interval(estimate: Estimate) -> String {
    let Estimate { value, low, high } = estimate;
    format!("{value:.3} ({low:.3} to {high:.3})")
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
        let _ = writeln!(text, " {} | {} |", interval(load), interval(falcon));
    }
    text
}

/// Rows of FALCON's experiment, one for each rule, with all lengths of jobs together.
#[must_use]
pub fn paper_table(name: &str, found: &[Found]) -> String {
    let mut text = String::new();
    for (choice, (_, rule)) in CHOICES.iter().enumerate() {
        let mut jobs = 0.0;
        let mut starts = 0.0;
        let mut failed = 0.0;
        let mut never = 0.0;
        let mut done = 0.0;
        let mut slowest = 0.0;
        let mut all = 0.0;
        for grid in found.iter().flat_map(|one| &one.grids) {
            let Some((sums, began, unscheduled)) = grid.get(choice) else {
                continue;
            };
            jobs += sums.jobs + unscheduled;
            starts += began;
            failed += sums.evictions;
            never += unscheduled;
            done += sums.finished;
            slowest += sums.makespan;
            all += sums.work;
        }
        let share = |part: f64, of: f64| 100.0 * part / f64::max(of, 1.0);
        let _ = writeln!(
            text,
            "| {name} | {rule} | {jobs:.0} | {:.1}% | {:.1}% | {:.1}% | {:.3} |",
            share(never, jobs),
            share(failed, starts),
            share(done, jobs),
            slowest / f64::max(all, 1.0),
        );
    }
    text
}

/// FALCON's experiment on one case: a job of each length, without checkpoints.
#[must_use]
pub fn paper(case: &Case, grids: usize, threads: usize) -> Vec<Found> {
    let kept = KEEPINGS[0];
    let of = |hours: &f64| study(case, grids, kept, Some(*hours), threads);
    PAPER_HOURS.iter().map(of).collect()
}

/// AVAM's four scenarios: name, mean time between arrivals of background processes, and mean time that these
/// stay, in seconds.
const SCENARIOS: [(&str, f64, f64); 4] = [
    ("unloaded", f64::INFINITY, 1.0),
    ("lightly loaded", 15.0, 14.0),
    ("loaded", 12.0, 36.0),
    ("heavily loaded", 9.0, 60.0),
];

/// AVAM's two sets of jobs. In the first, a job needs 20 s on a loaded machine and 40 s on the idle one, and
/// has 100 s until its deadline. In the second, the third machine is like the others, and the deadline is
/// four times the run time.
const AVAM: [(&str, ShortJobs); 2] = [
    (
        "fixed inputs",
        ShortJobs {
            jobs: AVAM_JOBS,
            cpu_seconds: 20.0,
            cpu_seconds_elsewhere: 40.0,
            deadline_seconds: 100.0,
        },
    ),
    (
        "deadline of four times the run time",
        ShortJobs {
            jobs: AVAM_JOBS,
            cpu_seconds: 20.0,
            cpu_seconds_elsewhere: 20.0,
            deadline_seconds: 80.0,
        },
    ),
];

/// A Markdown table of AVAM's experiments: both sets of jobs, four scenarios, three strategies.
#[must_use]
pub fn avam_table() -> String {
    let mut text = String::from(
        "| jobs | machines | strategy | mean time | standard deviation | in time | moved |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let strategies = [
        (Strategy::RoundRobin, "round robin"),
        (Strategy::Best, "best"),
        (Strategy::Rescheduled, "best, rescheduled"),
    ];
    for (kind, jobs) in AVAM {
        for (name, arrival_seconds, stay_seconds) in SCENARIOS {
            let background = Background {
                arrival_seconds,
                stay_seconds,
            };
            for (strategy, says) in strategies {
                let mut count = 0.0;
                let mut in_time = 0.0;
                let mut moved = 0.0;
                let mut sum = 0.0;
                let mut squares = 0.0;
                for seed in 0..AVAM_SERIES {
                    let found = run_stuttering(&jobs, background, strategy, seed);
                    count += f64::from(found.jobs);
                    in_time += f64::from(found.in_time);
                    moved += f64::from(found.moved);
                    sum += found.seconds;
                    squares += found.squares;
                }
                let mean = sum / count;
                let deviation = (squares / count - mean * mean).max(0.0).sqrt();
                let _ = writeln!(
                    text,
                    "| {kind} | {name} | {says} | {mean:.1} s | {deviation:.1} s | {:.1}% | {:.1}% |",
                    100.0 * in_time / count,
                    100.0 * moved / count,
                );
            }
        }
    }
    text
}
