//! Pools of clusters: synthetic ones modelled on Grid'5000, or from a trace.

use std::collections::BTreeMap;
use std::ops::Range;

use placement::history::Timeline;
use placement::state::{AvailabilityState, ModelState};
use sim::World;
use sim::batch::{Job, Node, Workload};
use sim::grid5000::detailed;

use crate::traces::{RawHost, RawTrace, Trace};

/// A cluster and its jobs.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The nodes of the cluster.
    pub nodes: Vec<Node>,
    /// The jobs of the cluster, in the order of submission.
    pub jobs: Vec<Job>,
}

impl Cluster {
    /// Number of processors of all nodes.
    #[must_use]
    pub fn processors(&self) -> u32 {
        self.nodes.iter().map(|node| node.processors).sum()
    }

    /// The number of available processors: each time at which the number changes, with the new number.
    fn there(&self) -> Vec<(u64, u32)> {
        let mut changes: BTreeMap<u64, i64> = BTreeMap::new();
        for node in &self.nodes {
            for up in &node.up {
                *changes.entry(up.start).or_default() += i64::from(node.processors);
                *changes.entry(up.end).or_default() -= i64::from(node.processors);
            }
        }
        let mut there = 0;
        let mut numbers = Vec::with_capacity(changes.len());
        for (at, change) in changes {
            there += change;
            numbers.push((at, u32::try_from(there).unwrap_or(0)));
        }
        numbers
    }
}

/// Clusters over some time.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The clusters.
    pub clusters: Vec<Cluster>,
    /// When they are simulated.
    pub window: Range<u64>,
}

impl Pool {
    /// Gives each cluster jobs made up from a seed.
    pub fn make_jobs(&mut self, workload: &Workload, seed: u64) {
        let window = self.window.clone();
        for (number, cluster) in self.clusters.iter_mut().enumerate() {
            let numbers = cluster.there();
            let there = |at: u64| {
                let after = numbers.partition_point(|(from, _)| *from <= at);
                let before = after.checked_sub(1).and_then(|place| numbers.get(place));
                before.map_or(0, |(_, there)| *there)
            };
            let processors = cluster.processors();
            cluster.jobs = workload.jobs(seed, number as u64, processors, there, &window);
        }
    }
}

/// The spans in which a guest can run on a host.
fn up(timeline: &Timeline<AvailabilityState>) -> Vec<Range<u64>> {
    let mut spans: Vec<Range<u64>> = Vec::new();
    for run in timeline.runs(0..u64::MAX) {
        if run.state.is_none_or(|state| state.is_failure()) {
            continue;
        }
        match spans.last_mut().filter(|last| last.end == run.span.start) {
            Some(last) => last.end = run.span.end,
            None => spans.push(run.span),
        }
    }
    spans
}

fn world(seed: u64, days: u64) -> World {
    detailed::world(
        seed,
        days,
        &detailed::CLUSTERS,
        &detailed::Assumed::default(),
    )
}

/// A synthetic pool modelled on Grid'5000, without jobs.
#[must_use]
pub fn of_grid5000(seed: u64, days: u64) -> Pool {
    let world = world(seed, days);
    let mut clusters: BTreeMap<u32, Vec<Node>> = BTreeMap::new();
    for host in world.hosts() {
        let nodes = clusters.entry(host.site().unwrap_or(0)).or_default();
        nodes.push(Node {
            processors: detailed::PROCESSORS,
            up: up(host.timeline()),
        });
    }
    pool(world.span(), clusters)
}

/// The sites of a trace as clusters, without jobs. A host does not count as available in unknown time.
#[must_use]
pub fn of_trace(trace: &Trace, processors: u32) -> Pool {
    let mut clusters: BTreeMap<&str, Vec<Node>> = BTreeMap::new();
    for host in &trace.hosts {
        let nodes = clusters.entry(&host.site).or_default();
        nodes.push(Node {
            processors,
            up: up(&host.timeline),
        });
    }
    let starts = trace.hosts.iter().map(|host| host.timeline.start()).min();
    let ends = trace.hosts.iter().map(|host| host.timeline.end()).max();
    pool(starts.unwrap_or(0)..ends.unwrap_or(0), clusters)
}

/// Nodes by the name of their cluster, as clusters without jobs.
fn pool<K>(window: Range<u64>, clusters: BTreeMap<K, Vec<Node>>) -> Pool {
    let clusters = clusters.into_values().map(|nodes| Cluster {
        nodes,
        jobs: Vec::new(),
    });
    Pool {
        window,
        clusters: clusters.collect(),
    }
}

/// The synthetic pool of [`of_grid5000`] as a trace.
#[must_use]
pub fn trace_of(seed: u64, days: u64) -> RawTrace {
    let mut trace = RawTrace {
        name: "grid5000".to_owned(),
        description: format!("made up after Grid'5000, {days} days, seed {seed}"),
        sample_seconds: 1,
        ..RawTrace::default()
    };
    for (number, host) in world(seed, days).hosts().iter().enumerate() {
        let site = host
            .site()
            .map_or_else(String::new, |site| format!("C{}", site + 1));
        let mut raw = RawHost {
            site,
            ..RawHost::default()
        };
        for run in host.timeline().runs(0..u64::MAX) {
            match run.state {
                Some(AvailabilityState::Gone) => raw.down.push(run.span),
                Some(_) => raw.up.push(run.span),
                None => {}
            }
        }
        trace.hosts.insert(format!("n{number:04}"), raw);
    }
    trace
}
