//! Whether restores fail as often as was forecast when the hosts of their checkpoints were chosen.

use std::fmt::Write;

use sim::{ForecastRestore, Policy, Target};

use super::score::{INCIDENTS_MIN, incidents};
use super::trial::{OURS, Study};

/// Policies that forecast, in the order of the table.
const JUDGED: [Policy; 5] = [
    OURS,
    Policy::Usual,
    Policy::Auto(Target::P90),
    Policy::Auto(Target::P97),
    Policy::Auto(Target::P99),
];

/// Where bins of forecast probabilities of failure end; the last one ends at 1.
const BIN_ENDS: [f64; 5] = [0.001, 0.003, 0.01, 0.03, 0.1];

/// Expected over seen failures that count as calibrated.
const RATIO: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// Fewest distinct incidents in a bin for a verdict on it.
const INCIDENTS_OF_BIN_MIN: usize = 10;

/// Restores that were forecast to fail with about the same probability.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bin {
    restores: usize,
    /// Sum of the forecast probabilities.
    expected: f64,
    seen: usize,
    /// Distinct incidents in which these restores failed.
    incidents: usize,
}

impl Bin {
    fn of<'a>(restores: impl Iterator<Item = &'a ForecastRestore> + Clone) -> Self {
        let failed_at = restores.clone().filter_map(|restore| restore.failed_at);
        Self {
            restores: restores.clone().count(),
            expected: restores.map(|restore| restore.fails.value()).sum(),
            seen: failed_at.clone().count(),
            incidents: incidents(failed_at),
        }
    }

    fn ratio(&self) -> f64 {
        self.expected / self.seen as f64
    }

    /// Whether as many restores failed as expected; `None` with fewer than `least` incidents.
    fn is_calibrated(&self, least: usize) -> Option<bool> {
        (self.incidents >= least).then(|| RATIO.contains(&self.ratio()))
    }

    fn row(&self, verdict: &str) -> String {
        let ratio = match self.seen {
            0 => "-".to_owned(),
            _ => format!("{:.2}", self.ratio()),
        };
        format!(
            "{} | {:.1} | {} | {} | {ratio} | {verdict} |",
            self.restores, self.expected, self.seen, self.incidents
        )
    }
}

/// All restores, and then those of each bin.
fn binned(restores: &[ForecastRestore]) -> (Bin, Vec<Bin>) {
    let of = |bin: usize| {
        let inside = move |restore: &&ForecastRestore| bin_of(restore.fails.value()) == bin;
        Bin::of(restores.iter().filter(inside))
    };
    let bins = (0..=BIN_ENDS.len()).map(of);
    (Bin::of(restores.iter()), bins.collect())
}

/// The bin of a forecast probability of failure.
fn bin_of(fails: f64) -> usize {
    BIN_ENDS.partition_point(|end| *end <= fails)
}

/// What a bin holds, in words.
fn name(bin: usize) -> String {
    let end = BIN_ENDS.get(bin).copied().unwrap_or(1.0);
    match bin.checked_sub(1).and_then(|before| BIN_ENDS.get(before)) {
        None => format!("below {end}"),
        Some(start) => format!("{start} to {end}"),
    }
}

const fn said(is_calibrated: Option<bool>) -> &'static str {
    match is_calibrated {
        None => "no verdict",
        Some(true) => "met",
        Some(false) => "missed",
    }
}

/// Failures expected and seen, by trace, policy and forecast. Bins without restores are left out.
pub(super) fn table(studies: &[Study]) -> String {
    let mut table = String::from(
        "| trace | policy | forecast to fail | restores | expected | seen | incidents | expected / seen (aim 0.5 to 2) | verdict |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for study in studies {
        let judged = study.main.forecasts.iter();
        for (policy, restores) in judged.filter(|(policy, _)| JUDGED.contains(policy)) {
            let (all, bins) = binned(restores);
            let verdict = all.is_calibrated(INCIDENTS_MIN);
            let start = format!("| {} | {} |", study.case.name, policy.name());
            let _ = writeln!(table, "{start} all | {}", all.row(said(verdict)));
            for (number, bin) in bins.iter().enumerate().filter(|(_, bin)| bin.restores > 0) {
                let least = INCIDENTS_OF_BIN_MIN;
                let of_bin = verdict.and_then(|_| bin.is_calibrated(least));
                let _ = writeln!(
                    table,
                    "{start} {} | {}",
                    name(number),
                    bin.row(said(of_bin))
                );
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use placement::Probability;

    use super::*;

    fn restore(fails: f64, failed_at: Option<u64>) -> ForecastRestore {
        ForecastRestore {
            fails: Probability::new(fails).unwrap(),
            failed_at,
        }
    }

    #[test]
    fn a_forecast_is_in_the_bin_that_names_it() {
        let names = [0.0, 0.001, 0.0099, 0.05, 0.1, 1.0].map(|fails| name(bin_of(fails)));
        let expected = [
            "below 0.001",
            "0.001 to 0.003",
            "0.003 to 0.01",
            "0.03 to 0.1",
            "0.1 to 1",
            "0.1 to 1",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn failures_of_a_bin_are_held_against_its_forecasts() {
        // Of a hundred restores that fail with 0.02, two are expected to; six do, in three incidents.
        let mut restores = vec![restore(0.02, None); 94];
        restores
            .extend([0, 0, 100_000, 100_500, 900_000, 901_000].map(|at| restore(0.02, Some(at))));
        restores.push(restore(0.5, Some(100_100)));
        let (all, bins) = binned(&restores);
        let of_bin = bins[bin_of(0.02)];
        assert_eq!(
            (of_bin.restores, of_bin.seen, of_bin.incidents),
            (100, 6, 3)
        );
        assert!((of_bin.expected - 2.0).abs() < 1e-9);
        assert_eq!((all.restores, all.seen, all.incidents), (101, 7, 3));
        assert_eq!(bins.iter().map(|bin| bin.restores).sum::<usize>(), 101);
        assert!(of_bin.row("met").ends_with("| 0.33 | met |"));
        assert!(bins[0].row("no verdict").contains("| - |"));
    }

    #[test]
    fn few_incidents_give_no_verdict() {
        let failing = |count: u64, fails| {
            let restores = (0..count).map(|i| restore(fails, Some(10_000 * i)));
            binned(&restores.collect::<Vec<_>>()).0
        };
        assert_eq!(failing(9, 0.6).is_calibrated(10), None);
        assert_eq!(failing(10, 0.6).is_calibrated(10), Some(true));
        assert_eq!(failing(10, 0.4).is_calibrated(10), Some(false));
    }
}
