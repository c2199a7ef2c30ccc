//! How long a job stays stopped while the owner needs the machine, before it moves.
//!
//! Times are seconds.

use placement::AvailabilityBitmap;
use placement::bitmap::{Availability, SLOT_SECONDS, SLOTS, Slot};

/// Durations that count as much as all those of the pool, at most.
const POOL_WEIGHT: f64 = 5.0;

/// Uses of the pool's mean length that count beside those of a machine.
const POOL_USES: f64 = 0.5;

/// How often, and for how long each time, owners needed machines for themselves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// For how long each time, seconds.
    pub lengths: Vec<f64>,
    /// The times between.
    pub uses: Uses,
}

/// Times in which guests could use machines without a break.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Uses {
    /// How many of them ended because guests had to leave.
    pub ended: f64,
    /// Their sum, seconds, with those that have not ended or whose end nobody saw.
    pub seconds: f64,
    /// The sum of their squares.
    pub squares: f64,
}

impl Uses {
    /// Adds one; `ended` when guests had to leave after it.
    pub fn add(&mut self, seconds: f64, ended: bool) {
        self.ended += f64::from(u8::from(ended));
        self.seconds += seconds;
        self.squares += seconds * seconds;
    }
}

impl Needs {
    /// From when guests could run on a machine (`guest`), and when it was there at all (`presence`): an owner
    /// needed it when it was there and no guest could run. Slots are five minutes; a need that reaches
    /// into two of them is taken for one of five minutes.
    #[must_use]
    pub fn of_bitmaps(guest: &AvailabilityBitmap, presence: &AvailabilityBitmap) -> Self {
        let mut needs = Self::default();
        let newest = guest.newest().0;
        let oldest = newest.saturating_sub(SLOTS as u64 - 1);
        let (mut used, mut needed) = (0_u64, 0_u64);
        for slot in (oldest..=newest).map(Slot) {
            let state = guest.get(slot);
            let is_needed =
                state == Availability::NotUsable && presence.get(slot) == Availability::Usable;
            if state == Availability::Usable {
                used += 1;
            } else if used > 0 {
                let seconds = (used * SLOT_SECONDS) as f64;
                needs.uses.add(seconds, state == Availability::NotUsable);
                used = 0;
            }
            if is_needed {
                needed += 1;
            } else if needed > 0 {
                // Only what is over has a length.
                needs.lengths.push(need_seconds(needed));
                needed = 0;
            }
        }
        if used > 0 {
            needs.uses.add((used * SLOT_SECONDS) as f64, false);
        }
        needs
    }

    /// Adds those of another machine.
    pub fn extend(&mut self, other: Self) {
        self.lengths.extend(other.lengths);
        self.uses.ended += other.uses.ended;
        self.uses.seconds += other.uses.seconds;
        self.uses.squares += other.uses.squares;
    }

    fn durations(&self) -> impl Iterator<Item = f64> + '_ {
        let lengths = self.lengths.iter().copied();
        lengths.filter(|seconds| seconds.is_finite() && *seconds >= 0.0)
    }
}

/// Length of a need that touches so many slots: it begins and ends somewhere in the first and the last.
fn need_seconds(slots: u64) -> f64 {
    let slot = SLOT_SECONDS as f64;
    ((slots as f64 - 1.0) * slot).max(slot / 2.0)
}

/// How owners needed their machines: the owner of this one, and those of others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// Durations and their weights, shortest first.
    durations: Vec<(f64, f64)>,
    /// Time of use that is to be expected after a need here, and on another machine, seconds; none where
    /// nothing is known of others.
    use_ahead: Option<(f64, f64)>,
}

impl Past {
    /// From what is known of this machine, and of others, whose durations count for what five of its own
    /// do. What is not a duration is left out.
    #[must_use]
    pub fn new(own: &Needs, pool: &Needs) -> Self {
        let shared = pool.durations().count().max(1);
        let weight = (POOL_WEIGHT / shared as f64).min(1.0);
        let of_pool = pool.durations().map(|seconds| (seconds, weight));
        let of_own = own.durations().map(|seconds| (seconds, 1.0));
        let mut durations: Vec<(f64, f64)> = of_own.chain(of_pool).collect();
        durations.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self {
            durations,
            use_ahead: use_ahead(&own.uses, &pool.uses),
        }
    }

    /// What a wait may cost where a move costs `moving`. Who moves comes to another machine at any moment of
    /// the time in which it can be used, and has the rest of that before it; after a wait a use begins here
    /// that is as long as they are here. So a move buys other hours than a wait does: where owners come
    /// close together, more. A wait is worth the price at which a move buys the same time. `left` is the work
    /// that is left of the job, seconds, if that is known: more time than that is worth nothing.
    #[must_use]
    pub fn worth_of_a_wait(&self, moving: f64, left: Option<f64>) -> f64 {
        let Some((here, there)) = self.use_ahead else {
            return moving;
        };
        let left = left.map_or(f64::INFINITY, |left| left.max(1.0));
        moving * here.min(left) / there.min(left)
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

/// Expected time of use after a need here: its mean length, with half a use of the pool's mean. And what is
/// left of a use elsewhere at a moment that is drawn from all time of use: E[U^2] / 2 E[U].
fn use_ahead(own: &Uses, pool: &Uses) -> Option<(f64, f64)> {
    let is_known = pool.ended > 0.0 && pool.seconds > 0.0 && pool.squares.is_finite();
    let is_own = own.seconds >= 0.0 && own.ended >= 0.0;
    if !(is_known && is_own) {
        return None;
    }
    let mean = pool.seconds / pool.ended;
    let here = (own.seconds + POOL_USES * mean) / (own.ended + POOL_USES);
    let there = pool.squares / (2.0 * pool.seconds);
    (there > 0.0).then_some((here, there))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTES: [f64; 10] = [0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0, 180.0];

    fn needs(lengths: &[f64]) -> Needs {
        Needs {
            lengths: lengths.to_vec(),
            uses: Uses::default(),
        }
    }

    fn uses(lengths: &[f64]) -> Needs {
        let mut needs = Needs::default();
        for seconds in lengths {
            needs.uses.add(*seconds, true);
        }
        needs
    }

    #[test]
    fn a_wait_is_worth_what_a_move_pays_for_the_same_time() {
        // Uses of one length: who comes at any moment has half of one before him.
        let alike = Past::new(&uses(&[100.0; 50]), &uses(&[100.0; 50]));
        assert!((alike.worth_of_a_wait(60.0, None) - 120.0).abs() < 1e-9);
        // Elsewhere most time lies in long uses, whatever their number.
        let restless = uses(&[1.0, 1.0, 1.0, 1.0, 996.0]);
        let past = Past::new(&restless, &restless);
        let there = (4.0 + 996.0 * 996.0) / 2000.0;
        let worth = past.worth_of_a_wait(60.0, None);
        assert!((worth - 60.0 * 200.0 / there).abs() < 1e-9, "{worth}");
        // What is left of the job fits into either.
        assert!((past.worth_of_a_wait(60.0, Some(100.0)) - 60.0).abs() < 1e-9);
        // A machine that is taken more often than the others is not waited for.
        let worse = Past::new(&uses(&[10.0; 50]), &restless);
        assert!(worse.worth_of_a_wait(60.0, None) < 0.1 * worth);
        // Nothing is known of others, or of this one.
        assert_eq!(
            Past::new(&restless, &Needs::default()).worth_of_a_wait(60.0, None),
            60.0
        );
        let unknown = Past::new(&Needs::default(), &restless).worth_of_a_wait(60.0, None);
        assert!((unknown - worth).abs() < 1e-9, "{unknown}");
    }

    #[test]
    fn needs_are_read_off_bitmaps() {
        let mut guest = AvailabilityBitmap::unknown(Slot(1000));
        let mut presence = AvailabilityBitmap::unknown(Slot(1000));
        let slots = "UUUUNNNUUN.UUAAUUN";
        for (slot, kind) in (1001..).map(Slot).zip(slots.chars()) {
            let (can_run, is_there) = match kind {
                'U' => (Availability::Usable, Availability::Usable),
                'N' => (Availability::NotUsable, Availability::Usable),
                'A' => (Availability::NotUsable, Availability::NotUsable),
                _ => (Availability::Unknown, Availability::Unknown),
            };
            guest.record(slot, can_run);
            presence.record(slot, is_there);
        }
        let needs = Needs::of_bitmaps(&guest, &presence);
        // The last one is not over.
        assert_eq!(needs.lengths, [600.0, 150.0]);
        let slot = SLOT_SECONDS as f64;
        assert_eq!((needs.uses.ended, needs.uses.seconds), (4.0, 10.0 * slot));
        assert_eq!(needs.uses.squares, 28.0 * slot * slot);
        let nothing = AvailabilityBitmap::unknown(Slot(5));
        assert_eq!(Needs::of_bitmaps(&nothing, &nothing), Needs::default());
    }

    #[test]
    fn patience_is_that_of_the_vector() {
        let past = Past::new(&needs(&MINUTES), &Needs::default());
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
        assert_eq!(
            Past::new(&needs(&[f64::NAN, -1.0]), &Needs::default()).patience(7.0, 3.0),
            7.0
        );
        // Longer than ever before: that much more than the longest.
        assert_eq!(
            Past::new(&needs(&MINUTES), &Needs::default()).patience(7.0, 200.0),
            187.0
        );
    }

    #[test]
    fn the_pool_counts_for_five() {
        let pool = needs(&[100.0; 1000]);
        let none = Past::new(&Needs::default(), &pool);
        assert_eq!(none.patience(1000.0, 0.0), 100.0);
        // With twenty short ones of its own, the machine is believed.
        let own = Past::new(&needs(&[1.0; 20]), &pool);
        assert_eq!(own.patience(10.0, 0.0), 1.0);
    }

    proptest! {
        #[test]
        fn a_wait_has_a_price_whatever_is_known(
            own in prop::collection::vec(0.0f64..1e6, 0..20),
            pool in prop::collection::vec(0.0f64..1e6, 0..20),
            moving in 0.0f64..1e5,
            left in prop::option::of(-1.0f64..1e7),
        ) {
            let past = Past::new(&uses(&own), &uses(&pool));
            let worth = past.worth_of_a_wait(moving, left);
            prop_assert!(worth.is_finite() && worth >= 0.0);
            prop_assert!(past.worth_of_a_wait(2.0 * moving, left) >= worth);
        }

        #[test]
        fn no_other_patience_costs_less(
            durations in prop::collection::vec(0.0f64..1000.0, 1..30),
            moving in 0.1f64..2000.0,
            other in 0.0f64..2000.0,
        ) {
            let past = Past::new(&needs(&durations), &Needs::default());
            let best = past.cost(past.patience(moving, 0.0), moving);
            prop_assert!(best <= past.cost(other, moving) * (1.0 + 1e-9));
        }

        #[test]
        fn time_that_has_passed_does_not_change_the_plan(
            durations in prop::collection::vec(0.0f64..1000.0, 1..30),
            moving in 0.1f64..2000.0,
            part in 0.0f64..1.0,
        ) {
            let past = Past::new(&needs(&durations), &Needs::default());
            let plan = past.patience(moving, 0.0);
            let age = part * plan;
            if durations.iter().any(|seconds| *seconds > age) && age < plan {
                let then = past.patience(moving, age);
                prop_assert!((past.cost(then, moving) - past.cost(plan, moving)).abs() < 1e-6);
            }
        }
    }
}
