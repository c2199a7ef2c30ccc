//! Shards that are being written: what they may take, and what becomes of them.

use codec::{OwnerId, ShardIndex};
use protocol::wire::limits::UNCOMMITTED_LIFETIME;
use protocol::wire::message::PutShard;

use super::{Catalog, Denied, Key, Shard};
use crate::core::Millis;
use crate::core::ledger::{CHECKPOINT_BYTES, Promise};
use crate::core::places::Who;

/// What a shard of unknown size is promised at first, and what it grows by.
const GROWTH_BYTES: u64 = 8 << 20;

/// What a shard of known size is promised at first, if it is not smaller; later twice what has come.
/// The rest stays for others until it is needed.
pub(super) const FIRST_BYTES: u64 = 64 << 20;

/// A shard that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PutId(u64);

#[derive(Clone, Copy, Debug)]
pub(super) struct Put {
    pub(super) key: Key,
    pub(super) shard: ShardIndex,
    /// Of whom the space is: of who brings the shard, until it is whole.
    pub(super) charged: Who<OwnerId>,
    pub(super) promise: Promise,
    /// Bytes that its file will have, where the client says so.
    pub(super) whole: Option<u64>,
    /// What its checkpoint costs in addition, if it is the first of it.
    pub(super) price: u64,
    /// The checkpoint was forgotten: nothing may come of this.
    pub(super) forgotten: bool,
    /// Nothing was known of the checkpoint before.
    pub(super) is_first: bool,
}

impl Catalog {
    /// Begins a shard: holds its version and its space. `free` is what the disk has.
    ///
    /// # Errors
    /// When it may not be written.
    pub fn begin_put(
        &mut self,
        now: Millis,
        who: impl Into<Who<OwnerId>>,
        put: &PutShard,
        shard: ShardIndex,
        free: u64,
    ) -> Result<PutId, Denied> {
        let who = who.into();
        self.begin(now, who, who, put, shard, free)
    }

    /// The same of a shard that `charged` brings. What is stored is `owned` by another, once it is whole.
    pub(super) fn begin(
        &mut self,
        now: Millis,
        owned: Who<OwnerId>,
        charged: Who<OwnerId>,
        put: &PutShard,
        shard: ShardIndex,
        free: u64,
    ) -> Result<PutId, Denied> {
        let key = Key {
            owner: owned.member,
            checkpoint: put.claim.checkpoint,
        };
        if self.has_shard(key, shard, charged) {
            return Err(Denied::Exists(shard));
        }
        let is_charged = self.checkpoints.get(&key).is_some_and(|one| one.is_charged);
        let price = if is_charged { 0 } else { CHECKPOINT_BYTES };
        let first = self.first_promise(charged, put.expected_bytes, price, free)?;
        let promise = self.ledger.promise(charged, first, free)?;
        let is_first = !self.checkpoints.contains_key(&key);
        if let Err(denied) = self.hold_version(now, owned, &put.claim) {
            self.ledger.release(promise);
            return Err(denied);
        }
        if let Some(checkpoint) = self.checkpoints.get_mut(&key) {
            checkpoint.puts += 1;
        }
        let id = PutId(self.next_put);
        self.next_put += 1;
        self.counts.puts += 1;
        let put = Put {
            key,
            shard,
            charged,
            promise,
            whole: whole_file(put.expected_bytes),
            price,
            forgotten: false,
            is_first,
        };
        self.puts.insert(id, put);
        Ok(id)
    }

    /// Bytes to promise to `charged` for a new shard. What does not fit is refused at once, although the
    /// rest is promised later.
    pub(super) fn first_promise(
        &self,
        charged: Who<OwnerId>,
        expected: u64,
        price: u64,
        free: u64,
    ) -> Result<u64, Denied> {
        let Some(whole) = whole_file(expected) else {
            let left = self.ledger.left_for(charged, free);
            return Ok(GROWTH_BYTES.min(left.saturating_sub(price)).max(1) + price);
        };
        let wanted = whole.saturating_add(price);
        self.ledger.check(charged, wanted, free)?;
        Ok(whole.min(FIRST_BYTES) + price)
    }

    /// Notes that a shard's file is going to have `wanted` bytes, of which `written` are on the
    /// disk, and gets it more space when it needs it.
    ///
    /// # Errors
    /// When there is no space, or the checkpoint was forgotten.
    pub fn grow_put(
        &mut self,
        id: PutId,
        wanted: u64,
        written: u64,
        free: u64,
    ) -> Result<(), Denied> {
        let put = self.puts.get_mut(&id).ok_or(Denied::NotFound)?;
        if put.forgotten {
            return Err(Denied::NotFound);
        }
        self.ledger.note_written(&mut put.promise, written);
        let promised = put.promise.bytes();
        let wanted = wanted.saturating_add(put.price);
        let Some(missing) = wanted.checked_sub(promised).filter(|&more| more > 0) else {
            return Ok(());
        };
        let whole = put.whole.map(|whole| whole.saturating_add(put.price));
        let comfortable = match whole.filter(|&whole| whole >= wanted) {
            Some(whole) => wanted.saturating_mul(2).min(whole) - promised,
            None => missing.max(GROWTH_BYTES),
        };
        let left = self.ledger.left_for(put.charged, free);
        let more = comfortable.min(left).max(missing);
        self.ledger.extend(&mut put.promise, more, free)?;
        Ok(())
    }

    /// Whether a shard that is being written is still wanted.
    ///
    /// # Errors
    /// When its checkpoint was forgotten.
    pub fn check_put(&self, id: PutId) -> Result<Key, Denied> {
        match self.puts.get(&id) {
            Some(put) if !put.forgotten => Ok(put.key),
            _ => Err(Denied::NotFound),
        }
    }

    /// Ends a put whose shard is whole and durable.
    ///
    /// # Errors
    /// When its checkpoint was forgotten: the file has to go.
    pub fn finish_put(&mut self, now: Millis, id: PutId, shard: Shard) -> Result<(), Denied> {
        let key = self.check_put(id)?;
        self.end_put(id);
        self.add_shard(key, shard);
        self.renew(key, now.after(UNCOMMITTED_LIFETIME));
        Ok(())
    }

    /// Whether a shard is here, or the same member writes it.
    fn has_shard(&self, key: Key, shard: ShardIndex, by: Who<OwnerId>) -> bool {
        let writing =
            |put: &Put| (put.key, put.shard, put.charged) == (key, shard, by) && !put.forgotten;
        self.shard(key, shard.number()).is_ok() || self.puts.values().any(writing)
    }

    pub(super) fn end_put(&mut self, id: PutId) {
        let Some(put) = self.puts.remove(&id) else {
            return;
        };
        self.ledger.release(put.promise);
        self.counts.puts -= 1;
        if put.forgotten {
            // It counts no more, whatever has the checkpoint's id since.
            return;
        }
        if let Some(checkpoint) = self.checkpoints.get_mut(&put.key) {
            checkpoint.puts -= 1;
        }
    }
}

/// Bytes of the file of a shard of about `expected` block bytes, with its table; `None` when the size
/// is not known.
pub(super) const fn whole_file(expected: u64) -> Option<u64> {
    if expected == 0 {
        return None;
    }
    Some(expected.saturating_add(expected / 512).saturating_add(4096))
}
