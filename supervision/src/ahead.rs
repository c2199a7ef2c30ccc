//! How often a job is saved ahead of an end that nobody has announced yet, so that its last checkpoint is short.
//!
//! After `u` seconds of unsaved work a checkpoint stores `D(u)` bytes at the rate `R`, so the last one takes
//! `c + D(u) / R`, with the fixed time `c` of a save: the longer the interval, the longer it takes. The shorter the
//! interval, the more of the time goes into checkpoints: the share `(c + D(u) / R) / u`, which falls with `u` because
//! bytes that change twice are stored once. So the interval is the longest one with which the last checkpoint is short
//! enough, but no shorter than the one at which checkpoints take the share that may be spent.
//!
//! An example: an image of 1 GiB, of which 5 MB change each second, 7.5 MB/s, and compression by half. After 20 s of
//! work 48 MB are stored in 6.4 s; checkpoints each 20 s take 32% of the line.

use crate::leaving::FinalSave;

/// The last checkpoint is to take no longer than this in 99 of 100 cases, seconds. One is under way when the end is
/// announced now and then, and both together are to take ten seconds.
const LAST_SECONDS: f64 = 8.0;
/// Nor longer than this part of the grace.
const LAST_PART: f64 = 0.5;
/// Shortest and longest interval, seconds. Each save reads the whole image, however little has changed.
const INTERVAL_RANGE: (f64, f64) = (10.0, 30.0 * 86_400.0);
/// The job stands still for this part of the share that may be spent at most: what it loses by that, it loses always.
const STANDSTILL_PART: f64 = 0.05;
/// The forecast of what checkpoints take of the line may be wrong by this factor. The share itself is kept by what each
/// save took.
const SLACK: f64 = 1.2;
/// Steps that halve the range of an interval, on a logarithmic scale.
const HALVINGS: u32 = 40;

/// What keeps the last checkpoint from being as short as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Nothing does.
    None,
    /// The share of the line that may be spent.
    Line,
    /// The time for which the job stands still for each checkpoint.
    Standstill,
}

/// How often a job is saved ahead, and what that promises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ahead {
    /// Seconds of work from one checkpoint to the next.
    pub interval: f64,
    /// Time from the announcement of an end to the last commit in 99 of 100 cases, seconds.
    pub last_seconds: f64,
    /// Whether that is within the grace.
    pub is_in_time: bool,
    /// Most work that is lost at an end without any notice, seconds: the interval and the checkpoint after it.
    pub unannounced_loss: f64,
    /// What keeps the last checkpoint from being as short as it should be.
    pub limit: Limit,
}

impl Ahead {
    /// How to save ahead if the share `spend` of the line, 0 to 1, may be spent, and the job stands still for
    /// `standstill` seconds for each checkpoint. `None` if nothing may be spent, or if the job would stand still for
    /// too long to be saved often enough.
    #[must_use]
    pub fn plan(last: &FinalSave, spend: f64, standstill: f64) -> Option<Self> {
        if spend.is_nan() || spend <= 0.0 {
            return None;
        }
        let target = LAST_SECONDS.min(LAST_PART * last.grace_seconds);
        let takes = |work: f64| last.saving_seconds(work);
        let (shortest, longest) = INTERVAL_RANGE;
        // Both conditions hold on one side of an interval, and fail on the other.
        let short_enough = least(|work| last.seconds_at_most(work) > target).max(shortest);
        let affordable = least(|work| takes(work) <= SLACK * spend * work).clamp(shortest, longest);
        let bearable = bearable(spend, standstill);
        let interval = short_enough.max(affordable).max(bearable).min(longest);
        let limit = if interval <= short_enough {
            Limit::None
        } else if affordable >= bearable {
            Limit::Line
        } else {
            Limit::Standstill
        };
        let last_seconds = last.seconds_at_most(interval);
        let is_in_time = last_seconds <= last.grace_seconds;
        // A checkpoint that comes too rarely to keep the last one in time is due by its cost alone.
        (is_in_time || limit != Limit::Standstill).then_some(Self {
            interval,
            last_seconds,
            is_in_time,
            unannounced_loss: interval + takes(interval),
            limit,
        })
    }

    /// Most seconds that are lost at an announced end: the time of the last checkpoint, or, if that may be late, the
    /// work since the one before.
    #[must_use]
    pub fn promised_loss(&self) -> f64 {
        if self.is_in_time {
            self.last_seconds
        } else {
            self.unannounced_loss
        }
    }
}

/// The shortest interval for a job that stands still for `standstill` seconds for each checkpoint, seconds.
#[must_use]
pub(crate) fn bearable(spend: f64, standstill: f64) -> f64 {
    standstill / (spend * STANDSTILL_PART)
}

/// The least interval from which on `holds`; the longest one if it never does.
fn least(holds: impl Fn(f64) -> bool) -> f64 {
    let mut early: f64 = 0.1;
    let mut late = INTERVAL_RANGE.1;
    if holds(early) {
        return early;
    }
    for _ in 0..HALVINGS {
        let middle = (early * late).sqrt();
        if holds(middle) {
            late = middle;
        } else {
            early = middle;
        }
    }
    late
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 1 GiB of which 5 MB change each second, at 7.5 MB/s, compressed by half.
    const fn vector() -> FinalSave {
        FinalSave {
            ask_seconds: 0.3,
            fixed_seconds: 0.0,
            image_bytes: 1_073_741_824.0,
            // D(u) is near 2.42 MB/s times u for short u.
            change_seconds: 444.0,
            bytes_per_second: 7.5e6,
            spread: 0.2,
            grace_seconds: 30.0,
        }
    }

    #[test]
    fn the_interval_is_that_with_which_the_last_checkpoint_is_short() {
        let ahead = Ahead::plan(&vector(), 0.4, 0.01).unwrap();
        assert!((ahead.last_seconds - 8.0).abs() < 0.01, "{ahead:?}");
        assert!((14.0..16.0).contains(&ahead.interval), "{ahead:?}");
        assert_eq!((ahead.limit, ahead.is_in_time), (Limit::None, true));
        assert_eq!(ahead.promised_loss(), ahead.last_seconds);
    }

    #[test]
    fn a_job_that_changes_faster_than_the_line_carries_gets_no_more_than_its_share() {
        let last = FinalSave {
            bytes_per_second: 1.5e6,
            ..vector()
        };
        let ahead = Ahead::plan(&last, 0.4, 0.01).unwrap();
        assert_eq!((ahead.limit, ahead.is_in_time), (Limit::Line, false));
        let share = last.stored_bytes(ahead.interval) / last.bytes_per_second / ahead.interval;
        assert!((share - SLACK * 0.4).abs() < 0.001, "{ahead:?}");
        assert!(ahead.promised_loss() > ahead.interval);
    }

    #[test]
    fn a_job_that_stands_still_for_long_is_saved_as_its_cost_allows() {
        assert_eq!(Ahead::plan(&vector(), 0.4, 20.0), None);
        let ahead = Ahead::plan(&vector(), 0.4, 0.5).unwrap();
        assert_eq!(ahead.limit, Limit::Standstill);
        assert!((ahead.interval - 25.0).abs() < 1e-9, "{ahead:?}");
        assert_eq!(Ahead::plan(&vector(), 0.0, 0.0), None);
        assert_eq!(Ahead::plan(&vector(), f64::NAN, 0.0), None);
    }

    proptest! {
        #[test]
        fn a_plan_keeps_to_its_share_and_its_promise(
            image in 1e6..1e12_f64,
            change in 1.0..1e7_f64,
            rate in 1e4..1e9_f64,
            spread in 0.05..2.0_f64,
            grace in 1.0..3600.0_f64,
            spend in 0.01..1.0_f64,
            standstill in 0.0..30.0_f64,
        ) {
            let last = FinalSave {
                ask_seconds: 0.1,
                fixed_seconds: 0.0,
                image_bytes: image,
                change_seconds: change,
                bytes_per_second: rate,
                spread,
                grace_seconds: grace,
            };
            let Some(ahead) = Ahead::plan(&last, spend, standstill) else {
                return Ok(());
            };
            let takes = last.stored_bytes(ahead.interval) / rate;
            let is_longest = ahead.interval >= INTERVAL_RANGE.1;
            prop_assert!(is_longest || takes <= 1.001 * SLACK * spend * ahead.interval, "{ahead:?}");
            prop_assert!(standstill <= 1.001 * spend * STANDSTILL_PART * ahead.interval);
            if ahead.limit == Limit::None && ahead.interval > INTERVAL_RANGE.0 {
                let target = LAST_SECONDS.min(LAST_PART * grace);
                prop_assert!(ahead.last_seconds <= 1.001 * target, "{ahead:?}");
            }
            prop_assert!(ahead.promised_loss().is_finite());
            // More to spend never makes the interval longer.
            if let Some(more) = Ahead::plan(&last, 1.0, standstill) {
                prop_assert!(more.interval <= 1.001 * ahead.interval, "{ahead:?} {more:?}");
            }
        }
    }
}
