//! Remnants that hosts have ended and that are not committed yet.

use std::time::Duration;

use codec::CheckpointId;
use protocol::wire::message::Claim;
use tokio::task::JoinSet;

use crate::agent::Agent;
use crate::core::HostIndex;

/// How often hosts are asked for a remnant that is not committed: each time they keep it for another hour.
const RENEW_PERIOD: Duration = Duration::from_secs(900);

/// A remnant that is to be committed before the version that uses it.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// Its id.
    pub(super) checkpoint: CheckpointId,
    /// What hosts are asked about it.
    pub(super) claim: Claim,
    /// Its signed manifest.
    pub(super) manifest: Vec<u8>,
    /// Who holds its shards.
    pub(super) holders: Vec<HostIndex>,
    /// Fewest of them that have to commit it.
    pub(super) needed: usize,
}

impl Pending {
    /// Commits the remnant at its holders. Returns whether enough of them did.
    pub(super) async fn commit(self, agent: &Agent) -> bool {
        let mut asking = JoinSet::new();
        for host in self.holders {
            let hosts = agent.hosts.clone();
            let manifest = self.manifest.clone();
            asking.spawn(async move { hosts.commit(host, manifest).await.is_ok() });
        }
        let done = asking.join_all().await;
        done.into_iter().filter(|done| *done).count() >= self.needed
    }
}

impl Agent {
    /// Has hosts keep what is not committed of a remnant while the new save takes long.
    pub(super) async fn keep_asking_for(self, all: Vec<Pending>) {
        loop {
            tokio::time::sleep(RENEW_PERIOD).await;
            for one in &all {
                for host in &one.holders {
                    let _asked_again_later = self.hosts.rows_held(*host, one.claim).await;
                }
            }
        }
    }
}
