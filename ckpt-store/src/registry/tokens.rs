//! Which join tokens were redeemed, and by which key. A token is written to the disk before its client
//! gets a certificate.
//!
//! The file `redeemed` has one line for each token: `NONCE KEY EXPIRES`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use codec::{CheckpointId, OwnerId};

/// The redeemed tokens, and their file.
#[derive(Debug)]
pub(super) struct Redeemed(Mutex<State>);

#[derive(Debug)]
struct State {
    file: File,
    by: HashMap<[u8; 16], (OwnerId, u64)>,
}

/// Why a token is not redeemed.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotRedeemed {
    /// Another key has redeemed the token.
    #[error("the token was used already")]
    Used,
    /// The file can't be written.
    #[error("the registry can't record it: {0}")]
    Io(#[from] io::Error),
}

impl Redeemed {
    /// Reads the file. A last line that a crash cut off counts as never written.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let by = whole.lines().filter_map(read_line).collect();
        let mut file = File::options().create(true).append(true).open(path)?;
        if whole.len() < text.len() {
            file.write_all(b"\n")?;
        }
        file.sync_all()?;
        if let Some(dir) = path.parent() {
            File::open(dir)?.sync_all()?;
        }
        Ok(Self(Mutex::new(State { file, by })))
    }

    /// Redeems a token once. The same key may come with it again until it expires.
    pub(super) fn redeem(
        &self,
        nonce: [u8; 16],
        key: OwnerId,
        expires: u64,
        now: u64,
    ) -> Result<(), NotRedeemed> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match state.by.get(&nonce) {
            Some((by, _)) if *by == key => return Ok(()),
            Some(_) => return Err(NotRedeemed::Used),
            None => {}
        }
        let line = format!("{} {} {expires}\n", CheckpointId(nonce).hex(), key.hex());
        state.file.write_all(line.as_bytes())?;
        state.file.sync_data()?;
        // Expired tokens are refused anyway, so they are forgotten here.
        state.by.retain(|_, (_, expires)| *expires >= now);
        state.by.insert(nonce, (key, expires));
        Ok(())
    }
}

fn read_line(line: &str) -> Option<([u8; 16], (OwnerId, u64))> {
    let mut words = line.split(' ');
    let nonce = CheckpointId::from_hex(words.next()?)?.0;
    let key = OwnerId::from_hex(words.next()?)?;
    Some((nonce, (key, words.next()?.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: OwnerId = OwnerId([1; 32]);
    const BOB: OwnerId = OwnerId([2; 32]);

    #[test]
    fn a_token_is_redeemed_once_over_restarts_and_cut_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("redeemed");
        let redeemed = Redeemed::open(&path).unwrap();
        redeemed.redeem([1; 16], ADA, 100, 1).unwrap();
        redeemed.redeem([1; 16], ADA, 100, 2).unwrap();
        assert!(matches!(
            redeemed.redeem([1; 16], BOB, 100, 3),
            Err(NotRedeemed::Used)
        ));
        drop(redeemed);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"0202").unwrap();
        let redeemed = Redeemed::open(&path).unwrap();
        assert!(matches!(
            redeemed.redeem([1; 16], BOB, 100, 4),
            Err(NotRedeemed::Used)
        ));
        redeemed.redeem([2; 16], BOB, 100, 5).unwrap();
        let again = Redeemed::open(&path).unwrap();
        assert!(matches!(
            again.redeem([2; 16], ADA, 100, 6),
            Err(NotRedeemed::Used)
        ));
    }
}
