//! When a host that works is too slow to be kept.
//!
//! The **pace** of a host is the time in which rows waited for it, divided by the bytes that it took in that
//! time. It does not depend on how fast rows come, so hosts can be compared even while one of them holds up
//! all others. A host is replaced when keeping it costs clearly more time than sending the shard again to a
//! spare that has the median pace of the other hosts.
//!
//! Example: rows of 1 MiB wait 10 s for host A to take 10 MiB, so A has a pace of 1 s/MiB. The median of the
//! others is 0.1 s/MiB. With 100 MiB ahead, A needs 100 s, while a spare needs about 11 s for all 110 MiB,
//! twice that with [`RESEND_FACTOR`]: A is replaced.

use super::attempt::{Attempt, Phase};
use super::{AttemptId, SaveSession};
use crate::core::{Fault, Millis};

/// A host is slow if its pace is at least this many times the median of the others.
const SLOW_FACTOR: f64 = 3.0;

/// Sending all rows again is assumed to take this many times as long as the other hosts took for them.
const RESEND_FACTOR: f64 = 2.0;

/// The same factor for a rebuild, which also has to read the rows from other hosts.
const REBUILD_FACTOR: f64 = 3.0;

/// Fixed cost of a replacement, seconds.
const REPLACE_SECONDS: f64 = 1.0;

/// Seconds for one byte of a shard.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Pace(f64);

impl Pace {
    fn of(waited_ms: u64, bytes: u64) -> Self {
        Self(waited_ms as f64 / 1000.0 / bytes.max(1) as f64)
    }

    fn seconds_for(self, bytes: u64) -> f64 {
        self.0 * bytes as f64
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "at most 10^12, and never negative"
    )]
    fn bytes_per_second(self) -> u64 {
        (1.0 / self.0.max(1e-12)) as u64
    }

    /// Whether a host with this pace is slow, given the median pace of the others.
    fn is_slow_beside(self, others: Self) -> bool {
        self.0 > 0.0 && self.0 >= SLOW_FACTOR * others.0
    }
}

impl SaveSession {
    /// An attempt whose host should be replaced by a spare, with the fault to report.
    pub(super) fn too_slow(&self) -> Option<(AttemptId, Fault)> {
        let (id, slowest, middle) = self.slowest()?;
        self.is_too_slow(slowest, middle).then(|| {
            let fault = Fault::Slow {
                bytes_per_second: self.best_pace(slowest).bytes_per_second(),
            };
            (id, fault)
        })
    }

    /// When it will be clear whether a host for which rows wait now is too slow. Until then, if there is a
    /// spare, no row is released, since the spare would need it.
    pub(super) fn unjudged_until(&self) -> Option<Millis> {
        let all_fit = self.retained_bytes <= self.plan.limits.retain_bytes;
        if all_fit || self.released > 0 || !self.has_spare() {
            return None;
        }
        let sending = self.live().filter(|(_, a)| a.phase == Phase::Sending);
        let waiting = sending.filter(|(_, attempt)| attempt.sent < attempt.given);
        let busy = waiting.map(|(_, attempt)| attempt.busy_until(self.now));
        let evidence_ms = self.plan.limits.evidence_ms;
        let missing = busy.filter_map(|busy| evidence_ms.checked_sub(busy));
        let missing = missing.filter(|missing| *missing > 0).min()?;
        Some(self.now.plus(missing))
    }

    fn has_spare(&self) -> bool {
        let spare = |c: &super::Candidate| !c.was_slow && c.not_before <= self.now;
        self.candidates.iter().any(spare)
    }

    /// The attempt with the slowest host, and the median pace of the others, if there is a spare.
    fn slowest(&self) -> Option<(AttemptId, &Attempt, Pace)> {
        if !self.has_spare() {
            return None;
        }
        let sending = self.live().filter(|(_, a)| a.phase == Phase::Sending);
        let (id, slowest) =
            sending.max_by(|(_, a), (_, b)| self.best_pace(a).0.total_cmp(&self.best_pace(b).0))?;
        let mut others: Vec<Pace> = self
            .live()
            .filter(|(other, attempt)| *other != id && attempt.sent > 0)
            .map(|(_, attempt)| Pace::of(attempt.busy_until(self.now), attempt.busy_bytes))
            .collect();
        others.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let middle = *others.get(others.len().checked_sub(1)? / 2)?;
        Some((id, slowest, middle))
    }

    /// The pace of an attempt's host if it took the row under way just now: the best that it can still have.
    fn best_pace(&self, attempt: &Attempt) -> Pace {
        let under_way = self.bytes_of(attempt.sent..attempt.given.min(attempt.sent + 1));
        Pace::of(attempt.busy_until(self.now), attempt.busy_bytes + under_way)
    }

    /// Compares the time until the host has all rows known so far with the time until a spare has them. While
    /// the image has not ended, rows are assumed to wait for the host for as long again as they did up to
    /// now.
    fn is_too_slow(&self, attempt: &Attempt, others: Pace) -> bool {
        let own = self.best_pace(attempt);
        let busy_ms = attempt.busy_until(self.now);
        if busy_ms < self.plan.limits.evidence_ms || !own.is_slow_beside(others) {
            return false;
        }
        let mut keep = own.seconds_for(self.bytes_of(attempt.sent..self.rows_ready()));
        if !self.ended {
            keep += busy_ms as f64 / 1000.0;
        }
        let factor = if self.released == 0 {
            RESEND_FACTOR
        } else {
            REBUILD_FACTOR
        };
        keep > self.seconds_again(others, busy_ms) * factor + REPLACE_SECONDS
    }

    /// Seconds in which a host with the pace of the others takes all rows up to now. At most the whole time
    /// of the save, less the time in which rows waited for the slow host; that is the only estimate if no row
    /// ever waited for the others.
    fn seconds_again(&self, others: Pace, busy_ms: u64) -> f64 {
        let took = self.now.since(self.began).saturating_sub(busy_ms) as f64 / 1000.0;
        if others.0 > 0.0 {
            others.seconds_for(self.ready_bytes()).min(took)
        } else {
            took
        }
    }
}
