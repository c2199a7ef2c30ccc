//! What went wrong on hosts, and for how long they are left alone.

use std::collections::BTreeMap;

use crate::clock::Millis;

/// Longest time is reached by then at the latest.
const DOUBLINGS_MAX: u32 = 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Past {
    failures: u32,
    free_at: Millis,
    /// The status with which it refused the job last.
    refusal: Option<u8>,
}

/// The hosts that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hosts {
    past: BTreeMap<String, Past>,
}

impl Hosts {
    /// Whether a host may be asked.
    pub(super) fn is_free(&self, host: &str, now: Millis) -> bool {
        self.past.get(host).is_none_or(|past| past.free_at <= now)
    }

    /// When the first of these may be asked; none when there is none.
    pub(super) fn first_free<'a>(&self, hosts: impl Iterator<Item = &'a str>) -> Option<Millis> {
        hosts
            .filter_map(|host| Some(self.past.get(host)?.free_at))
            .min()
    }

    /// The status with which a host refused the job last; none when it did not.
    pub(super) fn refusal(&self, host: &str) -> Option<u8> {
        self.past.get(host)?.refusal
    }

    /// It failed: how long it is left alone, from `first_ms`, doubled each time, to `most_ms`.
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

    /// The job has run there for a while.
    pub(super) fn forgive(&mut self, host: &str) {
        self.past.remove(host);
    }
}
