//! When a host that works is too slow to be kept.
//!
//! The time in which rows waited for a host, divided by the bytes that it took then, is its **pace**.
//! It does not depend on how fast rows come, so hosts can be compared while one of them holds up all.
//! A host is replaced when keeping it costs clearly more time than beginning again on a spare that
//! is as fast as the middle one of the others.

use super::attempt::{Attempt, Phase};
use super::{AttemptId, SaveSession};
use crate::core::{Fault, Millis};

/// Hosts that take less than this many times as long as the middle one are never replaced.
const SLOW_FACTOR: f64 = 3.0;

/// Sending all rows again is thought to take this many times as long as it took the others.
const RESEND_FACTOR: f64 = 2.0;

/// The same for rebuilding, which also has to read them.
const REBUILD_FACTOR: f64 = 3.0;

/// What a replacement costs in any case, seconds.
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

    /// Whether a host with this pace is slow where others have that one.
    fn is_slow_beside(self, others: Self) -> bool {
        self.0 > 0.0 && self.0 >= SLOW_FACTOR * others.0
    }
}

impl SaveSession {
    /// An attempt whose host should be replaced by a spare, and why.
    pub(super) fn too_slow(&self) -> Option<(AttemptId, Fault)> {
        let (id, slowest, middle) = self.slowest()?;
        self.is_too_slow(slowest, middle).then(|| {
            let fault = Fault::Slow {
                bytes_per_second: self.best_pace(slowest).bytes_per_second(),
            };
            (id, fault)
        })
    }

    /// When it will have turned out whether a host for which rows wait now is too slow. Until then no
    /// row is released that its successor would need, if there is a spare.
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

    /// The slowest host, and the pace of the middle one of the others, if there is a spare.
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

    /// Its pace if the row that is under way had just been taken.
    fn best_pace(&self, attempt: &Attempt) -> Pace {
        let under_way = self.bytes_of(attempt.sent..attempt.given.min(attempt.sent + 1));
        Pace::of(attempt.busy_until(self.now), attempt.busy_bytes + under_way)
    }

    /// Compares the time until the rows that are known are with the host with that until they are
    /// with a spare. While the image has not ended, rows are thought to wait for the host for as long
    /// again as they did.
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

    /// What it takes a host like the others to take all rows up to now: not longer than it took them,
    /// without the time in which rows waited for the slow one. That is all that is known where nobody
    /// ever waited for the others.
    fn seconds_again(&self, others: Pace, busy_ms: u64) -> f64 {
        let took = self.now.since(self.began).saturating_sub(busy_ms) as f64 / 1000.0;
        if others.0 > 0.0 {
            others.seconds_for(self.ready_bytes).min(took)
        } else {
            took
        }
    }
}
