//! Whether a job that gets on badly should go on elsewhere.

/// A move has to take less than this share of what staying takes.
pub const WORTHWHILE: f64 = 0.7;

/// Reports missed one after the other, from which on a job counts as lost with its machine.
pub const MISSED_REPORTS_MAX: u32 = 6;

/// A job is moved again after this time at the earliest, seconds,
const SETTLE_SECONDS: f64 = 600.0;
/// or after so many times what moving costs, if that is more.
const SETTLE_TIMES: f64 = 10.0;

/// A job on another machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Elsewhere {
    /// Processor time that it needs there, seconds: what is left since the last checkpoint, or all of it when
    /// there is none.
    pub cpu_seconds: f64,
    /// Load of the others there, in processes for each processor.
    pub load: f64,
    /// Time that moving takes, seconds: notice, queue, restore.
    pub overhead_seconds: f64,
}

impl Elsewhere {
    /// Time from now on until it would be done there, seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        crate::hang::elapsed_beside_load(self.cpu_seconds, self.load) + self.overhead_seconds
    }

    /// Whether it would be done there before its deadline, of which `left_seconds` are left (condition 1).
    #[must_use]
    pub fn is_in_time(&self, left_seconds: f64) -> bool {
        self.seconds() < left_seconds
    }

    /// Whether that takes so much less than the `remaining_seconds` which are left where it runs now, that
    /// it is worth the trouble (condition 2).
    #[must_use]
    pub fn is_worthwhile(&self, remaining_seconds: f64) -> bool {
        self.seconds() < WORTHWHILE * remaining_seconds
    }
}

/// Whether a job may move again, `since_seconds` after it moved last, when moving takes `overhead_seconds`.
/// Otherwise two machines with loads that vary would have it go to and fro.
#[must_use]
pub fn has_settled(since_seconds: f64, overhead_seconds: f64) -> bool {
    since_seconds >= SETTLE_SECONDS.max(SETTLE_TIMES * overhead_seconds)
}

/// Counts reports that did not come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    missed: u32,
}

impl Silence {
    /// A report came.
    pub const fn heard(&mut self) {
        self.missed = 0;
    }

    /// None came when one was due. Whether so many are missing now that the job counts as lost.
    pub const fn missed(&mut self) -> bool {
        self.missed = self.missed.saturating_add(1);
        self.missed >= MISSED_REPORTS_MAX
    }
}

/// The share of a processor that a job gets, from its processor time: the last ten minutes count most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuShare {
    /// Processor time and time that passed when it was looked at last, seconds.
    last: Option<(f64, f64)>,
    share: Option<f64>,
}

impl CpuShare {
    /// Time in which what was seen before loses two thirds of its weight, seconds.
    const MEMORY_SECONDS: f64 = 600.0;

    /// The job has used `cpu_seconds` after `elapsed_seconds`, stopped or not.
    pub fn looked(&mut self, cpu_seconds: f64, elapsed_seconds: f64) {
        let Some((cpu, elapsed)) = self.last.replace((cpu_seconds, elapsed_seconds)) else {
            return;
        };
        let passed = elapsed_seconds - elapsed;
        if passed <= 0.0 {
            return;
        }
        let now = ((cpu_seconds - cpu) / passed).max(0.0);
        // The first looks have no past to be mixed with: the mean so far, then the last ten minutes.
        let weight = passed / elapsed_seconds.min(Self::MEMORY_SECONDS).max(passed);
        self.share = Some(
            self.share
                .map_or(now, |share| share + weight * (now - share)),
        );
    }

    /// The share, 1 being one processor; none before two looks.
    #[must_use]
    pub const fn share(&self) -> Option<f64> {
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hang::remaining;

    #[test]
    fn the_conditions_of_the_paper_decide_as_in_its_example() {
        // The job of the example has used 40 of 100 s after 160 s, a quarter of the processor.
        let left = remaining(100.0, 40.0, 160.0, 0.25).elapsed_seconds;
        let anew = |load| Elsewhere {
            cpu_seconds: 100.0,
            load,
            overhead_seconds: 4.0,
        };
        let both = |there: Elsewhere| {
            let seconds = (there.seconds() * 1e6).round() / 1e6;
            (seconds, there.is_in_time(140.0), there.is_worthwhile(left))
        };
        assert_eq!(both(anew(0.2)), (124.0, true, true));
        assert_eq!(both(anew(0.5)), (154.0, false, true));
        assert_eq!(both(anew(0.8)), (184.0, false, false));
        let with_checkpoint = Elsewhere {
            cpu_seconds: 60.0,
            load: 0.8,
            overhead_seconds: 10.0,
        };
        assert_eq!(both(with_checkpoint), (118.0, true, true));
    }

    #[test]
    fn six_reports_have_to_be_missed_in_a_row() {
        let mut silence = Silence::default();
        for _ in 0..5 {
            assert!(!silence.missed());
        }
        silence.heard();
        for _ in 0..5 {
            assert!(!silence.missed());
        }
        assert!(silence.missed() && silence.missed());
    }

    #[test]
    fn a_job_stays_for_ten_minutes_or_ten_times_what_moving_costs() {
        assert!(!has_settled(599.0, 4.0) && has_settled(600.0, 4.0));
        assert!(!has_settled(1199.0, 120.0) && has_settled(1200.0, 120.0));
    }

    #[test]
    fn the_share_follows_what_the_job_gets() {
        let mut share = CpuShare::default();
        share.looked(0.0, 0.0);
        assert_eq!(share.share(), None);
        for second in 1..=100_u32 {
            share.looked(f64::from(second) * 0.5, f64::from(second));
        }
        let seen = |share: &CpuShare| share.share().unwrap();
        assert!((seen(&share) - 0.5).abs() < 1e-9);
        // Stopped from now on.
        for second in 101..=1300_u32 {
            share.looked(50.0, f64::from(second));
        }
        assert!(seen(&share) < 0.1, "{}", seen(&share));
    }
}
