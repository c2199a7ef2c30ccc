//! What checkpoints of a job cost, learnt from its saves.

use crate::clock::seconds;
use crate::event::SaveAhead;
use crate::leaving::FinalSave;
use crate::settings::Costs;

/// The first estimate of the spread counts as this many saves.
const SPREAD_WEIGHT: f64 = 4.0;
/// Smallest and largest spread that is used.
const SPREAD_RANGE: (f64, f64) = (0.05, 2.0);
/// Smallest spread before a save has shown how fast the image changes: that is a guess then.
const GUESSED_SPREAD: f64 = 1.0;
/// Least cost of a checkpoint, seconds: even without a standstill it takes processor time and bandwidth.
const STANDSTILL_MIN: f64 = 0.1;
/// Least and most time of a save that stores nothing, seconds.
const FIXED_RANGE: (f64, f64) = (1e-3, 60.0);
/// Least rate that is learnt, bytes per second.
const RATE_MIN: f64 = 1.0;
/// Shares of changed bytes from which `change_seconds` is computed. A smaller share counts as the least.
const CHANGED_SHARE_RANGE: (f64, f64) = (1e-4, 0.99);
/// Fewer changed bytes than these count as these: of a large image, the least share is many.
const CHANGED_BYTES_MIN: f64 = 65_536.0;
/// Smallest and largest `change_seconds` that is used.
const CHANGE_SECONDS_RANGE: (f64, f64) = (1.0, 1e7);

/// Costs that follow measurements: each new one counts for half.
#[derive(Clone, Copy, Debug)]
pub(super) struct Learned {
    costs: Costs,
    /// Sum of the squares of ln(time that a save took / its forecast), and the number of these saves.
    errors: (f64, f64),
    /// Whether a version of the job is stored: the next save then stores only what has changed.
    has_version: bool,
    /// Bytes of the image in that version, if they are known.
    version_bytes: Option<u64>,
    /// Whether a save was measured in this run.
    is_measured: bool,
    /// Whether a save has shown how fast the image changes.
    knows_change: bool,
    /// Whether the job has stood still for a checkpoint.
    has_stood_still: bool,
}

/// A committed save, as it was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredSave {
    pub(super) took_ms: u64,
    pub(super) stored_bytes: u64,
    /// How many of these the version before had not stored, if that is known.
    pub(super) new_bytes: Option<u64>,
    pub(super) image_bytes: u64,
    /// Work since the save before, seconds.
    pub(super) work_seconds: f64,
    /// It ended as soon as the image was read: its time is that of reading.
    pub(super) ended_with_reading: bool,
}

impl Learned {
    /// `has_version` if the job was restored from a version.
    pub(super) fn new(costs: Costs, has_version: bool) -> Self {
        Self {
            costs,
            has_version,
            version_bytes: None,
            is_measured: false,
            knows_change: false,
            has_stood_still: false,
            errors: (costs.spread * costs.spread * SPREAD_WEIGHT, SPREAD_WEIGHT),
        }
    }

    /// This, with the bytes of the image in the version from which the job was restored.
    pub(super) const fn of_bytes(self, version_bytes: Option<u64>) -> Self {
        Self {
            version_bytes,
            ..self
        }
    }

    pub(super) fn standstill(&self) -> f64 {
        self.costs.standstill_seconds.max(STANDSTILL_MIN)
    }

    /// Time for which the job was held for checkpoints so far, seconds for each; 0 before the first, which shows it.
    pub(super) const fn held(&self) -> f64 {
        if self.has_stood_still {
            self.costs.standstill_seconds
        } else {
            0.0
        }
    }

    pub(super) const fn has_version(&self) -> bool {
        self.has_version
    }

    /// Whether a save has shown how fast the image changes.
    pub(super) const fn knows_change(&self) -> bool {
        self.knows_change
    }

    pub(super) const fn final_save(&self, grace_ms: u64) -> FinalSave {
        let costs = &self.costs;
        FinalSave {
            ask_seconds: costs.ask_seconds,
            fixed_seconds: costs.fixed_seconds,
            image_bytes: costs.image_bytes,
            // The first version stores the whole image, as if all of it changed within a second.
            change_seconds: if self.has_version {
                costs.change_seconds
            } else {
                CHANGE_SECONDS_RANGE.0
            },
            bytes_per_second: costs.bytes_per_second,
            spread: costs.spread,
            grace_seconds: seconds(grace_ms),
        }
    }

    /// The last checkpoint of a job that has to leave.
    pub(super) fn announced_save(&self, grace_ms: u64) -> FinalSave {
        let save = self.final_save(grace_ms);
        let is_guessed = self.has_version && !self.knows_change;
        FinalSave {
            spread: if is_guessed {
                save.spread.max(GUESSED_SPREAD)
            } else {
                save.spread
            },
            ..save
        }
    }

    /// Takes what is known of the next save before it: the size of the files, and the rate of the hosts.
    pub(super) fn foresee(&mut self, ahead: SaveAhead) {
        if ahead.image_bytes > 0 {
            self.costs.image_bytes = ahead.image_bytes as f64;
        }
        let rate = ahead.bytes_per_second.filter(|_| !self.is_measured);
        if let Some(rate) = rate.filter(|rate| rate.is_finite() && *rate > 0.0) {
            self.costs.bytes_per_second = rate;
        }
    }

    /// Whether at least half of an image of so many bytes has come since the newest version: a first version, or a job
    /// that has begun with little. It is stored once and for all.
    pub(super) fn is_mostly_new(&self, image_bytes: u64) -> bool {
        let has_doubled = |before: u64| image_bytes >= before.saturating_mul(2);
        !self.has_version || self.version_bytes.is_some_and(has_doubled)
    }

    /// The job stood still for `ms` milliseconds for a checkpoint.
    pub(super) fn stood_still(&mut self, ms: u64) {
        let costs = &mut self.costs;
        let held = seconds(ms);
        costs.standstill_seconds = match std::mem::replace(&mut self.has_stood_still, true) {
            true => f64::midpoint(costs.standstill_seconds, held),
            false => held,
        };
    }

    /// The job took `ms` milliseconds to write a checkpoint that it was asked for.
    pub(super) fn answered(&mut self, ms: u64) {
        self.costs.ask_seconds = f64::midpoint(self.costs.ask_seconds, seconds(ms));
    }

    /// Learns from a committed save. A version that was stored whole, or of an image that has grown much, teaches
    /// nothing about changes, and, unless it is the first, nothing about forecasts: they are forecasts of patches. If
    /// the time was that of reading, the save teaches only that sending is no slower.
    pub(super) fn saved(&mut self, save: &MeasuredSave) {
        let work = save.work_seconds;
        let meanwhile = save.ended_with_reading;
        let is_first = !self.has_version;
        let is_patch = !self.is_mostly_new(save.image_bytes);
        let took = seconds(save.took_ms).max(1e-3);
        let sends = self.final_save(0);
        let forecast = sends.saving_seconds(work).max(1e-3);
        if !meanwhile && (is_first || is_patch && save.new_bytes.is_some()) {
            let error = (took / forecast).ln();
            self.errors.0 += error * error;
            self.errors.1 += 1.0;
        }
        self.has_version = true;
        self.is_measured |= save.stored_bytes > 0;
        if is_patch {
            self.learn_change(save);
        }
        self.version_bytes = Some(save.image_bytes);
        let costs = &mut self.costs;
        let spread = (self.errors.0 / self.errors.1).sqrt();
        costs.spread = spread.clamp(SPREAD_RANGE.0, SPREAD_RANGE.1);
        if save.image_bytes > 0 {
            costs.image_bytes = save.image_bytes as f64;
        }
        if save.stored_bytes > 0 {
            self.learn_time(save.stored_bytes as f64, took, meanwhile);
        }
    }

    /// Learns how long a save takes. Fixed time and rate explain a difference in proportion to what each contributes, so
    /// that a save of few bytes, whose time is nearly all fixed, teaches nothing of the rate.
    fn learn_time(&mut self, stored: f64, took: f64, is_limit: bool) {
        let costs = &mut self.costs;
        let sending = stored / costs.bytes_per_second;
        let expected = costs.fixed_seconds + sending;
        let ratio = took / expected;
        if !(ratio.is_finite() && ratio > 0.0) || is_limit && ratio >= 1.0 {
            return;
        }
        let part = sending / expected;
        let rate = costs.bytes_per_second * ratio.powf(-part / 2.0);
        costs.bytes_per_second = rate.max(RATE_MIN);
        if costs.fixed_seconds > 0.0 {
            let fixed = costs.fixed_seconds * ratio.powf((1.0 - part) / 2.0);
            costs.fixed_seconds = fixed.clamp(FIXED_RANGE.0, FIXED_RANGE.1);
        }
    }

    /// Learns how fast the image changes.
    fn learn_change(&mut self, save: &MeasuredSave) {
        let Some(new) = save.new_bytes else {
            return;
        };
        let changed = new as f64 / save.image_bytes as f64;
        let (least, most) = CHANGED_SHARE_RANGE;
        let least = least.min(CHANGED_BYTES_MIN / save.image_bytes as f64);
        if save.image_bytes == 0 || changed >= most || save.work_seconds <= 0.0 {
            return;
        }
        let found = -save.work_seconds / (-changed.max(least)).ln_1p();
        let found = found.clamp(CHANGE_SECONDS_RANGE.0, CHANGE_SECONDS_RANGE.1);
        // An assumption gives way to the first measurement.
        self.costs.change_seconds = match std::mem::replace(&mut self.knows_change, true) {
            true => (self.costs.change_seconds * found).sqrt(),
            false => found,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A save of a version that no later one builds on.
    const fn save(
        took_ms: u64,
        stored_bytes: u64,
        image_bytes: u64,
        work_seconds: f64,
    ) -> MeasuredSave {
        MeasuredSave {
            took_ms,
            stored_bytes,
            new_bytes: Some(stored_bytes),
            image_bytes,
            work_seconds,
            ended_with_reading: false,
        }
    }

    #[test]
    fn costs_follow_what_saves_show() {
        let mut learned = Learned::new(Costs::default(), true);
        let image = 1e9;
        let change = 600.0;
        let rate = 40e6;
        for _ in 0..30 {
            let work = 900.0_f64;
            let stored = image * -(-work / change).exp_m1();
            let ms = crate::clock::millis(stored / rate);
            learned.saved(&save(ms, stored as u64, image as u64, work));
            learned.stood_still(7000);
            learned.answered(500);
        }
        let last = learned.final_save(60_000);
        assert!((last.change_seconds - change).abs() < 1.0, "{last:?}");
        assert!(
            (last.bytes_per_second / rate - 1.0).abs() < 0.01,
            "{last:?}"
        );
        assert!((last.image_bytes - image).abs() < 1.0);
        assert!((learned.standstill() - 7.0).abs() < 0.01);
        assert!((last.ask_seconds - 0.5).abs() < 0.01);
    }

    /// An image of which the share 1 - 1/e changes anew within `CHANGE` seconds, saved every 60 s at
    /// `RATE` bytes per second, each version on the one before.
    struct Patches {
        learned: Learned,
    }

    impl Patches {
        const IMAGE: f64 = 1e9;
        const CHANGE: f64 = 600.0;
        const RATE: f64 = 40e6;
        const WORK: f64 = 60.0;

        fn new() -> Self {
            Self {
                learned: Learned::new(Costs::default(), true),
            }
        }

        fn differs(work: f64) -> f64 {
            Self::IMAGE * -(-work / Self::CHANGE).exp_m1()
        }

        fn patch(&mut self) {
            self.learned.saved(&Self::save(Self::differs(Self::WORK)));
        }

        fn whole(&mut self) {
            self.learned.saved(&MeasuredSave {
                new_bytes: None,
                ..Self::save(0.7 * Self::IMAGE)
            });
        }

        fn save(stored: f64) -> MeasuredSave {
            let ms = crate::clock::millis(stored / Self::RATE);
            save(ms, stored as u64, Self::IMAGE as u64, Self::WORK)
        }

        /// The change that was learnt, and the forecast of a final save after as much work as between two
        /// saves.
        #[track_caller]
        fn check(&self) {
            let last = self.learned.final_save(30_000);
            let change = last.change_seconds / Self::CHANGE;
            assert!((change - 1.0).abs() < 0.01, "{last:?}");
            let stored = Self::differs(Self::WORK);
            let expected = stored / Self::RATE;
            let found = last.seconds(Self::WORK) - last.ask_seconds;
            assert!(
                (found / expected - 1.0).abs() < 0.02,
                "{found} {expected} {last:?}"
            );
        }
    }

    #[test]
    fn until_a_save_shows_how_fast_an_image_changes_the_last_one_is_not_announced_as_sure() {
        let mut learned = Learned::new(Costs::default(), true);
        let spread = |learned: &Learned| learned.announced_save(30_000).spread;
        assert!(spread(&learned) >= GUESSED_SPREAD);
        learned.saved(&save(1000, 1 << 20, 1 << 30, 60.0));
        assert_eq!(spread(&learned), learned.final_save(0).spread);
        // The first version is known to store all there is.
        let first = Learned::new(Costs::default(), false);
        assert_eq!(spread(&first), first.final_save(0).spread);
    }

    #[test]
    fn versions_teach_how_much_changes_between_two_saves() {
        let mut patches = Patches::new();
        for _ in 0..15 {
            patches.patch();
        }
        patches.check();
    }

    #[test]
    fn a_whole_version_in_between_teaches_nothing_of_change_or_forecasts() {
        let mut patches = Patches::new();
        for _ in 0..15 {
            patches.patch();
        }
        let before = patches.learned.final_save(0);
        patches.whole();
        let after = patches.learned.final_save(0);
        assert_eq!(after.change_seconds, before.change_seconds);
        assert_eq!(after.spread, before.spread);
        patches.check();
        for _ in 0..3 {
            patches.patch();
            patches.check();
        }
    }

    #[test]
    fn what_is_stored_again_is_not_taken_for_a_change() {
        let mut learned = Learned::new(Costs::default(), true);
        let patch = |new| MeasuredSave {
            new_bytes: Some(new),
            ..save(2500, 100_000_000, 1_000_000_000, 60.0)
        };
        learned.saved(&patch(100_000_000));
        for _ in 0..15 {
            learned.saved(&patch(50_000_000));
        }
        let last = learned.final_save(30_000);
        let found = last.stored_bytes(60.0);
        assert!((found / 5e7 - 1.0).abs() < 0.01, "{found}");
        assert!((last.bytes_per_second / 40e6 - 1.0).abs() < 0.01);
    }

    #[test]
    fn the_first_version_takes_as_long_as_all_that_is_on_disk_at_the_rate_of_the_hosts() {
        let mut learned = Learned::new(Costs::default(), false);
        learned.foresee(SaveAhead {
            image_bytes: 218_000_000,
            bytes_per_second: Some(20e6),
        });
        let expected = learned.final_save(30_000).seconds(60.0);
        assert!((expected - (2.0 + 0.02 + 10.9)).abs() < 0.01, "{expected}");
        // Nothing is written and no host is known: the estimate stays.
        learned.foresee(SaveAhead::default());
        learned.foresee(SaveAhead {
            image_bytes: 0,
            bytes_per_second: Some(f64::NAN),
        });
        assert_eq!(learned.final_save(30_000).seconds(60.0), expected);
        // From then on only changes are stored, at the rate that was measured.
        learned.saved(&MeasuredSave {
            new_bytes: None,
            ..save(5450, 218_000_000, 218_000_000, 60.0)
        });
        let next = learned.final_save(30_000);
        assert_eq!(next.change_seconds, Costs::default().change_seconds);
        let measured = next.bytes_per_second;
        assert!((measured / (20e6 * 40e6_f64).sqrt() - 1.0).abs() < 0.01);
        learned.foresee(SaveAhead {
            image_bytes: 300_000_000,
            bytes_per_second: Some(1e6),
        });
        let next = learned.final_save(30_000);
        assert_eq!((next.bytes_per_second, next.image_bytes), (measured, 3e8));
    }

    #[test]
    fn a_save_of_nothing_or_all_changes_no_rate_of_change() {
        let mut learned = Learned::new(Costs::default(), true);
        let before = learned.final_save(0).change_seconds;
        learned.saved(&save(1000, 1000, 1000, 60.0));
        learned.saved(&save(0, 0, 0, 0.0));
        let after = learned.final_save(0);
        assert_eq!(after.change_seconds, before);
        assert!(after.spread.is_finite() && after.bytes_per_second > 0.0);
    }

    #[test]
    fn a_save_that_waited_for_the_image_says_only_that_sending_is_no_slower() {
        let mut learned = Learned::new(Costs::default(), true);
        let before = learned.final_save(0);
        learned.saved(&MeasuredSave {
            ended_with_reading: true,
            ..save(20_000, 1_000_000, 10_000_000, 60.0)
        });
        let slow = learned.final_save(0);
        assert_eq!(slow.bytes_per_second, before.bytes_per_second);
        assert_eq!(slow.spread, before.spread);
        learned.saved(&MeasuredSave {
            ended_with_reading: true,
            ..save(1000, 100_000_000, 1_000_000_000, 60.0)
        });
        let faster = learned.final_save(0).bytes_per_second;
        assert!((faster / 50e6 - 1.0).abs() < 0.01, "{faster}");
    }

    /// What short saves take is no measure of the line, however many there are.
    #[test]
    fn saves_of_few_bytes_do_not_slow_the_line_that_is_known() {
        for (image, changed, ms) in [
            (25_165_828, 4, 110),
            (20_000_000_000, 1000, 250),
            (1_000_000_000_000, 100_000, 3000),
            (1_000_000, 900, 40),
        ] {
            let mut learned = Learned::new(Costs::default(), true);
            for _ in 0..10_000 {
                learned.saved(&save(ms, changed, image, 10.0));
                learned.stood_still(20);
            }
            let last = learned.final_save(30_000);
            assert!(last.bytes_per_second > 1e6, "{last:?}");
            let found = last.saving_seconds(10.0);
            let took = seconds(ms);
            assert!(
                (0.5 * took..2.0 * took).contains(&found),
                "{found} {last:?}"
            );
            let ahead = crate::ahead::Ahead::plan(&last, 0.4, learned.held()).unwrap();
            assert!(
                ahead.is_in_time && ahead.limit == crate::ahead::Limit::None,
                "{ahead:?}"
            );
        }
    }

    #[test]
    fn a_line_that_becomes_slow_is_found_so() {
        let mut learned = Learned::new(Costs::default(), true);
        for rate in [20e6, 1e6, 5e6] {
            for _ in 0..20 {
                for work in [10.0, 60.0] {
                    let stored = 400_000.0 * work;
                    let ms = 100 + crate::clock::millis(stored / rate);
                    learned.saved(&save(ms, stored as u64, 1_000_000_000, work));
                }
            }
            let last = learned.final_save(30_000);
            let (found, takes) = (last.saving_seconds(60.0), 0.1 + 24e6 / rate);
            assert!(
                (found / takes - 1.0).abs() < 0.25,
                "{found} {takes} {last:?}"
            );
        }
    }
}
