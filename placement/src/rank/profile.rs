//! The owner's usual load at each hour of the day, and a forecast from it.

use std::ops::Range;

use super::load::{LOAD_HOURS, LoadForecast};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// The 24 hours of a working day, then the 24 hours of a day of the weekend.
const BINS: usize = 48;

/// Days after which an observation counts half.
const HALF_LIFE_DAYS: f64 = 14.0;

/// Weight of the machine's mean load in the mean load of each hour, as seconds of observation.
const PRIOR_SECONDS: f64 = HOUR as f64;

/// Time constant, seconds, with which the present load's difference from the usual one fades.
const PERSISTENCE_SECONDS: f64 = 3600.0;

/// Mean load by hour of the day, on working days and at weekends, while a guest could run.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadProfile {
    /// For each hour, the sums of load times seconds, and of seconds. Both fade.
    bins: [(f64, f64); BINS],
    /// Time up to which the sums have faded, Unix seconds.
    at: u64,
    /// Load in the last span, 0 to 1.
    last: Option<f64>,
}

impl LoadProfile {
    /// A profile without observations; they begin at `start`, Unix seconds.
    #[must_use]
    pub const fn new(start: u64) -> Self {
        Self {
            bins: [(0.0, 0.0); BINS],
            at: start,
            last: None,
        }
    }

    /// Adds a span (Unix seconds) in which a guest could run and the owner's mean load was `load`, 0 to 1.
    /// Spans have to come in order of time.
    pub fn observe(&mut self, span: Range<u64>, load: f64) {
        if span.is_empty() || !load.is_finite() {
            return;
        }
        let days = span.end.saturating_sub(self.at) as f64 / DAY as f64;
        let kept = (-days / HALF_LIFE_DAYS).exp2();
        for (sum, seconds) in &mut self.bins {
            *sum *= kept;
            *seconds *= kept;
        }
        self.at = span.end.max(self.at);
        let load = load.clamp(0.0, 1.0);
        self.last = Some(load);
        // The mean of a longer span is the same for every hour, so its last two weeks suffice.
        let mut at = span.start.max(span.end.saturating_sub(14 * DAY));
        while at < span.end {
            let end = span.end.min((at / HOUR + 1) * HOUR);
            let seconds = (end - at) as f64;
            if let Some((sum, known)) = self.bins.get_mut(bin(at)) {
                *sum += load * seconds;
                *known += seconds;
            }
            at = end;
        }
    }

    /// The mean load over the next hours: the usual load of these hours, and the present difference from it,
    /// which fades. `None` before the first observation.
    #[must_use]
    pub fn forecast(&self) -> Option<LoadForecast> {
        let last = self.last?;
        let sums = self.bins.iter();
        let (sum, known) = sums.fold((0.0, 0.0), |(sum, all), one| (sum + one.0, all + one.1));
        let mean = sum / known;
        let of_hour = |at: u64| {
            let (sum, known) = self.bins.get(bin(at)).copied().unwrap_or_default();
            (sum + PRIOR_SECONDS * mean) / (known + PRIOR_SECONDS)
        };
        let surprise = last - of_hour(self.at);
        let over = |hours: u32| {
            let hours = u64::from(hours);
            let usual: f64 = (0..hours).map(|hour| of_hour(self.at + hour * HOUR)).sum();
            let seconds = (hours * HOUR) as f64;
            // Mean of exp(-t / PERSISTENCE_SECONDS) over the next `seconds`.
            let lasts = -(-seconds / PERSISTENCE_SECONDS).exp_m1() * PERSISTENCE_SECONDS / seconds;
            usual / hours as f64 + surprise * lasts
        };
        Some(LoadForecast::new(LOAD_HOURS.map(over)))
    }
}

/// Index of the bin of a time.
const fn bin(unix_seconds: u64) -> usize {
    let hour = (unix_seconds % DAY / HOUR) as usize;
    // Sunday is 0, and 1 January 1970 was a Thursday.
    let is_weekend = matches!((unix_seconds / DAY + 4) % 7, 0 | 6);
    if is_weekend { 24 + hour } else { hour }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Monday, at midnight.
    const MONDAY: u64 = 1_789_948_800;

    #[test]
    fn an_owner_who_works_by_day_is_expected_by_day() {
        assert_eq!((MONDAY / DAY + 4) % 7, 1);
        let mut profile = LoadProfile::new(MONDAY);
        for day in 0..28 {
            let at = MONDAY + day * DAY;
            let works = day % 7 < 5;
            profile.observe(at..at + 9 * HOUR, 0.0);
            profile.observe(at + 9 * HOUR..at + 17 * HOUR, if works { 0.8 } else { 0.0 });
            profile.observe(at + 17 * HOUR..at + DAY, 0.0);
        }
        let monday = MONDAY + 28 * DAY;
        profile.observe(monday..monday + 8 * HOUR, 0.0);
        let load = profile.forecast().unwrap();
        // One free hour, then the working day.
        assert!(load.over(3600.0) < 0.05, "{load:?}");
        assert!((load.over(8.0 * 3600.0) - 0.7).abs() < 0.1, "{load:?}");
        assert!((load.over(86_400.0) - 0.27).abs() < 0.06, "{load:?}");
        // Unusual load in the evening is expected to last for a while.
        profile.observe(monday + 20 * HOUR..monday + 21 * HOUR, 1.0);
        let load = profile.forecast().unwrap();
        assert!(
            load.over(3600.0) > 0.4 && load.over(8.0 * 3600.0) < 0.3,
            "{load:?}"
        );
    }

    #[test]
    fn nothing_is_forecast_before_anything_was_seen_and_all_stays_a_share() {
        let mut profile = LoadProfile::new(0);
        assert_eq!(profile.forecast(), None);
        profile.observe(5..5, 0.5);
        profile.observe(0..10, f64::NAN);
        assert_eq!(profile.forecast(), None);
        profile.observe(0..u64::MAX / 4, 7.0);
        let load = profile.forecast().unwrap();
        assert!(
            load.means().iter().all(|mean| (0.99..=1.0).contains(mean)),
            "{load:?}"
        );
    }
}
