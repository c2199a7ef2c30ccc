//! What a final checkpoint is worth, and how far apart the regular ones may be because of it.
//!
//! A job that is driven off its machine gets a grace period, in which it can save its state with some
//! probability. If it can, the eviction costs no work. Regular checkpoints then protect only against
//! losses without warning, and against a final checkpoint that is late.
//!
//! An example: an image of 4 GiB, of which 63% change within half an hour, is stored at 50 MB/s; asking
//! takes 2 s, and the grace period is 60 s. After 10 minutes of unsaved work a final checkpoint takes 26 s
//! and is in time with 99.7%; after 30 minutes it takes 56 s, with 58.4%. Let the machine fail without
//! warning once in 100 hours and announce an eviction once in about 5 hours, and let a regular checkpoint
//! cost 20 s. Then the best interval is 1113 s, against 849 s without final checkpoints.
//!
//! Times are seconds, hazards are per second.

/// Of 100 times, 99 are less than this many standard deviations (of the logarithm) above the forecast.
const LATE_DEVIATIONS: f64 = 2.33;

/// Least mean time until a guest has to leave, seconds. A forecast that no guest stays here is that of the
/// machine's daemon, by the state of the whole machine. A job that runs all the same was not stopped by its own
/// supervisor, which stops it for a minute at least before it leaves.
const WITHDRAWAL_MEAN_MIN: f64 = 300.0;

/// The hazards of losing the machine at some moment, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hazards {
    presence: f64,
    withdrawal: f64,
}

impl Hazards {
    /// `presence` is the hazard that the machine goes without warning, `guest` the hazard that a guest
    /// has to leave it for any reason. Evictions with a grace period are the difference, at most one in five
    /// minutes.
    #[must_use]
    pub fn new(presence: f64, guest: f64) -> Self {
        let presence = presence.max(0.0);
        // An infinite hazard less another is no number, and counts as zero.
        let withdrawal = (guest - presence).max(0.0);
        Self {
            presence,
            withdrawal: withdrawal.min(1.0 / WITHDRAWAL_MEAN_MIN),
        }
    }

    /// Hazard of losing the machine without warning.
    #[must_use]
    pub const fn presence(self) -> f64 {
        self.presence
    }

    /// Hazard of an eviction with a grace period.
    #[must_use]
    pub const fn withdrawal(self) -> f64 {
        self.withdrawal
    }

    /// Hazard of losing work if a final checkpoint is in time with probability `chance`.
    #[must_use]
    pub fn effective(self, chance: f64) -> f64 {
        self.presence + (1.0 - chance) * self.withdrawal
    }
}

/// What is expected of a final checkpoint within a grace period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FinalSave {
    /// Time from asking the job for a checkpoint to having it on disk.
    pub ask_seconds: f64,
    /// Time that a save takes even if it stores nothing, seconds.
    pub fixed_seconds: f64,
    /// Size of the image, bytes.
    pub image_bytes: f64,
    /// Work, in seconds, after which 63% (1 - 1/e) of the image have changed.
    pub change_seconds: f64,
    /// Bytes of the image that are stored per second.
    pub bytes_per_second: f64,
    /// Standard deviation of the logarithm of the time that a save takes.
    pub spread: f64,
    /// Length of the grace period.
    pub grace_seconds: f64,
}

impl FinalSave {
    /// Bytes of the image that are stored after `work` seconds of work: those that have changed.
    #[must_use]
    pub fn stored_bytes(&self, work: f64) -> f64 {
        self.image_bytes.max(0.0) * -(-work / self.change_seconds).exp_m1()
    }

    /// Expected time of the final checkpoint after `work` seconds of unsaved work.
    #[must_use]
    pub fn seconds(&self, work: f64) -> f64 {
        self.ask_seconds + self.saving_seconds(work)
    }

    /// The same for the saving alone, without the time to ask the job.
    #[must_use]
    pub fn saving_seconds(&self, work: f64) -> f64 {
        self.fixed_seconds + self.stored_bytes(work) / self.bytes_per_second
    }

    /// Time after `work` seconds of unsaved work that 99 of 100 final checkpoints need at most.
    #[must_use]
    pub fn seconds_at_most(&self, work: f64) -> f64 {
        self.seconds(work) * self.lateness()
    }

    /// The same for the saving alone, without the time to ask the job.
    #[must_use]
    pub fn saving_seconds_at_most(&self, work: f64) -> f64 {
        self.saving_seconds(work) * self.lateness()
    }

    fn lateness(&self) -> f64 {
        (LATE_DEVIATIONS * self.spread).exp()
    }

    /// Probability that the final checkpoint is committed within the grace period. Its time is log-normal
    /// around [`Self::seconds`].
    #[must_use]
    pub fn chance(&self, work: f64) -> f64 {
        let ratio = self.grace_seconds / self.seconds(work);
        // 0 / 0: a checkpoint that takes no time is in time even without a grace period.
        let in_time = if ratio.is_nan() { 1.0 } else { ratio };
        normal(in_time.ln() / self.spread.max(1e-6))
    }

    /// Expected cost of an announced eviction after `work` seconds of unsaved work: the work, if the
    /// final checkpoint is late, and otherwise the time that the final checkpoint takes.
    #[must_use]
    pub fn loss(&self, work: f64) -> f64 {
        let chance = self.chance(work);
        (1.0 - chance) * work + chance * self.seconds(work)
    }
}

/// Seconds wasted per second of work when checkpoints of `checkpoint` seconds are taken every `interval`
/// seconds of work: for checkpoints, lost work and final checkpoints. `final_save` is `None` if the job
/// cannot save itself before an announced eviction.
#[must_use]
pub fn waste(
    interval: f64,
    checkpoint: f64,
    hazards: Hazards,
    final_save: Option<&FinalSave>,
) -> f64 {
    let chance = final_save.map_or(0.0, |last| last.chance(interval));
    let at_the_end = final_save.map_or(0.0, |last| last.seconds(interval));
    checkpoint / interval
        + hazards.effective(chance) * interval / 2.0
        + hazards.withdrawal() * chance * at_the_end
}

/// Shortest and longest interval that is considered, seconds.
const INTERVAL_RANGE: (f64, f64) = (1.0, 30.0 * 86_400.0);
/// Intervals tried, in a geometric series, and steps that refine the best of them.
const INTERVALS_TRIED: u32 = 300;
const REFINEMENTS: u32 = 40;

/// The interval with the least [`waste`].
#[must_use]
pub fn best_interval(checkpoint: f64, hazards: Hazards, final_save: Option<&FinalSave>) -> f64 {
    let of = |interval: f64| waste(interval, checkpoint, hazards, final_save);
    let (shortest, longest) = INTERVAL_RANGE;
    let step = (longest / shortest).powf(1.0 / f64::from(INTERVALS_TRIED));
    // The waste has a second minimum where the chance of a final checkpoint falls, so a descent from one
    // side could miss the better one.
    let tried = (0..=INTERVALS_TRIED).map(|i| shortest * step.powf(f64::from(i)));
    let best = tried.min_by(|a, b| of(*a).total_cmp(&of(*b)));
    let mut best = best.unwrap_or(shortest);
    let mut factor = step;
    for _ in 0..REFINEMENTS {
        factor = factor.sqrt();
        let around = [best / factor, best * factor];
        let better = around.into_iter().filter(|near| of(*near) < of(best));
        best = better
            .min_by(|a, b| of(*a).total_cmp(&of(*b)))
            .unwrap_or(best);
    }
    best.clamp(shortest, longest)
}

/// Distribution function of the standard normal distribution.
fn normal(x: f64) -> f64 {
    libm::erfc(-x / std::f64::consts::SQRT_2) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::interval::{daly, young};

    const HOUR: f64 = 3600.0;

    fn vector() -> (FinalSave, Hazards) {
        let last = FinalSave {
            ask_seconds: 2.0,
            fixed_seconds: 0.0,
            image_bytes: f64::from(1 << 30) * 4.0,
            change_seconds: 1800.0,
            bytes_per_second: 50e6,
            spread: 0.3,
            grace_seconds: 60.0,
        };
        (last, Hazards::new(0.01 / HOUR, 0.2 / HOUR))
    }

    #[track_caller]
    fn close(found: f64, expected: f64, within: f64) {
        assert!((found - expected).abs() < within, "{found} {expected}");
    }

    #[test]
    fn evictions_that_are_announced_make_checkpoints_rarer() {
        let hazards = Hazards::new(0.01 / HOUR, 0.2 / HOUR);
        let effective = hazards.effective(0.9);
        close(effective * HOUR, 0.029, 1e-9);
        close(young(60.0, 1.0 / effective), 3859.6, 0.05);
        close(daly(60.0, 1.0 / effective), 3819.7, 0.05);
        let alone = hazards.effective(0.0);
        close(young(60.0, 1.0 / alone), 1469.7, 0.05);
        close(daly(60.0, 1.0 / alone), 1430.0, 0.05);
    }

    #[test]
    fn the_chance_and_the_waste_are_those_of_the_vector() {
        let (last, hazards) = vector();
        close(last.seconds(600.0), 26.35, 0.005);
        close(last.chance(600.0), 0.9970, 5e-5);
        close(waste(600.0, 20.0, hazards, Some(&last)), 0.035_60, 5e-6);
        close(last.seconds(1800.0), 56.30, 0.005);
        close(last.chance(1800.0), 0.5840, 5e-5);
        close(waste(1800.0, 20.0, hazards, Some(&last)), 0.035_10, 5e-6);
    }

    #[test]
    fn the_best_interval_is_that_of_the_vector() {
        let (last, hazards) = vector();
        let best = best_interval(20.0, hazards, Some(&last));
        close(best, 1113.0, 0.5);
        close(last.chance(best), 0.8887, 2e-4);
        close(waste(best, 20.0, hazards, Some(&last)), 0.024_74, 5e-6);
        let without = best_interval(20.0, hazards, None);
        close(without, 849.0, 0.6);
        close(waste(without, 20.0, hazards, None), 0.047_14, 5e-6);
    }

    #[test]
    fn a_final_checkpoint_that_is_always_in_time_loses_nothing_but_its_time() {
        let (last, _) = vector();
        let sure = FinalSave {
            grace_seconds: 1e9,
            ..last
        };
        close(sure.loss(900.0), sure.seconds(900.0), 1e-6);
    }
}
