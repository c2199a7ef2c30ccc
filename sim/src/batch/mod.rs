//! Clusters with a batch scheduler that knows more or less of which processors are there, after Iosup et
//! al., *On the Dynamic Resources Availability in Grids* (2007).
//!
//! Each cluster serves its jobs in the order in which they come. A job takes some processors for some
//! time. The scheduler believes some number of processors to be there ([`Information`]) and starts the
//! first job as soon as it believes that enough are free. If fewer are there, the job fails at once (a
//! submission failure); if a node dies under it, the job fails then (an execution failure). What failed
//! is not started again: the paper has no restart.

mod cluster;
mod workload;

use std::ops::AddAssign;

pub use cluster::{Job, Node, run};
pub use workload::Workload;

/// What a scheduler knows of the processors of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Information {
    /// SA: all processors are there, always; nothing ever fails.
    Steady,
    /// KA: how many there are at each moment.
    Known,
    /// AMA and HMA: how many there were at the last look, one each `period` seconds.
    Looked {
        /// Seconds between looks.
        period: u64,
        /// Whether a start that fails is a look, too, as with a batch system that suspects a node on which
        /// nothing starts. What a person reports stays until the next report. Without it one node that
        /// dies costs all jobs that wait, as the first fails, then the next, at the same moment.
        learns: bool,
    },
    /// HMA (fixed): all that the cluster ever had.
    Fixed,
}

/// What became of the jobs, and of the processors' time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Jobs that came.
    pub submitted: u64,
    /// Jobs that ran to their end.
    pub completed: u64,
    /// Jobs that were started where too few processors were there.
    pub submission_failures: u64,
    /// Jobs under which a node died.
    pub execution_failures: u64,
    /// Processor seconds that were there.
    pub available: f64,
    /// Processor seconds that jobs had, those that failed among them.
    pub used: f64,
    /// Processor seconds that jobs had which ran to their end.
    pub completed_work: f64,
    /// Seconds that jobs waited which ran to their end.
    pub waited: f64,
    /// Seconds from coming to ending of these.
    pub responded: f64,
}

impl AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.submitted += other.submitted;
        self.completed += other.completed;
        self.submission_failures += other.submission_failures;
        self.execution_failures += other.execution_failures;
        self.available += other.available;
        self.used += other.used;
        self.completed_work += other.completed_work;
        self.waited += other.waited;
        self.responded += other.responded;
    }
}

/// The five metrics of the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metrics {
    /// Share of the available processor time that jobs had.
    pub utilisation: f64,
    /// Jobs completed for each available processor and day.
    pub throughput: f64,
    /// Seconds that completed jobs had of each available processor and day.
    pub goodput: f64,
    /// Mean seconds that completed jobs waited.
    pub wait: f64,
    /// Mean seconds from coming to ending of completed jobs.
    pub response: f64,
}

impl Outcome {
    /// The metrics; zero where nothing was available, or completed.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let days = self.available / 86_400.0;
        let of = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let completed = self.completed as f64;
        Metrics {
            utilisation: of(self.used, self.available),
            throughput: of(completed, days),
            goodput: of(self.completed_work, days),
            wait: of(self.waited, completed),
            response: of(self.responded, completed),
        }
    }
}

impl Metrics {
    /// All of them, in the order of the paper's table.
    #[must_use]
    pub const fn all(&self) -> [f64; 5] {
        [
            self.utilisation,
            self.throughput,
            self.goodput,
            self.wait,
            self.response,
        ]
    }
}
