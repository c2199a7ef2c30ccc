//! Why a request was refused, as numbers: text is for logs, numbers are for decisions.

use serde::{Deserialize, Serialize};

/// Reason of a refusal.
///
/// New reasons are added at the end; the numbers never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Code {
    /// The request is malformed or out of order.
    BadRequest,
    /// This identity may not do this.
    Forbidden,
    /// No such checkpoint, shard or row here (or not the asker's).
    NotFound,
    /// The host's capacity, or the submitter's share of it, does not suffice.
    NoSpace,
    /// The host's disk failed.
    DiskFailed,
    /// The host already has this shard, or is writing it.
    Exists,
    /// Another checkpoint has this version of the job.
    VersionTaken,
    /// What was sent is not what was promised (root, length, signature).
    Mismatch,
    /// The host is busy (its owner comes first, or too many requests); try later.
    Busy,
    /// The host is shutting down.
    Stopping,
    /// A fault of the host.
    Internal,
}

impl Code {
    /// Words for people.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::BadRequest => "malformed request",
            Self::Forbidden => "not allowed",
            Self::NotFound => "not found",
            Self::NoSpace => "no space",
            Self::DiskFailed => "disk failed",
            Self::Exists => "shard exists already",
            Self::VersionTaken => "version taken by another checkpoint",
            Self::Mismatch => "data differ from what was promised",
            Self::Busy => "busy",
            Self::Stopping => "shutting down",
            Self::Internal => "internal error",
        }
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.describe())
    }
}
