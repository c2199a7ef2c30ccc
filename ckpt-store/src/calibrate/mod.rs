//! Measures the loads of the owner above which a guest slows the owner down on this machine, in the way
//! in which the papers found Th1 and Th2. A synthetic owner alternates work and rest, alone and beside a
//! guest. A threshold is the load at which the owner loses five per cent of its work.
//!
//! Th1 is measured beside a guest of equal priority, Th2 beside one of the lowest priority. Nice 19 has
//! an effect only within the guest's autogroup or control group. So what the owner loses beside a guest
//! in another session, and in another control group, is measured, too.

pub mod experiment;
pub mod guest;
pub mod load;

use placement::state::{Thresholds, ThresholdsError};

/// Share of the owner's work that may be lost to a guest (the papers' 5% rule).
pub const TOLERATED_LOSS: f64 = 0.05;

/// Smallest threshold. Below it the measurement is not meaningful.
const THRESHOLD_MIN: f64 = 0.05;

/// What the owner loses at one load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Share of the resource that the owner uses when alone, 0 to 1.
    pub load: f64,
    /// Share of its work that the owner loses beside a guest.
    pub loss: f64,
}

/// The load at which the loss passes [`TOLERATED_LOSS`], interpolated between the first point with a
/// larger loss and the point before it. The points have to be in the order of their loads.
#[must_use]
pub fn threshold(points: &[Point]) -> f64 {
    let mut below = Point {
        load: 0.0,
        loss: 0.0,
    };
    for &above in points {
        if above.loss > TOLERATED_LOSS {
            let part = (TOLERATED_LOSS - below.loss.max(0.0)) / (above.loss - below.loss.max(0.0));
            return (below.load + part.clamp(0.0, 1.0) * (above.load - below.load))
                .max(THRESHOLD_MIN);
        }
        below = above;
    }
    1.0
}

/// Both thresholds, from the losses beside a guest of equal and of the lowest priority. Th1 is lowered to
/// Th2 if it is larger, because only noise can make the guest of lowest priority the worse one.
///
/// # Errors
/// Never for points with loads between 0 and 1.
pub fn thresholds(equal: &[Point], lowest: &[Point]) -> Result<Thresholds, ThresholdsError> {
    let first = threshold(equal);
    let second = threshold(lowest);
    Thresholds::new(first.min(second), second)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn points(losses: &[f64]) -> Vec<Point> {
        let point = |(i, &loss)| Point {
            load: (i + 1) as f64 / 10.0,
            loss,
        };
        losses.iter().enumerate().map(point).collect()
    }

    #[test]
    fn the_threshold_lies_where_the_loss_passes_five_per_cent() {
        let found = threshold(&points(&[0.0, 0.01, 0.09, 0.2]));
        assert!((found - 0.25).abs() < 1e-12, "{found}");
        assert_eq!(threshold(&points(&[0.0, 0.04, 0.049])), 1.0);
        assert_eq!(
            threshold(&points(&[0.9])),
            THRESHOLD_MIN.max(0.1 * 0.05 / 0.9)
        );
    }

    #[test]
    fn a_peak_that_recovers_counts() {
        assert!(threshold(&points(&[0.0, 0.2, 0.0, 0.3])) < 0.2);
    }

    proptest! {
        #[test]
        fn any_losses_give_thresholds_in_order(
            equal in prop::collection::vec(-0.5_f64..1.0, 0..12),
            lowest in prop::collection::vec(-0.5_f64..1.0, 0..12),
        ) {
            let found = thresholds(&points(&equal[..equal.len().min(10)]), &points(&lowest[..lowest.len().min(10)]));
            let found = found.unwrap();
            prop_assert!(THRESHOLD_MIN <= found.first() && found.first() <= found.second());
        }
    }
}
