//! The name of a checkpoint on a host.

use codec::{CheckpointId, OwnerId};

/// The name of a checkpoint on a host. Owners choose the ids, and two owners may choose the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The owner of the checkpoint.
    pub owner: OwnerId,
    /// The id that the owner gave it.
    pub checkpoint: CheckpointId,
}
