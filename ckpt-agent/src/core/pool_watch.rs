//! Incidents of the whole pool that this machine saw itself: times at which far fewer hosts answered than usual.
//!
//! Whenever all hosts are asked, that is a look at the pool. Only hosts with a record of earlier contacts count,
//! each with the share of them that it answered, so that hosts that have just been added, or that went for good
//! long ago, make no incident. If nobody answers, or only hosts of one place, this machine, or that place, may be
//! cut off: such a look shows nothing.

use std::collections::BTreeSet;

use placement::joint::{DomainId, Watched};
use protocol::identity::HostId;

/// Fewest hosts with a record that are a pool, as in [`placement::joint::PoolPast`].
const HOSTS_MIN: usize = 5;

/// Share of the usual number of answers below which the whole pool has an incident.
const INCIDENT_SHARE: f64 = 0.5;

/// Fewest hosts that answer when this machine is not cut off; one of them may run on it.
const ANSWERS_MIN: usize = 2;

/// Most incidents that are kept, the newest ones.
const INCIDENTS_MAX: usize = 16;

/// Hours after which an incident is forgotten, as on the bitmaps: 28 days.
const KEPT_HOURS: u64 = 28 * 24;

/// Hours between the last look of an incident and the first of the next one, at least.
const APART_HOURS: u64 = 2;

const HOUR_SECONDS: u64 = 3600;

/// A host that was asked, and whether it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Key of the host.
    pub host: HostId,
    /// Its site or network, if that is known.
    pub place: Option<DomainId>,
    /// Whether it answered anything; `None`: it was not waited for.
    pub answered: Option<bool>,
}

/// What a look shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// About as many hosts as usual answered.
    Usual,
    /// Fewer than half of them did.
    Incident,
}

/// What a look at the pool shows, if anything. `usual` is the share of its contacts that a host answered so far,
/// from 0 to 1; `None` for a host with too short a record.
pub(crate) fn sight(asked: &[Asked], usual: impl Fn(HostId) -> Option<f64>) -> Option<Sight> {
    let places = |asked: &mut dyn Iterator<Item = &Asked>| {
        let places: BTreeSet<_> = asked.map(|asked| asked.place).collect();
        places.len()
    };
    let answers = || asked.iter().filter(|asked| asked.answered == Some(true));
    let is_one_place = places(&mut answers()) < places(&mut asked.iter()).min(2);
    if answers().count() < ANSWERS_MIN || is_one_place {
        return None;
    }
    let mut hosts = 0;
    let mut answered = 0.0;
    let mut expected = 0.0;
    for one in asked {
        if let (Some(came), Some(share)) = (one.answered, usual(one.host)) {
            hosts += 1;
            expected += share;
            answered += f64::from(u8::from(came));
        }
    }
    if hosts < HOSTS_MIN || hosts * 2 < asked.len() {
        return None;
    }
    Some(if answered < INCIDENT_SHARE * expected {
        Sight::Incident
    } else {
        Sight::Usual
    })
}

/// From when to when an incident was seen: its first and its last look, in hours of Unix time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Incident {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// The looks so far that showed something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolWatch {
    /// Hours of Unix time of the first look and of the newest one; `None` if there was none.
    looks: Option<(u64, u64)>,
    /// Whether the newest look showed an incident.
    is_away: bool,
    /// The incidents, oldest first.
    incidents: Vec<Incident>,
}

impl PoolWatch {
    /// What was kept. Nonsense, and what is too much, is left out.
    pub(crate) fn kept(since: u64, newest: u64, is_away: bool, incidents: &[(u64, u64)]) -> Self {
        let mut watch = Self {
            looks: Some((since.min(newest), newest)),
            is_away,
            incidents: incidents
                .iter()
                .filter(|(first, last)| first <= last && last - first <= KEPT_HOURS)
                .map(|&(first, last)| Incident { first, last })
                .collect(),
        };
        watch.incidents.sort_unstable();
        watch.forget(newest);
        watch
    }

    /// Hours of Unix time of the first look and of the newest one; `None` if there was none.
    pub(crate) const fn looks(&self) -> Option<(u64, u64)> {
        self.looks
    }

    /// Whether the newest look showed an incident.
    pub(crate) const fn is_away(&self) -> bool {
        self.is_away
    }

    /// The incidents, oldest first.
    pub(crate) fn incidents(&self) -> &[Incident] {
        &self.incidents
    }

    /// Adds a look that was made at `now`, Unix seconds. An incident goes on until a look shows the usual.
    pub(crate) fn look(&mut self, sight: Sight, now: u64) {
        let hour = now / HOUR_SECONDS;
        // After four weeks without a look, or when the clock was set back, watching begins anew.
        let since = self
            .looks
            .filter(|(_, newest)| hour.saturating_sub(*newest) <= KEPT_HOURS)
            .map_or(hour, |(since, _)| since.min(hour));
        self.looks = Some((since, hour));
        self.forget(hour);
        if sight == Sight::Incident {
            match self.incidents.last_mut() {
                Some(incident) if self.is_away || hour < incident.last + APART_HOURS => {
                    incident.last = incident.last.max(hour);
                }
                _ => self.incidents.push(Incident {
                    first: hour,
                    last: hour,
                }),
            }
            self.forget(hour);
        }
        self.is_away = sight == Sight::Incident;
    }

    /// Leaves out incidents that are four weeks old, those that a clock set wrong dated later than `hour`, and
    /// the oldest of those that are too many. Of a longer incident, the last four weeks stay.
    fn forget(&mut self, hour: u64) {
        let oldest = hour.saturating_sub(KEPT_HOURS);
        self.incidents
            .retain(|incident| (oldest..=hour.saturating_add(1)).contains(&incident.last));
        for incident in &mut self.incidents {
            incident.first = incident.first.max(oldest);
        }
        let surplus = self.incidents.len().saturating_sub(INCIDENTS_MAX);
        self.incidents.drain(..surplus);
    }

    /// What was seen in the four weeks before `now`, Unix seconds. An incident counts as long as from the
    /// beginning of its first hour to the end of its last one.
    #[must_use]
    pub fn watched(&self, now: u64) -> Watched {
        let hour = now / HOUR_SECONDS;
        let mut watch = self.clone();
        watch.forget(hour);
        let hours = watch.incidents.iter().map(|i| i.last - i.first + 1);
        let since = self.looks.map_or(hour, |(since, _)| since);
        Watched {
            days: hour.saturating_sub(since).min(KEPT_HOURS) as f64 / 24.0,
            incidents: u32::try_from(watch.incidents.len()).unwrap_or(u32::MAX),
            incident_seconds: (hours.sum::<u64>() * HOUR_SECONDS) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: u64 = 1_795_000_000 / HOUR_SECONDS;

    fn asked(host: u8, place: u32, answered: Option<bool>) -> Asked {
        Asked {
            host: HostId(codec::OwnerId([host; 32])),
            place: Some(DomainId(place)),
            answered,
        }
    }

    /// Ten hosts in two places, of which the first `answering` of each place answer.
    fn ten(answering: [u8; 2]) -> Vec<Asked> {
        let host = |i: u8| {
            let place = i % 2;
            asked(
                i,
                u32::from(place),
                Some(i / 2 < answering[usize::from(place)]),
            )
        };
        (0..10).map(host).collect()
    }

    fn seen(asked: &[Asked]) -> Option<Sight> {
        sight(asked, |_| Some(0.9))
    }

    #[test]
    fn fewer_than_half_of_the_usual_answers_are_an_incident() {
        assert_eq!(seen(&ten([5, 5])), Some(Sight::Usual));
        assert_eq!(seen(&ten([3, 2])), Some(Sight::Usual));
        assert_eq!(seen(&ten([2, 2])), Some(Sight::Incident));
        // Hosts that answer every third time are as usual when a third of them answers.
        assert_eq!(sight(&ten([2, 1]), |_| Some(0.4)), Some(Sight::Usual));
    }

    #[test]
    fn who_may_be_cut_off_sees_no_incident() {
        assert_eq!(seen(&ten([0, 0])), None, "no host answers");
        assert_eq!(seen(&ten([1, 0])), None, "perhaps the one on this machine");
        assert_eq!(seen(&ten([4, 0])), None, "one of two places answers");
        let mut campus = ten([1, 1]);
        campus.iter_mut().for_each(|asked| asked.place = None);
        assert_eq!(seen(&campus), Some(Sight::Incident), "there is one place");
    }

    #[test]
    fn only_hosts_with_a_record_count_and_only_if_they_are_the_most() {
        // Twenty hosts were added that have never answered.
        let mut asked_all = ten([5, 5]);
        asked_all.extend((10..30).map(|i| asked(i, 0, Some(false))));
        let old = |host: HostId| (host.0.0[0] < 10).then_some(0.9);
        assert_eq!(sight(&asked_all, old), None);
        assert_eq!(sight(&asked_all[..18], old), Some(Sight::Usual));
        // Hosts that went for good: their share has fallen.
        let fading = |host: HostId| Some(if host.0.0[0] < 10 { 0.9 } else { 0.01 });
        assert_eq!(sight(&asked_all, fading), Some(Sight::Usual));
        // Three of ten were enough, so the others were not waited for.
        let mut hurried = ten([2, 1]);
        for asked in &mut hurried {
            asked.answered = asked.answered.filter(|answered| *answered);
        }
        assert_eq!(seen(&hurried), None);
        assert_eq!(seen(&ten([2, 2])[..4]), None, "four hosts are no pool");
    }

    fn look(watch: &mut PoolWatch, hour: u64, sight: Sight) -> (u32, f64) {
        watch.look(sight, (START + hour) * HOUR_SECONDS + 60);
        let watched = watch.watched((START + hour) * HOUR_SECONDS + 60);
        (watched.incidents, watched.incident_seconds / 3600.0)
    }

    #[test]
    fn an_incident_lasts_until_the_hosts_are_back() {
        let mut watch = PoolWatch::default();
        assert_eq!(look(&mut watch, 0, Sight::Usual), (0, 0.0));
        assert_eq!(look(&mut watch, 10, Sight::Incident), (1, 1.0));
        assert_eq!(look(&mut watch, 15, Sight::Incident), (1, 6.0));
        assert_eq!(look(&mut watch, 16, Sight::Usual), (1, 6.0));
        assert_eq!(
            look(&mut watch, 16, Sight::Incident),
            (1, 7.0),
            "no hour apart"
        );
        assert_eq!(look(&mut watch, 17, Sight::Usual), (1, 7.0));
        assert_eq!(look(&mut watch, 18, Sight::Incident), (2, 8.0));
        // 28 days later, first what is older is forgotten, then both.
        assert_eq!(look(&mut watch, 16 + KEPT_HOURS, Sight::Usual), (2, 2.0));
        assert_eq!(look(&mut watch, 19 + KEPT_HOURS, Sight::Usual), (0, 0.0));
        assert!((watch.watched((START + 10_000) * HOUR_SECONDS).days - 28.0).abs() < 1e-9);
    }

    #[test]
    fn a_clock_that_jumps_leaves_nothing_behind() {
        let mut watch = PoolWatch::default();
        look(&mut watch, 0, Sight::Usual);
        look(&mut watch, 48, Sight::Incident);
        // For one look, the clock is ten years ahead. What it dated so is forgotten when the clock is right.
        assert_eq!(look(&mut watch, 87_600, Sight::Incident), (1, 1.0));
        assert_eq!(look(&mut watch, 50, Sight::Usual), (0, 0.0));
        assert_eq!(watch.watched((START + 50) * HOUR_SECONDS).days, 0.0);
        // A machine that began at the epoch has not watched since.
        let mut watch = PoolWatch::default();
        watch.look(Sight::Usual, 0);
        look(&mut watch, 0, Sight::Usual);
        assert_eq!(watch.watched((START + 48) * HOUR_SECONDS).days, 2.0);
    }

    #[test]
    fn the_newest_sixteen_incidents_stay() {
        let mut watch = PoolWatch::default();
        for day in 0..20 {
            look(&mut watch, 24 * day, Sight::Incident);
            look(&mut watch, 24 * day + 1, Sight::Usual);
        }
        let firsts = watch.incidents().iter().map(|i| i.first);
        assert!(firsts.eq((4..20).map(|day| START + 24 * day)));
    }

    proptest! {
        /// Liars have always answered, which makes the usual share as high as they can make it.
        #[test]
        fn a_tenth_that_is_silent_on_purpose_makes_no_incident(
            honest in 9..200_usize,
            share in 0.3..1.0_f64,
        ) {
            let liars = (honest + honest / 9) / 10;
            let came = (share * honest as f64).ceil() as usize;
            let all: Vec<Asked> = (0..honest + liars)
                .map(|i| Asked {
                    host: HostId(codec::OwnerId([u8::from(i >= honest); 32])),
                    place: None,
                    answered: Some(i < came),
                })
                .collect();
            let usual = |host: HostId| Some(if host.0.0[0] == 1 { 1.0 } else { share });
            prop_assert_eq!(sight(&all, usual), Some(Sight::Usual));
        }

        #[test]
        fn whatever_the_clock_says_the_numbers_stay_bounded(
            kept in prop::collection::vec((any::<u64>(), any::<u64>()), 0..40),
            looks in prop::collection::vec((any::<bool>(), any::<u64>()), 0..40),
            (since, newest, now) in any::<(u64, u64, u64)>(),
        ) {
            let mut watch = PoolWatch::kept(since, newest, true, &kept);
            for (is_incident, at) in looks {
                watch.look(if is_incident { Sight::Incident } else { Sight::Usual }, at);
            }
            let watched = watch.watched(now);
            prop_assert!((0.0..=28.0).contains(&watched.days));
            prop_assert!(watched.incidents as usize <= INCIDENTS_MAX);
            let most = f64::from(watched.incidents) * (KEPT_HOURS + 2) as f64 * 3600.0;
            prop_assert!(watched.incident_seconds <= most);
        }
    }
}
