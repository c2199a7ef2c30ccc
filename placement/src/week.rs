//! The week of a pool: at which hours its hosts were there, and how often a stay that began then was long enough.

use crate::bitmap::{Availability, AvailabilityBitmap, SLOT_SECONDS, Slot};

/// Hours of a week.
pub const HOURS: usize = 168;

/// Slots of an hour.
const SLOTS_AN_HOUR: u64 = 3_600 / SLOT_SECONDS;

/// An hour of the week in UTC: 0 is Monday from 0:00 to 1:00, 167 Sunday from 23:00.
#[must_use]
pub const fn hour_of_week(unix_seconds: u64) -> usize {
    // The epoch was a Thursday.
    const FROM_MONDAY: u64 = 3 * 24;
    ((unix_seconds / 3_600 + FROM_MONDAY) % HOURS as u64) as usize
}

/// What was seen of a pool in one hour of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hour {
    /// How many hosts were there, in the mean of the weeks. A host counts for the share of its known time.
    pub hosts: f64,
    /// Hosts of which anything is known for this hour.
    pub known: u32,
    /// Starts that were seen: hosts that were there when such an hour began, and of which it is known what became of
    /// the stay.
    pub starts: u32,
    /// Of these, how many stayed for the whole time.
    pub stayed: u32,
}

/// The hours of a week, from Monday 0:00 UTC.
#[derive(Clone, Debug, PartialEq)]
pub struct Week(Vec<Hour>);

impl Week {
    /// What the bitmaps of a pool's hosts show, with stays of `stay_seconds`.
    #[must_use]
    pub fn of(pool: &[&AvailabilityBitmap], stay_seconds: u64) -> Self {
        let mut hours = vec![Hour::default(); HOURS];
        let stay = stay_seconds.div_ceil(SLOT_SECONDS).max(1);
        for host in pool {
            add_presence(&mut hours, host);
            add_stays(&mut hours, host, stay);
        }
        Self(hours)
    }

    /// The hours, Monday's first one first.
    #[must_use]
    pub fn hours(&self) -> &[Hour] {
        &self.0
    }

    /// Of the `hours` hours that follow `now`, each with how many hours it is away, the one with the greatest share of
    /// stays that were long enough; the first of several. Hours in which less than `least` starts were seen do not
    /// count.
    #[must_use]
    pub fn best(&self, now: u64, hours: usize, least: u32) -> Option<(usize, Hour)> {
        let mut best: Option<(usize, Hour)> = None;
        for away in 0..hours.min(HOURS) {
            let at = (hour_of_week(now) + away) % HOURS;
            let Some(hour) = self.0.get(at).filter(|hour| hour.starts >= least.max(1)) else {
                continue;
            };
            if best.is_none_or(|(_, other)| hour.share() > other.share()) {
                best = Some((away, *hour));
            }
        }
        best
    }
}

impl Hour {
    /// The share of the starts that stayed; 0 if none was seen.
    #[must_use]
    pub fn share(&self) -> f64 {
        f64::from(self.stayed) / f64::from(self.starts.max(1))
    }
}

fn slots(host: &AvailabilityBitmap) -> impl Iterator<Item = Slot> {
    (host.oldest().0..=host.newest().0).map(Slot)
}

fn add_presence(hours: &mut [Hour], host: &AvailabilityBitmap) {
    let mut known = [0_u32; HOURS];
    let mut there = [0_u32; HOURS];
    for slot in slots(host) {
        let at = hour_of_week(slot.start_unix_seconds());
        let availability = host.get(slot);
        known[at] += u32::from(availability != Availability::Unknown);
        there[at] += u32::from(availability == Availability::Usable);
    }
    for (hour, (known, there)) in hours.iter_mut().zip(known.into_iter().zip(there)) {
        if known > 0 {
            hour.known += 1;
            hour.hosts += f64::from(there) / f64::from(known);
        }
    }
}

fn add_stays(hours: &mut [Hour], host: &AvailabilityBitmap, stay: u64) {
    let begins_hour = |slot: &Slot| slot.0.is_multiple_of(SLOTS_AN_HOUR);
    for start in slots(host).filter(begins_hour) {
        if host.get(start) != Availability::Usable {
            continue;
        }
        let mut rest = (start.0 + 1..start.0 + stay).map(|slot| host.get(Slot(slot)));
        let ended = rest.find(|availability| *availability != Availability::Usable);
        // What became of a stay is not known if it reaches into what is not.
        if ended == Some(Availability::Unknown) {
            continue;
        }
        if let Some(hour) = hours.get_mut(hour_of_week(start.start_unix_seconds())) {
            hour.starts += 1;
            hour.stayed += u32::from(ended.is_none());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bitmap::SLOTS;

    /// Friday, 27 November 2026, 12:00 UTC.
    const FRIDAY_NOON: u64 = 1_795_780_800;

    /// A host whose last four weeks are as `is_there` says of hours of the week.
    fn host(is_there: impl Fn(usize) -> bool) -> AvailabilityBitmap {
        let newest = Slot::containing(FRIDAY_NOON - 1);
        let mut past = AvailabilityBitmap::unknown(newest);
        for slot in newest.0 + 1 - SLOTS as u64..=newest.0 {
            let hour = hour_of_week(Slot(slot).start_unix_seconds());
            let seen = match is_there(hour) {
                true => Availability::Usable,
                false => Availability::NotUsable,
            };
            past.record(Slot(slot), seen);
        }
        past
    }

    #[test]
    fn the_week_begins_on_monday() {
        assert_eq!(hour_of_week(0), 3 * 24);
        assert_eq!(hour_of_week(FRIDAY_NOON), 4 * 24 + 12);
        assert_eq!(hour_of_week(FRIDAY_NOON + 60 * 3_600), 0);
        assert_eq!(hour_of_week(FRIDAY_NOON + 60 * 3_600 - 1), 167);
    }

    #[test]
    fn a_pool_that_goes_home_at_night_is_seen_by_its_hours() {
        let office = host(|hour| (8..18).contains(&(hour % 24)));
        let server = host(|_| true);
        let week = Week::of(&[&office, &server], 4 * 3_600);
        for (at, hour) in week.hours().iter().enumerate() {
            let is_day = (8..18).contains(&(at % 24));
            assert_eq!(hour.hosts, if is_day { 2.0 } else { 1.0 }, "{at}");
            assert_eq!(hour.known, 2);
            // The office stays for four hours if they begin by two o'clock.
            let stays = (8..=14).contains(&(at % 24));
            let is_settled = hour.starts == if is_day { 8 } else { 4 };
            let is_recent = (96..108).contains(&at) && hour.starts < 8;
            assert!(is_settled || is_recent, "{at}: {hour:?}");
            assert_eq!(hour.share() == 1.0, stays || !is_day, "{at}: {hour:?}");
        }
        // At noon of a Friday both stay long enough.
        assert_eq!(week.best(FRIDAY_NOON, 24, 1).unwrap().0, 0);
        // At 15:00 the next hour at which only the server is there is the best one.
        assert_eq!(week.best(FRIDAY_NOON + 3 * 3_600, 24, 1).unwrap().0, 3);
    }

    #[test]
    fn what_is_not_known_counts_for_nothing() {
        let nothing = AvailabilityBitmap::unknown(Slot::containing(FRIDAY_NOON));
        let week = Week::of(&[&nothing], 3_600);
        assert!(week.hours().iter().all(|hour| *hour == Hour::default()));
        assert_eq!(week.best(FRIDAY_NOON, 168, 1), None);
        // A stay of which the end is not known yet is no start.
        let mut young = nothing;
        young.record(Slot::containing(FRIDAY_NOON), Availability::Usable);
        let week = Week::of(&[&young], 3_600);
        let seen: u32 = week.hours().iter().map(|hour| hour.starts).sum();
        assert_eq!(seen, 0);
        // One that is over is, however short.
        young.record(
            Slot(Slot::containing(FRIDAY_NOON).0 + 1),
            Availability::NotUsable,
        );
        let week = Week::of(&[&young], 3_600);
        let hour = week.hours()[hour_of_week(FRIDAY_NOON)];
        assert_eq!((hour.starts, hour.stayed), (1, 0));
    }
}
