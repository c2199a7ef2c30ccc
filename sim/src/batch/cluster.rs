//! Simulates one cluster event by event: jobs are submitted and end, nodes come and go, the scheduler checks
//! how many processors are available.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use super::{Information, Outcome};

/// A job of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// When it is submitted, Unix seconds.
    pub at: u64,
    /// Number of processors that it uses.
    pub processors: u32,
    /// Seconds for which it uses them.
    pub seconds: u64,
}

/// A node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Number of processors.
    pub processors: u32,
    /// Times in which it is up, Unix seconds, in order and without overlaps.
    pub up: Vec<Range<u64>>,
}

impl Node {
    /// Seconds of `window` for which the node is up.
    fn seconds_up(&self, window: &Range<u64>) -> u64 {
        let inside = self.up.iter().map(|up| {
            let end = up.end.min(window.end);
            end.saturating_sub(up.start.max(window.start))
        });
        inside.sum()
    }
}

/// A job that runs.
struct Running {
    job: Job,
    began: u64,
    /// Its nodes, and how many processors of each it uses.
    nodes: Vec<(usize, u32)>,
}

/// A cluster at one moment.
struct Cluster<'a> {
    nodes: &'a [Node],
    is_up: Vec<bool>,
    /// Number of free processors of each node.
    free: Vec<u32>,
    /// Nodes that are up and have free processors.
    open: BTreeSet<usize>,
    /// Numbers of the jobs on each node.
    on: Vec<Vec<u64>>,
    /// Number of processors of nodes that are up.
    alive: u64,
    /// Number of processors that jobs use.
    used: u64,
    /// Jobs that wait, in the order of submission.
    waiting: VecDeque<Job>,
    /// Running jobs by number.
    running: BTreeMap<u64, Running>,
    /// End (Unix seconds) and number of each running job.
    ends: BTreeSet<(u64, u64)>,
    /// Number of jobs that were started, which is the number of the next.
    started: u64,
    outcome: Outcome,
}

/// Runs the jobs that are submitted within `window`; `jobs` are in order of submission. A job that wants more
/// processors than the cluster has gets all of them. A job that has not ended when the window ends counts as
/// neither completed nor failed; the processor time that it had counts as used.
#[must_use]
pub fn run(nodes: &[Node], jobs: &[Job], information: Information, window: Range<u64>) -> Outcome {
    let is_steady = information == Information::Steady;
    let total: u64 = nodes.iter().map(|node| u64::from(node.processors)).sum();
    let mut changes = if is_steady {
        Vec::new()
    } else {
        changes(nodes, &window)
    };
    changes.sort_unstable();
    let mut changes = changes.into_iter().peekable();
    let mut jobs = jobs
        .iter()
        .filter(|job| window.contains(&job.at))
        .peekable();
    let mut cluster = Cluster::new(nodes, |node| {
        is_steady || node.up.iter().any(|up| up.contains(&window.start))
    });
    cluster.outcome.available = if is_steady {
        total as f64 * (window.end - window.start) as f64
    } else {
        let seconds = nodes
            .iter()
            .map(|n| u64::from(n.processors) * n.seconds_up(&window));
        seconds.sum::<u64>() as f64
    };
    let mut believed = match information {
        Information::Fixed => total,
        _ => cluster.alive,
    };
    let period = match information {
        Information::Looked { period, .. } => period.max(1),
        _ => u64::MAX,
    };
    let learns = matches!(information, Information::Looked { learns: true, .. });
    let mut look = window.start.saturating_add(period);
    loop {
        let next = [
            cluster.ends.first().map(|end| end.0),
            changes.peek().map(|change| change.0),
            jobs.peek().map(|job| job.at),
            Some(look),
        ];
        let now = next.into_iter().flatten().min().unwrap_or(window.end);
        if now >= window.end {
            break;
        }
        cluster.end_until(now);
        while let Some((_, node, goes_up)) = changes.next_if(|change| change.0 == now) {
            cluster.change(node, goes_up, now);
        }
        if look == now {
            believed = cluster.alive;
            look = look.saturating_add(period);
        }
        if information == Information::Known {
            believed = cluster.alive;
        }
        while let Some(job) = jobs.next_if(|job| job.at == now) {
            cluster.outcome.submitted += 1;
            cluster.waiting.push_back(Job {
                processors: u64::from(job.processors).clamp(1, total.max(1)) as u32,
                ..*job
            });
        }
        believed = cluster.start(believed, learns, now);
    }
    cluster.cut(window.end);
    cluster.outcome
}

/// The times within the window at which nodes come and go, as (time, node, whether it comes).
fn changes(nodes: &[Node], window: &Range<u64>) -> Vec<(u64, usize, bool)> {
    let mut changes = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        for up in &node.up {
            if up.start > window.start && up.start < window.end {
                changes.push((up.start, number, true));
            }
            if up.end > window.start && up.end < window.end {
                changes.push((up.end, number, false));
            }
        }
    }
    changes
}

impl<'a> Cluster<'a> {
    fn new(nodes: &'a [Node], is_up: impl Fn(&Node) -> bool) -> Self {
        let is_up: Vec<bool> = nodes.iter().map(is_up).collect();
        let mut cluster = Self {
            nodes,
            free: vec![0; nodes.len()],
            open: BTreeSet::new(),
            on: vec![Vec::new(); nodes.len()],
            is_up: vec![false; nodes.len()],
            alive: 0,
            used: 0,
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            ends: BTreeSet::new(),
            started: 0,
            outcome: Outcome::default(),
        };
        for (node, _) in is_up.iter().enumerate().filter(|(_, up)| **up) {
            cluster.change(node, true, 0);
        }
        cluster
    }

    /// Completes the jobs that end at `now` or before.
    fn end_until(&mut self, now: u64) {
        while let Some(&(end, number)) = self.ends.first().filter(|end| end.0 <= now) {
            let Some(running) = self.release(number, end) else {
                continue;
            };
            let Job {
                at,
                processors,
                seconds,
            } = running.job;
            self.outcome.completed += 1;
            self.outcome.completed_work += f64::from(processors) * seconds as f64;
            self.outcome.waited += (running.began - at) as f64;
            self.outcome.responded += (end - at) as f64;
        }
    }

    /// Removes a running job from its nodes.
    fn release(&mut self, number: u64, now: u64) -> Option<Running> {
        let running = self.running.remove(&number)?;
        self.ends
            .remove(&(running.began + running.job.seconds, number));
        for (node, processors) in &running.nodes {
            if let Some(jobs) = self.on.get_mut(*node) {
                jobs.retain(|job| *job != number);
            }
            if let Some(free) = self.free.get_mut(*node) {
                *free += processors;
            }
            if self.is_up.get(*node) == Some(&true) {
                self.open.insert(*node);
            }
        }
        let processors = u64::from(running.job.processors);
        self.used -= processors;
        self.outcome.used += (processors * (now - running.began)) as f64;
        Some(running)
    }

    /// A node comes up or goes down; if it goes down, the jobs on it fail.
    fn change(&mut self, node: usize, goes_up: bool, now: u64) {
        let processors = self.nodes.get(node).map_or(0, |node| node.processors);
        let (Some(is_up), Some(free)) = (self.is_up.get_mut(node), self.free.get_mut(node)) else {
            return;
        };
        if *is_up == goes_up {
            return;
        }
        *is_up = goes_up;
        if goes_up {
            *free = processors;
            self.alive += u64::from(processors);
            self.open.insert(node);
            return;
        }
        self.alive -= u64::from(processors);
        self.open.remove(&node);
        let lost = self.on.get(node).cloned().unwrap_or_default();
        for number in lost {
            if self.release(number, now).is_some() {
                self.outcome.execution_failures += 1;
            }
        }
    }

    /// Starts waiting jobs in order while enough processors are believed to be free. Returns the number of
    /// processors that are believed to be available after that.
    fn start(&mut self, mut believed: u64, learns: bool, now: u64) -> u64 {
        while let Some(job) = self.waiting.front().copied() {
            let wanted = u64::from(job.processors);
            if believed < self.used + wanted {
                break;
            }
            self.waiting.pop_front();
            if self.alive < self.used + wanted {
                self.outcome.submission_failures += 1;
                if learns {
                    believed = self.alive;
                }
                continue;
            }
            let nodes = self.take(job.processors);
            let number = self.started;
            self.started += 1;
            for (node, _) in &nodes {
                if let Some(jobs) = self.on.get_mut(*node) {
                    jobs.push(number);
                }
            }
            self.used += wanted;
            self.ends.insert((now + job.seconds, number));
            let began = now;
            self.running.insert(number, Running { job, began, nodes });
        }
        believed
    }

    /// Takes free processors, of the nodes with the lowest numbers first; returns (node, processors).
    fn take(&mut self, processors: u32) -> Vec<(usize, u32)> {
        let mut left = processors;
        let mut taken = Vec::new();
        while let Some(node) = self.open.first().copied().filter(|_| left > 0) {
            let Some(free) = self.free.get_mut(node) else {
                break;
            };
            let of_this = left.min(*free);
            *free -= of_this;
            left -= of_this;
            taken.push((node, of_this));
            if *free == 0 {
                self.open.remove(&node);
            }
        }
        taken
    }

    /// At the end of the window, counts the processor time of the jobs that still run.
    fn cut(&mut self, end: u64) {
        for running in self.running.values() {
            let processors = f64::from(running.job.processors);
            self.outcome.used += processors * (end - running.began) as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: u64 = 3600;

    fn nodes(count: usize, up: &[(u64, u64)]) -> Vec<Node> {
        let hours = up.iter().map(|(from, to)| from * HOUR..to * HOUR);
        let node = Node {
            processors: 1,
            up: hours.collect(),
        };
        vec![node; count]
    }

    fn job(at: u64, processors: u32, hours: u64) -> Job {
        Job {
            at: at * HOUR,
            processors,
            seconds: hours * HOUR,
        }
    }

    /// Two clusters of four processors, ten hours, one of them down for five.
    #[test]
    fn utilisation_is_of_what_is_available_as_in_the_test_vector() {
        let window = 0..10 * HOUR;
        let jobs = [job(0, 2, 6), job(0, 4, 3)];
        let mut sum = run(
            &nodes(4, &[(0, 10)]),
            &jobs,
            Information::Known,
            window.clone(),
        );
        sum += run(
            &nodes(4, &[(0, 5)]),
            &[],
            Information::Known,
            window.clone(),
        );
        assert_eq!(sum.completed, 2);
        assert!((sum.metrics().utilisation - 0.40).abs() < 1e-12);
        let mut steady = run(&nodes(4, &[]), &jobs, Information::Steady, window.clone());
        steady += run(&nodes(4, &[(0, 5)]), &[], Information::Steady, window);
        assert!((steady.metrics().utilisation - 0.30).abs() < 1e-12);
        // The second job waits six hours for the first.
        assert_eq!((sum.waited, sum.responded), (21_600.0, 54_000.0));
        assert!((sum.metrics().goodput - 24.0 / 60.0 * 86_400.0).abs() < 1e-9);
    }

    #[test]
    fn the_schedulers_belief_decides_between_waiting_and_failing() {
        // Two of four nodes are gone from hour 2 to hour 5; a job for four comes at hour 3.
        let mut pool = nodes(2, &[(0, 10)]);
        pool.extend(nodes(2, &[(0, 2), (5, 10)]));
        let jobs = [job(3, 4, 1), job(3, 1, 1)];
        let of = |information| run(&pool, &jobs, information, 0..10 * HOUR);
        let known = of(Information::Known);
        assert_eq!((known.completed, known.submission_failures), (2, 0));
        assert_eq!(known.waited, (2 * HOUR + 3 * HOUR) as f64);
        // With checks in hours 0 and 6 all are believed to be up: the first job fails, the second runs.
        let stale = of(Information::Looked {
            period: 6 * HOUR,
            learns: false,
        });
        assert_eq!(
            (stale.completed, stale.submission_failures, stale.waited),
            (1, 1, 0.0)
        );
        assert_eq!(of(Information::Fixed), stale);
        // With checks in hours 4 and 8 the job for four waits for nodes that are believed to be down.
        let late = run(
            &pool,
            &[job(4, 4, 1)],
            Information::Looked {
                period: 4 * HOUR,
                learns: false,
            },
            0..10 * HOUR,
        );
        assert_eq!((late.completed, late.waited), (1, (4 * HOUR) as f64));
    }

    #[test]
    fn a_scheduler_that_learns_takes_a_failed_start_for_a_look() {
        // One of two processors dies at hour 1; three jobs wait for the other.
        let mut pool = nodes(1, &[(0, 10)]);
        pool.extend(nodes(1, &[(0, 1)]));
        let jobs = [job(0, 1, 2), job(1, 1, 1), job(1, 1, 1), job(1, 1, 1)];
        let failures = |learns| {
            let information = Information::Looked {
                period: 9 * HOUR,
                learns,
            };
            let found = run(&pool, &jobs, information, 0..10 * HOUR);
            (found.submission_failures, found.completed)
        };
        assert_eq!(failures(true), (1, 3));
        assert_eq!(failures(false), (3, 1));
    }

    #[test]
    fn a_node_that_dies_takes_its_jobs_with_it_and_no_others() {
        let mut pool = nodes(1, &[(0, 2)]);
        pool.extend(nodes(2, &[(0, 10)]));
        let jobs = [job(0, 2, 4), job(0, 1, 4), job(1, 1, 1)];
        let known = run(&pool, &jobs, Information::Known, 0..10 * HOUR);
        assert_eq!((known.completed, known.execution_failures), (2, 1));
        // Two processors for two hours are lost; the third job had waited for one of them.
        assert_eq!(known.used - known.completed_work, (4 * HOUR) as f64);
        assert_eq!(known.waited, HOUR as f64);
    }

    #[test]
    fn a_job_that_runs_at_the_end_is_neither_completed_nor_failed() {
        let outcome = run(
            &nodes(1, &[(0, 1)]),
            &[job(0, 9, 4), job(0, 1, 1)],
            Information::Known,
            0..HOUR,
        );
        assert_eq!(
            (
                outcome.submitted,
                outcome.completed,
                outcome.execution_failures
            ),
            (2, 0, 0)
        );
        assert_eq!(
            (outcome.used, outcome.available),
            (HOUR as f64, HOUR as f64)
        );
    }

    fn any_pool() -> impl Strategy<Value = Vec<Node>> {
        let node =
            (1u32..4, prop::collection::vec(1u64..500, 0..12)).prop_map(|(processors, steps)| {
                let mut at = 0;
                let mut edges = steps.into_iter().map(|step| {
                    at += step;
                    at
                });
                let mut up = Vec::new();
                while let (Some(start), Some(end)) = (edges.next(), edges.next()) {
                    up.push(start..end);
                }
                Node { processors, up }
            });
        prop::collection::vec(node, 1..6)
    }

    fn any_jobs() -> impl Strategy<Value = Vec<Job>> {
        let job = (0u64..2000, 1u32..12, 0u64..300);
        prop::collection::vec(job, 0..40).prop_map(|mut jobs| {
            jobs.sort_unstable();
            let job = |(at, processors, seconds)| Job {
                at,
                processors,
                seconds,
            };
            jobs.into_iter().map(job).collect()
        })
    }

    proptest! {
        #[test]
        fn no_processor_is_used_that_is_not_there_and_no_job_is_lost(
            pool in any_pool(), jobs in any_jobs(), kind in 0usize..5,
        ) {
            let information = [
                Information::Steady,
                Information::Known,
                Information::Looked { period: 100, learns: false },
                Information::Looked { period: 7, learns: true },
                Information::Fixed,
            ][kind];
            let found = run(&pool, &jobs, information, 0..3000);
            prop_assert!(found.used <= found.available);
            prop_assert!(found.completed_work <= found.used);
            let ended = found.completed + found.submission_failures + found.execution_failures;
            prop_assert!(ended <= found.submitted);
            prop_assert_eq!(found.submitted, jobs.len() as u64);
            match information {
                Information::Steady => {
                    prop_assert_eq!(found.submission_failures + found.execution_failures, 0);
                }
                Information::Known => prop_assert_eq!(found.submission_failures, 0),
                _ => {}
            }
        }
    }
}
