//! Line plots as SVG text.

use std::fmt::Write;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 48.0;
/// A line with more points than this has no marks.
const MARKED_MAX: usize = 40;
const COLOURS: [&str; 8] = [
    "#0b62a4", "#d1495b", "#edae49", "#30804a", "#7a5195", "#6b6b6b", "#00a6a6", "#8c564b",
];

/// A line with a mark at each point; without marks if there are many points.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Points as (x, y), in the units of the axes.
    pub points: Vec<(f64, f64)>,
}

/// A plot of lines over a common pair of axes that begin at zero.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Title.
    pub title: String,
    /// Name of the horizontal axis, with its unit.
    pub x: String,
    /// Name of the vertical axis, with its unit.
    pub y: String,
    /// The lines, at most eight: there are no more colours.
    pub lines: Vec<Line>,
    /// Whether to draw the diagonal `x = y`; then both axes end at 1.
    pub diagonal: bool,
}

impl Plot {
    /// The text of an SVG file.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x_max = points().map(|p| p.0).fold(1e-9, f64::max);
        let y_max = points().map(|p| p.1).fold(1e-9, f64::max) * 1.05;
        let (x_max, y_max) = if self.diagonal {
            (1.0, 1.0)
        } else {
            (x_max, y_max)
        };
        let place = |(x, y): (f64, f64)| {
            let across = (WIDTH - LEFT - RIGHT) * x / x_max;
            (
                LEFT + across,
                HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / y_max,
            )
        };
        let mut svg = self.frame();
        for i in 0..=5 {
            let share = f64::from(i) / 5.0;
            let (x, y) = place((share * x_max, share * y_max));
            let bottom = HEIGHT - BOTTOM;
            line(&mut svg, &[(LEFT, y), (WIDTH - RIGHT, y)], "#dddddd");
            let value = label(share * y_max, y_max);
            text(&mut svg, (LEFT - 6.0, y + 4.0), "end", &value);
            let value = label(share * x_max, x_max);
            text(&mut svg, (x, bottom + 18.0), "middle", &value);
        }
        if self.diagonal {
            line(&mut svg, &[place((0.0, 0.0)), place((1.0, 1.0))], "#999999");
        }
        for (i, plotted) in self.lines.iter().enumerate() {
            let colour = COLOURS.get(i % COLOURS.len()).unwrap_or(&"black");
            let placed: Vec<(f64, f64)> = plotted.points.iter().map(|&p| place(p)).collect();
            draw(&mut svg, &placed, colour);
            name(&mut svg, i, &plotted.name, colour);
        }
        svg + "</svg>\n"
    }

    /// The beginning of the file: title and names of the axes.
    fn frame(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        // The name of the vertical axis stands above it, to the left of the title.
        text(&mut svg, (LEFT - 54.0, 20.0), "start", &self.y);
        let right = WIDTH - 8.0;
        text(&mut svg, (right, 20.0), "end", &self.title);
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        text(&mut svg, (middle, HEIGHT - 10.0), "middle", &self.x);
        svg
    }
}

/// Draws a line, with a mark at each point if there are at most [`MARKED_MAX`] points.
fn draw(svg: &mut String, placed: &[(f64, f64)], colour: &str) {
    line(svg, placed, colour);
    if placed.len() > MARKED_MAX {
        return;
    }
    for (x, y) in placed {
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
        );
    }
}

/// Writes the name of a line into the legend beside the plot.
fn name(svg: &mut String, number: usize, name: &str, colour: &str) {
    let y = TOP + 10.0 + 20.0 * number as f64;
    let sample = [(WIDTH - RIGHT + 8.0, y), (WIDTH - RIGHT + 24.0, y)];
    line(svg, &sample, colour);
    text(svg, (WIDTH - RIGHT + 28.0, y + 4.0), "start", name);
}

/// The text of a number on an axis that ends at `largest`.
fn label(value: f64, largest: f64) -> String {
    if largest >= 5.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{escaped}</text>"
    );
}

fn line(svg: &mut String, points: &[(f64, f64)], colour: &str) {
    let points: Vec<String> = points
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let points = points.join(" ");
    let _ = writeln!(
        svg,
        "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_drawn_and_named() {
        let line = |name: &str| Line {
            name: name.into(),
            points: vec![(1.0, 0.1), (3.0, 0.2)],
        };
        let plot = Plot {
            title: "a < b".into(),
            x: "h".into(),
            y: "Brier".into(),
            lines: vec![line("one"), line("two")],
            diagonal: false,
        };
        let svg = plot.to_svg();
        assert!(svg.contains("a &lt; b") && svg.contains(">one<") && svg.contains(">two<"));
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(!svg.contains("NaN"));
    }
}
