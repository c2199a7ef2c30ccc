use placement::bitmap::{Availability, SLOT_SECONDS, Slot};
use placement::hazard::Forecaster;
use placement::state::{AvailabilityState, Presence, StorageState};
use protocol::wire::learning::Basis;

use super::*;

const DAY: u64 = 86_400;
/// Whole hours since the epoch.
const START: u64 = 1_790_000_000 / 3600 * 3600;

fn id(number: usize) -> HostId {
    HostId(codec::OwnerId([number as u8; 32]))
}

/// What a host sends after `days` days in which it was away for an hour at the beginning of every `period`th
/// hour.
fn fetched(number: usize, days: u64, period: u64) -> Fetched {
    let shipped = HazardModel::pretrained();
    let mut host = Forecaster::<Presence>::learning(START);
    let mut bitmap = AvailabilityBitmap::unknown(Slot(START / SLOT_SECONDS - 1));
    for hour in 0..days * 24 {
        let at = START + hour * 3600;
        let here = !(hour + number as u64).is_multiple_of(period);
        let state = if here { Presence::Here } else { Presence::Away };
        host.observe(&shipped, at..at + 3600, Some(state), None);
        for slot in at / SLOT_SECONDS..(at + 3600) / SLOT_SECONDS {
            let seen = if here {
                Availability::Usable
            } else {
                Availability::NotUsable
            };
            bitmap.record(Slot(slot), seen);
        }
    }
    let step = std::num::NonZeroU32::new(300).unwrap();
    let curve = host.curve(&shipped, step, 120);
    let covariates = host.summary().covariates(shipped.pool());
    let sums = host.sums().unwrap().clone();
    Fetched {
        sums: Some(Learnt {
            model: model_number(&shipped),
            presence: sums.clone(),
            guest: sums,
        }),
        announced: Some(Announced {
            at: START + days * DAY,
            storage_state: StorageState::FullRate,
            guest_state: AvailabilityState::Idle,
            refuses_for_s: 0,
            withheld: None,
            machine: None,
            basis: Some(Basis {
                model: model_number(&shipped),
                presence: covariates.clone(),
                guest: covariates,
            }),
            receives_bytes_per_s: None,
            presence: curve.clone(),
            guest: curve,
            presence_bitmap: bitmap.clone(),
            guest_bitmap: bitmap,
        }),
    }
}

fn all(days: u64, period: u64) -> BTreeMap<HostId, Fetched> {
    (0..24)
        .map(|number| (id(number), fetched(number, days, period)))
        .collect()
}

/// The learning of a machine that collects every day from day `from` to day `to`.
fn after(from: u64, to: u64, period: impl Fn(u64) -> u64) -> (Sources, Models) {
    let mut sources = Sources::default();
    let mut models = Models::default();
    for day in from..=to {
        sources.learn(&mut models, all(day, period(day)), START + day * DAY);
    }
    (sources, models)
}

#[test]
fn a_refit_is_made_on_the_second_day_and_used_on_the_third_if_it_was_better() {
    // Hosts that hardly ever fail.
    let (_, first) = after(8, 8, |_| 10_000);
    assert_eq!(first.presence, ModelState::default());
    let (_, second) = after(8, 9, |_| 10_000);
    assert!(second.presence.candidate.is_some() && second.presence.used.is_none());
    let (_, third) = after(8, 10, |_| 10_000);
    let tried = third.presence.trials.last().unwrap();
    assert!(tried.trial.is_won(), "{tried:?}");
    let used = third.presence.used.as_ref().unwrap();
    assert_eq!((used.hosts, used.at), (24, START + 9 * DAY));
    assert_eq!(third.presence.since, START + 10 * DAY);
    // It changes the forecasts of hosts that send what they are made from.
    let announced = fetched(1, 10, 10_000).announced.unwrap();
    let changed = third.applied_to(announced.clone());
    assert_ne!(changed.presence, announced.presence);
    assert_eq!(changed.presence.steps(), announced.presence.steps());
    let old = Announced {
        basis: None,
        ..announced.clone()
    };
    assert_eq!(third.applied_to(old.clone()), old);
    let mut other = announced;
    other.basis.as_mut().unwrap().model ^= 1;
    assert_eq!(third.applied_to(other.clone()), other);
}

#[test]
fn a_refit_that_does_worse_is_used_no_more() {
    // From day 10 on, hosts that hardly ever failed fail every third hour.
    let (mut sources, mut models) = after(8, 10, |_| 10_000);
    assert!(models.presence.used.is_some());
    sources.learn(&mut models, all(11, 3), START + 11 * DAY);
    assert_eq!(models.presence.used, None);
    assert_eq!(models.presence.since, START + 11 * DAY);
    assert_eq!(models.presence.trials.len(), 2);
}

/// A refit, and a trial with these losses; the refit's comes second.
fn tried_once(state: &mut ModelState, day: u64, losses: (f64, f64)) {
    state.candidate = Some(Candidate {
        at: START + (day - 1) * DAY,
        hosts: 24,
        landmarks: 1000.0,
        model: HazardModel::pretrained(),
    });
    let trial = Trial {
        landmarks: 100,
        shipped: losses.0,
        refitted: losses.1,
    };
    state.decide(trial, START + day * DAY);
}

#[test]
fn the_trials_of_a_week_decide_together() {
    let mut state = ModelState::default();
    // A day that is lost by little after days that were won by more.
    for day in 1..=3 {
        tried_once(&mut state, day, (20.0, 15.0));
    }
    tried_once(&mut state, 4, (20.0, 22.0));
    assert!(state.used.is_some() && state.since == START + DAY);
    // One day that is lost by more than all were won.
    tried_once(&mut state, 5, (20.0, 50.0));
    assert!(state.used.is_none() && state.since == START + 5 * DAY);
    // It counts for a week: seven trials, and eight days.
    for day in 6..=11 {
        tried_once(&mut state, day, (20.0, 19.0));
        assert!(state.used.is_none(), "day {day}");
    }
    tried_once(&mut state, 12, (20.0, 19.0));
    assert!(state.used.is_some());
    tried_once(&mut state, 13, (20.0, 50.0));
    tried_once(&mut state, 21, (20.0, 19.0));
    assert!(state.used.is_some(), "the lost trial is eight days old");
    // Without a forecast to judge, the shipped model is used.
    state.candidate.clone_from(&state.used);
    state.decide(Trial::default(), START + 22 * DAY);
    assert!(state.used.is_none() && state.trials.len() == 14);
}

#[test]
fn sums_are_collected_at_most_once_a_day_and_an_old_refit_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let notebook = dir.path().join("grid.json");
    for day in 8..=10 {
        let now = START + day * DAY;
        let learning = Learning::beside(&notebook, now);
        assert!(learning.is_due(now));
        learning.learn(all(day, 30), now).unwrap();
        let learning = Learning::beside(&notebook, now + 3600);
        assert!(!learning.is_due(now + 3600));
        // Another process that decided earlier to collect changes nothing.
        learning.learn(all(day, 3), now + 3600).unwrap();
        assert_eq!(Learning::beside(&notebook, now).models().collected, now);
    }
    let (_, expected) = after(8, 10, |_| 30);
    let now = START + 10 * DAY;
    let read = Learning::beside(&notebook, now);
    let of = |models: &Models| {
        let used = models.presence.used.as_ref().unwrap();
        let model = &used.model.parameters();
        // Numbers in JSON may differ in the last place.
        let rounded: Vec<f32> = model.iter().map(|number| *number as f32).collect();
        (used.at, used.hosts, models.presence.since, rounded)
    };
    assert_eq!(of(read.models()), of(&expected));
    let late = Learning::beside(&notebook, now + 9 * DAY);
    assert_eq!(late.models().presence.used, None);
    // A clock that was set back makes no collection wait for years.
    assert!(Learning::beside(&notebook, START).is_due(START));
}

#[test]
fn the_file_of_models_is_read_and_written_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("models");
    let sources = dir.path().join("sources");
    let candidate = |at| {
        // Numbers that JSON keeps to the last bit.
        let parameters = HazardModel::pretrained().parameters();
        let parameters = parameters.iter().map(|one| (one * 1024.0).round() / 1024.0);
        let parameters: Vec<f64> = parameters.collect();
        serde_json::json!({"at": at, "hosts": 3, "landmarks": 2.5, "parameters": parameters})
    };
    let file = serde_json::json!({
        "version": 1,
        "collected": 9,
        "presence": {
            "since": 8,
            "used": candidate(7),
            "candidate": candidate(9),
            "trials": [{"at": 8, "landmarks": 40, "shipped": 1.5, "refitted": 1.25}],
        },
        "guest": {"since": 0, "used": null, "candidate": null, "trials": []},
    });
    std::fs::write(&path, file.to_string()).unwrap();
    file::update(&path, &sources, |models, _| {
        assert_eq!(models.presence.trials[0].trial.landmarks, 40);
    })
    .unwrap();
    let written = std::fs::read(&path).unwrap();
    let written: serde_json::Value = serde_json::from_slice(&written).unwrap();
    assert_eq!(written, file);
    let sources: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&sources).unwrap()).unwrap();
    assert_eq!(sources, serde_json::json!({"version": 1, "hosts": []}));
}

#[test]
fn damaged_files_mean_the_shipped_model_and_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let notebook = dir.path().join("grid.json");
    for text in ["", "{}", "letters", r#"{"version":2,"hosts":[]}"#] {
        std::fs::write(notebook.with_extension("model.json"), text).unwrap();
        std::fs::write(notebook.with_extension("sums.json"), text).unwrap();
        let now = START + 8 * DAY;
        let learning = Learning::beside(&notebook, now);
        assert_eq!(*learning.models(), Models::default(), "{text}");
        learning.learn(all(8, 30), now).unwrap();
        assert_eq!(Learning::beside(&notebook, now).models().collected, now);
    }
    assert!(!Learning::default().is_due(START));
    Learning::default().learn(all(8, 30), START).unwrap();
}

#[test]
fn sums_of_another_model_do_not_count_and_hosts_are_forgotten() {
    let mut sources = Sources::default();
    let mut models = Models::default();
    for day in 8..=9 {
        let mut all = all(day, 30);
        for fetched in all.values_mut() {
            fetched.sums.as_mut().unwrap().model ^= 1;
        }
        sources.learn(&mut models, all, START + day * DAY);
    }
    assert_eq!(models.presence.candidate, None);
    assert_eq!(sources.0.len(), 24);
    let one = BTreeMap::from([(id(200), fetched(200, 60, 30))]);
    sources.learn(&mut models, one, START + 60 * DAY);
    assert_eq!(sources.0.len(), 1);
}
