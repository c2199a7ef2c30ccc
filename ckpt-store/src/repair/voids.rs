//! Asks other hosts which job keys owners have declared void. A host that was away when an owner declared
//! it learns it here, before the owner's next command.

use std::collections::BTreeSet;
use std::sync::Arc;

use codec::OwnerId;
use protocol::grid::Grid;
use rand::seq::IteratorRandom;
use tracing::{debug, warn};
use transfer::HostIndex;

use super::links::Around;
use super::{RepairError, Repairer};

/// How many hosts are asked in each round.
const HOSTS_ASKED: usize = 3;

/// At most this many owners are asked about in each round. If there are more, each round draws others.
const OWNERS_ASKED_MAX: usize = 1024;

impl Repairer {
    /// [`Self::fetch_voids`] for a host that holds no shards: it asks about the owners who had some here.
    pub(super) async fn fetch_voids_alone(&self, grid: &Grid) -> Result<(), RepairError> {
        if !self.host.accounts.owners().is_empty() {
            let around = self.links.around(grid, &self.identity, Vec::new()).await?;
            self.fetch_voids(&around, &BTreeSet::new()).await;
        }
        Ok(())
    }

    /// Asks a few random hosts which job keys of some owners are void. The owners are `holders`, whose
    /// checkpoints are here, and those who had checkpoints here before. Every member of the grid is among
    /// these at most once.
    pub(super) async fn fetch_voids(&self, around: &Around, holders: &BTreeSet<OwnerId>) {
        let mut owners = self.host.accounts.owners();
        owners.extend(holders);
        let owners = owners.into_iter();
        let owners = owners.choose_multiple(&mut rand::rng(), OWNERS_ASKED_MAX);
        if owners.is_empty() {
            return;
        }
        let others = around.others().filter(|(id, _)| !around.is_silent(id));
        let asked = others.choose_multiple(&mut rand::rng(), HOSTS_ASKED);
        for (id, host) in asked {
            self.fetch_voids_of(around, id, host, &owners).await;
        }
    }

    async fn fetch_voids_of(
        &self,
        around: &Around,
        id: OwnerId,
        host: HostIndex,
        owners: &[OwnerId],
    ) {
        let name = around.name(&id);
        let lists = match around.hosts.voids(host, owners).await {
            Ok(lists) => lists,
            Err(fault) => {
                return debug!(host = name, %fault, "the host does not report revoked job keys");
            }
        };
        let store = Arc::clone(&self.host.store);
        let hearing = tokio::task::spawn_blocking(move || {
            let heard = lists.iter().map(|list| store.enter_voids(list));
            heard.collect::<Result<Vec<bool>, _>>()
        });
        match hearing.await {
            Ok(Ok(_)) => {}
            Ok(Err(cause)) => {
                warn!(host = name, %cause, "can't write the list of revoked job keys")
            }
            Err(panicked) => warn!(%panicked, "a thread ended"),
        }
    }
}
