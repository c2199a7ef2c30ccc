//! Compares, on real traces, makespans of jobs under the supervisor of `ckpt run` with those of jobs that
//! take checkpoints at Daly's interval without a final one.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use sim::{Grid, Guard, GuardedJobs, Knowledge, Waiting, run_guarded};
use supervision::leaving::FinalSave;

use crate::placement_sim::Case;
use crate::placement_sim::score::{Estimate, Sums, paired, ratio};

/// The ways of guarding a job that are compared with each other; the first is the baseline.
pub const GUARDS: [Guard; 4] = [
    Guard::Daly,
    Guard::Supervised(Waiting::Minute),
    Guard::Supervised(Waiting::Auto),
    Guard::Supervised(Waiting::Never),
];

/// Number of jobs in each grid.
pub const JOBS: usize = 5;
/// Time for which a checkpoint stops a job, in seconds.
pub const CHECKPOINT_SECONDS: f64 = 20.0;
/// A save of an image of 4 GiB, and the grace of an eviction.
pub const SAVE: FinalSave = FinalSave {
    ask_seconds: 2.0,
    fixed_seconds: 0.0,
    image_bytes: 4_294_967_296.0,
    change_seconds: 1800.0,
    bytes_per_second: 50e6,
    spread: 0.3,
    grace_seconds: 60.0,
};

/// The results of one case.
#[derive(Debug)]
pub struct Found {
    /// The case's name.
    pub name: String,
    /// Number of grids that were drawn.
    pub grids: usize,
    /// Work of a job, in seconds.
    pub work_seconds: f64,
    /// For each of [`GUARDS`], the sums of each grid.
    pub sums: Vec<Vec<Sums>>,
}

/// Runs the jobs of a case in `grids` grids; `None` if its trace has no moment with enough hosts.
#[must_use]
pub fn study(case: &Case, grids: usize, threads: usize) -> Option<Found> {
    let grids = case.grids(grids);
    let jobs = GuardedJobs {
        jobs: JOBS,
        work_seconds: case.settings.work_seconds,
        checkpoint_seconds: CHECKPOINT_SECONDS,
        save: SAVE,
        restart_seconds: case.settings.restart_seconds,
    };
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Vec<Sums>)>> = Mutex::new(Vec::new());
    let one = |grid: &Grid| -> Vec<Sums> {
        let knowledge = Knowledge::at(&case.world, grid, &case.model);
        let run = |guard| Sums::of(&run_guarded(&knowledge, &jobs, guard));
        GUARDS.into_iter().map(run).collect()
    };
    let work = || loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(grid) = grids.get(index) else {
            return;
        };
        let sums = one(grid);
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        done.push((index, sums));
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    let by_guard = |guard: usize| {
        let of_grid = |(_, sums): &(usize, Vec<Sums>)| sums.get(guard).copied();
        done.iter().filter_map(of_grid).collect()
    };
    (!grids.is_empty()).then(|| Found {
        name: case.name.clone(),
        grids: grids.len(),
        work_seconds: case.settings.work_seconds,
        sums: (0..GUARDS.len()).map(by_guard).collect(),
    })
}

/// Share by which the makespans of `ours` are shorter than those of `theirs`, in the same grids.
fn shorter(ours: &[Sums], theirs: &[Sums]) -> Estimate {
    let makespan = |sums: &[Sums]| sums.iter().map(|sums| sums.makespan).sum::<f64>();
    paired(ours, theirs, |ours, theirs| {
        1.0 - makespan(ours) / makespan(theirs)
    })
}

fn percent(estimate: Estimate) -> String {
    let Estimate { value, low, high } = estimate;
    let [value, low, high] = [value, low, high].map(|share| 100.0 * share);
    format!("{value:.2}% ({low:.2}% to {high:.2}%)")
}

/// Table cells: time that is lost, in checkpoints, waiting and restoring, in per cent of the work.
fn parts(sums: &[Sums]) -> String {
    let of = |part: fn(&Sums) -> f64| 100.0 * ratio(sums, part, |sums| sums.work);
    format!(
        "{:.2} | {:.2} | {:.2} | {:.2}",
        of(|sums| sums.lost),
        of(|sums| sums.storing),
        of(|sums| sums.waiting),
        of(|sums| sums.restoring),
    )
}

/// The tables, in Markdown.
#[must_use]
pub fn tables(found: &[Found]) -> String {
    let mut text = String::from(
        "| trace | grids | work | makespan shorter than Daly's: a minute | as long as it pays | for ever |\n\
         |---|---|---|---|---|---|\n",
    );
    for case in found {
        let Some((daly, ours)) = case.sums.split_first() else {
            continue;
        };
        let gains: Vec<String> = ours
            .iter()
            .map(|ours| percent(shorter(ours, daly)))
            .collect();
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} h | {} |",
            case.name,
            case.grids,
            case.work_seconds / 3600.0,
            gains.join(" | "),
        );
    }
    text.push_str(
        "\n| trace | guard | makespan / work | done | evictions per job | lost, % of the work | in checkpoints | stopped for the owner | reading back |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for case in found {
        for (guard, sums) in GUARDS.into_iter().zip(&case.sums) {
            let name = match guard {
                Guard::Daly => "Daly",
                Guard::Supervised(Waiting::Minute) => "a minute",
                Guard::Supervised(Waiting::Auto) => "as long as it pays",
                Guard::Supervised(Waiting::Never) => "for ever",
            };
            let _ = writeln!(
                text,
                "| {} | {name} | {:.3} | {:.1}% | {:.2} | {} |",
                case.name,
                ratio(sums, |sums| sums.makespan, |sums| sums.work),
                100.0 * ratio(sums, |sums| sums.finished, |sums| sums.jobs),
                ratio(sums, |sums| sums.evictions, |sums| sums.jobs),
                parts(sums),
            );
        }
    }
    text
}
