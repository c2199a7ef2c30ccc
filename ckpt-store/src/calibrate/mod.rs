//! Finds the load of the owner from which on a guest slows the owner down on this machine, the way
//! the papers found Th1 and Th2: a synthetic owner alternates work and rest, alone and beside a guest,
//! and the thresholds are the loads at which it loses five per cent of its work.
//!
//! Th1 is measured beside a guest of equal priority, Th2 beside one at the lowest. Nice 19 reaches only as
//! far as its autogroup or control group, so what the owner loses beside a guest in another session, and
//! in another control group, is measured, too.

pub mod experiment;
pub mod guest;
pub mod load;

use placement::state::{Thresholds, ThresholdsError};

/// Part of the owner's work that may be lost to a guest (the papers' 5% rule).
pub const TOLERATED_LOSS: f64 = 0.05;

/// Least threshold: below it the measurement says nothing.
const LEAST: f64 = 0.05;

/// What the owner loses at one load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Share of the resource that the owner uses when alone, 0 to 1.
    pub load: f64,
    /// Share of its work that it loses beside a guest.
    pub loss: f64,
}

/// The load at which the loss passes [`TOLERATED_LOSS`]: between the last point before the first
/// one above it, and that one. Points come in order of load.
#[must_use]
pub fn threshold(points: &[Point]) -> f64 {
    let mut below = Point {
        load: 0.0,
        loss: 0.0,
    };
    for &above in points {
        if above.loss > TOLERATED_LOSS {
            let part = (TOLERATED_LOSS - below.loss.max(0.0)) / (above.loss - below.loss.max(0.0));
            return (below.load + part.clamp(0.0, 1.0) * (above.load - below.load)).max(LEAST);
        }
        below = above;
    }
    1.0
}

/// Both thresholds, from the losses beside a guest of equal and of the lowest priority. Th2 is at
/// least Th1: noise can't make a gentler guest the worse one.
///
/// # Errors
/// Never for points whose loads lie between 0 and 1.
pub fn thresholds(equal: &[Point], lowest: &[Point]) -> Result<Thresholds, ThresholdsError> {
    let (first, second) = (threshold(equal), threshold(lowest));
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
        assert_eq!(threshold(&points(&[0.9])), LEAST.max(0.1 * 0.05 / 0.9));
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
            prop_assert!(LEAST <= found.first() && found.first() <= found.second());
        }
    }
}
