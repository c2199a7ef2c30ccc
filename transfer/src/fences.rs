//! Requests to the witnesses of a checkpoint, about the successors of that checkpoint.

use codec::proposal::{Ballot, Proposal};
use codec::{CheckpointId, JobTag, OwnerId, ShardIndex};
use protocol::wire::limits::REQUEST_TIMEOUT;
use protocol::wire::message::{Request, Response, ShardName};
use tokio::time::{Duration, Instant};

use crate::hosts::unexpected;
use crate::{Fault, HostIndex, hosts::Hosts};

/// The checkpoint whose successor is to be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// The owner of the checkpoint.
    pub owner: OwnerId,
    /// The job of the checkpoint.
    pub job_tag: JobTag,
    /// The id of the checkpoint.
    pub checkpoint: CheckpointId,
}

/// The answer of a witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witnessed {
    /// The witness promised. The proposal is the one that it accepted before, if there is one.
    Promised(Option<Box<Proposal>>),
    /// The witness accepted the proposal.
    Agreed,
    /// The witness has promised this ballot, which is higher, or has a round that is too far below the one
    /// that was asked for.
    Outbid(Ballot),
}

/// How long a witness that is far behind is asked for higher and higher promises, until the caller has to
/// begin again.
const CLIMB_TIME: Duration = Duration::from_secs(2);

impl Hosts {
    /// Asks a witness to promise that it accepts no successor of a checkpoint with a lower ballot. A witness
    /// that has promised far lower rounds only is asked for rounds in between.
    ///
    /// # Errors
    /// When the witness does not answer as it should.
    pub async fn prepare(
        &self,
        host: HostIndex,
        followed: Followed,
        ballot: Ballot,
    ) -> Result<Witnessed, Fault> {
        let until = Instant::now() + CLIMB_TIME;
        let mut asked = ballot;
        loop {
            let answer = self.prepare_once(host, followed, asked).await?;
            let promised = match answer {
                Witnessed::Promised(_) if asked != ballot => asked,
                Witnessed::Outbid(promised) if promised < ballot => promised,
                other => return Ok(other),
            };
            let next = promised.step_to(ballot);
            // A host that refuses the step that it named lies.
            if next == asked || Instant::now() >= until {
                return Ok(Witnessed::Outbid(promised));
            }
            asked = next;
        }
    }

    async fn prepare_once(
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
    /// When the witness does not answer as it should.
    pub async fn propose(&self, host: HostIndex, proposal: &Proposal) -> Result<Witnessed, Fault> {
        let proposal = proposal.bytes().to_vec();
        let asked = Request::Propose { proposal };
        match self.request(host, &asked, REQUEST_TIMEOUT).await?.0 {
            Response::Agreed => Ok(Witnessed::Agreed),
            Response::Outbid { ballot } => Ok(Witnessed::Outbid(ballot)),
            _ => Err(unexpected("propose")),
        }
    }

    /// Whether a host holds a complete shard. Its checkpoint need not be committed.
    ///
    /// # Errors
    /// When the host does not answer.
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
