//! Reports the state of all hosts.

use std::net::SocketAddr;

use health::{HostHealth, HostState, HostsHealth};
use placement::AvailabilityBitmap;
use protocol::address::Address;
use protocol::wire::announcement::Announced;
use protocol::wire::escaped;
use tokio::task::JoinSet;

use crate::agent::Agent;
use crate::core::pooled::blend;
use crate::core::{Fault, HostIndex};
use crate::report::{Failure, HostReport, HostsReport, HostsSummary};

impl Agent {
    /// Asks all hosts for their state.
    ///
    /// # Errors
    /// None at present: a host that does not answer is in the report.
    pub async fn hosts(&self) -> Result<HostsReport, Failure> {
        let mut asking = JoinSet::new();
        for host in self.hosts.all() {
            let agent = self.clone();
            asking.spawn(async move {
                let (status, said) =
                    tokio::join!(agent.hosts.status(host), agent.announcement(host));
                let spoken = match &status {
                    Ok(_) => agent.hosts.spoken(host).await.ok(),
                    Err(_) => None,
                };
                (host, (status, said, spoken))
            });
        }
        let mut answers = asking.join_all().await;
        answers.sort_by_key(|(host, _)| *host);
        blend(answers.iter_mut().filter_map(said_by));
        let hosts = answers
            .into_iter()
            .filter_map(|(host, (answer, said, spoken))| {
                let said = said.as_ref().ok().and_then(Option::as_ref);
                let entry = self.hosts.entry(host)?;
                let error = answer.as_ref().err().map(Fault::to_string);
                let (status, rtt) = answer.ok().unzip();
                Some(HostReport {
                    name: self.hosts.name(host).to_owned(),
                    misnamed: self.hosts.misnamed(host).map(str::to_owned),
                    id: entry.id.hex(),
                    certificate_until: self.hosts.certified_until(host).filter(|_| error.is_none()),
                    addr: where_it_is(&entry.addr, self.hosts.address(host)),
                    site: entry.site.clone(),
                    up: error.is_none(),
                    status: match error {
                        None => HostState::of(
                            said.map_or(0, |said| said.refuses_for_s),
                            status.as_ref().map_or(0, |s| s.free_bytes),
                        ),
                        Some(_) => HostState::Down,
                    },
                    silent_since: match error {
                        None => None,
                        Some(_) => self.hosts.silent_since(host),
                    },
                    error,
                    unreached: self.hosts.is_unreached(host),
                    rtt_ms: rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
                    software: status.as_ref().map(|s| escaped(&s.software)),
                    protocol: spoken.map(|spoken| spoken.to_string()),
                    capacity_bytes: status.as_ref().map(|s| s.capacity_bytes),
                    used_bytes: status.as_ref().map(|s| s.used_bytes),
                    free_bytes: status.as_ref().map(|s| s.free_bytes),
                    shards: status.as_ref().map(|s| s.shards),
                    checkpoints: status.as_ref().map(|s| s.checkpoints),
                    uptime_s: status.as_ref().map(|s| s.uptime_s),
                    machine: said.map(|said| said.guest_state.to_string()),
                    disk: said.map(|said| said.storage_state.to_string()),
                    refuses_for_s: said.map(|said| said.refuses_for_s),
                    why: said
                        .and_then(|said| said.withheld)
                        .map(|why| why.to_string()),
                    availability: said.and_then(|said| share_of_time(&said.presence_bitmap)),
                    stays_10h: said.map(|said| said.presence.at(36_000.0).value()),
                })
            });
        let hosts: Vec<HostReport> = hosts.chain(self.silent_members()).collect();
        Ok(HostsReport {
            summary: summed_up(&hosts),
            hosts,
        })
    }
}

impl Agent {
    /// The members that no registry hears. They are not asked: most of them are switched off, and each would be
    /// waited for.
    fn silent_members(&self) -> impl Iterator<Item = HostReport> {
        self.hosts.absent().filter_map(|host| {
            let entry = self.hosts.entry(host)?;
            Some(HostReport {
                name: self.hosts.name(host).to_owned(),
                id: entry.id.hex(),
                addr: where_it_is(&entry.addr, None),
                site: entry.site.clone(),
                status: HostState::Silent,
                silent_since: self.hosts.silent_since(host),
                error: Some("no registry hears it".to_owned()),
                ..HostReport::default()
            })
        })
    }
}

/// What a host answered to three questions.
type Answers<S, V> = (HostIndex, (S, Result<Option<Announced>, Fault>, V));

/// The announcement among a host's answers.
fn said_by<S, V>((_, (_, said, _)): &mut Answers<S, V>) -> Option<&mut Announced> {
    said.as_mut().ok()?.as_mut()
}

fn summed_up(hosts: &[HostReport]) -> HostsSummary {
    let health = |host: &HostReport| HostHealth {
        name: host.name.clone(),
        state: host.status,
        free_bytes: host.free_bytes,
        ..HostHealth::default()
    };
    let sum = HostsHealth::of(hosts.iter().map(health).collect(), None);
    HostsSummary {
        known: sum.known,
        up: sum.up.value,
        take_shards: sum.take_shards.value,
        free_bytes: sum.free_bytes.value,
    }
}

/// Share of the known time in which a host was there, 0 to 1; `None` when nothing is known.
fn share_of_time(bitmap: &AvailabilityBitmap) -> Option<f64> {
    let known = bitmap.known().count();
    (known > 0).then(|| f64::from(bitmap.usable().count()) / f64::from(known))
}

/// Where a host is: `lab-3:7600 (10.0.0.3:7600)` for a name that was resolved, otherwise an address.
fn where_it_is(listed: &Address, found: Option<SocketAddr>) -> String {
    match (listed.ip(), found) {
        (None, Some(found)) => format!("{listed} ({found})"),
        (_, Some(found)) => found.to_string(),
        (_, None) => listed.to_string(),
    }
}
