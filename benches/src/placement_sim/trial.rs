//! Runs the jobs of a case under every scheme, in the same grids.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use placement::objective::Width;
use sim::schemes::Scheme;
use sim::{ForecastRestore, Grid, Knowledge, Policy, Rule, Settings, Share, Target, Versions, run};

use super::Case;
use super::score::Sums;

/// What `ckpt` does.
pub const OURS: Policy = Policy::Narrow;

/// What `ckpt` does with a code that is given; where hosts are too few for it, with less parity.
const FIXED: Policy = Policy::Hosts(Scheme::Correlated);

/// Policies of the smaller tables.
pub const FEW: [Policy; 4] = [
    Policy::Dedicated,
    Policy::Hosts(Scheme::Random),
    Policy::Hosts(Scheme::Fastest),
    OURS,
];

/// Jobs at the same time, for the table of simultaneous clients.
pub const CLIENTS: [usize; 4] = [1, 5, 10, 20];

/// Parity shards for the table of redundancy.
pub const PARITIES: [usize; 4] = [1, 2, 3, 4];

/// Data and parity shards of fixed codes with fewer data shards.
pub const CODES: [(usize, usize); 9] = [
    (2, 1),
    (2, 2),
    (2, 3),
    (1, 1),
    (1, 2),
    (1, 3),
    (1, 4),
    (1, 5),
    (1, 7),
];

/// Ways in which storage hosts fail beyond what their traces say: the name, the probability that
/// one breaks off while it is sent a shard, and the days between losses of all that it keeps.
pub const STORAGE_FAILURES: [(&str, f64, f64); 4] = [
    ("none", 0.0, f64::INFINITY),
    ("1 in 20 shards breaks off", 0.05, f64::INFINITY),
    ("1 in 5 shards breaks off", 0.2, f64::INFINITY),
    ("disks wiped every 5 days", 0.0, 5.0),
];

/// Policies of the table of versions that store what changed.
pub const LAYERED_POLICIES: [Policy; 2] = [OURS, Policy::Usual];

/// Share of the image that changes from one version to the next in that table.
pub const LAYERED_CHANGED: f64 = 0.05;

const DAY: f64 = 86_400.0;

/// How much to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Grids of the main table.
    pub grids: usize,
    /// Grids of each of the other tables.
    pub variant_grids: usize,
    /// Grids of the table of versions that store what changed, which takes most of the time.
    pub version_grids: usize,
    /// Threads to run on.
    pub threads: usize,
}

/// What became of jobs under some policies in the same grids, by policy and grid.
pub type Outcomes = Vec<(Policy, Vec<Sums>)>;

/// What became of jobs in the same grids, by code and grid.
pub type ByCode = Vec<(Width, Vec<Sums>)>;

/// What became of the jobs of one grid under one policy.
struct OfGrid {
    sums: Sums,
    /// When restores failed, Unix seconds.
    failed_at: Vec<u64>,
    forecasts: Vec<ForecastRestore>,
}

/// What became of the jobs of all grids.
#[derive(Clone, Debug)]
pub struct Evaluated {
    /// By policy and grid.
    pub outcomes: Outcomes,
    /// When restores failed, Unix seconds, for each policy.
    pub failed_at: Vec<(Policy, Vec<u64>)>,
    /// The restores for which it was forecast whether they would fail.
    pub forecasts: Vec<(Policy, Vec<ForecastRestore>)>,
}

/// Versions that store what changed beside whole ones, in the same grids.
#[derive(Debug)]
pub struct Compared {
    /// Whether hosts rebuild missing shards of both.
    pub repairs: bool,
    /// Whole versions.
    pub whole: Evaluated,
    /// Versions that store what changed.
    pub changed: Evaluated,
}

/// All that is found out about a case.
#[derive(Debug)]
pub struct Study {
    /// The case.
    pub case: Case,
    /// Hosts in each grid, most.
    pub hosts: usize,
    /// Grids of the main table.
    pub grids: usize,
    /// Grids of the others.
    pub variant_grids: usize,
    /// Grids of `versions`.
    pub version_grids: usize,
    /// Every policy.
    pub main: Evaluated,
    /// [`LAYERED_POLICIES`] in the first grids of the main table.
    pub versions: [Compared; 2],
    /// `FIXED` in the grids of the main table, with every one of [`PARITIES`].
    pub redundancy: ByCode,
    /// `FIXED` in the grids of the main table, with every one of `CODES`.
    pub codes: ByCode,
    /// [`FEW`] with every number of [`CLIENTS`].
    pub clients: Vec<(usize, Outcomes)>,
    /// [`FEW`] with every one of [`STORAGE_FAILURES`].
    pub failures: Vec<(&'static str, Outcomes)>,
    /// [`OURS`] with both rules for when to take a checkpoint.
    pub rules: [Vec<Sums>; 2],
}

/// All that are compared, in the order of the tables.
#[must_use]
pub fn policies() -> Vec<Policy> {
    let schemes = Scheme::ALL.into_iter().map(Policy::Hosts);
    std::iter::once(Policy::Dedicated)
        .chain(schemes)
        .chain([Policy::Narrow, Policy::Usual])
        .chain(Target::ALL.into_iter().map(Policy::Auto))
        .chain([Policy::Foresight])
        .collect()
}

/// Simulates everything about a case; `None` when its trace has no moment with enough hosts.
#[must_use]
pub fn study(case: Case, effort: Effort) -> Option<Study> {
    let grids = case.grids(effort.grids);
    let few: &[Grid] = grids.get(..effort.variant_grids).unwrap_or(&grids);
    let threads = effort.threads;
    let base = case.settings;
    let of = |policy, grids: &[Grid], settings: Settings| {
        let evaluated = evaluate(&case, &settings, grids, &[policy], threads);
        let first = evaluated.outcomes.into_iter().next();
        first.map(|(_, sums)| sums)
    };
    let of_code = |(data, parity)| {
        let width = Width::new(data, parity)?;
        Some((width, of(FIXED, &grids, Settings { width, ..base })?))
    };
    let parities = PARITIES.map(|parity| (base.width.data(), parity));
    let clients = CLIENTS.into_iter().map(|jobs| {
        let settings = Settings { jobs, ..base };
        (
            jobs,
            evaluate(&case, &settings, few, &FEW, threads).outcomes,
        )
    });
    let failures = STORAGE_FAILURES.into_iter().map(|(name, breaks, days)| {
        let settings = Settings {
            breaks,
            wiped_every_seconds: days * DAY,
            ..base
        };
        (
            name,
            evaluate(&case, &settings, few, &FEW, threads).outcomes,
        )
    });
    let with_rule = |rule| of(OURS, few, Settings { rule, ..base });
    let rules = [with_rule(Rule::Daly)?, with_rule(Rule::Accumulator)?];
    let main = evaluate(&case, &base, &grids, &policies(), threads);
    let of_versions: &[Grid] = grids.get(..effort.version_grids).unwrap_or(&grids);
    let same = Some(&main).filter(|_| of_versions.len() == grids.len());
    let versions = compared(&case, of_versions, same, threads)?;
    Some(Study {
        hosts: grids.iter().map(|grid| grid.hosts.len()).max()?,
        grids: grids.len(),
        variant_grids: few.len(),
        version_grids: of_versions.len(),
        main,
        versions,
        redundancy: parities.into_iter().filter_map(of_code).collect(),
        codes: CODES.into_iter().filter_map(of_code).collect(),
        clients: clients.collect(),
        failures: failures.collect(),
        rules,
        case,
    })
}

/// Simulates nothing of a case but versions that store what changed, against whole ones.
#[must_use]
pub fn versions_study(case: &Case, effort: Effort) -> Option<[Compared; 2]> {
    let grids = case.grids(effort.grids);
    compared(case, &grids, None, effort.threads)
}

/// `main` are whole versions without repair, if they were simulated in the same grids already.
fn compared(
    case: &Case,
    grids: &[Grid],
    main: Option<&Evaluated>,
    threads: usize,
) -> Option<[Compared; 2]> {
    let versions = Versions::Layered {
        changed: Share::new(LAYERED_CHANGED)?,
    };
    let of = |settings| evaluate(case, &settings, grids, &LAYERED_POLICIES, threads);
    Some([false, true].map(|repairs| {
        let whole = Settings {
            repairs,
            ..case.settings
        };
        let changed = Settings { versions, ..whole };
        Compared {
            repairs,
            whole: main
                .filter(|_| !repairs)
                .map_or_else(|| of(whole), Clone::clone),
            changed: of(changed),
        }
    }))
}

/// Runs the jobs of `settings` in `grids` of the case under every one of `policies`.
fn evaluate(
    case: &Case,
    settings: &Settings,
    grids: &[Grid],
    policies: &[Policy],
    threads: usize,
) -> Evaluated {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Vec<OfGrid>)>> = Mutex::new(Vec::new());
    let work = || {
        while let Some((index, grid)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            grids.get(index).map(|grid| (index, grid))
        } {
            let knowledge = Knowledge::at(&case.world, grid, &case.model);
            let all = policies
                .iter()
                .map(|policy| OfGrid::of(&knowledge, grid, settings, *policy));
            let all = all.collect();
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((index, all));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    Evaluated {
        outcomes: of_policies(policies, &done, |one| vec![one.sums]),
        failed_at: of_policies(policies, &done, |one| one.failed_at.clone()),
        forecasts: of_policies(policies, &done, |one| one.forecasts.clone()),
    }
}

/// What `of` takes from each grid, by policy.
fn of_policies<T>(
    policies: &[Policy],
    done: &[(usize, Vec<OfGrid>)],
    of: fn(&OfGrid) -> Vec<T>,
) -> Vec<(Policy, Vec<T>)> {
    let all = policies.iter().enumerate().map(|(number, policy)| {
        let grids = done.iter().filter_map(|(_, all)| all.get(number));
        (*policy, grids.flat_map(of).collect())
    });
    all.collect()
}

impl OfGrid {
    fn of(knowledge: &Knowledge<'_>, grid: &Grid, settings: &Settings, policy: Policy) -> Self {
        let jobs = run(knowledge, settings, policy);
        let day = grid.start / DAY as u64;
        let sums = Sums {
            day,
            ..Sums::of(&jobs)
        };
        let mut failed_at = Vec::new();
        let mut forecasts = Vec::new();
        for job in jobs {
            failed_at.extend(job.failed_at);
            forecasts.extend(job.forecasts);
        }
        Self {
            sums,
            failed_at,
            forecasts,
        }
    }
}
