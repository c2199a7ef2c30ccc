//! When a request counts as slow, and when as stalled.

use std::collections::{BTreeMap, VecDeque};

use super::{Fetch, RestoreLimits};
use crate::core::{HostIndex, Millis};

/// How many of the latest durations are remembered.
const DURATIONS_MAX: usize = 32;

/// Fewest durations with which a request is compared.
const DURATIONS_MIN: usize = 4;

/// A request is slow when it takes this many times the median of the latest durations.
const SLOW_FACTOR: u64 = 4;

/// A request has stalled after this many times `stall_ms` without a block, even while its host answers
/// others.
const STALLS_MAX: u64 = 3;

/// Durations of requests, and when each host was last heard from.
#[derive(Debug, Default)]
pub(super) struct RequestTimes {
    /// Durations of the latest requests, milliseconds.
    durations: VecDeque<u64>,
    /// When the last block of each host came.
    heard: BTreeMap<HostIndex, Millis>,
}

impl RequestTimes {
    /// A request took this long.
    pub(super) fn add(&mut self, ms: u64) {
        self.durations.push_back(ms);
        if self.durations.len() > DURATIONS_MAX {
            self.durations.pop_front();
        }
    }

    pub(super) fn heard_from(&mut self, host: HostIndex, now: Millis) {
        self.heard.insert(host, now);
    }

    /// When a request counts as slow: its host was silent for too long, or the request takes much longer than
    /// others did.
    pub(super) fn hedge_at(&self, fetch: &Fetch, limits: &RestoreLimits) -> Millis {
        let silent = self.last_heard(fetch).plus(limits.hedge_ms);
        if self.durations.len() < DURATIONS_MIN {
            return silent;
        }
        let slow = limits.hedge_ms.max(SLOW_FACTOR * self.middle());
        silent.min(fetch.begun.plus(slow))
    }

    /// When a request counts as stalled. It may wait for others of the same host.
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
