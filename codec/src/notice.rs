//! What an owner says of a job's checkpoints as a whole: until when they are kept, and which are gone.
//!
//! A notice is signed, so hosts can tell each other of it: one that was away learns from any other what
//! was deleted meanwhile (the notice is its tombstone) and that a lease was renewed. What is gone is
//! named by the checkpoints' random ids, never by version: a notice can't be about a checkpoint that
//! was made after it.

use serde::{Deserialize, Serialize};

use crate::id::{CheckpointId, JobTag, OwnerId};
use crate::seal::OwnerSecret;
use crate::serial::{self, SerialError};

/// Longest notice.
pub const NOTICE_BYTES_MAX: usize = 4 << 10;

/// Most checkpoints that one notice says are gone: the last ones. A host that was away for longer
/// learns of the others when the job saves next.
pub const GONE_MAX: usize = 128;

const MAGIC: &[u8; 8] = b"CKPTNOT1";
const FORMAT: u16 = 1;
const SIGNATURE_BYTES: usize = 64;

/// For how long a job's checkpoints are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Seconds by which each save prolongs it.
    pub ttl_s: u64,
    /// When it ends, Unix seconds by the owner's clock.
    pub until: u64,
}

impl Lease {
    /// A lease that begins at `now`, Unix seconds.
    pub const fn from(now: u64, ttl_s: u64) -> Self {
        Self {
            ttl_s,
            until: now.saturating_add(ttl_s),
        }
    }
}

/// The time of day that hosts agree on, Unix seconds: a clock that is not later than that of most of
/// them. `None` when there is no other to agree with: then no time of day is to be acted on, because a
/// clock that was set wrong would delete what is still wanted.
pub fn agreed_clock(own: u64, mut others: Vec<u64>) -> Option<u64> {
    if others.is_empty() {
        return None;
    }
    others.push(own);
    others.sort_unstable();
    others.get((others.len() - 1) / 2).copied()
}

/// What a notice says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words {
    format: u16,
    /// Who says it.
    pub owner: OwnerId,
    /// Of which job.
    pub job_tag: JobTag,
    /// A notice with a higher number replaces one with a lower. Unix milliseconds, as a rule.
    pub number: u64,
    /// Until when the job's checkpoints are kept; for ever when not given.
    pub lease: Option<Lease>,
    /// Checkpoints that are to be removed, the last one last.
    pub gone: Vec<CheckpointId>,
}

/// Bytes that are no notice, or one that must not be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoticeError {
    /// Not a notice at all.
    #[error("notice: {0}")]
    Serial(#[from] SerialError),
    /// It does not begin as a notice does.
    #[error("not a notice")]
    Frame,
    /// The signature is not the owner's.
    #[error("notice of owner {0}: bad signature")]
    Signature(OwnerId),
    /// A format that this version does not read.
    #[error("notice format {0} is not known to this version")]
    Format(u16),
    /// Too much at once.
    #[error("notice of {0} checkpoints, at most {GONE_MAX} are allowed")]
    TooMany(usize),
}

/// A notice whose signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    words: Words,
    bytes: Vec<u8>,
}

impl Notice {
    /// The notice that follows `last`, made at `now` (Unix milliseconds). Of what is gone, the last
    /// [`GONE_MAX`] are named, those of `last` included.
    ///
    /// # Errors
    /// Never, as a notice of that many fits.
    pub fn sign(
        owner: &OwnerSecret,
        job_tag: JobTag,
        last: Option<&Self>,
        now: u64,
        lease: Option<Lease>,
        gone: &[CheckpointId],
    ) -> Result<Self, NoticeError> {
        let last = last.map(|last| &last.words);
        let mut all: Vec<CheckpointId> = last.map(|last| last.gone.clone()).unwrap_or_default();
        all.retain(|one| !gone.contains(one));
        all.extend_from_slice(gone);
        all.drain(..all.len().saturating_sub(GONE_MAX));
        let words = Words {
            format: FORMAT,
            owner: owner.id(),
            job_tag,
            number: last.map_or(now, |last| now.max(last.number.saturating_add(1))),
            lease,
            gone: all,
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(serial::encode(&words, NOTICE_BYTES_MAX)?);
        let signature = owner.sign(&bytes);
        bytes.extend_from_slice(&signature);
        Self::parse(bytes)
    }

    /// Reads a notice and checks its signature.
    ///
    /// # Errors
    /// When it is malformed, changed, or says too much.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, NoticeError> {
        if bytes.len() > NOTICE_BYTES_MAX {
            let (actual, limit) = (bytes.len(), NOTICE_BYTES_MAX);
            return Err(SerialError::TooLong { actual, limit }.into());
        }
        let (signed, signature) = bytes
            .split_last_chunk::<SIGNATURE_BYTES>()
            .ok_or(NoticeError::Frame)?;
        let body = signed.strip_prefix(MAGIC).ok_or(NoticeError::Frame)?;
        let words: Words = serial::decode(body, NOTICE_BYTES_MAX)?;
        if !words.owner.verify(signed, signature) {
            return Err(NoticeError::Signature(words.owner));
        }
        if words.format != FORMAT {
            return Err(NoticeError::Format(words.format));
        }
        if words.gone.len() > GONE_MAX {
            return Err(NoticeError::TooMany(words.gone.len()));
        }
        Ok(Self { words, bytes })
    }

    /// What it says.
    pub const fn words(&self) -> &Words {
        &self.words
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owner() -> OwnerSecret {
        OwnerSecret::new([9; 32])
    }

    fn notice(last: Option<&Notice>, now: u64, gone: &[u8]) -> Notice {
        let gone: Vec<_> = gone.iter().map(|byte| CheckpointId([*byte; 16])).collect();
        let lease = Some(Lease::from(now / 1000, 60));
        Notice::sign(&owner(), JobTag([3; 32]), last, now, lease, &gone).unwrap()
    }

    #[test]
    fn notices_are_counted_and_add_up() {
        let first = notice(None, 5_000, &[1, 2]);
        assert_eq!(first.words().number, 5_000);
        assert_eq!(
            first.words().lease,
            Some(Lease {
                ttl_s: 60,
                until: 65
            })
        );
        // The clock went back.
        let second = notice(Some(&first), 4_000, &[2, 3]);
        assert_eq!(second.words().number, 5_001);
        let gone: Vec<u8> = second.words().gone.iter().map(|id| id.0[0]).collect();
        assert_eq!(gone, [1, 2, 3]);
    }

    #[test]
    fn the_longest_notice_fits_and_forgets_the_oldest() {
        let all: Vec<u8> = (0..200).collect();
        let longest = notice(None, u64::MAX, &all);
        assert_eq!(longest.words().gone.len(), GONE_MAX);
        assert_eq!(
            longest.words().gone[0],
            CheckpointId([200 - GONE_MAX as u8; 16])
        );
        assert_eq!(Notice::parse(longest.bytes().to_vec()), Ok(longest.clone()));
        assert_eq!(notice(Some(&longest), 0, &[]).words().number, u64::MAX);
    }

    #[test]
    fn one_that_was_changed_is_not_believed() {
        let good = notice(None, 1_000, &[1]);
        for at in 0..good.bytes().len() {
            let mut bad = good.bytes().to_vec();
            bad[at] ^= 1;
            assert!(Notice::parse(bad).is_err(), "byte {at}");
            assert!(Notice::parse(good.bytes()[..at].to_vec()).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Notice::parse(bytes);
        }
    }

    #[test]
    fn one_clock_that_is_wrong_changes_nothing() {
        assert_eq!(agreed_clock(100, vec![]), None);
        assert_eq!(agreed_clock(9_999, vec![100]), Some(100));
        assert_eq!(agreed_clock(9_999, vec![100, 101]), Some(101));
        assert_eq!(agreed_clock(100, vec![101, 9_999]), Some(101));
        assert_eq!(agreed_clock(100, vec![101, 9_999, 9_999]), Some(101));
    }
}
