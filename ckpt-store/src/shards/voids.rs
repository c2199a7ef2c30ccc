//! What is asked because of job keys: which keys their owners declared void, and which job a checkpoint
//! belongs to.
//!
//! ```text
//! voids/<owner>.void      the last list of each owner
//! ```

use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use codec::grant::{Terms, VOID_BYTES_MAX, VoidList};
use codec::manifest::Manifest;
use codec::{CheckpointId, JobTag, OwnerId};

use super::error::StoreError;
use super::layout::VOIDS;
use super::load::read_small;
use super::store::{Store, Voids};
use super::writer::TempFile;
use crate::core::catalog::Moment;
use crate::core::{Denied, Key};
use crate::disk::Disk;

/// Most owners whose list is kept.
const OWNERS_MAX: usize = 4096;

fn void_path(owner: OwnerId) -> PathBuf {
    Path::new(VOIDS).join(format!("{}.void", owner.hex()))
}

/// Reads all lists. A file that can't be read is skipped, with a line in the log.
///
/// # Errors
/// When the directory can't be read.
pub(super) fn load(disk: &dyn Disk) -> std::io::Result<Voids> {
    let mut voids = Voids::new();
    for name in disk.list(Path::new(VOIDS))? {
        let path = Path::new(VOIDS).join(&name);
        let list = read_small(disk, &path, VOID_BYTES_MAX)
            .map_err(|cause| cause.to_string())
            .and_then(|bytes| VoidList::parse(&bytes).map_err(|cause| cause.to_string()));
        match list {
            Ok(list) if void_path(list.owner()) == path => {
                voids.insert(list.owner(), list);
            }
            Ok(_) => tracing::error!(path = %path.display(), "ignored a list of another owner"),
            Err(cause) => {
                tracing::error!(path = %path.display(), cause, "ignored an unreadable file")
            }
        }
    }
    Ok(voids)
}

impl Store {
    /// Enters an owner's list of void job keys. An older list changes nothing. Returns whether the list
    /// was newer.
    ///
    /// # Errors
    /// When there are too many owners, or the disk fails.
    pub fn enter_voids(&self, list: &VoidList) -> Result<bool, StoreError> {
        let owner = list.owner();
        {
            let voids = self.voids();
            let known = voids.get(&owner);
            if known.is_some_and(|known| known.serials_below() >= list.serials_below()) {
                return Ok(false);
            }
            if known.is_none() && voids.len() >= OWNERS_MAX {
                return Err(Denied::TooManyNotices.into());
            }
        }
        self.write_void(&void_path(owner), list.bytes())?;
        {
            let mut voids = self.voids();
            let known = voids.get(&owner).map_or(0, VoidList::serials_below);
            if known < list.serials_below() {
                voids.insert(owner, list.clone());
            }
        }
        self.catalog().drop_void_bids(owner, list.serials_below());
        tracing::info!(%owner, below = list.serials_below(), "job keys were revoked by their owner");
        Ok(true)
    }

    /// The lists of these owners, of those that have one.
    pub fn voids_of(&self, owners: &[OwnerId]) -> Vec<VoidList> {
        let voids = self.voids();
        owners
            .iter()
            .filter_map(|owner| voids.get(owner).cloned())
            .collect()
    }

    /// Whether a job key was declared void by its owner.
    pub fn is_void(&self, terms: &Terms) -> bool {
        let voids = self.voids();
        voids
            .get(&terms.owner)
            .is_some_and(|list| list.voids(terms))
    }

    /// The job keys of an owner with smaller serials are void.
    pub(super) fn serials_below(&self, owner: OwnerId) -> u64 {
        self.voids().get(&owner).map_or(0, VoidList::serials_below)
    }

    /// The job of a checkpoint, and whether the checkpoint is committed.
    pub fn job_of(&self, owner: OwnerId, checkpoint: CheckpointId) -> Option<(JobTag, bool)> {
        let key = Key { owner, checkpoint };
        let catalog = self.catalog();
        Some((catalog.job_of(key)?, catalog.is_committed(key)))
    }

    /// Whether no job key may remove this checkpoint now.
    pub fn is_kept_from_job_keys(&self, now: Moment, owner: OwnerId, id: CheckpointId) -> bool {
        let key = Key {
            owner,
            checkpoint: id,
        };
        self.catalog().is_kept_from_job_keys(now, key)
    }

    /// Reads the manifest of a committed checkpoint.
    ///
    /// # Errors
    /// When the manifest is not here, or can't be read.
    pub fn manifest_of(&self, owner: OwnerId, id: CheckpointId) -> Result<Manifest, StoreError> {
        self.manifest(Key {
            owner,
            checkpoint: id,
        })
    }

    fn voids(&self) -> MutexGuard<'_, Voids> {
        self.voids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_void(&self, to: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let _changes = self.change()?;
        let temp = self.write_unnamed(bytes)?;
        temp.replace(to)
            .map_err(|failed| self.changed("naming a small file", failed))
    }

    /// Writes and syncs a small file that has no final name yet.
    pub(super) fn write_unnamed(&self, bytes: &[u8]) -> Result<TempFile, StoreError> {
        let path = self.incoming();
        let failed = || StoreError::disk("writing a small file");
        let mut file = self.disk.create(&path).map_err(failed())?;
        let temp = TempFile::new(Arc::clone(&self.disk), path);
        file.append(bytes).map_err(failed())?;
        file.sync().map_err(failed())?;
        Ok(temp)
    }
}
