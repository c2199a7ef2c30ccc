//! What an owner says of a job's checkpoints as a whole: until when they are kept, and which are gone.
//!
//! A notice is signed, so hosts can pass it on to each other: one that was away learns from any other
//! what was deleted meanwhile (the notice is its tombstone) and that a lease was renewed.
//!
//! What is gone is named twice. By random ids: these checkpoints are deleted at once, and a notice can't
//! be about one that was made after it. And, in the second format, by intervals of the job's history:
//! what lies there is not taken from others and not restored without a word. Ids are few, the last
//! ones; intervals are few as well, but say all.

mod clock;
mod intervals;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use clock::{agreed_clock, latest_clock};
pub use intervals::{INTERVALS_MAX, Interval, Intervals, IntervalsError, Stamp};

use crate::grant::{CLOCK_SLACK_S, Grant, GrantError, Rights};
use crate::id::{CheckpointId, JobTag, OwnerId, PublicKey};
use crate::job::JOB_COMPONENTS_MAX;
use crate::keys::Keys;
use crate::manifest::Format;
use crate::scope::{Blinded, tag_of};
use crate::serial::SerialError;
use crate::signed::{self, FrameError};

/// Longest notice.
pub const NOTICE_BYTES_MAX: usize = 20 << 10;

/// Longest notice of the first format.
pub const NOTICE_1_BYTES_MAX: usize = 4 << 10;

/// Most checkpoints that one notice names by their ids: the last ones.
pub const GONE_MAX: usize = 128;

const MAGIC_1: &[u8; 8] = b"CKPTNOT1";
const MAGIC_2: &[u8; 8] = b"CKPTNOT2";

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

/// What a notice says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// Who says it.
    pub owner: OwnerId,
    /// Of which job.
    pub job_tag: JobTag,
    /// A notice with a higher number replaces one with a lower, but for its intervals. Unix
    /// milliseconds, as a rule.
    pub number: u64,
    /// Until when the job's checkpoints are kept; for ever when not given.
    pub lease: Option<Lease>,
    /// Checkpoints that are to be removed at once, the last one last.
    pub gone: Vec<CheckpointId>,
    /// What is gone of the job's history; empty in the first format.
    pub intervals: Intervals,
}

impl Words {
    /// What is to be said after `last`, at `now` (Unix milliseconds). Of what is gone, the last
    /// [`GONE_MAX`] are named, those of `last` included; its intervals stay.
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

    /// What two notices of the same job say together: the newer one's word, and all that is gone.
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

    /// Whether it says that a checkpoint is gone.
    pub fn is_gone(&self, stamp: Stamp) -> bool {
        self.gone.contains(&stamp.checkpoint) || self.intervals.has(stamp)
    }
}

fn last_ones(before: &[CheckpointId], gone: &[CheckpointId]) -> Vec<CheckpointId> {
    let mut all = before.to_vec();
    all.retain(|one| !gone.contains(one));
    all.extend_from_slice(gone);
    all.drain(..all.len().saturating_sub(GONE_MAX));
    all
}

/// The body in the first format.
#[derive(Serialize, Deserialize)]
struct Body1 {
    format: u16,
    owner: OwnerId,
    job_tag: JobTag,
    number: u64,
    lease: Option<Lease>,
    gone: Vec<CheckpointId>,
}

/// The body in the second format.
#[derive(Serialize, Deserialize)]
struct Body2 {
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
    /// The path is not that of the job.
    #[error("notice: the path is another job's")]
    Path,
    /// The grant in it is none.
    #[error("notice: {0}")]
    Grant(#[from] GrantError),
    /// The signer may not say this.
    #[error("notice: the signer is not allowed to sign it: {0}")]
    NotGranted(&'static str),
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
    format: Format,
    bytes: Vec<u8>,
}

impl Notice {
    /// Signs what is to be said of the job with this path. The first format leaves out the intervals.
    ///
    /// # Errors
    /// When the keys may not say it, or it is too much.
    pub fn sign(
        keys: &Keys,
        format: Format,
        path: &[Blinded],
        words: &Words,
    ) -> Result<Self, NoticeError> {
        let sign = |bytes: &[u8]| keys.sign(bytes);
        let bytes = match (format, keys.grant()) {
            (Format::One, Some(_)) => {
                return Err(NoticeError::NotGranted("notices of format 1 have no grant"));
            }
            (Format::One, None) => {
                let body = Body1 {
                    format: 1,
                    owner: words.owner,
                    job_tag: words.job_tag,
                    number: words.number,
                    lease: words.lease,
                    gone: words.gone.clone(),
                };
                signed::write(MAGIC_1, &body, NOTICE_1_BYTES_MAX, sign)?
            }
            (Format::Two, grant) => {
                let body = Body2 {
                    format: 2,
                    owner: words.owner,
                    signer: keys.signer(),
                    grant: grant.map(|grant| grant.bytes().to_vec()),
                    job_tag: words.job_tag,
                    path: path.to_vec(),
                    number: words.number,
                    lease: words.lease,
                    gone: words.gone.clone(),
                    intervals: words.intervals.clone(),
                };
                signed::write(MAGIC_2, &body, NOTICE_BYTES_MAX, sign)?
            }
        };
        Self::parse(bytes)
    }

    /// Reads a notice and checks its signature and, if it was signed with a grant, that the grant covers
    /// it. Whether the grant is void is the caller's to check.
    ///
    /// # Errors
    /// When it is malformed, changed, not allowed, or says too much.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, NoticeError> {
        let (words, grant, format) = if bytes.starts_with(MAGIC_1) {
            (read_1(&bytes)?, None, Format::One)
        } else {
            let (words, grant) = read_2(&bytes)?;
            (words, grant, Format::Two)
        };
        if words.gone.len() > GONE_MAX {
            return Err(NoticeError::TooMany(words.gone.len()));
        }
        Ok(Self {
            words,
            grant,
            format,
            bytes,
        })
    }

    /// What it says.
    pub const fn words(&self) -> &Words {
        &self.words
    }

    /// The grant that allowed its signer to sign; none when the owner signed.
    pub const fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// Its format.
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn read_1(bytes: &[u8]) -> Result<Words, NoticeError> {
    let record = signed::read::<Body1>(MAGIC_1, bytes, NOTICE_1_BYTES_MAX)?;
    let body = record.body;
    if !body.owner.verify(record.signed, record.signature) {
        return Err(NoticeError::Signature(body.owner));
    }
    if body.format != 1 {
        return Err(NoticeError::Format(body.format));
    }
    Ok(Words {
        owner: body.owner,
        job_tag: body.job_tag,
        number: body.number,
        lease: body.lease,
        gone: body.gone,
        intervals: Intervals::default(),
    })
}

fn read_2(bytes: &[u8]) -> Result<(Words, Option<Grant>), NoticeError> {
    let record = signed::read::<Body2>(MAGIC_2, bytes, NOTICE_BYTES_MAX)?;
    let body = record.body;
    if !body.signer.verify(record.signed, record.signature) {
        return Err(NoticeError::Signature(body.owner));
    }
    if body.format != 2 {
        return Err(NoticeError::Format(body.format));
    }
    let depth = body.path.len();
    if !(1..=JOB_COMPONENTS_MAX).contains(&depth)
        || (depth > 1 && tag_of(body.owner, &body.path) != body.job_tag)
    {
        return Err(NoticeError::Path);
    }
    let grant = body.grant.as_deref().map(Grant::parse).transpose()?;
    check_grant(&body, grant.as_ref())?;
    let words = Words {
        owner: body.owner,
        job_tag: body.job_tag,
        number: body.number,
        lease: body.lease,
        gone: body.gone,
        intervals: body.intervals,
    };
    Ok((words, grant))
}

/// Whether the signer may say this.
fn check_grant(body: &Body2, grant: Option<&Grant>) -> Result<(), NoticeError> {
    let refused = |what| Err(NoticeError::NotGranted(what));
    let terms = match (body.signer == body.owner.into(), grant) {
        (true, None) => return Ok(()),
        (true, Some(_)) => return refused("a grant for the owner"),
        (false, None) => return refused("no grant"),
        (false, Some(grant)) => grant.terms(),
    };
    if terms.owner != body.owner || terms.key != body.signer {
        return refused("another's grant");
    }
    if !terms.rights.has(Rights::REMOVE) {
        return refused("no right to remove");
    }
    if !terms.covers(body.job_tag, &body.path) {
        return refused("another job");
    }
    // So that a key that has expired can't outbid its owner's later notices.
    if body.number / 1000 > terms.not_after.saturating_add(CLOCK_SLACK_S) {
        return refused("another time");
    }
    Ok(())
}
