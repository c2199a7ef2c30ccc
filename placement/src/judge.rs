//! How good forecasts of presence would have been on the past of hosts, as their bitmaps show it.

use std::num::NonZeroU32;
use std::ops::Range;

use crate::AvailabilityBitmap;
use crate::bitmap::{Availability, SLOT_SECONDS, Slot};
use crate::hazard::{Forecaster, HazardModel};
use crate::history::{DAY_SECONDS, Timeline, WindowOutcome};
use crate::pool_model::PoolModel;
use crate::semi_markov::SemiMarkov;
use crate::state::Presence;

/// The horizons that are judged, hours.
pub const HORIZON_HOURS: [u64; 3] = [1, 3, 10];

const HOUR_SECONDS: u64 = 3600;
const STEP: NonZeroU32 = NonZeroU32::new(SLOT_SECONDS as u32).unwrap();
const STEPS: usize = 120;

/// How many days at the end are judged; those before are the past that forecasts are made from.
const JUDGED_SECONDS: u64 = 7 * DAY_SECONDS;

/// Time between two forecasts. It divides no day, so that all hours of the day have their turn.
const PERIOD_SECONDS: u64 = 7 * HOUR_SECONDS;

/// Sums of squared errors over the same forecasts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judged {
    /// Number of forecasts.
    pub forecasts: u64,
    /// Sum for the hazard regression with the level of the host.
    pub hazard: f64,
    /// Sum for the semi-Markov process of the papers.
    pub semi_markov: f64,
    /// Sum for the mean of the hazard regression and the model of the pool as it was before.
    pub blend: f64,
}

/// The last seven days of these hosts, for each of [`HORIZON_HOURS`]. Forecasts that the semi-Markov process
/// can't make, and windows that are partly unknown, count for no model.
#[must_use]
pub fn judged(model: &HazardModel, hosts: &[&AvailabilityBitmap]) -> [Judged; 3] {
    let week = JUDGED_SECONDS / SLOT_SECONDS;
    let before = hosts
        .iter()
        .map(|past| past.until(Slot(past.newest().0.saturating_sub(week))));
    let before: Vec<AvailabilityBitmap> = before.collect();
    let pool = PoolModel::of(&before.iter().collect::<Vec<_>>());
    let mut judged = Default::default();
    for past in hosts {
        add(&mut judged, model, &pool, past);
    }
    judged
}

fn add(judged: &mut [Judged; 3], model: &HazardModel, pool: &PoolModel, past: &AvailabilityBitmap) {
    let start = past.oldest().start_unix_seconds();
    let end = past.newest().start_unix_seconds() + SLOT_SECONDS;
    let mut whole = Timeline::new(start);
    let mut hazard = Forecaster::<Presence>::new(start);
    let mut semi_markov = SemiMarkov::<Presence>::new(start);
    let runs = runs(past);
    for (span, state) in &runs {
        whole.push(span.clone(), *state);
    }
    let first = end.saturating_sub(JUDGED_SECONDS) / PERIOD_SECONDS + 1;
    let mut moments = (first..).map(|number| number * PERIOD_SECONDS).peekable();
    for (span, state) in runs {
        let mut at = span.start;
        while at < span.end {
            let moment = moments
                .next_if(|moment| *moment <= at)
                .or(moments.peek().copied());
            let next = span
                .end
                .min(moment.unwrap_or(span.end).max(at + SLOT_SECONDS));
            hazard.observe(model, at..next, state, None);
            semi_markov.observe(at..next, state);
            at = next;
            let is_judged = state == Some(Presence::Here) && moments.peek() == Some(&at);
            if is_judged && let Some(smp) = semi_markov.curve(STEP, STEPS) {
                let announced = hazard.curve(model, STEP, STEPS);
                let known = past.until(Slot(Slot::containing(at).0.saturating_sub(1)));
                let blend = pool.blended(&announced, &known);
                let curves = [announced, smp, blend];
                for (judged, hours) in judged.iter_mut().zip(HORIZON_HOURS) {
                    let seconds = hours * HOUR_SECONDS;
                    let forecasts = [0, 1, 2].map(|i| curves[i].at(seconds as f64).value());
                    judged.note(forecasts, whole.outcome(at..at + seconds));
                }
            }
        }
    }
}

impl Judged {
    fn note(&mut self, [hazard, semi_markov, blend]: [f64; 3], outcome: WindowOutcome) {
        let survived = match outcome {
            WindowOutcome::Survived => 1.0,
            WindowOutcome::Unknown => return,
            _ => 0.0,
        };
        self.forecasts += 1;
        self.hazard += (hazard - survived).powi(2);
        self.semi_markov += (semi_markov - survived).powi(2);
        self.blend += (blend - survived).powi(2);
    }
}

/// Stretches of equal slots, with the state in them.
fn runs(bitmap: &AvailabilityBitmap) -> Vec<(Range<u64>, Option<Presence>)> {
    let mut runs: Vec<(Range<u64>, Option<Presence>)> = Vec::new();
    for slot in bitmap.oldest().0..=bitmap.newest().0 {
        let state = match bitmap.get(Slot(slot)) {
            Availability::Unknown => None,
            Availability::Usable => Some(Presence::Here),
            Availability::NotUsable => Some(Presence::Away),
        };
        let start = slot * SLOT_SECONDS;
        let end = (slot + 1) * SLOT_SECONDS;
        match runs.last_mut() {
            Some((span, last)) if *last == state => span.end = end,
            _ => runs.push((start..end, state)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host of 28 days that is away in these hours of each day.
    fn one_host(away: Range<u64>) -> [Judged; 3] {
        let mut past = AvailabilityBitmap::unknown(Slot(0));
        for slot in 0..28 * 288 {
            let is_away = away.contains(&(slot / 12 % 24));
            let seen = if is_away {
                Availability::NotUsable
            } else {
                Availability::Usable
            };
            past.record(Slot(slot), seen);
        }
        judged(&HazardModel::pretrained(), &[&past])
    }

    #[test]
    fn a_host_that_never_leaves_is_forecast_so_by_all() {
        for judged in one_host(24..24) {
            assert!(judged.forecasts >= 20, "{judged:?}");
            assert_eq!(judged.semi_markov, 0.0);
            for sum in [judged.hazard, judged.blend] {
                assert!(sum / (judged.forecasts as f64) < 0.05, "{judged:?}");
            }
        }
    }

    #[test]
    fn all_are_judged_on_the_same_forecasts_and_only_where_the_host_is_there() {
        let [hour, three, ten] = one_host(9..17);
        assert!(hour.forecasts > 5 && hour.forecasts < 20, "{hour:?}");
        assert!(three.hazard > 0.0 && ten.semi_markov > 0.0);
        assert!(ten.forecasts <= hour.forecasts);
    }
}
