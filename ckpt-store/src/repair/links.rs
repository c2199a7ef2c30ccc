//! Ways to other hosts and to registries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use codec::{CheckpointId, OwnerId};
use protocol::grid::Grid;
use protocol::identity::{Identity, Revocations};
use protocol::net::endpoint::EndpointError;
use transfer::registry::{Registries, Told};
use transfer::roster::{self, Roster};
use transfer::{HostIndex, Hosts};

/// Bytes in flight to or from each host: repair is not in a hurry.
const WINDOW: u32 = 1 << 20;

/// Ways to other hosts and to registries: made once, not in every round.
#[derive(Debug)]
pub struct Links {
    registries: Registries,
    hosts: Mutex<Option<(Roster, Revocations, Hosts)>>,
}

/// The hosts of a grid, with their keys.
#[derive(Clone, Debug)]
pub(super) struct Around {
    pub(super) hosts: Hosts,
    by_id: BTreeMap<OwnerId, HostIndex>,
    /// What registries say.
    pub(super) told: Arc<Vec<Told>>,
    /// Hosts that could not be reached in this round: nobody waits for them twice.
    silent: Arc<Mutex<BTreeSet<OwnerId>>>,
}

impl Links {
    /// Links of a member of a grid with this authority.
    pub fn new(identity: &Identity, grid: &Grid) -> Self {
        Self {
            registries: Registries::new(identity, grid),
            hosts: Mutex::default(),
        }
    }

    /// Connections to other hosts that are there now.
    pub(super) fn connections(&self) -> Vec<quinn::Connection> {
        let known = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let hosts = known.as_ref().map(|(_, _, hosts)| hosts.made());
        hosts.unwrap_or_default()
    }

    /// The hosts of `grid` and those that its registries add, which are also asked who holds shards of
    /// these checkpoints.
    pub(super) async fn around(
        &self,
        grid: &Grid,
        identity: &Identity,
        checkpoints: Vec<CheckpointId>,
    ) -> Result<Around, EndpointError> {
        let told = self.registries.ask(grid, checkpoints).await;
        let roster = roster::merge(&grid.hosts, &told, &[], &grid.revoked);
        let hosts = self.hosts(grid, roster, identity)?;
        let own = identity.secret.id();
        let others = hosts.all().filter_map(|host| {
            let id = hosts.entry(host)?.id.0;
            (id != own).then_some((id, host))
        });
        Ok(Around {
            by_id: others.collect(),
            hosts: hosts.clone(),
            told: told.into(),
            silent: Arc::default(),
        })
    }

    /// The hosts of `roster` in `grid`; the same as last time as long as they are the same.
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
        let hosts = Hosts::with_addresses(&grid, roster.elsewhere.clone(), identity, WINDOW)?;
        *known = Some((roster, grid.revoked, hosts.clone()));
        Ok(hosts)
    }
}

impl Around {
    /// Where a host is in the list.
    pub(super) fn index(&self, id: &OwnerId) -> Option<HostIndex> {
        self.by_id.get(id).copied()
    }

    /// A host's name.
    pub(super) fn name(&self, id: &OwnerId) -> String {
        let index = self.index(id);
        index.map_or_else(|| id.to_string(), |host| self.hosts.name(host).to_owned())
    }

    /// Notes that a host can't be reached.
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

    /// All other hosts, with their keys.
    pub(super) fn others(&self) -> impl Iterator<Item = (OwnerId, HostIndex)> {
        self.by_id.iter().map(|(id, host)| (*id, *host))
    }
}
