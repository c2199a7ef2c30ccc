//! Answers saves that ask the witnesses of a checkpoint, so that only one successor of the checkpoint is
//! chosen.

use std::sync::Arc;

use codec::proposal::{Ballot, Proposal};
use codec::{CheckpointId, JobTag, OwnerId};
use protocol::wire::message::Response;
use serde_bytes::ByteBuf;
use tracing::{debug, info};

use super::scope::Scope;
use super::{Answer, Exchange, blocking, who};
use crate::core::fence::Bidder;
use crate::shards::{StoreError, Witnessed};

impl Exchange<'_> {
    /// Answers a `Prepare` request: promises to accept no ballot below this one, or reports the promised
    /// ballot if that is higher or far lower.
    pub(super) async fn prepare(
        &mut self,
        job_tag: JobTag,
        after: CheckpointId,
        ballot: Ballot,
    ) -> Result<(), Answer> {
        let _place = self.place(&self.host.changes, "small changes").await?;
        let store = Arc::clone(&self.host.parts.store);
        let who = who(self.peer);
        let scope = self.connection.scope.as_ref();
        let by = Bidder::of(scope.map(Scope::terms));
        let witnessed = blocking(move || store.promise((who, by), after, job_tag, ballot)).await?;
        debug!(peer = self.peer.name, %after, round = ballot.round, "asked to promise");
        self.respond(&response_of(witnessed)).await
    }

    /// Answers a `Propose` request. The signature is checked when the proposal is parsed. The store
    /// checks that the proposal is about a checkpoint of the asker, and a proposal that a job key signed
    /// has to come from that key.
    pub(super) async fn propose(&mut self, proposal: Vec<u8>) -> Result<(), Answer> {
        let _place = self.place(&self.host.changes, "small changes").await?;
        let proposal = Proposal::parse(proposal).map_err(StoreError::from)?;
        let grant = proposal.grant().map(|_| OwnerId(proposal.signer().0));
        if grant.is_some() && grant != who(self.peer).grant {
            return Err(StoreError::Mismatch("signer of the proposal").into());
        }
        let (after, successor) = {
            let proposed = proposal.proposed();
            (proposed.after, proposed.successor.checkpoint)
        };
        let store = Arc::clone(&self.host.parts.store);
        let who = who(self.peer);
        let witnessed = blocking(move || store.accept(who, proposal)).await?;
        if witnessed == Witnessed::Accepted {
            info!(peer = self.peer.name, %after, %successor, "accepted a successor");
        }
        self.respond(&response_of(witnessed)).await
    }
}

fn response_of(witnessed: Witnessed) -> Response {
    match witnessed {
        Witnessed::Promised(accepted) => Response::Promised {
            accepted: accepted.map(|one| ByteBuf::from(one.bytes().to_vec())),
        },
        Witnessed::Accepted => Response::Agreed,
        Witnessed::Outbid(ballot) => Response::Outbid { ballot },
    }
}
