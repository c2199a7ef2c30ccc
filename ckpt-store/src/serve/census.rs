//! Sends an admin or a registry what this host counts. The answer has no ids of checkpoints and no jobs;
//! only an admin is sent who uses how much.

use std::sync::Arc;

use protocol::identity::Role;
use protocol::wire::limits::CENSUS_OWNERS_MAX;
use protocol::wire::message::{HostCensus, OwnerUse, Response};

use super::{Answer, Exchange, blocking};
use crate::monitor::stance::Stance;

/// How many digits of an owner's key are sent.
const KEY_DIGITS: usize = 8;

/// Failed checks older than this are not counted, seconds.
const FAILED_LATELY_S: u64 = 7 * 86_400;

impl Exchange<'_> {
    /// Answers a `Census` request.
    pub(super) async fn census(&mut self) -> Result<(), Answer> {
        let _place = self.place(&self.host.questions, "answers").await?;
        let store = Arc::clone(&self.host.parts.store);
        let (usage, mut owners) = blocking(move || Ok((store.usage(None), store.owners()))).await?;
        // The owners with the most bytes are kept.
        owners.sort_by_key(|(owner, bytes)| (std::cmp::Reverse(*bytes), *owner));
        owners.truncate(CENSUS_OWNERS_MAX);
        let host = &self.host;
        let now = host.parts.clock.unix_seconds();
        let (counted_at, census) = host.parts.checking.counted();
        let stance = host.parts.monitor.stance();
        if !self.peer.has(Role::Admin) {
            owners.clear();
        }
        let owners = owners.into_iter().map(|(owner, used_bytes)| OwnerUse {
            key: owner.hex().chars().take(KEY_DIGITS).collect(),
            name: host.parts.accounts.name(&owner).unwrap_or_default(),
            used_bytes,
        });
        let census = HostCensus {
            clock: now,
            software: env!("CARGO_PKG_VERSION").to_owned(),
            capacity_bytes: usage.capacity_bytes,
            used_bytes: usage.used_bytes,
            free_bytes: usage.free_bytes,
            stance: match stance {
                Stance::Open => 0,
                Stance::StandBack(_) => 1,
                Stance::Closed(_) => 2,
            },
            withheld: stance.what().map_or(0, |what| what.number()),
            refuses_for_s: stance.refuses_for_s(),
            counted_at,
            can_lose: census.can_lose,
            too_few: census.too_few,
            below: census.below,
            unchecked: census.unchecked,
            failed_checks: host
                .parts
                .auditing
                .failed_since(now.saturating_sub(FAILED_LATELY_S)),
            failed_proofs: host.parts.checking.costs().failed,
            owners: owners.collect(),
        };
        self.respond(&Response::Census(Box::new(census))).await
    }
}
