//! Notices when a host falls silent.
//!
//! A connection of a client that waits is asked for a sign of life several times a second, whatever else
//! happens. The host's QUIC answers that by itself, even while its program syncs a disk, is busy or slow.
//! So if no datagram of a host has arrived for some seconds, the host or its network is down. QUIC itself
//! would notice that only after its idle timeout of 20 s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use protocol::net::close::DONE;
use quinn::Connection;
use tokio::task::JoinSet;

use crate::{Fault, HostIndex};

/// A host is given up after this long without a datagram from it. A machine that is stopped or cut off
/// for two seconds is silent for less than that.
pub const SILENCE: Duration = Duration::from_secs(3);

/// After this long without a datagram, a host is asked for a sign of life. If the host stands still for
/// two seconds, beginning just before that, the silence is shorter than [`SILENCE`].
pub(crate) const ASKED_AFTER: Duration = Duration::from_millis(750);

/// How often the number of received datagrams is checked.
const CHECK_PERIOD: Duration = Duration::from_millis(200);

/// The time limit is at least this many round trips, for connections with long queues.
const SILENCE_RTTS: u32 = 3;

/// Time limit for connecting to a host that fell silent: short, because the silence has cost time.
pub const AGAIN: Duration = Duration::from_millis(1_200);

/// For this long after it could not be reached, a host counts as unreached unless it is reached.
const LATELY: Duration = Duration::from_secs(60);

/// Measures for how long no datagram has arrived.
#[derive(Debug)]
struct Silence {
    heard: u64,
    looked: Instant,
    lasted: Duration,
}

impl Silence {
    const fn since(heard: u64, now: Instant) -> Self {
        Self {
            heard,
            looked: now,
            lasted: Duration::ZERO,
        }
    }

    /// Notes that `heard` datagrams have arrived by `now`. Returns for how long none has. A check that
    /// comes late counts as little time, because this program may not have run meanwhile.
    fn measure(&mut self, heard: u64, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.looked);
        self.looked = now;
        if heard == self.heard {
            self.lasted += passed.min(2 * CHECK_PERIOD);
        } else {
            self.heard = heard;
            self.lasted = Duration::ZERO;
        }
        self.lasted
    }
}

/// Whether connections are watched for hosts that fall silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watching {
    On,
    Off,
}

/// A host that could not be reached.
#[derive(Clone, Debug)]
struct Unreached {
    at: Instant,
    fault: Fault,
}

/// Watches connections, and remembers which hosts fell silent, and which ones could not be reached.
#[derive(Debug)]
pub(crate) struct Watches {
    watching: Watching,
    /// Hosts that fell silent and have not been reached since.
    silent: Arc<Mutex<BTreeSet<HostIndex>>>,
    /// Hosts to which no connection could be made since the last one.
    unreached: Mutex<BTreeMap<HostIndex, Unreached>>,
    /// Hosts that tasks in the background try to reach.
    trying: Mutex<BTreeSet<HostIndex>>,
    /// One task for each connection, as long as it lasts.
    tasks: Mutex<JoinSet<()>>,
}

impl Watches {
    pub(crate) fn new(watching: Watching) -> Self {
        Self {
            watching,
            silent: Arc::default(),
            unreached: Mutex::default(),
            trying: Mutex::default(),
            tasks: Mutex::default(),
        }
    }

    /// Whether a host fell silent and has not been reached since.
    pub(crate) fn is_silent(&self, host: HostIndex) -> bool {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.contains(&host)
    }

    fn unreached(&self) -> MutexGuard<'_, BTreeMap<HostIndex, Unreached>> {
        self.unreached
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a host could not be reached. Returns why.
    pub(crate) fn not_reached(&self, host: HostIndex, fault: Fault) -> Fault {
        let noted = Unreached {
            at: Instant::now(),
            fault: fault.clone(),
        };
        self.unreached().insert(host, noted);
        fault
    }

    /// Why a host could not be reached, if that was a moment ago.
    pub(crate) fn lately_unreached(&self, host: HostIndex, now: Instant) -> Option<Fault> {
        let unreached = self.unreached();
        let noted = unreached.get(&host)?;
        (now.saturating_duration_since(noted.at) < LATELY).then(|| noted.fault.clone())
    }

    /// Takes over that a host could not be reached, if so: in `before` it was `former`.
    pub(crate) fn take_over(&self, host: HostIndex, before: &Self, former: HostIndex) {
        if let Some(noted) = before.unreached().get(&former) {
            self.unreached().insert(host, noted.clone());
        }
        if before.is_silent(former) {
            let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
            silent.insert(host);
        }
    }

    /// Whether the caller has to try to reach a host, since no other task does so until it calls [`Self::tried`].
    pub(crate) fn tries(&self, host: HostIndex) -> bool {
        let mut trying = self.trying.lock().unwrap_or_else(PoisonError::into_inner);
        trying.insert(host)
    }

    /// A task has tried to reach a host.
    pub(crate) fn tried(&self, host: HostIndex) {
        let mut trying = self.trying.lock().unwrap_or_else(PoisonError::into_inner);
        trying.remove(&host);
    }

    /// Watches a new connection. The connection is closed when its host falls silent.
    pub(crate) fn begin(&self, host: HostIndex, connection: &Connection) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.remove(&host);
        drop(silent);
        self.unreached().remove(&host);
        if self.watching == Watching::Off {
            return;
        }
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // Removes tasks that have ended.
        while tasks.try_join_next().is_some() {}
        let silent = Arc::clone(&self.silent);
        let connection = connection.clone();
        tasks.spawn(async move {
            if falls_silent(&connection).await {
                let mut silent = silent.lock().unwrap_or_else(PoisonError::into_inner);
                silent.insert(host);
                connection.close(DONE, b"");
            }
        });
    }
}

/// Returns true when no datagram has arrived for [`SILENCE`], and false when the connection ends before.
async fn falls_silent(connection: &Connection) -> bool {
    let heard = || connection.stats().udp_rx.datagrams;
    let mut silence = Silence::since(heard(), Instant::now());
    loop {
        tokio::time::sleep(CHECK_PERIOD).await;
        if connection.close_reason().is_some() {
            return false;
        }
        let lasted = silence.measure(heard(), Instant::now());
        if lasted >= SILENCE.max(connection.rtt() * SILENCE_RTTS) {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_counts_as_unreached_for_a_minute_and_one_task_tries_it() {
        let watches = Watches::new(Watching::Off);
        let host = HostIndex(1);
        let is_unreached = |now| watches.lately_unreached(host, now).is_some();
        assert!(!is_unreached(Instant::now()));
        for _ in 0..2 {
            let fault = watches.not_reached(host, Fault::Gone("down".into()));
            assert_eq!(fault, Fault::Gone("down".into()));
            assert!(is_unreached(Instant::now()));
            assert!(!is_unreached(Instant::now() + LATELY));
            assert!(watches.tries(host) && !watches.tries(host));
            watches.tried(host);
        }
    }

    #[test]
    fn silence_ends_with_a_word() {
        let begun = Instant::now();
        let at = |steps: u32| begun + steps * CHECK_PERIOD;
        let mut silence = Silence::since(7, begun);
        assert_eq!(silence.measure(7, at(1)), CHECK_PERIOD);
        assert_eq!(silence.measure(7, at(2)), 2 * CHECK_PERIOD);
        assert_eq!(silence.measure(8, at(3)), Duration::ZERO);
        assert_eq!(silence.measure(8, at(4)), CHECK_PERIOD);
    }

    #[test]
    fn a_client_that_was_stopped_blames_no_host() {
        let begun = Instant::now();
        let mut silence = Silence::since(7, begun);
        let hour = Duration::from_secs(3600);
        assert!(silence.measure(7, begun + hour) < SILENCE / 2);
    }
}
