//! Notices when a host falls silent.
//!
//! A connection that somebody waits on is asked for a sign of life several times a second, whatever
//! else goes on: the host's QUIC answers that by itself, also while its program syncs a disk, is busy
//! or slow. So a host of which nothing at all was heard for some seconds is gone, or its network is;
//! QUIC itself would find that out after its idle timeout of 20 s only.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use protocol::net::stream::DONE;
use quinn::Connection;
use tokio::task::JoinSet;

use crate::HostIndex;

/// A host of which nothing was heard for this long is given up: longer than a machine that is stopped or
/// cut off for two seconds is silent.
pub const SILENCE: Duration = Duration::from_secs(3);

/// After this long without a word a host is asked for a sign of life. Two seconds of standing still
/// that begin just before are noticed as less than [`SILENCE`].
pub(crate) const ASKED_AFTER: Duration = Duration::from_millis(750);

/// How often it is looked whether something was heard.
const LOOK_PERIOD: Duration = Duration::from_millis(200);

/// On a way with long queues an answer may take this many times the usual round trip.
const SILENCE_RTTS: u32 = 3;

/// Counts for how long nothing was heard.
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

    /// Takes note of how many datagrams have been heard by now; returns for how long there was none.
    /// Time in which this program did not run is not held against the host.
    fn look(&mut self, heard: u64, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.looked);
        self.looked = now;
        if heard == self.heard {
            self.lasted += passed.min(2 * LOOK_PERIOD);
        } else {
            self.heard = heard;
            self.lasted = Duration::ZERO;
        }
        self.lasted
    }
}

/// Watches connections, and remembers who fell silent.
#[derive(Debug)]
pub(crate) struct Watches {
    /// Whether hosts that fall silent are noticed before their connections time out.
    are_on: bool,
    /// Hosts that fell silent and were not reached since.
    silent: Arc<Mutex<BTreeSet<HostIndex>>>,
    /// One for each connection, as long as it lasts.
    tasks: Mutex<JoinSet<()>>,
}

impl Watches {
    pub(crate) fn new(are_on: bool) -> Self {
        Self {
            are_on,
            silent: Arc::default(),
            tasks: Mutex::default(),
        }
    }

    /// Whether a host fell silent and was not reached since.
    pub(crate) fn is_silent(&self, host: HostIndex) -> bool {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.contains(&host)
    }

    /// Watches a new connection: it is closed once its host falls silent.
    pub(crate) fn begin(&self, host: HostIndex, connection: &Connection) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.remove(&host);
        drop(silent);
        if !self.are_on {
            return;
        }
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that ended are let go.
        while tasks.try_join_next().is_some() {}
        let (silent, connection) = (Arc::clone(&self.silent), connection.clone());
        tasks.spawn(async move {
            if falls_silent(&connection).await {
                let mut silent = silent.lock().unwrap_or_else(PoisonError::into_inner);
                silent.insert(host);
                connection.close(DONE, b"");
            }
        });
    }
}

/// Returns `true` once nothing was heard of the other side for [`SILENCE`], `false` when the connection
/// ends before.
async fn falls_silent(connection: &Connection) -> bool {
    let heard = || connection.stats().udp_rx.datagrams;
    let mut silence = Silence::since(heard(), Instant::now());
    loop {
        tokio::time::sleep(LOOK_PERIOD).await;
        if connection.close_reason().is_some() {
            return false;
        }
        let lasted = silence.look(heard(), Instant::now());
        if lasted >= SILENCE.max(connection.rtt() * SILENCE_RTTS) {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_ends_with_a_word() {
        let begun = Instant::now();
        let at = |steps: u32| begun + steps * LOOK_PERIOD;
        let mut silence = Silence::since(7, begun);
        assert_eq!(silence.look(7, at(1)), LOOK_PERIOD);
        assert_eq!(silence.look(7, at(2)), 2 * LOOK_PERIOD);
        assert_eq!(silence.look(8, at(3)), Duration::ZERO);
        assert_eq!(silence.look(8, at(4)), LOOK_PERIOD);
    }

    #[test]
    fn a_client_that_was_stopped_blames_no_host() {
        let begun = Instant::now();
        let mut silence = Silence::since(7, begun);
        let hour = Duration::from_secs(3600);
        assert!(silence.look(7, begun + hour) < SILENCE / 2);
    }
}
