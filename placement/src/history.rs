//! What is known about a host's past: its states as runs, what happened in a window of time, and the same
//! window on earlier days.
//!
//! Times are Unix seconds. Only [`DayKind`] and [`earlier_windows`] depend on a time zone: a caller that
//! wants local days shifts all times by the offset from UTC.

use std::ops::Range;

use crate::bitmap::{Availability, AvailabilityBitmap, SLOT_SECONDS, SLOTS, Slot};
use crate::state::ModelState;

/// Seconds in a day.
pub const DAY_SECONDS: u64 = 86_400;

/// A time during which a host was in one state, or its state was not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run<S> {
    /// From the first second to the one after the last.
    pub span: Range<u64>,
    /// The state; `None` if the host was not observed, which does not mean that it was down.
    pub state: Option<S>,
}

/// The states of a host over time, run by run, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline<S> {
    /// Start and state of every run, in order of time; neighbours have different states.
    starts: Vec<(u64, Option<S>)>,
    /// End of the last run.
    end: u64,
}

/// What became of a host in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowOutcome {
    /// It was in no failure state at any time.
    Survived,
    /// It was in a failure state, for the first time at this Unix second.
    FailedAt(u64),
    /// Part of the window is unknown, so the outcome is, too.
    Unknown,
}

/// What was seen of a host after some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowUp {
    /// How long it is known to have stayed out of the failure states, seconds.
    pub seconds: u64,
    /// Whether a failure ended this time; otherwise the observation ended, or its limit was reached.
    pub failed: bool,
}

impl<S: ModelState> Timeline<S> {
    /// A timeline that begins, empty, at `start`.
    #[must_use]
    pub const fn new(start: u64) -> Self {
        Self {
            starts: Vec::new(),
            end: start,
        }
    }

    /// End of the last run, known or unknown.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Start of the first run; [`end`](Self::end) if there is none.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.starts.first().map_or(self.end, |&(start, _)| start)
    }

    /// Appends a span in one state. A gap between the present end and the span becomes unknown. The part of
    /// the span before the present end is ignored.
    pub fn push(&mut self, span: Range<u64>, state: Option<S>) {
        let start = span.start.max(self.end);
        if span.end <= start {
            return;
        }
        if start > self.end && !self.starts.is_empty() {
            self.append(self.end, None);
        }
        self.append(start, state);
        self.end = span.end;
    }

    /// Forgets what was before `oldest`, and the oldest changes of state if there are more than `changes`.
    pub fn forget(&mut self, oldest: u64, changes: usize) {
        let surplus = self.starts.len().saturating_sub(changes);
        let before = self.starts.partition_point(|&(start, _)| start <= oldest);
        self.starts.drain(..surplus.max(before.saturating_sub(1)));
        if let Some((start, _)) = self.starts.first_mut() {
            *start = oldest.max(*start).min(self.end);
        }
    }

    fn append(&mut self, start: u64, state: Option<S>) {
        if self.starts.last().is_none_or(|&(_, last)| last != state) {
            self.starts.push((start, state));
        }
    }

    /// The whole run that contains `time`; `None` outside the timeline.
    #[must_use]
    pub fn run_at(&self, time: u64) -> Option<Run<S>> {
        if time >= self.end {
            return None;
        }
        let after = self.starts.partition_point(|&(start, _)| start <= time);
        after.checked_sub(1).and_then(|index| self.run(index))
    }

    /// The state at `time`; `None` if unknown or outside the timeline.
    #[must_use]
    pub fn state_at(&self, time: u64) -> Option<S> {
        self.run_at(time).and_then(|run| run.state)
    }

    /// The runs that overlap `window`, not cut to it, in order of time.
    pub fn runs(&self, window: Range<u64>) -> impl Iterator<Item = Run<S>> + '_ {
        let first = self
            .starts
            .partition_point(|&(start, _)| start <= window.start);
        (first.saturating_sub(1)..self.starts.len())
            .filter_map(|index| self.run(index))
            .skip_while(move |run| run.span.end <= window.start)
            .take_while(move |run| run.span.start < window.end)
    }

    fn run(&self, index: usize) -> Option<Run<S>> {
        let &(start, state) = self.starts.get(index)?;
        let end = self
            .starts
            .get(index + 1)
            .map_or(self.end, |&(next, _)| next);
        Some(Run {
            span: start..end,
            state,
        })
    }

    /// What became of the host in `window`.
    #[must_use]
    pub fn outcome(&self, window: Range<u64>) -> WindowOutcome {
        if self.starts.is_empty() || window.start < self.start() || window.end > self.end {
            return WindowOutcome::Unknown;
        }
        let mut failed = WindowOutcome::Survived;
        for run in self.runs(window.clone()) {
            match run.state {
                None => return WindowOutcome::Unknown,
                Some(state) if state.is_failure() && failed == WindowOutcome::Survived => {
                    failed = WindowOutcome::FailedAt(run.span.start.max(window.start));
                }
                Some(_) => {}
            }
        }
        failed
    }

    /// How long the host is known to have stayed out of the failure states from `from` on, at
    /// most until `limit` (both Unix seconds), and whether a failure ended this time.
    #[must_use]
    pub fn follow_up(&self, from: u64, limit: u64) -> FollowUp {
        let mut seen_until = from;
        if from >= self.start() {
            for run in self.runs(from..limit) {
                match run.state {
                    None => break,
                    Some(state) if state.is_failure() => {
                        return FollowUp {
                            seconds: seen_until - from,
                            failed: true,
                        };
                    }
                    Some(_) => seen_until = run.span.end.min(limit),
                }
            }
        }
        FollowUp {
            seconds: seen_until - from,
            failed: false,
        }
    }

    /// The last 28 days as a bitmap that ends with the slot before the one of `now`. The slots are those of
    /// [`slot`](Self::slot).
    #[must_use]
    pub fn bitmap(&self, now: u64, usable: impl Fn(S) -> bool) -> AvailabilityBitmap {
        let newest = Slot(Slot::containing(now).0.saturating_sub(1));
        let oldest = newest.0.saturating_sub(SLOTS as u64 - 1);
        let mut bitmap = AvailabilityBitmap::unknown(newest);
        for slot in (oldest..=newest.0).map(Slot) {
            bitmap.record(slot, self.slot(slot, &usable));
        }
        bitmap
    }

    /// The host's availability in `slot`: unknown if a part of the slot is, else usable if `usable` holds
    /// for every state in it.
    #[must_use]
    pub fn slot(&self, slot: Slot, usable: impl Fn(S) -> bool) -> Availability {
        let start = slot.start_unix_seconds();
        let span = start..start + SLOT_SECONDS;
        if span.start < self.start() || span.end > self.end {
            return Availability::Unknown;
        }
        let mut availability = Availability::Usable;
        for run in self.runs(span) {
            match run.state {
                None => return Availability::Unknown,
                Some(state) if !usable(state) => availability = Availability::NotUsable,
                Some(_) => {}
            }
        }
        availability
    }
}

/// Kind of a day of the week: on weekdays owners are at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DayKind {
    /// Monday to Friday, holidays included.
    Weekday,
    /// Saturday and Sunday, whatever the country.
    Weekend,
}

impl DayKind {
    /// The kind of the day that contains this time.
    #[must_use]
    pub const fn at(unix_seconds: u64) -> Self {
        // Monday is 0, and 1 January 1970 was a Thursday.
        match (unix_seconds / DAY_SECONDS + 3) % 7 {
            5 | 6 => Self::Weekend,
            _ => Self::Weekday,
        }
    }
}

/// The same clock window on the `days` latest earlier days of the same kind, latest first. Only windows
/// that end before `window` begins are taken.
pub fn earlier_windows(window: Range<u64>, days: usize) -> impl Iterator<Item = Range<u64>> {
    let kind = DayKind::at(window.start);
    (1u64..)
        .map_while(move |ago| {
            let start = window.start.checked_sub(ago * DAY_SECONDS)?;
            Some(start..window.end - ago * DAY_SECONDS)
        })
        .filter(move |earlier| DayKind::at(earlier.start) == kind && earlier.end <= window.start)
        .take(days)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::AvailabilityState::{Busy, CpuTaken, Gone, Idle};
    use crate::state::{AvailabilityState, StorageState};
    use proptest::prelude::*;

    fn timeline(runs: &[(u64, u64, Option<AvailabilityState>)]) -> Timeline<AvailabilityState> {
        let mut timeline = Timeline::new(0);
        for &(start, end, state) in runs {
            timeline.push(start..end, state);
        }
        timeline
    }

    #[test]
    fn equal_neighbours_are_one_run() {
        let t = timeline(&[
            (0, 6, Some(Idle)),
            (6, 12, Some(Idle)),
            (12, 18, Some(Busy)),
        ]);
        assert_eq!(
            t.run_at(7),
            Some(Run {
                span: 0..12,
                state: Some(Idle)
            })
        );
        assert_eq!(t.runs(0..18).count(), 2);
    }

    #[test]
    fn a_gap_is_unknown_and_the_past_is_not_rewritten() {
        let t = timeline(&[
            (10, 20, Some(Idle)),
            (30, 40, Some(Busy)),
            (35, 50, Some(Gone)),
        ]);
        assert_eq!(t.start(), 10);
        assert_eq!(t.state_at(5), None);
        assert_eq!(
            t.run_at(25),
            Some(Run {
                span: 20..30,
                state: None
            })
        );
        assert_eq!(t.state_at(39), Some(Busy));
        assert_eq!(t.state_at(40), Some(Gone));
        assert_eq!(t.run_at(50), None);
    }

    #[test]
    fn a_window_that_is_partly_unknown_has_no_outcome() {
        let t = timeline(&[
            (0, 10, Some(Idle)),
            (10, 20, Some(CpuTaken)),
            (30, 40, Some(Idle)),
        ]);
        assert_eq!(t.outcome(0..10), WindowOutcome::Survived);
        assert_eq!(t.outcome(5..15), WindowOutcome::FailedAt(10));
        assert_eq!(t.outcome(12..15), WindowOutcome::FailedAt(12));
        assert_eq!(t.outcome(5..25), WindowOutcome::Unknown);
        assert_eq!(t.outcome(35..41), WindowOutcome::Unknown);
    }

    #[test]
    fn follow_up_ends_with_failure_or_with_knowledge() {
        let t = timeline(&[
            (0, 10, Some(Idle)),
            (10, 20, Some(CpuTaken)),
            (30, 40, Some(Busy)),
        ]);
        assert_eq!(
            t.follow_up(4, 50),
            FollowUp {
                seconds: 6,
                failed: true
            }
        );
        assert_eq!(
            t.follow_up(4, 9),
            FollowUp {
                seconds: 5,
                failed: false
            }
        );
        assert_eq!(
            t.follow_up(32, 50),
            FollowUp {
                seconds: 8,
                failed: false
            }
        );
        assert_eq!(
            t.follow_up(25, 50),
            FollowUp {
                seconds: 0,
                failed: false
            }
        );
    }

    #[test]
    fn a_slot_is_usable_only_if_all_of_it_was() {
        let mut t = Timeline::new(0);
        t.push(0..600, Some(StorageState::FullRate));
        t.push(600..700, Some(StorageState::Offline));
        t.push(700..1500, Some(StorageState::NoSpace));
        let bitmap = t.bitmap(1600, StorageState::is_readable);
        assert_eq!(bitmap.newest(), Slot(4));
        let seen: Vec<_> = (0..6).map(|slot| bitmap.get(Slot(slot))).collect();
        use Availability::{NotUsable, Unknown, Usable};
        assert_eq!(seen, [Usable, Usable, NotUsable, Usable, Usable, Unknown]);
    }

    #[test]
    fn days_have_kinds() {
        assert_eq!(DayKind::at(0), DayKind::Weekday);
        assert_eq!(DayKind::at(2 * DAY_SECONDS), DayKind::Weekend);
        assert_eq!(DayKind::at(4 * DAY_SECONDS - 1), DayKind::Weekend);
        assert_eq!(DayKind::at(4 * DAY_SECONDS), DayKind::Weekday);
    }

    #[test]
    fn earlier_windows_are_of_the_same_kind_of_day() {
        // Day 11 is a Monday: the weekdays before it are days 8, 7, 6, 5, 4 and 1, 0.
        let window = 11 * DAY_SECONDS + 3600..11 * DAY_SECONDS + 7200;
        let days: Vec<u64> = earlier_windows(window, 7)
            .map(|w| w.start / DAY_SECONDS)
            .collect();
        assert_eq!(days, [8, 7, 6, 5, 4, 1, 0]);
    }

    #[test]
    fn a_window_longer_than_a_day_is_not_taken_from_its_own_past() {
        let window = 9 * DAY_SECONDS..11 * DAY_SECONDS;
        let first = earlier_windows(window.clone(), 1).next().unwrap();
        assert!(first.end <= window.start);
    }

    proptest! {
        #[test]
        fn runs_cover_the_timeline_without_gaps(
            spans in prop::collection::vec(
                (0u64..500, 0u64..60, prop::option::of(0usize..5)),
                0..40,
            ),
        ) {
            let mut t = Timeline::new(0);
            for (start, length, state) in spans {
                t.push(start..start + length, state.map(|i| AvailabilityState::ALL[i]));
            }
            let runs: Vec<_> = t.runs(0..u64::MAX).collect();
            for pair in runs.windows(2) {
                prop_assert_eq!(pair[0].span.end, pair[1].span.start);
                prop_assert!(pair[0].state != pair[1].state);
            }
            for run in &runs {
                prop_assert_eq!(t.run_at(run.span.start), Some(run.clone()));
                prop_assert_eq!(t.run_at(run.span.end - 1), Some(run.clone()));
            }
        }
    }
}
