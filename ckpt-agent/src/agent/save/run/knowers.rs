//! A version of few data shards is shown by further hosts, so that few silent hosts can't hide it.

use codec::Redundancy;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, timeout_at};

use super::SaveShell;
use crate::agent::{DATA_USUAL, PARITY_USUAL};
use crate::core::HostIndex;
use crate::core::save::SaveOutcome;

/// How many hosts show a version: as many as hold a version of 3+2 shards. `--if-exists` takes a version for
/// missing only while fewer than three hosts are silent, so one of these five answers even if two of them have
/// lost what they hold.
const KNOWERS: usize = (DATA_USUAL + PARITY_USUAL) as usize;

/// Longest wait for hosts that are asked to show a version.
const SHOWING_MAX: Duration = Duration::from_secs(5);

impl SaveShell<'_> {
    /// Has hosts that hold no shard keep the manifest of a committed version of fewer than three data shards,
    /// until [`KNOWERS`] hosts show it.
    pub(super) async fn show_to_more_hosts(&mut self) {
        let Some(SaveOutcome::Committed { holders }) = self.session.outcome() else {
            return;
        };
        let holders: Vec<HostIndex> = holders.iter().map(|(_, host)| *host).collect();
        self.knowers = holders.len();
        if !is_easily_hidden(self.plan.redundancy) {
            return;
        }
        let Some(manifest) = &self.signed else { return };
        // Each time other hosts come first, so that all take part.
        let first = usize::from(self.plan.checkpoint.0[0]) % self.answering.len().max(1);
        let (before, from) = self.answering.split_at_checked(first).unwrap_or_default();
        let others = from.iter().chain(before);
        let mut others = others.filter(|host| !holders.contains(host));
        let mut asking = JoinSet::new();
        let deadline = self
            .request
            .options
            .deadline
            .map(|limit| self.started + limit);
        let until = Instant::now() + SHOWING_MAX;
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        loop {
            while self.knowers + asking.len() < KNOWERS {
                let Some(host) = others.next().copied() else {
                    break;
                };
                let hosts = self.agent.hosts.clone();
                let bytes = manifest.bytes().to_vec();
                asking.spawn(async move { hosts.keep_manifest(host, bytes).await.is_ok() });
            }
            // For each host that refuses, another one is asked.
            match timeout_at(until, asking.join_next()).await {
                Ok(Some(kept)) => self.knowers += usize::from(kept.unwrap_or(false)),
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// The note when fewer hosts show the version than the grid has and others show.
    pub(super) fn knowers_note(&self) -> Option<String> {
        let wanted = KNOWERS.min(self.agent.hosts.count());
        let is_short = is_easily_hidden(self.plan.redundancy) && self.knowers < wanted;
        is_short.then(|| {
            format!(
                "{} of {wanted} hosts could be asked to show this version: a restore with --if-exists may \
                 take it for missing while these are silent",
                self.knowers
            )
        })
    }
}

/// Whether fewer silent hosts than three can hide a version when others have lost their shards.
fn is_easily_hidden(redundancy: Redundancy) -> bool {
    redundancy.data() < usize::from(DATA_USUAL)
}
