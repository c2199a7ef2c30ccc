//! How long a job stays stopped while the owner needs the machine, before it moves.
//!
//! Times are seconds.

/// Durations that count as much as all those of the pool, at most.
const POOL_WEIGHT: f64 = 5.0;

/// How long owners needed their machines for themselves, each time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// Durations and their weights, shortest first.
    durations: Vec<(f64, f64)>,
}

impl Past {
    /// From the durations on this machine, and those of others, which count for what five of its own
    /// do. What is not a duration is left out.
    #[must_use]
    pub fn new(own: &[f64], pool: &[f64]) -> Self {
        let is_duration = |seconds: &&f64| seconds.is_finite() && **seconds >= 0.0;
        let shared = pool.iter().filter(is_duration).count().max(1);
        let weight = (POOL_WEIGHT / shared as f64).min(1.0);
        let own = own.iter().filter(is_duration).map(|own| (*own, 1.0));
        let pool = pool
            .iter()
            .filter(is_duration)
            .map(|other| (*other, weight));
        let mut durations: Vec<(f64, f64)> = own.chain(pool).collect();
        durations.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self { durations }
    }

    /// The time, counted from the beginning, after which a job that has been stopped for `age` had
    /// better leave, when leaving costs `moving`: that with the least expected
    /// `min(D, s) + P(D > s) moving` for durations `D` longer than `age`. When none was that long,
    /// `moving` more, which is at most twice the best.
    #[must_use]
    pub fn patience(&self, moving: f64, age: f64) -> f64 {
        let longer = self
            .durations
            .partition_point(|(seconds, _)| *seconds <= age);
        let ahead = self.durations.get(longer..).unwrap_or_default();
        if ahead.is_empty() {
            let longest = self.durations.last().map_or(0.0, |(seconds, _)| *seconds);
            return longest + moving;
        }
        let total: f64 = ahead.iter().map(|(_, weight)| weight).sum();
        // Of those that are over: their durations times their weights, and their weights.
        let (mut spent, mut over) = (0.0, 0.0);
        let mut best = (age, age * total + total * moving);
        for (seconds, weight) in ahead {
            spent += seconds * weight;
            over += weight;
            let left = total - over;
            let cost = spent + left * (seconds + moving);
            // Sums of weights are not exact; a later time has to be better by more than that.
            if cost < best.1 * (1.0 - 1e-12) {
                best = (*seconds, cost);
            }
        }
        best.0
    }

    /// Expected cost of leaving after `patience`: time stopped and, if it comes to that, `moving`.
    /// Without a past, `moving`.
    #[must_use]
    pub fn cost(&self, patience: f64, moving: f64) -> f64 {
        let total: f64 = self.durations.iter().map(|(_, weight)| weight).sum();
        if total <= 0.0 {
            return moving;
        }
        let costs = self.durations.iter().map(|(seconds, weight)| {
            let moves = if *seconds > patience { moving } else { 0.0 };
            weight * (seconds.min(patience) + moves)
        });
        costs.sum::<f64>() / total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTES: [f64; 10] = [0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0, 180.0];

    #[test]
    fn patience_is_that_of_the_vector() {
        let past = Past::new(&MINUTES, &[]);
        for (moving, patience, cost, of_one, of_ten) in [
            (1.0, 0.0, 1.000, 1.57, 5.27),
            (6.0, 1.0, 5.070, 5.07, 6.77),
            (10.0, 3.0, 7.170, 7.87, 7.97),
            (20.0, 8.0, 10.370, 14.87, 10.97),
            (60.0, 30.0, 15.470, 42.87, 22.97),
        ] {
            assert_eq!(past.patience(moving, 0.0), patience, "moving {moving}");
            for (after, expected) in [(patience, cost), (1.0, of_one), (10.0, of_ten)] {
                let found = past.cost(after, moving);
                assert!((found - expected).abs() < 1e-9, "{found} {expected}");
            }
        }
    }

    #[test]
    fn without_a_past_it_is_the_cost_of_moving() {
        assert_eq!(Past::default().patience(7.0, 0.0), 7.0);
        assert_eq!(Past::new(&[f64::NAN, -1.0], &[]).patience(7.0, 3.0), 7.0);
        // Longer than ever before: that much more than the longest.
        assert_eq!(Past::new(&MINUTES, &[]).patience(7.0, 200.0), 187.0);
    }

    #[test]
    fn the_pool_counts_for_five() {
        let pool = vec![100.0; 1000];
        let none = Past::new(&[], &pool);
        assert_eq!(none.patience(1000.0, 0.0), 100.0);
        // With twenty short ones of its own, the machine is believed.
        let own = Past::new(&[1.0; 20], &pool);
        assert_eq!(own.patience(10.0, 0.0), 1.0);
    }

    proptest! {
        #[test]
        fn no_other_patience_costs_less(
            durations in prop::collection::vec(0.0f64..1000.0, 1..30),
            moving in 0.1f64..2000.0,
            other in 0.0f64..2000.0,
        ) {
            let past = Past::new(&durations, &[]);
            let best = past.cost(past.patience(moving, 0.0), moving);
            prop_assert!(best <= past.cost(other, moving) * (1.0 + 1e-9));
        }

        #[test]
        fn time_that_has_passed_does_not_change_the_plan(
            durations in prop::collection::vec(0.0f64..1000.0, 1..30),
            moving in 0.1f64..2000.0,
            part in 0.0f64..1.0,
        ) {
            let past = Past::new(&durations, &[]);
            let plan = past.patience(moving, 0.0);
            let age = part * plan;
            if durations.iter().any(|seconds| *seconds > age) && age < plan {
                let then = past.patience(moving, age);
                prop_assert!((past.cost(then, moving) - past.cost(plan, moving)).abs() < 1e-6);
            }
        }
    }
}
