//! Decides which claims of holding a shard count, for how long, and which have to be proved.
//!
//! When a host states that it holds a shard, that is a *claim*. The claim counts after the host has
//! proved a part of the shard that this host chose, and for a limited time. A host that failed a proof is
//! not asked for the same shard again for a while. Proofs are renewed in the second half of their time,
//! in an order that the caller draws at random, within a budget of bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use codec::{OwnerId, ShardIndex};

use super::by_key::ByKey;
use super::{Key, Millis};

/// A host that failed a proof is asked for the same shard again after this time, or earlier if proofs are
/// valid for a shorter time.
const FAILED_FOR: Duration = Duration::from_secs(86_400);

/// Roughly the bytes that one proof costs: a request, an answer and their headers.
pub const PROOF_BYTES: u64 = 4096;

/// The budget can always hold the bytes of at least this many proofs.
const PROOFS_AT_ONCE: u64 = 256;

const DAY_MS: u64 = 86_400_000;

/// What is known of one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// The host proved the shard, and the proof is still valid.
    Proved {
        /// Whether the proof should be renewed: more than half of its time has passed.
        is_aging: bool,
    },
    /// The host recently failed to prove the shard.
    Failed,
    /// There is neither a valid proof nor a recent failure.
    Open,
}

/// A short number for a host, used in each entry in place of the host's key of 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HostNumber(u32);

/// The latest proof of one shard by one host.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Millis,
    host: HostNumber,
    shard: ShardIndex,
    is_proved: bool,
    /// Whether the host ever proved the shard.
    was_proved: bool,
}

/// The proofs of all checkpoints. Takes some 150 bytes of memory for each checkpoint of five shards.
#[derive(Debug)]
pub struct Proofs {
    valid: Duration,
    hosts: Vec<OwnerId>,
    numbers: BTreeMap<OwnerId, HostNumber>,
    of: ByKey<Vec<Entry>>,
}

impl Proofs {
    /// No proofs yet; each proof will be valid for `valid`.
    pub const fn new(valid: Duration) -> Self {
        Self {
            valid,
            hosts: Vec::new(),
            numbers: BTreeMap::new(),
            of: ByKey::new(),
        }
    }

    /// Enters that a host proved a shard, or failed to prove it.
    pub fn enter(
        &mut self,
        now: Millis,
        key: Key,
        shard: ShardIndex,
        host: OwnerId,
        is_proved: bool,
    ) {
        let next = HostNumber(u32::try_from(self.hosts.len()).unwrap_or(u32::MAX));
        let host = *self.numbers.entry(host).or_insert_with(|| {
            self.hosts.push(host);
            next
        });
        let entries = self.of.or_default(key);
        let is_same = |one: &Entry| (one.host, one.shard) == (host, shard);
        let was_proved = entries.iter().any(|one| is_same(one) && one.was_proved);
        entries.retain(|one| !is_same(one));
        // Allocated exactly, because there are many checkpoints with a few holders each.
        entries.reserve_exact(1);
        entries.push(Entry {
            at: now,
            host,
            shard,
            is_proved,
            was_proved: was_proved || is_proved,
        });
    }

    /// What is known of a host's claim of one shard.
    pub fn claim_state(
        &self,
        now: Millis,
        key: Key,
        shard: ShardIndex,
        host: &OwnerId,
    ) -> ClaimState {
        let number = self.numbers.get(host);
        let entries = self.of.get(&key).map_or(&[][..], Vec::as_slice);
        let mut entries = entries.iter();
        let found = entries.find(|one| Some(&one.host) == number && one.shard == shard);
        let Some(entry) = found else {
            return ClaimState::Open;
        };
        let age = Duration::from_millis(now.0.saturating_sub(entry.at.0));
        match entry.is_proved {
            true if age < self.valid => ClaimState::Proved {
                is_aging: age >= self.valid / 2,
            },
            false if age < self.valid.min(FAILED_FOR) => ClaimState::Failed,
            _ => ClaimState::Open,
        }
    }

    /// The host that proved a shard last, however long ago.
    pub fn last_holder(&self, key: Key, shard: ShardIndex) -> Option<OwnerId> {
        let entries = self.of.get(&key)?.iter();
        let proved = entries.filter(|one| one.shard == shard && one.was_proved);
        let last = proved.max_by_key(|one| (one.at, one.host))?;
        self.hosts.get(last.host.0 as usize).copied()
    }

    /// Whether no proof of any checkpoint is known.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// All hosts that ever proved a shard or failed to prove one.
    pub fn hosts(&self) -> &[OwnerId] {
        &self.hosts
    }

    /// Forgets all checkpoints for which `is_held` is false.
    pub fn retain(&mut self, is_held: impl Fn(&Key) -> bool) {
        self.of.retain(is_held);
    }
}

/// Bytes that proofs of other hosts may cost. The budget fills at a fixed rate a day, and holds at most
/// what comes in on one day.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    left: u64,
    filled: Option<Millis>,
}

impl Budget {
    /// Default of the bytes a day: a thousandth of what the host holds or, if that is more, twice what
    /// renewing all `claims` once within `valid` costs.
    pub fn a_day(held_bytes: u64, claims: u64, valid: Duration) -> u64 {
        let valid_ms = u64::try_from(valid.as_millis()).unwrap_or(u64::MAX).max(1);
        let renewals = u128::from(claims) * u128::from(2 * PROOF_BYTES) * u128::from(DAY_MS)
            / u128::from(valid_ms);
        (held_bytes / 1000).max(u64::try_from(renewals).unwrap_or(u64::MAX))
    }

    /// Adds the bytes that have come in since the last call, at `a_day` bytes a day.
    pub fn fill(&mut self, now: Millis, a_day: u64) {
        let most = a_day.max(PROOFS_AT_ONCE * PROOF_BYTES);
        let more = self.filled.map_or(most, |filled| {
            let passed = now.0.saturating_sub(filled.0);
            let more = u128::from(a_day) * u128::from(passed) / u128::from(DAY_MS);
            u64::try_from(more).unwrap_or(u64::MAX)
        });
        // The time is not set before a whole byte has come in, so that frequent calls lose no parts of
        // bytes.
        if more > 0 || self.filled.is_none() {
            self.filled = Some(now);
        }
        self.left = self.left.saturating_add(more).min(most);
    }

    /// Whether the budget suffices for another proof.
    pub const fn allows_one(&self) -> bool {
        self.left >= PROOF_BYTES
    }

    /// Takes out the bytes that a proof cost.
    pub const fn spend(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }
}

/// Gives each shard a holder of its own, for as many shards as possible. A host counts for one shard
/// only, however many it holds. This is a maximum matching by augmenting paths (Kuhn 1955); there are at
/// most 64 shards.
/// Example: host 1 holds shards 0 and 1, host 2 holds shard 0. Then host 2 counts for shard 0 and host 1
/// for shard 1.
pub fn assign(holders: &BTreeMap<ShardIndex, BTreeSet<OwnerId>>) -> BTreeMap<ShardIndex, OwnerId> {
    let mut shard_of = BTreeMap::new();
    for shard in holders.keys() {
        find_holder(holders, *shard, &mut BTreeSet::new(), &mut shard_of);
    }
    let pairs = shard_of.into_iter();
    pairs.map(|(host, shard)| (shard, host)).collect()
}

/// How many of these hosts can surely be lost before fewer than `data` shards are left; `None` if fewer are left now.
///
/// A host may hold several shards. So it is 0, and not `None`, where hosts are fewer than `data` and have enough shards
/// all the same.
pub fn spare(holders: &BTreeMap<ShardIndex, BTreeSet<OwnerId>>, data: usize) -> Option<usize> {
    let shards = holders.values().filter(|hosts| !hosts.is_empty()).count();
    (shards >= data).then(|| assign(holders).len().saturating_sub(data))
}

fn find_holder(
    holders: &BTreeMap<ShardIndex, BTreeSet<OwnerId>>,
    shard: ShardIndex,
    tried: &mut BTreeSet<OwnerId>,
    shard_of: &mut BTreeMap<OwnerId, ShardIndex>,
) -> bool {
    for host in holders.get(&shard).into_iter().flatten() {
        if !tried.insert(*host) {
            continue;
        }
        let other = shard_of.get(host).copied();
        if other.is_none_or(|other| find_holder(holders, other, tried, shard_of)) {
            shard_of.insert(*host, shard);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use codec::{CheckpointId, Redundancy};

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn id(number: u8) -> OwnerId {
        OwnerId([number; 32])
    }

    fn key(number: u8) -> Key {
        Key {
            owner: id(100),
            checkpoint: CheckpointId([number; 16]),
        }
    }

    fn shard(number: u8) -> ShardIndex {
        Redundancy::DEFAULT.shard(number).unwrap()
    }

    #[test]
    fn a_proof_counts_for_a_while_and_a_failure_too() {
        let mut proofs = Proofs::new(10 * DAY);
        let claim_state = |proofs: &Proofs, days: u32, host| {
            let now = Millis(0).after(DAY * days);
            proofs.claim_state(now, key(1), shard(0), &id(host))
        };
        assert_eq!(claim_state(&proofs, 0, 1), ClaimState::Open);
        proofs.enter(Millis(0), key(1), shard(0), id(1), true);
        proofs.enter(Millis(0), key(1), shard(0), id(2), false);
        assert_eq!(
            claim_state(&proofs, 4, 1),
            ClaimState::Proved { is_aging: false }
        );
        assert_eq!(
            claim_state(&proofs, 5, 1),
            ClaimState::Proved { is_aging: true }
        );
        assert_eq!(claim_state(&proofs, 10, 1), ClaimState::Open);
        assert_eq!(claim_state(&proofs, 0, 2), ClaimState::Failed);
        assert_eq!(claim_state(&proofs, 1, 2), ClaimState::Open);
        // Nothing is known of another shard, checkpoint or host.
        let other = proofs.claim_state(Millis(0), key(1), shard(1), &id(1));
        assert_eq!(other, ClaimState::Open);
        let other = proofs.claim_state(Millis(0), key(2), shard(0), &id(1));
        assert_eq!(other, ClaimState::Open);
        // The last holder is remembered after its proof has become invalid.
        assert_eq!(proofs.last_holder(key(1), shard(0)), Some(id(1)));
        proofs.enter(Millis(1), key(1), shard(0), id(1), false);
        assert_eq!(claim_state(&proofs, 0, 1), ClaimState::Failed);
        assert_eq!(proofs.last_holder(key(1), shard(0)), Some(id(1)));
        proofs.retain(|_| false);
        assert_eq!(proofs.last_holder(key(1), shard(0)), None);
    }

    #[test]
    fn a_budget_suffices_to_renew_all_and_fills_with_time() {
        let valid = 14 * DAY;
        assert_eq!(Budget::a_day(1 << 40, 0, valid), (1 << 40) / 1000);
        let a_day = Budget::a_day(0, 262_144, valid);
        assert!(a_day * 14 / PROOF_BYTES >= 262_144, "{a_day}");
        let mut budget = Budget::default();
        budget.fill(Millis(0), 0);
        let mut proofs = 0;
        while budget.allows_one() {
            budget.spend(PROOF_BYTES);
            proofs += 1;
        }
        assert_eq!(proofs, PROOFS_AT_ONCE);
        // 864 bytes a day are 0.01 bytes a second, however often the budget is filled.
        for second in 1..=1000 {
            budget.fill(Millis(second * 1000), 864);
        }
        assert_eq!(budget.left, 10);
    }

    fn holders(pairs: &[(u8, u8)]) -> BTreeMap<ShardIndex, BTreeSet<OwnerId>> {
        let mut holders: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (number, host) in pairs {
            holders.entry(shard(*number)).or_default().insert(id(*host));
        }
        holders
    }

    #[test]
    fn shards_on_fewer_hosts_than_are_needed_can_be_read_and_none_of_the_hosts_can_be_lost() {
        let spare = |pairs: &[(u8, u8)]| spare(&holders(pairs), 3);
        assert_eq!(spare(&[(0, 1), (1, 1), (2, 1)]), Some(0));
        assert_eq!(spare(&[(0, 1), (1, 1), (2, 2), (3, 2)]), Some(0));
        assert_eq!(spare(&[(0, 1), (1, 1)]), None);
        assert_eq!(spare(&[(0, 1), (0, 2), (0, 3)]), None);
        assert_eq!(spare(&[(0, 1), (1, 2), (2, 3), (3, 4)]), Some(1));
    }

    #[test]
    fn a_host_counts_for_one_shard_and_as_many_shards_as_possible_have_one() {
        let all_of_one = holders(&[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]);
        assert_eq!(assign(&all_of_one).len(), 1);
        // Every shard has a holder only if host 1 counts for shard 1.
        let two = holders(&[(0, 1), (0, 2), (1, 1)]);
        let expected = [(shard(0), id(2)), (shard(1), id(1))];
        assert_eq!(assign(&two), expected.into());
        let chain = holders(&[
            (0, 1),
            (0, 2),
            (1, 1),
            (1, 3),
            (2, 1),
            (2, 2),
            (3, 3),
            (3, 4),
        ]);
        assert_eq!(assign(&chain).len(), 4);
    }
}
