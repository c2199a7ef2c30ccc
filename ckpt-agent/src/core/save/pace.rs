//! When a host that works is too slow to be kept.
//!
//! The time in which rows waited for a host, divided by the rows that it took, is its **pace**. It
//! does not depend on how fast rows come, so hosts can be compared while one of them holds up all.
//! A host is replaced when keeping it costs clearly more time than beginning again on a spare that
//! is as fast as the middle one of the others.

use super::attempt::{Attempt, Phase};
use super::{AttemptId, SaveSession};
use crate::core::{Fault, Millis};

/// A host is judged after rows have waited for it for this long.
const EVIDENCE_MS: u64 = 500;

/// Hosts that take less than this many times as long as the middle one are never replaced.
const SLOW_FACTOR: u64 = 3;

/// Sending all rows again is thought to take this many times as long as it took the others.
const RESEND_FACTOR: u64 = 2;

/// The same for rebuilding, which also has to read them.
const REBUILD_FACTOR: u64 = 3;

/// What a replacement costs in any case.
const REPLACE_US: u64 = 1_000_000;

impl SaveSession {
    /// An attempt whose host should be replaced by a spare, and why.
    pub(super) fn too_slow(&self) -> Option<(AttemptId, Fault)> {
        let (id, slowest, middle) = self.slowest()?;
        self.is_too_slow(slowest, middle).then(|| {
            let fault = Fault::Slow {
                ms_per_row: self.at_least_us_per_row(slowest) / 1000,
                others_ms: middle / 1000,
            };
            (id, fault)
        })
    }

    /// When it will have turned out whether a host for which rows wait now, and which seems slow, is
    /// too slow. Until then no row is released that its successor would need.
    pub(super) fn suspects_until(&self) -> Option<Millis> {
        if self.released > 0 {
            return None;
        }
        let (_, slowest, middle) = self.slowest()?;
        let busy = slowest.busy_until(self.now);
        let seems_slow = self.at_least_us_per_row(slowest) >= SLOW_FACTOR * middle;
        let waits = slowest.sent < slowest.given;
        (waits && seems_slow && busy < EVIDENCE_MS).then(|| self.now.plus(EVIDENCE_MS - busy))
    }

    /// The slowest host, and the time per row of the middle one of the others, if there is a spare.
    fn slowest(&self) -> Option<(AttemptId, &Attempt, u64)> {
        let spare = |c: &super::Candidate| !c.was_slow && c.not_before <= self.now;
        if !self.candidates.iter().any(spare) {
            return None;
        }
        let sending = self.live().filter(|(_, a)| a.phase == Phase::Sending);
        let (id, slowest) = sending.max_by_key(|(_, attempt)| self.at_least_us_per_row(attempt))?;
        let mut others: Vec<u64> = self
            .live()
            .filter(|(other, attempt)| *other != id && attempt.sent > 0)
            .map(|(_, attempt)| self.us_per_row(attempt))
            .collect();
        others.sort_unstable();
        let middle = *others.get(others.len().checked_sub(1)? / 2)?;
        Some((id, slowest, middle))
    }

    /// As if the row that is under way had just been taken.
    fn at_least_us_per_row(&self, attempt: &Attempt) -> u64 {
        let busy_us = attempt.busy_until(self.now).saturating_mul(1000);
        let under_way = u64::from(attempt.sent < attempt.given);
        busy_us / (attempt.sent + under_way).max(1)
    }

    fn us_per_row(&self, attempt: &Attempt) -> u64 {
        let busy_us = attempt.busy_until(self.now).saturating_mul(1000);
        (busy_us / attempt.sent.max(1)).max(1)
    }

    /// Compares the times until the rows that are known, and as many again while the image has
    /// not ended, are with the host or with a spare.
    fn is_too_slow(&self, attempt: &Attempt, others_us: u64) -> bool {
        let own_us = self.at_least_us_per_row(attempt);
        if attempt.busy_until(self.now) < EVIDENCE_MS || own_us < SLOW_FACTOR * others_us {
            return false;
        }
        let ready = self.rows_ready();
        let mut keep = (ready - attempt.sent).saturating_mul(own_us);
        if !self.ended {
            keep = keep.saturating_add(ready.saturating_mul(own_us - others_us));
        }
        let factor = if self.released == 0 {
            RESEND_FACTOR
        } else {
            REBUILD_FACTOR
        };
        let again = ready.saturating_mul(others_us).saturating_mul(factor);
        keep > again.saturating_add(REPLACE_US)
    }
}
