//! A shard that is being received: its blocks, its space, and its end.

use std::sync::Arc;

use codec::geometry::{BLOCK_BYTES_MAX, PAGE_ROWS};
use codec::shard_file::{Header, PAGES_MAX, ShardIdentity};
use codec::{OwnerId, ShardRoot};
use protocol::wire::message::{PutEnd, PutShard, StoredShard};

use super::error::StoreError;
use super::store::Store;
use super::writer::ShardWriter;
use crate::core::places::Who;
use crate::core::{Key, Millis, PutId};

/// Blocks that are written to the disk together.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl Batch {
    /// A batch of this many bytes is worth a write.
    pub const WORTH_BYTES: usize = 512 << 10;

    /// Most blocks in a batch, so that small blocks do not make its list long.
    const BLOCKS_MAX: usize = 4096;

    /// Begins a block of `len` bytes.
    ///
    /// # Errors
    /// When `len` is not a possible length of a block.
    pub fn begin_block(&mut self, len: usize) -> Result<(), StoreError> {
        if len == 0 || len > BLOCK_BYTES_MAX {
            return Err(StoreError::BadRequest("block length"));
        }
        self.lengths.push(len);
        let room = self.bytes.capacity() - self.bytes.len();
        if room < len {
            // Room for the whole batch is reserved at once. Doubling would waste up to a block.
            let usual = Self::WORTH_BYTES.saturating_sub(self.bytes.len());
            self.bytes.reserve_exact(len.max(usual));
        }
        Ok(())
    }

    /// Adds bytes to the block that was begun last.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether the batch is worth a write.
    pub const fn is_full(&self) -> bool {
        self.bytes.len() >= Self::WORTH_BYTES || self.lengths.len() >= Self::BLOCKS_MAX
    }

    /// Whether the batch has no blocks.
    pub const fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// The blocks. The last one may be incomplete.
    pub fn blocks(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.bytes.as_slice();
        self.lengths.iter().map(move |&len| {
            let (block, later) = rest.split_at(len.min(rest.len()));
            rest = later;
            block
        })
    }

    /// Removes all blocks and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.lengths.clear();
    }
}

/// The properties that a manifest promises of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    /// The number of rows.
    pub(super) rows: u64,
    /// The sum of the lengths of its blocks.
    pub(super) block_bytes: u64,
    /// The hash of the shard's outline.
    pub(super) root: ShardRoot,
}

/// A shard that is being written. If it is dropped without [`Upload::finish`], nothing of it is left.
#[derive(Debug)]
pub struct Upload {
    store: Arc<Store>,
    id: PutId,
    writer: Option<ShardWriter>,
    bound: Option<Bound>,
    /// Whether its space belongs to others now: to a shard whose transfer broke off.
    is_passed_on: bool,
}

impl Upload {
    pub(super) const fn new(
        store: Arc<Store>,
        id: PutId,
        writer: ShardWriter,
        bound: Option<Bound>,
    ) -> Self {
        Self {
            store,
            id,
            writer: Some(writer),
            bound,
            is_passed_on: false,
        }
    }

    /// Keeps the rows of a shard whose transfer broke off, if they are worth it: the next save may need them.
    pub fn break_off(mut self, now: Millis) {
        let writer = self.writer.take();
        let Some(writer) = writer.filter(|_| self.bound.is_none()) else {
            return;
        };
        match self.store.keep_broken(now, self.id, writer) {
            Ok(is_kept) => self.is_passed_on = is_kept,
            Err(cause) => tracing::warn!(%cause, "can't keep the rows of a broken transfer"),
        }
    }

    /// Hashes and writes the blocks of `batch`, all of which have to be complete.
    ///
    /// # Errors
    /// When there is no space, the disk fails, or the checkpoint was forgotten.
    pub fn write(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let writer = self.writer.as_mut().ok_or(StoreError::Closed)?;
        let rows = batch.lengths.len() as u64;
        if writer.rows() + rows > PAGES_MAX * PAGE_ROWS {
            return Err(StoreError::BadRequest("number of rows"));
        }
        if let Some(bound) = self.bound {
            let bytes = writer.block_bytes() + batch.bytes.len() as u64;
            if writer.rows() + rows > bound.rows || bytes > bound.block_bytes {
                return Err(StoreError::Mismatch("length"));
            }
        }
        let wanted = writer.len_with(rows, batch.bytes.len() as u64);
        let id = self.id;
        let written = writer.written();
        let store = &self.store;
        let who = || Some(store.catalog().put_of(id)?.1);
        store.with_room(who, |free| {
            store.catalog().grow_put(id, wanted, written, free)
        })?;
        for block in batch.blocks() {
            writer
                .push(block)
                .map_err(StoreError::disk("writing a shard"))?;
        }
        Ok(())
    }

    /// Ends the shard: compares it with what the client states, syncs its file and gives the file its
    /// final name.
    ///
    /// # Errors
    /// When the shard differs from what the client states, the disk fails, or the checkpoint was
    /// forgotten.
    pub fn finish(mut self, now: Millis, end: &PutEnd) -> Result<StoredShard, StoreError> {
        let writer = self.writer.take().ok_or(StoreError::Closed)?;
        if writer.rows() == 0 {
            return Err(StoreError::BadRequest("no rows"));
        }
        let written = writer
            .finish()
            .map_err(StoreError::disk("writing a shard"))?;
        let actual = *written.shard();
        if actual.rows != end.rows {
            return Err(StoreError::Mismatch("number of rows"));
        }
        if actual.root != end.root {
            return Err(StoreError::Mismatch("root"));
        }
        if let Some(bound) = self.bound
            && (actual.rows, actual.block_bytes, actual.root)
                != (bound.rows, bound.block_bytes, bound.root)
        {
            return Err(StoreError::Mismatch("root in the manifest"));
        }
        let (shard, temp) = written
            .sync()
            .map_err(StoreError::disk("syncing a shard"))?;
        self.store.publish_shard(now, self.id, shard, temp)?;
        Ok(StoredShard {
            rows: shard.rows,
            root: shard.root,
        })
    }
}

impl Store {
    /// Begins to write a shard.
    ///
    /// # Errors
    /// When the catalog denies it, or its file can't be created.
    pub fn begin_put(
        self: &Arc<Self>,
        now: Millis,
        unix_seconds: u64,
        who: impl Into<Who<OwnerId>>,
        put: &PutShard,
    ) -> Result<Upload, StoreError> {
        let who = who.into();
        self.check_writable()?;
        let shard = put.shard().ok_or(StoreError::BadRequest("shard number"))?;
        let key = Key {
            owner: who.member,
            checkpoint: put.claim.checkpoint,
        };
        // The client begins the shard once more.
        self.drop_broken_of(key, Some(shard));
        let begin = |free| self.catalog().begin_put(now, who, put, shard, free);
        let id = self.with_room(|| Some(who), begin)?;
        self.begin_upload(unix_seconds, who.member, put, id, None)
    }

    /// Creates the file of a shard whose put has begun in the catalog.
    pub(super) fn begin_upload(
        self: &Arc<Self>,
        unix_seconds: u64,
        owner: OwnerId,
        put: &PutShard,
        id: PutId,
        bound: Option<Bound>,
    ) -> Result<Upload, StoreError> {
        let shard = put.shard().ok_or(StoreError::BadRequest("shard number"))?;
        let header = Header {
            identity: ShardIdentity {
                checkpoint: put.claim.checkpoint,
                redundancy: put.redundancy,
                shard,
            },
            owner,
            job_tag: put.claim.job_tag,
            version: put.claim.version,
            created: unix_seconds,
        };
        match ShardWriter::create(Arc::clone(&self.disk), self.incoming(), header) {
            Ok(writer) => Ok(Upload::new(Arc::clone(self), id, writer, bound)),
            Err(cause) => {
                self.catalog().abort_put(id);
                Err(StoreError::disk("making a shard file")(cause))
            }
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // The file is removed before its space is given to others.
        self.writer = None;
        if !self.is_passed_on {
            self.store.catalog().abort_put(self.id);
        }
    }
}
