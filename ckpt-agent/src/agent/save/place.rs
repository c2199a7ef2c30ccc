//! Chooses hosts for a save: collects what is known of them, probes unknown ones, and reports the choice.

use std::net::UdpSocket;
use std::time::Duration;

use codec::{JobId, Redundancy, Version};
use placement::Probability;
use placement::objective::{SHARDS_MAX, Score, Width};
use tokio::task::JoinSet;

use crate::agent::ask::gather::Gathered;
use crate::agent::save::base::ChosenBase;
use crate::agent::{Agent, Choose, PlacementWish};
use crate::core::HostIndex;
use crate::core::gather::WaitUntil;
use crate::core::place::renewal::stored_again;
use crate::core::place::work::{Saved, interval, work_seconds};
use crate::core::place::{
    Among, CodeRequest, DomainNames, HostView, Placed, Question, Reserve, Row, place,
};
use crate::core::pooled::blend;
use crate::inventory::KnownCheckpoint;
use crate::knowledge::{Knowledge, KnownHost, Observation};
use crate::report::{ExitStatus, Failure, PlacedHost, PlacementReport, ReserveReason};
use crate::unix_time::unix_seconds;
use transfer::put::MeasuredRate;

/// Bytes of a probe: enough to recognise a link that is a tenth as fast as the others.
const PROBE_BYTES: u32 = 128 << 10;

/// Most hosts that are probed before one save; the next save probes others.
const PROBES_MAX: usize = 8;

/// How long the probes may hold up a save.
const PROBE_TIMEOUT: Duration = Duration::from_millis(400);

/// Assumed time between checkpoints for the first one of a job.
const FIRST_INTERVAL_SECONDS: f64 = 3600.0;

/// Assumed ratio of stored bytes to image bytes for the first checkpoint of a job.
const FIRST_RATIO: f64 = 0.6;

/// A code that the caller gave, as `placement` counts shards.
///
/// # Errors
/// When it has more shards than `placement` calculates with.
fn given_width(code: Redundancy) -> Result<Width, Failure> {
    Width::new(code.data(), code.parity()).ok_or_else(|| {
        let message = format!("no hosts can be chosen for {code} shards: {SHARDS_MAX} is the most");
        Failure::new(ExitStatus::Usage, message).next("--data 3 --parity 2")
    })
}

/// Hosts for a checkpoint, and what they were chosen by.
pub(crate) struct Placing {
    /// `None` when no host can be chosen.
    pub(crate) placed: Option<Placed>,
    views: Vec<HostView>,
    question: Question,
}

impl Placing {
    /// Has rows of the base stored again that are at risk on their hosts, and prefers the hosts of the base if the new
    /// version needs them anyway.
    pub(crate) fn fit_to(&mut self, base: Option<&mut ChosenBase>, gathered: &Gathered) {
        let (Some(placed), Some(base)) = (&mut self.placed, base) else {
            return;
        };
        if base.has_time() {
            let rows = base.older_rows(gathered);
            base.note_risks(&stored_again(&self.views, &self.question, placed, &rows));
        }
        if base.uses_origins() {
            placed.prefer(&base.holders);
        }
    }
}

impl Agent {
    /// Reports where a checkpoint of the job would go if it were saved now, with `redundancy` as in
    /// [`SaveOptions::redundancy`](crate::agent::SaveOptions::redundancy).
    ///
    /// # Errors
    /// When no host answers.
    pub async fn hosts_for_job(
        &self,
        job: &JobId,
        redundancy: Option<Redundancy>,
        wish: &PlacementWish,
    ) -> Result<PlacementReport, Failure> {
        let doing = format!("cannot place job {job}");
        let job_tag = self.job_tag(job)?;
        let shards = self.hosts.count();
        let gathered = self
            .gather(Some(job_tag), WaitUntil::ToSave { shards })
            .await;
        self.require_answers(&gathered, &doing)?;
        let newest = gathered.inventory.newest_first().first().copied().cloned();
        let wish = PlacementWish {
            explain: true,
            ..wish.clone()
        };
        let seed = crate::agent::handle::random()?;
        let placing = self
            .place(&gathered, newest.as_ref(), None, redundancy, &wish, seed)
            .await?;
        placing
            .placed
            .map(|placed| self.report(&placed, job, &gathered))
            .ok_or_else(|| Failure::new(ExitStatus::TooFewHosts, doing).next("ckpt hosts"))
    }

    /// Chooses hosts for the next checkpoint after `newest`, with `planned` image bytes if that is known.
    pub(crate) async fn place(
        &self,
        gathered: &Gathered,
        newest: Option<&KnownCheckpoint>,
        planned: Option<u64>,
        redundancy: Option<Redundancy>,
        wish: &PlacementWish,
        seed: [u8; 16],
    ) -> Result<Placing, Failure> {
        let now = unix_seconds();
        let compute = self.compute_host(wish.compute_host.as_deref()).await?;
        let among = self.among(&wish.choose).await?;
        let stored_bytes = self.expected_bytes(newest, planned);
        let given = redundancy.map(given_width).transpose()?;
        let width = given.unwrap_or(Width::FALCON);
        let code = match (wish.target, given) {
            (Some(target), _) => CodeRequest::Target(target),
            (None, Some(given)) => CodeRequest::Width(given),
            // A user who names hosts, or wants random ones, wants no forecast to choose them or the code.
            (None, None) if wish.choose != Choose::Forecast => CodeRequest::AtMost(width),
            (None, None) => CodeRequest::Usual,
        };
        let interval = newest.map_or(FIRST_INTERVAL_SECONDS, |newest| {
            interval(newest.manifest.public().created, now)
        });
        let known = self.notebook.read(now);
        let question = Question {
            stored_bytes,
            code,
            // Older checkpoints are on hosts that fail together with these, so all work of the job is at stake.
            work_seconds: self.work_seconds(gathered, newest, now).max(interval),
            interval_seconds: interval,
            compute,
            uplink: known.uplink(now),
            watched: known.watched(now),
            seed,
            now,
        };
        if gathered.answered.len() > width.total() || wish.target.is_some() {
            self.probe_unknown(gathered, seed).await;
        }
        let knowledge = self.notebook.read(now);
        let views = self.views(gathered, &knowledge, now);
        let views = among.leave(views, &question, width.total());
        Ok(Placing {
            placed: place(&views, &question, wish.explain),
            views,
            question,
        })
    }

    /// The work that a job has done of which `newest` is the newest version.
    fn work_seconds(&self, gathered: &Gathered, newest: Option<&KnownCheckpoint>, now: u64) -> f64 {
        let Some(line) = newest.and_then(|newest| self.line_of(newest).ok()) else {
            return 0.0;
        };
        let first = line.map_or(1, Version::number);
        let shown = self
            .newest_of_line(&gathered.inventory, line)
            .map(|known| Saved {
                number: known.version().number(),
                created: known.manifest.public().created,
            });
        work_seconds(first, &shown.collect::<Vec<_>>(), now)
    }

    /// Measures hosts to which nothing was ever sent.
    async fn probe_unknown(&self, gathered: &Gathered, seed: [u8; 16]) {
        let now = unix_seconds();
        let knowledge = self.notebook.read(now);
        let mut unknown: Vec<HostIndex> = gathered
            .hosts()
            .filter(|host| {
                let entry = self.hosts.entry(*host);
                entry.is_some_and(|entry| knowledge.is_worth_a_probe(entry.id, now))
            })
            .collect();
        // If there are many, each save probes others.
        unknown.sort_by_key(|host| {
            blake3::hash(&[&seed[..], &host.0.to_le_bytes()].concat()).to_string()
        });
        unknown.truncate(PROBES_MAX);
        let mut probing = JoinSet::new();
        for host in unknown {
            let hosts = self.hosts.clone();
            probing.spawn(async move { (host, hosts.probe(host, PROBE_BYTES).await) });
        }
        let collect = async {
            while let Some(probed) = probing.join_next().await {
                // A host that takes no probe is judged without one.
                let Ok((host, Ok(rate))) = probed else {
                    continue;
                };
                if let Some(entry) = self.hosts.entry(host) {
                    self.notebook.note(Observation::Probed(entry.id));
                }
                if let Some(rate) = rate {
                    self.saw_rate(host, rate);
                }
            }
        };
        // A host whose probe has not ended by now is slow; its rate is measured by a later transfer.
        let _ = tokio::time::timeout(PROBE_TIMEOUT, collect).await;
    }

    /// Records the rate that a transfer showed. If the host could have taken more, the rate is recorded only
    /// if it is higher than expected.
    pub(crate) fn learn_rate(&self, host: HostIndex, rate: MeasuredRate) {
        match rate {
            MeasuredRate::Exactly(rate) => self.saw_rate(host, rate),
            MeasuredRate::AtLeast(rate) => {
                let known = self.notebook.read(unix_seconds());
                let expected = self.measured(&known, host);
                if expected.is_none_or(|expected| expected.median() < rate) {
                    self.saw_rate(host, rate);
                }
            }
        }
    }

    /// Records the rate of a host, bytes per second.
    fn saw_rate(&self, host: HostIndex, bytes_per_second: f64) {
        if let Some(entry) = self.hosts.entry(host) {
            self.notebook
                .note(Observation::Rate(entry.id, bytes_per_second));
        }
    }

    /// The rate expected of a host, if it was ever measured.
    pub(crate) fn measured(
        &self,
        knowledge: &Knowledge,
        host: HostIndex,
    ) -> Option<placement::bandwidth::RateForecast> {
        let entry = self.hosts.entry(host)?;
        knowledge.host(entry.id)?.forecast(unix_seconds())
    }

    fn views(&self, gathered: &Gathered, knowledge: &Knowledge, now: u64) -> Vec<HostView> {
        let mut names = DomainNames::default();
        let answered = gathered.answered.iter();
        let views = answered.filter_map(|(host, answer)| {
            let entry = self.hosts.entry(*host)?;
            let seen = knowledge.host(entry.id);
            Some(HostView {
                host: *host,
                rtt_seconds: answer.rtt.as_secs_f64(),
                measured: seen.and_then(|seen| seen.forecast(now)),
                passed_probe: seen.is_some_and(KnownHost::was_probed),
                claims: answer.announced.clone(),
                seen: seen.cloned(),
                domains: names.of(
                    entry.site.as_deref(),
                    entry.owner.as_deref(),
                    self.hosts.address(*host)?.ip(),
                ),
                free_bytes: answer.status.free_bytes,
            })
        });
        let mut views: Vec<HostView> = views.collect();
        blend(views.iter_mut().filter_map(|view| view.claims.as_mut()));
        views
    }

    /// Expected stored bytes of the next checkpoint, if it is as compressible as the last.
    fn expected_bytes(&self, newest: Option<&KnownCheckpoint>, planned: Option<u64>) -> u64 {
        let summary = newest.and_then(|newest| newest.manifest.open(&self.keys).ok());
        match (summary, planned) {
            (Some(summary), Some(planned)) => {
                let ratio = summary.stored_bytes as f64 / summary.stream_bytes.max(1) as f64;
                (planned as f64 * ratio.min(1.1)) as u64
            }
            (Some(summary), None) => summary.stored_bytes,
            (None, Some(planned)) => (planned as f64 * FIRST_RATIO) as u64,
            (None, None) => 0,
        }
    }

    /// The hosts among which the choice is made.
    ///
    /// # Errors
    /// When a name is not that of any host.
    async fn among(&self, choose: &Choose) -> Result<Among, Failure> {
        match choose {
            Choose::Forecast => Ok(Among::All),
            Choose::Random => Ok(Among::Random),
            Choose::Hosts(names) => {
                let mut hosts = Vec::with_capacity(names.len());
                for name in names {
                    hosts.push(self.host_named(name).await?);
                }
                Ok(Among::These(hosts))
            }
        }
    }

    async fn host_named(&self, name: &str) -> Result<HostIndex, Failure> {
        let found = self.hosts.named(name).await;
        found.ok_or_else(|| {
            Failure::new(ExitStatus::Usage, format!("no host {name:?} in the grid"))
                .next("ckpt hosts")
        })
    }

    /// The host of the grid that runs on this machine; `None` if there is none, or several.
    ///
    /// # Errors
    /// When `name` is given and no host has this name.
    pub(crate) async fn compute_host(
        &self,
        name: Option<&str>,
    ) -> Result<Option<HostIndex>, Failure> {
        if let Some(name) = name {
            return self.host_named(name).await.map(Some);
        }
        let mut here = self.hosts.all().filter(|host| {
            let addr = self.hosts.address(*host).map(|addr| addr.ip());
            // A socket can be bound only to an address of this machine.
            addr.is_some_and(|addr| !addr.is_loopback() && UdpSocket::bind((addr, 0)).is_ok())
        });
        let first = here.next();
        // Several daemons on one machine are a trial, not a grid.
        Ok(first.filter(|_| here.next().is_none()))
    }

    /// All hosts that run on this machine, also several daemons on a loopback address.
    pub(crate) fn hosts_here(&self) -> Vec<HostIndex> {
        let addr = |host: &HostIndex| self.hosts.address(*host).map(|addr| addr.ip());
        // A socket can be bound only to an address of this machine.
        let is_here =
            |host: &HostIndex| addr(host).is_some_and(|addr| UdpSocket::bind((addr, 0)).is_ok());
        self.hosts.all().filter(is_here).collect()
    }

    /// The choice in the form of the report.
    pub(crate) fn report(
        &self,
        placed: &Placed,
        job: &JobId,
        gathered: &Gathered,
    ) -> PlacementReport {
        let value = |score: &Score| score.total();
        PlacementReport {
            job: job.clone(),
            redundancy: format!("{}+{}", placed.width.data(), placed.width.parity()),
            reliability: placed.score.reliability.value(),
            store_seconds: placed.score.store_seconds,
            restore_seconds: placed.score.restore_seconds,
            compute_fails: placed.need.value(),
            objective_seconds: value(&placed.score),
            hosts: placed
                .rows
                .iter()
                .map(|row| self.placed_host(row))
                .collect(),
            notes: self.placement_notes(placed),
            silent: self.silent_notes(gathered),
        }
    }

    fn placed_host(&self, row: &Row) -> PlacedHost {
        let entry = self.hosts.entry(row.host);
        PlacedHost {
            name: self.hosts.name(row.host).to_owned(),
            site: entry.and_then(|entry| entry.site.clone()),
            chosen: row.chosen,
            reserve: row.reserve.map(reserve_reason),
            machine: row.guest_state.map(|state| state.to_string()),
            disk: row.storage_state.map(|state| state.to_string()),
            bytes_per_second: row.rate,
            measured: row.rate_is_measured,
            stays: row.stays.map(Probability::value),
            readable: row.readable.value(),
            correlation: row.correlation,
            objective_with: row.with.map(|score| score.total()),
            objective_without: row.without.map(|score| score.total()),
        }
    }

    /// Notes for the user on a choice.
    pub(crate) fn placement_notes(&self, placed: &Placed) -> Vec<String> {
        let mut notes = Vec::new();
        let data = placed.code.data();
        let parity = placed.code.parity();
        if placed.is_forecast {
            notes.push(format!(
                "{data}+{parity} shards, by forecast: they can be restored with probability {:.5} when the job \
                 needs them; each byte is stored {:.1} times",
                placed.score.reliability.value(),
                placed.code.expansion()
            ));
        }
        if placed.is_narrowed {
            notes.push(format!(
                "{data}+{parity} shards, not {}, because too few hosts take a shard: each byte is stored \
                 {:.1} times",
                Redundancy::DEFAULT,
                placed.code.expansion()
            ));
        }
        let parity = placed.width.parity().max(1);
        let kinds = ["site or network", "owner"];
        let crowded = placed.crowded.iter().flatten().zip(kinds);
        for (most, kind) in crowded.filter_map(|(cap, kind)| Some(((*cap)?, kind))) {
            if most > parity {
                notes.push(format!(
                    "{most} shards share one {kind}: there are too few others"
                ));
            }
        }
        notes
    }
}

const fn reserve_reason(reserve: Reserve) -> ReserveReason {
    match reserve {
        Reserve::NoRoom => ReserveReason::NoRoom,
        Reserve::Refuses => ReserveReason::Refuses,
        Reserve::ComputeHost => ReserveReason::ComputeHost,
    }
}
