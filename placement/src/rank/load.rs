//! How much of a machine its owner takes.

/// Hours ahead for which an owner's mean load is forecast.
pub const LOAD_HOURS: [u32; 5] = [1, 2, 4, 8, 24];

/// Mean load of a machine's owner from now on, 0 to 1, over times of several lengths. It is that while a guest
/// can run at all: time in which the owner drives guests off counts as a failure, not as load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadForecast([f64; LOAD_HOURS.len()]);

impl LoadForecast {
    /// The mean load over each of [`LOAD_HOURS`]. What is no share counts as the nearest one.
    #[must_use]
    pub fn new(means: [f64; LOAD_HOURS.len()]) -> Self {
        let share = |mean: f64| if mean > 0.0 { mean.min(1.0) } else { 0.0 };
        Self(means.map(share))
    }

    /// The same at all times.
    #[must_use]
    pub fn constant(load: f64) -> Self {
        Self::new([load; LOAD_HOURS.len()])
    }

    /// The means over [`LOAD_HOURS`].
    #[must_use]
    pub const fn means(&self) -> &[f64; LOAD_HOURS.len()] {
        &self.0
    }

    /// The mean load over the next `seconds`: between two of the times that are known the mean changes
    /// evenly, before and after all of them not at all.
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
