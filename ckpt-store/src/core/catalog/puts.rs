//! Puts: shards that are being written, the space that each may take, and how each ends.

use codec::{OwnerId, ShardIndex};
use protocol::wire::limits::UNCOMMITTED_LIFETIME;
use protocol::wire::message::PutShard;

use super::{Catalog, Denied, Key, Shard};
use crate::core::Millis;
use crate::core::ledger::{CHECKPOINT_BYTES, Promise};
use crate::core::places::Who;

/// A shard of unknown size is promised this many bytes at first, and grows by as many at a time.
const GROWTH_BYTES: u64 = 8 << 20;

/// A shard of known size is promised at most this many bytes at first, and later twice what has arrived.
/// The rest stays available to others until it is needed.
pub(super) const FIRST_BYTES: u64 = 64 << 20;

/// The handle of a shard that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PutId(u64);

#[derive(Clone, Copy, Debug)]
pub(super) struct Put {
    pub(super) key: Key,
    pub(super) shard: ShardIndex,
    /// Whose space the shard takes until it is complete: that of the peer that sends it.
    pub(super) charged: Who<OwnerId>,
    pub(super) promise: Promise,
    /// The bytes that its file will have, if the client states them.
    pub(super) whole: Option<u64>,
    /// The price of its checkpoint, or 0 if its owner is charged that price already.
    pub(super) price: u64,
    /// Whether the checkpoint was forgotten since. Such a put can't be finished.
    pub(super) forgotten: bool,
    /// Whether nothing of the checkpoint was known before this put.
    pub(super) is_first: bool,
}

impl Catalog {
    /// Begins a put: reserves the version and the space of the shard. `free` is the free space of the
    /// disk.
    ///
    /// # Errors
    /// When the shard is here or being written, its version belongs to another checkpoint, or there is no
    /// room.
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

    /// Begins a put of a shard that `charged` sends and that will belong to `owned` when it is complete.
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

    /// Bytes to promise to `charged` for a new shard. A shard that is too large as a whole is refused
    /// now, although its later part is promised later.
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

    /// Notes that the file of a shard will have `wanted` bytes soon and has `written` bytes on the disk
    /// now, and promises more space if needed.
    ///
    /// # Errors
    /// When there is not enough space, or the checkpoint was forgotten.
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

    /// The checkpoint of a shard that is being written, and whose space the shard takes. `None` if the checkpoint was
    /// forgotten.
    pub fn put_of(&self, id: PutId) -> Option<(Key, Who<OwnerId>)> {
        let put = self.puts.get(&id).filter(|put| !put.forgotten)?;
        Some((put.key, put.charged))
    }

    /// How many shards of a checkpoint are being written in the space of `who`.
    pub fn puts_of(&self, key: Key, who: Who<OwnerId>) -> usize {
        let of = |put: &&Put| (put.key, put.charged) == (key, who) && !put.forgotten;
        self.puts.values().filter(of).count()
    }

    /// To whom a checkpoint belongs that is not committed. `None` if it is, or if nothing is known of it.
    pub fn uncommitted_of(&self, key: Key) -> Option<Who<OwnerId>> {
        let known = self.checkpoints.get(&key)?;
        (!known.is_committed).then(|| known.who(key))
    }

    /// Ends a put whose shard is complete and durable.
    ///
    /// # Errors
    /// When its checkpoint was forgotten. The caller then has to remove the file.
    pub fn finish_put(&mut self, now: Millis, id: PutId, shard: Shard) -> Result<(), Denied> {
        let key = self.check_put(id)?;
        self.end_put(id);
        self.add_shard(key, shard);
        self.renew(key, now.after(UNCOMMITTED_LIFETIME));
        Ok(())
    }

    /// Whether a shard is here, or being written by the same member.
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
            // The checkpoint was forgotten, and its id may stand for a new one now. So the put is not
            // counted there.
            return;
        }
        if let Some(checkpoint) = self.checkpoints.get_mut(&put.key) {
            checkpoint.puts -= 1;
        }
    }
}

/// Bytes of the file of a shard with about `expected` bytes of blocks, its table included. `None` if the
/// size is not known.
pub(super) const fn whole_file(expected: u64) -> Option<u64> {
    if expected == 0 {
        return None;
    }
    Some(expected.saturating_add(expected / 512).saturating_add(4096))
}
