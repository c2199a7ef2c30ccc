//! `ckpt health` for a submitter: the state of jobs, hosts and registries.

use std::collections::{BTreeMap, BTreeSet};

use codec::grant::Grant;
use codec::pieces::BaseRef;
use codec::proof::Spot;
use codec::{CheckpointId, ShardIndex};
use protocol::grid::Grid;
use protocol::identity::{Identity, Peer};
use protocol::wire::announcement::Announced;
use protocol::wire::escaped;
use tokio::task::JoinSet;
use transfer::registry::Registries;

use crate::agent::Agent;
use crate::agent::ask::gather::Gathered;
use crate::agent::handle::random;
use crate::agent::report::list::kept_for;
use crate::core::HostIndex;
use crate::core::clocks::{CLOCKS_DIFFER_MAX, Clocks};
use crate::core::gather::WaitUntil;
use crate::core::marks::{Wholeness, take_out_marked};
use crate::core::pooled::blend;
use crate::inventory::{KnownCheckpoint, OpenedCheckpoint};
use crate::knowledge::Sighting;
use crate::report::{ExitStatus, Failure};
use crate::unix_time::unix_seconds;
use health::{
    Health, HeldShard, HostHealth, HostState, HostsHealth, JOB_KEY, JobHealth, KeyHealth, Known,
    Limits, RegistryHealth, UnfoundJob, ahead, average_stay, judged, middle_offset, usual_interval,
};

/// What `ckpt health` checks.
#[derive(Clone, Copy, Debug, Default)]
pub struct HealthRequest {
    /// From when on something needs attention.
    pub limits: Limits,
    /// Whether hosts are asked to prove that they have a part of each shard of the newest versions.
    pub proves: bool,
}

/// What a host states besides its status.
struct Word {
    announced: Option<Announced>,
    /// This machine's clock when the host answered, Unix seconds.
    heard: u64,
    /// When the host's certificate ends, Unix seconds.
    certificate_ends: Option<u64>,
}

impl Agent {
    /// The newest versions of all jobs, the hosts, and with them the given `keys` and `registries`.
    ///
    /// # Errors
    /// When the key is not let in. If no host answers, the report states that instead.
    pub async fn health(
        &self,
        request: &HealthRequest,
        keys: Vec<KeyHealth>,
        registries: impl Future<Output = Vec<RegistryHealth>>,
    ) -> Result<Health, Failure> {
        let (mut gathered, words, registries) = tokio::join!(
            self.gather(None, WaitUntil::ALL),
            self.words_of_hosts(),
            registries
        );
        match self.require_answers(&gathered, "cannot report the health") {
            Err(failure) if failure.status != ExitStatus::TooFewHosts => return Err(failure),
            _ => {}
        }
        let (_, said) = self
            .all_notices(&gathered, "cannot report the health")
            .await?;
        for said in said.values() {
            gathered.heed(said);
        }
        gathered.words = said;
        let unfound = self.unfound_jobs(&gathered);
        let (opened, _) = gathered.inventory.opened();
        let now = unix_seconds();
        let heard = words.values();
        let heard = heard.filter_map(|word| Some((word.announced.as_ref()?.at, word.heard)));
        let clock = Clocks::heard(now, heard).latest();
        let jobs = self.jobs(&gathered, &opened, request.proves, clock).await;
        let limits = limits_for(&jobs, request.limits);
        let (hosts, absent) = self.hosts_health(&gathered, &words);
        let health = Health {
            at: now,
            attention: Vec::new(),
            jobs,
            unfound,
            keys,
            hosts,
            absent,
            registries,
            grid: None,
            work: None,
        };
        Ok(judged(health, &limits))
    }

    /// The newest versions of the jobs that this key saved, which is a retired one of the submitter.
    ///
    /// # Errors
    /// When no host lets the key in, or none answers.
    pub async fn jobs_of_retired(
        &self,
        request: &HealthRequest,
    ) -> Result<Vec<JobHealth>, Failure> {
        let doing = "cannot report the health of what a retired key saved";
        let (gathered, opened) = self.find_all(doing, None).await?;
        let now = unix_seconds();
        let mut jobs = self.jobs(&gathered, &opened, request.proves, now).await;
        for job in &mut jobs {
            job.retired = true;
        }
        Ok(jobs)
    }

    /// The jobs of which no host that answers shows what this machine has seen. Hosts that are away may have it.
    fn unfound_jobs(&self, gathered: &Gathered) -> Vec<UnfoundJob> {
        let unfound = self.all_unfound(gathered);
        let job = |seen: Sighting| {
            let more = seen.more?;
            Some(UnfoundJob {
                job: more.job,
                version: seen.version,
                created: more.stamp.created,
            })
        };
        let mut jobs: Vec<UnfoundJob> = unfound.into_iter().filter_map(job).collect();
        jobs.sort_by(|a, b| a.job.cmp(&b.job));
        jobs
    }

    async fn words_of_hosts(&self) -> BTreeMap<HostIndex, Word> {
        let mut asking = JoinSet::new();
        for host in self.hosts.all() {
            let agent = self.clone();
            let hosts = self.hosts.clone();
            asking.spawn(async move {
                let announced = agent.announcement(host).await.ok()?;
                let heard = unix_seconds();
                let connection = hosts.connection(host).await.ok()?;
                let certificate_ends = Peer::of(&connection).ok().map(|peer| peer.not_after);
                let word = Word {
                    announced,
                    heard,
                    certificate_ends,
                };
                Some((host, word))
            });
        }
        let mut words: BTreeMap<HostIndex, Word> =
            asking.join_all().await.into_iter().flatten().collect();
        let said = words.values_mut().map(|word| &mut word.announced);
        blend(said.flatten());
        words
    }

    /// The hosts that did not answer, and the members that no registry hears.
    fn silent_hosts(&self, gathered: &Gathered) -> BTreeMap<HostIndex, HostHealth> {
        let silent = gathered.silent.iter().map(|(host, fault)| {
            let name = self.hosts.name(*host).to_owned();
            let down = HostHealth {
                name,
                why: Some(fault.to_string()),
                silent_since: self.hosts.silent_since(*host),
                ..HostHealth::default()
            };
            (*host, down)
        });
        let absent = self.hosts.absent().map(|host| {
            let silent = HostHealth {
                name: self.hosts.name(host).to_owned(),
                state: HostState::Silent,
                silent_since: self.hosts.silent_since(host),
                ..HostHealth::default()
            };
            (host, silent)
        });
        absent.chain(silent).collect()
    }

    /// The hosts, silent members included, and how many of them are such members.
    fn hosts_health(
        &self,
        gathered: &Gathered,
        words: &BTreeMap<HostIndex, Word>,
    ) -> (HostsHealth, usize) {
        let clock = |word: &Word| Some((word.announced.as_ref()?.at, word.heard));
        let clocks: Vec<(u64, u64)> = words.values().filter_map(clock).collect();
        let middle = middle_offset(&clocks);
        let mut each = self.silent_hosts(gathered);
        let now = unix_seconds();
        let known = self.notebook.read(now);
        let mut curves = Vec::new();
        for (host, answer) in &gathered.answered {
            let seen = self
                .hosts
                .entry(*host)
                .and_then(|entry| known.host(entry.id));
            let word = words.get(host);
            let announced = word.and_then(|word| word.announced.as_ref());
            let status = &answer.status;
            let refuses = announced.map_or(0, |said| said.refuses_for_s);
            let withheld = announced.and_then(|said| said.withheld);
            let off = word
                .and_then(clock)
                .map(|(host, own)| ahead(host, own) - middle.unwrap_or(0));
            each.insert(
                *host,
                HostHealth {
                    name: self.hosts.name(*host).to_owned(),
                    state: HostState::of(refuses, status.free_bytes),
                    silent_since: None,
                    why: withheld.map(|reason| reason.to_string()),
                    refuses_for_s: announced.map(|said| said.refuses_for_s),
                    capacity_bytes: Some(status.capacity_bytes),
                    used_bytes: Some(status.used_bytes),
                    free_bytes: Some(status.free_bytes),
                    clock_ahead_s: off,
                    software: Some(escaped(&status.software)),
                    protocol: Some(answer.spoken.to_string()),
                    certificate_ends: word.and_then(|word| word.certificate_ends),
                    bytes_per_second: seen
                        .and_then(|seen| seen.forecast(now))
                        .map(|rate| rate.median()),
                    stays_10h: announced.map(|said| said.presence.at(36_000.0).value()),
                },
            );
            curves.extend(announced.map(|said| said.presence.clone()));
        }
        let each: Vec<HostHealth> = each.into_values().collect();
        let silent = each.iter().filter(|host| host.state == HostState::Silent);
        let silent = silent.count();
        let hosts = HostsHealth {
            stay: average_stay(&curves, |curve, seconds| curve.at(seconds).value()),
            ..HostsHealth::of(each, middle.map(|offset| -offset))
        };
        (hosts, silent)
    }

    /// How many shards each of these can lose, by proofs or as hosts report.
    async fn can_lose_of<'a>(
        &self,
        all: impl Iterator<Item = &'a OpenedCheckpoint>,
        proves: bool,
    ) -> BTreeMap<CheckpointId, Option<usize>> {
        let mut found = BTreeMap::new();
        for one in all {
            let lose = match proves {
                true => self.can_lose_by_proofs(&one.known).await.1,
                false => one.known.can_lose(),
            };
            found.insert(one.id(), lose);
        }
        found
    }

    /// The version of each job that a restore would take, without versions that a void job key signed.
    async fn jobs(
        &self,
        gathered: &Gathered,
        opened: &[OpenedCheckpoint],
        proves: bool,
        now: u64,
    ) -> Vec<JobHealth> {
        let good = || opened.iter().filter(|one| !one.is_void);
        let mut versions: BTreeMap<&codec::JobId, Vec<&OpenedCheckpoint>> = BTreeMap::new();
        for one in good().filter(|one| !one.brief.is_remnant) {
            versions.entry(&one.brief.job).or_default().push(one);
        }
        // Also one that was signed with a key that is void now.
        let by_id: BTreeMap<CheckpointId, &OpenedCheckpoint> =
            opened.iter().map(|one| (one.id(), one)).collect();
        let find = |need: BaseRef| {
            let found = by_id.get(&need.checkpoint).copied();
            found.filter(|one| one.known.manifest.hash() == need.manifest)
        };
        let kept_for = kept_for(opened);
        let mut jobs = Vec::new();
        // `all` is in ascending order of versions.
        for (job, all) in versions {
            let mut newest_first: Vec<&OpenedCheckpoint> = all.iter().rev().copied().collect();
            take_out_marked(&mut newest_first, |one| Wholeness::of(one.brief.mark));
            let Some(newest) = newest_first.first() else {
                continue;
            };
            let public = newest.known.manifest.public();
            let created = all.iter().map(|one| one.known.manifest.public().created);
            let created: Vec<u64> = created.collect();
            let mut shards = Known::announced(newest.known.shards_found());
            let mut own = newest.known.can_lose();
            let needs = newest.brief.needs().filter_map(find);
            let of_needs = self.can_lose_of(needs, proves).await;
            if proves {
                let (proved, lose) = self.can_lose_by_proofs(&newest.known).await;
                shards = Known::proved(proved);
                own = lose;
            }
            let lose = newest.weakest(own, |need| of_needs.get(&need).copied().flatten());
            let until = gathered.kept_until(&newest.known);
            jobs.push(JobHealth {
                job: job.clone(),
                version: newest.known.version(),
                versions: all
                    .iter()
                    .filter(|one| !kept_for.contains_key(&one.id()))
                    .count(),
                created: Known::proved(public.created),
                age_s: age(public.created, now),
                interval_s: usual_interval(&created),
                redundancy: public.redundancy,
                shards,
                holders: self.held_shards(&newest.known),
                can_lose: Known {
                    value: lose,
                    basis: shards.basis,
                },
                kept_until: until.map(Known::proved),
                retired: false,
            });
        }
        jobs
    }

    fn held_shards(&self, known: &KnownCheckpoint) -> Vec<HeldShard> {
        let held = known.holders.iter().map(|(shard, host)| HeldShard {
            shard: shard.number(),
            host: self.hosts.name(*host).to_owned(),
        });
        held.collect()
    }

    /// How many different shards hosts prove to have, each by a part that is drawn at random now, and how
    /// many of these shards can be lost.
    async fn can_lose_by_proofs(&self, known: &KnownCheckpoint) -> (usize, Option<usize>) {
        let public = known.manifest.public();
        let mut asking = JoinSet::new();
        for (shard, host) in known.holders.iter().copied() {
            let hosts = self.hosts.clone();
            let public = public.clone();
            let Some(spot) = drawn(public.rows) else {
                continue;
            };
            asking.spawn(async move { (shard, hosts.prove(host, &public, shard, spot).await) });
        }
        let answers = asking.join_all().await.into_iter();
        let proved: BTreeSet<ShardIndex> = answers
            .filter_map(|(shard, proof)| proof.is_ok().then_some(shard))
            .collect();
        let data = public.redundancy.data();
        (proved.len(), proved.len().checked_sub(data))
    }
}

/// Seconds since a save; `None` if it has a time from the future, so that nobody knows.
fn age(created: u64, now: u64) -> Option<u64> {
    match now.checked_sub(created) {
        None if created - now > CLOCKS_DIFFER_MAX => None,
        age => Some(age.unwrap_or(0)),
    }
}

/// A random part of a shard of `rows` rows, which no host can foresee.
fn drawn(rows: u64) -> Option<Spot> {
    let row = u64::from_le_bytes(random().ok()?);
    Some(Spot {
        row: row.checked_rem(rows)?,
        draw: u32::from_le_bytes(random().ok()?),
    })
}

/// From when on a state with these jobs needs attention: the widest of them says how many hosts are needed.
fn limits_for(jobs: &[JobHealth], limits: Limits) -> Limits {
    let widest = jobs.iter().map(|job| job.redundancy.total()).max();
    Limits {
        hosts: widest.unwrap_or(limits.hosts),
        ..limits
    }
}

/// `health` with further `jobs`, which retired keys saved, judged anew. A job that was saved again since is
/// there twice: what the present key saved comes first.
#[must_use]
pub fn with_retired(mut health: Health, jobs: Vec<JobHealth>, limits: Limits) -> Health {
    if jobs.is_empty() {
        return health;
    }
    health.jobs.extend(jobs);
    health.jobs.sort_by(|a, b| a.job.cmp(&b.job));
    let limits = limits_for(&health.jobs, limits);
    judged(health, &limits)
}

/// The exit status of `ckpt health`.
pub fn health_status(health: &Health) -> ExitStatus {
    let is_lost = health.jobs.iter().any(|job| job.can_lose.value.is_none());
    let is_lacking = is_lost || !health.unfound.is_empty();
    if health.hosts.up.value == 0 || (is_lacking && health.away() > 0) {
        ExitStatus::TooFewHosts
    } else if health.attention.is_empty() {
        ExitStatus::Done
    } else {
        ExitStatus::Degraded
    }
}

/// Keys and certificates of this machine and the grid, by the time of their end.
pub fn keys_health(identity: &Identity, grid: &Grid, now: u64) -> Vec<KeyHealth> {
    let mut found: Vec<(String, u64)> = Vec::new();
    let certificates = std::iter::once(&identity.certificate).chain(&identity.issuer);
    for certificate in certificates {
        let Ok(peer) = Peer::from_certificate(certificate) else {
            continue;
        };
        match peer.grant.as_deref().map(Grant::terms) {
            Some(terms) => found.push((JOB_KEY.to_owned(), terms.not_after)),
            None => found.push((format!("certificate of {}", peer.name), peer.not_after)),
        }
    }
    if let Ok(authority) = Peer::from_certificate(&grid.authority) {
        let what = format!("certificate of the authority of grid {}", grid.name);
        found.push((what, authority.not_after));
    }
    found.sort_by_key(|(_, ends)| *ends);
    let key = |(what, ends): (String, u64)| KeyHealth {
        what,
        ends: Known::proved(ends),
        left_s: ends.saturating_sub(now),
    };
    found.into_iter().map(key).collect()
}

/// The state of the registries of `grid`, as a member with this identity sees them.
pub async fn registries_health(grid: &Grid, identity: &Identity) -> Vec<RegistryHealth> {
    let registries = Registries::new(identity, grid).without_announcements();
    let found = registries.check(grid).await.into_iter();
    let health = |(name, heard): (String, Result<usize, String>)| RegistryHealth {
        name,
        hosts_heard: heard.as_ref().ok().map(|heard| Known::announced(*heard)),
        why: heard.err(),
    };
    found.map(health).collect()
}
