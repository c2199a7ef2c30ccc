//! Which days are fitted on, calibrated on and judged on.

use std::collections::BTreeSet;

use placement::history::DAY_SECONDS;

use crate::traces::Trace;

/// Share of the days that is past, and share of the past that the weights are fitted on.
const PAST: (usize, usize) = (6, 10);
const WEIGHTS: (usize, usize) = (3, 4);

/// Strides in hours that meet every hour of the day in turn.
const STRIDES: [u64; 18] = [
    1, 5, 7, 11, 13, 17, 19, 23, 25, 29, 31, 35, 41, 47, 59, 95, 191, 383,
];

/// The days of a trace (since the epoch, ascending), divided in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The first 45%: pooled rates and weights.
    pub fit: Vec<u64>,
    /// The next 15%: calibration.
    pub calibration: Vec<u64>,
    /// The last 40%: judged, never fitted on.
    pub judge: Vec<u64>,
}

impl Split {
    /// The split of a trace's days on which anything is known.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        let mut days = BTreeSet::new();
        for host in &trace.hosts {
            for run in host
                .timeline
                .runs(0..u64::MAX)
                .filter(|run| run.state.is_some())
            {
                days.extend(run.span.start / DAY_SECONDS..=(run.span.end - 1) / DAY_SECONDS);
            }
        }
        let mut fit: Vec<u64> = days.into_iter().collect();
        let mut calibration = fit.split_off(fit.len() * PAST.0 / PAST.1);
        let judge = calibration.split_off(0);
        calibration = fit.split_off(fit.len() * WEIGHTS.0 / WEIGHTS.1);
        Self {
            fit,
            calibration,
            judge,
        }
    }

    /// All days.
    pub fn all_days(&self) -> impl Iterator<Item = u64> + '_ {
        self.fit
            .iter()
            .chain(&self.calibration)
            .chain(&self.judge)
            .copied()
    }

    /// First moment after the days fitted on.
    #[must_use]
    pub fn fit_end(&self) -> u64 {
        self.fit.last().map_or(0, |day| (day + 1) * DAY_SECONDS)
    }
}

/// The smallest stride in hours with which the hosts have at most `most` landmarks on these days.
#[must_use]
pub fn stride(trace: &Trace, days: &[u64], most: u64) -> u64 {
    let all = landmarks(trace, days);
    let fits = |stride: &u64| all / stride <= most;
    STRIDES
        .into_iter()
        .find(fits)
        .unwrap_or(STRIDES[STRIDES.len() - 1])
}

/// Known hours of all hosts on these days.
fn landmarks(trace: &Trace, days: &[u64]) -> u64 {
    let (Some(&first), Some(&last)) = (days.first(), days.last()) else {
        return 0;
    };
    let from = first * DAY_SECONDS;
    let to = (last + 1) * DAY_SECONDS;
    let known = |host: &crate::traces::TracedHost| -> u64 {
        let runs = host
            .timeline
            .runs(from..to)
            .filter(|run| run.state.is_some());
        runs.map(|run| run.span.end.min(to) - run.span.start.max(from))
            .sum()
    };
    trace.hosts.iter().map(known).sum::<u64>() / super::HOUR
}

/// Which of the landmarks are judged: one of every `hours` hours of one of every `hosts` hosts.
///
/// Hours are thinned only a little, since the paper's measure wants many days at the same hour of
/// the same host; beyond that, hosts are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thinning {
    /// Of this many successive hours one is judged; 1 judges all.
    pub hours: u64,
    /// Of this many successive hosts one is judged; 1 judges all.
    pub hosts: u64,
}

impl Thinning {
    /// All landmarks are judged.
    pub const NONE: Self = Self { hours: 1, hosts: 1 };

    /// The least thinning with which at most `most` landmarks on these days remain.
    #[must_use]
    pub fn to(trace: &Trace, days: &[u64], most: u64) -> Self {
        match landmarks(trace, days) {
            all if all <= most => Self::NONE,
            all => Self {
                hours: STRIDES[1],
                hosts: all.div_ceil(STRIDES[1] * most.max(1)),
            },
        }
    }

    /// Whether a landmark of the host with this index remains.
    #[must_use]
    pub const fn keeps(self, host: usize, time: u64) -> bool {
        let host = host as u64;
        host.is_multiple_of(self.hosts) && (time / super::HOUR + host).is_multiple_of(self.hours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::{RawHost, RawTrace};

    #[test]
    fn the_future_is_judged_and_the_past_fitted() {
        let raw = RawHost {
            up: std::iter::once(0..20 * DAY_SECONDS).collect(),
            ..RawHost::default()
        };
        let trace = Trace::new(RawTrace {
            sample_seconds: 300,
            interval_seconds: 0,
            hosts: [("h".to_owned(), raw)].into(),
            ..RawTrace::default()
        });
        let split = Split::of(&trace);
        assert_eq!(split.fit, (0..9).collect::<Vec<_>>());
        assert_eq!(split.calibration, [9, 10, 11]);
        assert_eq!(split.judge, (12..20).collect::<Vec<_>>());
        assert_eq!(stride(&trace, &split.judge, 8 * 24), 1);
        assert_eq!(stride(&trace, &split.judge, 100), 5);
        assert_eq!(Thinning::to(&trace, &split.judge, 8 * 24), Thinning::NONE);
        assert_eq!(
            Thinning::to(&trace, &split.judge, 20),
            Thinning { hours: 5, hosts: 2 }
        );
    }
}
