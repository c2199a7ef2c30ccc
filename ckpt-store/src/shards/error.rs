//! Why an operation of the store failed.

use std::io;

use protocol::wire::Code;

use super::reader::ReadError;
use crate::core::Denied;
/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The catalog denies it.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The request makes no sense.
    #[error("invalid {0}")]
    BadRequest(&'static str),
    /// What the peer sent differs from what it promised.
    #[error("{0} does not match")]
    Mismatch(&'static str),
    /// The bytes are not a valid manifest.
    #[error(transparent)]
    Manifest(#[from] codec::manifest::ManifestError),
    /// The bytes are not a valid proposal.
    #[error(transparent)]
    Proposal(#[from] codec::proposal::ProposalError),
    /// The bytes are not a valid notice.
    #[error(transparent)]
    Notice(#[from] codec::notice::NoticeError),
    /// An operation on the disk failed.
    #[error("{what}: {cause}")]
    Disk {
        /// What was being done.
        what: &'static str,
        /// Why the disk refused it.
        cause: io::Error,
    },
    /// A shard file is damaged.
    #[error("shard file: {0}")]
    Damaged(ReadError),
    /// A directory could not be synced earlier. Until a restart it is unknown what is durable.
    #[error("an earlier sync to disk failed; nothing is changed until the daemon is restarted")]
    Poisoned,
    /// The upload has ended already.
    #[error("upload is closed")]
    Closed,
}

impl StoreError {
    /// The code of this answer on the wire.
    pub fn code(&self) -> Code {
        match self {
            Self::Denied(denied) => denied.code(),
            Self::BadRequest(_) | Self::Closed => Code::BadRequest,
            Self::Mismatch(_) | Self::Manifest(_) | Self::Proposal(_) | Self::Notice(_) => {
                Code::Mismatch
            }
            Self::Disk { cause, .. } if is_full(cause) => Code::NoSpace,
            Self::Disk { .. } | Self::Damaged(_) | Self::Poisoned => Code::DiskFailed,
        }
    }

    /// Whether this machine is the cause, and not the client.
    pub fn is_ours(&self) -> bool {
        matches!(self.code(), Code::DiskFailed | Code::Internal)
    }

    /// Whether the disk has no room, for bytes or for files.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Disk { cause, .. } if is_full(cause))
    }

    pub(crate) fn disk(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Disk { what, cause }
    }
}

fn is_full(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
