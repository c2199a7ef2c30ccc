//! Gives shards back when more is held than is lent, and hands all of them over when the host leaves.
//! Nothing is removed because another host says that it has it: that host has to prove it, in parts that
//! this one chooses.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use codec::{OwnerId, ShardIndex};
use protocol::wire::limits::PEER_HOLDS_ASKED_MAX;
use tokio::time::Instant;
use tracing::{info, warn};

use super::links::Around;
use super::look::Look;
use super::{REPAIR_TIMEOUT, RepairError, Repairer};
use crate::core::Key;
use crate::core::release::{self, Burden};
use crate::core::repair::{Caretaker, Situation};

/// Time between two tries to hand over what could not be handed over.
const DRAIN_PAUSE: Duration = Duration::from_secs(2);

/// Different reasons that are kept.
const REASONS_MAX: usize = 8;

/// How a host left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Shards that another host proved to hold.
    pub handed_over: usize,
    /// Shards that none did.
    pub left: usize,
    /// Why those were not handed over, each reason once.
    pub reasons: BTreeSet<String>,
}

/// A drain that goes on.
#[derive(Debug, Default)]
struct Handing {
    done: BTreeSet<(Key, ShardIndex)>,
    /// Why others were not handed over in this round.
    reasons: BTreeSet<String>,
}

impl Handing {
    fn note(&mut self, why: String) {
        if self.reasons.len() < REASONS_MAX {
            self.reasons.insert(why);
        }
    }
}

impl Repairer {
    /// When more is here than is lent: hands shards over.
    pub(super) async fn give_back(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        burdens: Vec<Burden>,
    ) {
        let over = self.store.excess_bytes();
        if over == 0 {
            return;
        }
        info!(over, "more is held than is lent");
        for burden in release::choose(over, burdens) {
            if self.store.excess_bytes() == 0 {
                break;
            }
            let (checkpoint, number) = (burden.key.checkpoint, burden.shard.number());
            match self.release(around, caretaker, burden).await {
                Ok(()) => info!(%checkpoint, shard = number, "shard given back"),
                Err(why) => warn!(%checkpoint, shard = number, %why, "shard not given back"),
            }
        }
    }

    /// What could be given back of these checkpoints.
    pub(super) fn burdens(
        &self,
        situations: &[Situation],
        superseded: &BTreeSet<Key>,
    ) -> Vec<Burden> {
        let own = self.own();
        let mut burdens = Vec::new();
        for situation in situations {
            let key = situation.key;
            let mine = situation.held.iter();
            for (shard, _) in mine.filter(|(_, holders)| holders.contains(&own)) {
                burdens.push(Burden {
                    key,
                    shard: *shard,
                    bytes: self.store.shard_bytes(key, *shard),
                    is_superseded: superseded.contains(&key),
                    is_elsewhere: !situation.others_with(own, *shard).is_empty(),
                    spare: situation.spare(),
                });
            }
        }
        burdens.retain(|burden| burden.bytes > 0);
        burdens
    }

    /// Hands a shard over unless another host proves that it has it, and removes it here.
    async fn release(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        burden: Burden,
    ) -> Result<(), RepairError> {
        let Burden { key, shard, .. } = burden;
        let passing = self.pass_on(around, caretaker, key, shard);
        let passed = tokio::time::timeout(REPAIR_TIMEOUT, passing).await;
        let mut done = match passed.unwrap_or(Err((RepairError::Late, None))) {
            Ok(_) => Ok(()),
            // The owner of the machine needs the space, and nobody else has any: an old version can
            // miss a shard.
            Err((_, Some(1..))) if burden.is_superseded => Ok(()),
            Err((why, _)) => Err(why),
        };
        if done.is_ok() {
            let (store, now) = (Arc::clone(&self.store), self.clock.now());
            let releasing = tokio::task::spawn_blocking(move || store.release(now, key, shard));
            done = match releasing.await {
                Ok(released) => released.map_err(RepairError::from),
                Err(panicked) => Err(panicked.into()),
            };
        }
        self.store.end_leaving(key, shard);
        done
    }

    /// Has another host hold a shard instead of this one: one that holds it already, or one to which it
    /// is handed over. Returns the other host; when there is none, why, and how many shards could be lost
    /// of those that were proved.
    ///
    /// The copy here is refused as a proof before another host is asked for one. So of two hosts with the
    /// same shard, at most one removes its copy because of the other's: the host that begins second finds
    /// that the first one refuses.
    async fn pass_on(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        key: Key,
        shard: ShardIndex,
    ) -> Result<OwnerId, (RepairError, Option<usize>)> {
        let own = self.own();
        let holdings = self.store.holdings_of(&BTreeSet::from([key]));
        let mut look = self.look(around, holdings, None).await;
        let situation = self.closer(around, caretaker, &look).await;
        let Some(situation) = situation else {
            return Err((RepairError::NotHeld, None));
        };
        self.store.begin_leaving(key, shard);
        let mut trusted = BTreeSet::new();
        for other in situation.others_with(own, shard) {
            if self
                .is_surely_held(around, caretaker, key, shard, other)
                .await
            {
                trusted.insert(other);
            }
        }
        let mut now = look.situations(caretaker, self).pop();
        if let Some(host) = now
            .as_ref()
            .and_then(|one| one.stand_in(own, shard, &trusted))
        {
            return Ok(host);
        }
        let spare = now.as_ref().and_then(Situation::proved_spare);
        let Some(before) = now.take() else {
            return Err((RepairError::NotHeld, spare));
        };
        let rebuilt = self
            .rebuild(around, caretaker, &mut look, &before, shard)
            .await;
        let host = rebuilt.map_err(|why| (why, spare))?;
        let now = look.situations(caretaker, self).pop();
        let trusted = BTreeSet::from([host]);
        let stand_in = now.and_then(|one| one.stand_in(own, shard, &trusted));
        stand_in.ok_or((RepairError::Needed, spare))
    }

    /// What is to be thought of the one checkpoint that was asked about, after all proofs that are worth
    /// it.
    async fn closer(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        look: &Look,
    ) -> Option<Situation> {
        self.check(around, caretaker, look, None).await.pop()
    }

    /// Hands the shards that are here over to other hosts until all are or the time is up.
    pub async fn drain(&self, limit: Duration) -> Drained {
        let until = Instant::now() + limit;
        let total = self.store.held_count();
        let mut handing = Handing::default();
        let mut caretaker = self.new_caretaker();
        let mut reasons = BTreeSet::from([RepairError::Late.to_string()]);
        loop {
            self.hand_over(&mut caretaker, &mut handing, until).await;
            // A round that the end of the time cut short may have found none.
            let found = std::mem::take(&mut handing.reasons);
            if !found.is_empty() {
                reasons = found;
            }
            // What was deleted meanwhile is nowhere, and not missed.
            let held = self.store.held_count().min(total);
            let left = held.saturating_sub(handing.done.len());
            let pause = DRAIN_PAUSE.min(until.saturating_duration_since(Instant::now()));
            if left == 0 || pause.is_zero() {
                return Drained {
                    handed_over: handing.done.len(),
                    left,
                    reasons: if left == 0 { BTreeSet::new() } else { reasons },
                };
            }
            // Hosts may come back, and others may join.
            tokio::time::sleep(pause).await;
        }
    }

    /// Tries once to hand each shard over that was not handed over before.
    async fn hand_over(&self, caretaker: &mut Caretaker, handing: &mut Handing, until: Instant) {
        let grid = self.members.grid();
        let around = match self.links.around(&grid, &self.identity, Vec::new()).await {
            Ok(around) => around,
            Err(cause) => {
                warn!(%cause, "nothing is handed over");
                handing.reasons.insert(cause.to_string());
                return;
            }
        };
        let mut after = None;
        loop {
            let holdings = self.store.holdings(after, PEER_HOLDS_ASKED_MAX);
            let Some(last) = holdings.last() else { return };
            after = Some(last.key);
            let look = self.look(&around, holdings, None).await;
            let mut situations = look.situations(caretaker, self);
            // Most endangered first.
            situations.sort_by_key(|one| (one.spare(), one.key));
            for one in situations {
                let mine = one.held.iter();
                let mine = mine.filter(|(_, holders)| holders.contains(&self.own()));
                for (shard, _) in mine {
                    let place = (one.key, *shard);
                    if handing.done.contains(&place) {
                        continue;
                    }
                    let passing = self.pass_on(&around, caretaker, one.key, *shard);
                    let (checkpoint, number) = (one.key.checkpoint, shard.number());
                    match tokio::time::timeout_at(until, passing).await {
                        Ok(Ok(host)) => {
                            let host = around.name(&host);
                            info!(%checkpoint, shard = number, host, "shard handed over");
                            handing.done.insert(place);
                        }
                        Ok(Err((why, _))) => {
                            warn!(%checkpoint, shard = number, %why, "shard not handed over");
                            handing.note(why.to_string());
                        }
                        Err(_) => return,
                    }
                }
            }
        }
    }
}
