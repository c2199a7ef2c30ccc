//! Intervals of a job's history: sets of checkpoints, given by the first and the last of each stretch.

use serde::{Deserialize, Serialize};

use crate::id::CheckpointId;

/// Most intervals of one notice.
pub const INTERVALS_MAX: usize = 256;

/// The place of a checkpoint in the history of its job. Of two checkpoints of the same second, the id
/// decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stamp {
    /// When its save began, Unix seconds, from its manifest.
    pub created: u64,
    /// Its id, which decides between checkpoints of the same second.
    pub checkpoint: CheckpointId,
}

impl Stamp {
    /// The earliest possible stamp.
    pub const FIRST: Self = Self {
        created: 0,
        checkpoint: CheckpointId([0; 16]),
    };
}

/// All stamps from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// The earliest stamp in the interval.
    pub from: Stamp,
    /// The latest stamp, not before `from`.
    pub to: Stamp,
}

impl From<Stamp> for Interval {
    /// The interval of one stamp alone.
    fn from(stamp: Stamp) -> Self {
        Self {
            from: stamp,
            to: stamp,
        }
    }
}

/// Intervals in ascending order that do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Interval>", into = "Vec<Interval>")]
pub struct Intervals(Vec<Interval>);

/// Why a list of intervals is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IntervalsError {
    /// An interval ends before it begins, or begins before the end of the one before.
    #[error("intervals that are not in order")]
    Order,
    /// There are more than [`INTERVALS_MAX`].
    #[error("{0} intervals, at most {INTERVALS_MAX} are allowed")]
    TooMany(usize),
}

impl TryFrom<Vec<Interval>> for Intervals {
    type Error = IntervalsError;

    fn try_from(all: Vec<Interval>) -> Result<Self, IntervalsError> {
        let is_forward = all.iter().all(|one| one.from <= one.to);
        if !is_forward || !all.is_sorted_by(|one, next| one.to < next.from) {
            return Err(IntervalsError::Order);
        }
        if all.len() > INTERVALS_MAX {
            return Err(IntervalsError::TooMany(all.len()));
        }
        Ok(Self(all))
    }
}

impl From<Intervals> for Vec<Interval> {
    fn from(intervals: Intervals) -> Self {
        intervals.0
    }
}

impl Intervals {
    /// Whether a checkpoint lies in one of these intervals.
    pub fn has(&self, stamp: Stamp) -> bool {
        let next = self.0.partition_point(|one| one.to < stamp);
        self.0.get(next).is_some_and(|one| one.from <= stamp)
    }

    /// Whether each interval of `others` lies within one of these.
    pub fn cover(&self, others: &Self) -> bool {
        others.0.iter().all(|other| {
            let next = self.0.partition_point(|one| one.to < other.from);
            let one = self.0.get(next);
            one.is_some_and(|one| one.from <= other.from && other.to <= one.to)
        })
    }

    /// The union of both. It may have more intervals than a notice allows: see [`Self::limited`].
    #[must_use]
    pub fn union(&self, others: &Self) -> Self {
        let mut all = [self.0.as_slice(), &others.0].concat();
        all.sort_unstable_by_key(|one| one.from);
        let mut merged: Vec<Interval> = Vec::with_capacity(all.len());
        for one in all {
            match merged.last_mut() {
                Some(last) if one.from <= last.to => last.to = last.to.max(one.to),
                _ => merged.push(one),
            }
        }
        Self(merged)
    }

    /// These intervals, and one for each checkpoint of `gone`.
    #[must_use]
    pub fn with(&self, gone: &[Stamp]) -> Self {
        let mut points: Vec<Interval> = gone.iter().copied().map(Interval::from).collect();
        points.sort_unstable_by_key(|point| point.from);
        points.dedup();
        self.union(&Self(points))
    }

    /// These intervals and `gone`, joined wherever nothing of `barriers` lies between two of them. So a
    /// checkpoint that is not known now, and turns up in between later, is gone, too. What was created before
    /// the first of them is not: it may be a version that was away when the job was begun anew.
    ///
    /// For example, with checkpoints 3, 5 and 9 gone: without barriers, the interval is from 3 to 9; with one
    /// at 4, the intervals are from 3 to 3 and from 5 to 9. There is at most one interval more than there are
    /// barriers, unless there was before, within a barrier.
    #[must_use]
    pub fn with_stretches(&self, gone: &[Stamp], barriers: &[Interval]) -> Self {
        let all = self.with(gone);
        let is_free = |from: Stamp, to: Stamp| {
            let is_between = |one: &Interval| from <= one.to && one.from <= to;
            !barriers.iter().any(is_between)
        };
        let mut joined: Vec<Interval> = Vec::with_capacity(all.0.len());
        for one in all.0 {
            match joined.last_mut() {
                Some(last) if is_free(last.to, one.from) => last.to = one.to,
                _ => joined.push(one),
            }
        }
        Self(joined)
    }

    /// The last [`INTERVALS_MAX`] of these intervals.
    #[must_use]
    pub fn limited(mut self) -> Self {
        self.0.drain(..self.0.len().saturating_sub(INTERVALS_MAX));
        self
    }

    /// The end of the last interval.
    pub fn end(&self) -> Option<Stamp> {
        self.0.last().map(|last| last.to)
    }

    /// How many separate intervals there are.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no intervals.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All intervals, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Interval> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stamp(created: u64) -> Stamp {
        Stamp {
            created,
            checkpoint: CheckpointId([7; 16]),
        }
    }

    fn stamps(all: &[u64]) -> Vec<Stamp> {
        all.iter().map(|created| stamp(*created)).collect()
    }

    fn points(all: &[u64]) -> Vec<Interval> {
        stamps(all).into_iter().map(Interval::from).collect()
    }

    fn shown(intervals: &Intervals) -> Vec<(u64, u64)> {
        let ends = intervals
            .iter()
            .map(|one| (one.from.created, one.to.created));
        ends.collect()
    }

    #[test]
    fn all_that_is_gone_is_one_interval_and_what_is_kept_cuts() {
        let none = Intervals::default();
        let all = none.with_stretches(&stamps(&[5, 3, 9]), &[]);
        assert_eq!(shown(&all), [(3, 9)]);
        let cut = none.with_stretches(&stamps(&[5, 3, 9]), &points(&[4, 10]));
        assert_eq!(shown(&cut), [(3, 3), (5, 9)]);
        let base = none.with_stretches(&stamps(&[5, 3, 9]), &points(&[1, 10]));
        assert_eq!(shown(&base), [(3, 9)]);
        let more = base.with_stretches(&stamps(&[1, 10]), &points(&[11]));
        assert_eq!(shown(&more), [(1, 10)]);
        assert_eq!(shown(&none.with(&stamps(&[5, 3, 5]))), [(3, 3), (5, 5)]);
    }

    #[test]
    fn of_two_checkpoints_of_one_second_the_id_decides() {
        let at = |id: u8| Stamp {
            created: 5,
            checkpoint: CheckpointId([id; 16]),
        };
        let one = Intervals::default().with(&[at(2)]);
        assert!(one.has(at(2)) && !one.has(at(1)) && !one.has(at(3)));
    }

    #[test]
    fn the_oldest_give_way() {
        let many: Vec<u64> = (0..300).map(|number| number * 2).collect();
        let limited = Intervals::default().with(&stamps(&many)).limited();
        assert_eq!(limited.len(), INTERVALS_MAX);
        assert!(limited.has(stamp(598)) && !limited.has(stamp(0)));
        assert!(Intervals::try_from(Vec::from(limited)).is_ok());
    }

    #[test]
    fn intervals_out_of_order_are_refused() {
        let of = |ends: &[(u64, u64)]| {
            let all = ends.iter().map(|(from, to)| Interval {
                from: stamp(*from),
                to: stamp(*to),
            });
            Intervals::try_from(all.collect::<Vec<_>>())
        };
        assert!(of(&[(1, 2), (3, 3)]).is_ok());
        for bad in [&[(2, 1)][..], &[(3, 4), (1, 2)], &[(1, 3), (3, 4)]] {
            assert_eq!(of(bad), Err(IntervalsError::Order));
        }
        let many: Vec<(u64, u64)> = (0..257).map(|number| (number, number)).collect();
        assert_eq!(of(&many), Err(IntervalsError::TooMany(257)));
    }

    proptest! {
        #[test]
        fn intervals_are_sets(
            a in prop::collection::vec(0..40_u64, 0..12),
            b in prop::collection::vec(0..40_u64, 0..12),
            kept in prop::collection::vec(0..40_u64, 0..6),
        ) {
            let kept: Vec<u64> = kept.into_iter().filter(|one| !a.contains(one) && !b.contains(one)).collect();
            let none = Intervals::default();
            let one = none.with_stretches(&stamps(&a), &points(&kept));
            let two = none.with(&stamps(&b));
            let both = one.union(&two);
            prop_assert!(Intervals::try_from(Vec::from(both.clone())).is_ok());
            prop_assert!(both.cover(&one) && both.cover(&two));
            prop_assert_eq!(&both, &two.union(&one));
            for at in 0..40 {
                prop_assert_eq!(both.has(stamp(at)), one.has(stamp(at)) || two.has(stamp(at)));
                prop_assert!(!one.has(stamp(at)) || !kept.contains(&at), "what is kept");
                prop_assert!(one.has(stamp(at)) || !a.contains(&at), "what is gone");
            }
        }
    }
}
