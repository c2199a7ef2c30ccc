//! What this machine has observed of hosts: the rates of earlier transfers, and whether hosts answered. In
//! contrast, a host's announcement about itself is a claim that may be false. `crate::knowledge` keeps the
//! observations in a file.

use std::collections::BTreeMap;

use codec::{JobTag, Version};
use placement::Probability;
use placement::bandwidth::{Measurement, RateForecast, RateHistory};
use placement::joint::Watched;
use protocol::grid::GridHost;
use protocol::identity::HostId;

use crate::core::pool_watch::{Asked, PoolWatch, sight};

/// Days after which an observation counts half.
const HALF_LIFE_DAYS: f64 = 7.0;

/// The claim of a host counts as much as this many contacts with it.
const CLAIM_WORTH: f64 = 2.0;

/// Successful contacts within this many seconds count as one.
const SAME_CONTACT_SECONDS: u64 = 300;

/// Contacts, faded, from which a host has a record that says how often it usually answers.
const RECORD_MIN: f64 = 2.0;

/// Least time between two probes of a host.
const PROBE_PERIOD_SECONDS: u64 = 3600;

/// Wrong data count as much as this many failed contacts.
const LIE_WEIGHT: f64 = 10.0;

/// The outcome of a contact with a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// The host answered.
    Answered,
    /// It did not answer, or broke off.
    Silent,
    /// It answered something wrong, or sent wrong data.
    Lied,
}

/// One observation, to be recorded.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// A host was contacted.
    Contact(HostId, Contact),
    /// A host took data at this rate, bytes per second.
    Rate(HostId, f64),
    /// A host was probed; it needs no further probe soon.
    Probed(HostId),
    /// How long a save of a job took.
    Save(JobTag, SaveTimes),
    /// The hosts that registries listed.
    Roster(Vec<GridHost>),
    /// A version of a job exists.
    Version(JobTag, Version),
    /// Versions of a job were removed on purpose. With the newest one that is left, if there is one.
    Removed(JobTag, Option<Version>),
    /// This machine sent data to all hosts together at this rate, bytes per second.
    Uplink(f64),
    /// All hosts were asked at once. To be noted before the contacts of that time.
    Look(Vec<Asked>),
}

/// How long a save took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SaveTimes {
    /// Seconds from its beginning to its commit.
    pub seconds: f64,
    /// Seconds until the image was read, for which a job that waits for that stands still. `None` for a save
    /// that an older program recorded.
    pub held_seconds: Option<f64>,
}

/// What was observed of one host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownHost {
    pub(crate) rates: RateHistory,
    pub(crate) last_probe: u64,
    pub(crate) good: f64,
    pub(crate) bad: f64,
    pub(crate) last_contact: u64,
    pub(crate) last_went_well: bool,
}

/// What was observed of all hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Knowledge {
    pub(crate) hosts: BTreeMap<HostId, KnownHost>,
    /// When each job was last saved (Unix seconds), and how long that took.
    pub(crate) saves: BTreeMap<JobTag, (u64, SaveTimes)>,
    /// The newest version of each job that was ever seen, and when it was seen last (Unix seconds).
    pub(crate) newest: BTreeMap<JobTag, (u64, Version)>,
    /// Rates at which this machine sent data to all hosts together.
    pub(crate) uplink: RateHistory,
    /// The hosts that registries listed last.
    pub(crate) roster: Vec<GridHost>,
    /// When most hosts were away.
    pub(crate) pool: PoolWatch,
}

impl KnownHost {
    /// Whether the host should be probed: it was not probed within [`PROBE_PERIOD_SECONDS`], and either was
    /// never measured, or an old measurement gives it less than half of the `usual` rate, bytes per second.
    fn is_worth_a_probe(&self, usual: Option<f64>, now: u64) -> bool {
        let since = |at: u64| now.saturating_sub(at);
        if since(self.last_probe) < PROBE_PERIOD_SECONDS {
            return false;
        }
        match (self.rates.iter().last(), usual) {
            (None, _) => true,
            (Some(last), Some(usual)) => {
                let slow = self
                    .rates
                    .forecast(now)
                    .is_none_or(|r| r.median() * 2.0 < usual);
                slow && since(last.at) > PROBE_PERIOD_SECONDS
            }
            (Some(_), None) => false,
        }
    }

    /// The rate expected at `now`; `None` if it was never measured.
    pub fn forecast(&self, now: u64) -> Option<RateForecast> {
        self.rates.forecast(now)
    }

    /// Whether the host was ever probed. If the probe showed it to be slow, its rate is known as well.
    pub const fn was_probed(&self) -> bool {
        self.last_probe > 0
    }

    /// Probability that the host answers: its record combined with what it `claims` of itself. The shorter
    /// the record, the more the claim counts.
    pub fn trusted(&self, claims: Probability, now: u64) -> Probability {
        let fade = fade(now.saturating_sub(self.last_contact));
        let (good, bad) = (self.good * fade, self.bad * fade);
        let seen = good + bad;
        Probability::saturating((good + CLAIM_WORTH * claims.value()) / (seen + CLAIM_WORTH))
    }

    /// Share of its contacts that the host answered, from 0 to 1; `None` if they were few, or are long ago.
    fn usual(&self, now: u64) -> Option<f64> {
        let seen = self.good + self.bad;
        let is_record = seen * fade(now.saturating_sub(self.last_contact)) >= RECORD_MIN;
        is_record.then(|| self.good / seen)
    }

    fn contact(&mut self, contact: Contact, now: u64) {
        let went_well = contact == Contact::Answered;
        let since = now.saturating_sub(self.last_contact);
        if since < SAME_CONTACT_SECONDS && went_well == self.last_went_well && went_well {
            return;
        }
        let fade = fade(since);
        self.good *= fade;
        self.bad *= fade;
        match contact {
            Contact::Answered => self.good += 1.0,
            Contact::Silent => self.bad += 1.0,
            Contact::Lied => self.bad += LIE_WEIGHT,
        }
        self.last_contact = self.last_contact.max(now);
        self.last_went_well = went_well;
    }
}

fn fade(seconds: u64) -> f64 {
    0.5_f64.powf(seconds as f64 / 86_400.0 / HALF_LIFE_DAYS)
}

impl Knowledge {
    /// What was observed of a host.
    pub fn host(&self, id: HostId) -> Option<&KnownHost> {
        self.hosts.get(&id)
    }

    /// Whether a host should be probed before it is given a shard, because its rate is unknown or may have
    /// improved.
    pub fn is_worth_a_probe(&self, id: HostId, now: u64) -> bool {
        let rates = self.hosts.values().filter_map(|host| host.forecast(now));
        let usual = RateForecast::of_unknown(rates.map(|rate| rate.median()));
        let host = self.hosts.get(&id);
        host.is_none_or(|host| host.is_worth_a_probe(usual.map(|rate| rate.median()), now))
    }

    /// Bytes per second that this machine can send to all hosts together; `None` if that was never measured.
    pub fn uplink(&self, now: u64) -> Option<f64> {
        self.uplink.forecast(now).map(|rate| rate.median())
    }

    /// How long the last save of a job from this machine took.
    pub fn save_times(&self, job: JobTag) -> Option<SaveTimes> {
        self.saves.get(&job).map(|(_, times)| *times)
    }

    /// The hosts that registries listed last, for the case that no registry answers.
    pub fn roster(&self) -> &[GridHost] {
        &self.roster
    }

    /// The incidents of the whole pool that this machine saw in the four weeks before `now`, Unix seconds.
    pub fn watched(&self, now: u64) -> Watched {
        self.pool.watched(now)
    }

    /// The newest version of a job that this machine has ever seen. Hosts that show only older ones have lost
    /// it, or hide it.
    pub fn newest(&self, job: JobTag) -> Option<Version> {
        self.newest.get(&job).map(|(_, version)| *version)
    }

    /// Adds an observation that was made at `now`, Unix seconds.
    pub fn observe(&mut self, observation: &Observation, now: u64) {
        match observation {
            Observation::Contact(id, contact) => {
                self.hosts.entry(*id).or_default().contact(*contact, now);
            }
            Observation::Rate(id, bytes_per_second) => {
                let measurement = Measurement {
                    at: now,
                    bytes_per_second: *bytes_per_second,
                };
                self.hosts
                    .entry(*id)
                    .or_default()
                    .rates
                    .observe(measurement);
            }
            Observation::Probed(id) => self.hosts.entry(*id).or_default().last_probe = now,
            Observation::Uplink(bytes_per_second) => self.uplink.observe(Measurement {
                at: now,
                bytes_per_second: *bytes_per_second,
            }),
            Observation::Save(job, times) => {
                self.saves.insert(*job, (now, *times));
            }
            Observation::Roster(hosts) => self.roster.clone_from(hosts),
            Observation::Version(job, version) => {
                let (at, newest) = self.newest.entry(*job).or_insert((now, *version));
                (*at, *newest) = (now, (*newest).max(*version));
            }
            Observation::Look(asked) => {
                let usual = |host| self.hosts.get(&host)?.usual(now);
                if let Some(sight) = sight(asked, usual) {
                    self.pool.look(sight, now);
                }
            }
            Observation::Removed(job, None) => {
                self.newest.remove(job);
            }
            Observation::Removed(job, Some(left)) => {
                self.newest.insert(*job, (now, *left));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostId = HostId(codec::OwnerId([7; 32]));
    const DAY: u64 = 86_400;

    fn trusted(contacts: &[Contact], claims: f64) -> f64 {
        let mut known = Knowledge::default();
        let mut now = DAY;
        for contact in contacts {
            known.observe(&Observation::Contact(HOST, *contact), now);
            now += 3600;
        }
        let claims = Probability::saturating(claims);
        known.host(HOST).unwrap().trusted(claims, now).value()
    }

    #[test]
    fn observations_outrank_claims() {
        use Contact::{Answered, Lied, Silent};
        assert!(trusted(&[Answered; 10], 0.999) > 0.99);
        assert!(trusted(&[Silent; 10], 0.999) < 0.2);
        assert!(trusted(&[Answered, Silent].repeat(5), 0.999) < 0.65);
        assert!(
            trusted(&[Answered; 10], 0.1) > 0.8,
            "too modest a host is used, too"
        );
        assert!(trusted(&[Answered, Answered, Lied], 0.999) < 0.4);
    }

    #[test]
    fn old_observations_fade() {
        let mut known = Knowledge::default();
        for hour in 0..10 {
            known.observe(&Observation::Contact(HOST, Contact::Silent), hour * 3600);
        }
        let host = known.host(HOST).unwrap();
        let soon = host.trusted(Probability::ONE, 11 * 3600);
        let late = host.trusted(Probability::ONE, 60 * DAY);
        assert!(soon.value() < 0.2 && late.value() > 0.9, "{soon} {late}");
    }

    #[test]
    fn a_host_that_was_slow_long_ago_gets_another_chance() {
        let slow = HostId(codec::OwnerId([8; 32]));
        let mut known = Knowledge::default();
        assert!(known.is_worth_a_probe(slow, DAY));
        known.observe(&Observation::Rate(slow, 1e6), DAY);
        assert!(
            !known.is_worth_a_probe(slow, 2 * DAY),
            "it is as fast as the others"
        );
        for id in 0..3 {
            let host = HostId(codec::OwnerId([id; 32]));
            known.observe(&Observation::Rate(host, 1e8), DAY);
        }
        assert!(!known.is_worth_a_probe(slow, DAY + 60));
        assert!(known.is_worth_a_probe(slow, 2 * DAY));
        known.observe(&Observation::Probed(slow), 2 * DAY);
        assert!(!known.is_worth_a_probe(slow, 2 * DAY + 60));
    }

    #[test]
    fn many_saves_in_a_minute_are_one_contact() {
        let mut known = Knowledge::default();
        for second in 0..60 {
            known.observe(&Observation::Contact(HOST, Contact::Answered), DAY + second);
        }
        let trusted = known
            .host(HOST)
            .unwrap()
            .trusted(Probability::ZERO, DAY + 60);
        assert!(trusted.value() < 0.4, "{trusted}");
    }

    #[test]
    fn the_newest_version_is_remembered_until_it_is_removed() {
        let job = JobTag([1; 32]);
        let mut known = Knowledge::default();
        assert_eq!(known.newest(job), None);
        for version in [3, 7, 5] {
            known.observe(
                &Observation::Version(job, Version::new(version).unwrap()),
                DAY,
            );
        }
        assert_eq!(known.newest(job), Some(Version::new(7).unwrap()));
        known.observe(
            &Observation::Removed(job, Some(Version::new(5).unwrap())),
            DAY,
        );
        assert_eq!(known.newest(job), Some(Version::new(5).unwrap()));
        known.observe(&Observation::Removed(job, None), DAY);
        assert_eq!(known.newest(job), None);
    }

    #[test]
    fn most_hosts_away_at_once_are_an_incident_of_the_pool() {
        use Contact::{Answered, Silent};
        let mut known = Knowledge::default();
        // Hourly, eight hosts are asked; from hour 6 to 8, only the first three answer.
        for hour in 0..12 {
            let now = DAY + hour * 3600;
            let host = |i: u8| HostId(codec::OwnerId([i; 32]));
            let answers = |i: u8| i < 3 || !(6..9).contains(&hour);
            let asked = (0..8).map(|i| Asked {
                host: host(i),
                place: None,
                answered: Some(answers(i)),
            });
            known.observe(&Observation::Look(asked.collect()), now);
            for i in 0..8 {
                let contact = if answers(i) { Answered } else { Silent };
                known.observe(&Observation::Contact(host(i), contact), now);
            }
        }
        let watched = known.watched(DAY + 12 * 3600);
        assert_eq!(
            (watched.incidents, watched.incident_seconds),
            (1, 3.0 * 3600.0)
        );
        // Two contacts, faded a little, are no record: the first look that showed something was in hour 3.
        assert!((watched.days - 9.0 / 24.0).abs() < 1e-9, "{watched:?}");
    }
}
