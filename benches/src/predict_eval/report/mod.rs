//! The scores as tables and plots.

mod paper;

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};

use super::predictors::{BEST, CLIMATOLOGY, is_baseline};
use super::robustness::{INJECTIONS, Robustness, Table, WINDOW_HOURS};
use super::score::{Measures, Scores};
use super::speed::Speed;
use super::{Evaluation, HORIZON_HOURS, HORIZONS};
use study::plot::{Line, Plot};

/// The paper's average relative error of TR.
const RELATIVE_ERROR_TARGET: f64 = 0.135;
/// The speed-up over the dense recursion that is asked for.
const SPEED_TARGET: f64 = 1000.0;

/// Whether a predictor's name has some role.
type Role = fn(&str) -> bool;

/// Predictors shown in the summary and in the plots, by role: the name among those with the role
/// that has the least Brier score.
const ROLES: [(&str, Role); 6] = [
    ("hazard regression", |name| name == BEST),
    ("SMP, competing risks", |name| {
        name == "SMP, competing risks"
    }),
    ("SMP of the paper", |name| {
        name.starts_with("SMP of the paper")
    }),
    ("best time series", |name| {
        is_baseline(name) && !name.starts_with("SMP")
    }),
    ("window frequency", |name| name.starts_with("same window")),
    ("climatology", |name| name == CLIMATOLOGY),
];

/// The table that is printed: Brier scores by role.
#[must_use]
pub fn summary(evaluations: &[Evaluation]) -> String {
    let mut table = String::from("| trace | horizon | landmarks | survived |");
    let mut rule = String::from("|---|---|---|---|");
    for (role, _) in ROLES {
        let _ = write!(table, " {role} |");
        rule += "---|";
    }
    table += " rel. TR error, clock window (unavoidable) | by host |\n";
    table = table + &rule + "---|---|\n";
    for evaluation in evaluations {
        for (horizon, hours) in HORIZON_HOURS.into_iter().enumerate() {
            table += &summary_row(evaluation, horizon, hours);
        }
    }
    table
}

fn summary_row(evaluation: &Evaluation, horizon: usize, hours: u64) -> String {
    let scores = &evaluation.scores;
    let mut row = format!(
        "| {} | {hours} h | {} | {:.3} |",
        evaluation.trace, scores.landmarks[horizon], scores.survived[horizon]
    );
    for (_, role) in ROLES {
        let brier = best_of(scores, role, horizon).map(|(_, measures)| measures.brier);
        let _ = write!(
            row,
            " {} |",
            brier.map_or("-".into(), |brier| format!("{brier:.4}"))
        );
    }
    let best = scores
        .named(BEST)
        .map(|measures| measures[horizon])
        .unwrap_or_default();
    let _ = writeln!(
        row,
        " {} ({}) | {} |",
        percent(best.relative_error),
        percent(best.unavoidable_relative_error),
        percent(best.host_relative_error)
    );
    row
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{:.1}%", 100.0 * share))
}

/// The predictor with the least Brier score among those with a role.
fn best_of(scores: &Scores, role: Role, horizon: usize) -> Option<(&str, Measures)> {
    let named = scores
        .names
        .iter()
        .zip(&scores.measures)
        .filter(|(name, _)| role(name));
    let named = named.map(|(name, measures)| (name.as_str(), measures[horizon]));
    named.min_by(|a, b| a.1.brier.total_cmp(&b.1.brier))
}

/// Writes `prediction.md` and its plots under `folder`.
///
/// # Errors
/// If a file cannot be written.
pub fn write(
    evaluations: &[Evaluation],
    first_days: &str,
    speed: &Speed,
    folder: &Path,
) -> Result<()> {
    let images = folder.join("img");
    std::fs::create_dir_all(&images).with_context(|| format!("creating {}", images.display()))?;
    for evaluation in evaluations {
        for (kind, plot) in [
            ("brier", brier_plot(evaluation)),
            ("calibration", reliability_plot(evaluation)),
        ] {
            let path = images.join(format!("prediction-{}-{kind}.svg", evaluation.trace));
            std::fs::write(&path, plot.to_svg())
                .with_context(|| format!("writing {}", path.display()))?;
        }
    }
    let path = folder.join("prediction.md");
    std::fs::write(&path, document(evaluations, first_days, speed))
        .with_context(|| format!("writing {}", path.display()))
}

fn document(evaluations: &[Evaluation], first_days: &str, speed: &Speed) -> String {
    let mut text = String::from(include_str!("introduction.md"));
    text += "\n## Summary\n\nBrier scores (less is better). The relative TR errors are those of the \
             hazard regression.\n\n";
    text += &summary(evaluations);
    let _ = write!(text, "\n## The first days of a grid\n\n{first_days}");
    text += "\n## Targets\n\n";
    text += &targets(evaluations, speed);
    for evaluation in evaluations {
        text += &section(evaluation);
    }
    text + &speed_section(speed) + &paper::speed(speed)
}

fn targets(evaluations: &[Evaluation], speed: &Speed) -> String {
    let mut text = String::from(
        "Beat the paper's semi-Markov predictor and every time series model on Brier at every \
         horizon on every trace:\n\n",
    );
    let mut beaten = Vec::new();
    let mut losses = Vec::new();
    let mut errors = Vec::new();
    for evaluation in evaluations {
        for (horizon, hours) in HORIZON_HOURS.into_iter().enumerate() {
            let place = format!("{}, {hours} h", evaluation.trace);
            compare(
                &evaluation.scores,
                horizon,
                &place,
                &mut beaten,
                &mut losses,
            );
            let best = evaluation
                .scores
                .named(BEST)
                .map(|m| m[horizon])
                .unwrap_or_default();
            for (cells, error) in [
                ("clock windows", best.relative_error),
                ("hosts", best.host_relative_error),
            ] {
                if let Some(error) = error.filter(|error| *error >= RELATIVE_ERROR_TARGET) {
                    errors.push(format!("- {place}: {:.1}% over {cells}\n", 100.0 * error));
                }
            }
        }
    }
    text += &list(&beaten, "met everywhere.");
    text += "\nWhere any other predictor has the lower Brier score (difference to it and its 95% \
             interval; an interval that holds zero says nothing either way):\n\n";
    text += &list(&losses, "nowhere.");
    let _ = write!(
        text,
        "\nAverage relative TR error below {:.1}% where TR is not near zero. Not met at:\n\n",
        100.0 * RELATIVE_ERROR_TARGET
    );
    text += &list(&errors, "met everywhere.");
    let ratio = speed.longest().map_or(0.0, |longest| {
        longest.dense.as_secs_f64() / longest.hazard.as_secs_f64()
    });
    let _ = writeln!(
        text,
        "\nSpeed: a ten-hour curve at 6 s steps in 1/{ratio:.0} of the dense recursion's time \
         (asked for: 1/{SPEED_TARGET:.0})."
    );
    text
}

/// Notes the predictors with a lower Brier score than the best: baselines in `beaten`, others in
/// `losses`.
fn compare(
    scores: &Scores,
    horizon: usize,
    place: &str,
    beaten: &mut Vec<String>,
    losses: &mut Vec<String>,
) {
    for (name, measures) in scores.names.iter().zip(&scores.measures) {
        let Some(best) = scores.named(BEST) else {
            continue;
        };
        let behind = measures[horizon].brier - best[horizon].brier;
        if behind < 0.0 && scores.landmarks[horizon] > 0 {
            let (low, high) = measures[horizon].behind_best;
            let line = format!("- {place}: {name}, {behind:.4} ({low:.4} to {high:.4})\n");
            if is_baseline(name) {
                beaten.push(line);
            } else {
                losses.push(line);
            }
        }
    }
}

fn list(lines: &[String], otherwise: &str) -> String {
    if lines.is_empty() {
        format!("{otherwise}\n")
    } else {
        lines.concat()
    }
}

fn section(evaluation: &Evaluation) -> String {
    let name = &evaluation.trace;
    let split = &evaluation.split;
    let mut text = format!(
        "\n## {name}\n\n{} hosts: {}. Fitted on {} days, calibrated on {}, judged on {}.\n\n\
         ![Brier score by horizon](img/prediction-{name}-brier.svg)\n\
         ![Calibration](img/prediction-{name}-calibration.svg)\n",
        evaluation.hosts,
        evaluation.description,
        split.fit.len(),
        split.calibration.len(),
        split.judge.len()
    );
    for (horizon, hours) in HORIZON_HOURS.into_iter().enumerate() {
        text += &horizon_table(&evaluation.scores, horizon, hours);
    }
    text += &availability_section(&evaluation.availability);
    if let Some(robustness) = &evaluation.robustness {
        text += &robustness_section(robustness);
    }
    text + &paper::section(&evaluation.paper)
}

fn horizon_table(scores: &Scores, horizon: usize, hours: u64) -> String {
    if scores.landmarks[horizon] == 0 {
        return format!("\n### {hours} h\n\nNo landmark whose window is wholly known.\n");
    }
    let mut text = format!(
        "\n### {hours} h\n\n{} landmarks, {:.1}% survived.\n\n| predictor | Brier (95%) | skill | log \
         loss | ECE | rel. TR error, clock window | by host |\n|---|---|---|---|---|---|---|\n",
        scores.landmarks[horizon],
        100.0 * scores.survived[horizon]
    );
    let mut rows: Vec<(&String, Measures)> = scores
        .names
        .iter()
        .zip(&scores.measures)
        .map(|(n, m)| (n, m[horizon]))
        .collect();
    rows.sort_by(|a, b| a.1.brier.total_cmp(&b.1.brier));
    for (name, m) in rows {
        let shown = if name == BEST {
            format!("**{name}**")
        } else {
            name.clone()
        };
        let (low, high) = m.brier_interval;
        let _ = writeln!(
            text,
            "| {shown} | {:.4} ({low:.4}-{high:.4}) | {:.3} | {:.3} | {:.3} | {} | {} |",
            m.brier,
            m.skill,
            m.log_loss,
            m.calibration_error,
            percent(m.relative_error),
            percent(m.host_relative_error)
        );
    }
    text
}

fn availability_section(scores: &Scores) -> String {
    let mut text = String::from(
        "\n### Usable at a moment\n\nBrier score of the probability that a host in any known state is \
         usable (in no failure state) after this time, which decides whether a shard can be read.\n\n\
         | predictor |",
    );
    let mut rule = String::from("|---|");
    for hours in HORIZON_HOURS {
        let _ = write!(text, " {hours} h |");
        rule += "---|";
    }
    text = text + "\n" + &rule + "\n";
    for (name, measures) in scores.names.iter().zip(&scores.measures) {
        let _ = write!(text, "| {name} |");
        for measures in measures {
            let _ = write!(text, " {:.4} |", measures.brier);
        }
        text += "\n";
    }
    text
}

fn robustness_section(robustness: &Robustness) -> String {
    let mut text = format!(
        "\n### Injected failures\n\nMean relative change of TR from 8:00 on a weekday when failures of \
         60 to 1800 s are put around 8:00 into some of the 30 weekdays before, over {} hosts.\n",
        robustness.hosts
    );
    for (name, table) in [
        ("SMP of the paper, N=30", robustness.paper),
        (BEST, robustness.hazard),
    ] {
        let _ = write!(text, "\n{name}:\n\n{}", robustness_table(&table));
    }
    text
}

fn robustness_table(table: &Table) -> String {
    let mut text = String::from("| injected |");
    let mut rule = String::from("|---|");
    for hours in WINDOW_HOURS {
        let _ = write!(text, " {hours} h |");
        rule += "---|";
    }
    text = text + "\n" + &rule + "\n";
    for (count, row) in INJECTIONS.iter().zip(table) {
        let _ = write!(text, "| {count} |");
        for change in row {
            let _ = write!(text, " {:.2}% |", 100.0 * change);
        }
        text += "\n";
    }
    text
}

/// Microseconds.
fn micros(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn speed_section(speed: &Speed) -> String {
    let Some(speed) = speed.longest() else {
        return String::new();
    };
    let ratio = |time: std::time::Duration| speed.dense.as_secs_f64() / time.as_secs_f64();
    format!(
        "\n## Speed\n\nTR over ten hours at 6 s steps, all 6001 values, best of several calls in one \
         process on one core. The semi-Markov kernel has 280 holding times in each usable state; the \
         hazard regression starts from the host's summary and includes its covariates.\n\n\
         | method | time | dense / time |\n|---|---|---|\n\
         | equation (3), dense | {:.0} us | 1 |\n| equation (3), sparse | {:.0} us | {:.0} |\n\
         | hazard regression | {:.1} us | {:.0} |\n",
        micros(speed.dense),
        micros(speed.sparse),
        ratio(speed.sparse),
        micros(speed.hazard),
        ratio(speed.hazard)
    )
}

fn brier_plot(evaluation: &Evaluation) -> Plot {
    let lines = ROLES.into_iter().map(|(name, role)| {
        let point = |horizon: usize| {
            let (_, measures) = best_of(&evaluation.scores, role, horizon)?;
            let judged = evaluation.scores.landmarks[horizon] > 0;
            judged.then_some((HORIZON_HOURS[horizon] as f64, measures.brier))
        };
        Line {
            name: name.to_owned(),
            points: (0..HORIZONS).filter_map(point).collect(),
        }
    });
    Plot {
        title: format!("{}: Brier score (less is better)", evaluation.trace),
        x: "horizon, hours".to_owned(),
        y: "Brier".to_owned(),
        lines: lines.collect(),
        diagonal: false,
    }
}

fn reliability_plot(evaluation: &Evaluation) -> Plot {
    let lines = evaluation
        .scores
        .reliability
        .iter()
        .zip(HORIZON_HOURS)
        .map(|(points, hours)| Line {
            name: format!("{hours} h"),
            points: points.clone(),
        });
    Plot {
        title: format!("{}: hazard regression, ten bins each", evaluation.trace),
        x: "predicted TR".to_owned(),
        y: "survived".to_owned(),
        lines: lines.collect(),
        diagonal: true,
    }
}
