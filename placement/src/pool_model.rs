//! A forecast from the pool's bitmaps alone, and the mean of it and of what a host announces.
//!
//! Host i fails `lambda_i = (failures + 1) / (hours + 1 / lambda_pool)` times an hour while it can be used,
//! and `r` times as often at some ages of its stay as at others: failures seen in the pool over failures
//! expected, with three pseudo-failures for each age. `S(h) = exp(-sum over hours lambda_i r[age])`.

use std::num::NonZeroU32;

use crate::SurvivalCurve;
use crate::bitmap::{Availability, AvailabilityBitmap, SLOT_SECONDS};

/// Ages of a stay at which the factor changes, hours.
const AGE_BOUNDS_HOURS: [f64; AGES - 1] = [1.0, 3.0, 8.0, 24.0];
const AGES: usize = 5;

/// Failures that are added to those seen and to those expected at each age.
const PSEUDO_FAILURES: f64 = 3.0;

/// What a pool of which nothing is known counts as: one failure in two days.
const PRIOR_HOURS: f64 = 48.0;

/// What a host's past can add to the factors: its failures count as at most one more than this multiple of
/// the other hosts' mean. A host that lies does not decide alone.
const SHARE_MAX: f64 = 2.0;

/// A forecast beyond this is taken for this one: announced curves are rounded to 1/65535.
const SUREST: f64 = 1.0 - 1e-5;

const SLOT_HOURS: f64 = SLOT_SECONDS as f64 / 3600.0;

/// What the pasts of a pool's hosts say about all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolModel {
    /// Failures in an hour of use.
    rate: f64,
    /// Factor of each age.
    ratios: [f64; AGES],
}

/// Hours of use and failures of a host at each age.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    hours: [f64; AGES],
    failures: [f64; AGES],
    /// For how long the host has been usable up to now, hours.
    age: f64,
}

impl PoolModel {
    /// The model of the hosts with these pasts.
    #[must_use]
    pub fn of(pool: &[&AvailabilityBitmap]) -> Self {
        let pasts: Vec<Past> = pool.iter().map(|past| Past::of(past)).collect();
        let all: f64 = pasts.iter().map(Past::failures).sum();
        let others = pasts.len().saturating_sub(1).max(1) as f64;
        let weight = |past: &Past| {
            let own = past.failures();
            let most = 1.0 + SHARE_MAX * (all - own) / others;
            if own > most { most / own } else { 1.0 }
        };
        let sum = |of: fn(&Past) -> f64| -> f64 { pasts.iter().map(|p| weight(p) * of(p)).sum() };
        let rate = (sum(Past::failures) + 1.0) / (sum(Past::hours) + PRIOR_HOURS);
        let ratios = std::array::from_fn(|age| {
            let mut seen = PSEUDO_FAILURES;
            let mut expected = PSEUDO_FAILURES;
            for past in &pasts {
                seen += weight(past) * past.failures[age];
                expected += weight(past) * past.rate(rate) * past.hours[age];
            }
            seen / expected
        });
        Self { rate, ratios }
    }

    /// The probability that a host with this past, which can be used now, stays usable.
    #[must_use]
    pub fn curve(
        &self,
        past: &AvailabilityBitmap,
        step_seconds: NonZeroU32,
        steps: usize,
    ) -> SurvivalCurve {
        let past = Past::of(past);
        let rate = past.rate(self.rate);
        let step = f64::from(step_seconds.get()) / 3600.0;
        let mut expected = 0.0;
        let survives = (0..steps).map(|number| {
            let age = past.age + (number as f64 + 0.5) * step;
            expected += rate * self.ratios[age_of(age)] * step;
            (-expected).exp()
        });
        SurvivalCurve::from_estimates(step_seconds, survives)
    }

    /// The mean, of the logits, of the curve that a host announces and of that of its `past`. What is
    /// announced as impossible stays so.
    #[must_use]
    pub fn blended(&self, announced: &SurvivalCurve, past: &AvailabilityBitmap) -> SurvivalCurve {
        let own = self.curve(past, announced.step_seconds(), announced.steps());
        let both = announced.values().iter().zip(own.values()).skip(1);
        let means = both.map(|(a, b)| mean_of_logits(*a, *b));
        SurvivalCurve::from_estimates(announced.step_seconds(), means)
    }
}

/// The probability whose logit is the mean of those of two probabilities.
#[must_use]
pub fn mean_of_logits(a: f64, b: f64) -> f64 {
    let odds = |p: f64| p / (1.0 - p);
    let odds = (odds(a.min(SUREST)) * odds(b.min(SUREST))).sqrt();
    odds / (1.0 + odds)
}

impl Past {
    fn of(bitmap: &AvailabilityBitmap) -> Self {
        let mut past = Self::default();
        for (availability, slots) in bitmap.runs() {
            match availability {
                Availability::Usable => past.stay(f64::from(slots) * SLOT_HOURS),
                Availability::NotUsable if past.age > 0.0 => {
                    past.failures[age_of(past.age - SLOT_HOURS / 2.0)] += 1.0;
                    past.age = 0.0;
                }
                Availability::NotUsable | Availability::Unknown => past.age = 0.0,
            }
        }
        past
    }

    fn stay(&mut self, hours: f64) {
        let mut from = 0.0;
        for (age, sum) in self.hours.iter_mut().enumerate() {
            let bound = AGE_BOUNDS_HOURS.get(age).map_or(hours, |b| b.min(hours));
            *sum += bound - from;
            from = bound;
        }
        self.age = hours;
    }

    fn failures(&self) -> f64 {
        self.failures.iter().sum()
    }

    fn hours(&self) -> f64 {
        self.hours.iter().sum()
    }

    /// Failures in an hour of use, where the pool has this many.
    fn rate(&self, of_pool: f64) -> f64 {
        (self.failures() + 1.0) / (self.hours() + 1.0 / of_pool)
    }
}

/// Which age of a stay this is.
fn age_of(hours: f64) -> usize {
    AGE_BOUNDS_HOURS.partition_point(|bound| *bound <= hours)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bitmap::Slot;

    const STEP: NonZeroU32 = NonZeroU32::new(300).unwrap();

    /// A past of stays: hours of use, each followed by as many hours away; the last one goes on.
    fn past(stays: &[(u64, u64)]) -> AvailabilityBitmap {
        let mut bitmap = AvailabilityBitmap::unknown(Slot(9999));
        let mut slot = 10_000;
        for (hours, away) in stays {
            for (length, seen) in [
                (*hours, Availability::Usable),
                (*away, Availability::NotUsable),
            ] {
                for _ in 0..length * 12 {
                    bitmap.record(Slot(slot), seen);
                    slot += 1;
                }
            }
        }
        bitmap
    }

    fn after_hours(curve: &SurvivalCurve, hours: f64) -> f64 {
        curve.at(hours * 3600.0).value()
    }

    #[test]
    fn the_formula_holds_by_hand() {
        let host = past(&[(2, 1), (4, 0)]);
        let model = PoolModel::of(&[&host]);
        // One failure in six hours; the pool: (1 + 1) / (6 + 48); the host: (1 + 1) / (6 + 27).
        assert!((model.rate - 2.0 / 54.0).abs() < 1e-12);
        let rate = 2.0 / 33.0;
        // Two hours at the first age, three at the second, one at the third; the failure at the second.
        let expected = [2.0, 3.0, 1.0, 0.0, 0.0].map(|hours: f64| 3.0 + rate * hours);
        let seen = [3.0, 4.0, 3.0, 3.0, 3.0];
        for age in 0..AGES {
            let ratio = seen[age] / expected[age];
            assert!((model.ratios[age] - ratio).abs() < 1e-12, "{age}");
        }
        // It has been there for four hours: four more at the third age, then the fourth.
        let curve = model.curve(&host, STEP, 120);
        let four = (-rate * model.ratios[2] * 4.0).exp();
        assert!((after_hours(&curve, 4.0) - four).abs() < 1e-9);
        let five = four * (-rate * model.ratios[3]).exp();
        assert!((after_hours(&curve, 5.0) - five).abs() < 1e-9);
    }

    #[test]
    fn a_pool_that_is_taken_back_at_an_age_is_known_as_one() {
        let cycles: Vec<(u64, u64)> = vec![(12, 1); 20];
        let hosts: Vec<AvailabilityBitmap> = (1..=12)
            .map(|age| past(&[cycles.as_slice(), &[(age, 0)]].concat()))
            .collect();
        let model = PoolModel::of(&hosts.iter().collect::<Vec<_>>());
        let next_hours = |host: usize| {
            let curve = model.curve(&hosts[host], STEP, 120);
            after_hours(&curve, 4.0)
        };
        // One that was given an hour ago stays; one of eight hours has four left at most.
        assert!(next_hours(0) > 0.8, "{}", next_hours(0));
        assert!(next_hours(7) < 0.6, "{}", next_hours(7));
    }

    #[test]
    fn a_host_that_lies_hardly_moves_the_forecasts_of_others() {
        let honest: Vec<AvailabilityBitmap> =
            (0..20).map(|n| past(&[(100 + n, 1), (300, 0)])).collect();
        let mut pool: Vec<&AvailabilityBitmap> = honest.iter().collect();
        let without = PoolModel::of(&pool);
        // As many failures as there can be, all of them at the first age.
        let mut liar = past(&[(300, 0)]);
        for slot in 0..4000 {
            let from = liar.newest().0 + 1;
            let seen = [Availability::NotUsable, Availability::Usable][slot % 2];
            liar.record(Slot(from), seen);
        }
        pool.push(&liar);
        let with = PoolModel::of(&pool);
        for host in &honest {
            let at = |model: &PoolModel| after_hours(&model.curve(host, STEP, 120), 10.0);
            assert!(
                (at(&without) - at(&with)).abs() < 0.02,
                "{without:?} {with:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_pasts_give_curves_between_which_the_mean_lies(
            stays in prop::collection::vec((0_u64..60, 0_u64..20), 0..12),
            others in prop::collection::vec((0_u64..60, 0_u64..20), 0..12),
            rate in 0.0_f64..1e-3,
        ) {
            let host = past(&stays);
            let model = PoolModel::of(&[&host, &past(&others)]);
            prop_assert!(model.rate.is_finite() && model.ratios.iter().all(|r| r.is_finite() && *r > 0.0));
            let own = model.curve(&host, STEP, 120);
            let announced = SurvivalCurve::exponential(STEP, 120, rate);
            let blended = model.blended(&announced, &host);
            for hours in [0.5, 1.0, 3.0, 10.0] {
                let [a, b, mean] = [&announced, &own, &blended].map(|curve| after_hours(curve, hours));
                prop_assert!(mean >= a.min(b) - 2e-5 && mean <= a.max(b) + 1e-9, "{a} {b} {mean}");
            }
            let never = SurvivalCurve::from_estimates(STEP, std::iter::repeat_n(0.0, 120));
            prop_assert_eq!(model.blended(&never, &host), never);
        }
    }
}
