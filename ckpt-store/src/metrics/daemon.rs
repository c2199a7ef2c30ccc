//! Metrics of the daemon.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::{Requests, ResultLabel, by_lose, by_result, gauged, register_build};
use crate::core::census::Census;
use crate::core::traffic::Moved;
use crate::disk::sync_times;
use crate::monitor::stance::Stance;
use crate::shards::Usage;

/// Hours for which the probability of staying is exported.
const STAY_HOURS: [(&str, f64); 3] = [("1", 1.0), ("4", 4.0), ("10", 10.0)];

type Seconds = Gauge<f64, AtomicU64>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StanceLabel {
    stance: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HoursLabel {
    hours: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LoseLabel {
    can_lose: &'static str,
}

/// What the daemon counts. Clones count together.
#[derive(Clone, Debug)]
pub struct DaemonMetrics {
    registry: Arc<Registry>,
    /// Requests of members, by their names and ends.
    pub requests: Requests,
    /// Times of syncs of files and directories to the disk.
    pub syncs: Histogram,
    capacity: Gauge,
    used: Gauge,
    free: Gauge,
    shards: Gauge,
    checkpoints: Gauge,
    connections: Gauge,
    refusing: Gauge,
    stance: Family<StanceLabel, Gauge>,
    stays: Family<HoursLabel, Seconds>,
    received: Counter,
    sent: Counter,
    audits: Family<ResultLabel, Counter>,
    proofs: Family<ResultLabel, Counter>,
    repairs: Family<ResultLabel, Counter>,
    scrubbed: Family<ResultLabel, Counter>,
    counted: Family<LoseLabel, Gauge>,
    counted_at: Gauge,
    below: Gauge,
    cards: Gauge,
    unreached: Gauge,
    certificate_ends: Gauge,
}

impl Default for DaemonMetrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("ckpt_store");
        let mut all = Self {
            registry: Arc::default(),
            requests: Requests::default(),
            syncs: sync_times(),
            capacity: Gauge::default(),
            used: Gauge::default(),
            free: Gauge::default(),
            shards: Gauge::default(),
            checkpoints: Gauge::default(),
            connections: Gauge::default(),
            refusing: Gauge::default(),
            stance: Family::default(),
            stays: Family::default(),
            received: Counter::default(),
            sent: Counter::default(),
            audits: by_result(&["passed", "failed"]),
            proofs: by_result(&["passed", "failed"]),
            repairs: by_result(&["done", "failed"]),
            scrubbed: by_result(&["good", "damaged", "failed"]),
            counted: Family::default(),
            counted_at: Gauge::default(),
            below: Gauge::default(),
            cards: Gauge::default(),
            unreached: Gauge::default(),
            certificate_ends: Gauge::default(),
        };
        all.stand(Stance::Open);
        all.expect(|_| 0.0);
        all.count(0, &Census::default());
        all.register_space(&mut registry);
        all.register_work(&mut registry);
        all.register_state(&mut registry);
        all.registry = Arc::new(registry);
        all
    }
}

impl DaemonMetrics {
    fn register_space(&self, to: &mut Registry) {
        register_build(to);
        let bytes = |to: &mut Registry, name: &str, help: &str, gauge: &Gauge| {
            to.register_with_unit(name, help, Unit::Bytes, gauge.clone());
        };
        bytes(to, "capacity", "Bytes that the host lends", &self.capacity);
        bytes(to, "used", "Bytes that are stored or reserved", &self.used);
        bytes(to, "free", "Bytes that can still be stored", &self.free);
        to.register(
            "shards",
            "Complete shards that the host holds",
            self.shards.clone(),
        );
        let help = "Committed checkpoints of which the host holds shards";
        to.register("checkpoints", help, self.checkpoints.clone());
    }

    fn register_work(&self, to: &mut Registry) {
        self.requests.register(to);
        to.register(
            "connections",
            "Open connections of members",
            self.connections.clone(),
        );
        let help = "Bytes of all received datagrams";
        to.register_with_unit("received", help, Unit::Bytes, self.received.clone());
        let help = "Bytes of all sent datagrams";
        to.register_with_unit("sent", help, Unit::Bytes, self.sent.clone());
        let help = "Time to make written bytes or names durable on the disk";
        to.register_with_unit("fsync", help, Unit::Seconds, self.syncs.clone());
        let help = "Checks of this host's shards that submitters reported";
        to.register("audits", help, self.audits.clone());
        let help = "Proofs that this host asked other hosts for";
        to.register("proofs", help, self.proofs.clone());
        let help = "Shards lost by other hosts that this host tried to rebuild";
        to.register("repairs", help, self.repairs.clone());
        let help = "Shards that were read to find damage";
        to.register("scrubbed_shards", help, self.scrubbed.clone());
    }

    fn register_state(&self, to: &mut Registry) {
        let help = "Time for which the host takes no new shards, 0 if it takes them";
        to.register_with_unit("refusing", help, Unit::Seconds, self.refusing.clone());
        let help = "What the host does for others: 1 for the present stance";
        to.register("stance", help, self.stance.clone());
        let help = "Probability that the host stays for this many hours, by its own forecast";
        to.register("stays_probability", help, self.stays.clone());
        let help =
            "Checkpoints that this host has to count, by how many proved shards they can lose";
        to.register("counted_checkpoints", help, self.counted.clone());
        let help = "Checkpoints among these with fewer proved shards than they were saved with";
        to.register("below_redundancy_checkpoints", help, self.below.clone());
        let help = "Unix time of the last count; 0 if there was none";
        let unit = Unit::Seconds;
        to.register_with_unit("counted_timestamp", help, unit, self.counted_at.clone());
        let help = "Cards of other hosts that this host keeps";
        to.register("kept_cards", help, self.cards.clone());
        let help = "Registries that get no answer at the address that this host announces";
        to.register("unreached_registries", help, self.unreached.clone());
        let help = "Unix time at which the host's certificate expires";
        let unit = Unit::Seconds;
        to.register_with_unit(
            "certificate_end_timestamp",
            help,
            unit,
            self.certificate_ends.clone(),
        );
    }

    /// All metrics of the daemon, for the server that exports them.
    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry)
    }

    /// Sets what is lent and held.
    pub fn hold(&self, usage: &Usage) {
        self.capacity.set(gauged(usage.capacity_bytes));
        self.used.set(gauged(usage.used_bytes));
        self.free.set(gauged(usage.free_bytes));
        self.shards.set(gauged(usage.counts.shards));
        self.checkpoints.set(gauged(usage.counts.committed));
    }

    /// Sets what the host does for others.
    pub fn stand(&self, stance: Stance) {
        self.refusing.set(stance.refuses_for_s().into());
        let now = match stance {
            Stance::Open => "open",
            Stance::StandBack(_) => "stands_back",
            Stance::Closed(_) => "closed",
        };
        for stance in ["open", "stands_back", "closed"] {
            let gauge = self.stance.get_or_create(&StanceLabel { stance });
            gauge.set((stance == now).into());
        }
    }

    /// Sets how likely the host stays; `at` is the forecast for a time in seconds.
    pub fn expect(&self, at: impl Fn(f64) -> f64) {
        for (hours, length) in STAY_HOURS {
            let gauge = self.stays.get_or_create(&HoursLabel { hours });
            gauge.set(at(length * 3600.0));
        }
    }

    /// Sets the counts of checkpoints, and when they were made, Unix seconds.
    pub fn count(&self, at: u64, census: &Census) {
        self.counted_at.set(gauged(at));
        self.below.set(gauged(census.below));
        for (can_lose, number) in by_lose(census.too_few, &census.can_lose) {
            let gauge = self.counted.get_or_create(&LoseLabel { can_lose });
            gauge.set(gauged(number));
        }
    }

    /// Sets the number of open connections and the bytes that were moved since the start.
    pub fn moved(&self, connections: usize, moved: Moved) {
        self.connections.set(gauged(connections as u64));
        for (counter, total) in [(&self.received, moved.received), (&self.sent, moved.sent)] {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }

    /// Sets how many cards of other hosts there are.
    pub fn keep_cards(&self, cards: usize) {
        self.cards.set(gauged(cards as u64));
    }

    /// Sets how many registries do not reach this host.
    pub fn unreached(&self, registries: usize) {
        self.unreached.set(gauged(registries as u64));
    }

    /// Sets when the host's certificate ends, Unix seconds.
    pub fn certified_until(&self, end: u64) {
        self.certificate_ends.set(gauged(end));
    }

    /// Counts a report of a submitter.
    pub fn audited(&self, passed: bool) {
        let result = if passed { "passed" } else { "failed" };
        self.audits.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts a proof that another host was asked for.
    pub fn proved(&self, passed: bool) {
        let result = if passed { "passed" } else { "failed" };
        self.proofs.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts a shard that was rebuilt, or was not.
    pub fn repaired(&self, done: bool) {
        let result = if done { "done" } else { "failed" };
        self.repairs.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts a shard that was read to find damage: `good`, `damaged`, or `failed` if it could not be read.
    pub fn scrubbed(&self, result: &'static str) {
        self.scrubbed.get_or_create(&ResultLabel { result }).inc();
    }
}
