//! Gives shards back when this host holds more than its owner lends, and hands all shards over when the
//! host leaves the grid. This host removes its copy of a shard only after another host proved its own
//! copy. That host proves it with parts of the shard that this host chose; its word alone is not enough.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use codec::{OwnerId, ShardIndex};
use command_line::text::count;
use protocol::wire::limits::PEER_HOLDS_ASKED_MAX;
use tokio::time::Instant;
use tracing::{info, warn};

use super::ask::HolderAnswers;
use super::links::Around;
use super::{REPAIR_TIMEOUT, RepairError, Repairer};
use crate::core::Key;
use crate::core::release::{self, Burden, Use, Way};
use crate::core::repair::{Caretaker, Removed, Situation};

/// Pause between two rounds of a drain: shards that could not be handed over are tried again after it.
const DRAIN_PAUSE: Duration = Duration::from_secs(2);

/// A drain ends after this many rounds in a row in which only a further host could have helped. In one round alone, a
/// host may have been about to give up its shard.
const HOPELESS_ROUNDS: usize = 2;

/// At most this many different reasons are kept for the report.
const REASONS_MAX: usize = 8;

/// The result of a drain: what became of the shards of a host that leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// How many shards another host now holds, with a proof.
    pub handed_over: usize,
    /// How many shards only this host still holds.
    pub left: usize,
    /// Why those shards were not handed over. Each reason occurs once; there are at most `REASONS_MAX`.
    pub reasons: BTreeSet<String>,
    /// The shards that were handed over. This host does not prove its own copies any more.
    done: BTreeSet<(Key, ShardIndex)>,
}

/// What a search for a stand-in found.
struct Replacement {
    /// A host that can stand in.
    host: Option<OwnerId>,
    answers: HolderAnswers,
    /// The situation of the checkpoint after all proofs.
    now: Situation,
}

/// The progress of a drain over its rounds.
#[derive(Debug, Default)]
struct DrainProgress {
    done: BTreeSet<(Key, ShardIndex)>,
    /// Why other shards were not handed over in this round.
    reasons: BTreeSet<String>,
    /// Whether the next round may do better than this one with the hosts that there are.
    may_improve: bool,
    /// How many shards of a checkpoint no host can take, by checkpoint, in this round.
    stuck: BTreeMap<Key, usize>,
    /// How many rounds in a row only a further host could have helped.
    hopeless: usize,
}

impl DrainProgress {
    fn note(&mut self, why: String) {
        if self.reasons.len() < REASONS_MAX {
            self.reasons.insert(why);
        }
    }

    fn begin_round(&mut self) {
        self.may_improve = false;
        self.stuck.clear();
    }

    /// Why the drain can't succeed, if it can't.
    fn end_round(&mut self) -> Option<String> {
        let lacking = self.stuck.values().max().filter(|_| !self.may_improve);
        self.hopeless = lacking.map_or(0, |_| self.hopeless + 1);
        let lacking = lacking.filter(|_| self.hopeless >= HOPELESS_ROUNDS)?;
        Some(format!(
            "the grid lacks {} without a shard of these checkpoints",
            count(*lacking, "host")
        ))
    }
}

impl Repairer {
    /// Hands shards over and removes them here, if this host holds more bytes than its owner lends. Only if no other
    /// host has room, shards that can be missed are removed without a new holder.
    pub(super) async fn give_back(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        mut burdens: Vec<Burden>,
    ) {
        for way in [Way::HandOver, Way::Drop] {
            let over = self.host.store.excess_bytes();
            if over == 0 {
                return;
            }
            info!(over, "the shards need more space than is lent");
            burdens.retain(|one| self.host.store.shard_bytes(one.key, one.shard) > 0);
            for burden in release::choose(over, way, burdens.clone()) {
                if self.host.store.excess_bytes() == 0 {
                    return;
                }
                let checkpoint = burden.key.checkpoint;
                let number = burden.shard.number();
                match self.release(around, caretaker, burden, way).await {
                    Ok(()) => info!(%checkpoint, shard = number, "shard given back"),
                    Err(why) => warn!(%checkpoint, shard = number, %why, "shard not given back"),
                }
            }
        }
    }

    /// Which shards of these checkpoints this host holds and could give back, with what
    /// [`release::choose`] has to know of each.
    pub(super) fn burdens(
        &self,
        situations: &[Situation],
        uses: &BTreeMap<Key, Use>,
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
                    bytes: self.host.store.shard_bytes(key, *shard),
                    used: uses.get(&key).copied().unwrap_or_default(),
                    is_elsewhere: !situation.others_with(own, *shard).is_empty(),
                    spare: situation.spare(),
                });
            }
        }
        burdens.retain(|burden| burden.bytes > 0);
        burdens
    }

    /// Removes a shard here after another host proved that it holds the shard. The shard is handed over
    /// first, if no other host holds it; if that fails, it is removed only if it may be dropped and its checkpoint can
    /// spare it.
    async fn release(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        burden: Burden,
        way: Way,
    ) -> Result<(), RepairError> {
        let Burden { key, shard, .. } = burden;
        let passing = self.pass_on(around, caretaker, key, shard, Removed::ThisShard);
        let passed = tokio::time::timeout(REPAIR_TIMEOUT, passing).await;
        let done = match passed.unwrap_or(Err((RepairError::Late, None))) {
            Ok(_) => self.remove(key, shard).await,
            // The owner of this machine needs the space, and no other host has room.
            Err((_, Some(1..))) if way == Way::Drop => self.remove(key, shard).await,
            Err((why, _)) => Err(why),
        };
        self.host.store.end_leaving(key, shard);
        done
    }

    async fn remove(&self, key: Key, shard: ShardIndex) -> Result<(), RepairError> {
        let store = Arc::clone(&self.host.store);
        let now = self.host.clock.now();
        let releasing = tokio::task::spawn_blocking(move || store.release(now, key, shard));
        Ok(releasing.await??)
    }

    /// Gives back shards that are of no use here ([`Situation::spare_copies`]), once another host has
    /// proved its copy. A host that leaves may wait for that: it can't know otherwise whether this host
    /// counts for the shard that it handed over.
    pub(super) async fn give_back_spare(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        spare: BTreeSet<(Key, ShardIndex)>,
    ) {
        for (key, shard) in spare {
            let replacing = self.find_stand_in(around, caretaker, key, shard, Removed::SpareCopy);
            let found = tokio::time::timeout(REPAIR_TIMEOUT, replacing).await;
            let found = found.ok().flatten();
            // The other shard may have been given back just now; then this one counts.
            let found = found.filter(|one| one.now.spare_copies(self.own()).contains(&shard));
            if let Some(host) = found.and_then(|one| one.host) {
                let checkpoint = key.checkpoint;
                let number = shard.number();
                let host = around.name(&host);
                match self.remove(key, shard).await {
                    Ok(()) => info!(%checkpoint, shard = number, host, "spare shard given back"),
                    Err(why) => warn!(%checkpoint, shard = number, %why, "shard not given back"),
                }
            }
            self.host.store.end_leaving(key, shard);
        }
    }

    /// Looks for a host that holds this shard, too, and can stand in. `None` if this host does not hold
    /// the checkpoint any more.
    ///
    /// This host first refuses to prove its own copy (`begin_leaving`, which the caller has to end), and
    /// only after that asks another host for a proof. So if two hosts hold the same shard and both want to
    /// remove it, at most one of them does: the host that asks second is refused by the first.
    async fn find_stand_in(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        key: Key,
        shard: ShardIndex,
        removed: Removed,
    ) -> Option<Replacement> {
        let own = self.own();
        self.host.store.begin_leaving(key, shard);
        let holdings = self.host.store.holdings_of(&BTreeSet::from([key]));
        let answers = self.ask_holders(around, holdings, None).await;
        let situation = self.check_closely(around, caretaker, &answers).await?;
        let mut trusted = BTreeSet::new();
        for other in situation.others_with(own, shard) {
            if self
                .is_surely_held(around, caretaker, key, shard, other)
                .await
            {
                trusted.insert(other);
            }
        }
        let now = answers.situations(caretaker, self).pop()?;
        Some(Replacement {
            host: now.stand_in(own, shard, removed, &trusted),
            answers,
            now,
        })
    }

    /// Makes another host the holder of a shard that this host holds. If a host that holds the shard
    /// already can stand in, nothing is copied; otherwise the shard is rebuilt on another host. Returns
    /// the new holder. The error carries the reason, and how many of the checkpoint's proved shards may
    /// still be lost.
    async fn pass_on(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        key: Key,
        shard: ShardIndex,
        removed: Removed,
    ) -> Result<OwnerId, (RepairError, Option<usize>)> {
        let replacement = self
            .find_stand_in(around, caretaker, key, shard, removed)
            .await;
        let Some(Replacement {
            host,
            mut answers,
            now,
        }) = replacement
        else {
            return Err((RepairError::NotHeld, None));
        };
        if let Some(host) = host {
            return Ok(host);
        }
        let spare = now.proved_spare();
        let rebuilt = self
            .rebuild(around, caretaker, &mut answers, &now, shard)
            .await;
        let host = rebuilt.map_err(|why| (why, spare))?;
        let now = answers.situations(caretaker, self).pop();
        let trusted = BTreeSet::from([host]);
        let stand_in = now.and_then(|one| one.stand_in(self.own(), shard, removed, &trusted));
        stand_in.ok_or((RepairError::Needed, spare))
    }

    /// Asks for all proofs that are still needed of the one checkpoint in `answers`, without a budget, and
    /// returns the situation of the checkpoint after that. `None` if the checkpoint is not held here any
    /// more.
    async fn check_closely(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        answers: &HolderAnswers,
    ) -> Option<Situation> {
        self.check(around, caretaker, answers, None).await.pop()
    }

    /// Hands all shards of this host over to other hosts, in rounds, until none is left, `limit` has passed, or all
    /// hosts answer and none of them can take any.
    pub async fn drain(&self, limit: Duration) -> Drained {
        let until = Instant::now() + limit;
        let total = self.host.store.held_count();
        let mut progress = DrainProgress::default();
        let mut caretaker = self.new_caretaker();
        let mut reasons = BTreeSet::from([RepairError::Late.to_string()]);
        loop {
            progress.begin_round();
            self.hand_over(&mut caretaker, &mut progress, until).await;
            let hopeless = progress.end_round();
            // The time limit can end a round before the round has found a reason. The reasons of the
            // round before stay then.
            let found = std::mem::take(&mut progress.reasons);
            if !found.is_empty() {
                reasons = found;
            }
            // A shard whose checkpoint was deleted during the drain needs no new holder.
            let held = self.host.store.held_count().min(total);
            let left = held.saturating_sub(progress.done.len());
            let pause = DRAIN_PAUSE.min(until.saturating_duration_since(Instant::now()));
            if left == 0 || pause.is_zero() || hopeless.is_some() {
                reasons.extend(hopeless);
                return Drained {
                    handed_over: progress.done.len(),
                    left,
                    reasons: if left == 0 { BTreeSet::new() } else { reasons },
                    done: progress.done,
                };
            }
            // Hosts may have returned or joined when the next round begins.
            tokio::time::sleep(pause).await;
        }
    }

    /// After a drain that failed, proves the copies on this host again.
    pub fn stay(&self, drained: &Drained) {
        for (key, shard) in &drained.done {
            self.host.store.end_leaving(*key, *shard);
        }
    }

    /// Tries once to hand over each shard that was not handed over in an earlier round.
    async fn hand_over(
        &self,
        caretaker: &mut Caretaker,
        progress: &mut DrainProgress,
        until: Instant,
    ) {
        let grid = self.members.grid();
        let around = match self.links.around(&grid, &self.identity, Vec::new()).await {
            Ok(around) => around,
            Err(cause) => {
                warn!(%cause, "can't hand shards over");
                progress.reasons.insert(cause.to_string());
                progress.may_improve = true;
                return;
            }
        };
        let mut after = None;
        loop {
            let holdings = self.host.store.holdings(after, PEER_HOLDS_ASKED_MAX);
            let Some(last) = holdings.last() else { return };
            after = Some(last.key);
            let answers = self.ask_holders(&around, holdings, None).await;
            let mut others = around.others();
            progress.may_improve |= others.any(|(id, _)| !answers.answering.contains(&id));
            let mut situations = answers.situations(caretaker, self);
            // Checkpoints that can lose the fewest shards come first.
            situations.sort_by_key(|one| (one.spare(), one.key));
            for one in situations {
                let mine = one.held.iter();
                let mine = mine.filter(|(_, holders)| holders.contains(&self.own()));
                for (shard, _) in mine {
                    let place = (one.key, *shard);
                    if progress.done.contains(&place) {
                        continue;
                    }
                    let passing =
                        self.pass_on(&around, caretaker, one.key, *shard, Removed::AllShards);
                    let checkpoint = one.key.checkpoint;
                    let number = shard.number();
                    match tokio::time::timeout_at(until, passing).await {
                        Ok(Ok(host)) => {
                            let host = around.name(&host);
                            info!(%checkpoint, shard = number, host, "shard handed over");
                            progress.done.insert(place);
                            progress.may_improve = true;
                            continue;
                        }
                        Ok(Err((why, _))) => {
                            warn!(%checkpoint, shard = number, %why, "shard not handed over");
                            progress.may_improve |= !matches!(why, RepairError::AllHoldSome);
                            *progress.stuck.entry(one.key).or_default() += 1;
                            progress.note(why.to_string());
                        }
                        Err(_) => {
                            self.host.store.end_leaving(one.key, *shard);
                            return;
                        }
                    }
                    self.host.store.end_leaving(one.key, *shard);
                }
            }
        }
    }
}
