//! Why a request was refused, as a number. Programs decide by the number; the text is for logs.

use serde::{Deserialize, Serialize};

/// The reason of a refusal. New reasons are added at the end; the numbers never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Code {
    /// The request is malformed or out of order.
    BadRequest,
    /// The asker's certificate does not allow this.
    Forbidden,
    /// The host has no such checkpoint, shard or row, or it is not the asker's.
    NotFound,
    /// The host's capacity, or the submitter's share of it, does not suffice.
    NoSpace,
    /// The host's disk failed.
    DiskFailed,
    /// The host already has this shard, or is writing it.
    Exists,
    /// Another checkpoint has this version of the job.
    VersionTaken,
    /// What was sent is not what was promised: its root, length or signature differs.
    Mismatch,
    /// The host is busy, because its owner comes first or because of too many requests; try later.
    Busy,
    /// The host is shutting down.
    Stopping,
    /// A fault of the host.
    Internal,
    /// The host keeps this checkpoint from job keys for now, as a guard against a stolen one.
    Guarded,
}

impl Code {
    /// The reason in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::BadRequest => "malformed request",
            Self::Forbidden => "not allowed",
            Self::NotFound => "not found",
            Self::NoSpace => "no space",
            Self::DiskFailed => "disk failed",
            Self::Exists => "shard exists already",
            Self::VersionTaken => "version taken by another checkpoint",
            Self::Mismatch => "data do not match",
            Self::Busy => "busy",
            Self::Stopping => "shutting down",
            Self::Internal => "internal error",
            Self::Guarded => "kept as guard",
        }
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.describe())
    }
}
