//! Looks after the checkpoints of which this host holds shards. A holder asks the other holders what
//! they have and has them prove it, and what is missing for long it rebuilds from theirs and its own,
//! without any key: ciphertext in, ciphertext out, checked against the manifest that the owner signed.
//!
//! However many checkpoints there are, a round goes through them in parts, so that what it needs of
//! memory does not grow with them but for the notes of [`Caretaker`].

mod error;
mod give_back;
mod links;
mod look;
mod pause;
mod proofs;
mod rebuild;
mod target;
mod voids;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use codec::OwnerId;
use codec::notice::{agreed_clock, latest_clock};
use placement::AvailabilityBitmap;
use protocol::identity::Identity;
use protocol::net::Members;
use protocol::wire::limits::PEER_HOLDS_ASKED_MAX;
use tracing::{debug, info, warn};
use transfer::registry::Told;

pub use error::RepairError;
pub use give_back::Drained;
pub use links::Links;

use crate::accounts::Accounts;
use crate::checking::Checking;
use crate::core::census::Census;
use crate::core::proofs::Budget;
use crate::core::release::Burden;
use crate::core::repair::{Caretaker, Patience, Repair, Situation};
use crate::monitor::Monitor;
use crate::monitor::stance::Stance;
use crate::serve::Clock;
use crate::shards::Store;
use crate::traffic::Traffic;
use links::Around;
use pause::Waking;

/// Shards that are rebuilt in one round, at most; the next round comes soon.
const REPAIRS_PER_ROUND: usize = 16;

/// Checkpoints with missing shards about which registries are asked in one round, at most.
const TROUBLED_ASKED: usize = 512;

/// When a daemon looks for the first time.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// How long one shard may take.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(4 * 3600);

/// A proof counts for at least so many rounds.
const ROUNDS_VALID: u32 = 3;

/// How repair is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairSettings {
    /// Whether shards that others lost are rebuilt. What owners said is heard of all the same.
    pub rebuilds: bool,
    /// Time between two looks.
    pub period: Duration,
    /// How long shards are waited for.
    pub patience: Patience,
    /// Bytes per second that a repair reads and sends, at most.
    pub bytes_per_second: u64,
    /// How long a proof counts that another host holds a shard.
    pub proof_valid: Duration,
    /// Bytes a day that proofs of other hosts may cost; a thousandth of what is held, or what it takes
    /// to renew all, when not given.
    pub proof_bytes_per_day: Option<u64>,
}

impl Default for RepairSettings {
    fn default() -> Self {
        Self {
            rebuilds: true,
            period: Duration::from_secs(300),
            patience: Patience::default(),
            bytes_per_second: 4 << 20,
            proof_valid: Duration::from_secs(14 * 86_400),
            proof_bytes_per_day: None,
        }
    }
}

/// Looks after the checkpoints of which this host holds shards.
#[derive(Debug)]
pub struct Repairer {
    /// What is known of the grid.
    pub members: Members,
    /// Who this host is.
    pub identity: Identity,
    /// What it holds.
    pub store: Arc<Store>,
    /// Whether its owner needs it.
    pub monitor: Arc<Monitor>,
    /// What proofs cost.
    pub checking: Arc<Checking>,
    /// Whose job keys may come.
    pub accounts: Arc<Accounts>,
    /// What the daemon's connections move.
    pub traffic: Arc<Traffic>,
    /// Its clocks.
    pub clock: Clock,
    /// How it is done.
    pub settings: RepairSettings,
    /// Ways to the others.
    pub links: Links,
}

/// What one look at all checkpoints found.
#[derive(Debug, Default)]
struct Found {
    /// What is to be rebuilt first.
    due: Vec<Repair>,
    /// What could be given back, if more is held than is lent.
    burdens: Vec<Burden>,
    /// How all checkpoints are.
    census: Census,
    /// Clocks of the hosts that answered, Unix seconds.
    clocks: BTreeMap<OwnerId, u64>,
    /// Whose checkpoints are held here.
    owners: BTreeSet<OwnerId>,
}

impl Repairer {
    /// Looks again and again; ends never.
    pub async fn run(self) {
        let mut caretaker = self.new_caretaker();
        let mut budget = Budget::default();
        // One that was away may hold what was deleted meanwhile: it looks soon.
        let mut wait = self.settings.period.min(FIRST_LOOK);
        loop {
            let until = std::mem::replace(&mut wait, self.settings.period);
            if pause::sleep(until).await == Waking::AfterAbsence {
                info!("this machine or program stood still: hearing what was said meanwhile");
            }
            if !matches!(self.monitor.stance(), Stance::Open) {
                continue;
            }
            let round = self.round(&mut caretaker, &mut budget).await;
            let opened = self.links.connections();
            self.traffic.opened(&opened, self.clock.unix_seconds());
            match round {
                Ok(rebuilt) if rebuilt > 0 => info!(rebuilt, "repaired"),
                Ok(_) => debug!("looked after what is held"),
                Err(why) => warn!(%why, "not looked after what is held"),
            }
        }
    }

    fn own(&self) -> OwnerId {
        self.identity.secret.id()
    }

    fn new_caretaker(&self) -> Caretaker {
        let valid = self
            .settings
            .proof_valid
            .max(self.settings.period * ROUNDS_VALID);
        Caretaker::new(valid, self.settings.patience.least)
    }

    /// Returns how many shards were rebuilt.
    async fn round(
        &self,
        caretaker: &mut Caretaker,
        budget: &mut Budget,
    ) -> Result<usize, RepairError> {
        let grid = self.members.grid();
        if self.store.held_count() == 0 {
            self.checking.count_all(Census::default());
            self.hear_voids_alone(&grid).await?;
            return Ok(0);
        }
        let troubled = caretaker.troubled(TROUBLED_ASKED).into_iter();
        let troubled = troubled.map(|key| key.checkpoint).collect();
        let around = self.links.around(&grid, &self.identity, troubled).await?;
        self.fill(budget);
        let found = self.look_at_all(&around, caretaker, budget).await;
        self.checking.count_all(found.census);
        self.end_leases(found.clocks.into_values().collect()).await;
        self.hear_voids(&around, &found.owners).await;
        caretaker.retain(|key| self.store.is_held(*key));
        self.give_back(&around, caretaker, found.burdens).await;
        if !self.settings.rebuilds || found.due.is_empty() {
            return Ok(0);
        }
        Ok(self.rebuild_due(&around, caretaker, &found.due).await)
    }

    fn fill(&self, budget: &mut Budget) {
        let usage = self.store.usage(None);
        // Each checkpoint has a few other holders.
        let claims = usage.counts.shards.saturating_mul(4);
        let valid = self.settings.proof_valid;
        let a_day = self
            .settings
            .proof_bytes_per_day
            .unwrap_or_else(|| Budget::a_day(usage.used_bytes, claims, valid));
        budget.fill(self.clock.now(), a_day);
    }

    /// Goes through all checkpoints, in parts.
    async fn look_at_all(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        budget: &mut Budget,
    ) -> Found {
        let told = around.told.iter().flat_map(|told| &told.holders);
        let told = (!around.told.is_empty()).then(|| told.copied().collect());
        let gives_back = self.store.excess_bytes() > 0;
        // Whoever has room is wanted then.
        let whom = caretaker
            .whom_to_ask(self.own(), told)
            .filter(|_| !gives_back);
        let superseded = if gives_back {
            self.store.superseded()
        } else {
            BTreeSet::new()
        };
        let mut found = Found::default();
        let mut after = None;
        loop {
            let holdings = self.store.holdings(after, PEER_HOLDS_ASKED_MAX);
            let Some(last) = holdings.last() else {
                return found;
            };
            after = Some(last.key);
            found
                .owners
                .extend(holdings.iter().map(|one| one.key.owner));
            let look = self.look(around, holdings, whom.as_ref()).await;
            let situations = self
                .check(around, caretaker, &look, Some(&mut *budget))
                .await;
            for situation in &situations {
                found.census.enter(self.own(), situation);
            }
            let due = self.due(around, caretaker, &situations, &look.answering);
            found.due.extend(due);
            found.due.sort_by_key(Repair::order);
            found.due.truncate(REPAIRS_PER_ROUND);
            if gives_back {
                found.burdens.extend(self.burdens(&situations, &superseded));
            }
            found.clocks.extend(look.clocks);
        }
    }

    fn due(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        situations: &[Situation],
        answering: &BTreeSet<OwnerId>,
    ) -> Vec<Repair> {
        let histories = histories(&around.told);
        let patience = |holder: Option<&OwnerId>| {
            let history = holder.and_then(|holder| histories.get(holder));
            self.settings.patience.with(history)
        };
        let now = self.clock.now();
        caretaker.repairs(now, self.own(), situations, answering, patience)
    }

    /// Rebuilds what is still missing after everybody was asked: a registry may not know all, and who
    /// claims a shard is to prove it before it is rebuilt. Returns how many were rebuilt.
    async fn rebuild_due(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        due: &[Repair],
    ) -> usize {
        let mut rebuilt = 0;
        for repair in due {
            if !matches!(self.monitor.stance(), Stance::Open) {
                break;
            }
            let (checkpoint, shard) = (repair.key.checkpoint, repair.shard.number());
            let rebuilding = self.rebuild_if_due(around, caretaker, repair);
            let done = tokio::time::timeout(REPAIR_TIMEOUT, rebuilding).await;
            match done.unwrap_or(Err(RepairError::Late)) {
                Ok(Some(host)) => {
                    let host = around.name(&host);
                    info!(%checkpoint, shard, host, "shard rebuilt");
                    rebuilt += 1;
                }
                Ok(None) => debug!(%checkpoint, shard, "shard need not be rebuilt"),
                Err(why) => {
                    warn!(%checkpoint, shard, %why, "shard not rebuilt");
                    caretaker.put_off(self.clock.now(), repair);
                }
            }
        }
        rebuilt
    }

    /// Asks everybody, and rebuilds the shard if it is still missing; returns on which host.
    async fn rebuild_if_due(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        repair: &Repair,
    ) -> Result<Option<OwnerId>, RepairError> {
        let holdings = self.store.holdings_of(&BTreeSet::from([repair.key]));
        let mut look = self.look(around, holdings, None).await;
        let situations = self.check(around, caretaker, &look, None).await;
        let due = self.due(around, caretaker, &situations, &look.answering);
        let is_due = due.iter().any(|one| one.shard == repair.shard);
        let Some(situation) = situations.first().filter(|_| is_due) else {
            return Ok(None);
        };
        let rebuilding = self.rebuild(around, caretaker, &mut look, situation, repair.shard);
        rebuilding.await.map(Some)
    }

    /// Removes what has outlived its lease, by the clock on which most agree.
    async fn end_leases(&self, clocks: Vec<u64>) {
        let own_clock = self.clock.unix_seconds();
        self.store
            .hear_clock(latest_clock(own_clock, clocks.clone()));
        let Some(clock) = agreed_clock(own_clock, clocks) else {
            return;
        };
        let (store, now) = (Arc::clone(&self.store), self.clock.now());
        let ending = tokio::task::spawn_blocking(move || store.end_leases(now, clock));
        match ending.await {
            Ok(Ok(0)) => {}
            Ok(Ok(removed)) => info!(removed, "what is not wanted any more is removed"),
            Ok(Err(cause)) => warn!(%cause, "what is not wanted any more is still here"),
            Err(panicked) => warn!(%panicked, "a thread ended"),
        }
    }
}

/// The pasts that hosts announced.
fn histories(told: &[Told]) -> BTreeMap<OwnerId, AvailabilityBitmap> {
    let records = told.iter().flat_map(|told| &told.members);
    records
        .filter_map(|record| {
            let said = record.presence.announcement.check().ok()?;
            Some((record.id, said.presence_bitmap))
        })
        .collect()
}
