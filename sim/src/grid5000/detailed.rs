//! Grid'5000 with the published parameters of each cluster.
//!
//! Taken from the paper:
//! - the number of failures of each cluster (table 5);
//! - the shape of the times between groups of failures (Weibull, table 3), the lengths of failures
//!   (lognormal, table 3) and the sizes of groups (Weibull, table 4), all of logarithms to base 2;
//! - the size of the largest cluster;
//! - that there are more events from 8 to 20 h, and fewer on weekends (figure 5, which prints no numbers).
//!
//! Assumed, because the paper does not print it or contradicts itself:
//! - The clusters' sizes: 1,296 nodes, the largest cluster 342, the others in proportion to their largest
//!   group (table 2).
//! - Times between groups are stretched until each cluster has the number of failures of table 5: with the
//!   scale of table 3, small clusters would have up to thirty times as many.
//! - With the lengths of tables 2 and 3, nodes would be available for 99% of the time; the paper states 69%
//!   for the pool and 39% to 98% for the clusters. So there are long absences as well: times in which an
//!   owner takes a cluster or a part of it. They are as frequent as is needed to spread the clusters'
//!   availability evenly over 39% to 98%.
//! - By day there are twice as many events as by night, at a weekend half as many as on other days.

use placement::history::DAY_SECONDS;
use rand::Rng;
use rand::rngs::SmallRng;

use super::{Outages, START, timeline};
use crate::draw::{Purpose, draws, exponential, lognormal, normal, weibull};
use crate::world::{Host, Reading, World};

const HOUR: f64 = 3600.0;
const DAY: f64 = DAY_SECONDS as f64;
/// Length of the paper's trace, days.
pub const STUDY_DAYS: u64 = 548;
/// Processors of a node.
pub const PROCESSORS: u32 = 2;
/// Time before the beginning from which on absences are drawn, so that they are as frequent at the beginning
/// as later.
const WARM_UP_DAYS: f64 = 90.0;

/// What the paper prints about a cluster, and its assumed size and availability.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of failures of nodes in 548 days (table 5).
    pub failures: f64,
    /// Shape and scale of log2 of the seconds between groups of failures (table 3).
    pub gap: [f64; 2],
    /// Mean and standard deviation of ln log2 of the seconds that a failure lasts (table 3).
    pub down: [f64; 2],
    /// Shape and scale of log2 of the nodes of a group (table 4).
    pub size: [f64; 2],
    /// Share of the time for which a node is not absent, 0 to 1.
    pub present: f64,
}

const fn cluster(
    nodes: usize,
    failures: f64,
    gap: [f64; 2],
    down: [f64; 2],
    size: [f64; 2],
    present: f64,
) -> Cluster {
    Cluster {
        nodes,
        failures,
        gap,
        down,
        size,
        present,
    }
}

/// The clusters C1 to C15.
pub const CLUSTERS: [Cluster; 15] = [
    cluster(
        36,
        13003.0,
        [13.32417, 12.76841],
        [2.40913, 0.22558],
        [1.71898, 3.60045],
        0.45,
    ),
    cluster(
        73,
        25432.0,
        [8.82691, 12.14668],
        [2.14771, 0.27527],
        [2.01629, 3.40298],
        0.81,
    ),
    cluster(
        61,
        25892.0,
        [9.49738, 11.50066],
        [2.15353, 0.19601],
        [2.17394, 3.40015],
        0.57,
    ),
    cluster(
        84,
        4749.0,
        [7.19553, 11.29538],
        [2.14365, 0.34139],
        [1.45947, 2.45525],
        0.93,
    ),
    cluster(
        117,
        8222.0,
        [7.88283, 12.18533],
        [2.03851, 0.29664],
        [1.75449, 2.92801],
        0.49,
    ),
    cluster(
        98,
        5750.0,
        [9.64997, 12.41524],
        [2.03350, 0.13773],
        [1.69720, 3.08240],
        0.85,
    ),
    cluster(
        68,
        34546.0,
        [9.96752, 12.37562],
        [2.07713, 0.19244],
        [1.58754, 3.07541],
        0.61,
    ),
    cluster(
        123,
        2876.0,
        [12.94117, 12.58577],
        [2.26752, 0.17555],
        [1.63994, 2.87220],
        0.97,
    ),
    cluster(
        73,
        5349.0,
        [10.71829, 12.41374],
        [2.13891, 0.18302],
        [1.59014, 3.31293],
        0.53,
    ),
    cluster(
        36,
        2161.0,
        [7.79759, 12.09732],
        [1.97464, 0.14232],
        [1.78423, 3.38625],
        0.89,
    ),
    cluster(
        37,
        12901.0,
        [10.21044, 12.29004],
        [2.03296, 0.14878],
        [1.63853, 3.22535],
        0.65,
    ),
    cluster(
        16,
        1123.0,
        [6.60194, 11.54027],
        [2.07510, 0.28043],
        [2.42596, 3.28213],
        0.77,
    ),
    cluster(
        107,
        21131.0,
        [7.29009, 11.47595],
        [2.03505, 0.16220],
        [1.72418, 3.17537],
        0.41,
    ),
    cluster(
        342,
        123353.0,
        [11.88544, 12.47498],
        [1.99036, 0.17595],
        [1.63197, 1.80350],
        0.73,
    ),
    cluster(
        25,
        7417.0,
        [8.11074, 11.49423],
        [2.13636, 0.22205],
        [1.81717, 3.19713],
        0.69,
    ),
];

/// Assumptions where the paper prints nothing.
#[derive(Clone, Copy, Debug)]
pub struct Assumed {
    /// Events in an hour from 8 to 20 h, divided by those in another hour.
    pub day_over_night: f64,
    /// Events on a day of the weekend, divided by those on another day.
    pub weekend_over_week: f64,
    /// Median length of an absence, seconds.
    pub absence_median: f64,
    /// Standard deviation of the natural logarithm of this length.
    pub absence_spread: f64,
    /// Share of absences that take the whole cluster; the others take a uniformly random share of it.
    pub whole: f64,
}

impl Default for Assumed {
    fn default() -> Self {
        Self {
            day_over_night: 2.0,
            weekend_over_week: 0.5,
            absence_median: 2.0 * DAY,
            absence_spread: 1.0,
            whole: 0.5,
        }
    }
}

/// Two clocks of a week: events are drawn with a constant rate on one clock, and the wall clock runs slower
/// in hours with many events.
struct Calendar {
    /// Share of a week's events before each hour of the week, and 1 at the end.
    before: Vec<f64>,
}

impl Calendar {
    fn new(assumed: &Assumed) -> Self {
        let weight = |hour: usize| {
            let by_day = (8..20).contains(&(hour % 24));
            let day = if by_day { assumed.day_over_night } else { 1.0 };
            day * if hour / 24 >= 5 {
                assumed.weekend_over_week
            } else {
                1.0
            }
        };
        let total: f64 = (0..168).map(weight).sum();
        let mut before = vec![0.0];
        for hour in 0..168 {
            before.push(before.last().unwrap_or(&0.0) + weight(hour) / total);
        }
        Self { before }
    }

    /// The time on the wall clock at a time on the clock of events, both in seconds from a Monday, 0:00.
    fn on_the_wall(&self, seconds: f64) -> f64 {
        let week = 7.0 * DAY;
        let share = (seconds / week).rem_euclid(1.0);
        let hour = self.before.partition_point(|before| *before <= share);
        let hour = hour.clamp(1, 168) - 1;
        let [from, to] = [hour, hour + 1].map(|hour| self.before.get(hour).copied().unwrap_or(1.0));
        let within = ((share - from) / (to - from)).clamp(0.0, 1.0);
        (seconds / week).floor() * week + (hour as f64 + within) * HOUR
    }
}

/// Mean of 2^Y for a Weibull number Y, rounded and clamped to 1 to `most`; computed from 20,000 quantiles.
fn mean_of_power(shape: f64, scale: f64, most: f64) -> f64 {
    let steps = 20_000;
    let values = (0..steps).map(|i| {
        let share = (f64::from(i) + 0.5) / f64::from(steps);
        (scale * (-(1.0 - share).ln()).powf(1.0 / shape))
            .exp2()
            .round()
            .clamp(1.0, most)
    });
    values.sum::<f64>() / f64::from(steps)
}

/// The hosts over `days` days, cluster by cluster; the number of a host's cluster is its site. `clusters` are
/// [`CLUSTERS`] or a variant of them.
#[must_use]
pub fn world(seed: u64, days: u64, clusters: &[Cluster], assumed: &Assumed) -> World {
    let calendar = Calendar::new(assumed);
    let mut hosts = Vec::new();
    for (site, cluster) in clusters.iter().enumerate() {
        let mut rng = draws(seed, Purpose::Begin, [days, site as u64, 1]);
        let mut nodes: Vec<Outages> = vec![Vec::new(); cluster.nodes];
        let seconds = (days * DAY_SECONDS) as f64;
        failures(&mut rng, cluster, &calendar, seconds, &mut nodes);
        absences(&mut rng, cluster, &calendar, (seconds, assumed), &mut nodes);
        for node in nodes {
            let timeline = timeline(node, days * DAY_SECONDS);
            let site = u32::try_from(site).ok();
            hosts.push(Host::new(timeline, Vec::new(), site, None, Reading::Gone));
        }
    }
    World::new(hosts, 0)
}

/// Adds groups of failures: neighbouring nodes of the cluster fail together, all for the same time.
fn failures(
    rng: &mut SmallRng,
    cluster: &Cluster,
    calendar: &Calendar,
    seconds: f64,
    nodes: &mut [Outages],
) {
    let count = nodes.len();
    let size = mean_of_power(cluster.size[0], cluster.size[1], count as f64);
    let groups = cluster.failures / size / (STUDY_DAYS as f64 * DAY);
    let longest = f64::MAX;
    let stretch = 1.0 / groups / mean_of_power(cluster.gap[0], cluster.gap[1], longest);
    let mut clock = 0.0;
    loop {
        clock += stretch * weibull(rng, cluster.gap[0], cluster.gap[1]).exp2();
        if clock >= seconds {
            return;
        }
        let begins = calendar.on_the_wall(clock);
        let size = weibull(rng, cluster.size[0], cluster.size[1])
            .exp2()
            .round() as usize;
        let lasts = (cluster.down[0] + cluster.down[1] * normal(rng))
            .exp()
            .exp2();
        let first = rng.random_range(0..count.max(1));
        for i in 0..size.clamp(1, count) {
            if let Some(node) = nodes.get_mut((first + i) % count) {
                node.push((begins, begins + lasts.max(1.0)));
            }
        }
    }
}

/// Adds absences of the cluster or a part of it.
fn absences(
    rng: &mut SmallRng,
    cluster: &Cluster,
    calendar: &Calendar,
    (seconds, assumed): (f64, &Assumed),
    nodes: &mut [Outages],
) {
    // Mean share of the cluster that an absence takes; a uniformly random share is a half on average.
    let share = assumed.whole + (1.0 - assumed.whole) * 0.5;
    let absent = ((1.0 - cluster.present) / share).min(0.95);
    let mean = assumed.absence_median * (0.5 * assumed.absence_spread.powi(2)).exp();
    let between = mean * (1.0 - absent) / absent;
    let mut clock = -WARM_UP_DAYS * DAY + exponential(rng, between);
    while clock < seconds {
        let lasts = lognormal(rng, assumed.absence_median, assumed.absence_spread);
        let begins = calendar.on_the_wall(clock);
        let whole = rng.random::<f64>() < assumed.whole;
        let part = if whole { 1.0 } else { rng.random::<f64>() };
        let taken = (part * nodes.len() as f64).round() as usize;
        let first = rng.random_range(0..nodes.len().max(1));
        let count = nodes.len();
        for i in 0..taken {
            let ends = begins + lasts;
            if let Some(node) = nodes.get_mut((first + i) % count).filter(|_| ends > 0.0) {
                node.push((begins.max(0.0), ends));
            }
        }
        clock += lasts + exponential(rng, between);
    }
}

/// When the world begins, Unix seconds: a Monday.
pub const BEGINS: u64 = START;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_week_is_as_long_by_both_clocks_and_faster_by_day() {
        let calendar = Calendar::new(&Assumed::default());
        let week = 7.0 * DAY;
        for weeks in 0..5 {
            let at = f64::from(weeks) * week;
            assert!((calendar.on_the_wall(at) - at).abs() < 1e-3);
        }
        let mut last = -1.0;
        let mut by_day = 0;
        for i in 0..10_000 {
            let wall = calendar.on_the_wall(week * f64::from(i) / 10_000.0);
            assert!(wall > last && wall < week);
            last = wall;
            let hour = (wall / HOUR) as u64 % 24;
            by_day += u32::from((8..20).contains(&hour));
        }
        assert!((6600..6734).contains(&by_day), "{by_day}");
    }

    #[test]
    fn there_are_1296_nodes() {
        assert_eq!(
            CLUSTERS.iter().map(|cluster| cluster.nodes).sum::<usize>(),
            1296
        );
    }

    #[test]
    fn failures_and_availability_are_as_published() {
        let world = world(1, STUDY_DAYS, &CLUSTERS, &Assumed::default());
        let span = world.span();
        let hosts = world.hosts();
        let mut failures = 0;
        let mut usable = 0;
        for host in hosts {
            let (seconds, count) = host.usable_seconds_and_failures(span.clone());
            failures += count;
            usable += seconds;
        }
        // The paper counts 296 thousand; here some fall into absences and show no change.
        assert!((190_000..320_000).contains(&failures), "{failures}");
        let share = usable as f64 / (hosts.len() as u64 * (span.end - span.start)) as f64;
        assert!((0.63..0.75).contains(&share), "{share}");
    }
}
