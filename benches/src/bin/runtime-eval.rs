//! Measures how well run times are forecast from a history, by our rule and by AVAM's, for two synthetic
//! programs.
//!
//! `cargo run --release -p benches --bin runtime-eval`

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use supervision::forecast::{INTERVAL_SHARE, Model, PastRun, cost_of_nearest};

/// Number of histories for each row, and of runs that are forecast from each history.
const HISTORIES: u32 = 500;
const FORESEEN: u32 = 10;

/// Seed of all random numbers, so that the table is the same in each run.
const SEED: u64 = 18;

/// The cost of a run as a function of its numbers.
type Cost = fn(&[f64]) -> f64;

/// A program whose cost is known.
struct Program {
    name: &'static str,
    cost: Cost,
}

const PROGRAMS: [Program; 2] = [
    Program {
        name: "1 + 0.0002 steps",
        cost: |numbers| 1.0 + 2e-4 * numbers.get(2).copied().unwrap_or_default(),
    },
    Program {
        name: "5 + 20 first",
        cost: |numbers| 5.0 + 20.0 * numbers.first().copied().unwrap_or_default(),
    },
];

/// Sums over all runs that were forecast, and their count.
#[derive(Default)]
struct Means {
    ours: f64,
    raw: f64,
    inside: f64,
    share: f64,
    count: f64,
}

fn main() {
    println!(
        "| program | history | foreseen | AVAM's mean error | ours | in the interval | promised |"
    );
    println!("|---|---|---|---|---|---|---|");
    for program in &PROGRAMS {
        for history in [10, 30, 100, 300] {
            let means = means(program.cost, history);
            let percent = |sum: f64| format!("{:.1}%", 100.0 * sum / means.count);
            println!(
                "| {} | {history} | {} | {} | {} | {} | {} |",
                program.name,
                means.count,
                percent(means.raw),
                percent(means.ours),
                percent(means.inside),
                percent(means.share),
            );
        }
    }
    println!("\nIntervals should hold {:.0}%.", 100.0 * INTERVAL_SHARE);
}

fn means(cost: Cost, history: usize) -> Means {
    let mut rng = SmallRng::seed_from_u64(SEED);
    let mut means = Means::default();
    for _ in 0..HISTORIES {
        let past: Vec<PastRun> = (0..history).map(|_| draw(&mut rng, cost)).collect();
        let Some(model) = Model::new(&past) else {
            continue;
        };
        for _ in 0..FORESEEN {
            let run = draw(&mut rng, cost);
            let foreseen = model.forecast(&run.numbers);
            let raw = cost_of_nearest(&past, &run.numbers);
            let (Some(foreseen), Some(raw)) = (foreseen, raw) else {
                continue;
            };
            let error = |cost: f64| (cost / run.cost - 1.0).abs();
            means.ours += error(foreseen.cost);
            means.raw += error(raw);
            means.count += 1.0;
            if let Some(interval) = foreseen.interval {
                means.inside += f64::from((interval.low..=interval.high).contains(&run.cost));
                means.share += interval.share;
            }
        }
    }
    means
}

fn draw(rng: &mut SmallRng, cost: Cost) -> PastRun {
    let numbers = vec![
        rng.random_range(0.0..10.0),
        rng.random_range(0.0..1000.0),
        rng.random_range(0.0..1e6),
    ];
    let cost = cost(&numbers);
    PastRun { numbers, cost }
}
