//! What this machine has observed of hosts: the rates of earlier transfers, and whether hosts answered. In
//! contrast, a host's announcement about itself is a claim that may be false. `crate::knowledge` keeps the
//! observations in a file.

use std::collections::{BTreeMap, BTreeSet};

use codec::notice::{Stamp, Words};
use codec::{JobId, JobTag, OwnerId, Version};
use placement::Probability;
use placement::bandwidth::{Measurement, RateForecast, RateHistory};
use placement::joint::Watched;
use protocol::grid::GridHost;
use protocol::identity::{HostId, KNOWN_AFTER_END_S};

use crate::core::gather::silence::GoesOn;
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

/// For how long a version of a job counts as seen lately, seconds.
const SEEN_LATELY_S: u64 = 28 * 86_400;

/// Most hosts that are remembered although no registry hears them. None whose certificate this machine has
/// checked is dropped to make room for another one.
const MISSED_MAX: usize = 1024;

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
    /// Registries answered who is there.
    Roster(Named),
    /// A version of a job exists.
    Version(JobTag, Sighting),
    /// Versions of a job were removed on purpose. With the newest one that is left, if there is one.
    Removed(JobTag, Option<Sighting>),
    /// What a job on this machine goes on with.
    GoesOn(JobTag, GoesOn),
    /// This machine sent data to all hosts together at this rate, bytes per second.
    Uplink(f64),
    /// All hosts were asked at once. To be noted before the contacts of that time.
    Look(Vec<Asked>),
}

/// Which hosts registries and the list of the grid name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Named {
    /// The hosts that only registries name, and that at least one of them hears.
    pub there: Vec<GridHost>,
    /// The keys of those in the list of the grid.
    pub listed: Vec<HostId>,
    /// The members that no registry hears.
    pub silent: Vec<Missed>,
    /// Keys that the grid's authority revoked.
    pub revoked: Vec<HostId>,
}

/// A member of the grid that no registry hears.
#[derive(Clone, Debug, PartialEq)]
pub struct Missed {
    /// The host.
    pub host: GridHost,
    /// When it was seen last, or missed first, Unix seconds.
    pub seen_at: u64,
    /// When its certificate ends, Unix seconds; `None` if this machine has not checked it.
    pub certified_until: Option<u64>,
}

impl Missed {
    /// Whether the host is still remembered at `now`, Unix seconds. Registries know a member for as long.
    fn is_current(&self, now: u64) -> bool {
        let last = self.certified_until.unwrap_or(self.seen_at);
        now <= last.saturating_add(KNOWN_AFTER_END_S)
    }
}

/// A version of a job that this machine has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Its number.
    pub version: Version,
    /// What else is known of it; nothing, if an older program recorded it.
    pub more: Option<SightingDetails>,
}

/// What is known of a version that this machine has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SightingDetails {
    /// Owner of the job.
    pub owner: OwnerId,
    /// Name of the job.
    pub job: JobId,
    /// The version's place in the history of the job.
    pub stamp: Stamp,
    /// Until when the version was to be kept, Unix seconds; `None`: until it is removed.
    pub until: Option<u64>,
}

impl Sighting {
    /// The version and its place in the history of the job, if that is known.
    pub fn place(&self) -> Option<(Version, Stamp)> {
        let more = self.more.as_ref()?;
        Some((self.version, more.stamp))
    }

    /// Whether the version should still be there at `now`, Unix seconds: neither has its owner deleted it, as
    /// far as is known from what hosts have `heard`, nor is its lease over.
    pub fn is_kept(&self, heard: Option<&Words>, now: u64) -> bool {
        let more = self.more.as_ref();
        let is_gone = |words: &Words| more.is_some_and(|more| words.is_gone(more.stamp));
        let until = match heard {
            Some(words) => words.lease.map(|lease| lease.until),
            None => more.and_then(|more| more.until),
        };
        !heard.is_some_and(is_gone) && until.is_none_or(|until| now < until)
    }
}

/// How long a save took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SaveTimes {
    /// Seconds from its beginning to its commit.
    pub seconds: f64,
    /// Seconds until the image was read, for which a job that waits for that stands still. `None` if the
    /// file of what was seen does not state it.
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
    pub(crate) newest: BTreeMap<JobTag, (u64, Sighting)>,
    /// What each job on this machine goes on with, and since when (Unix seconds).
    pub(crate) goes_on: BTreeMap<JobTag, (u64, GoesOn)>,
    /// Rates at which this machine sent data to all hosts together.
    pub(crate) uplink: RateHistory,
    /// The hosts that registries listed last.
    pub(crate) roster: Vec<GridHost>,
    /// Members that no registry hears, those that were seen last first: hosts that have answered this machine,
    /// and those that registries proved to be members.
    pub(crate) missed: Vec<Missed>,
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
        let good = self.good * fade;
        let bad = self.bad * fade;
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

    /// The members that no registry hears, as far as they are still remembered at `now`, Unix seconds; those
    /// that were seen last come first.
    pub fn missed(&self, now: u64) -> impl Iterator<Item = &Missed> {
        self.missed
            .iter()
            .filter(move |missed| missed.is_current(now))
    }

    /// The incidents of the whole pool that this machine saw in the four weeks before `now`, Unix seconds.
    pub fn watched(&self, now: u64) -> Watched {
        self.pool.watched(now)
    }

    /// The newest version of a job that this machine has ever seen. Hosts that show only older ones have lost
    /// it, or hide it.
    pub fn newest(&self, job: JobTag) -> Option<&Sighting> {
        self.newest.get(&job).map(|(_, seen)| seen)
    }

    /// What a job on this machine goes on with; `None` if it was neither restored nor saved here.
    pub fn goes_on(&self, job: JobTag) -> Option<GoesOn> {
        self.goes_on.get(&job).map(|(_, goes_on)| *goes_on)
    }

    /// The names of the jobs of which this machine has seen versions that were not removed since.
    pub fn jobs(&self) -> impl Iterator<Item = &JobId> {
        let seen = self.newest.values();
        seen.filter_map(|(_, seen)| Some(&seen.more.as_ref()?.job))
    }

    /// The newest version of each of up to `most` jobs of an owner: those that were seen last, within the four
    /// weeks before `now`, Unix seconds.
    pub fn newest_of(&self, owner: OwnerId, most: usize, now: u64) -> BTreeMap<JobTag, &Sighting> {
        let all = self.newest.iter().filter(|(_, (at, seen))| {
            let more = seen.more.as_ref();
            now.saturating_sub(*at) < SEEN_LATELY_S && more.is_some_and(|more| more.owner == owner)
        });
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|(_, (at, _))| std::cmp::Reverse(*at));
        let last = all.into_iter().take(most);
        last.map(|(tag, (_, seen))| (*tag, seen)).collect()
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
            Observation::GoesOn(job, with) => {
                self.goes_on.insert(*job, (now, *with));
            }
            Observation::Roster(named) => self.take_roster(named, now),
            Observation::Version(job, seen) => {
                let first = || (now, seen.clone());
                let (at, newest) = self.newest.entry(*job).or_insert_with(first);
                *at = now;
                if seen.version >= newest.version {
                    newest.clone_from(seen);
                }
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
                self.newest.insert(*job, (now, left.clone()));
            }
        }
    }

    /// Takes over the hosts that registries name at `now`. Those that they hear no more count as missed if
    /// they ever answered, or if their cards prove that they are members: a registry can name hosts that are
    /// none. A host that was `listed` is not missed when the list leaves it out.
    fn take_roster(&mut self, named: &Named, now: u64) {
        let before = std::mem::replace(&mut self.roster, named.there.clone());
        let there = named.there.iter().map(|host| host.id);
        let there: BTreeSet<HostId> = there.chain(named.listed.iter().copied()).collect();
        let revoked: BTreeSet<HostId> = named.revoked.iter().copied().collect();
        let is_out = |id: &HostId| there.contains(id) || revoked.contains(id);
        self.missed
            .retain(|missed| !is_out(&missed.host.id) && missed.is_current(now));
        for silent in named.silent.iter().filter(|one| !is_out(&one.host.id)) {
            self.miss(silent.clone());
        }
        for host in before {
            let has_answered = self.hosts.get(&host.id).is_some_and(|seen| seen.good > 0.0);
            let is_known = self.missed.iter().any(|missed| missed.host.id == host.id);
            if has_answered && !is_out(&host.id) && !is_known {
                self.miss(Missed {
                    host,
                    seen_at: now,
                    certified_until: None,
                });
            }
        }
        self.missed
            .sort_by_key(|missed| std::cmp::Reverse(missed.seen_at));
    }

    /// Remembers a host. If there is no room, it takes the place of the one that was seen first of those
    /// whose certificate was not checked; without such a one, the new host is left out.
    fn miss(&mut self, new: Missed) {
        let all = &mut self.missed;
        if let Some(known) = all.iter_mut().find(|known| known.host.id == new.host.id) {
            let certified_until = new.certified_until.max(known.certified_until);
            *known = Missed {
                certified_until,
                ..new
            };
            return;
        }
        if all.len() >= MISSED_MAX {
            let unproved = all.iter().enumerate();
            let unproved = unproved.filter(|(_, one)| one.certified_until.is_none());
            let Some((place, _)) = unproved.min_by_key(|(_, one)| one.seen_at) else {
                return;
            };
            all.remove(place);
        }
        all.push(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostId = HostId(OwnerId([7; 32]));
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
        let slow = HostId(OwnerId([8; 32]));
        let mut known = Knowledge::default();
        assert!(known.is_worth_a_probe(slow, DAY));
        known.observe(&Observation::Rate(slow, 1e6), DAY);
        assert!(
            !known.is_worth_a_probe(slow, 2 * DAY),
            "it is as fast as the others"
        );
        for id in 0..3 {
            let host = HostId(OwnerId([id; 32]));
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
            known.observe(&Observation::Version(job, seen(version, None)), DAY);
        }
        assert_eq!(known.newest(job), Some(&seen(7, None)));
        known.observe(&Observation::Removed(job, Some(seen(5, None))), DAY);
        assert_eq!(known.newest(job), Some(&seen(5, None)));
        let jobs_of = |owner: u8, now| known.newest_of(OwnerId([owner; 32]), 10, now).len();
        assert_eq!((jobs_of(9, 28 * DAY), jobs_of(8, DAY)), (1, 0));
        assert_eq!(jobs_of(9, 29 * DAY), 0);
        known.observe(&Observation::Removed(job, None), DAY);
        assert_eq!(known.newest(job), None);
    }

    fn seen(version: u64, until: Option<u64>) -> Sighting {
        Sighting {
            version: Version::new(version).unwrap(),
            more: Some(SightingDetails {
                owner: OwnerId([9; 32]),
                job: "42".parse().unwrap(),
                stamp: stamp(version),
                until,
            }),
        }
    }

    fn stamp(at: u64) -> Stamp {
        Stamp {
            created: at,
            checkpoint: codec::CheckpointId([1; 16]),
        }
    }

    #[test]
    fn a_version_is_kept_until_its_owner_deletes_it_or_its_lease_ends() {
        let words = |gone: &[Stamp], until: Option<u64>| Words {
            owner: OwnerId([9; 32]),
            job_tag: JobTag([1; 32]),
            number: 1,
            lease: until.map(|until| codec::notice::Lease { ttl_s: 1, until }),
            gone: Vec::new(),
            intervals: codec::notice::Intervals::default().with(gone),
        };
        let old = Sighting {
            version: Version::FIRST,
            more: None,
        };
        assert!(old.is_kept(None, DAY) && old.is_kept(Some(&words(&[stamp(1)], None)), DAY));
        assert!(seen(7, None).is_kept(None, DAY));
        assert!(seen(7, None).is_kept(Some(&words(&[stamp(6)], None)), DAY));
        assert!(!seen(7, None).is_kept(Some(&words(&[stamp(7)], None)), DAY));
        // What the owner states now outranks the lease of the time at which the version was seen.
        assert!(seen(7, Some(DAY + 1)).is_kept(None, DAY));
        assert!(!seen(7, Some(DAY)).is_kept(None, DAY));
        assert!(seen(7, Some(DAY)).is_kept(Some(&words(&[], Some(DAY + 1))), DAY));
        assert!(!seen(7, None).is_kept(Some(&words(&[], Some(DAY))), DAY));
    }

    fn host(number: u16) -> GridHost {
        let mut key = [0; 32];
        key[..2].copy_from_slice(&number.to_le_bytes());
        GridHost {
            name: format!("h{number}"),
            addr: protocol::address::Address::Ip(([10, 0, 0, 1], 7600).into()),
            id: HostId(OwnerId(key)),
            site: None,
            owner: None,
        }
    }

    fn named(numbers: impl IntoIterator<Item = u16>) -> Named {
        Named {
            there: numbers.into_iter().map(host).collect(),
            ..Named::default()
        }
    }

    fn listed(numbers: &[u16]) -> Observation {
        Observation::Roster(named(numbers.iter().copied()))
    }

    fn answered(known: &mut Knowledge, numbers: impl IntoIterator<Item = u16>) {
        for number in numbers {
            known.observe(
                &Observation::Contact(host(number).id, Contact::Answered),
                DAY,
            );
        }
    }

    fn silent(number: u16, seen_at: u64, certified_until: u64) -> Missed {
        Missed {
            host: host(number),
            seen_at,
            certified_until: Some(certified_until),
        }
    }

    fn missed(known: &Knowledge, now: u64) -> Vec<&str> {
        let missed = known.missed(now);
        missed.map(|missed| missed.host.name.as_str()).collect()
    }

    #[test]
    fn hosts_that_registries_name_no_more_are_remembered_for_ninety_days() {
        let mut known = Knowledge::default();
        known.observe(&listed(&[1, 2, 3, 4]), DAY);
        // Host 4 never answered: it need not exist.
        answered(&mut known, [1, 2, 3]);
        assert!(missed(&known, DAY).is_empty());
        known.observe(&listed(&[1, 2]), 2 * DAY);
        assert_eq!(missed(&known, 2 * DAY), ["h3"]);
        known.observe(&listed(&[2]), 3 * DAY);
        assert_eq!(missed(&known, 3 * DAY), ["h1", "h3"]);
        assert_eq!(missed(&known, 93 * DAY), ["h1"]);
        // One that is back counts once, as a host that is there.
        known.observe(&listed(&[1, 2]), 4 * DAY);
        assert_eq!(missed(&known, 4 * DAY), ["h3"]);
        known.observe(&listed(&[1, 2]), 93 * DAY);
        assert!(known.missed.is_empty());
        // Host 2 gets into the list of the grid, and is removed from it later.
        let in_the_list = Named {
            listed: vec![host(2).id],
            ..named([1])
        };
        known.observe(&Observation::Roster(in_the_list), 94 * DAY);
        known.observe(&listed(&[1]), 95 * DAY);
        assert!(known.missed.is_empty());
    }

    #[test]
    fn silent_members_are_remembered_until_their_certificates_are_long_over_or_they_are_revoked() {
        let mut known = Knowledge::default();
        let said = |silent: &[Missed], revoked: &[u16]| {
            Observation::Roster(Named {
                silent: silent.to_vec(),
                revoked: revoked.iter().map(|number| host(*number).id).collect(),
                ..Named::default()
            })
        };
        // They never answered this machine: their cards are enough.
        known.observe(
            &said(
                &[silent(1, DAY, 400 * DAY), silent(2, 2 * DAY, 30 * DAY)],
                &[],
            ),
            3 * DAY,
        );
        assert_eq!(missed(&known, 3 * DAY), ["h2", "h1"]);
        // The registry was installed anew, and names nobody.
        known.observe(&said(&[], &[]), 4 * DAY);
        assert_eq!(missed(&known, 120 * DAY), ["h2", "h1"]);
        assert_eq!(missed(&known, 121 * DAY), ["h1"]);
        known.observe(&said(&[silent(1, 3 * DAY, 400 * DAY)], &[]), 4 * DAY);
        assert_eq!(missed(&known, 4 * DAY), ["h1", "h2"]);
        known.observe(&said(&[], &[1]), 5 * DAY);
        assert_eq!(missed(&known, 5 * DAY), ["h2"]);
    }

    #[test]
    fn a_certified_member_is_never_dropped_for_room() {
        let mut known = Knowledge::default();
        let all = || 0..MISSED_MAX as u16;
        known.observe(&Observation::Roster(named(all())), DAY);
        answered(&mut known, all());
        known.observe(&listed(&[]), 2 * DAY);
        assert_eq!(known.missed.len(), MISSED_MAX);
        let certified =
            (2000..2000 + MISSED_MAX as u16).map(|number| silent(number, DAY, 400 * DAY));
        let said = Named {
            silent: certified.collect(),
            ..Named::default()
        };
        known.observe(&Observation::Roster(said), 3 * DAY);
        let are_certified = |known: &Knowledge| {
            let mut all = known.missed.iter();
            known.missed.len() == MISSED_MAX && all.all(|one| one.certified_until.is_some())
        };
        assert!(are_certified(&known));
        let more = Named {
            silent: vec![silent(5000, 2 * DAY, 400 * DAY)],
            ..named([1])
        };
        known.observe(&Observation::Roster(more), 3 * DAY);
        known.observe(&listed(&[]), 4 * DAY);
        assert!(are_certified(&known));
        assert!(known.missed.iter().all(|one| one.host.id != host(5000).id));
    }

    #[test]
    fn most_hosts_away_at_once_are_an_incident_of_the_pool() {
        use Contact::{Answered, Silent};
        let mut known = Knowledge::default();
        // Hourly, eight hosts are asked; from hour 6 to 8, only the first three answer.
        for hour in 0..12 {
            let now = DAY + hour * 3600;
            let host = |i: u8| HostId(OwnerId([i; 32]));
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
