//! Reads shards: to send them to clients, and to find damage.

use std::io;
use std::sync::PoisonError;
use std::time::Duration;

use codec::{OwnerId, ShardIndex};
use protocol::wire::limits::ROWS_PER_READ_MAX;
use protocol::wire::message::{RowRun, ShardName};

use super::error::StoreError;
use super::layout::shard_path;
use super::reader::{RowBytes, ShardReader};
use super::store::Store;
use crate::core::{Denied, Key};

/// The result of reading a whole shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scrubbed {
    /// The shard is intact.
    Good,
    /// The shard was removed meanwhile.
    Gone,
    /// The shard was damaged and has been removed, for this reason.
    Dropped(String),
}

impl Store {
    /// Opens a complete shard of an owner.
    ///
    /// # Errors
    /// When the shard is not here, or its file is damaged.
    pub fn open_shard(&self, owner: OwnerId, name: &ShardName) -> Result<ShardReader, StoreError> {
        let key = Key {
            owner,
            checkpoint: name.checkpoint,
        };
        let shard = *self.catalog().shard(key, name.shard)?;
        let file = match self.disk.open(&shard_path(key, shard.identity.shard)) {
            Ok(file) => file,
            // The shard was removed since the lookup.
            Err(_) if self.catalog().shard(key, name.shard).is_err() => {
                return Err(Denied::NotFound.into());
            }
            Err(cause) => {
                if cause.kind() == io::ErrorKind::NotFound {
                    self.drop_lost(key, shard.identity.shard);
                }
                return Err(StoreError::disk("opening a shard")(cause));
            }
        };
        let reader = ShardReader::open(file, shard.identity).map_err(StoreError::Damaged)?;
        if reader.footer().root != shard.root {
            return Err(StoreError::Mismatch("root of the file"));
        }
        Ok(reader)
    }

    /// Removes a shard from the books whose file was removed by another program. The host must not claim
    /// to hold it any more.
    fn drop_lost(&self, key: Key, shard: ShardIndex) {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = self.disk.open(&shard_path(key, shard)).is_ok();
        if !is_there && self.catalog().shard(key, shard.number()).is_ok() {
            self.catalog().shard_removed(key, shard);
            tracing::error!(checkpoint = %key.checkpoint, shard = shard.number(), "the file of a shard is missing");
        }
    }

    /// The bytes of one page of a shard's table.
    ///
    /// # Errors
    /// When there is no such page, or it is damaged.
    pub fn page(&self, owner: OwnerId, name: &ShardName, page: u64) -> Result<Vec<u8>, StoreError> {
        let found = self.open_shard(owner, name)?.page(page);
        let (bytes, _) = found
            .map_err(StoreError::Damaged)?
            .ok_or(Denied::NotFound)?;
        Ok(bytes)
    }

    /// The positions in the file of the blocks of these rows.
    ///
    /// # Errors
    /// When there are no such rows, or the table is damaged.
    pub fn rows(
        &self,
        owner: OwnerId,
        name: &ShardName,
        runs: &[RowRun],
    ) -> Result<RowBytes, StoreError> {
        let mut left = ROWS_PER_READ_MAX;
        for run in runs {
            let fits = left.checked_sub(run.count).filter(|_| run.count > 0);
            left = fits.ok_or(StoreError::BadRequest("number of rows"))?;
        }
        if runs.is_empty()
            || !runs.is_sorted_by(|one, next| one.end().is_some_and(|end| end <= next.first))
        {
            return Err(StoreError::BadRequest("runs of rows"));
        }
        let found = self.open_shard(owner, name)?.rows(runs);
        Ok(found
            .map_err(StoreError::Damaged)?
            .ok_or(Denied::NotFound)?)
    }

    /// Reads a whole shard, at most `bytes_per_second`, and removes the shard if it is damaged. A shard
    /// that seems damaged is read a second time first, because a fault of the cable need not repeat.
    ///
    /// # Errors
    /// When a damaged shard can't be removed.
    pub fn scrub(
        &self,
        key: Key,
        shard: ShardIndex,
        bytes_per_second: u64,
    ) -> Result<Scrubbed, StoreError> {
        let mut why = String::new();
        for _ in 0..2 {
            match self.read_whole(key, shard, bytes_per_second) {
                Ok(()) => return Ok(Scrubbed::Good),
                Err(cause) => why = cause.to_string(),
            }
            if self.catalog().shard(key, shard.number()).is_err() {
                return Ok(Scrubbed::Gone);
            }
        }
        let _changes = self.change()?;
        if self.catalog().shard(key, shard.number()).is_err() {
            return Ok(Scrubbed::Gone);
        }
        match self.remove(&shard_path(key, shard)) {
            // The file has been removed already.
            Err(StoreError::Disk { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
        self.catalog().shard_removed(key, shard);
        Ok(Scrubbed::Dropped(why))
    }

    fn read_whole(&self, key: Key, shard: ShardIndex, rate: u64) -> Result<(), StoreError> {
        let name = ShardName {
            checkpoint: key.checkpoint,
            shard: shard.number(),
        };
        let reader = self.open_shard(key.owner, &name)?;
        let checked = reader.check_slowly(|bytes| {
            let seconds = bytes as f64 / rate.max(1) as f64;
            std::thread::sleep(Duration::from_secs_f64(seconds));
        });
        checked.map_err(StoreError::Damaged)
    }
}
