//! Compares each forecast of a host with what the host did, so that later ones are of its level.
//!
//! The weights of a [`HazardModel`] are common to all hosts, and were fitted on other machines. They may be
//! right about when a host fails and wrong about how often. So each forecast is compared with what the host
//! did in the hour after it, and later forecasts have the hazards of their first hour multiplied by a
//! [`Level::factor`].

use std::num::NonZeroU32;
use std::ops::Range;

use super::level::Level;
use super::model::HazardModel;
use super::summary::{HOUR_SECONDS, HostSummary};
use super::{INTERVAL_ENDS, INTERVALS, interval_start};
use crate::SurvivalCurve;
use crate::state::ModelState;

/// Most forecasts that are made for one span, about; 83 days of one forecast an hour.
const FORECASTS_MAX: u64 = 2000;

/// A forecast of a host's failures.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Forecast {
    /// When it was made, Unix seconds.
    made: u64,
    /// Expected number of failures in each interval.
    failures: [f64; INTERVALS],
}

/// A host's past, and the level of the forecasts that were made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecaster<S> {
    summary: HostSummary<S>,
    level: Level,
    /// The latest forecast; `None` while the host is failed or unknown, and before its first full hour.
    forecast: Option<Forecast>,
}

impl<S: ModelState> Forecaster<S> {
    /// A host about which nothing is known before `start`, Unix seconds.
    #[must_use]
    pub fn new(start: u64) -> Self {
        Self {
            summary: HostSummary::new(start),
            level: Level::default(),
            forecast: None,
        }
    }

    /// What is known of the host's past.
    #[must_use]
    pub const fn summary(&self) -> &HostSummary<S> {
        &self.summary
    }

    /// The failures that were expected and that happened so far.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    /// Adds a span, as [`HostSummary::observe`] does. At each full hour at which the host is usable, `model`
    /// makes a forecast. Failures before the first forecast are not counted: otherwise the many short times
    /// of use would outweigh the few long ones, which make up most of the time.
    pub fn observe(
        &mut self,
        model: &HazardModel,
        span: Range<u64>,
        state: Option<S>,
        load: Option<f64>,
    ) {
        let from = span.start.max(self.summary.now());
        if span.end <= from {
            return;
        }
        if from > self.summary.now() {
            // It is not known whether the last forecast came true.
            self.forecast = None;
        }
        let is_usable = state.is_some_and(|state| !state.is_failure());
        if !is_usable {
            let was_usable = self.forecast.take().is_some();
            self.level.seen += f64::from(u8::from(was_usable && state.is_some()));
            self.summary.observe(from..span.end, state, load);
            return;
        }
        // A clock that is set makes spans of decades, so the number of forecasts for a span is limited.
        let period = HOUR_SECONDS * ((span.end - from) / (HOUR_SECONDS * FORECASTS_MAX) + 1);
        let mut at = from;
        while at < span.end {
            let next = span.end.min((at / period + 1) * period);
            self.renew(model, at, state, load);
            if let Some(forecast) = &self.forecast {
                let expected = forecast.until(next) - forecast.until(at);
                self.level.expected += expected.max(0.0);
            }
            self.summary.observe(at..next, state, load);
            at = next;
        }
    }

    /// Makes a forecast at `at` if one is due: at the first full hour of use, and in each hour after it.
    fn renew(&mut self, model: &HazardModel, at: u64, state: Option<S>, load: Option<f64>) {
        let is_due = match &self.forecast {
            Some(forecast) => at / HOUR_SECONDS > forecast.made / HOUR_SECONDS,
            None => at.is_multiple_of(HOUR_SECONDS),
        };
        if !is_due {
            return;
        }
        if self.summary.state() != state {
            // The forecast must be that of a host in the present state.
            self.summary.observe(at..at + 1, state, load);
        }
        let covariates = self.summary.covariates(model.pool());
        self.forecast = Some(Forecast {
            made: at,
            failures: model.expected_failures(&covariates),
        });
    }

    /// TR at every one of `steps` steps, with the level of the host.
    #[must_use]
    pub fn curve(
        &self,
        model: &HazardModel,
        step_seconds: NonZeroU32,
        steps: usize,
    ) -> SurvivalCurve {
        let covariates = self.summary.covariates(model.pool());
        model.curve_at(&covariates, self.level, step_seconds, steps)
    }
}

impl Forecast {
    /// Expected number of failures from the time of the forecast until `time`. Beyond the horizon the rate
    /// is that of the last interval.
    fn until(&self, time: u64) -> f64 {
        let seconds = time.saturating_sub(self.made);
        let part = |(interval, failures): (usize, &f64)| {
            let start = interval_start(interval);
            let end = INTERVAL_ENDS[interval];
            let is_last = interval + 1 == INTERVALS;
            let reached = if is_last { seconds } else { seconds.min(end) };
            failures * reached.saturating_sub(start) as f64 / (end - start) as f64
        };
        self.failures.iter().enumerate().map(part).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::state::AvailabilityState::{self, Busy, Gone, Idle};

    const STEP: NonZeroU32 = NonZeroU32::new(300).unwrap();
    const DAY: u64 = 86_400;

    /// A host that is gone for ten minutes after each `usable` seconds of use.
    fn host(model: &HazardModel, usable: u64, until: u64) -> Forecaster<AvailabilityState> {
        let mut host = Forecaster::new(0);
        let mut at = 0;
        while at < until {
            host.observe(model, at..at + usable, Some(Idle), None);
            host.observe(model, at + usable..at + usable + 600, Some(Gone), None);
            at += usable + 600;
        }
        host.observe(model, at..at + 600, Some(Idle), None);
        host
    }

    fn plain(host: &Forecaster<AvailabilityState>, model: &HazardModel) -> SurvivalCurve {
        let covariates = host.summary().covariates(model.pool());
        model.curve(&covariates, STEP, 120)
    }

    #[test]
    fn a_level_without_observations_changes_nothing() {
        let model = HazardModel::pretrained();
        assert_eq!(Level::default().factor(), 1.0);
        let mut host = Forecaster::new(1000);
        assert_eq!(host.curve(&model, STEP, 120), plain(&host, &model));
        host.observe(&model, 1000..90_000, None, None);
        assert_eq!(host.level(), Level::default());
        assert_eq!(host.curve(&model, STEP, 120), plain(&host, &model));
    }

    #[test]
    fn a_host_that_never_fails_outdoes_the_model_and_one_that_fails_often_falls_short_of_it() {
        let model = HazardModel::default();
        let once = host(&model, 60 * DAY, 1);
        assert_eq!(once.level().seen, 1.0);
        let mut steady = Forecaster::new(0);
        steady.observe(&model, 0..28 * DAY, Some(Idle), None);
        assert!(steady.level().factor() < 0.5, "{:?}", steady.level());
        let an_hour = |curve: &SurvivalCurve| curve.at(3600.0).value();
        let leveled = steady.curve(&model, STEP, 120);
        assert!(an_hour(&leveled) > an_hour(&plain(&steady, &model)));
    }

    /// The factor makes up for a model that expects ten times as many failures, or a tenth of them.
    #[test]
    fn a_model_of_a_wrong_level_is_put_right() {
        let pretrained = HazardModel::pretrained();
        let wrong = |factor: f64| {
            let mut parameters = pretrained.parameters();
            let shift = factor.ln();
            // The intercepts follow the pooled hazards.
            for intercept in &mut parameters[INTERVALS..2 * INTERVALS] {
                *intercept += shift;
            }
            HazardModel::from_parameters(&parameters).unwrap()
        };
        let factor = |model: &HazardModel| host(model, 40 * 3600, 60 * DAY).level().factor();
        let right = factor(&pretrained);
        let high = factor(&wrong(10.0));
        let low = factor(&wrong(0.1));
        assert!((high / right * 10.0 - 1.0).abs() < 0.3, "{high} {right}");
        assert!((low / right / 10.0 - 1.0).abs() < 0.3, "{low} {right}");
    }

    #[test]
    fn an_unforeseeable_failure_is_not_counted() {
        let model = HazardModel::pretrained();
        let mut host = Forecaster::new(0);
        host.observe(&model, 0..600, Some(Idle), None);
        // After a gap the host is found failed, and stays so.
        host.observe(&model, 900..1000, Some(Gone), None);
        host.observe(&model, 1000..1100, Some(Gone), None);
        assert_eq!(host.level().seen, 0.0);
        let mut lost = Forecaster::new(0);
        lost.observe(&model, 0..600, Some(Idle), None);
        lost.observe(&model, 600..700, None, None);
        lost.observe(&model, 700..800, Some(Gone), None);
        assert_eq!(lost.level().seen, 0.0);
        // A failure before the first forecast is not counted either.
        let mut short = Forecaster::new(100);
        short.observe(&model, 100..3000, Some(Idle), None);
        short.observe(&model, 3000..3700, Some(Gone), None);
        assert_eq!(short.level(), Level::default());
    }

    #[test]
    fn a_clock_that_was_wrong_for_decades_costs_little() {
        let model = HazardModel::pretrained();
        let mut host = Forecaster::new(0);
        host.observe(&model, 0..2_000_000_000, Some(Idle), None);
        assert!(host.level().factor().is_finite());
    }

    proptest! {
        #[test]
        fn the_level_lies_between_the_model_s_and_what_was_seen(
            expected in 0.0f64..1e6,
            seen in 0u32..10_000,
        ) {
            let factor = Level::new(expected, f64::from(seen)).factor();
            let own = f64::from(seen) / expected;
            prop_assert!(factor.is_finite() && factor > 0.0);
            prop_assert!(factor >= own.min(1.0) - 1e-12 && factor <= own.max(1.0) + 1e-12);
            prop_assert!(Level::new(expected, f64::from(seen) + 1.0).factor() > factor);
            prop_assert!(Level::new(expected + 1.0, f64::from(seen)).factor() < factor);
        }

        #[test]
        fn any_history_gives_a_level(
            spans in prop::collection::vec((0u64..9000, 0u64..90_000, prop::option::of(0usize..5)), 0..60),
        ) {
            let model = HazardModel::pretrained();
            let mut host = Forecaster::new(0);
            let mut failures = 0.0;
            let mut time = 0u64;
            let mut has_forecast = false;
            for (gap, length, state) in spans {
                has_forecast &= gap == 0 || length == 0;
                time += gap;
                let from = time;
                let state = state.map(|index| AvailabilityState::ALL[index]);
                host.observe(&model, time..time + length, state, None);
                time += length;
                if length == 0 {
                    continue;
                }
                let fails = state.is_some_and(ModelState::is_failure);
                failures += f64::from(u8::from(fails && has_forecast));
                let full_hour = from.div_ceil(HOUR_SECONDS) * HOUR_SECONDS;
                let is_usable = state.is_some() && !fails;
                has_forecast = is_usable && (has_forecast || full_hour < time);
            }
            prop_assert_eq!(host.level().seen, failures);
            prop_assert!(host.level().expected >= 0.0 && host.level().expected.is_finite());
        }

        #[test]
        fn the_way_spans_are_cut_hardly_matters(cut in 1u64..5000, busy in 0u64..20_000) {
            let model = HazardModel::pretrained();
            let mut whole = Forecaster::new(0);
            let mut parts = Forecaster::new(0);
            let state = |at: u64| Some(if at < busy { Busy } else { Idle });
            for span in [0..busy, busy..40_000] {
                whole.observe(&model, span.clone(), state(span.start), None);
                let mut at = span.start;
                while at < span.end {
                    let next = span.end.min(at + cut);
                    parts.observe(&model, at..next, state(at), None);
                    at = next;
                }
            }
            let apart = (whole.level().expected - parts.level().expected).abs();
            prop_assert!(apart <= 1e-6 * whole.level().expected, "{apart}");
        }
    }
}
