//! How long a host that is away is expected back.

use std::time::Duration;

use crate::AvailabilityBitmap;
use crate::bitmap::{Availability, SLOT_SECONDS, SLOTS, Slot};

/// How long a missing shard is waited for before it is rebuilt: as long as its holder is expected back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairWaits {
    /// A missing shard is waited for at least this long.
    pub least: Duration,
    /// Wait if too little is known of absences.
    pub usual: Duration,
    /// A missing shard is waited for at most this long.
    pub most: Duration,
}

impl Default for RepairWaits {
    fn default() -> Self {
        Self {
            least: Duration::from_secs(15 * 60),
            usual: Duration::from_secs(3600),
            most: Duration::from_secs(86_400),
        }
    }
}

/// When a checkpoint can't survive the loss of another shard, the wait is divided by this.
const URGENT_DIVISOR: u32 = 8;

/// The wait is the length that nine in ten of the past absences did not exceed, times this.
const ABSENCE_MARGIN: f64 = 1.5;

/// The quantile of past absences from which the wait follows.
const ABSENCE_QUANTILE: f64 = 0.9;

/// With fewer recorded absences, `usual` is the wait.
const ABSENCES_MIN: usize = 3;

impl RepairWaits {
    /// The wait for a shard whose holder has this record of availability.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "an index below the number of absences"
    )]
    pub fn with(&self, past: Option<&AvailabilityBitmap>) -> Duration {
        let mut absences = past.map(absences).unwrap_or_default();
        if absences.len() < ABSENCES_MIN {
            return self.usual.clamp(self.least, self.most);
        }
        absences.sort_unstable();
        let at = ((absences.len() - 1) as f64 * ABSENCE_QUANTILE).round() as usize;
        let slots = absences.get(at).copied().unwrap_or(0);
        let seconds = f64::from(slots) * SLOT_SECONDS as f64 * ABSENCE_MARGIN;
        Duration::from_secs_f64(seconds).clamp(self.least, self.most)
    }
}

/// What the wait is divided by, for a checkpoint of which so many shards more than needed are `spare`.
pub const fn hurry(spare: usize) -> u32 {
    match spare {
        0 => URGENT_DIVISOR,
        _ => 1,
    }
}

/// Lengths of the absences in a bitmap, in slots. An absence that has not ended yet is left out.
fn absences(past: &AvailabilityBitmap) -> Vec<u32> {
    let mut lengths = Vec::new();
    let mut length = 0;
    let newest = past.newest().0;
    for slot in (newest + 1).saturating_sub(SLOTS as u64)..=newest {
        match past.get(Slot(slot)) {
            Availability::NotUsable => length += 1,
            Availability::Usable if length > 0 => lengths.push(std::mem::take(&mut length)),
            Availability::Usable | Availability::Unknown => length = 0,
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_come_back_within_hours_are_waited_for() {
        let waits = RepairWaits::default();
        assert_eq!(waits.with(None), waits.usual);
        let mut past = AvailabilityBitmap::unknown(Slot(0));
        // Usable for eight hours, then away for two.
        for slot in 1..2000 {
            let availability = match slot % 120 >= 24 {
                true => Availability::Usable,
                false => Availability::NotUsable,
            };
            past.record(Slot(slot), availability);
        }
        let waited = waits.with(Some(&past));
        assert_eq!(waited, Duration::from_secs(3 * 3600));
    }
}
