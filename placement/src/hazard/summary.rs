//! What the hazard regression knows about one host, kept up to date in constant memory.

use std::collections::VecDeque;
use std::ops::Range;

use super::{INTERVAL_ENDS, INTERVALS};
use crate::history::{DAY_SECONDS, DayKind};
use crate::state::ModelState;

pub(super) const HOUR_SECONDS: u64 = 3600;
const HOURS: usize = 24;
/// Covariates that are the same for every interval.
pub(super) const LANDMARK_COVARIATES: usize = 17;
/// Covariates of each interval.
pub(super) const INTERVAL_COVARIATES: usize = 4;

/// Weight of the reference in a shrunk frequency, as a number of events.
pub(super) const PRIOR_EVENTS: f64 = 0.5;
/// Half-life of an event in the recent frequencies, hours.
const RECENT_HALF_LIFE_HOURS: f64 = 72.0;
/// Half-life of a failure in the count of recent failures, hours.
const BURST_HALF_LIFE_HOURS: f64 = 12.0;

/// How often the host failed in each interval after its landmarks.
#[derive(Clone, Debug, Default, PartialEq)]
struct Recurrence {
    /// For each interval of the horizon, how many landmarks were followed to its end or to a failure in it.
    at_risk: [f64; INTERVALS],
    /// How many of these landmarks had a failure in the interval.
    failed: [f64; INTERVALS],
}

impl Recurrence {
    fn count(&mut self, interval: usize, failed: bool) {
        if let (Some(risk), Some(failures)) = (
            self.at_risk.get_mut(interval),
            self.failed.get_mut(interval),
        ) {
            *risk += 1.0;
            *failures += f64::from(u8::from(failed));
        }
    }

    fn fade(&mut self, factor: f64) {
        for value in self.at_risk.iter_mut().chain(&mut self.failed) {
            *value *= factor;
        }
    }

    /// Hazards shrunk towards `reference`: `(failed + P) / (at risk + P / reference)`, `P = PRIOR_EVENTS`.
    fn hazards(&self, reference: &[f64; INTERVALS]) -> [f64; INTERVALS] {
        std::array::from_fn(|j| {
            (self.failed[j] + PRIOR_EVENTS) / (self.at_risk[j] + PRIOR_EVENTS / reference[j])
        })
    }
}

/// A landmark whose horizon has not ended.
#[derive(Clone, Debug, PartialEq)]
struct Pending {
    /// When the landmark was, Unix seconds.
    time: u64,
    /// First interval whose end has not been reached.
    interval: usize,
    /// Whether the host was in a usable state other than the best one (such as S2) at the landmark.
    degraded: bool,
}

/// A host's past in constant memory. Times are Unix seconds; [`observe`](Self::observe) adds to it in order
/// of time.
///
/// At each full hour at which the host is usable a landmark begins. It is followed for the ten hours of the
/// horizon: the counts of each interval show whether the host survived the interval or failed in it.
#[derive(Clone, Debug, PartialEq)]
pub struct HostSummary<S> {
    /// Time up to which the host was observed.
    now: u64,
    /// State at `now`; `None` if unknown.
    state: Option<S>,
    /// When the host entered this state.
    state_since: u64,
    /// When the host last came out of failure, or into view. While it is failed, the time of the failure.
    usable_since: u64,
    /// How long the last failure that ended lasted.
    last_failure_seconds: Option<u64>,
    /// Number of failures, of which each fades with [`BURST_HALF_LIFE_HOURS`].
    failures_lately: f64,
    /// Load in the last span with a load, 0 to 1.
    load: f64,
    /// Exponentially weighted mean of the load, with a time constant of an hour.
    load_mean: f64,
    /// Highest load, of which each value fades with a time constant of an hour.
    load_peak: f64,
    /// Landmarks that are still followed, oldest first.
    pending: VecDeque<Pending>,
    /// Counts over all landmarks.
    overall: Recurrence,
    /// Counts that fade with [`RECENT_HALF_LIFE_HOURS`].
    recent: Recurrence,
    /// Counts by whether the host was in the best state (0) or in a lesser usable one (1) at the landmark.
    by_grade: [Recurrence; 2],
    /// Counts by the hour of the day of the landmark.
    by_hour: Vec<Recurrence>,
}

impl<S: ModelState> HostSummary<S> {
    /// A host about which nothing is known before `start`.
    #[must_use]
    pub fn new(start: u64) -> Self {
        Self {
            now: start,
            state: None,
            state_since: start,
            usable_since: start,
            last_failure_seconds: None,
            failures_lately: 0.0,
            load: 0.0,
            load_mean: 0.0,
            load_peak: 0.0,
            pending: VecDeque::new(),
            overall: Recurrence::default(),
            recent: Recurrence::default(),
            by_grade: [Recurrence::default(), Recurrence::default()],
            by_hour: vec![Recurrence::default(); HOURS],
        }
    }

    /// Time up to which the host has been observed.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// The state at that time; `None` if unknown.
    #[must_use]
    pub const fn state(&self) -> Option<S> {
        self.state
    }

    /// Adds a span in one state, with the mean load in it (0 to 1) if that is known. Spans have to come in
    /// order of time; the state is unknown between two spans that leave a gap.
    pub fn observe(&mut self, span: Range<u64>, state: Option<S>, load: Option<f64>) {
        let start = span.start.max(self.now);
        if span.end <= start {
            return;
        }
        if start > self.now {
            self.enter(self.now, None);
            self.pass_time(start);
        }
        self.enter(start, state);
        self.pass_time(span.end);
        self.note_load(load, span.end - start);
    }

    /// Changes the state at `time`, which is `self.now`.
    fn enter(&mut self, time: u64, state: Option<S>) {
        if state == self.state {
            return;
        }
        let failed_before = self.state.is_some_and(ModelState::is_failure);
        let fails = state.is_some_and(ModelState::is_failure);
        if fails && !failed_before {
            self.count_failure(time);
        }
        if failed_before && !fails {
            self.last_failure_seconds = Some(time - self.usable_since);
        }
        if state.is_none() {
            // It will never be known what became of the host after the pending landmarks.
            self.pending.clear();
        }
        if self.state.is_none() || fails != failed_before {
            self.usable_since = time;
        }
        self.state = state;
        self.state_since = time;
    }

    fn count_failure(&mut self, time: u64) {
        if self.state.is_some() {
            self.failures_lately += 1.0;
        }
        self.advance_pending(time);
        for pending in std::mem::take(&mut self.pending) {
            self.count(&pending, true);
        }
    }

    /// Lets time pass in the present state: adds a landmark at each full hour and follows the older ones.
    fn pass_time(&mut self, until: u64) {
        let usable = self.state.is_some_and(|state| !state.is_failure());
        let first_hour = self.now.div_ceil(HOUR_SECONDS);
        // After a long span, a thousand hours of fading leave as good as nothing: the rest is skipped.
        let last_hour = until.div_ceil(HOUR_SECONDS).min(first_hour + 1000);
        for hour in first_hour..last_hour {
            let time = hour * HOUR_SECONDS;
            if usable {
                self.advance_pending(time);
            }
            self.fade_one_hour();
            if usable {
                let degraded = self.state.is_some_and(|state| state.index() != 0);
                self.pending.push_back(Pending {
                    time,
                    interval: 0,
                    degraded,
                });
            }
        }
        if usable {
            self.advance_pending(until);
        }
        self.now = until;
    }

    fn fade_one_hour(&mut self) {
        self.recent.fade(0.5f64.powf(1.0 / RECENT_HALF_LIFE_HOURS));
        self.failures_lately *= 0.5f64.powf(1.0 / BURST_HALF_LIFE_HOURS);
    }

    /// Counts the intervals that the host has survived by `time` for each pending landmark, and drops the
    /// landmarks whose horizon has ended.
    fn advance_pending(&mut self, time: u64) {
        let mut pending = std::mem::take(&mut self.pending);
        for landmark in &mut pending {
            let reached = |interval: usize| {
                INTERVAL_ENDS
                    .get(interval)
                    .is_some_and(|end| landmark.time + end <= time)
            };
            while reached(landmark.interval) {
                self.count(landmark, false);
                landmark.interval += 1;
            }
        }
        pending.retain(|landmark| landmark.interval < INTERVALS);
        self.pending = pending;
    }

    fn count(&mut self, landmark: &Pending, failed: bool) {
        let interval = landmark.interval;
        self.overall.count(interval, failed);
        self.recent.count(interval, failed);
        self.by_grade[usize::from(landmark.degraded)].count(interval, failed);
        if let Some(hour) = self.by_hour.get_mut(hour_of_day(landmark.time)) {
            hour.count(interval, failed);
        }
    }

    fn note_load(&mut self, load: Option<f64>, seconds: u64) {
        let Some(load) = load.filter(|load| load.is_finite()) else {
            return;
        };
        let load = load.clamp(0.0, 1.0);
        let keep = (-(seconds as f64) / HOUR_SECONDS as f64).exp();
        self.load = load;
        self.load_mean = keep * self.load_mean + (1.0 - keep) * load;
        self.load_peak = load.max(keep * self.load_peak);
    }

    /// The covariates at [`now`](Self::now), in which the host's frequencies are relative to the hazards of
    /// all hosts, `pool` ([`HazardModel::pool`](super::HazardModel::pool)).
    #[must_use]
    pub fn covariates(&self, pool: &[f64; INTERVALS]) -> Covariates {
        let hour = hour_of_day(self.now);
        let near: Vec<&Recurrence> = [HOURS - 1, 0, 1]
            .iter()
            .filter_map(|offset| self.by_hour.get((hour + offset) % HOURS))
            .collect();
        let this_hour = Recurrence {
            at_risk: std::array::from_fn(|j| near.iter().map(|r| r.at_risk[j]).sum()),
            failed: std::array::from_fn(|j| near.iter().map(|r| r.failed[j]).sum()),
        };
        let degraded = self.state.is_some_and(|state| state.index() != 0);
        let own = self.overall.hazards(pool);
        let recent = self.recent.hazards(&own);
        let grade = self.by_grade[usize::from(degraded)].hazards(&own);
        let hour = this_hour.hazards(&own);
        let log_ratio = |a: f64, b: f64| (cumulative(a) / cumulative(b)).ln() as f32;
        Covariates {
            failed: self.state.is_some_and(ModelState::is_failure),
            landmark: self.landmark_covariates(degraded),
            intervals: std::array::from_fn(|j| {
                [
                    log_ratio(own[j], pool[j]),
                    log_ratio(recent[j], own[j]),
                    log_ratio(grade[j], own[j]),
                    log_ratio(hour[j], own[j]),
                ]
            }),
        }
    }

    fn landmark_covariates(&self, degraded: bool) -> [f32; LANDMARK_COVARIATES] {
        let [age, age_hour, age_day] = log_time(self.now - self.state_since);
        let [usable, usable_hour, usable_day] = log_time(self.now - self.usable_since);
        let [outage, ..] = log_time(self.last_failure_seconds.unwrap_or(0));
        let turn = (self.now % DAY_SECONDS) as f64 / DAY_SECONDS as f64 * std::f64::consts::TAU;
        [
            f64::from(u8::from(degraded)),
            age,
            age_hour,
            age_day,
            usable,
            usable_hour,
            usable_day,
            outage,
            f64::from(u8::from(self.last_failure_seconds.is_none())),
            self.failures_lately.ln_1p(),
            self.load,
            (self.load - 0.4).max(0.0),
            self.load_mean,
            self.load_peak,
            turn.sin(),
            turn.cos(),
            f64::from(u8::from(DayKind::at(self.now) == DayKind::Weekend)),
        ]
        .map(|value| value as f32)
    }
}

fn hour_of_day(time: u64) -> usize {
    (time / HOUR_SECONDS) as usize % HOURS
}

/// Expected number of failures, `-ln(1 - hazard)`, in an interval in which the host fails with probability
/// `hazard`.
fn cumulative(hazard: f64) -> f64 {
    -(-hazard.clamp(1e-9, 1.0 - 1e-9)).ln_1p()
}

/// A length of time on a log scale, `x = ln(1 + seconds / 300) / 8`, and how far `x` lies beyond the `x` of
/// an hour and of a day: so the regression can bend there.
fn log_time(seconds: u64) -> [f64; 3] {
    let scaled = |seconds: f64| (1.0 + seconds / 300.0).ln() / 8.0;
    let x = scaled(seconds as f64);
    let beyond = |bend: u64| (x - scaled(bend as f64)).max(0.0);
    [x, beyond(HOUR_SECONDS), beyond(DAY_SECONDS)]
}

/// The covariates of a host at a landmark.
#[derive(Clone, Debug, PartialEq)]
pub struct Covariates {
    /// Whether the host is in a failure state: then its curve is zero, and nothing is predicted.
    pub(super) failed: bool,
    /// State, times, loads, time of day and weekend, in the order of [`HostSummary::landmark_covariates`].
    pub(super) landmark: [f32; LANDMARK_COVARIATES],
    /// For each interval, logarithms of ratios of expected failures: the host to the pool; and its recent
    /// past, its present state and this hour of the day to the host overall.
    pub(super) intervals: [[f32; INTERVAL_COVARIATES]; INTERVALS],
}

impl Covariates {
    /// Whether the host is in a failure state.
    #[must_use]
    pub const fn failed(&self) -> bool {
        self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::AvailabilityState::{self, Busy, Gone, Idle};
    use proptest::prelude::*;

    const POOL: [f64; INTERVALS] = [0.1; INTERVALS];

    fn summary() -> HostSummary<AvailabilityState> {
        HostSummary::new(0)
    }

    #[test]
    fn a_host_without_history_looks_like_the_pool() {
        let covariates = summary().covariates(&POOL);
        assert!(
            covariates
                .intervals
                .iter()
                .flatten()
                .all(|&ratio| ratio == 0.0)
        );
    }

    #[test]
    fn landmarks_are_followed_until_failure() {
        let mut s = summary();
        // Landmarks at 0 h and 1 h; failure 70 min after the first, 10 min after the second.
        s.observe(0..4200, Some(Idle), None);
        s.observe(4200..5000, Some(Gone), None);
        assert_eq!(
            s.overall.at_risk,
            [2.0, 2.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
        );
        assert_eq!(
            s.overall.failed,
            [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
        );
        assert!(s.pending.is_empty());
    }

    #[test]
    fn landmarks_whose_fate_is_unknown_count_as_far_as_they_were_seen() {
        let mut s = summary();
        s.observe(0..1000, Some(Idle), None);
        s.observe(2000..2100, Some(Gone), None);
        assert_eq!(
            s.overall.at_risk,
            [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        );
        assert_eq!(s.overall.failed, [0.0; INTERVALS]);
        assert_eq!(s.failures_lately, 0.0);
    }

    #[test]
    fn a_host_that_fails_often_looks_worse_than_the_pool() {
        let mut s = summary();
        for hour in 0..100 {
            s.observe(hour * 3600..hour * 3600 + 3000, Some(Idle), None);
            s.observe(hour * 3600 + 3000..hour * 3600 + 3600, Some(Gone), None);
        }
        s.observe(360_000..360_100, Some(Idle), None);
        let covariates = s.covariates(&POOL);
        assert!(covariates.intervals[3][0] > 1.0);
        assert_eq!(s.last_failure_seconds, Some(600));
        assert_eq!(s.state_since, 360_000);
    }

    #[test]
    fn the_way_spans_are_cut_does_not_matter() {
        let mut whole = summary();
        let mut parts = summary();
        whole.observe(0..20_000, Some(Idle), None);
        whole.observe(20_000..30_000, Some(Busy), None);
        for start in (0..30_000).step_by(100) {
            let state = if start < 20_000 { Idle } else { Busy };
            parts.observe(start..start + 100, Some(state), None);
        }
        assert_eq!(whole, parts);
    }

    proptest! {
        #[test]
        fn any_history_gives_finite_covariates(
            spans in prop::collection::vec(
                (
                    0u64..100_000,
                    0u64..100_000,
                    prop::option::of(0usize..5),
                    prop::option::of(any::<f64>()),
                ),
                0..60,
            ),
        ) {
            let mut s = summary();
            let mut time = 0u64;
            for (gap, length, state, load) in spans {
                time += gap;
                s.observe(time..time + length, state.map(|i| AvailabilityState::ALL[i]), load);
                time += length;
                let covariates = s.covariates(&POOL);
                prop_assert!(covariates.landmark.iter().all(|x| x.is_finite()));
                prop_assert!(covariates.intervals.iter().flatten().all(|x| x.is_finite()));
                prop_assert!(s.pending.len() <= 10);
            }
        }
    }
}
