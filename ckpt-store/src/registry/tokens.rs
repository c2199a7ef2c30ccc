//! The file of who joined, and with which token. A member is written to the disk before it gets its
//! certificate.
//!
//! The lines of the file `redeemed` are those of [`crate::core::joiners`].

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use codec::OwnerId;
use protocol::wire::message::JoinerRecord;

use crate::core::joiners::{Joiner, Joiners, NoPlace};
use crate::json_file;

/// Most bytes of the file: more than [`crate::core::joiners`] ever writes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Who joined, and the file that says so.
#[derive(Debug)]
pub(super) struct Redeemed {
    path: PathBuf,
    /// Locked before `joiners`, by whoever changes both. Requests of members need only the other lock, and
    /// wait for no disk.
    file: Mutex<File>,
    joiners: Mutex<Joiners>,
}

/// Why nobody can join with a token.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotRedeemed {
    /// The key gets no place.
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    /// What the token and the key would give is not allowed.
    #[error("{0}")]
    Refused(String),
    /// The file can't be written.
    #[error("the registry can't record it: {0}")]
    Io(#[from] io::Error),
}

impl Redeemed {
    /// Reads the file. A last line that a crash cut off counts as never written.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let text = match fs::metadata(path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => String::new(),
            Err(cause) => return Err(cause),
            Ok(found) if found.len() > FILE_BYTES_MAX => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "too large"));
            }
            Ok(_) => fs::read_to_string(path)?,
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut file = File::options().create(true).append(true).open(path)?;
        if whole.len() < text.len() {
            file.write_all(b"\n")?;
        }
        file.sync_all()?;
        if let Some(dir) = path.parent() {
            File::open(dir)?.sync_all()?;
        }
        let joiners = Joiners::read(whole);
        Ok(Self {
            path: path.to_owned(),
            file: Mutex::new(file),
            joiners: Mutex::new(joiners),
        })
    }

    /// Redeems a token once: `sign` makes the member and what it is sent. The same key may come with its
    /// token again until the token expires.
    pub(super) fn redeem<T>(
        &self,
        (token, key): ([u8; 16], OwnerId),
        now: u64,
        sign: impl FnOnce(&Joiners) -> Result<(Joiner, T), NotRedeemed>,
    ) -> Result<T, NotRedeemed> {
        let mut file = locked(&self.file);
        let made = {
            let joiners = locked(&self.joiners);
            joiners.check(token, key)?;
            sign(&joiners)?
        };
        let (joiner, signed) = made;
        file.write_all(joiner.line().as_bytes())?;
        file.sync_data()?;
        locked(&self.joiners).enter(joiner, now);
        Ok(signed)
    }

    /// Notes that a member was heard.
    pub(super) fn hear(&self, key: &OwnerId, now: u64) {
        locked(&self.joiners).hear(key, now);
    }

    /// Up to `most` members with keys above `after`, and whether there are more.
    pub(super) fn page(&self, after: Option<OwnerId>, most: usize) -> (Vec<JoinerRecord>, bool) {
        locked(&self.joiners).page(after, most)
    }

    /// Writes the file anew if the times at which members were heard are far behind, or `always`.
    pub(super) fn keep(&self, always: bool) -> io::Result<()> {
        let mut file = locked(&self.file);
        let text = {
            let mut joiners = locked(&self.joiners);
            if !always && !joiners.is_behind() {
                return Ok(());
            }
            joiners.to_text()
        };
        let dir = protocol::identity::directory_of(&self.path);
        json_file::replace(dir, &self.path, text.as_bytes())?;
        *file = File::options().append(true).open(&self.path)?;
        Ok(())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use protocol::identity::TokenRole;

    use super::*;

    const ADA: OwnerId = OwnerId([1; 32]);
    const BOB: OwnerId = OwnerId([2; 32]);

    fn redeem(redeemed: &Redeemed, token: u8, key: OwnerId) -> Result<(), NotRedeemed> {
        let joiner = Joiner {
            key,
            role: TokenRole::Donor,
            name: "vm".into(),
            token: [token; 16],
            token_expires: 100,
            at: 1,
            until: 1000,
            seen_at: 1,
        };
        redeemed.redeem(([token; 16], key), 1, |_| Ok((joiner, ())))
    }

    fn is_used(redeemed: &Redeemed, token: u8, key: OwnerId) -> bool {
        let used = redeem(redeemed, token, key);
        matches!(used, Err(NotRedeemed::NoPlace(NoPlace::Used)))
    }

    #[test]
    fn a_token_is_redeemed_once_over_restarts_and_cut_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("redeemed");
        let redeemed = Redeemed::open(&path).unwrap();
        redeem(&redeemed, 1, ADA).unwrap();
        redeem(&redeemed, 1, ADA).unwrap();
        assert!(is_used(&redeemed, 1, BOB));
        drop(redeemed);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"0202").unwrap();
        let redeemed = Redeemed::open(&path).unwrap();
        assert!(is_used(&redeemed, 1, BOB));
        // The file is replaced, and members that join later stand in the new one.
        redeemed.hear(&ADA, 50);
        redeemed.keep(true).unwrap();
        redeem(&redeemed, 2, BOB).unwrap();
        let again = Redeemed::open(&path).unwrap();
        assert!(is_used(&again, 1, BOB) && is_used(&again, 2, ADA));
        let seen: Vec<u64> = again
            .page(None, 9)
            .0
            .iter()
            .map(|one| one.seen_at)
            .collect();
        assert_eq!(seen, [50, 1]);
    }
}
