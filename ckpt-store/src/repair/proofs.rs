//! Has hosts prove that they hold what they say.

use std::collections::BTreeSet;
use std::sync::Arc;

use codec::manifest::{Manifest, Public};
use codec::proof::Spot;
use codec::{OwnerId, ShardIndex};
use protocol::wire::Code;
use tokio::task::JoinSet;
use tracing::{debug, warn};
use transfer::{Fault, HostIndex, Hosts};

use super::links::Around;
use super::look::Look;
use super::{RepairError, Repairer};
use crate::core::Key;
use crate::core::proofs::Budget;
use crate::core::repair::{Caretaker, Situation, Wanted};
use crate::shards::StoreError;

/// Proofs that are asked for at once.
const PROOFS_AT_ONCE: usize = 16;

/// Parts of a shard that a host has to prove before a shard is removed here because the host has it, too.
const PARTS_BEFORE_REMOVAL: usize = 8;

/// About what a refusal costs.
const REFUSAL_BYTES: u64 = 200;

/// What came of asking for a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Proved,
    Failed,
    /// The host was not there, or busy: nothing is known.
    Unknown,
}

impl Repairer {
    /// Asks for the proofs that are worth it, as far as `budget` allows, and says what is to be thought of
    /// each checkpoint then. Without a budget, before something is rebuilt or removed, all are.
    pub(super) async fn check(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        look: &Look,
        mut budget: Option<&mut Budget>,
    ) -> Vec<Situation> {
        let situations = look.situations(caretaker, self);
        let (now, own) = (self.clock.now(), self.own());
        let wanted = situations.iter();
        let again = budget.is_none();
        let wanted = wanted.flat_map(|one| caretaker.wanted(now, own, one, again));
        let mut wanted: Vec<(u64, Wanted)> = wanted.map(|one| (rand::random(), one)).collect();
        if wanted.is_empty() {
            return situations;
        }
        wanted.sort_by_key(|(draw, one)| (one.is_renewal, *draw));
        let mut rest = wanted.into_iter().map(|(_, one)| one).peekable();
        // Whoever makes one wait is not waited for twice.
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
        look.situations(caretaker, self)
    }

    /// Asks for some proofs at once. Returns how many bytes came.
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
            let (hosts, public) = (around.hosts.clone(), self.public(one.key));
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

    /// Has a host prove several parts of a shard: only then a shard may be removed here.
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
        let (checkpoint, number) = (key.checkpoint, shard.number());
        let host = around.name(&holder);
        let is_proved = match outcome {
            Outcome::Unknown => {
                debug!(%checkpoint, shard = number, host, "no proof now");
                return;
            }
            Outcome::Proved => true,
            Outcome::Failed => {
                warn!(%checkpoint, shard = number, host, "claims a shard that it does not prove to hold");
                false
            }
        };
        caretaker.proved(self.clock.now(), key, shard, holder, is_proved);
        self.checking.asked(is_proved, bytes);
    }

    /// Reads a manifest from the disk.
    pub(super) fn manifest(
        &self,
        key: Key,
    ) -> impl Future<Output = Result<Manifest, RepairError>> + use<> {
        let store = Arc::clone(&self.store);
        async move {
            let reading = tokio::task::spawn_blocking(move || store.manifest(key));
            Ok(reading.await??)
        }
    }

    /// Reads what everybody may know of a checkpoint: what a proof needs of a manifest, some of which are
    /// long.
    fn public(&self, key: Key) -> impl Future<Output = Result<Public, RepairError>> + use<> {
        let store = Arc::clone(&self.store);
        async move {
            let reading =
                tokio::task::spawn_blocking(move || Ok(store.manifest(key)?.public().clone()));
            let read: Result<Public, StoreError> = reading.await?;
            Ok(read?)
        }
    }
}

/// Asks a host for a random part of a shard.
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
    fn who_is_busy_or_away_has_not_failed() {
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
