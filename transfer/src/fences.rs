//! What the witnesses of a checkpoint are asked about its successors.

use codec::proposal::{Ballot, Proposal};
use codec::{CheckpointId, JobTag, OwnerId, ShardIndex};
use protocol::wire::limits::REQUEST_TIMEOUT;
use protocol::wire::message::{Request, Response, ShardName};

use crate::hosts::unexpected;
use crate::{Fault, HostIndex, hosts::Hosts};

/// What a witness is asked about: the checkpoint that is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Its owner.
    pub owner: OwnerId,
    /// Its job.
    pub job_tag: JobTag,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
}

/// What a witness answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witnessed {
    /// It promised, and has accepted this before.
    Promised(Option<Box<Proposal>>),
    /// It accepted.
    Agreed,
    /// It has promised a higher ballot to another save.
    Outbid(Ballot),
}

impl Hosts {
    /// Asks a witness to accept no successor of a checkpoint with a lower ballot.
    ///
    /// # Errors
    /// When it does not answer as it should, or is too old to know.
    pub async fn prepare(
        &self,
        host: HostIndex,
        followed: Followed,
        ballot: Ballot,
    ) -> Result<Witnessed, Fault> {
        let asked = Request::Prepare {
            job_tag: followed.job_tag,
            after: followed.checkpoint,
            ballot,
        };
        match self.request(host, &asked, REQUEST_TIMEOUT).await?.0 {
            Response::Promised { accepted: None } => Ok(Witnessed::Promised(None)),
            Response::Promised {
                accepted: Some(bytes),
            } => {
                let lied = |cause: &dyn std::fmt::Display| Fault::Lied(cause.to_string());
                let proposal = Proposal::parse(bytes.into_vec()).map_err(|cause| lied(&cause))?;
                let said = proposal.proposed();
                let about = Followed {
                    owner: said.owner,
                    job_tag: said.job_tag,
                    checkpoint: said.after,
                };
                if about != followed || said.ballot > ballot {
                    return Err(lied(&"a proposal about something else"));
                }
                Ok(Witnessed::Promised(Some(Box::new(proposal))))
            }
            Response::Outbid { ballot } => Ok(Witnessed::Outbid(ballot)),
            _ => Err(unexpected("prepare")),
        }
    }

    /// Asks a witness to accept a successor.
    ///
    /// # Errors
    /// When it does not say that it did, or is too old to know.
    pub async fn propose(&self, host: HostIndex, proposal: &Proposal) -> Result<Witnessed, Fault> {
        let proposal = proposal.bytes().to_vec();
        let asked = Request::Propose { proposal };
        match self.request(host, &asked, REQUEST_TIMEOUT).await?.0 {
            Response::Agreed => Ok(Witnessed::Agreed),
            Response::Outbid { ballot } => Ok(Witnessed::Outbid(ballot)),
            _ => Err(unexpected("propose")),
        }
    }

    /// Whether a host has a whole shard, of a checkpoint that need not be committed.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn has_shard(
        &self,
        host: HostIndex,
        checkpoint: CheckpointId,
        shard: ShardIndex,
    ) -> Result<bool, Fault> {
        let shard = shard.number();
        let asked = Request::Outline(ShardName { checkpoint, shard });
        match self.request(host, &asked, REQUEST_TIMEOUT).await {
            Ok((Response::Outline { .. }, _)) => Ok(true),
            Ok(_) => Err(unexpected("outline")),
            Err(Fault::Refused { .. }) => Ok(false),
            Err(fault) => Err(fault),
        }
    }
}
