//! Incidents of the whole pool: times at which far fewer hosts than usual were usable. The choice of hosts
//! and code has no influence on them.

use super::Past;
use crate::bitmap::{AvailabilityBitmap, SLOT_SECONDS, SLOTS, Slot, SlotSet, WORDS};
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

/// Days for which a pool counts as observed, at least. Else half an incident, or one in the first hours, would fill
/// nearly all of the time.
const DAYS_MIN: f64 = 1.0;

/// Incidents of a whole pool that a client saw itself: fewer than half of the usual share of the hosts answered it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Watched {
    /// Days since the client first asked so many hosts that it could see an incident; from 0 to 28.
    pub days: f64,
    /// Distinct incidents in these days.
    pub incidents: u32,
    /// How long these incidents lasted together, seconds.
    pub incident_seconds: f64,
}

/// What is known of the incidents of a whole pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolPast {
    /// Hosts whose pasts were compared; 0 for fewer than five, which are no pool.
    pub hosts: usize,
    /// Days in which the pool was observed: of at least five hosts, and half of those with a past, it is known
    /// whether they were usable.
    pub days: f64,
    /// Distinct incidents in these days, at least an hour apart.
    pub incidents: u32,
    /// How long these incidents lasted together, seconds.
    pub incident_seconds: f64,
    /// What the client saw itself. Most of it is on the bitmaps, too, so the larger of both counts is taken.
    pub watched: Watched,
}

impl PoolPast {
    /// This past and what the client saw itself.
    #[must_use]
    pub const fn and(self, watched: Watched) -> Self {
        Self { watched, ..self }
    }

    /// Whether the past is long enough, or bad enough, to choose a code by forecast: 27 days (an announcement
    /// holds no more than 28) or three incidents, on the bitmaps or seen by the client.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        let incidents = self.incidents.max(self.watched.incidents);
        self.days >= DAYS_ENOUGH || incidents >= INCIDENTS_ENOUGH
    }

    /// Share of the time that is lost to incidents that the bitmaps do not hold: half an incident of the mean
    /// length in the days observed, and those that the client saw beyond the number of those on the bitmaps. A pool
    /// of which less is known counts as observed for a day. Fewer than five hosts are no pool: only what the client
    /// saw counts.
    ///
    /// ```text
    /// 1/2 * L / D + (w - n) * W / V      the second term where w > n
    ///
    /// n, L, D   on the bitmaps: number of incidents; (their seconds + 1 h) / (n + 1); days observed, 1 at least
    /// w, W, V   seen by the client: number of incidents; their mean length; days, D or 1 if that is more
    /// ```
    ///
    /// It is a lower bound of the probability that too few hosts can be read when a job needs them: incidents
    /// also end jobs, so that jobs need their checkpoints during incidents more often than at other times.
    #[must_use]
    pub fn unseen(&self) -> Probability {
        let beyond = self.beyond_the_bitmaps();
        if self.hosts == 0 {
            return Probability::saturating(beyond);
        }
        let length =
            (self.incident_seconds + PRIOR_LENGTH_SECONDS) / (f64::from(self.incidents) + 1.0);
        let seconds = self.days.max(DAYS_MIN) * DAY_SECONDS;
        Probability::saturating(UNSEEN_INCIDENTS * length / seconds + beyond)
    }

    /// Share of the time that was lost to incidents that the client saw beyond the number on the bitmaps.
    fn beyond_the_bitmaps(&self) -> f64 {
        let Watched {
            days,
            incidents,
            incident_seconds,
        } = self.watched;
        let beyond = incidents.saturating_sub(self.incidents);
        let length = incident_seconds / f64::from(incidents.max(1));
        let days = days.max(self.days).max(DAYS_MIN);
        f64::from(beyond) * length / (days * DAY_SECONDS)
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
        let mut incidents = 0;
        let mut slots = 0;
        let mut calm = APART_SLOTS;
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
            hosts: sample.len(),
            days: counts.len() as f64 * SLOT_SECONDS as f64 / DAY_SECONDS,
            incidents,
            incident_seconds: f64::from(slots) * SLOT_SECONDS as f64,
            watched: Watched::default(),
        }
    }
}

/// For each slot, oldest first: of how many of at most 255 hosts it is known whether they were usable, and how many were.
fn in_time(pasts: &[Past]) -> impl Iterator<Item = (usize, usize)> {
    let newest = pasts.first().map_or(0, |past| past.known.newest().0);
    let first = (newest + 1).saturating_sub(SLOTS as u64);
    let known = counts(pasts.iter().map(|past| &past.known));
    let usable = counts(pasts.iter().map(|past| &past.usable));
    (first..=newest).map(move |slot| {
        let bit = Slot(slot).bit();
        let of = |counts: &[[u8; 64]]| usize::from(counts[bit / 64][bit % 64]);
        (of(&known), of(&usable))
    })
}

/// In how many of at most 255 sets each slot is, by word and bit.
fn counts<'a>(sets: impl Iterator<Item = &'a SlotSet>) -> Vec<[u8; 64]> {
    let mut counts = vec![[0; 64]; WORDS];
    for set in sets {
        for (counts, word) in counts.iter_mut().zip(set.words()) {
            for (bit, count) in counts.iter_mut().enumerate() {
                *count += u8::from(word >> bit & 1 == 1);
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bitmap::Availability;
    use proptest::prelude::*;

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
            Past::new(bitmap.known(), bitmap.usable())
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
        let unknown = pool(20, |host, _| (host < 9).then_some(true));
        assert_eq!(unknown.days, 0.0);
        assert_eq!(PoolPast::default().unseen(), Probability::ZERO);
        // In the first hour of a pool not everything is forecast to fail, nor for certain to be read.
        let first_hour = pool(10, |_, slot| (slot >= SLOTS as u64 - 12).then_some(true));
        let half_an_hour_in_a_day = 0.5 / 24.0;
        for young in [unknown, first_hour] {
            assert!((young.unseen().value() - half_an_hour_in_a_day).abs() < 1e-12);
        }
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

    const fn watched(days: f64, incidents: u32) -> Watched {
        Watched {
            days,
            incidents,
            incident_seconds: 3600.0 * incidents as f64,
        }
    }

    #[test]
    fn what_the_client_saw_counts_beyond_what_is_on_the_bitmaps() {
        let steady = pool(10, |_, _| Some(true));
        let share = |past: PoolPast| past.unseen().value();
        // Two hours in 28 days, beside half an incident of an hour.
        let seen = steady.and(watched(20.0, 2));
        assert!((share(seen) - 2.5 / (28.0 * 24.0)).abs() < 1e-12);
        // Both saw the same two incidents: nothing is added.
        let hit = pool(10, |_, slot| Some(!matches!(slot, 3000..3012 | 6000..6012)));
        assert_eq!(
            (hit.incidents, hit.and(watched(20.0, 2)).unseen()),
            (2, hit.unseen())
        );
        assert!(share(hit.and(watched(20.0, 3))) > share(hit));
        // Without bitmaps the client's own days count, and of these one at least.
        let none = PoolPast::default();
        assert!((share(none.and(watched(10.0, 1))) - 1.0 / 240.0).abs() < 1e-12);
        assert!((share(none.and(watched(0.1, 1))) - 1.0 / 24.0).abs() < 1e-12);
        assert_eq!(
            none.and(watched(28.0, 0)),
            PoolPast {
                watched: watched(28.0, 0),
                ..none
            }
        );
        assert_eq!(none.and(watched(28.0, 0)).unseen(), Probability::ZERO);
    }

    #[test]
    fn three_incidents_are_enough_whoever_saw_them() {
        let young = pool(8, |_, slot| (slot >= SLOTS as u64 - 2880).then_some(true));
        assert!(!young.and(watched(10.0, 2)).is_enough());
        assert!(young.and(watched(10.0, 3)).is_enough());
        // The two of the client are two of the three on the bitmaps, or may be: they are not added up.
        assert!(
            !PoolPast {
                incidents: 2,
                ..young
            }
            .and(watched(10.0, 2))
            .is_enough()
        );
        // Days without incidents that only the client saw are not enough: it saw no host at other times.
        assert!(!young.and(watched(28.0, 0)).is_enough());
    }

    proptest! {
        #[test]
        fn what_the_client_saw_never_makes_a_forecast_better(
            (days, incidents, length) in (0.0..28.0_f64, 0..9_u32, 300.0..1e5_f64),
            (own_days, own, own_length) in (0.0..28.0_f64, 0..17_u32, 3600.0..1e6_f64),
        ) {
            let of = |days, incidents, length: f64| Watched {
                days,
                incidents,
                incident_seconds: length * f64::from(incidents),
            };
            let bitmaps = of(days, incidents, length);
            let past = PoolPast {
                hosts: 10,
                days,
                incidents,
                incident_seconds: bitmaps.incident_seconds,
                watched: Watched::default(),
            };
            let both = past.and(of(own_days, own, own_length));
            prop_assert!(both.unseen() >= past.unseen());
            prop_assert!(both.is_enough() >= past.is_enough());
            let one_more = past.and(of(own_days, own + 1, own_length));
            prop_assert!(one_more.unseen() >= both.unseen());
        }
    }
}
