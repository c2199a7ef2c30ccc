//! The file `checking.json` in the data directory: what it costs to have other hosts prove their claims,
//! and to prove to them what this host holds. It is shown to the owner of the machine.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::core::census::Census;
use crate::json_file;

/// No such file is longer, bytes.
const FILE_BYTES_MAX: u64 = 1 << 16;

/// What proofs have cost since they were first counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckingCosts {
    /// When the first proof was counted, in Unix seconds; 0 if none was.
    pub since: u64,
    /// Proofs that other hosts gave.
    pub passed: u64,
    /// Proofs that other hosts failed to give.
    pub failed: u64,
    /// Bytes that were received for these.
    pub received_bytes: u64,
    /// Proofs that this host gave to other hosts and to owners.
    pub given: u64,
    /// Bytes that were sent for these.
    pub sent_bytes: u64,
}

/// Counts what proofs cost, and writes the counts to the file now and then.
#[derive(Debug)]
pub struct Checking {
    data: PathBuf,
    now: fn() -> u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    costs: CheckingCosts,
    changed: bool,
    /// The counts of checkpoints from the last round of repair, and when that was, in Unix seconds.
    counted: (u64, Census),
}

impl Checking {
    /// Reads the file in the data directory. `now` returns the wall clock in Unix seconds. A file that
    /// can't be read counts as empty, with a line in the log: no decision depends on it.
    pub fn open(data: PathBuf, now: fn() -> u64) -> Self {
        let costs = load(&data).unwrap_or_else(|cause| {
            warn!(%cause, file = %path(&data).display(), "can't read a file of the data directory: starting without it");
            CheckingCosts::default()
        });
        Self {
            data,
            now,
            state: Mutex::new(State {
                costs,
                changed: false,
                counted: (0, Census::default()),
            }),
        }
    }

    /// Counts that another host gave a proof, or failed to, and the bytes that were received for it.
    pub fn asked(&self, passed: bool, bytes: u64) {
        self.count(|costs| {
            costs.passed += u64::from(passed);
            costs.failed += u64::from(!passed);
            costs.received_bytes += bytes;
        });
    }

    /// Counts that this host gave a proof of `bytes`.
    pub fn answered(&self, bytes: u64) {
        self.count(|costs| {
            costs.given += 1;
            costs.sent_bytes += bytes;
        });
    }

    /// Sets the counts of checkpoints of a round of repair.
    pub fn count_all(&self, census: Census) {
        self.lock().counted = ((self.now)(), census);
    }

    /// The last counts of checkpoints, and when they were made, in Unix seconds; 0 if there are none.
    pub fn counted(&self) -> (u64, Census) {
        self.lock().counted.clone()
    }

    /// What proofs have cost so far.
    pub fn costs(&self) -> CheckingCosts {
        self.lock().costs
    }

    fn count(&self, change: impl FnOnce(&mut CheckingCosts)) {
        let mut state = self.lock();
        change(&mut state.costs);
        if state.costs.since == 0 {
            state.costs.since = (self.now)();
        }
        state.changed = true;
    }

    /// Writes the file if there are new counts. Blocks on the disk.
    pub fn write(&self) {
        let costs = {
            let mut state = self.lock();
            if !std::mem::take(&mut state.changed) {
                return;
            }
            state.costs
        };
        if let Err(cause) = save(&self.data, &costs) {
            warn!(%cause, "can't write the costs of proofs");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn path(data: &Path) -> PathBuf {
    data.join("checking.json")
}

/// Reads the file. Without a file the counts are zero.
///
/// # Errors
/// When the file can't be read.
pub fn load(data: &Path) -> io::Result<CheckingCosts> {
    let costs = json_file::read(&path(data), FILE_BYTES_MAX)?;
    Ok(costs.unwrap_or_default())
}

fn save(data: &Path, costs: &CheckingCosts) -> io::Result<()> {
    json_file::write(data, &path(data), costs)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn counts_are_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let checking = Checking::open(dir.path().to_owned(), || 7);
        checking.asked(true, 3000);
        checking.asked(false, 100);
        checking.answered(2000);
        checking.write();
        let expected = CheckingCosts {
            since: 7,
            passed: 1,
            failed: 1,
            received_bytes: 3100,
            given: 1,
            sent_bytes: 2000,
        };
        assert_eq!(load(dir.path()).unwrap(), expected);
        let again = Checking::open(dir.path().to_owned(), || 9);
        again.answered(1);
        again.write();
        assert_eq!(load(dir.path()).unwrap().since, 7);
        fs::write(path(dir.path()), "{").unwrap();
        assert!(load(dir.path()).is_err());
    }
}
