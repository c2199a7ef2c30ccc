//! Why a shard is not rebuilt, handed over or given back.

use protocol::net::endpoint::EndpointError;
use tokio::task::JoinError;
use transfer::Fault;

use crate::shards::StoreError;

/// What went wrong in looking after shards.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// There is no socket.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The disk of this host.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A thread of this program.
    #[error("a thread ended: {0}")]
    Thread(#[from] JoinError),
    /// The checkpoint was deleted meanwhile, or the shard dropped.
    #[error("it is not held here any more")]
    NotHeld,
    /// No host can take the shard.
    #[error("no other host has room for it")]
    NoRoom,
    /// There is no host that could take it as well: of one checkpoint each holds one shard.
    #[error("each other host that answers has a shard of the checkpoint already")]
    AllHoldSome,
    /// Nobody else is there.
    #[error("no other host answers")]
    Alone,
    /// The last host that was tried did not take the shard.
    #[error("{host}: {fault}")]
    NotTaken {
        /// Its name.
        host: String,
        /// Why.
        fault: Fault,
    },
    /// The host that took the shard does not prove that it has it.
    #[error("{0} acknowledged it and does not prove that it has it")]
    NotProved(String),
    /// Without the shard that is here, fewer shards would have a holder.
    #[error("no other host counts for it")]
    Needed,
    /// It took too long.
    #[error("not in time")]
    Late,
}
