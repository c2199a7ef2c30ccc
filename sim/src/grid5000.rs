//! A synthetic world after the availability of Grid'5000 (Iosup et al. 2007).
//!
//! Nodes are up for 45 hours on average and down for 14. Of the failures some come in bursts: several
//! nodes of one site within a minute. The fits of the paper are of base-2 logarithms, so a burst
//! comes after `2^(12.24 W(9.67))` seconds, hits `2^(2.61 W(1.59))` nodes and lasts
//! `2^exp(N(2.34, 0.26))` seconds, with `W(k)` a Weibull number of shape k and scale one. Rates of
//! bursts are scaled from the 1,296 nodes of the paper to the size of the world.

use placement::history::{DAY_SECONDS, Timeline};
use placement::state::AvailabilityState;
use rand::Rng;
use rand::rngs::SmallRng;

use crate::draw::{Purpose, draws, exponential, lognormal, normal, weibull};
use crate::world::{Host, World};

/// When the world begins: a Monday.
pub const START: u64 = 4 * DAY_SECONDS;

const SITES: usize = 15;
const HOSTS_PER_SITE: usize = 8;
const NODES_OF_THE_PAPER: f64 = 1296.0;
const HOUR: f64 = 3600.0;

/// Mean time up where bursts are left out: together with them, which hit a node each 150 hours, it is
/// 45 hours.
const OWN_UP_SECONDS: f64 = 64.0 * HOUR;
/// Time down has a mean of 14 hours and a standard deviation of 13.4.
const DOWN_MEDIAN_SECONDS: f64 = 10.1 * HOUR;
const DOWN_SPREAD: f64 = 0.8;
/// Longest outage of a burst.
const BURST_SECONDS_MAX: f64 = 30.0 * 24.0 * HOUR;

/// 120 hosts in 15 sites over so many days.
#[must_use]
pub fn world(seed: u64, days: u64) -> World {
    let mut rng = draws(seed, Purpose::Begin, [days, 0, 0]);
    let seconds = (days * DAY_SECONDS) as f64;
    let hosts = SITES * HOSTS_PER_SITE;
    let mut down: Vec<Vec<(f64, f64)>> = (0..hosts).map(|_| own(&mut rng, seconds)).collect();
    let mut now = 0.0;
    loop {
        let gap = (12.238 * weibull(&mut rng, 9.668, 1.0)).exp2();
        now += gap * NODES_OF_THE_PAPER / hosts as f64;
        if now >= seconds {
            break;
        }
        let size = (2.614 * weibull(&mut rng, 1.585, 1.0)).exp2().round() as usize;
        let site = rng.random_range(0..SITES);
        let lasts = (2.339 + 0.2636 * normal(&mut rng))
            .exp()
            .exp2()
            .min(BURST_SECONDS_MAX);
        let first = rng.random_range(0..HOSTS_PER_SITE);
        for i in 0..size.min(HOSTS_PER_SITE) {
            let host = site * HOSTS_PER_SITE + (first + i) % HOSTS_PER_SITE;
            let begins = now + 60.0 * rng.random::<f64>();
            down[host].push((begins, begins + lasts));
        }
    }
    let hosts = down.into_iter().enumerate().map(|(i, down)| {
        let site = Some((i / HOSTS_PER_SITE) as u32);
        Host::new(timeline(down, days * DAY_SECONDS), Vec::new(), site, None)
    });
    World::new(hosts.collect(), 0)
}

/// Outages of one node alone.
fn own(rng: &mut SmallRng, seconds: f64) -> Vec<(f64, f64)> {
    let mut outages = Vec::new();
    let mut now = exponential(rng, OWN_UP_SECONDS);
    while now < seconds {
        let lasts = lognormal(rng, DOWN_MEDIAN_SECONDS, DOWN_SPREAD);
        outages.push((now, now + lasts));
        now += lasts + exponential(rng, OWN_UP_SECONDS);
    }
    outages
}

fn timeline(mut down: Vec<(f64, f64)>, seconds: u64) -> Timeline<AvailabilityState> {
    down.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut timeline = Timeline::new(START);
    for (from, to) in down {
        let from = (START + from as u64).max(timeline.end());
        let to = (START + to as u64).min(START + seconds);
        timeline.push(timeline.end()..from, Some(AvailabilityState::Idle));
        timeline.push(from..to, Some(AvailabilityState::Gone));
    }
    timeline.push(
        timeline.end()..START + seconds,
        Some(AvailabilityState::Idle),
    );
    timeline
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_up_and_down_as_long_as_those_of_the_paper() {
        let world = world(1, 400);
        let span = world.span();
        let mean = world.mean_time_to_eviction(span.clone()) / HOUR;
        assert!((38.0..52.0).contains(&mean), "{mean}");
        let shares = world
            .hosts()
            .iter()
            .filter_map(|host| host.share_here(span.clone()));
        let share = shares.sum::<f64>() / world.hosts().len() as f64;
        assert!((0.72..0.85).contains(&share), "{share}");
    }

    #[test]
    fn hosts_of_a_site_fail_together_more_often() {
        let world = world(2, 200);
        let both_down = |a: usize, b: usize| {
            let down = |i: usize, t: u64| world.hosts()[i].here(t) == Some(false);
            let times = (0..200 * 24).map(|hour| START + hour * 3600);
            times.filter(|t| down(a, *t) && down(b, *t)).count()
        };
        let same: usize = (0..SITES).map(|s| both_down(s * 8, s * 8 + 1)).sum();
        let other: usize = (0..SITES)
            .map(|s| both_down(s * 8, (s * 8 + 9) % 120))
            .sum();
        assert!(same > other, "{same} {other}");
    }
}
