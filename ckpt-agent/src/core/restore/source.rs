//! One shard at one host, and its speed and failures so far.

use codec::ShardIndex;

use crate::core::{Fault, HostIndex, Millis};

/// Index in the session's list of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourceIndex(pub(super) usize);

/// How long a source is left alone after its first failure, milliseconds; doubles with each failure.
const REST_MS: u64 = 500;

/// How long a host that has too many readers, and asks to come back soon, is asked again without a strike,
/// milliseconds: other readers end, and jobs that are evicted together restart together.
const CROWDED_MS: u64 = 60_000;

#[derive(Debug)]
pub(super) struct Source {
    pub(super) shard: ShardIndex,
    pub(super) host: HostIndex,
    /// Nanoseconds for each byte, averaged over recent requests.
    ns_per_byte: Option<u64>,
    strikes: u32,
    /// Since when all its answers have been that it has too many readers.
    crowded_since: Option<Millis>,
    not_before: Millis,
    given_up: bool,
    /// Whether it sent wrong bytes.
    has_lied: bool,
    /// Whether the host failed, otherwise than by wrong bytes, since the holders were last searched for.
    may_have_moved: bool,
}

impl Source {
    pub(super) fn list(sources: &[(ShardIndex, HostIndex)]) -> Vec<Self> {
        let sources = sources.iter();
        sources
            .map(|(shard, host)| Self::new(*shard, *host))
            .collect()
    }

    pub(super) const fn new(shard: ShardIndex, host: HostIndex) -> Self {
        Self {
            shard,
            host,
            ns_per_byte: None,
            strikes: 0,
            crowded_since: None,
            not_before: Millis(0),
            given_up: false,
            has_lied: false,
            may_have_moved: false,
        }
    }

    /// Whether the host may have handed the shard over to another one since the holders were last searched
    /// for: it is given up, since it does not have the shard or does not answer.
    pub(super) const fn may_have_moved(&self) -> bool {
        self.given_up && self.may_have_moved
    }

    /// The holders were searched for; `is_holder` if this host announces the shard. It is asked again then,
    /// even if it was given up.
    pub(super) fn searched(&mut self, is_holder: bool) {
        if self.may_have_moved() && is_holder {
            *self = Self::new(self.shard, self.host);
        }
        self.may_have_moved = false;
    }

    pub(super) const fn is_given_up(&self) -> bool {
        self.given_up
    }

    pub(super) const fn has_lied(&self) -> bool {
        self.has_lied
    }

    pub(super) fn can_be_asked(&self, now: Millis) -> bool {
        !self.given_up && self.not_before <= now
    }

    /// When the source may be asked again, if it is resting.
    pub(super) fn rests_until(&self, now: Millis) -> Option<Millis> {
        (!self.given_up && self.not_before > now).then_some(self.not_before)
    }

    pub(super) const fn ns_per_byte(&self) -> Option<u64> {
        self.ns_per_byte
    }

    /// Nanoseconds until the source would have sent so many bytes. A source of unknown speed is expected to be as fast as
    /// the fastest, so that it is tried.
    pub(super) fn expected_ns(&self, bytes: u64, best_known_ns: Option<u64>) -> u64 {
        let per_byte = self.ns_per_byte.or(best_known_ns).unwrap_or(1);
        per_byte.max(1).saturating_mul(bytes)
    }

    pub(super) fn ended(&mut self, bytes: u64, took_ms: u64) {
        let Some(ns_per_byte) = (took_ms * 1_000_000).checked_div(bytes) else {
            return;
        };
        self.strikes = 0;
        self.crowded_since = None;
        // The new value counts a quarter, so that a host that became slow is left soon.
        self.ns_per_byte = Some(match self.ns_per_byte {
            Some(average) => (3 * average + ns_per_byte) / 4,
            None => ns_per_byte,
        });
    }

    /// The source did not answer a request for so many bytes within `ms`.
    pub(super) fn was_slow(&mut self, bytes: u64, ms: u64) {
        let at_least = ms.saturating_mul(1_000_000) / bytes.max(1);
        self.ns_per_byte = Some(self.ns_per_byte.unwrap_or(0).max(at_least));
    }

    pub(super) fn failed(&mut self, fault: &Fault, now: Millis, strikes_max: u32) {
        if fault.is_crowded() {
            let since = *self.crowded_since.get_or_insert(now);
            if now.since(since) < CROWDED_MS {
                self.not_before = now.plus(fault.retry_after_ms().unwrap_or(REST_MS));
                return;
            }
        }
        // Which of its rows are good, the caller finds out one by one.
        if matches!(fault, Fault::Lied(_)) {
            self.has_lied = true;
            return;
        }
        self.strikes += 1;
        self.may_have_moved = true;
        self.given_up = fault.is_final() || self.strikes >= strikes_max;
        let rest = REST_MS << self.strikes.min(6);
        self.not_before = now.plus(fault.retry_after_ms().unwrap_or(rest));
    }
}

#[cfg(test)]
mod tests {
    use codec::Redundancy;
    use protocol::wire::Code;

    use super::*;

    #[test]
    fn a_host_with_too_many_readers_is_asked_again_for_a_minute() {
        let shard = Redundancy::new(1, 0).unwrap().shard(0).unwrap();
        let mut sources = Source::list(&[(shard, HostIndex(0))]);
        let source = sources.first_mut().unwrap();
        let crowded = Fault::Refused {
            code: Code::Busy,
            detail: String::new(),
            retry_after_ms: 1000,
        };
        let mut now = Millis(0);
        while now.0 < CROWDED_MS {
            source.failed(&crowded, now, 3);
            assert!(
                !source.is_given_up() && !source.can_be_asked(now),
                "{now:?}"
            );
            now = now.plus(1000);
            assert!(source.can_be_asked(now), "{now:?}");
        }
        for _ in 0..3 {
            source.failed(&crowded, now, 3);
        }
        assert!(source.is_given_up());
    }
}
