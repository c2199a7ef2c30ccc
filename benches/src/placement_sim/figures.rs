//! Figures of the tables, and how they are written.

use placement::objective::Width;

use super::score::{Estimate, Sums, ratio};
use super::trial::Study;

/// Time that checkpoints hold jobs up, as a share of their work.
pub(super) fn overhead(sums: &[Sums]) -> f64 {
    ratio(sums, |s| s.storing, |s| s.work)
}

/// Makespan over work.
pub(super) fn makespan(sums: &[Sums]) -> f64 {
    ratio(sums, |s| s.makespan, |s| s.work)
}

/// A value times `factor`, with its interval.
pub(crate) fn estimate(of: Estimate, factor: f64, digits: usize) -> String {
    let [value, low, high] = [of.value, of.low, of.high].map(|x| x * factor);
    if !low.is_finite() || !high.is_finite() {
        return format!("{value:.digits$} (unbounded)");
    }
    format!("{value:.digits$} ({low:.digits$} to {high:.digits$})")
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.2}%", 100.0 * share)
}

/// The widest code with which ours costs no more than `most`, and what came of it; the narrowest if
/// none does.
pub(super) fn best_redundancy(study: &Study, most: f64) -> (Width, &[Sums]) {
    let mut of_all = study.redundancy.iter();
    let cheap = of_all.rfind(|(_, sums)| overhead(sums) <= most);
    let chosen = cheap.or(study.redundancy.first());
    chosen.map_or((Width::FALCON, &[]), |(width, sums)| (*width, sums))
}
