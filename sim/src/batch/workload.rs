//! A synthetic workload: random jobs from a seed.

use std::ops::Range;

use rand::Rng;
use rand::rngs::SmallRng;

use super::Job;
use crate::draw::{Purpose, draws, exponential, lognormal};

/// The distribution of jobs. The paper prints only sums of its workload; the rest is assumed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Processor time that jobs need, as a share of the processor time of all processors.
    pub load: f64,
    /// Mean number of jobs that are submitted together.
    pub batch: f64,
    /// Share of jobs with one processor, 0 to 1. The others have a power of two, all equally likely.
    pub single: f64,
    /// Most processors of a job, as a share of the cluster's processors.
    pub largest: f64,
    /// Median time of a job, seconds.
    pub median: f64,
    /// Standard deviation of the natural logarithm of a job's time.
    pub spread: f64,
    /// Longest time of a job, seconds.
    pub longest: f64,
}

impl Workload {
    /// Mean time of a job, seconds: mean of a lognormal number that is cut off at `longest`, from draws.
    fn mean_seconds(&self) -> f64 {
        let steps = 20_000;
        // A fixed seed, so that all clusters have the same mean.
        let mut rng = draws(1, Purpose::Compute, [0; 3]);
        let sum: f64 = (0..steps).map(|_| self.seconds(&mut rng)).sum();
        sum / f64::from(steps)
    }

    fn seconds(&self, rng: &mut SmallRng) -> f64 {
        lognormal(rng, self.median, self.spread)
            .clamp(1.0, self.longest)
            .round()
    }

    /// Exponent of the largest power of two that a job's processors can be, on a cluster of `processors`.
    fn exponents(&self, processors: u32) -> u32 {
        (self.largest * f64::from(processors))
            .max(1.0)
            .log2()
            .floor() as u32
    }

    fn mean_processors(&self, processors: u32) -> f64 {
        let most = self.exponents(processors);
        if most == 0 {
            return 1.0;
        }
        let powers: f64 = (1..=most).map(|exponent| f64::from(exponent).exp2()).sum();
        self.single + (1.0 - self.single) * powers / f64::from(most)
    }

    /// Jobs of a cluster with `processors`, submitted within `window` (Unix seconds). `there` gives the
    /// number of processors that are available at a time. If all are, the jobs need `load` of the processor
    /// time; users submit fewer and smaller jobs when fewer processors are available. `number` makes the
    /// draws of a pool's clusters differ.
    #[must_use]
    pub fn jobs(
        &self,
        seed: u64,
        number: u64,
        processors: u32,
        there: impl Fn(u64) -> u32,
        window: &Range<u64>,
    ) -> Vec<Job> {
        let mut rng = draws(seed, Purpose::Compute, [number, 1, 0]);
        let work = self.mean_seconds() * self.mean_processors(processors);
        // Mean seconds from one batch to the next if all processors are available.
        let between = self.batch * work / (self.load * f64::from(processors.max(1)));
        let mut jobs = Vec::new();
        let mut at = window.start as f64 + exponential(&mut rng, between);
        while at < window.end as f64 {
            // The size is geometric. The jobs of a batch have equally many processors, as those of one study.
            let size = exponential(&mut rng, self.batch - 0.5).floor() as u64 + 1;
            let there = there(at as u64);
            let is_sent = rng.random::<f64>() * f64::from(processors) < f64::from(there);
            let most = self.exponents(there);
            let is_single = most == 0 || rng.random::<f64>() < self.single;
            let processors = if is_single {
                1
            } else {
                1 << rng.random_range(1..=most)
            };
            for _ in (0..size).filter(|_| is_sent) {
                jobs.push(Job {
                    at: at as u64,
                    processors,
                    seconds: self.seconds(&mut rng) as u64,
                });
            }
            at += exponential(&mut rng, between);
        }
        jobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_need_as_much_time_as_they_are_meant_to() {
        let workload = Workload {
            load: 0.2,
            batch: 5.0,
            single: 0.5,
            largest: 0.5,
            median: 300.0,
            spread: 1.5,
            longest: 86_400.0,
        };
        let window = 0..400 * 86_400;
        let available = 100.0 * 400.0 * 86_400.0;
        let jobs = workload.jobs(1, 3, 100, |_| 100, &window);
        let work: f64 = jobs
            .iter()
            .map(|job| f64::from(job.processors) * job.seconds as f64)
            .sum();
        let load = work / available;
        assert!((0.18..0.22).contains(&load), "{load}");
        assert!(
            jobs.iter()
                .all(|job| job.processors <= 50 && window.contains(&job.at))
        );
        assert!(jobs.is_sorted_by_key(|job| job.at));
        assert_eq!(jobs, workload.jobs(1, 3, 100, |_| 100, &window));
        assert_ne!(jobs, workload.jobs(1, 4, 100, |_| 100, &window));
        // Half of the cluster: half of the jobs, and none for more than a quarter of it.
        let fewer = workload.jobs(1, 3, 100, |_| 50, &window);
        let share = fewer.len() as f64 / jobs.len() as f64;
        assert!((0.4..0.6).contains(&share), "{share}");
        assert!(fewer.iter().all(|job| job.processors <= 25));
    }
}
