//! A failure detector that learns how regularly a host sends signs of life (after Chen, Toueg and
//! Aguilera, "On the quality of service of failure detectors", 2002). The next one is expected after the
//! mean time between the earlier ones, plus a margin that follows from how much these times varied.

use std::time::Duration;

use super::Millis;

/// Weight of the newest interval in the moving averages.
const NEWEST_WEIGHT: f64 = 0.1;

/// The margin, as a multiple of the mean deviation.
const MARGIN_DEVIATIONS: f64 = 6.0;

/// The intervals between one host's signs of life.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rhythm {
    last: Millis,
    mean: f64,
    deviation: f64,
    period: f64,
}

impl Rhythm {
    /// A host with its first sign of life, which should send one every `period`.
    pub fn new(now: Millis, period: Duration) -> Self {
        let period = period.as_millis() as f64;
        Self {
            last: now,
            mean: period,
            deviation: period / 4.0,
            period,
        }
    }

    /// The host sent another sign of life.
    pub fn beat(&mut self, now: Millis) {
        let passed = now.0.saturating_sub(self.last.0) as f64;
        self.last = now;
        // An interval during which the host was away says nothing of its rhythm while it is there.
        if passed > self.patience() {
            return;
        }
        let off = (passed - self.mean).abs();
        self.mean += NEWEST_WEIGHT * (passed - self.mean);
        self.deviation += NEWEST_WEIGHT * (off - self.deviation);
    }

    /// How long the host may be silent, milliseconds: at least two and a half periods, at most twelve.
    fn patience(&self) -> f64 {
        let expected = self.mean + MARGIN_DEVIATIONS * self.deviation;
        expected.clamp(2.5 * self.period, 12.0 * self.period)
    }

    /// Whether the last sign of life is recent enough for the host's rhythm.
    pub fn is_alive(&self, now: Millis) -> bool {
        (now.0.saturating_sub(self.last.0) as f64) <= self.patience()
    }

    /// The time of the last sign of life.
    pub const fn last(&self) -> Millis {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const PERIOD: Duration = Duration::from_secs(10);

    fn after(times: impl IntoIterator<Item = u64>) -> Rhythm {
        let mut rhythm = Rhythm::new(Millis(0), PERIOD);
        let mut now = 0;
        for passed in times {
            now += passed;
            rhythm.beat(Millis(now));
        }
        rhythm
    }

    fn patience(rhythm: &Rhythm) -> u64 {
        let last = rhythm.last().0;
        (last..)
            .find(|now| !rhythm.is_alive(Millis(*now)))
            .map_or(0, |now| now - last)
    }

    #[test]
    fn regular_hosts_are_missed_soon_and_irregular_ones_later() {
        let regular = after(std::iter::repeat_n(10_000, 100));
        assert_eq!(patience(&regular), 25_001);
        let mut rng = SmallRng::seed_from_u64(1);
        let irregular = after((0..100).map(|_| rng.random_range(2_000..24_000)));
        assert!(patience(&irregular) > 40_000, "{irregular:?}");
        assert!(patience(&irregular) <= 120_001);
    }

    #[test]
    fn an_absence_does_not_spoil_the_rhythm() {
        let mut rhythm = after(std::iter::repeat_n(10_000, 100));
        let before = patience(&rhythm);
        rhythm.beat(Millis(1_000_000 + 36_000_000));
        assert_eq!(patience(&rhythm), before);
    }

    #[test]
    fn few_false_alarms_at_usual_jitter() {
        let mut rng = SmallRng::seed_from_u64(2);
        let mut rhythm = Rhythm::new(Millis(0), PERIOD);
        let mut now = 0;
        let mut alarms = 0;
        for _ in 0..10_000 {
            // One sign of life in fifty is lost.
            let lost = if rng.random_bool(0.02) { 2 } else { 1 };
            now += lost * 10_000 + rng.random_range(0..1_000);
            alarms += u32::from(!rhythm.is_alive(Millis(now)));
            rhythm.beat(Millis(now));
        }
        assert!(alarms < 5, "{alarms}");
    }
}
