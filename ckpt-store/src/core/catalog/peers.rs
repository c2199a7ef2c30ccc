//! What other donors ask of the books, and which shards they bring.

use codec::{CheckpointId, JobTag, OwnerId, ShardIndex};
use protocol::wire::message::PutShard;

use super::{Catalog, Checkpoint, Denied, Key, PutId, Shard};
use crate::core::Millis;
use crate::core::ledger::CHECKPOINT_BYTES;
use crate::core::places::Who;

impl Catalog {
    /// Begins a put of a shard that `donor` has rebuilt and that will belong to `owned`. Until the shard
    /// is complete, its space is charged to the donor. It does not keep the owner or another donor from
    /// sending the same shard.
    ///
    /// # Errors
    /// When the shard is here, or there is no space for the owner or for the donor.
    pub fn begin_rebuilt(
        &mut self,
        now: Millis,
        (owned, donor): (Who<OwnerId>, OwnerId),
        put: &PutShard,
        shard: ShardIndex,
        free: u64,
    ) -> Result<PutId, Denied> {
        self.first_promise(owned, put.expected_bytes, CHECKPOINT_BYTES, free)?;
        self.begin(now, owned, donor.into(), put, shard, free)
    }

    /// The owner of a shard, if the shard is here and committed. If several owners chose the same id, the
    /// first one that has this shard here.
    pub fn owner_of_shard(&self, checkpoint: CheckpointId, number: u8) -> Option<OwnerId> {
        let of_id = self
            .all_committed()
            .filter(|(key, _)| key.checkpoint == checkpoint);
        let mut keys = of_id.map(|(key, _)| key);
        let found = keys.find(|key| self.shard(*key, number).is_ok());
        found.map(|key| key.owner)
    }

    /// The job and the shards of a checkpoint, if the checkpoint is committed.
    pub fn job_and_shards(&self, key: Key) -> Option<(JobTag, &[Shard])> {
        let one = self.checkpoints.get(&key)?;
        one.is_committed
            .then_some((one.job_tag, one.shards.as_slice()))
    }

    /// Committed checkpoints after `after` of which shards are here, in ascending order.
    pub fn held_after(&self, after: Option<Key>) -> impl Iterator<Item = (Key, JobTag, &[Shard])> {
        self.checkpoints
            .after(after)
            .filter(|(_, one)| one.is_committed && !one.shards.is_empty())
            .map(|(key, one)| (key, one.job_tag, one.shards.as_slice()))
    }

    /// Ends a put of which nothing is left on the disk. If a donor began the put and nothing else of the
    /// checkpoint is known, the claim is removed, too: the owner never made it.
    pub fn abort_put(&mut self, id: PutId) {
        let put = self.puts.get(&id).copied();
        self.end_put(id);
        let Some(put) = put.filter(|put| put.is_first && put.charged.member != put.key.owner)
        else {
            return;
        };
        let known = self.checkpoints.get(&put.key);
        if !put.forgotten && known.is_some_and(Checkpoint::is_only_claimed) {
            self.forgotten(Millis::default(), put.key);
        }
    }
}
