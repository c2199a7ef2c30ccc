use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

fn runs(all: &[(&[f64], f64)]) -> Vec<PastRun> {
    let run = |(numbers, cost): &(&[f64], f64)| PastRun {
        numbers: numbers.to_vec(),
        cost: *cost,
    };
    all.iter().map(run).collect()
}

fn four() -> Vec<PastRun> {
    runs(&[
        (&[100.0], 12.0),
        (&[200.0], 22.0),
        (&[400.0], 41.0),
        (&[800.0], 83.0),
    ])
}

#[test]
fn the_nearest_three_count_by_their_distance() {
    let model = Model::new(&four()).unwrap();
    // The weight is 1 / spread, since the rank correlation of these runs is 1.
    assert!((1.0 / model.scale[0] - 268.095_13).abs() < 1e-5);
    let cost = |number: f64| model.forecast(&[number]).unwrap().cost;
    assert!((cost(300.0) - 24.998_78).abs() < 1e-5, "{}", cost(300.0));
    assert!((cost(200.0) - 22.0).abs() < 1e-5, "{}", cost(200.0));
    assert!(model.forecast(&[1.0, 2.0]).is_none());
    assert_eq!(cost_of_nearest(&four(), &[310.0]), Some(41.0));
}

#[test]
fn few_runs_make_an_interval_that_promises_less() {
    let of = |count: usize| {
        let model = Model::new(&four()[..count]).unwrap();
        model.forecast(&[250.0]).unwrap()
    };
    assert_eq!(of(1).interval, None);
    let share = |count| of(count).interval.unwrap().share;
    assert!((share(2) - 1.0 / 3.0).abs() < 1e-12);
    assert!((share(4) - 0.6).abs() < 1e-12);
    let interval = of(4).interval.unwrap();
    assert!(interval.low < of(4).cost && of(4).cost < interval.high);
    assert_eq!(Model::new(&[]).map(|_| ()), None);
}

#[test]
fn the_same_command_each_time_is_forecast_from_its_last_three_runs() {
    let past = runs(&[(&[], 1000.0), (&[], 8.0), (&[], 10.0), (&[], 12.5)]);
    let forecast = Model::new(&past).unwrap().forecast(&[]).unwrap();
    assert!((forecast.cost - 10.0).abs() < 1e-9, "{forecast:?}");
    assert_eq!(cost_of_nearest(&past, &[]), Some(12.5));
}

#[test]
fn values_outside_of_all_earlier_runs_are_named_and_odd_runs_are_passed_over() {
    let mut past = runs(&[(&[1.0, 5.0], 1.0), (&[2.0, 5.0], 2.0), (&[3.0, 5.0], 3.0)]);
    past.insert(0, runs(&[(&[1.0], 7.0)]).remove(0));
    past.insert(1, runs(&[(&[1.0, f64::NAN], 7.0)]).remove(0));
    past.insert(2, runs(&[(&[1.0, 5.0], 0.0)]).remove(0));
    let model = Model::new(&past).unwrap();
    let forecast = model.forecast(&[2.5, 6.0]).unwrap();
    assert_eq!((forecast.runs, forecast.outside), (3, vec![1]));
    // A number that never differed does not influence the forecast.
    assert_eq!(
        model.forecast(&[2.0, 5.0]).map(|one| one.cost),
        model.forecast(&[2.0, 6.0]).map(|one| one.cost)
    );
}

#[test]
fn the_number_of_runs_that_count_is_limited_to_the_newest() {
    let mut past = runs(&[(&[1.0], 1e9)]);
    past.extend((0..RUNS_MAX).map(|_| runs(&[(&[1.0], 5.0)]).remove(0)));
    assert_eq!(Model::new(&past).unwrap().runs.len(), RUNS_MAX);
}

/// The mean errors of our rule and of AVAM's, and how often the cost lay in its interval. Over 60 draws
/// of 10 runs, each with 100 earlier ones.
fn eval(cost: fn(&[f64]) -> f64) -> (f64, f64, f64) {
    let mut rng = SmallRng::seed_from_u64(18);
    let mut ours = 0.0;
    let mut raw = 0.0;
    let mut inside = 0.0;
    let mut count = 0.0;
    let mut draw = || {
        let numbers = vec![
            rng.random_range(0.0..10.0),
            rng.random_range(0.0..1000.0),
            rng.random_range(0.0..1e6_f64),
        ];
        let cost = cost(&numbers);
        PastRun { numbers, cost }
    };
    for _ in 0..60 {
        let past: Vec<PastRun> = (0..100).map(|_| draw()).collect();
        let model = Model::new(&past).unwrap();
        for _ in 0..10 {
            let run = draw();
            let forecast = model.forecast(&run.numbers).unwrap();
            let interval = forecast.interval.unwrap();
            let error = |cost: f64| (cost / run.cost - 1.0).abs();
            ours += error(forecast.cost);
            raw += error(cost_of_nearest(&past, &run.numbers).unwrap());
            inside += f64::from((interval.low..=interval.high).contains(&run.cost));
            count += 1.0;
        }
    }
    (ours / count, raw / count, inside / count)
}

/// A program as many are: it takes time to start, and then for each step of each cell.
#[test]
fn neighbours_correct_a_power_law_where_it_helps() {
    let mut rng = SmallRng::seed_from_u64(7);
    let mut draw = || {
        let numbers = vec![
            rng.random_range(5.0..14.0_f64),
            rng.random_range(50.0..800.0),
        ];
        let cost = 0.4 + 2e-6 * numbers[0].powi(3) * numbers[1];
        PastRun { numbers, cost }
    };
    let past: Vec<PastRun> = (0..60).map(|_| draw()).collect();
    let model = Model::new(&past).unwrap();
    assert!(model.trend.is_some());
    let plain = Model {
        trend: None,
        ..model.clone()
    };
    let mut with_law = 0.0;
    let mut without = 0.0;
    for _ in 0..60 {
        let run = draw();
        let error = |model: &Model| {
            let forecast = model.forecast(&run.numbers).unwrap();
            (forecast.cost / run.cost - 1.0).abs()
        };
        with_law += error(&model);
        without += error(&plain);
    }
    assert!(with_law < 0.7 * without, "{with_law} {without}");
    // A cost that does not follow the numbers is left to the neighbours.
    let constant: Vec<PastRun> = past
        .into_iter()
        .map(|run| PastRun { cost: 5.0, ..run })
        .collect();
    let forecast = Model::new(&constant).unwrap().forecast(&[6.0, 100.0]);
    assert!((forecast.unwrap().cost - 5.0).abs() < 1e-9);
}

#[test]
fn after_a_hundred_runs_the_mean_error_is_below_that_of_the_paper_whatever_the_units() {
    let by_steps: fn(&[f64]) -> f64 = |numbers| 1.0 + 2e-4 * numbers[2];
    let by_first: fn(&[f64]) -> f64 = |numbers| 5.0 + 20.0 * numbers[0];
    let (ours, raw, inside) = eval(by_steps);
    assert!(ours < 0.10 && raw < 0.06, "steps: {ours} {raw} {inside}");
    assert!((inside - 0.9).abs() < 0.04, "steps: {inside}");
    let (ours, raw, inside) = eval(by_first);
    assert!(ours < 0.10 && raw > 1.0, "first: {ours} {raw}");
    assert!((inside - 0.9).abs() < 0.04, "first: {inside}");
}
