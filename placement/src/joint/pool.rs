//! Incidents of the whole pool: times at which far fewer hosts than usual were usable. The choice of hosts
//! and code has no influence on them.

use super::Past;
use crate::bitmap::{AvailabilityBitmap, SLOT_SECONDS, SLOTS, Slot, SlotSet};
use crate::probability::Probability;

/// Most hosts whose pasts are compared, an evenly spaced sample of the pool.
const SAMPLE_MAX: usize = 64;

/// Fewest hosts that are a pool: of fewer hosts, half are often away by chance.
const HOSTS_MIN: usize = 5;

/// Share of the usual number of usable hosts below which the whole pool has an incident.
const INCIDENT_SHARE: f64 = 0.5;

/// Slots between two incidents, at least: an hour. Incidents with less between them are one.
const APART_SLOTS: usize = 12;

/// Incidents that are assumed beyond those that were seen: the rule of succession with Jeffreys' prior for a
/// rate.
const UNSEEN_INCIDENTS: f64 = 0.5;

/// Length that is assumed of one further incident, seconds. With few incidents it decides the mean.
const PRIOR_LENGTH_SECONDS: f64 = 3600.0;

/// Days of a past from which a code can be chosen by forecast. An announcement shows 28 days, some slots of
/// which are unknown.
const DAYS_ENOUGH: f64 = 27.0;

/// Incidents from which a code can be chosen by forecast, however few the days.
const INCIDENTS_ENOUGH: u32 = 3;

const DAY_SECONDS: f64 = 86_400.0;

/// What is known of the incidents of a whole pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolPast {
    /// Days in which the pool was observed: of at least five hosts, and half of those with a past, it is known
    /// whether they were usable.
    pub days: f64,
    /// Distinct incidents in these days, at least an hour apart.
    pub incidents: u32,
    /// How long these incidents lasted together, seconds.
    pub incident_seconds: f64,
}

impl PoolPast {
    /// Whether the past is long enough, or bad enough, to choose a code by forecast: 27 days (an announcement
    /// holds no more than 28) or three incidents.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        self.days >= DAYS_ENOUGH || self.incidents >= INCIDENTS_ENOUGH
    }

    /// Share of the time that is lost to incidents of a kind that the past does not hold: half an incident in
    /// the days observed, of the mean length. 0 without a past.
    ///
    /// ```text
    /// 1/2 * L / D      L = (seconds of the incidents + 1 h) / (number of incidents + 1), D the days observed
    /// ```
    ///
    /// It is a lower bound of the probability that too few hosts can be read when a job needs them: incidents
    /// also end jobs, so that jobs need their checkpoints during incidents more often than at other times.
    #[must_use]
    pub fn unseen(&self) -> Probability {
        if self.days <= 0.0 {
            return Probability::ZERO;
        }
        let length =
            (self.incident_seconds + PRIOR_LENGTH_SECONDS) / (f64::from(self.incidents) + 1.0);
        Probability::saturating(UNSEEN_INCIDENTS * length / (self.days * DAY_SECONDS))
    }

    /// The incidents in these bitmaps of the hosts of a pool.
    #[must_use]
    pub fn seen(bitmaps: &[&AvailabilityBitmap]) -> Self {
        let newest = bitmaps.iter().map(|bitmap| bitmap.newest()).max();
        let stride = bitmaps.len().div_ceil(SAMPLE_MAX).max(1);
        let sample = bitmaps.iter().step_by(stride);
        let past =
            |bitmap: &&AvailabilityBitmap| Past::ending_at(bitmap, newest.unwrap_or(Slot(0)));
        Self::of(&sample.map(past).collect::<Vec<_>>())
    }

    /// The incidents in the pasts of hosts, which end at the same slot.
    fn of(sample: &[Past]) -> Self {
        if sample.len() < HOSTS_MIN {
            return Self::default();
        }
        let least = HOSTS_MIN.max(sample.len().div_ceil(2));
        let counts: Vec<(usize, usize)> = in_time(sample)
            .filter(|(known, _)| *known >= least)
            .collect();
        let (known, usable) = counts
            .iter()
            .fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
        let usual = usable as f64 / known.max(1) as f64;
        let (mut incidents, mut slots, mut calm) = (0, 0, APART_SLOTS);
        for (known, usable) in &counts {
            if (*usable as f64) < INCIDENT_SHARE * usual * *known as f64 {
                incidents += u32::from(calm >= APART_SLOTS);
                slots += 1;
                calm = 0;
            } else {
                calm += 1;
            }
        }
        Self {
            days: counts.len() as f64 * SLOT_SECONDS as f64 / DAY_SECONDS,
            incidents,
            incident_seconds: f64::from(slots) * SLOT_SECONDS as f64,
        }
    }
}

/// For each slot, oldest first: of how many hosts it is known whether they were usable, and how many were.
fn in_time(pasts: &[Past]) -> impl Iterator<Item = (usize, usize)> {
    let newest = pasts.first().map_or(0, |past| past.known.newest().0);
    let first = (newest + 1).saturating_sub(SLOTS as u64);
    (first..=newest).map(move |slot| {
        let of = |set: fn(&Past) -> &SlotSet| {
            let sets = pasts.iter().map(set);
            sets.filter(|set| set.contains(Slot(slot))).count()
        };
        (of(|past| &past.known), of(|past| &past.usable))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bitmap::Availability;

    /// Hosts of which this is known: `up(host, slot)`, `None` for unknown.
    fn pool(hosts: usize, up: impl Fn(usize, u64) -> Option<bool>) -> PoolPast {
        let past = |host| {
            let mut bitmap = AvailabilityBitmap::unknown(Slot(SLOTS as u64 - 1));
            for slot in 0..SLOTS as u64 {
                let seen = match up(host, slot) {
                    None => Availability::Unknown,
                    Some(true) => Availability::Usable,
                    Some(false) => Availability::NotUsable,
                };
                bitmap.record(Slot(slot), seen);
            }
            Past {
                known: bitmap.known(),
                usable: bitmap.usable(),
            }
        };
        let pasts: Vec<Past> = (0..hosts).map(past).collect();
        PoolPast::of(&pasts)
    }

    #[test]
    fn an_incident_is_a_time_without_most_of_the_hosts() {
        // Host by host an outage of an hour; then two incidents of eight of ten hosts, the first in two parts.
        let away = |slot: u64| matches!(slot, 4000..4012 | 4018..4024 | 6000..6006);
        let past = pool(10, |host, slot| {
            let alone = (100 * host as u64..100 * host as u64 + 12).contains(&slot);
            Some(!alone && (host < 2 || !away(slot)))
        });
        assert_eq!(past.incidents, 2);
        assert!((past.incident_seconds - 24.0 * 300.0).abs() < 1e-9);
        assert!((past.days - 28.0).abs() < 1e-9 && past.is_enough());
        // (7200 s + 3600 s) / 3 for half an incident in 28 days.
        let unseen = 0.5 * 3600.0 / (28.0 * DAY_SECONDS);
        assert!((past.unseen().value() - unseen).abs() < 1e-12);
    }

    #[test]
    fn a_pool_that_is_rarely_there_has_no_incident_when_it_is_as_usual() {
        let past = pool(10, |host, slot| Some((slot / 12 + host as u64) % 10 < 3));
        assert_eq!(past.incidents, 0, "{past:?}");
    }

    #[test]
    fn only_what_is_known_counts() {
        let young = pool(10, |_, slot| {
            (slot >= SLOTS as u64 - 5 * 288).then_some(true)
        });
        assert!((young.days - 5.0).abs() < 1e-9 && !young.is_enough());
        assert!(young.unseen().value() > pool(10, |_, _| Some(true)).unseen().value());
        // Four hosts are no pool, and nothing is known of a pool of which most is unknown.
        assert_eq!(pool(4, |_, _| Some(true)), PoolPast::default());
        assert_eq!(pool(20, |host, _| (host < 9).then_some(true)).days, 0.0);
        assert_eq!(PoolPast::default().unseen(), Probability::ZERO);
    }

    #[test]
    fn three_incidents_are_enough_however_few_the_days() {
        let days = |incidents: u64| {
            pool(8, |_, slot| {
                let since = slot.checked_sub(SLOTS as u64 - 10 * 288)?;
                Some(since % 288 >= 6 || since / 288 >= incidents)
            })
        };
        assert_eq!([days(2).incidents, days(3).incidents], [2, 3]);
        assert!(!days(2).is_enough() && days(3).is_enough());
    }
}
