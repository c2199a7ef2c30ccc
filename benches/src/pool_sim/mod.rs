//! The simulation of the Grid'5000 study (Iosup et al., 2007): batch schedulers that know more or less of
//! which processors are available.

mod pool;
mod report;
mod swf;

use std::thread;

pub use pool::{Cluster, Pool, of_grid5000, of_trace, trace_of};
pub use report::report;
use sim::batch::{Information, Outcome, run};
pub use swf::{SwfJobs, read_jobs};

const DAY: u64 = 86_400;

/// A row of tables 6 and 7 of the paper: utilisation (%), throughput, goodput (s), wait (s), response (s);
/// submission and execution failures.
pub type Published = ([f64; 5], [u64; 2]);

/// A model of a scheduler's knowledge, and the paper's results for it.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// The paper's name.
    pub name: &'static str,
    /// What the scheduler knows of the processors.
    pub information: Information,
    /// The paper's results.
    pub published: Published,
}

/// Number of jobs that the paper's authors submitted.
pub const PUBLISHED_JOBS: u64 = 739_164;

/// Information by a look every `period` seconds. A monitor also learns from starts that fail, a person does
/// not.
const fn looked(period: u64, learns: bool) -> Information {
    Information::Looked { period, learns }
}

/// The models in the order of the paper's tables.
pub const MODELS: [Model; 7] = [
    Model {
        name: "SA (PA)",
        information: Information::Steady,
        published: ([12.1, 0.48, 10_535.0, 12_913.0, 15_489.0], [0, 0]),
    },
    Model {
        name: "KA",
        information: Information::Known,
        published: ([16.6, 0.86, 14_320.0, 12_494.0, 14_911.0], [0, 4576]),
    },
    Model {
        name: "AMA (60 s)",
        information: looked(60, true),
        published: ([16.6, 0.86, 14_320.0, 12_494.0, 14_911.0], [0, 4576]),
    },
    Model {
        name: "AMA (1 h)",
        information: looked(3600, true),
        published: ([16.6, 0.86, 14_320.0, 12_494.0, 14_911.0], [0, 4576]),
    },
    Model {
        name: "HMA (1 week)",
        information: looked(7 * DAY, false),
        published: ([16.0, 0.81, 13_833.0, 10_214.0, 12_832.0], [46_917, 4291]),
    },
    Model {
        name: "HMA (1 month)",
        information: looked(30 * DAY, false),
        published: ([15.9, 0.81, 13_808.0, 10_173.0, 12_713.0], [51_208, 4234]),
    },
    Model {
        name: "HMA (fixed)",
        information: Information::Fixed,
        published: ([14.4, 0.79, 12_491.0, 7229.0, 9793.0], [63_180, 4059]),
    },
];

/// Runs all models on a pool. The outcomes are in the order of [`MODELS`], each summed over clusters.
#[must_use]
pub fn simulate(pool: &Pool) -> Vec<Outcome> {
    let of_model = |model: &Model| {
        let mut sum = Outcome::default();
        for cluster in &pool.clusters {
            sum += run(
                &cluster.nodes,
                &cluster.jobs,
                model.information,
                pool.window.clone(),
            );
        }
        sum
    };
    MODELS.iter().map(of_model).collect()
}

/// Runs `work` for each seed on `threads` threads. The results are in the order of the seeds.
pub fn on_threads<T: Send>(
    seeds: &[u64],
    threads: usize,
    work: impl Fn(u64) -> T + Sync,
) -> Vec<T> {
    let share = seeds.len().div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| {
        let work = &work;
        let handles: Vec<_> = seeds
            .chunks(share)
            .map(|seeds| {
                scope.spawn(move || seeds.iter().map(|seed| work(*seed)).collect::<Vec<T>>())
            })
            .collect();
        let joined = handles.into_iter().map(|handle| match handle.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.flatten().collect()
    })
}
