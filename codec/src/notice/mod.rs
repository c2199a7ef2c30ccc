//! Notices: signed records in which an owner states, for all checkpoints of a job, until when they are kept
//! and which of them are gone.
//!
//! A notice is signed, so hosts can pass it on to each other. A host that was away learns from any other
//! host that a lease was renewed, and which checkpoints were deleted meanwhile: the notice serves as their
//! tombstone.
//!
//! Checkpoints that are gone are named in two ways:
//!
//! - by their ids, the last [`GONE_MAX`] of them. Hosts delete these checkpoints at once. Ids are random, so
//!   no checkpoint that is made later can have one of them.
//! - by **intervals** of the job's history. They cover all checkpoints that are
//!   gone, unless these take more than [`INTERVALS_MAX`]. A host does not take a checkpoint within an
//!   interval from another host, and a client does not restore one without a warning.

mod clock;
mod intervals;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use clock::{agreed_clock, latest_clock};
pub use intervals::{INTERVALS_MAX, Interval, Intervals, IntervalsError, Stamp};

use crate::format::UnknownFormat;
use crate::grant::{Act, Grant, GrantError, Moment, Refused, Rights};
use crate::id::{CheckpointId, JobTag, OwnerId, PublicKey};
use crate::keys::Keys;
use crate::scope::{Blinded, is_path_of};
use crate::serial::SerialError;
use crate::signed::{self, FrameError};

/// Most bytes of a notice.
pub const NOTICE_BYTES_MAX: usize = 20 << 10;

/// Most checkpoints that a notice names by their ids: the last that were deleted.
pub const GONE_MAX: usize = 128;

/// How far the number of a notice that states the last lease again is above the last number, at most.
pub const RESTATED_MS: u64 = 1000;

const MAGIC: &[u8; 8] = b"CKPTNOT2";
const FORMAT: u16 = 2;

/// How long a job's checkpoints are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Seconds for which each save renews the lease.
    pub ttl_s: u64,
    /// When the lease ends, Unix seconds by the owner's clock.
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

/// The content of a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// Owner of the job.
    pub owner: OwnerId,
    /// Tag of the job.
    pub job_tag: JobTag,
    /// Number of the notice, in general the time in Unix milliseconds. A notice with a higher number
    /// replaces one with a lower number, except for its intervals, which are united.
    pub number: u64,
    /// Until when the job's checkpoints are kept; `None` means for ever.
    pub lease: Option<Lease>,
    /// Checkpoints that hosts have to delete at once, in the order of deletion.
    pub gone: Vec<CheckpointId>,
    /// The parts of the job's history that are gone.
    pub intervals: Intervals,
}

impl Words {
    /// The content of the notice that follows `last`, at `now` (Unix milliseconds). It has the last
    /// [`GONE_MAX`] ids of those in `last` and in `gone`, and the intervals of both.
    #[must_use]
    pub fn following(
        last: Option<&Self>,
        (owner, job_tag): (OwnerId, JobTag),
        now: u64,
        lease: Option<Lease>,
        gone: &[CheckpointId],
        intervals: &Intervals,
    ) -> Self {
        let before = last.map_or(&[][..], |last| &last.gone);
        let intervals = match last {
            Some(last) => last.intervals.union(intervals),
            None => intervals.clone(),
        };
        Self {
            owner,
            job_tag,
            number: last.map_or(now, |last| now.max(last.number.saturating_add(1))),
            lease,
            gone: last_ones(before, gone),
            intervals: intervals.limited(),
        }
    }

    /// The time, for [`Self::following`], of a notice that states the lease of `last` again, as hosts showed it when
    /// they were asked at `asked` (Unix milliseconds). So it has a lower number than any notice that was made after
    /// `asked` and gives the job another lease, whichever of the two arrives first. If the last notice is not a second
    /// old, or clocks differ, it can only be [`RESTATED_MS`] above the last one. The last digits keep two machines
    /// apart that do this at one time.
    pub fn restated_at(last: Option<&Self>, asked: u64) -> u64 {
        let Some(last) = last else {
            return asked;
        };
        asked.min(last.number.saturating_add(1 + asked % RESTATED_MS))
    }

    /// Unites two notices of the same job: the fields of the newer one, and what is gone by either.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let (older, newer) = if self.number < other.number {
            (self, other)
        } else {
            (other, self)
        };
        Self {
            gone: last_ones(&older.gone, &newer.gone),
            intervals: older.intervals.union(&newer.intervals),
            ..newer.clone()
        }
    }

    /// Whether a checkpoint is gone, by its id or by an interval.
    pub fn is_gone(&self, stamp: Stamp) -> bool {
        self.gone.contains(&stamp.checkpoint) || self.intervals.has(stamp)
    }
}

/// The last [`GONE_MAX`] ids of both lists, each once.
fn last_ones(before: &[CheckpointId], gone: &[CheckpointId]) -> Vec<CheckpointId> {
    let mut all = before.to_vec();
    all.retain(|one| !gone.contains(one));
    all.extend_from_slice(gone);
    all.drain(..all.len().saturating_sub(GONE_MAX));
    all
}

#[derive(Serialize, Deserialize)]
struct Body {
    format: u16,
    owner: OwnerId,
    signer: PublicKey,
    #[serde(with = "serde_bytes")]
    grant: Option<Vec<u8>>,
    job_tag: JobTag,
    path: Vec<Blinded>,
    number: u64,
    lease: Option<Lease>,
    gone: Vec<CheckpointId>,
    intervals: Intervals,
}

/// Why bytes are refused as a notice, or why a notice can't be signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoticeError {
    /// The body is malformed, or too long.
    #[error("notice: {0}")]
    Serial(#[from] SerialError),
    /// The bytes do not begin as a notice does.
    #[error("not a notice")]
    Frame,
    /// The signature is not the owner's.
    #[error("notice of owner {0}: bad signature")]
    Signature(OwnerId),
    /// A format that this version does not read.
    #[error("notice: {0}")]
    Format(#[from] UnknownFormat),
    /// The notice names too many checkpoints by their ids.
    #[error("notice of {0} checkpoints, at most {GONE_MAX} are allowed")]
    TooMany(usize),
    /// The path is not that of the job.
    #[error("notice: the path is another job's")]
    Path,
    /// The grant in the notice is not valid.
    #[error("notice: {0}")]
    Grant(#[from] GrantError),
    /// The grant does not allow the signer to sign this notice.
    #[error("notice: the signer is not allowed to sign it: {0}")]
    NotGranted(#[from] Refused),
}

impl From<FrameError> for NoticeError {
    fn from(cause: FrameError) -> Self {
        match cause {
            FrameError::Serial(cause) => Self::Serial(cause),
            FrameError::Frame => Self::Frame,
        }
    }
}

/// A notice whose signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    words: Words,
    grant: Option<Grant>,
    bytes: Vec<u8>,
}

impl Notice {
    /// Signs a notice about the job with this path.
    ///
    /// # Errors
    /// When the keys do not allow it, or the notice is too long.
    pub fn sign(keys: &Keys, path: &[Blinded], words: &Words) -> Result<Self, NoticeError> {
        let body = Body {
            format: FORMAT,
            owner: words.owner,
            signer: keys.signer(),
            grant: keys.grant().map(|grant| grant.bytes().to_vec()),
            job_tag: words.job_tag,
            path: path.to_vec(),
            number: words.number,
            lease: words.lease,
            gone: words.gone.clone(),
            intervals: words.intervals.clone(),
        };
        let sign = |bytes: &[u8]| keys.sign(bytes);
        Self::parse(signed::write(MAGIC, &body, NOTICE_BYTES_MAX, sign)?)
    }

    /// Reads a notice and checks its signature and, if it was signed with a grant, that the grant covers
    /// it. The caller has to check that the grant is not void.
    ///
    /// # Errors
    /// When the notice is malformed, changed, not allowed, or names too many checkpoints.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, NoticeError> {
        if let Some(other) = UnknownFormat::by_magic(&bytes, MAGIC) {
            return Err(other.into());
        }
        let record = signed::read::<Body>(MAGIC, &bytes, NOTICE_BYTES_MAX)?;
        let body = record.body;
        if !body.signer.verify(record.signed, record.signature) {
            return Err(NoticeError::Signature(body.owner));
        }
        UnknownFormat::check(body.format, FORMAT)?;
        if !is_path_of(body.owner, &body.path, body.job_tag) {
            return Err(NoticeError::Path);
        }
        let grant = body.grant.as_deref().map(Grant::parse).transpose()?;
        let act = Act {
            owner: body.owner,
            signer: body.signer,
            job_tag: body.job_tag,
            path: &body.path,
            right: Rights::REMOVE,
            // Otherwise a key that has expired could sign a number above all later notices of its owner.
            moment: Moment::Until(body.number / 1000),
        };
        Grant::permits(grant.as_ref(), act)?;
        if body.gone.len() > GONE_MAX {
            return Err(NoticeError::TooMany(body.gone.len()));
        }
        let words = Words {
            owner: body.owner,
            job_tag: body.job_tag,
            number: body.number,
            lease: body.lease,
            gone: body.gone,
            intervals: body.intervals,
        };
        Ok(Self {
            words,
            grant,
            bytes,
        })
    }

    /// The content of the notice.
    pub const fn words(&self) -> &Words {
        &self.words
    }

    /// The grant that allowed the signer to sign; `None` if the owner signed.
    pub const fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// The bytes of the notice, with its signature.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
