//! Hears from other hosts which job keys owners made void: who was away when an owner said so hears of
//! it here, and not only from the owner's next command.

use std::collections::BTreeSet;
use std::sync::Arc;

use codec::OwnerId;
use protocol::grid::Grid;
use rand::seq::IteratorRandom;
use tracing::{debug, warn};
use transfer::HostIndex;

use super::links::Around;
use super::{RepairError, Repairer};

/// Hosts that are asked in each round.
const ASKED: usize = 3;

/// Owners that are asked about in each round, at most; of more, others each time.
const OWNERS_ASKED: usize = 1024;

impl Repairer {
    /// The same for a host that holds nothing: it asks about those who were here.
    pub(super) async fn hear_voids_alone(&self, grid: &Grid) -> Result<(), RepairError> {
        if !self.accounts.owners().is_empty() {
            let around = self.links.around(grid, &self.identity, Vec::new()).await?;
            self.hear_voids(&around, &BTreeSet::new()).await;
        }
        Ok(())
    }

    /// Asks some hosts, others in each round, which job keys are void of the `holders` of checkpoints
    /// that are here, and of those who were here. Each member is one of these at most.
    pub(super) async fn hear_voids(&self, around: &Around, holders: &BTreeSet<OwnerId>) {
        let mut owners = self.accounts.owners();
        owners.extend(holders);
        let owners = owners.into_iter();
        let owners = owners.choose_multiple(&mut rand::rng(), OWNERS_ASKED);
        if owners.is_empty() {
            return;
        }
        let others = around.others().filter(|(id, _)| !around.is_silent(id));
        let asked = others.choose_multiple(&mut rand::rng(), ASKED);
        for (id, host) in asked {
            self.hear_voids_of(around, id, host, &owners).await;
        }
    }

    async fn hear_voids_of(
        &self,
        around: &Around,
        id: OwnerId,
        host: HostIndex,
        owners: &[OwnerId],
    ) {
        let name = around.name(&id);
        let lists = match around.hosts.voids(host, owners).await {
            Ok(lists) => lists,
            // An earlier program does not know the question.
            Err(fault) => {
                return debug!(host = name, %fault, "does not say which job keys are void");
            }
        };
        let store = Arc::clone(&self.store);
        let hearing = tokio::task::spawn_blocking(move || {
            let heard = lists.iter().map(|list| store.hear_void(list));
            heard.collect::<Result<Vec<bool>, _>>()
        });
        match hearing.await {
            Ok(Ok(_)) => {}
            Ok(Err(cause)) => warn!(host = name, %cause, "which job keys are void is not kept"),
            Err(panicked) => warn!(%panicked, "a thread ended"),
        }
    }
}
