//! A synthetic world after the availability of Grid'5000 (Iosup et al. 2007).
//!
//! 1,296 nodes in 15 clusters, one of them with 342. Nodes are up for 45 hours and down for 14 on
//! average, and clusters differ as much as their shares of all failures do (table 5 of the paper).
//! Some of the failures come in bursts: several nodes of one cluster fail within a minute. The fits of
//! the paper are of base-2 logarithms, so a burst comes `2^(12.24 W(9.67))` seconds after the one before,
//! hits `2^(2.61 W(1.59))` nodes and lasts `2^exp(N(2.34, 0.26))` seconds, where `W(k)` is a Weibull number
//! of shape k and scale 1, and `N(m, s)` a normal number of mean m and standard deviation s.
//!
//! [`detailed`] is closer to the paper: it has the published parameters of each cluster, differences between
//! the hours of a week, and absences of whole clusters.

pub mod detailed;

use placement::history::{DAY_SECONDS, Timeline};
use placement::state::AvailabilityState;
use rand::Rng;
use rand::rngs::SmallRng;

use crate::draw::{Purpose, draws, exponential, lognormal, normal, weibull};
use crate::world::{Host, Reading, World};

/// When the world begins, Unix seconds: a Monday.
pub const START: u64 = 4 * DAY_SECONDS;

/// Nodes of each cluster and its share of all failures. The paper prints the size of the largest cluster;
/// the others are assumed to be equal.
const CLUSTERS: [(usize, f64); 15] = [
    (68, 0.044),
    (68, 0.086),
    (68, 0.088),
    (68, 0.016),
    (68, 0.027),
    (68, 0.019),
    (68, 0.117),
    (68, 0.009),
    (68, 0.018),
    (68, 0.007),
    (68, 0.043),
    (68, 0.003),
    (68, 0.071),
    (342, 0.419),
    (68, 0.033),
];
const HOUR: f64 = 3600.0;

/// Mean time up of a node without bursts. Bursts hit a node each 150 hours; with them the mean is 45 hours.
const OWN_UP_SECONDS: f64 = 64.0 * HOUR;
/// Median of the lognormal time down, which has a mean of 14 hours and a standard deviation of 13.4 hours.
const DOWN_MEDIAN_SECONDS: f64 = 10.1 * HOUR;
/// Standard deviation of the natural logarithm of the time down.
const DOWN_SPREAD: f64 = 0.8;
/// Longest outage of a burst.
const BURST_SECONDS_MAX: f64 = 30.0 * 24.0 * HOUR;

/// Times in which a node is down, in seconds since the beginning.
type Outages = Vec<(f64, f64)>;

/// The hosts over `days` days; the number of a host's cluster is its site.
#[must_use]
pub fn world(seed: u64, days: u64) -> World {
    let mut rng = draws(seed, Purpose::Begin, [days, 0, 0]);
    let seconds = (days * DAY_SECONDS) as f64;
    let nodes: usize = CLUSTERS.iter().map(|(size, _)| size).sum();
    let failures: f64 = CLUSTERS.iter().map(|(_, share)| share).sum();
    let mut clusters: Vec<Vec<Outages>> = CLUSTERS
        .iter()
        .map(|(size, share)| {
            let restlessness = (share / failures) / (*size as f64 / nodes as f64);
            let node = |_| own(&mut rng, seconds, OWN_UP_SECONDS / restlessness);
            (0..*size).map(node).collect()
        })
        .collect();
    bursts(&mut rng, seconds, failures, &mut clusters);
    let hosts = clusters.into_iter().enumerate().flat_map(|(site, nodes)| {
        nodes.into_iter().map(move |down| {
            let timeline = timeline(down, days * DAY_SECONDS);
            let site = u32::try_from(site).ok();
            Host::new(timeline, Vec::new(), site, None, Reading::Gone)
        })
    });
    World::new(hosts.collect(), 0)
}

/// Outages of one node, apart from bursts.
fn own(rng: &mut SmallRng, seconds: f64, mean_up: f64) -> Outages {
    let mut outages = Vec::new();
    let mut now = exponential(rng, mean_up);
    while now < seconds {
        let lasts = lognormal(rng, DOWN_MEDIAN_SECONDS, DOWN_SPREAD);
        outages.push((now, now + lasts));
        now += lasts + exponential(rng, mean_up);
    }
    outages
}

/// Adds outages of several nodes of a cluster at once.
fn bursts(rng: &mut SmallRng, seconds: f64, failures: f64, clusters: &mut [Vec<Outages>]) {
    let mut now = 0.0;
    loop {
        now += (12.238 * weibull(rng, 9.668, 1.0)).exp2();
        if now >= seconds {
            return;
        }
        let size = (2.614 * weibull(rng, 1.585, 1.0)).exp2().round() as usize;
        let lasts = (2.339 + 0.2636 * normal(rng)).exp().exp2();
        let mut left = failures * rng.random::<f64>();
        let site = CLUSTERS.iter().position(|(_, share)| {
            left -= share;
            left < 0.0
        });
        let Some(nodes) = site.and_then(|site| clusters.get_mut(site)) else {
            continue;
        };
        let first = rng.random_range(0..nodes.len());
        let count = nodes.len();
        for i in 0..size.min(count) {
            let begins = now + 60.0 * rng.random::<f64>();
            nodes[(first + i) % count].push((begins, begins + lasts.min(BURST_SECONDS_MAX)));
        }
    }
}

/// The timeline of a node that is gone in these outages, which may overlap, and idle else.
fn timeline(mut down: Outages, seconds: u64) -> Timeline<AvailabilityState> {
    down.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut timeline = Timeline::new(START);
    for (from, to) in down {
        let from = (START + from as u64).max(timeline.end());
        let to = (START + to as u64).min(START + seconds);
        timeline.push(timeline.end()..from, Some(AvailabilityState::Idle));
        timeline.push(from..to, Some(AvailabilityState::Gone));
    }
    let end = START + seconds;
    timeline.push(timeline.end()..end, Some(AvailabilityState::Idle));
    timeline
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_up_and_down_as_long_as_those_of_the_paper() {
        let world = world(1, 300);
        let span = world.span();
        let mean = world.mean_time_to_eviction(span.clone()) / HOUR;
        assert!((38.0..52.0).contains(&mean), "{mean}");
        let shares = world
            .hosts()
            .iter()
            .filter_map(|host| host.share_here(span.clone()));
        let share = shares.sum::<f64>() / world.hosts().len() as f64;
        assert!((0.69..0.85).contains(&share), "{share}");
    }

    #[test]
    fn hosts_of_a_site_fail_together_more_often() {
        let world = world(2, 200);
        let both_down = |a: usize, b: usize| {
            let down = |i: usize, t: u64| world.hosts()[i].here(t) == Some(false);
            let times = (0..200 * 24).map(|hour| START + hour * 3600);
            times.filter(|t| down(a, *t) && down(b, *t)).count()
        };
        let same: usize = (0..12).map(|s| both_down(s * 68, s * 68 + 1)).sum();
        let other: usize = (0..12).map(|s| both_down(s * 68, (s + 1) * 68 + 1)).sum();
        assert!(same > other, "{same} {other}");
    }
}
