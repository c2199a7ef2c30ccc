//! What a host consists of, for all tasks of its daemon.

use std::path::Path;
use std::sync::Arc;

use crate::accounts::Accounts;
use crate::checking::Checking;
use crate::clock::Clock;
use crate::metrics::DaemonMetrics;
use crate::monitor::Monitor;
use crate::reached::Ways;
use crate::serve::auditing::Auditing;
use crate::shards::Store;
use crate::traffic::Traffic;

/// The parts of a host that several tasks of its daemon use.
#[derive(Debug)]
pub struct Host {
    /// The shards of this host.
    pub store: Arc<Store>,
    /// The state of the machine, and the wishes of its owner.
    pub monitor: Arc<Monitor>,
    /// Reports of submitters that checked shards of this host.
    pub auditing: Auditing,
    /// Counts of the proofs that this host was asked for and asked for itself, and of checkpoints.
    pub checking: Checking,
    /// The submitters for whom this host keeps something, with names for the owner of the machine.
    pub accounts: Accounts,
    /// Bytes that connections move.
    pub traffic: Traffic,
    /// Which registries reach this host.
    pub ways: Ways,
    /// What is counted for monitoring.
    pub metrics: DaemonMetrics,
    /// The monotonic clock and the wall clock.
    pub clock: Clock,
}

impl Host {
    /// A host with what its data directory has of counts and reports.
    pub fn open(
        data_dir: &Path,
        store: Store,
        monitor: Monitor,
        metrics: DaemonMetrics,
        clock: Clock,
    ) -> Self {
        Self {
            store: Arc::new(store),
            monitor: Arc::new(monitor),
            auditing: Auditing::open(data_dir.to_owned()),
            checking: Checking::open(data_dir.to_owned(), || Clock::start().unix_seconds()),
            accounts: Accounts::open(data_dir.to_owned()),
            traffic: Traffic::open(data_dir.to_owned()),
            ways: Ways::default(),
            metrics,
            clock,
        }
    }

    /// Writes the counts and reports that have changed.
    pub fn write(&self) {
        self.auditing.write();
        self.checking.write();
        self.accounts.write();
    }
}
