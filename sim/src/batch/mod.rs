//! Clusters with a batch scheduler whose information about the available processors is more or less exact,
//! after Iosup et al., *On the Dynamic Resources Availability in Grids* (2007).
//!
//! Each cluster serves its jobs in the order of arrival. A job takes some processors for some time. The
//! scheduler believes some number of processors to be available ([`Information`]) and starts the
//! first job as soon as it believes that enough are free. If there are fewer, the job fails at once (a
//! submission failure). If one of the job's nodes goes down, the job fails then (an execution failure). A
//! job that failed is not started again: the paper has no restart.

mod cluster;
mod workload;

use std::ops::AddAssign;

pub use cluster::{Job, Node, run};
pub use workload::Workload;

/// How many processors of its cluster a scheduler believes to be available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Information {
    /// SA: all processors; they are always available, and nothing fails.
    Steady,
    /// KA: the number that is available at each moment.
    Known,
    /// AMA and HMA: the number that was available at the last check, one each `period` seconds.
    Looked {
        /// Seconds between checks.
        period: u64,
        /// Whether a failed start counts as a check, too, as with a batch system that suspects a node on
        /// which nothing starts. A person's report stays valid until the next report. If failed starts don't
        /// count, a node that goes down costs all waiting jobs: the first fails, then the next, at the same
        /// moment.
        learns: bool,
    },
    /// HMA (fixed): all processors that the cluster ever had.
    Fixed,
}

/// Counts and sums over the jobs and over the processors' time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Jobs that were submitted.
    pub submitted: u64,
    /// Jobs that ran to their end.
    pub completed: u64,
    /// Jobs that were started with too few processors available.
    pub submission_failures: u64,
    /// Jobs of which a node went down.
    pub execution_failures: u64,
    /// Processor seconds that were available.
    pub available: f64,
    /// Processor seconds that jobs used, failed jobs included.
    pub used: f64,
    /// Processor seconds that completed jobs used.
    pub completed_work: f64,
    /// Seconds that completed jobs waited, summed.
    pub waited: f64,
    /// Seconds from submission to completion of completed jobs, summed.
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
    /// Share of the available processor time that jobs used, 0 to 1.
    pub utilisation: f64,
    /// Jobs completed for each available processor and day.
    pub throughput: f64,
    /// Processor seconds that completed jobs used, for each available processor and day.
    pub goodput: f64,
    /// Mean seconds that completed jobs waited.
    pub wait: f64,
    /// Mean seconds from submission to completion of completed jobs.
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
    /// All metrics, in the order of the paper's table.
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
