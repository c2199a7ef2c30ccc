//! Whether a job that gets on slowly should go on on another machine.
//!
//! An example, from the paper on AVAM: a job of 100 s of processor time has used 40 s of it in 160 s, a
//! quarter of the processor, so that it needs 240 s more here. Started anew on a machine whose load is 0.5
//! it takes 100 * 1.5 s, and 4 s for the move. These 154 s are less than 0.7 of 240 s, so the move pays. On
//! a machine whose load is 0.8 it takes 184 s, and the move does not pay.

/// A move pays only if the job is done there in less than this share of the time that it would take here
/// (AVAM, condition 2).
pub const WORTHWHILE: f64 = 0.7;

/// A job counts as lost with its machine after this many missed reports in a row.
pub const MISSED_REPORTS_MAX: u32 = 6;

/// A job stays on a machine for at least this time, seconds,
const SETTLE_SECONDS: f64 = 600.0;
/// or for this share of the time that is left of it, if that is shorter,
const SETTLE_SHARE: f64 = 0.1;
/// and for at least this many times what a move costs.
const SETTLE_TIMES: f64 = 1.0;

/// What the rest of a job would take on another machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Elsewhere {
    /// Processor time that the job needs there, seconds: what is left since the last checkpoint, or all
    /// of it if there is none.
    pub cpu_seconds: f64,
    /// Load of the others there, processes per processor.
    pub load: f64,
    /// Time that the move takes, seconds: to notice the machine, to queue, and to restore.
    pub overhead_seconds: f64,
}

impl Elsewhere {
    /// Time from now on until the job would be done there, seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        crate::hang::elapsed_beside_load(self.cpu_seconds, self.load) + self.overhead_seconds
    }

    /// Whether the job would be done there within `left_seconds`, the time to its deadline (AVAM,
    /// condition 1).
    #[must_use]
    pub fn is_in_time(&self, left_seconds: f64) -> bool {
        self.seconds() < left_seconds
    }

    /// Whether a move pays because the job would be done there much earlier than here: in less than
    /// [`WORTHWHILE`] of `remaining_seconds` (AVAM, condition 2).
    #[must_use]
    pub fn is_worthwhile(&self, remaining_seconds: f64) -> bool {
        self.seconds() < WORTHWHILE * remaining_seconds
    }
}

/// Whether a job may move again `since_seconds` after its last move, if `left_seconds` are left of it and a move
/// takes `overhead_seconds`. Without this limit a job would go to and fro between two machines whose loads vary.
#[must_use]
pub fn has_settled(since_seconds: f64, left_seconds: f64, overhead_seconds: f64) -> bool {
    let settle = SETTLE_SECONDS.min(SETTLE_SHARE * left_seconds);
    since_seconds >= settle.max(SETTLE_TIMES * overhead_seconds)
}

/// Counts the reports in a row that did not come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    missed: u32,
}

impl Silence {
    /// A report came.
    pub const fn heard(&mut self) {
        self.missed = 0;
    }

    /// A report was due and did not come. Returns whether the job counts as lost now.
    pub const fn missed(&mut self) -> bool {
        self.missed = self.missed.saturating_add(1);
        self.missed >= MISSED_REPORTS_MAX
    }
}

/// The share of a processor that a job gets, averaged over roughly the last ten minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuShare {
    /// The last reading: processor time and elapsed time of the job, seconds.
    last: Option<(f64, f64)>,
    share: Option<f64>,
}

impl CpuShare {
    /// Time constant of the average, seconds: an old reading has lost 63% of its weight by then.
    const MEMORY_SECONDS: f64 = 600.0;

    /// The job has used `cpu_seconds` of processor time in `elapsed_seconds`; time in which it was
    /// stopped counts as elapsed.
    pub fn update(&mut self, cpu_seconds: f64, elapsed_seconds: f64) {
        let Some((cpu, elapsed)) = self.last.replace((cpu_seconds, elapsed_seconds)) else {
            return;
        };
        let passed = elapsed_seconds - elapsed;
        if passed <= 0.0 {
            return;
        }
        let now = ((cpu_seconds - cpu) / passed).max(0.0);
        // In its first ten minutes this is the mean since the start of the job.
        let weight = passed / elapsed_seconds.min(Self::MEMORY_SECONDS).max(passed);
        self.share = Some(
            self.share
                .map_or(now, |share| share + weight * (now - share)),
        );
    }

    /// The share of a processor, 1 for a whole one; `None` before two readings.
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
        // In the paper's example the job has used 40 of 100 s of processor time after 160 s: a quarter of
        // the processor.
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
    fn a_job_stays_for_ten_minutes_or_a_tenth_of_what_is_left_and_for_what_moving_costs() {
        let day = 86_400.0;
        assert!(!has_settled(599.0, day, 4.0) && has_settled(600.0, day, 4.0));
        // A job of the papers.
        assert!(!has_settled(23.0, 240.0, 4.0) && has_settled(24.0, 240.0, 4.0));
        assert!(!has_settled(29.0, 100.0, 30.0) && has_settled(30.0, 100.0, 30.0));
    }

    #[test]
    fn the_share_follows_what_the_job_gets() {
        let mut share = CpuShare::default();
        share.update(0.0, 0.0);
        assert_eq!(share.share(), None);
        for second in 1..=100_u32 {
            share.update(f64::from(second) * 0.5, f64::from(second));
        }
        let seen = |share: &CpuShare| share.share().unwrap();
        assert!((seen(&share) - 0.5).abs() < 1e-9);
        // The job is stopped from now on.
        for second in 101..=1300_u32 {
            share.update(50.0, f64::from(second));
        }
        assert!(seen(&share) < 0.1, "{}", seen(&share));
    }
}
