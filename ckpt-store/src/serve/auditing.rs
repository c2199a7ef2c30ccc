//! Collects what submitters found, and writes it down now and then.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use codec::OwnerId;
use protocol::wire::message::Audit;
use tracing::warn;

use crate::audit_file;
use crate::core::audits::Audits;

/// What submitters found.
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
    /// Reads what is in the data directory. A file that can't be read counts as empty, with a line in
    /// the log: nothing depends on it.
    pub fn open(data: PathBuf) -> Self {
        let audits = audit_file::load(&data).unwrap_or_else(|cause| {
            warn!(%cause, file = %audit_file::path(&data).display(), "starting without it");
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

    /// Enters what a submitter found.
    pub fn enter(&self, by: OwnerId, audit: Audit, now: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.audits.enter(by, audit, now);
        state.changed = true;
    }

    /// Checks that failed since this time, Unix seconds, as far as they are remembered.
    pub fn failed_since(&self, time: u64) -> u64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = state.audits.failures().filter(|one| one.at >= time);
        lately.count() as u64
    }

    /// Writes down what is new. Waits for the disk.
    pub fn write(&self) {
        let audits = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if !std::mem::take(&mut state.changed) {
                return;
            }
            state.audits.clone()
        };
        if let Err(cause) = audit_file::save(&self.data, &audits) {
            warn!(%cause, "what submitters found is not kept");
        }
    }
}
