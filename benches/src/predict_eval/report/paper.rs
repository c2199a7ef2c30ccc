//! The figures of the paper as tables.

use std::fmt::Write;

use placement::history::DayKind;

use super::super::HORIZON_HOURS;
use super::super::paper::{BY_SHARE, ByHorizon, Errors, PaperFigures};
use super::super::speed::Speed;
use super::micros;

/// The section of one trace: figures 5, 6 and 7.
pub(super) fn section(figures: &PaperFigures) -> String {
    let mut text = String::from(
        "\n### The paper's figures 5, 6 and 7\n\nRelative TR errors: mean (largest; number of cells).\n\n\
         Figure 5, over clock windows:\n\n",
    );
    text += &head("predictor | days");
    for (name, kind, errors) in &figures.by_kind {
        let kind = match kind {
            DayKind::Weekday => "weekdays",
            DayKind::Weekend => "weekends",
        };
        text += &row(&format!("{name} | {kind}"), errors);
    }
    text += "\nFigure 6, by the share of days to learn from; the others are judged:\n\n";
    text += &head("learnt from | predictor");
    for (tenths, by_predictor) in &figures.by_share {
        for (name, errors) in BY_SHARE.iter().zip(by_predictor) {
            text += &row(&format!("{}% | {name}", 10 * tenths), errors);
        }
    }
    text +=
        "\nFigure 7, over hosts, windows from 8:00 of weekdays (the paper prints the largest):\n\n";
    text += &head("predictor");
    for (name, errors) in &figures.from_eight {
        text += &row(name, errors);
    }
    text
}

fn head(columns: &str) -> String {
    let mut text = format!("| {columns} |");
    for hours in HORIZON_HOURS {
        let _ = write!(text, " {hours} h |");
    }
    let rule = "---|".repeat(text.matches('|').count() - 1);
    format!("{text}\n|{rule}\n")
}

fn row(name: &str, errors: &ByHorizon) -> String {
    let mut text = format!("| {name} |");
    for errors in errors {
        match errors {
            Some(Errors {
                cells,
                mean,
                largest,
            }) => {
                let _ = write!(
                    text,
                    " {:.1}% ({:.0}%; {cells}) |",
                    100.0 * mean,
                    100.0 * largest
                );
            }
            None => text += " - |",
        }
    }
    text + "\n"
}

/// Figure 4: time against the length of the window.
pub(super) fn speed(speed: &Speed) -> String {
    let mut text = format!(
        "\n### The paper's figure 4\n\nTime by length of the window; counting Q and H from a month of stays in \
         the same clock window takes {:.0} us more. The paper: up to 2.1 s at a step of 6 s, on a machine of 2006.\n\n\
         | window | equation (3), dense | equation (3), sparse | hazard regression |\n|---|---|---|---|\n",
        micros(speed.counting)
    );
    for (hours, window) in &speed.by_window {
        let _ = writeln!(
            text,
            "| {hours} h | {:.0} us | {:.0} us | {:.1} us |",
            micros(window.dense),
            micros(window.sparse),
            micros(window.hazard)
        );
    }
    text
}
