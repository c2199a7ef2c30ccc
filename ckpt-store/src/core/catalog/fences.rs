//! Who may be asked about the successors of a checkpoint, and what that costs its owner.

use codec::JobTag;
use codec::notice::Words;

use super::{Catalog, Denied, Key};
use crate::core::fence::{Acceptor, Fence, Fences};
use crate::core::ledger::CHECKPOINT_BYTES;
use crate::core::places::Who;
use codec::OwnerId;

impl Catalog {
    /// What was promised of successors.
    pub const fn fences(&self) -> &Fences {
        &self.fences
    }

    /// What is known of the successors of a checkpoint, when `who` asks. A host that has none of the
    /// checkpoint and has never promised anything is no witness: it may have forgotten it.
    ///
    /// # Errors
    /// When it is no witness, or can't become one.
    pub fn fence(&self, who: Who<OwnerId>, key: Key, job_tag: JobTag) -> Result<Fence, Denied> {
        if self.fences.is_damaged(key) {
            return Err(Denied::FenceDamaged);
        }
        let fence = match self.fences.get(key) {
            Some(fence) => *fence,
            None => self.new_fence(key, who.grant).ok_or(Denied::NotFound)?,
        };
        if fence.job_tag != job_tag {
            return Err(Denied::NotFound);
        }
        if self.fences.get(key).is_none() && !self.fences.has_room(who) {
            return Err(Denied::TooManyFences);
        }
        Ok(fence)
    }

    /// A fence of a checkpoint that is committed here, and of which nothing was promised yet.
    pub fn new_fence(&self, key: Key, grant: Option<OwnerId>) -> Option<Fence> {
        let known = self.checkpoints.get(&key)?;
        known.is_committed.then(|| Fence {
            job_tag: known.job_tag,
            created: known.created,
            grant,
            acceptor: Acceptor::new(),
        })
    }

    /// Whether a checkpoint is the newest of its job that is committed here.
    pub fn is_newest(&self, key: Key) -> bool {
        let Some(known) = self.checkpoints.get(&key) else {
            return false;
        };
        let above = (known.job_tag, known.version, key.checkpoint);
        let mut newer = self.entries_from(key.owner, above).skip(1);
        let owner = key.owner;
        known.is_committed
            && !newer.any(|(_, checkpoint)| self.is_committed(Key { owner, checkpoint }))
    }

    /// Whether there is space for what is promised first of a checkpoint: `free` is what the disk has.
    ///
    /// # Errors
    /// When there is none, or not for this owner.
    pub fn check_fence_space(&self, who: Who<OwnerId>, key: Key, free: u64) -> Result<(), Denied> {
        if self.fences.get(key).is_none() {
            self.ledger.check(who, CHECKPOINT_BYTES, free)?;
        }
        Ok(())
    }

    /// Enters what is on the disk.
    pub fn fenced(&mut self, key: Key, fence: Fence) {
        if self.fences.enter(key, fence) {
            self.ledger.store(key.owner, CHECKPOINT_BYTES);
        }
    }

    /// Notes that what was promised of a checkpoint can't be read.
    pub fn fence_damaged(&mut self, key: Key) {
        self.fences.damaged(key);
    }

    /// Strikes what is not on the disk any more.
    pub fn fence_removed(&mut self, key: Key) {
        if self.fences.remove(key).is_some() {
            self.ledger.remove(key.owner, CHECKPOINT_BYTES);
        }
    }

    /// Fences of checkpoints that this says are gone.
    pub fn fences_gone(&self, words: &Words) -> Vec<Key> {
        self.fences.gone(words)
    }

    /// Fences of checkpoints that are gone by what owners said last.
    pub fn all_fences_gone(&self) -> Vec<Key> {
        let all = self.notices.iter();
        all.flat_map(|(_, words)| self.fences.gone(words)).collect()
    }

    /// Fences of jobs whose lease is over when it is `clock`, Unix seconds.
    pub fn fences_outlived(&self, clock: u64) -> Vec<Key> {
        let is_over = |key: &Key, fence: &Fence| {
            let lease = self.notices.lease((key.owner, fence.job_tag));
            lease.is_some_and(|lease| lease.until <= clock)
        };
        let all = self.fences.iter();
        let over = all.filter(|(key, fence)| is_over(key, fence));
        over.map(|(key, _)| *key).collect()
    }
}
