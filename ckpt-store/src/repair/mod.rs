//! Looks after the checkpoints of which this host holds shards.
//!
//! A host that holds a shard of a checkpoint asks the other holders which shards they hold, and has them
//! prove it. If a shard has been missing for long, one of the holders rebuilds it on a further host, from
//! its own shard and those of the others. No key is needed for that: blocks are read and written as
//! ciphertext, and are checked against the manifest that the owner signed.
//!
//! One round, every `period`:
//! 1. `links`: which hosts there are, and what registries know of them
//! 2. `ask`: what these hosts claim to hold, and which notices of owners they have heard
//! 3. `proofs`: random parts of claimed shards, as far as the budget of bytes goes
//! 4. `core::repair`: which shards are due to be rebuilt, given all that
//! 5. `rebuild` on a host that `target` chooses; `give_back` if more is held than is lent
//!
//! A round goes through the checkpoints in parts of `PEER_HOLDS_ASKED_MAX`. So its memory does not grow
//! with their number, except for the notes of [`Caretaker`].

mod ask;
mod error;
mod give_back;
mod links;
mod pause;
mod proofs;
mod rebuild;
mod target;
mod voids;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use codec::notice::{agreed_clock, latest_clock};
use codec::{OwnerId, ShardIndex};
use placement::AvailabilityBitmap;
use protocol::identity::Identity;
use protocol::net::Members;
use protocol::wire::limits::PEER_HOLDS_ASKED_MAX;
use tracing::{debug, info, warn};
use transfer::registry_answer::RegistryAnswer;

pub use error::RepairError;
pub use give_back::Drained;
pub use links::Links;

use placement::absence::RepairWaits;

use crate::core::Key;
use crate::core::census::Census;
use crate::core::proofs::Budget;
use crate::core::release::Burden;
use crate::core::repair::{Caretaker, Repair, Situation};
use crate::host::Host;
use crate::monitor::stance::Stance;
use links::Around;
use pause::Waking;

/// Most shards that are rebuilt in one round. The rest waits for the next round.
const REPAIRS_PER_ROUND: usize = 16;

/// Registries are asked for the holders of at most this many checkpoints with missing shards in one
/// round.
const TROUBLED_ASKED_MAX: usize = 512;

/// The first round begins at most this long after the start of the daemon.
const FIRST_ROUND_WITHIN: Duration = Duration::from_secs(10);

/// Time limit for rebuilding or handing over one shard.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(4 * 3600);

/// A proof is valid for at least this many rounds, whatever `proof_valid` says.
const PROOF_ROUNDS_MIN: u32 = 3;

/// Settings of repair, from the daemon's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairSettings {
    /// Whether this host rebuilds shards that other hosts lost. It asks for notices in either case.
    pub rebuilds: bool,
    /// Time from one round to the next.
    pub period: Duration,
    /// How long a missing shard may stay missing before it is rebuilt.
    pub patience: RepairWaits,
    /// Most bytes per second that rebuilding a shard reads from other hosts.
    pub bytes_per_second: u64,
    /// How long another host's proof of a shard stays valid.
    pub proof_valid: Duration,
    /// Bytes a day that proofs of other hosts may cost. By default a thousandth of the bytes that this
    /// host holds, or as many as renewing all proofs in time takes, whichever is more.
    pub proof_bytes_per_day: Option<u64>,
}

impl Default for RepairSettings {
    fn default() -> Self {
        Self {
            rebuilds: true,
            period: Duration::from_secs(300),
            patience: RepairWaits::default(),
            bytes_per_second: 4 << 20,
            proof_valid: Duration::from_secs(14 * 86_400),
            proof_bytes_per_day: None,
        }
    }
}

/// The task that looks after the checkpoints of which this host holds shards.
#[derive(Debug)]
pub struct Repairer {
    /// The signed list of the grid, as far as this host knows it.
    pub members: Members,
    /// The key and certificate of this host.
    pub identity: Identity,
    /// What this host consists of.
    pub host: Arc<Host>,
    /// How repair is done.
    pub settings: RepairSettings,
    /// Connections to other hosts and registries.
    pub links: Links,
}

/// What one round of questions about all checkpoints found.
#[derive(Debug, Default)]
struct RoundFindings {
    /// The most urgent repairs, at most `REPAIRS_PER_ROUND`.
    due: Vec<Repair>,
    /// The shards that this host could give back. Empty unless it holds more than its owner lends.
    burdens: Vec<Burden>,
    /// Shards of no use here, because this host has another shard of the checkpoint and a further host
    /// has these; at most `REPAIRS_PER_ROUND`.
    spare: BTreeSet<(Key, ShardIndex)>,
    /// How many checkpoints can still lose how many shards.
    census: Census,
    /// The clocks of the hosts that answered, in Unix seconds.
    clocks: BTreeMap<OwnerId, u64>,
    /// The owners of the checkpoints of which this host holds shards.
    owners: BTreeSet<OwnerId>,
}

impl Repairer {
    /// Runs round after round; does not return.
    pub async fn run(self) {
        let mut caretaker = self.new_caretaker();
        let mut budget = Budget::default();
        // A host that was switched off may hold checkpoints that were deleted meanwhile, so its first
        // round comes soon.
        let mut wait = self.settings.period.min(FIRST_ROUND_WITHIN);
        loop {
            let until = std::mem::replace(&mut wait, self.settings.period);
            if pause::sleep(until).await == Waking::AfterAbsence {
                info!("this machine or program stood still: fetching the notices that it missed");
            }
            if !matches!(self.host.monitor.stance(), Stance::Open) {
                continue;
            }
            let round = self.round(&mut caretaker, &mut budget).await;
            let opened = self.links.connections();
            self.host
                .traffic
                .opened(&opened, self.host.clock.unix_seconds());
            match round {
                Ok(rebuilt) if rebuilt > 0 => info!(rebuilt, "repaired"),
                Ok(_) => debug!("checked the held checkpoints"),
                Err(why) => warn!(%why, "can't check the held checkpoints"),
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
            .max(self.settings.period * PROOF_ROUNDS_MIN);
        Caretaker::new(valid, self.settings.patience.least)
    }

    /// Runs one round. Returns how many shards were rebuilt.
    async fn round(
        &self,
        caretaker: &mut Caretaker,
        budget: &mut Budget,
    ) -> Result<usize, RepairError> {
        let grid = self.members.grid();
        if self.host.store.held_count() == 0 {
            self.host.checking.count_all(Census::default());
            self.fetch_voids_alone(&grid).await?;
            return Ok(0);
        }
        let troubled = caretaker.troubled(TROUBLED_ASKED_MAX).into_iter();
        let troubled = troubled.map(|key| key.checkpoint).collect();
        let around = self.links.around(&grid, &self.identity, troubled).await?;
        self.fill_budget(budget);
        let found = self.ask_about_all(&around, caretaker, budget).await;
        self.host.checking.count_all(found.census);
        self.end_leases(found.clocks.into_values().collect()).await;
        self.fetch_voids(&around, &found.owners).await;
        caretaker.retain(|key| self.host.store.is_held(*key));
        self.give_back(&around, caretaker, found.burdens).await;
        self.give_back_spare(&around, caretaker, found.spare).await;
        if !self.settings.rebuilds || found.due.is_empty() {
            return Ok(0);
        }
        Ok(self.rebuild_due(&around, caretaker, &found.due).await)
    }

    fn fill_budget(&self, budget: &mut Budget) {
        let usage = self.host.store.usage(None);
        // An estimate: each checkpoint has about four other holders with a claim to prove.
        let claims = usage.counts.shards.saturating_mul(4);
        let valid = self.settings.proof_valid;
        let a_day = self
            .settings
            .proof_bytes_per_day
            .unwrap_or_else(|| Budget::a_day(usage.used_bytes, claims, valid));
        budget.fill(self.host.clock.now(), a_day);
    }

    /// Looks at all checkpoints, in parts.
    async fn ask_about_all(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        budget: &mut Budget,
    ) -> RoundFindings {
        let holders = around.answers.iter().flat_map(|answer| &answer.holders);
        let holders = (!around.answers.is_empty()).then(|| holders.copied().collect());
        let gives_back = self.host.store.excess_bytes() > 0;
        // A host that has to give shards back needs hosts with room, so it asks all of them.
        let whom = caretaker
            .hosts_to_ask(self.own(), holders)
            .filter(|_| !gives_back);
        let uses = match gives_back {
            true => self.host.store.uses(),
            false => BTreeMap::new(),
        };
        let mut found = RoundFindings::default();
        let mut after = None;
        loop {
            let holdings = self.host.store.holdings(after, PEER_HOLDS_ASKED_MAX);
            let Some(last) = holdings.last() else {
                return found;
            };
            after = Some(last.key);
            found
                .owners
                .extend(holdings.iter().map(|one| one.key.owner));
            let answers = self.ask_holders(around, holdings, whom.as_ref()).await;
            let situations = self
                .check(around, caretaker, &answers, Some(&mut *budget))
                .await;
            for situation in &situations {
                found.census.enter(self.own(), situation);
                let room = REPAIRS_PER_ROUND.saturating_sub(found.spare.len());
                let spare = situation.spare_copies(self.own()).into_iter();
                found
                    .spare
                    .extend(spare.map(|shard| (situation.key, shard)).take(room));
            }
            let due = self.due(around, caretaker, &situations, &answers.answering);
            found.due.extend(due);
            found.due.sort_by_key(Repair::order);
            found.due.truncate(REPAIRS_PER_ROUND);
            if gives_back {
                found.burdens.extend(self.burdens(&situations, &uses));
            }
            found.clocks.extend(answers.clocks);
        }
    }

    fn due(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        situations: &[Situation],
        answering: &BTreeSet<OwnerId>,
    ) -> Vec<Repair> {
        let histories = histories(&around.answers);
        let patience = |holder: Option<&OwnerId>| {
            let history = holder.and_then(|holder| histories.get(holder));
            self.settings.patience.with(history)
        };
        let now = self.host.clock.now();
        caretaker.repairs(now, self.own(), situations, answering, patience)
    }

    /// Rebuilds the shards that are due, and returns how many it rebuilt. Before each, all hosts are
    /// asked once more: the registries may not know of every holder, and a host that claims the shard
    /// gets a last chance to prove it.
    async fn rebuild_due(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        due: &[Repair],
    ) -> usize {
        let mut rebuilt = 0;
        for repair in due {
            if !matches!(self.host.monitor.stance(), Stance::Open) {
                break;
            }
            let checkpoint = repair.key.checkpoint;
            let shard = repair.shard.number();
            let rebuilding = self.rebuild_if_due(around, caretaker, repair);
            let done = tokio::time::timeout(REPAIR_TIMEOUT, rebuilding).await;
            match done.unwrap_or(Err(RepairError::Late)) {
                Ok(Some(host)) => {
                    let host = around.name(&host);
                    info!(%checkpoint, shard, host, "shard rebuilt");
                    self.host.metrics.repaired(true);
                    rebuilt += 1;
                }
                Ok(None) => debug!(%checkpoint, shard, "shard need not be rebuilt"),
                Err(why) => {
                    warn!(%checkpoint, shard, %why, "shard not rebuilt");
                    self.host.metrics.repaired(false);
                    caretaker.put_off(self.host.clock.now(), repair);
                }
            }
        }
        rebuilt
    }

    /// Asks all hosts about one checkpoint, and rebuilds the shard if it is still due. Returns the host
    /// that holds the rebuilt shard, or `None` if the shard was not due any more.
    async fn rebuild_if_due(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        repair: &Repair,
    ) -> Result<Option<OwnerId>, RepairError> {
        let holdings = self.host.store.holdings_of(&BTreeSet::from([repair.key]));
        let mut answers = self.ask_holders(around, holdings, None).await;
        let situations = self.check(around, caretaker, &answers, None).await;
        let due = self.due(around, caretaker, &situations, &answers.answering);
        let is_due = due.iter().any(|one| one.shard == repair.shard);
        let Some(situation) = situations.first().filter(|_| is_due) else {
            return Ok(None);
        };
        let rebuilding = self.rebuild(around, caretaker, &mut answers, situation, repair.shard);
        rebuilding.await.map(Some)
    }

    /// Removes checkpoints whose lease has ended, by the clock on which most hosts agree.
    async fn end_leases(&self, clocks: Vec<u64>) {
        let own_clock = self.host.clock.unix_seconds();
        self.host
            .store
            .set_agreed_clock(latest_clock(own_clock, clocks.clone()));
        let Some(clock) = agreed_clock(own_clock, clocks) else {
            return;
        };
        let store = Arc::clone(&self.host.store);
        let now = self.host.clock.now();
        let ending = tokio::task::spawn_blocking(move || store.end_leases(now, clock));
        match ending.await {
            Ok(Ok(0)) => {}
            Ok(Ok(removed)) => info!(removed, "removed deleted checkpoints"),
            Ok(Err(cause)) => warn!(%cause, "can't remove deleted checkpoints"),
            Err(panicked) => warn!(%panicked, "a thread ended"),
        }
    }
}

/// The availability that hosts announced to registries.
fn histories(answers: &[RegistryAnswer]) -> BTreeMap<OwnerId, AvailabilityBitmap> {
    let records = answers.iter().flat_map(|answer| &answer.members);
    records
        .filter_map(|record| {
            let said = record.presence.announcement.check().ok()?;
            Some((record.id, said.presence_bitmap))
        })
        .collect()
}
