//! Forecast of the share of a machine that its owner uses.

/// Hours ahead for which an owner's mean load is forecast.
pub const LOAD_HOURS: [u32; 5] = [1, 2, 4, 8, 24];

/// Mean load of a machine's owner, 0 to 1, over the next 1, 2, 4, 8 and 24 hours. Only the time in which a
/// guest can run counts: when the owner drives guests off, that is a failure and not load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadForecast([f64; LOAD_HOURS.len()]);

impl LoadForecast {
    /// A forecast from the mean load over each of [`LOAD_HOURS`]; values are clamped to 0 to 1, NaN is 0.
    #[must_use]
    pub fn new(means: [f64; LOAD_HOURS.len()]) -> Self {
        let share = |mean: f64| if mean > 0.0 { mean.min(1.0) } else { 0.0 };
        Self(means.map(share))
    }

    /// A forecast of the same load at all times.
    #[must_use]
    pub fn constant(load: f64) -> Self {
        Self::new([load; LOAD_HOURS.len()])
    }

    /// The mean load over each of [`LOAD_HOURS`].
    #[must_use]
    pub const fn means(&self) -> &[f64; LOAD_HOURS.len()] {
        &self.0
    }

    /// The mean load over the next `seconds`: linear between two of [`LOAD_HOURS`], constant before the first
    /// and after the last.
    #[must_use]
    pub fn over(&self, seconds: f64) -> f64 {
        let known = LOAD_HOURS.iter().zip(self.0);
        let mut before: Option<(f64, f64)> = None;
        for (hours, mean) in known {
            let at = f64::from(*hours) * 3600.0;
            if seconds <= at {
                let Some((then, earlier)) = before else {
                    return mean;
                };
                let share = (seconds - then) / (at - then);
                return earlier + share * (mean - earlier);
            }
            before = Some((at, mean));
        }
        before.map_or(0.0, |(_, mean)| mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_the_one_known_and_between_two_of_them_in_between() {
        let load = LoadForecast::new([0.1, 0.2, 0.4, f64::NAN, 7.0]);
        let over = |hours: f64| load.over(hours * 3600.0);
        assert_eq!((over(0.0), over(1.0), over(2.0)), (0.1, 0.1, 0.2));
        assert!((over(3.0) - 0.3).abs() < 1e-12 && (over(16.0) - 0.5).abs() < 1e-12);
        assert_eq!((over(8.0), over(1000.0)), (0.0, 1.0));
    }
}
