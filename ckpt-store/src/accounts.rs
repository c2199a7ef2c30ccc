//! The file `accounts.json` in the data directory: the names of the submitters that store shards here or
//! came with a job key, from their certificates. The names are shown to the owner of the machine and to
//! admins. The keys are those whose void job keys are asked for at other hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use codec::OwnerId;
use tracing::warn;

use crate::json_file;

/// Most names that are remembered. When there are more, the one with the smallest key is forgotten, and
/// learnt again when its owner comes back.
const NAMES_MAX: usize = 4096;

/// No such file is longer, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// In the certificate of a job key, this follows the name of the owner.
const JOB_KEY_SUFFIX: &str = "/job-key";

/// The names of submitters, by public key.
pub type Names = BTreeMap<OwnerId, String>;

/// Remembers the names of submitters.
#[derive(Debug)]
pub struct Accounts {
    data: PathBuf,
    state: Mutex<(Names, bool)>,
}

impl Accounts {
    /// Reads the file in the data directory. A file that can't be read counts as empty, with a line in
    /// the log.
    pub fn open(data: PathBuf) -> Self {
        let names = load(&data).unwrap_or_else(|cause| {
            warn!(%cause, file = %path(&data).display(), "can't read a file of the data directory: starting without it");
            Names::new()
        });
        Self {
            data,
            state: Mutex::new((names, false)),
        }
    }

    /// Notes a submitter that stores something or comes with a job key. `name` is the one in its
    /// certificate.
    pub fn enter(&self, owner: OwnerId, name: &str) {
        let name = name.strip_suffix(JOB_KEY_SUFFIX).unwrap_or(name);
        let (names, is_changed) = &mut *self.lock();
        if names.get(&owner).is_some_and(|known| known == name) {
            return;
        }
        if names.len() >= NAMES_MAX {
            names.pop_first();
        }
        names.insert(owner, name.to_owned());
        *is_changed = true;
    }

    /// The keys of all submitters that are remembered.
    pub fn owners(&self) -> BTreeSet<OwnerId> {
        self.lock().0.keys().copied().collect()
    }

    /// The name of a submitter, if it is known.
    pub fn name(&self, owner: &OwnerId) -> Option<String> {
        self.lock().0.get(owner).cloned()
    }

    /// Writes the file if there are new names. Blocks on the disk.
    pub fn write(&self) {
        let names = {
            let (names, is_changed) = &mut *self.lock();
            if !std::mem::take(is_changed) {
                return;
            }
            names.clone()
        };
        if let Err(cause) = save(&self.data, &names) {
            warn!(%cause, "can't write the names of submitters");
        }
    }

    fn lock(&self) -> MutexGuard<'_, (Names, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn path(data: &Path) -> PathBuf {
    data.join("accounts.json")
}

/// Reads the file. Without a file no names are known.
///
/// # Errors
/// When the file can't be read. Entries that are not valid are skipped.
pub fn load(data: &Path) -> io::Result<Names> {
    let Some(text) = json_file::read::<BTreeMap<String, String>>(&path(data), FILE_BYTES_MAX)?
    else {
        return Ok(Names::new());
    };
    let names = text
        .into_iter()
        .filter_map(|(key, name)| Some((OwnerId::from_hex(&key)?, name)));
    Ok(names.take(NAMES_MAX).collect())
}

fn save(data: &Path, names: &Names) -> io::Result<()> {
    let text: BTreeMap<String, &String> =
        names.iter().map(|(key, name)| (key.hex(), name)).collect();
    json_file::write(data, &path(data), &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_without_the_mark_of_a_job_key() {
        let dir = tempfile::tempdir().unwrap();
        let accounts = Accounts::open(dir.path().to_owned());
        accounts.enter(OwnerId([1; 32]), "ada/job-key");
        accounts.enter(OwnerId([2; 32]), "bob");
        accounts.write();
        let names = load(dir.path()).unwrap();
        assert_eq!(names[&OwnerId([1; 32])], "ada");
        let again = Accounts::open(dir.path().to_owned());
        assert_eq!(again.name(&OwnerId([2; 32])).as_deref(), Some("bob"));
        assert_eq!(again.name(&OwnerId([3; 32])), None);
    }
}
