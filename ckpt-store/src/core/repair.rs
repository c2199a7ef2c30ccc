//! Decides which missing shards are rebuilt, by which host, and when.
//!
//! A holder that is away will usually come back with its shards, and repairing at once would move bytes
//! for nothing (Chun et al., "Efficient replica maintenance for distributed storage systems", 2006). So a
//! missing shard is rebuilt only after its holder has been away for longer than the holder's absences
//! usually last. The wait is shorter if the checkpoint could not survive another loss.
//!
//! All holders of a checkpoint watch the same shard. They rank themselves by a hash (`weight`). The
//! holder of rank 0 rebuilds when the wait is over, and the one of rank *n* after *n* more quarters of
//! it, if the shard is still missing then. With a wait of 60 minutes: rank 0 after 60 minutes, rank 1
//! after 75, rank 2 after 90.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use codec::{OwnerId, Redundancy, ShardIndex};
use placement::absence::hurry;

use super::by_key::ByKey;
use super::proofs::{ClaimState, Proofs, assign, spare};
use super::{Key, Millis};

/// Where more claims than this are open of hosts that hold another shard, nothing is removed until some are proved: each
/// of them may be true or not.
const FURTHER_CLAIMS_MAX: usize = 6;

/// Which hosts hold, or claim, each shard of a checkpoint.
pub type Holders = BTreeMap<ShardIndex, BTreeSet<OwnerId>>;

/// What this host knows of the shards of one checkpoint, of which it holds at least one itself.
#[derive(Clone, Debug)]
pub struct Situation {
    /// The checkpoint that this is about.
    pub key: Key,
    /// How the checkpoint is coded.
    pub redundancy: Redundancy,
    /// The shards of this host, and shards that answering hosts claim and proved recently.
    pub held: Holders,
    /// Shards that answering hosts claim without a recent proof or failure.
    pub claimed: Holders,
    /// Shards that answering hosts claim and failed to prove recently.
    pub failed: Holders,
}

impl Situation {
    /// Shards that have no holder of their own. A host counts as the holder of one shard only.
    fn missing(&self) -> impl Iterator<Item = ShardIndex> {
        let assigned = assign(&self.held);
        self.redundancy
            .shards()
            .filter(move |shard| !assigned.contains_key(shard))
    }

    /// Which of the `answering` hosts may take another shard of the checkpoint: those that hold and claim
    /// none. If there are none of these, those whose shards other hosts hold as well, unless one of these
    /// other than `own` has `shard` already. Hosts that failed a proof are never among them.
    pub fn targets(
        &self,
        own: OwnerId,
        answering: &BTreeSet<OwnerId>,
        shard: ShardIndex,
    ) -> Vec<OwnerId> {
        let is_free = |host: &&OwnerId| !self.shown().any(|(_, hosts)| hosts.contains(*host));
        let none: Vec<OwnerId> = self.unfailed(answering).filter(is_free).copied().collect();
        if !none.is_empty() {
            return none;
        }
        if self.awaits_spare(own, answering, shard) {
            return Vec::new();
        }
        let mut doubles = self.doubles(answering);
        doubles.retain(|host| !self.is_shown(shard, host));
        doubles
    }

    /// Whether a host other than `own` has `shard` and another one that a further host has, too. It gives
    /// the latter back in its next round, and counts for `shard` then.
    pub fn awaits_spare(
        &self,
        own: OwnerId,
        answering: &BTreeSet<OwnerId>,
        shard: ShardIndex,
    ) -> bool {
        let mut doubles = self.doubles(answering).into_iter();
        doubles.any(|host| host != own && self.is_shown(shard, &host))
    }

    /// The answering hosts without which as many shards have a holder. That must also hold if all claims
    /// are true, because a host's claim may be the only one of its shard.
    fn doubles(&self, answering: &BTreeSet<OwnerId>) -> Vec<OwnerId> {
        let likely = self.likely();
        let is_double = |host: &&OwnerId| {
            let is_spare = |all: &Holders| assign(&without(all, host)).len() == assign(all).len();
            is_spare(&self.held) && is_spare(&likely)
        };
        self.unfailed(answering)
            .filter(is_double)
            .copied()
            .collect()
    }

    /// The holders of each shard, and who claims it.
    fn shown(&self) -> impl Iterator<Item = (&ShardIndex, &BTreeSet<OwnerId>)> {
        self.held.iter().chain(&self.claimed)
    }

    fn is_shown(&self, shard: ShardIndex, host: &OwnerId) -> bool {
        let mut shown = self.shown();
        shown.any(|(held, hosts)| *held == shard && hosts.contains(host))
    }

    fn unfailed<'a>(
        &self,
        answering: &'a BTreeSet<OwnerId>,
    ) -> impl Iterator<Item = &'a OwnerId> + use<'a, '_> {
        let failed = |host: &OwnerId| self.failed.values().any(|hosts| hosts.contains(host));
        answering.iter().filter(move |host| !failed(host))
    }

    /// Whether each of these hosts holds or claims a shard of the checkpoint.
    pub fn all_hold_some(&self, hosts: &BTreeSet<OwnerId>) -> bool {
        let mut hosts = hosts.iter();
        hosts.all(|host| self.shown().any(|(_, holders)| holders.contains(host)))
    }

    /// How many hosts the checkpoint can still lose if all claims are true. `None` if it can't be
    /// rebuilt even then.
    pub fn spare(&self) -> Option<usize> {
        spare(&self.likely(), self.redundancy.data())
    }

    /// Which hosts hold which shard if all claims are true.
    fn likely(&self) -> Holders {
        let mut likely = self.held.clone();
        for (shard, holders) in &self.claimed {
            likely.entry(*shard).or_default().extend(holders);
        }
        likely
    }

    /// How many hosts the checkpoint can still lose if only proved shards count. `None` if these are too
    /// few to rebuild it.
    pub fn proved_spare(&self) -> Option<usize> {
        spare(&self.held, self.redundancy.data())
    }

    /// Whether a host claims `shard` without a recent proof or failure.
    pub fn is_claimed(&self, shard: ShardIndex) -> bool {
        self.claimed
            .get(&shard)
            .is_some_and(|hosts| !hosts.is_empty())
    }

    /// A host whose copy of `shard` can replace that of `own`, so that `own` may remove what `removed`
    /// names. The host is one of `trusted` and counts for no other shard: afterwards as many shards have a
    /// holder of their own as before. That must be true of the proved shards, also if all claims are true, and also if
    /// any of those are that hosts with another shard claim; each time whichever one host passes questions for proofs on.
    pub fn stand_in(
        &self,
        own: OwnerId,
        shard: ShardIndex,
        removed: Removed,
        trusted: &BTreeSet<OwnerId>,
    ) -> Option<OwnerId> {
        let replacement = |all: &Holders| {
            let mut others = match removed {
                Removed::AllShards => without(all, &own),
                Removed::ThisShard | Removed::SpareCopy => all.clone(),
            };
            let is_for_this = |host: &OwnerId| {
                let mut shown = self.shown();
                removed != Removed::SpareCopy
                    || !shown.any(|(other, hosts)| *other != shard && hosts.contains(host))
            };
            let copies = others.get_mut(&shard)?;
            copies.retain(|host| trusted.contains(host) && *host != own && is_for_this(host));
            let is_enough = loses_none(own, all, &others);
            assign(&others).get(&shard).copied().filter(|_| is_enough)
        };
        for all in self.possible()? {
            replacement(&all)?;
            if removed == Removed::ThisShard {
                // A host that is away may have the others, so that `own` is needed for this one.
                let mut alone = all;
                alone.retain(|one, hosts| *one == shard || !hosts.contains(&own));
                replacement(&alone)?;
            }
        }
        replacement(&self.held)
    }

    /// What the grid may be like: all claims are true, or some of [`Self::further_claims`], or none. `None` if these are
    /// too many.
    fn possible(&self) -> Option<Vec<Holders>> {
        let further = self.further_claims();
        if further.len() > FURTHER_CLAIMS_MAX {
            return None;
        }
        let some = (0..1_usize << further.len()).map(|chosen| {
            let mut held = self.held.clone();
            let claims = further.iter().enumerate();
            for (_, (shard, host)) in claims.filter(|(at, _)| chosen >> at & 1 == 1) {
                held.entry(*shard).or_default().insert(*host);
            }
            held
        });
        Some(some.chain([self.likely()]).collect())
    }

    /// The claims of hosts that hold another shard: if they are true, these hosts may be needed for others than it seems.
    /// (A host that only claims shards can replace others, and never needs to be replaced for it.)
    fn further_claims(&self) -> Vec<(ShardIndex, OwnerId)> {
        let holds = |host: &OwnerId| self.held.values().any(|hosts| hosts.contains(host));
        let claims = self.claimed.iter();
        let claims = claims.flat_map(|(shard, hosts)| hosts.iter().map(|host| (*shard, *host)));
        claims.filter(|(_, host)| holds(host)).collect()
    }

    /// The shards of `own` that it holds besides another shard of the checkpoint, although a further host
    /// holds or claims them. `own` counts for one shard only, so these are of no use. None, unless each
    /// shard has a holder of its own: a host that is away may come back, and `own` count for another shard
    /// then.
    pub fn spare_copies(&self, own: OwnerId) -> Vec<ShardIndex> {
        let holders = self.held.iter();
        let mine = holders.filter(|(_, holders)| holders.contains(&own));
        let mine: Vec<ShardIndex> = mine.map(|(shard, _)| *shard).collect();
        if mine.len() < 2 || assured(own, &self.likely()) < self.redundancy.total() {
            return Vec::new();
        }
        let copies = mine.into_iter();
        let copies = copies.filter(|shard| !self.others_with(own, *shard).is_empty());
        copies.collect()
    }

    /// Hosts other than `own` that hold or claim `shard`.
    pub fn others_with(&self, own: OwnerId, shard: ShardIndex) -> BTreeSet<OwnerId> {
        let of = [&self.held, &self.claimed].map(|holders| holders.get(&shard));
        let holders = of.into_iter().flatten().flatten();
        holders.filter(|host| **host != own).copied().collect()
    }

    /// The rank of `own` among the holders of the checkpoint for rebuilding `shard`: 0 rebuilds first.
    fn rank(&self, own: OwnerId, shard: ShardIndex) -> u32 {
        let mine = weight(self.key, shard, &own);
        let holders: BTreeSet<&OwnerId> = self.held.values().flatten().collect();
        let before = holders
            .into_iter()
            .filter(|host| weight(self.key, shard, host) > mine);
        u32::try_from(before.count()).unwrap_or(u32::MAX)
    }
}

/// What a host wants to remove when it looks for a stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// All shards that it has: the host leaves.
    AllShards,
    /// The one shard.
    ThisShard,
    /// The one shard, of which it has no need: only a host that can be needed for no other shard may
    /// stand in.
    SpareCopy,
}

/// How many shards have a holder of their own, if any one host but `own` may be lying about the shards that
/// other hosts have, too. A host without a shard can prove it by passing the question on to the host that has
/// it. So a shard that two hosts prove counts for one of them, whichever of the two leaves fewer shards
/// with a holder.
fn assured(own: OwnerId, holders: &Holders) -> usize {
    let doubled = holders.values().filter(|hosts| hosts.len() > 1);
    let doubtful: BTreeSet<&OwnerId> = doubled.flatten().filter(|host| **host != own).collect();
    let counts = doubtful.into_iter().map(|host| {
        let mut rest = holders.clone();
        for hosts in rest.values_mut().filter(|hosts| hosts.len() > 1) {
            hosts.remove(host);
        }
        assign(&rest).len()
    });
    counts.chain([assign(holders).len()]).min().unwrap_or(0)
}

/// Whether as many shards have a holder of their own in `after` as in `before`, from which `own` removes something.
/// That must be so if no host lies, and for each host if that one does. A liar proves what a third host has: `own`
/// proves nothing that it is about to remove.
fn loses_none(own: OwnerId, before: &Holders, after: &Holders) -> bool {
    let is_doubled = |hosts: &BTreeSet<OwnerId>| {
        let others = hosts.iter().filter(|host| **host != own);
        others.count() > 1
    };
    let in_doubt: BTreeMap<&ShardIndex, &BTreeSet<OwnerId>> = before
        .iter()
        .filter(|(_, hosts)| is_doubled(hosts))
        .collect();
    let count = |holders: &Holders, liar: &OwnerId| {
        let mut rest = holders.clone();
        for (shard, hosts) in &mut rest {
            if in_doubt.contains_key(shard) {
                hosts.remove(liar);
            }
        }
        assign(&rest).len()
    };
    let doubtful: BTreeSet<&OwnerId> = in_doubt.values().copied().flatten().collect();
    let mut liars = doubtful.into_iter().filter(|host| **host != own);
    assign(after).len() >= assign(before).len()
        && liars.all(|liar| count(after, liar) >= count(before, liar))
}

fn without(holders: &Holders, host: &OwnerId) -> Holders {
    let mut others = holders.clone();
    for holders in others.values_mut() {
        holders.remove(host);
    }
    others
}

/// Weight of a holder for rebuilding a shard (rendezvous hashing, Thaler and Ravishankar 1998). The
/// holder with the largest weight has rank 0, and all holders compute the same weights.
fn weight(key: Key, shard: ShardIndex, host: &OwnerId) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("ckpt v1 repairer");
    hasher.update(&key.checkpoint.0);
    hasher.update(&[shard.number()]);
    hasher.update(&host.0);
    *hasher.finalize().as_bytes()
}

/// A missing shard that this host should rebuild now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The checkpoint that lacks a shard.
    pub key: Key,
    /// Index of the shard that is to be rebuilt.
    pub shard: ShardIndex,
    /// How many shards the checkpoint can still lose, if all claims are true.
    pub spare: usize,
    /// Whether a host claims the shard without a recent proof.
    pub is_claimed: bool,
}

impl Repair {
    /// Sorting key of repairs: shards that no host claims come first, then checkpoints that can lose the
    /// fewest shards.
    pub const fn order(&self) -> (bool, usize, Key, ShardIndex) {
        (self.is_claimed, self.spare, self.key, self.shard)
    }
}

/// Remembers since when each shard has been missing.
#[derive(Debug, Default)]
pub struct MissingShards {
    /// Shortest wait. Also the shortest time between the turns of two holders; normally that is a quarter
    /// of the wait.
    least: Duration,
    missing: ByKey<Vec<Missing>>,
}

#[derive(Clone, Copy, Debug)]
struct Missing {
    shard: ShardIndex,
    since: Millis,
    /// No repair is tried before this time.
    retry: Millis,
    patience: Duration,
}

impl MissingShards {
    /// Updates what is missing of `situations`, and returns the shards that this host, `own`, has to
    /// rebuild now, in the order of [`Repair::order`]. `patience` returns the wait for a shard. The head
    /// of this module explains when it is the turn of which holder.
    pub fn due(
        &mut self,
        now: Millis,
        own: OwnerId,
        situations: &[Situation],
        mut patience: impl FnMut(&Situation, ShardIndex) -> Duration,
    ) -> Vec<Repair> {
        let mut repairs = Vec::new();
        for situation in situations {
            let key = situation.key;
            let missing: BTreeSet<ShardIndex> = situation.missing().collect();
            if missing.is_empty() {
                self.missing.remove(&key);
                continue;
            }
            let spare = situation.spare();
            let known = self.missing.or_default(key);
            // A shard that has a holder again is forgotten, so that its next absence is timed anew.
            known.retain(|one| missing.contains(&one.shard));
            for shard in missing {
                let patience = patience(situation, shard);
                if !known.iter().any(|one| one.shard == shard) {
                    // While no other host answers, every checkpoint has such an entry, so memory is
                    // allocated exactly.
                    known.reserve_exact(1);
                    known.push(Missing {
                        shard,
                        since: now,
                        retry: now,
                        patience,
                    });
                }
                let Some(entry) = known.iter_mut().find(|one| one.shard == shard) else {
                    continue;
                };
                entry.patience = entry.patience.min(patience);
                let Some(spare) = spare else {
                    continue;
                };
                let rank = situation.rank(own, shard);
                if entry.is_due(now, spare, rank, self.least) {
                    repairs.push(Repair {
                        key,
                        shard,
                        spare,
                        is_claimed: situation.is_claimed(shard),
                    });
                }
            }
        }
        repairs.sort_by_key(Repair::order);
        repairs
    }

    /// Puts off a repair that failed by a quarter of the wait, so that other holders get their turn.
    pub fn put_off(&mut self, now: Millis, repair: &Repair) {
        let mut missing = self.missing.get_mut(&repair.key).into_iter().flatten();
        if let Some(entry) = missing.find(|one| one.shard == repair.shard) {
            entry.retry = now.after((entry.patience / 4).max(self.least));
        }
    }

    /// Forgets all checkpoints for which `is_held` is false.
    pub fn retain(&mut self, is_held: impl Fn(&Key) -> bool) {
        self.missing.retain(is_held);
    }
}

impl Missing {
    fn is_due(&self, now: Millis, spare: usize, rank: u32, least: Duration) -> bool {
        let hurry = hurry(spare);
        let wait = self.patience / hurry;
        let turn = (wait / 4).max(least / hurry);
        let due = self.since.after(wait + turn.saturating_mul(rank));
        now >= due.max(self.retry)
    }
}

/// What a host remembers about its checkpoints from one round of repair to the next.
#[derive(Debug)]
pub struct Caretaker {
    watch: MissingShards,
    proofs: Proofs,
    looks: u64,
}

/// In one of this many rounds, all hosts are asked. This helps a host that was given a rebuilt shard of a
/// checkpoint just after its deletion: such a host knows none of the hosts that held the checkpoint.
const ASK_ALL_EVERY: u64 = 12;

/// Most proofs of one checkpoint that are asked for in one round.
const PROVERS_MAX: usize = 16;

/// A proof that is worth asking for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The checkpoint whose shard is to be proved.
    pub key: Key,
    /// The shard of which a part is to be proved.
    pub shard: ShardIndex,
    /// The host that claims the shard.
    pub host: OwnerId,
    /// Whether the host has a proof that is still valid.
    pub is_renewal: bool,
}

impl Caretaker {
    /// A caretaker without any knowledge. Proofs are valid for `valid`; `least` is the shortest wait.
    pub const fn new(valid: Duration, least: Duration) -> Self {
        Self {
            watch: MissingShards {
                least,
                missing: ByKey::new(),
            },
            proofs: Proofs::new(valid),
            looks: 0,
        }
    }

    /// The hosts to ask which shards they hold. These are the hosts that hold something of this host's
    /// checkpoints according to registries (`holders`), and those that ever proved, or failed to prove, a
    /// shard. In a large pool that is a small part of all hosts. The result is `None`, which means all
    /// hosts, if no registry answers, in the first round, and in every `ASK_ALL_EVERY`th round. Asking
    /// all is needed because a host that deleted a checkpoint does not hold it any more, but has the
    /// notice of the deletion.
    pub fn hosts_to_ask(
        &mut self,
        own: OwnerId,
        holders: Option<BTreeSet<OwnerId>>,
    ) -> Option<BTreeSet<OwnerId>> {
        let asks_all = (self.looks + 1).is_multiple_of(ASK_ALL_EVERY) || self.proofs.is_empty();
        self.looks += 1;
        let mut worth = holders.filter(|_| !asks_all)?;
        worth.extend(self.proofs.hosts());
        worth.insert(own);
        Some(worth)
    }

    /// The situation of one checkpoint. This host, `own`, holds its shards `mine`, and the other hosts
    /// that answer claim `claims`.
    pub fn situation(
        &mut self,
        now: Millis,
        own: OwnerId,
        (key, redundancy): (Key, Redundancy),
        mine: &[ShardIndex],
        claims: &[(ShardIndex, OwnerId)],
    ) -> Situation {
        let mut situation = Situation {
            key,
            redundancy,
            held: BTreeMap::new(),
            claimed: BTreeMap::new(),
            failed: BTreeMap::new(),
        };
        for shard in mine {
            self.proofs.enter(now, key, *shard, own, true);
            situation.held.entry(*shard).or_default().insert(own);
        }
        for (shard, host) in claims.iter().filter(|(_, host)| *host != own) {
            let holders = match self.proofs.claim_state(now, key, *shard, host) {
                ClaimState::Proved { .. } => &mut situation.held,
                ClaimState::Open => &mut situation.claimed,
                ClaimState::Failed => &mut situation.failed,
            };
            holders.entry(*shard).or_default().insert(*host);
        }
        situation
    }

    /// Proofs of one checkpoint that are worth asking for: of shards without a proved holder, and of
    /// shards whose proof is in the second half of its validity. With `again`, hosts that failed a proof
    /// recently are asked, too, because the shard may have been rebuilt there since. That is done before
    /// this host rebuilds a shard.
    pub fn wanted(
        &self,
        now: Millis,
        own: OwnerId,
        situation: &Situation,
        again: bool,
    ) -> Vec<Wanted> {
        let key = situation.key;
        let assigned = assign(&situation.held);
        let failed = situation.failed.iter().filter(|_| again);
        let missing = situation.claimed.iter().chain(failed);
        let missing = missing.filter(|(shard, _)| !assigned.contains_key(shard));
        let open =
            missing.flat_map(|(shard, hosts)| hosts.iter().map(|host| (*shard, *host, false)));
        let aging = assigned.iter().filter(|(shard, host)| {
            let claim_state = self.proofs.claim_state(now, key, **shard, host);
            **host != own && claim_state == ClaimState::Proved { is_aging: true }
        });
        let aging = aging.map(|(shard, host)| (*shard, *host, true));
        let wanted = open.chain(aging).map(|(shard, host, is_renewal)| Wanted {
            key,
            shard,
            host,
            is_renewal,
        });
        wanted.take(PROVERS_MAX).collect()
    }

    /// Enters that a host proved a shard, or failed to prove it.
    pub fn proved(
        &mut self,
        now: Millis,
        key: Key,
        shard: ShardIndex,
        host: OwnerId,
        is_proved: bool,
    ) {
        self.proofs.enter(now, key, shard, host, is_proved);
    }

    /// The shards of these checkpoints that this host, `own`, has to rebuild now. `answering` are the
    /// hosts that answered which shards they hold; `patience` returns the wait for the shard of a holder.
    pub fn repairs(
        &mut self,
        now: Millis,
        own: OwnerId,
        situations: &[Situation],
        answering: &BTreeSet<OwnerId>,
        patience: impl Fn(Option<&OwnerId>) -> Duration,
    ) -> Vec<Repair> {
        let proofs = &self.proofs;
        self.watch.due(now, own, situations, |situation, shard| {
            let holder = proofs.last_holder(situation.key, shard);
            // A host that answers and does not claim its shard any more has lost it for good, so there is
            // no wait. A host that still claims it may prove it again, so there is one.
            let is_there = holder.is_some_and(|holder| answering.contains(&holder));
            if is_there && !situation.is_claimed(shard) {
                return Duration::ZERO;
            }
            patience(holder.as_ref())
        })
    }

    /// Up to `most` checkpoints that miss a shard. If there are more, each round gets the next ones.
    pub fn troubled(&self, most: usize) -> Vec<Key> {
        let count = self.watch.missing.len();
        let step = usize::try_from(self.looks).unwrap_or(0).wrapping_mul(most);
        let first = if count > most { step % count } else { 0 };
        let keys = || self.watch.missing.iter().map(|(key, _)| key);
        keys()
            .skip(first)
            .chain(keys().take(first))
            .take(most)
            .collect()
    }

    /// Puts off a repair that failed.
    pub fn put_off(&mut self, now: Millis, repair: &Repair) {
        self.watch.put_off(now, repair);
    }

    /// Forgets all checkpoints for which `is_held` is false.
    pub fn retain(&mut self, is_held: impl Fn(&Key) -> bool) {
        self.watch.retain(&is_held);
        self.proofs.retain(is_held);
    }
}

#[cfg(test)]
mod tests {
    use codec::CheckpointId;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const HOUR: u64 = 3_600_000;

    fn id(number: u8) -> OwnerId {
        OwnerId([number; 32])
    }

    fn situation(checkpoint: u8, holders: &[(u8, u8)]) -> Situation {
        let redundancy = Redundancy::new(3, 2).unwrap();
        let mut held: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (shard, holder) in holders {
            let shard = redundancy.shard(*shard).unwrap();
            held.entry(shard).or_default().insert(id(*holder));
        }
        Situation {
            key: key(checkpoint),
            redundancy,
            held,
            claimed: BTreeMap::new(),
            failed: BTreeMap::new(),
        }
    }

    fn key(checkpoint: u8) -> Key {
        Key {
            owner: id(100),
            checkpoint: CheckpointId([checkpoint; 16]),
        }
    }

    fn shard(number: u8) -> ShardIndex {
        Redundancy::DEFAULT.shard(number).unwrap()
    }

    /// The repairs that all holders together would begin now, as checkpoint and shard.
    fn all(
        watches: &mut BTreeMap<u8, MissingShards>,
        now: u64,
        situations: &[Situation],
    ) -> Vec<(u8, u8)> {
        let mut repairs = Vec::new();
        for (holder, watch) in watches {
            let wait = |_: &_, _| Duration::from_secs(3600);
            let found = watch.due(Millis(now), id(*holder), situations, wait);
            repairs.extend(
                found
                    .iter()
                    .map(|one| (one.key.checkpoint.0[0], one.shard.number())),
            );
        }
        repairs
    }

    fn watches() -> BTreeMap<u8, MissingShards> {
        (1..=5)
            .map(|holder| (holder, MissingShards::default()))
            .collect()
    }

    #[test]
    fn a_host_is_not_relied_on_for_two_shards_though_it_proved_only_one_of_them() {
        // Hosts 1 and 2 have shard 0. Host 2 claims shard 3 as well, and no other host does.
        let mut of = situation(1, &[(0, 1), (0, 2), (4, 4)]);
        of.claimed.insert(shard(3), BTreeSet::from([id(2)]));
        let trusted = BTreeSet::from([id(2)]);
        assert_eq!(
            of.stand_in(id(1), shard(0), Removed::AllShards, &trusted),
            None
        );
        let answering = BTreeSet::from([id(1), id(2)]);
        assert!(!of.targets(id(1), &answering, shard(1)).contains(&id(2)));
        // Host 5 claims shard 3 as well, but may pass questions on to host 2.
        of.claimed.get_mut(&shard(3)).unwrap().insert(id(5));
        assert_eq!(
            of.stand_in(id(1), shard(0), Removed::AllShards, &trusted),
            None
        );
        // Host 2 has given shard 3 back.
        of.claimed.insert(shard(3), BTreeSet::from([id(5)]));
        let found = of.stand_in(id(1), shard(0), Removed::AllShards, &trusted);
        assert_eq!(found, Some(id(2)));
    }

    #[test]
    fn exactly_one_holder_rebuilds_and_only_after_a_while() {
        let mut watches = watches();
        let lost = [situation(1, &[(0, 1), (1, 2), (2, 3), (3, 4)])];
        assert_eq!(all(&mut watches, 0, &lost), []);
        assert_eq!(all(&mut watches, HOUR - 1, &lost), []);
        assert_eq!(all(&mut watches, HOUR, &lost), [(1, 4)]);
        // The shard comes back and is lost again: its wait begins anew.
        let whole = [situation(1, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)])];
        assert_eq!(all(&mut watches, HOUR + 1, &whole), []);
        assert_eq!(all(&mut watches, 2 * HOUR, &lost), []);
        assert_eq!(all(&mut watches, 3 * HOUR, &lost), [(1, 4)]);
    }

    #[test]
    fn shards_that_are_on_too_few_hosts_are_rebuilt_on_others() {
        // In the first, one host has three shards; in the second, one is left and has three.
        for held in [
            &[(0, 2), (2, 2), (4, 2), (3, 1)][..],
            &[(0, 1), (2, 1), (4, 1)],
        ] {
            let mut watches = watches();
            let few = [situation(1, held)];
            assert_eq!(all(&mut watches, 0, &few), []);
            let rebuilt: BTreeSet<_> = all(&mut watches, HOUR, &few).into_iter().collect();
            assert!(rebuilt.contains(&(1, 1)), "{rebuilt:?}");
        }
        let mut watches = watches();
        let lost = [situation(1, &[(0, 1), (2, 1)])];
        assert_eq!(all(&mut watches, 0, &lost), []);
        assert_eq!(all(&mut watches, HOUR, &lost), []);
    }

    #[test]
    fn the_most_endangered_comes_first_and_sooner() {
        let mut watch = MissingShards::default();
        // Checkpoints for whose missing shards host 1 has rank 0, so that its turn comes without delay.
        let one_left = |checkpoint| situation(checkpoint, &[(0, 1), (1, 2), (2, 3), (3, 4)]);
        let none_left = |checkpoint| situation(checkpoint, &[(0, 1), (1, 2), (2, 3)]);
        let comes_first = |situation: &Situation| {
            let mut missing = situation.missing();
            missing.all(|shard| situation.rank(id(1), shard) == 0)
        };
        let one_left = (0..).map(one_left).find(comes_first).unwrap();
        let none_left = (100..).map(none_left).find(comes_first).unwrap();
        let one = one_left.key;
        let none = none_left.key;
        let situations = [one_left, none_left];
        let wait = |_: &_, _| Duration::from_secs(3600);
        let mut look = |now| {
            let found = watch.due(Millis(now), id(1), &situations, wait);
            found.into_iter().map(|one| one.key).collect::<Vec<_>>()
        };
        assert!(look(0).is_empty());
        assert_eq!(look(HOUR / 8), [none, none]);
        assert_eq!(look(HOUR), [none, none, one]);
    }

    #[test]
    fn the_next_in_rank_follows_a_holder_that_does_not_repair() {
        let lost = [situation(1, &[(0, 1), (1, 2), (2, 3), (3, 4)])];
        let rank = |holder| lost[0].rank(id(holder), shard(4));
        let mut order: Vec<u8> = (1..=4).collect();
        order.sort_by_key(|holder| rank(*holder));
        let mut watches: BTreeMap<u8, MissingShards> = watches();
        watches.remove(&5);
        assert_eq!(all(&mut watches, 0, &lost), []);
        for (rank, holder) in (0..).zip(order) {
            // The holders whose turn comes earlier do nothing.
            let mut rest: BTreeMap<u8, MissingShards> = std::mem::take(&mut watches);
            let mut watch = BTreeMap::from([(holder, rest.remove(&holder).unwrap())]);
            let turn = HOUR + rank * HOUR / 4;
            assert_eq!(all(&mut watch, turn - 1, &lost), [], "{holder}");
            assert_eq!(all(&mut watch, turn, &lost), [(1, 4)], "{holder}");
            watches = rest;
        }
    }

    #[test]
    fn a_repair_that_failed_is_put_off() {
        let mut watch = MissingShards::default();
        let lost = [situation(
            1,
            &[(0, 1), (1, 1), (2, 1), (0, 2), (1, 3), (2, 4)],
        )];
        let wait = |_: &_, _| Duration::from_secs(3600);
        let mut now = 0;
        let repair = loop {
            if let Some(repair) = watch.due(Millis(now), id(1), &lost, wait).pop() {
                break repair;
            }
            now += HOUR / 8;
        };
        watch.put_off(Millis(now), &repair);
        let mut due = |now| {
            let found = watch.due(Millis(now), id(1), &lost, wait);
            found.contains(&repair)
        };
        assert!(!due(now) && !due(now + HOUR / 4 - 1));
        assert!(due(now + HOUR / 4));
    }

    const VALID: Duration = Duration::from_secs(14 * 86_400);

    fn caretaker() -> Caretaker {
        Caretaker::new(VALID, Duration::from_secs(900))
    }

    /// The situation as host 1, which holds shard 0, sees it when other hosts claim `claims`.
    fn situation_at(caretaker: &mut Caretaker, now: u64, claims: &[(u8, u8)]) -> Situation {
        let claims: Vec<_> = claims
            .iter()
            .map(|(number, host)| (shard(*number), id(*host)))
            .collect();
        let of = (key(1), Redundancy::DEFAULT);
        caretaker.situation(Millis(now), id(1), of, &[shard(0)], &claims)
    }

    #[test]
    fn a_claim_counts_once_it_is_proved_and_until_the_proof_is_old() {
        let mut caretaker = caretaker();
        let claims = [(1, 2), (2, 3), (3, 4), (4, 5)];
        let now = situation_at(&mut caretaker, 0, &claims);
        assert_eq!(now.missing().count(), 4);
        assert_eq!((now.spare(), now.proved_spare()), (Some(2), None));
        let wanted = caretaker.wanted(Millis(0), id(1), &now, false);
        assert_eq!(wanted.len(), 4);
        for one in wanted {
            assert!(!one.is_renewal);
            caretaker.proved(Millis(0), one.key, one.shard, one.host, one.host != id(5));
        }
        let now = situation_at(&mut caretaker, 1, &claims);
        assert_eq!(now.missing().collect::<Vec<_>>(), [shard(4)]);
        assert_eq!(
            now.failed,
            BTreeMap::from([(shard(4), BTreeSet::from([id(5)]))])
        );
        assert_eq!((now.spare(), now.proved_spare()), (Some(1), Some(1)));
        assert!(caretaker.wanted(Millis(1), id(1), &now, false).is_empty());
        assert_eq!(caretaker.wanted(Millis(1), id(1), &now, true).len(), 1);
        // In the second half of their validity proofs are renewed; after it they do not count any more.
        let half = VALID.as_millis() as u64 / 2;
        let aging = situation_at(&mut caretaker, half, &claims);
        let wanted = caretaker.wanted(Millis(half), id(1), &aging, false);
        let renewals = wanted.iter().filter(|one| one.is_renewal).count();
        assert_eq!((renewals, wanted.len()), (3, 4));
        let old = situation_at(&mut caretaker, 2 * half, &claims);
        assert_eq!(old.missing().count(), 4);
    }

    #[test]
    fn a_host_that_claims_everything_is_asked_and_counts_for_one_shard_at_most() {
        let mut caretaker = caretaker();
        let claims = [(0, 9), (1, 9), (2, 9), (3, 9), (4, 9), (1, 2), (2, 3)];
        let now = situation_at(&mut caretaker, 0, &claims);
        for one in caretaker.wanted(Millis(0), id(1), &now, false) {
            caretaker.proved(Millis(0), one.key, one.shard, one.host, true);
        }
        let now = situation_at(&mut caretaker, 1, &claims);
        assert_eq!(now.missing().count(), 1, "{now:?}");
        assert_eq!(now.proved_spare(), Some(1));
    }

    #[test]
    fn a_shard_that_a_host_only_claims_is_waited_for_and_then_rebuilt() {
        let mut caretaker = caretaker();
        let answering: BTreeSet<_> = (1..=5).map(id).collect();
        let proved = [(1, 2), (2, 3), (3, 4)];
        for (number, host) in proved {
            caretaker.proved(Millis(0), key(1), shard(number), id(host), true);
        }
        let claims = [(1, 2), (2, 3), (3, 4), (4, 5)];
        let mut due = |now| {
            let situation = situation_at(&mut caretaker, now, &claims);
            let patience = |_: Option<&OwnerId>| Duration::from_secs(3600);
            let due = caretaker.repairs(Millis(now), id(1), &[situation], &answering, patience);
            due.iter()
                .map(|one| (one.shard, one.is_claimed))
                .collect::<Vec<_>>()
        };
        assert_eq!(due(0), []);
        assert_eq!(due(HOUR - 1), []);
        // After two hours it is the turn of every rank.
        assert_eq!(due(2 * HOUR), [(shard(4), true)]);
    }

    #[test]
    fn each_of_two_with_the_same_shard_may_rely_on_the_other_once_it_proved_its_copy() {
        let both = situation(1, &[(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)]);
        let relies = |own: u8| {
            let others = both.others_with(id(own), shard(0));
            both.stand_in(id(own), shard(0), Removed::AllShards, &others)
        };
        assert_eq!([relies(1), relies(2)], [Some(id(2)), Some(id(1))]);
        assert_eq!(
            both.stand_in(id(1), shard(0), Removed::AllShards, &BTreeSet::new()),
            None
        );
        // A copy that does not exist can't stand in.
        let second = BTreeSet::from([id(2)]);
        assert_eq!(
            both.stand_in(id(3), shard(1), Removed::AllShards, &second),
            None
        );
    }

    #[test]
    fn no_shard_relies_on_a_host_that_counts_for_another_shard() {
        // Host 2 holds shards 0 and 1. Without host 1 it would be the only holder of both.
        let doubled = situation(1, &[(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (4, 5)]);
        let all = (1..=5).map(id).collect();
        assert_eq!(
            doubled.stand_in(id(1), shard(0), Removed::AllShards, &all),
            None
        );
    }

    #[test]
    fn a_doubt_about_one_shard_hides_no_loss_of_another() {
        // Host 6 leaves with shards 0 and 2. Host 1 would count for shards 0 and 1 then. That is a shard less if no host
        // lies, although nothing is lost if host 2 passed a question about shard 2 on.
        let leaving = [(0, 1), (0, 6), (1, 1), (2, 2), (2, 6), (3, 4)];
        let trusted = BTreeSet::from([id(1)]);
        let relies = |holders: &[(u8, u8)]| {
            situation(1, holders).stand_in(id(6), shard(0), Removed::AllShards, &trusted)
        };
        assert_eq!(relies(&leaving), None);
        // The same with a third host that has shard 2, which makes the doubt real.
        let third = [(0, 1), (0, 6), (1, 1), (2, 2), (2, 5), (2, 6), (3, 4)];
        assert_eq!(relies(&third), None);
        // With another holder of shard 1, host 1 is free for shard 0.
        let free = [
            (0, 1),
            (0, 6),
            (1, 1),
            (1, 3),
            (2, 2),
            (2, 5),
            (2, 6),
            (3, 4),
        ];
        assert_eq!(
            relies(&free),
            None,
            "host 3 may pass questions on to host 1"
        );
        let sure = [(0, 1), (0, 6), (1, 3), (2, 2), (2, 6), (3, 4)];
        assert_eq!(relies(&sure), Some(id(1)));
    }

    #[test]
    fn a_proof_that_may_have_been_passed_on_lets_no_host_remove_its_shard() {
        // Host 5 stores nothing, and passes questions on. Host 1 leaves, and gave its shard to host 2.
        let relayed = [(0, 1), (0, 2), (1, 2), (1, 5), (2, 3), (3, 4)];
        let trusted = BTreeSet::from([id(2)]);
        let may_leave = |holders: &[(u8, u8)]| {
            let of = situation(1, holders);
            of.stand_in(id(1), shard(0), Removed::AllShards, &trusted)
        };
        assert_eq!(may_leave(&relayed), None);
        // A doubt about other shards, which was there before, keeps nobody.
        let elsewhere = [(0, 1), (0, 2), (1, 3), (1, 5), (2, 3), (3, 4)];
        assert_eq!(may_leave(&elsewhere), Some(id(2)));
        // The shard is copied to no third host meanwhile.
        let answering = (1..=5).map(id).collect();
        let targets =
            |holders: &[(u8, u8)]| situation(1, holders).targets(id(1), &answering, shard(0));
        assert_eq!(targets(&relayed), []);
        assert_eq!(
            targets(&[(0, 1), (1, 2), (1, 5), (2, 3), (3, 4)]),
            [id(2), id(5)]
        );
        // Host 2 can't rely on host 5 either. An honest host 2 gives back what host 5 has, and host 1 may
        // leave.
        assert_eq!(
            may_leave(&[(0, 1), (0, 2), (1, 5), (2, 3), (3, 4)]),
            Some(id(2))
        );
    }

    #[test]
    fn a_host_does_not_stand_in_whose_other_shard_only_a_liar_claims_as_well() {
        // Host 8 stores nothing. Host 7 passes questions on. Host 6 has shard 1, and nobody asked it for a proof.
        let holders = [
            (0, 5),
            (0, 6),
            (1, 1),
            (1, 7),
            (2, 1),
            (2, 7),
            (3, 2),
            (3, 7),
        ];
        let mut of = situation(1, &holders);
        let trusted = BTreeSet::from([id(6)]);
        let stands_in = |of: &Situation| of.stand_in(id(5), shard(0), Removed::AllShards, &trusted);
        of.claimed.insert(shard(1), BTreeSet::from([id(8)]));
        assert_eq!(stands_in(&of), Some(id(6)));
        of.claimed.insert(shard(1), BTreeSet::from([id(6), id(8)]));
        assert_eq!(stands_in(&of), None);
        // With a holder of its own for shard 1, host 6 is free.
        of.held.entry(shard(1)).or_default().insert(id(3));
        assert_eq!(stands_in(&of), Some(id(6)));
    }

    /// A random grid: what its honest hosts have, and what host 1, which is one of them, knows. Host 8 claims all,
    /// and proves what it may pass on; host 9 only claims.
    fn random_grid(rng: &mut SmallRng) -> (Holders, Situation) {
        let mut truth = Holders::new();
        let mut known = situation(1, &[]);
        let density = rng.random_range(0.1..0.6);
        let away: Vec<u8> = (2..=7).filter(|_| rng.random_bool(0.1)).collect();
        for number in 0..5 {
            let of = shard(number);
            for host in 1..=7 {
                if !rng.random_bool(density) {
                    continue;
                }
                truth.entry(of).or_default().insert(id(host));
                let is_proved = host == 1 || rng.random_bool(0.7);
                let state = if is_proved {
                    &mut known.held
                } else {
                    &mut known.claimed
                };
                if !away.contains(&host) {
                    state.entry(of).or_default().insert(id(host));
                }
            }
            let others = truth.get(&of).into_iter().flatten();
            // Whom host 1 does not reach, host 8 does not reach either: this rule has no answer to that.
            let passes_on = others
                .filter(|host| !away.contains(&host.0[0]))
                .any(|host| *host != id(1));
            if passes_on && rng.random_bool(0.6) {
                known.held.entry(of).or_default().insert(id(8));
            }
            if rng.random_bool(0.6) {
                known.claimed.entry(of).or_default().insert(id(9));
            }
        }
        (truth, known)
    }

    #[test]
    fn whatever_is_removed_as_many_shards_have_an_honest_holder_as_before() {
        let mut removed = [0; 3];
        for seed in 0..4_000 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let (truth, known) = random_grid(&mut rng);
            let kinds = [Removed::AllShards, Removed::ThisShard, Removed::SpareCopy];
            for (kind, count) in kinds.into_iter().zip(&mut removed) {
                for of in known.redundancy.shards() {
                    let is_mine = truth.get(&of).is_some_and(|hosts| hosts.contains(&id(1)));
                    let is_spare = known.spare_copies(id(1)).contains(&of);
                    if !is_mine || kind == Removed::SpareCopy && !is_spare {
                        continue;
                    }
                    // All that claim the shard are asked to prove it before.
                    let mut now = known.clone();
                    let mut asked = known.others_with(id(1), of);
                    asked.remove(&id(9));
                    now.held.entry(of).or_default().extend(asked);
                    now.claimed.remove(&of);
                    let trusted = now.others_with(id(1), of);
                    let Some(_) = now.stand_in(id(1), of, kind, &trusted) else {
                        continue;
                    };
                    *count += 1;
                    let mut after = truth.clone();
                    match kind {
                        Removed::AllShards => after = without(&after, &id(1)),
                        Removed::ThisShard | Removed::SpareCopy => {
                            after.entry(of).or_default().remove(&id(1));
                        }
                    }
                    assert!(
                        assign(&after).len() >= assign(&truth).len(),
                        "seed {seed}, {kind:?}, {of:?}: {truth:?} {known:?}"
                    );
                }
            }
        }
        assert!(removed.iter().all(|count| *count > 100), "{removed:?}");
    }

    #[test]
    fn a_host_with_two_shards_gives_back_the_one_that_another_host_has() {
        let of = situation(1, &[(0, 1), (0, 2), (1, 2), (1, 5), (2, 3), (3, 4), (4, 6)]);
        assert_eq!(of.spare_copies(id(2)), [shard(0), shard(1)]);
        assert_eq!(of.spare_copies(id(5)), []);
        let trusted = BTreeSet::from([id(5)]);
        let gives = |of: &Situation| of.stand_in(id(2), shard(1), Removed::SpareCopy, &trusted);
        assert_eq!(gives(&of), Some(id(5)));
        let needed = [
            (0, 1),
            (0, 2),
            (1, 2),
            (1, 5),
            (2, 3),
            (2, 5),
            (3, 4),
            (4, 6),
        ];
        assert_eq!(gives(&situation(1, &needed)), None);
        // If nobody else has shard 0, host 5 may be one that passes questions on to host 2.
        let later = situation(1, &[(0, 2), (1, 2), (1, 5), (2, 3), (3, 4), (4, 6)]);
        assert_eq!(later.spare_copies(id(2)), []);
        // While a shard is missing, nothing is of no use; one shard alone never is.
        let torn = situation(1, &[(0, 2), (1, 2), (1, 5), (2, 3), (3, 4)]);
        assert_eq!(torn.spare_copies(id(2)), []);
        let one = situation(1, &[(0, 1), (1, 2), (1, 5), (2, 3), (3, 4), (4, 6)]);
        assert_eq!(one.spare_copies(id(2)), []);
    }

    #[test]
    fn a_host_that_failed_a_proof_gets_no_shard() {
        let all: BTreeSet<_> = (1..=6).map(id).collect();
        let mut lost = situation(1, &[(0, 1), (1, 2), (2, 3), (3, 4)]);
        lost.failed.insert(shard(0), BTreeSet::from([id(5)]));
        assert_eq!(lost.targets(id(1), &all, shard(4)), [id(6)]);
    }

    #[test]
    fn a_shard_that_can_not_be_rebuilt_is_left() {
        let mut watches = watches();
        let gone = [situation(1, &[(0, 1), (1, 2)])];
        assert_eq!(all(&mut watches, 0, &gone), []);
        assert_eq!(all(&mut watches, 100 * HOUR, &gone), []);
    }

    #[test]
    fn if_every_host_holds_a_shard_one_with_a_double_takes_another() {
        let all: BTreeSet<_> = (1..=6).map(id).collect();
        let whole = situation(1, &[(0, 1), (1, 2), (2, 3), (3, 4)]);
        let missing = whole.redundancy.shard(4).unwrap();
        assert_eq!(whole.targets(id(1), &all, missing), [id(5), id(6)]);
        let crowded = situation(1, &[(0, 1), (1, 2), (2, 3), (3, 4), (3, 5), (0, 6)]);
        let targets = crowded.targets(id(1), &all, missing);
        assert_eq!(targets, [id(1), id(4), id(5), id(6)]);
    }

    #[test]
    fn responsibility_is_spread() {
        let mut counts = BTreeMap::new();
        for checkpoint in 0..200 {
            let situation = situation(checkpoint, &[(0, 1), (1, 2), (2, 3), (3, 4)]);
            let first = (1..=4).find(|host| situation.rank(id(*host), shard(4)) == 0);
            *counts.entry(first).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 4);
        assert!(
            counts.values().all(|count| (25..80).contains(count)),
            "{counts:?}"
        );
    }
}
