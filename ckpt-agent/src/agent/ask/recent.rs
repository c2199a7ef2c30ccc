//! What hosts said of themselves a moment ago. A client that saves many small images asks each host once a second for
//! that, not once for each save.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use protocol::wire::announcement::Announced;
use protocol::wire::message::HostStatus;
use tokio::time::Instant;

use crate::core::HostIndex;

/// For this long an answer holds. A host enforces its limits itself, so an answer that is no longer true costs
/// another host's place at most.
const RECENT: Duration = Duration::from_secs(1);

/// What a host said of itself.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) status: HostStatus,
    /// Time of one request and its answer.
    pub(super) rtt: Duration,
    /// What the host announces; `None` if nothing, or if nobody asked.
    pub(super) announced: Option<Announced>,
    /// When it answered, by this machine's clock, Unix seconds.
    pub(super) heard: u64,
    pub(super) at: Instant,
}

/// What each host said last.
#[derive(Clone, Debug, Default)]
pub(in crate::agent) struct Recent(Arc<Mutex<BTreeMap<HostIndex, Said>>>);

impl Recent {
    pub(super) fn of(&self, host: HostIndex, now: Instant) -> Option<Said> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = all.get(&host)?;
        (now.saturating_duration_since(said.at) < RECENT).then(|| said.clone())
    }

    pub(super) fn note(&self, host: HostIndex, said: Said) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(host, said);
    }
}

#[cfg(test)]
mod tests {
    use protocol::wire::parts::Parts;

    use super::*;

    #[test]
    fn an_answer_holds_for_a_second() {
        let recent = Recent::default();
        let host = HostIndex(3);
        let at = Instant::now();
        assert!(recent.of(host, at).is_none());
        let said = Said {
            status: HostStatus {
                name: "h".into(),
                software: String::new(),
                capacity_bytes: 2,
                used_bytes: 1,
                free_bytes: 1,
                shards: 1,
                checkpoints: 1,
                uptime_s: 1,
                parts: Parts::default(),
            },
            rtt: Duration::from_millis(2),
            announced: None,
            heard: 7,
            at,
        };
        recent.note(host, said);
        let lately = recent.of(host, at + RECENT / 2);
        assert_eq!(lately.map(|said| said.rtt), Some(Duration::from_millis(2)));
        assert!(recent.of(HostIndex(4), at).is_none());
        assert!(recent.of(host, at + RECENT).is_none());
    }
}
