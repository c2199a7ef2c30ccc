//! Failures of hosts, and for how long each host is left alone.

use std::collections::BTreeMap;

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
