//! Small plots as SVG, each with its content as text for those who can't see it.

use maud::{Markup, html};

/// Size of a plot in its own units.
const WIDTH: f64 = 320.0;
const HEIGHT: f64 = 80.0;

/// A line from left to right. `points` are pairs of 0 to 1; the plot is drawn with the origin at the lower
/// left.
pub(crate) struct Plot<'a> {
    pub(crate) heading: &'a str,
    /// The content of the plot, in a sentence.
    pub(crate) says: &'a str,
    /// What the left and the right edge mean.
    pub(crate) edges: [&'a str; 2],
    pub(crate) points: &'a [(f64, f64)],
}

impl Plot<'_> {
    pub(crate) fn markup(&self) -> Markup {
        let points: Vec<String> = self
            .points
            .iter()
            .map(|(x, y)| {
                let x = x.clamp(0.0, 1.0);
                let y = y.clamp(0.0, 1.0);
                format!("{:.1},{:.1}", x * WIDTH, (1.0 - y) * (HEIGHT - 4.0) + 2.0)
            })
            .collect();
        html! {
            figure {
                figcaption { strong { (self.heading) } ": " (self.says) }
                svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(self.says)
                    preserveAspectRatio="none" {
                    line x1="0" y1=(HEIGHT - 1.0) x2=(WIDTH) y2=(HEIGHT - 1.0) {}
                    polyline points=(points.join(" ")) {}
                }
                p.edges aria-hidden="true" { span { (self.edges[0]) } span { (self.edges[1]) } }
            }
        }
    }
}
