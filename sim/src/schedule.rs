//! Where each job runs and when it is evicted. This follows from the trace and the seed alone, so
//! that all schemes meet the same evictions.

use rand::seq::IndexedRandom;

use crate::draw::{Purpose, draws};
use crate::world::{Grid, Host, World};

/// A time for which a job has a host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stay {
    /// Index into the grid's hosts.
    pub(crate) host: usize,
    /// When the job gets the host, seconds since the start of the grid.
    pub(crate) from: f64,
    /// When the job has to leave, seconds since the start; infinite if it never has to.
    pub(crate) until: f64,
}

/// The stays of `jobs` jobs until `end`. A job takes a random usable host that no other job has, and
/// `restart_seconds` after an eviction it takes another.
pub(crate) fn stays(
    world: &World,
    grid: &Grid,
    jobs: usize,
    restart_seconds: f64,
    end: f64,
) -> Vec<Vec<Stay>> {
    let mut stays: Vec<Vec<Stay>> = vec![Vec::new(); jobs];
    let mut looks_at = vec![0.0; jobs];
    let next = |looks_at: &[f64]| {
        let jobs = looks_at.iter().copied().enumerate();
        jobs.min_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|(_, at)| *at < end)
    };
    while let Some((job, at)) = next(&looks_at) {
        let now = grid.start + at as u64;
        let taken: Vec<usize> = stays
            .iter()
            .filter_map(|stays| stays.last())
            .filter(|stay| stay.until > at)
            .map(|stay| stay.host)
            .collect();
        let of = |host: usize| &world.hosts[grid.hosts[host]];
        let free: Vec<usize> = (0..grid.hosts.len())
            .filter(|host| !taken.contains(host) && of(*host).usable(now) == Some(true))
            .collect();
        let keys = [job as u64, stays[job].len() as u64, 0];
        let mut rng = draws(grid.seed, Purpose::Compute, keys);
        let Some(host) = free.choose(&mut rng).copied() else {
            looks_at[job] += restart_seconds;
            continue;
        };
        let until = Host::first_failure(&of(host).guest, now)
            .map_or(f64::INFINITY, |at| (at - grid.start) as f64);
        stays[job].push(Stay {
            host,
            from: at,
            until,
        });
        looks_at[job] = until + restart_seconds;
    }
    stays
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid5000;

    #[test]
    fn no_two_jobs_share_a_host_and_each_leaves_when_its_host_fails() {
        let world = grid5000::world(4, 60);
        let grid = Grid {
            hosts: (0..20).map(|i| 50 * i).collect(),
            start: grid5000::START + 10 * 86_400,
            seed: 3,
        };
        let end = 40.0 * 86_400.0;
        let all = stays(&world, &grid, 8, 300.0, end);
        let overlap = |a: &Stay, b: &Stay| a.host == b.host && a.from < b.until && b.from < a.until;
        assert!(all.iter().map(Vec::len).sum::<usize>() > 40);
        for (job, mine) in all.iter().enumerate() {
            assert!(
                mine.windows(2)
                    .all(|pair| pair[1].from >= pair[0].until + 300.0)
            );
            for other in all.iter().skip(job + 1).flatten() {
                assert!(!mine.iter().any(|stay| overlap(stay, other)));
            }
            for stay in mine.iter().filter(|stay| stay.until < end) {
                let host = &world.hosts()[grid.hosts[stay.host]];
                let leaves = grid.start + stay.until as u64;
                assert_eq!(host.usable(leaves), Some(false));
                assert_eq!(host.usable(leaves - 1), Some(true));
            }
        }
    }
}
