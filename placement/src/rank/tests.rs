use std::num::NonZeroU32;

use super::*;

const HOUR: f64 = 3600.0;

/// A machine that fails at one rate at all times.
fn place(speed: f64, load: f64, mttf_hours: f64) -> Place {
    let step = NonZeroU32::new(20).unwrap();
    Place {
        speed,
        load: LoadForecast::constant(load),
        stays: SurvivalCurve::exponential(step, 1800, 1.0 / (mttf_hours * HOUR)),
        failure: Failure::Everything { delay_seconds: 0.0 },
    }
}

fn three() -> [Place; 3] {
    [
        place(1.0, 0.1, 20.0),
        place(2.0, 0.3, 4.0),
        place(1.5, 0.0, 1.0),
    ]
}

/// The same three machines with another cost of a failure.
fn three_with(failure: Failure) -> [Place; 3] {
    three().map(|place| Place { failure, ..place })
}

fn near(found: f64, hours: f64) {
    assert!(
        (found / HOUR - hours).abs() < 6e-5,
        "{} {hours}",
        found / HOUR
    );
}

fn by_place(rated: &[Rated]) -> Vec<Rated> {
    let mut rated = rated.to_vec();
    rated.sort_by_key(|one| one.place);
    rated
}

#[test]
fn falcon_s_rule_takes_the_soonest_and_for_long_jobs_what_gets_most_done() {
    let ranked = |hours: f64| rank(&three(), hours * HOUR, Rule::Falcon);
    let all = by_place(&ranked(1.0));
    let expected = [(1.1111, 1.1432), (0.7143, 0.7868), (0.6667, 1.0986)];
    for (rated, (jct, jctf)) in all.iter().zip(expected) {
        near(rated.done_seconds, jct);
        near(rated.done_with_failures.unwrap(), jctf);
    }
    assert_eq!(ranked(1.0)[0].place, 1);
    let all = by_place(&ranked(3.0));
    near(all[0].done_with_failures.unwrap(), 3.6464);
    near(all[1].done_with_failures.unwrap(), 3.0690);
    assert_eq!((all[2].done_with_failures, ranked(3.0)[0].place), (None, 1));
    let all = by_place(&ranked(8.0));
    near(all[0].done_with_failures.unwrap(), 11.7557);
    assert!(
        all[1..]
            .iter()
            .all(|one| one.done_seconds > one.stays_seconds)
    );
    assert_eq!(ranked(8.0)[0].place, 0);
    let all = by_place(&ranked(30.0));
    assert!(all.iter().all(|one| one.done_seconds > one.stays_seconds));
    for (rated, etl) in all.iter().zip([18.0, 5.6, 1.5]) {
        near(rated.work_until_failure, etl);
    }
    let order: Vec<usize> = ranked(30.0).iter().map(|one| one.place).collect();
    assert_eq!(order, [0, 1, 2]);
}

#[test]
fn the_mean_time_to_failure_goes_beyond_the_curve() {
    let step = NonZeroU32::new(300).unwrap();
    let curve = SurvivalCurve::exponential(step, 120, 1.0 / (6.0 * HOUR));
    assert!((mean_seconds(&curve) / HOUR - 6.000_08).abs() < 5e-6);
    let never = SurvivalCurve::exponential(step, 120, 0.0);
    assert_eq!(mean_seconds(&never), f64::INFINITY);
    let gone = SurvivalCurve::from_estimates(step, [0.0]);
    assert_eq!(mean_seconds(&gone), 150.0);
}

#[test]
fn with_checkpoints_a_fast_machine_that_fails_is_better_than_a_slow_one_that_stays() {
    let places = three_with(Failure::SinceCheckpoint {
        delay_seconds: 0.1 * HOUR,
        lost_seconds: 0.05 * HOUR,
        overhead: 0.02,
    });
    let expected = [
        (1.0, [1.1383, 0.7771, 0.8421]),
        (8.0, [8.9152, 6.9734, 7.6814]),
    ];
    for (hours, expected) in expected {
        for (machine, expected) in places.iter().zip(expected) {
            near(expected_seconds(machine, hours * HOUR, 1.0), expected);
        }
    }
    assert_eq!(rank(&places, 8.0 * HOUR, Rule::Expected)[0].place, 1);
    assert_eq!(rank(&places, 8.0 * HOUR, Rule::Falcon)[0].place, 0);
}

#[test]
fn without_checkpoints_a_failure_costs_the_whole_job() {
    let places = three_with(Failure::Everything {
        delay_seconds: 0.1 * HOUR,
    });
    let expected = [
        (1.0, [1.1403, 0.8340, 1.0218]),
        (8.0, [10.0828, 9.2002, 9.0561]),
    ];
    for (hours, expected) in expected {
        for (machine, expected) in places.iter().zip(expected) {
            near(expected_seconds(machine, hours * HOUR, 1.0), expected);
        }
    }
}

#[test]
fn a_job_that_keeps_nothing_may_have_to_begin_again_more_than_once() {
    let failure = Failure::Everything { delay_seconds: 0.0 };
    // At one failure rate h, a job of length t that begins again takes (e^(h t) - 1) / h on average.
    let machine = place(1.0, 0.0, 4.0);
    near(
        8.0 * HOUR / machine.rate_with_failures(8.0 * HOUR),
        4.0 * (2.0_f64.exp() - 1.0),
    );
    // The fast machine fails once in the time of the job, and so do the others like it. The slow one stays.
    let fast = Place {
        failure,
        ..place(1.2, 0.0, 5.0)
    };
    let slow = Place {
        failure,
        ..place(1.0, 0.0, 200.0)
    };
    let places = [fast.clone(), fast.clone(), fast, slow];
    assert_eq!(rank(&places, 6.0 * HOUR, Rule::Expected)[0].place, 3);
}

#[test]
fn at_speed_one_the_expected_time_is_the_work_and_what_failures_cost() {
    let failure = Failure::SinceCheckpoint {
        delay_seconds: 500.0,
        lost_seconds: 700.0,
        overhead: 0.0,
    };
    let machine = Place {
        failure,
        ..place(1.0, 0.0, 4.0)
    };
    let fails = 1.0 - (-3.0_f64 / 4.0).exp();
    let expected = 3.0 * HOUR + fails * 1200.0;
    assert!((expected_seconds(&machine, 3.0 * HOUR, 1.0) - expected).abs() < 0.1);
}

#[test]
fn checkpoints_are_as_frequent_as_pays_and_none_is_taken_where_nothing_fails() {
    let failure = Failure::with_checkpoints(300.0, 20.0, 2.0, 4000.0);
    let Failure::SinceCheckpoint {
        lost_seconds,
        overhead,
        ..
    } = failure
    else {
        panic!("{failure:?}");
    };
    // Young's interval is sqrt(2 * 20 * 4000) = 400 s.
    assert!((overhead - 20.0 / 420.0).abs() < 1e-12);
    assert!((lost_seconds - 400.0 * 400.0 / 420.0).abs() < 1e-9);
    let never = Failure::with_checkpoints(300.0, 20.0, 2.0, f64::INFINITY);
    assert_eq!(never.overhead(), 0.0);
}

#[test]
fn a_machine_that_does_nothing_is_the_last_one() {
    let places = [
        place(1.0, 1.0, 10.0),
        place(0.0, 0.0, 10.0),
        place(0.1, 0.5, 1.0),
    ];
    for rule in [Rule::Falcon, Rule::Expected] {
        let ranked = rank(&places, 36.0, rule);
        assert_eq!(ranked[0].place, 2, "{ranked:?}");
        assert!(ranked.iter().all(|one| !one.expected_seconds.is_nan()));
    }
    assert!(rank(&[], 1.0, Rule::Expected).is_empty());
}
