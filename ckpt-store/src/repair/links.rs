//! Connections from this host to other hosts and to the registries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use codec::{CheckpointId, OwnerId};
use protocol::grid::Grid;
use protocol::identity::{Identity, Revocations};
use protocol::net::endpoint::EndpointError;
use transfer::registry::Registries;
use transfer::registry_answer::RegistryAnswer;
use transfer::roster::{self, Roster};
use transfer::{HostIndex, Hosts};

/// Most bytes in flight to or from each host. The window is small because repair is not urgent.
const WINDOW_BYTES: u32 = 1 << 20;

/// Connections to other hosts and to registries. They are kept from round to round.
#[derive(Debug)]
pub struct Links {
    registries: Registries,
    hosts: Mutex<Option<(Roster, Revocations, Hosts)>>,
}

/// The hosts of the grid as one round of repair sees them, by their keys.
#[derive(Clone, Debug)]
pub(super) struct Around {
    pub(super) hosts: Hosts,
    by_id: BTreeMap<OwnerId, HostIndex>,
    /// The answers of the registries.
    pub(super) answers: Arc<Vec<RegistryAnswer>>,
    /// Hosts that could not be reached in this round. They are not asked again before the next round.
    silent: Arc<Mutex<BTreeSet<OwnerId>>>,
}

impl Links {
    /// Links of the member `identity` to the registries of `grid`. Hosts are added by the first round.
    pub fn new(identity: &Identity, grid: &Grid) -> Self {
        Self {
            registries: Registries::new(identity, grid),
            hosts: Mutex::default(),
        }
    }

    /// The open connections to other hosts, for counting their traffic.
    pub(super) fn connections(&self) -> Vec<quinn::Connection> {
        let known = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let hosts = known.as_ref().map(|(_, _, hosts)| hosts.made());
        hosts.unwrap_or_default()
    }

    /// The hosts that `grid` lists and those that its registries add. The registries are also asked who
    /// holds shards of `checkpoints`.
    pub(super) async fn around(
        &self,
        grid: &Grid,
        identity: &Identity,
        checkpoints: Vec<CheckpointId>,
    ) -> Result<Around, EndpointError> {
        let answers = self.registries.ask(grid, checkpoints).await;
        let mut roster = roster::present(grid, &answers, &[]);
        // When a host was heard differs from round to round; connections are kept while the hosts are the
        // same.
        roster.heard.clear();
        let hosts = self.hosts(grid, roster, identity)?;
        let own = identity.secret.id();
        let others = hosts.all().filter_map(|host| {
            let id = hosts.entry(host)?.id.0;
            (id != own).then_some((id, host))
        });
        Ok(Around {
            by_id: others.collect(),
            hosts: hosts.clone(),
            answers: answers.into(),
            silent: Arc::default(),
        })
    }

    /// Connections to the hosts of `roster`. The existing ones are kept if neither the roster nor the
    /// list of revoked keys has changed since the last round.
    fn hosts(
        &self,
        grid: &Grid,
        roster: Roster,
        identity: &Identity,
    ) -> Result<Hosts, EndpointError> {
        let mut known = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let same = known
            .as_ref()
            .filter(|(hosts, revoked, _)| *hosts == roster && *revoked == grid.revoked);
        if let Some((_, _, hosts)) = same {
            return Ok(hosts.clone());
        }
        let grid = Grid {
            hosts: roster.hosts.clone(),
            ..grid.clone()
        };
        let hosts = Hosts::with_reports(&grid, roster.reported.clone(), identity, WINDOW_BYTES)?;
        *known = Some((roster, grid.revoked, hosts.clone()));
        Ok(hosts)
    }
}

impl Around {
    /// The index of a host in `hosts`; `None` for this host and for unknown hosts.
    pub(super) fn index(&self, id: &OwnerId) -> Option<HostIndex> {
        self.by_id.get(id).copied()
    }

    /// The name of a host, or its key if the host is unknown.
    pub(super) fn name(&self, id: &OwnerId) -> String {
        let index = self.index(id);
        index.map_or_else(|| id.to_string(), |host| self.hosts.name(host).to_owned())
    }

    /// Notes that a host can't be reached in this round.
    pub(super) fn set_silent(&self, id: OwnerId) {
        self.silent().insert(id);
    }

    /// Whether a host could not be reached in this round.
    pub(super) fn is_silent(&self, id: &OwnerId) -> bool {
        self.silent().contains(id)
    }

    fn silent(&self) -> MutexGuard<'_, BTreeSet<OwnerId>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All hosts but this one, with their keys.
    pub(super) fn others(&self) -> impl Iterator<Item = (OwnerId, HostIndex)> {
        self.by_id.iter().map(|(id, host)| (*id, *host))
    }
}
