//! Runs the jobs of a case under every scheme, in the same grids.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use placement::hazard::HazardModel;
use placement::schemes::Scheme;
use sim::{Grid, JobOutcome, Knowledge, Policy, Settings, run};

use super::Case;
use super::score::Sums;

/// How much to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Grids of the main table.
    pub grids: usize,
    /// Grids of each of the other tables.
    pub variant_grids: usize,
    /// Threads to run on.
    pub threads: usize,
}

/// What became of the jobs of some grids under every policy.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The grids.
    pub grids: usize,
    /// Sums for each grid, by policy as in [`policies`].
    pub sums: Vec<Vec<Sums>>,
}

/// All that are compared, in the order of the tables.
#[must_use]
pub fn policies() -> Vec<Policy> {
    let schemes = Scheme::ALL.into_iter().map(Policy::Hosts);
    std::iter::once(Policy::Dedicated)
        .chain(schemes)
        .chain([Policy::Foresight])
        .collect()
}

/// What `ckpt` does.
pub const OURS: Policy = Policy::Hosts(Scheme::Correlated);

/// Runs the jobs of `settings` in `grids` of the case under every one of `policies`.
#[must_use]
pub fn evaluate(
    case: &Case,
    settings: &Settings,
    grids: &[Grid],
    policies: &[Policy],
    threads: usize,
) -> Trial {
    let model = HazardModel::pretrained();
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Vec<Sums>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some((index, grid)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    grids.get(index).map(|grid| (index, grid))
                } {
                    let knowledge = Knowledge::at(&case.world, grid, &model);
                    let sums = policies.iter().map(|policy| {
                        let jobs: Vec<JobOutcome> = run(&knowledge, settings, *policy);
                        Sums::of(&jobs)
                    });
                    let sums = sums.collect();
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((index, sums));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    let by_policy = |policy: usize| {
        let of_grid = |(_, sums): &(usize, Vec<Sums>)| sums.get(policy).copied();
        done.iter().filter_map(of_grid).collect()
    };
    Trial {
        grids: grids.len(),
        sums: (0..policies.len()).map(by_policy).collect(),
    }
}
