//! Tables 6 and 7 of the paper, with our results beside the paper's.

use std::fmt::Write;

use sim::batch::Outcome;

use super::{MODELS, Model, PUBLISHED_JOBS};

/// Largest relative difference of AMA (1 h) from KA, as a share.
const DIFFERENCE_MAX: f64 = 0.01;
/// Submission failures of HMA (1 week) for each execution failure, in the paper's words.
const FAILURE_RATIO: std::ops::RangeInclusive<f64> = 10.0..=15.0;

/// The tables in Markdown. `seeds` has the outcomes of each seed in the order of [`MODELS`].
#[must_use]
pub fn report(seeds: &[Vec<Outcome>]) -> String {
    let mut text = String::new();
    let of_model = |model: usize| seeds.iter().filter_map(move |seed| seed.get(model));
    text += "| model | utilisation % | throughput | goodput s | wait s | response s |\n|---|---|---|---|---|---|\n";
    for (
        number,
        Model {
            name, published, ..
        },
    ) in MODELS.iter().enumerate()
    {
        let mut means = [0.0; 5];
        for outcome in of_model(number) {
            for (mean, metric) in means.iter_mut().zip(outcome.metrics().all()) {
                *mean += metric / seeds.len() as f64;
            }
        }
        let [utilisation, throughput, goodput, wait, response] = means;
        let [a, b, c, d, e] = published.0;
        let _ = writeln!(
            text,
            "| {name} | {:.1} ({a}) | {throughput:.2} ({b}) | {goodput:.0} ({c}) | {wait:.0} ({d}) | {response:.0} ({e}) |",
            100.0 * utilisation
        );
    }
    text += "\n| model | submitted | completed | submission failures | execution failures | ratio |\n|---|---|---|---|---|---|\n";
    for (
        number,
        Model {
            name, published, ..
        },
    ) in MODELS.iter().enumerate()
    {
        let mean = |of: fn(&Outcome) -> u64| {
            of_model(number).map(of).sum::<u64>() as f64 / seeds.len() as f64
        };
        let [submission, execution] = published.1;
        let ours = [
            mean(|one| one.submission_failures),
            mean(|one| one.execution_failures),
        ];
        let ratio = |submission: f64, execution: f64| match execution {
            0.0 => "-".to_owned(),
            _ => format!("{:.1}", submission / execution),
        };
        let _ = writeln!(
            text,
            "| {name} | {:.0} ({PUBLISHED_JOBS}) | {:.0} ({}) | {:.0} ({submission}) | {:.0} ({execution}) | {} ({}) |",
            mean(|one| one.submitted),
            mean(|one| one.completed),
            PUBLISHED_JOBS - submission - execution,
            ours[0],
            ours[1],
            ratio(ours[0], ours[1]),
            ratio(submission as f64, execution as f64),
        );
    }
    text + &targets(seeds)
}

fn place(name: &str) -> usize {
    MODELS
        .iter()
        .position(|model| model.name == name)
        .unwrap_or(0)
}

fn targets(seeds: &[Vec<Outcome>]) -> String {
    let outcome = |seed: &[Outcome], name: &str| seed.get(place(name)).copied().unwrap_or_default();
    let mut apart = [[0.0f64; 2]; 5];
    let mut ratios = Vec::new();
    for seed in seeds {
        let known = outcome(seed, "KA").metrics().all();
        let hourly = outcome(seed, "AMA (1 h)").metrics().all();
        for (([mean, largest], known), hourly) in apart.iter_mut().zip(known).zip(hourly) {
            let off = hourly / known - 1.0;
            *mean += off / seeds.len() as f64;
            *largest = largest.max(off.abs());
        }
        let weekly = outcome(seed, "HMA (1 week)");
        ratios.push(weekly.submission_failures as f64 / weekly.execution_failures.max(1) as f64);
    }
    let met = |is_met: bool| if is_met { "met" } else { "not met" };
    let names = ["utilisation", "throughput", "goodput", "wait", "response"];
    let far = names.iter().zip(apart).map(|(name, [mean, largest])| {
        format!("{name} {:+.2}% ({:.2}%)", 100.0 * mean, 100.0 * largest)
    });
    let all: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.1}")).collect();
    let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
    format!(
        "\nAMA (1 h) within 1% of KA on the mean of {} seeds: {}; mean (largest of a seed): {}.\n\
         HMA (1 week), submission failures over execution failures: {mean:.1}, by seed {} \
         (asked for: {} to {}; {}).\n",
        seeds.len(),
        met(apart.iter().all(|[mean, _]| mean.abs() <= DIFFERENCE_MAX)),
        far.collect::<Vec<_>>().join(", "),
        all.join(", "),
        FAILURE_RATIO.start(),
        FAILURE_RATIO.end(),
        met(FAILURE_RATIO.contains(&mean)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_judged_by_their_numbers() {
        let good = Outcome {
            submitted: 100,
            completed: 90,
            submission_failures: 120,
            execution_failures: 10,
            available: 1e6,
            used: 1e5,
            completed_work: 1e5,
            waited: 90.0,
            responded: 900.0,
        };
        let text = report(&[vec![good; 7]]);
        assert!(
            text.contains("1 seeds: met") && text.contains("12.0, by seed 12.0"),
            "{text}"
        );
        let mut seed = vec![good; 7];
        seed[3].waited = 92.0;
        seed[4].submission_failures = 90;
        let text = report(&[seed]);
        assert!(
            text.contains("seeds: not met") && text.contains("wait +2.22%"),
            "{text}"
        );
        assert!(text.contains("to 15; not met"), "{text}");
    }
}
