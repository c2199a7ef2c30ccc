//! Answers other donors: which shards this host holds, and proofs of them.

use std::sync::Arc;

use codec::OwnerId;
use codec::holding::{Asking, Tag};
use codec::proof::{ShardProof, Spot};
use protocol::identity::Role;
use protocol::wire::Code;
use protocol::wire::limits::PEER_HOLDS_ASKED_MAX;
use protocol::wire::message::{Refusal, Response, ShardName};

use super::{Answer, Exchange, blocking, busy};

impl Exchange<'_> {
    /// Answers a `PeerHolds` request. It costs one hash for each checkpoint that this host holds.
    pub(super) async fn peer_holds(
        &mut self,
        salt: [u8; 32],
        tags: Vec<Tag>,
    ) -> Result<(), Answer> {
        if tags.len() > PEER_HOLDS_ASKED_MAX {
            let refusal = Refusal::new(Code::BadRequest, "too many checkpoints");
            return Err(Answer::Refused(refusal));
        }
        let _place = self.place(&self.host.questions, "answers").await?;
        let asking = Asking::new(self.peer.id, self.host.id, &salt);
        let store = Arc::clone(&self.host.parts.store);
        let held = blocking(move || Ok(store.held_tags(&asking, &tags))).await?;
        self.respond(&Response::PeerHolds { held }).await
    }

    /// Answers a `Prove` request. An owner may ask about its own shards, a donor about all.
    pub(super) async fn prove(
        &mut self,
        owner: OwnerId,
        shard: ShardName,
        spot: Spot,
    ) -> Result<(), Answer> {
        if !self.peer.has(Role::Donor) && owner != self.peer.account() {
            return Err(Answer::Refused(Refusal::new(Code::NotFound, "")));
        }
        let host = Arc::clone(self.host);
        let _place = self.place(&host.questions, "answers").await?;
        let store = Arc::clone(&host.parts.store);
        let proof = blocking(move || store.prove(owner, &shard, spot)).await?;
        let proof = proof.ok_or_else(|| busy("the shard is being handed over"))?;
        host.parts.checking.answered(bytes_of(&proof));
        self.respond(&Response::Proof(proof)).await
    }
}

fn bytes_of(proof: &ShardProof) -> u64 {
    (proof.outline.len() + proof.page.len() + proof.block.len()) as u64
}
