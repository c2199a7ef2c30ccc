//! Which shards are to be rebuilt, by whom, and when.
//!
//! A holder that is away will usually be back with its shards; repairing at once moves bytes for
//! nothing (Chun et al., "Efficient replica maintenance for distributed storage systems", 2006).
//! So a shard is waited for as long as the absences of its holder usually last, and for less when
//! few others are left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use codec::{CheckpointId, OwnerId, Redundancy, ShardIndex};
use placement::AvailabilityBitmap;
use placement::bitmap::{Availability, SLOT_SECONDS, SLOTS, Slot};

use super::Millis;

/// How long shards are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// At least.
    pub least: Duration,
    /// When nothing is known of the holder.
    pub usual: Duration,
    /// At most.
    pub most: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            least: Duration::from_secs(15 * 60),
            usual: Duration::from_secs(3600),
            most: Duration::from_secs(86_400),
        }
    }
}

/// Absences of nine in ten are shorter than what is waited, times this.
const MARGIN: f64 = 1.5;

/// Of absences that are counted, this share is to be waited out.
const QUANTILE: f64 = 0.9;

/// Fewest absences that say something.
const ABSENCES_MIN: usize = 3;

/// When the checkpoint can't survive the loss of another shard, the wait is divided by this.
const URGENT_DIVISOR: u32 = 8;

impl Patience {
    /// How long to wait for a host with this past.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "an index below the number of absences"
    )]
    pub fn with(&self, past: Option<&AvailabilityBitmap>) -> Duration {
        let mut absences = past.map(absences).unwrap_or_default();
        if absences.len() < ABSENCES_MIN {
            return self.usual.clamp(self.least, self.most);
        }
        absences.sort_unstable();
        let at = ((absences.len() - 1) as f64 * QUANTILE).round() as usize;
        let slots = absences.get(at).copied().unwrap_or(0);
        let seconds = f64::from(slots) * SLOT_SECONDS as f64 * MARGIN;
        Duration::from_secs_f64(seconds).clamp(self.least, self.most)
    }
}

/// Lengths of the absences in a bitmap, in slots. One that goes on is left out.
fn absences(past: &AvailabilityBitmap) -> Vec<u32> {
    let mut lengths = Vec::new();
    let mut length = 0;
    let newest = past.newest().0;
    for slot in (newest + 1).saturating_sub(SLOTS as u64)..=newest {
        match past.get(Slot(slot)) {
            Availability::NotUsable => length += 1,
            Availability::Usable if length > 0 => lengths.push(std::mem::take(&mut length)),
            Availability::Usable | Availability::Unknown => length = 0,
        }
    }
    lengths
}

/// What is known of a checkpoint of which this host holds a shard.
#[derive(Clone, Debug)]
pub struct Situation {
    /// Which.
    pub checkpoint: CheckpointId,
    /// How it is coded.
    pub redundancy: Redundancy,
    /// Shards that hosts which answer hold now, this one included.
    pub held: BTreeMap<ShardIndex, BTreeSet<OwnerId>>,
}

impl Situation {
    fn missing(&self) -> impl Iterator<Item = ShardIndex> {
        self.redundancy
            .shards()
            .filter(|shard| !self.held.contains_key(shard))
    }

    /// Which of the hosts that answer may take another shard: those that hold none or, when there are
    /// no such, those of whose shards others have copies. `except` is not among them.
    pub fn targets(&self, answering: &BTreeSet<OwnerId>, except: ShardIndex) -> Vec<OwnerId> {
        let holds = |host: &OwnerId, holders: &BTreeSet<OwnerId>| holders.contains(host);
        let free = |host: &&OwnerId| !self.held.values().any(|holders| holds(host, holders));
        let none: Vec<OwnerId> = answering.iter().filter(free).copied().collect();
        if !none.is_empty() {
            return none;
        }
        let holds_it = |host: &OwnerId| self.held.get(&except).is_some_and(|h| h.contains(host));
        let doubles = |host: &&OwnerId| {
            let mut mine = self.held.values().filter(|holders| holds(host, holders));
            mine.all(|holders| holders.len() > 1) && !holds_it(host)
        };
        answering.iter().filter(doubles).copied().collect()
    }

    /// How many shards can still be lost; `None` when there are too few already.
    pub fn spare(&self) -> Option<usize> {
        self.held.len().checked_sub(self.redundancy.data())
    }
}

/// A shard to rebuild.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Of which checkpoint.
    pub checkpoint: CheckpointId,
    /// Which shard.
    pub shard: ShardIndex,
    /// How many shards can still be lost now.
    pub spare: usize,
}

/// Remembers since when shards are missing.
#[derive(Debug, Default)]
pub struct Watch {
    missing: BTreeMap<(CheckpointId, ShardIndex), Missing>,
}

#[derive(Clone, Copy, Debug)]
struct Missing {
    since: Millis,
    patience: Duration,
}

impl Watch {
    /// Looks at all checkpoints of which this host, `own`, holds shards, and says what it has to
    /// rebuild now, most endangered first. `patience` is asked for each shard that begins to be
    /// missing. Of the holders that answer, one is responsible for each shard: all of them find the
    /// same, as far as they see the same.
    pub fn look(
        &mut self,
        now: Millis,
        own: OwnerId,
        situations: &[Situation],
        mut patience: impl FnMut(CheckpointId, ShardIndex) -> Duration,
    ) -> Vec<Repair> {
        let missing: BTreeSet<_> = situations
            .iter()
            .flat_map(|one| one.missing().map(|shard| (one.checkpoint, shard)))
            .collect();
        // What is there again, or not ours any more, begins anew.
        self.missing.retain(|key, _| missing.contains(key));
        let mut repairs = Vec::new();
        for situation in situations {
            let Some(spare) = situation.spare() else {
                continue;
            };
            for shard in situation.missing() {
                let key = (situation.checkpoint, shard);
                let missing = self.missing.entry(key).or_insert_with(|| Missing {
                    since: now,
                    patience: patience(key.0, key.1),
                });
                let wait = if spare == 0 {
                    missing.patience / URGENT_DIVISOR
                } else {
                    missing.patience
                };
                let waited = Duration::from_millis(now.0.saturating_sub(missing.since.0));
                if waited >= wait && responsible(situation, shard) == Some(own) {
                    repairs.push(Repair {
                        checkpoint: situation.checkpoint,
                        shard,
                        spare,
                    });
                }
            }
        }
        repairs.sort_by_key(|repair| (repair.spare, repair.checkpoint, repair.shard));
        repairs
    }
}

/// What a host remembers from one look at its checkpoints to the next.
#[derive(Debug, Default)]
pub struct Caretaker {
    watch: Watch,
    /// Who held a shard last.
    past: BTreeMap<(CheckpointId, ShardIndex), OwnerId>,
    looks: u64,
}

/// Every so many looks everybody is asked. One that got a rebuilt shard of a checkpoint that was just
/// deleted knows nobody else who held it.
const ASK_ALL_EVERY: u64 = 12;

impl Caretaker {
    /// Whom to ask what they hold: those who hold something of what is held here, as registries
    /// `told`, and those who did last. In a large pool that is a small part. `None`, which is
    /// everybody, when no registry answers, the first time and now and then: who held what was deleted
    /// meanwhile knows of it, and does not hold it any more.
    pub fn whom_to_ask(
        &mut self,
        own: OwnerId,
        told: Option<BTreeSet<OwnerId>>,
    ) -> Option<BTreeSet<OwnerId>> {
        self.looks += 1;
        let asks_all = self.looks.is_multiple_of(ASK_ALL_EVERY) || self.past.is_empty();
        let mut worth = told.filter(|_| !asks_all)?;
        worth.extend(self.past.values().copied());
        worth.insert(own);
        Some(worth)
    }

    /// What this host, `own`, has to rebuild now. `answering` are the hosts that said what they hold,
    /// `patience` is that with a host.
    pub fn repairs(
        &mut self,
        now: Millis,
        own: OwnerId,
        situations: &[Situation],
        answering: &BTreeSet<OwnerId>,
        patience: impl Fn(Option<&OwnerId>) -> Duration,
    ) -> Vec<Repair> {
        let known: BTreeSet<CheckpointId> = situations.iter().map(|one| one.checkpoint).collect();
        self.past.retain(|(of, _), _| known.contains(of));
        for situation in situations {
            for (shard, holders) in &situation.held {
                let last = holders.iter().next_back().copied();
                self.past
                    .extend(last.map(|holder| ((situation.checkpoint, *shard), holder)));
            }
        }
        let past = &self.past;
        self.watch.look(now, own, situations, |checkpoint, shard| {
            let holder = past.get(&(checkpoint, shard));
            // One that is there without its shard has lost it for good.
            if holder.is_some_and(|holder| answering.contains(holder)) {
                return Duration::ZERO;
            }
            patience(holder)
        })
    }
}

/// Which of the holders that answer rebuilds a shard: the one with the highest hash of checkpoint,
/// shard and itself (rendezvous hashing, Thaler and Ravishankar 1998).
pub fn responsible(situation: &Situation, shard: ShardIndex) -> Option<OwnerId> {
    let holders: BTreeSet<OwnerId> = situation.held.values().flatten().copied().collect();
    holders.into_iter().max_by_key(|holder| {
        let mut hasher = blake3::Hasher::new_derive_key("ckpt v1 repairer");
        hasher.update(&situation.checkpoint.0);
        hasher.update(&[shard.number()]);
        hasher.update(&holder.0);
        *hasher.finalize().as_bytes()
    })
}

#[cfg(test)]
mod tests {
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
            checkpoint: CheckpointId([checkpoint; 16]),
            redundancy,
            held,
        }
    }

    /// Repairs that all holders together begin.
    fn all(watches: &mut BTreeMap<u8, Watch>, now: u64, situations: &[Situation]) -> Vec<(u8, u8)> {
        let mut repairs = Vec::new();
        for (holder, watch) in watches {
            let wait = |_, _| Duration::from_secs(3600);
            let found = watch.look(Millis(now), id(*holder), situations, wait);
            repairs.extend(
                found
                    .iter()
                    .map(|one| (one.checkpoint.0[0], one.shard.number())),
            );
        }
        repairs
    }

    fn watches() -> BTreeMap<u8, Watch> {
        (1..=5).map(|holder| (holder, Watch::default())).collect()
    }

    #[test]
    fn exactly_one_holder_rebuilds_and_only_after_a_while() {
        let mut watches = watches();
        let lost = [situation(1, &[(0, 1), (1, 2), (2, 3), (3, 4)])];
        assert_eq!(all(&mut watches, 0, &lost), []);
        assert_eq!(all(&mut watches, HOUR - 1, &lost), []);
        assert_eq!(all(&mut watches, HOUR, &lost), [(1, 4)]);
        // It is back, and gone again: the wait begins anew.
        let whole = [situation(1, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)])];
        assert_eq!(all(&mut watches, HOUR + 1, &whole), []);
        assert_eq!(all(&mut watches, 2 * HOUR, &lost), []);
        assert_eq!(all(&mut watches, 3 * HOUR, &lost), [(1, 4)]);
    }

    #[test]
    fn the_most_endangered_comes_first_and_sooner() {
        let mut watch = Watch::default();
        let one_left = |checkpoint| situation(checkpoint, &[(0, 1), (1, 1), (2, 1), (3, 1)]);
        let none_left = situation(9, &[(0, 1), (1, 1), (2, 1)]);
        let situations = [one_left(1), none_left];
        let wait = |_, _| Duration::from_secs(3600);
        let mut look = |now| watch.look(Millis(now), id(1), &situations, wait);
        assert!(look(0).is_empty());
        let soon: Vec<_> = look(HOUR / 8)
            .into_iter()
            .map(|one| one.checkpoint.0[0])
            .collect();
        assert_eq!(soon, [9, 9]);
        let later: Vec<_> = look(HOUR)
            .into_iter()
            .map(|one| one.checkpoint.0[0])
            .collect();
        assert_eq!(later, [9, 9, 1]);
    }

    #[test]
    fn what_can_not_be_rebuilt_is_left() {
        let mut watches = watches();
        let gone = [situation(1, &[(0, 1), (1, 2)])];
        assert_eq!(all(&mut watches, 0, &gone), []);
        assert_eq!(all(&mut watches, 100 * HOUR, &gone), []);
    }

    #[test]
    fn where_every_host_holds_a_shard_one_with_a_double_takes_another() {
        let all: BTreeSet<_> = (1..=6).map(id).collect();
        let whole = situation(1, &[(0, 1), (1, 2), (2, 3), (3, 4)]);
        let missing = whole.redundancy.shard(4).unwrap();
        assert_eq!(whole.targets(&all, missing), [id(5), id(6)]);
        let crowded = situation(1, &[(0, 1), (1, 2), (2, 3), (3, 4), (3, 5), (0, 6)]);
        let targets = crowded.targets(&all, missing);
        assert_eq!(targets, [id(1), id(4), id(5), id(6)]);
    }

    #[test]
    fn responsibility_is_spread() {
        let mut counts = BTreeMap::new();
        for checkpoint in 0..200 {
            let situation = situation(checkpoint, &[(0, 1), (1, 2), (2, 3), (3, 4)]);
            let shard = situation.redundancy.shard(4).unwrap();
            *counts.entry(responsible(&situation, shard)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 4);
        assert!(
            counts.values().all(|count| (25..80).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn hosts_that_come_back_within_hours_are_waited_for() {
        let patience = Patience::default();
        assert_eq!(patience.with(None), patience.usual);
        let mut past = AvailabilityBitmap::unknown(Slot(0));
        // Away for two hours every ten.
        for slot in 1..2000 {
            let usable = slot % 120 >= 24;
            let availability = if usable {
                Availability::Usable
            } else {
                Availability::NotUsable
            };
            past.record(Slot(slot), availability);
        }
        let waited = patience.with(Some(&past));
        assert_eq!(waited, Duration::from_secs(3 * 3600));
    }
}
