//! Collects the reports of submitters that checked shards here, and writes them to a file now and then.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use codec::OwnerId;
use protocol::wire::message::Audit;
use tracing::warn;

use crate::audit_file;
use crate::core::audits::Audits;

/// The reports, and the data directory with their file.
#[derive(Debug)]
pub struct Auditing {
    data: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    audits: Audits,
    changed: bool,
}

impl Auditing {
    /// Reads the file in the data directory. A file that can't be read counts as empty, with a line in
    /// the log: no decision depends on it.
    pub fn open(data: PathBuf) -> Self {
        let audits = audit_file::load(&data).unwrap_or_else(|cause| {
            warn!(%cause, file = %audit_file::path(&data).display(), "can't read a file of the data directory: starting without it");
            Audits::default()
        });
        Self {
            data,
            state: Mutex::new(State {
                audits,
                changed: false,
            }),
        }
    }

    /// Enters the report of a submitter. `now` is in Unix seconds.
    pub fn enter(&self, by: OwnerId, audit: Audit, now: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.audits.enter(by, audit, now);
        state.changed = true;
    }

    /// How many checks failed since `time`, in Unix seconds, as far as they are remembered.
    pub fn failed_since(&self, time: u64) -> u64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = state.audits.failures().filter(|one| one.at >= time);
        lately.count() as u64
    }

    /// Writes the file if there are new reports. Blocks on the disk.
    pub fn write(&self) {
        let audits = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if !std::mem::take(&mut state.changed) {
                return;
            }
            state.audits.clone()
        };
        if let Err(cause) = audit_file::save(&self.data, &audits) {
            warn!(%cause, "can't write the results of submitters' checks");
        }
    }
}
