//! Asks other hosts to prove that they hold the shards that they claim to hold.

use std::collections::BTreeSet;
use std::sync::Arc;

use codec::manifest::{Manifest, Public};
use codec::proof::Spot;
use codec::{OwnerId, ShardIndex};
use protocol::wire::Code;
use tokio::task::JoinSet;
use tracing::{debug, warn};
use transfer::{Fault, HostIndex, Hosts};

use super::ask::HolderAnswers;
use super::links::Around;
use super::{RepairError, Repairer};
use crate::core::Key;
use crate::core::proofs::Budget;
use crate::core::repair::{Caretaker, Situation, Wanted};
use crate::shards::StoreError;

/// How many proofs are asked for at the same time.
const PROOFS_AT_ONCE: usize = 16;

/// A host has to prove this many parts of a shard before this host removes its own copy. One proof is
/// enough for a repair to count the host.
const PARTS_BEFORE_REMOVAL: usize = 8;

/// Roughly the bytes that a refused request for a proof costs.
const REFUSAL_BYTES: u64 = 200;

/// The result of asking a host for one proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Proved,
    Failed,
    /// The host could not be reached or was busy, so the claim is neither proved nor refuted.
    Unknown,
}

impl Repairer {
    /// Asks for the proofs that are worth it, new ones before renewals, until `budget` is spent. Returns
    /// the situation of each checkpoint after that. Without a budget all of them are asked for, also of
    /// hosts that failed lately: that is done before a shard is rebuilt or removed.
    pub(super) async fn check(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        answers: &HolderAnswers,
        mut budget: Option<&mut Budget>,
    ) -> Vec<Situation> {
        let situations = answers.situations(caretaker, self);
        let now = self.host.clock.now();
        let own = self.own();
        let wanted = situations.iter();
        let again = budget.is_none();
        let wanted = wanted.flat_map(|one| caretaker.wanted(now, own, one, again));
        let mut wanted: Vec<(u64, Wanted)> = wanted.map(|one| (rand::random(), one)).collect();
        if wanted.is_empty() {
            return situations;
        }
        wanted.sort_by_key(|(draw, one)| (one.is_renewal, *draw));
        let mut rest = wanted.into_iter().map(|(_, one)| one).peekable();
        // A host that did not answer once is not asked again, so that it delays the others only once.
        let mut silent = BTreeSet::new();
        while rest.peek().is_some() && budget.as_ref().is_none_or(|left| left.allows_one()) {
            let some: Vec<Wanted> = rest
                .by_ref()
                .filter(|one| !silent.contains(&one.host))
                .take(PROOFS_AT_ONCE)
                .collect();
            let bytes = self.prove_some(around, caretaker, some, &mut silent).await;
            if let Some(budget) = &mut budget {
                budget.spend(bytes);
            }
        }
        answers.situations(caretaker, self)
    }

    /// Asks for `some` proofs at the same time and enters the results. Returns the bytes that they cost.
    /// Hosts whose result is unknown are added to `silent`.
    async fn prove_some(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        some: Vec<Wanted>,
        silent: &mut BTreeSet<OwnerId>,
    ) -> u64 {
        let mut asking = JoinSet::new();
        for one in some {
            let Some(host) = around.index(&one.host) else {
                continue;
            };
            let hosts = around.hosts.clone();
            let public = self.public(one.key);
            asking.spawn(async move {
                let asked = match public.await {
                    Ok(public) => prove(&hosts, host, &public, one.shard).await,
                    Err(_) => (Outcome::Unknown, 0),
                };
                (one, asked)
            });
        }
        let mut received = 0;
        for (one, (outcome, bytes)) in asking.join_all().await {
            received += bytes;
            self.enter(
                around,
                caretaker,
                one.key,
                (one.shard, one.host),
                outcome,
                bytes,
            );
            if outcome == Outcome::Unknown {
                silent.insert(one.host);
            }
        }
        received
    }

    /// Whether a host proves `PARTS_BEFORE_REMOVAL` parts of a shard, one after the other. Only then a
    /// copy on this host may be removed.
    pub(super) async fn is_surely_held(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        key: Key,
        shard: ShardIndex,
        holder: OwnerId,
    ) -> bool {
        let (Some(host), Ok(public)) = (around.index(&holder), self.public(key).await) else {
            return false;
        };
        for _ in 0..PARTS_BEFORE_REMOVAL {
            let (outcome, bytes) = prove(&around.hosts, host, &public, shard).await;
            self.enter(around, caretaker, key, (shard, holder), outcome, bytes);
            if outcome != Outcome::Proved {
                return false;
            }
        }
        true
    }

    fn enter(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        key: Key,
        (shard, holder): (ShardIndex, OwnerId),
        outcome: Outcome,
        bytes: u64,
    ) {
        let checkpoint = key.checkpoint;
        let number = shard.number();
        let host = around.name(&holder);
        let is_proved = match outcome {
            Outcome::Unknown => {
                debug!(%checkpoint, shard = number, host, "no proof now");
                return;
            }
            Outcome::Proved => {
                debug!(%checkpoint, shard = number, host, "proved to hold a shard");
                true
            }
            Outcome::Failed => {
                warn!(%checkpoint, shard = number, host, "claims a shard that it does not prove to hold");
                false
            }
        };
        caretaker.proved(self.host.clock.now(), key, shard, holder, is_proved);
        self.host.checking.asked(is_proved, bytes);
        self.host.metrics.proved(is_proved);
    }

    /// Reads a manifest from the disk.
    pub(super) fn manifest(
        &self,
        key: Key,
    ) -> impl Future<Output = Result<Manifest, RepairError>> + use<> {
        let store = Arc::clone(&self.host.store);
        async move {
            let reading = tokio::task::spawn_blocking(move || store.manifest(key));
            Ok(reading.await??)
        }
    }

    /// Reads the public part of a manifest, which is all that a proof needs. The rest of a manifest may
    /// be long and is dropped.
    fn public(&self, key: Key) -> impl Future<Output = Result<Public, RepairError>> + use<> {
        let store = Arc::clone(&self.host.store);
        async move {
            let reading =
                tokio::task::spawn_blocking(move || Ok(store.manifest(key)?.public().clone()));
            let read: Result<Public, StoreError> = reading.await?;
            Ok(read?)
        }
    }
}

/// Asks a host for a random part of a shard, and checks the part against the manifest. Returns the bytes
/// that came, too.
async fn prove(
    hosts: &Hosts,
    host: HostIndex,
    public: &Public,
    shard: ShardIndex,
) -> (Outcome, u64) {
    let spot = Spot {
        row: rand::random::<u64>() % public.rows.max(1),
        draw: rand::random(),
    };
    match hosts.prove(host, public, shard, spot).await {
        Ok(bytes) => (Outcome::Proved, bytes),
        Err(fault) => (outcome_of(&fault), REFUSAL_BYTES),
    }
}

fn outcome_of(fault: &Fault) -> Outcome {
    match fault {
        Fault::Lied(_) => Outcome::Failed,
        Fault::Refused { code, .. } => match code {
            Code::NotFound
            | Code::DiskFailed
            | Code::Mismatch
            | Code::Forbidden
            | Code::BadRequest => Outcome::Failed,
            _ => Outcome::Unknown,
        },
        Fault::Gone(_)
        | Fault::Silent(_)
        | Fault::Stalled(_)
        | Fault::Slow { .. }
        | Fault::Starved => Outcome::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_or_silent_host_has_not_failed() {
        let refused = |code, retry_after_ms| Fault::Refused {
            code,
            detail: String::new(),
            retry_after_ms,
        };
        assert_eq!(outcome_of(&refused(Code::Busy, 1000)), Outcome::Unknown);
        assert_eq!(outcome_of(&refused(Code::Stopping, 0)), Outcome::Unknown);
        assert_eq!(outcome_of(&Fault::Stalled(10)), Outcome::Unknown);
        assert_eq!(outcome_of(&refused(Code::NotFound, 0)), Outcome::Failed);
        assert_eq!(outcome_of(&Fault::Lied("root".into())), Outcome::Failed);
    }
}
