//! What a request is about, for logs.

use codec::CheckpointId;
use codec::manifest::Manifest;

use super::message::Request;

impl Request {
    /// The checkpoint that this request is about, if it is about one: as the client says, unchecked. It stands in
    /// the logs of the client and of all hosts, so that a save or a restore can be followed through them.
    pub fn checkpoint(&self) -> Option<CheckpointId> {
        match self {
            Self::Claim(claim) | Self::RowsHeld(claim) => Some(claim.checkpoint),
            Self::PutShard(put) | Self::EndEarly { put, .. } => Some(put.claim.checkpoint),
            Self::PutRebuilt(rebuilt) => Some(rebuilt.put.claim.checkpoint),
            Self::Commit { manifest } | Self::KeepManifest { manifest } => {
                Manifest::named_in(manifest)
            }
            Self::Outline(shard)
            | Self::Page { shard, .. }
            | Self::Rows { shard, .. }
            | Self::RowRuns { shard, .. }
            | Self::Prove { shard, .. } => Some(shard.checkpoint),
            Self::Forget { checkpoint } => Some(*checkpoint),
            Self::Audited(audit) => Some(audit.checkpoint),
            // The one that is followed.
            Self::Prepare { after, .. } => Some(*after),
            _ => None,
        }
    }
}
