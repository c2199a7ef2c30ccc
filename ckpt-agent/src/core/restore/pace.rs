//! When a request is slow, and when it has stalled.

use std::collections::{BTreeMap, VecDeque};

use super::{Fetch, RestoreLimits};
use crate::core::{HostIndex, Millis};

/// Requests whose durations are remembered.
const DURATIONS_MAX: usize = 32;

/// Durations that must be known before a request is compared with them.
const DURATIONS_MIN: usize = 4;

/// A request is slow when it takes this many times as long as the middle one of the latest.
const SLOW_FACTOR: u64 = 4;

/// Stall times after which a request has stalled even when its host answers others.
const STALLS_MAX: u64 = 3;

/// How fast answers come.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// How long the latest requests took.
    durations: VecDeque<u64>,
    /// When the last block of each host came.
    heard: BTreeMap<HostIndex, Millis>,
}

impl Pace {
    pub(super) fn took(&mut self, ms: u64) {
        self.durations.push_back(ms);
        if self.durations.len() > DURATIONS_MAX {
            self.durations.pop_front();
        }
    }

    pub(super) fn heard_from(&mut self, host: HostIndex, now: Millis) {
        self.heard.insert(host, now);
    }

    /// When a request counts as slow: when its host was silent for too long, or when the request
    /// takes much longer than others.
    pub(super) fn hedge_at(&self, fetch: &Fetch, limits: &RestoreLimits) -> Millis {
        let silent = self.last_heard(fetch).plus(limits.hedge_ms);
        if self.durations.len() < DURATIONS_MIN {
            return silent;
        }
        let slow = limits.hedge_ms.max(SLOW_FACTOR * self.middle());
        silent.min(fetch.begun.plus(slow))
    }

    /// When a request counts as stalled. It may wait behind others of the same host.
    pub(super) fn stalls_at(&self, fetch: &Fetch, limits: &RestoreLimits) -> Millis {
        let at_most = STALLS_MAX.saturating_mul(limits.stall_ms);
        let behind_others = self.last_heard(fetch).plus(limits.stall_ms);
        behind_others.min(fetch.progress.plus(at_most))
    }

    fn last_heard(&self, fetch: &Fetch) -> Millis {
        let host = self.heard.get(&fetch.host).copied().unwrap_or_default();
        host.max(fetch.progress)
    }

    fn middle(&self) -> u64 {
        let mut durations: Vec<u64> = self.durations.iter().copied().collect();
        durations.sort_unstable();
        durations.get(durations.len() / 2).copied().unwrap_or(0)
    }
}
