//! Opens a data directory.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use super::error::StoreError;
use super::layout::{self, FENCES, MANIFESTS, NOTICES, SHARDS, VOIDS};
use super::load::{self, Loaded};
use super::store::{Lent, Store};
use super::{fences, voids};
use crate::core::{Catalog, Millis};
use crate::disk::Disk;

impl Store {
    /// Opens a data directory: removes unfinished files, and enters complete ones in the books.
    /// `unix_seconds` is the wall clock.
    ///
    /// # Errors
    /// When the data directory can't be read, or its directories can't be created.
    pub fn open(
        disk: Arc<dyn Disk>,
        lent: Lent,
        now: Millis,
        unix_seconds: u64,
    ) -> Result<(Self, Loaded), StoreError> {
        for dir in [layout::INCOMING, SHARDS, MANIFESTS, NOTICES, FENCES, VOIDS] {
            disk.create_dir(Path::new(dir))
                .map_err(|failed| StoreError::Disk {
                    what: "making a directory",
                    cause: io::Error::other(failed.to_string()),
                })?;
        }
        let failed = || StoreError::disk("reading the data directory");
        load::remove_incoming(&*disk).map_err(failed())?;
        let mut catalog = Catalog::default();
        let mut loaded = Loaded::default();
        let mut enter = |found| loaded.enter(&*disk, &mut catalog, found, now, unix_seconds);
        load::scan(&*disk, &mut enter).map_err(failed())?;
        fences::load(&*disk, &mut catalog).map_err(failed())?;
        let capacity = match lent.capacity {
            Some(capacity) => capacity,
            None => {
                let free = disk.free_bytes().map_err(StoreError::disk("free space"))?;
                catalog.ledger().used().saturating_add(free / 10 * 9)
            }
        };
        catalog.lend(capacity, lent.quota.of(capacity));
        let voids = voids::load(&*disk).map_err(failed())?;
        for list in voids.values() {
            catalog.drop_void_bids(list.owner(), list.serials_below());
        }
        let store = Self {
            disk,
            catalog: Mutex::new(catalog),
            changes: Mutex::new(()),
            voids: Mutex::new(voids),
            next_incoming: AtomicU64::new(0),
            is_poisoned: AtomicBool::new(false),
            agreed_clock: AtomicU64::new(0),
            broken: Mutex::default(),
            leaving: Mutex::default(),
        };
        // The daemon may have ended after it had entered a notice and before it had removed what is gone.
        let gone = store.catalog().gone_keys();
        store.remove_gone(now, &gone)?;
        let fences = store.catalog().all_fences_gone();
        store.remove_fences(&fences)?;
        Ok((store, loaded))
    }
}
