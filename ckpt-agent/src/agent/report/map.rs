//! Which host holds which shard of which job, and what becomes of the jobs if hosts go away.

use std::collections::{BTreeMap, BTreeSet};

use codec::JobId;

use crate::agent::Agent;
use crate::agent::report::list::kept_for;
use crate::core::map::{GoesOnFrom, Mapped, ShardAt, after_loss};
use crate::inventory::OpenedCheckpoint;
use crate::map::{MapHost, MapIf, MapJob, MapReport};
use crate::report::{ExitStatus, Failure, Holder};
use transfer::HostIndex;

/// A host that stays ten hours with less than this chance counts as away tonight.
const STAYS_TONIGHT: f64 = 0.5;

/// Hosts that are assumed to go away.
#[derive(Clone, Debug, Default)]
pub struct Departures {
    /// Names of hosts or sites.
    pub named: Vec<String>,
    /// Whether also those go whose forecast for ten hours is that they rather go than stay.
    pub tonight: bool,
}

impl Departures {
    fn is_none(&self) -> bool {
        self.named.is_empty() && !self.tonight
    }
}

impl Agent {
    /// Shows which hosts hold the shards of the newest version of each job, or of `job`, and, if hosts are assumed to
    /// go away, from which version each job could go on then.
    ///
    /// # Errors
    /// When no host answers, or `departures` names a host or site that is not known.
    pub async fn map(
        &self,
        job: Option<&JobId>,
        departures: &Departures,
    ) -> Result<MapReport, Failure> {
        let doing = "cannot map shards";
        let leave = self.leaving(doing, departures).await?;
        let (gathered, opened) = self.find_all(doing, job).await?;
        let is_no_version = kept_for(&opened);
        let all: Vec<Mapped> = opened.iter().map(mapped).collect();
        // By job, the oldest version first.
        let mut by_job: BTreeMap<&JobId, Vec<(&OpenedCheckpoint, &Mapped)>> = BTreeMap::new();
        for (one, mapped) in opened.iter().zip(&all) {
            if !one.is_void && !is_no_version.contains_key(&one.id()) {
                by_job
                    .entry(&one.brief.job)
                    .or_default()
                    .push((one, mapped));
            }
        }
        let index = all.iter().map(|one| (one.id, one)).collect();
        let jobs = by_job.into_iter().filter_map(|(job, versions)| {
            let (newest, _) = versions.last()?;
            let history: Vec<&Mapped> = versions.iter().map(|(_, mapped)| *mapped).collect();
            let now = after_loss(&history, &index, &BTreeSet::new());
            let is_supposed = !departures.is_none();
            let then = after_loss(&history, &index, &leave).filter(|_| is_supposed);
            let public = newest.known.manifest.public();
            Some(MapJob {
                job: job.clone(),
                version: public.version,
                created: public.created,
                redundancy: public.redundancy,
                holders: self.holders_of(newest),
                now: now.map(|from| goes_on(from, public.created)),
                then: then.map(|from| goes_on(from, public.created)),
            })
        });
        Ok(MapReport {
            jobs: jobs.collect(),
            hosts: self.map_hosts(&leave),
            is_supposed: !departures.is_none(),
            silent: self.silent_notes(&gathered),
        })
    }

    fn holders_of(&self, one: &OpenedCheckpoint) -> Vec<Holder> {
        let holders = one.known.holders.iter();
        let holders = holders.map(|(shard, host)| Holder {
            shard: shard.number(),
            host: Some(self.hosts.name(*host).to_owned()),
        });
        holders.collect()
    }

    fn map_hosts(&self, leave: &BTreeSet<HostIndex>) -> Vec<MapHost> {
        let hosts = self.hosts.all().map(|host| MapHost {
            name: self.hosts.name(host).to_owned(),
            site: self.hosts.entry(host).and_then(|entry| entry.site.clone()),
            goes: leave.contains(&host),
        });
        hosts.collect()
    }

    /// The hosts that are assumed to go away.
    async fn leaving(
        &self,
        doing: &str,
        departures: &Departures,
    ) -> Result<BTreeSet<HostIndex>, Failure> {
        let site = |host: HostIndex| self.hosts.entry(host).and_then(|entry| entry.site.clone());
        let mut leave = BTreeSet::new();
        for name in &departures.named {
            let is_meant = |host: &HostIndex| {
                self.hosts.name(*host) == name || site(*host).as_deref() == Some(name)
            };
            let meant: Vec<HostIndex> = self.hosts.all().filter(is_meant).collect();
            if meant.is_empty() {
                let message = format!("{doing}: no host and no site is called {name:?}");
                return Err(Failure::new(ExitStatus::Usage, message).next("ckpt hosts"));
            }
            leave.extend(meant);
        }
        if departures.tonight {
            let report = self.hosts().await?;
            let goes = |name: &str| {
                let mut hosts = report.hosts.iter().filter(|one| one.name == name);
                hosts.any(|one| one.stays_10h.is_some_and(|stays| stays < STAYS_TONIGHT))
            };
            leave.extend(self.hosts.all().filter(|host| goes(self.hosts.name(*host))));
        }
        Ok(leave)
    }
}

/// What a restore takes where the newest version was saved at `newest`, Unix seconds.
fn goes_on(from: GoesOnFrom, newest: u64) -> MapIf {
    MapIf {
        version: from.version,
        can_lose: from.can_lose,
        older_s: newest.saturating_sub(from.created),
    }
}

/// What the pure part needs of a checkpoint.
fn mapped(one: &OpenedCheckpoint) -> Mapped {
    let public = one.known.manifest.public();
    let holders = one.known.holders.iter();
    Mapped {
        id: one.id(),
        version: public.version,
        created: public.created,
        data: public.redundancy.data(),
        is_whole: one.brief.mark.is_none(),
        shards: holders
            .map(|(shard, host)| ShardAt {
                shard: shard.number(),
                host: *host,
            })
            .collect(),
        needs: one.brief.needs().map(|need| need.checkpoint).collect(),
    }
}
