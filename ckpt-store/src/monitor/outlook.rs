//! Forecasts from the past of this host: bitmaps and survival curves, in constant memory.

use std::num::NonZeroU32;
use std::ops::Range;

use placement::bitmap::{Availability, SLOT_SECONDS, SLOTS, Slot};
use placement::hazard::{Forecaster, HazardModel};
use placement::rank::{LoadForecast, LoadProfile};
use placement::semi_markov::SemiMarkov;
use placement::state::{AvailabilityState, ModelState, Presence};
use placement::{AvailabilityBitmap, SurvivalCurve};
use protocol::wire::forecast::ForecastBy;

use super::history::Run;

/// A survival curve has 120 steps of five minutes: ten hours.
const CURVE_STEPS: usize = 120;
const CURVE_STEP_SECONDS: NonZeroU32 = NonZeroU32::new(SLOT_SECONDS as u32).unwrap();

/// Only a clock that was set wrong makes a run that is longer than twice what a bitmap holds.
const FORGOTTEN_AFTER_SECONDS: u64 = 2 * SLOTS as u64 * SLOT_SECONDS;

/// Which model makes the curves that this host announces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Predictor {
    /// Hazard regression, and clients take the mean of it and of a model of the pool's past for whether the
    /// host stays
    #[default]
    Blend,
    /// Hazard regression: from the host's past, its load and the hour, with weights of other machines
    Hazard,
    /// The semi-Markov process of the papers: from the same hours of earlier weekdays, or weekend days.
    /// Hazard regression until there was such a day
    Smp,
}

impl From<Predictor> for ForecastBy {
    fn from(predictor: Predictor) -> Self {
        match predictor {
            Predictor::Blend => Self::Blend,
            Predictor::Hazard => Self::Hazard,
            Predictor::Smp => Self::SemiMarkov,
        }
    }
}

/// What is known of this host's availability.
#[derive(Clone, Debug)]
pub struct Outlook {
    model: HazardModel,
    guest: Track<AvailabilityState>,
    presence: Track<Presence>,
    load: LoadProfile,
    predictor: Predictor,
}

/// What is known of one kind of state.
#[derive(Clone, Debug)]
struct Track<S> {
    forecaster: Forecaster<S>,
    slots: SlotRecorder,
    /// `None` unless it makes the curves.
    semi_markov: Option<SemiMarkov<S>>,
}

impl Outlook {
    /// An outlook without knowledge of the time before `start`, in Unix seconds.
    #[must_use]
    pub fn new(start: u64, predictor: Predictor) -> Self {
        Self {
            model: HazardModel::pretrained(),
            guest: Track::new(start, predictor),
            presence: Track::new(start, predictor),
            load: LoadProfile::new(start),
            predictor,
        }
    }

    /// Which model makes the curves.
    #[must_use]
    pub const fn predictor(&self) -> Predictor {
        self.predictor
    }

    /// Adds a run. Runs have to be added in order of time.
    pub fn observe(&mut self, run: &Run) {
        let known_until = self.guest.forecaster.summary().now();
        if run.span.end.saturating_sub(known_until) > FORGOTTEN_AFTER_SECONDS {
            *self = Self::new(run.span.end - FORGOTTEN_AFTER_SECONDS, self.predictor);
        }
        let guest = run.states.map(|states| states.guest);
        let presence = run.states.map(|states| Presence::from(states.storage));
        let model = &self.model;
        self.guest.observe(model, run.span.clone(), guest, run.cpu);
        self.presence
            .observe(model, run.span.clone(), presence, run.disk);
        // Time in which no guest can run is in the curves already. In the load it would count twice.
        if guest.is_some_and(|guest| !guest.is_failure()) {
            self.load.observe(run.span.clone(), run.cpu);
        }
    }

    /// The probability that a guest job stays alive, and the probability that the host stays reachable.
    #[must_use]
    pub fn curves(&self) -> (SurvivalCurve, SurvivalCurve) {
        (
            self.guest.curve(&self.model),
            self.presence.curve(&self.model),
        )
    }

    /// The owner's mean load over the next hours, counted while a guest can run. `None` if no guest could
    /// run so far.
    #[must_use]
    pub fn load(&self) -> Option<LoadForecast> {
        self.load.forecast()
    }

    /// For the last 28 days: when a guest could run, and when the host was reachable.
    #[must_use]
    pub fn bitmaps(&self) -> (AvailabilityBitmap, AvailabilityBitmap) {
        (
            self.guest.slots.bitmap.clone(),
            self.presence.slots.bitmap.clone(),
        )
    }
}

impl<S: ModelState> Track<S> {
    fn new(start: u64, predictor: Predictor) -> Self {
        Self {
            forecaster: Forecaster::new(start),
            slots: SlotRecorder::new(start),
            semi_markov: (predictor == Predictor::Smp).then(|| SemiMarkov::new(start)),
        }
    }

    fn observe(&mut self, model: &HazardModel, span: Range<u64>, state: Option<S>, load: f64) {
        let load = state.filter(|state| !state.is_failure()).map(|_| load);
        self.forecaster.observe(model, span.clone(), state, load);
        if let Some(semi_markov) = &mut self.semi_markov {
            semi_markov.observe(span.clone(), state);
        }
        self.slots
            .observe(span, state.map(|state| !state.is_failure()));
    }

    fn curve(&self, model: &HazardModel) -> SurvivalCurve {
        let semi_markov = self.semi_markov.as_ref();
        semi_markov
            .and_then(|semi_markov| semi_markov.curve(CURVE_STEP_SECONDS, CURVE_STEPS))
            .unwrap_or_else(|| {
                self.forecaster
                    .curve(model, CURVE_STEP_SECONDS, CURVE_STEPS)
            })
    }
}

/// Keeps a bitmap up to date. A slot counts as usable if the host was known to be usable in all of it.
#[derive(Clone, Debug)]
struct SlotRecorder {
    bitmap: AvailabilityBitmap,
    /// The slot that has not ended yet.
    slot: Slot,
    known_seconds: u64,
    usable: bool,
}

impl SlotRecorder {
    fn new(start: u64) -> Self {
        let slot = Slot::containing(start);
        Self {
            bitmap: AvailabilityBitmap::unknown(Slot(slot.0.saturating_sub(1))),
            slot,
            known_seconds: 0,
            usable: true,
        }
    }

    fn observe(&mut self, span: Range<u64>, usable: Option<bool>) {
        let oldest = span.end.saturating_sub(SLOTS as u64 * SLOT_SECONDS);
        let mut at = span.start.max(self.slot.start_unix_seconds()).max(oldest);
        while at < span.end {
            self.enter(Slot::containing(at));
            let slot_end = self.slot.start_unix_seconds() + SLOT_SECONDS;
            let end = span.end.min(slot_end);
            if let Some(usable) = usable {
                self.known_seconds += end - at;
                self.usable &= usable;
            }
            at = end;
        }
        self.enter(Slot::containing(span.end));
    }

    fn enter(&mut self, slot: Slot) {
        if slot.0 <= self.slot.0 {
            return;
        }
        let availability = match (self.known_seconds >= SLOT_SECONDS, self.usable) {
            (false, _) => Availability::Unknown,
            (true, true) => Availability::Usable,
            (true, false) => Availability::NotUsable,
        };
        self.bitmap.record(self.slot, availability);
        self.bitmap.advance_to(Slot(slot.0 - 1));
        (self.slot, self.known_seconds, self.usable) = (slot, 0, true);
    }
}

#[cfg(test)]
mod tests {
    use placement::history::Timeline;
    use placement::state::StorageState;
    use proptest::prelude::*;

    use super::*;
    use crate::monitor::history::States;

    const NOW: u64 = 1_790_000_100;
    const DAY: u64 = 86_400;

    fn run(span: Range<u64>, up: bool) -> Run {
        let idle = States {
            guest: AvailabilityState::Idle,
            storage: StorageState::FullRate,
        };
        Run {
            span,
            states: Some(if up { idle } else { States::GONE }),
            cpu: 0.1,
            disk: 0.0,
        }
    }

    fn outlook(runs: &[Run]) -> Outlook {
        let mut outlook = Outlook::new(runs[0].span.start, Predictor::Hazard);
        for run in runs {
            outlook.observe(run);
        }
        outlook
    }

    #[test]
    fn a_flaky_host_is_known_as_one() {
        let start = NOW - 20 * DAY;
        let flaky: Vec<Run> = (0..20 * 24)
            .flat_map(|hour| {
                let hour = start + 3600 * hour;
                [
                    run(hour..hour + 3000, true),
                    run(hour + 3000..hour + 3600, false),
                ]
            })
            .chain([run(NOW..NOW + 600, true)])
            .collect();
        let flaky = outlook(&flaky);
        let steady = outlook(&[run(start..NOW + 600, true)]);
        let after_an_hour = |outlook: &Outlook| outlook.curves().1.at(3600.0).value();
        assert!(after_an_hour(&flaky) < 0.55, "{}", after_an_hour(&flaky));
        assert!(after_an_hour(&steady) > 0.95, "{}", after_an_hour(&steady));
        let share = |outlook: &Outlook| {
            let bitmap = outlook.bitmaps().1;
            f64::from(bitmap.usable().count()) / f64::from(bitmap.known().count())
        };
        assert!(share(&steady) > 0.999);
        assert!((0.6..0.85).contains(&share(&flaky)), "{}", share(&flaky));
    }

    #[test]
    fn a_busy_machine_is_there_for_reading() {
        let busy = Run {
            states: Some(States {
                guest: AvailabilityState::CpuTaken,
                storage: StorageState::FullRate,
            }),
            ..run(NOW - DAY..NOW, true)
        };
        let busy = outlook(&[busy]);
        assert_eq!(busy.bitmaps().0.usable().count(), 0);
        assert_eq!(busy.bitmaps().1.usable().count(), 288);
        let (guest, presence) = busy.curves();
        assert_eq!(guest.at(300.0).value(), 0.0);
        assert!(presence.at(300.0).value() > 0.9);
    }

    #[test]
    fn the_load_is_that_of_the_time_in_which_a_guest_can_run() {
        let mut runs = Vec::new();
        for hour in 0..48 {
            let at = NOW - 2 * DAY + hour * 3600;
            let mut taken = run(at..at + 1800, true);
            taken.states = taken.states.map(|states| States {
                guest: AvailabilityState::CpuTaken,
                ..states
            });
            taken.cpu = 0.9;
            runs.extend([taken, run(at + 1800..at + 3600, true)]);
        }
        let load = outlook(&runs).load().unwrap();
        assert!((load.over(3600.0) - 0.1).abs() < 1e-9, "{load:?}");
        assert_eq!(Outlook::new(NOW, Predictor::Hazard).load(), None);
    }

    #[test]
    fn with_the_model_of_the_papers_the_same_hours_of_earlier_days_count() {
        let announced_after = |predictor| {
            let start = NOW - NOW % DAY - 14 * DAY;
            let mut outlook = Outlook::new(start, predictor);
            for at in (0..14).map(|day| start + day * DAY) {
                outlook.observe(&run(at..at + 9 * 3600, true));
                outlook.observe(&run(at + 9 * 3600..at + 10 * 3600, false));
                outlook.observe(&run(at + 10 * 3600..at + DAY, true));
            }
            let today = start + 14 * DAY;
            outlook.observe(&run(today..today + 8 * 3600, true));
            outlook.curves().1
        };
        let smp = announced_after(Predictor::Smp);
        assert_eq!((smp.at(3000.0).value(), smp.at(7200.0).value()), (1.0, 0.5));
        let hazard = announced_after(Predictor::Hazard);
        assert!(hazard.at(3000.0) < smp.at(3000.0));
    }

    #[test]
    fn a_clock_that_was_wrong_for_decades_costs_nothing() {
        let long = outlook(&[run(0..60, true), run(60..NOW, false)]);
        assert_eq!(long.bitmaps().1.known().count(), SLOTS as u32);
        assert_eq!(long.bitmaps().1.usable().count(), 0);
    }

    proptest! {
        #[test]
        fn bitmaps_are_those_of_the_whole_timeline(
            spans in prop::collection::vec((0_u64..200, 1_u64..2000, prop::option::of(any::<bool>())), 1..60),
        ) {
            let mut recorder = SlotRecorder::new(NOW);
            let mut timeline = Timeline::new(NOW);
            let mut at = NOW;
            for (gap, length, up) in spans {
                let span = at + gap..at + gap + length;
                at = span.end;
                let state = up.map(|up| if up { Presence::Here } else { Presence::Away });
                timeline.push(span.clone(), state);
                recorder.observe(span, up);
            }
            let expected = timeline.bitmap(at, |state| state == Presence::Here);
            prop_assert_eq!(recorder.bitmap.to_bytes(), expected.to_bytes());
        }
    }
}
