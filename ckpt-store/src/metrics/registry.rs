//! Metrics of the registry.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use health::GridHealth;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Requests, by_lose, gauged, register_build};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LoseLabels {
    can_lose: &'static str,
    source: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HoursLabel {
    hours: &'static str,
}

/// How the counts are known: hosts had each other prove that they hold their shards.
const PROVED: &str = "proved";

/// What hosts announced, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// Hosts that still announce themselves.
    pub alive: u64,
    /// Hosts that belong to the grid and do not announce themselves now.
    pub silent: u64,
    /// Bytes that the hosts that are alive lend.
    pub capacity_bytes: u64,
    /// Bytes that those of them that take shards say they can still store.
    pub free_bytes: u64,
}

/// What the registry counts. Clones count together.
#[derive(Clone, Debug)]
pub struct RegistryMetrics {
    registry: Arc<Registry>,
    /// Requests of members, by their names and ends.
    pub requests: Requests,
    hosts: Family<StateLabel, Gauge>,
    shards: Gauge,
    capacity: Gauge,
    free: Gauge,
    stays: Family<HoursLabel, Gauge<f64, AtomicU64>>,
    checkpoints: Family<LoseLabels, Gauge>,
    below: Gauge,
    unchecked: Gauge,
    counting: Family<StateLabel, Gauge>,
    failed_checks: Gauge,
    certificate_ends: Gauge,
    cards: Counter,
    with_cards: Gauge,
    unreached: Gauge,
}

impl Default for RegistryMetrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("ckpt_registry");
        let mut all = Self {
            registry: Arc::default(),
            requests: Requests::default(),
            hosts: Family::default(),
            shards: Gauge::default(),
            capacity: Gauge::default(),
            free: Gauge::default(),
            stays: Family::default(),
            checkpoints: Family::default(),
            below: Gauge::default(),
            unchecked: Gauge::default(),
            counting: Family::default(),
            failed_checks: Gauge::default(),
            certificate_ends: Gauge::default(),
            cards: Counter::default(),
            with_cards: Gauge::default(),
            unreached: Gauge::default(),
        };
        all.know(&Announced::default(), &[]);
        all.count(&GridHealth::default());
        all.register(&mut registry);
        all.registry = Arc::new(registry);
        all
    }
}

impl RegistryMetrics {
    fn register(&self, to: &mut Registry) {
        register_build(to);
        self.requests.register(to);
        let help = "Hosts that belong to the grid, by whether they announce themselves now";
        to.register("hosts", help, self.hosts.clone());
        let help = "Shards that hosts report to hold";
        to.register("shards", help, self.shards.clone());
        let help = "Bytes that hosts report to lend";
        to.register_with_unit("capacity", help, Unit::Bytes, self.capacity.clone());
        let help = "Free bytes that hosts report, of those that take shards";
        to.register_with_unit("free", help, Unit::Bytes, self.free.clone());
        let help = "Share of the hosts that stay for this many hours, by their own forecasts";
        to.register("stays_probability", help, self.stays.clone());
        let help = "Checkpoints by how many shards they can lose; of the hosts that hold a checkpoint, one counts it";
        to.register("checkpoints", help, self.checkpoints.clone());
        let help = "Checkpoints with fewer proved shards than they were saved with";
        to.register("below_redundancy_checkpoints", help, self.below.clone());
        let help = "Those of them of which hosts claim further shards without a recent proof";
        to.register("unchecked_checkpoints", help, self.unchecked.clone());
        let help = "Hosts whose counts are included in these numbers, and other hosts";
        to.register("counting_hosts", help, self.counting.clone());
        let help = "Checks by submitters that failed within a week";
        to.register("failed_checks", help, self.failed_checks.clone());
        let help = "Silent hosts of which the registry learnt from other hosts";
        to.register("learnt_hosts", help, self.cards.clone());
        let help = "Hosts of which the registry has a card";
        to.register("cards", help, self.with_cards.clone());
        let help =
            "Hosts that announce themselves and do not answer at the address that they announce";
        to.register("unreached_hosts", help, self.unreached.clone());
        let help = "Unix time at which the registry's certificate expires";
        let unit = Unit::Seconds;
        to.register_with_unit(
            "certificate_end_timestamp",
            help,
            unit,
            self.certificate_ends.clone(),
        );
    }

    /// All metrics of the registry, for the server that exports them.
    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry)
    }

    /// Sets what hosts announced, and for how long they stay: the share for 0, 1, ... hours.
    pub fn know(&self, announced: &Announced, stay: &[f64]) {
        for (state, number) in [("alive", announced.alive), ("silent", announced.silent)] {
            self.hosts
                .get_or_create(&StateLabel { state })
                .set(gauged(number));
        }
        self.capacity.set(gauged(announced.capacity_bytes));
        self.free.set(gauged(announced.free_bytes));
        for (hours, hour) in [("1", 1), ("4", 4), ("10", 10)] {
            let share = stay.get(hour).copied().unwrap_or(0.0);
            self.stays.get_or_create(&HoursLabel { hours }).set(share);
        }
    }

    /// Sets how many shards hosts say they hold, and of how many hosts there are cards.
    pub fn list(&self, shards: usize, cards: usize) {
        self.shards.set(gauged(shards as u64));
        self.with_cards.set(gauged(cards as u64));
    }

    /// Sets how many hosts announce themselves and can't be reached.
    pub fn unreached(&self, hosts: usize) {
        self.unreached.set(gauged(hosts as u64));
    }

    /// Sets what hosts count, summed over the grid.
    pub fn count(&self, grid: &GridHealth) {
        for (can_lose, number) in by_lose(grid.too_few, &grid.can_lose) {
            let source = PROVED;
            let labels = LoseLabels { can_lose, source };
            self.checkpoints.get_or_create(&labels).set(gauged(number));
        }
        self.below.set(gauged(grid.below));
        self.unchecked.set(gauged(grid.unchecked));
        self.failed_checks.set(gauged(grid.failed_checks));
        for (state, number) in [("counted", grid.counted_by), ("silent", grid.silent.len())] {
            let gauge = self.counting.get_or_create(&StateLabel { state });
            gauge.set(gauged(number as u64));
        }
    }

    /// Counts silent hosts of which the registry learnt from others.
    pub fn learnt(&self, hosts: u64) {
        self.cards.inc_by(hosts);
    }

    /// Sets when the registry's certificate ends, Unix seconds.
    pub fn certified_until(&self, end: u64) {
        self.certificate_ends.set(gauged(end));
    }
}
