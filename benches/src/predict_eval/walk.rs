//! A host's trace hour by hour, with what each predictor knows by then.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use crate::rivals::competing_risks::CompetingRisks;
use crate::rivals::reference::HistoryCounters;
use crate::rivals::reference::history_counters::Pattern;
use placement::hazard::{Forecaster, HazardModel, HostSummary};
use placement::history::{DAY_SECONDS, WindowOutcome};
use placement::semi_markov::Kernel;
use placement::semi_markov::visits::visits;
use placement::state::{AvailabilityState, ModelState};

use super::{HORIZON_HOURS, HORIZONS, HOUR};
use crate::traces::{Trace, TracedHost};

/// Bits of History-k, one per hour.
const HISTORY_BITS: u32 = 8;
/// Load that stands for "cannot be used" in the time series.
const TAKEN: f32 = 1.0;

/// What is known about a host at some hour. Nothing in it looks beyond [`now`](Self::now).
#[derive(Debug)]
pub struct Walk<'a> {
    /// The host.
    pub host: &'a TracedHost,
    /// Length of a sampling interval, the step of the semi-Markov models.
    pub step: NonZeroU32,
    /// What the hazard regression knows.
    pub summary: HostSummary<AvailabilityState>,
    /// The same with the level of the forecasts of a model, where one is given.
    pub leveled: Option<(&'a HazardModel, Forecaster<AvailabilityState>)>,
    /// The host's stays up to the beginning of the day.
    pub risks: CompetingRisks<AvailabilityState>,
    /// Kernel from `risks`, made when first needed on a day.
    pub kernel: Option<Kernel<AvailabilityState>>,
    /// History-k for each horizon.
    pub counters: [HistoryCounters; HORIZONS],
    /// Full hours at which the host was usable, and at which it was seen.
    pub usable_hours: (u64, u64),
    /// Landmarks survived and seen, for each horizon.
    pub frequency: [(u64, u64); HORIZONS],
    /// Load by sampling interval from `series_start` on; 1 when in a failure state, NaN if unknown.
    pub series: Vec<f32>,
    series_start: u64,
    series_known: usize,
    started: [VecDeque<(u64, Pattern)>; HORIZONS],
    now: u64,
}

/// Calls `visit` at every full hour of the host's timeline. The forecasts of `model` are held against
/// what became of the host.
pub fn walk(
    trace: &Trace,
    host: &TracedHost,
    model: Option<&HazardModel>,
    mut visit: impl FnMut(&mut Walk<'_>),
) {
    let Some(step) = NonZeroU32::new(trace.sample_seconds) else {
        return;
    };
    let mut walk = Walk::new(host, step, model);
    let first = host.timeline.start() / HOUR + 1;
    for hour in first..=host.timeline.end() / HOUR {
        walk.advance(hour * HOUR);
        visit(&mut walk);
    }
}

impl<'a> Walk<'a> {
    fn new(host: &'a TracedHost, step: NonZeroU32, model: Option<&'a HazardModel>) -> Self {
        let start = host.timeline.start();
        Self {
            host,
            step,
            summary: HostSummary::new(start),
            leveled: model.map(|model| (model, Forecaster::new(start))),
            risks: CompetingRisks::new(),
            kernel: None,
            counters: std::array::from_fn(|_| HistoryCounters::new(HISTORY_BITS)),
            usable_hours: (0, 0),
            frequency: [(0, 0); HORIZONS],
            series: series(host, step),
            series_start: start,
            series_known: 0,
            started: std::array::from_fn(|_| VecDeque::new()),
            now: start,
        }
    }

    /// The hour reached.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// State in the last sampling interval before now.
    #[must_use]
    pub fn state(&self) -> Option<AvailabilityState> {
        self.host.timeline.state_at(self.now.saturating_sub(1))
    }

    /// Whether the host was usable in that interval.
    #[must_use]
    pub fn usable(&self) -> bool {
        self.state().is_some_and(|state| !state.is_failure())
    }

    /// The load samples known by now, oldest first, at most `most`; unknown ones repeat the one
    /// before.
    #[must_use]
    pub fn samples(&self, most: usize) -> Vec<f64> {
        let known = &self.series[..self.series_known];
        let mut last = 0.0;
        let latest = known.iter().skip(known.len().saturating_sub(most));
        let fill = |&load: &f32| {
            if load.is_finite() {
                last = f64::from(load);
            }
            last
        };
        latest.map(fill).collect()
    }

    fn advance(&mut self, time: u64) {
        if time / DAY_SECONDS > self.now / DAY_SECONDS {
            self.end_days(time);
        }
        self.feed_summary(time);
        let step = u64::from(self.step.get());
        let cells = (time.saturating_sub(self.series_start) / step) as usize;
        self.series_known = cells.min(self.series.len());
        self.now = time;
        self.count_outcomes();
        let whole_hour = self.host.timeline.outcome(time.saturating_sub(HOUR)..time);
        for counters in &mut self.counters {
            counters.observe(whole_hour == WindowOutcome::Survived);
        }
        if self.state().is_some() {
            self.usable_hours.0 += u64::from(self.usable());
            self.usable_hours.1 += 1;
        }
        if self.usable() {
            for (queue, counters) in self.started.iter_mut().zip(&self.counters) {
                queue.push_back((time, counters.pattern()));
            }
        }
    }

    /// Adds the stays of the days that are over.
    fn end_days(&mut self, time: u64) {
        let from = (self.now / DAY_SECONDS * DAY_SECONDS).max(self.host.timeline.start());
        let to = time / DAY_SECONDS * DAY_SECONDS;
        for visit in visits(&self.host.timeline, from..to, self.step) {
            self.risks.observe(&visit);
        }
        self.kernel = None;
    }

    fn feed_summary(&mut self, time: u64) {
        let step = u64::from(self.step.get());
        let mut from = self.summary.now();
        while from < time {
            let cell = (from - self.series_start) / step;
            let to = (self.series_start + (cell + 1) * step).min(time);
            let load = self
                .series
                .get(cell as usize)
                .copied()
                .filter(|load| load.is_finite());
            for run in self.host.timeline.runs(from..to) {
                let span = run.span.start.max(from)..run.span.end.min(to);
                let load = load.map(f64::from);
                if let Some((model, forecaster)) = &mut self.leveled {
                    forecaster.observe(model, span.clone(), run.state, load);
                }
                self.summary.observe(span, run.state, load);
            }
            from = to;
        }
    }

    /// Counts the landmarks whose window has ended.
    fn count_outcomes(&mut self) {
        for (horizon, queue) in self.started.iter_mut().enumerate() {
            let length = HORIZON_HOURS[horizon] * HOUR;
            while let Some(&(start, pattern)) = queue.front()
                && start + length <= self.now
            {
                queue.pop_front();
                let outcome = self.host.timeline.outcome(start..start + length);
                if outcome == WindowOutcome::Unknown {
                    continue;
                }
                let survived = outcome == WindowOutcome::Survived;
                self.counters[horizon].learn(pattern, survived);
                self.frequency[horizon].0 += u64::from(survived);
                self.frequency[horizon].1 += 1;
            }
        }
    }
}

/// Load by sampling interval over the whole timeline.
fn series(host: &TracedHost, step: NonZeroU32) -> Vec<f32> {
    let seconds = u64::from(step.get());
    let start = host.timeline.start();
    let mut loads = host.loads.iter().peekable();
    (start..host.timeline.end())
        .step_by(seconds as usize)
        .map(|time| {
            let mut sample = None;
            while let Some(&(_, load)) = loads.next_if(|(at, _)| *at < time + seconds) {
                sample = Some(load);
            }
            match host.timeline.state_at(time) {
                None => f32::NAN,
                Some(AvailabilityState::Thrashing | AvailabilityState::Gone) => TAKEN,
                Some(_) => sample.unwrap_or(0.0),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::{RawHost, RawTrace, Sample};

    #[test]
    fn the_past_is_all_that_is_known() {
        let sample = |i: u64| Sample {
            unix_seconds: i * 300,
            cpu: i as f32 / 100.0,
            memory: None,
        };
        let raw = RawHost {
            samples: (0..100).map(sample).collect(),
            down: std::iter::once(10_000..11_000).collect(),
            ..RawHost::default()
        };
        let trace = Trace::new(RawTrace {
            sample_seconds: 300,
            interval_seconds: 0,
            hosts: [("h".to_owned(), raw)].into(),
            ..RawTrace::default()
        });
        let mut hours = Vec::new();
        walk(&trace, &trace.hosts[0], None, |walk| {
            hours.push((
                walk.now() / HOUR,
                walk.usable(),
                walk.samples(2),
                walk.frequency[0],
            ));
        });
        assert_eq!(hours.len(), 8);
        assert_eq!((hours[0].0, hours[0].1), (1, true));
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(close(hours[0].2[0], 0.10) && close(hours[0].2[1], 0.11));
        assert!(!hours[2].1);
        assert_eq!(hours[2].2, [1.0, 1.0]);
        // The window 1 h .. 2 h was survived, 2 h .. 3 h was not.
        assert_eq!(hours[2].3, (1, 2));
    }
}
