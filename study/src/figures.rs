//! The figures of the study, drawn from a pool.

use crate::describe::Pool;
use crate::distribution::{Distribution, Family};
use crate::plot::{Line, Plot};
use crate::sample::Sample;

/// Points that a cumulative distribution is drawn with, about.
const POINTS: usize = 200;
const DAY: f64 = 86_400.0;
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

impl Pool {
    /// Plots with their names: availability over time; cumulative distributions of the times between failures of
    /// the pool, of the failures of a host, of times up and down, and of the sizes of groups; failures and recoveries over the week; fits to the
    /// logarithms of the times between groups and of the times down.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, Plot)> {
        let of_time = self
            .up_share()
            .into_iter()
            .map(|(at, share)| (at / DAY, share));
        let groups = self.groups().iter().map(|group| group.size).collect();
        let hosts = self.failures_of_hosts();
        let correlated = Sample::of_seconds(groups).above(1.0, |size| size);
        let log2 = |sample: &Sample| sample.above(1.0, f64::log2);
        let ups = self.up_times();
        let downs = self.downs_of(None);
        let lengths = vec![
            cumulative("up", &log2(&ups)),
            cumulative("down", &log2(&downs)),
        ];
        let share = "share below";
        vec![
            (
                "availability",
                plot(
                    "Hosts that are up",
                    ["days", "share"],
                    vec![line("up", of_time.collect())],
                ),
            ),
            (
                "pool-mtbf",
                plot(
                    "Times between failures of the pool",
                    ["log2 of seconds", share],
                    vec![cumulative(
                        "gaps above a second",
                        &log2(&self.failure_gaps()),
                    )],
                ),
            ),
            (
                "host-failures",
                plot(
                    "Failures of a host",
                    ["failures", share],
                    vec![cumulative("hosts", &hosts)],
                ),
            ),
            (
                "lengths",
                plot("Times up and down", ["log2 of seconds", share], lengths),
            ),
            ("week", self.week_plot()),
            (
                "group-sizes",
                plot(
                    "Sizes of groups of failures",
                    ["hosts", share],
                    vec![cumulative("groups of two and more", &correlated)],
                ),
            ),
            (
                "group-gaps-fit",
                fit_plot("Time between groups of failures", &log2(&self.group_gaps())),
            ),
            ("down-fit", fit_plot("Times down", &log2(&downs))),
        ]
    }

    /// Failures and recoveries by hour of the day, a line for each day of the week.
    fn week_plot(&self) -> Plot {
        let days = self.week().chunks(24).zip(DAYS);
        let lines = days.map(|(hours, day)| {
            let counted = hours.iter().enumerate();
            line(
                day,
                counted
                    .map(|(hour, [failures, recoveries, _])| {
                        (hour as f64, (failures + recoveries) as f64)
                    })
                    .collect(),
            )
        });
        plot(
            "Failures and recoveries",
            ["hour of the day", "number"],
            lines.collect(),
        )
    }
}

fn plot(title: &str, [x, y]: [&str; 2], lines: Vec<Line>) -> Plot {
    Plot {
        title: title.to_owned(),
        x: x.to_owned(),
        y: y.to_owned(),
        lines,
        diagonal: false,
    }
}

fn line(name: &str, points: Vec<(f64, f64)>) -> Line {
    Line {
        name: name.to_owned(),
        points,
    }
}

/// The cumulative distribution of a sample as a line.
fn cumulative(name: &str, sample: &Sample) -> Line {
    line(name, sample.cumulative(POINTS))
}

/// A plot of the data's cumulative distribution and the five that were fitted to it.
fn fit_plot(title: &str, log2: &Sample) -> Plot {
    let data = cumulative("data", log2);
    let largest = data.points.last().map_or(0.0, |point| point.0);
    let fits = Family::ALL.into_iter().filter_map(|family| {
        let fitted = Distribution::fit(family, log2)?;
        let points = (0..=POINTS).map(|i| largest * i as f64 / POINTS as f64);
        let points = points.map(|x| (x, fitted.below(x))).collect();
        Some(line(family.name(), points))
    });
    let lines = std::iter::once(data.clone()).chain(fits).collect();
    plot(title, ["log2 of seconds", "share below"], lines)
}
