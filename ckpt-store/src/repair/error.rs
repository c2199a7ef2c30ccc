//! Why a shard was not rebuilt, not handed over to another host, or not given back.

use protocol::net::endpoint::EndpointError;
use tokio::task::JoinError;
use transfer::Fault;

use crate::shards::StoreError;

/// Why an operation of the [`super::Repairer`] failed. The text of each variant goes to the log and to
/// the report of a drain.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The client's socket, from which other hosts are asked, could not be opened.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A file of this host could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A blocking thread of this program panicked.
    #[error("a thread ended: {0}")]
    Thread(#[from] JoinError),
    /// The checkpoint was deleted, or the shard removed, since the shard was chosen.
    #[error("this host no longer holds it")]
    NotHeld,
    /// No host that was asked has room for the shard.
    #[error("no other host has room for it")]
    NoRoom,
    /// Every host that answers holds a shard of the checkpoint already. Each host gets one shard only.
    #[error("each other host that answers has a shard of the checkpoint already")]
    AllHoldSome,
    /// No other host answers.
    #[error("no other host answers")]
    Alone,
    /// The last host that was tried did not take the shard.
    #[error("{host}: {fault}")]
    NotTaken {
        /// The name of that host.
        host: String,
        /// What that host answered, or how the connection failed.
        fault: Fault,
    },
    /// The host that took the shard did not prove afterwards that it holds the shard.
    #[error("{0} acknowledged it, but does not prove that it has it")]
    NotProved(String),
    /// Fewer shards would have a holder of their own if the copy on this host were removed.
    #[error("no other host is accepted as a holder")]
    Needed,
    /// The time limit passed.
    #[error("not finished in time")]
    Late,
}
