//! What is lost in an eviction, over notice, line and rate of change, as a table and as a picture.

use std::fmt::Write as _;

use super::{LAB, Lab, fates};

/// Evictions of each cell.
const EVICTIONS: u64 = 60;

const NOTICES_S: [f64; 3] = [0.0, 30.0, 120.0];
const LINES_MBIT: [f64; 3] = [20.0, 100.0, 1000.0];
const RATES_MB: [f64; 3] = [1.0, 5.0, 20.0];
/// The share of the state in which blocks change.
const CHANGING: [(f64, &str); 2] = [(1.0, "anywhere"), (0.01, "in 1% of it")];

/// A cell of the table.
struct Cell {
    /// Seconds of work lost: the median of the evictions, and what one in twenty exceeds.
    median_s: f64,
    high_s: f64,
    /// Whether some of the evictions were announced as more than the line can keep up with.
    is_limited: bool,
}

fn cell(lab: Lab) -> Cell {
    let fates = fates(lab, 0..EVICTIONS);
    let lost = |is_saved: bool, unsaved: f64| if is_saved { 0.0 } else { unsaved };
    let mut losses: Vec<f64> = fates
        .iter()
        .map(|fate| lost(fate.is_saved, fate.unsaved_s))
        .collect();
    losses.sort_by(f64::total_cmp);
    let at = |share: f64| losses[((losses.len() - 1) as f64 * share).round() as usize];
    Cell {
        median_s: at(0.5),
        high_s: at(0.95),
        is_limited: fates.iter().any(|fate| fate.limited),
    }
}

/// All cells of one notice, by line; in each, by rate and pattern.
fn rows(grace_s: f64) -> Vec<Vec<Cell>> {
    let of = |rate: f64, changing: f64| {
        let lines = LINES_MBIT.iter();
        let cells = lines.map(|line| {
            cell(Lab {
                changed_bytes_per_s: rate * 1e6,
                changing,
                line_bytes_per_s: line * 1e6 / 8.0,
                grace_s,
                ..LAB
            })
        });
        cells.collect()
    };
    let patterns = RATES_MB
        .iter()
        .flat_map(|rate| CHANGING.iter().map(|(changing, _)| (*rate, *changing)));
    patterns
        .map(|(rate, changing)| of(rate, changing))
        .collect()
}

const CELL: (usize, usize) = (110, 26);
const LEFT: usize = 170;
const TOP: usize = 50;

fn text(cell: &Cell) -> String {
    let limit = if cell.is_limited { "*" } else { "" };
    format!("{:.0} s, {:.0} s{limit}", cell.median_s, cell.high_s)
}

/// Green up to ten seconds, yellow up to a minute, red beyond.
const fn colour(high_s: f64) -> &'static str {
    if high_s <= 10.5 {
        "#b7e1b0"
    } else if high_s <= 60.0 {
        "#f5e6a1"
    } else {
        "#f0b8ae"
    }
}

fn picture(panels: &[(f64, Vec<Vec<Cell>>)]) -> String {
    let (width, height) = CELL;
    let count = RATES_MB.len() * CHANGING.len();
    let across = LEFT + panels.len() * (LINES_MBIT.len() * width + 20);
    let down = TOP + count * height + 10;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {across} {down}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <title>Work lost in an eviction, over notice, line and rate of change</title>\n\
         <rect width=\"{across}\" height=\"{down}\" fill=\"white\"/>\n"
    );
    let mut line = |x: usize, y: usize, words: &str| {
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\">{words}</text>");
    };
    for (row, rate) in (0..count).map(|row| (row, RATES_MB[row / CHANGING.len()])) {
        let (_, pattern) = CHANGING[row % CHANGING.len()];
        line(
            8,
            TOP + row * height + 18,
            &format!("{rate} MB/s {pattern}"),
        );
    }
    for (panel, (notice, _)) in panels.iter().enumerate() {
        let x = LEFT + panel * (LINES_MBIT.len() * width + 20);
        line(x, 18, &format!("notice {notice} s"));
        for (column, mbit) in LINES_MBIT.iter().enumerate() {
            line(x + column * width + 4, 40, &format!("{mbit} Mbit/s"));
        }
    }
    for (panel, (_, rows)) in panels.iter().enumerate() {
        for (row, cells) in rows.iter().enumerate() {
            for (column, cell) in cells.iter().enumerate() {
                let x = LEFT + panel * (LINES_MBIT.len() * width + 20) + column * width;
                let y = TOP + row * height;
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\
                     <text x=\"{}\" y=\"{}\">{}</text>",
                    width - 2,
                    height - 2,
                    colour(cell.high_s),
                    x + 4,
                    y + 17,
                    text(cell)
                );
            }
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Prints the table, and the picture that `docs/use/img/ahead.svg` is:
/// `cargo test -p supervision --test saved_ahead --release over_notice -- --ignored --nocapture | sed -n '/^<svg/,/^<.svg>/p'`.
#[test]
#[ignore = "minutes of work"]
fn what_an_eviction_costs_over_notice_line_and_rate() {
    let panels: Vec<_> = NOTICES_S
        .iter()
        .map(|grace| (*grace, rows(*grace)))
        .collect();
    for (notice, rows) in &panels {
        println!("\nnotice {notice} s | {LINES_MBIT:?} Mbit/s");
        for (row, cells) in rows.iter().enumerate() {
            let (_, pattern) = CHANGING[row % CHANGING.len()];
            let cells: Vec<String> = cells.iter().map(text).collect();
            println!(
                "{} MB/s {pattern} | {}",
                RATES_MB[row / CHANGING.len()],
                cells.join(" | ")
            );
        }
    }
    print!("{}", picture(&panels));
    // With half a minute and a line that carries it, nothing is lost.
    let (_, rows) = &panels[1];
    assert!(rows[2][1].high_s == 0.0 && rows[2][2].high_s == 0.0);
    // Without any notice, what the line carries is lost in part: the work since the last save.
    let (_, none) = &panels[0];
    assert!(none[2][2].median_s > 0.0);
}
