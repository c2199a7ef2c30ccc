//! How many bytes were moved on which day, and when the machine owner's limit allows more.

use std::collections::BTreeMap;

const DAY_S: u64 = 86_400;

/// How many days are remembered.
const DAYS_MAX: usize = 400;

/// Bytes that this host received and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes received by this host.
    pub received: u64,
    /// Bytes sent by this host.
    pub sent: u64,
}

impl Moved {
    /// Bytes of both directions together.
    pub const fn both(self) -> u64 {
        self.received.saturating_add(self.sent)
    }

    /// The sum of two records, by direction.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            received: self.received.saturating_add(other.received),
            sent: self.sent.saturating_add(other.sent),
        }
    }
}

/// A limit on the bytes of the last days, both directions together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferLimit {
    /// Most bytes within these days.
    pub bytes: u64,
    /// Number of days, today included; at least 1.
    pub days: u32,
}

/// The bytes moved on each day. A day is a number of days since 1970 (UTC).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Days(BTreeMap<u64, Moved>);

impl Days {
    /// A record of these days, such as one that was read from a file.
    pub fn of(days: BTreeMap<u64, Moved>) -> Self {
        let mut all = Self(days);
        all.forget_oldest();
        all
    }

    /// The bytes by day.
    pub const fn by_day(&self) -> &BTreeMap<u64, Moved> {
        &self.0
    }

    /// Adds what was moved at `now`, in Unix seconds.
    pub fn enter(&mut self, now: u64, moved: Moved) {
        let day = self.0.entry(now / DAY_S).or_default();
        *day = day.and(moved);
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        while self.0.len() > DAYS_MAX {
            self.0.pop_first();
        }
    }

    /// What was moved since the day `first`, in days since 1970.
    pub fn since(&self, first: u64) -> Moved {
        let days = self.0.range(first..);
        days.fold(Moved::default(), |sum, (_, moved)| sum.and(*moved))
    }

    /// What was moved in the last `days` days, today included.
    pub fn within(&self, now: u64, days: u32) -> Moved {
        self.since((now / DAY_S + 1).saturating_sub(days.into()))
    }

    /// Seconds from `now` until `limit` allows more bytes; 0 if it allows more now.
    pub fn seconds_until_allowed(&self, now: u64, limit: TransferLimit) -> u32 {
        let is_used_up = |at: u64| self.within(at, limit.days).both() >= limit.bytes;
        if !is_used_up(now) {
            return 0;
        }
        let midnight = |after: u32| (now / DAY_S + u64::from(after)) * DAY_S;
        let allowed = (1..=limit.days).find(|after| !is_used_up(midnight(*after)));
        let at = midnight(allowed.unwrap_or(limit.days));
        u32::try_from(at - now).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn sent(bytes: u64) -> Moved {
        Moved {
            received: 0,
            sent: bytes,
        }
    }

    #[test]
    fn bytes_are_summed_by_day() {
        let mut days = Days::default();
        let noon = |day: u64| day * DAY_S + DAY_S / 2;
        days.enter(noon(10), sent(3));
        days.enter(
            noon(11),
            Moved {
                received: 5,
                sent: 1,
            },
        );
        days.enter(noon(11), sent(1));
        assert_eq!(
            days.within(noon(11), 1),
            Moved {
                received: 5,
                sent: 2
            }
        );
        assert_eq!(days.within(noon(11), 2).both(), 10);
        assert_eq!(days.within(noon(12), 2).both(), 7);
        assert_eq!(days.since(12), Moved::default());
        for day in 0..500 {
            days.enter(noon(day), sent(1));
        }
        assert_eq!(days.by_day().len(), DAYS_MAX);
    }

    #[test]
    fn a_limit_frees_what_is_older_than_its_days() {
        let mut days = Days::default();
        let limit = TransferLimit {
            bytes: 10 * MB,
            days: 3,
        };
        let at = |day: u64| day * DAY_S + 1000;
        days.enter(at(10), sent(8 * MB));
        assert_eq!(days.seconds_until_allowed(at(10), limit), 0);
        days.enter(at(11), sent(2 * MB));
        // The bytes of day 10 count until the end of day 12.
        let wait = days.seconds_until_allowed(at(11), limit);
        assert_eq!(u64::from(wait), 13 * DAY_S - at(11));
        assert_eq!(days.seconds_until_allowed(13 * DAY_S, limit), 0);
        let none = TransferLimit { bytes: 0, days: 1 };
        assert!(days.seconds_until_allowed(at(20), none) > 0);
    }
}
