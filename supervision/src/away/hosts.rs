//! Failures of hosts, and for how long each host is left alone.

use std::collections::BTreeMap;

use super::Candidate;
use crate::clock::Millis;

/// Limits the exponent of the back-off. The longest back-off is reached much earlier.
const DOUBLINGS_MAX: u32 = 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Past {
    failures: u32,
    free_at: Millis,
    /// The exit status with which the host refused the job the last time.
    refusal: Option<u8>,
}

/// The hosts that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hosts {
    past: BTreeMap<String, Past>,
}

impl Hosts {
    /// Whether the back-off of a host is over, if it has one.
    pub(super) fn is_free(&self, host: &str, now: Millis) -> bool {
        self.past.get(host).is_none_or(|past| past.free_at <= now)
    }

    /// The first free host but `here`, or a `prepared` one, unless the job is expected to end earlier on the first by
    /// more than a move takes.
    pub(super) fn best<'a>(
        &self,
        now: Millis,
        candidates: &'a [Candidate],
        here: Option<&str>,
        prepared: Option<&str>,
        move_seconds: f64,
    ) -> Option<&'a Candidate> {
        let is_free =
            |one: &&Candidate| Some(one.host.as_str()) != here && self.is_free(&one.host, now);
        let mut free = candidates.iter().filter(is_free);
        let first = free.clone().next()?;
        let latest = first.expected_seconds + move_seconds;
        let prepared =
            free.find(|one| Some(one.host.as_str()) == prepared && one.expected_seconds <= latest);
        Some(prepared.unwrap_or(first))
    }

    /// When the first of these hosts ends its back-off; `None` if none of them has one.
    pub(super) fn first_free<'a>(&self, hosts: impl Iterator<Item = &'a str>) -> Option<Millis> {
        hosts
            .filter_map(|host| Some(self.past.get(host)?.free_at))
            .min()
    }

    /// The exit status with which a host refused the job the last time; `None` if its last failure was no
    /// refusal.
    pub(super) fn refusal(&self, host: &str) -> Option<u8> {
        self.past.get(host)?.refusal
    }

    /// Records a failure. Returns for how many milliseconds the host is left alone: `first_ms`, doubled
    /// with each failure, at most `most_ms`.
    pub(super) fn fail(
        &mut self,
        host: &str,
        now: Millis,
        first_ms: u64,
        most_ms: u64,
        refusal: Option<u8>,
    ) -> u64 {
        let past = self.past.entry(host.to_owned()).or_default();
        let doublings = past.failures.min(DOUBLINGS_MAX);
        past.failures = past.failures.saturating_add(1);
        past.refusal = refusal;
        let ms = first_ms.saturating_mul(1 << doublings).min(most_ms);
        past.free_at = now.plus(ms);
        ms
    }

    /// Forgets the failures of a host on which the job has run for a while.
    pub(super) fn forgive(&mut self, host: &str) {
        self.past.remove(host);
    }
}
