//! How long a job stays stopped while the owner needs the machine, before it moves to another one.
//!
//! The time during which an owner needs a machine for himself is a *need*; the time between two needs, in
//! which guests run, is a *use*. All times are seconds.
//!
//! An example, in minutes. Needs on this machine lasted 0.2, 0.5, 1, 2, 3, 5, 8, 15, 30 and 180 so far,
//! and a move costs 20. A job that leaves at once pays 20. One that waits for 8 and then leaves pays 10.37
//! on average, since seven of ten needs end by then. It pays 14.87 if it waits for 1 only, and 10.97 if it
//! waits for 10. So [`Past::patience`] is 8.

use placement::AvailabilityBitmap;
use placement::bitmap::{Availability, SLOT_SECONDS, SLOTS, Slot};

/// All needs of the pool together weigh at most as much as this many needs of the machine itself.
const POOL_WEIGHT: f64 = 5.0;

/// Uses of the pool's mean length that are added to the uses of the machine itself, as its prior.
const POOL_USES: f64 = 0.5;

/// How often owners needed their machines for themselves, and for how long each time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// Length of each need, seconds.
    pub lengths: Vec<f64>,
    /// The uses between the needs.
    pub uses: Uses,
}

/// Sums over the uses of machines: the times in which guests could run without a break.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Uses {
    /// How many uses ended because guests had to leave.
    pub ended: f64,
    /// Sum of the lengths of all uses, seconds. Includes uses that go on, and those whose end was not
    /// observed.
    pub seconds: f64,
    /// Sum of the squares of these lengths.
    pub squares: f64,
}

impl Uses {
    /// Adds a use of `seconds`; `ended` if it ended because guests had to leave.
    pub fn add(&mut self, seconds: f64, ended: bool) {
        self.ended += f64::from(u8::from(ended));
        self.seconds += seconds;
        self.squares += seconds * seconds;
    }
}

impl Needs {
    /// Reads needs and uses off two bitmaps of a machine: when guests could run there (`guest`), and when
    /// the machine was there at all (`presence`). An owner needed the machine when it was there and no
    /// guest could run. A slot is five minutes; a need that touches two slots counts as one of five
    /// minutes.
    #[must_use]
    pub fn of_bitmaps(guest: &AvailabilityBitmap, presence: &AvailabilityBitmap) -> Self {
        let mut needs = Self::default();
        let newest = guest.newest().0;
        let oldest = newest.saturating_sub(SLOTS as u64 - 1);
        let mut used = 0_u64;
        let mut needed = 0_u64;
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
                // A need that goes on, at the end of the bitmap, has no length yet.
                needs.lengths.push(need_seconds(needed));
                needed = 0;
            }
        }
        if used > 0 {
            needs.uses.add((used * SLOT_SECONDS) as f64, false);
        }
        needs
    }

    /// Adds the needs and uses of another machine.
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

/// Length of a need that touches `slots` slots. It begins and ends in the middle of a slot on average,
/// hence one slot less, and half a slot if it touches only one.
fn need_seconds(slots: u64) -> f64 {
    let slot = SLOT_SECONDS as f64;
    ((slots as f64 - 1.0) * slot).max(slot / 2.0)
}

/// What is known of needs: those of this machine's owner, and those of the pool's other owners.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// Lengths of needs and their weights, the shortest first.
    durations: Vec<(f64, f64)>,
    /// Time of use that a guest may expect after a need here, and after a move to another machine,
    /// seconds; `None` if nothing is known of other machines.
    use_ahead: Option<(f64, f64)>,
}

impl Past {
    /// Combines the needs of this machine's owner with those of the pool. All needs of the pool together
    /// weigh as much as five of the owner's own. Lengths that are negative or not finite are left out.
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

    /// The cost up to which a wait is worth it, if a move costs `moving` seconds.
    ///
    /// A move and a wait buy different times of use. After a wait a new use begins here; its expected
    /// length is `here`. After a move the job arrives on another machine in the middle of a use, and gets
    /// the rest of it; its expected length is `there`. Where needs follow each other closely and some
    /// uses are long, `there` is larger, because most of all use lies in the long ones. A wait is worth
    /// the price at which a move buys the same time: `moving * here / there`.
    ///
    /// `left` is the work that is left of the job, if it is known; time of use beyond `left` is worth
    /// nothing.
    #[must_use]
    pub fn worth_of_a_wait(&self, moving: f64, left: Option<f64>) -> f64 {
        let Some((here, there)) = self.use_ahead else {
            return moving;
        };
        let left = left.map_or(f64::INFINITY, |left| left.max(1.0));
        moving * here.min(left) / there.min(left)
    }

    /// The time, counted from the beginning of the stop, after which a job that has been stopped for
    /// `age` should leave, if leaving costs `moving`. For the lengths `D` of those needs that were longer
    /// than `age` this is the `s` that minimises the expected cost `E[min(D, s)] + P(D > s) moving`. If
    /// no need was longer than `age`, the result is the longest need plus `moving`, which costs at most
    /// twice the best.
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
        // Over the needs that have ended by the time considered: the sum of length times weight, and the
        // sum of weights.
        let mut spent = 0.0;
        let mut over = 0.0;
        let mut best = (age, age * total + total * moving);
        for (seconds, weight) in ahead {
            spent += seconds * weight;
            over += weight;
            let left = total - over;
            let cost = spent + left * (seconds + moving);
            // The sums have rounding errors, which must not make a later time look better.
            if cost < best.1 * (1.0 - 1e-12) {
                best = (*seconds, cost);
            }
        }
        best.0
    }

    /// Expected cost of leaving after `patience`: the time stopped, and `moving` if the need lasts
    /// longer. Without known needs it is `moving`.
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

/// Expected time of use after a need here, and after a move to another machine.
///
/// Here: the mean length of this machine's uses, with half a use of the pool's mean length as a prior.
/// There: the rest of a use at a moment drawn uniformly from all time of use, which is `E[U^2] / (2 E[U])`
/// (the inspection paradox).
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
        // All uses have one length: a job that arrives at a random moment has half a use before it.
        let alike = Past::new(&uses(&[100.0; 50]), &uses(&[100.0; 50]));
        assert!((alike.worth_of_a_wait(60.0, None) - 120.0).abs() < 1e-9);
        // Most of all time of use lies in long uses, although they are few.
        let restless = uses(&[1.0, 1.0, 1.0, 1.0, 996.0]);
        let past = Past::new(&restless, &restless);
        let there = (4.0 + 996.0 * 996.0) / 2000.0;
        let worth = past.worth_of_a_wait(60.0, None);
        assert!((worth - 60.0 * 200.0 / there).abs() < 1e-9, "{worth}");
        // The rest of the job fits into either use.
        assert!((past.worth_of_a_wait(60.0, Some(100.0)) - 60.0).abs() < 1e-9);
        // It does not pay to wait for a machine that is taken more often than the others.
        let worse = Past::new(&uses(&[10.0; 50]), &restless);
        assert!(worse.worth_of_a_wait(60.0, None) < 0.1 * worth);
        // Nothing is known of the other machines, or of this one.
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
        // The last need has not ended.
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
        // Longer than any need before: the longest one, 180, plus the cost of moving.
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
        // Twenty short needs of its own outweigh the pool.
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
