//! Asks hosts what they count, and sums it up over the grid.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use health::{
    GridHealth, HostHealth, HostState, HostsHealth, OwnerHealth, Silence, ahead, middle_offset,
    span,
};
use protocol::identity::{HostId, Peer};
use protocol::wire::limits::REQUEST_TIMEOUT;
use protocol::wire::message::{HostCensus, HostStatus, Request, Response};
use protocol::wire::{Withheld, escaped};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::roster::{HeardOf, Roster};
use crate::{Fault, HostIndex, Hosts};

/// What one host answered.
#[derive(Debug)]
pub struct CensusAnswer {
    /// The counts of the host, or why it sent none.
    pub census: Result<HostCensus, Fault>,
    /// The status that a host sends to every member, if it refused the census.
    status: Option<HostStatus>,
    /// This machine's clock at that time, Unix seconds.
    at: u64,
    spoken: Option<String>,
    certificate_ends: Option<u64>,
}

/// The answers of all hosts, of which at most `at_once` are asked at the same time.
pub async fn ask_all(hosts: &Hosts, at_once: usize) -> BTreeMap<HostIndex, CensusAnswer> {
    let places = Arc::new(Semaphore::new(at_once));
    let mut asking = JoinSet::new();
    for host in hosts.all() {
        let hosts = hosts.clone();
        let places = Arc::clone(&places);
        asking.spawn(async move {
            // The semaphore is never closed.
            let _place = places.acquire_owned().await;
            (host, ask(&hosts, host).await)
        });
    }
    asking.join_all().await.into_iter().collect()
}

async fn ask(hosts: &Hosts, host: HostIndex) -> CensusAnswer {
    let census = match hosts.request(host, &Request::Census, REQUEST_TIMEOUT).await {
        Ok((Response::Census(census), _)) => Ok(*census),
        Ok(_) => Err(Fault::Lied("an unexpected answer".into())),
        Err(fault) => Err(fault),
    };
    let at = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let answers = matches!(census, Err(Fault::Refused { .. }));
    let status = match answers {
        true => hosts.status(host).await.ok().map(|(status, _)| status),
        false => None,
    };
    let connection = match answers || census.is_ok() {
        true => hosts.connection(host).await.ok(),
        false => None,
    };
    let peer = connection
        .as_ref()
        .and_then(|connection| Peer::of(connection).ok());
    CensusAnswer {
        status,
        at,
        spoken: connection
            .as_ref()
            .map(|connection| protocol::net::spoken(connection).to_string()),
        certificate_ends: peer.map(|peer| peer.not_after),
        census,
    }
}

/// A host that does not answer counts as down; what registries heard of it is shown.
pub fn hosts_health(
    hosts: &Hosts,
    heard: &BTreeMap<HostIndex, CensusAnswer>,
    announced: &BTreeMap<HostId, HeardOf>,
) -> HostsHealth {
    let clock = |heard: &CensusAnswer| Some((heard.census.as_ref().ok()?.clock, heard.at));
    let clocks: Vec<(u64, u64)> = heard.values().filter_map(clock).collect();
    let middle = middle_offset(&clocks);
    let each = heard.iter().map(|(host, heard)| {
        let known = HostHealth {
            name: hosts.name(*host).to_owned(),
            protocol: heard.spoken.clone(),
            certificate_ends: heard.certificate_ends,
            ..HostHealth::default()
        };
        match (&heard.census, &heard.status) {
            (Ok(census), _) => {
                let off = clock(heard).map(|(host, own)| ahead(host, own) - middle.unwrap_or(0));
                HostHealth {
                    clock_ahead_s: off,
                    ..counted(known, census)
                }
            }
            (Err(_), Some(status)) => HostHealth {
                state: HostState::of(0, status.free_bytes),
                capacity_bytes: Some(status.capacity_bytes),
                used_bytes: Some(status.used_bytes),
                free_bytes: Some(status.free_bytes),
                software: Some(escaped(&status.software)),
                ..known
            },
            (Err(fault), None) => {
                let id = hosts.entry(*host).map(|entry| entry.id);
                not_reached(known, fault, id.and_then(|id| announced.get(&id)))
            }
        }
    });
    HostsHealth::of(each.collect(), middle.map(|offset| -offset))
}

/// The members of `roster` that no registry hears.
pub fn silent_health(roster: &Roster) -> Vec<HostHealth> {
    let silent = roster.absent.iter().map(|host| {
        let said = roster
            .heard
            .get(&host.id)
            .filter(|said| said.capacity_bytes > 0);
        let silent = roster.reported.silent.get(&host.id);
        HostHealth {
            name: host.name.clone(),
            state: HostState::Silent,
            silent_since: silent.map(|silent| silent.seen_at),
            capacity_bytes: said.map(|said| said.capacity_bytes),
            free_bytes: said.map(|said| said.free_bytes),
            ..HostHealth::default()
        }
    });
    silent.collect()
}

/// `hosts` with these silent members.
#[must_use]
pub fn with_silent(hosts: HostsHealth, silent: Vec<HostHealth>) -> HostsHealth {
    let ahead = hosts.clock_ahead_s.map(|ahead| ahead.value);
    let each = hosts.each.into_iter().chain(silent).collect();
    HostsHealth {
        stay: hosts.stay,
        ..HostsHealth::of(each, ahead)
    }
}

fn not_reached(known: HostHealth, fault: &Fault, announced: Option<&HeardOf>) -> HostHealth {
    let Some(said) = announced else {
        return HostHealth {
            why: Some(fault.to_string()),
            ..known
        };
    };
    let ago = span(said.silent_ms / 1000);
    HostHealth {
        why: Some(format!(
            "{fault}; it announced itself to a registry {ago} ago"
        )),
        capacity_bytes: Some(said.capacity_bytes),
        free_bytes: Some(said.free_bytes),
        ..known
    }
}

fn counted(known: HostHealth, census: &HostCensus) -> HostHealth {
    let refuses = match census.stance {
        0 => 0,
        // The host stands back, even if it names no time.
        _ => census.refuses_for_s.max(1),
    };
    HostHealth {
        state: HostState::of(refuses, census.free_bytes),
        why: Withheld::from_number(census.withheld).map(|why| why.to_string()),
        refuses_for_s: Some(refuses),
        capacity_bytes: Some(census.capacity_bytes),
        used_bytes: Some(census.used_bytes),
        free_bytes: Some(census.free_bytes),
        software: Some(escaped(&census.software)),
        ..known
    }
}

/// Most shards that a checkpoint can lose.
const SPARE_MAX: usize = codec::geometry::PARITY_MAX as usize;

/// What hosts count, summed over the grid.
pub fn summed_up(hosts: &Hosts, heard: &BTreeMap<HostIndex, CensusAnswer>) -> GridHealth {
    let mut grid = GridHealth::default();
    let mut owners: BTreeMap<String, OwnerHealth> = BTreeMap::new();
    for (host, heard) in heard {
        let census = match &heard.census {
            Ok(census) if census.counted_at > 0 => census,
            other => {
                let why = match other {
                    Ok(_) => "it has not checked its shards since it started".to_owned(),
                    Err(fault) => fault.to_string(),
                };
                let host = hosts.name(*host).to_owned();
                grid.silent.push(Silence { host, why });
                if let Ok(census) = other {
                    add_owners(&mut owners, census);
                }
                continue;
            }
        };
        grid.counted_by += 1;
        for (spare, number) in census.can_lose.iter().take(SPARE_MAX + 1).enumerate() {
            if grid.can_lose.len() <= spare {
                grid.can_lose.push(0);
            }
            if let Some(sum) = grid.can_lose.get_mut(spare) {
                *sum = sum.saturating_add(*number);
            }
        }
        for (sum, number) in [
            (&mut grid.too_few, census.too_few),
            (&mut grid.below, census.below),
            (&mut grid.unchecked, census.unchecked),
            (&mut grid.failed_checks, census.failed_checks),
            (&mut grid.failed_proofs, census.failed_proofs),
        ] {
            *sum = sum.saturating_add(number);
        }
        add_owners(&mut owners, census);
    }
    grid.owners = owners.into_values().collect();
    grid.owners
        .sort_by_key(|owner| std::cmp::Reverse(owner.used_bytes));
    grid
}

fn add_owners(owners: &mut BTreeMap<String, OwnerHealth>, census: &HostCensus) {
    for said in &census.owners {
        let key = escaped(&said.key);
        let owner = owners.entry(key.clone()).or_insert(OwnerHealth {
            key,
            name: None,
            used_bytes: 0,
            hosts: 0,
        });
        owner.used_bytes = owner.used_bytes.saturating_add(said.used_bytes);
        owner.hosts += 1;
        if owner.name.is_none() && !said.name.is_empty() {
            owner.name = Some(escaped(&said.name));
        }
    }
}
