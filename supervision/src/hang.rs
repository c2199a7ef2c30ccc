//! How far a job is, how fast it gets on, and whether it still lives.

use crate::clock::seconds;
use crate::event::JobUse;

/// A job counts as hung when it was quiet for this time, milliseconds,
const QUIET_MS: u64 = 10 * 60 * 1000;
/// or for this many times the longest quiet time of earlier runs, if that is longer.
const QUIET_TIMES: u64 = 20;
/// A job is overdue when it has run for this many times the predicted time.
const OVERDUE_TIMES: u64 = 3;
/// A job that uses less than this share of one processor shows no sign of life: a program that only
/// sleeps and wakes uses as much.
const IDLE_SHARE: f64 = 0.001;
/// Time constant of the average rate of progress, seconds of work.
const PROGRESS_SECONDS: f64 = 600.0;

/// Elapsed time, in seconds, of a job that needs `cpu_seconds` of processor time on a processor which
/// `load` other processes use as well.
#[must_use]
pub fn elapsed_beside_load(cpu_seconds: f64, load: f64) -> f64 {
    cpu_seconds * (1.0 + load)
}

/// What is left of a job, computed from the processor time that was predicted for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remaining {
    /// Processor time that is left, seconds.
    pub cpu_seconds: f64,
    /// Elapsed time that is left, seconds.
    pub elapsed_seconds: f64,
    /// From the beginning of the job to its end, seconds.
    pub whole_seconds: f64,
}

/// What is left when `predicted` seconds of processor time were predicted, the job has used `used` of
/// them in `elapsed` seconds, and it gets the share `share` of a processor.
#[must_use]
pub fn remaining(predicted: f64, used: f64, elapsed: f64, share: f64) -> Remaining {
    let cpu_seconds = (predicted - used).max(0.0);
    let elapsed_seconds = if cpu_seconds > 0.0 {
        cpu_seconds / share
    } else {
        0.0
    };
    Remaining {
        cpu_seconds,
        elapsed_seconds,
        whole_seconds: elapsed + elapsed_seconds,
    }
}

/// How fast a job gets on, by the progress that it reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// The last report: share of the work done, and milliseconds worked until then.
    last: Option<(f64, u64)>,
    /// Average share done per second of work; the last ten minutes count most.
    rate: Option<f64>,
}

impl Progress {
    /// The job reports that `share` of its work is done after `worked_ms` milliseconds in which it was
    /// allowed to run. Returns whether that is more than it reported before.
    pub fn report(&mut self, share: f64, worked_ms: u64) -> bool {
        if !(0.0..=1.0).contains(&share) {
            return false;
        }
        let Some((before, at)) = self.last else {
            self.last = Some((share, worked_ms));
            return true;
        };
        let passed = seconds(worked_ms.saturating_sub(at));
        if share <= before {
            // The job began anew or repeats itself.
            if share < before {
                *self = Self {
                    last: Some((share, worked_ms)),
                    rate: None,
                };
            }
            return false;
        }
        if passed > 0.0 {
            let now = (share - before) / passed;
            let kept = (-passed / PROGRESS_SECONDS).exp();
            self.rate = Some(self.rate.map_or(now, |rate| now + kept * (rate - now)));
            self.last = Some((share, worked_ms));
        }
        true
    }

    /// Seconds of work that are left; `None` before two different reports.
    #[must_use]
    pub fn remaining_seconds(&self) -> Option<f64> {
        let (share, _) = self.last?;
        let rate = self.rate?;
        Some((1.0 - share) / rate)
    }
}

/// Notices when a job shows no sign of life. All times are those in which the job was allowed to run.
#[derive(Clone, Copy, Debug)]
pub struct QuietWatch {
    limit_ms: u64,
    used: JobUse,
    /// When the job last showed a sign of life, milliseconds.
    alive_at: u64,
    looked_at: u64,
    longest_ms: u64,
    reported: bool,
}

impl QuietWatch {
    /// For a job whose longest quiet time in earlier runs was `longest_quiet_ms`.
    #[must_use]
    pub const fn new(longest_quiet_ms: u64) -> Self {
        let often = longest_quiet_ms.saturating_mul(QUIET_TIMES);
        Self {
            limit_ms: if often > QUIET_MS { often } else { QUIET_MS },
            used: JobUse {
                cpu_ms: 0,
                io_bytes: 0,
            },
            alive_at: 0,
            looked_at: 0,
            longest_ms: 0,
            reported: false,
        }
    }

    /// The job showed a sign of life after `worked_ms` milliseconds.
    pub const fn alive(&mut self, worked_ms: u64) {
        let quiet = worked_ms.saturating_sub(self.alive_at);
        if quiet > self.longest_ms {
            self.longest_ms = quiet;
        }
        self.alive_at = worked_ms;
        self.reported = false;
    }

    /// The job has used `used` after `worked_ms` milliseconds. If it has been quiet for too long, returns
    /// for how long; once for each quiet time.
    pub fn update(&mut self, worked_ms: u64, used: JobUse) -> Option<u64> {
        let passed = worked_ms.saturating_sub(self.looked_at);
        let cpu = used.cpu_ms.saturating_sub(self.used.cpu_ms);
        if used.io_bytes != self.used.io_bytes || seconds(cpu) > IDLE_SHARE * seconds(passed) {
            self.alive(worked_ms);
        }
        (self.used, self.looked_at) = (used, worked_ms);
        let quiet = worked_ms.saturating_sub(self.alive_at);
        if quiet <= self.limit_ms || self.reported {
            return None;
        }
        self.reported = true;
        Some(quiet)
    }

    /// The longest quiet time that ended with a sign of life, milliseconds. The next run of the job takes
    /// it as its own `longest_quiet_ms`.
    #[must_use]
    pub const fn longest_quiet_ms(&self) -> u64 {
        self.longest_ms
    }
}

/// Whether a job that has run for `elapsed_ms` takes too long.
#[must_use]
pub const fn is_overdue(elapsed_ms: u64, predicted_ms: u64) -> bool {
    elapsed_ms > predicted_ms.saturating_mul(OVERDUE_TIMES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_is_that_of_the_paper_s_example() {
        let cpu = 60e9 / 2.4e9;
        assert_eq!((cpu, elapsed_beside_load(cpu, 1.5)), (25.0, 62.5));
        let left = remaining(100.0, 40.0, 160.0, 0.25);
        assert_eq!(
            (left.cpu_seconds, left.elapsed_seconds, left.whole_seconds),
            (60.0, 240.0, 400.0)
        );
        assert_eq!(remaining(10.0, 40.0, 160.0, 0.0).elapsed_seconds, 0.0);
    }

    #[test]
    fn a_job_is_overdue_after_three_times_the_prediction() {
        assert!(!is_overdue(300, 100) && is_overdue(301, 100));
    }

    #[test]
    fn a_job_that_does_nothing_is_reported_once_and_again_after_it_lived() {
        let mut watch = QuietWatch::new(0);
        let used = |cpu_ms| JobUse {
            cpu_ms,
            io_bytes: 5,
        };
        assert_eq!(watch.update(1000, used(900)), None);
        assert_eq!(watch.update(1000 + QUIET_MS, used(900)), None);
        assert_eq!(watch.update(1001 + QUIET_MS, used(900)), Some(QUIET_MS + 1));
        assert_eq!(watch.update(2000 + QUIET_MS, used(900)), None);
        assert_eq!(watch.update(3000 + QUIET_MS, used(1800)), None);
        assert_eq!(watch.longest_quiet_ms(), QUIET_MS + 2000);
        let later = 3000 + QUIET_MS + QUIET_MS + 1;
        assert_eq!(watch.update(later, used(1800)), Some(QUIET_MS + 1));
    }

    #[test]
    fn a_job_known_to_be_quiet_for_long_is_given_twenty_times_that() {
        let mut watch = QuietWatch::new(60_000);
        assert_eq!(watch.update(1_200_000, JobUse::default()), None);
        assert_eq!(watch.update(1_200_001, JobUse::default()), Some(1_200_001));
    }

    #[test]
    fn the_time_left_follows_the_rate_of_progress() {
        let mut progress = Progress::default();
        for step in 0..50_u32 {
            assert!(progress.report(f64::from(step) * 0.01, u64::from(step) * 10_000));
        }
        let left = progress.remaining_seconds().unwrap();
        assert!((left - 510.0).abs() < 1e-6, "{left}");
        // Half as fast from now on: the estimate has followed after some ten minutes.
        for step in 0..50_u32 {
            progress.report(
                0.49 + f64::from(step) * 0.005,
                490_000 + u64::from(step) * 10_000,
            );
        }
        let left = progress.remaining_seconds().unwrap();
        assert!(left > 330.0 && left < 530.0, "{left}");
        assert!(!progress.report(2.0, 1) && !progress.report(0.1, 1_000_000));
        assert_eq!(progress.remaining_seconds(), None);
    }
}
